//! From a change in the API to the answer, with a real server behind it: a name is right within 50 ms.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use ferry_client::{Api, CancellationToken, Informers};
use ferry_testkit::TestServer;
use hickory_proto::{
    op::{Message, MessageType, OpCode, Query},
    rr::{Name, RecordType},
};
use k8s_openapi::api::{core::v1::Service, discovery::v1::EndpointSlice};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::json;
use tokio::net::UdpSocket;

const PATIENCE: Duration = Duration::from_secs(10);
const BUDGET: Duration = Duration::from_millis(50);
const ROUNDS: usize = 15;

async fn addresses(server: SocketAddr, name: &str) -> Vec<String> {
    let mut message = Message::new(7, MessageType::Query, OpCode::Query);
    message.add_query(Query::query(Name::from_ascii(name).unwrap(), RecordType::A));
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    socket.send_to(&message.to_vec().unwrap(), server).await.unwrap();
    let mut buffer = [0; 4096];
    let length = tokio::time::timeout(PATIENCE, socket.recv(&mut buffer)).await.unwrap().unwrap();
    let answer = Message::from_vec(&buffer[..length]).unwrap();
    let mut found: Vec<String> = answer.answers.iter().map(|record| record.data.to_string()).collect();
    found.sort();
    found
}

/// How long until the name has these addresses, from the moment the change was answered.
async fn becomes(server: SocketAddr, name: &str, expected: &[&str]) -> Duration {
    let started = Instant::now();
    while addresses(server, name).await != expected {
        assert!(started.elapsed() < PATIENCE, "{name} never is {expected:?}");
    }
    started.elapsed()
}

#[tokio::test]
async fn a_record_is_right_soon_after_the_change() {
    let server = TestServer::start().await;
    let client = server.admin();
    let shutdown = CancellationToken::new();
    let informers = Informers::new(client.clone(), shutdown.clone());
    let free = std::net::UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let config = ferry_dns::Config {
        domain: "cluster.local".into(),
        listen: vec![free],
        resolv_conf: "/nowhere".into(),
        own_addresses: vec![],
    };
    let serving = tokio::spawn(ferry_dns::run(informers, config, shutdown.clone()));
    let started = Instant::now();
    while !ferry_dns::probe::answers(free, "cluster.local").await {
        assert!(started.elapsed() < PATIENCE && !serving.is_finished(), "the DNS does not answer");
    }

    let services: Api<Service> = Api::namespaced(client.clone(), "default");
    let slices: Api<EndpointSlice> = Api::namespaced(client, "default");
    let slice = |address: &str| -> EndpointSlice {
        let labels = json!({ "kubernetes.io/service-name": "db" });
        serde_json::from_value(json!({
            "metadata": { "name": "db-1", "labels": labels }, "addressType": "IPv4",
            "endpoints": [{ "addresses": [address], "conditions": { "ready": true } }],
        }))
        .unwrap()
    };
    let headless: Service = serde_json::from_value(json!({
        "metadata": { "name": "db" }, "spec": { "clusterIP": "None", "ports": [{ "port": 80 }] },
    }))
    .unwrap();
    services.create(&PostParams::default(), &headless).await.unwrap();
    slices.create(&PostParams::default(), &slice("10.244.0.1")).await.unwrap();
    becomes(free, "db.default.svc.cluster.local.", &["10.244.0.1"]).await;

    let mut times = Vec::new();
    for round in 0..ROUNDS {
        // An endpoint moves, a service comes, and goes.
        let address = format!("10.244.1.{round}");
        let moved = json!({ "endpoints": [{ "addresses": [address], "conditions": { "ready": true } }] });
        slices.patch("db-1", &PatchParams::default(), &Patch::Merge(moved)).await.unwrap();
        times.push(becomes(free, "db.default.svc.cluster.local.", &[&address]).await);

        let web: Service = serde_json::from_value(json!({
            "metadata": { "name": "web" }, "spec": { "ports": [{ "port": 80 }] },
        }))
        .unwrap();
        let made = services.create(&PostParams::default(), &web).await.unwrap();
        let address = made.spec.unwrap().cluster_ip.unwrap();
        times.push(becomes(free, "web.default.svc.cluster.local.", &[&address]).await);
        services.delete("web", &DeleteParams::default()).await.unwrap();
        times.push(becomes(free, "web.default.svc.cluster.local.", &[]).await);
    }
    times.sort();
    // The middle one: what else the machine does is not what is measured.
    let median = times[times.len() / 2];
    println!("median {median:?}, slowest {:?}", times.last());
    assert!(median < BUDGET, "{times:?}");
    shutdown.cancel();
    tokio::time::timeout(PATIENCE, serving).await.unwrap().unwrap().unwrap();
}
