//! What makes a schema structural: every field has its type outside of `allOf` and its like, and those only
//! narrow values down. Pruning and defaulting depend on it.

use ferry_api::FieldErrors;
use serde_json::{Map, Value, json};

use crate::hand_on;
use crate::path::Path;

use super::{is_given, is_true, object, text, wrong_pattern};

type Fields = Map<String, Value>;

/// Where a schema stands.
#[derive(Clone, Copy, PartialEq)]
enum Level {
    Root,
    Item,
    Field,
}

pub fn check(root: &Fields, path: &str, errors: &mut FieldErrors) {
    let path = &mut Path::at(path);
    let mut found = FieldErrors::default();
    invariants(root, Level::Root, path, &mut found);
    complete_combined(root, root, path, &mut path.clone(), &mut found);
    found.0.sort_by_cached_key(ToString::to_string);
    hand_on(found, errors);
}

fn invariants(schema: &Fields, level: Level, path: &mut Path, errors: &mut FieldErrors) {
    let kind = text(schema, "type");
    if kind == "array" && !is_given(schema, "items") {
        errors.required(path.with("items"), "must be specified");
    }
    if let Some(items) = object(schema, "items") {
        path.below("items", |path| invariants(items, Level::Item, path, errors));
    }
    let properties = object(schema, "properties");
    for (name, property) in properties.into_iter().flatten() {
        if let Some(property) = property.as_object() {
            path.property(name, |path| invariants(property, Level::Field, path, errors));
        }
    }
    let embedded = is_true(schema, "x-kubernetes-embedded-resource");
    let preserves = is_true(schema, "x-kubernetes-preserve-unknown-fields");
    let int_or_string = is_true(schema, "x-kubernetes-int-or-string");
    let additional = is_given(schema, "additionalProperties");
    if additional && level == Level::Root {
        errors.forbidden(path.with("additionalProperties"), "must not be used at the root");
    }
    if let Some(values) = object(schema, "additionalProperties") {
        path.below("additionalProperties", |path| invariants(values, Level::Field, path, errors));
    }
    for (word, is_set) in
        [("x-kubernetes-preserve-unknown-fields", preserves), ("x-kubernetes-embedded-resource", embedded)]
    {
        if int_or_string && is_set {
            errors.invalid(path.with(word), true, "must be false if x-kubernetes-int-or-string is true");
        }
    }
    let either = json!([{"type": "integer"}, {"type": "string"}]);
    let skips = Skips {
        any_of: schema.get("anyOf") == Some(&either),
        first_all_of: schema.get("allOf").and_then(|all| all.get(0)?.get("anyOf")) == Some(&either),
    };
    narrowing(schema, skips, path, errors);
    has_type(kind, level, embedded, int_or_string || preserves, path, errors);
    if embedded && additional {
        errors.forbidden(
            path.with("additionalProperties"),
            "must not be used if x-kubernetes-embedded-resource is set",
        );
    }
    type_meta(schema, level, path, errors);
    if embedded && !preserves && properties.is_none_or(Map::is_empty) {
        let why = "must not be empty if x-kubernetes-embedded-resource is true without x-kubernetes-preserve-unknown-fields";
        errors.required(path.with("properties"), why);
    }
}

/// `may_lack`: other words of the schema say which types a value has.
fn has_type(kind: &str, level: Level, embedded: bool, may_lack: bool, path: &Path, errors: &mut FieldErrors) {
    let why = "must be object if x-kubernetes-embedded-resource is true";
    match (embedded, kind) {
        (true, "object") => {}
        (true, "") => errors.required(path.with("type"), why),
        (true, kind) => errors.invalid(path.with("type"), kind, why),
        (false, "") if !may_lack => errors.required(
            path.with("type"),
            match level {
                Level::Root => "must not be empty at the root",
                Level::Item => "must not be empty for specified array items",
                Level::Field => "must not be empty for specified object fields",
            },
        ),
        (false, _) => {}
    }
    if level == Level::Root && !kind.is_empty() && kind != "object" {
        errors.invalid(path.with("type"), kind, "must be object at the root");
    }
}

/// The kind, apiVersion and metadata of a resource, the object itself or one embedded in it.
fn type_meta(schema: &Fields, level: Level, path: &Path, errors: &mut FieldErrors) {
    let is_resource = level == Level::Root || is_true(schema, "x-kubernetes-embedded-resource");
    let properties = object(schema, "properties");
    for name in ["kind", "apiVersion"] {
        let Some(property) = properties.and_then(|properties| object(properties, name)) else { continue };
        if is_resource && text(property, "type") != "string" {
            let path = path.with(&format!("properties[{name}].type"));
            errors.invalid(path, text(property, "type"), "must be string");
        }
    }
    if let Some(metadata) = properties.and_then(|properties| object(properties, "metadata")) {
        let path = path.with("properties[metadata]");
        if is_resource && text(metadata, "type") != "object" {
            errors.invalid(format!("{path}.type"), text(metadata, "type"), "must be object");
        }
        if level == Level::Root && !says_names_alone(metadata) {
            let why = "must not specify anything other than name and generateName, but metadata is implicitly specified";
            errors.forbidden(path, why);
        }
    }
}

