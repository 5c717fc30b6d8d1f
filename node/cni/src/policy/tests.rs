//! What is allowed, case by case, and the script it becomes.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Namespace, Pod};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use serde_json::{Value, json};

use super::*;

fn pod(name: &str, namespace: &str, ip: &str, node: &str) -> Arc<Pod> {
    let ports = json!([{ "name": "http", "containerPort": 8080 }]);
    Arc::new(
        serde_json::from_value(json!({
            "metadata": { "name": name, "namespace": namespace, "labels": { "app": name } },
            "spec": { "nodeName": node, "containers": [{ "name": "c", "ports": ports }] },
            "status": { "phase": "Running", "podIPs": [{ "ip": ip }] },
        }))
        .unwrap(),
    )
}

/// `web` is on this node; `client` and `db` are elsewhere, `db` in a namespace of its own.
fn rules_for_web(specs: &[Value]) -> Vec<String> {
    let policies: Vec<Arc<NetworkPolicy>> = specs
        .iter()
        .map(|spec| {
            let policy = json!({ "metadata": { "name": "p", "namespace": "shop" }, "spec": spec });
            Arc::new(serde_json::from_value(policy).unwrap())
        })
        .collect();
    let pods = [
        pod("web", "shop", "10.244.0.5", "here"),
        pod("client", "shop", "10.244.1.6", "there"),
        pod("db", "data", "10.244.1.7", "there"),
    ];
    let namespaces = ["shop", "data"].map(|name| -> Arc<Namespace> {
        let labels = json!({ "kubernetes.io/metadata.name": name });
        Arc::new(serde_json::from_value(json!({ "metadata": { "name": name, "labels": labels } })).unwrap())
    });
    let script = script("test", &decide(&policies, &pods, &namespaces, "here"));
    let rules = script.lines().filter_map(|line| line.strip_prefix("add rule inet ferry-test-policies "));
    let own = rules.filter(|rule| !rule.starts_with("forward"));
    own.map(|rule| {
        let (chain, rest) = rule.split_once(' ').unwrap();
        format!("{} {rest}", chain.split('-').next().unwrap())
    })
    .collect()
}

fn check(spec: Value, expected: &[&str]) {
    assert_eq!(rules_for_web(std::slice::from_ref(&spec)), expected, "{spec}");
}

const ITSELF_IN: &str = "in ip saddr 10.244.0.5 return";
const ITSELF_OUT: &str = "out ip daddr 10.244.0.5 return";

#[test]
fn a_pod_that_no_policy_selects_is_open() {
    check(json!({ "podSelector": { "matchLabels": { "app": "client" } } }), &[]);
    assert!(rules_for_web(&[]).is_empty());
}

#[test]
fn a_selected_pod_is_closed_but_for_what_is_allowed() {
    let all = json!({});
    check(json!({ "podSelector": all }), &[ITSELF_IN, "in drop"]);
    check(
        json!({ "podSelector": all, "policyTypes": ["Ingress", "Egress"] }),
        &[ITSELF_IN, "in drop", ITSELF_OUT, "out drop"],
    );
    check(json!({ "podSelector": all, "ingress": [{}] }), &[ITSELF_IN, "in return", "in drop"]);
    let from_client = json!([{ "podSelector": { "matchLabels": { "app": "client" } } }]);
    check(
        json!({ "podSelector": all, "ingress": [{ "from": from_client, "ports": [{ "port": 80 }, { "port": 5, "endPort": 9, "protocol": "UDP" }] }] }),
        &[
            ITSELF_IN,
            "in ip saddr { 10.244.1.6 } tcp dport 80 return",
            "in ip saddr { 10.244.1.6 } udp dport 5-9 return",
            "in drop",
        ],
    );
}

