//! Every fixture of Kubernetes v1.36 in JSON, YAML and protobuf: read, written back, equal to the byte.

mod recorded;

use std::fmt::Write;
use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ferry_api::kinds::GroupVersionKind;
use ferry_api::{FieldValidation, Object, Schema, json, protobuf, yaml};
use serde_json::{Value, json as value};
use sha2::{Digest, Sha256};

struct Fixture {
    name: String,
    json: Vec<u8>,
    /// The SHA-256 of the YAML.
    yaml: String,
    protobuf: Vec<u8>,
    schema: Schema,
}

fn all() -> Vec<Fixture> {
    let fixtures: Vec<Fixture> = recorded::items("fixtures", record).iter().map(fixture).collect();
    assert!(fixtures.len() > 180, "{} fixtures", fixtures.len());
    fixtures
}

fn fixture(item: &Value) -> Fixture {
    let text = |field: &str| item[field].as_str().expect(field).to_owned();
    let name = text("name");
    let (group_version, kind) = name.rsplit_once('.').expect("group.version.Kind");
    let (group, version) = group_version.rsplit_once('.').expect("group.version");
    let group = if group == "core" { "" } else { group };
    let gvk = GroupVersionKind::new(group.to_string(), version.to_string(), kind.to_string());
    Fixture {
        json: item["json"].to_string().into_bytes(),
        yaml: text("yaml"),
        protobuf: STANDARD.decode(text("protobuf")).expect("base64"),
        schema: Schema::builtin(&gvk).unwrap_or_else(|| panic!("no type for {name}")),
        name,
    }
}

/// From upstream's `testdata/HEAD` of k8s.io/api.
fn record(facts: &Path) -> Vec<Value> {
    let folder = facts.join("fixtures");
    let read = |name: &str, ending: &str| std::fs::read(folder.join(format!("{name}{ending}"))).expect(name);
    let item = |name: String| {
        let object: Value = serde_json::from_slice(&read(&name, ".json")).expect("JSON");
        let protobuf = STANDARD.encode(read(&name, ".pb"));
        value!({"name": name, "json": object, "protobuf": protobuf, "yaml": digest(&read(&name, ".yaml"))})
    };
    recorded::names(&folder, ".json").into_iter().map(item).collect()
}

fn digest(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").expect("a String takes it");
        text
    })
}

fn read_json(fixture: &Fixture) -> Object {
    let decoded = json::decode(&fixture.json, &fixture.schema, FieldValidation::Strict);
    decoded.unwrap_or_else(|status| panic!("{}: {status}", fixture.name)).object
}

#[test]
fn json_survives_the_reading() {
    for fixture in all() {
        let plain: Value = serde_json::from_slice(&fixture.json).expect("JSON");
        assert_eq!(read_json(&fixture).into_value(), plain, "{}", fixture.name);
    }
}

#[test]
fn json_becomes_the_same_protobuf() {
    for fixture in all() {
        let encoded = protobuf::encode(&read_json(&fixture), &fixture.schema)
            .unwrap_or_else(|error| panic!("{}: {error}", fixture.name));
        if encoded != fixture.protobuf {
            let at = encoded.iter().zip(&fixture.protobuf).position(|(a, b)| a != b);
            let (ours, theirs) = (protobuf::decode(&encoded), protobuf::decode(&fixture.protobuf));
            panic!("{}: differs at {at:?}\n{ours:?}\n{theirs:?}", fixture.name);
        }
    }
}

#[test]
fn protobuf_becomes_the_same_json() {
    for fixture in all() {
        let read = if fixture.schema.root().has_type_meta {
            protobuf::decode(&fixture.protobuf).map(|(gvk, object)| {
                assert!(fixture.schema.root().kinds.contains(&gvk), "{}", fixture.name);
                object
            })
        } else {
            protobuf::decode_as(&fixture.protobuf, &fixture.schema)
        };
        let object = read.unwrap_or_else(|status| panic!("{}: {status}", fixture.name));
        let plain: Value = serde_json::from_slice(&fixture.json).expect("JSON");
        assert_eq!(object.into_value(), plain, "{}", fixture.name);
    }
}

#[test]
fn yaml_is_written_as_upstreams_and_read_back() {
    for fixture in all() {
        let object = read_json(&fixture);
        let text = yaml::encode(&object);
        assert_eq!(digest(text.as_bytes()), fixture.yaml, "{}:\n{text}", fixture.name);
        let decoded = yaml::decode(text.as_bytes(), &fixture.schema, FieldValidation::Strict);
        let decoded = decoded.unwrap_or_else(|status| panic!("{}: {status}", fixture.name));
        assert_eq!(decoded.object, object, "{}", fixture.name);
    }
}
