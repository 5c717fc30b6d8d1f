//! Discovery and OpenAPI as a default upstream server serves them, compared in structure.

mod recorded;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, LazyLock};

use ferry_api::discovery::{self, Aggregated, Groups};
use ferry_api::openapi::Documents;
use ferry_api::{Kind, kinds};
use serde_json::{Value, json};

/// What upstream serves at a path, without descriptions.
fn served(path: &str) -> Value {
    static DOCUMENTS: LazyLock<BTreeMap<String, Value>> = LazyLock::new(|| {
        let entry = |mut item: Value| {
            let path = item["path"].as_str().expect("a path").to_owned();
            (path, item["document"].take())
        };
        recorded::items("served", record).into_iter().map(entry).collect()
    });
    DOCUMENTS.get(path).unwrap_or_else(|| panic!("{path} is not recorded")).clone()
}

fn record(facts: &Path) -> Vec<Value> {
    let folder = facts.join("served");
    let item = |path: String| {
        let text = std::fs::read(folder.join(&path)).expect("a document");
        let document: Value = serde_json::from_slice(&text).expect("JSON");
        json!({"path": path, "document": without_prose(document)})
    };
    let of_v3 = recorded::names(&folder.join("openapi-v3"), ".json").into_iter();
    let others = recorded::names(&folder, ".json").into_iter().map(|name| format!("{name}.json"));
    others.chain(of_v3.map(|name| format!("openapi-v3/{name}.json"))).map(item).collect()
}

/// Upstream leaves what is measured to a server of its own, metrics-server.
fn by_default() -> Vec<Arc<Kind>> {
    kinds::builtin().iter().filter(|kind| kind.by_default && !kind.is_resource_metrics).cloned().collect()
}

/// Panics with the places where two documents differ.
fn assert_same(ours: &Value, theirs: &Value, path: &str) {
    let mut differences = Vec::new();
    compare(ours, theirs, path, &mut differences);
    let shown = &differences[..differences.len().min(20)];
    assert!(differences.is_empty(), "{} differences:\n{}", differences.len(), shown.join("\n"));
}

fn compare(ours: &Value, theirs: &Value, path: &str, differences: &mut Vec<String>) {
    match (ours, theirs) {
        (Value::Object(a), Value::Object(b)) => {
            for key in a.keys().chain(b.keys().filter(|key| !a.contains_key(*key))) {
                let place = format!("{path}/{key}");
                match (a.get(key), b.get(key)) {
                    (Some(a), Some(b)) => compare(a, b, &place, differences),
                    (ours, theirs) => differences.push(format!("{place}: ours {ours:?}, theirs {theirs:?}")),
                }
            }
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            for (index, (a, b)) in a.iter().zip(b).enumerate() {
                compare(a, b, &format!("{path}[{index}]"), differences);
            }
        }
        _ if ours == theirs => {}
        _ => differences.push(format!("{path}: ours {ours}, theirs {theirs}")),
    }
}

#[test]
fn groups_are_listed_as_served() {
    let kinds = by_default();
    let api = served("api.json");
    let mut ours = discovery::api_versions("10.0.0.1:6443");
    // the address is the server's own
    ours.as_object_mut().expect("an object").remove("serverAddressByClientCIDRs");
    assert_same(&ours, &api, "/api");
    assert_same(&Groups::new(&kinds, Vec::new()).list(), &served("apis.json"), "/apis");
}

#[test]
fn every_group_and_version_is_as_served() {
    let kinds = by_default();
    let groups = Groups::new(&kinds, Vec::new());
    assert_same(&groups.resources("", "v1").expect("v1"), &served("api__v1.json"), "/api/v1");
    for group in kinds::priorities::groups(kinds.iter().map(Arc::as_ref)) {
        if group.is_empty() {
            continue;
        }
        let theirs = served(&format!("apis__{group}.json"));
        assert_same(&groups.group(group).expect(group), &theirs, group);
        for version in kinds::priorities::versions(kinds.iter().map(Arc::as_ref), group) {
            let theirs = served(&format!("apis__{group}__{version}.json"));
            let ours = groups.resources(group, version).expect(group);
            assert_same(&ours, &theirs, &format!("/apis/{group}/{version}"));
        }
    }
    assert_eq!(groups.resources("apps", "v9"), None);
    assert_eq!(groups.group("nobody"), None);
}

