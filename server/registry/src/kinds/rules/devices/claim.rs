//! What a ResourceClaim or a template of one asks for.

use std::collections::{BTreeMap, BTreeSet};

use ferry_api::{FieldErrors, names};
use serde_json::Value;

use super::super::field::{self, Context, Field};
use super::class::{configuration, selectors};
use super::taint::EFFECTS;
use super::{fully_qualified, named_by, plain, set, too_many};

/// The claim inside a ResourceClaim or a template of one.
pub fn claim(devices: Field<'_>, context: &Context<'_>, errors: &mut FieldErrors) {
    let requests = devices.child("requests");
    let known = request_names(requests);
    if !too_many(requests, 32, errors) {
        requests.each(|request| device_request(request, errors));
        set(requests, named_by("name"), errors);
    }
    let constraints = devices.child("constraints");
    if !too_many(constraints, 32, errors) {
        constraints.each(|constraint| {
            request_references(constraint.child("requests"), &known, errors);
            let (matching, distinct) = (constraint.child("matchAttribute"), constraint.child("distinctAttribute"));
            if matching.is_given() {
                fully_qualified(matching, errors);
            } else if distinct.is_given() {
                fully_qualified(distinct, errors);
            } else {
                errors.required(
                    constraint.path,
                    r#"exactly one of "matchAttribute" or "distinctAttribute" is required, but multiple fields are set"#,
                );
            }
        });
    }
    let configs = devices.child("config");
    if !too_many(configs, 32, errors) {
        configs.each(|config| {
            request_references(config.child("requests"), &known, errors);
            configuration(config, context, errors);
        });
    }
}

/// The names of a claim's requests, with those of their alternatives.
pub(super) fn request_names(requests: Field<'_>) -> BTreeMap<String, BTreeSet<String>> {
    let named = |request: &Value| {
        let alternatives = request.get("firstAvailable").and_then(Value::as_array).into_iter().flatten();
        let names = alternatives.map(|alternative| field::text(alternative, "name").to_owned()).collect();
        (field::text(request, "name").to_owned(), names)
    };
    requests.items().iter().map(named).collect()
}

pub(super) fn request_reference(
    name: Field<'_>,
    known: &BTreeMap<String, BTreeSet<String>>,
    errors: &mut FieldErrors,
) {
    const NONE: &str = "must be the name of a request in the claim or the name of a request and a subrequest separated by '/'";
    let parts: Vec<&str> = name.text().split('/').collect();
    if parts.len() > 2 {
        return name.invalid(NONE, errors);
    }
    for part in &parts {
        crate::kinds::checks::named(errors, name.path, part, names::dns1123_label);
    }
    let found =
        known.get(parts[0]).is_some_and(|inner| parts.get(1).is_none_or(|part| inner.contains(*part)));
    if !found {
        name.invalid(NONE, errors);
    }
}

pub(super) fn request_references(
    list: Field<'_>,
    known: &BTreeMap<String, BTreeSet<String>>,
    errors: &mut FieldErrors,
) {
    if too_many(list, 32, errors) {
        return;
    }
    list.each(|name| request_reference(name, known, errors));
    set(list, plain, errors);
}

fn device_request(request: Field<'_>, errors: &mut FieldErrors) {
    request.child("name").named(names::dns1123_label, errors);
    let (exactly, alternatives) = (request.child("exactly"), request.child("firstAvailable"));
    match (exactly.is_given(), !alternatives.items().is_empty()) {
        (false, false) => {
            errors.required(request.path, "exactly one of `exactly` or `firstAvailable` is required");
        }
        (true, true) => errors.invalid(
            request.path,
            Value::Null,
            "exactly one of `exactly` or `firstAvailable` is required, but multiple fields are set",
        ),
        (true, false) => exact_request(exactly, errors),
        (false, true) => {
            if !too_many(alternatives, 8, errors) {
                alternatives.each(|alternative| {
                    alternative.child("name").named(names::dns1123_label, errors);
                    exact_request(alternative, errors);
                });
                set(alternatives, named_by("name"), errors);
            }
        }
    }
}

fn exact_request(request: Field<'_>, errors: &mut FieldErrors) {
    request.child("deviceClassName").required_name(names::dns1123_subdomain, errors);
    selectors(request.child("selectors"), errors);
    let (mode, count) = (request.child("allocationMode"), request.child("count"));
    match mode.text() {
        "All" if count.number() != 0 => {
            count.invalid("must not be specified when allocationMode is 'All'", errors);
        }
        "All" => {}
        "ExactCount" if count.number() <= 0 => {
            errors.invalid(count.path, count.number(), "must be greater than zero");
        }
        "ExactCount" => {}
        _ => mode.one_of(&["All", "ExactCount"], errors),
    }
    request.child("tolerations").each(|toleration| {
        let (key, operator) = (toleration.child("key"), toleration.child("operator"));
        let (value, effect) = (toleration.child("value"), toleration.child("effect"));
        key.optional_name(names::qualified_name, errors);
        match operator.text() {
            "Exists" if !value.is_empty() => value.invalid("must be empty for operator `Exists`", errors),
            "Exists" => {}
            "Equal" => value.named(names::label_value, errors),
            "" => errors.required(operator.path, ""),
            _ => operator.one_of(&["Equal", "Exists"], errors),
        }
        if !effect.is_empty() {
            effect.one_of(EFFECTS, errors);
        }
    });
}
