//! JSON patch, RFC 6902, in the dialect the API has always spoken: an index may count from the end,
//! `replace` adds a key that is missing, and `test` takes an absent value for null.
//!
//! The `json-patch` crate follows the RFC to the letter and cannot bound what a patch costs, so the
//! six operations are written out here.

use std::io;

use ferry_api::{MAX_DEPTH, go_json};
use serde_json::Value;

use crate::error::PatchError;

const MAX_OPERATIONS: usize = 10_000;
/// Copies may double an object with every operation; together they may add this much.
const MAX_COPIED_BYTES: usize = 3 << 20;
/// Values shifted in lists and looked at for their depth, over the whole patch. An honest patch stays
/// thousands of times below it.
const MAX_STEPS: usize = 50_000_000;

pub fn apply(value: &mut Value, patch: &[u8]) -> Result<(), PatchError> {
    let operations = decode(patch)?;
    let mut work = Work::default();
    for operation in operations {
        run(value, operation, &mut work)?;
    }
    Ok(())
}

struct Operation {
    op: String,
    path: Option<String>,
    from: Option<String>,
    value: Option<Value>,
}

/// What the patch has cost so far.
#[derive(Default)]
struct Work {
    copied: usize,
    steps: usize,
}

fn decode(patch: &[u8]) -> Result<Vec<Operation>, PatchError> {
    let bad = |why: String| PatchError::Malformed(format!("error decoding patch: {why}"));
    let operations = match serde_json::from_slice(patch) {
        Ok(Value::Array(operations)) => operations,
        Ok(Value::Null) => Vec::new(),
        Ok(other) => {
            return Err(bad(format!(
                "json: cannot unmarshal {} into Go value of type []handlers.jsonPatchOp",
                go_json::json_type(&other)
            )));
        }
        Err(error) => return Err(bad(error.to_string())),
    };
    if operations.len() > MAX_OPERATIONS {
        return Err(PatchError::TooLarge(format!(
            "The allowed maximum operations in a JSON patch is {MAX_OPERATIONS}, got {}",
            operations.len()
        )));
    }
    operations
        .into_iter()
        .map(|operation| match operation {
            Value::Object(mut fields) => {
                let mut text = |name: &str| match fields.remove(name) {
                    None | Some(Value::Null) => Ok(None),
                    Some(Value::String(text)) => Ok(Some(text)),
                    Some(other) => Err(bad(format!(
                        "json: cannot unmarshal {} into Go struct field jsonPatchOp.{name} of type string",
                        go_json::json_type(&other)
                    ))),
                };
                let (op, path, from) = (text("op")?, text("path")?, text("from")?);
                let op = op.unwrap_or_else(|| "unknown".to_string());
                Ok(Operation { op, path, from, value: fields.remove("value") })
            }
            other => Err(bad(format!(
                "json: cannot unmarshal {} into Go value of type handlers.jsonPatchOp",
                go_json::json_type(&other)
            ))),
        })
        .collect()
}

fn run(document: &mut Value, operation: Operation, work: &mut Work) -> Result<(), PatchError> {
    let Operation { op, path, from, value } = operation;
    let need = |pointer: Option<String>, name: &str| {
        pointer.ok_or_else(|| PatchError::does_not_apply(format!("{op} operation without {name}")))
    };
    match op.as_str() {
        "add" => add(document, &need(path, "path")?, value.unwrap_or(Value::Null), work),
        "remove" => remove(document, &need(path, "path")?, work).map(drop),
        "replace" => replace(document, &need(path, "path")?, value.unwrap_or(Value::Null), work),
        "move" => {
            let from = need(from, "from")?;
            let moved = remove(document, &from, work)?;
            add(document, &need(path, "path")?, moved, work)
        }
        "copy" => {
            let from = need(from, "from")?;
            let path = need(path, "path")?;
            let (parent, key) = parent(document, &from)?;
            let original = match parent {
                Value::Object(fields) => fields.get(&key),
                Value::Array(items) => Some(&items[index(&key, items.len(), &from)?]),
                _ => None,
            };
            let copy = original.cloned().unwrap_or(Value::Null);
            work.copied += size(&copy);
            if work.copied > MAX_COPIED_BYTES {
                return Err(PatchError::does_not_apply(format!(
                    "copies of more than {MAX_COPIED_BYTES} bytes at {path}"
                )));
            }
            add(document, &path, copy, work)
        }
        "test" => test(document, &need(path, "path")?, value),
        other => Err(PatchError::does_not_apply(format!("unexpected kind: {other}"))),
    }
}

fn add(document: &mut Value, path: &str, value: Value, work: &mut Work) -> Result<(), PatchError> {
    work.nest(path, &value)?;
    let (parent, key) = parent(document, path)?;
    match parent {
        Value::Object(fields) => {
            fields.insert(key, value);
        }
        Value::Array(items) if key == "-" => items.push(value),
        Value::Array(items) => {
            // One past the end is a place to add at, and counting from the end starts there.
            let at = index(&key, items.len() + 1, path)?;
            work.spend(items.len() - at)?;
            items.insert(at, value);
        }
        _ => return Err(missing(path)),
    }
    Ok(())
}

