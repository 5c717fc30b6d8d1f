//! Nothing panics on what comes from outside: schemas and objects that make no sense, very deep and very large
//! ones, on the small stack of a server's thread.

use std::thread;

use ferry_api::{FieldErrors, GroupVersionKind};
use ferry_schema::check::{self, CheckContext};
use ferry_schema::structural::MAX_DEPTH;
use ferry_schema::{Rules, Structural, default, prune, publish, validate};
use serde_json::{Map, Value, json};

/// Runs on a stack of 2 MB, as a server's thread has.
fn on_a_small_stack(run: impl FnOnce() + Send + 'static) {
    let thread = thread::Builder::new().stack_size(2 << 20).spawn(run).expect("a thread");
    thread.join().expect("no panic");
}

fn gvk() -> GroupVersionKind {
    GroupVersionKind::new("example.com", "v1", "Widget")
}

/// Everything that can be done with a schema and an object. Returns the errors of the schema.
fn run(schema: &Value, object: &Value) -> Vec<String> {
    let mut errors = FieldErrors::default();
    for context in [
        CheckContext::default(),
        CheckContext {
            old: Some(schema),
            preserve_unknown_fields: true,
            status_subresource: true,
            ..CheckContext::default()
        },
    ] {
        errors = FieldErrors::default();
        check::schema(schema, "s", &context, &mut errors);
    }
    publish::v3(Some(schema), &gvk(), true);
    publish::v2(Some(schema), &gvk(), true);
    if let Ok(structural) = Structural::parse(schema) {
        structural.rows(&gvk());
        structural.heap_bytes();
        let rules = Rules::compile(&structural).unwrap_or_default();
        let before = object.as_object().cloned().unwrap_or_default();
        let mut after = before.clone();
        prune::prune(&mut after, &structural, Some(&mut Vec::new()));
        default::apply(&mut after, &structural);
        for (new, old) in [(&before, None), (&after, Some(&before)), (&before, Some(&after))] {
            validate::object(new, old, &structural, &rules, &mut FieldErrors::default());
        }
        validate::status(&after, &before, &structural, &rules, &mut FieldErrors::default());
    }
    errors.0.iter().map(ToString::to_string).collect()
}

/// Numbers that are the same in each run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % limit as u64) as usize
    }

    fn one<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len())]
    }
}

const WORDS: &[&str] = &[
    "type",
    "properties",
    "items",
    "additionalProperties",
    "required",
    "enum",
    "default",
    "nullable",
    "format",
    "pattern",
    "maximum",
    "minimum",
    "exclusiveMaximum",
    "multipleOf",
    "maxLength",
    "minLength",
    "maxItems",
    "minItems",
    "maxProperties",
    "minProperties",
    "uniqueItems",
    "allOf",
    "anyOf",
    "oneOf",
    "not",
    "$ref",
    "x-kubernetes-list-type",
    "x-kubernetes-list-map-keys",
    "x-kubernetes-map-type",
    "x-kubernetes-validations",
    "x-kubernetes-preserve-unknown-fields",
    "x-kubernetes-embedded-resource",
    "x-kubernetes-int-or-string",
    "definitions",
    "dependencies",
    "patternProperties",
    "additionalItems",
    "id",
    "description",
];
const TEXTS: &[&str] = &[
    "object",
    "array",
    "string",
    "integer",
    "number",
    "boolean",
    "null",
    "map",
    "set",
    "atomic",
    "granular",
    "",
    "date-time",
    "duration",
    "byte",
    "int32",
    "a",
    "b",
    "metadata",
    "kind",
    "apiVersion",
    "spec",
    "status",
    "(",
    "^a+$",
    "self",
    "é",
    "self == oldSelf",
    "1h",
    "2020-01-01T00:00:00Z",
    "namespace",
    "x-y",
];
const RULES: &[&str] = &[
    "self == oldSelf",
    "self.a == self.b",
    "self.all(x, x == 'a')",
    "self.size() > 1",
    "true",
    "self.a.b.c",
    "(",
    "",
    "oldSelf.hasValue()",
    "self > 1",
    "self.map(x, x + 1).sum() > 0",
    "has(self.a)",
    "self[0] == self[1]",
    "1/0 == 1",
];

