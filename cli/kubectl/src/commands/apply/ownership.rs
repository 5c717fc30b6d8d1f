//! Moving from client-side to server-side apply: fields that were applied from here before become
//! the new manager's, so that leaving one out of the file removes it. The last applied configuration
//! stays, for whoever goes back to client-side apply; a manager of its own keeps it.

use serde_json::{Map, Value, json};

use crate::error::Result;
use crate::fields::Fields;
use crate::selection::Info;
use crate::transport::{APPLY_PATCH, JSON_PATCH, Query};
use crate::write::{LAST_APPLIED, Writer};

/// The manager of the annotation while others apply.
const KEEPER: &str = "kubectl-last-applied";
const CONFLICT_RETRIES: usize = 5;

/// Hands the client-side managers' fields over; gives back the object if there were any. The object
/// was applied already, so what fails here is told and tried again next time.
pub async fn migrate(
    writer: &Writer<'_>,
    info: &Info,
    applied: &Value,
    manager: &str,
) -> Result<Option<Value>> {
    let mut live = applied.clone();
    if let Some(annotated) = annotation_to_keep(info, &live, manager) {
        let query = Query::new().with("fieldManager", KEEPER);
        match writer.patch_with(info.into(), APPLY_PATCH, &annotated, query).await {
            Ok(object) => live = object,
            Err(error) => {
                eprintln!(
                    "Warning: failed to migrate kubectl.kubernetes.io/last-applied-configuration for Server-Side Apply. This is non-fatal and will be retried next time you apply. Error: {error}"
                );
                return Ok(None);
            }
        }
    }
    for attempt in 0.. {
        let Some(patch) = take_over(&live, manager) else { return Ok(None) };
        let query = Query::new().with("fieldManager", manager);
        match writer.patch_with(info.into(), JSON_PATCH, &patch, query).await {
            Ok(object) => return Ok(Some(object)),
            Err(error) if error.is_conflict() && attempt < CONFLICT_RETRIES => {
                live = writer.cli.client()?.get_json(&info.path()).await?;
            }
            Err(error) => {
                eprintln!(
                    "Warning: server rejected managed fields migration to Server-Side Apply. This is non-fatal and will be retried next time you apply. Error: {error}"
                );
                return Ok(None);
            }
        }
    }
    Ok(None)
}

/// The annotation as an object of its own, if server-side apply would drop it: nobody who applies
/// owns it yet. The server keeps it up to date only for the default manager.
fn annotation_to_keep(info: &Info, live: &Value, manager: &str) -> Option<Value> {
    let annotation = live.keyed("metadata.annotations", LAST_APPLIED);
    let applies = |entry: &Value| entry.text("operation") == "Apply" && owns_annotation(entry);
    if manager != "kubectl"
        || annotation.is_empty()
        || live.list("metadata.managedFields").iter().any(applies)
    {
        return None;
    }
    let mut annotated = json!({"apiVersion": live.text("apiVersion"), "kind": live.kind(),
        "metadata": {"name": info.name, "annotations": {LAST_APPLIED: annotation}}});
    if !info.namespace.is_empty() {
        annotated["metadata"]["namespace"] = json!(info.namespace);
    }
    Some(annotated)
}

fn owns_annotation(entry: &Value) -> bool {
    let annotations = entry.at("fieldsV1").get("f:metadata").and_then(|fields| fields.get("f:annotations"));
    annotations.is_some_and(|fields| fields.get(format!("f:{LAST_APPLIED}")).is_some())
}

