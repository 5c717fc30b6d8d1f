//! What of a service is in which chain, and what a change writes.

use std::sync::Arc;

use k8s_openapi::api::{core::v1::Service, discovery::v1::EndpointSlice};
use serde_json::json;

use super::*;
use crate::{
    NodePortAddresses,
    backend::Update,
    service,
    test_objects::{owner, service as object, slice},
};

fn settings() -> Settings {
    let node =
        Node { name: "n1".into(), pod_cidrs: vec!["10.244.0.0/16".parse().unwrap()], ..Node::default() };
    let node_ports = NodePorts::of(&NodePortAddresses::In(vec![]), &[], true);
    Settings::new("test", Family::V4, node, 0x4000, node_ports)
}

fn update(service: &Service, slices: &[Arc<EndpointSlice>]) -> Update {
    Update { owner: owner(service), ports: service::ports(service, slices, &settings().node, Family::V4) }
}

fn plain(name: &str, ip: &str) -> Service {
    let port = json!([{ "name": "http", "port": 80, "protocol": "TCP" }]);
    object(name, json!({ "clusterIP": ip, "ports": port }))
}

fn endpoints(name: &str, addresses: &[&str]) -> Vec<Arc<EndpointSlice>> {
    let of = |address: &&str| json!({ "addresses": [address], "nodeName": "n2" });
    vec![slice(name, 8080, &addresses.iter().map(of).collect::<Vec<_>>())]
}

/// The chains a script writes, without our prefix.
fn written(script: &str) -> Vec<String> {
    let prefix = format!(":{}-", settings().prefix);
    script
        .lines()
        .filter_map(|line| line.strip_prefix(&prefix)?.split(' ').next())
        .map(String::from)
        .collect()
}

#[test]
fn a_change_of_an_endpoint_writes_its_services_chain_alone() {
    let mut table = Table::new(settings());
    let all: Vec<Service> =
        (0..600).map(|n| plain(&format!("s{n}"), &format!("10.96.{}.{}", n >> 8, n & 255))).collect();
    table.update(all.iter().map(|service| update(service, &endpoints("s", &["10.244.1.1", "10.244.1.2"]))));
    let whole = table.replace_all(&[]);
    assert_eq!(written(&whole).iter().filter(|name| name.starts_with("N-")).count(), 3, "600 addresses");

    let script = table.update([update(&all[7], &endpoints("s", &["10.244.1.1", "10.244.9.9"]))]);
    let chains = written(&script);
    assert!(matches!(&chains[..], [only] if only.starts_with("S-")), "{script}");
    assert_eq!(script.lines().filter(|line| line.starts_with("-A")).count(), 3, "{script}");
    assert_eq!(table.update([update(&all[7], &endpoints("s", &["10.244.1.1", "10.244.9.9"]))]), "");

    // A service that goes takes its chain along, and its rule among its neighbours.
    let gone = table.update([Update { owner: owner(&all[7]), ports: vec![] }]);
    let chains = written(&gone);
    assert_eq!(chains.iter().map(|name| &name[..2]).collect::<Vec<_>>(), ["N-", "S-"], "{chains:?}");
    assert!(gone.contains("\n-X "), "{gone}");
}

#[test]
fn changes_lead_where_a_fresh_start_leads() {
    let services = [plain("a", "10.96.0.1"), plain("b", "10.96.0.1"), plain("c", "10.97.0.1")];
    let mut grown = Table::new(settings());
    for addresses in [&[][..], &["10.244.1.1"], &["10.244.1.1", "10.244.1.2"]] {
        for service in &services {
            grown.update([update(service, &endpoints("s", addresses))]);
        }
    }
    grown.update([Update { owner: owner(&services[2]), ports: vec![] }]);
    let mut fresh = Table::new(settings());
    let two = ["10.244.1.1", "10.244.1.2"];
    fresh.update(services[..2].iter().rev().map(|service| update(service, &endpoints("s", &two))));
    assert_eq!(grown.replace_all(&[]), fresh.replace_all(&[]));
}

#[test]
fn what_an_earlier_run_left_is_removed() {
    let prefix = settings().prefix;
    let saved = format!("*nat\n:{prefix}-S-0123456789abc - [0:0]\n:{prefix}-MARK - [0:0]\n:THEIRS - [0:0]\n");
    let script = Table::new(settings()).replace_all(&[(Kind::Nat, saved)]);
    assert!(script.contains(&format!("-X {prefix}-S-0123456789abc\n")), "{script}");
    assert!(!script.contains("THEIRS") && !script.contains(&format!("-X {prefix}-MARK")), "{script}");
}

#[test]
fn only_what_is_ours_is_removed() {
    let p = settings().prefix;
    let saved = format!(
        "*nat\n:PREROUTING ACCEPT [0:0]\n:THEIRS - [0:0]\n:{p}-SERVICES - [0:0]\n-A PREROUTING -j THEIRS\n\
         -A PREROUTING -j {p}-SERVICES\n-A {p}-SERVICES -j {p}-NODEPORTS\nCOMMIT\n"
    );
    assert_eq!(
        removal(&settings(), Kind::Nat, &saved),
        format!("*nat\n:{p}-SERVICES - [0:0]\n-D PREROUTING -j {p}-SERVICES\n-X {p}-SERVICES\nCOMMIT\n")
    );
    let missing = missing_hooks(&settings(), Kind::Nat, &saved);
    assert!(!missing.contains("PREROUTING -j"), "{missing}");
    assert!(missing.contains(&format!("-I OUTPUT -j {p}-SERVICES\n")), "{missing}");
}
