//! From a Node in the API to the kernel: a node's change is in its peers' routes and forwarding entries within 100 ms.
//! A real server, in a network namespace of the test's own. Needs root and nft.

use std::{
    net::IpAddr,
    time::{Duration, Instant},
};

use ferry_client::{Api, CancellationToken, Informers};
use ferry_cni::{
    node::{self, Config},
    overlay::{self, Mode},
};
use ferry_linux::net::{Bridge, Namespace, Netlink};
use ferry_testkit::TestServer;
use k8s_openapi::api::core::v1::Node;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::json;

const PATIENCE: Duration = Duration::from_secs(10);
const BUDGET: Duration = Duration::from_millis(100);
const ROUNDS: u8 = 15;

#[test]
fn a_nodes_change_is_in_the_kernel_soon() {
    // Threads of the runtime are where the thread is that starts them.
    let namespace = Namespace::create().unwrap();
    let body = || {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        runtime.block_on(in_the_namespace());
    };
    namespace.run(body).unwrap();
}

async fn in_the_namespace() {
    let mut netlink = Netlink::open().unwrap();
    netlink.add_bridge(&Bridge { name: "eth0", mac: None, mtu: None }).unwrap();
    for link in ["lo", "eth0"] {
        let index = netlink.link_index(link).unwrap();
        netlink.set_up(index).unwrap();
    }
    let eth0 = netlink.link_index("eth0").unwrap();
    netlink.add_address(eth0, "192.0.2.1/24".parse().unwrap()).unwrap();

    let server = TestServer::start().await;
    let nodes: Api<Node> = Api::all(server.admin());
    for number in 1..=2 {
        let cidr = format!("10.244.{number}.0/24");
        let node = json!({
            "metadata": { "name": format!("n{number}") }, "spec": { "podCIDR": cidr, "podCIDRs": [cidr] },
        });
        nodes.create(&PostParams::default(), &serde_json::from_value(node).unwrap()).await.unwrap();
        moves(&nodes, &format!("n{number}"), &format!("192.0.2.{number}")).await;
    }
    let folder = tempfile::tempdir().unwrap();
    let config = Config {
        cluster: "fresh".into(),
        node_name: "n1".into(),
        cluster_cidrs: vec!["10.244.0.0/16".parse().unwrap()],
        service_cidrs: vec!["10.96.0.0/16".parse().unwrap()],
        configuration_dir: folder.path().join("net.d"),
        plugin_dir: folder.path().join("bin"),
        binary: "/nowhere/ferry".into(),
        lease_dir: folder.path().join("leases"),
        overlay: Some(Mode::Vxlan { id: 78, port: 8472 }),
    };
    let shutdown = CancellationToken::new();
    let informers = Informers::new(server.admin(), shutdown.clone());
    let running = tokio::spawn(node::run(informers, server.admin(), config.clone(), shutdown.clone()));
    let tunnel = overlay::interface_name("fresh");
    behind(&tunnel, "192.0.2.2").await;

    let mut times = Vec::new();
    for round in 0..ROUNDS {
        let address = format!("192.0.2.{}", 100 + round);
        moves(&nodes, "n2", &address).await;
        times.push(behind(&tunnel, &address).await);
    }
    times.sort();
    let median = times[times.len() / 2];
    println!("median {median:?}, slowest {:?}", times.last());
    assert!(median < BUDGET, "{times:?}");

    // Somebody gives another node this one's range: it is said on the Node, and withdrawn when it is over.
    let intruder = json!({
        "metadata": { "name": "n3" }, "spec": { "podCIDR": "10.244.1.0/25", "podCIDRs": ["10.244.1.0/25"] },
    });
    nodes.create(&PostParams::default(), &serde_json::from_value(intruder).unwrap()).await.unwrap();
    moves(&nodes, "n3", "192.0.2.3").await;
    let said = "the pod CIDR 10.244.1.0/24 overlaps with 10.244.1.0/25 of node n3";
    says(&nodes, "n1", Some(said)).await;
    nodes.delete("n3", &kube::api::DeleteParams::default()).await.unwrap();
    says(&nodes, "n1", None).await;

    shutdown.cancel();
    running.await.unwrap();
    tokio::task::spawn_blocking(move || node::remove(&config).unwrap()).await.unwrap();
}

async fn moves(nodes: &Api<Node>, name: &str, address: &str) {
    let status = json!({ "status": { "addresses": [{ "type": "InternalIP", "address": address }] } });
    nodes.patch_status(name, &PatchParams::default(), &Patch::Merge(status)).await.unwrap();
}

/// How long until the only peer is behind this address.
async fn behind(tunnel: &str, address: &str) -> Duration {
    let address: IpAddr = address.parse().unwrap();
    let started = Instant::now();
    loop {
        let mut netlink = Netlink::open().unwrap();
        if let Some(link) = netlink.link(tunnel).unwrap() {
            let entries = netlink.forwarding_entries(link.index).unwrap();
            if matches!(&entries[..], [only] if IpAddr::V4(only.host) == address) {
                return started.elapsed();
            }
        }
        assert!(started.elapsed() < PATIENCE, "the peer is never behind {address}");
        tokio::task::yield_now().await;
    }
}

async fn says(nodes: &Api<Node>, name: &str, expected: Option<&str>) {
    let started = Instant::now();
    loop {
        let node = nodes.get(name).await.unwrap();
        if ferry_cni::overlap::told(&node) == expected {
            return;
        }
        assert!(
            started.elapsed() < PATIENCE,
            "{:?} instead of {expected:?}",
            ferry_cni::overlap::told(&node)
        );
    }
}
