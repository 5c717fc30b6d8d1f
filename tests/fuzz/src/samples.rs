//! Objects to begin with: one of each built-in kind with every field set, as the table describes it.

use ferry_api::types::{Field, Shape, Type, Types};
use ferry_api::{FieldValidation, Kind, Object, Schema, json, kinds};
use serde_json::{Map, Value, json};

/// How deep the samples go: deep enough for a container's fields in a pod template.
const LEVELS: usize = 6;

/// Kinds whose types between them hold every shape of the table.
const KINDS: &[&str] = &[
    "Pod",
    "Deployment",
    "Service",
    "ConfigMap",
    "CustomResourceDefinition",
    "ValidatingAdmissionPolicy",
    "HorizontalPodAutoscaler",
    "Event",
    "CertificateSigningRequest",
    "NetworkPolicy",
    "ResourceClaim",
    "FlowSchema",
    "TokenReview",
    "Node",
];

pub fn kinds() -> impl Iterator<Item = (&'static Kind, &'static Schema)> {
    kinds::builtin()
        .iter()
        .filter(|kind| KINDS.contains(&kind.kind.as_ref()))
        .filter_map(|kind| Some((kind.as_ref(), kind.codec.typed()?)))
}

/// A kind by the first line of an input, `apps/v1 Deployment`; any other line stands for some kind, so that few inputs
/// are lost.
pub fn kind_of(line: &str) -> &'static Kind {
    let all = kinds::builtin();
    let named = line.split_once(' ').and_then(|(api_version, kind)| {
        all.iter().find(|row| row.kind == kind && row.api_version() == api_version)
    });
    let sum = || line.bytes().fold(0usize, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte.into()));
    named.unwrap_or_else(|| &all[sum() % all.len()])
}

pub fn line_of(kind: &Kind) -> String {
    format!("{} {}", kind.api_version(), kind.kind)
}

/// An object with every field set, lists and maps with one element.
pub fn full(kind: &Kind, schema: &Schema) -> Option<Object> {
    let mut value = structure(schema.root(), &schema.types, LEVELS);
    value["apiVersion"] = kind.api_version().into();
    value["kind"] = json!(kind.kind);
    let bytes = value.to_string();
    json::decode(bytes.as_bytes(), schema, FieldValidation::Ignore).ok().map(|decoded| decoded.object)
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
