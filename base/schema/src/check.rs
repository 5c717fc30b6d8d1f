//! Judges the schema that a definition brings: words of JSON schema that are not supported, what makes a
//! schema structural ([`structure`]), defaults that fit it ([`defaults`]), rules that compile and cost little
//! enough.
//!
//! An update is not refused for what was there before: [`CheckContext::old`] is what the definition said.

mod defaults;
mod structure;
mod words;

use std::borrow::Cow;

use ferry_api::FieldErrors;
use serde_json::{Map, Value};

use crate::structural::MAX_DEPTH;
use crate::{Structural, hand_on, pattern};

/// What is known beside the schema itself.
#[derive(Debug, Clone, Default)]
pub struct CheckContext<'a> {
    /// The schema of the same version before an update, where the version was there.
    pub old: Option<&'a Value>,
    /// The schemas of all versions before an update: what any of them had may stay.
    pub all_old: &'a [&'a Value],
    /// `spec.preserveUnknownFields` of the definition. A schema need not be structural then, unless it has
    /// defaults or the words that Kubernetes adds.
    pub preserve_unknown_fields: bool,
    /// The version has a status subresource: not every word is allowed at its root.
    pub status_subresource: bool,
}

/// Every error of a version's `openAPIV3Schema` at `path`, such as `spec.versions[0].schema.openAPIV3Schema`.
pub fn schema(value: &Value, path: &str, context: &CheckContext<'_>, errors: &mut FieldErrors) {
    if depth(value) > MAX_DEPTH {
        errors.invalid(path, "", &format!("must not nest more than {MAX_DEPTH} levels deep"));
        return;
    }
    if let Some((way, wrong)) = no_schema(value) {
        errors.invalid(format!("{path}{way}"), wrong.clone(), "must be an object");
        return;
    }
    let value = &*without_nulls(value);
    let Some(root) = value.as_object() else { return };
    let options = Options::of(context, value);
    let mut found = FieldErrors::default();
    at_the_root(root, path, context, &mut found);
    let mut unreadable = None;
    let mut rules = false;
    if options.structural {
        match words::unsupported(value) {
            Some(why) => unreadable = Some(why),
            None => {
                let before = found.0.len();
                structure::check(root, path, &mut found);
                if found.0.len() == before {
                    rules = match Structural::parse(value) {
                        Ok(structural) => {
                            defaults::check(&structural, path, options.pruned_defaults, &mut found);
                            found.0.len() == before
                        }
                        // A type that does not exist; it is told with the words.
                        Err(_) => false,
                    };
                }
            }
        }
    }
    words::check(value, path, &options, rules, &mut found);
    if found.is_empty()
        && let Some(why) = unreadable
    {
        found.invalid(path, "", &why);
    }
    hand_on(found, errors);
}

/// What is asked of a schema; an update asks no more than the definition kept before.
pub(crate) struct Options {
    pub structural: bool,
    pub valid_types: bool,
    pub pruned_defaults: bool,
    pub atomic_sets: bool,
    pub list_map_keys: bool,
    /// Costs of rules are not judged again in a schema that did not change.
    pub costs: bool,
}

impl Options {
    fn of(context: &CheckContext<'_>, value: &Value) -> Options {
        let old = || context.all_old.iter().copied().chain(context.old);
        let none = |had: &dyn Fn(&Value) -> bool| !old().any(had);
        let wanted = !context.preserve_unknown_fields || any(value, &uses_extensions);
        Options {
            structural: wanted || none(&is_not_structural),
            valid_types: none(&|schema| any(schema, &has_unknown_type)),
            pruned_defaults: none(&defaults::has_unpruned),
            atomic_sets: none(&|schema| any(schema, &words::has_set_of_parts)),
            list_map_keys: none(&|schema| any(schema, &words::has_optional_keys)),
            costs: context.old != Some(value),
        }
    }
}

fn is_not_structural(schema: &Value) -> bool {
    let Some(root) = schema.as_object() else { return false };
    let mut errors = FieldErrors::default();
    structure::check(root, "", &mut errors);
    words::unsupported(schema).is_some() || !errors.is_empty()
}

