//! `apply view-last-applied`, `set-last-applied`, `edit-last-applied`.

use serde_json::Value;

use super::merge::last_applied;
use crate::cli::Cli;
use crate::command::Command;
use crate::commands::edit;
use crate::error::{Error, Result};
use crate::fields::Fields;
use crate::flags::Flag;
use crate::printers;
use crate::selection::{FILE_FLAGS, SELECTOR_FLAGS, Selection};
use crate::transport::MERGE_PATCH;
use crate::write::{
    DRY_RUN_FLAGS, DryRun, LAST_APPLIED, RECORD_FLAGS, VALIDATE_FLAGS, Writer, configuration,
};
use ferry_api::go_json;

pub const VIEW: Command = Command {
    name: "view-last-applied",
    short: "Show what was applied last",
    usage: "(TYPE [NAME | -l label] | TYPE/NAME | -f FILENAME)",
    flags: &[
        FILE_FLAGS,
        SELECTOR_FLAGS,
        &[
            Flag::text("output", "yaml or json").short('o').default("yaml"),
            Flag::bool("all", "All resources of the type"),
        ],
    ],
    run: Some(|cli| Box::pin(view(cli))),
    ..Command::NONE
};

pub const SET: Command = Command {
    name: "set-last-applied",
    short: "Set what counts as applied last to a file's content",
    usage: "-f FILENAME",
    flags: &[
        FILE_FLAGS,
        printers::FLAGS,
        DRY_RUN_FLAGS,
        &[Flag::bool("create-annotation", "Also where there is no annotation yet")],
    ],
    run: Some(|cli| Box::pin(set(cli))),
    ..Command::NONE
};

pub const EDIT: Command = Command {
    name: "edit-last-applied",
    short: "Edit what counts as applied last",
    usage: "(RESOURCE/NAME | -f FILENAME)",
    flags: &[
        FILE_FLAGS,
        printers::FLAGS,
        RECORD_FLAGS,
        VALIDATE_FLAGS,
        &[
            Flag::bool("windows-line-endings", "End lines for Windows' editors"),
            Flag::text("field-manager", "Name of the field manager").default("kubectl-client-side-apply"),
        ],
    ],
    run: Some(|cli| Box::pin(edit::edit_last_applied(cli))),
    ..Command::NONE
};

async fn view(cli: &Cli) -> Result<()> {
    let format = cli.args.text("output");
    if !matches!(format, "yaml" | "json") {
        return Err(cli.args.usage_error(format!(
            "Unexpected -o output mode: {format}, the flag 'output' must be one of yaml|json"
        )));
    }
    let mut selection = Selection::from_args(cli, &cli.args.positional);
    selection.chunk = 500;
    for info in selection.fetch(cli).await?.all()? {
        let configured = last_applied(&info.object)?;
        if configured.as_object().is_none_or(|map| map.is_empty()) {
            return Err(Error::message(format!(
                "no last-applied-configuration annotation found on resource: {}",
                info.name
            )));
        }
        cli.print(&if format == "json" {
            go_json::pretty(&configured).replace("    ", "  ")
        } else {
            ferry_api::yaml::encode_value(&configured)
        })?;
    }
    Ok(())
}

async fn set(cli: &Cli) -> Result<()> {
    let writer = Writer::new(cli)?;
    let (infos, errors) = Selection::from_args(cli, &[]).objects(cli).await?;
    Error::collect(errors)?;
    if infos.is_empty() {
        return Err(Error::message("must specify --filename or --kustomize"));
    }
    for info in infos {
        let live = cli.client()?.get_json(&info.path()).await?;
        let known = live.keyed("metadata.annotations", LAST_APPLIED);
        if known.is_empty() && !cli.args.bool("create-annotation") {
            return Err(Error::message(format!(
                "no last-applied-configuration annotation found on resource: {}, to create the annotation, run the command with --create-annotation",
                info.name
            )));
        }
        let wanted = configuration(&info.object);
        if known == wanted {
            writer.report(&live, "configured")?;
            continue;
        }
        let patch: Value = serde_json::json!({"metadata": {"annotations": {LAST_APPLIED: wanted}}});
        let object = if writer.dry_run == DryRun::Client {
            live
        } else {
            writer.patch((&info).into(), MERGE_PATCH, &patch).await?
        };
        writer.report(&object, "configured")?;
    }
    Ok(())
}
