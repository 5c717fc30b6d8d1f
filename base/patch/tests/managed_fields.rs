//! Managers as the API server of Kubernetes v1.36 keeps them. Every step of
//! `golden/managed_fields.json` was recorded: the object before, what was written, and the managers
//! that came back, or the refusal.

use std::sync::Arc;

use ferry_api::types::ListType;
use ferry_api::{Field, GroupVersionKind, Object, Schema, Shape, Type, Types};
use ferry_patch::managed_fields::{self, ApplyError, OneVersion, Reset, Write};
use serde_json::{Value, json};

#[test]
fn managers_are_kept_as_recorded() {
    let steps: Vec<Value> =
        serde_json::from_str(include_str!("golden/managed_fields.json")).expect("golden data");
    assert!(steps.iter().filter(|step| step["op"] == "apply").count() >= 60, "apply steps are missing");
    assert!(steps.iter().filter(|step| step["op"] == "update").count() >= 60, "update steps are missing");
    let failures: Vec<String> = steps.iter().filter_map(|step| replay(step).err()).collect();
    assert!(failures.is_empty(), "{} of {} differ:\n{}", failures.len(), steps.len(), failures.join("\n"));
}

fn replay(step: &Value) -> Result<(), String> {
    let title = step["title"].as_str().expect("title");
    let schema = schema(step);
    let paths: Vec<Vec<&str>> = step["reset"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|path| path.as_array().into_iter().flatten().filter_map(Value::as_str).collect())
        .collect();
    let paths: Vec<&[&str]> = paths.iter().map(Vec::as_slice).collect();
    let write = Write {
        manager: step["manager"].as_str().expect("manager"),
        subresource: step["subresource"].as_str().unwrap_or(""),
        api_version: step["apiVersion"].as_str().expect("apiVersion"),
        now: step["now"].as_str().unwrap_or("2026-01-01T00:00:00Z").parse().expect("a time"),
        schema: &schema,
        reset: if paths.is_empty() { Reset::Nothing } else { Reset::Fields(&paths) },
        versions: &OneVersion,
    };
    let live = Object::from_value(step["live"].clone());
    let outcome = match step["op"].as_str() {
        Some("apply") => {
            let applied = Object::from_value(step["applied"].clone()).expect("applied");
            managed_fields::apply(live.as_ref(), &applied, step["force"] == true, &write)
        }
        _ => Ok(update(step, live.as_ref(), &write)),
    };
    match (outcome, &step["refused"]) {
        (Ok(mut object), Value::Null) => {
            let managed_fields = object.managed_fields().unwrap_or_else(|| json!([]));
            object.set_managers(Vec::new());
            if managed_fields != step["managedFields"] {
                let expected = &step["managedFields"];
                return Err(format!("{title}: managers\n  expected {expected}\n  got      {managed_fields}"));
            }
            // What a subresource may not set, the kind's strategy puts back later.
            if step["op"] == "apply" && step["subresource"].is_null() {
                contained(&object.into_value(), &step["after"], step["kind"] == "configmap", "")
                    .map_err(|why| format!("{title}: {why}"))?;
            }
            Ok(())
        }
        (Ok(_), refused) => Err(format!("{title}: accepted, but was refused: {refused}")),
        (Err(error), refused) => check_refusal(&error, refused).map_err(|why| format!("{title}: {why}")),
    }
}

fn update(step: &Value, live: Option<&Object>, write: &Write) -> Object {
    let mut sent = step["new"].clone();
    match &step["sent"] {
        Value::String(as_before) if as_before == "live" => {
            if let Some(stored) = live.and_then(Object::managed_fields) {
                sent["metadata"]["managedFields"] = stored;
            }
        }
        Value::String(_) => {}
        managers => sent["metadata"]["managedFields"] = managers.clone(),
    }
    let mut new = Object::from_value(sent).expect("new");
    managed_fields::update(live, &mut new, write);
    if let Some(live) = live {
        managed_fields::keep_times(live, &mut new);
    }
    new
}

