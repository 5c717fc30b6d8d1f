//! The Service and the slices by which pods, and whoever looks for `kube-dns`, find DNS servers that are
//! no pods: the Service has no selector, and there is a slice for each node that runs one. One instance per
//! cluster writes them, from what the nodes say: a node need not be trusted with other nodes' slices.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use ferry_client::{Api, CancellationToken, Client, Informers};
use k8s_openapi::api::core::v1::{Node, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};
use tokio::sync::Notify;

/// A node that runs a DNS says on which port.
pub const PORT_LABEL: &str = "ferry.dev/dns-port";

/// After a write that failed.
const RETRY: Duration = Duration::from_secs(1);

const NAMESPACE: &str = "kube-system";
const NAME: &str = "kube-dns";

/// Where a server of this cluster's DNS is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// This server's own address, as pods reach it.
    pub server: SocketAddr,
    pub node_name: String,
    /// Of the Node object: the slice goes when the node does.
    pub node_uid: Option<String>,
    /// Nobody has lost sight of the node.
    pub seen: bool,
}

impl Place {
    /// `None` for a node that runs no DNS, or has not said where yet.
    pub fn of(node: &Node) -> Option<Self> {
        let port = node.metadata.labels.as_ref()?.get(PORT_LABEL)?.parse().ok()?;
        let status = node.status.as_ref()?;
        let internal = status.addresses.iter().flatten().find(|address| address.type_ == "InternalIP");
        let address: IpAddr = internal?.address.parse().ok()?;
        let mut conditions = status.conditions.iter().flatten();
        let lost = conditions.any(|condition| condition.type_ == "Ready" && condition.status == "Unknown");
        Some(Place {
            server: SocketAddr::new(address, port),
            node_name: node.metadata.name.clone()?,
            node_uid: node.metadata.uid.clone(),
            seen: !lost,
        })
    }
}

/// Keeps the Service and the slices what the nodes say, until told to stop. What others have changed of
/// the Service stays.
pub async fn run(informers: Informers, client: Client, cluster_ip: IpAddr, shutdown: CancellationToken) {
    let nodes = informers.of::<Node>();
    let changed = Arc::new(Notify::new());
    let wake = changed.clone();
    nodes.handle(move |event| {
        if event.is_deleted() || event.old().is_none_or(|old| Place::of(old) != Place::of(event.object())) {
            wake.notify_one();
        }
    });
    let work = async {
        nodes.synced().await;
        let mut written: BTreeMap<String, Place> = BTreeMap::new();
        let mut has_service = false;
        loop {
            let places: Vec<Place> = nodes.list().iter().filter_map(|node| Place::of(node)).collect();
            let outcome = async {
                if !has_service {
                    write_service(&client, cluster_ip).await?;
                    has_service = true;
                }
                written.retain(|name, _| places.iter().any(|place| place.node_name == *name));
                for place in &places {
                    if written.get(&place.node_name) != Some(place) {
                        write_slice(&client, place).await?;
                        written.insert(place.node_name.clone(), place.clone());
                    }
                }
                Ok::<(), kube::Error>(())
            };
            match outcome.await {
                Ok(()) => changed.notified().await,
                Err(error) => {
                    tracing::warn!(%error, "cannot publish the address of the DNS server");
                    tokio::time::sleep(RETRY).await;
                }
            }
        }
    };
    tokio::select! {
        () = work => {}
        () = shutdown.cancelled() => {}
    }
}

async fn write_service(client: &Client, cluster_ip: IpAddr) -> kube::Result<()> {
    let span = ferry_trace::span("dns.publish");
    let services: Api<Service> = Api::namespaced(client.clone(), NAMESPACE);
    let parameters = PatchParams::apply("ferry-dns").force();
    span.in_scope(async { services.patch(NAME, &parameters, &Patch::Apply(service(cluster_ip))).await })
        .await?;
    Ok(())
}

async fn write_slice(client: &Client, place: &Place) -> kube::Result<()> {
    let mut span = ferry_trace::span("dns.publish");
    span.object("nodes", "", &place.node_name);
    let slices: Api<EndpointSlice> = Api::namespaced(client.clone(), NAMESPACE);
    let parameters = PatchParams::apply("ferry-dns").force();
    let (name, slice) = (slice_name(place), slice(place));
    span.in_scope(async { slices.patch(&name, &parameters, &Patch::Apply(slice)).await }).await?;
    Ok(())
}

fn service(cluster_ip: IpAddr) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": NAME,
            "namespace": NAMESPACE,
            "labels": {
                "k8s-app": "kube-dns",
                "kubernetes.io/cluster-service": "true",
                "kubernetes.io/name": "CoreDNS",
            },
        },
        "spec": {
            "clusterIP": cluster_ip,
            "clusterIPs": [cluster_ip],
            "ports": [
                { "name": "dns", "port": 53, "protocol": "UDP", "targetPort": 53 },
                { "name": "dns-tcp", "port": 53, "protocol": "TCP", "targetPort": 53 },
            ],
        },
    })
}

fn slice(place: &Place) -> Value {
    let mut slice = json!({
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": slice_name(place),
            "namespace": NAMESPACE,
            "labels": {
                "kubernetes.io/service-name": NAME,
                "endpointslice.kubernetes.io/managed-by": "ferry-dns",
            },
        },
        "addressType": if place.server.is_ipv4() { "IPv4" } else { "IPv6" },
        "ports": [
            { "name": "dns", "port": place.server.port(), "protocol": "UDP" },
            { "name": "dns-tcp", "port": place.server.port(), "protocol": "TCP" },
        ],
        "endpoints": [{
            "addresses": [place.server.ip()],
            "conditions": { "ready": place.seen, "serving": place.seen, "terminating": false },
            "nodeName": place.node_name,
            // Who runs on a node asks its own, which no cut between hosts takes away. Proxies follow this as
            // long as that one is ready.
            "hints": { "forNodes": [{ "name": place.node_name }] },
        }],
    });
    if let Some(uid) = &place.node_uid {
        slice["metadata"]["ownerReferences"] =
            json!([{ "apiVersion": "v1", "kind": "Node", "name": place.node_name, "uid": uid }]);
    }
    slice
}

fn slice_name(place: &Place) -> String {
    format!("{NAME}-{}", place.node_name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(ready: &str) -> Node {
        serde_json::from_value(json!({
            "metadata": { "name": "n1", "uid": "u", "labels": { PORT_LABEL: "10053" } },
            "status": {
                "addresses": [{ "type": "InternalIP", "address": "192.0.2.7" }],
                "conditions": [{ "type": "Ready", "status": ready }],
            },
        }))
        .unwrap()
    }

    #[test]
    fn a_node_that_was_lost_answers_no_names() {
        let place = |ready: &str| Place::of(&node(ready)).unwrap();
        assert_eq!(place("True").server.to_string(), "192.0.2.7:10053");
        // Without a pod network the host's own DNS still answers.
        assert!(place("False").seen);
        assert!(!place("Unknown").seen);
        assert_eq!(slice(&place("Unknown"))["endpoints"][0]["conditions"]["ready"], false);
        assert_eq!(Place::of(&Node::default()), None);
    }
}
