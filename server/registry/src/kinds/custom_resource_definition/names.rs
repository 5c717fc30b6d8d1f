//! The names of a definition, asked for and accepted.

use ferry_api::{FieldErrors, names};
use serde_json::Value;

use super::text;

/// Names that are there; which must be there is the spec's matter.
pub fn judge(given: &Value, path: &str, errors: &mut FieldErrors) {
    let label = |field: String, name: &str, errors: &mut FieldErrors| {
        let faults = names::dns1035_label(name);
        if !faults.is_empty() {
            errors.invalid(field, name, &faults.join(","));
        }
    };
    for field in ["plural", "singular"] {
        let name = text(&given[field]);
        if !name.is_empty() {
            label(format!("{path}.{field}"), name, errors);
        }
    }
    for field in ["kind", "listKind"] {
        let name = text(&given[field]);
        let faults = names::dns1035_label(&name.to_lowercase());
        if !name.is_empty() && !faults.is_empty() {
            let why = format!("may have mixed case, but should otherwise match: {}", faults.join(","));
            errors.invalid(format!("{path}.{field}"), name, &why);
        }
    }
    let each = |field: &str, errors: &mut FieldErrors| {
        for (index, name) in given[field].as_array().into_iter().flatten().enumerate() {
            label(format!("{path}.{field}[{index}]"), text(name), errors);
        }
    };
    each("shortNames", errors);
    let (kind, list_kind) = (text(&given["kind"]), text(&given["listKind"]));
    if !kind.is_empty() && kind == list_kind {
        errors.invalid(format!("{path}.listKind"), list_kind, "kind and listKind may not be the same");
    }
    each("categories", errors);
}
