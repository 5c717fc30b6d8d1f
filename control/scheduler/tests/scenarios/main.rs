//! The scheduler against a real server: what is created through the API gets bound, or is told
//! why not.

mod cluster;
mod devices;
mod extenders;

use cluster::{Cluster, node};
use kube::api::{DeleteParams, ListParams};
use serde_json::json;

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
    cluster.knows("tainted-2").await;
    cluster.pod("waits", "4", json!({})).await;
    cluster
        .refused(
            "waits",
            "0/3 nodes are available: 1 Insufficient cpu, 2 node(s) had untolerated taint(s). no new \
             claims to deallocate, preemption: 0/3 nodes are available: 3 Preemption is not helpful for scheduling.",
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
async fn pods_of_one_workload_spread_over_nodes_although_another_has_more_room() {
    let cluster = Cluster::start().await;
    cluster.node("large", "8", json!({})).await;
    cluster.node("small", "4", json!({})).await;
    cluster.pod("busy", "1", json!({"spec": {"nodeName": "small"}})).await;
    let labels = json!({"app": "web"});
    let template =
        json!({"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let set = json!({"metadata": {"name": "web"}, "spec": {"replicas": 0, "selector": {"matchLabels": labels},
        "template": template}});
    let made = cluster.server.post("/apis/apps/v1/namespaces/default/replicasets", &set).await.expect(201);
    let owner = json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "controller": true,
        "uid": made["metadata"]["uid"]});
    let mut on = Vec::new();
    for name in ["web-1", "web-2"] {
        cluster.pod(name, "100m", json!({"metadata": {"labels": labels, "ownerReferences": [owner]}})).await;
        on.push(cluster.bound(name).await);
    }
    assert_eq!(on, ["large", "small"]);
    cluster.pod("alone", "100m", json!({"metadata": {"labels": labels}})).await;
    assert_eq!(cluster.bound("alone").await, "large", "of no workload: where there is most room");
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_came_before_every_node_goes_to_the_first() {
    let cluster = Cluster::start().await;
    cluster.pod("early", "1", json!({})).await;
    cluster.until("early", |pod| pod.status.as_ref().is_some_and(|status| status.conditions.is_some())).await;
    cluster.node("n", "4", json!({})).await;
    assert_eq!(cluster.bound("early").await, "n");
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
