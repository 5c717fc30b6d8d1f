//! Strategic merge patch: a merge patch that knows the fields. Lists with a merge key merge element
//! by element, and directives inside the patch (`$patch`, `$retainKeys`, `$setElementOrder/x`,
//! `$deleteFromPrimitiveList/x`) say what a plain merge cannot.
//!
//! [`apply`] is what the server does with a patch; [`two_way`] and [`three_way`] make one, as
//! `kubectl edit` and `kubectl apply` do. Custom resources have no merge keys and take no such patch.
//!
//! `restore` judges what a patch made. `fields` finds the row of a field, `merge` lays a patch over an object, `order` keeps lists in
//! the order everyone asked for, `diff` writes patches.

mod diff;
mod fields;
mod merge;
mod order;
mod restore;

use ferry_api::{Schema, go_json};
use serde_json::{Map, Value};

use crate::error::PatchError;
use crate::go_words;
use diff::Differences;
use fields::Level;
use merge::Merge;

pub use restore::{does_not_restore, restore};

const PATCH: &str = "$patch";
const RETAIN_KEYS: &str = "$retainKeys";
const SET_ELEMENT_ORDER: &str = "$setElementOrder";
const DELETE_FROM_PRIMITIVE_LIST: &str = "$deleteFromPrimitiveList";

/// Lays `patch` over `value`. When it fails, `value` may hold part of the patch.
pub fn apply(value: &mut Value, patch: Value, schema: &Schema) -> Result<(), PatchError> {
    if !is_supported(schema) {
        return Err(PatchError::UnsupportedMediaType);
    }
    let patch = match patch {
        Value::Object(patch) => patch,
        // The decoder upstream uses takes null for an object without fields.
        Value::Null => return Ok(()),
        other => {
            return Err(PatchError::Malformed(format!(
                "json: cannot unmarshal {} into Go value of type map[string]interface {{}}",
                go_json::json_type(&other)
            )));
        }
    };
    let object = value.as_object_mut().ok_or_else(|| PatchError::malformed("invalid JSON document"))?;
    Merge::into_object(&schema.types).map(object, patch, Level::Struct(schema.root()))
}

/// Only built-in kinds have rows with merge keys.
pub fn is_supported(schema: &Schema) -> bool {
    schema.is_builtin()
}

/// The patch that makes `modified` out of `original`.
pub fn two_way(original: &Value, modified: &Value, schema: &Schema) -> Result<Value, PatchError> {
    let level = Level::Struct(schema.root());
    let all = Differences { types: &schema.types, changes: true, deletions: true };
    Ok(Value::Object(all.of_maps(object(original)?, object(modified)?, level, false)?))
}

/// What `kubectl apply` sends: all that `modified` says and `current` lacks, and deletions of what
/// `original`, the last applied configuration, had and `modified` no longer has. What others put
/// into `current` stays.
pub fn three_way(
    original: &Value,
    modified: &Value,
    current: &Value,
    schema: &Schema,
) -> Result<Value, PatchError> {
    let (original, modified, current) = (object(original)?, object(modified)?, object(current)?);
    let level = Level::Struct(schema.root());
    let types = &schema.types;
    let changes =
        Differences { types, changes: true, deletions: false }.of_maps(current, modified, level, false)?;
    let mut patch =
        Differences { types, changes: false, deletions: true }.of_maps(original, modified, level, false)?;
    Merge::into_patch(types).map(&mut patch, changes, level)?;
    Ok(Value::Object(patch))
}

fn object(value: &Value) -> Result<&Map<String, Value>, PatchError> {
    value.as_object().ok_or_else(|| PatchError::malformed("invalid JSON document"))
}

/// What a directive such as `$setElementOrder/conditions` is about.
fn field_of<'a>(key: &'a str, directive: &str) -> Option<&'a str> {
    key.strip_prefix(directive)?.strip_prefix('/')
}

/// What an element of a list asks for by `$patch`.
fn directive(element: &Value) -> Option<&str> {
    element.get(PATCH)?.as_str()
}

fn no_merge_key(element: &Value, key: &str) -> PatchError {
    PatchError::contradicts(format!(
        "map: {} does not contain declared merge key: {key}",
        go_words::value(element)
    ))
}

fn wrong_type(expected: &str, found: &Value) -> PatchError {
    PatchError::contradicts(format!("expected a {expected}, but received a {}", go_words::type_name(found)))
}

const LIST: &str = "[]interface {}";
const MAP: &str = "map[string]interface {}";

/// What the elements of merging lists are.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Elements {
    Maps,
    Scalars,
}

/// Elements that merge are all of one type, and no lists.
fn elements(lists: &[&[Value]]) -> Result<Elements, PatchError> {
    let mut all = lists.iter().copied().flatten();
    let Some(first) = all.next() else {
        return Err(PatchError::contradicts("no elements in any of the given slices"));
    };
    if first.is_array() {
        return Err(PatchError::does_not_apply("lists of lists are not supported"));
    }
    if first.is_null() || all.any(|element| go_words::type_name(element) != go_words::type_name(first)) {
        let shown: Vec<String> =
            lists.iter().map(|list| go_words::value(&Value::Array(list.to_vec()))).collect();
        return Err(PatchError::contradicts(format!(
            "list element types are not identical: [{}]",
            shown.join(" ")
        )));
    }
    Ok(if first.is_object() { Elements::Maps } else { Elements::Scalars })
}
