//! Plugins that look at a pod's volumes.

use std::sync::Arc;

use ferry_scheduler::plugins::{self, Choices};
use serde_json::{Value, json};

use crate::world::World;

const ZONE: &str = "topology.kubernetes.io/zone";

fn uses(claim: &str) -> Value {
    json!({"spec": {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": claim}}]}})
}

fn in_zone(zone: &str) -> Value {
    json!({"metadata": {"labels": {ZONE: zone}}})
}

fn bound(claim: &str, volume: &str) -> Value {
    let done = json!({"pv.kubernetes.io/bind-completed": "yes"});
    json!({"metadata": {"name": claim, "namespace": "default", "annotations": done}, "spec": {"volumeName": volume}})
}

fn waiting(claim: &str, class: &str) -> Value {
    json!({"metadata": {"name": claim, "namespace": "default"}, "spec": {"storageClassName": class,
        "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}})
}

fn class(name: &str, provisioner: &str, mode: &str) -> Value {
    json!({"metadata": {"name": name}, "provisioner": provisioner, "volumeBindingMode": mode})
}

/// A volume that only nodes of a zone reach.
fn local(name: &str, class: &str, size: &str, zone: &str) -> Value {
    let here = json!({"key": ZONE, "operator": "In", "values": [zone]});
    json!({"metadata": {"name": name}, "spec": {"storageClassName": class, "capacity": {"storage": size},
        "accessModes": ["ReadWriteOnce"],
        "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [here]}]}}}})
}

#[test]
fn a_pod_fits_where_its_claims_can_be_bound() {
    let plugin = "VolumeBinding";
    let nodes = || World::of(&[("a", in_zone("x")), ("b", in_zone("y"))]);
    nodes().check(plugin, json!({}), "a b", "");
    nodes().check(plugin, uses("data"), "", "persistentvolumeclaim \"data\" not found");
    let leaving = {
        let mut claim = bound("data", "v");
        claim["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        claim
    };
    nodes().with("claim", leaving).check(
        plugin,
        uses("data"),
        "",
        "persistentvolumeclaim \"data\" is being deleted",
    );

    // bound: where the volume is
    let world = nodes().with("claim", bound("data", "v")).with("volume", local("v", "", "1Gi", "y"));
    world.check(plugin, uses("data"), "b", "node(s) didn't match PersistentVolume's node affinity");
    let missing = "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)";
    nodes().with("claim", bound("data", "v")).check(plugin, uses("data"), "", missing);

    // not bound, and not waiting for the pod either
    let at_once = nodes().with("claim", waiting("data", "now")).with("class", class("now", "p", "Immediate"));
    at_once.check(plugin, uses("data"), "", "pod has unbound immediate PersistentVolumeClaims");

    // waiting for the pod: where a volume is that suits
    let none = "node(s) didn't find available persistent volumes to bind";
    let later = |size: &str| {
        nodes()
            .with("claim", waiting("data", "local"))
            .with("class", class("local", "kubernetes.io/no-provisioner", "WaitForFirstConsumer"))
            .with("volume", local("v", "local", size, "x"))
    };
    later("1Gi").check(plugin, uses("data"), "a", none);
    later("1Mi").check(plugin, uses("data"), "", none);
    // or where one can be made
    let made = |topologies: Value| {
        let mut class = class("fast", "example.com/driver", "WaitForFirstConsumer");
        class["allowedTopologies"] = topologies;
        nodes().with("claim", waiting("data", "fast")).with("class", class)
    };
    made(Value::Null).check(plugin, uses("data"), "a b", none);
    let only_y = json!([{"matchLabelExpressions": [{"key": ZONE, "values": ["y"]}]}]);
    made(only_y).check(plugin, uses("data"), "b", none);
}

#[test]
fn a_volume_is_made_where_its_driver_has_room() {
    let driver =
        |tells: bool| json!({"metadata": {"name": "example.com/driver"}, "spec": {"storageCapacity": tells}});
    let room = |zone: &str, class: &str, capacity: &str, largest: Value| {
        json!({"metadata": {"name": zone}, "storageClassName": class, "capacity": capacity,
            "maximumVolumeSize": largest, "nodeTopology": {"matchLabels": {ZONE: zone}}})
    };
    let world = |tells: bool| {
        World::of(&[("a", in_zone("x")), ("b", in_zone("y"))])
            .with("claim", waiting("data", "fast"))
            .with("class", class("fast", "example.com/driver", "WaitForFirstConsumer"))
            .with("csi driver", driver(tells))
    };
    let check = |world: World, fits: &str| {
        world.check("VolumeBinding", uses("data"), fits, "node(s) did not have enough free storage");
    };
    check(world(false), "a b");
    check(world(true), "");
    check(world(true).with("capacity", room("y", "fast", "1Gi", Value::Null)), "b");
    check(world(true).with("capacity", room("y", "fast", "1Mi", Value::Null)), "");
    check(world(true).with("capacity", room("y", "other", "1Gi", Value::Null)), "");
    check(world(true).with("capacity", room("y", "fast", "9Gi", json!("1Mi"))), "");
    let nowhere = json!({"metadata": {"name": "c"}, "storageClassName": "fast", "capacity": "1Gi"});
    check(world(true).with("capacity", nowhere), "");
}

#[test]
fn bound_volumes_keep_a_pod_in_their_zone() {
    let labelled = |zone: &str| {
        let labels = json!({ZONE: zone});
        json!({"metadata": {"name": "v", "labels": labels}, "spec": {}})
    };
    let nodes = || World::of(&[("a", in_zone("x")), ("b", in_zone("y")), ("c", json!({}))]);
    let reason = "node(s) had no available volume zone";
    nodes().check("VolumeZone", json!({}), "a b c", reason);
    let in_y = nodes().with("claim", bound("data", "v")).with("volume", labelled("y"));
    in_y.check("VolumeZone", uses("data"), "b c", reason);
    let in_both = nodes().with("claim", bound("data", "v")).with("volume", labelled("x__y"));
    in_both.check("VolumeZone", uses("data"), "a b c", reason);
}

#[test]
fn a_volume_of_one_pod_is_given_to_no_other() {
    let disk = |name: &str, read_only: bool| {
        let disk = json!({"pdName": name, "readOnly": read_only});
        json!({"spec": {"volumes": [{"name": "v", "gcePersistentDisk": disk}]}})
    };
    let nodes = || World::of(&[("a", json!({})), ("b", json!({}))]);
    let reason = "node(s) had no available disk";
    let plugin = "VolumeRestrictions";
    nodes().on("b", disk("d", false)).check(plugin, disk("d", false), "a", reason);
    nodes().on("b", disk("d", false)).check(plugin, disk("other", false), "a b", reason);
    nodes().on("b", disk("d", true)).check(plugin, disk("d", true), "a b", reason);
    let once = |mode: &str| {
        let mut claim = bound("data", "v");
        claim["spec"]["accessModes"] = json!([mode]);
        nodes().on("b", uses("data")).with("claim", claim)
    };
    let reason = "node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already in-use by another pod";
    once("ReadWriteOncePod").check(plugin, uses("data"), "", reason);
    once("ReadWriteOnce").check(plugin, uses("data"), "a b", reason);
}

#[test]
fn a_node_takes_as_many_volumes_as_its_driver_allows() {
    let volume = |name: &str| json!({"metadata": {"name": name}, "spec": {"csi": {"driver": "example.com/driver", "volumeHandle": name}}});
    let drivers = json!([{"name": "example.com/driver", "nodeID": "b", "allocatable": {"count": 1}}]);
    let world = World::of(&[("a", json!({})), ("b", json!({}))])
        .with("csi node", json!({"metadata": {"name": "b"}, "spec": {"drivers": drivers}}))
        .with("claim", bound("one", "v1"))
        .with("claim", bound("two", "v2"))
        .with("volume", volume("v1"))
        .with("volume", volume("v2"))
        .on("b", uses("one"));
    let reason = "node(s) exceed max volume count";
    world.check("NodeVolumeLimits", json!({}), "a b", reason);
    world.check("NodeVolumeLimits", uses("two"), "a", reason);
    // already attached there for another pod
    world.check("NodeVolumeLimits", uses("one"), "a b", reason);
}

/// What a pod on node `a` (zone `x`) hears that had a volume made for its claim.
fn awaited(claim_now: Value, volume: Option<Value>) -> Result<bool, String> {
    let mut written = waiting("data", "fast");
    written["metadata"]["uid"] = json!("1");
    written["metadata"]["resourceVersion"] = json!("7");
    let choices = Choices {
        bind: vec![],
        provision: vec![Arc::new(serde_json::from_value(written).expect("a claim"))],
    };
    let mut world = World::of(&[("a", in_zone("x"))]).with("claim", claim_now);
    if let Some(volume) = volume {
        world = world.with("volume", volume);
    }
    let (snapshot, _, cluster) = world.parts();
    let node = snapshot.find("a").expect("a node");
    plugins::bound(&choices, snapshot, node, cluster)
}

#[test]
fn a_pod_waits_on_its_node_until_its_volume_is_bound() {
    let now = |uid: &str, version: &str, annotations: Value, volume: &str| {
        json!({"metadata": {"name": "data", "namespace": "default", "uid": uid, "resourceVersion": version,
            "annotations": annotations}, "spec": {"volumeName": volume}})
    };
    let on = |node: &str| json!({"volume.kubernetes.io/selected-node": node});
    let done = json!({"pv.kubernetes.io/bind-completed": "yes"});
    assert_eq!(awaited(now("1", "7", json!({}), ""), None), Ok(false), "the write is not heard of yet");
    assert_eq!(awaited(now("1", "8", on("a"), ""), None), Ok(false));
    assert_eq!(awaited(now("1", "9", on("a"), "v"), None), Ok(false), "not completed");
    assert_eq!(awaited(now("1", "9", done.clone(), "v"), None), Ok(false), "its volume is not heard of yet");
    let volume = |zone: &str| Some(local("v", "fast", "1Gi", zone));
    assert_eq!(awaited(now("1", "9", done.clone(), "v"), volume("x")), Ok(true));
    assert!(awaited(now("1", "9", done.clone(), "v"), volume("y")).is_err(), "made for another node");
    assert!(awaited(now("1", "9", json!({}), ""), None).is_err(), "the provisioner took the node back");
    assert!(awaited(now("2", "9", done, "v"), volume("x")).is_err(), "another claim of that name");
}
