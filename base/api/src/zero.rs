//! What a field that was not given looks like. A field is either left out when it is empty, or kept
//! and written as its zero value; which of the two is a fact of the table (`ptr`, `keep`). Clients
//! see `resources: {}` and `lastProbeTime: null`, and expect them.

use serde_json::{Map, Value};

use crate::types::{Field, Shape, Type, TypeId, Types};

/// Puts in the fields of `ty` that are written even when empty and are missing.
pub fn fill(map: &mut Map<String, Value>, ty: &Type, types: &Types) {
    for index in &ty.kept {
        let field = &ty.fields[*index as usize];
        if !map.contains_key(field.name.as_ref()) {
            map.insert(field.name.as_ref().to_owned(), of_field(field, types));
        }
    }
}

/// Whether a value of this field is left out: it is zero and nothing keeps it.
pub fn is_left_out(field: &Field, value: &Value) -> bool {
    if field.keep {
        return false;
    }
    match value {
        Value::Null => true,
        _ if field.pointer => false,
        Value::Bool(given) => !given,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(entries) => entries.is_empty() && !matches!(field.shape, Shape::Struct(_)),
    }
}

fn of_field(field: &Field, types: &Types) -> Value {
    if field.pointer { Value::Null } else { of_shape(&field.shape, types) }
}

/// The zero value of a shape, as it is written.
pub fn of_shape(shape: &Shape, types: &Types) -> Value {
    match shape {
        Shape::String => Value::String(String::new()),
        Shape::Bool => Value::Bool(false),
        Shape::Int32 | Shape::Int64 | Shape::IntOrString => Value::from(0),
        Shape::Double => Value::from(0.0),
        Shape::Quantity => Value::from("0"),
        Shape::Duration => Value::from("0s"),
        Shape::Struct(id) => of_struct(*id, types),
        Shape::Bytes
        | Shape::Time
        | Shape::MicroTime
        | Shape::Raw
        | Shape::Json
        | Shape::FieldsV1
        | Shape::ExtraValue
        | Shape::List(_)
        | Shape::Map(_) => Value::Null,
    }
}

fn of_struct(id: TypeId, types: &Types) -> Value {
    let mut map = Map::new();
    fill(&mut map, types.get(id), types);
    Value::Object(map)
}