#[test]
fn peers_are_found_in_their_namespaces() {
    let data = json!({ "matchLabels": { "kubernetes.io/metadata.name": "data" } });
    check(
        json!({ "podSelector": {}, "ingress": [{ "from": [{ "namespaceSelector": data }] }] }),
        &[ITSELF_IN, "in ip saddr { 10.244.1.7 } return", "in drop"],
    );
    // Without a namespace's selector, only those of the policy's own.
    check(
        json!({ "podSelector": {}, "ingress": [{ "from": [{ "podSelector": {} }] }] }),
        &[ITSELF_IN, "in ip saddr { 10.244.0.5, 10.244.1.6 } return", "in drop"],
    );
    // Nobody is not everybody.
    check(
        json!({ "podSelector": {}, "ingress": [{ "from": [{ "podSelector": { "matchLabels": { "app": "x" } } }] }] }),
        &[ITSELF_IN, "in drop"],
    );
    let block = json!({ "cidr": "10.0.0.0/8", "except": ["10.1.0.0/16"] });
    check(
        json!({ "podSelector": {}, "ingress": [{ "from": [{ "ipBlock": block }] }] }),
        &[ITSELF_IN, "in ip saddr 10.0.0.0/8 ip saddr != { 10.1.0.0/16 } return", "in drop"],
    );
}

#[test]
fn a_named_port_is_the_receivers() {
    let named = json!([{ "port": "http" }]);
    check(
        json!({ "podSelector": {}, "ingress": [{ "ports": named }] }),
        &[ITSELF_IN, "in tcp dport 8080 return", "in drop"],
    );
    let to = json!([{ "namespaceSelector": {} }]);
    check(
        json!({ "podSelector": {}, "policyTypes": ["Egress"], "egress": [{ "to": to, "ports": named }] }),
        &[
            ITSELF_OUT,
            "out ip daddr { 10.244.0.5, 10.244.1.6, 10.244.1.7 } tcp dport 8080 return",
            "out drop",
        ],
    );
    check(
        json!({ "podSelector": {}, "ingress": [{ "ports": [{ "port": "unheard" }] }] }),
        &[ITSELF_IN, "in drop"],
    );
}

#[test]
fn policies_add_up() {
    let open = json!({ "podSelector": {}, "ingress": [{ "ports": [{ "port": 80 }] }] });
    let closed = json!({ "podSelector": {} });
    assert_eq!(
        rules_for_web(&[open, closed]),
        [ITSELF_IN, "in tcp dport 80 return", "in drop"],
        "what one allows, another does not take back"
    );
}

#[test]
fn the_kernel_takes_the_table() {
    let Ok(namespace) = ferry_linux::net::Namespace::create() else {
        ferry_skip::missing("the right to make a network namespace");
        return;
    };
    let block = json!({ "cidr": "fd00::/8", "except": ["fd00:1::/32"] });
    let policy = json!({ "metadata": { "name": "p", "namespace": "shop" }, "spec": {
        "podSelector": {}, "policyTypes": ["Ingress", "Egress"],
        "ingress": [{ "from": [{ "ipBlock": block }, { "podSelector": {} }], "ports": [{ "port": 80, "endPort": 90 }] }],
        "egress": [{ "ports": [{ "protocol": "UDP" }] }],
    } });
    let policy: Arc<NetworkPolicy> = Arc::new(serde_json::from_value(policy).unwrap());
    let pods = [pod("web", "shop", "10.244.0.5", "here"), pod("six", "shop", "fd00::5", "here")];
    let none: [Arc<Namespace>; 0] = [];
    let text = script("test", &decide(&[policy], &pods, &none, "here"));
    namespace
        .run(|| {
            use ferry_linux::net::nftables;
            nftables::apply(&text).unwrap();
            nftables::apply(&text).expect("the same again");
            assert!(nftables::list_table("inet", "ferry-test-policies").unwrap().is_some());
            nftables::apply(&script("test", &[])).unwrap();
            assert!(nftables::list_table("inet", "ferry-test-policies").unwrap().is_none());
        })
        .unwrap();
}
