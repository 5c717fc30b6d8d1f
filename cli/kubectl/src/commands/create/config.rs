//! `create configmap`, and the ways data gets in: literals, files, directories, env files.

use std::collections::BTreeMap;
use std::path::Path;

use base64::Engine as _;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::{create_generated, generator_flags, one_name};
use crate::command::Command;
use crate::error::{Error, Result};
use crate::flags::{Args, Flag};
use crate::kubeconfig::describe;
use ferry_api::go_json;

pub const CONFIG_MAP: Command = Command {
    name: "configmap",
    aliases: &["cm"],
    short: "Create a config map from literals, files or directories",
    usage: "NAME [--from-file=[key=]source] [--from-literal=key1=value1]",
    flags: generator_flags!(DATA_FLAGS),
    run: Some(|cli| {
        Box::pin(
            async move { create_generated(cli, config_map(&cli.args)?, "failed to create configmap:").await },
        )
    }),
    ..Command::NONE
};

pub const DATA_FLAGS: &[Flag] = &[
    Flag::list("from-file", "File, directory, or key=file"),
    Flag::array("from-literal", "key=value"),
    Flag::list("from-env-file", "File with lines of key=value"),
    Flag::bool("append-hash", "Append a hash of the content to the name"),
];

fn config_map(args: &Args) -> Result<Value> {
    let name = one_name(args)?;
    let has_data = ["from-file", "from-literal"].iter().any(|flag| args.changed(flag));
    if args.changed("from-env-file") && has_data {
        return Err(Error::message("from-env-file cannot be combined with from-file or from-literal"));
    }
    let (mut text, mut binary) = (serde_json::Map::new(), serde_json::Map::new());
    for (key, data) in collect(
        args,
        &|key| {
            check_key(key)
                .map_err(|reason| format!("{key:?} is not a valid key name for a ConfigMap: {reason}"))
        },
        &|key| {
            format!(
                "cannot add key {key:?}, another key by that name already exists in Data for ConfigMap {name:?}"
            )
        },
    )? {
        match String::from_utf8(data) {
            Ok(data) => text.insert(key, data.into()),
            Err(bytes) => binary
                .insert(key, base64::engine::general_purpose::STANDARD.encode(bytes.into_bytes()).into()),
        };
    }
    let mut object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}});
    if args.bool("append-hash") {
        let mut content = json!({"kind": "ConfigMap", "name": name, "data": text});
        if !binary.is_empty() {
            content["binaryData"] = Value::Object(binary.clone());
        }
        object["metadata"]["name"] = json!(format!("{name}-{}", content_hash(&content)));
    }
    if !text.is_empty() {
        object["data"] = Value::Object(text);
    }
    if !binary.is_empty() {
        object["binaryData"] = Value::Object(binary);
    }
    Ok(object)
}

/// Ten characters that name the content, without vowels that could spell something.
pub fn content_hash(content: &Value) -> String {
    let digest = Sha256::digest(go_json::compact(content).as_bytes());
    let hex: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    hex.chars()
        .take(10)
        .map(|c| match c {
            '0' => 'g',
            '1' => 'h',
            '3' => 'k',
            'a' => 'm',
            'e' => 't',
            other => other,
        })
        .collect()
}

/// The data of all sources, by key. Files first, then literals, then env files.
pub fn collect(
    args: &Args,
    check: &dyn Fn(&str) -> std::result::Result<(), String>,
    twice: &dyn Fn(&str) -> String,
) -> Result<BTreeMap<String, Vec<u8>>> {
    let mut data = BTreeMap::new();
    let mut add = |key: String, value: Vec<u8>| -> Result<()> {
        check(&key).map_err(Error::message)?;
        if data.contains_key(&key) {
            return Err(Error::message(twice(&key)));
        }
        data.insert(key, value);
        Ok(())
    };
    for source in args.list("from-file") {
        for (key, path) in file_source(source)? {
            add(key, std::fs::read(&path).map_err(|error| unreadable(&path, &error))?)?;
        }
    }
    for source in args.list("from-literal") {
        let (key, value) = literal_source(source)?;
        add(key.to_owned(), value.as_bytes().to_vec())?;
    }
    for source in args.list("from-env-file") {
        let text = std::fs::read_to_string(source).map_err(|error| unreadable(source, &error))?;
        for (key, value) in env_lines(&text)? {
            add(key, value.into_bytes())?;
        }
    }
    Ok(data)
}

