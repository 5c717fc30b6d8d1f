//! Events: what happened, to what. Those of events.k8s.io are judged more strictly than those of the core group.

use ferry_api::{FieldErrors, names};
use serde_json::Value;

use super::field::{Context, Field, Old};

pub fn event(involved: Field<'_>, context: &Context<'_>, errors: &mut FieldErrors) {
    let event = context.object;
    let strict = event.managers().iter().any(|entry| entry.api_version == "events.k8s.io/v1");
    let component = if strict { "reportingController" } else { "reportingComponent" };
    let text = |field: &str| event.0.get(field).and_then(Value::as_str).unwrap_or("");
    let namespace = involved.child("namespace");
    let mismatch = "does not match event.namespace";
    if text("eventTime").is_empty() {
        let fits = match namespace.text() {
            "" => ["", "default"].contains(&event.namespace()),
            other => other == event.namespace(),
        };
        if !fits {
            errors.invalid(namespace.path, namespace.text(), mismatch);
        }
    } else {
        if namespace.is_empty() && !["default", "kube-system"].contains(&event.namespace()) {
            errors.invalid(namespace.path, namespace.text(), mismatch);
        }
        let controller = text("reportingComponent");
        if controller.is_empty() {
            errors.required(component, "");
        }
        for why in names::qualified_name(controller) {
            errors.invalid(component, controller, &why);
        }
        for field in ["reportingInstance", "action", "reason"] {
            if text(field).is_empty() {
                errors.required(field, "");
            }
            if text(field).len() > 128 {
                errors.invalid(field, "", "can have at most 128 characters");
            }
        }
        if text("message").len() > 1024 {
            errors.invalid("message", "", "can have at most 1024 characters");
        }
    }
    for why in names::dns1123_subdomain(event.namespace()) {
        errors.invalid("namespace", event.namespace(), &why);
    }
    if strict && matches!(context.old, Old::Unknown) {
        of_today(context, errors);
    }
}

/// What a new event of events.k8s.io has besides, and has no more.
fn of_today(context: &Context<'_>, errors: &mut FieldErrors) {
    let event = context.object;
    let given = |field: &str| event.0.get(field).filter(|value| !value.is_null());
    for why in names::dns1123_subdomain(event.name()) {
        errors.invalid("metadata.name", event.name(), &why);
    }
    if let Some(series) = given("series") {
        if series.get("count").and_then(Value::as_i64).unwrap_or(0) < 2 {
            errors.invalid("series.count", "", "should be at least 2");
        }
        if series.get("lastObservedTime").is_none_or(Value::is_null) {
            errors.required("series.lastObservedTime", "");
        }
    }
    if given("eventTime").is_none() {
        errors.required("eventTime", "");
    }
    let kind = given("type").and_then(Value::as_str).unwrap_or("");
    if !["Normal", "Warning"].contains(&kind) {
        errors.invalid("type", "", &format!("has invalid value: {kind}"));
    }
    let unset = "needs to be unset";
    for field in ["firstTimestamp", "lastTimestamp"] {
        if given(field).is_some() {
            errors.invalid(field, "", unset);
        }
    }
    if given("count").and_then(Value::as_i64).unwrap_or(0) != 0 {
        errors.invalid("count", "", unset);
    }
    let source = given("source").and_then(Value::as_object);
    if source.is_some_and(|source| source.values().any(|value| value != "")) {
        errors.invalid("source", "", unset);
    }
}
