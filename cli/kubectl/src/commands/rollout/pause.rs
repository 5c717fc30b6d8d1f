//! `kubectl rollout pause`, `resume` and `restart`: one small change of the workload each.

use serde_json::{Value, json};

use super::{warn_if_empty, workloads};
use crate::cli::Cli;
use crate::command::Command;
use crate::error::{Error, Result};
use crate::fields::{self, Fields};
use crate::flags::Flag;
use crate::printers;
use crate::selection::{FILE_FLAGS, Info, SELECTOR_FLAGS};
use crate::write::{RECORD_FLAGS, Writer, difference};

const MANAGER: &[Flag] =
    &[Flag::text("field-manager", "Name of the field manager").default("kubectl-rollout")];

pub const PAUSE: Command = Command {
    name: "pause",
    short: "Pause a deployment's rollout",
    usage: "RESOURCE",
    flags: &[FILE_FLAGS, SELECTOR_FLAGS, printers::FLAGS, RECORD_FLAGS, MANAGER],
    run: Some(|cli| Box::pin(run(cli, pause, "paused"))),
    ..Command::NONE
};

pub const RESUME: Command = Command {
    name: "resume",
    short: "Resume a paused rollout",
    usage: "RESOURCE",
    flags: &[FILE_FLAGS, SELECTOR_FLAGS, printers::FLAGS, RECORD_FLAGS, MANAGER],
    run: Some(|cli| Box::pin(run(cli, resume, "resumed"))),
    ..Command::NONE
};

pub const RESTART: Command = Command {
    name: "restart",
    short: "Restart a workload's pods, one after the other",
    usage: "RESOURCE",
    flags: &[FILE_FLAGS, SELECTOR_FLAGS, printers::FLAGS, RECORD_FLAGS, MANAGER],
    run: Some(|cli| Box::pin(run(cli, restart, "restarted"))),
    ..Command::NONE
};

async fn run(
    cli: &Cli,
    change: fn(&mut Value, &Info) -> std::result::Result<(), &'static str>,
    operation: &str,
) -> Result<()> {
    let writer = Writer::new(cli)?;
    let selected = workloads(cli).await?;
    let mut errors = selected.errors;
    if errors.is_empty() {
        warn_if_empty(cli, &selected.infos)?;
    }
    for info in &selected.infos {
        let mut object = info.object.clone();
        if let Err(reason) = change(&mut object, info) {
            errors.push(Error::message(format!(
                "error: {} {:?} {reason}",
                info.resource.qualified(),
                info.name
            )));
            continue;
        }
        if object == info.object {
            errors.push(Error::message(format!(
                "failed to create patch for {}: if restart has already been triggered within the past second, please wait before attempting to trigger another",
                info.name
            )));
            continue;
        }
        let (patch, content_type) = difference(&info.object, &object)?;
        match writer.patch(info.into(), content_type, &patch).await {
            Ok(changed) => writer.report(&changed, operation)?,
            Err(error) => errors.push(Error::message(format!("failed to patch: {error}"))),
        }
    }
    cli.flush()?;
    Error::collect(errors)
}

fn pause(object: &mut Value, info: &Info) -> std::result::Result<(), &'static str> {
    if info.resource.kind != "Deployment" {
        return Err("pausing is not supported");
    }
    if object.flag("spec.paused") {
        return Err("is already paused");
    }
    fields::set(object, "spec.paused", json!(true));
    Ok(())
}

fn resume(object: &mut Value, info: &Info) -> std::result::Result<(), &'static str> {
    if info.resource.kind != "Deployment" {
        return Err("resuming is not supported");
    }
    if !object.flag("spec.paused") {
        return Err("is not paused");
    }
    fields::remove(object, "spec.paused");
    Ok(())
}

fn restart(object: &mut Value, info: &Info) -> std::result::Result<(), &'static str> {
    if !matches!(info.resource.kind.as_str(), "Deployment" | "DaemonSet" | "StatefulSet") {
        return Err("restarting is not supported");
    }
    if object.flag("spec.paused") {
        return Err("can't restart paused deployment (run rollout resume first)");
    }
    let now = jiff::Zoned::now().strftime("%Y-%m-%dT%H:%M:%S%:z").to_string();
    let now = now.strip_suffix("+00:00").map_or(now.clone(), |utc| format!("{utc}Z"));
    fields::set_keyed(object, "spec.template.metadata.annotations", "kubectl.kubernetes.io/restartedAt", now);
    Ok(())
}
