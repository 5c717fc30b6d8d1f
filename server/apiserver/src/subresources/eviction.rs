//! `pods/NAME/eviction`: a delete that respects disruption budgets.

use ferry_api::selector::LabelSelector;
use ferry_api::status::Cause;
use ferry_api::{Codec, GroupResource, GroupVersionKind, Kind, Object, Status};
use ferry_patch::managed_fields::Versions;
use ferry_registry::cache::Filter;
use ferry_registry::verbs::Call;
use ferry_registry::verbs::delete::{DeleteOptions, Disruption};
use ferry_registry::verbs::update::Change;
use serde_json::Value;

use crate::admission::{NoAdmission, admit_unstored};
use crate::body::Response;
use crate::request::Request;
use crate::respond;
use crate::verbs::Target;

pub async fn evict(target: Target<'_>) -> Result<Response, Status> {
    let media_type = target.media_type()?;
    let gvk = GroupVersionKind::new("policy", "v1", "Eviction");
    let mut eviction = read(target.request, target.kind, &gvk)?;
    if !eviction.name().is_empty() && eviction.name() != target.request.info.name {
        return Err(Status::bad_request("name in URL does not match name in Eviction object"));
    }
    let mut options = target.request.write_options("CreateOptions")?;
    options.dry_run |= !delete_options(&eviction)?.dry_run.is_empty();
    let call = target.call(&options);
    let entry = target.api.registry.get(&call, ferry_registry::verbs::list::Freshness::Current).await?;
    let pod = entry.read_object()?;
    // Before a budget is spent: an eviction that is refused costs nothing.
    admit_unstored(&call, &gvk, &mut eviction).await?;
    let call = Call { subresource: "", admission: &NoAdmission, ..call };
    let mut delete = delete_options(&eviction)?;
    delete.disruption =
        Some(Disruption { reason: "EvictionByEvictionAPI", message: "Eviction API: evicting" });
    if !needs_no_budget(&pod) {
        spend_budget(target, &pod, &call).await?;
    }
    target.api.registry.delete(&call, &delete).await?;
    let mut status = Status::success();
    status.code = 201;
    Ok(respond::status_as(&status, media_type))
}

fn delete_options(eviction: &Object) -> Result<DeleteOptions, Status> {
    match eviction.0.get("deleteOptions") {
        Some(value) => ferry_api::view::of_value(value)
            .map_err(|error| Status::bad_request(format!("error decoding deleteOptions: {error}"))),
        None => Ok(DeleteOptions::default()),
    }
}

fn read(request: &Request, kind: &Kind, gvk: &GroupVersionKind) -> Result<Object, Status> {
    let row = Kind {
        group: "policy".into(),
        kind: "Eviction".into(),
        codec: Codec::builtin(gvk),
        storage_version: gvk.clone(),
        ..kind.clone()
    };
    request.decode_as(&row, request.write_options("CreateOptions")?.validation)
}

/// A pod that serves nobody may go: it ended, was never placed, or is going already.
fn needs_no_budget(pod: &Object) -> bool {
    pod.is_deleting() || matches!(pod.text_at(&["status", "phase"]), "Succeeded" | "Failed" | "Pending")
}

async fn spend_budget(target: Target<'_>, pod: &Object, call: &Call<'_>) -> Result<(), Status> {
    let group_resource = GroupResource::new("policy", "poddisruptionbudgets");
    let Some(budgets) = target.api.registry.resource(&group_resource) else { return Ok(()) };
    let filter = Filter::in_namespace(pod.namespace());
    let mut matching = Vec::new();
    for entry in target.api.registry.select(&budgets, &filter).await? {
        let budget = entry.read_object()?;
        let selector = LabelSelector::from_structured(budget.get(&["spec", "selector"]))
            .map_err(|error| Status::internal(error.to_string()))?;
        if selector.matches(|key| pod.label(key)) {
            matching.push(budget);
        }
    }
    match matching.as_slice() {
        [] => Ok(()),
        [budget] => {
            let served = target.api.served();
            let kind =
                served.kind("policy", "v1", "poddisruptionbudgets").ok_or_else(Status::no_such_path)?;
            let (name, resource) = (budget.name(), &*budgets);
            spend(target, pod, &Call { kind, resource, name, subresource: "status", ..*call }).await
        }
        _ => Err(Status::new(
            500,
            "InternalError",
            "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.",
        )),
    }
}

