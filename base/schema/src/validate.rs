//! Judges a custom object.

use ferry_api::FieldErrors;
use serde_json::{Map, Value};

use crate::{Rules, Structural};

/// Every error of the object; with `old`, unchanged parts keep theirs out and transition rules hold.
pub fn object(
    _new: &Map<String, Value>,
    _old: Option<&Map<String, Value>>,
    _schema: &Structural,
    _rules: &Rules,
    _errors: &mut FieldErrors,
) {
}
