//! A load balancer for clusters that have no cloud: the nodes' own addresses, which every proxy takes
//! traffic on. One instance per cluster writes them into the status of `LoadBalancer` services.

use std::{collections::BTreeSet, net::IpAddr, sync::Arc};

use ferry_client::{Api, CancellationToken, Informers, NamespacedName};
use k8s_openapi::api::core::v1::{LoadBalancerIngress, LoadBalancerStatus, Node, Service};
use kube::api::{Patch, PatchParams};
use parking_lot::Mutex;
use serde_json::json;
use tokio::sync::Notify;

/// What a service's ingress should be. `None`: another balancer's, or no balanced service; leave it.
pub fn ingress(service: &Service, nodes: &[Arc<Node>]) -> Option<Vec<LoadBalancerIngress>> {
    let spec = service.spec.as_ref()?;
    if spec.type_.as_deref() != Some("LoadBalancer") || spec.load_balancer_class.is_some() {
        return None;
    }
    let families = spec.ip_families.iter().flatten().map(String::as_str).collect::<Vec<_>>();
    let wanted =
        |ip: &IpAddr| families.is_empty() || families.contains(&if ip.is_ipv4() { "IPv4" } else { "IPv6" });
    let addresses: BTreeSet<IpAddr> = nodes
        .iter()
        .filter(|node| takes_traffic(node))
        .flat_map(|node| addresses(node))
        .filter(wanted)
        .collect();
    let ingress = |ip: IpAddr| LoadBalancerIngress {
        ip: Some(ip.to_string()),
        ip_mode: Some("VIP".into()),
        ..LoadBalancerIngress::default()
    };
    Some(addresses.into_iter().map(ingress).collect())
}

/// Keeps every balanced service's status right until told to stop.
pub async fn run(informers: Informers, shutdown: CancellationToken) {
    let services = informers.of::<Service>();
    let nodes = informers.of::<Node>();
    let changed = Arc::new(Notify::new());
    let dirty = Arc::new(Mutex::new(BTreeSet::<NamespacedName>::new()));
    {
        let (changed, dirty) = (changed.clone(), dirty.clone());
        services.handle(move |event| {
            dirty.lock().insert(event.key());
            changed.notify_one();
        });
    }
    {
        let (changed, dirty, services) = (changed.clone(), dirty.clone(), services.clone());
        nodes.handle(move |event| {
            // A heartbeat changes neither addresses nor readiness.
            let seen = |node: &Node| (takes_traffic(node), addresses(node));
            if event.old().is_none_or(|old| seen(old) != seen(event.object())) || event.is_deleted() {
                dirty.lock().extend(services.list().iter().map(|service| NamespacedName::of(&**service)));
                changed.notify_one();
            }
        });
    }
    tokio::select! {
        () = async { services.synced().await; nodes.synced().await } => {}
        () = shutdown.cancelled() => return,
    }
    loop {
        let keys = std::mem::take(&mut *dirty.lock());
        let all = nodes.list();
        for key in keys {
            let Some(service) = services.get(&key) else { continue };
            if let Some(wanted) = ingress(&service, &all)
                && let Err(error) = write(&informers, &key, &service, wanted).await
            {
                tracing::warn!(service = %key, %error, "the load balancer's status cannot be written");
                dirty.lock().insert(key);
            }
        }
        // What could not be written is tried again with the next change, or after a while.
        let retry = async {
            if dirty.lock().is_empty() {
                std::future::pending::<()>().await;
            }
            tokio::time::sleep(std::time::Duration::from_secs(5)).await;
        };
        tokio::select! {
            () = changed.notified() => {}
            () = retry => {}
            () = shutdown.cancelled() => return,
        }
    }
}

async fn write(
    informers: &Informers,
    key: &NamespacedName,
    service: &Service,
    wanted: Vec<LoadBalancerIngress>,
) -> kube::Result<()> {
    let status = service.status.as_ref().and_then(|status| status.load_balancer.clone());
    if status.and_then(|status| status.ingress).unwrap_or_default() == wanted {
        return Ok(());
    }
    let mut span = ferry_trace::span("proxy.load_balancer");
    span.object("services", &key.namespace, &key.name);
    let balancer = LoadBalancerStatus { ingress: Some(wanted) };
    let patch = json!({ "status": { "loadBalancer": balancer } });
    let api: Api<Service> = Api::namespaced(informers.client().clone(), &key.namespace);
    span.in_scope(api.patch_status(&key.name, &PatchParams::default(), &Patch::Merge(patch))).await.map(drop)
}

fn takes_traffic(node: &Node) -> bool {
    let excluded = "node.kubernetes.io/exclude-from-external-load-balancers";
    let labels = node.metadata.labels.as_ref();
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_ref());
    let ready = conditions.into_iter().flatten().any(|c| c.type_ == "Ready" && c.status == "True");
    ready
        && node.metadata.deletion_timestamp.is_none()
        && !labels.is_some_and(|labels| labels.contains_key(excluded))
}

/// External addresses, or internal ones where there is no other.
fn addresses(node: &Node) -> Vec<IpAddr> {
    let all = node.status.as_ref().and_then(|status| status.addresses.as_ref());
    let of = |kind: &str| -> Vec<IpAddr> {
        let matching = all.into_iter().flatten().filter(|address| address.type_ == kind);
        matching.filter_map(|address| address.address.parse().ok()).collect()
    };
    let external = of("ExternalIP");
    if external.is_empty() { of("InternalIP") } else { external }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(ready: &str, addresses: &[(&str, &str)]) -> Arc<Node> {
        let addresses: Vec<_> =
            addresses.iter().map(|(kind, ip)| json!({ "type": kind, "address": ip })).collect();
        let status = json!({ "addresses": addresses, "conditions": [{ "type": "Ready", "status": ready }] });
        Arc::new(serde_json::from_value(json!({ "metadata": { "name": "n" }, "status": status })).unwrap())
    }

    fn check(spec: serde_json::Value, nodes: &[Arc<Node>], expected: Option<&[&str]>) {
        let service: Service = serde_json::from_value(json!({ "metadata": {}, "spec": spec })).unwrap();
        let found = ingress(&service, nodes);
        let found: Option<Vec<String>> = found.map(|all| all.into_iter().filter_map(|i| i.ip).collect());
        assert_eq!(found, expected.map(|ips| ips.iter().map(|ip| ip.to_string()).collect()), "{spec}");
    }

    #[test]
    fn ready_nodes_give_their_addresses() {
        let nodes = [
            node("True", &[("InternalIP", "10.0.0.1"), ("InternalIP", "fd00::1"), ("Hostname", "n1")]),
            node("True", &[("InternalIP", "10.0.0.2"), ("ExternalIP", "203.0.113.2")]),
            node("False", &[("InternalIP", "10.0.0.3")]),
        ];
        let both = ["10.0.0.1", "203.0.113.2", "fd00::1"];
        check(json!({ "type": "LoadBalancer" }), &nodes, Some(&both));
        check(json!({ "type": "LoadBalancer", "ipFamilies": ["IPv4"] }), &nodes, Some(&both[..2]));
        check(json!({ "type": "LoadBalancer", "loadBalancerClass": "x" }), &nodes, None);
        check(json!({ "type": "NodePort" }), &nodes, None);
    }
}
