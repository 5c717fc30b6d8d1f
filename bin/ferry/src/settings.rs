//! One set of options, said in three ways: by flag, by environment (`FERRY_DATA_DIR`), by a YAML file
//! (`--config`, keys named like the flags). A flag wins over the environment, and that over the file.
//!
//! What the environment and the file say is turned into flags, so that all three are read, checked and
//! suggested for by the same code.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::Path;

use anyhow::{Context, bail};
use clap::Command;
use serde_json::Value;

const PREFIX: &str = "FERRY_";
/// Read elsewhere: how much is logged.
const NOT_OPTIONS: [&str; 1] = ["FERRY_LOG"];
/// The roles that people start by hand or by a unit, and so have a file for.
const ROLES: [&str; 3] = ["up", "server", "agent"];

/// The command line, completed by what the environment and the file say. `command` describes all roles, which takes a while.
pub fn complete(
    command: impl FnOnce() -> Command,
    arguments: Vec<OsString>,
    environment: impl Iterator<Item = (OsString, OsString)>,
) -> anyhow::Result<Vec<OsString>> {
    let role = arguments.get(1).and_then(|word| word.to_str()).filter(|word| ROLES.contains(word));
    let Some(role) = role else { return Ok(arguments) };
    let mut command = command();
    let Some(role) = command.find_subcommand_mut(role) else { return Ok(arguments) };
    // Only then are its flags described.
    role.build();
    let role = &*role;
    let mut said: BTreeSet<String> = arguments[2..].iter().filter_map(|word| option_of(role, word)).collect();
    let mut completed = arguments;
    for (name, value) in environment {
        let Some(name) = name.to_str().filter(|name| name.starts_with(PREFIX) && !NOT_OPTIONS.contains(name))
        else {
            continue;
        };
        let flag = name[PREFIX.len()..].to_ascii_lowercase().replace('_', "-");
        let value = value.to_str().with_context(|| format!("{name} is no text"))?.to_owned();
        add(role, &mut said, &mut completed, &flag, &value);
    }
    if let Some(file) = file_of(&completed) {
        for (flag, value) in read(Path::new(&file))? {
            add(role, &mut said, &mut completed, &flag, &value);
        }
    }
    Ok(completed)
}

fn add(role: &Command, said: &mut BTreeSet<String>, words: &mut Vec<OsString>, flag: &str, value: &str) {
    let known = id_of(role, flag);
    if known.as_ref().is_some_and(|id| said.contains(id)) {
        return;
    }
    said.extend(known);
    // An unknown one too: the flags' reader says so, and what was meant.
    words.push(format!("--{flag}={value}").into());
}

/// The option a word of the command line sets, whichever of its names is used.
fn option_of(role: &Command, word: &OsString) -> Option<String> {
    let name = word.to_str()?.strip_prefix("--")?;
    id_of(role, name.split_once('=').map_or(name, |(name, _)| name))
}

fn id_of(role: &Command, name: &str) -> Option<String> {
    let found = role.get_arguments().find(|argument| {
        let aliases = argument.get_all_aliases().into_iter().flatten();
        argument.get_long().into_iter().chain(aliases).any(|own| own == name)
    })?;
    Some(found.get_id().to_string())
}

fn file_of(words: &[OsString]) -> Option<OsString> {
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let text = word.to_string_lossy();
        if let Some(file) = text.strip_prefix("--config=") {
            return Some(file.into());
        }
        if text == "--config" {
            return words.next().cloned();
        }
    }
    None
}

fn read(file: &Path) -> anyhow::Result<Vec<(String, String)>> {
    let text = std::fs::read_to_string(file).with_context(|| format!("read {}", file.display()))?;
    let documents = ferry_api::yaml::documents(&text)
        .map_err(|error| anyhow::anyhow!("{} is no YAML: {error}", file.display()))?;
    let mut options = Vec::new();
    for document in documents.iter().filter(|document| !document.is_null()) {
        let Value::Object(map) = document else {
            bail!("{} holds no mapping of options to values", file.display());
        };
        for (key, value) in map {
            let value = scalar(value).with_context(|| {
                format!("{}: {key} is neither a value nor a list of values", file.display())
            })?;
            options.push((key.clone(), value));
        }
    }
    Ok(options)
}

fn scalar(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Bool(_) | Value::Number(_) => Some(value.to_string()),
        Value::Array(values) => {
            values.iter().map(scalar).collect::<Option<Vec<_>>>().map(|all| all.join(","))
        }
        Value::Null | Value::Object(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    fn completed(words: &[&str], environment: &[(&str, &str)]) -> anyhow::Result<Vec<String>> {
        let words = words.iter().map(OsString::from).collect();
        let environment = environment.iter().map(|(name, value)| (name.into(), value.into()));
        let words = complete(crate::Cli::command, words, environment)?;
        Ok(words.into_iter().map(|word| word.into_string().unwrap()).collect())
    }

    #[test]
    fn a_flag_wins_over_the_environment_and_that_over_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("ferry.yaml");
        std::fs::write(&file, "secure-port: 1\nnode-name: file\nmax-pods: 7\netcd-servers: [a, b]\n")
            .unwrap();
        let config = format!("--config={}", file.display());
        let words = completed(
            &["ferry", "up", "--port", "3", &config],
            &[
                ("FERRY_NODE_NAME", "environment"),
                ("FERRY_SECURE_PORT", "2"),
                ("FERRY_LOG", "debug"),
                ("HOME", "x"),
            ],
        );
        let mut found = words.unwrap().split_off(4);
        found.sort();
        assert_eq!(found, [&config, "--etcd-servers=a,b", "--max-pods=7", "--node-name=environment"]);
    }

    #[test]
    fn an_unknown_option_is_an_error_with_a_suggestion() {
        use clap::Parser;
        let words = completed(&["ferry", "server"], &[("FERRY_NODE_NAM", "x")]).unwrap();
        let refused = crate::Cli::try_parse_from(words).err().unwrap().to_string();
        assert!(refused.contains("--node-nam") && refused.contains("--node-name"), "{refused}");
    }

    #[test]
    fn a_bad_file_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("ferry.yaml");
        for bad in ["a: {b: c}", "- a", "a: [b"] {
            std::fs::write(&file, bad).unwrap();
            let refused = completed(&["ferry", "up", "--config", file.to_str().unwrap()], &[]).unwrap_err();
            assert!(refused.to_string().contains("ferry.yaml"), "{refused}");
        }
        assert_eq!(completed(&["ferry", "kubectl", "--config", "x"], &[]).unwrap().len(), 4);
    }
}
