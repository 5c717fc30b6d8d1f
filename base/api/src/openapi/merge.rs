//! Documents of OpenAPI v2 made one: what another API server says of its own paths goes into this server's document.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

/// What paths refer to, by the sections that hold it.
const SECTIONS: [&str; 2] = ["definitions", "parameters"];

/// The part of a document that is about the paths below `base`, and what these refer to.
pub fn part(document: &Value, base: &str) -> Value {
    let within =
        |path: &str| path.strip_prefix(base).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    let empty = Map::new();
    let section = |name: &str| document.get(name).and_then(Value::as_object).unwrap_or(&empty);
    let paths: Map<String, Value> = section("paths")
        .iter()
        .filter(|(path, _)| within(path))
        .map(|(path, item)| (path.clone(), item.clone()))
        .collect();
    let mut wanted: Vec<(&str, String)> = Vec::new();
    paths.values().for_each(|item| references(item, &mut wanted));
    let mut found: BTreeMap<&str, Map<String, Value>> = BTreeMap::new();
    while let Some((kind, name)) = wanted.pop() {
        let Some(definition) = section(kind).get(&name) else { continue };
        if found.entry(kind).or_default().insert(name, definition.clone()).is_none() {
            references(definition, &mut wanted);
        }
    }
    let mut part = Map::new();
    part.insert("paths".into(), paths.into());
    part.extend(found.into_iter().map(|(kind, definitions)| (kind.to_string(), definitions.into())));
    part.into()
}

/// Puts a part into the document. Paths and definitions that the document has stay as they are there; what has the name
/// of another thing gets a name of its own.
pub fn merge(document: &mut Value, part: &Value) {
    let mut renamed: BTreeMap<(&str, String), String> = BTreeMap::new();
    let mut added: Vec<(&str, String, &Value)> = Vec::new();
    for kind in SECTIONS {
        let taken = document.get(kind).and_then(Value::as_object);
        for (name, definition) in part.get(kind).and_then(Value::as_object).into_iter().flatten() {
            let free =
                |name: &str| taken.and_then(|taken| taken.get(name)).is_none_or(|own| same(own, definition));
            let numbered = (2..).map(|number| format!("{name}_v{number}"));
            let Some(free) = std::iter::once(name.clone()).chain(numbered).find(|name| free(name)) else {
                continue;
            };
            if free != *name {
                renamed.insert((kind, name.clone()), free.clone());
            }
            added.push((kind, free, definition));
        }
    }
    let with_new_names = |value: &Value| {
        let mut value = value.clone();
        rename(&mut value, &renamed);
        value
    };
    let paths = part.get("paths").and_then(Value::as_object).into_iter().flatten();
    let paths = paths.map(|(path, item)| ("paths", path.clone(), item));
    for (section, name, value) in added.into_iter().chain(paths) {
        if !document[section].is_object() {
            document[section] = Map::new().into();
        }
        if let Some(section) = document[section].as_object_mut() {
            section.entry(name).or_insert_with(|| with_new_names(value));
        }
    }
}

/// Two servers describe a shared type with other words and for other kinds; its shape is what counts.
fn same(a: &Value, b: &Value) -> bool {
    const ASIDE: [&str; 2] = ["description", "x-kubernetes-group-version-kind"];
    match (a, b) {
        (Value::Object(a), Value::Object(b)) => {
            // A property may have any name, that of a description too: then it is an object.
            let counts = |value: &Value, key: &str| !ASIDE.contains(&key) || value.is_object();
            let keys: BTreeSet<&String> =
                a.iter().chain(b).filter(|(key, value)| counts(value, key)).map(|(key, _)| key).collect();
            keys.into_iter().all(|key| match (a.get(key), b.get(key)) {
                (Some(a), Some(b)) => same(a, b),
                _ => false,
            })
        }
        (Value::Array(a), Value::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b)),
        (a, b) => a == b,
    }
}

fn target(reference: &str) -> Option<(&'static str, String)> {
    SECTIONS.into_iter().find_map(|kind| {
        let name = reference.strip_prefix("#/")?.strip_prefix(kind)?.strip_prefix('/')?;
        Some((kind, name.to_string()))
    })
}

fn references(value: &Value, found: &mut Vec<(&'static str, String)>) {
    match value {
        Value::Object(entries) => {
            found.extend(entries.get("$ref").and_then(Value::as_str).and_then(target));
            entries.values().for_each(|value| references(value, found));
        }
        Value::Array(items) => items.iter().for_each(|value| references(value, found)),
        _ => {}
    }
}

fn rename(value: &mut Value, renamed: &BTreeMap<(&str, String), String>) {
    match value {
        Value::Object(entries) => {
            for (key, value) in entries.iter_mut() {
                let new = match value.as_str().filter(|_| key == "$ref").and_then(target) {
                    Some(target) => renamed.get(&target).map(|name| format!("#/{}/{name}", target.0)),
                    None => None,
                };
                match new {
                    Some(new) => *value = new.into(),
                    None => rename(value, renamed),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|value| rename(value, renamed)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn reference(name: &str) -> Value {
        json!({"$ref": format!("#/definitions/{name}")})
    }

    #[test]
    fn a_part_holds_its_paths_and_all_that_they_refer_to() {
        let document = json!({
            "paths": {"/apis/w/v1/flunders": reference("Flunder"), "/apis/w/v1beta1/flunders": reference("Old"), "/version": {}},
            "definitions": {
                "Flunder": {"properties": {"next": reference("Flunder"), "meta": reference("Meta")}},
                "Meta": {}, "Old": {},
            },
        });
        let part = part(&document, "/apis/w/v1");
        assert_eq!(part["paths"], json!({"/apis/w/v1/flunders": reference("Flunder")}));
        let names: Vec<&String> = part["definitions"].as_object().expect("definitions").keys().collect();
        assert_eq!(names, ["Flunder", "Meta"]);
        assert_eq!(super::part(&json!("no document"), "/apis"), json!({"paths": {}}));
    }

    #[test]
    fn openapi_name_conflicts_are_renamed() {
        let mut document = json!({
            "paths": {"/a": {"get": "ours"}},
            "definitions": {"Meta": {"type": "object"}, "Thing": {"type": "string"}},
        });
        let part = json!({
            "paths": {"/a": {"get": "theirs"}, "/b": reference("Thing"), "/c": reference("Meta")},
            "definitions": {"Meta": {"type": "object", "description": "words"}, "Thing": {"type": "integer"}},
        });
        merge(&mut document, &part);
        let expected = json!({
            "paths": {"/a": {"get": "ours"}, "/b": reference("Thing_v2"), "/c": reference("Meta")},
            "definitions": {"Meta": {"type": "object"}, "Thing": {"type": "string"}, "Thing_v2": {"type": "integer"}},
        });
        assert_eq!(document, expected);
    }
}
