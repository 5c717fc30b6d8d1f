//! ConfigMaps and Secrets made from literals and files, and the hash that their names end in.

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::error::{Error, Result, Within};
use crate::files::{FileTree, Root};
use crate::kustomization::GeneratorArgs;
use crate::resource::{Behavior, Resource, map_at, scalar_text};

pub fn config_map(files: &dyn FileTree, root: &Root, args: &GeneratorArgs) -> Result<Resource> {
    let mut resource = base("ConfigMap", args)?;
    for (key, bytes) in pairs(files, root, args)? {
        match String::from_utf8(bytes) {
            Ok(text) => map_at(&mut resource.value, "data").insert(key, text.into()),
            Err(binary) => {
                map_at(&mut resource.value, "binaryData").insert(key, encoded(binary.as_bytes()).into())
            }
        };
    }
    finish(resource, args)
}

pub fn secret(files: &dyn FileTree, root: &Root, args: &GeneratorArgs) -> Result<Resource> {
    let mut resource = base("Secret", args)?;
    let secret_type = if args.secret_type.is_empty() { "Opaque" } else { &args.secret_type };
    let data: serde_json::Map<String, Value> =
        pairs(files, root, args)?.into_iter().map(|(key, bytes)| (key, encoded(&bytes).into())).collect();
    if let Value::Object(map) = &mut resource.value {
        map.insert("type".into(), secret_type.into());
        map.insert("data".into(), Value::Object(data));
    }
    finish(resource, args)
}

fn base(kind: &str, args: &GeneratorArgs) -> Result<Resource> {
    if args.name.is_empty() {
        return Err(Error::new("a configmap must have a name"));
    }
    let mut resource =
        Resource::new(json!({"apiVersion": "v1", "kind": kind, "metadata": {"name": args.name}}));
    resource.set_namespace(&args.namespace);
    Ok(resource)
}

fn finish(mut resource: Resource, args: &GeneratorArgs) -> Result<Resource> {
    if let Some(options) = &args.options {
        for (field, map) in [("labels", &options.labels), ("annotations", &options.annotations)] {
            if !map.is_empty() {
                resource.set_text_map(field, map.clone());
            }
        }
        if options.immutable
            && let Value::Object(map) = &mut resource.value
        {
            map.insert("immutable".into(), true.into());
        }
    }
    resource.needs_hash = !args.options.as_ref().is_some_and(|options| options.disable_name_suffix_hash);
    resource.behavior = Some(Behavior::of(&args.behavior));
    Ok(resource)
}

fn pairs(files: &dyn FileTree, root: &Root, args: &GeneratorArgs) -> Result<BTreeMap<String, Vec<u8>>> {
    let listed = |list: &[String]| format!("[{}]", list.join(" "));
    let mut all: Vec<(String, Vec<u8>)> = Vec::new();
    for path in &args.envs {
        let lines = root.read(files, path).and_then(|content| of_lines(&content));
        all.extend(
            lines.within(format!("env source files: {}", listed(&args.envs))).within("loading KV pairs")?,
        );
    }
    for literal in &args.literals {
        let pair = of_literal(literal).within(format!("literal sources {}", listed(&args.literals)));
        all.push(pair.within("loading KV pairs")?);
    }
    for source in &args.files {
        let pair = of_file(source)
            .and_then(|(key, path)| Ok((key.to_owned(), root.read(files, path)?)))
            .within(format!("file sources: {}", listed(&args.files)));
        all.push(pair.within("loading KV pairs")?);
    }
    let mut map = BTreeMap::new();
    for (key, value) in all {
        if map.insert(key.clone(), value).is_some() {
            return Err(Error::new(format!("configmap {} illegally repeats the key `{key}`", args.name)));
        }
    }
    Ok(map)
}

/// Lines of `KEY=value`; a line without `=` has an empty value.
fn of_lines(content: &[u8]) -> Result<Vec<(String, Vec<u8>)>> {
    let mut pairs = Vec::new();
    for (number, line) in content.split(|byte| *byte == b'\n').enumerate() {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let text = std::str::from_utf8(line)
            .map_err(|_| Error::new(format!("line {number} has invalid utf8 bytes")))?;
        let text = if number == 0 { text.trim_start_matches('\u{feff}') } else { text };
        let text = text.trim_start();
        if text.is_empty() || text.starts_with('#') {
            continue;
        }
        let (key, value) = text.split_once('=').unwrap_or((text, ""));
        if !key.is_empty() {
            pairs.push((key.to_owned(), value.as_bytes().to_vec()));
        }
    }
    Ok(pairs)
}

fn of_literal(literal: &str) -> Result<(String, Vec<u8>)> {
    let (key, value) = literal
        .split_once('=')
        .filter(|(key, _)| !key.is_empty())
        .ok_or_else(|| Error::new(format!("invalid literal source {literal}, expected key=value")))?;
    let unquoted = ['"', '\''].iter().find_map(|quote| {
        let inner = value.strip_prefix(*quote)?.strip_suffix(*quote);
        inner.filter(|_| value.len() >= 2)
    });
    Ok((key.to_owned(), unquoted.unwrap_or(value).as_bytes().to_vec()))
}

/// `path` or `key=path`.
fn of_file(source: &str) -> Result<(&str, &str)> {
    match source.split('=').collect::<Vec<_>>().as_slice() {
        [path] => Ok((path.rsplit('/').find(|part| !part.is_empty()).unwrap_or(path), path)),
        ["", path] => {
            Err(Error::new(format!("missing key name for file path {path:?} in source {source:?}")))
        }
        [key, ""] => Err(Error::new(format!("missing file path for key name {key:?} in source {source:?}"))),
        [key, path] => Ok((key, path)),
        _ => Err(Error::new(format!("source {source:?} key name or file path contains '='"))),
    }
}

/// Base64 in lines of 70 characters, each ended when there is more than one.
fn encoded(bytes: &[u8]) -> String {
    const LINE: usize = 70;
    let text = STANDARD.encode(bytes);
    if text.len() < LINE {
        return text;
    }
    let mut lines = String::with_capacity(text.len() + text.len() / LINE + 1);
    for (at, c) in text.chars().enumerate() {
        lines.push(c);
        if (at + 1) % LINE == 0 {
            lines.push('\n');
        }
    }
    if !lines.ends_with('\n') {
        lines.push('\n');
    }
    lines
}

/// Ten characters that change with the content.
pub fn hash(resource: &Value) -> Result<String> {
    let field = |name: &str| match resource.get(name) {
        Some(map @ Value::Object(_)) => map.clone(),
        Some(scalar) => Value::String(scalar_text(scalar)),
        None => Value::String(String::new()),
    };
    let kind = resource.get("kind").and_then(Value::as_str).unwrap_or("");
    // kustomize looks the name up where there is none, so that it never counts
    let mut hashed = json!({"kind": kind, "name": "", "data": field("data")});
    let more = match kind {
        "ConfigMap" => "binaryData",
        "Secret" => {
            hashed["type"] = field("type");
            "stringData"
        }
        _ => return Err(Error::new(format!("names of kind {kind} get no hash"))),
    };
    if resource.get(more).is_some_and(Value::is_object) {
        hashed[more] = field(more);
    }
    let digest = Sha256::digest(ferry_api::go_json::compact(&hashed).as_bytes());
    let hex: String = digest.iter().take(5).map(|byte| format!("{byte:02x}")).collect();
    Ok(hex
        .chars()
        .map(|c| match c {
            '0' => 'g',
            '1' => 'h',
            '3' => 'k',
            'a' => 'm',
            'e' => 't',
            other => other,
        })
        .collect())
}
