//! What a Service asks of this node, in words no rule tool knows: addresses and ports, and which
//! endpoints traffic to them goes to. Pure; both rule backends read this.

use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;
use k8s_openapi::api::{
    core::v1::{LoadBalancerIngress, Service},
    discovery::v1::EndpointSlice,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::{
    Family, Node, Protocol,
    endpoints::{self, Usable},
};

/// The default of `sessionAffinityConfig.clientIP.timeoutSeconds`.
const AFFINITY_SECONDS: u32 = 10_800;

/// One port of a service, for one address family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServicePort {
    /// `namespace/name:port`, as it is shown to people.
    pub name: String,
    pub protocol: Protocol,
    pub endpoints: Usable,
    /// A client stays with its endpoint for so many seconds.
    pub affinity: Option<u32>,
    pub frontends: Vec<Frontend>,
}

/// Where traffic for a service port arrives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frontend {
    pub at: At,
    pub port: u16,
    pub policy: Policy,
    /// If not empty, only these sources may come in.
    pub sources: Vec<IpNet>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum At {
    ClusterIp(IpAddr),
    /// An external IP, or a load balancer's.
    ExternalIp(IpAddr),
    /// This node's own addresses.
    NodePort,
}

/// Which endpoints, and whether the client's address can stay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// From inside: any endpoint; the address stays.
    InternalCluster,
    /// From inside: this node's endpoints or none.
    InternalLocal,
    /// From outside: any endpoint; the answer must come back this way, so the node's address is used.
    ExternalCluster,
    /// From outside: this node's endpoints or none; the address stays. From inside: as if internal.
    ExternalLocal,
}

/// What becomes of traffic to a frontend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict<'a> {
    To(&'a [SocketAddr]),
    /// As `To`, with the source address of the node.
    Masqueraded(&'a [SocketAddr]),
    /// Inside traffic to the first, outside traffic to the second (nowhere, if that is empty).
    Split {
        inside: &'a [SocketAddr],
        outside: &'a [SocketAddr],
    },
    /// Nothing takes it anywhere: say so to the client.
    Reject,
    /// Others take it, this node must not: a load balancer will learn it from the silence.
    Drop,
}

impl ServicePort {
    pub fn verdict(&self, frontend: &Frontend) -> Verdict<'_> {
        let Usable { cluster, local, anywhere, .. } = &self.endpoints;
        if !anywhere {
            return Verdict::Reject;
        }
        match frontend.policy {
            Policy::InternalCluster if cluster.is_empty() => Verdict::Reject,
            Policy::ExternalCluster if cluster.is_empty() => Verdict::Reject,
            Policy::InternalCluster => Verdict::To(cluster),
            Policy::ExternalCluster => Verdict::Masqueraded(cluster),
            Policy::InternalLocal if local.is_empty() => Verdict::Drop,
            Policy::InternalLocal => Verdict::To(local),
            Policy::ExternalLocal => Verdict::Split { inside: cluster, outside: local },
        }
    }
}

/// All ports of a service in one family. Empty for a service that has no address to send to (headless,
/// ExternalName), or that is labelled as one which is headless or which another proxy cares for.
pub fn ports(
    service: &Service,
    slices: &[impl AsRef<EndpointSlice>],
    node: &Node,
    family: Family,
) -> Vec<ServicePort> {
    let Some(spec) = &service.spec else { return Vec::new() };
    let headless = matches!(spec.cluster_ip.as_deref(), None | Some("" | "None"));
    if headless || spec.type_.as_deref() == Some("ExternalName") || is_left_alone(&service.metadata) {
        return Vec::new();
    }
    let affinity = (spec.session_affinity.as_deref() == Some("ClientIP")).then(|| {
        let config = spec.session_affinity_config.as_ref().and_then(|config| config.client_ip.as_ref());
        let seconds = config.and_then(|client_ip| client_ip.timeout_seconds);
        seconds.and_then(|seconds| u32::try_from(seconds).ok()).unwrap_or(AFFINITY_SECONDS)
    });
    let namespace = service.metadata.namespace.as_deref().unwrap_or("");
    let name = service.metadata.name.as_deref().unwrap_or("");
    let addresses = Addresses::of(service, family);

    let mut ports = Vec::new();
    for port in spec.ports.iter().flatten() {
        let (Some(protocol), Ok(number)) = (Protocol::of(port.protocol.as_deref()), u16::try_from(port.port))
        else {
            continue;
        };
        let port_name = port.name.as_deref().unwrap_or("");
        let node_port = port.node_port.and_then(|port| u16::try_from(port).ok()).filter(|port| *port != 0);
        let shown = if port_name.is_empty() { String::new() } else { format!(":{port_name}") };
        let all = endpoints::of_port(slices, port_name, protocol, family, node);
        ports.push(ServicePort {
            name: format!("{namespace}/{name}{shown}"),
            protocol,
            endpoints: endpoints::usable(&all, node),
            affinity,
            frontends: addresses.frontends((number, protocol), node_port, node),
        });
    }
    ports
}