/// Of the metadata of the object itself a schema may narrow down its names.
fn says_names_alone(metadata: &Fields) -> bool {
    metadata.iter().all(|(word, value)| match word.as_str() {
        "type" | "default" => true,
        "properties" => value
            .as_object()
            .is_some_and(|properties| properties.keys().all(|name| name == "name" || name == "generateName")),
        _ => matches!(value, Value::Null | Value::Bool(false)) || *value == json!("") || *value == json!([]),
    })
}

/// The two ways to write `x-kubernetes-int-or-string` for others may name types.
#[derive(Clone, Copy, Default)]
struct Skips {
    any_of: bool,
    first_all_of: bool,
}

/// What narrows values down: `allOf` and its like, and patterns.
fn narrowing(schema: &Fields, skips: Skips, path: &mut Path, errors: &mut FieldErrors) {
    for word in ["anyOf", "allOf", "oneOf"] {
        if word == "anyOf" && skips.any_of {
            continue;
        }
        let schemas = schema.get(word).and_then(Value::as_array).into_iter().flatten();
        for (index, inner) in schemas.enumerate() {
            let Some(inner) = inner.as_object() else { continue };
            let any_of = word == "allOf" && index == 0 && skips.first_all_of;
            let skips = Skips { any_of, first_all_of: false };
            path.element(word, index, |path| nested(inner, skips, path, errors));
        }
    }
    if let Some(not) = object(schema, "not") {
        path.below("not", |path| nested(not, Skips::default(), path, errors));
    }
    let pattern = text(schema, "pattern");
    if let Some(why) = Some(pattern).filter(|pattern| !pattern.is_empty()).and_then(wrong_pattern) {
        let why = format!("must be a valid regular expression, but isn't: {why}");
        errors.invalid(path.with("pattern"), pattern, &why);
    }
}

fn nested(schema: &Fields, skips: Skips, path: &mut Path, errors: &mut FieldErrors) {
    narrowing(schema, skips, path, errors);
    if let Some(items) = object(schema, "items") {
        path.below("items", |path| nested(items, Skips::default(), path, errors));
    }
    let properties = object(schema, "properties");
    for (name, property) in properties.into_iter().flatten() {
        if let Some(property) = property.as_object() {
            path.property(name, |path| nested(property, Skips::default(), path, errors));
        }
    }
    let said = |name: &str| match schema.get(name) {
        None | Some(Value::Null | Value::Bool(false)) => false,
        Some(Value::String(text)) => !text.is_empty(),
        Some(Value::Array(items)) => !items.is_empty(),
        Some(_) => true,
    };
    if said("type") {
        errors.forbidden(path.with("type"), "must be empty to be structural");
    }
    if is_given(schema, "additionalProperties") {
        errors.forbidden(path.with("additionalProperties"), "must be undefined to be structural");
    }
    if is_given(schema, "default") {
        errors.forbidden(path.with("default"), "must be undefined to be structural");
    }
    for (words, why) in [
        (
            ["title", "description", "x-kubernetes-list-map-keys", "x-kubernetes-validations"].as_slice(),
            "must be empty to be structural",
        ),
        (
            &[
                "nullable",
                "x-kubernetes-preserve-unknown-fields",
                "x-kubernetes-embedded-resource",
                "x-kubernetes-int-or-string",
            ],
            "must be false to be structural",
        ),
        (&["x-kubernetes-list-type", "x-kubernetes-map-type"], "must be undefined to be structural"),
    ] {
        for word in words.iter().filter(|word| said(word)) {
            errors.forbidden(path.with(word), why);
        }
    }
    if properties.is_some_and(|properties| properties.contains_key("metadata")) {
        errors.forbidden(path.with("properties[metadata]"), "must not be specified in a nested context");
    }
}

/// What `allOf` and its like name stands in the schema around them, too: `inside` is looked through, `schema` is
/// the one around at the same place.
fn nested_complete(
    inside: &Fields,
    schema: Option<&Fields>,
    path: &mut Path,
    inside_path: &mut Path,
    errors: &mut FieldErrors,
) {
    let Some(schema) = schema else {
        errors.required(path.as_str(), &format!("because it is defined in {}", inside_path.as_str()));
        return;
    };
    complete_combined(inside, schema, path, inside_path, errors);
    if let Some(items) = object(inside, "items") {
        path.below("items", |path| {
            inside_path.below("items", |inside_path| {
                nested_complete(items, object(schema, "items"), path, inside_path, errors);
            });
        });
    }
    for (name, property) in object(inside, "properties").into_iter().flatten() {
        let Some(property) = property.as_object() else { continue };
        let around = object(schema, "properties").and_then(|properties| object(properties, name));
        path.property(name, |path| {
            inside_path.property(name, |inside_path| {
                nested_complete(property, around, path, inside_path, errors);
            });
        });
    }
}

fn complete_combined(
    inside: &Fields,
    schema: &Fields,
    path: &mut Path,
    inside_path: &mut Path,
    errors: &mut FieldErrors,
) {
    if let Some(not) = object(inside, "not") {
        inside_path.below("not", |inside_path| nested_complete(not, Some(schema), path, inside_path, errors));
    }
    for word in ["allOf", "anyOf", "oneOf"] {
        let schemas = inside.get(word).and_then(Value::as_array).into_iter().flatten();
        for (index, inner) in schemas.enumerate() {
            let Some(inner) = inner.as_object() else { continue };
            inside_path.element(word, index, |inside_path| {
                nested_complete(inner, Some(schema), path, inside_path, errors);
            });
        }
    }
}
