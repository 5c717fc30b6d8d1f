//! Judges a custom object: types and constraints of the schema ([`constraints()`]), embedded resources, lists
//! that are sets or maps ([`lists`]), then the rules in CEL.
//!
//! On an update what did not change keeps its errors to itself (KEP-4008): the old object is followed beside
//! the new one wherever both have the same field, or the same element of a list that is a map.

mod constraints;
pub(crate) mod correlate;
mod lists;
#[cfg(test)]
mod tests;

use ferry_api::FieldErrors;
use ferry_api::field_error::Reason;
use serde_json::{Map, Value};

use crate::path::Path;
use crate::structural::EMBEDS;
use crate::{Rules, Structural, embedded, hand_on};

pub(crate) use constraints::constraints;

/// Every error of the object; with `old`, unchanged parts keep theirs out and transition rules hold. What rules find wrong
/// in unchanged parts comes back as warnings.
pub fn object(
    new: &Map<String, Value>,
    old: Option<&Map<String, Value>>,
    schema: &Structural,
    rules: &Rules,
    errors: &mut FieldErrors,
) -> Vec<String> {
    let mut found = FieldErrors::default();
    constraints::object(new, old, &schema.root, "", &mut found);
    if schema.root.is(EMBEDS) {
        embedded::fields_of(new, &schema.root, &mut found);
    }
    finish(new, old, schema, rules, found, errors)
}

/// The same for an update of `status` alone: the constraints of the other fields are not looked at.
pub fn status(
    new: &Map<String, Value>,
    old: &Map<String, Value>,
    schema: &Structural,
    rules: &Rules,
    errors: &mut FieldErrors,
) -> Vec<String> {
    let mut found = FieldErrors::default();
    if let (Some(status), Some(node)) = (new.get("status"), schema.root.property("status")) {
        constraints::value(status, old.get("status"), node, "status", &mut found);
    }
    finish(new, Some(old), schema, rules, found, errors)
}

/// What comes after the constraints.
fn finish(
    new: &Map<String, Value>,
    old: Option<&Map<String, Value>>,
    schema: &Structural,
    rules: &Rules,
    mut found: FieldErrors,
    errors: &mut FieldErrors,
) -> Vec<String> {
    // Lists that were no sets or maps before may stay so.
    let before = |old| {
        let mut before = FieldErrors::default();
        lists::object(old, &schema.root, &mut Path::root(), &mut before);
        before.is_empty()
    };
    if old.is_none_or(before) {
        lists::object(new, &schema.root, &mut Path::root(), &mut found);
    }
    let mut kept = FieldErrors::default();
    if !rules.is_empty() {
        if found.0.iter().any(|error| hides_rules(error.reason)) {
            found.invalid(
                "<nil>",
                Value::Null,
                "some validation rules were not checked because the object was invalid; correct the existing \
                 errors to complete validation",
            );
        } else {
            kept = rules.judge(new, old, &mut found);
        }
    }
    hand_on(found, errors);
    kept.0.iter().map(ToString::to_string).collect()
}

/// Rules are written for objects of the schema's shape.
fn hides_rules(reason: Reason) -> bool {
    matches!(
        reason,
        Reason::NotSupported | Reason::Required | Reason::TooLong | Reason::TooMany | Reason::TypeInvalid
    )
}