fn remove(document: &mut Value, path: &str, work: &mut Work) -> Result<Value, PatchError> {
    let (parent, key) = parent(document, path)?;
    match parent {
        Value::Object(fields) => fields.remove(&key).ok_or_else(|| missing(path)),
        Value::Array(items) => {
            let at = index(&key, items.len(), path)?;
            work.spend(items.len() - at)?;
            Ok(items.remove(at))
        }
        _ => Err(missing(path)),
    }
}

fn replace(document: &mut Value, path: &str, value: Value, work: &mut Work) -> Result<(), PatchError> {
    work.nest(path, &value)?;
    if path.is_empty() {
        if !value.is_object() && !value.is_array() {
            return Err(PatchError::does_not_apply("a document is an object or an array"));
        }
        *document = value;
        return Ok(());
    }
    let (parent, key) = parent(document, path)?;
    match parent {
        Value::Object(fields) => {
            fields.insert(key, value);
        }
        Value::Array(items) => {
            let at = index(&key, items.len(), path)?;
            items[at] = value;
        }
        _ => return Err(missing(path)),
    }
    Ok(())
}

fn test(document: &mut Value, path: &str, expected: Option<Value>) -> Result<(), PatchError> {
    let expected = expected.unwrap_or(Value::Null);
    let found = if path.is_empty() {
        *document == expected
    } else {
        let (parent, key) = parent(document, path)?;
        match parent {
            Value::Object(fields) => *fields.get(&key).unwrap_or(&Value::Null) == expected,
            Value::Array(items) => items[index(&key, items.len(), path)?] == expected,
            _ => return Err(missing(path)),
        }
    };
    if found { Ok(()) } else { Err(PatchError::TestFailed(format!("testing value {path} failed"))) }
}

/// The value that holds what `path` points to, and the key in it.
fn parent<'a>(document: &'a mut Value, path: &str) -> Result<(&'a mut Value, String), PatchError> {
    let mut keys = path.split('/').skip(1).peekable();
    let mut value = document;
    while let Some(key) = keys.next() {
        let key = key.replace("~1", "/").replace("~0", "~");
        if keys.peek().is_none() {
            return Ok((value, key));
        }
        value = match value {
            Value::Object(fields) => fields.get_mut(&key).ok_or_else(|| missing(path))?,
            Value::Array(items) => {
                let at = index(&key, items.len(), path)?;
                &mut items[at]
            }
            _ => return Err(missing(path)),
        };
    }
    Err(missing(path))
}

/// A place among `len`, counted from the end when negative.
fn index(key: &str, len: usize, path: &str) -> Result<usize, PatchError> {
    let number: i64 = key.parse().map_err(|_| missing(path))?;
    let len = i64::try_from(len).map_err(|_| missing(path))?;
    let at = if number < 0 { number.saturating_add(len) } else { number };
    if (0..len).contains(&at) { usize::try_from(at).map_err(|_| missing(path)) } else { Err(missing(path)) }
}

fn missing(path: &str) -> PatchError {
    PatchError::does_not_apply(format!("the document is missing path: {path}"))
}

impl Work {
    fn spend(&mut self, steps: usize) -> Result<(), PatchError> {
        self.steps = self.steps.saturating_add(steps);
        if self.steps > MAX_STEPS {
            return Err(PatchError::TooLarge("the JSON patch moves too many values".to_string()));
        }
        Ok(())
    }

    /// Refuses a value that would nest too deep at `path`.
    fn nest(&mut self, path: &str, value: &Value) -> Result<(), PatchError> {
        let (depth, nodes) = measure(value);
        self.spend(nodes)?;
        if path.matches('/').count() + depth > MAX_DEPTH {
            return Err(PatchError::does_not_apply(format!("exceeded max depth at {path}")));
        }
        Ok(())
    }
}

/// How deep a value nests, and how many values it holds.
fn measure(value: &Value) -> (usize, usize) {
    let inner = |depth: (usize, usize), value: &Value| {
        let (deep, nodes) = measure(value);
        (depth.0.max(deep), depth.1 + nodes)
    };
    let (depth, nodes) = match value {
        Value::Array(items) => items.iter().fold((0, 0), inner),
        Value::Object(fields) => fields.values().fold((0, 0), inner),
        _ => return (0, 1),
    };
    (depth + 1, nodes + 1)
}

