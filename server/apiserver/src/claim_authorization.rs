//! Authorization of writes to the status of a ResourceClaim (KEP-4817). Beside the right to the status, a change of the
//! allocation needs the right to `resourceclaims/binding`, and a change of a driver's devices the right to
//! `resourceclaims/driver` with the driver's name. A driver on the claim's node needs it for its own node only.

use std::collections::BTreeSet;

use ferry_api::{FieldErrors, Object, Status, User};
use ferry_auth::Attributes;
use ferry_registry::verbs::Call;
use serde_json::Value;

use crate::api::Api;
use crate::filters::permit;

/// A claim has 32 allocated devices at most, before and now. Authorizers are asked about each driver, so a list that is
/// longer than an allocation can be is refused before it is judged.
const MOST_DRIVERS: usize = 64;
const NODE_NAME: &str = "authentication.kubernetes.io/node-name";

/// Refuses a change of the status that its writer has no right to.
pub async fn check(api: &Api, call: &Call<'_>, new: &Object, old: Option<&Object>) -> Result<(), Status> {
    let kind = call.kind;
    let is_about_claims = kind.group == "resource.k8s.io" && kind.plural == "resourceclaims";
    let Some(old) = old.filter(|_| is_about_claims && call.subresource == "status") else { return Ok(()) };
    let verb = match call.options.get("kind").and_then(Value::as_str) {
        Some("PatchOptions") => "patch",
        _ => "update",
    };
    let mut errors = FieldErrors::default();
    if is_bound_otherwise(new, old) {
        check_binding(api, call, verb, &mut errors).await;
    }
    // Deallocation drops the devices' statuses too.
    if new.get(&["status", "allocation"]).is_some() {
        let verbs = verbs_for_drivers(call.user, new, verb);
        let drivers = changed_drivers(new, old);
        if drivers.len() > MOST_DRIVERS {
            errors.too_many("status.devices", drivers.len(), MOST_DRIVERS);
            return Err(Status::invalid(&kind.group, &kind.kind, new.name(), &errors));
        }
        for driver in drivers {
            check_driver(api, call, &verbs, &driver, &mut errors).await;
        }
    }
    if errors.is_empty() {
        Ok(())
    } else {
        Err(Status::invalid(&kind.group, &kind.kind, new.name(), &errors))
    }
}

/// Needs the right to the subresource `binding`.
async fn check_binding(api: &Api, call: &Call<'_>, verb: &str, errors: &mut FieldErrors) {
    let attributes = Attributes {
        api_version: &call.kind.version,
        subresource: "binding",
        ..Attributes::resource(call.user, verb, &call.kind.group, &call.kind.plural)
    };
    if let Err(refusal) = permit(&attributes, api.authorization.authorize(&attributes).await) {
        let why = format!(
            "changing status.allocation or status.reservedFor requires resource=\"resourceclaims/binding\", \
             verb=\"{verb}\" permission: {}",
            refusal.message
        );
        errors.forbidden("status.allocation", &why);
    }
}

/// Needs the right to one of `verbs` on the subresource `driver`, with the driver's name. The error is the first refusal.
async fn check_driver(api: &Api, call: &Call<'_>, verbs: &[String], driver: &str, errors: &mut FieldErrors) {
    let mut first = None;
    for verb in verbs {
        let attributes = Attributes {
            api_version: &call.kind.version,
            subresource: "driver",
            namespace: call.namespace,
            name: driver,
            ..Attributes::resource(call.user, verb, &call.kind.group, &call.kind.plural)
        };
        match permit(&attributes, api.authorization.authorize(&attributes).await) {
            Ok(()) => return,
            Err(refusal) => first = first.or(Some(refusal.message)),
        }
    }
    if let Some(refusal) = first {
        let why = format!(
            "changing status.devices requires resource=\"resourceclaims/driver\", verb=\"[{}]\" \
             permission: {refusal}",
            verbs.join(" ")
        );
        errors.forbidden("status.devices", &why);
    }
}

fn is_bound_otherwise(new: &Object, old: &Object) -> bool {
    ["allocation", "reservedFor"].iter().any(|field| given(new, field) != given(old, field))
}

/// The field, unless it is null or an empty list.
fn given<'o>(object: &'o Object, field: &str) -> Option<&'o Value> {
    object
        .get(&["status", field])
        .filter(|value| !value.is_null() && value.as_array().is_none_or(|list| !list.is_empty()))
}

