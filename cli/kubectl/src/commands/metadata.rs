//! `kubectl label` and `kubectl annotate`: the same change to two maps.

use serde_json::{Map, Value, json};

use super::SETTINGS;
use crate::cli::Cli;
use crate::command::Command;
use crate::error::{Error, Result};
use crate::fields::{self, Fields};
use crate::flags::Flag;
use crate::printers;
use crate::selection::{
    ALL_NAMESPACES_FLAGS, FIELD_SELECTOR_FLAGS, FILE_FLAGS, Info, SELECTOR_FLAGS, Selection,
};
use crate::transport::MERGE_PATCH;
use crate::write::{DRY_RUN_FLAGS, DryRun, RECORD_FLAGS, Writer, record_cause};

const CHANGE_FLAGS: &[Flag] = &[
    Flag::bool("overwrite", "Change values that are already set"),
    Flag::bool("list", "Show what is set"),
    Flag::bool("local", "Work on the file alone, without a server"),
    Flag::bool("all", "All resources of the type"),
    Flag::text("resource-version", "Only change an object of this version"),
];

pub const LABEL: Command = Command {
    name: "label",
    group: SETTINGS,
    short: "Change the labels of a resource",
    usage: "[--overwrite] (-f FILENAME | TYPE NAME) KEY_1=VAL_1 ... KEY_N=VAL_N [--resource-version=version]",
    flags: &[
        FILE_FLAGS,
        SELECTOR_FLAGS,
        FIELD_SELECTOR_FLAGS,
        ALL_NAMESPACES_FLAGS,
        printers::FLAGS,
        DRY_RUN_FLAGS,
        RECORD_FLAGS,
        CHANGE_FLAGS,
        &[Flag::text("field-manager", "Name of the field manager").default("kubectl-label")],
    ],
    run: Some(|cli| Box::pin(run(cli, &LABELS))),
    ..Command::NONE
};

pub const ANNOTATE: Command = Command {
    name: "annotate",
    group: SETTINGS,
    short: "Change the annotations of a resource",
    usage: "[--overwrite] (-f FILENAME | TYPE NAME) KEY_1=VAL_1 ... KEY_N=VAL_N [--resource-version=version]",
    flags: &[
        FILE_FLAGS,
        SELECTOR_FLAGS,
        FIELD_SELECTOR_FLAGS,
        ALL_NAMESPACES_FLAGS,
        printers::FLAGS,
        DRY_RUN_FLAGS,
        RECORD_FLAGS,
        CHANGE_FLAGS,
        &[Flag::text("field-manager", "Name of the field manager").default("kubectl-annotate")],
    ],
    run: Some(|cli| Box::pin(run(cli, &ANNOTATIONS))),
    ..Command::NONE
};

/// What differs between the two.
struct Entries {
    path: &'static str,
    noun: &'static str,
    is_label: bool,
}

const LABELS: Entries = Entries { path: "metadata.labels", noun: "label", is_label: true };
const ANNOTATIONS: Entries = Entries { path: "metadata.annotations", noun: "annotation", is_label: false };

/// `key=value` sets, `key-` removes.
struct Change<'a> {
    set: Vec<(&'a str, &'a str)>,
    remove: Vec<&'a str>,
}

async fn run(cli: &Cli, map: &Entries) -> Result<()> {
    let args = &cli.args;
    let (words, changes) = split(&args.positional);
    let change = parse(changes, map)?;
    let listing = args.bool("list");
    if words.is_empty() && !args.has_files() {
        return Err(Error::message(
            "one or more resources must be specified as <resource> <name> or <resource>/<name>",
        ));
    }
    if change.set.is_empty() && change.remove.is_empty() && !listing {
        return Err(Error::message(format!("at least one {} update is required", map.noun)));
    }
    let writer = Writer::new(cli)?;
    let mut selection = Selection::from_args(cli, words);
    selection.chunk = 500;
    selection.live = !args.bool("local");
    for selector in ["selector", "field-selector"] {
        if args.bool("all") && !args.text(selector).is_empty() {
            return Err(Error::message(format!("cannot set --all and --{selector} at the same time")));
        }
    }
    if !args.text("resource-version").is_empty() && (args.bool("all") || !args.text("selector").is_empty()) {
        return Err(Error::message("--resource-version may only be used with a single resource"));
    }
    let selected = selection.fetch(cli).await?;
    let several = selected.infos.len() > 1;
    let mut errors = selected.errors;
    for info in &selected.infos {
        let outcome = if listing && change.set.is_empty() && change.remove.is_empty() {
            list(cli, info, map, several)
        } else {
            apply(&writer, info, map, &change).await
        };
        if let Err(error) = outcome {
            errors.push(error);
        }
    }
    cli.flush()?;
    Error::collect(errors)
}

