use serde_json::{Value, json};

use super::*;

fn errors_of(schema: &Value, new: &Value, old: Option<&Value>) -> Vec<String> {
    let schema = Structural::parse(schema).expect("a schema");
    let fields = |value: &Value| value.as_object().cloned().expect("an object");
    let mut errors = FieldErrors::default();
    let rules = Rules::compile(&schema).expect("rules");
    object(&fields(new), old.map(fields).as_ref(), &schema, &rules, &mut errors);
    errors.0.iter().map(ToString::to_string).collect()
}

/// The errors of a field `x` of this schema.
fn check(schema: Value, value: Value, expected: &[&str]) {
    let schema =
        json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {"x": schema}}}});
    let found = errors_of(&schema, &json!({"spec": {"x": value}}), None);
    assert_eq!(found, expected);
}

#[test]
fn types_are_judged() {
    check(
        json!({"type": "integer"}),
        json!("a"),
        &[r#"spec.x: Invalid value: "string": spec.x in body must be of type integer: "string""#],
    );
    check(
        json!({"type": "string"}),
        json!(1),
        &[r#"spec.x: Invalid value: "integer": spec.x in body must be of type string: "integer""#],
    );
    check(
        json!({"type": "integer"}),
        json!(1.5),
        &[
            r#"spec.x: Invalid value: "number": spec.x in body must be of type integer: "number""#,
            r#"<nil>: Invalid value: "": Checked value must be of type integer (default format) in spec.x"#,
        ],
    );
    check(json!({"type": "integer"}), json!(1.0), &[]);
    check(json!({"type": "number"}), json!(1), &[]);
    check(
        json!({"type": "boolean"}),
        json!(null),
        &[r#"spec.x: Invalid value: "null": spec.x in body must be of type boolean: "null""#],
    );
    check(json!({"type": "boolean", "nullable": true}), json!(null), &[]);
    check(
        json!({"x-kubernetes-int-or-string": true}),
        json!(true),
        &[r#"spec.x: Invalid value: "boolean": spec.x in body must be of type integer,string: "boolean""#],
    );
    check(json!({"x-kubernetes-int-or-string": true}), json!("50%"), &[]);
    check(json!({"x-kubernetes-preserve-unknown-fields": true}), json!([{"a": 1}]), &[]);
    check(
        json!({"type": "integer", "format": "int32"}),
        json!(4294967296i64),
        &[r#"<nil>: Invalid value: "": Checked value must be of type integer with format int32 in spec.x"#],
    );
    check(
        json!({"type": "integer", "format": "int32"}),
        json!(true),
        &[r#"spec.x: Invalid value: "": spec.x in body must be of type int32: """#],
    );
}

#[test]
fn strings_are_judged() {
    check(
        json!({"type": "string", "maxLength": 2}),
        json!("abc"),
        &["spec.x: Too long: may not be more than 2 bytes"],
    );
    check(json!({"type": "string", "maxLength": 3}), json!("äöü"), &[]);
    check(
        json!({"type": "string", "minLength": 2}),
        json!("a"),
        &[r#"spec.x: Invalid value: "a": spec.x in body should be at least 2 chars long"#],
    );
    check(
        json!({"type": "string", "pattern": "^a$"}),
        json!("b"),
        &[r#"spec.x: Invalid value: "b": spec.x in body should match '^a$'"#],
    );
    check(
        json!({"type": "string", "enum": ["a", "b"]}),
        json!("x"),
        &[r#"spec.x: Unsupported value: "x": supported values: "a", "b""#],
    );
    check(
        json!({"type": "string", "nullable": true, "enum": ["a"]}),
        json!(null),
        &[r#"spec.x: Unsupported value: null: supported values: "a""#],
    );
    check(
        json!({"type": "string", "format": "date-time"}),
        json!("x"),
        &[r#"spec.x: Invalid value: "x": spec.x in body must be of type date-time: "x""#],
    );
    check(json!({"type": "string", "format": "unheard-of"}), json!("x"), &[]);
}

#[test]
fn numbers_are_judged() {
    check(
        json!({"type": "integer", "maximum": 3}),
        json!(4),
        &["spec.x: Invalid value: 4: spec.x in body should be less than or equal to 3"],
    );
    check(
        json!({"type": "integer", "maximum": 3, "exclusiveMaximum": true}),
        json!(3),
        &["spec.x: Invalid value: 3: spec.x in body should be less than 3"],
    );
    check(
        json!({"type": "number", "minimum": 0.5}),
        json!(0.25),
        &["spec.x: Invalid value: 0.25: spec.x in body should be greater than or equal to 0.5"],
    );
    check(
        json!({"type": "integer", "multipleOf": 5}),
        json!(7),
        &["spec.x: Invalid value: 7: spec.x in body should be a multiple of 5"],
    );
    check(json!({"type": "number", "multipleOf": 0.1}), json!(0.3), &[]);
    check(
        json!({"type": "integer", "enum": [1, 2]}),
        json!(3),
        &[r#"spec.x: Unsupported value: 3: supported values: "1", "2""#],
    );
    check(json!({"type": "number", "enum": [1, 2]}), json!(1.0), &[]);
}

#[test]
fn floats_may_be_as_large_as_their_format() {
    check(json!({"type": "number", "format": "float"}), json!(3.4028234663852886e38), &[]);
    check(json!({"type": "number", "format": "double"}), json!(1.7e308), &[]);
    check(
        json!({"type": "number", "format": "float"}),
        json!(3.5e38),
        &[r#"<nil>: Invalid value: "": Checked value must be of type number with format float in spec.x"#],
    );
}

#[test]
fn arrays_and_objects_are_judged() {
    check(
        json!({"type": "array", "items": {"type": "string"}, "maxItems": 2}),
        json!(["a", "b", "c"]),
        &["spec.x: Too many: 3: must have at most 2 items"],
    );
    check(
        json!({"type": "array", "items": {"type": "string"}, "maxItems": 1}),
        json!(["a", "b"]),
        &["spec.x: Too many: 2: must have at most 1 item"],
    );
    check(
        json!({"type": "array", "items": {"type": "string"}, "minItems": 2}),
        json!([1]),
        &[
            r#"spec.x[0]: Invalid value: "integer": spec.x[0] in body must be of type string: "integer""#,
            "spec.x: Invalid value: 1: spec.x in body should have at least 2 items",
        ],
    );
    check(
        json!({"type": "object", "required": ["a"], "properties": {"a": {"type": "string"}}}),
        json!({}),
        &["spec.x.a: Required value"],
    );
    check(
        json!({"type": "object", "maxProperties": 1, "additionalProperties": {"type": "string"}}),
        json!({"a": "1", "b": 2}),
        &[
            "spec.x: Too many: 2: must have at most 1 item",
            r#"spec.x.b: Invalid value: "integer": spec.x.b in body must be of type string: "integer""#,
        ],
    );
    let required =
        json!({"type": "object", "required": ["spec"], "properties": {"spec": {"type": "object"}}});
    assert_eq!(errors_of(&required, &json!({}), None), ["spec: Required value"]);
}

#[test]
fn combinations_are_judged() {
    check(
        json!({"type": "string", "oneOf": [{"pattern": "a"}, {"pattern": "b"}]}),
        json!("ab"),
        &[
            r#"<nil>: Invalid value: "": "spec.x" must validate one and only one schema (oneOf). Found 2 valid alternatives"#,
        ],
    );
    check(
        json!({"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "string"}},
        "oneOf": [{"required": ["a"]}, {"required": ["b"]}]}),
        json!({}),
        &[
            r#"<nil>: Invalid value: "": "spec.x" must validate one and only one schema (oneOf). Found none valid"#,
            "spec.x.a: Required value",
        ],
    );
    check(
        json!({"type": "string", "anyOf": [{"pattern": "^a"}, {"enum": ["b"]}]}),
        json!("c"),
        &[
            r#"<nil>: Invalid value: "": "spec.x" must validate at least one schema (anyOf)"#,
            r#"spec.x: Invalid value: "c": spec.x in body should match '^a'"#,
        ],
    );
    check(
        json!({"type": "string", "allOf": [{"maxLength": 1}, {"minLength": 1}]}),
        json!("cc"),
        &[
            "spec.x: Too long: may not be more than 1 byte",
            r#"<nil>: Invalid value: "": "spec.x" must validate all the schemas (allOf)"#,
        ],
    );
    check(
        json!({"type": "string", "not": {"pattern": "a"}}),
        json!("a"),
        &[r#"<nil>: Invalid value: "": "spec.x" must not validate the schema (not)"#],
    );
    check(
        json!({"x-kubernetes-int-or-string": true, "anyOf": [{"type": "integer"}, {"type": "string"}]}),
        json!(3),
        &[],
    );
}

#[test]
fn sets_and_maps_hold_an_element_once() {
    let set = json!({"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}});
    check(set, json!(["a", "b", "a", "a"]), &[r#"spec.x[2]: Duplicate value: "a""#]);
    let map = json!({"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"],
        "items": {"type": "object", "properties": {"k": {"type": "string"}, "v": {"type": "string"}}}});
    check(
        map.clone(),
        json!([{"k": "a"}, {"k": "b"}, {"k": "a", "v": "x"}]),
        &[r#"spec.x[2]: Duplicate value: {"k":"a"}"#],
    );
    check(map, json!([{}, {}]), &["spec.x[1]: Duplicate value: {}"]);
}

#[test]
fn embedded_resources_have_type_and_metadata() {
    let schema = json!({"type": "object", "x-kubernetes-embedded-resource": true, "x-kubernetes-preserve-unknown-fields": true});
    check(schema.clone(), json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}}), &[]);
    check(schema.clone(), json!({}), &["spec.x.apiVersion: Required value", "spec.x.kind: Required value"]);
    check(
        schema,
        json!({"apiVersion": "a/b/c", "kind": "", "metadata": {"name": "a/b"}}),
        &[
            r#"spec.x.apiVersion: Invalid value: "a/b/c": unexpected GroupVersion string: a/b/c"#,
            r#"spec.x.kind: Invalid value: "": must not be empty"#,
            r#"spec.x.metadata.name: Invalid value: "a/b": may not contain '/'"#,
        ],
    );
}

#[test]
fn errors_of_unchanged_values_are_ratcheted() {
    let schema = json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {
        "a": {"type": "string", "maxLength": 1},
        "b": {"type": "string"},
        "list": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"], "items": {
            "type": "object", "properties": {"k": {"type": "string"}, "v": {"type": "string", "maxLength": 1}}}},
        "plain": {"type": "array", "items": {"type": "string", "maxLength": 1}},
    }}}});
    let old = json!({"spec": {"a": "long", "b": "x", "list": [{"k": "1", "v": "long"}], "plain": ["long"]}});
    let mut new = old.clone();
    new["spec"]["b"] = "y".into();
    assert!(errors_of(&schema, &new, Some(&old)).is_empty());
    new["spec"]["a"] = "longer".into();
    new["spec"]["list"] = json!([{"k": "2", "v": "long"}, {"k": "1", "v": "long"}]);
    new["spec"]["plain"] = json!(["long", "x"]);
    assert_eq!(
        errors_of(&schema, &new, Some(&old)),
        [
            "spec.a: Too long: may not be more than 1 bytes".replace("bytes", "byte"),
            "spec.list[0].v: Too long: may not be more than 1 byte".to_string(),
            "spec.plain[0]: Too long: may not be more than 1 byte".to_string(),
        ]
    );
}

#[test]
fn a_status_is_judged_alone() {
    let schema = json!({"type": "object", "properties": {
        "spec": {"type": "object", "required": ["a"], "properties": {"a": {"type": "string"}}},
        "status": {"type": "object", "properties": {"n": {"type": "integer"}}},
    }});
    let schema = Structural::parse(&schema).expect("a schema");
    let fields = |value: Value| value.as_object().cloned().expect("an object");
    let mut errors = FieldErrors::default();
    let old = fields(json!({"spec": {}}));
    status(&fields(json!({"spec": {}, "status": {"n": "x"}})), &old, &schema, &Rules::none(), &mut errors);
    let told: Vec<String> = errors.0.iter().map(ToString::to_string).collect();
    assert_eq!(told, [r#"status.n: Invalid value: "string": n in body must be of type integer: "string""#]);
}
