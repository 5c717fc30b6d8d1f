//! `pods/NAME/binding`: sets the node of a pod, once. No other request can set it.

use std::sync::{Arc, LazyLock};

use ferry_api::{GroupResource, GroupVersionKind, Kind, Object, Status};
use ferry_patch::managed_fields::Versions;
use ferry_registry::verbs::Call;
use ferry_registry::verbs::update::Change;
use serde_json::{Value, json};

use crate::admission::{NoAdmission, admit_unstored};
use crate::api::Api;
use crate::body::Response;
use crate::request::Request;
use crate::respond;
use crate::verbs::Target;

pub async fn bind(target: Target<'_>) -> Result<Response, Status> {
    let binding = read(target.request)?;
    bind_pod(target, binding).await
}

/// The old form: POST of a Binding that names its pod.
pub async fn bind_by_body(api: &Arc<Api>, request: &Request) -> Result<Response, Status> {
    let binding = read(request)?;
    let served = api.served();
    let pods = served.kind("", "v1", "pods").ok_or_else(Status::no_such_path)?;
    let resource = api.registry.resource(&GroupResource::new("", "pods")).ok_or_else(Status::no_such_path)?;
    bind_pod(Target { api, request, kind: pods, resource: &resource }, binding).await
}

fn binding_kind() -> GroupVersionKind {
    GroupVersionKind::new("", "v1", "Binding")
}

fn read(request: &Request) -> Result<Object, Status> {
    static ROW: LazyLock<&'static Arc<Kind>> =
        LazyLock::new(|| ferry_api::kinds::builtin_row(&binding_kind()).expect("a row of the table"));
    let validation = request.write_options("CreateOptions")?.validation;
    request.decode_as(&ROW, validation)
}

async fn bind_pod(target: Target<'_>, mut binding: Object) -> Result<Response, Status> {
    let media_type = target.media_type()?;
    let options = target.request.write_options("CreateOptions")?;
    let call = Call { subresource: "binding", ..target.call(&options) };
    admit_unstored(&call, &binding_kind(), &mut binding).await?;
    let mut errors = ferry_api::FieldErrors::default();
    let node_kind = binding.text_at(&["target", "kind"]);
    if !["", "Node", "Minion"].contains(&node_kind) {
        errors.not_supported("target.kind", node_kind, &["Node", "<empty>"]);
    }
    let node = binding.text_at(&["target", "name"]);
    if node.is_empty() {
        errors.required("target.name", "");
    }
    if !errors.is_empty() {
        // upstream wraps these errors into no status of their own
        return Err(Status::unexpected(&errors));
    }

    // The pod's own update rules forbid to set the node; the binding is the one way past them.
    let name = if call.name.is_empty() { binding.name() } else { call.name };
    let call = Call { name, admission: &NoAdmission, ..call };
    let transform = |live: Option<&Object>, _: &dyn Versions| {
        let live = live.ok_or_else(|| call.not_found())?;
        bound(live, &binding, node)
            .map_err(|why| Status::conflict(&GroupResource::new("", "pods/binding"), live.name(), why))
    };
    let uid = Some(binding.uid()).filter(|uid| !uid.is_empty());
    let change = Change { transform: &transform, tracked: false, may_create: false, uid };
    target.api.registry.update(&call, change).await?;
    let mut status = Status::success();
    status.code = 201;
    Ok(respond::status_as(&status, media_type))
}

/// The pod on its node. Pure; refuses a pod that is bound, deleted or gated.
fn bound(pod: &Object, binding: &Object, node: &str) -> Result<Object, String> {
    if pod.is_deleting() {
        return Err(format!("pod {} is being deleted, cannot be assigned to a host", pod.name()));
    }
    let have = pod.text_at(&["spec", "nodeName"]);
    if !have.is_empty() {
        return Err(format!("pod {} is already assigned to node {have:?}", pod.name()));
    }
    if pod.get(&["spec", "schedulingGates"]).and_then(Value::as_array).is_some_and(|gates| !gates.is_empty())
    {
        return Err(format!("pod {} has non-empty .spec.schedulingGates", pod.name()));
    }
    let mut pod = pod.clone();
    pod.section_mut("spec").insert("nodeName".into(), node.into());
    for field in ["annotations", "labels"] {
        if let Some(given) = binding.meta(field).and_then(Value::as_object) {
            let mut merged = pod.meta(field).and_then(Value::as_object).cloned().unwrap_or_default();
            merged.extend(given.clone());
            pod.set_meta(field, merged);
        }
    }
    set_scheduled(&mut pod);
    Ok(pod)
}

fn set_scheduled(pod: &mut Object) {
    let now = ferry_registry::metadata::timestamp(jiff::Timestamp::now().as_second());
    let condition = json!({
        "type": "PodScheduled", "status": "True", "lastTransitionTime": now, "observedGeneration": pod.generation(),
    });
    let status = pod.section_mut("status");
    let conditions = status.entry("conditions").or_insert_with(|| Value::Array(Vec::new()));
    if let Value::Array(list) = conditions {
        list.retain(|have| have.get("type").and_then(Value::as_str) != Some("PodScheduled"));
        list.push(condition);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_is_bound_once() {
        let pod = Object::from_value(json!({"metadata": {"name": "p"}, "spec": {}})).expect("an object");
        let binding = Object::from_value(json!({"target": {"name": "n"}})).expect("an object");
        let first = bound(&pod, &binding, "n").expect("free");
        assert_eq!(first.text_at(&["spec", "nodeName"]), "n");
        assert_eq!(first.get(&["status", "conditions"]).and_then(Value::as_array).map(Vec::len), Some(1));
        assert_eq!(
            bound(&first, &binding, "m").expect_err("taken"),
            "pod p is already assigned to node \"n\""
        );
    }
}
