//! Selectors, tolerations, affinity and spreading: where a pod may go.

use std::collections::HashSet;

use ferry_api::{FieldErrors, names};
use serde_json::Value;

use super::field::{self, Context, Field};
use super::walk::labels;

const NO_OPERATOR: &str = "not a valid selector operator";

/// A label selector.
pub fn selector(field: Field<'_>, _: &Context<'_>, errors: &mut FieldErrors) {
    label_selector(field, errors);
}

pub fn label_selector(field: Field<'_>, errors: &mut FieldErrors) {
    labels(field.child("matchLabels"), errors);
    field.child("matchExpressions").each(|requirement| {
        let values = requirement.child("values");
        let operator = requirement.child("operator");
        match operator.text() {
            "In" | "NotIn" if values.items().is_empty() => {
                errors.required(values.path, "must be specified when `operator` is 'In' or 'NotIn'")
            }
            "Exists" | "DoesNotExist" if !values.items().is_empty() => errors
                .forbidden(values.path, "may not be specified when `operator` is 'Exists' or 'DoesNotExist'"),
            "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
            _ => errors.invalid(operator.path, operator.text(), NO_OPERATOR),
        }
        requirement.child("key").named(names::qualified_name, errors);
        values.each(|value| value.named(names::label_value, errors));
    });
}

/// Refuses a selector, which is told with its labels first.
pub fn refuse_selector(selector: Field<'_>, why: &str, errors: &mut FieldErrors) {
    let types = ferry_api::Types::builtin();
    let id = types.by_name("io.k8s.apimachinery.pkg.apis.meta.v1.LabelSelector");
    let printed = id.map(|id| super::go_value::printed(selector.value, &ferry_api::Shape::Struct(id), types));
    let printed = printed.unwrap_or_default();
    let detail = if why.is_empty() { printed } else { format!("{printed}: {why}") };
    errors.push(selector.path, ferry_api::field_error::Reason::Invalid, detail);
}

pub fn node_selector(field: Field<'_>, _: &Context<'_>, errors: &mut FieldErrors) {
    if field.is_given() {
        node_selector_terms(field, errors);
    }
}

pub fn node_selector_terms(field: Field<'_>, errors: &mut FieldErrors) {
    let terms = field.child("nodeSelectorTerms");
    if terms.items().is_empty() {
        return errors.required(terms.path, "must have at least one node selector term");
    }
    terms.each(|term| node_selector_term(term, true, errors));
}

fn node_selector_term(term: Field<'_>, judge_values: bool, errors: &mut FieldErrors) {
    term.child("matchExpressions").each(|requirement| {
        let (values, operator) = (requirement.child("values"), requirement.child("operator"));
        match operator.text() {
            "In" | "NotIn" if values.items().is_empty() => {
                errors.required(values.path, "must be specified when `operator` is 'In' or 'NotIn'")
            }
            "Exists" | "DoesNotExist" if !values.items().is_empty() => errors
                .forbidden(values.path, "may not be specified when `operator` is 'Exists' or 'DoesNotExist'"),
            "Gt" | "Lt" if values.items().len() != 1 => {
                errors.required(values.path, "must be specified single value when `operator` is 'Lt' or 'Gt'")
            }
            "In" | "NotIn" | "Exists" | "DoesNotExist" | "Gt" | "Lt" => {}
            _ => errors.invalid(operator.path, operator.text(), NO_OPERATOR),
        }
        requirement.child("key").named(names::qualified_name, errors);
        if judge_values {
            values.each(|value| value.named(names::label_value, errors));
        }
    });
    term.child("matchFields").each(|requirement| {
        let (values, operator) = (requirement.child("values"), requirement.child("operator"));
        match operator.text() {
            "In" | "NotIn" if values.items().len() != 1 => errors.required(
                values.path,
                "must be only one value when `operator` is 'In' or 'NotIn' for node field selector",
            ),
            "In" | "NotIn" => {}
            _ => errors.invalid(operator.path, operator.text(), NO_OPERATOR),
        }
        let key = requirement.child("key");
        if key.text() == "metadata.name" {
            values.each(|value| value.named(names::dns1123_subdomain, errors));
        } else {
            errors.invalid(key.path, key.text(), "not a valid field selector key");
        }
    });
}

/// Terms that are preferred, each with its weight.
pub fn preferred_nodes(field: Field<'_>, _: &Context<'_>, errors: &mut FieldErrors) {
    field.each(|term| {
        weight(term, errors);
        node_selector_term(term.child("preference"), false, errors);
    });
}

fn weight(term: Field<'_>, errors: &mut FieldErrors) {
    let weight = term.child("weight");
    if !(1..=100).contains(&weight.number()) {
        errors.invalid(weight.path, weight.number(), "must be in the range 1-100");
    }
}

pub fn pod_affinity(field: Field<'_>, _: &Context<'_>, errors: &mut FieldErrors) {
    field.child("requiredDuringSchedulingIgnoredDuringExecution").each(|term| pod_term(term, errors));
    field.child("preferredDuringSchedulingIgnoredDuringExecution").each(|term| {
        weight(term, errors);
        pod_term(term.child("podAffinityTerm"), errors);
    });
}

fn pod_term(term: Field<'_>, errors: &mut FieldErrors) {
    label_selector(term.child("labelSelector"), errors);
    label_selector(term.child("namespaceSelector"), errors);
    let namespace = term.path.child("namespace");
    for name in term.child("namespaces").items().iter().filter_map(Value::as_str) {
        crate::kinds::checks::named(errors, namespace, name, names::dns1123_label);
    }
    label_keys(term, errors);
    let key = term.child("topologyKey");
    if key.text().is_empty() {
        errors.required(key.path, "can not be empty");
    }
    key.named(names::qualified_name, errors);
}

