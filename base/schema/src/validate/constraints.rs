//! Types and constraints of the schema, in the order and the words of upstream's validator.
//!
//! A value that fits one of `anyOf` or `oneOf` counts how much of each fitted ([`Outcome::fitted`]), so that
//! of several that failed the nearest tells why.

use std::cell::Cell;
use std::collections::HashSet;

use ferry_api::FieldErrors;
use ferry_api::field_error::Reason;
use serde_json::{Map, Number, Value};

use super::correlate::Elements;
use crate::format::Format;
use crate::pattern;
use crate::structural::{Additional, Bound, INT_OR_STRING, Kind, More, NULLABLE, Node, Ref, UNIQUE_ITEMS};
use crate::words;

/// The errors of a whole object, at `prefix`.
pub fn object(
    new: &Map<String, Value>,
    old: Option<&Map<String, Value>>,
    node: &Ref,
    prefix: &str,
    errors: &mut FieldErrors,
) {
    let mut judge = Judge::new(true);
    let outcome = judge.fields_only(new, old, node);
    tell(outcome, prefix, errors);
}

/// The errors of a value, at `prefix`.
pub fn value(new: &Value, old: Option<&Value>, node: &Ref, prefix: &str, errors: &mut FieldErrors) {
    let mut judge = Judge::new(false);
    let mut outcome = judge.value(new, old, node);
    if old == Some(new) {
        outcome.forgive();
    }
    tell(outcome, prefix, errors);
}

/// The errors of a value that was never there before.
pub(crate) fn constraints(new: &Value, node: &Ref, prefix: &str, errors: &mut FieldErrors) {
    value(new, None, node, prefix, errors);
}

fn tell(outcome: Outcome, prefix: &str, errors: &mut FieldErrors) {
    if outcome.failed && outcome.faults.is_empty() {
        let path = if prefix.is_empty() { "<nil>" } else { prefix };
        errors.invalid(path, "", "there are too many errors to tell");
    }
    let mut told = HashSet::new();
    for fault in outcome.faults {
        if !told.insert(fault.message.clone()) {
            continue;
        }
        let name = fault.path.map(|path| path.strip_prefix('.').unwrap_or(&path).to_string());
        let path = match name {
            Some(name) if !name.is_empty() && prefix.is_empty() => name,
            Some(name) if !name.is_empty() => format!("{prefix}.{name}"),
            _ if prefix.is_empty() => "<nil>".to_string(),
            _ => prefix.to_string(),
        };
        match fault.what {
            Violated::Required => errors.required(path, ""),
            Violated::Enum(value, values) => {
                let values: Vec<&str> = values.iter().map(String::as_str).collect();
                errors.not_supported(path, value, &values);
            }
            Violated::TooLong(limit) => {
                let unit = if limit == 1 { "byte" } else { "bytes" };
                errors.push(path, Reason::TooLong, format!("may not be more than {limit} {unit}"));
            }
            Violated::TooMany(count, limit) => {
                let unit = if limit == 1 { "item" } else { "items" };
                errors.push(path, Reason::TooMany, format!("{count}: must have at most {limit} {unit}"));
            }
            Violated::Type(value) => errors.type_invalid(path, value, &fault.message),
            Violated::Invalid(value) => errors.invalid(path, value, &fault.message),
        }
    }
}

/// What came of judging a value.
#[derive(Default)]
struct Outcome {
    failed: bool,
    /// Why; not all of it where there is much ([`TOLD`]).
    faults: Vec<Fault>,
    /// How many checks were passed, here and below.
    fitted: usize,
}

struct Fault {
    /// None for errors that name the field in their words alone.
    path: Option<String>,
    what: Violated,
    message: String,
}

enum Violated {
    Required,
    Enum(Value, Vec<String>),
    TooLong(i64),
    TooMany(i64, i64),
    Type(Value),
    Invalid(Value),
}

impl Outcome {
    fn merge(&mut self, mut other: Outcome) {
        self.failed |= other.failed;
        self.faults.append(&mut other.faults);
        self.fitted += other.fitted;
    }

    fn forgive(&mut self) {
        self.failed = false;
        self.faults.clear();
    }
}

/// Bytes of words and values that are made for the errors of one object, those of alternatives that are not told
/// included. An object of a million wrong elements costs no more than that.
const TOLD: usize = 256 << 10;

struct Judge {
    path: String,
    /// At the object itself: a field has no dot before it.
    root: bool,
    left: Cell<usize>,
}

