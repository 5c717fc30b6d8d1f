//! What OpenAPI documents say of types. Version 3 says more than version 2 (allowed values, defaults), so it is preferred.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::Value;

use super::rows::letters;

pub type Schemas = BTreeMap<String, Schema>;

pub struct Schema {
    value: Value,
    pub is_v2: bool,
    properties: Vec<(String, Property)>,
}

pub struct Property {
    value: Value,
    pub is_required: bool,
}

pub fn read(directory: &Path) -> Result<Schemas> {
    let mut schemas = Schemas::new();
    files(directory, ".json", &mut |path, text| {
        // Documents of other kinds lie beside: what has no types is passed over.
        let document: Value =
            serde_json::from_str(text).with_context(|| format!("read {}", path.display()))?;
        add(&document, &mut schemas);
        Ok(())
    })?;
    Ok(schemas)
}

pub fn add(document: &Value, schemas: &mut Schemas) {
    for (pointer, is_v2) in [("/components/schemas", false), ("/definitions", true)] {
        for (name, value) in document.pointer(pointer).and_then(Value::as_object).into_iter().flatten() {
            if schemas.get(name).is_none_or(|known| known.is_v2) {
                schemas.insert(name.clone(), Schema::new(value.clone(), is_v2));
            }
        }
    }
}

/// Hands over every file below a directory whose name ends so.
pub fn files(directory: &Path, ending: &str, take: &mut impl FnMut(&Path, &str) -> Result<()>) -> Result<()> {
    let entries = std::fs::read_dir(directory).with_context(|| format!("read {}", directory.display()))?;
    for entry in entries {
        let path = entry?.path();
        if path.is_dir() && !path.is_symlink() {
            files(&path, ending, take)?;
        } else if path.to_str().is_some_and(|path| path.ends_with(ending)) {
            let text = std::fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
            take(&path, &text)?;
        }
    }
    Ok(())
}

impl Schema {
    fn new(value: Value, is_v2: bool) -> Schema {
        let required: Vec<&str> = strings(&value["required"]).collect();
        let properties = value["properties"].as_object().into_iter().flatten().map(|(name, value)| {
            (name.clone(), Property { value: value.clone(), is_required: required.contains(&&**name) })
        });
        let properties = properties.collect();
        Schema { value, is_v2, properties }
    }

    pub fn flags(&self) -> Vec<String> {
        let map = self.value["x-kubernetes-map-type"].as_str().map(|kind| format!("map={kind}"));
        map.into_iter().chain(["published".to_owned()]).collect()
    }

    /// Options and events of a watch are listed under every group there is; their own comes first.
    pub fn kinds(&self) -> Vec<String> {
        let mut kinds: Vec<String> = self.value["x-kubernetes-group-version-kind"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|kind| {
                let word = |name: &str| kind[name].as_str().unwrap_or_default();
                match word("group") {
                    "" => format!("gvk {} {}", word("version"), word("kind")),
                    group => format!("gvk {group}/{} {}", word("version"), word("kind")),
                }
            })
            .collect();
        if kinds.first().is_some_and(|first| first.starts_with("gvk v1 ")) {
            kinds.truncate(1);
        }
        kinds
    }

    pub fn unions(&self) -> Vec<String> {
        let unions = self.value["x-kubernetes-unions"].as_array().into_iter().flatten();
        let line = |union: &Value| {
            let fields = union["fields-to-discriminateBy"].as_object().into_iter().flatten();
            let fields = fields.map(|(field, name)| format!("{field}:{}", name.as_str().unwrap_or_default()));
            let fields: Vec<String> = fields.collect();
            format!("union {} {}", union["discriminator"].as_str().unwrap_or("-"), fields.join(","))
        };
        unions.map(line).collect()
    }

    pub fn has_type_meta(&self) -> bool {
        self.property("kind").is_some() && self.property("apiVersion").is_some()
    }

    /// The property that a field on the wire is.
    pub fn property(&self, wire: &str) -> Option<(&str, &Property)> {
        let found = self.properties.iter().find(|(name, _)| letters(name).eq(letters(wire)));
        found.map(|(name, property)| (&**name, property))
    }

    /// `is_value`: in Go the field is no pointer, and it is written even when empty.
    pub fn published_flags(&self, property: &Property, is_value: bool) -> Vec<String> {
        let value = &property.value;
        let mut flags = Vec::new();
        if property.is_required {
            flags.push("required".to_owned());
        }
        let list = value["x-kubernetes-list-type"].as_str();
        match list {
            Some("map") => {
                let keys: Vec<&str> = strings(&value["x-kubernetes-list-map-keys"]).collect();
                flags.push(format!("list=map:{}", keys.join(",")));
            }
            Some(list) => flags.push(format!("list={list}")),
            None => {}
        }
        for (flag, extension) in [
            ("map", "x-kubernetes-map-type"),
            ("patch", "x-kubernetes-patch-strategy"),
            ("key", "x-kubernetes-patch-merge-key"),
        ] {
            flags.extend(value[extension].as_str().map(|word| format!("{flag}={word}")));
        }
        // Version 2 has neither allowed values nor defaults.
        if self.is_v2 {
            return flags;
        }
        let elements = [&value["items"], &value["additionalProperties"], value];
        if let Some(allowed) = elements.into_iter().find_map(|element| element["enum"].as_array()) {
            let mut allowed: Vec<String> =
                allowed.iter().filter_map(Value::as_str).map(|word| word.replace(' ', "~")).collect();
            allowed.sort();
            flags.push(format!("enum={}", allowed.join(",")));
        }
        if let Some(default) = property.default(is_value) {
            flags.push(format!("default={default}"));
        }
        flags
    }
}

impl Property {
    pub fn has_default(&self) -> bool {
        !self.value["default"].is_null()
    }

    /// The default that is meant. Upstream's generator also writes Go's zero value for every field that always has one.
    fn default(&self, is_value: bool) -> Option<&Value> {
        let default = &self.value["default"];
        let is_zero = [Value::from(""), Value::from(0), Value::from(false)].contains(default);
        let is_empty = default.as_object().is_some_and(serde_json::Map::is_empty);
        let is_left_behind = is_empty || (is_zero && is_value);
        Some(default).filter(|default| !default.is_null() && !is_left_behind)
    }
}

fn strings(value: &Value) -> impl Iterator<Item = &str> {
    value.as_array().into_iter().flatten().filter_map(Value::as_str)
}