fn value(numbers: &mut Numbers, depth: usize) -> Value {
    match numbers.below(if depth == 0 { 5 } else { 8 }) {
        0 => Value::Null,
        1 => (numbers.below(2) == 0).into(),
        2 => json!(*numbers.one(&[0i64, 1, -1, 3, i64::MAX, i64::MIN])),
        3 => json!(*numbers.one(&[0.5f64, -1e300, 1.0, 1e-9])),
        4 => (*numbers.one(TEXTS)).into(),
        5 => (0..numbers.below(4)).map(|_| value(numbers, depth - 1)).collect(),
        _ => {
            let names: Vec<&str> = (0..numbers.below(4)).map(|_| *numbers.one(TEXTS)).collect();
            Value::Object(
                names.into_iter().map(|name| (name.to_string(), value(numbers, depth - 1))).collect(),
            )
        }
    }
}

/// Schemas that are right in most words, so that all code is reached.
fn schema(numbers: &mut Numbers, depth: usize) -> Value {
    let mut out = Map::new();
    if numbers.below(10) > 0 {
        out.insert("type".into(), (*numbers.one(&TEXTS[..7])).into());
    }
    for _ in 0..numbers.below(5) {
        let word = *numbers.one(WORDS);
        let inner = |numbers: &mut Numbers| {
            if depth == 0 || numbers.below(20) == 0 { value(numbers, 1) } else { schema(numbers, depth - 1) }
        };
        let made = match word {
            _ if numbers.below(20) == 0 => value(numbers, 2),
            "properties" | "definitions" | "patternProperties" | "dependencies" => {
                let names: Vec<&str> = (0..numbers.below(4)).map(|_| *numbers.one(&TEXTS[16..])).collect();
                Value::Object(names.into_iter().map(|name| (name.to_string(), inner(numbers))).collect())
            }
            "items" | "additionalProperties" | "not" | "additionalItems" => inner(numbers),
            "allOf" | "anyOf" | "oneOf" => (0..numbers.below(3)).map(|_| inner(numbers)).collect(),
            "required" | "x-kubernetes-list-map-keys" => json!([*numbers.one(TEXTS), "a"]),
            "enum" => json!([value(numbers, 1), value(numbers, 1)]),
            "default" => value(numbers, 2),
            "x-kubernetes-list-type" => (*numbers.one(&["map", "set", "atomic"])).into(),
            "x-kubernetes-map-type" => (*numbers.one(&["granular", "atomic"])).into(),
            "x-kubernetes-validations" => {
                json!([{"rule": *numbers.one(RULES), "messageExpression": *numbers.one(&["'a'", "self", ""]),
                "fieldPath": *numbers.one(&["", ".a", "['a']", ".["]), "optionalOldSelf": numbers.below(2) == 0}])
            }
            "format" | "pattern" | "$ref" | "id" | "description" => (*numbers.one(TEXTS)).into(),
            word if word.starts_with('m') || word.ends_with("imum") => value(numbers, 0),
            _ => true.into(),
        };
        out.insert(word.into(), made);
    }
    Value::Object(out)
}

#[test]
fn schemas_never_panic_on_random_input() {
    on_a_small_stack(|| {
        let mut numbers = Numbers(0x9e37_79b9_7f4a_7c15);
        let mut fine = 0;
        for _ in 0..3000 {
            let mut schema = schema(&mut numbers, 3);
            if numbers.below(2) == 0 {
                schema["type"] = "object".into();
            }
            let object = value(&mut numbers, 4);
            fine += usize::from(run(&schema, &object).is_empty());
        }
        assert!(fine > 50, "{fine} of the schemas were fine: the generator should make more");
    });
}