impl Judge {
    fn new(root: bool) -> Judge {
        Judge { path: String::new(), root, left: Cell::new(TOLD) }
    }

    /// Notes a fault, and why as long as there is room for it.
    fn fault(&self, outcome: &mut Outcome, make: impl FnOnce(&str) -> (Violated, String)) {
        outcome.failed = true;
        if self.left.get() == 0 {
            return;
        }
        let (what, message) = make(&self.path);
        let value = match &what {
            Violated::Enum(Value::String(text), _)
            | Violated::Invalid(Value::String(text))
            | Violated::Type(Value::String(text)) => text.len(),
            Violated::Enum(value, _) => value.to_string().len(),
            _ => 0,
        };
        let size = self.path.len() + message.len() + value + size_of::<Fault>();
        self.left.set(self.left.get().saturating_sub(size));
        outcome.faults.push(Fault { path: Some(self.path.clone()), what, message });
    }

    /// An error that has no path.
    fn plain(&self, outcome: &mut Outcome, make: impl FnOnce(&str) -> String) {
        let before = outcome.faults.len();
        self.fault(outcome, |path| (Violated::Invalid("".into()), make(path)));
        outcome.faults[before..].iter_mut().for_each(|fault| fault.path = None);
    }

    fn value(&mut self, value: &Value, old: Option<&Value>, node: &Node) -> Outcome {
        let mut outcome = Outcome::default();
        let more = node.more();
        let typed = node.kind != Kind::Any || node.is(INT_OR_STRING) || more.format.is_some();
        if value.is_null() {
            self.typed(value, node, &mut outcome);
            self.one_of_values(value, more, &mut outcome);
            return outcome;
        }
        if typed {
            self.typed(value, node, &mut outcome);
            outcome.fitted += 1;
        }
        self.combined(value, old, node, &mut outcome);
        outcome.fitted += 1;
        match value {
            Value::String(text) => {
                self.text(text, node, &mut outcome);
                outcome.fitted += 1;
                if more.format.is_some() {
                    self.formatted(text, more, &mut outcome);
                    outcome.fitted += 1;
                }
            }
            Value::Number(number) => {
                self.number(number, node, &mut outcome);
                outcome.fitted += 2;
            }
            Value::Array(items) => {
                self.array(items, old, node, &mut outcome);
                outcome.fitted += 2;
            }
            _ => {}
        }
        self.one_of_values(value, more, &mut outcome);
        outcome.fitted += 1;
        if let Value::Object(fields) = value {
            self.object(fields, old.and_then(Value::as_object), node, &mut outcome);
            outcome.fitted += 1;
        }
        outcome.fitted += 1;
        outcome
    }

    /// The object itself, which is one: nothing to say of its type.
    fn fields_only(
        &mut self,
        fields: &Map<String, Value>,
        old: Option<&Map<String, Value>>,
        node: &Node,
    ) -> Outcome {
        let mut outcome = Outcome::default();
        if node.logic().is_some() || !node.more().values.is_empty() {
            // Both look at whole values; few schemas have them at the root.
            let whole = Value::Object(fields.clone());
            let before = old.map(|old| Value::Object(old.clone()));
            self.combined(&whole, before.as_ref(), node, &mut outcome);
            self.one_of_values(&whole, node.more(), &mut outcome);
        }
        self.object(fields, old, node, &mut outcome);
        outcome
    }

    /// A field or an element, whose errors stay out where it did not change.
    fn inner(&mut self, value: &Value, old: Option<&Value>, node: &Node) -> Outcome {
        let root = std::mem::replace(&mut self.root, false);
        let mut outcome = self.value(value, old, node);
        self.root = root;
        if outcome.failed && old == Some(value) {
            outcome.forgive();
        }
        outcome
    }

