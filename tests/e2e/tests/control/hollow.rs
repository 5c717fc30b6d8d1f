//! Nodes without a kubelet: whatever is bound to one runs and is ready at once, and whatever is told to
//! end has ended.

use std::time::Duration;

use futures::TryStreamExt;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams};
use kube::{Api, Client, ResourceExt};
use serde_json::json;

/// Creates a node that is ready, with room for `pods` of 100m CPU each.
pub async fn node(client: &Client, name: &str, pods: u32) {
    let resources = json!({"cpu": format!("{}m", pods * 100), "memory": "32Gi", "pods": "110"});
    let ready = json!({"type": "Ready", "status": "True", "reason": "KubeletReady"});
    let status = json!({"capacity": resources, "allocatable": resources, "conditions": [ready]});
    let labels = json!({"kubernetes.io/hostname": name});
    let node = json!({"metadata": {"name": name, "labels": labels}, "status": status});
    let nodes: Api<Node> = Api::all(client.clone());
    let node = serde_json::from_value(node).expect("is a node");
    nodes.create(&PostParams::default(), &node).await.expect("the node is made");
}

/// The kubelets' part, until the task is dropped. Survives a server that is killed.
pub fn kubelets(client: Client) -> tokio::task::JoinHandle<()> {
    tokio::spawn(async move {
        loop {
            // A watch from nothing begins with everything there is.
            let _ = follow(&client).await;
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    })
}

async fn follow(client: &Client) -> Result<(), kube::Error> {
    let all: Api<Pod> = Api::all(client.clone());
    let events = all.watch(&WatchParams::default().fields("spec.nodeName!="), "0").await?;
    futures::pin_mut!(events);
    while let Some(event) = events.try_next().await? {
        if let WatchEvent::Added(pod) | WatchEvent::Modified(pod) = event {
            act(client, &pod).await;
        }
    }
    Ok(())
}

async fn act(client: &Client, pod: &Pod) {
    let pods: Api<Pod> = Api::namespaced(client.clone(), pod.namespace().as_deref().unwrap_or("default"));
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    // Whoever was quicker, or a server that is down: the next event says what is left to do.
    if pod.metadata.deletion_timestamp.is_some() {
        let _ = pods.delete(&pod.name_any(), &DeleteParams::default().grace_period(0)).await;
    } else if phase == Some("Pending") {
        let condition = |name: &str| json!({"type": name, "status": "True"});
        let conditions: Vec<_> = ["Initialized", "Ready", "ContainersReady"].map(condition).into();
        let started = &pod.metadata.creation_timestamp;
        let containers: Vec<_> = pod
            .spec
            .iter()
            .flat_map(|spec| &spec.containers)
            .map(|container| {
                json!({"name": container.name, "image": container.image, "imageID": "", "ready": true,
                    "restartCount": 0, "state": {"running": {"startedAt": started}}})
            })
            .collect();
        let status = json!({"status": {"phase": "Running", "podIP": "10.0.0.1", "startTime": started,
            "conditions": conditions, "containerStatuses": containers}});
        let _ = pods.patch_status(&pod.name_any(), &PatchParams::default(), &Patch::Strategic(status)).await;
    }
}
