//! Claims for devices: access for administration is for namespaces that are labelled for it.

use ferry_api::{FieldErrors, GroupResource, Object, Status};
use serde_json::Value;

use crate::registry::Registry;

const LABEL: &str = "resource.kubernetes.io/admin-access";

/// Refuses a claim, or a template of one, that asks for access to devices in use, in a namespace where nobody may.
pub fn administration(registry: &Registry, new: &Object, old: Option<&Object>) -> Result<(), Status> {
    let asking = fields(new);
    // what was there before was allowed then
    let is_known = old.is_some_and(|old| fields(old) == asking);
    if asking.is_empty() || is_known || is_labelled(registry, new.namespace()) {
        return Ok(());
    }
    let mut errors = FieldErrors::default();
    let why =
        format!("admin access to devices requires the `{LABEL}: true` label on the containing namespace");
    for field in asking {
        errors.forbidden(field, &why);
    }
    let kind = new.0.get("kind").and_then(Value::as_str).unwrap_or("ResourceClaim");
    Err(Status::invalid("resource.k8s.io", kind, new.name(), &errors))
}

/// Where administration is asked for, or was given. A template has the claim one level below.
fn fields(object: &Object) -> Vec<String> {
    let requests = object
        .get(&["spec", "devices", "requests"])
        .or_else(|| object.get(&["spec", "spec", "devices", "requests"]));
    let results = object.get(&["status", "allocation", "devices", "results"]);
    let lists = [
        (requests, "/exactly/adminAccess", "spec.devices.requests"),
        (results, "/adminAccess", "status.allocation.devices.results"),
    ];
    let mut found = Vec::new();
    for (list, pointer, path) in lists {
        let items = list.and_then(Value::as_array).into_iter().flatten().enumerate();
        let asking = items.filter(|(_, item)| item.pointer(pointer) == Some(&Value::Bool(true)));
        found.extend(asking.map(|(index, _)| format!("{path}[{index}].adminAccess")));
    }
    found
}

/// A namespace that is not there, or cannot be read, is not labelled.
fn is_labelled(registry: &Registry, namespace: &str) -> bool {
    let namespaces = registry.resource(&GroupResource::new("", "namespaces"));
    let entry = namespaces.and_then(|namespaces| namespaces.cache.get(&namespaces.key("", namespace)));
    let object = entry.and_then(|entry| entry.read_object().ok());
    object.is_some_and(|object| object.text_at(&["metadata", "labels", LABEL]) == "true")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn administration_is_found_in_requests_and_results() {
        let check = |object: Value, expected: &[&str]| {
            let object = Object::new(object.as_object().expect("a map").clone());
            assert_eq!(fields(&object), expected);
        };
        let devices = json!({"devices": {"requests": [{"exactly": {}}, {"exactly": {"adminAccess": true}},
            {"exactly": {"adminAccess": false}}, {"firstAvailable": []}]}});
        let asked = ["spec.devices.requests[1].adminAccess"];
        check(json!({"spec": {}}), &[]);
        check(json!({"spec": devices}), &asked);
        check(json!({"spec": {"spec": devices}}), &asked);
        let given = json!({"allocation": {"devices": {"results": [{"adminAccess": true}]}}});
        check(json!({"spec": {}, "status": given}), &["status.allocation.devices.results[0].adminAccess"]);
    }
}
