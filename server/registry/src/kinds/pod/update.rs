//! What of a pod may change once it exists, and through which subresource.

use std::collections::{HashMap, HashSet};

use ferry_api::{FieldErrors, Object};
use k8s_openapi::api::core::v1::{Container, EphemeralContainer, PodSpec, Toleration};
use serde_json::Value;

use super::super::checks::Path;
use crate::metadata;

const SPEC: Path<'static> = Path::root("spec");

/// An update of the pod itself.
pub fn validate(new: &PodSpec, old: &PodSpec, errors: &mut FieldErrors) {
    same_containers(&new.containers, &old.containers, "containers", errors);
    let (new_init, old_init) = (list(&new.init_containers), list(&old.init_containers));
    same_containers(new_init, old_init, "initContainers", errors);
    validate_deadline(new, old, errors);
    validate_tolerations(new, old, errors);
    validate_gates(new, old, errors);
    if !errors.is_empty() {
        return;
    }
    let mut frozen = new.clone();
    for (container, before) in frozen.containers.iter_mut().zip(&old.containers) {
        container.image.clone_from(&before.image);
    }
    for (container, before) in frozen.init_containers.iter_mut().flatten().zip(old_init) {
        container.image.clone_from(&before.image);
    }
    frozen.active_deadline_seconds = old.active_deadline_seconds;
    frozen.tolerations.clone_from(&old.tolerations);
    frozen.scheduling_gates.clone_from(&old.scheduling_gates);
    if old.termination_grace_period_seconds.is_some_and(|seconds| seconds < 0)
        && new.termination_grace_period_seconds == Some(1)
    {
        frozen.termination_grace_period_seconds = old.termination_grace_period_seconds;
    }
    // A pod that waits at a gate may still be told where to go.
    if old.scheduling_gates.as_ref().is_some_and(|gates| !gates.is_empty()) {
        frozen.node_selector.clone_from(&old.node_selector);
        frozen.affinity.clone_from(&old.affinity);
    }
    if frozen != *old {
        errors.forbidden(
            SPEC,
            "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)",
        );
    }
}

/// A write through a subresource changes its own part of the spec and nothing else.
pub fn keep_to_subresource(subresource: &str, new: &mut Object, old: &Object) {
    let wanted = new.0.remove("spec");
    let spec = match subresource {
        "ephemeralcontainers" => old.0.get("spec").cloned().map(|mut spec| {
            let list = wanted.as_ref().and_then(|wanted| wanted.get("ephemeralContainers")).cloned();
            if let (Value::Object(spec), Some(list)) = (&mut spec, list) {
                spec.insert("ephemeralContainers".into(), list);
            }
            spec
        }),
        "resize" => old.0.get("spec").cloned().map(|mut spec| {
            for field in ["containers", "initContainers"] {
                let from = wanted.as_ref().and_then(|wanted| wanted.get(field)).and_then(Value::as_array);
                let into = spec.get_mut(field).and_then(Value::as_array_mut);
                for (container, wanted) in into.into_iter().flatten().zip(from.into_iter().flatten()) {
                    take(container, wanted, &["resources", "resizePolicy"]);
                }
            }
            if let Some(wanted) = &wanted {
                take(&mut spec, wanted, &["resources"]);
            }
            spec
        }),
        _ => {
            if let Some(wanted) = wanted {
                new.0.insert("spec".into(), wanted);
            }
            return;
        }
    };
    if let Some(spec) = spec {
        new.0.insert("spec".into(), spec);
    }
    if let Some(status) = old.0.get("status") {
        new.0.insert("status".into(), status.clone());
    }
    for field in ["labels", "annotations", "finalizers", "ownerReferences"] {
        metadata::copy(new, old, field);
    }
}

fn take(into: &mut Value, wanted: &Value, fields: &[&str]) {
    let Value::Object(into) = into else { return };
    for field in fields {
        match wanted.get(field) {
            Some(value) => into.insert((*field).into(), value.clone()),
            None => into.remove(*field),
        };
    }
}

/// Ephemeral containers are added, never changed or taken away.
pub fn validate_ephemeral(new: &PodSpec, old: &PodSpec, errors: &mut FieldErrors) {
    let (wanted, have) = (
        new.ephemeral_containers.as_deref().unwrap_or(&[]),
        old.ephemeral_containers.as_deref().unwrap_or(&[]),
    );
    let path = SPEC.child("ephemeralContainers");
    let wanted: HashMap<&str, &EphemeralContainer> =
        wanted.iter().rev().map(|container| (container.name.as_str(), container)).collect();
    for before in have {
        match wanted.get(before.name.as_str()).copied() {
            None => errors.forbidden(
                path,
                &format!("existing ephemeral containers {:?} may not be removed\n", before.name),
            ),
            Some(after) if after != before => errors.forbidden(
                path,
                &format!("existing ephemeral containers {:?} may not be changed\n", before.name),
            ),
            Some(_) => {}
        }
    }
}

