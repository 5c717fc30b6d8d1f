//! Walking the rows over an object.

use std::collections::HashSet;

use ferry_api::field_error::Reason;
use ferry_api::{FieldErrors, GroupVersionKind, Object, Shape, TypeId, Types};
use serde_json::{Map, Value};

use super::field::{self, Context, Field, Old};
use super::go_value;
use super::table::{Check, Row, Step, Table, TypeRules, type_named};
use crate::kinds::checks::{self, Path};
use crate::strategy::UpdateScope;

pub fn judge(
    table: &Table,
    object: &Object,
    old: Option<&Object>,
    group: &str,
    scope: UpdateScope<'_>,
    errors: &mut FieldErrors,
) {
    let types = Types::builtin();
    let kind = GroupVersionKind::from_api_version(object.api_version(), object.kind());
    let Some(id) = types.by_kind(&kind) else { return };
    let Some(rules) = table.types.get(&id) else { return };
    let only_fixed = old.is_some() && rules.fixed_on_update && scope != UpdateScope::Status;
    let walk = Walk { table, types, object, old_object: old, group, only_fixed };
    let old = match old {
        Some(old) => OldMap::Known(Some(&old.0)),
        None => OldMap::Unknown,
    };
    let holder = Holder { map: &object.0, value: None, old, id, path: None };
    for row in &rules.rows {
        let about_status = matches!(row.steps.first(), Some(Step::Field { index, .. })
            if &*types.get(id).fields[*index].name == "status");
        let judged = match scope {
            UpdateScope::Main | UpdateScope::Action(_) => !about_status || row.always,
            UpdateScope::Status => about_status,
        };
        if judged {
            walk.row(row, holder, errors);
        }
    }
}

/// What the rows of a type say of a value that a function came upon.
pub fn judge_as(context: &Context<'_>, type_name: &str, field: Field<'_>, errors: &mut FieldErrors) {
    let Context { table, types, object, old_object, group, .. } = *context;
    let Some(id) = type_named(type_name, types) else { return };
    let (Some(rules), Some(Value::Object(map))) = (table.types.get(&id), field.value) else { return };
    let walk = Walk { table, types, object, old_object, group, only_fixed: false };
    let holder = Holder { map, value: field.value, old: OldMap::Unknown, id, path: Some(field.path) };
    walk.structure(rules, holder, errors);
}

struct Walk<'a> {
    table: &'a Table,
    types: &'a Types,
    object: &'a Object,
    old_object: Option<&'a Object>,
    group: &'a str,
    only_fixed: bool,
}

/// A struct that rows are about.
#[derive(Clone, Copy)]
struct Holder<'a> {
    map: &'a Map<String, Value>,
    /// The same as a value; none for the object itself.
    value: Option<&'a Value>,
    old: OldMap<'a>,
    id: TypeId,
    /// None for the object itself.
    path: Option<Path<'a>>,
}

#[derive(Clone, Copy)]
enum OldMap<'a> {
    Unknown,
    Known(Option<&'a Map<String, Value>>),
}

/// A value that checks are about.
#[derive(Clone, Copy)]
struct At<'a> {
    field: Field<'a>,
    old: Old<'a>,
    holder: &'a Map<String, Value>,
    holder_path: Option<Path<'a>>,
    shape: &'a Shape,
    /// Absent differs from the zero value.
    pointer: bool,
    /// The key of an entry, and where its map stands.
    key: Option<(&'a str, Path<'a>)>,
}