fn unreadable(path: &str, error: &std::io::Error) -> Error {
    Error::message(format!("error reading {path}: {}", describe(error)))
}

fn literal_source(source: &str) -> Result<(&str, &str)> {
    let (key, value) = source
        .split_once('=')
        .filter(|(key, _)| !key.is_empty())
        .ok_or_else(|| Error::message(format!("invalid literal source {source}, expected key=value")))?;
    // quotes the shell did not take belong to nobody
    let unquoted = ['"', '\''].iter().find_map(|quote| value.strip_prefix(*quote)?.strip_suffix(*quote));
    Ok((key, unquoted.unwrap_or(value)))
}

fn file_source(source: &str) -> Result<Vec<(String, String)>> {
    let (key, path) = match source.split('=').collect::<Vec<_>>().as_slice() {
        [path] => (None, (*path).to_owned()),
        ["", _] => return Err(Error::message(format!("key name for file path {} missing", &source[1..]))),
        [key, ""] => return Err(Error::message(format!("file path for key name {key} missing"))),
        [key, path] => (Some((*key).to_owned()), (*path).to_owned()),
        _ => return Err(Error::message("key names or file paths cannot contain '='")),
    };
    let metadata = std::fs::metadata(&path).map_err(|error| unreadable(&path, &error))?;
    if !metadata.is_dir() {
        let base = Path::new(&path)
            .file_name()
            .map_or_else(|| path.clone(), |name| name.to_string_lossy().into_owned());
        return Ok(vec![(key.unwrap_or(base), path)]);
    }
    if key.is_some() {
        return Err(Error::message("cannot give a key name for a directory path"));
    }
    let mut files = Vec::new();
    for entry in std::fs::read_dir(&path)? {
        let entry = entry?;
        if entry.file_type()?.is_file() {
            files
                .push((entry.file_name().to_string_lossy().into_owned(), entry.path().display().to_string()));
        }
    }
    files.sort();
    Ok(files)
}

/// Lines of `KEY=value`; a bare `KEY` takes the value from our environment.
fn env_lines(text: &str) -> Result<Vec<(String, String)>> {
    let mut entries = Vec::new();
    for (number, line) in text.trim_start_matches('\u{feff}').lines().enumerate() {
        let line = line.trim_start();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let (key, value) = match line.split_once('=') {
            Some((key, value)) => (key, Some(value.to_owned())),
            None => (line, std::env::var(line).ok()),
        };
        let wrong = ferry_api::names::strict_env_var_name(key);
        if !wrong.is_empty() {
            return Err(Error::message(format!(
                "{key:?} is not a valid key name: {} (line {})",
                wrong.join(";"),
                number + 1
            )));
        }
        if let Some(value) = value {
            entries.push((key.to_owned(), value));
        }
    }
    Ok(entries)
}

pub fn check_key(key: &str) -> std::result::Result<(), String> {
    let wrong = ferry_api::names::config_map_key(key);
    if wrong.is_empty() { Ok(()) } else { Err(wrong.join(",")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_upstreams() {
        assert_eq!(
            content_hash(&json!({"kind": "ConfigMap", "name": "cm", "data": {"a": "b", "c": "d"}})),
            "h8df7t64cm"
        );
    }

    #[test]
    fn sources_come_apart() {
        assert_eq!(literal_source("a=b=c").unwrap(), ("a", "b=c"));
        assert_eq!(literal_source("a='b'").unwrap(), ("a", "b"));
        assert!(literal_source("a").is_err());
        assert_eq!(
            env_lines("# c\nA=1\n\n B=x y\n").unwrap(),
            [("A".to_owned(), "1".to_owned()), ("B".to_owned(), "x y".to_owned())]
        );
        assert!(env_lines("1A=b").is_err());
        assert!(check_key("a/b").is_err());
    }
}