/// Whether a Service or a slice is labelled as headless, or as one that another proxy cares for.
pub fn is_left_alone(metadata: &ObjectMeta) -> bool {
    const LABELS: [&str; 2] = ["service.kubernetes.io/service-proxy-name", "service.kubernetes.io/headless"];
    metadata.labels.as_ref().is_some_and(|labels| LABELS.iter().any(|label| labels.contains_key(*label)))
}

/// The number of this node's ready endpoints behind any port, for health checks of load balancers.
pub fn local_endpoints(ports: &[ServicePort]) -> usize {
    let ready = ports.iter().filter(|port| port.endpoints.local_ready);
    let mut addresses: Vec<IpAddr> =
        ready.flat_map(|port| port.endpoints.local.iter().map(SocketAddr::ip)).collect();
    addresses.sort_unstable();
    addresses.dedup();
    addresses.len()
}

/// A service's addresses of one family, and how each is to be treated.
struct Addresses {
    cluster: Vec<IpAddr>,
    external: Vec<IpAddr>,
    load_balancer: Vec<Balanced>,
    sources: Vec<IpNet>,
    internal_policy: Policy,
    external_policy: Policy,
    takes_node_ports: bool,
}

/// An address of a load balancer, and the ports its status says it cannot have.
struct Balanced {
    ip: IpAddr,
    refused: Vec<(u16, Protocol)>,
}

impl Balanced {
    fn of(ingress: &LoadBalancerIngress) -> Option<Self> {
        let refused = ingress.ports.iter().flatten().filter(|port| port.error.is_some());
        Some(Self {
            ip: ingress.ip.as_ref()?.parse().ok()?,
            refused: refused
                .filter_map(|port| {
                    Some((u16::try_from(port.port).ok()?, Protocol::of(Some(&port.protocol))?))
                })
                .collect(),
        })
    }

    /// What a host listens on itself is left to it: on this node at once, on others when they have said so.
    fn takes(&self, port: u16, protocol: Protocol, node: &Node) -> bool {
        let is_hosts = node.all_addresses.contains(&self.ip) && node.host_ports.has(protocol, self.ip, port);
        !is_hosts && !self.refused.contains(&(port, protocol))
    }
}

