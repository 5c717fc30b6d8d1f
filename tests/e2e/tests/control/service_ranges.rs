//! ServiceCIDRs on the processes: a range becomes ready, and goes when nothing is in it.

use k8s_openapi::api::networking::v1::ServiceCIDR;
use kube::Api;
use kube::api::{DeleteParams, PostParams};
use serde_json::json;

use super::processes::Cluster;
use super::until;

async fn is_ready(cidrs: &Api<ServiceCIDR>, name: &str) -> Option<()> {
    let cidr = cidrs.get(name).await.ok()?;
    let protected = cidr.metadata.finalizers?.contains(&"networking.k8s.io/service-cidr-finalizer".into());
    let conditions = cidr.status?.conditions?;
    let ready = conditions.iter().any(|condition| condition.type_ == "Ready" && condition.status == "True");
    (protected && ready).then_some(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_service_range_becomes_ready_and_goes() {
    let Some(cluster) = Cluster::start().await else { return };
    let _manager = cluster.controller_manager();
    let cidrs: Api<ServiceCIDR> = Api::all(cluster.client.clone());
    let second = json!({"metadata": {"name": "second"}, "spec": {"cidrs": ["10.200.0.0/24"]}});
    let second = serde_json::from_value(second).expect("a ServiceCIDR");
    cidrs.create(&PostParams::default(), &second).await.expect("it is made");
    for name in ["kubernetes", "second"] {
        until(&format!("{name} is ready"), || is_ready(&cidrs, name)).await;
    }
    cidrs.delete("second", &DeleteParams::default()).await.expect("it is deleted");
    until("the range is gone", || async { cidrs.get_opt("second").await.ok()?.is_none().then_some(()) })
        .await;
}
