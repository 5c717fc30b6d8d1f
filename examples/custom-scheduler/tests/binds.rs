//! The example as it is run: a program of its own, against a real server, over TLS.

use std::process::{Child, Command};
use std::time::Duration;

use ferry_testkit::TestServer;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use serde_json::{Value, json};

/// Does not outlive the test.
struct Program(Child);

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

async fn node(server: &TestServer, name: &str) {
    server.post("/api/v1/nodes", &json!({"metadata": {"name": name}})).await.expect(201);
    // a new node is tainted until its controller finds it ready; none runs here
    let untainted = json!({"spec": {"taints": null}});
    server.patch(&format!("/api/v1/nodes/{name}"), "merge", &untainted).await.expect(200);
}

async fn pod(server: &TestServer, name: &str, spec: Value) {
    let mut pod = json!({"metadata": {"name": name}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    for (field, value) in spec.as_object().expect("fields of a spec") {
        pod["spec"][field] = value.clone();
    }
    server.post("/api/v1/namespaces/default/pods", &pod).await.expect(201);
}

async fn node_of(server: &TestServer, name: &str) -> Option<String> {
    let pods: Api<Pod> = Api::namespaced(server.admin(), "default");
    pods.get(name).await.expect("the pod is there").spec.and_then(|spec| spec.node_name)
}

async fn bound(server: &TestServer, name: &str) -> String {
    for _ in 0..3000 {
        if let Some(node) = node_of(server, name).await {
            return node;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("{name} was never bound");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pods_that_ask_for_it_go_to_the_emptiest_node_and_others_are_left_alone() {
    let server = TestServer::start().await;
    server.post("/api/v1/namespaces", &json!({"metadata": {"name": "default"}})).await;
    node(&server, "busy").await;
    for number in 0..3 {
        pod(&server, &format!("there-{number}"), json!({"nodeName": "busy"})).await;
    }
    pod(&server, "another-s", json!({})).await;
    pod(&server, "first", json!({"schedulerName": "emptiest"})).await;
    let program = Command::new(env!("CARGO_BIN_EXE_custom-scheduler")).arg(server.kubeconfig()).spawn();
    let _program = Program(program.expect("the example starts"));
    assert_eq!(bound(&server, "first").await, "busy", "there is no other");
    node(&server, "empty").await;
    // Until the program has heard of the node, the busy one is all it knows.
    let mut number = 0;
    let found = loop {
        let name = format!("second-{number}");
        pod(&server, &name, json!({"schedulerName": "emptiest"})).await;
        match bound(&server, &name).await {
            node if node == "empty" => break true,
            _ if number == 20 => break false,
            _ => number += 1,
        }
    };
    assert!(found, "the emptier node was never chosen");
    assert_eq!(node_of(&server, "another-s").await, None);
}
