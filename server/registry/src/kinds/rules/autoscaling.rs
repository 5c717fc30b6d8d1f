//! What an autoscaler measures and how fast it may go.

use ferry_api::{FieldErrors, names};
use serde_json::Value;

use super::field::{Context, Field, Old};
use super::resources;

const SOURCES: &[&str] = &["ContainerResource", "External", "Object", "Pods", "Resource"];

pub fn replicas(most: Field<'_>, context: &Context<'_>, errors: &mut FieldErrors) {
    match most.number() {
        0 => errors.required(most.path, "must be set and greater than 0"),
        ..0 => errors.invalid(most.path, most.number(), "must be greater than or equal to 1"),
        _ => {}
    }
    let least = context.sibling("minReplicas").and_then(Value::as_i64);
    if least.is_some_and(|least| most.number() < least) {
        errors.invalid(most.path, most.number(), "must be greater than or equal to `minReplicas`");
    }
}

/// A target that is not changed keeps whatever apiVersion it has; among core's kinds, only one can be scaled.
pub fn target_reference(reference: Field<'_>, context: &Context<'_>, errors: &mut FieldErrors) {
    let (kind, version) = (reference.child("kind").text(), reference.child("apiVersion").text());
    let is_kept = match context.old {
        Old::Known(Some(old)) => {
            let was = |field: &str| old.get(field).and_then(Value::as_str).unwrap_or_default();
            was("kind") == kind && was("apiVersion") == version
        }
        Old::Known(None) | Old::Unknown => false,
    };
    let version = match kind {
        _ if is_kept => Version::Any,
        "ReplicationController" => Version::Readable,
        _ => Version::WithGroup,
    };
    object_reference(reference, version, errors);
}

/// What a reference's apiVersion has to be.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Version {
    Any,
    Readable,
    WithGroup,
}

fn object_reference(reference: Field<'_>, wanted: Version, errors: &mut FieldErrors) {
    for field in ["kind", "name"] {
        reference.child(field).required_name(names::path_segment, errors);
    }
    if wanted == Version::Any {
        return;
    }
    let version = reference.child("apiVersion");
    let group = match version.text().split('/').collect::<Vec<_>>().as_slice() {
        [_] => "",
        [group, _] => group,
        _ => {
            let why = format!("unexpected GroupVersion string: {}", version.text());
            return errors.invalid(version.path, version.text(), &why);
        }
    };
    if wanted == Version::WithGroup && group.is_empty() {
        errors.invalid(version.path, version.text(), "apiVersion must specify API group");
    }
}

pub fn metrics(list: Field<'_>, context: &Context<'_>, errors: &mut FieldErrors) {
    let mut outside = false;
    list.each(|metric| {
        metric_spec(metric, errors);
        outside |= ["Object", "External"].contains(&metric.child("type").text());
    });
    let least = context.sibling("minReplicas").and_then(Value::as_i64);
    if least == Some(0) && !outside {
        errors.forbidden(
            list.path,
            "must specify at least one Object or External metric to support scaling to zero replicas",
        );
    }
}

fn metric_spec(metric: Field<'_>, errors: &mut FieldErrors) {
    let kind = metric.child("type");
    kind.required("must specify a metric source type", errors);
    kind.one_of(SOURCES, errors);
    let mut present = Vec::new();
    for source in ["object", "external", "pods", "resource", "containerResource"] {
        let given = metric.child(source);
        if !given.is_given() {
            continue;
        }
        present.push(source);
        if present.len() == 1 {
            metric_source(source, given, errors);
        }
    }
    let expected = match kind.text() {
        "Object" => "object",
        "Pods" => "pods",
        "Resource" => "resource",
        "External" => "external",
        "ContainerResource" => "containerResource",
        _ => {
            kind.one_of(SOURCES, errors);
            ""
        }
    };
    if !expected.is_empty() && !metric.has(expected) {
        errors.required(metric.path.child(expected), "must populate information for the given metric source");
    }
    if present.len() != 1 {
        for source in present.iter().filter(|source| **source != expected) {
            errors.forbidden(metric.path.child(source), "must populate the given metric source only");
        }
    }
}

