//! `kubectl rollout`: how far a new version of a workload has come, its history, and going back.

mod history;
mod pause;
mod status;
mod undo;

use super::DEPLOY;
use crate::cli::Cli;
use crate::command::Command;
use crate::error::{Error, Result};
use crate::fields::Fields;
use crate::selection::{Info, Selected, Selection, list_all};

pub const COMMAND: Command = Command {
    name: "rollout",
    group: DEPLOY,
    short: "Manage the rollout of a workload",
    usage: "SUBCOMMAND",
    children: &[
        &history::COMMAND,
        &pause::PAUSE,
        &pause::RESTART,
        &pause::RESUME,
        &status::COMMAND,
        &undo::COMMAND,
    ],
    ..Command::NONE
};

pub const REVISION: &str = "deployment.kubernetes.io/revision";

/// The workloads named, or all a selector finds.
pub async fn workloads(cli: &Cli) -> Result<Selected> {
    if cli.args.positional.is_empty() && !cli.args.has_files() {
        return Err(Error::message("required resource not specified"));
    }
    let mut selection = Selection::from_args(cli, &cli.args.positional);
    selection.types_mean_all = true;
    selection.chunk = 500;
    selection.fetch(cli).await
}

/// Says so when a selector found nothing.
pub fn warn_if_empty(cli: &Cli, infos: &[Info]) -> Result<()> {
    if infos.is_empty() {
        eprintln!("No resources found in {} namespace.", cli.namespace()?.name);
    }
    Ok(())
}

/// The revisions a workload has been at: replica sets of a deployment, controller revisions of the
/// others. Oldest first, each with its number.
pub async fn revisions(cli: &Cli, info: &Info) -> Result<Vec<(i64, serde_json::Value)>> {
    let uid = info.object.text("metadata.uid");
    let word =
        if info.resource.kind == "Deployment" { "replicasets.apps" } else { "controllerrevisions.apps" };
    let resource = cli.resource(word).await?;
    let query =
        crate::transport::Query::new().with("labelSelector", &crate::pods::selector_of(&info.object)?);
    let mut revisions = Vec::new();
    for mut object in list_all(cli, &resource.path(&info.namespace), &query).await? {
        object["kind"] = resource.kind.clone().into();
        object["apiVersion"] = resource.group_version().into();
        let owned = object
            .list("metadata.ownerReferences")
            .iter()
            .any(|owner| owner.text("uid") == uid && owner.flag("controller"));
        if !owned {
            continue;
        }
        let number = if info.resource.kind == "Deployment" {
            object.keyed("metadata.annotations", REVISION).parse().unwrap_or(0)
        } else {
            object.int("revision").unwrap_or(0)
        };
        revisions.push((number, object));
    }
    revisions.sort_by_key(|(number, _)| *number);
    Ok(revisions)
}