/// Keys whose values a pod's own labels give.
fn label_keys(term: Field<'_>, errors: &mut FieldErrors) {
    let selector = term.child("labelSelector");
    let (matching, mismatching) = (term.child("matchLabelKeys"), term.child("mismatchLabelKeys"));
    for keys in [matching, mismatching] {
        if keys.items().is_empty() {
            continue;
        }
        if !selector.is_given() {
            errors.forbidden(keys.path, "must not be specified when labelSelector is not set");
            continue;
        }
        keys.each(|key| key.named(names::qualified_name, errors));
    }
    let texts = |keys: &Field<'_>| {
        keys.items().iter().filter_map(Value::as_str).map(str::to_owned).collect::<Vec<_>>()
    };
    let (matching_keys, mismatching_keys) = (texts(&matching), texts(&mismatching));
    let labels = selector.child("matchLabels");
    let mut selected: HashSet<&str> = labels.entries().map(|(key, _)| key).collect();
    let expressions = selector.child("matchExpressions");
    for expression in expressions.items() {
        let key = field::text(expression, "key");
        if let Some(index) = matching_keys.iter().position(|matching| matching == key)
            && selected.contains(key)
        {
            errors.invalid(term.path.index(index), key, "exists in both matchLabelKeys and labelSelector");
        }
        selected.insert(key);
    }
    for (index, key) in matching_keys.iter().enumerate() {
        if mismatching_keys.contains(key) {
            errors.invalid(
                matching.path.index(index),
                key.as_str(),
                "exists in both matchLabelKeys and mismatchLabelKeys",
            );
        }
    }
}

pub fn tolerations(field: Field<'_>, _: &Context<'_>, errors: &mut FieldErrors) {
    field.each(|toleration| {
        let (key, operator) = (toleration.child("key"), toleration.child("operator"));
        let (value, effect) = (toleration.child("value"), toleration.child("effect"));
        key.optional_name(names::qualified_name, errors);
        if key.text().is_empty() && operator.text() != "Exists" {
            errors.invalid(
                operator.path,
                operator.text(),
                "operator must be Exists when `key` is empty, which means \"match all values and all keys\"",
            );
        }
        if toleration.has("tolerationSeconds") && effect.text() != "NoExecute" {
            errors.invalid(
                effect.path,
                effect.text(),
                "effect must be 'NoExecute' when `tolerationSeconds` is set",
            );
        }
        match operator.text() {
            "" | "Equal" => {
                let wrong = names::label_value(value.text());
                if !wrong.is_empty() {
                    errors.invalid(operator.path, value.text(), &wrong.join(";"));
                }
            }
            "Exists" if !value.text().is_empty() => {
                errors.invalid(
                    operator.path,
                    value.text(),
                    "value must be empty when `operator` is 'Exists'",
                );
            }
            "Exists" => {}
            "Lt" | "Gt" => {
                errors.not_supported(operator.path, operator.text(), &["Equal", "Exists", "Lt", "Gt"])
            }
            other => errors.not_supported(operator.path, other, &["Equal", "Exists"]),
        }
        if !effect.text().is_empty() {
            effect.one_of(EFFECTS, errors);
        }
    });
}

pub const EFFECTS: &[&str] = &["NoSchedule", "PreferNoSchedule", "NoExecute"];

/// Tolerations of a RuntimeClass, which are not repeated.
pub fn distinct_tolerations(field: Field<'_>, context: &Context<'_>, errors: &mut FieldErrors) {
    tolerations(field, context, errors);
    let identity = |toleration: &Value| {
        ["key", "operator", "value", "effect"].map(|part| field::text(toleration, part).to_owned())
    };
    let mut seen = HashSet::new();
    field.each(|toleration| {
        if !seen.insert(identity(&toleration.json())) {
            let printed = context.printed_as("core.v1.Toleration", toleration.value);
            errors.push(toleration.path, ferry_api::field_error::Reason::Duplicate, printed);
        }
    });
}

pub fn spread(field: Field<'_>, _: &Context<'_>, errors: &mut FieldErrors) {
    let all = field.items();
    let mut index = 0;
    field.each(|constraint| {
        index += 1;
        let skew = constraint.child("maxSkew");
        if skew.number() <= 0 {
            errors.invalid(skew.path, skew.number(), "must be greater than zero");
        }
        constraint.child("topologyKey").required("can not be empty", errors);
        let action = constraint.child("whenUnsatisfiable");
        action.one_of(&["DoNotSchedule", "ScheduleAnyway"], errors);
        let identity = |value: &Value| {
            [field::text(value, "topologyKey"), field::text(value, "whenUnsatisfiable")].map(str::to_owned)
        };
        let own = constraint.value.map(identity).unwrap_or_default();
        if all[index..].iter().any(|other| identity(other) == own) {
            errors.duplicate(
                constraint.path.child("{topologyKey, whenUnsatisfiable}"),
                format!("{{{}, {}}}", own[0], own[1]),
            );
        }
        let domains = constraint.child("minDomains");
        if domains.is_given() {
            if domains.number() <= 0 {
                errors.invalid(domains.path, domains.number(), "must be greater than zero");
            }
            if action.text() != "DoNotSchedule" {
                let why = format!(
                    "can only use minDomains if whenUnsatisfiable=DoNotSchedule, not {}",
                    action.text()
                );
                errors.invalid(domains.path, domains.number(), &why);
            }
        }
        for policy in ["nodeAffinityPolicy", "nodeTaintsPolicy"] {
            constraint.child(policy).optional_one_of(&["Honor", "Ignore"], errors);
        }
        label_keys(constraint, errors);
        label_selector(constraint.child("labelSelector"), errors);
    });
}
