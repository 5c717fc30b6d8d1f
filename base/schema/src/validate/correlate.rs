//! The old value beside the new one.

use serde_json::{Map, Value};

use crate::structural::{List, Node};

/// The element of the old list that is the same as this one: only lists that are maps tell. `old` is the
/// list before.
pub fn element<'v>(item: &Value, old: Option<&'v Value>, node: &Node) -> Option<&'v Value> {
    if node.list != List::Map {
        return None;
    }
    let keys = &node.more().list_keys;
    let item = item.as_object()?;
    let old = old?.as_array()?;
    let scalar = |value: &Value| !matches!(value, Value::Null | Value::Array(_) | Value::Object(_));
    if keys.is_empty() || !keys.iter().all(|key| item.get(&**key).is_some_and(scalar)) {
        return None;
    }
    let same = |other: &&Value| {
        let Some(other) = other.as_object() else { return false };
        keys.iter().all(|key| other.get(&**key) == item.get(&**key))
    };
    old.iter().find(same)
}

/// The elements of an old list by their keys, where there are many: a look-up for each new element must not
/// walk the list.
pub struct Elements<'v> {
    old: Option<&'v Value>,
    by_key: Option<std::collections::HashMap<String, &'v Value>>,
}

/// Below this a walk is cheaper than keys.
const FEW: usize = 8;

impl<'v> Elements<'v> {
    pub fn of(old: Option<&'v Value>, node: &Node) -> Elements<'v> {
        let many = old.and_then(Value::as_array).filter(|old| old.len() > FEW && node.list == List::Map);
        let by_key = many.map(|old| {
            let mut by_key = std::collections::HashMap::with_capacity(old.len());
            for item in old {
                if let Some(key) = key_of(item.as_object(), node) {
                    by_key.entry(key).or_insert(item);
                }
            }
            by_key
        });
        Elements { old, by_key }
    }

    pub fn get(&self, item: &Value, node: &Node) -> Option<&'v Value> {
        match &self.by_key {
            Some(by_key) => by_key.get(&key_of(item.as_object(), node)?).copied(),
            None => element(item, self.old, node),
        }
    }
}

fn key_of(item: Option<&Map<String, Value>>, node: &Node) -> Option<String> {
    use std::fmt::Write;
    let keys = &node.more().list_keys;
    let mut text = String::new();
    for key in keys {
        match item?.get(&**key)? {
            Value::Null | Value::Array(_) | Value::Object(_) => return None,
            scalar => {
                let _ = write!(text, "{scalar}\0");
            }
        }
    }
    (!keys.is_empty()).then_some(text)
}
