//! Resources inside a resource (`x-kubernetes-embedded-resource`): they have a type and metadata, whatever
//! the schema says of them.

use ferry_api::field_error::FieldErrors;
use ferry_api::{Shape, Type, Types, go_json, names};
use serde_json::{Map, Value};

use crate::Structural;
use crate::path::Path;
use crate::structural::{EMBEDDED, EMBEDS, Ref};

/// Annotations of one object together, keys and values.
const ANNOTATIONS_LIMIT: usize = 256 << 10;

/// Unknown fields of embedded metadata that are noted.
const MOST_NOTED: usize = 1000;

fn object_meta() -> Option<&'static Type> {
    let types = Types::builtin();
    types.by_name("io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta").map(|id| types.get(id))
}

/// Removes what object metadata does not have from the metadata of embedded resources, nulls included.
pub fn prune(object: &mut Map<String, Value>, schema: &Structural, mut note: Option<&mut Vec<String>>) {
    if schema.root.is(EMBEDS) {
        fields(object, &schema.root, &mut Path::root(), &mut note);
    }
}

fn fields(object: &mut Map<String, Value>, node: &Ref, path: &mut Path, note: &mut Option<&mut Vec<String>>) {
    for (name, value) in object.iter_mut() {
        let Some(inner) = node.field(name).filter(|inner| inner.is(EMBEDS)) else { continue };
        let length = if node.property(name).is_some() { path.child(name) } else { path.key(name) };
        inside(value, inner, path, note);
        path.truncate(length);
    }
}

fn inside(value: &mut Value, node: &Ref, path: &mut Path, note: &mut Option<&mut Vec<String>>) {
    match value {
        Value::Object(object) => {
            fields(object, node, path, note);
            if node.is(EMBEDDED)
                && let (Some(Value::Object(metadata)), Some(ty)) = (object.get_mut("metadata"), object_meta())
            {
                let length = path.child("metadata");
                known_fields(metadata, ty, path, note);
                path.truncate(length);
            }
        }
        Value::Array(items) => {
            let Some(inner) = node.items() else { return };
            for (index, item) in items.iter_mut().enumerate() {
                let length = path.index(index);
                inside(item, inner, path, note);
                path.truncate(length);
            }
        }
        _ => {}
    }
}

fn known_fields(
    object: &mut Map<String, Value>,
    ty: &Type,
    path: &mut Path,
    note: &mut Option<&mut Vec<String>>,
) {
    object.retain(|name, value| {
        let Some(field) = ty.field(name) else {
            if let Some(note) = note
                && note.len() < MOST_NOTED
            {
                note.push(path.with(name));
            }
            return false;
        };
        if let (Shape::List(element), Value::Array(items)) = (&field.shape, &mut *value)
            && let Shape::Struct(id) = **element
        {
            let length = path.child(name);
            for (index, item) in items.iter_mut().enumerate() {
                let before = path.index(index);
                if let Value::Object(item) = item {
                    known_fields(item, Types::builtin().get(id), path, note);
                }
                path.truncate(before);
            }
            path.truncate(length);
        }
        !value.is_null()
    });
}

/// The part of an embedded resource that is validated.
#[derive(Clone, Copy, PartialEq)]
pub enum EmbeddedChecks {
    /// Whether type and metadata can be decoded.
    Types,
    All,
}

/// Judges type and metadata of embedded resources.
pub fn validate(value: &Value, node: &Ref, look: EmbeddedChecks, path: &mut Path, errors: &mut FieldErrors) {
    match value {
        Value::Object(object) => {
            if node.is(EMBEDDED) {
                resource(object, look, path, errors);
            }
            for (name, value) in object {
                let Some(inner) = node.field(name).filter(|inner| inner.is(EMBEDS)) else { continue };
                let length = if node.property(name).is_some() { path.child(name) } else { path.key(name) };
                validate(value, inner, look, path, errors);
                path.truncate(length);
            }
        }
        Value::Array(items) => {
            let Some(inner) = node.items().filter(|inner| inner.is(EMBEDS)) else { return };
            for (index, item) in items.iter().enumerate() {
                let length = path.index(index);
                validate(item, inner, look, path, errors);
                path.truncate(length);
            }
        }
        _ => {}
    }
}

/// A resource as a whole.
pub fn resource(object: &Map<String, Value>, look: EmbeddedChecks, path: &Path, errors: &mut FieldErrors) {
    let all = look == EmbeddedChecks::All;
    match object.get("apiVersion") {
        None if all => errors.required(path.with("apiVersion"), ""),
        Some(Value::String(text)) if all && text.is_empty() => {
            errors.invalid(path.with("apiVersion"), "", "must not be empty");
        }
        Some(Value::String(text)) if all && text.matches('/').count() > 1 => {
            let why = format!("unexpected GroupVersion string: {text}");
            errors.invalid(path.with("apiVersion"), text.as_str(), &why);
        }
        None | Some(Value::String(_)) => {}
        Some(other) => errors.invalid(path.with("apiVersion"), other.clone(), "must be a string"),
    }
    match object.get("kind") {
        None if all => errors.required(path.with("kind"), ""),
        None => {}
        Some(Value::String(text)) if all && text.is_empty() => {
            errors.invalid(path.with("kind"), "", "must not be empty");
        }
        Some(Value::String(text)) => {
            let wrong = names::dns1035_label(&text.to_lowercase());
            if all && !wrong.is_empty() {
                let why = format!("may have mixed case, but should otherwise match: {}", wrong.join(","));
                errors.invalid(path.with("kind"), text.as_str(), &why);
            }
        }
        Some(other) => errors.invalid(path.with("kind"), other.clone(), "must be a string"),
    }
    match object.get("metadata") {
        None => {}
        Some(Value::Object(fields)) => metadata(fields, look, &path.with("metadata"), errors),
        Some(other) => {
            let why = format!(
                "json: cannot unmarshal {} into Go value of type v1.ObjectMeta",
                go_json::json_type(other)
            );
            errors.invalid(path.with("metadata"), other.clone(), &why);
        }
    }
}