fn check_refusal(error: &ApplyError, refused: &Value) -> Result<(), String> {
    let code = match error {
        ApplyError::Conflicts(_) => 409,
        ApplyError::BadRequest(_) => 400,
        ApplyError::Invalid(_) => 500,
    };
    if refused["code"] != code || refused["message"] != error.to_string() {
        return Err(format!("\n  expected {refused}\n  got      {code} {error}"));
    }
    if let ApplyError::Conflicts(conflicts) = error {
        let mut causes: Vec<(String, String)> =
            conflicts.0.iter().map(|conflict| (conflict.cause(), conflict.path.clone())).collect();
        let text = |value: &Value| value.as_str().unwrap_or("").to_string();
        let mut expected: Vec<(String, String)> = refused["causes"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|cause| (text(&cause["message"]), text(&cause["field"])))
            .collect();
        causes.sort();
        expected.sort();
        if causes != expected {
            return Err(format!("\n  expected {expected:?}\n  got      {causes:?}"));
        }
    }
    Ok(())
}

/// What we merged must be in what the server answered, which may hold defaults as well. Nulls and
/// empty values are for the decoder to drop.
fn contained(ours: &Value, theirs: &Value, exact: bool, path: &str) -> Result<(), String> {
    let is_empty = |value: &Value| match value {
        Value::Null => true,
        Value::Object(fields) => fields.is_empty(),
        Value::Array(items) => items.is_empty(),
        _ => false,
    };
    match (ours, theirs) {
        (Value::Object(ours), Value::Object(theirs)) => {
            let server_side = ["resourceVersion", "generation", "uid", "creationTimestamp", "namespace"];
            let by_server = |name: &str| path == ".metadata" && server_side.contains(&name);
            for (name, value) in ours {
                if by_server(name) {
                    continue;
                }
                match theirs.get(name) {
                    Some(other) => contained(value, other, exact, &format!("{path}.{name}"))?,
                    None if is_empty(value) => {}
                    None => return Err(format!("{path}.{name} should be gone: {value}")),
                }
            }
            let extra = theirs.keys().find(|name| !ours.contains_key(*name) && !by_server(name));
            match extra {
                Some(name) if exact => Err(format!("{path}.{name} is missing")),
                _ => Ok(()),
            }
        }
        (Value::Array(ours), Value::Array(theirs)) => {
            if ours.len() != theirs.len() {
                return Err(format!("{path}: {} elements, not {}", ours.len(), theirs.len()));
            }
            ours.iter().zip(theirs).enumerate().try_for_each(|(index, (ours, theirs))| {
                contained(ours, theirs, exact, &format!("{path}[{index}]"))
            })
        }
        (ours, theirs) if ours == theirs || is_empty(ours) => Ok(()),
        // The server writes quantities and annotations in its own way.
        (Value::Number(ours), Value::String(theirs)) if ours.to_string() == *theirs => Ok(()),
        (Value::String(ours), Value::String(theirs)) if path.contains("last-applied") => {
            let read = |text: &str| serde_json::from_str::<Value>(text).expect("JSON");
            if read(ours) == read(theirs) { Ok(()) } else { Err(format!("{path}: {ours} is not {theirs}")) }
        }
        (ours, theirs) => Err(format!("{path}: {ours} is not {theirs}")),
    }
}

fn schema(step: &Value) -> Schema {
    let kind = step["kind"].as_str().expect("kind");
    if kind == "widget" {
        return widget();
    }
    let object = if step["applied"].is_object() { &step["applied"] } else { &step["new"] };
    let text = |field: &str| object[field].as_str().expect("type").to_string();
    Schema::builtin(&GroupVersionKind::from_api_version(&text("apiVersion"), &text("kind")))
        .expect("built in")
}

