//! An applied configuration laid over the live object.

use std::collections::{HashMap, HashSet};

use ferry_api::Schema;
use serde_json::{Map, Value};

use super::rows::{Owned, Rows};

/// Every field of `applied` wins; what it does not mention stays as it is.
pub fn objects(
    live: &Map<String, Value>,
    applied: &Map<String, Value>,
    schema: &Schema,
) -> Result<Map<String, Value>, String> {
    let (rows, root) = Rows::of(schema);
    rows.merge_maps(root, live, applied)
}

impl<'s> Rows<'s> {
    fn merge(self, owned: Owned<'s>, live: &Value, applied: &Value) -> Result<Value, String> {
        match (owned, live, applied) {
            (Owned::Struct(_) | Owned::Map(_) | Owned::Free, Value::Object(live), Value::Object(applied)) => {
                Ok(Value::Object(self.merge_maps(owned, live, applied)?))
            }
            // Naming a map without saying what is in it leaves it alone.
            (Owned::Struct(_) | Owned::Map(_) | Owned::Free, Value::Object(fields), Value::Null)
                if !fields.is_empty() =>
            {
                Ok(live.clone())
            }
            (Owned::List { .. } | Owned::Set(_), Value::Array(live), Value::Array(applied)) => {
                Ok(Value::Array(self.merge_lists(owned, live, applied)?))
            }
            (Owned::List { .. } | Owned::Set(_), Value::Array(items), Value::Null) if !items.is_empty() => {
                Ok(live.clone())
            }
            _ => Ok(applied.clone()),
        }
    }

    fn merge_maps(
        self,
        owned: Owned<'s>,
        live: &Map<String, Value>,
        applied: &Map<String, Value>,
    ) -> Result<Map<String, Value>, String> {
        let mut merged = live.clone();
        for (name, value) in applied {
            let new = match live.get(name) {
                Some(old) => self.merge(self.at(owned, name), old, value)?,
                None => value.clone(),
            };
            merged.insert(name.clone(), new);
        }
        Ok(merged)
    }

    /// Applied elements come in the applied order, with the live ones that nobody mentioned between
    /// them, as near as can be to where they were.
    fn merge_lists(self, owned: Owned<'s>, live: &[Value], applied: &[Value]) -> Result<Vec<Value>, String> {
        let elements = |items: &[Value]| -> Result<Vec<String>, String> {
            items
                .iter()
                .map(|item| {
                    self.element(owned, item).ok_or_else(|| "an element without its keys".to_string())
                })
                .collect()
        };
        let (live_elements, applied_elements) = (elements(live)?, elements(applied)?);
        let mut live_items: HashMap<&str, Option<&Value>> = HashMap::with_capacity(live.len());
        for (element, item) in live_elements.iter().zip(live) {
            // Live elements that share their keys give way to the one that is applied.
            live_items.entry(element).and_modify(|slot| *slot = None).or_insert(Some(item));
        }
        let mentioned: HashSet<&str> = applied_elements.iter().map(String::as_str).collect();
        let merged_item = |index: usize| -> Result<Value, String> {
            let item = &applied[index];
            match live_items.get(applied_elements[index].as_str()) {
                Some(Some(live)) => self.merge(self.items(owned), live, item),
                _ => Ok(item.clone()),
            }
        };

        // The applied elements that are live as well, in the applied order.
        let mut shared =
            applied_elements.iter().filter(|element| live_items.contains_key(element.as_str())).peekable();
        let mut done: HashSet<&str> = HashSet::with_capacity(applied.len());
        let mut merged = Vec::with_capacity(live.len().max(applied.len()));
        let (mut at_live, mut at_applied) = (0, 0);
        while at_live < live.len() || at_applied < applied.len() {
            if let (Some(here), Some(there)) = (live_elements.get(at_live), applied_elements.get(at_applied))
            {
                if here == there {
                    merged.push(merged_item(at_applied)?);
                    done.insert(there);
                    shared.next();
                    at_live += 1;
                    at_applied += 1;
                    continue;
                }
                // It comes later in the applied order than another one that is live.
                if mentioned.contains(here.as_str()) && shared.peek().is_some_and(|next| *next != here) {
                    at_live += 1;
                    continue;
                }
            }
            if let Some(here) = live_elements.get(at_live) {
                if !mentioned.contains(here.as_str()) {
                    merged.push(live[at_live].clone());
                    at_live += 1;
                    continue;
                }
                if done.contains(here.as_str()) {
                    at_live += 1;
                }
            }
            if let Some(there) = applied_elements.get(at_applied) {
                merged.push(merged_item(at_applied)?);
                done.insert(there);
                if shared.peek() == Some(&there) {
                    shared.next();
                }
                at_applied += 1;
            }
        }
        Ok(merged)
    }
}
