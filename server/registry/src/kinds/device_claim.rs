//! Claims for devices: access for administration is for namespaces that are labelled for it, and what drivers told of
//! devices goes with them.

use std::collections::HashSet;

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

/// Forgets the status of devices that the claim had and has no more.
pub fn drop_deallocated(new: &mut Object, old: &Object) {
    let kept = allocated(new);
    let gone: HashSet<[String; 4]> =
        allocated(old).into_iter().filter(|device| !kept.contains(device)).collect();
    if gone.is_empty() {
        return;
    }
    let Some(Value::Object(status)) = new.0.get_mut("status") else { return };
    if let Some(Value::Array(devices)) = status.get_mut("devices") {
        devices.retain(|device| !gone.contains(&identity(device)));
        if devices.is_empty() {
            status.remove("devices");
        }
    }
}

fn allocated(claim: &Object) -> HashSet<[String; 4]> {
    let results = claim.get(&["status", "allocation", "devices", "results"]).and_then(Value::as_array);
    results.into_iter().flatten().map(identity).collect()
}

/// What tells a device from others, in an allocation and in what its driver tells.
pub fn identity(device: &Value) -> [String; 4] {
    ["driver", "pool", "device", "shareID"]
        .map(|field| device.get(field).and_then(Value::as_str).unwrap_or("").to_owned())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_status_of_a_device_goes_with_it() {
        let device = |name: &str| json!({"driver": "d", "pool": "p", "device": name});
        let claim = |allocated: &[&str], told: &[&str]| {
            let list = |names: &[&str]| names.iter().map(|name| device(name)).collect::<Vec<Value>>();
            let status =
                json!({"allocation": {"devices": {"results": list(allocated)}}, "devices": list(told)});
            Object::from_value(json!({"status": status})).expect("an object")
        };
        let mut new = claim(&["a"], &["a", "b", "never"]);
        drop_deallocated(&mut new, &claim(&["a", "b"], &[]));
        assert_eq!(new.0, claim(&["a"], &["a", "never"]).0);
        let mut new = claim(&[], &["b"]);
        drop_deallocated(&mut new, &claim(&["b"], &[]));
        assert_eq!(new.get(&["status", "devices"]), None);
    }

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
