//! `kubectl edit`: opens objects in an editor and sends what changed. An edit the server refuses is
//! opened again with the reason on top, so no work is lost.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command as Process;

use serde_json::{Value, json};

use super::INTERMEDIATE;
use super::apply::merge::last_applied;
use crate::cli::Cli;
use crate::command::Command;
use crate::error::{Error, Result};
use crate::fields::{self, Fields};
use crate::flags::Flag;
use crate::printers;
use crate::selection::{Document, FILE_FLAGS, Info, Selection};
use crate::transport::MERGE_PATCH;
use crate::write::{
    LAST_APPLIED, PatchTarget, RECORD_FLAGS, SAVE_CONFIG_FLAGS, VALIDATE_FLAGS, Writer, difference,
    record_cause, save_config,
};
use crate::yaml;
use ferry_api::go_json;

pub const COMMAND: Command = Command {
    name: "edit",
    group: INTERMEDIATE,
    short: "Edit a resource in an editor",
    usage: "(RESOURCE/NAME | -f FILENAME)",
    flags: &[
        FILE_FLAGS,
        printers::FLAGS,
        VALIDATE_FLAGS,
        SAVE_CONFIG_FLAGS,
        RECORD_FLAGS,
        &[
            Flag::bool("output-patch", "Show the patch that was sent"),
            Flag::bool("windows-line-endings", "End lines for Windows' editors"),
            Flag::text("subresource", "Edit this subresource"),
            Flag::text("field-manager", "Name of the field manager").default("kubectl-edit"),
        ],
    ],
    run: Some(|cli| Box::pin(run(cli))),
    ..Command::NONE
};

const HEADER: &str = "# Please edit the object below. Lines beginning with a '#' will be ignored,\n# and an empty file will abort the edit. If an error occurs while saving this file will be\n# reopened with the relevant failures.\n#\n";

async fn run(cli: &Cli) -> Result<()> {
    if cli.args.bool("output-patch") && !cli.args.text("output").is_empty() {
        return Err(Error::message("the edit mode doesn't support output the patch"));
    }
    let writer = Writer::new(cli)?;
    let mut selection = Selection::from_args(cli, &cli.args.positional);
    selection.types_mean_all = true;
    selection.validating = false;
    let infos = selection.fetch(cli).await?.all()?;
    if infos.is_empty() {
        return Err(Error::message("edit cancelled, no objects found"));
    }
    edit(&writer, &infos, Mode::Change).await
}

/// `create --edit`: the objects of the files, edited one after the other and then created.
pub async fn edit_and_create(cli: &Cli) -> Result<()> {
    let writer = Writer::new(cli)?;
    let (infos, errors) = Selection::from_args(cli, &[]).objects(cli).await?;
    Error::collect(errors)?;
    let mut errors = Vec::new();
    for info in &infos {
        if let Err(error) = edit(&writer, std::slice::from_ref(info), Mode::Create).await {
            errors.push(error);
        }
    }
    Error::collect(errors)
}

/// `apply edit-last-applied`: the annotation's content, as an object.
pub async fn edit_last_applied(cli: &Cli) -> Result<()> {
    let writer = Writer::new(cli)?;
    let mut infos = Vec::new();
    for info in Selection::from_args(cli, &cli.args.positional).fetch(cli).await?.all()? {
        let configured = last_applied(&info.object)?;
        if configured.as_object().is_none_or(|map| map.is_empty()) {
            return Err(Error::message(format!(
                "no last-applied-configuration annotation found on resource: {}",
                info.name
            )));
        }
        infos.push(Info { object: configured, ..info });
    }
    edit(&writer, &infos, Mode::LastApplied).await
}

#[derive(Clone, Copy, PartialEq)]
enum Mode {
    Change,
    Create,
    LastApplied,
}

async fn edit(writer: &Writer<'_>, infos: &[Info], mode: Mode) -> Result<()> {
    let cli = writer.cli;
    let as_json = cli.args.text("output") == "json";
    let original = render(infos, as_json, cli.args.bool("show-managed-fields"));
    let mut text = if as_json { original.clone() } else { format!("{HEADER}{original}") };
    let mut failed_file: Option<PathBuf> = None;
    loop {
        let windows = cli.args.bool("windows-line-endings");
        let file = temporary_file(as_json, &if windows { text.replace('\n', "\r\n") } else { text.clone() })?;
        open_editor(&file)?;
        let mut edited = std::fs::read_to_string(&file)?;
        if windows {
            edited = edited.replace("\r\n", "\n");
        }
        let content = without_comments(&edited, as_json);
        if content.trim().is_empty() {
            let _ = std::fs::remove_file(&file);
            eprintln!("Edit cancelled, saved file was empty.");
            return Ok(());
        }
        if content == without_comments(&text, as_json) {
            if failed_file.is_some() {
                eprintln!("The edited file failed validation: unchanged since the last attempt");
                return Err(kept(&file));
            }
            let _ = std::fs::remove_file(&file);
            eprintln!("Edit cancelled, no changes made.");
            return Ok(());
        }
        match send(writer, infos, &content, mode).await {
            Ok(()) => {
                let _ = std::fs::remove_file(&file);
                return Ok(());
            }
            Err(error) => {
                let reason = error.render().0;
                eprintln!("{reason}");
                if as_json || failed_file.is_some() && content == without_comments(&text, as_json) {
                    return Err(kept(&file));
                }
                let comment: String = reason.lines().map(|line| format!("# {line}\n")).collect();
                text = format!("{HEADER}{comment}#\n{content}");
                failed_file = Some(file);
            }
        }
    }
}

