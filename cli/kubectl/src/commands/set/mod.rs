//! `kubectl set`: one field of a workload's pod template, or of a binding or service.

mod env;
mod image;
mod resources;
mod selector;
mod service_account;
mod subject;

use serde_json::{Value, json};

use super::BEGINNER;
use crate::cli::Cli;
use crate::command::Command;
use crate::error::{Error, Result};
use crate::flags::Flag;
use crate::selection::{Info, Selection};
use crate::write::{DryRun, Writer, difference, record_cause};

pub const COMMAND: Command = Command {
    name: "set",
    group: BEGINNER,
    short: "Set one field of a resource",
    usage: "SUBCOMMAND",
    children: &[
        &env::COMMAND,
        &image::COMMAND,
        &resources::COMMAND,
        &selector::COMMAND,
        &service_account::COMMAND,
        &subject::COMMAND,
    ],
    ..Command::NONE
};

pub const SET_FLAGS: &[Flag] = &[
    Flag::bool("all", "All resources of the type"),
    Flag::bool("local", "Work on the file alone, without a server"),
    Flag::text("field-manager", "Name of the field manager").default("kubectl-set"),
];

/// Where the pod's spec stands in a kind, or nowhere.
pub fn pod_spec_path(kind: &str) -> Option<&'static str> {
    match kind {
        "Pod" => Some("/spec"),
        "Deployment" | "DaemonSet" | "StatefulSet" | "ReplicaSet" | "ReplicationController" | "Job" => {
            Some("/spec/template/spec")
        }
        "CronJob" => Some("/spec/jobTemplate/spec/template/spec"),
        _ => None,
    }
}

/// Objects from files or the server, as the flags say.
pub async fn selected(cli: &Cli, words: &[String]) -> Result<(Vec<Info>, Vec<Error>)> {
    let mut selection = Selection::from_args(cli, words);
    selection.chunk = 500;
    selection.live = !cli.args.bool("local");
    selection.types_mean_all = cli.args.bool("all");
    if cli.args.bool("local") && !cli.args.has_files() {
        return Err(Error::message("one or more files must be specified as -f when --local is set"));
    }
    let selected = selection.fetch(cli).await?;
    Ok((selected.infos, selected.errors))
}

/// Changes each object with `change`, sends what differs, and reports it. `failure` is how a refusal
/// starts; without one the server's own words stand.
pub async fn change_all(
    writer: &Writer<'_>,
    infos: Vec<Info>,
    mut errors: Vec<Error>,
    operation: &str,
    failure: &str,
    change: impl Fn(&mut Value, &Info) -> Result<()>,
) -> Result<()> {
    let cli = writer.cli;
    for info in infos {
        let mut object = info.object.clone();
        let outcome = async {
            change(&mut object, &info)?;
            let local = cli.args.bool("local") || writer.dry_run == DryRun::Client;
            if object == info.object {
                return if local || !writer.format.is_human() {
                    writer.report(&object, operation)
                } else {
                    Ok(())
                };
            }
            record_cause(&cli.args, &mut object);
            if local {
                return writer.report(&object, operation);
            }
            let (patch, content_type) = difference(&info.object, &object)?;
            let changed =
                writer.patch((&info).into(), content_type, &patch).await.map_err(|error| match error {
                    Error::Status(status) if !failure.is_empty() => {
                        Error::message(format!("{failure} {}", status.message))
                    }
                    other => other,
                })?;
            writer.report(&changed, operation)
        };
        if let Err(error) = outcome.await {
            errors.push(error);
        }
    }
    cli.flush()?;
    Error::collect(errors)
}

/// The containers a pattern (`*`, a name, a prefix with `*`) chooses.
pub fn matches(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == name,
        Some((start, end)) => {
            name.len() >= start.len() + end.len() && name.starts_with(start) && name.ends_with(end)
        }
    }
}

/// The pod spec inside an object, to change it.
pub fn pod_spec_mut<'a>(object: &'a mut Value, info: &Info) -> Result<&'a mut Value> {
    let path = pod_spec_path(&info.resource.kind).ok_or_else(|| {
        Error::message(format!(
            "the object is not a pod or does not have a pod template: {}",
            info.resource.kind
        ))
    })?;
    object.pointer_mut(path).ok_or_else(|| Error::message(format!("{} has no pod template", info.quoted())))
}

/// Sets a key of a map, making the map where there is none.
pub fn set_in(target: &mut Value, key: &str, value: Value) {
    if !target.is_object() {
        *target = json!({});
    }
    target[key] = value;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_choose_containers() {
        assert!(matches("*", "web"));
        assert!(matches("we*", "web"));
        assert!(matches("web", "web"));
        assert!(!matches("we", "web"));
        assert!(!matches("a*b", "a"));
    }
}
