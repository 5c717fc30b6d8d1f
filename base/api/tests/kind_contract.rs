//! What must hold for every row of the table: each kind has a type that can be read, written in every
//! format and read again, has defaults that fit it, and stands in discovery and OpenAPI.

#[path = "../../../tests/fuzz/src/full_value.rs"]
mod full_value;

use std::sync::Arc;

use ferry_api::openapi::{operations, schemas};
use ferry_api::types::{Shape, Types};
use ferry_api::{
    FieldValidation, Kind, Object, Schema, convert, defaulting, discovery, json, kinds, protobuf, yaml,
};
use serde_json::{Map, Value, json};

fn schema(kind: &Kind) -> &Schema {
    kind.codec.typed().unwrap_or_else(|| panic!("{} has no type", kind.gvk()))
}

fn full(kind: &Kind) -> Value {
    full_value::full_value(kind, schema(kind))
}

fn read(value: Value, kind: &Kind) -> Object {
    let bytes = value.to_string();
    let decoded = json::decode(bytes.as_bytes(), schema(kind), FieldValidation::Strict);
    decoded.unwrap_or_else(|status| panic!("{}: {status}", kind.gvk())).object
}

#[test]
fn every_kind_survives_every_format() {
    for kind in kinds::builtin() {
        let schema = schema(kind);
        for value in [full(kind), json!({"apiVersion": kind.api_version(), "kind": kind.kind})] {
            let object = read(value, kind);
            let gvk = kind.gvk();
            assert_eq!(read(object.clone().into_value(), kind), object, "{gvk}: JSON");
            let text = yaml::encode(&object);
            let from_yaml = yaml::decode(text.as_bytes(), schema, FieldValidation::Strict).expect("YAML");
            assert_eq!(from_yaml.object, object, "{gvk}: YAML");
            let bytes = protobuf::encode(&object, schema).unwrap_or_else(|error| panic!("{gvk}: {error}"));
            let (named, from_protobuf) =
                protobuf::decode(&bytes).unwrap_or_else(|error| panic!("{gvk}: {error}"));
            assert_eq!(named, gvk);
            assert_eq!(from_protobuf, object, "{gvk}: protobuf");
        }
    }
}

#[test]
fn every_kind_takes_its_defaults_and_keeps_them() {
    for kind in kinds::builtin() {
        let mut object = read(json!({"apiVersion": kind.api_version(), "kind": kind.kind}), kind);
        defaulting::apply(&mut object, schema(kind));
        let again = read(object.clone().into_value(), kind);
        assert_eq!(again, object, "{}: a default does not fit its field", kind.gvk());
    }
}

/// All defaults of the table, wherever they stand: each must be a value that its field can have.
#[test]
fn every_default_fits_its_field() {
    let types = Types::builtin();
    for ty in types.iter() {
        for field in &ty.fields {
            for default in field.default.iter().chain(&field.assume) {
                let id = types.by_name(&ty.name).expect("a type by its own name");
                let schema = Schema { types: types.clone(), root: id };
                let value = json!({field.name.as_ref(): default});
                let read = json::decode_value(value, &schema, FieldValidation::Strict);
                read.unwrap_or_else(|status| panic!("{} of {}: {status}", field.name, ty.name));
                let listed = field.values.is_empty()
                    || default
                        .as_str()
                        .is_none_or(|text| field.values.iter().any(|value| value.as_ref() == text));
                assert!(listed, "{} of {}: {default} is none of its values", field.name, ty.name);
            }
        }
        for (path, _) in &ty.assumptions {
            let mut at = Some(ty);
            for (index, name) in path.iter().enumerate() {
                let field = at.and_then(|ty| ty.field(name));
                let field = field.unwrap_or_else(|| panic!("{} has no {}", ty.name, path.join(".")));
                at = match &field.shape {
                    Shape::Struct(id) => Some(types.get(*id)),
                    _ if index + 1 == path.len() => None,
                    _ => panic!("{}: {} is no struct", ty.name, name),
                };
            }
        }
    }
}

#[test]
fn every_kind_converts_to_its_stored_version_and_back() {
    for kind in kinds::builtin().iter().filter(|kind| !kind.is_storage_version()) {
        let stored = kinds::builtin().iter().find(|row| row.gvk() == kind.storage_version);
        let stored = stored.unwrap_or_else(|| panic!("{} is stored as nothing", kind.gvk()));
        assert!(stored.is_storage_version(), "{}", kind.gvk());
        assert_eq!(stored.storage_prefix, kind.storage_prefix, "{}", kind.gvk());
        let object = read(json!({"apiVersion": kind.api_version(), "kind": kind.kind}), kind);
        let there = convert::convert(object.clone(), kind, stored).expect("converts");
        assert_eq!(there.api_version(), stored.api_version());
        let back = convert::convert(there, stored, kind).expect("converts back");
        if kind.group != "autoscaling" {
            // an autoscaler without a metric comes back with the one that it had all along
            assert_eq!(back, object, "{}", kind.gvk());
        }
    }
}

#[test]
fn every_kind_can_be_found_and_is_described() {
    let all: Vec<Arc<Kind>> = kinds::builtin().to_vec();
    let groups = discovery::Groups::new(&all, Vec::new());
    for kind in &all {
        let gvk = kind.gvk();
        let list = groups.resources(&kind.group, &kind.version).expect("its version is listed");
        let listed = list["resources"]
            .as_array()
            .expect("a list")
            .iter()
            .any(|entry| entry["name"] == kind.plural.as_ref());
        assert!(listed, "{gvk} is not in discovery");
        let paths = operations::of_kind(kind);
        assert!(!paths.is_empty(), "{gvk} has no path");
        let definitions = schemas::definitions(&paths, &[kind], schemas::Version::V3);
        let own = definitions
            .get(schema(kind).root().name.as_ref())
            .unwrap_or_else(|| panic!("{gvk} is not defined"));
        assert_eq!(own["x-kubernetes-group-version-kind"][0]["kind"], kind.kind.as_ref());
        let unread = definitions.iter().find(|(_, definition)| **definition == json!({"type": "object"}));
        if let Some((name, _)) = unread {
            let known = Types::builtin().by_name(name).is_some()
                || name.ends_with("Patch")
                || name.ends_with("FieldsV1")
                || name.ends_with("RawExtension");
            assert!(known, "{gvk} refers to {name}, which nobody defines");
        }
        if kind.has_verb("list") {
            let list = kinds::GroupVersionKind { kind: kind.list_kind.clone(), ..gvk.clone() };
            assert!(Schema::builtin(&list).is_some(), "{gvk} has no list type");
        }
    }
}

#[test]
fn maps_are_ordered_by_their_keys() {
    // The protobuf of a map is written in this order, and the JSON of equal objects is equal by it.
    let map: Map<String, Value> = serde_json::from_str(r#"{"b": 1, "a": 2}"#).expect("JSON");
    assert!(map.keys().eq(["a", "b"]), "serde_json's preserve_order is on somewhere");
}
