use serde_json::{Value, json};

use super::*;

fn judge(schema: &Value, new: &Value, old: Option<&Value>) -> Vec<String> {
    let schema = Structural::parse(schema).expect("a schema");
    let rules = Rules::compile(&schema).expect("rules");
    let fields = |value: &Value| value.as_object().cloned().expect("an object");
    let mut errors = FieldErrors::default();
    let _ = rules.judge(&fields(new), old.map(fields).as_ref(), &mut errors);
    errors.0.iter().map(ToString::to_string).collect()
}

/// The errors of a field `x` of this schema with one rule.
fn check(schema: Value, rule: Value, value: Value, old: Option<Value>, expected: &[&str]) {
    let mut schema = schema;
    schema["x-kubernetes-validations"] = json!([rule]);
    let schema = json!({"type": "object", "properties": {"x": schema}});
    let old = old.map(|old| json!({"x": old}));
    assert_eq!(judge(&schema, &json!({"x": value}), old.as_ref()), expected);
}

#[test]
fn rules_judge_values() {
    let number = || json!({"type": "integer"});
    check(number(), json!({"rule": "self > 3"}), json!(4), None, &[]);
    check(
        number(),
        json!({"rule": "self > 3"}),
        json!(2),
        None,
        &["x: Invalid value: 2: failed rule: self > 3"],
    );
    check(
        number(),
        json!({"rule": "self > 3", "message": " too small "}),
        json!(2),
        None,
        &["x: Invalid value: 2: too small"],
    );
    check(
        number(),
        json!({"rule": "self > 3", "messageExpression": "'have ' + string(self)"}),
        json!(2),
        None,
        &["x: Invalid value: 2: have 2"],
    );
    check(
        number(),
        json!({"rule": "self > 3", "reason": "FieldValueForbidden"}),
        json!(2),
        None,
        &["x: Forbidden: failed rule: self > 3"],
    );
    let object =
        json!({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}});
    check(
        object.clone(),
        json!({"rule": "self.a < self.b"}),
        json!({"a": 1, "b": 0}),
        None,
        &["x: Invalid value: failed rule: self.a < self.b"],
    );
    check(
        object.clone(),
        json!({"rule": "self.a < self.b", "fieldPath": ".a"}),
        json!({"a": 1, "b": 0}),
        None,
        &["x.a: Invalid value: failed rule: self.a < self.b"],
    );
    check(
        object,
        json!({"rule": "self.a < self.b"}),
        json!({"a": 1}),
        None,
        &[r#"x: Invalid value: "object": no such key: b evaluating rule: self.a < self.b"#],
    );
}

#[test]
fn values_have_the_types_of_the_schema() {
    let text = |format: &str| json!({"type": "string", "format": format});
    check(
        text("date-time"),
        json!({"rule": "self.getFullYear() == 2024"}),
        json!("2024-05-01T00:00:00Z"),
        None,
        &[],
    );
    check(
        text("date"),
        json!({"rule": "self < timestamp('2025-01-01T00:00:00Z')"}),
        json!("2024-05-01"),
        None,
        &[],
    );
    check(
        text("duration"),
        json!({"rule": "self > duration('47h') && self < duration('49h')"}),
        json!("2 days"),
        None,
        &[],
    );
    check(text("byte"), json!({"rule": "self == b'hello'"}), json!("aGVsbG8="), None, &[]);
    check(json!({"type": "number"}), json!({"rule": "self / 2.0 == 0.5"}), json!(1), None, &[]);
    check(
        json!({"x-kubernetes-int-or-string": true}),
        json!({"rule": "type(self) == string ? self == '50%' : self == 50"}),
        json!("50%"),
        None,
        &[],
    );
    let object =
        json!({"type": "object", "properties": {"a-b": {"type": "string"}, "namespace": {"type": "string"}}});
    check(
        object,
        json!({"rule": "self.a__dash__b == 'x' && self.__namespace__ == 'y'"}),
        json!({"a-b": "x", "namespace": "y"}),
        None,
        &[],
    );
    let map = json!({"type": "object", "additionalProperties": {"type": "string"}});
    check(
        map.clone(),
        json!({"rule": "self['a-b'] == 'x' && self.all(k, k.size() == 3)"}),
        json!({"a-b": "x"}),
        None,
        &[],
    );
    check(map, json!({"rule": "self.all(k, v, k == v)"}), json!({"a": "a", "b": "b"}), None, &[]);
    let optional = json!({"type": "object", "properties": {"a": {"type": "string"}}});
    check(optional.clone(), json!({"rule": "self.?a.orValue('none') == 'none'"}), json!({}), None, &[]);
    check(optional, json!({"rule": "has(self.a) && self.a == 'x'"}), json!({"a": "x"}), None, &[]);
}

