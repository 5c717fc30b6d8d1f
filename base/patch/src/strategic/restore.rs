//! Whether what a patch made of an object can be an object of its kind again. Upstream walks the fields in the order they
//! are declared and names the first value that does not fit, without its path; scripts match on these words.

use ferry_api::types::{Shape, Type, Types};
use ferry_api::{Schema, excerpt};
use serde_json::{Map, Value};

use crate::error::PatchError;
use crate::go_words;

/// Refuses the object `patched` that `patch` made, where a value of it does not fit its field.
pub fn restore(patched: &Value, patch: &Value, schema: &Schema) -> Result<(), PatchError> {
    structure(patched, schema.root(), &schema.types).map_err(|why| does_not_restore(patch, why))
}

/// The refusal of a patch whose result is no object of the kind.
pub fn does_not_restore(patch: &Value, why: String) -> PatchError {
    PatchError::DoesNotRestore {
        patch: excerpt::of_owned(go_words::value(patch), excerpt::LONGEST_VALUE),
        why,
    }
}

fn structure(value: &Value, ty: &Type, types: &Types) -> Result<(), String> {
    if ty.either.is_some() {
        // It reads itself, and says itself what it cannot read.
        return Ok(());
    }
    let fields = match value {
        Value::Null => return Ok(()),
        Value::Object(fields) => fields,
        other => return Err(format!("cannot restore struct from: {}", go_kind(other))),
    };
    declared(ty).try_for_each(|name| member(fields, name, ty, types))
}

/// Custom types have no order of their own.
fn declared(ty: &Type) -> Box<dyn Iterator<Item = &str> + '_> {
    match ty.declared.is_empty() {
        true => Box::new(ty.fields.iter().map(|field| field.name.as_ref())),
        false => Box::new(ty.declared.iter().map(AsRef::as_ref)),
    }
}

fn member(fields: &Map<String, Value>, name: &str, ty: &Type, types: &Types) -> Result<(), String> {
    match (fields.get(name), ty.field(name)) {
        (Some(value), Some(field)) => shaped(value, &field.shape, types),
        _ => Ok(()),
    }
}

fn shaped(value: &Value, shape: &Shape, types: &Types) -> Result<(), String> {
    let unrecognized = |wanted: &str| Err(format!("unrecognized type: {wanted}"));
    let integer = |wanted: &str| match value {
        Value::Number(number) if !number.is_f64() => Ok(()),
        Value::Number(number) if number.as_f64().is_some_and(|float| float.fract() == 0.0) => Ok(()),
        Value::Number(_) => Err(format!("cannot convert float64 to {wanted}")),
        _ => unrecognized(wanted),
    };
    match (shape, value) {
        (_, Value::Null) => Ok(()),
        (Shape::String, Value::String(_))
        | (Shape::Bool, Value::Bool(_))
        | (Shape::Double, Value::Number(_)) => Ok(()),
        (Shape::String, Value::Number(number)) if !number.is_f64() => {
            Err("cannot convert int64 to string".to_string())
        }
        (Shape::String, _) => unrecognized("string"),
        (Shape::Bool, _) => unrecognized("bool"),
        (Shape::Double, _) => unrecognized("float64"),
        (Shape::Int32, _) => integer("int32"),
        (Shape::Int64, _) => integer("int64"),
        (Shape::List(element), Value::Array(items)) => {
            items.iter().try_for_each(|item| shaped(item, element, types))
        }
        // Whether a string is base64, the decoder says.
        (Shape::Bytes, Value::String(_)) => Ok(()),
        (Shape::List(_) | Shape::Bytes, other) => {
            Err(format!("cannot restore slice from {}", go_kind(other)))
        }
        (Shape::Map(element), Value::Object(fields)) => {
            fields.values().try_for_each(|field| shaped(field, element, types))
        }
        (Shape::Map(_), other) => Err(format!("cannot restore map from {}", go_kind(other))),
        (Shape::Struct(id), _) => structure(value, types.get(*id), types),
        // These read themselves: quantities, times, what may be anything.
        _ => Ok(()),
    }
}

fn go_kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "invalid",
        Value::Bool(_) => "bool",
        Value::Number(number) if number.is_f64() => "float64",
        Value::Number(_) => "int64",
        Value::String(_) => "string",
        Value::Array(_) => "slice",
        Value::Object(_) => "map",
    }
}

#[cfg(test)]
mod tests {
    use ferry_api::GroupVersionKind;
    use serde_json::json;

    use super::*;

    #[test]
    fn strategic_patches_that_do_not_fit_have_upstreams_messages() {
        let schema =
            Schema::builtin(&GroupVersionKind::new("apps", "v1", "Deployment")).expect("in the table");
        let check = |patch: Value, expected: Option<&str>| {
            let told = restore(&patch, &patch, &schema).err().map(|error| error.to_string());
            assert_eq!(told.as_deref(), expected, "{patch}");
        };
        check(json!({"metadata": {"labels": {"a": "b"}}, "spec": {"replicas": 1.0, "paused": null}}), None);
        check(json!({"metadata": {"labels": "x"}}), Some("cannot restore map from string"));
        check(json!({"metadata": {"labels": {"a": 1}}}), Some("cannot convert int64 to string"));
        check(json!({"metadata": {"labels": {"a": true}}}), Some("unrecognized type: string"));
        check(json!({"metadata": 1}), Some("cannot restore struct from: int64"));
        check(json!({"spec": {"replicas": "x"}}), Some("unrecognized type: int32"));
        check(json!({"spec": {"replicas": 1.5}}), Some("cannot convert float64 to int32"));
        check(json!({"spec": {"paused": []}}), Some("unrecognized type: bool"));
        let containers =
            |containers: Value| json!({"spec": {"template": {"spec": {"containers": containers}}}});
        check(containers(json!({})), Some("cannot restore slice from map"));
        check(containers(json!([{"name": "a", "tty": 1}])), Some("unrecognized type: bool"));
        // The first by declaration, not by name.
        check(
            json!({"metadata": {"labels": "x", "annotations": []}}),
            Some("cannot restore map from string"),
        );
    }
}
