//! Taints of devices, by their drivers and by rules (DeviceTaintRule).

use ferry_api::{FieldErrors, names};

use super::super::field::{Context, Field, Old};
use super::{driver, pool_name};

pub(super) const EFFECTS: &[&str] = &["NoExecute", "NoSchedule", "None"];

pub(super) fn taint(taint: Field<'_>, errors: &mut FieldErrors) {
    named(taint, errors);
    effect(taint, errors);
}

fn named(taint: Field<'_>, errors: &mut FieldErrors) {
    taint.child("key").named(names::qualified_name, errors);
    taint.child("value").optional_name(names::label_value, errors);
}

fn effect(taint: Field<'_>, errors: &mut FieldErrors) {
    let effect = taint.child("effect");
    if effect.required("", errors) {
        effect.one_of(EFFECTS, errors);
    }
}

/// Devices that a rule taints.
pub fn taint_selector(selector: Field<'_>, _: &Context<'_>, errors: &mut FieldErrors) {
    let (driver_name, pool, name) =
        (selector.child("driver"), selector.child("pool"), selector.child("device"));
    if driver_name.is_given() {
        driver(driver_name, errors);
    }
    if pool.is_given() {
        pool_name(pool, errors);
    }
    if name.is_given() {
        name.named(names::dns1123_label, errors);
    }
}

/// An effect that was there before was allowed then.
pub fn rule_taint(given: Field<'_>, context: &Context<'_>, errors: &mut FieldErrors) {
    named(given, errors);
    let before = match context.old {
        Old::Known(Some(before)) => before.get("effect"),
        _ => None,
    };
    if before.is_none() || before != given.get("effect") {
        effect(given, errors);
    }
}