    fn typed(&self, value: &Value, node: &Node, outcome: &mut Outcome) {
        let kinds: &[Kind] = match node.kind {
            _ if node.is(INT_OR_STRING) => &[Kind::Integer, Kind::String],
            Kind::Any => &[],
            ref kind => std::slice::from_ref(kind),
        };
        let names = || kinds.iter().map(|kind| kind.name()).collect::<Vec<_>>().join(",");
        let mut wrong = |wanted: &str, found: &str| {
            self.fault(outcome, |path| {
                (Violated::Type(found.into()), format!("{path} in body must be of type {wanted}: {found:?}"))
            });
        };
        if value.is_null() {
            if !kinds.is_empty() && !node.is(NULLABLE) {
                return wrong(&names(), "null");
            }
            outcome.fitted += 1;
            return;
        }
        let (found, found_format) = match value {
            Value::Null | Value::Bool(_) => (Kind::Boolean, ""),
            Value::String(_) => (Kind::String, ""),
            Value::Number(number) if number.is_i64() => (Kind::Integer, "int64"),
            Value::Number(_) => (Kind::Number, "float64"),
            Value::Array(_) => (Kind::Array, ""),
            Value::Object(_) => (Kind::Object, ""),
        };
        let whole =
            found == Kind::Number && kinds.contains(&Kind::Integer) && value.as_f64().is_some_and(is_whole);
        let fits =
            kinds.contains(&found) || whole || (found == Kind::Integer && kinds.contains(&Kind::Number));
        let numeric = kinds.contains(&Kind::Number) || kinds.contains(&Kind::Integer);
        let text_or_list = matches!(found, Kind::String | Kind::Array);
        if let Some(format) = node.format() {
            if !text_or_list && !fits && found_format != format {
                return wrong(format, found_format);
            }
            if text_or_list && !numeric {
                outcome.fitted += 1;
                return;
            }
        }
        if !fits {
            return wrong(&names(), found.name());
        }
        outcome.fitted += 1;
    }

    fn combined(&mut self, value: &Value, old: Option<&Value>, node: &Node, outcome: &mut Outcome) {
        outcome.fitted += 1;
        let Some(logic) = node.logic() else { return };
        if !logic.any_of.is_empty() {
            self.any_of(value, old, &logic.any_of, outcome);
        }
        if !logic.one_of.is_empty() {
            self.one_of(value, old, &logic.one_of, outcome);
        }
        if !logic.all_of.is_empty() {
            let mut valid = 0;
            for schema in &logic.all_of {
                let result = self.value(value, old, schema);
                valid += usize::from(!result.failed);
                outcome.merge(result);
            }
            if valid != logic.all_of.len() {
                let none = if valid == 0 { ". None validated" } else { "" };
                self.plain(outcome, |path| format!("{path:?} must validate all the schemas (allOf){none}"));
            }
        }
        if let Some(not) = &logic.not
            && !self.value(value, old, not).failed
        {
            self.plain(outcome, |path| format!("{path:?} must not validate the schema (not)"));
        }
    }

    /// What of the schemas fits; else the faults of the one that came closest.
    fn any_of(&mut self, value: &Value, old: Option<&Value>, schemas: &[Ref], outcome: &mut Outcome) {
        let mut best: Option<Outcome> = None;
        let mut fits = None;
        for schema in schemas {
            let result = self.value(value, old, schema);
            if !result.failed {
                fits = Some(result);
                break;
            }
            if best.as_ref().is_none_or(|best| result.fitted > best.fitted) {
                best = Some(result);
            }
        }
        if fits.is_none() {
            self.plain(outcome, |path| format!("{path:?} must validate at least one schema (anyOf)"));
        }
        fits.or(best).into_iter().for_each(|result| outcome.merge(result));
    }

    fn one_of(&mut self, value: &Value, old: Option<&Value>, schemas: &[Ref], outcome: &mut Outcome) {
        let mut best: Option<Outcome> = None;
        let mut first = None;
        let mut count = 0;
        for schema in schemas {
            let result = self.value(value, old, schema);
            if !result.failed {
                count += 1;
                best = None;
                first.get_or_insert(result);
            } else if count == 0 && best.as_ref().is_none_or(|best| result.fitted > best.fitted) {
                best = Some(result);
            }
        }
        if count == 1 {
            return first.into_iter().for_each(|result| outcome.merge(result));
        }
        let found = match count {
            0 => "Found none valid".to_string(),
            count => format!("Found {count} valid alternatives"),
        };
        self.plain(outcome, |path| {
            format!("{path:?} must validate one and only one schema (oneOf). {found}")
        });
        best.into_iter().for_each(|result| outcome.merge(result));
    }

