//! Patches of every format, and server-side apply. An input is a kind's line, then parts: the object, the patch, and what
//! was applied last, for three-way patches.

use ferry_api::{FieldValidation, json};
use ferry_patch::managed_fields::{self, OneVersion, Reset, Write};
use ferry_patch::{json_patch, merge, strategic};
use serde_json::Value;

use crate::{parts, samples};

pub fn run(data: &[u8]) {
    let Some(mut parts) = parts(data) else { return };
    let (Some(line), Some(current), Some(patch)) = (parts.next(), parts.next(), parts.next()) else { return };
    let original = parts.next().unwrap_or(current);
    let kind = samples::kind_of(line);
    let Some(schema) = kind.codec.typed() else { return };
    // Requests are bounded in depth before a patch is looked at.
    let read = |text: &str| ferry_api::read::document(text.as_bytes()).ok();
    let Some(value) = read(current) else { return };

    let mut patched = value.clone();
    let _ = json_patch::apply(&mut patched, patch.as_bytes());

    let Some(changes) = read(patch) else { return };
    let mut merged = value.clone();
    merge::apply(&mut merged, &changes);
    if merged.is_object() && value.is_object() {
        diff_leads_there(&value, &merged);
    }
    let mut merged = value.clone();
    let _ = strategic::apply(&mut merged, changes.clone(), schema);
    if let Ok(difference) = strategic::two_way(&value, &changes, schema) {
        let _ = strategic::apply(&mut value.clone(), difference, schema);
    }
    if let Some(original) = read(original) {
        let _ = merge::three_way(&original, &changes, &value);
        let _ = strategic::three_way(&original, &changes, &value, schema);
    }
    apply(kind, current, patch);
}

/// A merge patch cannot say that a member is null; what has none is reached by the difference.
fn diff_leads_there(from: &Value, to: &Value) {
    if has_null(to) || has_null(from) {
        return;
    }
    let mut there = from.clone();
    merge::apply(&mut there, &merge::diff(from, to));
    assert_eq!(there, *to);
}

fn has_null(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(items) => items.iter().any(has_null),
        Value::Object(members) => members.values().any(has_null),
        _ => false,
    }
}

/// What was applied once changes nothing when it is applied again.
fn apply(kind: &ferry_api::Kind, current: &str, applied: &str) {
    let Some(schema) = kind.codec.typed() else { return };
    let Ok(live) = json::decode(current.as_bytes(), schema, FieldValidation::Ignore) else { return };
    let Ok(applied) = json::decode_applied(applied.as_bytes(), schema, FieldValidation::Ignore) else {
        return;
    };
    let api_version = kind.api_version();
    let write = Write {
        manager: "fuzz",
        subresource: "",
        api_version: &api_version,
        now: "2026-01-01T00:00:00Z".parse().expect("a time"),
        schema,
        reset: Reset::Nothing,
        versions: &OneVersion,
    };
    let mut updated = applied.object.clone();
    managed_fields::update(Some(&live.object), &mut updated, &write);
    let _ = managed_fields::entries(&live.object);
    if let Ok(once) = managed_fields::apply(Some(&live.object), &applied.object, true, &write) {
        let twice = managed_fields::apply(Some(&once), &applied.object, false, &write);
        let twice = twice.unwrap_or_else(|error| panic!("applied again: {error:?}"));
        assert_eq!(once, twice);
    }
}

pub fn seeds() -> Vec<Vec<u8>> {
    const JSON_PATCH: &str = r#"[{"op":"replace","path":"/metadata/name","value":"b"},{"op":"test","path":"/kind","value":"X"},{"op":"add","path":"/metadata/finalizers/-","value":"f"},{"op":"remove","path":"/spec"},{"op":"move","from":"/metadata","path":"/a~1b"},{"op":"copy","from":"/a~1b","path":"/c~0d/0"}]"#;
    const MERGE: &str = r#"{"metadata":{"labels":{"app":"b","old":null}},"spec":{"replicas":2}}"#;
    const STRATEGIC: &str = r#"{"apiVersion":"apps/v1","kind":"Deployment","spec":{"template":{"spec":{"$setElementOrder/containers":[{"name":"c"},{"name":"text"}],"containers":[{"name":"c","$patch":"delete"},{"name":"text","env":[{"name":"A","value":"b"}],"$retainKeys":["name","env"]}],"$deleteFromPrimitiveList/x":["a"]}}}}"#;
    const SMALL: &str = r#"{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"a","labels":{"app":"a"},"managedFields":[{"manager":"m","operation":"Apply","apiVersion":"apps/v1","fieldsType":"FieldsV1","fieldsV1":{"f:spec":{"f:template":{"f:spec":{"f:containers":{"k:{\"name\":\"c\"}":{".":{},"f:image":{}}}}}}}}]},"spec":{"replicas":1,"template":{"spec":{"containers":[{"name":"c","image":"i","ports":[{"containerPort":80}]}]}}}}"#;
    let mut seeds: Vec<Vec<u8>> = [JSON_PATCH, MERGE, STRATEGIC]
        .iter()
        .map(|patch| format!("apps/v1 Deployment\n---\n{SMALL}\n---\n{patch}\n---\n{SMALL}").into_bytes())
        .collect();
    seeds.extend(samples::kinds().filter_map(|(kind, schema)| {
        let full = String::from_utf8(samples::full(kind, schema)?.to_json()).ok()?;
        let small = format!(r#"{{"apiVersion":"{}","kind":"{}"}}"#, kind.api_version(), kind.kind);
        let line = samples::line_of(kind);
        Some(format!("{line}\n---\n{small}\n---\n{full}\n---\n{small}").into_bytes())
    }));
    seeds
}
