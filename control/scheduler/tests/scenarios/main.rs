//! The scheduler against a real server: what is created through the API gets bound, or is told
//! why not.

use std::time::Duration;

use ferry_client::CancellationToken;
use ferry_scheduler::{Config, RunError};
use ferry_testkit::TestServer;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{DeleteParams, ListParams};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

struct Cluster {
    server: TestServer,
    stop: CancellationToken,
    scheduler: JoinHandle<Result<(), RunError>>,
}

impl Cluster {
    async fn start() -> Self {
        let server = TestServer::start().await;
        let stop = CancellationToken::new();
        let scheduler = tokio::spawn(ferry_scheduler::run(server.admin(), Config::default(), stop.clone()));
        let accounts = "/api/v1/namespaces/default/serviceaccounts";
        server.post("/api/v1/namespaces", &json!({"metadata": {"name": "default"}})).await;
        server.post(accounts, &json!({"metadata": {"name": "default"}})).await;
        Cluster { server, stop, scheduler }
    }

    async fn node(&self, name: &str, cpu: &str, change: Value) {
        let mut node = json!({
            "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
        });
        let taints = change.pointer("/spec/taints").cloned().unwrap_or(Value::Null);
        merge(&mut node, change);
        self.server.post("/api/v1/nodes", &node).await.expect(201);
        // A new node is tainted as not ready until its controller finds it ready; none runs here.
        let spec = json!({"spec": {"taints": taints}});
        self.server.patch(&format!("/api/v1/nodes/{name}"), "merge", &spec).await.expect(200);
        let resources = json!({"cpu": cpu, "memory": "4Gi", "pods": "10"});
        let status = json!({"status": {"capacity": resources, "allocatable": resources}});
        self.server.patch(&format!("/api/v1/nodes/{name}/status"), "merge", &status).await.expect(200);
    }

    async fn pod(&self, name: &str, cpu: &str, change: Value) {
        let mut pod = json!({
            "metadata": {"name": name},
            "spec": {"containers": [{"name": "c", "image": "i", "resources": {"requests": {"cpu": cpu}}}]}
        });
        merge(&mut pod, change);
        self.server.post("/api/v1/namespaces/default/pods", &pod).await.expect(201);
    }

    fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.server.admin(), "default")
    }

    /// Waits until the pod is as `wanted` says, within a bound.
    async fn until(&self, name: &str, wanted: impl Fn(&Pod) -> bool) -> Pod {
        let mut last = None;
        for _ in 0..1500 {
            let pod = self.pods().get(name).await.unwrap();
            if wanted(&pod) {
                return pod;
            }
            last = Some(pod);
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("never: {:?}", last.map(|pod| (pod.spec.map(|spec| spec.node_name), pod.status)));
    }

    async fn bound(&self, name: &str) -> String {
        let pod = self.until(name, |pod| node(pod).is_some()).await;
        node(&pod).unwrap().to_owned()
    }

    async fn refused(&self, name: &str, message: &str) {
        self.until(name, |pod| {
            let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
            conditions.into_iter().flatten().any(|condition| {
                condition.type_ == "PodScheduled"
                    && condition.status == "False"
                    && condition.reason.as_deref() == Some("Unschedulable")
                    && condition.message.as_deref() == Some(message)
            })
        })
        .await;
    }

    async fn stop(self) {
        self.stop.cancel();
        self.scheduler.await.unwrap().unwrap();
        self.server.stop().await;
    }
}

fn node(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref()?.node_name.as_deref()
}

