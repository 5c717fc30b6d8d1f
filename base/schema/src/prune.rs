//! Pruning: removes fields that the schema does not name.
//!
//! Below `x-kubernetes-preserve-unknown-fields` fields stay, until a schema names properties again. Type and
//! metadata of the object itself and of embedded resources are no concern of the schema; of embedded
//! metadata only the fields stay that object metadata has.

use serde_json::{Map, Value};

use crate::structural::{Additional, EMBEDDED, Node, PRESERVE_UNKNOWN, Ref};
use crate::{Structural, embedded};

/// Removes fields that the schema does not name; `note` collects their paths (`spec.rules[0].foo`), sorted.
pub fn prune(object: &mut Map<String, Value>, schema: &Structural, note: Option<&mut Vec<String>>) {
    let before = note.as_ref().map_or(0, |note| note.len());
    let mut walk = Walk { path: String::new(), note, left: NOTED };
    let keep = schema.root.is(PRESERVE_UNKNOWN);
    walk.object(object, &schema.root, true, keep);
    embedded::prune(object, schema, walk.note.as_deref_mut());
    if let Some(note) = walk.note {
        note[before..].sort();
    }
}

/// The same for a field of this schema.
pub(crate) fn prune_below(object: &mut Map<String, Value>, name: &str, node: &Ref) {
    if let Some(value) = object.get_mut(name) {
        Walk { path: String::new(), note: None, left: 0 }.value(value, Some(node));
    }
}

struct Walk<'n> {
    /// Kept only where paths are noted.
    path: String,
    note: Option<&'n mut Vec<String>>,
    /// Bytes of paths that may still be noted.
    left: usize,
}

/// Bytes of paths that are noted of one object; who sends more unknown fields learns of the first.
pub(crate) const NOTED: usize = 64 << 10;

pub(crate) const META_FIELDS: [&str; 3] = ["apiVersion", "kind", "metadata"];

