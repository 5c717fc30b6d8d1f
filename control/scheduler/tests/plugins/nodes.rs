//! Plugins that look at the node alone, and at what is left on it.

use ferry_scheduler::ScoringStrategy;
use serde_json::{Value, json};

use crate::world::{World, asks};

#[test]
fn a_pod_that_names_its_node_fits_there_alone() {
    let world = World::of(&[("a", json!({})), ("b", json!({}))]);
    let reason = "node(s) didn't match the requested node name";
    world.check("NodeName", json!({}), "a b", reason);
    world.check("NodeName", json!({"spec": {"nodeName": "b"}}), "b", reason);
    world.check("NodeName", json!({"spec": {"nodeName": "c"}}), "", reason);
}

#[test]
fn a_cordoned_node_takes_pods_that_tolerate_it() {
    let world = World::of(&[("a", json!({})), ("b", json!({"spec": {"unschedulable": true}}))]);
    let reason = "node(s) were unschedulable";
    let tolerates = |toleration: Value| json!({"spec": {"tolerations": [toleration]}});
    world.check("NodeUnschedulable", json!({}), "a", reason);
    let cordon = json!({"key": "node.kubernetes.io/unschedulable", "operator": "Exists"});
    world.check("NodeUnschedulable", tolerates(cordon), "a b", reason);
    world.check("NodeUnschedulable", tolerates(json!({"operator": "Exists"})), "a b", reason);
    world.check("NodeUnschedulable", tolerates(json!({"key": "other", "operator": "Exists"})), "a", reason);
}

#[test]
fn a_pod_fits_nodes_that_declare_what_it_needs() {
    let declares = |features: &[&str]| json!({"status": {"declaredFeatures": features}});
    let world = World::of(&[
        ("a", json!({})),
        ("b", declares(&["RestartAllContainersOnContainerExits"])),
        ("c", declares(&["InPlacePodVerticalScalingInitContainers"])),
    ]);
    let reason = "node(s) didn't match Pod's required features";
    let rules = json!([{"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [1]}}]);
    world.check("NodeDeclaredFeatures", json!({}), "a b c", reason);
    let restarts_all = json!({"spec": {"containers": [{"name": "c", "restartPolicyRules": rules}]}});
    world.check("NodeDeclaredFeatures", restarts_all, "b", reason);
    let host_network = json!({"spec": {"hostNetwork": true, "hostUsers": false}});
    world.check("NodeDeclaredFeatures", host_network, "", reason);
}

#[test]
fn a_host_port_is_taken_once_for_each_address_and_protocol() {
    let port = |port: u16, ip: &str, protocol: &str| {
        let port = json!({"containerPort": 1, "hostPort": port, "hostIP": ip, "protocol": protocol});
        json!({"spec": {"containers": [{"name": "c", "ports": [port]}]}})
    };
    let world = World::of(&[("a", json!({})), ("b", json!({}))]).on("b", port(80, "127.0.0.1", "TCP"));
    let reason = "node(s) didn't have free ports for the requested pod ports";
    world.check("NodePorts", json!({}), "a b", reason);
    world.check("NodePorts", port(80, "", "TCP"), "a", reason);
    world.check("NodePorts", port(80, "127.0.0.1", "TCP"), "a", reason);
    world.check("NodePorts", port(80, "127.0.0.2", "TCP"), "a b", reason);
    world.check("NodePorts", port(80, "0.0.0.0", "UDP"), "a b", reason);
    world.check("NodePorts", port(81, "0.0.0.0", "TCP"), "a b", reason);
    world.check("NodePorts", port(0, "0.0.0.0", "TCP"), "a b", reason);
}

#[test]
fn affinity_chooses_nodes_by_labels_and_fields() {
    let labels = |zone: &str, size: &str| json!({"metadata": {"labels": {"zone": zone, "size": size}}});
    let world = World::of(&[("a", labels("x", "3")), ("b", labels("y", "30")), ("c", json!({}))]);
    let reason = "node(s) didn't match Pod's node affinity/selector";
    let required = |terms: Value| {
        let required = json!({"nodeSelectorTerms": terms});
        json!({"spec": {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}}})
    };
    let one = |key: &str, operator: &str, values: Value| {
        required(json!([{"matchExpressions": [{"key": key, "operator": operator, "values": values}]}]))
    };
    world.check("NodeAffinity", json!({}), "a b c", reason);
    world.check("NodeAffinity", json!({"spec": {"nodeSelector": {"zone": "y"}}}), "b", reason);
    world.check("NodeAffinity", json!({"spec": {"nodeSelector": {"zone": "z"}}}), "", reason);
    world.check("NodeAffinity", one("zone", "In", json!(["x", "z"])), "a", reason);
    world.check("NodeAffinity", one("zone", "NotIn", json!(["x"])), "b c", reason);
    world.check("NodeAffinity", one("zone", "Exists", json!([])), "a b", reason);
    world.check("NodeAffinity", one("zone", "DoesNotExist", json!([])), "c", reason);
    world.check("NodeAffinity", one("size", "Gt", json!(["3"])), "b", reason);
    world.check("NodeAffinity", one("size", "Lt", json!(["4"])), "a", reason);
    world.check("NodeAffinity", one("size", "Gt", json!(["x"])), "", reason);
    // terms are alternatives, their expressions are not; an empty term selects nothing
    let zone = |zone: &str| json!({"key": "zone", "operator": "In", "values": [zone]});
    let either = json!([{"matchExpressions": [zone("x")]}, {"matchExpressions": [zone("y")]}]);
    world.check("NodeAffinity", required(either), "a b", reason);
    world.check("NodeAffinity", required(json!([{"matchExpressions": [zone("x"), zone("y")]}])), "", reason);
    world.check("NodeAffinity", required(json!([{}])), "", reason);
    let named = json!([{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["c"]}]}]);
    world.check("NodeAffinity", required(named), "c", reason);

    let prefers = |terms: Value| json!({"spec": {"affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": terms}}}});
    let term = |weight: i64, value: &str| json!({"weight": weight, "preference": {"matchExpressions": [zone(value)]}});
    world.check_scores("NodeAffinity", prefers(json!([term(10, "x"), term(40, "y")])), &[25, 100, 0]);
    world.check_scores("NodeAffinity", json!({}), &[0, 0, 0]);
}

