//! Documents broken in every way a seeded generator thinks of: each is read or refused with a 400, and
//! what is read can be written again. Nothing panics.

use ferry_api::kinds::GroupVersionKind;
use ferry_api::{FieldValidation, Object, Schema, Status, json, protobuf, yaml};
use serde_json::json;

const ROUNDS: usize = 20_000;

/// xorshift64*: the same documents in every run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }
}

fn mutated(seed: &[u8], random: &mut Random) -> Vec<u8> {
    let mut bytes = seed.to_vec();
    for _ in 0..=random.below(4) {
        if bytes.is_empty() {
            break;
        }
        let at = random.below(bytes.len());
        match random.below(6) {
            0 => bytes[at] = random.next() as u8,
            1 => bytes[at] ^= 1 << random.below(8),
            2 => bytes.truncate(at),
            3 => bytes.insert(at, random.next() as u8),
            4 => {
                bytes.remove(at);
            }
            _ => {
                let end = (at + random.below(16)).min(bytes.len());
                let piece = bytes[at..end].to_vec();
                let to = random.below(bytes.len());
                bytes.splice(to..to, piece);
            }
        }
    }
    bytes
}

fn pod() -> (Object, Schema) {
    let schema = Schema::builtin(&GroupVersionKind::new("", "v1", "Pod")).expect("pods are built in");
    let value = json!({"apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "a", "labels": {"a": "b"}, "creationTimestamp": "2026-01-02T03:04:05Z",
            "managedFields": [{"manager": "m", "fieldsV1": {"f:spec": {}}}]},
        "spec": {"containers": [{"name": "a", "resources": {"limits": {"cpu": "1500m", "memory": "1.5Gi"}},
            "readinessProbe": {"httpGet": {"port": "http"}, "periodSeconds": 3},
            "env": [{"name": "A", "value": "é\n\"x\""}]}], "priority": -1},
        "status": {"startTime": "2026-01-02T03:04:05Z", "conditions": [{"type": "Ready", "status": "True"}]}});
    (json::decode_value(value, &schema, FieldValidation::Strict).expect("a pod").object, schema)
}

fn assert_refused(status: &Status) {
    assert_eq!(status.code, 400, "{status}");
    assert!(!status.message.is_empty());
}

#[test]
fn broken_json_is_refused_or_read() {
    let (pod, schema) = pod();
    let seed = pod.to_json();
    let mut random = Random(0x5eed);
    let mut read = 0;
    for _ in 0..ROUNDS {
        let bytes = mutated(&seed, &mut random);
        match json::decode(&bytes, &schema, FieldValidation::Ignore) {
            Ok(decoded) => {
                read += 1;
                let again = json::decode(&decoded.object.to_json(), &schema, FieldValidation::Strict);
                assert_eq!(again.expect("what was written is read").object, decoded.object);
            }
            Err(status) => assert_refused(&status),
        }
        if let Err(status) = json::decode_untyped(&bytes, FieldValidation::Strict) {
            assert_refused(&status);
        }
    }
    assert!(read > 0 && read < ROUNDS, "{read} of {ROUNDS} could be read");
}

#[test]
fn broken_yaml_is_refused_or_read() {
    let (pod, schema) = pod();
    let seed = yaml::encode(&pod).into_bytes();
    let mut random = Random(0xca11);
    let mut read = 0;
    for _ in 0..ROUNDS / 4 {
        let bytes = mutated(&seed, &mut random);
        match yaml::decode(&bytes, &schema, FieldValidation::Ignore) {
            Ok(decoded) => {
                read += 1;
                let text = yaml::encode(&decoded.object);
                let again = yaml::decode(text.as_bytes(), &schema, FieldValidation::Strict);
                let again = again.unwrap_or_else(|status| panic!("{status}\n{text}"));
                assert_eq!(again.object, decoded.object, "{text}");
            }
            Err(status) => assert_refused(&status),
        }
    }
    assert!(read > 0 && read < ROUNDS / 4, "{read} of {ROUNDS} could be read");
}

#[test]
fn broken_protobuf_is_refused_or_read() {
    let (pod, schema) = pod();
    let seed = protobuf::encode(&pod, &schema).expect("encodes");
    let mut random = Random(0xf00d);
    let mut read = 0;
    for _ in 0..ROUNDS {
        let bytes = mutated(&seed, &mut random);
        match protobuf::decode(&bytes) {
            Ok((gvk, object)) => {
                read += 1;
                let schema = Schema::builtin(&gvk).expect("a kind that could be read");
                let written = protobuf::encode(&object, &schema).expect("what was read can be written");
                assert_eq!(protobuf::decode(&written).expect("and read again").1, object);
            }
            Err(status) => assert_refused(&status),
        }
        if let Err(status) = protobuf::decode_message(&bytes, &schema) {
            assert_refused(&status);
        }
    }
    assert!(read > 0 && read < ROUNDS, "{read} of {ROUNDS} could be read");
}

#[test]
fn messages_nested_without_end_are_refused() {
    let crd = GroupVersionKind::new("apiextensions.k8s.io", "v1", "CustomResourceDefinition");
    let schema = Schema::builtin(&crd).expect("a built-in kind");
    let props =
        schema.types.by_name("io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaProps");
    let schema = Schema { root: props.expect("JSONSchemaProps"), types: schema.types };
    let mut message = Vec::new();
    for _ in 0..2_000 {
        // not: JSONSchemaProps
        let mut outer = vec![0xe2, 0x01];
        let mut length = message.len();
        while length >= 0x80 {
            outer.push(length as u8 | 0x80);
            length >>= 7;
        }
        outer.push(length as u8);
        outer.extend(message);
        message = outer;
    }
    let status = protobuf::decode_message(&message, &schema).expect_err("too deep");
    assert!(status.message.ends_with("exceeded max depth"), "{status}");
}
