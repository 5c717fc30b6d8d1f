//! A resource on its way through a build, with what happened to it so far.

use std::collections::BTreeMap;

use ferry_api::LabelSelector;
use ferry_api::yaml::{Scalars, unique_documents};
use serde_json::{Map, Value};

use crate::error::{Error, Result};
use crate::id::{Gvk, Id};
use crate::origin::Origin;
use crate::schema::Schemas;

#[derive(Debug, Clone, Default)]
pub struct Resource {
    /// Null once a patch deleted it.
    pub value: Value,
    /// The names it had: namespace, name and kind.
    pub previous: Vec<(String, String, String)>,
    pub prefixes: Vec<String>,
    pub suffixes: Vec<String>,
    /// Set for what a generator made.
    pub behavior: Option<Behavior>,
    /// Its name gets a hash of its content.
    pub needs_hash: bool,
    /// A patch that may change names or kinds.
    pub allows_name_change: bool,
    pub allows_kind_change: bool,
    /// Variables that read a field of it.
    pub variables: Vec<String>,
    pub origin: Option<Origin>,
    pub transformations: Vec<Origin>,
}

/// What a generator does where its resource is there already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Behavior {
    Unspecified,
    Create,
    Replace,
    Merge,
}

impl Behavior {
    pub fn of(word: &str) -> Behavior {
        match word {
            "create" => Behavior::Create,
            "replace" => Behavior::Replace,
            "merge" => Behavior::Merge,
            _ => Behavior::Unspecified,
        }
    }

    pub fn word(self) -> &'static str {
        match self {
            Behavior::Create => "create",
            Behavior::Replace => "replace",
            Behavior::Merge => "merge",
            Behavior::Unspecified => "unspecified",
        }
    }
}

impl Resource {
    pub fn new(value: Value) -> Resource {
        Resource { value, ..Resource::default() }
    }

    pub fn kind(&self) -> &str {
        self.value.get("kind").and_then(Value::as_str).unwrap_or("")
    }

    pub fn api_version(&self) -> &str {
        self.value.get("apiVersion").and_then(Value::as_str).unwrap_or("")
    }

    pub fn name(&self) -> String {
        self.metadata("name")
    }

    pub fn namespace(&self) -> String {
        self.metadata("namespace")
    }

    fn metadata(&self, field: &str) -> String {
        self.value
            .get("metadata")
            .and_then(|metadata| metadata.get(field))
            .map(scalar_text)
            .unwrap_or_default()
    }

    pub fn gvk(&self) -> Gvk {
        Gvk::new(self.api_version(), self.kind())
    }

    pub fn id(&self, schemas: &Schemas) -> Id {
        let gvk = self.gvk();
        Id { cluster: schemas.is_cluster_scoped(&gvk), gvk, name: self.name(), namespace: self.namespace() }
    }

    /// What it was called at first.
    pub fn original_id(&self, schemas: &Schemas) -> Id {
        self.previous_ids().into_iter().next().unwrap_or_else(|| self.id(schemas))
    }

    pub fn previous_ids(&self) -> Vec<Id> {
        let gvk = self.gvk();
        self.previous
            .iter()
            .map(|(namespace, name, kind)| Id {
                gvk: Gvk { kind: kind.clone(), ..gvk.clone() },
                name: name.clone(),
                namespace: namespace.clone(),
                cluster: false,
            })
            .collect()
    }

    /// All it ever was called, the present name last.
    pub fn all_ids(&self, schemas: &Schemas) -> Vec<Id> {
        let mut ids = self.previous_ids();
        ids.push(self.id(schemas));
        ids
    }

    /// Remembers the name before it is changed.
    pub fn store_id(&mut self, schemas: &Schemas) {
        let id = self.id(schemas);
        self.previous.push((id.effective_namespace().to_owned(), id.name, id.gvk.kind));
    }

    pub fn set_name(&mut self, name: &str) {
        self.metadata_mut().insert("name".into(), name.into());
    }

    /// An empty namespace takes the field away.
    pub fn set_namespace(&mut self, namespace: &str) {
        if namespace.is_empty() {
            if let Some(Value::Object(metadata)) = self.value.get_mut("metadata") {
                metadata.remove("namespace");
            }
        } else {
            self.metadata_mut().insert("namespace".into(), namespace.into());
        }
    }

    pub fn metadata_mut(&mut self) -> &mut Map<String, Value> {
        map_at(&mut self.value, "metadata")
    }

    pub fn labels(&self) -> BTreeMap<String, String> {
        self.text_map("labels")
    }

    pub fn annotations(&self) -> BTreeMap<String, String> {
        self.text_map("annotations")
    }

    fn text_map(&self, field: &str) -> BTreeMap<String, String> {
        let map = self.value.get("metadata").and_then(|metadata| metadata.get(field));
        let entries = map.and_then(Value::as_object).into_iter().flatten();
        entries.map(|(key, value)| (key.clone(), scalar_text(value))).collect()
    }

    /// Sets labels or annotations; an empty map takes the field away.
    pub fn set_text_map(&mut self, field: &str, map: BTreeMap<String, String>) {
        let metadata = self.metadata_mut();
        metadata.remove(field);
        if !map.is_empty() {
            let entries = map.into_iter().map(|(key, value)| (key, Value::String(value)));
            metadata.insert(field.into(), Value::Object(entries.collect()));
        }
    }

    pub fn matches_labels(&self, selector: &str) -> Result<bool> {
        matches(selector, &self.labels())
    }

    pub fn matches_annotations(&self, selector: &str) -> Result<bool> {
        matches(selector, &self.annotations())
    }

