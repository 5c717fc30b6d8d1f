//! Judges the schema that a definition brings.

use ferry_api::FieldErrors;
use serde_json::Value;

/// What is known beside the schema itself.
#[derive(Debug, Clone, Default)]
pub struct CheckContext<'a> {
    /// The schema of the same version before an update.
    pub old: Option<&'a Value>,
    /// `spec.preserveUnknownFields` of the definition: defaults are not allowed then.
    pub preserve_unknown_fields: bool,
}

/// Every error of a version's `openAPIV3Schema` at `path`.
pub fn schema(_value: &Value, _path: &str, _context: &CheckContext<'_>, _errors: &mut FieldErrors) {}
