//! `kubectl cordon` and `kubectl uncordon`.

use serde_json::json;

use crate::cli::Cli;
use crate::command::Command;
use crate::commands::CLUSTER;
use crate::error::{Error, Result};
use crate::fields::Fields;
use crate::printers::named;
use crate::selection::{Info, NOTHING_GIVEN, SELECTOR_FLAGS, Selection, Target};
use crate::transport::MERGE_PATCH;
use crate::write::{DRY_RUN_FLAGS, DryRun, Writer};

pub const CORDON: Command = Command {
    name: "cordon",
    group: CLUSTER,
    short: "Mark node as unschedulable",
    usage: "NODE",
    flags: &[SELECTOR_FLAGS, DRY_RUN_FLAGS],
    run: Some(|cli| Box::pin(run(cli, true))),
    ..Command::NONE
};

pub const UNCORDON: Command = Command {
    name: "uncordon",
    group: CLUSTER,
    short: "Mark node as schedulable",
    usage: "NODE",
    flags: &[SELECTOR_FLAGS, DRY_RUN_FLAGS],
    run: Some(|cli| Box::pin(run(cli, false))),
    ..Command::NONE
};

/// The nodes named, or those a selector finds.
pub async fn nodes(cli: &Cli) -> Result<(Vec<Info>, Vec<Error>)> {
    let args = &cli.args;
    if args.positional.is_empty() && !args.changed("selector") {
        let usage = args.command.rsplit(' ').next().unwrap_or_default();
        return Err(args.usage_error(format!("USAGE: {usage} NODE [flags]")));
    }
    if !args.positional.is_empty() && !args.text("selector").is_empty() {
        return Err(args.usage_error("error: cannot specify both a node name and a --selector option"));
    }
    if args.positional.is_empty() && args.text("selector").is_empty() {
        return Err(Error::message(NOTHING_GIVEN));
    }
    let resource = cli.resource("nodes").await?;
    let mut selection = Selection::from_args(cli, &[]);
    if !args.has("chunk-size") {
        selection.chunk = 500;
    }
    let targets: Vec<Target> = if args.positional.is_empty() {
        vec![Target::List { resource, namespace: String::new() }]
    } else {
        let names = args.positional.iter().map(|word| word.rsplit('/').next().unwrap_or(word));
        names
            .map(|name| Target::Named {
                resource: resource.clone(),
                namespace: String::new(),
                name: name.to_owned(),
            })
            .collect()
    };
    let (mut infos, mut errors) = (Vec::new(), Vec::new());
    for target in targets {
        match selection.fetch_one(cli, target).await {
            Ok(found) => infos.extend(found),
            Err(error @ Error::Plain(_)) => return Err(error),
            Err(error) => errors.push(error),
        }
    }
    Ok((infos, errors))
}

async fn run(cli: &Cli, cordon: bool) -> Result<()> {
    let writer = Writer::new(cli)?;
    let (infos, errors) = nodes(cli).await?;
    Error::collect(errors)?;
    for info in &infos {
        set_schedulable(&writer, info, cordon).await?;
    }
    Ok(())
}

pub async fn set_schedulable(writer: &Writer<'_>, info: &Info, cordon: bool) -> Result<()> {
    let word = if cordon { "cordoned" } else { "uncordoned" };
    if info.object.flag("spec.unschedulable") == cordon {
        return writer.cli.print(&named(&info.object, &format!("already {word}{}", writer.dry_run.suffix())));
    }
    if writer.dry_run != DryRun::Client {
        let wanted = if cordon { json!(true) } else { json!(null) };
        writer.patch(info.into(), MERGE_PATCH, &json!({"spec": {"unschedulable": wanted}})).await?;
    }
    writer.cli.print(&named(&info.object, &format!("{word}{}", writer.dry_run.suffix())))?;
    writer.cli.flush()
}
