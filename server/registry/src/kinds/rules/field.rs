//! A value and where it stands: what a rule looks at.

use ferry_api::{FieldErrors, Object, Quantity, Shape, Types, names};
use serde_json::{Map, Value};

use super::go_value;
use super::table::Table;
use crate::kinds::checks::{self, Path};

#[derive(Clone, Copy)]
pub struct Field<'a> {
    /// Never `null`.
    pub value: Option<&'a Value>,
    pub path: Path<'a>,
}

/// What else a function of the table may look at.
#[derive(Clone, Copy)]
pub struct Context<'a> {
    pub object: &'a Object,
    /// What the object was before an update.
    pub old_object: Option<&'a Object>,
    pub old: Old<'a>,
    /// The group that the client asked for the kind: two may have it.
    pub group: &'a str,
    /// The struct that the value is a field of, or is an element of a field of.
    pub holder: &'a Map<String, Value>,
    pub holder_path: Option<Path<'a>>,
    pub shape: &'a Shape,
    pub table: &'a Table,
    pub types: &'a Types,
}

/// What the value was before.
#[derive(Clone, Copy)]
pub enum Old<'a> {
    /// The object is new, or the value stands in a list.
    Unknown,
    Known(Option<&'a Value>),
}

impl<'a> Field<'a> {
    pub fn of(value: &'a Value, path: Path<'a>) -> Field<'a> {
        Field { value: Some(value).filter(|value| !value.is_null()), path }
    }

    pub fn child(&'a self, field: &'a str) -> Field<'a> {
        Field { value: self.get(field), path: self.path.child(field) }
    }

    /// A field whose errors are told under another name.
    pub fn child_shown(&'a self, field: &str, shown: &'a str) -> Field<'a> {
        Field { value: self.get(field), path: self.path.child(shown) }
    }

    pub fn index(&'a self, index: usize) -> Field<'a> {
        Field { value: self.items().get(index), path: self.path.index(index) }
    }

    pub fn each(&self, mut judge: impl FnMut(Field<'_>)) {
        for index in 0..self.items().len() {
            judge(self.index(index));
        }
    }

    /// Each entry of a map; its path has the key.
    pub fn each_entry(&self, mut judge: impl FnMut(&'a str, Field<'_>)) {
        for (key, value) in self.entries() {
            judge(key, Field::of(value, self.path.key(key)));
        }
    }

    pub fn get(&self, field: &str) -> Option<&'a Value> {
        self.value.and_then(|value| value.get(field)).filter(|value| !value.is_null())
    }

    pub fn has(&self, field: &str) -> bool {
        self.get(field).is_some()
    }

    pub fn is_given(&self) -> bool {
        self.value.is_some()
    }

    /// Absent, or a zero value that clients cannot tell from none.
    pub fn is_empty(&self) -> bool {
        is_empty(self.value)
    }

    pub fn text(&self) -> &'a str {
        self.value.and_then(Value::as_str).unwrap_or("")
    }

    pub fn number(&self) -> i64 {
        self.value.and_then(Value::as_i64).unwrap_or(0)
    }

    pub fn flag(&self) -> bool {
        self.value.and_then(Value::as_bool).unwrap_or(false)
    }

    pub fn items(&self) -> &'a [Value] {
        self.value.and_then(Value::as_array).map_or(&[], Vec::as_slice)
    }

    pub fn entries(&self) -> impl Iterator<Item = (&'a str, &'a Value)> + use<'a> {
        self.value.and_then(Value::as_object).into_iter().flatten().map(|(key, value)| (key.as_str(), value))
    }

    pub fn quantity(&self) -> Option<Quantity> {
        Quantity::parse(self.text()).ok()
    }

    pub fn json(&self) -> Value {
        self.value.cloned().unwrap_or(Value::Null)
    }

    /// Whether it is there; tells the error if not.
    pub fn required(&self, why: &str, errors: &mut FieldErrors) -> bool {
        if self.is_empty() {
            errors.required(self.path, why);
        }
        !self.is_empty()
    }

    pub fn named(&self, rule: fn(&str) -> Vec<String>, errors: &mut FieldErrors) {
        checks::named(errors, self.path, self.text(), rule);
    }

    /// A name that must be there.
    pub fn required_name(&self, rule: fn(&str) -> Vec<String>, errors: &mut FieldErrors) {
        if self.required("", errors) {
            self.named(rule, errors);
        }
    }

    /// A name that may be left out.
    pub fn optional_name(&self, rule: fn(&str) -> Vec<String>, errors: &mut FieldErrors) {
        if !self.text().is_empty() {
            self.named(rule, errors);
        }
    }

    /// A word out of a few.
    pub fn one_of(&self, words: &[&str], errors: &mut FieldErrors) {
        if !words.contains(&self.text()) {
            errors.not_supported(self.path, self.text(), words);
        }
    }

    /// A word out of a few whose absence has an error of its own.
    pub fn required_one_of(&self, words: &[&str], errors: &mut FieldErrors) {
        if self.required("", errors) {
            self.one_of(words, errors);
        }
    }

    /// A word out of a few, if there is one.
    pub fn optional_one_of(&self, words: &[&str], errors: &mut FieldErrors) {
        if self.is_given() {
            self.one_of(words, errors);
        }
    }

    pub fn not_negative(&self, errors: &mut FieldErrors) {
        if self.number() < 0 {
            errors.invalid(self.path, self.number(), checks::NOT_NEGATIVE);
        }
    }

    pub fn in_range(&self, low: i64, high: i64, errors: &mut FieldErrors) {
        for why in names::in_range(self.number(), low, high) {
            errors.invalid(self.path, self.number(), &why);
        }
    }

    pub fn invalid(&self, why: &str, errors: &mut FieldErrors) {
        errors.invalid(self.path, self.json(), why);
    }

    /// A port's number, or its name.
    pub fn port(&self, errors: &mut FieldErrors) {
        match self.value {
            Some(Value::String(_)) => self.named(names::port_name, errors),
            _ => self.in_range(1, 65_535, errors),
        }
    }
}

