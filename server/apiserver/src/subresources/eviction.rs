//! `pods/NAME/eviction`: a delete that respects disruption budgets.

use std::sync::atomic::{AtomicBool, Ordering};

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

/// How often a pod that changes all the time is looked at.
const ATTEMPTS: u32 = 20;

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
    // Before a budget is spent: an eviction that is refused costs nothing.
    admit_unstored(&call, &gvk, &mut eviction).await?;
    let call = Call { subresource: "", admission: &NoAdmission, ..call };
    let mut delete = delete_options(&eviction)?;
    delete.disruption =
        Some(Disruption { reason: "EvictionByEvictionAPI", message: "Eviction API: evicting" });
    delete_within_budget(target, &call, &delete).await?;
    let mut status = Status::success();
    status.code = 201;
    Ok(respond::status_as(&status, media_type))
}

/// A pod that goes without a budget goes only as it was seen: one that has become ready meanwhile is looked at again.
async fn delete_within_budget(
    target: Target<'_>,
    call: &Call<'_>,
    options: &DeleteOptions,
) -> Result<(), Status> {
    let registry = &target.api.registry;
    let mut attempts = 0;
    loop {
        let entry = registry.get(call, ferry_registry::verbs::list::Freshness::Current).await?;
        let pod = entry.read_object()?;
        let depends_on_state = match needs_no_budget(&pod) {
            true => !has_ended(&pod),
            false => spend_budget(target, &pod, call).await? == Spent::NotReady,
        };
        let pinned = depends_on_state.then(|| pinned(options, &pod)).flatten();
        attempts += 1;
        match registry.delete(call, pinned.as_ref().unwrap_or(options)).await {
            Err(status) if status.code == 409 && pinned.is_some() && attempts < ATTEMPTS => {}
            deleted => return deleted.map(|_| ()),
        }
    }
}

/// The options with the pod's revision as a precondition, unless the client has one.
fn pinned(options: &DeleteOptions, pod: &Object) -> Option<DeleteOptions> {
    let mut options = options.clone();
    let preconditions = options.preconditions.get_or_insert_default();
    if preconditions.resource_version.is_some() {
        return None;
    }
    preconditions.resource_version = Some(pod.resource_version().to_owned());
    Some(options)
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
    has_ended(pod) || pod.text_at(&["status", "phase"]) == "Pending"
}

/// Whatever happens, it will serve nobody.
fn has_ended(pod: &Object) -> bool {
    pod.is_deleting() || matches!(pod.text_at(&["status", "phase"]), "Succeeded" | "Failed")
}

/// What an eviction took from the pod's budget.
#[derive(Clone, Copy, PartialEq)]
enum Spent {
    /// One disruption, or no budget selects the pod.
    Due,
    /// Nothing, since the pod is not ready.
    NotReady,
}

async fn spend_budget(target: Target<'_>, pod: &Object, call: &Call<'_>) -> Result<Spent, Status> {
    let group_resource = GroupResource::new("policy", "poddisruptionbudgets");
    let Some(budgets) = target.api.registry.resource(&group_resource) else { return Ok(Spent::Due) };
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
        [] => Ok(Spent::Due),
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
async fn spend(target: Target<'_>, pod: &Object, call: &Call<'_>) -> Result<Spent, Status> {
    let now = ferry_registry::metadata::timestamp(call.now.as_second());
    let is_due = AtomicBool::new(true);
    let transform = |live: Option<&Object>, _: &dyn Versions| {
        let (budget, spent) = spent(live.ok_or_else(|| call.not_found())?, pod, &now)?;
        is_due.store(spent == Spent::Due, Ordering::Relaxed);
        Ok(budget)
    };
    let change = Change { transform: &transform, tracked: false, may_create: false, uid: None };
    target.api.registry.update(call, change).await?;
    Ok(if is_due.into_inner() { Spent::Due } else { Spent::NotReady })
}

/// The budget after one more disruption. Pure.
fn spent(budget: &Object, pod: &Object, now: &str) -> Result<(Object, Spent), Status> {
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
        return Ok((budget.clone(), Spent::NotReady));
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
    Ok((budget, Spent::Due))
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
    use ferry_registry::verbs::delete::Preconditions;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_budget_is_spent_and_then_refuses() {
        let pod = Object::from_value(json!({"metadata": {"name": "p"}, "status": {"conditions": [{"type": "Ready", "status": "True"}]}}))
            .expect("an object");
        let budget =
            Object::from_value(json!({"metadata": {"name": "b"}, "status": {"disruptionsAllowed": 1}}))
                .expect("an object");
        let (once, _) = spent(&budget, &pod, "2026-01-01T00:00:00Z").expect("one is allowed");
        assert_eq!(once.get(&["status", "disruptionsAllowed"]), Some(&json!(0)));
        assert_eq!(once.get(&["status", "disruptedPods", "p"]), Some(&json!("2026-01-01T00:00:00Z")));
        assert_eq!(spent(&once, &pod, "").err().expect("none is left").code, 429);
    }

    #[test]
    fn a_pod_that_goes_for_what_it_is_goes_at_that_revision() {
        let pod = Object::from_value(json!({"metadata": {"name": "p", "resourceVersion": "7"}}))
            .expect("an object");
        let version = |options: &DeleteOptions| {
            pinned(options, &pod).and_then(|options| options.preconditions?.resource_version)
        };
        assert_eq!(version(&DeleteOptions::default()).as_deref(), Some("7"));
        let own = Preconditions { resource_version: Some("6".into()), uid: None };
        let options = DeleteOptions { preconditions: Some(own), ..DeleteOptions::default() };
        assert_eq!(version(&options), None, "the client's own precondition stays");
    }
}