fn size(value: &Value) -> usize {
    struct Count(usize);
    impl io::Write for Count {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0 += bytes.len();
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let mut count = Count(0);
    serde_json::to_writer(&mut count, value).expect("a JSON value writes to a counter");
    count.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn check(patch: Value, expected: Value) {
        let mut value = json!({"a": {"b": 1}, "l": [1, 2, 3], "s/l~h": 1});
        apply(&mut value, patch.to_string().as_bytes()).expect("applies");
        assert_eq!(value, expected);
    }

    fn refuse(patch: &str) -> PatchError {
        let mut value = json!({"a": {"b": 1}, "l": [1, 2, 3]});
        apply(&mut value, patch.as_bytes()).expect_err("refused")
    }

    #[test]
    fn operations_change_objects_and_lists() {
        let rest = |a: Value, l: Value| json!({"a": a, "l": l, "s/l~h": 1});
        let list = json!([1, 2, 3]);
        check(
            json!([{"op": "add", "path": "/a/c", "value": 2}]),
            rest(json!({"b": 1, "c": 2}), list.clone()),
        );
        check(json!([{"op": "add", "path": "/l/-", "value": 4}]), rest(json!({"b": 1}), json!([1, 2, 3, 4])));
        check(json!([{"op": "add", "path": "/l/1", "value": 9}]), rest(json!({"b": 1}), json!([1, 9, 2, 3])));
        check(json!([{"op": "remove", "path": "/l/0"}]), rest(json!({"b": 1}), json!([2, 3])));
        check(
            json!([{"op": "move", "from": "/l/0", "path": "/a/m"}]),
            rest(json!({"b": 1, "m": 1}), json!([2, 3])),
        );
        check(
            json!([{"op": "copy", "from": "/l", "path": "/a/b"}]),
            rest(json!({"b": [1, 2, 3]}), list.clone()),
        );
        check(json!([{"op": "test", "path": "/s~1l~0h", "value": 1}]), rest(json!({"b": 1}), list));
    }

    #[test]
    fn the_dialect_counts_from_the_end_and_replaces_what_is_missing() {
        check(
            json!([{"op": "remove", "path": "/l/-1"}, {"op": "add", "path": "/l/-1", "value": 7}]),
            json!({"a": {"b": 1}, "l": [1, 2, 7], "s/l~h": 1}),
        );
        check(
            json!([{"op": "test", "path": "/x", "value": null}, {"op": "replace", "path": "/x", "value": 1}]),
            json!({"a": {"b": 1}, "l": [1, 2, 3], "s/l~h": 1, "x": 1}),
        );
    }

    #[test]
    fn json_patches_that_do_not_apply_are_refused() {
        for patch in [
            r#"[{"op":"remove","path":"/a/zz"}]"#,
            r#"[{"op":"remove","path":"/l/3"}]"#,
            r#"[{"op":"remove","path":"/l/-4"}]"#,
            r#"[{"op":"add","path":"/q/w","value":1}]"#,
            r#"[{"op":"add","path":"","value":1}]"#,
            r#"[{"op":"add","path":"/l/x","value":1}]"#,
            r#"[{"op":"add","value":1}]"#,
            r#"[{"op":"nop","path":"/a"}]"#,
            r#"[{"op":"replace","path":"","value":1}]"#,
            r#"[{"op":"replace","path":"/a/b/c","value":1}]"#,
        ] {
            assert!(matches!(refuse(patch), PatchError::DoesNotApply(_)), "{patch}");
        }
        let test = r#"[{"op":"test","path":"/a/b","value":2}]"#;
        assert!(matches!(refuse(test), PatchError::TestFailed(_)));
    }

    #[test]
    fn malformed_json_patches_have_upstreams_messages() {
        assert_eq!(
            refuse(r#"{"a":1}"#).to_string(),
            "error decoding patch: json: cannot unmarshal object into Go value of type []handlers.jsonPatchOp"
        );
        assert_eq!(
            refuse(r#"[{"op":"add","path":5}]"#).to_string(),
            "error decoding patch: json: cannot unmarshal number into Go struct field jsonPatchOp.path of type string"
        );
        assert!(matches!(refuse("xx"), PatchError::Malformed(_)));
    }

    #[test]
    fn work_is_bounded() {
        let many = vec![json!({"op": "test", "path": "/a/b", "value": 1}); MAX_OPERATIONS + 1];
        assert_eq!(
            refuse(&Value::Array(many).to_string()),
            PatchError::TooLarge(
                "The allowed maximum operations in a JSON patch is 10000, got 10001".to_string()
            )
        );
        let double: Vec<Value> =
            (0..64).map(|copy| json!({"op": "copy", "from": "/a", "path": format!("/a/{copy}")})).collect();
        assert!(matches!(refuse(&Value::Array(double).to_string()), PatchError::DoesNotApply(_)));
        let path = (0..MAX_DEPTH + 1).fold(String::new(), |path, _| path + "/a");
        let deep: Vec<Value> = (1..=MAX_DEPTH + 1)
            .map(|depth| json!({"op": "add", "path": &path[..2 * depth], "value": {}}))
            .collect();
        assert!(matches!(refuse(&Value::Array(deep).to_string()), PatchError::DoesNotApply(_)));
    }
}
