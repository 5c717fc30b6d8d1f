//! What controllers and kubelets may write into a status: counts that fit together, addresses that are some.

use ferry_api::{FieldErrors, names};
use serde_json::Value;

use super::field::{self, Context, Field};
use super::format;

const REPLICAS: &str = "cannot be greater than status.replicas";

/// Of all replicas some are ready, and so on. `words` is what is told of those available that are not ready.
fn counts(status: Field<'_>, fields: &[&str], words: &str, errors: &mut FieldErrors) {
    let all = status.child("replicas").number();
    for field in fields {
        let count = status.child(field);
        if count.number() > all {
            errors.invalid(count.path, count.number(), REPLICAS);
        }
    }
    let (available, ready) = (status.child("availableReplicas"), status.child("readyReplicas"));
    if available.number() > ready.number() {
        errors.invalid(available.path, available.number(), words);
    }
}

/// Of ReplicationControllers and ReplicaSets.
pub fn replicas(status: Field<'_>, _: &Context<'_>, errors: &mut FieldErrors) {
    let fields = ["fullyLabeledReplicas", "readyReplicas", "availableReplicas"];
    counts(status, &fields, "cannot be greater than readyReplicas", errors);
}

pub fn deployment(status: Field<'_>, _: &Context<'_>, errors: &mut FieldErrors) {
    let fields = ["updatedReplicas", "readyReplicas", "availableReplicas"];
    counts(status, &fields, "cannot be greater than readyReplicas", errors);
}

pub fn stateful_set(status: Field<'_>, _: &Context<'_>, errors: &mut FieldErrors) {
    let fields = ["readyReplicas", "currentReplicas", "updatedReplicas", "availableReplicas"];
    counts(status, &fields, "cannot be greater than status.readyReplicas", errors);
}

pub fn job(status: Field<'_>, context: &Context<'_>, errors: &mut FieldErrors) {
    let conditions = status.child("conditions");
    let is_true = |kind: &str| {
        let all = conditions.items().iter();
        all.into_iter().any(|own| field::text(own, "type") == kind && field::text(own, "status") == "True")
    };
    let (active, ready) = (status.child("active"), status.child("ready"));
    if ready.number() > active.number() {
        errors.invalid(ready.path, ready.number(), "cannot set more ready pods than active");
    }
    let completed_at = status.child("completionTime");
    if completed_at.is_given() && !is_true("Complete") {
        completed_at.invalid("cannot set completionTime when there is no Complete=True condition", errors);
    }
    let spec = |field: &str| context.object.get(&["spec", field]);
    let completed = status.child("completedIndexes");
    let is_indexed = spec("completionMode").and_then(Value::as_str) == Some("Indexed");
    if !completed.is_empty() {
        let number = |text: &str| text.parse::<u32>().is_err().then(|| text.to_owned());
        let wrong = completed.text().split([',', '-']).find_map(number);
        if let Some(wrong) = wrong {
            let why = format!(
                "error parsing completedIndexes: cannot convert string to integer for index: {wrong:?}"
            );
            completed.invalid(&why, errors);
        }
        if !is_indexed {
            completed
                .invalid("cannot set non-empty completedIndexes when non-indexed completion mode", errors);
        }
    }
    let failed = status.child("failedIndexes");
    if failed.is_given() && spec("backoffLimitPerIndex").is_none() {
        failed.invalid("cannot set non-null failedIndexes when backoffLimitPerIndex is null", errors);
    }
}

pub fn service(status: Field<'_>, context: &Context<'_>, errors: &mut FieldErrors) {
    let balancer = status.child("loadBalancer");
    let ingress = balancer.child("ingress");
    if !ingress.items().is_empty() && context.object.text_at(&["spec", "type"]) != "LoadBalancer" {
        errors.forbidden(ingress.path, "may only be used when `spec.type` is 'LoadBalancer'");
    }
}

pub fn ingress(status: Field<'_>, _: &Context<'_>, errors: &mut FieldErrors) {
    let balancer = status.child("loadBalancer");
    balancer.child("ingress").each(|point| {
        point.child("ip").optional_name(format::ip, errors);
        point.child("hostname").optional_name(names::dns1123_subdomain, errors);
    });
}