fn metadata(fields: &Map<String, Value>, look: EmbeddedChecks, path: &str, errors: &mut FieldErrors) {
    if let Some((name, value, wanted)) = unreadable(fields) {
        let why = format!(
            "json: cannot unmarshal {} into Go struct field ObjectMeta.{name} of type {wanted}",
            go_json::json_type(value)
        );
        errors.invalid(path, Value::Object(fields.clone()), &why);
    } else if look == EmbeddedChecks::All {
        metadata_fields(fields, path, errors);
    }
}

/// A field of metadata that has another type: its name, its value, and what it should be.
fn unreadable(fields: &Map<String, Value>) -> Option<(&'static str, &Value, &'static str)> {
    let given = |name: &str| fields.get(name).filter(|value| !value.is_null());
    for name in ["name", "generateName", "namespace", "uid", "resourceVersion"] {
        if let Some(value) = given(name).filter(|value| !value.is_string()) {
            return Some((name, value, "string"));
        }
    }
    if let Some(value) = given("generation").filter(|value| value.as_i64().is_none()) {
        return Some(("generation", value, "int64"));
    }
    for name in ["labels", "annotations"] {
        match given(name) {
            None => {}
            Some(Value::Object(map)) => {
                if let Some(value) = map.values().find(|value| !value.is_string() && !value.is_null()) {
                    return Some((name, value, "string"));
                }
            }
            Some(other) => return Some((name, other, "map[string]string")),
        }
    }
    None
}

fn metadata_fields(fields: &Map<String, Value>, path: &str, errors: &mut FieldErrors) {
    for name in ["name", "generateName", "namespace", "uid", "resourceVersion"] {
        let Some(text) = fields.get(name).and_then(Value::as_str).filter(|text| !text.is_empty()) else {
            continue;
        };
        let wrong = match name {
            "name" => names::path_segment(text),
            "generateName" => {
                names::path_segment(text).into_iter().filter(|why| !why.starts_with("may not be")).collect()
            }
            "namespace" => names::dns1123_label(text),
            _ => Vec::new(),
        };
        wrong.iter().for_each(|why| errors.invalid(format!("{path}.{name}"), text, why));
    }
    if let Some(generation) =
        fields.get("generation").and_then(Value::as_i64).filter(|generation| *generation < 0)
    {
        let why = "must be greater than or equal to 0";
        errors.invalid(format!("{path}.generation"), generation, why);
    }
    for name in ["labels", "annotations"] {
        let Some(map) = fields.get(name).and_then(Value::as_object) else { continue };
        let path = format!("{path}.{name}");
        let mut size = 0;
        for (key, value) in map {
            let value = value.as_str().unwrap_or_default();
            size += key.len() + value.len();
            if name == "labels" {
                names::qualified_name(key)
                    .iter()
                    .for_each(|why| errors.invalid(path.as_str(), key.as_str(), why));
                let wrong = names::label_value(value);
                wrong.iter().for_each(|why| errors.invalid(path.as_str(), value, why));
            } else {
                let wrong = names::qualified_name(&key.to_lowercase());
                wrong.iter().for_each(|why| errors.invalid(path.as_str(), key.as_str(), why));
            }
        }
        if name == "annotations" && size > ANNOTATIONS_LIMIT {
            errors.too_long(path, ANNOTATIONS_LIMIT);
        }
    }
    let finalizers = fields.get("finalizers").and_then(Value::as_array).into_iter().flatten();
    for finalizer in finalizers.filter_map(Value::as_str) {
        let wrong = names::qualified_name(finalizer);
        wrong.iter().for_each(|why| errors.invalid(format!("{path}.finalizers"), finalizer, why));
    }
    owners(fields, &format!("{path}.ownerReferences"), errors);
}

fn owners(fields: &Map<String, Value>, path: &str, errors: &mut FieldErrors) {
    let owners = fields.get("ownerReferences").and_then(Value::as_array).into_iter().flatten();
    let mut controller: Option<String> = None;
    for owner in owners {
        let text = |name: &str| owner.get(name).and_then(Value::as_str).unwrap_or_default();
        if text("apiVersion").is_empty() {
            errors.invalid(format!("{path}.apiVersion"), "", "version must not be empty");
        }
        for name in ["kind", "name", "uid"] {
            if text(name).is_empty() {
                errors.invalid(format!("{path}.{name}"), "", "must not be empty");
            }
        }
        if owner.get("controller").and_then(Value::as_bool) == Some(true) {
            let name = format!("{}/{}", text("kind"), text("name"));
            match &controller {
                Some(first) => {
                    let why = format!(
                        "Only one reference can have Controller set to true. Found \"true\" in references for {first} and {name}"
                    );
                    errors.invalid(path, fields.get("ownerReferences").cloned(), &why);
                }
                None => controller = Some(name),
            }
        }
    }
}

/// The embedded resources of an object that is none itself.
pub fn fields_of(object: &Map<String, Value>, node: &Ref, errors: &mut FieldErrors) {
    let mut path = Path::root();
    for (name, value) in object {
        let Some(inner) = node.field(name).filter(|inner| inner.is(EMBEDS)) else { continue };
        let length = if node.property(name).is_some() { path.child(name) } else { path.key(name) };
        validate(value, inner, EmbeddedChecks::All, &mut path, errors);
        path.truncate(length);
    }
}
