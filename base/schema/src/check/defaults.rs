//! Defaults fit the schema that they stand in: its types and constraints, its rules, and nothing in them is
//! pruned.

use ferry_api::FieldErrors;
use serde_json::{Map, Value, json};

use super::is_given;
use crate::embedded::{self, EmbeddedChecks};
use crate::path::Path;
use crate::prune::META_FIELDS;
use crate::structural::{DEFAULTS, EMBEDDED, Ref};
use crate::{Rules, Structural, hand_on, prune, validate};

/// Whether a schema has defaults that pruning changes.
pub fn has_unpruned(schema: &Value) -> bool {
    if !super::any(schema, &|schema| is_given(schema, "default")) {
        return false;
    }
    let Ok(structural) = Structural::parse(schema) else { return false };
    let mut errors = FieldErrors::default();
    let rules = Rules::none();
    Walk { pruned: true, only_pruning: true, rules: &rules, errors: &mut errors }.node(
        &structural.root,
        true,
        &mut Vec::new(),
        false,
        &mut Path::root(),
    );
    !errors.is_empty()
}

pub fn check(schema: &Structural, path: &str, pruned: bool, errors: &mut FieldErrors) {
    if !schema.root.is(DEFAULTS) {
        return;
    }
    // A rule that does not compile is told where it stands.
    let rules = Rules::compile(schema).unwrap_or_default();
    let mut walk = Walk { pruned, only_pruning: false, rules: &rules, errors };
    walk.node(&schema.root, true, &mut Vec::new(), false, &mut Path::at(path));
}

/// The way from a resource to a part of it.
#[derive(Clone, Copy)]
enum Step<'n> {
    Field(&'n str),
    Element,
}

struct Walk<'e> {
    /// Defaults have no fields that are pruned.
    pruned: bool,
    only_pruning: bool,
    rules: &'e Rules,
    errors: &'e mut FieldErrors,
}

impl Walk<'_> {
    /// `resource`: the object itself, or an embedded resource. `way`: from the resource to the node. `metadata`: inside
    /// of its type or metadata.
    fn node<'n>(
        &mut self,
        node: &'n Ref,
        resource: bool,
        way: &mut Vec<Step<'n>>,
        metadata: bool,
        path: &mut Path,
    ) {
        if !node.is(DEFAULTS) {
            return;
        }
        let resource = resource || node.is(EMBEDDED);
        let mut inside = Vec::new();
        let (way, metadata) = if resource { (&mut inside, false) } else { (way, metadata) };
        if let Some(default) = node.default() {
            match metadata {
                true => self.in_metadata(default, node, way, path),
                false => self.default(default, node, path),
            }
        }
        if let Some(items) = node.items() {
            way.push(Step::Element);
            path.below("items", |path| self.node(items, false, way, metadata, path));
            way.pop();
        }
        for (name, property) in &node.properties {
            let metadata = metadata || (resource && META_FIELDS.contains(&&**name));
            way.push(Step::Field(name));
            path.property(name, |path| self.node(property, false, way, metadata, path));
            way.pop();
        }
        // Upstream does not judge what stands below `additionalProperties`.
    }

    /// A default inside of metadata has to make metadata that is valid.
    fn in_metadata(&mut self, default: &Value, node: &Ref, way: &[Step<'_>], path: &Path) {
        if self.only_pruning {
            return;
        }
        let around = way.iter().rev().fold(default.clone(), |inner, step| match step {
            Step::Field(name) => json!({*name: inner}),
            Step::Element => json!([inner]),
        });
        let mut resource = around.as_object().cloned().unwrap_or_default();
        resource.entry("apiVersion").or_insert_with(|| "validation/v1".into());
        resource.entry("kind").or_insert_with(|| "Validation".into());
        let mut found = FieldErrors::default();
        embedded::resource(&resource, EmbeddedChecks::All, &Path::root(), &mut found);
        let path = path.with("default");
        let told: Vec<String> = found.0.iter().map(ToString::to_string).collect();
        match told.as_slice() {
            [] => self.fits(default, node, &path),
            [one] => {
                let why = format!("must result in valid metadata: {one}");
                self.errors.invalid(path, default.clone(), &why);
            }
            many => {
                let why = format!("must result in valid metadata: [{}]", many.join(", "));
                self.errors.invalid(path, default.clone(), &why);
            }
        }
    }

    fn default(&mut self, default: &Value, node: &Ref, path: &Path) {
        let path = path.with("default");
        if self.pruned {
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
        let mut found = FieldErrors::default();
        embedded::validate(default, node, EmbeddedChecks::Types, &mut Path::at(&path), &mut found);
        // What cannot be read is told alone.
        found.0.truncate(1);
        if found.is_empty() {
            embedded::validate(default, node, EmbeddedChecks::All, &mut Path::at(&path), &mut found);
        }
        match found.is_empty() {
            true => self.fits(default, node, &path),
            false => hand_on(found, self.errors),
        }
    }

    /// Types, constraints and rules.
    fn fits(&mut self, default: &Value, node: &Ref, path: &str) {
        let before = self.errors.0.len();
        validate::constraints(default, node, path, self.errors);
        if self.errors.0.len() == before {
            self.rules.judge_value(default, node, path, self.errors);
        }
    }
}