fn merge(into: &mut Value, change: Value) {
    match (into, change) {
        (Value::Object(into), Value::Object(change)) => {
            for (key, value) in change {
                merge(into.entry(key).or_insert(Value::Null), value);
            }
        }
        (into, change) => *into = change,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_are_bound_where_they_fit() {
    let cluster = Cluster::start().await;
    cluster.node("small", "1", json!({})).await;
    cluster.node("large", "8", json!({"metadata": {"labels": {"disk": "ssd"}}})).await;
    cluster.pod("needs-large", "4", json!({})).await;
    assert_eq!(cluster.bound("needs-large").await, "large");
    cluster.pod("wants-ssd", "100m", json!({"spec": {"nodeSelector": {"disk": "ssd"}}})).await;
    assert_eq!(cluster.bound("wants-ssd").await, "large");
    cluster.pod("of-another", "100m", json!({"spec": {"schedulerName": "another"}})).await;
    for number in 0..5 {
        cluster.pod(&format!("plain-{number}"), "10m", json!({})).await;
    }
    for number in 0..5 {
        cluster.bound(&format!("plain-{number}")).await;
    }
    let pod = cluster.pods().get("of-another").await.unwrap();
    assert_eq!(node(&pod), None, "is left alone");
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_fits_nowhere_is_told_why_and_bound_when_that_changes() {
    let cluster = Cluster::start().await;
    let taint = json!({"spec": {"taints": [{"key": "k", "effect": "NoSchedule"}]}});
    cluster.node("full", "1", json!({})).await;
    cluster.node("tainted-1", "8", taint.clone()).await;
    cluster.node("tainted-2", "8", taint).await;
    cluster.pod("waits", "4", json!({})).await;
    cluster
        .refused(
            "waits",
            "0/3 nodes are available: 1 Insufficient cpu, 2 node(s) had untolerated taint(s). preemption: \
             0/3 nodes are available: 3 Preemption is not helpful for scheduling.",
        )
        .await;
    let untaint = json!({"spec": {"taints": null}});
    cluster.server.patch("/api/v1/nodes/tainted-2", "merge", &untaint).await.expect(200);
    assert_eq!(cluster.bound("waits").await, "tainted-2");
    let events = cluster.server.get("/api/v1/namespaces/default/events").await.expect(200);
    let reasons: Vec<&str> =
        events["items"].as_array().unwrap().iter().filter_map(|event| event["reason"].as_str()).collect();
    assert!(reasons.contains(&"FailedScheduling"), "{reasons:?}");
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gated_pod_waits_for_its_gate() {
    let cluster = Cluster::start().await;
    cluster.node("n", "4", json!({})).await;
    cluster.pod("gated", "1", json!({"spec": {"schedulingGates": [{"name": "example.com/g"}]}})).await;
    cluster.pod("after", "1", json!({})).await;
    cluster.bound("after").await;
    assert_eq!(node(&cluster.pods().get("gated").await.unwrap()), None);
    let open = json!({"spec": {"schedulingGates": []}});
    cluster.server.patch("/api/v1/namespaces/default/pods/gated", "merge", &open).await.expect(200);
    assert_eq!(cluster.bound("gated").await, "n");
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_more_important_pod_takes_the_place_of_a_lesser_one() {
    let cluster = Cluster::start().await;
    for (name, value) in [("low", 1), ("high", 1000)] {
        let class = json!({"metadata": {"name": name}, "value": value});
        cluster.server.post("/apis/scheduling.k8s.io/v1/priorityclasses", &class).await.expect(201);
    }
    cluster.node("only", "4", json!({})).await;
    let class = |name: &str, value: i32| json!({"spec": {"priorityClassName": name, "priority": value, "terminationGracePeriodSeconds": 0}});
    cluster.pod("lesser", "3", class("low", 1)).await;
    cluster.bound("lesser").await;
    cluster.pod("greater", "3", class("high", 1000)).await;
    cluster
        .until("greater", |pod| {
            pod.status.as_ref().and_then(|status| status.nominated_node_name.as_deref()) == Some("only")
                || node(pod).is_some()
        })
        .await;
    // no kubelet here to end the victim; its deletion is marked, and this is the kubelet's part
    let _ = cluster.pods().delete("lesser", &DeleteParams::default().grace_period(0)).await;
    assert_eq!(cluster.bound("greater").await, "only");
    let left = cluster.pods().list(&ListParams::default()).await.unwrap();
    assert_eq!(left.items.len(), 1, "the lesser is gone");
    cluster.stop().await;
}
