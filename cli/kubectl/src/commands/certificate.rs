//! `kubectl certificate approve|deny`.

use http::Method;
use serde_json::{Value, json};

use super::CLUSTER;
use crate::cli::Cli;
use crate::command::Command;
use crate::error::{Error, Result};
use crate::fields::Fields;
use crate::flags::Flag;
use crate::printers;
use crate::selection::{FILE_FLAGS, Info, Selection, Target};
use crate::transport::{JSON, Request};
use crate::write::Writer;

pub const COMMAND: Command = Command {
    name: "certificate",
    group: CLUSTER,
    short: "Approve or deny certificate requests",
    usage: "SUBCOMMAND",
    children: &[&APPROVE, &DENY],
    ..Command::NONE
};

const FORCE: &[Flag] = &[Flag::bool("force", "Also when it is decided already")];

const APPROVE: Command = Command {
    name: "approve",
    short: "Approve a certificate signing request",
    usage: "(-f FILENAME | NAME)",
    flags: &[FILE_FLAGS, printers::FLAGS, FORCE],
    run: Some(|cli| {
        Box::pin(run(
            cli,
            "Approved",
            "KubectlApprove",
            "This CSR was approved by kubectl certificate approve.",
            "approved",
        ))
    }),
    ..Command::NONE
};

const DENY: Command = Command {
    name: "deny",
    short: "Deny a certificate signing request",
    usage: "(-f FILENAME | NAME)",
    flags: &[FILE_FLAGS, printers::FLAGS, FORCE],
    run: Some(|cli| {
        Box::pin(run(
            cli,
            "Denied",
            "KubectlDeny",
            "This CSR was denied by kubectl certificate deny.",
            "denied",
        ))
    }),
    ..Command::NONE
};

async fn run(cli: &Cli, kind: &str, reason: &str, message: &str, operation: &str) -> Result<()> {
    if cli.args.positional.is_empty() && !cli.args.has_files() {
        return Err(Error::message("one or more CSRs must be specified as <name> or -f <filename>"));
    }
    let writer = Writer::new(cli)?;
    let requests = cli.resource("certificatesigningrequests.certificates.k8s.io").await?;
    let selection = Selection::from_args(cli, &[]);
    let mut infos: Vec<Info> = Vec::new();
    if cli.args.has_files() {
        infos = selection.fetch(cli).await?.all()?;
    }
    for name in &cli.args.positional {
        let target =
            Target::Named { resource: requests.clone(), namespace: String::new(), name: name.clone() };
        infos.extend(selection.fetch_one(cli, target).await?);
    }
    for info in &infos {
        let mut object = info.object.clone();
        let decided = decide(&mut object, kind, reason, message, cli.args.bool("force"))?;
        let object = if decided {
            cli.client()?
                .json(Request::with_body(
                    Method::PUT,
                    &format!("{}/approval", info.path()),
                    JSON,
                    object.to_string(),
                ))
                .await?
        } else {
            object
        };
        writer.report(&object, operation)?;
    }
    Ok(())
}

/// Adds the condition; a request that has it is left as it is.
fn decide(object: &mut Value, kind: &str, reason: &str, message: &str, force: bool) -> Result<bool> {
    for condition in object.list("status.conditions") {
        if condition.text("type") == kind && !force {
            return Ok(false);
        }
        if matches!(condition.text("type"), "Approved" | "Denied") && condition.text("type") != kind {
            return Err(Error::message(format!(
                "certificate signing request {:?} is already {}",
                object.name(),
                condition.text("type")
            )));
        }
    }
    let now = jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let mut conditions: Vec<Value> = object
        .list("status.conditions")
        .iter()
        .filter(|condition| condition.text("type") != kind)
        .cloned()
        .collect();
    conditions.push(json!({"type": kind, "status": "True", "reason": reason, "message": message, "lastUpdateTime": now, "lastTransitionTime": now}));
    crate::fields::set(object, "status.conditions", Value::Array(conditions));
    Ok(true)
}
