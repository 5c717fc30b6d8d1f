//! Laying a patch over an object, or over another patch.

use std::collections::{HashMap, HashSet};

use ferry_api::Types;
use serde_json::{Map, Value};

use super::fields::{FieldRow, Level};
use super::order::{arrange, identity};
use super::{
    DELETE_FROM_PRIMITIVE_LIST, Elements, LIST, MAP, PATCH, RETAIN_KEYS, SET_ELEMENT_ORDER, directive,
    elements, field_of, no_merge_key, wrong_type,
};
use crate::error::PatchError;
use crate::go_words;

type Fields = Map<String, Value>;

pub struct Merge<'s> {
    types: &'s Types,
    onto: MergeTarget,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum MergeTarget {
    /// Directives are obeyed and leave no trace.
    Object,
    /// Two patches become one: directives and nulls are kept for whoever applies the result.
    Patch,
}

impl<'s> Merge<'s> {
    pub fn into_object(types: &'s Types) -> Merge<'s> {
        Merge { types, onto: MergeTarget::Object }
    }

    pub fn into_patch(types: &'s Types) -> Merge<'s> {
        Merge { types, onto: MergeTarget::Patch }
    }

    pub fn map(&self, original: &mut Fields, mut patch: Fields, level: Level<'_>) -> Result<(), PatchError> {
        if let Some(directive) = patch.get(PATCH) {
            match directive.as_str() {
                Some("replace") => {
                    patch.remove(PATCH);
                    *original = patch;
                }
                Some("delete") => original.clear(),
                _ => {
                    return Err(unknown_directive(directive, &Value::Object(patch.clone())));
                }
            }
            return Ok(());
        }
        // Directives start with '$'; most patches have none.
        if patch.keys().any(|key| key.starts_with('$')) {
            self.retain_keys(original, &mut patch)?;
            self.element_orders(original, &mut patch, level)?;
            self.primitive_deletions(original, &mut patch, level)?;
        }
        for (key, value) in patch {
            self.field(original, key, value, level)?;
        }
        Ok(())
    }

    fn field(
        &self,
        original: &mut Fields,
        key: String,
        mut value: Value,
        level: Level<'_>,
    ) -> Result<(), PatchError> {
        match (original.get_mut(&key), value) {
            (_, Value::Null) => {
                original.remove(&key);
                if self.onto == MergeTarget::Patch {
                    original.insert(key, Value::Null);
                }
                return Ok(());
            }
            (Some(Value::Object(old)), Value::Object(new)) => {
                let row = level.map_field(self.types, &key)?;
                if row.strategy.replace {
                    *old = new;
                    return Ok(());
                }
                return self.map(old, new, row.level);
            }
            (Some(Value::Array(old)), Value::Array(new)) => {
                let row = level.list_field(self.types, &key)?;
                *old = self.list(std::mem::take(old), new, &row)?;
                return Ok(());
            }
            (_, other) => value = other,
        }
        if self.onto == MergeTarget::Object {
            discard_nulls(&mut value);
        }
        match without_directives(value) {
            Some(value) => original.insert(key, value),
            None => original.remove(&key),
        };
        Ok(())
    }

    fn list(
        &self,
        original: Vec<Value>,
        patch: Vec<Value>,
        row: &FieldRow<'_>,
    ) -> Result<Vec<Value>, PatchError> {
        if !row.strategy.merge {
            return Ok(patch);
        }
        if original.is_empty() && patch.is_empty() {
            return Ok(original);
        }
        let merge_key = row.merge_key();
        if elements(&[&original, &patch])? == Elements::Maps {
            let Some(key) = merge_key else {
                return Err(PatchError::contradicts(format!(
                    "cannot merge lists without merge key for {}",
                    row.level.go_kind()
                )));
            };
            return self.list_of_maps(original, patch, key, row.level);
        }
        if merge_key.is_some() {
            return Err(wrong_type(MAP, original.first().or(patch.first()).unwrap_or(&Value::Null)));
        }
        let mut merged = original.clone();
        merged.extend(patch.iter().cloned());
        Ok(arrange(without_duplicates(merged), &patch, &original, None))
    }

    fn list_of_maps(
        &self,
        mut original: Vec<Value>,
        patch: Vec<Value>,
        key: &str,
        level: Level<'_>,
    ) -> Result<Vec<Value>, PatchError> {
        let mut changes = Vec::with_capacity(patch.len());
        let mut deleted: HashSet<Value> = HashSet::new();
        let mut replace = false;
        for element in patch {
            match element.get(PATCH).map(|directive| (directive, directive.as_str())) {
                None => changes.push(element),
                Some((_, Some("delete"))) => {
                    let value = element.get(key).ok_or_else(|| no_merge_key(&element, key))?;
                    deleted.insert(value.clone());
                }
                Some((_, Some("replace"))) => replace = true,
                Some((_, Some("merge"))) => {
                    return Err(PatchError::contradicts(
                        "merging lists cannot yet be specified in the patch",
                    ));
                }
                Some((directive, _)) => return Err(unknown_directive(directive, &element)),
            }
        }
        if replace {
            return match changes.iter().find(|element| element.get(key).is_none()) {
                Some(element) => Err(no_merge_key(element, key)),
                None => Ok(changes),
            };
        }
        original.retain(|element| !element.get(key).is_some_and(|value| deleted.contains(value)));
        let asked = keys_only(&changes, key)?;
        let server = keys_only(&original, key)?;
        let mut places = Places::new(&original, key, changes.len());
        for change in changes {
            let value = change.get(key).ok_or_else(|| no_merge_key(&change, key))?;
            match (places.find(&original, value), change) {
                (Some(place), Value::Object(change)) => {
                    if let Value::Object(old) = &mut original[place] {
                        self.map(old, change, level)?;
                    }
                }
                (_, change) => {
                    places.add(&original, &change);
                    original.push(change);
                }
            }
        }
        if let Some(element) = original.iter().find(|element| element.get(key).is_none()) {
            return Err(no_merge_key(element, key));
        }
        Ok(arrange(original, &asked, &server, Some(key)))
    }

    /// `$retainKeys` drops every field it does not name. A patch that sets a field it would drop
    /// contradicts itself.
    fn retain_keys(&self, original: &mut Fields, patch: &mut Fields) -> Result<(), PatchError> {
        let Some(directive) = patch.remove(RETAIN_KEYS) else { return Ok(()) };
        if self.onto == MergeTarget::Patch {
            return match original.get(RETAIN_KEYS) {
                Some(other) if *other != directive => Err(PatchError::contradicts(format!(
                    "{} and {} are not deep equal: this may happen when calculating the 3-way diff patch",
                    go_words::value(other),
                    go_words::value(&directive)
                ))),
                _ => {
                    original.insert(RETAIN_KEYS.to_string(), directive);
                    Ok(())
                }
            };
        }
        let invalid = || PatchError::malformed("invalid patch format of retainKeys");
        let retained = directive.as_array().ok_or_else(invalid)?;
        let retained: HashSet<&str> = retained.iter().filter_map(Value::as_str).collect();
        let retains = |key: &str| retained.contains(key);
        let sets = |key: &str, value: &Value| {
            !value.is_null()
                && !key.starts_with(DELETE_FROM_PRIMITIVE_LIST)
                && !key.starts_with(SET_ELEMENT_ORDER)
        };
        if patch.iter().any(|(key, value)| sets(key, value) && !retains(key)) {
            return Err(invalid());
        }
        original.retain(|key, _| retains(key));
        Ok(())
    }

    /// Each `$setElementOrder/x` is merged together with its list `x`, which then is done.
    fn element_orders(
        &self,
        original: &mut Fields,
        patch: &mut Fields,
        level: Level<'_>,
    ) -> Result<(), PatchError> {
        for (directive, order) in take_directives(patch, SET_ELEMENT_ORDER) {
            let invalid = || PatchError::malformed("invalid patch format of setElementOrder list");
            if self.onto == MergeTarget::Patch {
                match original.get(&directive) {
                    Some(other) if *other != order => return Err(invalid()),
                    _ => original.insert(directive.clone(), order.clone()),
                };
            }
            let Value::Array(order) = order else { return Err(wrong_type(LIST, &order)) };
            let field = field_of(&directive, SET_ELEMENT_ORDER).ok_or_else(invalid)?;
            self.ordered_list(original, patch, field, &order, level)?;
        }
        Ok(())
    }

    fn ordered_list(
        &self,
        original: &mut Fields,
        patch: &mut Fields,
        field: &str,
        order: &[Value],
        level: Level<'_>,
    ) -> Result<(), PatchError> {
        let list = |value: Option<&Value>| match value {
            None => Ok(None),
            Some(Value::Array(list)) => Ok(Some(list.clone())),
            Some(other) => Err(wrong_type(LIST, other)),
        };
        let server = list(original.get(field))?;
        let changes = list(patch.get(field))?;
        let row = level.list_field(self.types, field)?;
        let key = row.merge_key();
        check_order(changes.as_deref().unwrap_or(&[]), order, key)?;
        // Done with this list, whatever it was.
        patch.remove(field);
        let (server, merged, kinds) = match (server, changes) {
            (None, None) => return Ok(()),
            (Some(server), None) => (server.clone(), server.clone(), elements(&[&server])?),
            (None, Some(changes)) => {
                let kinds = elements(&[&changes])?;
                (Vec::new(), changes.into_iter().filter_map(without_directives).collect(), kinds)
            }
            (Some(server), Some(changes)) => {
                let kinds = elements(&[&server, &changes])?;
                let places = match key {
                    Some(key) => filled_places(&server, &changes, key),
                    None => server.clone(),
                };
                (places, self.list(server, changes, &row)?, kinds)
            }
        };
        if let (Some(key), Elements::Maps) = (key, kinds) {
            keys_only(order, key)?;
            if let Some(element) = merged.iter().find(|element| element.get(key).is_none()) {
                return Err(no_merge_key(element, key));
            }
        }
        original.insert(field.to_string(), Value::Array(arrange(merged, order, &server, key)));
        Ok(())
    }

    fn primitive_deletions(
        &self,
        original: &mut Fields,
        patch: &mut Fields,
        level: Level<'_>,
    ) -> Result<(), PatchError> {
        for (directive, deleted) in take_directives(patch, DELETE_FROM_PRIMITIVE_LIST) {
            if self.onto == MergeTarget::Patch {
                original.insert(directive, deleted);
                continue;
            }
            let field = field_of(&directive, DELETE_FROM_PRIMITIVE_LIST)
                .ok_or_else(|| PatchError::malformed("invalid patch format of primitive list"))?;
            match (original.get_mut(field), deleted) {
                (_, Value::Null) => {
                    original.remove(field);
                }
                (Some(Value::Array(old)), Value::Array(deleted)) => {
                    let row = level.list_field(self.types, field)?;
                    if old.is_empty() && deleted.is_empty() {
                        continue;
                    }
                    if elements(&[old, &deleted])? == Elements::Maps {
                        let key = row.merge_key().ok_or_else(|| {
                            PatchError::contradicts(format!(
                                "cannot merge lists without merge key for {}",
                                row.level.go_kind()
                            ))
                        })?;
                        *old = self.list_of_maps(std::mem::take(old), deleted, key, row.level)?;
                    } else {
                        let deleted: HashSet<&Value> = deleted.iter().collect();
                        old.retain(|element| !deleted.contains(element));
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// Takes the directives of a sort out of a patch.
fn take_directives(patch: &mut Fields, prefix: &str) -> Vec<(String, Value)> {
    let names: Vec<String> = patch.keys().filter(|key| key.starts_with(prefix)).cloned().collect();
    names.into_iter().filter_map(|name| patch.remove(&name).map(|value| (name, value))).collect()
}

/// The server's list as far as its order goes: new elements take the places that deletions leave.
fn filled_places(server: &[Value], changes: &[Value], key: &str) -> Vec<Value> {
    if changes.iter().any(|change| directive(change) == Some("replace")) {
        return server.to_vec();
    }
    let deletions = changes.iter().filter(|change| directive(change) == Some("delete"));
    let deleted: HashSet<Option<&Value>> = deletions.map(|change| change.get(key)).collect();
    let mut places: Vec<Value> =
        server.iter().filter(|element| !deleted.contains(&element.get(key))).cloned().collect();
    let mut there: HashSet<Option<Value>> = places.iter().map(|place| place.get(key).cloned()).collect();
    for change in changes.iter().filter(|change| change.get(PATCH).is_none()) {
        if places.len() == server.len() {
            break;
        }
        if there.insert(change.get(key).cloned()) {
            places.push(change.clone());
        }
    }
    places
}

/// The elements of the patch must stand in the order asked for, and all of them must be in it.
fn check_order(changes: &[Value], order: &[Value], key: Option<&str>) -> Result<(), PatchError> {
    if changes.is_empty() || order.is_empty() {
        return Ok(());
    }
    if key.is_some()
        && let Some(other) = changes.iter().find(|change| !change.is_object())
    {
        return Err(wrong_type(MAP, other));
    }
    let is_same = |change: &Value, element: &Value| match key {
        None => Ok(change == element),
        Some(key) => {
            let value = |map: &Value| match map.get(key) {
                Some(value) => Ok(value.clone()),
                None if map.is_object() => Err(no_merge_key(map, key)),
                None => Err(wrong_type(MAP, map)),
            };
            Ok(value(change)? == value(element)?)
        }
    };
    let mut wanted = order.iter();
    for change in changes {
        match directive(change) {
            Some("delete") => continue,
            // Directives have no place of their own, but come before the end of the order.
            _ if change.get(PATCH).is_some() && wanted.len() > 0 => continue,
            _ => {}
        }
        let mut found = false;
        for element in wanted.by_ref() {
            if is_same(change, element)? {
                found = true;
                break;
            }
        }
        if !found {
            return Err(PatchError::contradicts(format!(
                "The order in patch list:\n{}\n doesn't match {SET_ELEMENT_ORDER} list:\n{}\n",
                go_words::value(&Value::Array(changes.to_vec())),
                go_words::value(&Value::Array(order.to_vec()))
            )));
        }
    }
    Ok(())
}

fn unknown_directive(directive: &Value, map: &Value) -> PatchError {
    PatchError::contradicts(format!(
        "unknown patch type: {} in map: {}",
        go_words::text(directive),
        go_words::value(map)
    ))
}

/// Elements with nothing but what identifies them, so that their order outlives the merge.
fn keys_only(list: &[Value], key: &str) -> Result<Vec<Value>, PatchError> {
    list.iter()
        .map(|element| {
            let value = element.get(key).ok_or_else(|| no_merge_key(element, key))?;
            Ok(Value::Object(Map::from_iter([(key.to_string(), value.clone())])))
        })
        .collect()
}

/// Where the elements of a list are, by merge key. Long lists get a table.
struct Places<'k> {
    key: &'k str,
    table: Option<HashMap<Value, usize>>,
}

impl<'k> Places<'k> {
    fn new(list: &[Value], key: &'k str, lookups: usize) -> Places<'k> {
        let mut places = Places { key, table: None };
        if list.len().max(lookups) * lookups > 256 {
            let mut table = HashMap::with_capacity(list.len() + lookups);
            for (place, element) in list.iter().enumerate() {
                if let Some(value) = identity(element, Some(key)) {
                    table.entry(value.clone()).or_insert(place);
                }
            }
            places.table = Some(table);
        }
        places
    }

    fn find(&self, list: &[Value], value: &Value) -> Option<usize> {
        match &self.table {
            Some(table) => table.get(value).copied(),
            None => list.iter().position(|element| element.get(self.key) == Some(value)),
        }
    }

    /// `element` is about to be pushed onto `list`.
    fn add(&mut self, list: &[Value], element: &Value) {
        if let (Some(table), Some(value)) = (&mut self.table, element.get(self.key)) {
            table.entry(value.clone()).or_insert(list.len());
        }
    }
}

fn without_duplicates(list: Vec<Value>) -> Vec<Value> {
    if list.len() <= 16 {
        return list.into_iter().fold(Vec::new(), |mut unique, element| {
            if !unique.contains(&element) {
                unique.push(element);
            }
            unique
        });
    }
    let mut seen = HashSet::with_capacity(list.len());
    list.into_iter().filter(|element| seen.insert(element.clone())).collect()
}

/// A value that is new to the object: what asks for its own removal is dropped. Other directives in
/// it are not understood at this place and stay, for the decoder to report.
fn without_directives(value: Value) -> Option<Value> {
    match value {
        Value::Object(fields) if fields.contains_key(PATCH) => None,
        Value::Object(fields) => Some(Value::Object(
            fields.into_iter().filter_map(|(key, value)| Some((key, without_directives(value)?))).collect(),
        )),
        Value::Array(list) => Some(Value::Array(list.into_iter().filter_map(without_directives).collect())),
        scalar => Some(scalar),
    }
}

fn discard_nulls(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|_, value| !value.is_null());
            fields.values_mut().for_each(discard_nulls);
        }
        Value::Array(list) => list.iter_mut().for_each(discard_nulls),
        _ => {}
    }
}