    fn text(&self, text: &str, node: &Node, outcome: &mut Outcome) {
        let sizes = node.sizes();
        if sizes.max_length.is_some() || sizes.min_length.is_some() {
            let length = text.chars().count() as i64;
            if let Some(most) = sizes.max_length.filter(|most| length > *most) {
                return self.fault(outcome, |path| {
                    (Violated::TooLong(most), format!("{path} in body should be at most {most} chars long"))
                });
            }
            if let Some(least) = sizes.min_length.filter(|least| length < *least) {
                return self.fault(outcome, |path| {
                    (
                        Violated::Invalid(text.into()),
                        format!("{path} in body should be at least {least} chars long"),
                    )
                });
            }
        }
        let Some(wanted) = &node.more().pattern else { return };
        let why = match pattern::compile(wanted) {
            Ok(compiled) if compiled.is_match(text) => return,
            Ok(_) => String::new(),
            Err(why) => format!(", but pattern is invalid: {why}"),
        };
        self.fault(outcome, |path| {
            (Violated::Invalid(text.into()), format!("{path} in body should match '{wanted}{why}'"))
        });
    }

    fn formatted(&self, text: &str, more: &More, outcome: &mut Outcome) {
        let Some((format, name)) = &more.format else { return };
        if !format.fits(text) {
            self.fault(outcome, |path| {
                (Violated::Type(text.into()), format!("{path} in body must be of type {name}: {text:?}"))
            });
        }
    }

    fn number(&self, number: &Number, node: &Node, outcome: &mut Outcome) {
        let more = node.more();
        let float = number.as_f64().unwrap_or(0.0);
        let value = || Violated::Invalid(Value::Number(number.clone()));
        self.in_range(float, number.as_i64(), node, "Checked", outcome);
        let Some(bounds) = &more.bounds else { return };
        if let Some(factor) = bounds.multiple_of {
            let whole = self.in_range(factor, None, node, "MultipleOf", outcome);
            let multiple = match number.as_i64() {
                Some(number) if whole => {
                    let factor = factor as i64;
                    factor > 0 && number % factor == 0
                }
                _ if factor <= 0.0 => false,
                _ => is_whole(if factor < 1.0 { 1.0 / factor * float } else { float / factor }),
            };
            if !multiple {
                let factor = words::float(factor);
                self.fault(outcome, |path| {
                    (value(), format!("{path} in body should be a multiple of {factor}"))
                });
            }
        }
        for (bound, name, below) in
            [(bounds.minimum, "Minimum boundary", true), (bounds.maximum, "Maximum boundary", false)]
        {
            let Some(Bound { value: limit, exclusive }) = bound else { continue };
            let as_integer = self.in_range(limit, None, node, name, outcome);
            let (fits, limit) = match number.as_i64() {
                Some(number) if as_integer => {
                    let limit = limit as i64;
                    (within(number, limit, exclusive, below), limit.to_string())
                }
                _ => (within(float, limit, exclusive, below), words::float(limit)),
            };
            if !fits {
                let words = match (below, exclusive) {
                    (true, false) => "greater than or equal to",
                    (true, true) => "greater than",
                    (false, false) => "less than or equal to",
                    (false, true) => "less than",
                };
                self.fault(outcome, |path| (value(), format!("{path} in body should be {words} {limit}")));
            }
        }
    }

    fn array(&mut self, items: &[Value], old: Option<&Value>, node: &Node, outcome: &mut Outcome) {
        if let Some(inner) = node.items() {
            let elements = Elements::of(old, node);
            let length = self.path.len();
            for (index, item) in items.iter().enumerate() {
                self.path.push_str(&format!("[{index}]"));
                let result = self.inner(item, elements.get(item, node), inner);
                outcome.merge(result);
                self.path.truncate(length);
            }
        }
        let (sizes, size) = (node.sizes(), items.len() as i64);
        if let Some(least) = sizes.min_items.filter(|least| size < *least) {
            self.fault(outcome, |path| {
                (Violated::Invalid(size.into()), format!("{path} in body should have at least {least} items"))
            });
        }
        if let Some(most) = sizes.max_items.filter(|most| size > *most) {
            self.fault(outcome, |path| {
                (Violated::TooMany(size, most), format!("{path} in body should have at most {most} items"))
            });
        }
        if node.is(UNIQUE_ITEMS) {
            let mut seen = HashSet::with_capacity(items.len());
            if !items.iter().all(|item| seen.insert(item.to_string())) {
                self.fault(outcome, |path| {
                    (Violated::Invalid("".into()), format!("{path} in body shouldn't contain duplicates"))
                });
            }
        }
    }

    fn one_of_values(&self, value: &Value, more: &More, outcome: &mut Outcome) {
        if more.values.is_empty() || more.values.iter().any(|allowed| same(value, allowed)) {
            return;
        }
        self.fault(outcome, |path| {
            let values = more.values.iter().map(|value| match value {
                Value::String(text) => text.clone(),
                other => other.to_string(),
            });
            let values: Vec<String> = values.collect();
            let message = format!("{path} in body should be one of {}", values.join(" "));
            (Violated::Enum(value.clone(), values), message)
        });
    }

