use serde_json::{Value, json};

use super::*;

fn errors_of(schema: &Value, context: &CheckContext<'_>) -> Vec<String> {
    let mut errors = FieldErrors::default();
    super::schema(schema, "s", context, &mut errors);
    errors.0.iter().map(ToString::to_string).collect()
}

/// The errors of a schema with a field `x`, paths cut to what follows it.
fn check(schema: Value, expected: &[&str]) {
    let schema = json!({"type": "object", "properties": {"x": schema}});
    let found = errors_of(&schema, &CheckContext::default());
    let found: Vec<String> = found.iter().map(|error| error.replace("s.properties[x]", "x")).collect();
    assert_eq!(found, expected, "{schema}");
}

fn check_root(schema: Value, expected: &[&str]) {
    assert_eq!(errors_of(&schema, &CheckContext::default()), expected, "{schema}");
}

#[test]
fn types_have_to_be_said() {
    check(json!({}), &["x.type: Required value: must not be empty for specified object fields"]);
    check(json!({"type": "array"}), &["x.items: Required value: must be specified"]);
    check(
        json!({"type": "array", "items": {}}),
        &["x.items.type: Required value: must not be empty for specified array items"],
    );
    check(json!({"x-kubernetes-int-or-string": true}), &[]);
    check(json!({"x-kubernetes-preserve-unknown-fields": true}), &[]);
    check(
        json!({"type": "thing"}),
        &[
            r#"x.type: Unsupported value: "thing": supported values: "array", "boolean", "integer", "number", "object", "string""#,
        ],
    );
    check_root(json!({}), &["s.type: Required value: must not be empty at the root"]);
    check_root(
        json!({"type": "array", "items": {"type": "string"}}),
        &[r#"s.type: Invalid value: "array": must be object at the root"#],
    );
    check_root(
        json!({"type": "object", "nullable": true}),
        &["s.nullable: Forbidden: nullable cannot be true at the root"],
    );
}

#[test]
fn null_in_the_place_of_a_schema_says_nothing() {
    check(json!(null), &["x.type: Required value: must not be empty for specified object fields"]);
    check(json!({"type": "string", "anyOf": [null]}), &[]);
    check(json!({"type": "string", "not": null}), &[]);
    check(
        json!({"type": "object", "properties": {"a": 1}}),
        &["x.properties[a]: Invalid value: 1: must be an object"],
    );
    check(json!({"type": "array", "items": "b"}), &[r#"x.items: Invalid value: "b": must be an object"#]);
}

#[test]
fn combinations_only_narrow_down() {
    check(
        json!({"type": "string", "anyOf": [{"type": "string"}]}),
        &["x.anyOf[0].type: Forbidden: must be empty to be structural"],
    );
    check(
        json!({"type": "string", "not": {"description": "a", "nullable": true}}),
        &[
            "x.not.description: Forbidden: must be empty to be structural",
            "x.not.nullable: Forbidden: must be false to be structural",
        ],
    );
    check(
        json!({"x-kubernetes-int-or-string": true, "anyOf": [{"type": "integer"}, {"type": "string"}]}),
        &[],
    );
    check(
        json!({"x-kubernetes-int-or-string": true, "allOf": [{"anyOf": [{"type": "integer"}, {"type": "string"}]}, {"maxLength": 3}]}),
        &[],
    );
    check_root(
        json!({"type": "object", "oneOf": [{"properties": {"a": {"pattern": "x"}}}]}),
        &["s.properties[a]: Required value: because it is defined in s.oneOf[0].properties[a]"],
    );
    check(
        json!({"type": "string", "pattern": "("}),
        &[
            r#"x.pattern: Invalid value: "(": must be a valid regular expression, but isn't: error parsing regexp: missing closing ): `(`"#,
        ],
    );
}

#[test]
fn metadata_is_the_servers() {
    let metadata = |metadata: Value| json!({"type": "object", "properties": {"metadata": metadata}});
    check_root(metadata(json!({"type": "object"})), &[]);
    check_root(
        metadata(json!({"type": "object", "properties": {"name": {"type": "string", "maxLength": 3}}})),
        &[],
    );
    check_root(
        metadata(json!({"type": "object", "properties": {"labels": {"type": "object"}}})),
        &[
            "s.properties[metadata]: Forbidden: must not specify anything other than name and generateName, but metadata is implicitly specified",
        ],
    );
    check(
        json!({"type": "object", "x-kubernetes-embedded-resource": true}),
        &[
            "x.properties: Required value: must not be empty if x-kubernetes-embedded-resource is true without x-kubernetes-preserve-unknown-fields",
        ],
    );
}

#[test]
fn words_that_are_not_supported_are_refused() {
    check(json!({"type": "string", "$ref": "#/x"}), &["x.$ref: Forbidden: $ref is not supported"]);
    check(
        json!({"type": "array", "uniqueItems": true, "items": {"type": "string"}}),
        &[
            "x.uniqueItems: Forbidden: uniqueItems cannot be set to true since the runtime complexity becomes quadratic",
        ],
    );
    check(
        json!({"type": "object", "properties": {"a": {"type": "string"}}, "additionalProperties": {"type": "string"}}),
        &["x.additionalProperties: Forbidden: additionalProperties and properties are mutual exclusive"],
    );
    check(
        json!({"type": "object", "x-kubernetes-preserve-unknown-fields": false}),
        &["x.x-kubernetes-preserve-unknown-fields: Invalid value: false: must be true or undefined"],
    );
}

#[test]
fn list_types_fit_the_list() {
    let items = json!({"type": "object", "properties": {"k": {"type": "string"}}});
    check(
        json!({"type": "array", "x-kubernetes-list-type": "map", "items": items}),
        &["x.x-kubernetes-list-map-keys: Required value: must not be empty if x-kubernetes-list-type is map"],
    );
    check(
        json!({"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"], "items": items}),
        &[
            "x.items.properties[k].default: Required value: this property is in x-kubernetes-list-map-keys, so it must have a default or be a required property",
        ],
    );
    check(
        json!({"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["n"], "items": items}),
        &[
            r#"x.x-kubernetes-list-map-keys: Invalid value: ["n"]: entries must all be names of item properties"#,
        ],
    );
    check(
        json!({"type": "array", "x-kubernetes-list-type": "set", "items": items}),
        &[
            "x.items.x-kubernetes-map-type: Invalid value: null: must be atomic as item of a list with x-kubernetes-list-type=set",
        ],
    );
    check(
        json!({"type": "object", "x-kubernetes-list-type": "atomic"}),
        &[r#"x.type: Invalid value: "object": must be array if x-kubernetes-list-type is specified"#],
    );
    check(
        json!({"type": "object", "x-kubernetes-map-type": "odd"}),
        &[r#"x.x-kubernetes-map-type: Unsupported value: "odd": supported values: "atomic", "granular""#],
    );
}

#[test]
fn defaults_fit() {
    check(json!({"type": "string", "default": "a", "maxLength": 1}), &[]);
    check(
        json!({"type": "string", "default": 1}),
        &[r#"x.default: Invalid value: "integer": x.default in body must be of type string: "integer""#
            .replace("x.default in", " in")
            .as_str()],
    );
    check(
        json!({"type": "object", "default": {"a": 1}}),
        &[r#"x.default: Invalid value: {"a":1}: must not have unknown fields"#],
    );
    check(
        json!({"type": "integer", "default": 1, "x-kubernetes-validations": [{"rule": "self > 3"}]}),
        &["x.default: Invalid value: 1: failed rule: self > 3"],
    );
    check_root(
        json!({"type": "object", "properties": {"kind": {"type": "string", "default": "A"}}}),
        &["s.properties[kind].default: Forbidden: must not be set in top-level kind"],
    );
}

#[test]
fn defaults_make_valid_metadata() {
    let embedded = |properties: Value| json!({"type": "object", "x-kubernetes-embedded-resource": true, "properties": properties});
    let metadata =
        |properties: Value| embedded(json!({"metadata": {"type": "object", "properties": properties}}));
    check(metadata(json!({"name": {"type": "string", "default": "foo"}})), &[]);
    check(
        metadata(json!({"name": {"type": "string", "default": "a/b"}})),
        &[
            "x.properties[metadata].properties[name].default: Invalid value: \"a/b\": must result in valid metadata: metadata.name: Invalid value: \"a/b\": may not contain '/'",
        ],
    );
    check(
        embedded(json!({"kind": {"type": "string", "default": ""}})),
        &[
            "x.properties[kind].default: Invalid value: \"\": must result in valid metadata: kind: Invalid value: \"\": must not be empty",
        ],
    );
    let mut whole = metadata(json!({}));
    whole["default"] = json!({"apiVersion": 1});
    check(whole, &["x.default.apiVersion: Invalid value: 1: must be a string"]);
}

#[test]
fn rules_compile_and_cost_little() {
    check(json!({"type": "integer", "x-kubernetes-validations": [{"rule": "self > 3"}]}), &[]);
    check(
        json!({"type": "integer", "x-kubernetes-validations": [{"rule": " "}]}),
        &["x.x-kubernetes-validations[0].rule: Required value: rule is not specified"],
    );
    check(
        json!({"type": "integer", "x-kubernetes-validations": [{"rule": "self"}]}),
        &[
            r#"x.x-kubernetes-validations[0].rule: Invalid value: {"Rule":"self","Message":"","MessageExpression":"","Reason":null,"FieldPath":"","OptionalOldSelf":null}: cel expression must evaluate to a bool"#,
        ],
    );
    let found = errors_of(
        &json!({"type": "object", "properties": {"x": {"type": "object", "x-kubernetes-validations": [{"rule": "self.a > 3"}]}}}),
        &CheckContext::default(),
    );
    assert!(found[0].contains("compilation failed: ERROR: <input>:1:5: undefined field 'a'"), "{found:?}");
    check(
        json!({"type": "array", "items": {"type": "string"}, "x-kubernetes-validations": [{"rule": "self.all(a, self.all(b, a == b))"}]}),
        &[
            "x.x-kubernetes-validations[0].rule: Forbidden: estimated rule cost exceeds budget by factor of more than 100x (try simplifying the rule, or adding maxItems, maxProperties, and maxLength where arrays, maps, and strings are declared)",
            "x.x-kubernetes-validations[0].rule: Forbidden: contributed to estimated rule cost total exceeding cost limit for entire OpenAPIv3 schema",
            "s: Forbidden: x-kubernetes-validations estimated rule cost total for entire OpenAPIv3 schema exceeds budget by factor of more than 100x (try simplifying the rule, or adding maxItems, maxProperties, and maxLength where arrays, maps, and strings are declared)",
        ],
    );
    check(
        json!({"type": "array", "items": {"type": "integer", "x-kubernetes-validations": [{"rule": "self == oldSelf"}]}}),
        &[
            r#"x.items.x-kubernetes-validations[0].rule: Invalid value: "self == oldSelf": oldSelf cannot be used on the uncorrelatable portion of the schema within x"#,
        ],
    );
    check(
        json!({"type": "integer", "x-kubernetes-validations": [{"rule": "self > 3", "optionalOldSelf": true}]}),
        &[
            "x.x-kubernetes-validations[0].optionalOldSelf: Invalid value: true: may not be set if oldSelf is not used in rule",
        ],
    );
    check(
        json!({"type": "integer", "x-kubernetes-validations": [{"rule": "self > 3", "reason": "Odd", "fieldPath": ".a"}]}),
        &[
            r#"x.x-kubernetes-validations[0].reason: Unsupported value: "Odd": supported values: "FieldValueDuplicate", "FieldValueForbidden", "FieldValueInvalid", "FieldValueRequired""#,
            r#"x.x-kubernetes-validations[0].fieldPath: Invalid value: ".a": must be a valid path"#,
        ],
    );
}

#[test]
fn an_update_is_not_refused_for_what_was_there() {
    let set = json!({"type": "object", "properties": {"x": {"type": "array", "x-kubernetes-list-type": "set",
        "items": {"type": "object"}}}});
    assert_eq!(errors_of(&set, &CheckContext::default()).len(), 1);
    let context = CheckContext { old: Some(&set), ..CheckContext::default() };
    assert!(errors_of(&set, &context).is_empty());
    let costly = json!({"type": "object", "properties": {"x": {"type": "array", "items": {"type": "string"},
        "x-kubernetes-validations": [{"rule": "self.all(a, self.exists(b, a == b))"}]}}});
    assert!(errors_of(&costly, &CheckContext::default()).len() > 1);
}

#[test]
fn the_root_of_a_schema_with_status_is_plain() {
    let context = CheckContext { status_subresource: true, ..CheckContext::default() };
    assert!(errors_of(&json!({"type": "object", "properties": {}}), &context).is_empty());
    let found = errors_of(&json!({"type": "object", "oneOf": [{"required": ["a"]}]}), &context);
    assert!(found[0].starts_with("s: Invalid value: "), "{found:?}");
    assert!(
        found[0]
            .ends_with("fields are allowed at the root of the schema if the status subresource is enabled")
    );
}