    /// kustomize keeps what it remembers in annotations, so that there are some.
    pub fn has_build_annotations(&self) -> bool {
        !self.previous.is_empty()
            || !self.prefixes.is_empty()
            || !self.suffixes.is_empty()
            || self.behavior.is_some()
            || self.origin.is_some()
    }
}

/// The map in a field, made if there is none.
pub fn map_at<'v>(value: &'v mut Value, field: &str) -> &'v mut Map<String, Value> {
    if !value.is_object() {
        *value = Value::Object(Map::new());
    }
    let slot = value.as_object_mut().expect("made one above").entry(field).or_insert(Value::Null);
    if !slot.is_object() {
        *slot = Value::Object(Map::new());
    }
    slot.as_object_mut().expect("made one above")
}

fn matches(selector: &str, map: &BTreeMap<String, String>) -> Result<bool> {
    if selector.is_empty() {
        return Ok(true);
    }
    let selector = LabelSelector::parse(selector).map_err(|error| Error::new(error.to_string()))?;
    Ok(selector.matches(|key| map.get(key).map(String::as_str)))
}

/// A scalar's text; lists and maps have none.
pub fn scalar_text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Number(number) => ferry_api::go_json::number_text(number),
        Value::Bool(given) => given.to_string(),
        Value::Null | Value::Array(_) | Value::Object(_) => String::new(),
    }
}

/// The resources of a file.
pub fn read(text: &str) -> Result<Vec<Resource>> {
    let text = text.replace("\r\n", "\n");
    let texts = split(&text)?;
    let mut values = Vec::new();
    for document in &texts {
        let malformed = |error: ferry_api::yaml::BadYaml| Error::new(format!("MalformedYAMLError: {error}"));
        let Some(mut value) =
            unique_documents(document, Scalars::Core).map_err(malformed)?.into_iter().next()
        else {
            continue;
        };
        // annotations are text, however they are written
        let plain = unique_documents(document, Scalars::Text).map_err(malformed)?.into_iter().next();
        annotations_as_text(&mut value, &plain.unwrap_or_default());
        let is_list = matches!(value.get("kind").and_then(Value::as_str), Some("List" | "ResourceList"));
        match value.get_mut("items") {
            Some(Value::Array(items)) if is_list && texts.len() == 1 => values.append(items),
            _ => values.push(value),
        }
    }
    let mut resources = Vec::new();
    let mut rest: std::collections::VecDeque<Value> = values.into();
    while let Some(mut value) = rest.pop_front() {
        if is_empty(&value) {
            continue;
        }
        check_metadata(&value)?;
        let kind = value.get("kind").and_then(Value::as_str).unwrap_or("").to_owned();
        match value.get_mut("items") {
            Some(Value::Array(items)) if kind.ends_with("List") => rest.extend(std::mem::take(items)),
            Some(Value::Null) if kind.ends_with("List") => {}
            Some(_) if kind.ends_with("List") => {
                return Err(Error::new(format!("expected array in {kind}/items")));
            }
            _ => resources.push(Resource::new(value)),
        }
    }
    Ok(resources)
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Object(map) => map.is_empty(),
        Value::Array(items) => items.is_empty(),
        _ => false,
    }
}

fn annotations_as_text(value: &mut Value, texts: &Value) {
    let Some(Value::Object(annotations)) =
        value.get_mut("metadata").and_then(|map| map.get_mut("annotations"))
    else {
        return;
    };
    let texts = texts.get("metadata").and_then(|metadata| metadata.get("annotations"));
    for (key, value) in annotations {
        if let Some(text @ Value::String(_)) = texts.and_then(|texts| texts.get(key)) {
            *value = text.clone();
        }
    }
}

/// Documents are separated by lines that begin with `---`; only a comment may follow on the line.
fn split(text: &str) -> Result<Vec<String>> {
    let mut documents = vec![String::new()];
    for (number, line) in text.split_inclusive('\n').enumerate() {
        let is_last = !line.ends_with('\n');
        match line.strip_prefix("---") {
            Some(rest) if number > 0 && !is_last => {
                let rest = rest.trim();
                if !rest.is_empty() && !rest.starts_with('#') {
                    return Err(Error::new(format!("invalid document separator: {}", line.trim())));
                }
                documents.push(String::new());
            }
            _ => documents.last_mut().expect("there is one").push_str(line),
        }
    }
    Ok(documents)
}

/// A resource has a kind and, unless it is a list, a name.
fn check_metadata(value: &Value) -> Result<()> {
    let text = |field: &str| value.get(field).map(scalar_text).unwrap_or_default();
    let metadata = value.get("metadata");
    if text("apiVersion").is_empty() && text("kind").is_empty() && metadata.is_none_or(is_empty) {
        return Err(Error::new("missing Resource metadata"));
    }
    let resource = Resource::new(value.clone());
    let map = |entries: BTreeMap<String, String>| {
        let entries: Vec<String> = entries.iter().map(|(key, value)| format!("{key}:{value}")).collect();
        format!("map[{}]", entries.join(" "))
    };
    let shown = || {
        format!(
            "{{{{{} {}}} {{{{{} {}}} {} {}}}}}",
            text("apiVersion"),
            text("kind"),
            resource.name(),
            resource.namespace(),
            map(resource.labels()),
            map(resource.annotations())
        )
    };
    if text("kind").is_empty() {
        return Err(Error::new(format!("missing kind in object {}", shown())));
    }
    if !text("kind").ends_with("List") && resource.name().is_empty() {
        return Err(Error::new(format!("missing metadata.name in object {}", shown())));
    }
    Ok(())
}
