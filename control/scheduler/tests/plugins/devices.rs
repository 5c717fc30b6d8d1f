//! DynamicResources: the plugin around the allocator, which has cases of its own in `src/devices/tests.rs`.

use ferry_scheduler::plugins::dynamic_resources::{choose, prepare};
use serde_json::{Value, json};

use crate::world::{World, asks, pod};

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
fn prebind_reserves_every_claim_for_the_pod() {
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
        .claims
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

const FIT: &str = "NodeResourcesFit";

/// The class `gpu` stands for `example.com/gpu`; `plugged` has four of a device plugin.
fn extended() -> World {
    let allocatable = json!({"cpu": "4", "memory": "4Gi", "pods": "10", "example.com/gpu": "4"});
    let class = json!({"metadata": {"name": "gpu"}, "spec": {"extendedResourceName": "example.com/gpu"}});
    World::of(&[
        ("a", json!({})),
        ("b", json!({})),
        ("plugged", json!({"status": {"allocatable": allocatable}})),
    ])
    .with("device class", class)
    .with("slice", slice("a", &["g0"]))
    .with("slice", slice("b", &["g0", "g1"]))
}

#[test]
fn extended_resources_come_from_devices_where_no_plugin_has_them() {
    let check = |wanted: Value, fit: &str, fit_reason: &str, devices: &str, reason: &str| {
        extended().check(FIT, asks(wanted.clone()), fit, fit_reason);
        extended().check(PLUGIN, asks(wanted), devices, reason);
    };
    check(json!({"example.com/gpu": "1"}), "a b plugged", "", "a b plugged", "");
    check(json!({"example.com/gpu": "2"}), "a b plugged", "", "b plugged", "cannot allocate all claims");
    check(
        json!({"example.com/gpu": "5"}),
        "a b",
        "Insufficient example.com/gpu",
        "plugged",
        "cannot allocate all claims",
    );
    // by the class's own name there is no plugin
    let implicit = json!({"deviceclass.resource.kubernetes.io/gpu": "2"});
    check(implicit, "a b plugged", "", "b", "cannot allocate all claims");
    check(json!({"example.com/other": "1"}), "", "Insufficient example.com/other", "a b plugged", "");
    let both = json!({"example.com/gpu": "1", "example.com/other": "1"});
    check(both, "", "Insufficient example.com/other", "", "cannot fit resource");
}

#[test]
fn a_claim_for_extended_resources_that_an_earlier_attempt_left_is_in_the_way() {
    let mut left = allocated("new-extended-resources-x", "a", json!([]));
    let owner = json!({"apiVersion": "v1", "kind": "Pod", "name": "new", "uid": "new", "controller": true});
    left["metadata"]["ownerReferences"] = json!([owner]);
    left["metadata"]["annotations"] = json!({"resource.kubernetes.io/extended-resource-claim": "true"});
    let world = extended().with("resource claim", left.clone());
    let wanted = asks(json!({"example.com/gpu": "1"}));
    world.check(PLUGIN, wanted.clone(), "", "cannot schedule extended resource claim");
    // of another pod of that name it takes a device, as every claim does
    left["metadata"]["ownerReferences"][0]["uid"] = json!("old");
    let world = extended().with("resource claim", left);
    world.check(PLUGIN, wanted, "b plugged", "cannot allocate all claims");
}

#[test]
fn a_claim_is_made_for_what_the_node_has_no_plugin_for() {
    let world = extended();
    let pod = pod("new", asks(json!({"cpu": "1", "example.com/gpu": "2"})));
    let mut cycle = world.cycle(&pod);
    prepare(&mut cycle, &world.snapshot).unwrap();
    let on = |node: &str| choose(&cycle, &world.snapshot, world.snapshot.find(node).unwrap());
    assert!(on("plugged").is_empty());
    let chosen = on("b");
    assert!(chosen.claims.is_empty());
    let extended = chosen.extended.unwrap();
    let claim = serde_json::to_value(&*extended.claim).unwrap();
    assert_eq!(claim["metadata"]["generateName"], "new-extended-resources-");
    let exactly = json!({"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 2});
    let requests = json!([{"name": "container-0-request-1", "exactly": exactly}]);
    assert_eq!(claim["spec"]["devices"]["requests"], requests);
    let mapping = json!([{"containerName": "c", "requestName": "container-0-request-1", "resourceName": "example.com/gpu"}]);
    assert_eq!(serde_json::to_value(&extended.mappings).unwrap(), mapping);
    let results = extended.allocation.devices.unwrap().results.unwrap();
    let devices: Vec<&str> = results.iter().map(|result| result.device.as_str()).collect();
    assert_eq!(devices, ["g0", "g1"]);
}