/// `levels` objects within each other, by the words of `wrap`.
fn nested(levels: usize, wrap: impl Fn(Value) -> Value) -> Value {
    (0..levels).fold(json!({"type": "string", "default": "a"}), |inner, _| wrap(inner))
}

#[test]
fn deep_schemas_are_walked_on_a_small_stack() {
    on_a_small_stack(|| {
        let wraps: [fn(Value) -> Value; 3] = [
            |inner| json!({"type": "object", "properties": {"a": inner}}),
            |inner| json!({"type": "array", "items": inner}),
            |inner| json!({"type": "string", "allOf": [inner]}),
        ];
        for wrap in wraps {
            let within = json!({"type": "object", "properties": {"spec": nested(MAX_DEPTH - 3, wrap)}});
            let object = (0..MAX_DEPTH).fold(json!("a"), |inner, _| json!({"a": inner}));
            run(&within, &json!({"spec": object}));
            assert!(Structural::parse(&within).is_ok());
            let beyond = nested(MAX_DEPTH + 2, wrap);
            assert!(Structural::parse(&beyond).is_err());
            let told = run(&beyond, &json!({}));
            assert!(told.iter().any(|error| error.contains("levels deep")), "{told:?}");
        }
    });
}

#[test]
fn large_schemas_are_read_in_one_pass() {
    // 1.4 MB, as much as is stored of one object.
    let fields: Map<String, Value> = (0..21_000)
        .map(|at| {
            (
                format!("field{at}"),
                json!({"type": "string", "maxLength": at, "pattern": format!("^a{{{}}}$", at % 50)}),
            )
        })
        .collect();
    let schema = json!({"type": "object", "properties": {"spec": {"type": "object", "properties": fields}}});
    let size = schema.to_string().len();
    assert!(size > 1_400_000, "{size}");
    let structural = Structural::parse(&schema).expect("a schema");
    assert!(structural.heap_bytes() < 6 * size, "{} bytes of {size}", structural.heap_bytes());
    let mut errors = FieldErrors::default();
    check::schema(&schema, "s", &CheckContext::default(), &mut errors);
    assert!(errors.is_empty());
}

#[test]
fn a_long_name_is_not_written_for_each_error() {
    let name = "n".repeat(1 << 20);
    let items = json!({"type": "array", "items": {"type": "string", "maxLength": 1}});
    let schema = json!({"type": "object", "properties": {(name.clone()): items}});
    let structural = Structural::parse(&schema).expect("a schema");
    let wrong: Vec<Value> = (0..200_000).map(|at| json!(at + 10)).collect();
    let object = json!({(name.clone()): wrong, "other": {"a": 1}});
    let mut errors = FieldErrors::default();
    let fields = object.as_object().expect("an object");
    validate::object(fields, None, &structural, &Rules::none(), &mut errors);
    assert!(!errors.is_empty() && errors.0.len() < 10, "{}", errors.0.len());
    let schema = json!({"type": "object", "properties": {(name.clone()): {"type": "object"}}});
    let structural = Structural::parse(&schema).expect("a schema");
    let unknown: Map<String, Value> = (0..100_000).map(|at| (at.to_string(), json!(1))).collect();
    let mut object = Map::from_iter([(name, Value::Object(unknown))]);
    let mut note = Vec::new();
    prune::prune(&mut object, &structural, Some(&mut note));
    assert!(!note.is_empty() && note.len() < 10, "{}", note.len());
}

#[test]
fn many_errors_are_not_all_told() {
    let schema =
        json!({"type": "object", "properties": {"x": {"type": "array", "items": {"type": "string"}}}});
    let structural = Structural::parse(&schema).expect("a schema");
    let object = json!({"x": (0..500_000).collect::<Vec<i64>>()});
    let mut errors = FieldErrors::default();
    validate::object(object.as_object().expect("an object"), None, &structural, &Rules::none(), &mut errors);
    assert!(errors.0.len() > 50 && errors.0.len() < 5000, "{}", errors.0.len());
}
