//! Objects as clients send them. What is read is written in each format and must be read again as the same object.

use ferry_api::{FieldValidation, Object, Schema, defaulting, json, protobuf, yaml};
use serde_json::Value;

use crate::samples;

/// A protobuf envelope, or any message of the kind that it names.
pub fn protobuf(data: &[u8]) {
    let Ok((gvk, object)) = protobuf::decode(data) else {
        // Without an envelope: what a field of raw bytes may hold.
        let pod = samples::kind_of("v1 Pod");
        if let Some(schema) = pod.codec.typed()
            && let Ok(object) = protobuf::decode_message(data, schema)
        {
            reads_back(&object, schema);
        }
        return;
    };
    if let Some(schema) = Schema::builtin(&gvk) {
        reads_back(&object, &schema);
    }
}

pub fn json(data: &[u8]) {
    // What every reader of stored text asks first.
    let _ = ferry_api::depth::is_within(data, ferry_api::MAX_DEPTH);
    let _ = ferry_api::read::document(data);
    let Some((line, body)) = split(data) else { return };
    let kind = samples::kind_of(line);
    let Some(schema) = kind.codec.typed() else { return };
    for validation in [FieldValidation::Strict, FieldValidation::Ignore] {
        if let Ok(decoded) = json::decode(body, schema, validation) {
            reads_back(&decoded.object, schema);
        }
    }
    let _ = json::decode_applied(body, schema, FieldValidation::Warn);
    let _ = json::decode_untyped(body, FieldValidation::Strict);
}

pub fn yaml(data: &[u8]) {
    let Some((line, body)) = split(data) else { return };
    let kind = samples::kind_of(line);
    let Some(schema) = kind.codec.typed() else { return };
    if let Ok(decoded) = yaml::decode(body, schema, FieldValidation::Strict) {
        reads_back(&decoded.object, schema);
    }
    let _ = yaml::decode_applied(body, schema, FieldValidation::Warn);
    let _ = yaml::decode_untyped(body, FieldValidation::Strict);
    if let Ok(text) = std::str::from_utf8(body)
        && let Ok(documents) = yaml::documents(text)
    {
        for document in documents {
            let written = yaml::encode_value(&document);
            let read = yaml::documents(&written).unwrap_or_else(|why| panic!("{why}: {written:?}"));
            assert!(matches!(read.as_slice(), [read] if same(read, &document)), "{read:?} {document:?}");
        }
    }
}

/// JSON has one kind of numbers: 1e3 is written as 1000.
fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => a == b || a.as_f64() == b.as_f64(),
        (Value::Array(a), Value::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b)),
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len() && a.iter().all(|(name, a)| b.get(name).is_some_and(|b| same(a, b)))
        }
        (a, b) => a == b,
    }
}

fn split(data: &[u8]) -> Option<(&str, &[u8])> {
    let end = data.iter().position(|byte| *byte == b'\n')?;
    Some((std::str::from_utf8(&data[..end]).ok()?, &data[end + 1..]))
}

/// An object that was read can be written and read in each format, and defaulted.
fn reads_back(object: &Object, schema: &Schema) {
    let text = object.to_json();
    let again = json::decode(&text, schema, FieldValidation::Ignore);
    let again = again.unwrap_or_else(|status| panic!("{status}: {}", text.escape_ascii()));
    assert_eq!(again.object, *object, "JSON");
    let in_yaml = yaml::encode(object);
    let again = yaml::decode(in_yaml.as_bytes(), schema, FieldValidation::Ignore);
    let again = again.unwrap_or_else(|status| panic!("{status}: {in_yaml:?}"));
    assert!(same(&again.object.into_value(), &object.clone().into_value()), "YAML: {in_yaml:?}");
    // Not every object has a place in protobuf; one that has is the same again.
    if let Ok(message) = protobuf::encode_message(object, schema) {
        let once = protobuf::decode_message(&message, schema);
        let once = once.unwrap_or_else(|status| panic!("{status}: {}", text.escape_ascii()));
        let message = protobuf::encode_message(&once, schema).expect("it was written before");
        let twice = protobuf::decode_message(&message, schema).expect("it was read before");
        assert_eq!(once, twice, "protobuf");
    }
    let mut defaulted = object.clone();
    defaulting::apply(&mut defaulted, schema);
}

pub fn protobuf_seeds() -> Vec<Vec<u8>> {
    let objects = samples::kinds().filter_map(|(kind, schema)| Some((samples::full(kind, schema)?, schema)));
    objects.filter_map(|(object, schema)| protobuf::encode(&object, schema).ok()).collect()
}

pub fn json_seeds() -> Vec<Vec<u8>> {
    written(|object| object.to_json())
}

pub fn yaml_seeds() -> Vec<Vec<u8>> {
    let mut seeds = written(|object| yaml::encode(object).into_bytes());
    let forms: [&str; 6] = [
        "a: &a [1, 2]\nb: *a\nc: {<<: {d: 1}, e: ~}",
        "a: |\n  text\n  more\nb: >-\n  folded\n  text\nc: \"\\u00e9\\n\"\nd: 'it''s'",
        "? key\n: value\n? [1, 2]\n: {a: b}",
        "a: !!str 1\nb: !!binary AAE=\nc: 0x1F\nd: 1_000\ne: .inf\nf: 1e3\ng: 2001-12-14\nh: yes",
        "%YAML 1.2\n---\na: 1\n...\n---\nb: 2\n",
        "- - - a\n    - b\n  - c\n-\n  - d # comment\n",
    ];
    seeds.extend(forms.map(|form| format!("v1 ConfigMap\n{form}").into_bytes()));
    seeds
}

fn written(write: impl Fn(&Object) -> Vec<u8>) -> Vec<Vec<u8>> {
    samples::kinds()
        .filter_map(|(kind, schema)| {
            let mut seed = samples::line_of(kind).into_bytes();
            seed.push(b'\n');
            seed.extend(write(&samples::full(kind, schema)?));
            Some(seed)
        })
        .collect()
}
