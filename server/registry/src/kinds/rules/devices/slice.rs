//! What a driver offers: a ResourceSlice.

use ferry_api::{FieldErrors, names};
use serde_json::Value;

use super::super::field::{self, Context, Field, Old};
use super::super::placement;
use super::device::device;
use super::{driver, named_by, pool_name, set, too_many};
use crate::kinds::checks::IMMUTABLE;

/// What a driver offers.
pub fn slice(spec: Field<'_>, context: &Context<'_>, errors: &mut FieldErrors) {
    let old = match context.old {
        Old::Known(Some(old)) => Some(Field::of(old, spec.path)),
        _ => None,
    };
    driver(spec.child("driver"), errors);
    pool(spec.child("pool"), errors);
    if let Some(old) = old {
        identity(spec, old, errors);
    }
    slice_nodes(spec, errors);
    let (devices, counters) = (spec.child("devices"), spec.child("sharedCounters"));
    if devices.is_given() && counters.is_given() {
        errors.invalid(spec.path, "", "only one of `sharedCounters` or `devices` is allowed");
    }
    let per_device = spec.child("perDeviceNodeSelection").flag();
    if !too_many(devices, if is_advanced(devices) { 64 } else { 128 }, errors) {
        devices.each(|given| {
            let name = given.child("name").text();
            let before = old.and_then(|old| {
                let list = old.get("devices")?.as_array()?;
                list.iter().find(|device| field::text(device, "name") == name)
            });
            device(given, before, per_device, context, errors);
        });
        set(devices, named_by("name"), errors);
    }
    if !too_many(counters, 8, errors) {
        counters.each(|set| {
            set.child("name").required_name(names::dns1123_label, errors);
            counter_map(set.child("counters"), errors);
        });
        set(counters, named_by("name"), errors);
    }
}

fn pool(pool: Field<'_>, errors: &mut FieldErrors) {
    pool_name(pool.child("name"), errors);
    let (slices, generation) = (pool.child("resourceSliceCount"), pool.child("generation"));
    if slices.number() <= 0 {
        errors.invalid(slices.path, slices.number(), "must be greater than zero");
    }
    if generation.number() < 0 {
        generation.invalid("must be greater than or equal to zero", errors);
    }
}

/// What a slice is of does not change.
fn identity(spec: Field<'_>, old: Field<'_>, errors: &mut FieldErrors) {
    let pool = spec.child("pool");
    let pool = pool.child("name");
    if old.child("pool").child("name").text() != pool.text() {
        pool.invalid(IMMUTABLE, errors);
    }
    for field in ["driver", "nodeName"] {
        if old.get(field) != spec.get(field) {
            errors.invalid(spec.path.child(field), spec.child(field).json(), IMMUTABLE);
        }
    }
}

/// Devices that take more to compare: a slice holds fewer of them.
fn is_advanced(devices: Field<'_>) -> bool {
    const LISTS: [&str; 4] = ["bools", "ints", "strings", "versions"];
    devices.items().iter().any(|device| {
        let given = |field: &str| !field::is_empty(device.get(field));
        let mut attributes = device.get("attributes").and_then(Value::as_object).into_iter().flatten();
        given("taints")
            || given("consumesCounters")
            || attributes.any(|(_, value)| LISTS.iter().any(|list| value.get(list).is_some()))
    })
}

fn slice_nodes(spec: Field<'_>, errors: &mut FieldErrors) {
    let mut given = Vec::new();
    let name = spec.child("nodeName");
    if name.is_given() {
        if name.is_empty() {
            name.invalid("must be either unset or set to a non-empty string", errors);
        } else {
            given.push("`nodeName`");
            name.named(names::dns1123_subdomain, errors);
        }
    }
    let selector = spec.child("nodeSelector");
    if selector.is_given() {
        given.push("`nodeSelector`");
        placement::node_selector_terms(selector, errors);
        let terms = selector.child("nodeSelectorTerms");
        if terms.items().len() != 1 {
            terms.invalid("must have exactly one node selector term", errors);
        }
    }
    for (field, word) in [("allNodes", "`allNodes`"), ("perDeviceNodeSelection", "`perDeviceNodeSelection`")]
    {
        let flag = spec.child(field);
        if flag.flag() {
            given.push(word);
        } else if flag.is_given() {
            flag.invalid("must be either unset or set to true", errors);
        }
    }
    const ONE: &str =
        "exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection` is required";
    match given.len() {
        0 => errors.required(spec.path, ONE),
        1 => {}
        _ => errors.invalid(
            spec.path,
            format!("{{{}}}", given.join(", ")),
            &format!("{ONE}, but multiple fields are set"),
        ),
    }
}

pub(super) fn counter_map(counters: Field<'_>, errors: &mut FieldErrors) {
    if counters.required("", errors) && !too_many(counters, 32, errors) {
        for (key, _) in counters.entries() {
            crate::kinds::checks::named(errors, counters.path, key, names::dns1123_label);
        }
    }
}