impl Context<'_> {
    /// The value as upstream's internal types print it.
    pub fn printed(&self, value: Option<&Value>) -> String {
        go_value::printed(value, self.shape, self.types)
    }

    /// The value as upstream prints the internal type of this name.
    pub fn printed_as(&self, type_name: &str, value: Option<&Value>) -> String {
        match super::table::type_named(type_name, self.types) {
            Some(id) => go_value::printed(value, &Shape::Struct(id), self.types),
            None => value.map_or("null".into(), Value::to_string),
        }
    }

    /// The struct that the value stands in.
    pub fn sibling(&self, field: &str) -> Option<&Value> {
        self.holder.get(field).filter(|value| !value.is_null())
    }

    /// Whether the elements of a list, of the type of this name, differ in a field.
    pub fn judge_distinct(&self, type_name: &str, list: Field<'_>, key: &str, errors: &mut FieldErrors) {
        if let Some(id) = super::table::type_named(type_name, self.types) {
            super::walk::distinct(list, key, id, self.types, errors);
        }
    }

    /// What the rows of a type say of a value.
    pub fn judge(&self, type_name: &str, field: Field<'_>, errors: &mut FieldErrors) {
        super::walk::judge_as(self, type_name, field, errors);
    }
}

pub fn is_empty(value: Option<&Value>) -> bool {
    match value {
        None | Some(Value::Null) => true,
        Some(Value::String(text)) => text.is_empty(),
        Some(Value::Array(items)) => items.is_empty(),
        Some(Value::Object(map)) => map.is_empty(),
        Some(Value::Bool(_) | Value::Number(_)) => false,
    }
}

pub fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value.get(field).and_then(Value::as_str).unwrap_or("")
}
