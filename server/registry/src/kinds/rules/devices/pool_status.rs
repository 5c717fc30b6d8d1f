//! What is told of pools of devices to those who asked: the status of a ResourcePoolStatusRequest.

use ferry_api::field_error::Reason;
use ferry_api::{FieldErrors, names};

use super::super::conditions;
use super::super::field::{Context, Field, Old};
use super::super::format;
use super::too_many;
use crate::kinds::checks::IMMUTABLE;

/// It is written once.
pub fn pool_status(status: Field<'_>, context: &Context<'_>, errors: &mut FieldErrors) {
    let before = match context.old {
        Old::Known(before) => before,
        Old::Unknown => None,
    };
    if before == status.value {
        return;
    }
    match before {
        Some(_) => {
            let value = context.printed(status.value);
            errors.push(status.path, Reason::Invalid, format!("{value}: {IMMUTABLE}"));
        }
        None => conditions::judge(status.child("conditions"), errors),
    }
    if !status.is_given() {
        return;
    }
    let changed = |field: &str| before.and_then(|before| before.get(field)) != status.get(field);
    if changed("poolCount") {
        let count = status.child("poolCount");
        if count.required("", errors) {
            at_least(count, 0, errors);
        }
    }
    let pools = status.child("pools");
    if changed("pools") && !too_many(pools, 1000, errors) {
        pools.each(|given| pool(given, errors));
    }
    let list = status.child("conditions");
    if changed("conditions") && !too_many(list, 10, errors) {
        context.judge_distinct("meta.v1.Condition", list, "type", errors);
    }
}

fn pool(pool: Field<'_>, errors: &mut FieldErrors) {
    pool.child("driver").required_name(names::dns1123_subdomain_caseless, errors);
    let name = pool.child("poolName");
    if name.required("", errors) {
        format::pool_name(name.text(), name.path, errors);
    }
    let generation = pool.child("generation");
    if generation.number() == 0 {
        errors.required(generation.path, "");
    } else {
        at_least(generation, 0, errors);
    }
    at_least(pool.child("resourceSliceCount"), 1, errors);
    for count in ["totalDevices", "allocatedDevices", "availableDevices", "unavailableDevices"] {
        at_least(pool.child(count), 0, errors);
    }
    let node = pool.child("nodeName");
    if node.is_given() {
        node.named(names::long_name, errors);
    }
    let error = pool.child("validationError");
    if error.text().len() > 256 {
        errors.too_long(error.path, 256);
    }
}

/// A number, where there is one.
fn at_least(number: Field<'_>, least: i64, errors: &mut FieldErrors) {
    if number.is_given() && number.number() < least {
        number.invalid(&format!("must be greater than or equal to {least}"), errors);
    }
}
