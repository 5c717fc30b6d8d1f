//! `kubectl rollout undo`: back to an earlier revision's pod template.

use serde_json::{Value, json};

use super::{revisions, workloads};
use crate::cli::Cli;
use crate::command::Command;
use crate::describe;
use crate::error::{Error, Result};
use crate::fields::{self, Fields};
use crate::flags::Flag;
use crate::printers;
use crate::selection::{FILE_FLAGS, Info, SELECTOR_FLAGS};
use crate::transport::{JSON_PATCH, STRATEGIC_MERGE_PATCH};
use crate::write::{CHANGE_CAUSE, DRY_RUN_FLAGS, DryRun, LAST_APPLIED, Writer};

pub const COMMAND: Command = Command {
    name: "undo",
    short: "Go back to an earlier revision",
    usage: "(TYPE NAME | TYPE/NAME) [flags]",
    flags: &[
        FILE_FLAGS,
        SELECTOR_FLAGS,
        printers::FLAGS,
        DRY_RUN_FLAGS,
        &[Flag::int("to-revision", "The revision to go back to; 0 is the one before")],
    ],
    run: Some(|cli| Box::pin(run(cli))),
    ..Command::NONE
};

async fn run(cli: &Cli) -> Result<()> {
    let writer = Writer::new(cli)?;
    let selected = workloads(cli).await?;
    let mut errors = selected.errors;
    for info in &selected.infos {
        if !info.object.keyed("metadata.annotations", LAST_APPLIED).is_empty() && writer.format.is_human() {
            eprintln!(
                "Warning: resource {}/{} was previously managed with 'kubectl apply'. Rolling back will not update the {LAST_APPLIED} annotation, which may cause unexpected behavior on future 'kubectl apply' operations. Consider using 'kubectl apply' with your previous configuration file instead.",
                info.resource.name, info.name
            );
        }
        if let Err(error) = undo(&writer, info).await {
            errors.push(error);
        }
    }
    cli.flush()?;
    Error::collect(errors)
}

async fn undo(writer: &Writer<'_>, info: &Info) -> Result<()> {
    let cli = writer.cli;
    let wanted = cli.args.int("to-revision");
    let kind = info.resource.kind.as_str();
    if !matches!(kind, "Deployment" | "DaemonSet" | "StatefulSet") {
        return Err(Error::message(format!(
            "no rollbacker has been implemented for {:?}",
            info.resource.kind
        )));
    }
    if info.object.flag("spec.paused") {
        return Err(Error::message(
            "you cannot rollback a paused deployment; resume it first with 'kubectl rollout resume' and try again",
        ));
    }
    let history = revisions(cli, info).await?;
    let (_, target) = match wanted {
        0 if history.len() < 2 => {
            return Err(Error::message(match kind {
                "Deployment" => format!("no rollout history found for deployment {:?}", info.name),
                _ => "no last revision to roll back to".to_owned(),
            }));
        }
        0 => &history[history.len() - 2],
        number => history.iter().find(|(known, _)| *known == number).ok_or_else(|| {
            Error::message(format!("unable to find specified revision {number} in history"))
        })?,
    };
    let (patch, content_type) = patch_to(kind, &info.object, target);
    if writer.dry_run == DryRun::Client {
        let template =
            if kind == "Deployment" { target.at("spec.template") } else { target.at("data.spec.template") };
        let text = describe::pod_template(template, "");
        let will = if kind == "Deployment" { "" } else { "will roll back to " };
        return cli.print(&printers::named(&info.object, &format!("{will}{text} (dry run)")));
    }
    if same_template(kind, &info.object, target) {
        let number = if wanted == 0 { history[history.len() - 2].0 } else { wanted };
        return writer.report(
            &info.object,
            &format!("skipped rollback (current template already matches revision {number})"),
        );
    }
    let changed = writer
        .patch(info.into(), content_type, &patch)
        .await
        .map_err(|error| error.context(format!("failed restoring revision {wanted}")))?;
    writer.report(&changed, "rolled back")
}

/// A deployment takes over the template and annotations of the replica set; the others are patched
/// with the data of their controller revision.
fn patch_to(kind: &str, object: &Value, target: &Value) -> (Value, &'static str) {
    if kind != "Deployment" {
        return (target.at("data").clone(), STRATEGIC_MERGE_PATCH);
    }
    let annotations = |object: &Value, wanted: fn(&str) -> bool| {
        object
            .map("metadata.annotations")
            .cloned()
            .unwrap_or_default()
            .into_iter()
            .filter(move |(key, _)| wanted(key))
            .collect::<Vec<_>>()
    };
    // what belongs to the deployment itself stays, what describes the revision comes back
    let own = |key: &str| key == LAST_APPLIED || key.starts_with("deployment.kubernetes.io/");
    let mut merged = serde_json::Map::from_iter(annotations(object, own));
    merged.extend(annotations(target, |key| {
        key != LAST_APPLIED && !key.starts_with("deployment.kubernetes.io/") && key != CHANGE_CAUSE
    }));
    if let Some(cause) = target.map("metadata.annotations").and_then(|map| map.get(CHANGE_CAUSE)) {
        merged.insert(CHANGE_CAUSE.to_owned(), cause.clone());
    }
    let patch = json!([
        {"op": "replace", "path": "/spec/template", "value": template_of(kind, target)},
        {"op": "replace", "path": "/metadata/annotations", "value": merged},
    ]);
    (patch, JSON_PATCH)
}

fn template_of(kind: &str, target: &Value) -> Value {
    let mut template = if kind == "Deployment" {
        target.at("spec.template").clone()
    } else {
        target.at("data.spec.template").clone()
    };
    if let Some(Value::Object(labels)) = template.pointer_mut("/metadata/labels") {
        labels.remove("pod-template-hash");
    }
    fields::remove(&mut template, "$patch");
    template
}

fn same_template(kind: &str, object: &Value, target: &Value) -> bool {
    *object.at("spec.template") == template_of(kind, target)
}
