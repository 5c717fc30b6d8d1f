//! A value for every field of a type, as the table describes it. The contract of every kind (`base/api/tests`) is held with
//! the same values.

use ferry_api::types::{Field, Shape, Type, Types};
use ferry_api::{Kind, Schema};
use serde_json::{Map, Value, json};

/// How deep they go: deep enough for a container's fields in a pod template.
const LEVELS: usize = 6;

/// An object with every field set, lists and maps with one element.
pub fn full_value(kind: &Kind, schema: &Schema) -> Value {
    let mut value = structure(schema.root(), &schema.types, LEVELS);
    value["apiVersion"] = kind.api_version().into();
    value["kind"] = json!(kind.kind);
    value
}

fn structure(ty: &Type, types: &Types, levels: usize) -> Value {
    if ty.either.is_some() {
        return json!({"type": "string"});
    }
    // The type of an object inside another has no place in protobuf.
    let is_type = |field: &&Field| ty.has_type_meta && matches!(field.name.as_ref(), "kind" | "apiVersion");
    let given = ty.fields.iter().filter(|field| levels > 0 && !is_type(field));
    given
        .map(|field| (field.name.to_string(), sample(field, &field.shape, types, levels)))
        .collect::<Map<_, _>>()
        .into()
}

fn sample(field: &Field, shape: &Shape, types: &Types, levels: usize) -> Value {
    match shape {
        Shape::String => field.values.first().map_or_else(|| json!("text"), |value| json!(value)),
        Shape::Duration => json!("1s"),
        Shape::Bytes => json!("AAE="),
        Shape::Bool => json!(true),
        Shape::Int32 | Shape::Int64 | Shape::IntOrString => json!(-7),
        Shape::Double => json!(1.5),
        Shape::Quantity => json!("1536Mi"),
        Shape::Time => json!("2026-01-02T03:04:05Z"),
        Shape::MicroTime => json!("2026-01-02T03:04:05.000006Z"),
        Shape::Raw | Shape::Json | Shape::FieldsV1 => json!({"a": [1, null, {"b": 2.5}]}),
        Shape::ExtraValue => json!(["text"]),
        Shape::Struct(id) => structure(types.get(*id), types, levels.saturating_sub(1)),
        Shape::List(element) => json!([sample(field, element, types, levels)]),
        Shape::Map(element) => json!({"key": sample(field, element, types, levels)}),
    }
}