/// The JSON patch that hands over the fields of everybody who wrote the annotation by updates.
fn take_over(object: &Value, manager: &str) -> Option<Value> {
    let entries = object.list("metadata.managedFields");
    let is_whole = |entry: &Value| entry.text("subresource").is_empty();
    let updates = |entry: &&Value| entry.text("operation") == "Update" && is_whole(entry);
    let names: Vec<&str> = entries
        .iter()
        .filter(|entry| entry.text("operation") == "Update" && owns_annotation(entry))
        .map(|entry| entry.text("manager"))
        .collect();
    let (given, mut kept): (Vec<&Value>, Vec<&Value>) =
        entries.iter().partition(|entry| updates(entry) && names.contains(&entry.text("manager")));
    let first = *given.first()?;
    let mut heir = match kept.iter().position(|entry| {
        entry.text("manager") == manager && entry.text("operation") == "Apply" && is_whole(entry)
    }) {
        Some(position) => kept.remove(position).clone(),
        // nobody applied yet: the first of them becomes the one who does
        None => {
            let mut heir = first.clone();
            heir["operation"] = json!("Apply");
            heir["manager"] = json!(manager);
            heir
        }
    };
    // fields of another version have other paths
    let version = heir.text("apiVersion").to_owned();
    for entry in given.iter().filter(|entry| entry.text("apiVersion") == version) {
        heir["fieldsV1"] = union(heir.at("fieldsV1"), entry.at("fieldsV1"));
    }
    let managers: Vec<Value> = std::iter::once(heir.clone()).chain(kept.into_iter().cloned()).collect();
    Some(json!([
        {"op": "replace", "path": "/metadata/managedFields", "value": managers},
        {"op": "replace", "path": "/metadata/resourceVersion", "value": object.text("metadata.resourceVersion")},
    ]))
}

/// Field sets are nested maps; their union is, too.
fn union(a: &Value, b: &Value) -> Value {
    let (Value::Object(a), Value::Object(b)) = (a, b) else {
        return if a.is_null() { b.clone() } else { a.clone() };
    };
    let mut all: Map<String, Value> = a.clone();
    for (key, value) in b {
        let merged = match all.get(key) {
            Some(known) => union(known, value),
            None => value.clone(),
        };
        all.insert(key.clone(), merged);
    }
    Value::Object(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(manager: &str, operation: &str, fields: Value) -> Value {
        json!({"manager": manager, "operation": operation, "fieldsV1": fields})
    }

    fn with_annotation(fields: Value) -> Value {
        let mut fields = fields;
        fields["f:metadata"] = json!({"f:annotations": {format!("f:{LAST_APPLIED}"): {}}});
        fields
    }

    #[test]
    fn the_new_manager_inherits_the_fields() {
        let old = with_annotation(json!({"f:data": {"f:b": {}}}));
        let object = json!({"metadata": {"resourceVersion": "5", "managedFields": [
            entry("kubectl", "Apply", json!({"f:data": {"f:a": {}}})),
            entry("mine", "Update", old.clone()),
            entry("other", "Update", json!({"f:data": {"f:c": {}}}))]}});
        let patch = take_over(&object, "kubectl").unwrap();
        assert_eq!(
            patch[0]["value"],
            json!([
                entry("kubectl", "Apply", with_annotation(json!({"f:data": {"f:a": {}, "f:b": {}}}))),
                entry("other", "Update", json!({"f:data": {"f:c": {}}}))
            ])
        );
        assert!(take_over(&json!({"metadata": {"managedFields": []}}), "kubectl").is_none());
    }

    #[test]
    fn the_annotation_is_kept_until_somebody_applies_it() {
        let resource = crate::discovery::Resource { name: "configmaps".to_owned(), ..Default::default() };
        let info = Info {
            resource: std::rc::Rc::new(resource),
            namespace: "default".to_owned(),
            name: "x".to_owned(),
            object: Value::Null,
            source: String::new(),
        };
        let live = |operation: &str| {
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"annotations": {LAST_APPLIED: "{}"},
                "managedFields": [entry("m", operation, with_annotation(json!({})))]}})
        };
        let kept = annotation_to_keep(&info, &live("Update"), "kubectl").unwrap();
        assert_eq!(kept.keyed("metadata.annotations", LAST_APPLIED), "{}");
        assert!(annotation_to_keep(&info, &live("Apply"), "kubectl").is_none());
        assert!(annotation_to_keep(&info, &live("Update"), "mine").is_none());
    }
}
