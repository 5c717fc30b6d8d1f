//! Checks that many kinds make of their fields, in upstream's words, and the path they are reported at.

use std::collections::BTreeMap;
use std::fmt::{self, Display};

use ferry_api::{FieldErrors, names};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector as LabelSelectorView;
use serde::Serialize;
use serde_json::{Value, json};

pub const NOT_NEGATIVE: &str = "must be greater than or equal to 0";
pub const IMMUTABLE: &str = "field is immutable";

/// Where a field stands. It is written out only when there is an error to report.
#[derive(Clone, Copy)]
pub struct Path<'a> {
    parent: Option<&'a Path<'a>>,
    part: Part<'a>,
}

#[derive(Clone, Copy)]
enum Part<'a> {
    Field(&'a str),
    Index(usize),
    Key(&'a str),
}

impl<'a> Path<'a> {
    pub const fn root(field: &'a str) -> Path<'a> {
        Path { parent: None, part: Part::Field(field) }
    }

    pub fn child(&'a self, field: &'a str) -> Path<'a> {
        Path { parent: Some(self), part: Part::Field(field) }
    }

    pub fn index(&'a self, index: usize) -> Path<'a> {
        Path { parent: Some(self), part: Part::Index(index) }
    }

    pub fn key(&'a self, key: &'a str) -> Path<'a> {
        Path { parent: Some(self), part: Part::Key(key) }
    }
}

impl Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(parent) = self.parent {
            parent.fmt(f)?;
        }
        match self.part {
            Part::Field(field) if self.parent.is_some() => write!(f, ".{field}"),
            Part::Field(field) => f.write_str(field),
            Part::Index(index) => write!(f, "[{index}]"),
            Part::Key(key) => write!(f, "[{key}]"),
        }
    }
}

impl From<Path<'_>> for String {
    fn from(path: Path<'_>) -> String {
        path.to_string()
    }
}

/// A word out of a few; its absence is an error.
pub fn one_of(errors: &mut FieldErrors, path: Path<'_>, value: Option<&str>, allowed: &[&str]) {
    match value.unwrap_or("") {
        "" => errors.required(path, ""),
        value => may_be(errors, path, Some(value), allowed),
    }
}

/// A word out of a few, or none.
pub fn may_be(errors: &mut FieldErrors, path: Path<'_>, value: Option<&str>, allowed: &[&str]) {
    if let Some(value) = value.filter(|value| !value.is_empty() && !allowed.contains(value)) {
        errors.not_supported(path, value, allowed);
    }
}

/// What a rule for names finds wrong with a value.
pub fn named(errors: &mut FieldErrors, path: Path<'_>, value: &str, rule: fn(&str) -> Vec<String>) {
    for why in rule(value) {
        errors.invalid(path, value, &why);
    }
}

/// A name that must be there.
pub fn required_name(errors: &mut FieldErrors, path: Path<'_>, value: &str, rule: fn(&str) -> Vec<String>) {
    if value.is_empty() {
        errors.required(path, "");
    } else {
        named(errors, path, value, rule);
    }
}

pub fn immutable<T: PartialEq + Serialize>(errors: &mut FieldErrors, path: Path<'_>, new: &T, old: &T) {
    if new != old {
        errors.invalid(path, json!(new), IMMUTABLE);
    }
}

pub fn labels(errors: &mut FieldErrors, path: Path<'_>, labels: Option<&BTreeMap<String, String>>) {
    for (key, value) in labels.into_iter().flatten() {
        named(errors, path, key, names::qualified_name);
        named(errors, path, value, names::label_value);
    }
}

/// The parts of a structured selector.
pub fn selector(errors: &mut FieldErrors, path: Path<'_>, selector: &LabelSelectorView) {
    labels(errors, path.child("matchLabels"), selector.match_labels.as_ref());
    for (index, expression) in selector.match_expressions.iter().flatten().enumerate() {
        let list = path.child("matchExpressions");
        let path = list.index(index);
        let values = expression.values.as_deref().unwrap_or(&[]);
        match expression.operator.as_str() {
            "In" | "NotIn" if values.is_empty() => {
                errors.required(path.child("values"), "must be specified when `operator` is 'In' or 'NotIn'")
            }
            "Exists" | "DoesNotExist" if !values.is_empty() => errors.forbidden(
                path.child("values"),
                "may not be specified when `operator` is 'Exists' or 'DoesNotExist'",
            ),
            "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
            other => errors.invalid(path.child("operator"), other, "not a valid selector operator"),
        }
        named(errors, path.child("key"), &expression.key, names::qualified_name);
    }
}

/// The default of a field that has no value.
pub fn set_default(map: &mut serde_json::Map<String, Value>, field: &str, value: impl Into<Value>) {
    if map.get(field).is_none_or(Value::is_null) {
        map.insert(field.into(), value.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_reads_as_users_know_it() {
        let spec = Path::root("spec");
        let containers = spec.child("containers");
        let first = containers.index(0);
        assert_eq!(first.child("name").to_string(), "spec.containers[0].name");
        assert_eq!(spec.key("cpu").to_string(), "spec[cpu]");
    }
}