#[test]
fn fields_have_the_names_of_words_too_and_nulls_are_absent() {
    let object =
        json!({"type": "object", "properties": {"if": {"type": "string"}, "namespace": {"type": "string"}}});
    check(
        object,
        json!({"rule": "self.if == 'a' && has(self.namespace) && self.namespace == self.__namespace__"}),
        json!({"if": "a", "namespace": "b"}),
        None,
        &[],
    );
    let nullable = json!({"type": "object", "properties": {"a": {"type": "integer", "nullable": true}}});
    check(nullable, json!({"rule": "!has(self.a)"}), json!({"a": null}), None, &[]);
    let text = json!({"type": "string"});
    let metadata =
        json!({"type": "object", "properties": {"name": text, "generateName": text, "namespace": text}});
    let embedded = json!({"type": "object", "x-kubernetes-embedded-resource": true,
        "properties": {"kind": text, "apiVersion": text, "metadata": metadata}});
    check(
        embedded,
        json!({"rule": "self.metadata.namespace == 'n'"}),
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a", "namespace": "n"}}),
        None,
        &[],
    );
}

#[test]
fn lists_that_are_sets_or_maps_have_no_order() {
    let set = json!({"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}});
    check(set.clone(), json!({"rule": "self == oldSelf"}), json!(["a", "b"]), Some(json!(["b", "a"])), &[]);
    check(
        set.clone(),
        json!({"rule": "self == oldSelf"}),
        json!(["a"]),
        Some(json!(["b"])),
        &["x: Invalid value: failed rule: self == oldSelf"],
    );
    check(set.clone(), json!({"rule": "(self + ['a', 'c']).size() == 3"}), json!(["a", "b"]), None, &[]);
    check(
        set,
        json!({"rule": "self[0] == 'a' && 'b' in self && self.exists(x, x == 'b')"}),
        json!(["a", "b"]),
        None,
        &[],
    );
    let map = json!({"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"],
        "items": {"type": "object", "properties": {"k": {"type": "string"}, "v": {"type": "string"}}}});
    let (a, b) = (json!({"k": "a", "v": "1"}), json!({"k": "b", "v": "2"}));
    check(map, json!({"rule": "self == oldSelf"}), json!([a, b]), Some(json!([b, a])), &[]);
}

#[test]
fn transition_rules_need_a_value_before() {
    let text = || json!({"type": "string"});
    let rule = || json!({"rule": "self == oldSelf", "message": "immutable"});
    check(text(), rule(), json!("a"), None, &[]);
    check(text(), rule(), json!("a"), Some(json!("a")), &[]);
    check(text(), rule(), json!("a"), Some(json!("b")), &[r#"x: Invalid value: "a": immutable"#]);
    let optional = || json!({"rule": "oldSelf.hasValue() && oldSelf.value() == self", "optionalOldSelf": true, "message": "new"});
    check(text(), optional(), json!("a"), None, &[r#"x: Invalid value: "a": new"#]);
    check(text(), optional(), json!("a"), Some(json!("a")), &[]);
    // Elements are told by their keys.
    let list = json!({"type": "object", "properties": {"x": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"],
        "items": {"type": "object", "properties": {"k": {"type": "string"}, "v": {"type": "string", "x-kubernetes-validations": [rule()]}}}}}});
    let old = json!({"x": [{"k": "a", "v": "1"}, {"k": "b", "v": "2"}]});
    let new = json!({"x": [{"k": "b", "v": "3"}, {"k": "c", "v": "4"}, {"k": "a", "v": "1"}]});
    assert_eq!(judge(&list, &new, Some(&old)), [r#"x[0].v: Invalid value: "3": immutable"#]);
}

#[test]
fn errors_of_unchanged_values_are_ratcheted() {
    let schema = json!({"type": "object", "properties": {"x": {"type": "object", "properties": {
        "a": {"type": "integer", "x-kubernetes-validations": [{"rule": "self > 3"}]},
        "list": {"type": "array", "items": {"type": "integer", "x-kubernetes-validations": [{"rule": "self > 3"}]}},
        "b": {"type": "integer"}}}}});
    let old = json!({"x": {"a": 1, "b": 1, "list": [1]}});
    assert!(judge(&schema, &json!({"x": {"a": 1, "b": 2, "list": [1]}}), Some(&old)).is_empty());
    let found = judge(&schema, &json!({"x": {"a": 2, "b": 2, "list": [1, 2]}}), Some(&old));
    assert_eq!(found.len(), 3, "{found:?}");
}

#[test]
fn the_root_shows_type_and_names_alone() {
    let schema = |rule: &str| json!({"type": "object", "x-kubernetes-validations": [{"rule": rule}], "properties": {"spec": {"type": "object"}}});
    let object = json!({"apiVersion": "a/v1", "kind": "A", "metadata": {"name": "n", "labels": {}}});
    assert!(judge(&schema("self.metadata.name == 'n' && self.kind == 'A'"), &object, None).is_empty());
    let found = judge(&schema("self.metadata.name == 'x'"), &object, None);
    assert_eq!(found, ["<nil>: Invalid value: failed rule: self.metadata.name == 'x'"]);
    let schema = Structural::parse(&schema("size(self.metadata.labels) == 0")).expect("a schema");
    assert!(Rules::compile(&schema).expect_err("labels are not seen").contains("undefined field 'labels'"));
}

#[test]
fn a_request_has_one_budget() {
    let rule = "self.all(a, self.all(b, self.all(c, a + b + c > -1)))";
    let schema = json!({"type": "object", "properties": {"x": {"type": "array", "items": {"type": "integer"},
        "x-kubernetes-validations": [{"rule": rule}]}}});
    let items: Vec<i64> = (0..1000).collect();
    let found = judge(&schema, &json!({"x": items}), None);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].contains("cost"), "{found:?}");
    let schema = json!({"type": "object", "properties": {"x": {"type": "array", "items": {"type": "integer",
        "x-kubernetes-validations": [{"rule": "lists.range(1000).exists(a, a < self)"}]}}}});
    let items: Vec<i64> = (1..20_000).collect();
    let found = judge(&schema, &json!({"x": items}), None);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(
        found[0].ends_with(
            "validation failed due to running out of cost budget, no further validation rules will be run"
        ),
        "{found:?}"
    );
}

/// What a rule at a field `x` can cost at most.
fn estimated(schema: Value, rule: &str) -> u64 {
    let mut schema = schema;
    schema["x-kubernetes-validations"] = json!([{"rule": rule}]);
    let schema = Structural::parse(&schema).expect("a schema");
    let decl = Decls::default().of(&schema.root, false).expect("a declaration");
    match compile(&schema.root.rules()[0], &schema.root, &decl) {
        Ok(compiled) => compiled.cost,
        Err(fault) => panic!("{rule}: {fault:?}"),
    }
}

/// Checks the estimates of a schema without a limit, and with one under `limit`'s name.
fn costs(schema: Value, rule: &str, free: Option<u64>, limit: &str, most: i64, limited: u64) {
    let cost = estimated(schema.clone(), rule);
    match free {
        Some(free) => assert_eq!(cost, free, "{rule} for {schema}"),
        None => assert!(cost > 10_000_000, "{rule} for {schema}"),
    }
    let mut schema = schema;
    schema[limit] = most.into();
    assert_eq!(estimated(schema.clone(), rule), limited, "{rule} for {schema}");
}

#[test]
fn costs_are_estimated_as_upstream_does() {
    // The numbers are those of upstream's tests.
    let value = |kind: &str| match kind {
        "duration" | "date" | "date-time" => json!({"type": "string", "format": kind}),
        "int-or-string" => json!({"x-kubernetes-int-or-string": true}),
        kind => json!({"type": kind}),
    };
    let list = |kind: &str| json!({"type": "array", "items": value(kind)});
    let map = |kind: &str| json!({"type": "object", "additionalProperties": value(kind)});
    let text = || json!({"type": "string"});
    let all = "self.all(x, true)";
    costs(list("number"), all, Some(4718591), "maxItems", 10, 32);
    costs(list("string"), all, Some(3145727), "maxItems", 20, 62);
    costs(list("boolean"), all, Some(1887437), "maxItems", 5, 17);
    costs(list("duration"), all, Some(2359295), "maxItems", 5, 17);
    costs(list("date"), all, Some(725936), "maxItems", 15, 47);
    costs(list("date-time"), all, Some(428963), "maxItems", 25, 77);
    costs(list("int-or-string"), all, Some(4718591), "maxItems", 10, 32);
    costs(list("int-or-string"), "self[0] == 5", Some(3), "maxItems", 10, 3);
    costs(map("number"), all, Some(1348169), "maxProperties", 10, 32);
    costs(map("string"), all, Some(1179647), "maxProperties", 3, 11);
    costs(map("boolean"), all, Some(943718), "maxProperties", 100, 302);
    costs(text(), "self.contains('test')", Some(314574), "maxLength", 10, 5);
    costs(text(), "self.startsWith('test')", Some(2), "maxLength", 15, 2);
    costs(text(), r#"size(self + "hello") > size("hello")"#, Some(314578), "maxLength", 4, 7);
    costs(text(), r#"self.matches("x")"#, Some(314574), "maxLength", 50, 22);
    costs(text(), r#"self.matches("")"#, Some(1), "maxLength", 100, 1);
    costs(text(), r#""".matches("(((((((((())))))))))[0-9]")"#, Some(7), "maxLength", 10, 7);
    costs(text(), r#"self == "x""#, Some(2), "maxLength", 0, 1);
    costs(list("number"), "self[1] == 0.0", Some(2), "maxItems", 5000, 2);
    costs(list("string"), "self[1] == self[1]", Some(314577), "maxItems", 8, 314577);
    costs(list("number"), "self.all(x, self.all(y, true))", None, "maxItems", 10, 352);
    costs(list("number"), "self.all(x, self.all(y, self.all(z, true)))", None, "maxItems", 10, 3552);
    costs(list("number"), "self.all(x, x == 0.0)", Some(6291454), "maxItems", 3 * 1024 * 2048, 25165826);
    costs(list("duration"), "self[0].getHours() == 2", Some(4), "maxItems", 525, 4);
    costs(map("date-time"), r#"self["a"] == self["b"]"#, Some(8), "maxProperties", 7, 8);
    let choice = json!({"type": "string", "enum": ["A", "B", "C", "LongValue"]});
    costs(choice, "self.contains('A')", Some(2), "maxLength", 1000, 401);
    let objects = json!({"type": "array", "items": {"type": "object", "required": ["required"],
        "properties": {"required": {"type": "string"}, "optional": {"type": "string"}}}});
    costs(objects.clone(), all, Some(555128), "maxItems", 50, 152);
    costs(objects, "self[0] == null", Some(2), "maxItems", 422, 2);
    let maps =
        json!({"type": "array", "items": {"type": "object", "additionalProperties": {"type": "number"}}});
    costs(maps.clone(), "self.all(x, x.y == 25.2)", Some(6291452), "maxItems", 12, 74);
    costs(maps, "self[0].x > 2.0", Some(4), "maxItems", 3000, 4);
    assert_eq!(estimated(map("string"), "self.all(x, x.contains(self[x]))"), 2752507);
}
