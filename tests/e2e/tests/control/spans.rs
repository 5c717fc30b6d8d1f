//! A server by itself, and components that tell it what they did.

use k8s_openapi::api::core::v1::{Pod, ServiceAccount};
use kube::Api;
use kube::api::PostParams;
use serde_json::{Value, json};

use super::processes::Cluster;
use super::{hollow, until};

#[tokio::test]
async fn a_component_hands_in_its_spans_by_its_own_name() {
    let Some(cluster) = Cluster::start().await else { return };
    let _scheduler = cluster.scheduler_by_its_own_name();
    hollow::node(&cluster.client, "n1", 4).await;
    // The controllers' part, which do not run here.
    let accounts: Api<ServiceAccount> = Api::default_namespaced(cluster.client.clone());
    let account = serde_json::from_value(json!({"metadata": {"name": "default"}})).expect("is an account");
    accounts.create(&PostParams::default(), &account).await.expect("the account is made");
    let pods: Api<Pod> = Api::default_namespaced(cluster.client.clone());
    let pod = json!({
        "metadata": {"name": "told"}, "spec": {"containers": [{"name": "c", "image": "nginx"}]},
    });
    let pod = serde_json::from_value(pod).expect("is a pod");
    pods.create(&PostParams::default(), &pod).await.expect("the pod is made");
    let attempt = until("the scheduler's own step is in the pod's trace", || async {
        let request = http::Request::get("/ferry/v1/trace?object=pod/told").body(Vec::new()).ok()?;
        let trace: Value = cluster.client.request(request).await.ok()?;
        let records = trace["records"].as_array()?;
        let is_its = |record: &&Value| record["source"] == "system:kube-scheduler";
        records.iter().filter(is_its).find(|record| record["name"] == "scheduler.schedule").cloned()
    })
    .await;
    assert_eq!(attempt["object"], "pods/default/told", "{attempt}");
    // The binding's revision is the server's word.
    assert!(attempt.get("committed").is_none(), "{attempt}");
}
