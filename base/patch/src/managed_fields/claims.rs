//! The fields an applied configuration claims, and whether it says only what its kind has.

use std::collections::HashSet;
use std::fmt;

use ferry_api::{Schema, Shape, excerpt};
use serde_json::{Map, Value};

use super::element;
use super::field_set::{FieldSet, node};
use super::rows::{Owned, Rows};
use crate::go_words;

/// All fields `object` gives a value for.
pub fn of_object(object: &Map<String, Value>, schema: &Schema) -> FieldSet {
    let (rows, root) = Rows::of(schema);
    FieldSet::from_nodes(rows.claims_of_map(root, object))
}

/// What an object says that its kind does not have, as `.spec.foo: field not declared in schema`.
pub fn check(object: &Map<String, Value>, schema: &Schema) -> Result<(), String> {
    let (rows, root) = Rows::of(schema);
    let mut errors = Vec::new();
    rows.check_map(root, object, &mut String::new(), &mut errors);
    match errors.as_slice() {
        [] => Ok(()),
        [one] => Err(one.clone()),
        many => Err(format!("errors:\n  {}", many.join("\n  "))),
    }
}

impl<'s> Rows<'s> {
    /// What lies below a value, and whether the value itself is claimed in one piece.
    fn claims(self, owned: Owned<'s>, value: &Value) -> (Map<String, Value>, bool) {
        match (owned, value) {
            (Owned::Scalar(_) | Owned::Whole(_), _) => (Map::new(), true),
            (Owned::Struct(_) | Owned::Map(_), Value::Object(fields)) => {
                (self.claims_of_map(owned, fields), false)
            }
            (Owned::Free, Value::Object(fields)) => (self.claims_of_map(owned, fields), false),
            (Owned::Free, Value::Null) => (Map::new(), false),
            (Owned::Free, _) => (Map::new(), true),
            (Owned::List { .. } | Owned::Set(_), Value::Array(items)) => {
                (self.claims_of_list(owned, items), false)
            }
            _ => (Map::new(), false),
        }
    }

    fn claims_of_map(self, owned: Owned<'s>, fields: &Map<String, Value>) -> Map<String, Value> {
        fields
            .iter()
            .filter_map(|(name, value)| {
                let (below, whole) = self.claims(self.at(owned, name), value);
                // A key of a map exists by being named; a field of a struct only by what it holds.
                let named = match owned {
                    Owned::Struct(ty) => ty.field(name).is_none(),
                    _ => true,
                };
                let empty = value.is_null() || value.as_object().is_some_and(Map::is_empty);
                Some((element::field(name), node(below, whole || named || empty)?))
            })
            .collect()
    }

    fn claims_of_list(self, owned: Owned<'s>, items: &[Value]) -> Map<String, Value> {
        let elements: Vec<Option<String>> = items.iter().map(|item| self.element(owned, item)).collect();
        let mut seen = HashSet::with_capacity(items.len());
        let twice: HashSet<&String> =
            elements.iter().flatten().filter(|element| !seen.insert(*element)).collect();
        let mut claims = Map::new();
        for (element, item) in elements.iter().zip(items) {
            let Some(element) = element else { continue };
            let below = match twice.contains(element) {
                true => Map::new(),
                false => self.claims(self.items(owned), item).0,
            };
            if let Some(node) = node(below, true) {
                claims.insert(element.clone(), node);
            }
        }
        claims
    }

    fn check(self, owned: Owned<'s>, value: &Value, path: &mut String, errors: &mut Vec<String>) {
        let mut refuse = |why: String| note(errors, format_args!("{path}: {why}"));
        match (owned, value) {
            (_, Value::Null) => {}
            (Owned::Scalar(shape), value) => {
                if let Some(why) = mismatch(shape, value) {
                    refuse(why);
                }
            }
            (Owned::Struct(_) | Owned::Map(_), Value::Object(fields)) => {
                self.check_map(owned, fields, path, errors);
            }
            (Owned::List { .. } | Owned::Set(_), Value::Array(items)) => {
                self.check_list(owned, items, path, errors);
            }
            (Owned::Whole(shape), value) => self.check_whole(shape, value, path, errors),
            (Owned::Struct(_) | Owned::Map(_), other) => {
                refuse(format!("expected map, got {}", shown(other)))
            }
            (Owned::List { .. } | Owned::Set(_), other) => {
                refuse(format!("expected list, got {}", shown(other)))
            }
            (Owned::Free, _) => {}
        }
    }

