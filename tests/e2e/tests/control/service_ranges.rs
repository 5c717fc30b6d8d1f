//! ServiceCIDRs on the processes: a range becomes ready, gives addresses, and goes when nothing is in it.

use k8s_openapi::api::core::v1::{Event, Service};
use k8s_openapi::api::networking::v1::{IPAddress, ServiceCIDR};
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_service_range_gives_addresses_and_is_kept_by_them() {
    let Some(cluster) = Cluster::start().await else { return };
    let _manager = cluster.controller_manager();
    let cidrs: Api<ServiceCIDR> = Api::all(cluster.client.clone());
    let services: Api<Service> = Api::namespaced(cluster.client.clone(), "default");
    let addresses: Api<IPAddress> = Api::all(cluster.client.clone());
    let service = |name: &str| -> Service {
        let service =
            json!({"metadata": {"name": name}, "spec": {"clusterIP": "10.200.0.9", "ports": [{"port": 80}]}});
        serde_json::from_value(service).expect("a Service")
    };
    let create = |name: &'static str| {
        let services = services.clone();
        async move { services.create(&PostParams::default(), &service(name)).await }
    };
    let refused = |outcome: Result<Service, kube::Error>, why: &str| {
        let error = outcome.expect_err("it is refused").to_string();
        assert!(error.contains(why), "{error}");
    };
    refused(create("early").await, "the provided network does not match the current range");
    let second = json!({"metadata": {"name": "second"}, "spec": {"cidrs": ["10.200.0.0/24"]}});
    let second = serde_json::from_value(second).expect("a ServiceCIDR");
    cidrs.create(&PostParams::default(), &second).await.expect("it is made");
    until("the range is ready", || is_ready(&cidrs, "second")).await;

    create("web").await.expect("the range gives the address");
    let address = addresses.get("10.200.0.9").await.expect("the address is an object");
    let labels = address.metadata.labels.expect("it has labels");
    assert_eq!(labels["ipaddress.kubernetes.io/managed-by"], "ipallocator.k8s.io");
    assert_eq!(labels["ipaddress.kubernetes.io/ip-family"], "IPv4");
    let parent = address.spec.parent_ref;
    assert_eq!((&*parent.resource, &*parent.name), ("services", "web"));
    refused(create("other").await, "provided IP is already allocated");

    cidrs.delete("second", &DeleteParams::default()).await.expect("it is deleted");
    until("the range says that it is used", || async {
        let conditions = cidrs.get("second").await.ok()?.status?.conditions?;
        conditions.iter().any(|condition| condition.reason == "Terminating").then_some(())
    })
    .await;
    services.delete("web", &DeleteParams::default()).await.expect("it is deleted");
    assert!(addresses.get_opt("10.200.0.9").await.expect("an answer").is_none(), "the address goes with it");
    refused(create("late").await, "the provided network does not match the current range");
    until("the range is gone", || async { cidrs.get_opt("second").await.ok()?.is_none().then_some(()) })
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_address_stays_its_services_and_none_is_leaked() {
    let Some(cluster) = Cluster::start().await else { return };
    let services: Api<Service> = Api::namespaced(cluster.client.clone(), "default");
    let addresses: Api<IPAddress> = Api::all(cluster.client.clone());
    let events: Api<Event> = Api::namespaced(cluster.client.clone(), "default");
    let service = json!({"metadata": {"name": "web"}, "spec": {"ports": [{"port": 80}]}});
    let service: Service = serde_json::from_value(service).expect("a Service");
    let made = services.create(&PostParams::default(), &service).await.expect("it is made");
    let text = made.spec.and_then(|spec| spec.cluster_ip).expect("it has an address");
    let before = addresses.get(&text).await.expect("the address is an object");

    addresses.delete(&text, &DeleteParams::default()).await.expect("it is deleted");
    until("the address is the service's again", || async {
        let after = addresses.get_opt(&text).await.ok()??;
        let labels = after.metadata.labels.clone()?;
        let is_new = after.metadata.uid != before.metadata.uid;
        (is_new
            && after.spec.parent_ref == before.spec.parent_ref
            && labels == before.metadata.labels.clone()?)
        .then_some(())
    })
    .await;
    until("the service's event tells of it", || async {
        let told = events.list(&Default::default()).await.ok()?;
        told.iter().find(|event| event.reason.as_deref() == Some("ClusterIPNotAllocated")).map(drop)
    })
    .await;

    // Made by the allocator, and changed by somebody since.
    let stray = json!({
        "metadata": {"name": "10.96.200.1", "labels": {
            "ipaddress.kubernetes.io/managed-by": "ipallocator.k8s.io",
            "ipaddress.kubernetes.io/ip-family": "IPv4",
        }},
        "spec": {"parentRef": {"group": "example.com", "resource": "gateways", "name": "g"}},
    });
    let stray = serde_json::from_value(stray).expect("an IPAddress");
    addresses.create(&PostParams::default(), &stray).await.expect("it is made");
    until("nobody's address is gone", || async {
        addresses.get_opt("10.96.200.1").await.ok()?.is_none().then_some(())
    })
    .await;
    until("an event tells of it", || async {
        let told = events.list(&Default::default()).await.ok()?;
        told.iter().find(|event| event.reason.as_deref() == Some("IPAddressNotAllocated")).map(drop)
    })
    .await;

    services.delete("web", &DeleteParams::default()).await.expect("it is deleted");
    assert!(
        addresses.get_opt(&text).await.expect("an answer").is_none(),
        "the address goes with its service"
    );
}