fn has_unknown_type(schema: &Map<String, Value>) -> bool {
    let kind = text(schema, "type");
    !kind.is_empty() && !words::TYPES.contains(&kind)
}

/// Defaults, and the words that Kubernetes adds to JSON schema.
fn uses_extensions(schema: &Map<String, Value>) -> bool {
    let words = [
        "default",
        "x-kubernetes-embedded-resource",
        "x-kubernetes-preserve-unknown-fields",
        "x-kubernetes-int-or-string",
        "x-kubernetes-list-map-keys",
        "x-kubernetes-list-type",
        "x-kubernetes-validations",
    ];
    words.iter().any(|word| schema.contains_key(*word))
}

/// What a schema with a status subresource may have at its root, as upstream names it.
const AT_THE_ROOT: &str = "[Description Type Format Title Maximum ExclusiveMaximum Minimum ExclusiveMinimum \
                           MaxLength MinLength Pattern MaxItems MinItems UniqueItems MultipleOf Required Items \
                           Properties ExternalDocs Example XPreserveUnknownFields XValidations]";

const NOT_AT_THE_ROOT: &[&str] = &[
    "id",
    "$schema",
    "$ref",
    "default",
    "enum",
    "maxProperties",
    "minProperties",
    "allOf",
    "oneOf",
    "anyOf",
    "not",
    "additionalProperties",
    "patternProperties",
    "dependencies",
    "additionalItems",
    "definitions",
    "nullable",
    "x-kubernetes-embedded-resource",
    "x-kubernetes-int-or-string",
    "x-kubernetes-list-map-keys",
    "x-kubernetes-list-type",
    "x-kubernetes-map-type",
];

fn at_the_root(root: &Map<String, Value>, path: &str, context: &CheckContext<'_>, errors: &mut FieldErrors) {
    if context.status_subresource {
        let kind = text(root, "type");
        let is_set =
            |name: &&&str| !matches!(root.get(**name), None | Some(Value::Null | Value::Bool(false)));
        if !kind.is_empty() && kind != "object" {
            let why = "only \"object\" is allowed as the type at the root of the schema if the status subresource is enabled";
            errors.invalid(format!("{path}.type"), kind, why);
        } else if NOT_AT_THE_ROOT.iter().find(is_set).is_some() {
            let why = format!(
                "only {AT_THE_ROOT} fields are allowed at the root of the schema if the status subresource is enabled"
            );
            errors.invalid(path, Value::Object(root.clone()), &why);
        }
    }
    if is_true(root, "nullable") {
        errors.forbidden(format!("{path}.nullable"), "nullable cannot be true at the root");
    }
}

/// Whether a schema or one below it is so.
pub(crate) fn any(schema: &Value, is_so: &dyn Fn(&Map<String, Value>) -> bool) -> bool {
    let Some(fields) = schema.as_object() else { return false };
    is_so(fields) || children(fields).into_iter().any(|(_, schema)| any(schema, is_so))
}

/// The schemas right below one, with the way there.
pub(crate) fn children(schema: &Map<String, Value>) -> Vec<(String, &Value)> {
    let mut found = Vec::new();
    for word in ["properties", "patternProperties", "definitions", "dependencies"] {
        if let Some(Value::Object(schemas)) = schema.get(word) {
            found.extend(schemas.iter().map(|(name, schema)| (format!(".{word}[{name}]"), schema)));
        }
    }
    for word in ["items", "additionalProperties", "additionalItems", "not"] {
        match schema.get(word) {
            Some(Value::Array(schemas)) if word == "items" => {
                let each = schemas.iter().enumerate();
                found.extend(each.map(|(index, schema)| (format!(".items[{index}]"), schema)));
            }
            Some(schema @ Value::Object(_)) => found.push((format!(".{word}"), schema)),
            _ => {}
        }
    }
    for word in ["allOf", "anyOf", "oneOf"] {
        if let Some(Value::Array(schemas)) = schema.get(word) {
            let each = schemas.iter().enumerate();
            found.extend(each.map(|(index, schema)| (format!(".{word}[{index}]"), schema)));
        }
    }
    found
}

