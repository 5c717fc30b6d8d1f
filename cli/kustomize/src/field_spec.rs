//! Which fields of which kinds a transformer changes, and the walk to them.

use serde::Deserialize;
use serde_json::{Map, Value};

use crate::error::{Error, Result};
use crate::id::{Gvk, Id};
use crate::resource::{Resource, scalar_text};

#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FieldSpec {
    pub group: String,
    pub version: String,
    pub kind: String,
    pub path: String,
    pub create: bool,
}

/// What is put where the field is missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Create {
    Nothing,
    Scalar,
    Map,
}

impl FieldSpec {
    pub fn new(path: &str, create: bool) -> FieldSpec {
        FieldSpec { path: path.into(), create, ..FieldSpec::default() }
    }

    pub fn gvk(&self) -> Gvk {
        Gvk { group: self.group.clone(), version: self.version.clone(), kind: self.kind.clone() }
    }

    fn covers(&self, other: &FieldSpec) -> bool {
        self.gvk().is_selected_by(&other.gvk()) && self.path == other.path
    }

    /// Calls `set` on each field of the resource that this names.
    pub fn visit(
        &self,
        resource: &mut Resource,
        create: Create,
        set: &mut dyn FnMut(&mut Value) -> Result<()>,
    ) -> Result<()> {
        if !resource.gvk().is_selected_by(&self.gvk()) {
            return Ok(());
        }
        let path = split_path(&self.path, '/');
        let path: Vec<&str> = path.iter().map(String::as_str).collect();
        let create = if self.create { create } else { Create::Nothing };
        walk(&mut resource.value, &path, create, set).map_err(|error| {
            let id = Id {
                gvk: resource.gvk(),
                name: resource.name(),
                namespace: resource.namespace(),
                cluster: false,
            };
            error.within(format!("considering field '{}' of object {id}", self.path))
        })
    }
}

fn walk(
    value: &mut Value,
    path: &[&str],
    create: Create,
    set: &mut dyn FnMut(&mut Value) -> Result<()>,
) -> Result<()> {
    let Some((name, rest)) = path.split_first() else { return set(value) };
    match value {
        Value::Null => Ok(()),
        Value::Array(items) => items.iter_mut().try_for_each(|item| walk(item, path, create, set)),
        Value::Object(map) => {
            let (name, is_list) = match name.strip_suffix("[]") {
                Some(name) => (name, true),
                None => (*name, false),
            };
            if name.is_empty() {
                return Err(Error::new("cannot set or create an empty field name"));
            }
            let made = match create {
                _ if is_list => Value::Array(Vec::new()),
                Create::Nothing => Value::Null,
                Create::Scalar if rest.is_empty() => Value::String(String::new()),
                Create::Scalar | Create::Map => Value::Object(Map::new()),
            };
            let field = match map.get_mut(name) {
                Some(field) => field,
                None if create == Create::Nothing || is_list => return Ok(()),
                None => map.entry(name).or_insert(Value::Null),
            };
            if field.is_null() {
                *field = made;
            }
            walk(field, rest, create, set)
        }
        _ => Err(Error::new("expected sequence or mapping node")),
    }
}

/// Puts text into a scalar.
pub fn set_text(value: &mut Value, text: impl Into<String>) -> Result<()> {
    if value.is_array() || value.is_object() {
        return Err(not_scalar(value));
    }
    *value = Value::String(text.into());
    Ok(())
}

/// Puts an entry into a map.
pub fn set_entry(value: &mut Value, key: &str, text: &str) -> Result<()> {
    match value {
        Value::Object(map) => {
            map.insert(key.into(), text.into());
            Ok(())
        }
        other => Err(Error::new(format!(
            "wrong node kind: expected MappingNode but got {}: node contents:\n{}",
            node_kind(other),
            ferry_api::yaml::encode_value(other)
        ))),
    }
}

pub fn not_scalar(value: &Value) -> Error {
    Error::new(format!(
        "wrong node kind: expected ScalarNode but got {}: node contents:\n{}",
        node_kind(value),
        ferry_api::yaml::encode_value(value)
    ))
}

