//! JSON of objects made here, not received: fields stand in the order the API declares them, and
//! `kind` comes before `apiVersion`.

use ferry_api::kinds::GroupVersionKind;
use ferry_api::types::{Schema, Shape, Type, Types};
use serde_json::Value;

use crate::fields::Fields;
use ferry_api::go_json;

pub fn pretty(object: &Value) -> String {
    let kind = GroupVersionKind::from_api_version(object.text("apiVersion"), object.kind());
    match Schema::builtin(&kind) {
        Some(schema) => go_json::pretty_in_order(object, &|path| order_of(&schema, path)),
        None => go_json::pretty(object),
    }
}

/// The declared field names of the map at a path, or nothing where keys are free.
fn order_of(schema: &Schema, path: &[&str]) -> Vec<String> {
    let types = &schema.types;
    let mut current: &Type = schema.root();
    let mut names: Vec<String> = vec!["kind".to_owned(), "apiVersion".to_owned()];
    for step in path {
        names.clear();
        let Some(field) = current.field(step) else { return Vec::new() };
        match inner(types, &field.shape) {
            Some(next) => current = next,
            None => return Vec::new(),
        }
    }
    names.extend(current.declared.iter().map(|name| name.to_string()));
    names
}

fn inner<'a>(types: &'a Types, shape: &Shape) -> Option<&'a Type> {
    match shape {
        Shape::Struct(id) => Some(types.get(*id)),
        Shape::List(element) => inner(types, element),
        _ => None,
    }
}