    /// What is owned in one piece is still made of rows.
    fn check_whole(self, shape: &'s Shape, value: &Value, path: &mut String, errors: &mut Vec<String>) {
        match (shape, value) {
            (Shape::Struct(id), value) => match self.types.get(*id).stands_for {
                Some(_) => self.check(self.inner(shape), value, path, errors),
                None => self.check(Owned::Struct(self.types.get(*id)), value, path, errors),
            },
            (Shape::Map(inner), value) => self.check(Owned::Map(inner), value, path, errors),
            (Shape::List(inner), Value::Array(items)) => {
                for (index, item) in items.iter().enumerate() {
                    self.check_at(&format!("[{index}]"), self.inner(inner), item, path, errors);
                }
            }
            (Shape::List(_) | Shape::ExtraValue, other) if !other.is_array() => {
                note(errors, format_args!("{path}: expected list, got {}", shown(other)));
            }
            _ => {}
        }
    }

    fn check_map(
        self,
        owned: Owned<'s>,
        fields: &Map<String, Value>,
        path: &mut String,
        errors: &mut Vec<String>,
    ) {
        for (name, value) in fields {
            let step = format!(".{name}");
            match owned {
                Owned::Struct(ty) => match self.field(ty, name) {
                    Some(inner) => self.check_at(&step, inner, value, path, errors),
                    None => note(errors, format_args!("{path}{step}: field not declared in schema")),
                },
                owned => self.check_at(&step, self.at(owned, name), value, path, errors),
            }
        }
    }

    fn check_list(self, owned: Owned<'s>, items: &[Value], path: &mut String, errors: &mut Vec<String>) {
        let mut seen = HashSet::with_capacity(items.len());
        for (index, item) in items.iter().enumerate() {
            let Some(element) = self.element(owned, item) else {
                note(errors, format_args!("{path}: element {index}: {}", self.why_no_element(owned, item)));
                return;
            };
            let step = element::describe(&element);
            if !seen.insert(element) {
                note(errors, format_args!("{path}: duplicate entries for key {step}"));
            }
            self.check_at(&step, self.items(owned), item, path, errors);
        }
    }

    fn check_at(
        self,
        step: &str,
        owned: Owned<'s>,
        value: &Value,
        path: &mut String,
        errors: &mut Vec<String>,
    ) {
        let length = path.len();
        path.push_str(step);
        self.check(owned, value, path, errors);
        path.truncate(length);
    }

    fn why_no_element(self, owned: Owned<'s>, item: &Value) -> String {
        match (owned, item) {
            (Owned::List { .. }, Value::Null) => {
                "associative list with keys may not have a null element".to_string()
            }
            (Owned::List { keys, .. }, Value::Object(_)) => {
                let keys: Vec<String> = keys.iter().map(|key| format!("{key:?}")).collect();
                format!(
                    "associative list with keys has an element that omits all key fields [{}] (and doesn't have default values for any key fields)",
                    keys.join(" ")
                )
            }
            (Owned::List { .. }, _) => "associative list with keys may not have non-map elements".to_string(),
            (_, Value::Object(_)) => {
                "associative list without keys has an element that's a map type".to_string()
            }
            (_, Value::Array(_)) => "not supported: associative list with lists as elements".to_string(),
            _ => "associative list without keys has an element that's an explicit null".to_string(),
        }
    }
}

/// Errors beyond this number are not told.
const MAX_ERRORS: usize = 100;

fn note(errors: &mut Vec<String>, error: fmt::Arguments<'_>) {
    if errors.len() < MAX_ERRORS {
        errors.push(excerpt::of_owned(error.to_string(), excerpt::LONGEST_VALUE));
    }
}

fn mismatch(shape: &Shape, value: &Value) -> Option<String> {
    let fits = match shape {
        Shape::Int32 | Shape::Int64 | Shape::Double => value.is_number(),
        Shape::Bool => value.is_boolean(),
        Shape::Quantity | Shape::IntOrString => value.is_number() || value.is_string() || value.is_boolean(),
        _ => value.is_string(),
    };
    if fits {
        return None;
    }
    Some(match shape {
        Shape::Int32 | Shape::Int64 | Shape::Double => {
            format!("expected numeric (int or float), got {}", go_words::type_name(value))
        }
        Shape::Bool => format!("expected boolean, got {}", shown(value)),
        Shape::Quantity | Shape::IntOrString => format!("expected any scalar, got {}", shown(value)),
        // This one alone is printed with its type.
        _ => format!("expected string, got &value.valueUnstructured{{Value:{}}}", go_words::value(value)),
    })
}

/// A value as upstream's checks print it.
fn shown(value: &Value) -> String {
    format!("&{{{}}}", go_words::value(value))
}
