//! JSON merge patch, RFC 7386: objects merge, null removes, everything else replaces.

use serde_json::{Map, Value};

use crate::error::PatchError;

pub fn apply(value: &mut Value, patch: &Value) {
    let Value::Object(changes) = patch else {
        *value = patch.clone();
        return;
    };
    if !value.is_object() {
        *value = Value::Object(Map::new());
    }
    if let Value::Object(fields) = value {
        for (key, change) in changes {
            match change {
                Value::Null => {
                    fields.remove(key);
                }
                change => match fields.get_mut(key) {
                    Some(old) => apply(old, change),
                    None => {
                        let mut new = Value::Null;
                        apply(&mut new, change);
                        fields.insert(key.clone(), new);
                    }
                },
            }
        }
    }
}

/// The patch that makes `to` out of `from`. A null inside `to` cannot be said in this format and is
/// taken for a removal.
pub fn diff(from: &Value, to: &Value) -> Value {
    let (Value::Object(from), Value::Object(to)) = (from, to) else {
        return to.clone();
    };
    let mut patch = Map::new();
    for (key, new) in to {
        match from.get(key) {
            Some(old) if old == new => {}
            Some(old @ Value::Object(_)) if new.is_object() => {
                patch.insert(key.clone(), diff(old, new));
            }
            _ => {
                patch.insert(key.clone(), new.clone());
            }
        }
    }
    for key in from.keys() {
        if !to.contains_key(key) {
            patch.insert(key.clone(), Value::Null);
        }
    }
    Value::Object(patch)
}

/// What `kubectl apply` sends for a kind whose fields it does not know: what `modified` has and
/// `current` lacks, and removals of what `original` had and `modified` no longer has.
pub fn three_way(original: &Value, modified: &Value, current: &Value) -> Result<Value, PatchError> {
    let changes = without_removals(&diff(current, modified));
    let removals = only_removals(&diff(original, modified));
    if contradict(&changes, &removals) {
        return Err(PatchError::contradicts(format!(
            "patch:\n{changes}\nconflicts with changes made from original to current:\n{removals}\n"
        )));
    }
    let mut patch = removals;
    combine(&mut patch, changes);
    Ok(patch)
}

/// Lays one patch over another; unlike [`apply`] it keeps the nulls, which mean removals.
fn combine(patch: &mut Value, over: Value) {
    match (patch, over) {
        (Value::Object(fields), Value::Object(over)) => {
            for (key, value) in over {
                match fields.get_mut(&key) {
                    Some(old) => combine(old, value),
                    None => {
                        fields.insert(key, value);
                    }
                }
            }
        }
        (patch, over) => *patch = over,
    }
}

fn without_removals(patch: &Value) -> Value {
    let Value::Object(fields) = patch else { return patch.clone() };
    // An empty object is a value of its own; one that is empty only without its removals is not.
    let kept = fields.iter().filter(|(_, value)| !value.is_null()).filter_map(|(key, value)| {
        let inner = without_removals(value);
        let emptied = is_empty_object(&inner) && !is_empty_object(value);
        (!emptied).then(|| (key.clone(), inner))
    });
    Value::Object(kept.collect())
}

fn only_removals(patch: &Value) -> Value {
    let Value::Object(fields) = patch else { return Value::Object(Map::new()) };
    let kept = fields.iter().filter_map(|(key, value)| match value {
        Value::Null => Some((key.clone(), Value::Null)),
        Value::Object(_) => {
            let inner = only_removals(value);
            (!is_empty_object(&inner)).then(|| (key.clone(), inner))
        }
        _ => None,
    });
    Value::Object(kept.collect())
}

fn is_empty_object(value: &Value) -> bool {
    value.as_object().is_some_and(Map::is_empty)
}

/// Both say something about one field, and not the same.
fn contradict(left: &Value, right: &Value) -> bool {
    match (left, right) {
        (Value::Object(left), Value::Object(right)) => {
            left.iter().any(|(key, value)| right.get(key).is_some_and(|other| contradict(value, other)))
        }
        (left, right) => left != right,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_cases_of_the_rfc() {
        let check = |mut value: Value, patch: Value, expected: Value| {
            apply(&mut value, &patch);
            assert_eq!(value, expected, "{patch}");
        };
        check(json!({"a": "b"}), json!({"a": "c"}), json!({"a": "c"}));
        check(json!({"a": "b"}), json!({"b": "c"}), json!({"a": "b", "b": "c"}));
        check(json!({"a": "b"}), json!({"a": null}), json!({}));
        check(json!({"a": "b", "b": "c"}), json!({"a": null}), json!({"b": "c"}));
        check(json!({"a": ["b"]}), json!({"a": "c"}), json!({"a": "c"}));
        check(json!({"a": "c"}), json!({"a": ["b"]}), json!({"a": ["b"]}));
        check(json!({"a": {"b": "c"}}), json!({"a": {"b": "d", "c": null}}), json!({"a": {"b": "d"}}));
        check(json!({"a": [{"b": "c"}]}), json!({"a": [1]}), json!({"a": [1]}));
        check(json!(["a", "b"]), json!(["c", "d"]), json!(["c", "d"]));
        check(json!({"a": "b"}), json!(["c"]), json!(["c"]));
        check(json!({"e": null}), json!({"a": 1}), json!({"e": null, "a": 1}));
        check(json!([1, 2]), json!({"a": "b", "c": null}), json!({"a": "b"}));
        check(json!({}), json!({"a": {"bb": {"ccc": null}}}), json!({"a": {"bb": {}}}));
    }

    #[test]
    fn a_difference_applied_gives_the_other_side() {
        let from = json!({"a": {"b": 1, "c": [1]}, "d": 1});
        let to = json!({"a": {"b": 2, "e": {}}, "f": {"g": 1}});
        let patch = diff(&from, &to);
        assert_eq!(patch, json!({"a": {"b": 2, "c": null, "e": {}}, "d": null, "f": {"g": 1}}));
        let mut value = from;
        apply(&mut value, &patch);
        assert_eq!(value, to);
    }

    #[test]
    fn three_way_keeps_what_others_set_and_removes_what_was_dropped() {
        let original = json!({"spec": {"a": 1, "gone": 1}, "x": {}});
        let modified = json!({"spec": {"a": 2}, "x": {}, "empty": {}});
        let current = json!({"spec": {"a": 1, "gone": 1, "theirs": 1}, "status": 1});
        assert_eq!(
            three_way(&original, &modified, &current),
            Ok(json!({"spec": {"a": 2, "gone": null}, "x": {}, "empty": {}}))
        );
    }
}
