//! What validation finds: every error with its path, in the words that Kubernetes users know.

use std::fmt::{self, Display};
use std::io;

use serde_json::Value;

use crate::excerpt;
use crate::status::Cause;

/// Errors beyond this number are counted and not told: they no longer help anybody.
const MAX_ERRORS: usize = 300;
/// As are those that follow this many bytes of others.
const MAX_BYTES: usize = 52 << 10;

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

/// A value that is copied only if the error is told: one that several errors quote.
pub struct Quoted<'a>(pub &'a Value);

impl From<Quoted<'_>> for Value {
    fn from(quoted: Quoted<'_>) -> Value {
        quoted.0.clone()
    }
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
    /// This many errors are not told.
    More(usize),
}

impl FieldErrors {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn required(&mut self, path: impl Into<String>, why: &str) {
        self.add(path, Reason::Required, || why.to_string());
    }

    pub fn invalid(&mut self, path: impl Into<String>, value: impl Into<Value>, why: &str) {
        self.add(path, Reason::Invalid, || with_value(value, why));
    }

    pub fn type_invalid(&mut self, path: impl Into<String>, value: impl Into<Value>, why: &str) {
        self.add(path, Reason::TypeInvalid, || with_value(value, why));
    }

    pub fn not_supported(&mut self, path: impl Into<String>, value: impl Into<Value>, supported: &[&str]) {
        self.add(path, Reason::NotSupported, || {
            let list: Vec<String> = supported.iter().map(|word| format!("{word:?}")).collect();
            let given = quote(&value.into());
            if list.is_empty() { given } else { format!("{given}: supported values: {}", list.join(", ")) }
        });
    }

    pub fn forbidden(&mut self, path: impl Into<String>, why: &str) {
        self.add(path, Reason::Forbidden, || why.to_string());
    }

    pub fn duplicate(&mut self, path: impl Into<String>, value: impl Into<Value>) {
        self.add(path, Reason::Duplicate, || quote(&value.into()));
    }

    pub fn not_found(&mut self, path: impl Into<String>, value: impl Into<Value>) {
        self.add(path, Reason::NotFound, || quote(&value.into()));
    }

    pub fn too_long(&mut self, path: impl Into<String>, limit: usize) {
        self.add(path, Reason::TooLong, || format!("may not be more than {limit} bytes"));
    }

    pub fn too_many(&mut self, path: impl Into<String>, count: usize, limit: usize) {
        self.add(path, Reason::TooMany, || format!("{count}: must have at most {limit} items"));
    }

    pub fn push(&mut self, path: impl Into<String>, reason: Reason, detail: String) {
        self.add(path, reason, || detail);
    }

    /// What is not told is not made either.
    fn add(&mut self, path: impl Into<String>, reason: Reason, detail: impl FnOnce() -> String) {
        let told = || self.0.iter().map(|error| error.path.len() + error.detail.len()).sum::<usize>();
        if self.0.len() >= MAX_ERRORS || told() >= MAX_BYTES {
            return self.leave_out();
        }
        let path = excerpt::of_owned(path.into(), excerpt::LONGEST_PATH);
        let detail = excerpt::of_owned(detail(), 4 * excerpt::LONGEST_VALUE);
        self.0.push(FieldError { path, reason, detail });
    }

    /// The last error says how many others there are.
    #[cold]
    fn leave_out(&mut self) {
        match self.0.last_mut() {
            Some(FieldError { reason: Reason::More(count), .. }) => *count += 1,
            _ => self.0.push(FieldError {
                path: String::new(),
                reason: Reason::More(1),
                detail: String::new(),
            }),
        }
    }
}

fn with_value(value: impl Into<Value>, why: &str) -> String {
    let value = quote(&value.into());
    if why.is_empty() { value } else { format!("{value}: {why}") }
}

/// Values stand in messages as JSON, long ones cut short.
fn quote(value: &Value) -> String {
    let mut text = LimitedWriter(Vec::new());
    match serde_json::to_writer(&mut text, value) {
        Ok(()) => String::from_utf8_lossy(&text.0).into_owned(),
        Err(_) => format!("{}...", String::from_utf8_lossy(&text.0).trim_end_matches('\u{fffd}')),
    }
}

/// Keeps the first bytes that are written and refuses the others.
struct LimitedWriter(Vec<u8>);

impl io::Write for LimitedWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let room = excerpt::LONGEST_VALUE - self.0.len();
        self.0.extend_from_slice(&bytes[..bytes.len().min(room)]);
        if bytes.len() > room { Err(io::ErrorKind::StorageFull.into()) } else { Ok(bytes.len()) }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl FieldError {
    pub fn cause(&self) -> Cause {
        Cause { reason: self.reason.as_str().to_string(), message: self.body(), field: self.path.clone() }
    }

    fn body(&self) -> String {
        if let Reason::More(count) = self.reason {
            return format!("and {count} more errors");
        }
        let words = self.reason.words();
        if self.detail.is_empty() { words.to_string() } else { format!("{words}: {}", self.detail) }
    }
}

impl Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.reason {
            Reason::More(_) => f.write_str(&self.body()),
            _ => write!(f, "{}: {}", self.path, self.body()),
        }
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
            Reason::More(_) => "",
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
            Reason::More(_) => "",
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

    #[test]
    fn a_refusal_stays_small_whatever_is_refused() {
        let mut errors = FieldErrors::default();
        for index in 0..100_000 {
            errors.invalid(format!("spec.ports[{index}]"), index, "must be unique");
        }
        assert_eq!(errors.0.len(), MAX_ERRORS + 1);
        assert_eq!(errors.0.last().map(ToString::to_string).as_deref(), Some("and 99700 more errors"));
        let mut errors = FieldErrors::default();
        let long = "x".repeat(1 << 20);
        for _ in 0..10 {
            errors.invalid(format!("data[{long}]"), long.as_str(), &format!("{long} must not be long"));
            errors.duplicate("spec.list", vec![Value::from(long.as_str()); 3]);
            errors.not_supported("spec.type", "é\u{1}".repeat(1 << 10), &["A"]);
        }
        let status = crate::Status::invalid("", "Pod", "a", &errors);
        assert!(status.to_json().len() < 4 * MAX_BYTES, "{}", status.to_json().len());
    }
}
