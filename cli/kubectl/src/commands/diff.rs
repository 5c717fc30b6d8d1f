//! `kubectl diff`: the live object beside what apply would make of it. The server is asked with a
//! dry run, so defaults and admission are part of the answer. Exit code 1 means there is a
//! difference, above 1 that something failed.

use std::process::Command as Process;

use serde_json::{Map, Value, json};

use super::ADVANCED;
use super::apply::merge::{last_applied, three_way};
use super::apply::prune::surplus;
use super::apply::{SERVER_SIDE_FLAGS, field_manager};
use crate::cli::Cli;
use crate::command::Command;
use crate::error::{Error, Result};
use crate::fields::{self, Fields};
use crate::flags::Flag;
use crate::selection::{FILE_FLAGS, Info, SELECTOR_FLAGS, Selection};
use crate::transport::{APPLY_PATCH, JSON, Query, Request};
use crate::write::LAST_APPLIED;

pub const COMMAND: Command = Command {
    name: "diff",
    group: ADVANCED,
    short: "Show what apply would change",
    usage: "-f FILENAME",
    flags: &[
        FILE_FLAGS,
        SELECTOR_FLAGS,
        SERVER_SIDE_FLAGS,
        &[
            Flag::text("field-manager", "Name of the field manager").default("kubectl-client-side-apply"),
            Flag::int("concurrency", "Accepted for compatibility").default("1"),
            Flag::bool("show-managed-fields", "Compare managedFields too"),
            Flag::bool("show-secrets", "Show the values of secrets").default("false"),
            Flag::bool("prune", "Show what apply --prune would delete, too"),
            Flag::array("prune-allowlist", "Kind to prune, as group/version/kind"),
        ],
    ],
    run: Some(|cli| Box::pin(async move { run(cli).await.map_err(failure) })),
    ..Command::NONE
};

/// 1 is kept for "there is a difference".
fn failure(error: Error) -> Error {
    match error {
        exit @ Error::Exit { .. } => exit,
        other => Error::Exit { code: 2, message: other.render().0 },
    }
}

async fn run(cli: &Cli) -> Result<()> {
    if !cli.args.has_files() {
        return Err(Error::message("must specify one of -f and -k"));
    }
    let (infos, mut errors) = Selection::from_args(cli, &[]).objects(cli).await?;
    let directory = Directories::new()?;
    let mut kept: Vec<String> = Vec::new();
    for info in &infos {
        if !super::create::matches_selector(&info.object, cli.args.text("selector"))? {
            continue;
        }
        match versions(cli, info).await {
            Ok((live, merged)) => {
                kept.extend(live.as_ref().map(|live| live.text("metadata.uid").to_owned()));
                let (live, merged) = (live.map(|live| prepared(cli, live)), prepared(cli, merged));
                directory.write(cli, info, live, Some(merged))?;
            }
            Err(error) => errors.push(error),
        }
    }
    if cli.args.bool("prune") {
        let kept: Vec<&str> = kept.iter().map(String::as_str).collect();
        for info in surplus(cli, &infos, &kept).await? {
            // what would be deleted is shown with its managed fields, as upstream shows it
            directory.write(cli, &info, Some(info.object.clone()), None)?;
        }
    }
    let code = directory.compare(cli)?;
    cli.flush()?;
    Error::collect(errors)?;
    if code == 0 { Ok(()) } else { Err(Error::exit(code)) }
}

/// The object as it is, and as it would be.
async fn versions(cli: &Cli, info: &Info) -> Result<(Option<Value>, Value)> {
    let client = cli.client()?;
    let live = match client.get_json(&info.path()).await {
        Ok(live) => Some(live),
        Err(error) if error.is_not_found() => None,
        Err(error) => return Err(error),
    };
    let query = Query::new().with("dryRun", "All").with("fieldManager", field_manager(&cli.args));
    if cli.args.bool("server-side") {
        let query = query.with("force", if cli.args.bool("force-conflicts") { "true" } else { "false" });
        let path = format!("{}{query}", info.path());
        let merged = client
            .json(Request::with_body(http::Method::PATCH, &path, APPLY_PATCH, info.object.to_string()))
            .await?;
        return Ok((live, merged));
    }
    let Some(live) = live else {
        let path = format!("{}{query}", info.resource.path(&info.namespace));
        let merged =
            client.json(Request::with_body(http::Method::POST, &path, JSON, info.object.to_string())).await?;
        return Ok((None, merged));
    };
    // what was applied last is not part of the difference: it would show every change twice
    let mut modified = info.object.clone();
    let remembered = live.keyed("metadata.annotations", LAST_APPLIED);
    if !remembered.is_empty() {
        fields::set_keyed(&mut modified, "metadata.annotations", LAST_APPLIED, remembered);
    }
    let (patch, content_type) = three_way(&last_applied(&live)?, &modified, &live)?;
    let path = format!("{}{query}", info.path());
    let merged =
        client.json(Request::with_body(http::Method::PATCH, &path, content_type, patch.to_string())).await?;
    Ok((Some(live), merged))
}

