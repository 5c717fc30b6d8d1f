//! Lists that are sets or maps hold each element once.

use std::collections::HashMap;

use ferry_api::FieldErrors;
use serde_json::{Map, Value};

use crate::path::Path;
use crate::structural::{List, Node};

pub fn object(object: &Map<String, Value>, node: &Node, path: &mut Path, errors: &mut FieldErrors) {
    for (name, value) in object {
        let (inner, length) = if let Some(property) = node.property(name) {
            (property, path.child(name))
        } else if let Some(values) = node.values() {
            (values, path.key(name))
        } else {
            continue;
        };
        self::value(value, inner, path, errors);
        path.truncate(length);
    }
}

fn value(value: &Value, node: &Node, path: &mut Path, errors: &mut FieldErrors) {
    match value {
        Value::Object(fields) => object(fields, node, path, errors),
        Value::Array(items) => {
            match node.list {
                List::Set => duplicates(items.iter(), |at| {
                    errors.duplicate(format!("{}[{at}]", path.as_str()), items[at].clone());
                }),
                List::Map => map(items, node, path, errors),
                List::Unset | List::Atomic => {}
            }
            let Some(inner) = node.items() else { return };
            for (index, item) in items.iter().enumerate() {
                let length = path.index(index);
                self::value(item, inner, path, errors);
                path.truncate(length);
            }
        }
        _ => {}
    }
}

fn map(items: &[Value], node: &Node, path: &Path, errors: &mut FieldErrors) {
    if let Some(at) = items.iter().position(|item| !item.is_object() && !item.is_null()) {
        let why = "must be an object for an array of list-type map";
        errors.invalid(format!("{}[{at}]", path.as_str()), items[at].clone(), why);
        return;
    }
    let key = |item: &Value| {
        let given = node.more().list_keys.iter().filter_map(|key| {
            let value = item.get(&**key)?;
            Some((key.to_string(), value.clone()))
        });
        Value::Object(given.collect())
    };
    let keys: Vec<Value> = items.iter().map(key).collect();
    duplicates(keys.iter(), |at| errors.duplicate(format!("{}[{at}]", path.as_str()), keys[at].clone()));
}

/// Tells the second of each value that comes more than once.
fn duplicates<'v>(values: impl ExactSizeIterator<Item = &'v Value>, mut tell: impl FnMut(usize)) {
    if values.len() < 2 {
        return;
    }
    let mut seen: HashMap<String, usize> = HashMap::with_capacity(values.len());
    for (at, value) in values.enumerate() {
        let times = seen.entry(value.to_string()).or_default();
        *times += 1;
        if *times == 2 {
            tell(at);
        }
    }
}