/// The drivers whose device statuses were added, changed or removed.
fn changed_drivers(new: &Object, old: &Object) -> BTreeSet<String> {
    let devices = |object: &Object| -> Vec<Value> {
        given(object, "devices").and_then(Value::as_array).cloned().unwrap_or_default()
    };
    let (new, old) = (devices(new), devices(old));
    let changed = new.iter().filter(|device| !old.contains(device));
    let gone = old.iter().filter(|device| !new.contains(device));
    changed.chain(gone).filter_map(|device| device.get("driver")?.as_str().map(str::to_owned)).collect()
}

/// The verbs of which the writer needs one.
fn verbs_for_drivers(user: &User, claim: &Object, verb: &str) -> Vec<String> {
    let anywhere = format!("arbitrary-node:{verb}");
    match node_of(claim) {
        Some(node) if runs_on(user, node) => vec![format!("associated-node:{verb}"), anywhere],
        _ => vec![anywhere],
    }
}

/// A service account whose token is bound to a pod on the node.
fn runs_on(user: &User, node: &str) -> bool {
    let nodes = user.extra.get(NODE_NAME).map_or(&[][..], Vec::as_slice);
    user.name.starts_with("system:serviceaccount:") && nodes == [node]
}

/// The node whose devices were allocated; none where they are not one node's.
fn node_of(claim: &Object) -> Option<&str> {
    let terms = claim.get(&["status", "allocation", "nodeSelector", "nodeSelectorTerms"])?.as_array()?;
    let [term] = terms.as_slice() else { return None };
    let list = |field: &str| term.get(field).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let ([], [field]) = (list("matchExpressions"), list("matchFields")) else { return None };
    let text = |name: &str| field.get(name).and_then(Value::as_str);
    let [node] = field.get("values")?.as_array()?.as_slice() else { return None };
    (text("key") == Some("metadata.name") && text("operator") == Some("In")).then(|| node.as_str()).flatten()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn claim(status: Value) -> Object {
        Object::from_value(json!({"status": status})).expect("an object")
    }

    #[test]
    fn binding_is_a_change_of_the_allocation_or_of_who_uses_it() {
        let check = |new: Value, old: Value, expected: bool| {
            assert_eq!(is_bound_otherwise(&claim(new.clone()), &claim(old.clone())), expected, "{new} {old}");
        };
        check(json!({}), json!({"reservedFor": []}), false);
        check(json!({"allocation": {}}), json!({}), true);
        check(json!({"reservedFor": [{"uid": "a"}]}), json!({}), true);
        check(json!({"devices": [{"driver": "d"}]}), json!({}), false);
    }

    #[test]
    fn the_drivers_whose_devices_changed() {
        let device = |driver: &str, name: &str, data: i32| json!({"driver": driver, "device": name, "data": {"n": data}});
        let old = claim(json!({"devices": [device("a", "1", 1), device("b", "1", 1), device("c", "1", 1)]}));
        let new = claim(json!({"devices": [device("a", "1", 1), device("b", "1", 2), device("d", "1", 1)]}));
        let changed: Vec<String> = changed_drivers(&new, &old).into_iter().collect();
        assert_eq!(changed, ["b", "c", "d"]);
    }

    #[test]
    fn a_driver_on_the_claims_node_needs_less() {
        let field = |key: &str| json!({"key": key, "operator": "In", "values": ["n"]});
        let allocated =
            |term: Value| claim(json!({"allocation": {"nodeSelector": {"nodeSelectorTerms": [term]}}}));
        let on = |name: &str, node: &str| {
            let mut user = User::new(name);
            user.extra.insert(NODE_NAME.into(), vec![node.into()]);
            user
        };
        let account = "system:serviceaccount:drivers:gpu";
        let of_node = allocated(json!({"matchFields": [field("metadata.name")]}));
        let own = ["associated-node:update", "arbitrary-node:update"];
        assert_eq!(verbs_for_drivers(&on(account, "n"), &of_node, "update"), own);
        let any = ["arbitrary-node:update"];
        assert_eq!(verbs_for_drivers(&on(account, "m"), &of_node, "update"), any);
        assert_eq!(verbs_for_drivers(&on("jane", "n"), &of_node, "update"), any);
        assert_eq!(verbs_for_drivers(&User::new(account), &of_node, "update"), any);
        let by_label = allocated(json!({"matchExpressions": [field("zone")]}));
        assert_eq!(verbs_for_drivers(&on(account, "n"), &by_label, "update"), any);
        assert_eq!(verbs_for_drivers(&on(account, "n"), &claim(json!({})), "update"), any);
    }
}
