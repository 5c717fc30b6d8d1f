//! Documents that nest: the deepest that is allowed goes through every reader, writer and walk on the stack of a worker
//! thread, and one level more is refused, by whatever way it is made.

use ferry_api::{
    FieldValidation, GroupVersionKind, MAX_DEPTH, Object, Schema, Status, defaulting, json, protobuf, yaml,
};
use serde_json::{Value, json};

/// Of a thread that serves requests.
const STACK: usize = 2 << 20;

fn on_small_stack(test: impl FnOnce() + Send + 'static) {
    let thread = std::thread::Builder::new().stack_size(STACK).spawn(test).expect("a thread");
    thread.join().expect("the test passes");
}

fn schema(api_version: &str, kind: &str) -> Schema {
    Schema::builtin(&GroupVersionKind::from_api_version(api_version, kind)).expect("a built-in kind")
}

/// `levels` objects in each other.
fn nested(levels: usize, open: &str, close: &str, inner: &str) -> String {
    format!("{}{inner}{}", open.repeat(levels), close.repeat(levels))
}

/// Documents of exactly `depth` levels, with the kind they are of; none for a kind without rows.
fn documents(depth: usize) -> Vec<(Option<Schema>, String)> {
    let raw = |outer: usize, levels: usize| match levels % 2 {
        0 => nested(levels - outer, r#"{"a":"#, "}", "1"),
        _ => nested(levels - outer, "[", "]", "1"),
    };
    let not = nested(depth - 6, r#"{"not":"#, "}", "{}");
    vec![
        (
            Some(schema("apps/v1", "ControllerRevision")),
            format!(
                r#"{{"apiVersion":"apps/v1","kind":"ControllerRevision","metadata":{{"name":"a"}},"data":{},"revision":1}}"#,
                raw(1, depth)
            ),
        ),
        (
            Some(schema("apiextensions.k8s.io/v1", "CustomResourceDefinition")),
            format!(
                r#"{{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{{"name":"a"}},"spec":{{"group":"a","names":{{"plural":"a","kind":"A"}},"scope":"Cluster","versions":[{{"name":"v1","served":true,"storage":true,"schema":{{"openAPIV3Schema":{not}}}}}]}}}}"#
            ),
        ),
        (
            None,
            format!(
                r#"{{"apiVersion":"example.org/v1","kind":"A","metadata":{{"name":"a"}},"spec":{}}}"#,
                raw(1, depth)
            ),
        ),
    ]
}

fn depth_of(json: &str) -> usize {
    (0..1_000).find(|levels| ferry_api::depth::is_within(json.as_bytes(), *levels)).expect("a depth")
}

fn read_json(text: &str, schema: Option<&Schema>) -> Result<Object, Status> {
    let decoded = match schema {
        Some(schema) => json::decode(text.as_bytes(), schema, FieldValidation::Strict),
        None => json::decode_untyped(text.as_bytes(), FieldValidation::Strict),
    };
    decoded.map(|decoded| decoded.object)
}

fn read_yaml(text: &str, schema: Option<&Schema>) -> Result<Object, Status> {
    // JSON is YAML; a comment keeps it from being read as JSON.
    let text = format!("# yaml\n{text}");
    let decoded = match schema {
        Some(schema) => yaml::decode(text.as_bytes(), schema, FieldValidation::Strict),
        None => yaml::decode_untyped(text.as_bytes(), FieldValidation::Strict),
    };
    decoded.map(|decoded| decoded.object)
}

#[test]
fn the_deepest_document_goes_through_everything() {
    on_small_stack(|| {
        for (schema, text) in documents(MAX_DEPTH) {
            assert_eq!(depth_of(&text), MAX_DEPTH, "{text}");
            let object = read_json(&text, schema.as_ref()).expect("as deep as allowed");
            assert_eq!(read_yaml(&text, schema.as_ref()).expect("as deep as allowed"), object);
            let written = yaml::encode(&object);
            assert_eq!(read_yaml(&written, schema.as_ref()).expect("as it was written"), object);
            let bytes = object.to_json();
            let stored = Object::read(&bytes).expect("what is stored is read");
            assert_eq!(stored, object);
            // Lists and reviews hold the object some levels deeper.
            let list = format!(r#"{{"request":{{"objects":[{}]}}}}"#, String::from_utf8_lossy(&bytes));
            let list: Value = serde_json::from_str(&list).expect("clients read it");
            drop(list.clone());
            let Some(schema) = schema else { continue };
            let decoded = json::decode_value(object.clone().into_value(), &schema, FieldValidation::Strict);
            assert_eq!(decoded.expect("in memory").object, object);
            let bytes = protobuf::encode(&object, &schema).expect("has a protobuf form");
            assert_eq!(protobuf::decode(&bytes).expect("as deep as allowed").1, object);
            let mut defaulted = object.clone();
            defaulting::apply(&mut defaulted, &schema);
        }
    });
}

#[test]
fn one_level_more_is_refused() {
    on_small_stack(|| {
        for depth in [MAX_DEPTH + 1, MAX_DEPTH + 2, 126] {
            for (schema, text) in documents(depth) {
                assert_eq!(depth_of(&text), depth);
                for refused in [read_json(&text, schema.as_ref()), read_yaml(&text, schema.as_ref())] {
                    let status = refused.expect_err("too deep");
                    assert!(status.code == 400 && status.message.contains("exceeded max depth"), "{status}");
                }
                let value: Value = serde_json::from_str(&text).expect("JSON");
                let Some(schema) = schema else { continue };
                let status = json::decode_value(value.clone(), &schema, FieldValidation::Strict);
                assert!(status.expect_err("too deep").message.contains("exceeded max depth"));
                let bytes = protobuf::encode(&Object::from_value(value).expect("an object"), &schema)
                    .expect("encodes");
                let status = protobuf::decode(&bytes).expect_err("too deep");
                assert!(status.message.contains("exceeded max depth"), "{status}");
            }
        }
    });
}

#[test]
fn no_document_however_deep_exhausts_the_stack() {
    on_small_stack(|| {
        for depth in [200, 1_000, 100_000] {
            for (schema, text) in documents(depth) {
                assert_eq!(read_json(&text, schema.as_ref()).expect_err("too deep").code, 400);
                assert_eq!(read_yaml(&text, schema.as_ref()).expect_err("too deep").code, 400);
            }
            let pod = schema("v1", "Pod");
            let set = nested(depth, r#"{"f:a":"#, "}", "{}");
            let text = format!(r#"{{"metadata":{{"managedFields":[{{"fieldsV1":{set}}}]}}}}"#);
            assert_eq!(read_json(&text, Some(&pod)).expect_err("too deep").code, 400);
            assert_eq!(read_yaml(&text, Some(&pod)).expect_err("too deep").code, 400);
            // An unknown field is passed over, however deep.
            let text = format!(r#"{{"metadata":{{"name":"a"}},"x":{}}}"#, nested(depth, "[", "]", ""));
            let read = json::decode(text.as_bytes(), &pod, FieldValidation::Warn);
            assert!(read.is_ok_and(|decoded| decoded.warnings.len() == 1) || depth > 120);
        }
    });
}

/// Aliases nest what is flat where it is written.
#[test]
fn aliases_do_not_nest_deeper() {
    on_small_stack(|| {
        let mut text = String::from("a0: &a0 [x]\n");
        for level in 1..400 {
            text.push_str(&format!("a{level}: &a{level} [*a{}]\n", level - 1));
        }
        let error = yaml::documents(&text).expect_err("too deep").to_string();
        assert!(error.ends_with("exceeded max depth"), "{error}");
    });
}

fn field(tag: u8, bytes: &[u8]) -> Vec<u8> {
    let mut out = vec![tag << 3 | 2];
    let mut length = bytes.len();
    while length >= 0x80 {
        out.push(length as u8 | 0x80);
        length >>= 7;
    }
    out.push(length as u8);
    out.extend_from_slice(bytes);
    out
}

fn envelope(api_version: &str, kind: &str, message: &[u8]) -> Vec<u8> {
    let meta = [field(1, api_version.as_bytes()), field(2, kind.as_bytes())].concat();
    [b"k8s\0".to_vec(), field(1, &meta), field(2, message)].concat()
}

/// An envelope in an envelope has no depth of its own.
#[test]
fn nested_envelopes_share_one_depth_budget() {
    on_small_stack(|| {
        let sets = |levels: usize| {
            (0..levels).fold(b"{}".to_vec(), |inner, _| {
                // metadata.managedFields[0].fieldsV1.raw
                let mut managed_fields = field(0, &field(7, &field(1, &inner)));
                managed_fields.splice(..1, [0x8a, 0x01]); // tag 17
                envelope("v1", "Pod", &field(1, &managed_fields))
            })
        };
        for levels in [2, 50, 600, 5_000] {
            let status = protobuf::decode(&sets(levels)).expect_err("a set of fields is JSON");
            assert_eq!(status.code, 400, "{status}");
        }
        assert!(protobuf::decode(&sets(1)).is_ok(), "{:?}", protobuf::decode(&sets(1)));
        // ControllerRevision.data is a RawExtension
        let data = |levels: usize| {
            (0..levels).fold(b"{}".to_vec(), |inner, _| {
                envelope("apps/v1", "ControllerRevision", &field(2, &field(1, &inner)))
            })
        };
        assert!(protobuf::decode(&data(MAX_DEPTH - 1)).is_ok());
        for levels in [MAX_DEPTH, 600, 20_000] {
            let status = protobuf::decode(&data(levels)).expect_err("too deep");
            assert!(status.message.contains("exceeded max depth"), "{status}");
        }
        let deep = nested(100, "[", "]", "");
        let inner = envelope("apps/v1", "ControllerRevision", &field(2, &field(1, deep.as_bytes())));
        assert!(protobuf::decode(&inner).is_ok());
        let outer = (0..20)
            .fold(inner, |inner, _| envelope("apps/v1", "ControllerRevision", &field(2, &field(1, &inner))));
        assert!(protobuf::decode(&outer).is_err(), "JSON inside counts, too");
    });
}

/// What is copied by anchors and aliases is bounded in bytes.
#[test]
fn yaml_aliases_are_limited() {
    let check = |text: &str| match yaml::documents(text) {
        Ok(_) => panic!("{} bytes were read", text.len()),
        Err(error) => assert!(error.to_string().ends_with("document contains excessive aliasing"), "{error}"),
    };
    let long = "x".repeat(80_000);
    check(&format!("a: &a {long}\nb: [{}]", "*a,".repeat(10_000)));
    check(&format!("a: &a {{\"b\": {long}}}\nb: [{}]", "*a,".repeat(10_000)));
    let anchored = (0..100).fold(format!("[{long}{long}]"), |inner, level| format!("&a{level} [{inner}]"));
    check(&format!("a: {anchored}"));
    let few = yaml::documents(&format!("a: &a {long}\nb: [*a, *a, *a]")).expect("some copies");
    assert_eq!(few[0]["b"], json!([long, long, long]));
    let tagged = format!("%TAG !e! tag:{long}\n---\n[{}]", "!e!a b,".repeat(1_000));
    assert!(yaml::documents(&tagged).expect_err("long").to_string().contains("directive"));
    let twice = format!("{{{}}}", format!("{}: 1, ", &long[..1_000]).repeat(1_000));
    let schema = schema("v1", "ConfigMap");
    let status = yaml::decode(format!("data: {twice}").as_bytes(), &schema, FieldValidation::Strict);
    assert!(status.expect_err("duplicates").to_json().len() < 256 << 10);
}
