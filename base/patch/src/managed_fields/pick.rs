//! Taking fields out of an object, or taking out everything else.

use ferry_api::Schema;
use serde_json::{Map, Value};

use super::element;
use super::field_set::{FieldSet, is_member};
use super::rows::{Owned, Rows};

/// The object without the fields of `set`. A map or list that loses all it had is left as null, for
/// the decoder to drop.
pub fn remove(object: &Map<String, Value>, set: &FieldSet, schema: &Schema) -> Map<String, Value> {
    let (rows, root) = Rows::of(schema);
    rows.remove_from_map(root, object, set.as_nodes())
}

/// Only the fields of `set`, with the keys that tell list elements apart: what a manager applied.
pub fn extract(object: &Map<String, Value>, set: &FieldSet, schema: &Schema) -> Map<String, Value> {
    let (rows, root) = Rows::of(schema);
    rows.extract_from_map(root, object, set.as_nodes())
}

/// Each struct field that leads to a member is a member as well: removing the last field of a struct
/// removes the struct.
pub fn with_named_fields(set: &FieldSet, schema: &Schema) -> FieldSet {
    let (rows, root) = Rows::of(schema);
    FieldSet::from_nodes(rows.name_fields(root, set.as_nodes()))
}

type Nodes = Map<String, Value>;

impl<'s> Rows<'s> {
    fn remove(self, owned: Owned<'s>, value: &Value, nodes: &Nodes) -> Value {
        match (owned, value) {
            (Owned::Scalar(_), scalar) => scalar.clone(),
            (Owned::Struct(_) | Owned::Map(_) | Owned::Free, Value::Object(fields)) => {
                let left = self.remove_from_map(owned, fields, nodes);
                if left.is_empty() { Value::Null } else { Value::Object(left) }
            }
            (Owned::List { .. } | Owned::Set(_), Value::Array(items)) => {
                let left: Vec<Value> = items
                    .iter()
                    .filter_map(|item| {
                        let element = self.element(owned, item);
                        match element.and_then(|element| nodes.get(&element)?.as_object()) {
                            None => Some(item.clone()),
                            Some(inner) if is_member(inner) => None,
                            Some(inner) => Some(self.remove(self.items(owned), item, inner)),
                        }
                    })
                    .collect();
                if left.is_empty() { Value::Null } else { Value::Array(left) }
            }
            (Owned::Free, scalar) if !scalar.is_array() => scalar.clone(),
            _ => Value::Null,
        }
    }

    fn remove_from_map(self, owned: Owned<'s>, fields: &Nodes, nodes: &Nodes) -> Nodes {
        fields
            .iter()
            .filter_map(|(name, value)| match nodes.get(&element::field(name)).and_then(Value::as_object) {
                None => Some((name.clone(), value.clone())),
                Some(inner) if is_member(inner) => None,
                Some(inner) => Some((name.clone(), self.remove(self.at(owned, name), value, inner))),
            })
            .collect()
    }

    fn extract(self, owned: Owned<'s>, value: &Value, nodes: &Nodes) -> Value {
        match (owned, value) {
            (Owned::Struct(_) | Owned::Map(_) | Owned::Free, Value::Object(fields)) if !fields.is_empty() => {
                Value::Object(self.extract_from_map(owned, fields, nodes))
            }
            (Owned::List { keys, .. }, Value::Array(items)) => Value::Array(
                items
                    .iter()
                    .filter_map(|item| {
                        let inner = nodes.get(&self.element(owned, item)?)?.as_object()?;
                        let mut kept = match self.extract(self.items(owned), item, inner) {
                            Value::Object(kept) => kept,
                            other => return Some(other),
                        };
                        for key in keys {
                            if let Some(value) = item.get(key.as_ref()) {
                                kept.insert(key.to_string(), value.clone());
                            }
                        }
                        Some(Value::Object(kept))
                    })
                    .collect(),
            ),
            (Owned::Set(_), Value::Array(items)) => Value::Array(
                items
                    .iter()
                    .filter(|item| {
                        self.element(owned, item).is_some_and(|element| nodes.contains_key(&element))
                    })
                    .cloned()
                    .collect(),
            ),
            (_, value) => value.clone(),
        }
    }

    fn extract_from_map(self, owned: Owned<'s>, fields: &Nodes, nodes: &Nodes) -> Nodes {
        fields
            .iter()
            .filter_map(|(name, value)| {
                let inner = nodes.get(&element::field(name))?.as_object()?;
                Some((name.clone(), self.extract(self.at(owned, name), value, inner)))
            })
            .collect()
    }

    fn name_fields(self, owned: Owned<'s>, nodes: &Nodes) -> Nodes {
        nodes
            .iter()
            .filter_map(|(text, value)| {
                let inner = value.as_object()?;
                let Some(name) = text.strip_prefix("f:") else {
                    return Some((text.clone(), Value::Object(self.name_fields(self.items(owned), inner))));
                };
                let mut below = self.name_fields(self.at(owned, name), inner);
                let has_row = matches!(owned, Owned::Struct(ty) if ty.field(name).is_some());
                if has_row && !below.is_empty() {
                    below.insert(".".to_string(), Value::Object(Map::new()));
                }
                Some((text.clone(), Value::Object(below)))
            })
            .collect()
    }
}
