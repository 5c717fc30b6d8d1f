//! Golden rule sets. `FERRY_GOLDEN=write` rewrites them; the difference is to be read.

use std::{fs, path::Path, sync::Arc};

use k8s_openapi::api::{core::v1::Service, discovery::v1::EndpointSlice};
use serde_json::json;

use super::*;
use crate::{
    Node, NodePorts,
    backend::Update,
    service,
    test_objects::{owner, service as object, slice},
};

fn node() -> Node {
    Node { name: "n1".into(), pod_cidrs: vec!["10.244.0.0/16".parse().unwrap()], ..Node::default() }
}

fn settings() -> Settings {
    Settings {
        table: "ferry-test-services".into(),
        family: Family::V4,
        pod_cidrs: node().pod_cidrs,
        masquerade_mark: 0x4000,
        node_ports: NodePorts::default(),
    }
}

fn update(service: &Service, slices: &[Arc<EndpointSlice>]) -> Update {
    Update { owner: owner(service), ports: service::ports(service, slices, &node(), Family::V4) }
}

fn golden(name: &str, text: &str) {
    let path = Path::new("tests/golden").join(name);
    if std::env::var("FERRY_GOLDEN").is_ok_and(|value| value == "write") {
        fs::write(&path, text).unwrap();
    }
    let expected = fs::read_to_string(&path).unwrap_or_default();
    assert!(text == expected, "{name} differs; FERRY_GOLDEN=write rewrites it. It is now:\n{text}");
}

fn everything() -> Vec<(Service, Vec<Arc<EndpointSlice>>)> {
    let port = |number: i32| json!([{ "name": "http", "port": number, "protocol": "TCP" }]);
    let two = [
        json!({ "addresses": ["10.244.0.5"], "nodeName": "n1" }),
        json!({ "addresses": ["10.244.1.6"], "nodeName": "n2" }),
    ];
    vec![
        (
            object("cluster", json!({ "clusterIP": "10.96.0.1", "ports": port(80) })),
            vec![slice("cluster", 8080, &two)],
        ),
        (object("empty", json!({ "clusterIP": "10.96.0.2", "ports": port(80) })), vec![]),
        (
            object(
                "internal-local",
                json!({ "clusterIP": "10.96.0.3", "internalTrafficPolicy": "Local", "ports": port(80) }),
            ),
            vec![slice("internal-local", 8080, &two[1..])],
        ),
        (
            object(
                "balanced",
                json!({
                    "type": "LoadBalancer", "clusterIP": "10.96.0.4", "externalTrafficPolicy": "Local",
                    "loadBalancerSourceRanges": ["192.0.2.0/24", "192.0.2.128/25", "198.51.100.7/32"],
                    "ports": [{ "name": "http", "port": 80, "nodePort": 30080, "protocol": "TCP" }],
                }),
            ),
            vec![slice("balanced", 8080, &two)],
        ),
        (
            object(
                "node-port",
                json!({
                    "type": "NodePort", "clusterIP": "10.96.0.5", "externalIPs": ["203.0.113.5"],
                    "ports": [{ "name": "http", "port": 80, "nodePort": 30081, "protocol": "TCP" }],
                }),
            ),
            vec![slice("node-port", 8080, &two[..1])],
        ),
        (
            object(
                "sticky",
                json!({
                    "type": "NodePort", "clusterIP": "10.96.0.6", "sessionAffinity": "ClientIP",
                    "sessionAffinityConfig": { "clientIP": { "timeoutSeconds": 60 } },
                    "ports": [{ "name": "http", "port": 80, "nodePort": 30082, "protocol": "TCP" }],
                }),
            ),
            vec![slice("sticky", 8080, &two)],
        ),
        (
            object("headless", json!({ "clusterIP": "None", "ports": port(80) })),
            vec![slice("headless", 8080, &two)],
        ),
    ]
}

#[test]
fn every_sort_of_service_has_its_rules() {
    let mut table = Table::new(settings());
    let mut services = everything();
    services[3].0.status = Some(
        serde_json::from_value(json!({ "loadBalancer": { "ingress": [{ "ip": "203.0.113.4" }] } })).unwrap(),
    );
    table.update(services.iter().map(|(service, slices)| update(service, slices)));
    golden("everything.nft", &table.replace_all());
}

#[test]
fn a_change_is_only_what_differs() {
    let mut table = Table::new(settings());
    let services = everything();
    table.update(services.iter().map(|(service, slices)| update(service, slices)));
    let (cluster, slices) = &services[0];
    assert_eq!(table.update([update(cluster, slices)]), "", "the same again changes nothing");

    let three = [
        json!({ "addresses": ["10.244.0.5"], "nodeName": "n1" }),
        json!({ "addresses": ["10.244.1.6"], "nodeName": "n2" }),
        json!({ "addresses": ["10.244.2.7"], "nodeName": "n3" }),
    ];
    let mut script = String::from("# one endpoint more\n");
    script += &table.update([update(cluster, &[slice("cluster", 8080, &three)])]);
    script += "# and one less\n";
    script += &table.update([update(cluster, slices)]);
    script += "# the sticky service loses an endpoint\n";
    script += &table.update([update(&services[5].0, &[slice("sticky", 8080, &three[..1])])]);
    script += "# the sticky service goes\n";
    script += &table.update([Update { owner: owner(&services[5].0), ports: vec![] }]);
    golden("changes.nft", &script);
}

#[test]
fn changes_lead_where_a_fresh_start_leads() {
    let mut seed = 11_u64;
    let mut random = |below: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (seed >> 33) % below
    };
    let services = everything();
    let mut grown = Table::new(settings());
    let mut last: Vec<Option<Vec<Arc<EndpointSlice>>>> = vec![None; services.len()];
    for _ in 0..300 {
        let which = random(services.len() as u64) as usize;
        let count = random(5);
        let endpoints: Vec<_> = (0..count)
            .map(|n| json!({ "addresses": [format!("10.244.{}.{}", random(3), 5 + n)], "nodeName": format!("n{}", 1 + random(2)) }))
            .collect();
        let slices = vec![slice("s", 8080, &endpoints)];
        grown.update([update(&services[which].0, &slices)]);
        last[which] = Some(slices);
    }
    let mut fresh = Table::new(settings());
    for ((service, _), slices) in services.iter().zip(&last) {
        if let Some(slices) = slices {
            fresh.update([update(service, slices)]);
        }
    }
    assert_eq!(grown.replace_all(), fresh.replace_all());
}
