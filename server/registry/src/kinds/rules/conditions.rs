//! Conditions of the common form (`meta.v1.Condition`), which some kinds judge and others take as they come.

use std::collections::HashSet;

use ferry_api::{FieldErrors, names};
use serde_json::Value;

use super::field::{self, Context, Field};

const LONGEST_REASON: usize = 1 << 10;
const LONGEST_MESSAGE: usize = 32 << 10;

pub fn conditions(list: Field<'_>, _: &Context<'_>, errors: &mut FieldErrors) {
    judge(list, errors);
}

pub fn judge(list: Field<'_>, errors: &mut FieldErrors) {
    let mut seen: HashSet<String> = HashSet::new();
    list.each(|condition| {
        let kind = condition.child("type");
        if !seen.insert(kind.text().to_owned()) {
            errors.duplicate(kind.path, kind.text());
        }
        kind.named(names::qualified_name, errors);
        condition.child("status").one_of(&["False", "True", "Unknown"], errors);
        let generation = condition.child("observedGeneration");
        if generation.number() < 0 {
            generation.invalid("must be greater than or equal to zero", errors);
        }
        condition.child("lastTransitionTime").required("", errors);
        let reason = condition.child("reason");
        reason.required_name(reason_format, errors);
        if reason.text().len() > LONGEST_REASON {
            errors.too_long(reason.path, LONGEST_REASON);
        }
        let message = condition.child("message");
        if message.text().len() > LONGEST_MESSAGE {
            errors.too_long(message.path, LONGEST_MESSAGE);
        }
    });
}

/// Whether the list has this condition and it holds.
pub fn holds(list: Option<&Value>, kind: &str) -> bool {
    let mut all = list.and_then(Value::as_array).into_iter().flatten();
    all.any(|condition| field::text(condition, "type") == kind && field::text(condition, "status") == "True")
}

fn reason_format(reason: &str) -> Vec<String> {
    let edge = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let good = reason.starts_with(|c: char| c.is_ascii_alphabetic())
        && reason.ends_with(edge)
        && reason.chars().all(|c| edge(c) || ",:".contains(c));
    if good {
        return Vec::new();
    }
    vec![
        "a condition reason must start with alphabetic character, optionally followed by a string of alphanumeric \
         characters or '_,:', and must end with an alphanumeric character or '_' (e.g. 'my_name',  or 'MY_NAME',  or \
         'MyName',  or 'ReasonA,ReasonB',  or 'ReasonA:ReasonB', regex used for validation is \
         '[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?')"
            .into(),
    ]
}
