//! `kubectl describe`.

use super::TROUBLESHOOT;
use crate::cli::Cli;
use crate::command::Command;
use crate::describe;
use crate::error::{Error, Result};
use crate::flags::Flag;
use crate::printers::inert;
use crate::selection::{
    ALL_NAMESPACES_FLAGS, CHUNK_FLAGS, FILE_FLAGS, Info, SELECTOR_FLAGS, Selection, Target,
};

pub const COMMAND: Command = Command {
    name: "describe",
    suggested_for: &["inspect"],
    group: TROUBLESHOOT,
    short: "Show details of one or many resources",
    usage: "(-f FILENAME | TYPE [NAME_PREFIX | -l label] | TYPE/NAME)",
    flags: &[
        FILE_FLAGS,
        SELECTOR_FLAGS,
        ALL_NAMESPACES_FLAGS,
        CHUNK_FLAGS,
        &[Flag::bool("show-events", "Show events too").default("true")],
    ],
    run: Some(|cli| Box::pin(run(cli))),
    ..Command::NONE
};

async fn run(cli: &Cli) -> Result<()> {
    let args = &cli.args;
    if args.positional.is_empty() && !args.has_files() {
        return Err(Error::message(
            "You must specify the type of resource to describe. Use \"kubectl api-resources\" for a complete list of supported resources.",
        ));
    }
    let mut selection = Selection::from_args(cli, &args.positional);
    selection.types_mean_all = true;
    let mut selected = selection.fetch(cli).await?;
    let mut by_prefix_only = false;
    if selected.infos.is_empty()
        && selected.errors.len() == 1
        && selected.errors[0].is_not_found()
        && args.positional.len() == 2
    {
        let found = by_prefix(cli, &args.positional[0], &args.positional[1]).await?;
        if !found.is_empty() {
            (selected.infos, selected.errors) = (found, Vec::new());
            by_prefix_only = true;
        }
    }
    // events of many objects would drown what they are about
    let show_events = if args.changed("show-events") {
        args.bool("show-events")
    } else {
        selected.infos.len() == 1 && !by_prefix_only
    };
    let mut errors = selected.errors;
    let mut first = true;
    for info in &selected.infos {
        match describe::describe(cli, info, show_events).await {
            Ok(text) => {
                if !first && !by_prefix_only {
                    cli.print("\n\n")?;
                }
                first = false;
                cli.print(&inert(&text))?;
                if by_prefix_only {
                    cli.print("\n")?;
                }
            }
            Err(error) => errors.push(error),
        }
    }
    cli.flush()?;
    if selected.infos.is_empty() && errors.is_empty() {
        if args.bool("all-namespaces") {
            eprintln!("No resources found");
        } else {
            eprintln!("No resources found in {} namespace.", cli.namespace()?.name);
        }
    }
    Error::collect(errors)
}

/// A name that is none may be the start of some.
async fn by_prefix(cli: &Cli, kind: &str, prefix: &str) -> Result<Vec<Info>> {
    let resource = cli.resource(kind).await?;
    let namespace = if resource.namespaced { cli.namespace()?.name } else { String::new() };
    let selection = Selection::from_args(cli, &[]);
    let all = selection.fetch_one(cli, Target::List { resource, namespace }).await?;
    Ok(all.into_iter().filter(|info| info.name.starts_with(prefix)).collect())
}
