//! Moving from client-side to server-side apply: fields that were applied from here before become
//! the new manager's, so that leaving one out of the file removes it.

use serde_json::{Map, Value, json};

use crate::error::Result;
use crate::fields::Fields;
use crate::selection::Info;
use crate::transport::{APPLY_PATCH, Query};
use crate::write::{LAST_APPLIED, Writer, configuration};

const CLIENT_SIDE: &str = "kubectl-client-side-apply";

/// The JSON patch that hands the client-side manager's fields over, if it still owns any.
pub fn take_over(object: &Value, manager: &str) -> Option<Value> {
    let entries = object.list("metadata.managedFields");
    let is_client_side = |entry: &Value| {
        entry.text("manager") == CLIENT_SIDE
            && entry.text("operation") == "Update"
            && entry.text("subresource").is_empty()
    };
    if !entries.iter().any(is_client_side) {
        return None;
    }
    let mut kept: Vec<Value> = entries.iter().filter(|entry| !is_client_side(entry)).cloned().collect();
    let heir = kept.iter_mut().find(|entry| {
        entry.text("manager") == manager
            && entry.text("operation") == "Apply"
            && entry.text("subresource").is_empty()
    })?;
    for entry in entries.iter().filter(|entry| is_client_side(entry)) {
        let united = union(heir.at("fieldsV1"), entry.at("fieldsV1"));
        heir["fieldsV1"] = united;
    }
    Some(json!([
        {"op": "replace", "path": "/metadata/managedFields", "value": kept},
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

/// An object that client-side apply knows keeps its last applied configuration up to date.
pub async fn remember(writer: &Writer<'_>, info: &Info, applied: &Value) -> Result<()> {
    if applied.keyed("metadata.annotations", LAST_APPLIED).is_empty() {
        return Ok(());
    }
    let mut annotated = json!({"apiVersion": info.object.text("apiVersion"), "kind": info.object.kind(), "metadata": {"name": info.name}});
    if !info.namespace.is_empty() {
        annotated["metadata"]["namespace"] = json!(info.namespace);
    }
    annotated["metadata"]["annotations"] = json!({LAST_APPLIED: configuration(&info.object)});
    let query = Query::new().with("fieldManager", "kubectl-last-applied").with("force", "true");
    writer.patch_with(info.into(), APPLY_PATCH, &annotated, query).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_new_manager_inherits_the_fields() {
        let entry = |manager: &str, operation: &str, fields: Value| json!({"manager": manager, "operation": operation, "fieldsV1": fields});
        let object = json!({"metadata": {"resourceVersion": "5", "managedFields": [
            entry("kubectl", "Apply", json!({"f:data": {"f:a": {}}})),
            entry(CLIENT_SIDE, "Update", json!({"f:data": {"f:b": {}}})),
            entry("other", "Update", json!({"f:data": {"f:c": {}}}))]}});
        let patch = take_over(&object, "kubectl").unwrap();
        assert_eq!(
            patch[0]["value"],
            json!([
                entry("kubectl", "Apply", json!({"f:data": {"f:a": {}, "f:b": {}}})),
                entry("other", "Update", json!({"f:data": {"f:c": {}}}))
            ])
        );
        assert!(take_over(&json!({"metadata": {"managedFields": []}}), "kubectl").is_none());
    }
}
