//! Writing the patch that leads from one object to another.

use ferry_api::Types;
use serde_json::{Map, Value, json};

use super::fields::{FieldRow, Level};
use super::order::ranks;
use super::{
    DELETE_FROM_PRIMITIVE_LIST, Elements, PATCH, RETAIN_KEYS, SET_ELEMENT_ORDER, elements, no_merge_key,
};
use crate::error::PatchError;
use crate::go_words;

type Fields = Map<String, Value>;

/// Which differences go into the patch.
pub struct Differences<'s> {
    pub types: &'s Types,
    pub changes: bool,
    pub deletions: bool,
}

impl Differences<'_> {
    pub fn of_maps(
        &self,
        original: &Fields,
        modified: &Fields,
        level: Level<'_>,
        retain_keys: bool,
    ) -> Result<Fields, PatchError> {
        let mut patch = Map::new();
        for (key, new) in modified {
            match (original.get(key), new) {
                (Some(old), new) if key == PATCH => {
                    if !old.is_string() || !new.is_string() {
                        return Err(PatchError::contradicts(format!(
                            "invalid value for special key: {PATCH}"
                        )));
                    }
                    if old != new {
                        patch.insert(key.clone(), new.clone());
                    }
                }
                (Some(old), new) if old == new => {}
                (Some(Value::Object(old)), Value::Object(new)) => {
                    let row = level.map_field(self.types, key)?;
                    if !row.strategy.replace {
                        let inner = self.of_maps(old, new, row.level, row.strategy.retain_keys)?;
                        if !inner.is_empty() {
                            patch.insert(key.clone(), Value::Object(inner));
                        }
                    } else if self.changes {
                        patch.insert(key.clone(), Value::Object(new.clone()));
                    }
                }
                (Some(Value::Array(old)), Value::Array(new)) => {
                    let row = level.list_field(self.types, key)?;
                    if row.strategy.merge {
                        self.of_lists(old, new, key, &row, &mut patch)?;
                    } else if self.changes {
                        patch.insert(key.clone(), Value::Array(new.clone()));
                    }
                }
                _ if self.changes => {
                    patch.insert(key.clone(), new.clone());
                }
                _ => {}
            }
        }
        if self.deletions {
            let gone = original.keys().filter(|key| !modified.contains_key(*key));
            patch.extend(gone.map(|key| (key.clone(), Value::Null)));
        }
        if retain_keys {
            let given = modified.iter().filter(|(_, value)| !value.is_null());
            let kept: Vec<&String> = given.map(|(key, _)| key).collect();
            let drops = original.keys().any(|key| !modified.contains_key(key));
            if !kept.is_empty() && (!patch.is_empty() || drops) {
                patch.insert(RETAIN_KEYS.to_string(), json!(kept));
            }
        }
        Ok(patch)
    }

    fn of_lists(
        &self,
        original: &[Value],
        modified: &[Value],
        field: &str,
        row: &FieldRow<'_>,
        patch: &mut Fields,
    ) -> Result<(), PatchError> {
        if original.is_empty() {
            if !modified.is_empty() && self.changes {
                patch.insert(field.to_string(), Value::Array(modified.to_vec()));
            }
            return Ok(());
        }
        let (changed, deleted, order) = match elements(&[original, modified])? {
            Elements::Maps => {
                let key = row.merge_key().unwrap_or("");
                let changed = self.of_lists_of_maps(original, modified, key, row)?;
                let reordered = original.len() != modified.len()
                    || original.iter().zip(modified).any(|(old, new)| old.get(key) != new.get(key));
                let ordered = !changed.is_empty() || (self.changes && reordered);
                let order = modified.iter().map(|element| json!({ key: element.get(key) })).collect();
                (changed, Vec::new(), if ordered { order } else { Vec::new() })
            }
            Elements::Scalars => {
                let (added, deleted) = self.of_scalars(original, modified);
                let ordered = !deleted.is_empty() || (self.changes && original != modified);
                (added, deleted, if ordered { modified.to_vec() } else { Vec::new() })
            }
        };
        let mut put = |key: String, list: Vec<Value>| {
            if !list.is_empty() {
                patch.insert(key, Value::Array(list));
            }
        };
        put(field.to_string(), changed);
        put(format!("{DELETE_FROM_PRIMITIVE_LIST}/{field}"), deleted);
        put(format!("{SET_ELEMENT_ORDER}/{field}"), order);
        Ok(())
    }

    /// Changed and new elements in the order of `modified`, then deletions.
    fn of_lists_of_maps(
        &self,
        original: &[Value],
        modified: &[Value],
        key: &str,
        row: &FieldRow<'_>,
    ) -> Result<Vec<Value>, PatchError> {
        let old = sorted_by_key(original, key)?;
        let new = sorted_by_key(modified, key)?;
        let mut changed: Vec<Value> = Vec::new();
        let mut deleted: Vec<Value> = Vec::new();
        let (mut old, mut new) = (old.into_iter().peekable(), new.into_iter().peekable());
        loop {
            // Keys are compared as text, so a port written as a string still meets its number.
            let side = match (old.peek(), new.peek()) {
                (None, None) => break,
                (Some(_), None) => std::cmp::Ordering::Less,
                (None, Some(_)) => std::cmp::Ordering::Greater,
                (Some(old), Some(new)) => old.0.cmp(&new.0),
            };
            let gone = if side.is_le() { old.next() } else { None };
            let come = if side.is_ge() { new.next() } else { None };
            match (gone, come) {
                (Some((_, old)), Some((_, new))) => {
                    let (Value::Object(old), Value::Object(new)) = (old, new) else { continue };
                    let mut inner = self.of_maps(old, new, row.level, row.strategy.retain_keys)?;
                    if !inner.is_empty() {
                        inner.insert(key.to_string(), new.get(key).cloned().unwrap_or(Value::Null));
                        changed.push(Value::Object(inner));
                    }
                }
                (None, Some((_, new))) if self.changes => changed.push(new.clone()),
                (Some((_, old)), None) if self.deletions => {
                    deleted.push(json!({ key: old.get(key), PATCH: "delete" }));
                }
                _ => {}
            }
        }
        let mut places: Vec<(Option<usize>, Value)> =
            ranks(&changed, modified, Some(key)).into_iter().zip(changed).collect();
        places.sort_by_key(|(rank, _)| *rank);
        Ok(places.into_iter().map(|(_, element)| element).chain(deleted).collect())
    }

    fn of_scalars(&self, original: &[Value], modified: &[Value]) -> (Vec<Value>, Vec<Value>) {
        let absent = |list: &[Value], other: &[Value]| -> Vec<Value> {
            let there = ranks(list, other, None);
            list.iter()
                .zip(there)
                .filter(|(_, rank)| rank.is_none())
                .map(|(value, _)| value.clone())
                .collect()
        };
        let added = if self.changes { absent(modified, original) } else { Vec::new() };
        let mut deleted = if self.deletions { absent(original, modified) } else { Vec::new() };
        deleted.sort_by_cached_key(go_words::value);
        deleted.dedup();
        (added, deleted)
    }
}

fn sorted_by_key<'a>(list: &'a [Value], key: &str) -> Result<Vec<(String, &'a Value)>, PatchError> {
    let mut keyed = list
        .iter()
        .map(|element| {
            let value = element.get(key).ok_or_else(|| no_merge_key(element, key))?;
            Ok((go_words::value(value), element))
        })
        .collect::<Result<Vec<_>, PatchError>>()?;
    keyed.sort_by(|a, b| a.0.cmp(&b.0));
    Ok(keyed)
}