    fn object(
        &mut self,
        fields: &Map<String, Value>,
        old: Option<&Map<String, Value>>,
        node: &Node,
        outcome: &mut Outcome,
    ) {
        let (sizes, size) = (node.sizes(), fields.len() as i64);
        if let Some(least) = sizes.min_properties.filter(|least| size < *least) {
            self.fault(outcome, |path| {
                (
                    Violated::Invalid(size.into()),
                    format!("{path} in body should have at least {least} properties"),
                )
            });
        }
        if let Some(most) = sizes.max_properties.filter(|most| size > *most) {
            self.fault(outcome, |path| {
                (
                    Violated::TooMany(size, most),
                    format!("{path} in body should have at most {most} properties"),
                )
            });
        }
        let length = self.path.len();
        for (name, value) in fields {
            let property = node.property(name);
            if property.is_none() && node.additional == Additional::No {
                self.fault(outcome, |path| {
                    (
                        Violated::Invalid(name.as_str().into()),
                        format!("{path}.{name} in body is a forbidden property"),
                    )
                });
                continue;
            }
            let Some(inner) = property.or_else(|| node.values()) else { continue };
            let type_meta = self.root && length == 0 && (name == "kind" || name == "apiVersion");
            let before = old.filter(|_| !type_meta).and_then(|old| old.get(name));
            if length > 0 || property.is_none() {
                self.path.push('.');
            }
            self.path.push_str(name);
            let result = self.inner(value, before, inner);
            outcome.merge(result);
            self.path.truncate(length);
        }
        for name in &node.more().required {
            if !fields.contains_key(&**name) {
                let before = outcome.faults.len();
                self.fault(outcome, |path| {
                    (Violated::Required, format!("{path}.{name} in body is required"))
                });
                for fault in &mut outcome.faults[before..] {
                    fault.path = Some(format!("{}.{name}", self.path));
                }
            }
        }
    }
}

impl Judge {
    /// Whether a number lies in what type and format of the schema can hold.
    fn in_range(
        &self,
        value: f64,
        exact: Option<i64>,
        node: &Node,
        what: &str,
        outcome: &mut Outcome,
    ) -> bool {
        let format = node.more().format.as_ref().map(|(format, _)| *format);
        let (kind, fits) = match node.kind {
            _ if node.is(INT_OR_STRING) => return true,
            Kind::Integer => {
                let whole = exact.or_else(|| is_i64(value).then_some(value as i64));
                let fits =
                    whole.is_some_and(|whole| format != Some(Format::Int32) || i32::try_from(whole).is_ok());
                ("integer", fits)
            }
            Kind::Number => ("number", format != Some(Format::Float) || (value as f32).is_finite()),
            _ => return true,
        };
        if !fits {
            self.plain(outcome, |path| match node.format() {
                Some(format) => format!("{what} value must be of type {kind} with format {format} in {path}"),
                None => format!("{what} value must be of type {kind} (default format) in {path}"),
            });
        }
        fits
    }
}

fn within<T: PartialOrd>(number: T, limit: T, exclusive: bool, below: bool) -> bool {
    match (below, exclusive) {
        (true, false) => number >= limit,
        (true, true) => number > limit,
        (false, false) => number <= limit,
        (false, true) => number < limit,
    }
}

fn is_i64(number: f64) -> bool {
    number.fract() == 0.0 && (-9.3e18..9.3e18).contains(&number) && (number as i64) as f64 == number
}

/// A floating point number that JSON's clients take for an integer.
fn is_whole(number: f64) -> bool {
    const LARGEST: f64 = ((1i64 << 53) - 1) as f64;
    if !number.is_finite() || number.abs() > LARGEST {
        return false;
    }
    let near = number.trunc();
    let difference = (number - near).abs();
    difference == 0.0 || (near != 0.0 && difference / (number.abs() + near.abs()) < 1e-9)
}

/// Numbers are equal whatever way they are written; null is never one of the values.
fn same(value: &Value, allowed: &Value) -> bool {
    match (value, allowed) {
        (Value::Null, _) | (_, Value::Null) => false,
        (Value::Number(a), Value::Number(b)) => a == b || a.as_f64() == b.as_f64(),
        (a, b) => a == b,
    }
}
