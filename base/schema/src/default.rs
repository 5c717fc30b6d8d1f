//! Defaulting: fills absent fields in, and replaces or removes nulls that the schema does not allow.

use serde_json::{Map, Value};

use crate::Structural;
use crate::structural::{DEFAULTS, NULLABLE, Node, Ref};

/// Fills in the defaults. A null that the schema does not allow becomes the default, or goes where there is
/// none.
pub fn apply(object: &mut Map<String, Value>, schema: &Structural) {
    fields(object, &schema.root);
}

fn fields(object: &mut Map<String, Value>, node: &Node) {
    object.retain(|name, value| {
        !value.is_null()
            || node.field(name).is_none_or(|field| field.is(NULLABLE) || field.default().is_some())
    });
    if node.is(DEFAULTS) {
        for (name, property) in &node.properties {
            let Some(default) = property.default() else { continue };
            if object.get(&**name).is_none_or(|value| forbidden_null(value, property)) {
                object.insert(name.to_string(), default.clone());
            }
        }
    }
    for (name, value) in object.iter_mut() {
        let Some(field) = node.field(name) else { continue };
        if forbidden_null(value, field)
            && let Some(default) = field.default()
        {
            *value = default.clone();
        }
        inside(value, field);
    }
}

fn inside(value: &mut Value, node: &Ref) {
    match value {
        Value::Object(object) => fields(object, node),
        Value::Array(items) => {
            let Some(inner) = node.items() else { return };
            for item in items {
                if forbidden_null(item, inner)
                    && let Some(default) = inner.default()
                {
                    *item = default.clone();
                }
                inside(item, inner);
            }
        }
        _ => {}
    }
}

fn forbidden_null(value: &Value, node: &Node) -> bool {
    value.is_null() && !node.is(NULLABLE)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check(schema: Value, object: Value, expected: Value) {
        let schema = Structural::parse(&schema).expect("a schema");
        let Value::Object(mut object) = object else { panic!("an object") };
        apply(&mut object, &schema);
        assert_eq!(Value::Object(object), expected);
    }

    #[test]
    fn absent_fields_get_their_defaults() {
        let schema = json!({"type": "object", "properties": {"spec": {"type": "object", "default": {}, "properties": {
            "a": {"type": "string", "default": "A"},
            "list": {"type": "array", "items": {"type": "object", "properties": {"b": {"type": "integer", "default": 3}}}},
            "map": {"type": "object", "additionalProperties": {"type": "object", "properties": {"c": {"type": "boolean", "default": true}}}},
        }}}});
        check(schema.clone(), json!({}), json!({"spec": {"a": "A"}}));
        check(
            schema,
            json!({"spec": {"a": "x", "list": [{}, {"b": 1}], "map": {"k": {}}}}),
            json!({"spec": {"a": "x", "list": [{"b": 3}, {"b": 1}], "map": {"k": {"c": true}}}}),
        );
    }

    #[test]
    fn nulls_that_are_not_allowed_go_or_become_the_default() {
        check(
            json!({"type": "object", "properties": {
                "a": {"type": "string", "default": "A"},
                "b": {"type": "string"},
                "c": {"type": "string", "nullable": true, "default": "C"},
                "list": {"type": "array", "items": {"type": "string", "default": "L"}},
                "map": {"type": "object", "additionalProperties": {"type": "string"}},
            }}),
            json!({"a": null, "b": null, "c": null, "list": [null, "x"], "map": {"k": null}, "free": null}),
            json!({"a": "A", "c": null, "list": ["L", "x"], "map": {}, "free": null}),
        );
    }
}
