//! What a sync costs: 10,000 services with 5 endpoints each, in a network namespace of its own.
//! `cargo bench -p ferry-proxy`. Needs root and nft. Prints wall time, and CPU time: our own, and that of the
//! rule tool with what the kernel does for it.

use std::{sync::Arc, time::Instant};

use ferry_linux::net::Namespace;
use ferry_proxy::{
    Config, Family, Mode, Node, NodePortAddresses,
    backend::{Backend, Changed},
    ledger::Rank,
    service,
};
use k8s_openapi::api::{core::v1::Service, discovery::v1::EndpointSlice};
use serde_json::json;

const SERVICES: usize = 10_000;
const ENDPOINTS: usize = 5;
const ROUNDS: usize = 51;

fn main() {
    let mode = match std::env::var("FERRY_PROXY_MODE").as_deref() {
        Ok("iptables") => Mode::Iptables,
        _ => Mode::Nftables,
    };
    let namespace = Namespace::create().expect("root is needed");
    namespace.run(|| measure(mode)).expect("the namespace was made just now");
}

fn measure(mode: Mode) {
    let config = Config {
        cluster: "bench".into(),
        node_name: "n1".into(),
        pod_cidrs: vec!["10.0.0.0/8".parse().expect("a network")],
        mode,
        masquerade_mark: 0x4000,
        node_port_addresses: NodePortAddresses::default_of(mode),
        localhost_node_ports: true,
        health_address: None,
    };
    let node = Node { name: "n1".into(), pod_cidrs: config.pod_cidrs.clone(), ..Node::default() };
    let services: Vec<(Service, Arc<EndpointSlice>)> =
        (0..SERVICES).map(|n| (service(n), slice(n, 0))).collect();

    let (wall, cpu) = (Instant::now(), cpu_seconds());
    let mut backend = Backend::new(&config, &node);
    let changes = services.iter().enumerate();
    let changes: Vec<Changed> =
        changes.map(|(n, (service, slice))| changed(n, service, slice, &node)).collect();
    backend.apply(&changes, true).expect("the kernel takes the rules");
    let (own, tool) = since(cpu, 1.0);
    let wall = wall.elapsed();
    println!(
        "{mode:?}, first sync of {SERVICES} services x {ENDPOINTS} endpoints: {wall:?} wall, {own:.3} s CPU and {tool:.3} s of the tool"
    );

    let mut times = Vec::new();
    let cpu = cpu_seconds();
    for round in 1..=ROUNDS {
        let n = round * 191 % SERVICES;
        let started = Instant::now();
        let change = changed(n, &services[n].0, &slice(n, round), &node);
        backend.apply(&[change], false).expect("the kernel takes the change");
        times.push(started.elapsed());
    }
    times.sort();
    let (own, tool) = since(cpu, ROUNDS as f64);
    let (median, best) = (times[ROUNDS / 2], times[0]);
    println!(
        "one endpoint's change: median {median:?}, best {best:?} wall, {own:.4} s CPU and {tool:.4} s of the tool"
    );
}

/// Our own CPU time and that of ended children.
fn since(before: (f64, f64), divided_by: f64) -> (f64, f64) {
    let now = cpu_seconds();
    ((now.0 - before.0) / divided_by, (now.1 - before.1) / divided_by)
}

fn changed(n: usize, service: &Service, slice: &Arc<EndpointSlice>, node: &Node) -> Changed {
    let owner = Arc::new(Rank { created: String::new(), name: format!("ns/s{n}") });
    Changed {
        owner,
        ipv4: service::ports(service, std::slice::from_ref(slice), node, Family::V4),
        ipv6: vec![],
    }
}

fn service(n: usize) -> Service {
    let ip = format!("10.{}.{}.{}", 96 + (n >> 16), (n >> 8) & 255, n & 255);
    let spec = json!({ "clusterIP": ip, "ports": [{ "name": "http", "port": 80 }] });
    serde_json::from_value(
        json!({ "metadata": { "namespace": "ns", "name": format!("s{n}") }, "spec": spec }),
    )
    .expect("a service")
}

/// The last endpoint differs from round to round.
fn slice(n: usize, round: usize) -> Arc<EndpointSlice> {
    let endpoints: Vec<_> = (0..ENDPOINTS)
        .map(|e| {
            let moved = if e == ENDPOINTS - 1 { round } else { 0 };
            let m = n * ENDPOINTS + e;
            json!({ "addresses": [format!("10.{}.{}.{}", 128 + (m >> 16) + 4 * moved % 120, (m >> 8) & 255, m & 255)], "nodeName": "n2" })
        })
        .collect();
    let slice = json!({ "metadata": {}, "addressType": "IPv4", "ports": [{ "name": "http", "port": 8080 }], "endpoints": endpoints });
    Arc::new(serde_json::from_value(slice).expect("a slice"))
}

fn cpu_seconds() -> (f64, f64) {
    let stat = std::fs::read_to_string("/proc/self/stat").expect("procfs");
    let fields: Vec<&str> = stat.rsplit(')').next().expect("fields").split_whitespace().collect();
    let ticks = |at: usize| fields[at].parse::<f64>().expect("a number");
    ((ticks(11) + ticks(12)) / 100.0, (ticks(13) + ticks(14)) / 100.0)
}