impl Walk<'_> {
    fn structure(&self, rules: &TypeRules, holder: Holder<'_>, errors: &mut FieldErrors) {
        for row in &rules.rows {
            self.row(row, holder, errors);
        }
    }

    fn row(&self, row: &Row, holder: Holder<'_>, errors: &mut FieldErrors) {
        match row.steps.split_first() {
            Some((Step::Field { index, shown }, rest)) => {
                self.field(*index, *shown, rest, &row.checks, holder, errors);
            }
            _ => {
                let shape = Shape::Struct(holder.id);
                // What the struct was before is told by its fields.
                let old = Old::Unknown;
                let at = At {
                    field: Field { value: holder.value, path: holder.path.unwrap_or(Path::root("")) },
                    old,
                    holder: holder.map,
                    holder_path: holder.path,
                    shape: &shape,
                    pointer: false,
                    key: None,
                };
                self.checks(&row.checks, at, errors);
            }
        }
    }

    fn field(
        &self,
        index: usize,
        shown: Option<&'static str>,
        rest: &[Step],
        checks: &[Check],
        holder: Holder<'_>,
        errors: &mut FieldErrors,
    ) {
        let field = &self.types.get(holder.id).fields[index];
        let name = shown.unwrap_or(&field.name);
        let path = match &holder.path {
            Some(parent) => parent.child(name),
            None => Path::root(name),
        };
        let old = match holder.old {
            OldMap::Unknown => Old::Unknown,
            OldMap::Known(old) => {
                Old::Known(old.and_then(|old| old.get(&*field.name)).filter(|value| !value.is_null()))
            }
        };
        let value = holder.map.get(&*field.name).filter(|value| !value.is_null());
        let at = At {
            field: Field { value, path },
            old,
            holder: holder.map,
            holder_path: holder.path,
            shape: &field.shape,
            pointer: field.pointer,
            key: None,
        };
        self.follow(rest, checks, at, errors);
    }

    /// Goes the remaining steps, then checks.
    fn follow(&self, steps: &[Step], checks: &[Check], at: At<'_>, errors: &mut FieldErrors) {
        match (steps.split_first(), at.shape) {
            (None, _) => self.checks(checks, at, errors),
            (Some((Step::Field { index, shown }, rest)), Shape::Struct(id)) => {
                let empty = Map::new();
                if let Some(holder) = holder_of(&at, *id, &empty) {
                    self.field(*index, *shown, rest, checks, holder, errors);
                }
            }
            (Some((Step::Elements, rest)), Shape::List(element)) => {
                for index in 0..at.field.items().len() {
                    let field = at.field.index(index);
                    let element = At { field, old: Old::Unknown, shape: element, pointer: false, ..at };
                    self.follow(rest, checks, element, errors);
                }
            }
            (Some((Step::Entries, rest)), Shape::Map(element)) => {
                for (key, value) in at.field.entries() {
                    let field = Field::of(value, at.field.path.key(key));
                    let key = Some((key, at.field.path));
                    let entry = At { field, old: Old::Unknown, shape: element, pointer: false, key, ..at };
                    self.follow(rest, checks, entry, errors);
                }
            }
            _ => {}
        }
    }

    fn checks(&self, checks: &[Check], at: At<'_>, errors: &mut FieldErrors) {
        for check in checks {
            if self.only_fixed && !matches!(check, Check::Fixed(_) | Check::Same | Check::In) {
                continue;
            }
            if !self.check(check, at, errors) {
                return;
            }
        }
    }

    /// Returns whether the row's next checks apply.
    fn check(&self, check: &Check, at: At<'_>, errors: &mut FieldErrors) -> bool {
        let field = at.field;
        match check {
            Check::Optional => return !field.is_empty(),
            Check::New => return self.old_object.is_none(),
            Check::When { field, values, holds } => return values.contains(&sibling(at, field)) == *holds,
            Check::Required(why) => return is_present(at) || field.required(why, errors),
            Check::NotEmpty => return !field.is_given() || field.required("", errors),
            Check::Missing => {
                field.required("", errors);
            }
            Check::NotZero => {
                let given = field.number() != 0;
                if !given {
                    errors.required(field.path, "");
                }
                return given;
            }
            Check::OneOfFields(fields) => one_of_fields(at.holder, fields, field, errors),
            Check::Fixed(why) => {
                if !is_same(at) {
                    self.tell_changed(at, *why, errors);
                }
            }
            Check::Same => {
                if !is_same(at) {
                    errors.invalid(field.path, Value::Null, checks::IMMUTABLE);
                }
            }
            Check::In => self.inside(at, errors),
            Check::Code(code) => code(field, &self.context(at), errors),
            Check::Key(format) => {
                // Errors about keys name the map, errors about values the key.
                if let Some((key, path)) = at.key {
                    format.judge(errors, path, key);
                }
            }
            // An absent pointer has no value to check.
            _ if at.pointer && !field.is_given() => {}
            Check::Distinct(key) => {
                if let Some(id) = at.shape.element_struct() {
                    distinct(field, key, id, self.types, errors);
                }
            }
            Check::MaxItems(limit) => return has_at_most(field, *limit, errors),
            value => check_value(value, field, errors),
        }
        true
    }

    fn context<'a>(&'a self, at: At<'a>) -> Context<'a> {
        Context {
            object: self.object,
            old_object: self.old_object,
            old: at.old,
            group: self.group,
            holder: at.holder,
            holder_path: at.holder_path,
            shape: at.shape,
            table: self.table,
            types: self.types,
        }
    }

    /// The rows of the value's own type, or of each of its elements'.
    fn inside(&self, at: At<'_>, errors: &mut FieldErrors) {
        let empty = Map::new();
        match at.shape {
            Shape::Struct(id) => {
                if let Some(rules) = self.table.types.get(id)
                    && let Some(holder) = holder_of(&at, *id, &empty)
                {
                    self.structure(rules, holder, errors);
                }
            }
            Shape::List(element) => {
                for index in 0..at.field.items().len() {
                    let field = at.field.index(index);
                    self.inside(
                        At { field, old: Old::Unknown, shape: element, pointer: false, ..at },
                        errors,
                    );
                }
            }
            _ => {}
        }
    }

    fn tell_changed(&self, at: At<'_>, why: Option<&str>, errors: &mut FieldErrors) {
        match why {
            Some(why) => errors.forbidden(at.field.path, why),
            None => {
                let value = go_value::printed_field(at.field.value, at.shape, at.pointer, self.types);
                let detail = format!("{value}: {}", checks::IMMUTABLE);
                errors.push(at.field.path, Reason::Invalid, detail);
            }
        }
    }
}

