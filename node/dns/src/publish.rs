//! The Service and the slice by which pods, and whoever looks for `kube-dns`, find a DNS server that is
//! no pod: the Service has no selector, and each server writes a slice of its own.

use std::net::SocketAddr;

use ferry_client::{Api, Client};
use k8s_openapi::api::{core::v1::Service, discovery::v1::EndpointSlice};
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

const NAMESPACE: &str = "kube-system";
const NAME: &str = "kube-dns";

/// Where a server of this cluster's DNS is.
#[derive(Clone, Debug)]
pub struct Place {
    /// The cluster's DNS address.
    pub cluster_ip: std::net::IpAddr,
    /// This server's own address, as pods reach it.
    pub server: SocketAddr,
    pub node_name: String,
    /// Of the Node object: the slice goes when the node does.
    pub node_uid: Option<String>,
}

/// Writes the Service and this server's slice. What others have changed of the Service stays.
pub async fn publish(client: &Client, place: &Place) -> kube::Result<()> {
    let span = ferry_trace::span("dns.publish");
    let parameters = PatchParams::apply("ferry-dns").force();
    let write = async {
        let services: Api<Service> = Api::namespaced(client.clone(), NAMESPACE);
        services.patch(NAME, &parameters, &Patch::Apply(service(place))).await?;
        let slices: Api<EndpointSlice> = Api::namespaced(client.clone(), NAMESPACE);
        slices.patch(&slice_name(place), &parameters, &Patch::Apply(slice(place))).await?;
        Ok(())
    };
    span.in_scope(write).await
}

fn service(place: &Place) -> Value {
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
            "clusterIP": place.cluster_ip,
            "clusterIPs": [place.cluster_ip],
            "ports": [
                { "name": "dns", "port": 53, "protocol": "UDP", "targetPort": place.server.port() },
                { "name": "dns-tcp", "port": 53, "protocol": "TCP", "targetPort": place.server.port() },
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
            "conditions": { "ready": true, "serving": true, "terminating": false },
            "nodeName": place.node_name,
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
