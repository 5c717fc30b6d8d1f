//! Prevents privilege escalation: a user who writes a role needs all permissions in it, and a user who writes a binding all
//! permissions of its role (or the verbs `escalate` and `bind`). `ferry_auth` has the rules; this file determines what is
//! written.

use ferry_api::{GroupResource, Object, Status};
use ferry_auth::authorize::rbac::{EscalationError, GROUP, RoleWrite};
use ferry_registry::verbs::Call;
use k8s_openapi::api::rbac::v1::{PolicyRule, RoleRef};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::api::Api;

/// Refuses a write of a role or binding that would give away what its writer does not have.
pub async fn check(api: &Api, call: &Call<'_>, new: &Object, old: Option<&Object>) -> Result<(), Status> {
    let kind = call.kind;
    if kind.group != GROUP || old.is_some_and(|old| only_collection_changes(new, old)) {
        return Ok(());
    }
    let (rbac, authorization) = (&api.rbac, &api.authorization);
    let (user, namespace) = (call.user, call.namespace);
    let verdict = match &*kind.plural {
        "roles" | "clusterroles" => {
            let rules: Vec<PolicyRule> = read(new, "rules")?.unwrap_or_else(Vec::new);
            let write = RoleWrite {
                user,
                resource: &kind.plural,
                namespace,
                request_name: call.name,
                rules: &rules,
                aggregates: aggregates(new) || old.is_some_and(aggregates),
            };
            rbac.check_role(write, authorization).await
        }
        "rolebindings" | "clusterrolebindings" => {
            let role_ref: RoleRef = read(new, "roleRef")?.unwrap_or_else(RoleRef::default);
            rbac.check_binding(user, &role_ref, namespace, authorization).await
        }
        _ => return Ok(()),
    };
    verdict.map_err(|refusal| match refusal {
        EscalationError::Forbidden(why) => Status::forbidden(&kind.group_resource(), new.name(), why),
        EscalationError::RoleNotFound { resource, role } => {
            Status::not_found(&GroupResource::new(GROUP, resource), &role)
        }
        EscalationError::UnsupportedRoleKind(_) => Status::internal(refusal),
    })
}

/// What cannot be read is refused: a rule that is not understood would not be checked.
fn read<T: DeserializeOwned>(object: &Object, field: &str) -> Result<Option<T>, Status> {
    match object.get(&[field]) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => ferry_api::view::of_value(value)
            .map(Some)
            .map_err(|error| Status::bad_request(format!("{field} cannot be read: {error}"))),
    }
}

fn aggregates(role: &Object) -> bool {
    role.get(&["aggregationRule", "clusterRoleSelectors"])
        .and_then(Value::as_array)
        .is_some_and(|selectors| !selectors.is_empty())
}

/// The garbage collector takes away owners and finalizers of objects whose rights it does not hold.
fn only_collection_changes(new: &Object, old: &Object) -> bool {
    let without = |object: &Object| {
        let mut object = object.clone();
        object.set_managers(Vec::new());
        for field in ["ownerReferences", "finalizers"] {
            object.remove_meta(field);
        }
        object
    };
    without(new) == without(old)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_garbage_collector_may_take_finalizers_off() {
        let role = |metadata: Value, verb: &str| {
            Object::from_value(json!({"metadata": metadata, "rules": [{"verbs": [verb]}]}))
                .expect("an object")
        };
        let old = role(json!({"name": "a", "finalizers": ["x"], "ownerReferences": [{}]}), "get");
        assert!(only_collection_changes(&role(json!({"name": "a"}), "get"), &old));
        assert!(!only_collection_changes(&role(json!({"name": "a"}), "list"), &old));
        assert!(!only_collection_changes(&role(json!({"name": "a", "labels": {"b": "c"}}), "get"), &old));
    }

    #[test]
    fn an_empty_aggregation_rule_gathers_nothing() {
        let role = |rule: Value| Object::from_value(json!({"aggregationRule": rule})).expect("an object");
        assert!(aggregates(&role(json!({"clusterRoleSelectors": [{}]}))));
        assert!(!aggregates(&role(json!({"clusterRoleSelectors": []}))));
        assert!(!aggregates(&role(json!({}))));
    }
}