#[test]
fn the_aggregated_documents_are_as_served() {
    let kinds = by_default();
    let groups = Groups::new(&kinds, Vec::new());
    let aggregated = |core: bool| -> Value {
        serde_json::from_slice(&groups.aggregated(core, Aggregated::V2)).expect("JSON")
    };
    let theirs = served("aggregated-apis.json");
    assert_same(&aggregated(false), &theirs, "/apis");
    let theirs = served("aggregated-api.json");
    assert_same(&aggregated(true), &theirs, "/api");
}

/// Takes prose out, and what prose makes necessary: a reference stands in an allOf only when a
/// description stands beside it.
fn without_prose(value: Value) -> Value {
    match value {
        Value::Object(map) => {
            let mut map: serde_json::Map<String, Value> = map
                .into_iter()
                .filter(|(key, value)| key != "description" || !value.is_string())
                .map(|(key, value)| (key, without_prose(value)))
                .collect();
            let reference = map.get("allOf").and_then(|all| all[0].get("$ref")).cloned();
            match reference {
                Some(reference) if map.len() == 1 => {
                    map.clear();
                    map.insert("$ref".into(), reference);
                }
                _ => {}
            }
            Value::Object(map)
        }
        Value::Array(items) => items.into_iter().map(without_prose).collect(),
        other => other,
    }
}

/// Puts shared parameters in where they are referred to; how they are called is nobody's business.
fn with_parameters(mut document: Value) -> Value {
    fn resolve(value: &mut Value, shared: &Value) {
        let name = value.get("$ref").and_then(Value::as_str).and_then(|r| r.strip_prefix("#/parameters/"));
        if let Some(parameter) = name.map(|name| shared[name].clone()) {
            *value = parameter;
            return;
        }
        match value {
            Value::Object(map) => map.values_mut().for_each(|value| resolve(value, shared)),
            Value::Array(items) => items.iter_mut().for_each(|item| resolve(item, shared)),
            _ => {}
        }
    }
    let shared = document.as_object_mut().expect("an object").remove("parameters").expect("parameters");
    resolve(&mut document["paths"], &shared);
    document
}

#[test]
fn every_document_of_openapi_v3_is_as_served() {
    let index = served("openapi-v3-index.json");
    let documents = Documents::new(by_default());
    let ours: Value = serde_json::from_slice(&documents.v3_index(&BTreeMap::new())).expect("JSON");
    let listed: Vec<&String> = ours["paths"].as_object().expect("paths").keys().collect();
    let theirs: Vec<&str> = index.as_array().expect("a list").iter().filter_map(Value::as_str).collect();
    assert_eq!(listed, theirs);
    for path in theirs {
        let document = documents.v3(path).expect(path);
        assert_eq!(documents.v3_hash(path), Some(document.hash.as_str()));
        let ours = without_prose(serde_json::from_slice(&document.bytes).expect("JSON"));
        let theirs = served(&format!("openapi-v3/{}.json", path.replace('/', "__")));
        assert_same(&ours, &without_prose(theirs), path);
    }
    assert!(documents.v3("apis/apps/v9").is_none());
}

#[test]
fn openapi_v2_is_as_served() {
    let theirs = served("openapi-v2.json");
    let documents = Documents::new(by_default());
    let ours: Value = serde_json::from_slice(&documents.v2(ferry_api::openapi::Form::Json)).expect("JSON");
    let (ours, theirs) = (without_prose(with_parameters(ours)), without_prose(with_parameters(theirs)));
    assert_same(&ours, &theirs, "/openapi/v2");
}
