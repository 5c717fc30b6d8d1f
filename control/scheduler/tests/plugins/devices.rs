//! DynamicResources: the plugin around the allocator, which has cases of its own in `src/devices/tests.rs`.

use ferry_scheduler::plugins::dynamic_resources::{choose, prepare};
use serde_json::{Value, json};

use crate::world::{World, pod};

const PLUGIN: &str = "DynamicResources";

fn uses(claim: &str) -> Value {
    json!({"spec": {"resourceClaims": [{"name": "c", "resourceClaimName": claim}]}})
}

fn slice(node: &str, devices: &[&str]) -> Value {
    let devices: Value = devices.iter().map(|name| json!({"name": name})).collect();
    json!({"metadata": {"name": node}, "spec": {"driver": "d.example.com", "nodeName": node, "devices": devices,
        "pool": {"name": node, "generation": 1, "resourceSliceCount": 1}}})
}

fn claim(name: &str, request: Value, status: Value) -> Value {
    json!({"metadata": {"name": name, "namespace": "default", "uid": name}, "status": status,
        "spec": {"devices": {"requests": [request]}}})
}

fn one() -> Value {
    json!({"name": "r", "exactly": {"deviceClassName": "gpu"}})
}

/// Allocated on a node.
fn allocated(name: &str, node: &str, users: Value) -> Value {
    let here = json!({"key": "metadata.name", "operator": "In", "values": [node]});
    let result = json!({"request": "r", "driver": "d.example.com", "pool": node, "device": "g0"});
    let allocation = json!({"devices": {"results": [result]},
        "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [here]}]}});
    claim(name, one(), json!({"allocation": allocation, "reservedFor": users}))
}

fn nodes() -> World {
    World::of(&[("a", json!({})), ("b", json!({}))])
        .with("device class", json!({"metadata": {"name": "gpu"}, "spec": {}}))
        .with("slice", slice("a", &["g0"]))
        .with("slice", slice("b", &["g0", "g1"]))
}

#[test]
fn claims_without_devices_get_them_where_there_are_some() {
    nodes().check(PLUGIN, json!({}), "a b", "");
    nodes().check(PLUGIN, uses("c"), "", "resourceclaim.resource.k8s.io \"c\" not found");
    let with = |request: Value| nodes().with("resource claim", claim("c", request, json!({})));
    with(one()).check(PLUGIN, uses("c"), "a b", "");
    let two = json!({"name": "r", "exactly": {"deviceClassName": "gpu", "count": 2}});
    with(two).check(PLUGIN, uses("c"), "b", "cannot allocate all claims");
    let other = json!({"name": "r", "exactly": {"deviceClassName": "fpga"}});
    with(other).check(PLUGIN, uses("c"), "", "request r: device class fpga does not exist");
    let taken = with(one()).with("resource claim", allocated("other", "a", json!([])));
    taken.check(PLUGIN, uses("c"), "b", "cannot allocate all claims");
    let assumed = with(one()).with("assumed", json!("c"));
    assumed.check(PLUGIN, uses("c"), "", "resource claim default/c is in the process of being allocated");
    let mut leaving = claim("c", one(), json!({}));
    leaving["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    let leaving = nodes().with("resource claim", leaving);
    leaving.check(PLUGIN, uses("c"), "", "resourceclaim \"c\" is being deleted");
}

#[test]
fn claims_with_devices_keep_the_pod_where_these_are() {
    let world = nodes().with("resource claim", allocated("c", "b", json!([])));
    world.check(PLUGIN, uses("c"), "b", "resourceclaim not available on the node");
}

#[test]
fn claims_of_templates_have_to_be_made_for_the_pod() {
    let made = |status: Value| {
        json!({"spec": {"resourceClaims": [{"name": "c", "resourceClaimTemplateName": "t"}]},
            "status": {"resourceClaimStatuses": status}})
    };
    nodes().check(PLUGIN, made(json!([])), "", "pod \"default/new\": ResourceClaim not created yet");
    nodes().check(PLUGIN, made(json!([{"name": "c"}])), "a b", "");
    let generated = json!([{"name": "c", "resourceClaimName": "new-c-x"}]);
    let owned = |uid: &str| {
        let mut claim = claim("new-c-x", one(), json!({}));
        let owner = json!({"apiVersion": "v1", "kind": "Pod", "name": "new", "uid": uid, "controller": true});
        claim["metadata"]["ownerReferences"] = json!([owner]);
        nodes().with("resource claim", claim)
    };
    owned("new").check(PLUGIN, made(generated.clone()), "a b", "");
    owned("old").check(
        PLUGIN,
        made(generated),
        "",
        "ResourceClaim default/new-c-x was not created for Pod default/new (Pod is not owner)",
    );
}

#[test]
fn nodes_with_the_better_alternative_score_higher() {
    let alternative =
        |name: &str, count: i64| json!({"name": name, "deviceClassName": "gpu", "count": count});
    let request = json!({"name": "r", "firstAvailable": [alternative("two", 2), alternative("one", 1)]});
    let world = nodes().with("resource claim", claim("c", request, json!({})));
    world.check_scores(PLUGIN, uses("c"), &[87, 100]);
}

#[test]
fn what_is_written_reserves_every_claim_for_the_pod() {
    let user = json!([{"resource": "pods", "name": "new", "uid": "new"}]);
    let world = nodes()
        .with("resource claim", claim("fresh", one(), json!({})))
        .with("resource claim", allocated("shared", "b", json!([])))
        .with("resource claim", allocated("ours", "b", user));
    let claims = json!([{"name": "1", "resourceClaimName": "fresh"}, {"name": "2", "resourceClaimName": "shared"},
        {"name": "3", "resourceClaimName": "ours"}]);
    let pod = pod("new", json!({"spec": {"resourceClaims": claims}}));
    let mut cycle = world.cycle(&pod);
    prepare(&mut cycle, &world.snapshot).unwrap();
    let node = world.snapshot.find("b").unwrap();
    let written: Vec<String> = choose(&cycle, &world.snapshot, node)
        .0
        .iter()
        .map(|(claim, allocation)| {
            let device = allocation.as_ref().map(|allocation| {
                allocation.devices.as_ref().unwrap().results.as_ref().unwrap()[0].device.clone()
            });
            format!(
                "{}: {}",
                claim.metadata.name.as_deref().unwrap(),
                device.as_deref().unwrap_or("has its devices")
            )
        })
        .collect();
    assert_eq!(written, ["fresh: g1", "shared: has its devices"]);
}