fn node_kind(value: &Value) -> &'static str {
    match value {
        Value::Object(_) => "MappingNode",
        Value::Array(_) => "SequenceNode",
        _ => "ScalarNode",
    }
}

/// Adds what is not there yet.
pub fn merge(specs: &mut Vec<FieldSpec>, more: &[FieldSpec]) -> Result<()> {
    for spec in more {
        match specs.iter().find(|known| known.covers(spec)) {
            Some(known) if known.create != spec.create => return Err(Error::new("conflicting fieldspecs")),
            Some(_) => {}
            None => specs.push(spec.clone()),
        }
    }
    Ok(())
}

pub fn sort(specs: &mut [FieldSpec]) {
    specs.sort_by(|a, b| a.gvk().order(&b.gvk()));
}

/// Splits at the delimiter unless a backslash stands before it; one at the beginning does not count.
pub fn split_path(path: &str, delimiter: char) -> Vec<String> {
    let mut parts: Vec<&str> = path.split(delimiter).collect();
    if parts.len() > 1 && parts[0].is_empty() {
        parts.remove(0);
    }
    let mut result: Vec<String> = Vec::new();
    for part in parts {
        match result.last_mut() {
            Some(last) if last.ends_with('\\') => {
                last.pop();
                last.push(delimiter);
                last.push_str(part);
            }
            _ => result.push(part.to_owned()),
        }
    }
    result
}

/// As [`split_path`] with dots, where `[name=a.b]` and `[a.b]` stay whole; the latter without its brackets.
pub fn split_field_path(path: &str) -> Vec<String> {
    let mut result = Vec::new();
    let mut parts = split_path(path, '.').into_iter();
    while let Some(part) = parts.next() {
        if !part.starts_with('[') || part.ends_with(']') {
            result.push(part);
            continue;
        }
        let mut whole = part;
        for next in parts.by_ref() {
            whole.push('.');
            whole.push_str(&next);
            if next.ends_with(']') {
                break;
            }
        }
        result.push(if whole.contains('=') { whole } else { whole.trim_matches(['[', ']']).to_owned() });
    }
    result
}

/// The value at a path; a part may be a field, an index, `-` for the last element or `[name=value]`.
pub fn look_up<'v>(value: &'v Value, path: &[String]) -> Result<Option<&'v Value>> {
    let mut found = value;
    for part in path.iter().map(|part| part.trim()).filter(|part| !part.is_empty()) {
        let next = if let Ok(index) = part.parse::<i64>() {
            let index = usize::try_from(index)
                .map_err(|_| Error::new(format!("array index {index} cannot be negative")))?;
            list(found)?.get(index)
        } else if part == "-" {
            list(found)?.last()
        } else if part == "*" {
            return Err(Error::new("wildcard is not supported in PathGetter"));
        } else if part.starts_with('[') && part.ends_with(']') {
            let (field, wanted) = element_match(part)?;
            list(found)?.iter().find(|element| match field {
                "" => scalar_text(element) == wanted,
                field => element.get(field).is_some_and(|value| scalar_text(value) == wanted),
            })
        } else {
            match found {
                Value::Object(map) => map.get(part),
                Value::Null => None,
                other => {
                    return Err(Error::new(format!(
                        "wrong node kind: expected MappingNode but got {}: node contents:\n{}",
                        node_kind(other),
                        ferry_api::yaml::encode_value(other)
                    )));
                }
            }
        };
        match next {
            Some(next) => found = next,
            None => return Ok(None),
        }
    }
    Ok(Some(found))
}

fn list(value: &Value) -> Result<&[Value]> {
    match value {
        Value::Array(items) => Ok(items),
        Value::Null => Ok(&[]),
        other => Err(Error::new(format!(
            "wrong node kind: expected SequenceNode but got {}: node contents:\n{}",
            node_kind(other),
            ferry_api::yaml::encode_value(other)
        ))),
    }
}

/// `[name=value]` as its two sides.
pub fn element_match(part: &str) -> Result<(&str, &str)> {
    part.trim_start_matches('[')
        .strip_suffix(']')
        .unwrap_or(part)
        .split_once('=')
        .ok_or_else(|| Error::new("list path element must contain fieldName=fieldValue for element to match"))
}