#[test]
fn taints_keep_pods_away_that_do_not_tolerate_them() {
    let tainted = |effect: &str| json!({"spec": {"taints": [{"key": "k", "value": "v", "effect": effect}]}});
    let world = World::of(&[
        ("a", json!({})),
        ("b", tainted("NoSchedule")),
        ("c", tainted("NoExecute")),
        ("d", tainted("PreferNoSchedule")),
    ]);
    let reason = "node(s) had untolerated taint(s)";
    let tolerates = |toleration: Value| json!({"spec": {"tolerations": [toleration]}});
    world.check("TaintToleration", json!({}), "a d", reason);
    world.check("TaintToleration", tolerates(json!({"key": "k", "operator": "Exists"})), "a b c d", reason);
    world.check("TaintToleration", tolerates(json!({"key": "k", "value": "w"})), "a d", reason);
    let only = json!({"key": "k", "value": "v", "effect": "NoSchedule"});
    world.check("TaintToleration", tolerates(only), "a b d", reason);
    world.check_scores("TaintToleration", json!({}), &[100, 100, 100, 0]);
    world.check_scores("TaintToleration", tolerates(json!({"operator": "Exists"})), &[100; 4]);
}

#[test]
fn requests_fit_into_what_a_node_has_left() {
    let world = World::of(&[
        ("a", json!({})),
        ("b", json!({"status": {"allocatable": {"cpu": "8", "pods": "1"}}})),
        ("c", json!({"status": {"allocatable": {"example.com/gpu": "2", "ephemeral-storage": "1Gi"}}})),
    ])
    .on("a", asks(json!({"cpu": "3"})))
    .on("b", asks(json!({"cpu": "1"})));
    let fit = "NodeResourcesFit";
    world.check(fit, asks(json!({})), "a c", "Too many pods");
    world.check(fit, asks(json!({"cpu": "1", "memory": "4Gi"})), "a c", "Too many pods");
    let world = World::of(&[
        ("a", json!({})),
        ("b", json!({"status": {"allocatable": {"example.com/gpu": "2", "ephemeral-storage": "1Gi"}}})),
    ])
    .on("a", asks(json!({"cpu": "3"})))
    .on("b", asks(json!({"example.com/gpu": "1", "memory": "1Gi"})));
    world.check(fit, asks(json!({"cpu": "1001m"})), "b", "Insufficient cpu");
    world.check(fit, asks(json!({"memory": "4Gi"})), "a", "Insufficient memory");
    world.check(fit, asks(json!({"ephemeral-storage": "1Gi"})), "b", "Insufficient ephemeral-storage");
    world.check(fit, asks(json!({"example.com/gpu": "1"})), "b", "Insufficient example.com/gpu");
    world.check(fit, asks(json!({"example.com/gpu": "2"})), "", "Insufficient example.com/gpu");

    // the emptier, the fuller, or as a line says
    let mut world =
        World::of(&[("a", json!({})), ("b", json!({}))]).on("a", asks(json!({"cpu": "2", "memory": "2Gi"})));
    let one = || asks(json!({"cpu": "1", "memory": "1Gi"}));
    world.check_scores(fit, one(), &[25, 75]);
    let resources = || vec![("cpu".to_string(), 3), ("memory".to_string(), 1)];
    world.profile.scoring = ScoringStrategy::MostAllocated(resources());
    world.check_scores(fit, one(), &[75, 25]);
    let shape = vec![(0, 0), (50, 100), (100, 0)];
    world.profile.scoring = ScoringStrategy::RequestedToCapacityRatio { resources: resources(), shape };
    world.check_scores(fit, one(), &[50, 50]);
}

#[test]
fn node_resources_balanced_allocation() {
    let world = World::of(&[("a", json!({})), ("b", json!({}))]).on("a", asks(json!({"cpu": "2"})));
    let balance = "NodeResourcesBalancedAllocation";
    world.check_scores(balance, asks(json!({})), &[0, 0]);
    // memory evens out what CPU has taken on one node, and tips the other
    world.check_scores(balance, asks(json!({"memory": "2Gi"})), &[87, 62]);
    world.check_scores(balance, asks(json!({"cpu": "1", "memory": "1Gi"})), &[75, 75]);
}

#[test]
fn a_node_that_has_the_image_scores_higher() {
    let images = |size: i64| json!({"status": {"images": [{"names": ["web:latest"], "sizeBytes": size}]}});
    let mb = 1024 * 1024;
    let world = World::of(&[("a", images(600 * mb)), ("b", images(10 * mb)), ("c", json!({}))]);
    // two of three nodes have it, so it counts for two thirds: 400 MB between 23 MB and 1,000 MB
    world.check_scores("ImageLocality", json!({}), &[38, 0, 0]);
    let other = json!({"spec": {"containers": [{"name": "c", "image": "web:2"}]}});
    world.check_scores("ImageLocality", other, &[0, 0, 0]);
}