/// Whether the value is what it was before, as far as that is known.
fn is_same(at: At<'_>) -> bool {
    let Old::Known(old) = at.old else { return true };
    let both_empty = field::is_empty(old) && at.field.is_empty();
    // A pointer to an empty struct is not the same as none.
    let told_apart =
        at.pointer && matches!(at.shape, Shape::Struct(_)) && old.is_some() != at.field.is_given();
    old == at.field.value || (both_empty && !told_apart)
}

fn one_of_fields(holder: &Map<String, Value>, fields: &[&str], field: Field<'_>, errors: &mut FieldErrors) {
    let is_given = |name: &&&str| holder.get(**name).is_some_and(|value| !value.is_null());
    let given: Vec<&str> = fields.iter().filter(is_given).copied().collect();
    let all = fields.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
    match given.len() {
        0 => errors.invalid(field.path, "", &format!("must specify one of: {all}")),
        1 => {}
        _ => {
            let given = format!("{{{}}}", given.join(", "));
            errors.invalid(field.path, given, &format!("must specify exactly one of: {all}"));
        }
    }
}

/// The text of another field of the struct; a flag that is set is "true".
fn sibling<'a>(at: At<'a>, field: &str) -> &'a str {
    match at.holder.get(field) {
        Some(Value::String(text)) => text,
        Some(Value::Bool(true)) => "true",
        _ => "",
    }
}

/// Whether the field points to a struct, which may be empty.
fn is_present(at: At<'_>) -> bool {
    at.field.is_given() && at.pointer && matches!(at.shape, Shape::Struct(_))
}

fn has_at_most(field: Field<'_>, limit: usize, errors: &mut FieldErrors) -> bool {
    let count = field.value.and_then(Value::as_object).map_or(field.items().len(), Map::len);
    if count > limit {
        errors.too_many(field.path, count, limit);
    }
    count <= limit
}

/// The checks that concern the value alone.
fn check_value(check: &Check, field: Field<'_>, errors: &mut FieldErrors) {
    let outside = |bound: &str, limit: i64, why: Option<&str>| {
        why.map_or_else(|| format!("must be {bound} than or equal to {limit}"), str::to_owned)
    };
    match check {
        Check::Format(format) => format.judge(errors, field.path, field.text()),
        Check::Least(least, why) if field.number() < *least => {
            errors.invalid(field.path, field.number(), &outside("greater", *least, *why));
        }
        Check::Most(most, why) if field.number() > *most => {
            errors.invalid(field.path, field.number(), &outside("less", *most, *why));
        }
        Check::Range(low, high) => field.in_range(*low, *high, errors),
        Check::OneOf(words) => field.one_of(words, errors),
        Check::MaxBytes(limit) if field.text().len() > *limit => errors.too_long(field.path, *limit),
        Check::Unique(key) => unique(field, *key, errors),
        Check::Labels => labels(field, errors),
        Check::Forbidden(why) if !field.is_empty() => errors.forbidden(field.path, why),
        Check::Invalid(why) if !field.is_empty() => field.invalid(why, errors),
        _ => {}
    }
}

/// A struct that is not there has fields with zero values, unless it stands behind a pointer.
fn holder_of<'a>(at: &At<'a>, id: TypeId, empty: &'a Map<String, Value>) -> Option<Holder<'a>> {
    let map = match at.field.value {
        Some(Value::Object(map)) => map,
        None if !at.pointer => empty,
        _ => return None,
    };
    let old = match at.old {
        Old::Unknown => OldMap::Unknown,
        Old::Known(old) => OldMap::Known(old.and_then(Value::as_object)),
    };
    Some(Holder { map, value: at.field.value, old, id, path: Some(at.field.path) })
}

pub fn labels(field: Field<'_>, errors: &mut FieldErrors) {
    for (key, value) in field.entries() {
        checks::named(errors, field.path, key, ferry_api::names::qualified_name);
        checks::named(errors, field.path, value.as_str().unwrap_or(""), ferry_api::names::label_value);
    }
}

/// Of elements with the same field each but the first is told as a whole.
pub fn distinct(field: Field<'_>, key: &str, id: TypeId, types: &Types, errors: &mut FieldErrors) {
    let mut seen: HashSet<&str> = HashSet::with_capacity(field.items().len());
    for (index, item) in field.items().iter().enumerate() {
        if !seen.insert(field::text(item, key)) {
            let shown = item.as_object().map(|item| go_value::printed_versioned(item, id, types));
            errors.push(field.path.index(index), Reason::Duplicate, shown.unwrap_or_default());
        }
    }
}

fn unique(field: Field<'_>, key: Option<&str>, errors: &mut FieldErrors) {
    if field.items().len() < 2 {
        return;
    }
    let mut seen: HashSet<&str> = HashSet::with_capacity(field.items().len());
    for (index, item) in field.items().iter().enumerate() {
        let text = match key {
            Some(key) => field::text(item, key),
            None => item.as_str().unwrap_or(""),
        };
        if !seen.insert(text) {
            let element = field.path.index(index);
            match key {
                Some(key) => errors.duplicate(element.child(key), text),
                None => errors.duplicate(element, text),
            }
        }
    }
}