/// The rows of the custom resource that was recorded.
fn widget() -> Schema {
    let mut types = Types::default();
    let text_map = || Shape::Map(Box::new(Shape::String));
    let list = |name: &str, element: Shape, list: ListType| Field {
        list,
        ..Field::new(name, Shape::List(Box::new(element)))
    };
    let keys = |names: &[&str]| ListType::Map(names.iter().map(|name| Box::from(*name)).collect());
    let mut add = |name: &str, atomic: bool, preserve_unknown: bool, fields: Vec<Field>| {
        Shape::Struct(types.add(Type {
            name: name.into(),
            atomic,
            preserve_unknown,
            fields,
            ..Type::default()
        }))
    };
    let owner = add("Owner", true, false, vec![Field::new("uid", Shape::String)]);
    let meta = add(
        "Meta",
        false,
        false,
        vec![
            Field::new("name", Shape::String),
            Field::new("namespace", Shape::String),
            Field::new("labels", text_map()),
            Field::new("annotations", text_map()),
            list("finalizers", Shape::String, ListType::Set),
            list("ownerReferences", owner, keys(&["uid"])),
        ],
    );
    let part = add(
        "Part",
        false,
        false,
        vec![
            Field::new("name", Shape::String),
            Field::new("size", Shape::Int64),
            Field::new("extra", text_map()),
        ],
    );
    let protocol = Field { default: Some(json!("TCP")), ..Field::new("protocol", Shape::String) };
    let port = add(
        "Port",
        false,
        false,
        vec![Field::new("port", Shape::Int64), protocol, Field::new("note", Shape::String)],
    );
    let whole =
        add("Whole", true, false, vec![Field::new("a", Shape::String), Field::new("b", Shape::String)]);
    let free = add("Free", false, true, Vec::new());
    let spec = add(
        "Spec",
        false,
        false,
        vec![
            Field::new("count", Shape::Int64),
            Field::new("text", Shape::String),
            list("tags", Shape::String, ListType::Set),
            list("plain", Shape::String, ListType::Unset),
            list("parts", part, keys(&["name"])),
            list("ports", port, keys(&["port", "protocol"])),
            Field::new("labels", text_map()),
            Field::new("whole", whole),
            Field::new("free", free),
        ],
    );
    let condition = add(
        "Condition",
        false,
        false,
        vec![Field::new("type", Shape::String), Field::new("status", Shape::String)],
    );
    let status = add(
        "Status",
        false,
        false,
        vec![Field::new("phase", Shape::String), list("conditions", condition, keys(&["type"]))],
    );
    let root = add(
        "Widget",
        false,
        false,
        vec![
            Field::new("apiVersion", Shape::String),
            Field::new("kind", Shape::String),
            Field::new("metadata", meta),
            Field::new("spec", spec),
            Field::new("status", status),
        ],
    );
    let Shape::Struct(root) = root else { unreachable!("a struct was added") };
    Schema { types: Arc::new(types), root }
}

/// A refusal names some of what is wrong, not all of it at any length.
#[test]
fn refusals_of_an_apply_are_short() {
    let schema = Schema::builtin(&GroupVersionKind::new("", "v1", "ConfigMap")).expect("ConfigMap");
    let write = |manager| managed_fields::Write {
        manager,
        subresource: "",
        api_version: "v1",
        now: jiff::Timestamp::UNIX_EPOCH,
        schema: &schema,
        reset: managed_fields::Reset::Nothing,
        versions: &managed_fields::OneVersion,
    };
    let object = |value: &str, entries: usize| {
        let long = "k".repeat(2_000);
        let data: serde_json::Map<String, Value> =
            (0..entries).map(|index| (format!("{long}{index}"), json!(value))).collect();
        let value = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": data});
        Object::from_value(value).expect("an object")
    };
    let mut live = object("1", 1_000);
    managed_fields::update(None, &mut live, &write("first"));
    let refused = managed_fields::apply(Some(&live), &object("2", 1_000), false, &write("second"));
    let managed_fields::ApplyError::Conflicts(conflicts) = refused.expect_err("conflicts") else {
        panic!("no conflicts")
    };
    assert!((1..=100).contains(&conflicts.0.len()) && conflicts.to_string().len() < 100_000);
}