impl Walk<'_> {
    fn value(&mut self, value: &mut Value, node: Option<&Ref>) {
        let keep = node.is_some_and(|node| node.is(PRESERVE_UNKNOWN));
        self.inside(value, node, keep);
    }

    /// `keep`: fields without a schema stay.
    fn inside(&mut self, value: &mut Value, node: Option<&Ref>, keep: bool) {
        match (value, node) {
            (Value::Object(fields), Some(node)) => self.object(fields, node, node.is(EMBEDDED), keep),
            (Value::Object(fields), None) if !keep => {
                for (name, _) in std::mem::take(fields) {
                    self.unknown(&name);
                }
            }
            (Value::Array(items), node) => {
                let inner = node.and_then(|node| node.items());
                if keep && inner.is_none() {
                    return;
                }
                for (index, item) in items.iter_mut().enumerate() {
                    let length = self.path.len();
                    if self.note.is_some() {
                        self.path.push_str(&format!("[{index}]"));
                    }
                    // An array that keeps unknown fields hands that on to its elements.
                    let keep = keep || inner.is_some_and(|inner| inner.is(PRESERVE_UNKNOWN));
                    self.inside(item, inner, keep);
                    self.path.truncate(length);
                }
            }
            _ => {}
        }
    }

    fn object(&mut self, fields: &mut Map<String, Value>, node: &Node, resource: bool, keep: bool) {
        let mut unknown = Vec::new();
        for (name, value) in fields.iter_mut() {
            if resource && META_FIELDS.contains(&name.as_str()) {
                continue;
            }
            let inner = node.property(name);
            if inner.is_none() && matches!(node.additional, Additional::Unset) {
                if !keep {
                    unknown.push(name.clone());
                }
                continue;
            }
            let inner = inner.or_else(|| node.values());
            let length = self.enter(name);
            self.value(value, inner);
            self.path.truncate(length);
        }
        for name in unknown {
            fields.remove(&name);
            if !(self.path.is_empty() && META_FIELDS.contains(&name.as_str())) {
                self.unknown(&name);
            }
        }
    }

    fn enter(&mut self, name: &str) -> usize {
        let length = self.path.len();
        if self.note.is_some() {
            if length > 0 {
                self.path.push('.');
            }
            self.path.push_str(name);
        }
        length
    }

    fn unknown(&mut self, name: &str) {
        if self.note.is_none() || self.left == 0 {
            return;
        }
        let length = self.enter(name);
        self.left = self.left.saturating_sub(self.path.len());
        if let Some(note) = &mut self.note {
            note.push(self.path.clone());
        }
        self.path.truncate(length);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check(schema: Value, object: Value, expected: Value, paths: &[&str]) {
        let schema = Structural::parse(&schema).expect("a schema");
        let Value::Object(mut object) = object else { panic!("an object") };
        let mut note = Vec::new();
        let mut unnoted = object.clone();
        prune(&mut object, &schema, Some(&mut note));
        prune(&mut unnoted, &schema, None);
        assert_eq!(Value::Object(object), expected);
        assert_eq!(Value::Object(unnoted), expected);
        assert_eq!(note, paths);
    }

    #[test]
    fn fields_without_a_schema_go() {
        check(
            json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {
                "a": {"type": "string"},
                "list": {"type": "array", "items": {"type": "object", "properties": {"b": {"type": "string"}}}},
                "map": {"type": "object", "additionalProperties": {"type": "object", "properties": {"c": {"type": "string"}}}},
            }}}}),
            json!({"apiVersion": "a/v1", "kind": "A", "metadata": {"name": "x", "odd": 1}, "top": 1, "spec": {
                "a": "1", "b": {"c": 1}, "list": [{"b": "1", "x": 1}], "map": {"k": {"c": "1", "d": []}}}}),
            json!({"apiVersion": "a/v1", "kind": "A", "metadata": {"name": "x", "odd": 1}, "spec": {
                "a": "1", "list": [{"b": "1"}], "map": {"k": {"c": "1"}}}}),
            &["spec.b", "spec.list[0].x", "spec.map.k.d", "top"],
        );
    }

    #[test]
    fn preserving_fields_holds_until_properties_are_named_again() {
        check(
            json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true, "properties": {
                "pruned": {"type": "object", "properties": {"a": {"type": "string"}}},
                "kept": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
                "list": {"type": "array", "x-kubernetes-preserve-unknown-fields": true, "items": {"type": "object"}},
            }}),
            json!({"free": {"x": 1}, "pruned": {"a": "1", "b": 1}, "kept": {"x": [{"y": 1}]}, "list": [{"x": 1}]}),
            json!({"free": {"x": 1}, "pruned": {"a": "1"}, "kept": {"x": [{"y": 1}]}, "list": [{"x": 1}]}),
            &["pruned.b"],
        );
    }

    #[test]
    fn values_of_a_map_without_a_schema_are_emptied() {
        check(
            json!({"type": "object", "properties": {"map": {"type": "object", "additionalProperties": true}}}),
            json!({"map": {"a": 1, "b": {"c": 1}, "d": [{"e": 1}]}}),
            json!({"map": {"a": 1, "b": {}, "d": [{}]}}),
            &["map.b.c", "map.d[0].e"],
        );
    }

    #[test]
    fn embedded_resources_keep_their_metadata() {
        check(
            json!({"type": "object", "properties": {"template": {"type": "object",
                "x-kubernetes-embedded-resource": true, "properties": {"spec": {"type": "object"}}}}}),
            json!({"template": {"apiVersion": "v1", "kind": "Pod", "odd": 1,
                "metadata": {"name": "x", "odd": 1, "creationTimestamp": null}, "spec": {"a": 1}}}),
            json!({"template": {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": {}}}),
            &["template.metadata.odd", "template.odd", "template.spec.a"],
        );
    }
}