/// Two directories for the diff program: LIVE and MERGED.
struct Directories {
    live: std::path::PathBuf,
    merged: std::path::PathBuf,
}

impl Directories {
    fn new() -> Result<Self> {
        let make = |side: &str| -> Result<std::path::PathBuf> {
            let path = std::env::temp_dir().join(format!(
                "{side}-{}{}",
                std::process::id(),
                jiff::Timestamp::now().subsec_nanosecond()
            ));
            std::fs::create_dir_all(&path)?;
            Ok(path)
        };
        Ok(Directories { live: make("LIVE")?, merged: make("MERGED")? })
    }

    fn write(&self, cli: &Cli, info: &Info, live: Option<Value>, merged: Option<Value>) -> Result<()> {
        let group =
            if info.resource.group.is_empty() { String::new() } else { format!("{}.", info.resource.group) };
        let name = format!(
            "{group}{}.{}.{}.{}",
            info.resource.version, info.resource.kind, info.namespace, info.name
        )
        .replace(['/', ':'], "_");
        let (live, merged) = masked(cli, live, merged);
        for (directory, object) in [(&self.live, live), (&self.merged, merged)] {
            if let Some(object) = object {
                std::fs::write(directory.join(&name), ferry_api::yaml::encode_value(&object))?;
            }
        }
        Ok(())
    }

    /// Runs `diff`, or what the user prefers, and gives back its exit code.
    fn compare(&self, cli: &Cli) -> Result<u8> {
        let preferred = std::env::var("KUBECTL_EXTERNAL_DIFF").ok().filter(|value| !value.is_empty());
        let words: Vec<String> = match &preferred {
            Some(text) => text.split_whitespace().map(str::to_owned).collect(),
            None => ["diff", "-u", "-N"].map(str::to_owned).to_vec(),
        };
        let (program, arguments) =
            words.split_first().ok_or_else(|| Error::message("KUBECTL_EXTERNAL_DIFF names no program"))?;
        let output = Process::new(program)
            .args(arguments)
            .arg(&self.live)
            .arg(&self.merged)
            .output()
            .map_err(|error| Error::message(format!("failed to run {program:?}: {error}")))?;
        cli.print_bytes(&output.stdout)?;
        cli.flush()?;
        eprint!("{}", String::from_utf8_lossy(&output.stderr));
        Ok(output.status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(2))
    }
}

impl Drop for Directories {
    fn drop(&mut self) {
        for directory in [&self.live, &self.merged] {
            let _ = std::fs::remove_dir_all(directory);
        }
    }
}

fn prepared(cli: &Cli, mut object: Value) -> Value {
    if !cli.args.bool("show-managed-fields") {
        fields::remove(&mut object, "metadata.managedFields");
    }
    object
}

/// A secret's values are hidden, but that they differ is not.
fn masked(cli: &Cli, live: Option<Value>, merged: Option<Value>) -> (Option<Value>, Option<Value>) {
    let is_secret = live.iter().chain(&merged).any(|object| object.kind() == "Secret");
    if !is_secret || cli.args.bool("show-secrets") {
        return (live, merged);
    }
    let data = |object: &Option<Value>| {
        object.as_ref().and_then(|object| object.map("data")).cloned().unwrap_or_default()
    };
    let (before, after) = (data(&live), data(&merged));
    let hide = |object: Option<Value>, other: &Map<String, Value>, mark: &str| {
        let mut object = object?;
        if let Some(Value::Object(data)) = object.get_mut("data") {
            for (key, value) in data {
                let differs = other.get(key).is_some_and(|known| known != value);
                *value = json!(if differs { mark } else { "***" });
            }
        }
        Some(object)
    };
    (hide(live, &after, "*** (before)"), hide(merged, &before, "*** (after)"))
}
