//! `plugin list`: the programs in PATH that run as commands, and which of them cannot.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use super::OTHER;
use crate::cli::Cli;
use crate::command::{Command, find};
use crate::error::{Error, Result, system_words};
use crate::flags::Flag;
use crate::plugins;

pub const COMMAND: Command = Command {
    name: "plugin",
    group: OTHER,
    short: "Provides utilities for interacting with plugins",
    children: &[&LIST],
    ..Command::NONE
};

const LIST: Command = Command {
    name: "list",
    short: "List all visible plugin executables on a user's PATH",
    flags: &[&[Flag::bool("name-only", "Print the name of each plugin, not its path")]],
    run: Some(|cli| Box::pin(async move { list(cli) })),
    ..Command::NONE
};

fn list(cli: &Cli) -> Result<()> {
    let plugins = found();
    let mut problems = Vec::new();
    if plugins.is_empty() {
        problems.push("error: unable to find any kubectl plugins in your PATH".to_owned());
    } else {
        cli.line("The following compatible plugins are available:\n")?;
    }
    let mut seen: HashMap<String, PathBuf> = HashMap::new();
    let mut warnings = 0;
    for path in plugins {
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        cli.line(if cli.args.bool("name-only") { name.clone() } else { path.display().to_string() })?;
        cli.flush()?;
        for warning in warnings_of(&path, &name, &mut seen) {
            eprintln!("  - {warning}");
            warnings += 1;
        }
    }
    match warnings {
        0 => {}
        1 => problems.push("error: one plugin warning was found".to_owned()),
        many => problems.push(format!("error: {many} plugin warnings were found")),
    }
    if problems.is_empty() { Ok(()) } else { Err(Error::message(problems.join("\n"))) }
}

/// Every file of PATH whose name begins as a plugin's.
fn found() -> Vec<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut directories: Vec<PathBuf> = Vec::new();
    for directory in std::env::split_paths(&path) {
        if !directory.as_os_str().is_empty() && !directories.contains(&directory) {
            directories.push(directory);
        }
    }
    let mut plugins = Vec::new();
    for directory in directories {
        let entries = match std::fs::read_dir(&directory) {
            Ok(entries) => entries,
            Err(error) => {
                let shown = directory.display().to_string();
                let reason = system_words(&error);
                eprintln!(
                    "Unable to read directory {shown:?} from your PATH: open {shown}: {reason}. Skipping..."
                );
                continue;
            }
        };
        let mut files: Vec<PathBuf> = entries
            .flatten()
            .filter(|entry| entry.file_type().is_ok_and(|kind| !kind.is_dir()))
            .filter(|entry| entry.file_name().to_string_lossy().starts_with("kubectl-"))
            .map(|entry| entry.path())
            .collect();
        files.sort();
        plugins.extend(files);
    }
    plugins
}

fn warnings_of(path: &Path, name: &str, seen: &mut HashMap<String, PathBuf>) -> Vec<String> {
    let mut warnings = Vec::new();
    if !plugins::is_executable(path) {
        warnings.push(format!(
            "warning: {} identified as a kubectl plugin, but it is not executable",
            path.display()
        ));
    }
    match seen.get(name) {
        Some(first) => warnings.push(format!(
            "warning: {} is overshadowed by a similarly named plugin: {}",
            path.display(),
            first.display()
        )),
        None => drop(seen.insert(name.to_owned(), path.to_owned())),
    }
    let words: Vec<String> = name.split('-').skip(1).map(str::to_owned).collect();
    if let Ok((commands, _)) = find(&words)
        && !commands.is_empty()
    {
        let full =
            commands.iter().fold("kubectl".to_owned(), |full, command| format!("{full} {}", command.name));
        warnings.push(format!("warning: {name} overwrites existing command: {full:?}"));
    }
    warnings
}
