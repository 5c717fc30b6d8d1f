//! Events: what happened, to what. Those of events.k8s.io are judged more strictly than those of the core group.

use ferry_api::field_error::Reason;
use ferry_api::{FieldErrors, Object, names};
use serde_json::Value;

use super::field::{self, Context, Field};
use super::go_value;
use super::table::type_named;
use crate::kinds::checks;

pub fn event(involved: Field<'_>, context: &Context<'_>, errors: &mut FieldErrors) {
    let event = context.object;
    let strict = context.group == "events.k8s.io";
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
    match context.old_object {
        _ if !strict => {}
        None => of_today(context, errors),
        Some(old) => unchanged(old, context, errors),
    }
}

/// What a new event of events.k8s.io has besides, and has no more.
fn of_today(context: &Context<'_>, errors: &mut FieldErrors) {
    let event = context.object;
    let given = |field: &str| event.0.get(field).filter(|value| !value.is_null());
    for why in names::dns1123_subdomain(event.name()) {
        errors.invalid("metadata.name", event.name(), &why);
    }
    series(event, errors);
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

fn series(event: &Object, errors: &mut FieldErrors) {
    let Some(series) = event.0.get("series").filter(|series| !series.is_null()) else { return };
    if series.get("count").and_then(Value::as_i64).unwrap_or(0) < 2 {
        errors.invalid("series.count", "", "should be at least 2");
    }
    if series.get("lastObservedTime").is_none_or(Value::is_null) {
        errors.required("series.lastObservedTime", "");
    }
}

/// In upstream's order, by the names that the core group has.
const FIXED: [&str; 13] = [
    "involvedObject",
    "reason",
    "message",
    "source",
    "firstTimestamp",
    "lastTimestamp",
    "count",
    "type",
    "eventTime",
    "action",
    "related",
    "reportingComponent",
    "reportingInstance",
];

/// Through events.k8s.io an event only goes on: of what it tells nothing changes but the series.
fn unchanged(old: &Object, context: &Context<'_>, errors: &mut FieldErrors) {
    let event = context.object;
    if event.0.get("series") != old.0.get("series") {
        series(event, errors);
    }
    let Some(id) = type_named("core.v1.Event", context.types) else { return };
    for name in FIXED {
        let (new, old) = (event.0.get(name), old.0.get(name));
        let Some(row) = context.types.get(id).field(name) else { continue };
        if new == old || (field::is_empty(new) && field::is_empty(old)) {
            continue;
        }
        let value = go_value::printed_field(new, &row.shape, row.pointer, context.types);
        let shown = if name == "reportingComponent" { "reportingController" } else { name };
        errors.push(shown, Reason::Invalid, format!("{value}: {}", checks::IMMUTABLE));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::kinds::rules::{validate, validate_update};
    use crate::strategy::UpdateScope;

    fn event(fields: Value) -> Object {
        let mut event =
            json!({"apiVersion": "v1", "kind": "Event", "metadata": {"name": "e", "namespace": "default"}});
        for (name, value) in fields.as_object().expect("a map") {
            event[name] = value.clone();
        }
        Object::from_value(event).expect("an object")
    }

    fn told(errors: &FieldErrors) -> Vec<String> {
        errors.0.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn the_group_that_was_asked_decides_how_strictly_a_new_event_is_judged() {
        let check = |fields: Value, group: &str, expected: &[&str]| {
            let mut errors = FieldErrors::default();
            validate(&event(fields.clone()), group, &mut errors);
            assert_eq!(told(&errors), expected, "{group} {fields}");
        };
        check(json!({}), "", &[]);
        check(
            json!({}),
            "events.k8s.io",
            &["eventTime: Required value", "type: Invalid value: \"\": has invalid value: "],
        );
        let whole = json!({"eventTime": "2026-01-01T00:00:00.000000Z", "type": "Normal", "action": "a", "reason": "r",
            "reportingComponent": "c", "reportingInstance": "i"});
        check(whole.clone(), "events.k8s.io", &[]);
        // Each group has its own name for who reports.
        for (group, field) in [("", "reportingComponent"), ("events.k8s.io", "reportingController")] {
            let mut nobody = whole.clone();
            nobody["reportingComponent"] = json!("");
            let mut errors = FieldErrors::default();
            validate(&event(nobody), group, &mut errors);
            assert_eq!(told(&errors).first(), Some(&format!("{field}: Required value")));
        }
    }

    #[test]
    fn an_event_goes_on_through_events_k8s_io_and_changes_through_the_core_group() {
        let before = json!({"eventTime": "2026-01-01T00:00:00.000000Z", "type": "Normal", "action": "a", "reason": "r",
            "reportingComponent": "c", "reportingInstance": "i", "involvedObject": {"kind": "Pod", "name": "p"}});
        let check = |change: Value, group: &str, expected: &[&str]| {
            let mut after = before.clone();
            for (name, value) in change.as_object().expect("a map") {
                after[name] = value.clone();
            }
            let mut errors = FieldErrors::default();
            let (new, old) = (event(after), event(before.clone()));
            validate_update(&new, &old, group, UpdateScope::Main, &mut errors);
            assert_eq!(told(&errors), expected, "{group} {change}");
        };
        let series = json!({"series": {"count": 2, "lastObservedTime": "2026-01-01T00:00:00.000000Z"}});
        check(json!({}), "events.k8s.io", &[]);
        check(series, "events.k8s.io", &[]);
        check(
            json!({"series": {"count": 1}}),
            "events.k8s.io",
            &[
                "series.count: Invalid value: \"\": should be at least 2",
                "series.lastObservedTime: Required value",
            ],
        );
        let change = json!({"reason": "other", "reportingComponent": "d"});
        check(change.clone(), "", &[]);
        check(
            change,
            "events.k8s.io",
            &[
                "reason: Invalid value: \"other\": field is immutable",
                "reportingController: Invalid value: \"d\": field is immutable",
            ],
        );
    }
}
