//! Objects to begin with: one of each built-in kind with every field set, as the table describes it.

use ferry_api::{FieldValidation, Kind, Object, Schema, json, kinds};

use crate::full_value::full_value;

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
    let bytes = full_value(kind, schema).to_string();
    json::decode(bytes.as_bytes(), schema, FieldValidation::Ignore).ok().map(|decoded| decoded.object)
}
