//! `kubectl patch`.

use serde_json::Value;

use super::ADVANCED;
use crate::cli::Cli;
use crate::command::Command;
use crate::error::{Error, Result, system_words};
use crate::fields::Fields;
use crate::flags::Flag;
use crate::printers;
use crate::selection::{FILE_FLAGS, Info, Selection};
use crate::transport::{JSON_PATCH, MERGE_PATCH, STRATEGIC_MERGE_PATCH};
use crate::write::{DRY_RUN_FLAGS, DryRun, PatchTarget, RECORD_FLAGS, Writer, schema_of};
use crate::yaml;

pub const COMMAND: Command = Command {
    name: "patch",
    group: ADVANCED,
    short: "Change fields of a resource",
    usage: "(-f FILENAME | TYPE NAME) [-p PATCH|--patch-file FILE]",
    flags: &[
        FILE_FLAGS,
        printers::FLAGS,
        DRY_RUN_FLAGS,
        RECORD_FLAGS,
        &[
            Flag::text("patch", "The patch, as JSON or YAML").short('p'),
            Flag::text("patch-file", "File with the patch"),
            Flag::text("type", "strategic, merge or json").default("strategic"),
            Flag::bool("local", "Work on the file alone, without a server"),
            Flag::text("subresource", "Change this subresource"),
            Flag::text("field-manager", "Name of the field manager").default("kubectl-patch"),
        ],
    ],
    run: Some(|cli| Box::pin(run(cli))),
    ..Command::NONE
};

async fn run(cli: &Cli) -> Result<()> {
    let args = &cli.args;
    if !args.text("patch").is_empty() && !args.text("patch-file").is_empty() {
        return Err(Error::message("cannot specify --patch and --patch-file together"));
    }
    let text = match (args.text("patch"), args.text("patch-file")) {
        ("", "") => {
            return Err(Error::message(
                "must specify --patch or --patch-file containing the contents of the patch",
            ));
        }
        ("", file) => std::fs::read_to_string(file).map_err(|error| {
            Error::message(format!("unable to read patch file: open {file}: {}", system_words(&error)))
        })?,
        (patch, _) => patch.to_owned(),
    };
    if args.bool("local") && !args.has_files() {
        return Err(Error::message("--local requires a file"));
    }
    let content_type = match args.text("type") {
        "json" => JSON_PATCH,
        "merge" => MERGE_PATCH,
        "strategic" => STRATEGIC_MERGE_PATCH,
        other => {
            return Err(Error::message(format!(
                "--type must be one of [json merge strategic], not {other:?}"
            )));
        }
    };
    let patch = yaml::document(&text)
        .map_err(|error| Error::message(format!("unable to parse {text:?}: {error}")))?;
    let writer = Writer::new(cli)?;
    let mut selection = Selection::from_args(cli, &args.positional);
    // the target's existence is the patch's business, but `(no change)` needs what was there before
    selection.live = !args.bool("local");
    selection.subresource = args.text("subresource").to_owned();
    let selected = selection.fetch(cli).await?;
    let mut errors = selected.errors;
    for info in &selected.infos {
        if let Err(error) = patch_one(&writer, info, content_type, &patch).await {
            errors.push(error);
        }
    }
    cli.flush()?;
    Error::collect(errors)
}

async fn patch_one(writer: &Writer<'_>, info: &Info, content_type: &str, patch: &Value) -> Result<()> {
    let args = &writer.cli.args;
    let patched = if args.bool("local") || writer.dry_run == DryRun::Client {
        apply_locally(&info.object, content_type, patch)?
    } else {
        let target = PatchTarget { subresource: args.text("subresource"), ..info.into() };
        let patched = writer.patch(target, content_type, patch).await.map_err(|error| match error {
            Error::Status(status) if status.reason == "UnsupportedMediaType" => Error::message(format!(
                "{content_type} is not supported by {}, Kind={}: {}",
                info.resource.group_version(),
                info.resource.kind,
                status.message
            )),
            other => other,
        })?;
        if args.bool("record") {
            let cause =
                serde_json::json!({"metadata": {"annotations": {crate::write::CHANGE_CAUSE: args.line()}}});
            writer.patch(info.into(), MERGE_PATCH, &cause).await?
        } else {
            patched
        }
    };
    let operation = if without_revision(&patched) == without_revision(&info.object) {
        "patched (no change)"
    } else {
        "patched"
    };
    if writer.format.is_human() {
        return writer.cli.print(&printers::named(&patched, operation));
    }
    writer.report(&patched, operation)
}

fn without_revision(object: &Value) -> Value {
    let mut object = object.clone();
    crate::fields::remove(&mut object, "metadata.managedFields");
    object
}

fn apply_locally(object: &Value, content_type: &str, patch: &Value) -> Result<Value> {
    let mut patched = object.clone();
    let outcome = match (content_type, schema_of(object)) {
        (JSON_PATCH, _) => ferry_patch::json_patch::apply(&mut patched, patch.to_string().as_bytes()),
        (STRATEGIC_MERGE_PATCH, Some(schema)) => {
            ferry_patch::strategic::apply(&mut patched, patch.clone(), &schema)
        }
        (STRATEGIC_MERGE_PATCH, None) => {
            return Err(Error::message(format!(
                "cannot apply strategic merge patch for {}, Kind={} locally, try --type merge",
                object.text("apiVersion"),
                object.kind()
            )));
        }
        _ => {
            ferry_patch::merge::apply(&mut patched, patch);
            Ok(())
        }
    };
    outcome.map_err(|error| Error::message(error.to_string()))?;
    Ok(patched)
}
