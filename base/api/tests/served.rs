//! Discovery and OpenAPI as a default upstream server answers them, compared in structure. The
//! answers lie beside the workspace; where they are missing the test says so and passes over.

use std::path::PathBuf;
use std::sync::Arc;

use ferry_api::{Kind, discovery, kinds};
use serde_json::Value;

fn served(path: &str) -> Option<Value> {
    let file = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../shared/k8s-1.36/served").join(path);
    match std::fs::read(&file) {
        Ok(bytes) => Some(serde_json::from_slice(&bytes).expect(path)),
        Err(_) => {
            println!("no answer at {}: nothing checked", file.display());
            None
        }
    }
}

fn by_default() -> Vec<Arc<Kind>> {
    kinds::builtin().iter().filter(|kind| kind.by_default).cloned().collect()
}

/// Panics at the first place where two documents differ.
fn assert_same(ours: &Value, theirs: &Value, path: &str) {
    match (ours, theirs) {
        (Value::Object(a), Value::Object(b)) => {
            for key in a.keys().chain(b.keys()) {
                let place = format!("{path}/{key}");
                match (a.get(key), b.get(key)) {
                    (Some(a), Some(b)) => assert_same(a, b, &place),
                    (ours, theirs) => panic!("{place}: ours {ours:?}, theirs {theirs:?}"),
                }
            }
        }
        (Value::Array(a), Value::Array(b)) => {
            for (index, (a, b)) in a.iter().zip(b).enumerate() {
                assert_same(a, b, &format!("{path}[{index}]"));
            }
            assert_eq!(a.len(), b.len(), "{path}: ours {ours}\ntheirs {theirs}");
        }
        _ => assert_eq!(ours, theirs, "{path}"),
    }
}

#[test]
fn groups_are_listed_as_served() {
    let kinds = by_default();
    let Some(api) = served("api.json") else { return };
    let mut ours = discovery::api_versions("10.0.0.1:6443");
    // the address is the server's own
    ours.as_object_mut().expect("an object").remove("serverAddressByClientCIDRs");
    assert_same(&ours, &api, "/api");
    assert_same(&discovery::api_group_list(&kinds), &served("apis.json").expect("apis"), "/apis");
}

#[test]
fn every_group_and_version_is_as_served() {
    let kinds = by_default();
    if served("apis.json").is_none() {
        return;
    }
    assert_same(
        &discovery::api_resource_list(&kinds, "", "v1").expect("v1"),
        &served("api__v1.json").expect("api/v1"),
        "/api/v1",
    );
    for group in kinds::priorities::groups(kinds.iter().map(Arc::as_ref)) {
        if group.is_empty() {
            continue;
        }
        let theirs = served(&format!("apis__{group}.json")).expect(group);
        assert_same(&discovery::api_group(&kinds, group).expect(group), &theirs, group);
        for version in kinds::priorities::versions(kinds.iter().map(Arc::as_ref), group) {
            let theirs = served(&format!("apis__{group}__{version}.json")).expect(group);
            let ours = discovery::api_resource_list(&kinds, group, version).expect(group);
            assert_same(&ours, &theirs, &format!("/apis/{group}/{version}"));
        }
    }
    assert_eq!(discovery::api_resource_list(&kinds, "apps", "v9"), None);
    assert_eq!(discovery::api_group(&kinds, "nobody"), None);
}

#[test]
fn the_aggregated_documents_are_as_served() {
    let kinds = by_default();
    let v2 = discovery::Aggregated::V2;
    let Some(theirs) = served("aggregated-apis.json") else { return };
    assert_same(&discovery::aggregated(&kinds, false, v2, Vec::new()), &theirs, "/apis");
    let theirs = served("aggregated-api.json").expect("aggregated-api");
    assert_same(&discovery::aggregated(&kinds, true, v2, Vec::new()), &theirs, "/api");
}