/// Resources come first, then changes.
fn split(words: &[String]) -> (&[String], &[String]) {
    let is_change = |word: &String| word.contains('=') || (word.len() > 1 && word.ends_with('-'));
    let first = words.iter().position(is_change).unwrap_or(words.len());
    words.split_at(first)
}

fn parse<'a>(changes: &'a [String], map: &Entries) -> Result<Change<'a>> {
    let mut change = Change { set: Vec::new(), remove: Vec::new() };
    for word in changes {
        if let Some((key, value)) = word.split_once('=') {
            let wrong = if map.is_label { ferry_api::names::label_value(value) } else { Vec::new() };
            if !wrong.is_empty() {
                return Err(Error::message(format!("invalid label value: {word:?}: {}", wrong.join(";"))));
            }
            change.set.push((key, value));
        } else if let Some(key) = word.strip_suffix('-') {
            change.remove.push(key);
        } else {
            return Err(Error::message(format!(
                "all resources must be specified before {} changes: {word}",
                map.noun
            )));
        }
    }
    if let Some((key, _)) = change.set.iter().find(|(key, _)| change.remove.contains(key)) {
        return Err(Error::message(if map.is_label {
            "can not both modify and remove a label in the same command".to_owned()
        } else {
            format!("can not both modify and remove the following annotation(s) in the same command: {key}")
        }));
    }
    Ok(change)
}

fn list(cli: &Cli, info: &Info, map: &Entries, several: bool) -> Result<()> {
    if several {
        cli.line(format!("Listing {}s for {}/{}:", map.noun, info.resource.kind, info.name))?;
    }
    let indent = if several { " " } else { "" };
    info.object.entries(map.path).into_iter().try_for_each(|(key, value)| {
        cli.line(format!("{indent}{key}={}", value.as_str().unwrap_or_default()))
    })
}

async fn apply(writer: &Writer<'_>, info: &Info, map: &Entries, change: &Change<'_>) -> Result<()> {
    let cli = writer.cli;
    let before = &info.object;
    check_overwrite(cli, before, map, change)?;
    let mut after = before.clone();
    let mut entries = before.map(map.path).cloned().unwrap_or_default();
    for (key, value) in &change.set {
        entries.insert((*key).to_owned(), (*value).into());
    }
    for key in &change.remove {
        if entries.remove(*key).is_none() && map.is_label {
            cli.line(format!("label {key:?} not found."))?;
        }
    }
    let labels_before = before.map(map.path).cloned().unwrap_or_default();
    let message = message(map, &labels_before, &entries, change);
    fields::set(
        &mut after,
        map.path,
        if entries.is_empty() && !before.has(map.path) { Value::Null } else { Value::Object(entries) },
    );
    record_cause(&cli.args, &mut after);
    let version = cli.args.text("resource-version");
    let object = if writer.dry_run == DryRun::Client || cli.args.bool("local") {
        after
    } else {
        let mut patch = ferry_patch::merge::diff(before, &after);
        if !version.is_empty() {
            fields::set(&mut patch, "metadata.resourceVersion", json!(version));
        }
        if patch == json!({}) { after } else { writer.patch(info.into(), MERGE_PATCH, &patch).await? }
    };
    if cli.args.bool("list") {
        return list(cli, &Info { object, ..info.clone() }, map, false);
    }
    writer.report(&object, message)
}

fn check_overwrite(cli: &Cli, object: &Value, map: &Entries, change: &Change<'_>) -> Result<()> {
    if cli.args.bool("overwrite") {
        return Ok(());
    }
    let taken: Vec<String> = change
        .set
        .iter()
        .filter_map(|(key, value)| {
            let current = object.map(map.path)?.get(*key)?.as_str()?;
            // setting a label to what it already is changes nothing
            let differs = !map.is_label || current != *value;
            differs.then(|| format!("'{key}' already has a value ({current})"))
        })
        .collect();
    if taken.is_empty() {
        return Ok(());
    }
    Err(Error::message(if map.is_label {
        format!("{}, and --overwrite is false", taken[0])
    } else {
        format!("--overwrite is false but found the following declared annotation(s): {}", taken.join("; "))
    }))
}

fn message(
    map: &Entries,
    before: &Map<String, Value>,
    after: &Map<String, Value>,
    change: &Change<'_>,
) -> &'static str {
    if !map.is_label {
        return "annotated";
    }
    if before == after {
        return "not labeled";
    }
    if change.set.is_empty() { "unlabeled" } else { "labeled" }
}