fn kept(file: &Path) -> Error {
    Error::Exit {
        code: 1,
        message: format!(
            "A copy of your changes has been stored to {:?}\nerror: Edit cancelled, no valid changes were saved.",
            file.display().to_string()
        ),
    }
}

fn render(infos: &[Info], as_json: bool, managed_fields: bool) -> String {
    let shown = |info: &Info| {
        let mut object = info.object.clone();
        if !managed_fields {
            fields::remove(&mut object, "metadata.managedFields");
        }
        object
    };
    let document = match infos {
        [only] => shown(only),
        many => {
            json!({"apiVersion": "v1", "kind": "List", "metadata": {}, "items": many.iter().map(shown).collect::<Vec<_>>()})
        }
    };
    if as_json { go_json::pretty(&document) } else { ferry_api::yaml::encode_value(&document) }
}

fn without_comments(text: &str, as_json: bool) -> String {
    if as_json {
        return text.to_owned();
    }
    text.split_inclusive('\n').filter(|line| !line.starts_with('#')).collect()
}

async fn send(writer: &Writer<'_>, infos: &[Info], content: &str, mode: Mode) -> Result<()> {
    let document = yaml::document(content)?;
    let objects = if document.is_list() { document.list("items").to_vec() } else { vec![document] };
    let mut errors = Vec::new();
    for object in objects {
        if mode == Mode::Create {
            if let Err(error) = create(writer, object).await {
                errors.push(error);
            }
            continue;
        }
        let Some(info) = infos.iter().find(|info| {
            info.name == object.name()
                && info.object.kind() == object.kind()
                && (info.namespace == object.namespace() || object.namespace().is_empty())
        }) else {
            return Err(Error::message("At least one of apiVersion, kind and name was changed"));
        };
        let outcome = match mode {
            Mode::LastApplied => change_last_applied(writer, info, object).await,
            Mode::Change | Mode::Create => change(writer, info, object).await,
        };
        if let Err(error) = outcome {
            errors.push(error);
        }
    }
    writer.cli.flush()?;
    Error::collect(errors)
}

/// What was not there yet may have got another name or kind in the editor.
async fn create(writer: &Writer<'_>, object: Value) -> Result<()> {
    let cli = writer.cli;
    let document = Document { object, source: "edited-file".to_owned() };
    let mut info = Selection::from_args(cli, &[]).file_info(cli, document).await?;
    if cli.args.bool("save-config") {
        save_config(&mut info.object);
    }
    record_cause(&cli.args, &mut info.object);
    let created = writer.create(&info.resource, &info.namespace, &info.object).await?;
    writer.report(&created, "created")
}

async fn change(writer: &Writer<'_>, info: &Info, mut object: Value) -> Result<()> {
    let args = &writer.cli.args;
    let mut before = info.object.clone();
    if !args.bool("show-managed-fields") {
        fields::remove(&mut before, "metadata.managedFields");
    }
    if args.bool("save-config") {
        save_config(&mut object);
    }
    record_cause(args, &mut object);
    let (patch, content_type) = difference(&before, &object)?;
    if patch == json!({}) {
        return writer.report(&info.object, "skipped");
    }
    if args.bool("output-patch") {
        writer.cli.line(format!("Patch: {}", go_json::compact(&patch)))?;
    }
    let target = PatchTarget { subresource: args.text("subresource"), ..info.into() };
    let changed = writer.patch(target, content_type, &patch).await?;
    writer.report(&changed, "edited")
}

/// The annotation becomes what was edited, as it stands.
async fn change_last_applied(writer: &Writer<'_>, info: &Info, mut object: Value) -> Result<()> {
    if !info.namespace.is_empty() {
        fields::set(&mut object, "metadata.namespace", info.namespace.clone().into());
    }
    let patch = json!({"metadata": {"annotations": {LAST_APPLIED: go_json::compact(&object)}}});
    let changed = writer.patch(info.into(), MERGE_PATCH, &patch).await?;
    writer.report(&changed, "edited")
}

fn temporary_file(as_json: bool, text: &str) -> Result<PathBuf> {
    use std::os::unix::fs::OpenOptionsExt;
    let extension = if as_json { "json" } else { "yaml" };
    for attempt in 0..100u32 {
        let path =
            std::env::temp_dir().join(format!("kubectl-edit-{}-{attempt}.{extension}", std::process::id()));
        match std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path) {
            Ok(mut file) => {
                file.write_all(text.as_bytes())?;
                return Ok(path);
            }
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(Error::message("cannot create a temporary file to edit"))
}

/// `$KUBE_EDITOR`, `$EDITOR`, vi; through a shell, so that they may hold arguments.
fn open_editor(file: &Path) -> Result<()> {
    let editor = ["KUBE_EDITOR", "EDITOR"]
        .iter()
        .find_map(|name| std::env::var(name).ok().filter(|value| !value.is_empty()))
        .unwrap_or_else(|| "vi".to_owned());
    let shell = std::env::var("SHELL").unwrap_or_else(|_| "/bin/sh".to_owned());
    let status = Process::new(shell)
        .arg("-c")
        .arg(format!("{editor} '{}'", file.display()))
        .status()
        .map_err(|error| Error::message(format!("unable to launch the editor {editor:?}: {error}")))?;
    if status.success() {
        return Ok(());
    }
    Err(Error::message(format!("there was a problem with the editor {editor:?}")))
}
