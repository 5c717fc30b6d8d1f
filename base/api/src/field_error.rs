//! What validation finds: every error with its path, in the words that Kubernetes users know.

use std::fmt::{self, Display, Write};

use serde_json::Value;

use crate::status::Cause;

/// Collects errors; validation never stops at the first.
#[derive(Debug, Default)]
pub struct FieldErrors(pub Vec<FieldError>);

#[derive(Debug, Clone, PartialEq)]
pub struct FieldError {
    pub path: String,
    pub reason: Reason,
    /// What follows the reason's own words.
    pub detail: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    Required,
    Invalid,
    NotSupported,
    Forbidden,
    Duplicate,
    NotFound,
    TooLong,
    TooMany,
    TypeInvalid,
    Internal,
}

impl FieldErrors {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn required(&mut self, path: impl Into<String>, why: &str) {
        self.push(path, Reason::Required, why.to_string());
    }

    pub fn invalid(&mut self, path: impl Into<String>, value: impl Into<Value>, why: &str) {
        self.push(path, Reason::Invalid, with_value(&value.into(), why));
    }

    pub fn type_invalid(&mut self, path: impl Into<String>, value: impl Into<Value>, why: &str) {
        self.push(path, Reason::TypeInvalid, with_value(&value.into(), why));
    }

    pub fn not_supported(&mut self, path: impl Into<String>, value: impl Into<Value>, supported: &[&str]) {
        let mut detail = quote(&value.into());
        let list: Vec<String> = supported.iter().map(|word| format!("{word:?}")).collect();
        if !list.is_empty() {
            let _ = write!(detail, ": supported values: {}", list.join(", "));
        }
        self.push(path, Reason::NotSupported, detail);
    }

    pub fn forbidden(&mut self, path: impl Into<String>, why: &str) {
        self.push(path, Reason::Forbidden, why.to_string());
    }

    pub fn duplicate(&mut self, path: impl Into<String>, value: impl Into<Value>) {
        self.push(path, Reason::Duplicate, quote(&value.into()));
    }

    pub fn not_found(&mut self, path: impl Into<String>, value: impl Into<Value>) {
        self.push(path, Reason::NotFound, quote(&value.into()));
    }

    pub fn too_long(&mut self, path: impl Into<String>, limit: usize) {
        self.push(path, Reason::TooLong, format!("may not be more than {limit} bytes"));
    }

    pub fn too_many(&mut self, path: impl Into<String>, count: usize, limit: usize) {
        self.push(path, Reason::TooMany, format!("{count}: must have at most {limit} items"));
    }

    pub fn push(&mut self, path: impl Into<String>, reason: Reason, detail: String) {
        self.0.push(FieldError { path: path.into(), reason, detail });
    }
}

fn with_value(value: &Value, why: &str) -> String {
    if why.is_empty() { quote(value) } else { format!("{}: {why}", quote(value)) }
}

/// Values stand in messages as JSON, but a null as `null` and a long one cut short.
fn quote(value: &Value) -> String {
    value.to_string()
}

impl FieldError {
    pub fn cause(&self) -> Cause {
        Cause { reason: self.reason.as_str().to_string(), message: self.body(), field: self.path.clone() }
    }

    fn body(&self) -> String {
        let words = self.reason.words();
        if self.detail.is_empty() { words.to_string() } else { format!("{words}: {}", self.detail) }
    }
}

impl Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path, self.body())
    }
}

impl Reason {
    pub fn as_str(self) -> &'static str {
        match self {
            Reason::Required => "FieldValueRequired",
            Reason::Invalid => "FieldValueInvalid",
            Reason::NotSupported => "FieldValueNotSupported",
            Reason::Forbidden => "FieldValueForbidden",
            Reason::Duplicate => "FieldValueDuplicate",
            Reason::NotFound => "FieldValueNotFound",
            Reason::TooLong => "FieldValueTooLong",
            Reason::TooMany => "FieldValueTooMany",
            Reason::TypeInvalid => "FieldValueTypeInvalid",
            Reason::Internal => "InternalError",
        }
    }

    fn words(self) -> &'static str {
        match self {
            Reason::Required => "Required value",
            Reason::Invalid | Reason::TypeInvalid => "Invalid value",
            Reason::NotSupported => "Unsupported value",
            Reason::Forbidden => "Forbidden",
            Reason::Duplicate => "Duplicate value",
            Reason::NotFound => "Not found",
            Reason::TooLong => "Too long",
            Reason::TooMany => "Too many",
            Reason::Internal => "Internal error",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_read_as_users_know_them() {
        let mut errors = FieldErrors::default();
        errors.required("spec.containers", "");
        errors.invalid("metadata.name", "A", "must be lower case");
        errors.not_supported("spec.type", "X", &["A", "B"]);
        let lines: Vec<String> = errors.0.iter().map(ToString::to_string).collect();
        assert_eq!(
            lines,
            [
                "spec.containers: Required value",
                r#"metadata.name: Invalid value: "A": must be lower case"#,
                r#"spec.type: Unsupported value: "X": supported values: "A", "B""#,
            ]
        );
    }
}