/// A resize changes cpu and memory.
pub fn validate_resize(new: &PodSpec, old: &PodSpec, errors: &mut FieldErrors) {
    same_containers(&new.containers, &old.containers, "containers", errors);
    let list = SPEC.child("containers");
    for (index, (after, before)) in new.containers.iter().zip(&old.containers).enumerate() {
        let path = list.index(index);
        let path = path.child("resources");
        let (Some(after), Some(before)) = (&after.resources, &before.resources) else { continue };
        for (field, after, before) in
            [("limits", &after.limits, &before.limits), ("requests", &after.requests, &before.requests)]
        {
            let other = |list: &Option<std::collections::BTreeMap<String, _>>| {
                let names = list.iter().flat_map(|list| list.keys());
                names.filter(|name| !["cpu", "memory"].contains(&name.as_str())).cloned().collect::<Vec<_>>()
            };
            if other(after) != other(before) {
                errors.forbidden(path.child(field), "only cpu and memory resources are mutable");
            }
        }
    }
}

fn list(containers: &Option<Vec<Container>>) -> &[Container] {
    containers.as_deref().unwrap_or(&[])
}

fn same_containers(new: &[Container], old: &[Container], field: &str, errors: &mut FieldErrors) {
    if new.len() != old.len() {
        errors.forbidden(SPEC.child(field), "pod updates may not add or remove containers");
    }
}

/// A deadline may be set, and brought nearer.
fn validate_deadline(new: &PodSpec, old: &PodSpec, errors: &mut FieldErrors) {
    let path = SPEC.child("activeDeadlineSeconds");
    match (new.active_deadline_seconds, old.active_deadline_seconds) {
        (Some(after @ ..0), _) => {
            errors.invalid(path, after, "must be between 0 and 2147483647, inclusive");
        }
        (Some(after), Some(before)) if after > before => {
            errors.invalid(path, after, "must be less than or equal to previous value");
        }
        (None, Some(_)) => {
            errors.invalid(path, Value::Null, "must not update from a positive integer to nil value");
        }
        _ => {}
    }
}

fn validate_tolerations(new: &PodSpec, old: &PodSpec, errors: &mut FieldErrors) {
    fn identity(toleration: &Toleration) -> [&Option<String>; 4] {
        [&toleration.key, &toleration.operator, &toleration.value, &toleration.effect]
    }
    let wanted: HashSet<_> = new.tolerations.iter().flatten().map(identity).collect();
    let kept = old.tolerations.iter().flatten().all(|before| wanted.contains(&identity(before)));
    if !kept {
        errors.forbidden(
            SPEC.child("tolerations"),
            "existing toleration can not be modified except its tolerationSeconds",
        );
    }
}

fn validate_gates(new: &PodSpec, old: &PodSpec, errors: &mut FieldErrors) {
    let have: HashSet<&str> = old.scheduling_gates.iter().flatten().map(|gate| gate.name.as_str()).collect();
    let list = SPEC.child("schedulingGates");
    for (index, gate) in new.scheduling_gates.iter().flatten().enumerate() {
        if !have.contains(gate.name.as_str()) {
            let path = list.index(index);
            errors.forbidden(
                path.child("name"),
                &format!("only deletion is allowed, but found new scheduling gate '{}'", gate.name),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn faults(new: Value, old: Value) -> Vec<String> {
        let spec = |value: Value| serde_json::from_value::<PodSpec>(value).expect("a PodSpec");
        let mut errors = FieldErrors::default();
        validate(&spec(new), &spec(old), &mut errors);
        errors.0.into_iter().map(|error| error.path).collect()
    }

    #[test]
    fn images_may_change_and_little_else() {
        let pod = |image: &str, node: &str| json!({"containers": [{"name": "a", "image": image}], "nodeName": node});
        assert!(faults(pod("new", "n"), pod("old", "n")).is_empty());
        assert_eq!(faults(pod("old", "other"), pod("old", "n")), ["spec"]);
        let two = json!({"containers": [{"name": "a", "image": "old"}, {"name": "b"}]});
        assert_eq!(faults(two, pod("old", "n")), ["spec.containers"]);
    }

    #[test]
    fn tolerations_are_only_added() {
        let pod = |tolerations: Value| json!({"containers": [], "tolerations": tolerations});
        let one = json!([{"key": "a", "operator": "Exists"}]);
        assert!(faults(pod(one.clone()), pod(json!([]))).is_empty());
        assert_eq!(faults(pod(json!([])), pod(one)), ["spec.tolerations"]);
    }
}
