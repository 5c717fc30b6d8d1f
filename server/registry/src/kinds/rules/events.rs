//! Events: what happened, to what. Those of events.k8s.io are judged more strictly than those of the core group.

use ferry_api::{FieldErrors, names};
use serde_json::Value;

use super::field::{Context, Field};

pub fn event(involved: Field<'_>, context: &Context<'_>, errors: &mut FieldErrors) {
    let event = context.object;
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
            errors.required("reportingComponent", "");
        }
        for why in names::qualified_name(controller) {
            errors.invalid("reportingComponent", controller, &why);
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
}