fn metric_source(kind: &str, source: Field<'_>, errors: &mut FieldErrors) {
    let target = source.child("target");
    match kind {
        "object" => {
            object_reference(source.child("describedObject"), Version::Readable, errors);
            identifier(source.child("metric"), errors);
        }
        "external" | "pods" => identifier(source.child("metric"), errors),
        "containerResource" => {
            let name = source.child("name");
            if name.required("must specify a resource name", errors) {
                resources::container_name(name.text(), name.path, errors);
            }
            let container = source.child("container");
            if container.required("must specify a container", errors) {
                container.named(names::dns1123_label, errors);
            }
        }
        _ => {
            source.child("name").required("must specify a resource name", errors);
        }
    }
    metric_target(target, errors);
    let has = |field: &str| target.has(field);
    let (average, utilization) = (target.path.child("averageValue"), target.path.child("averageUtilization"));
    match kind {
        "object" if !has("value") && !has("averageValue") => {
            errors.required(average, "must set either a target value or averageValue");
        }
        "external" => {
            if !has("value") && !has("averageValue") {
                errors.required(average, "must set either a target value for metric or a per-pod target");
            }
            if has("value") && has("averageValue") {
                errors.forbidden(
                    target.path.child("value"),
                    "may not set both a target value for metric and a per-pod target",
                );
            }
        }
        "pods" if !has("averageValue") => {
            errors.required(average, "must specify a positive target averageValue");
        }
        "resource" | "containerResource" => {
            if !has("averageUtilization") && !has("averageValue") {
                errors.required(utilization, "must set either a target raw value or a target utilization");
            }
            if has("averageUtilization") && has("averageValue") {
                errors.forbidden(average, "may not set both a target raw value and a target utilization");
            }
        }
        _ => {}
    }
}

fn identifier(metric: Field<'_>, errors: &mut FieldErrors) {
    let name = metric.child("name");
    if name.required("must specify a metric name", errors) {
        name.named(names::path_segment, errors);
    }
}

fn metric_target(target: Field<'_>, errors: &mut FieldErrors) {
    let kind = target.child("type");
    kind.required("must specify a metric target type", errors);
    if !["Utilization", "Value", "AverageValue"].contains(&kind.text()) {
        errors.invalid(kind.path, kind.text(), "must be either Utilization, Value, or AverageValue");
    }
    for field in ["value", "averageValue"] {
        let value = target.child(field);
        if value.quantity().is_some_and(|quantity| quantity.is_zero() || quantity.is_negative()) {
            value.invalid("must be positive", errors);
        }
    }
    let utilization = target.child("averageUtilization");
    if utilization.is_given() && utilization.number() < 1 {
        utilization.invalid("must be greater than 0", errors);
    }
}

pub fn scaling_rules(rules: Field<'_>, context: &Context<'_>, errors: &mut FieldErrors) {
    if !rules.is_given() {
        return;
    }
    let window = rules.child("stabilizationWindowSeconds");
    if window.number() < 0 {
        window.invalid("must be greater than or equal to zero", errors);
    }
    if window.number() > 3600 {
        window.invalid("must be less than or equal to 3600", errors);
    }
    rules.child("selectPolicy").optional_one_of(&["Disabled", "Max", "Min"], errors);
    let policies = rules.child("policies");
    policies.required("must specify at least one Policy", errors);
    policies.each(|policy| {
        policy.child("type").one_of(&["Percent", "Pods"], errors);
        let (value, period) = (policy.child("value"), policy.child("periodSeconds"));
        for number in [value, period] {
            if number.number() <= 0 {
                errors.invalid(number.path, number.number(), "must be greater than zero");
            }
        }
        if period.number() > 1800 {
            period.invalid("must be less than or equal to 1800", errors);
        }
    });
    resources::not_negative(rules.child("tolerance"), context, errors);
}