impl Addresses {
    fn of(service: &Service, family: Family) -> Self {
        let spec = service.spec.as_ref().expect("the caller has seen the spec");
        let of_family = |texts: &mut dyn Iterator<Item = &String>| -> Vec<IpAddr> {
            let addresses = texts.filter_map(|text| text.parse().ok());
            addresses.filter(|address| Family::of(*address) == family).collect()
        };
        // `clusterIPs` is what counts; `clusterIP` alone comes from clients older than it.
        let cluster = match &spec.cluster_ips {
            Some(ips) if !ips.is_empty() => of_family(&mut ips.iter()),
            _ => of_family(&mut spec.cluster_ip.iter()),
        };
        let is_load_balancer = spec.type_.as_deref() == Some("LoadBalancer");
        let ingress = service.status.as_ref().and_then(|status| status.load_balancer.as_ref());
        let ingress = ingress.and_then(|lb| lb.ingress.as_ref()).into_iter().flatten();
        // With `Proxy` the balancer talks to the node ports: its address is not ours to take.
        let load_balancer = ingress
            .filter(|ingress| is_load_balancer && ingress.ip_mode.as_deref() != Some("Proxy"))
            .filter_map(Balanced::of)
            .filter(|balanced| Family::of(balanced.ip) == family)
            .collect();
        let sources: Vec<IpNet> = spec
            .load_balancer_source_ranges
            .iter()
            .flatten()
            .filter_map(|range| range.trim().parse().ok())
            .filter(|range: &IpNet| Family::of(range.addr()) == family)
            .map(|range| range.trunc())
            .collect();
        // Ranges that overlap are one to a packet, and the kernel's sets refuse them.
        let sources = IpNet::aggregate(&sources);
        let all_sources = sources.iter().any(|range| range.prefix_len() == 0);
        let is_local = |policy: &Option<String>| policy.as_deref() == Some("Local");
        Self {
            cluster,
            external: of_family(&mut spec.external_ips.iter().flatten()),
            load_balancer,
            sources: if all_sources { Vec::new() } else { sources },
            internal_policy: if is_local(&spec.internal_traffic_policy) {
                Policy::InternalLocal
            } else {
                Policy::InternalCluster
            },
            external_policy: if is_local(&spec.external_traffic_policy) {
                Policy::ExternalLocal
            } else {
                Policy::ExternalCluster
            },
            takes_node_ports: matches!(spec.type_.as_deref(), Some("NodePort" | "LoadBalancer")),
        }
    }

    fn frontends(
        &self,
        (port, protocol): (u16, Protocol),
        node_port: Option<u16>,
        node: &Node,
    ) -> Vec<Frontend> {
        let plain = |at, port, policy| Frontend { at, port, policy, sources: Vec::new() };
        let mut frontends = Vec::new();
        for ip in &self.cluster {
            frontends.push(plain(At::ClusterIp(*ip), port, self.internal_policy));
        }
        for ip in &self.external {
            frontends.push(plain(At::ExternalIp(*ip), port, self.external_policy));
        }
        let balanced = self.load_balancer.iter().filter(|balanced| balanced.takes(port, protocol, node));
        for ip in balanced.map(|balanced| balanced.ip).filter(|ip| !self.external.contains(ip)) {
            let at = At::ExternalIp(ip);
            frontends
                .push(Frontend { sources: self.sources.clone(), ..plain(at, port, self.external_policy) });
        }
        // Only where the family has an address: an IPv4 service has no node port on IPv6.
        if let Some(node_port) = node_port
            && self.takes_node_ports
            && !self.cluster.is_empty()
        {
            frontends.push(plain(At::NodePort, node_port, self.external_policy));
        }
        frontends
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;
    use crate::test_objects::{service, slice};

    #[test]
    fn services_labelled_headless_or_for_another_proxy_are_ignored() {
        let mut slices = [slice("web", 8080, &[json!({"addresses": ["10.244.0.1"]})])];
        let spec = json!({"clusterIP": "10.96.0.1", "clusterIPs": ["10.96.0.1"],
            "ports": [{"name": "http", "port": 80, "protocol": "TCP"}]});
        let mut own = service("web", spec);
        let labelled = |label: &str| Some([(label.to_owned(), String::new())].into());
        for (label, is_served) in [
            ("app", true),
            ("service.kubernetes.io/headless", false),
            ("service.kubernetes.io/service-proxy-name", false),
        ] {
            own.metadata.labels = labelled(label);
            assert_eq!(ports(&own, &slices, &Node::default(), Family::V4).len(), usize::from(is_served));
        }
        own.metadata.labels = None;
        for (label, endpoints) in [("app", 1), ("service.kubernetes.io/headless", 0)] {
            Arc::make_mut(&mut slices[0]).metadata.labels = labelled(label);
            let ports = ports(&own, &slices, &Node::default(), Family::V4);
            assert_eq!(ports[0].endpoints.cluster.len(), endpoints, "{label}");
        }
    }
}