/// Takes one disruption out of the budget, atomically with whoever else takes one.
async fn spend(target: Target<'_>, pod: &Object, call: &Call<'_>) -> Result<(), Status> {
    let now = ferry_registry::metadata::timestamp(call.now.as_second());
    let transform = |live: Option<&Object>, _: &dyn Versions| {
        let live = live.ok_or_else(|| call.not_found())?;
        spent(live, pod, &now)
    };
    let change = Change { transform: &transform, tracked: false, may_create: false, uid: None };
    target.api.registry.update(call, change).await.map(|_| ())
}

/// The budget after one more disruption. Pure.
fn spent(budget: &Object, pod: &Object, now: &str) -> Result<Object, Status> {
    let number = |field: &str| budget.get(&["status", field]).and_then(Value::as_i64).unwrap_or(0);
    let seen = number("observedGeneration");
    if seen < budget.generation() {
        return Err(refused(&format!(
            "The disruption budget {} is still being processed by the server.",
            budget.name()
        )));
    }
    // A pod that is not ready does not count as a healthy one that would be lost.
    let healthy_enough = number("currentHealthy") >= number("desiredHealthy") && number("desiredHealthy") > 0;
    let always = budget.text_at(&["spec", "unhealthyPodEvictionPolicy"]) == "AlwaysAllow";
    if !is_ready(pod) && (always || healthy_enough) {
        return Ok(budget.clone());
    }
    let allowed = number("disruptionsAllowed");
    if allowed <= 0 {
        let needs = format!(
            "The disruption budget {} needs {} healthy pods and has {} currently",
            budget.name(),
            number("desiredHealthy"),
            number("currentHealthy")
        );
        return Err(refused(&needs));
    }
    let mut budget = budget.clone();
    let status = budget.section_mut("status");
    status.insert("disruptionsAllowed".into(), (allowed - 1).into());
    ferry_api::object::object_at(status, "disruptedPods").insert(pod.name().to_string(), now.into());
    Ok(budget)
}

fn is_ready(pod: &Object) -> bool {
    pod.get(&["status", "conditions"]).and_then(Value::as_array).into_iter().flatten().any(|condition| {
        condition.get("type").and_then(Value::as_str) == Some("Ready")
            && condition.get("status").and_then(Value::as_str) == Some("True")
    })
}

fn refused(why: &str) -> Status {
    let mut status =
        Status::too_many_requests("Cannot evict pod as it would violate the pod's disruption budget.", 0);
    if let Some(details) = &mut status.details {
        details.causes.push(Cause {
            reason: "DisruptionBudget".into(),
            message: why.into(),
            field: String::new(),
        });
    }
    status
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_budget_is_spent_and_then_refuses() {
        let pod = Object::from_value(json!({"metadata": {"name": "p"}, "status": {"conditions": [{"type": "Ready", "status": "True"}]}}))
            .expect("an object");
        let budget =
            Object::from_value(json!({"metadata": {"name": "b"}, "status": {"disruptionsAllowed": 1}}))
                .expect("an object");
        let once = spent(&budget, &pod, "2026-01-01T00:00:00Z").expect("one is allowed");
        assert_eq!(once.get(&["status", "disruptionsAllowed"]), Some(&json!(0)));
        assert_eq!(once.get(&["status", "disruptedPods", "p"]), Some(&json!("2026-01-01T00:00:00Z")));
        assert_eq!(spent(&once, &pod, "").expect_err("none is left").code, 429);
    }
}
