//! Defaults fit the schema that they stand in: its types and constraints, its rules, and nothing in them is
//! pruned.

use ferry_api::FieldErrors;
use serde_json::{Map, Value};

use super::is_given;
use crate::path::Path;
use crate::prune::META_FIELDS;
use crate::structural::{DEFAULTS, EMBEDDED, Ref};
use crate::{Rules, Structural, embedded, prune, validate};

/// Whether a schema has defaults that pruning changes.
pub fn has_unpruned(schema: &Value) -> bool {
    if !super::any(schema, &|schema| is_given(schema, "default")) {
        return false;
    }
    let Ok(structural) = Structural::parse(schema) else { return false };
    let mut errors = FieldErrors::default();
    Walk { pruned: true, only_pruning: true, errors: &mut errors }.node(
        &structural.root,
        true,
        false,
        &mut Path::root(),
    );
    !errors.is_empty()
}

pub fn check(schema: &Structural, path: &str, pruned: bool, errors: &mut FieldErrors) {
    let mut walk = Walk { pruned, only_pruning: false, errors };
    walk.node(&schema.root, true, false, &mut Path::at(path));
}

struct Walk<'e> {
    /// Defaults have no fields that are pruned.
    pruned: bool,
    only_pruning: bool,
    errors: &'e mut FieldErrors,
}

impl Walk<'_> {
    /// `resource`: the object itself, or an embedded resource. `metadata`: inside of its type or metadata.
    fn node(&mut self, node: &Ref, resource: bool, metadata: bool, path: &mut Path) {
        if !node.is(DEFAULTS) {
            return;
        }
        let resource = resource || node.is(EMBEDDED);
        let metadata = metadata && !node.is(EMBEDDED);
        if let Some(default) = node.default() {
            self.default(default, node, metadata, path);
        }
        if let Some(items) = node.items() {
            let length = path.child("items");
            self.node(items, false, metadata, path);
            path.truncate(length);
        }
        for (name, property) in &node.properties {
            let length = path.child("properties");
            path.key(name);
            let metadata = metadata || (resource && META_FIELDS.contains(&&**name));
            self.node(property, false, metadata, path);
            path.truncate(length);
        }
        if let Some(values) = node.values() {
            let length = path.child("additionalProperties");
            self.node(values, false, metadata, path);
            path.truncate(length);
        }
    }

    fn default(&mut self, default: &Value, node: &Ref, metadata: bool, path: &Path) {
        let path = path.with("default");
        if self.pruned && !metadata {
            // A field around it, so that the default is an object like any other.
            let mut object = Map::from_iter([("default".to_string(), default.clone())]);
            prune::prune_below(&mut object, "default", node);
            if object.get("default") != Some(default) {
                self.errors.invalid(path.as_str(), default.clone(), "must not have unknown fields");
            }
        }
        if self.only_pruning {
            return;
        }
        let before = self.errors.0.len();
        embedded::validate(default, node, false, &mut Path::at(&path), self.errors);
        if self.errors.0.len() == before {
            validate::constraints(default, node, &path, self.errors);
        }
        if self.errors.0.len() == before {
            Rules::judge_value(default, node, node.is(EMBEDDED), &path, self.errors);
        }
    }
}