/// The first value in the place of a schema that cannot be one, with the way there. Null stands for a schema that says
/// nothing.
fn no_schema(schema: &Value) -> Option<(String, &Value)> {
    let fields = match schema {
        Value::Object(fields) => fields,
        Value::Null => return None,
        other => return Some((String::new(), other)),
    };
    let lists = ["items", "allOf", "anyOf", "oneOf"];
    let flags = ["additionalProperties", "additionalItems"];
    let maps = ["properties", "patternProperties", "definitions", "dependencies"];
    let fits = |word: &str, value: &Value| match value {
        Value::Null => true,
        Value::Object(_) => !lists[1..].contains(&word),
        Value::Array(_) => lists.contains(&word),
        Value::Bool(_) => flags.contains(&word),
        _ => false,
    };
    let mut words = maps.into_iter().chain(lists).chain(flags).chain(["not"]);
    let wrong = words.find_map(|word| Some((word, fields.get(word).filter(|value| !fits(word, value))?)));
    if let Some((word, value)) = wrong {
        return Some((format!(".{word}"), value));
    }
    children(fields).into_iter().find_map(|(way, below)| {
        // A dependency may be a list of names.
        if way.starts_with(".dependencies[") && below.is_array() {
            return None;
        }
        no_schema(below).map(|(further, wrong)| (way + &further, wrong))
    })
}

/// The schema with an empty one wherever null stands in the place of one, as upstream's reader has it.
fn without_nulls(schema: &Value) -> Cow<'_, Value> {
    fn has_null(schema: &Value) -> bool {
        let Some(fields) = schema.as_object() else { return schema.is_null() };
        children(fields).into_iter().any(|(_, below)| has_null(below))
    }
    fn fill(schema: &mut Value) {
        let Some(fields) = schema.as_object_mut() else {
            if schema.is_null() {
                *schema = Value::Object(Map::new());
            }
            return;
        };
        for word in ["properties", "patternProperties", "definitions", "dependencies"] {
            fields
                .get_mut(word)
                .and_then(Value::as_object_mut)
                .into_iter()
                .flat_map(Map::values_mut)
                .for_each(fill);
        }
        for word in ["items", "allOf", "anyOf", "oneOf"] {
            fields.get_mut(word).and_then(Value::as_array_mut).into_iter().flatten().for_each(fill);
        }
        for word in ["items", "additionalProperties", "additionalItems", "not"] {
            fields.get_mut(word).filter(|below| below.is_object()).into_iter().for_each(fill);
        }
    }
    if !has_null(schema) {
        return Cow::Borrowed(schema);
    }
    let mut filled = schema.clone();
    fill(&mut filled);
    Cow::Owned(filled)
}

/// Levels of schemas; it does not go deeper than is allowed by far.
fn depth(schema: &Value) -> usize {
    fn levels(schema: &Value, left: usize) -> usize {
        let Some(fields) = schema.as_object().filter(|_| left > 0) else { return 1 };
        let below = children(fields).into_iter().map(|(_, schema)| levels(schema, left - 1)).max();
        1 + below.unwrap_or(0)
    }
    levels(schema, 2 * MAX_DEPTH)
}

pub(crate) fn text<'v>(schema: &'v Map<String, Value>, name: &str) -> &'v str {
    schema.get(name).and_then(Value::as_str).unwrap_or_default()
}

pub(crate) fn is_true(schema: &Map<String, Value>, name: &str) -> bool {
    schema.get(name) == Some(&Value::Bool(true))
}

/// Whether a word is there and says anything.
pub(crate) fn is_given(schema: &Map<String, Value>, name: &str) -> bool {
    !matches!(schema.get(name), None | Some(Value::Null))
}

pub(crate) fn object<'v>(schema: &'v Map<String, Value>, name: &str) -> Option<&'v Map<String, Value>> {
    schema.get(name)?.as_object()
}

pub(crate) fn wrong_pattern(text: &str) -> Option<String> {
    pattern::compile(text).err()
}

#[cfg(test)]
mod tests;
