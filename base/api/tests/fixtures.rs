//! Every fixture of Kubernetes v1.36 in JSON, YAML and protobuf: read, written back, equal to the byte.
//! The fixtures lie beside the workspace; where they are missing the test says so and passes over.

use std::path::PathBuf;

use ferry_api::kinds::GroupVersionKind;
use ferry_api::{FieldValidation, Object, Schema, json, protobuf, yaml};
use serde_json::Value;

fn fixtures() -> Option<PathBuf> {
    let folder = PathBuf::from("../../../shared/k8s-1.36/fixtures");
    if folder.is_dir() {
        return Some(folder);
    }
    ferry_skip::missing(&format!("upstream's fixtures, {}", folder.display()));
    None
}

struct Fixture {
    name: String,
    json: Vec<u8>,
    yaml: String,
    protobuf: Vec<u8>,
    schema: Schema,
}

fn all() -> Vec<Fixture> {
    let Some(folder) = fixtures() else { return Vec::new() };
    let mut names: Vec<String> = std::fs::read_dir(&folder)
        .expect("the folder of fixtures")
        .filter_map(|entry| {
            entry.expect("an entry").file_name().to_str()?.strip_suffix(".json").map(Into::into)
        })
        .collect();
    names.sort();
    let read = |name: &str, ending: &str| std::fs::read(folder.join(format!("{name}.{ending}"))).expect(name);
    names
        .into_iter()
        .map(|name| {
            let (json, protobuf) = (read(&name, "json"), read(&name, "pb"));
            let yaml = String::from_utf8(read(&name, "yaml")).expect("UTF-8");
            let (group_version, kind) = name.rsplit_once('.').expect("group.version.Kind");
            let (group, version) = group_version.rsplit_once('.').expect("group.version");
            let group = if group == "core" { "" } else { group };
            let gvk = GroupVersionKind::new(group.to_string(), version.to_string(), kind.to_string());
            let schema = Schema::builtin(&gvk).unwrap_or_else(|| panic!("no type for {name}"));
            Fixture { name, json, yaml, protobuf, schema }
        })
        .collect()
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
fn yaml_is_read_and_written_as_it_stands() {
    for fixture in all() {
        let decoded = yaml::decode(fixture.yaml.as_bytes(), &fixture.schema, FieldValidation::Strict);
        let object = decoded.unwrap_or_else(|status| panic!("{}: {status}", fixture.name)).object;
        assert_eq!(object, read_json(&fixture), "{}", fixture.name);
        assert_eq!(yaml::encode(&object), fixture.yaml, "{}", fixture.name);
    }
}
