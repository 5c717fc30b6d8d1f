//! `kubectl rollout history`.

use serde_json::Value;

use super::{revisions, workloads};
use crate::cli::Cli;
use crate::command::Command;
use crate::describe;
use crate::error::{Error, Result};
use crate::fields::Fields;
use crate::flags::Flag;
use crate::printers::columns::{DESCRIBE, align};
use crate::printers::{self, Format, OBJECT_FORMATS};
use crate::selection::{FILE_FLAGS, Info, SELECTOR_FLAGS};
use crate::write::CHANGE_CAUSE;

pub const COMMAND: Command = Command {
    name: "history",
    short: "Show the revisions of a rollout",
    usage: "(TYPE NAME | TYPE/NAME) [flags]",
    flags: &[
        FILE_FLAGS,
        SELECTOR_FLAGS,
        printers::FLAGS,
        &[Flag::int("revision", "Show this revision in detail")],
    ],
    run: Some(|cli| Box::pin(run(cli))),
    ..Command::NONE
};

async fn run(cli: &Cli) -> Result<()> {
    let revision = cli.args.int("revision");
    if revision < 0 {
        return Err(Error::message(format!("revision must be a positive integer: {revision}")));
    }
    let format = Format::from_args(&cli.args, OBJECT_FORMATS)?;
    let selected = workloads(cli).await?;
    let mut errors = selected.errors;
    for info in &selected.infos {
        if let Err(error) = show(cli, info, revision, &format).await {
            errors.push(error);
        }
    }
    cli.flush()?;
    Error::collect(errors)
}

async fn show(cli: &Cli, info: &Info, revision: i64, format: &Format) -> Result<()> {
    if !matches!(info.resource.kind.as_str(), "Deployment" | "DaemonSet" | "StatefulSet") {
        return Err(Error::message(format!(
            "no history viewer has been implemented for {:?}",
            info.resource.kind
        )));
    }
    let history = revisions(cli, info).await?;
    if !cli.args.text("output").is_empty() {
        let is_chosen = |number: i64| revision == 0 || number == revision;
        let chosen: Vec<&Value> =
            history.iter().filter(|(number, _)| is_chosen(*number)).map(|(_, object)| object).collect();
        if chosen.is_empty() && revision > 0 {
            return Err(Error::message("unable to find the specified revision"));
        }
        for (position, object) in chosen.into_iter().enumerate() {
            if position > 0 && *format == Format::Yaml {
                cli.print("---\n")?;
            }
            cli.print(&format.print(object, &cli.args)?)?;
        }
        return Ok(());
    }
    if !format.is_human() {
        // a template without -o is about the workload itself
        return cli.print(&format.print(&info.object, &cli.args)?);
    }
    let header = format!("{}/{}", info.resource.kind_name(), info.name);
    if revision > 0 {
        cli.line(format!("{header} with revision #{revision}"))?;
        if history.is_empty() {
            return cli.line(table(&history));
        }
        cli.line(detail(info, &history, revision)?)
    } else {
        cli.line(format!("{header} "))?;
        cli.line(table(&history))
    }
}

fn table(history: &[(i64, Value)]) -> String {
    if history.is_empty() {
        return "No rollout history found.".to_owned();
    }
    let mut text = "REVISION\tCHANGE-CAUSE\n".to_owned();
    for (number, object) in history {
        let cause = match object.keyed("metadata.annotations", CHANGE_CAUSE) {
            "" => "<none>",
            cause => cause,
        };
        text.push_str(&format!("{number}\t{cause}\n"));
    }
    align(&text, DESCRIBE)
}

fn detail(info: &Info, history: &[(i64, Value)], revision: i64) -> Result<String> {
    let (_, object) = history
        .iter()
        .find(|(number, _)| *number == revision)
        .ok_or_else(|| Error::message("unable to find the specified revision"))?;
    let template = if info.resource.kind == "Deployment" {
        object.at("spec.template")
    } else {
        object.at("data.spec.template")
    };
    // Upstream puts no tab stops here.
    Ok(describe::pod_template(template, object.keyed("metadata.annotations", CHANGE_CAUSE)))
}
