//! Which endpoints of a service port traffic may go to, seen from this node. Pure.

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
};

use k8s_openapi::api::discovery::v1::{Endpoint as SliceEndpoint, EndpointSlice};

use crate::service::is_left_alone;
use crate::{Family, Node, Protocol};

/// One address and port behind a service port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    pub address: SocketAddr,
    pub ready: bool,
    pub serving: bool,
    pub terminating: bool,
    /// On this node.
    pub local: bool,
    pub zone_hints: Vec<String>,
    pub node_hints: Vec<String>,
}

/// What is usable of a service port's endpoints.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Usable {
    /// For the `Cluster` traffic policy, with topology hints followed.
    pub cluster: Vec<SocketAddr>,
    /// For the `Local` traffic policy.
    pub local: Vec<SocketAddr>,
    /// Those of this node are ready; else they serve on their way out, and load balancers should go elsewhere.
    pub local_ready: bool,
    /// Some endpoint anywhere takes traffic, though perhaps none that this node may use.
    pub anywhere: bool,
}

/// The endpoints of one port of a service, in order of address, each once.
pub fn of_port(
    slices: &[impl AsRef<EndpointSlice>],
    port_name: &str,
    protocol: Protocol,
    family: Family,
    node: &Node,
) -> Vec<Endpoint> {
    let mut endpoints: BTreeMap<SocketAddr, Endpoint> = BTreeMap::new();
    for slice in slices.iter().map(AsRef::as_ref) {
        if slice.address_type != family.address_type() || is_left_alone(&slice.metadata) {
            continue;
        }
        let ports = slice.ports.iter().flatten().filter(|port| {
            port.name.as_deref().unwrap_or("") == port_name
                && Protocol::of(port.protocol.as_deref()) == Some(protocol)
        });
        for port in ports.filter_map(|port| u16::try_from(port.port?).ok()) {
            for endpoint in slice.endpoints.iter().flatten() {
                let Some(endpoint) = read(endpoint, port, family, node) else { continue };
                // While an endpoint moves from slice to slice it may be in both: the ready word counts.
                let known = endpoints.get(&endpoint.address).is_some_and(|known| known.ready);
                if !known {
                    endpoints.insert(endpoint.address, endpoint);
                }
            }
        }
    }
    endpoints.into_values().collect()
}

/// Ready endpoints, or, where none is ready, those that still serve while they terminate; separately
/// for each traffic policy (KEP-1669).
pub fn usable(endpoints: &[Endpoint], node: &Node) -> Usable {
    let serves_last = |endpoint: &&Endpoint| endpoint.serving && endpoint.terminating;
    let addresses = |wanted: &dyn Fn(&Endpoint) -> bool| -> Vec<SocketAddr> {
        endpoints.iter().filter(|endpoint| wanted(endpoint)).map(|endpoint| endpoint.address).collect()
    };
    let topology = Topology::of(endpoints, node);
    let mut cluster = addresses(&|endpoint| endpoint.ready && topology.takes(endpoint, node));
    if cluster.is_empty() {
        cluster = addresses(&|endpoint| serves_last(&endpoint));
    }
    let mut local = addresses(&|endpoint| endpoint.local && endpoint.ready);
    let local_ready = !local.is_empty();
    if !local_ready {
        local = addresses(&|endpoint| endpoint.local && serves_last(&endpoint));
    }
    let anywhere = endpoints.iter().any(|endpoint| endpoint.ready || serves_last(&endpoint));
    Usable { cluster, local, local_ready, anywhere }
}

/// Whose hints are followed. Hints count only when every ready endpoint has one and some endpoint is
/// meant for us: else a partial or stale set of hints would leave this node without endpoints.
#[derive(Debug, PartialEq, Eq)]
enum Topology {
    Anywhere,
    SameZone,
    SameNode,
}

impl Topology {
    fn of(endpoints: &[Endpoint], node: &Node) -> Self {
        let ready = || endpoints.iter().filter(|endpoint| endpoint.ready);
        let followed = |hints: fn(&Endpoint) -> &[String], own: &str| {
            ready().all(|endpoint| !hints(endpoint).is_empty())
                && ready().any(|endpoint| hints(endpoint).iter().any(|hint| hint == own))
        };
        if followed(|endpoint| &endpoint.node_hints, &node.name) {
            Topology::SameNode
        } else if node.zone.as_deref().is_some_and(|zone| followed(|endpoint| &endpoint.zone_hints, zone)) {
            Topology::SameZone
        } else {
            Topology::Anywhere
        }
    }

    fn takes(&self, endpoint: &Endpoint, node: &Node) -> bool {
        match self {
            Topology::Anywhere => true,
            Topology::SameNode => endpoint.node_hints.contains(&node.name),
            Topology::SameZone => endpoint.zone_hints.iter().any(|hint| Some(hint) == node.zone.as_ref()),
        }
    }
}

fn read(endpoint: &SliceEndpoint, port: u16, family: Family, node: &Node) -> Option<Endpoint> {
    // All addresses of an endpoint are the same thing; the API promises no more than the first.
    let address: IpAddr = endpoint.addresses.first()?.parse().ok()?;
    if Family::of(address) != family {
        return None;
    }
    let conditions = endpoint.conditions.as_ref();
    // Unknown readiness is to be read as ready, unknown serving as readiness.
    let ready = conditions.and_then(|c| c.ready).unwrap_or(true);
    let hints = endpoint.hints.as_ref();
    Some(Endpoint {
        address: SocketAddr::new(address, port),
        ready,
        serving: conditions.and_then(|c| c.serving).unwrap_or(ready),
        terminating: conditions.and_then(|c| c.terminating).unwrap_or(false),
        local: endpoint.node_name.as_deref() == Some(&node.name),
        zone_hints: hints
            .and_then(|h| h.for_zones.as_ref())
            .into_iter()
            .flatten()
            .map(|z| z.name.clone())
            .collect(),
        node_hints: hints
            .and_then(|h| h.for_nodes.as_ref())
            .into_iter()
            .flatten()
            .map(|n| n.name.clone())
            .collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `1:ready`, `2:local,terminating`, `3:ready,zone=a`: the last byte of an address and its state.
    fn endpoint(text: &str) -> Endpoint {
        let (last, words) = text.split_once(':').unwrap();
        let words: Vec<&str> = words.split(',').collect();
        let hints =
            |name: &str| words.iter().filter_map(|w| w.strip_prefix(name)).map(String::from).collect();
        Endpoint {
            address: format!("10.0.0.{last}:80").parse().unwrap(),
            ready: words.contains(&"ready"),
            serving: words.contains(&"ready") || words.contains(&"serving"),
            terminating: words.contains(&"terminating"),
            local: words.contains(&"local"),
            zone_hints: hints("zone="),
            node_hints: hints("node="),
        }
    }

    fn check(endpoints: &[&str], cluster: &[u8], local: &[u8], anywhere: bool) {
        let node = Node { name: "n1".into(), zone: Some("a".into()), ..Node::default() };
        let all: Vec<Endpoint> = endpoints.iter().map(|text| endpoint(text)).collect();
        let found = usable(&all, &node);
        let last = |addresses: &[SocketAddr]| -> Vec<u8> {
            addresses.iter().map(|a| if let IpAddr::V4(ip) = a.ip() { ip.octets()[3] } else { 0 }).collect()
        };
        assert_eq!(
            (last(&found.cluster), last(&found.local), found.anywhere),
            (cluster.into(), local.into(), anywhere),
            "{endpoints:?}"
        );
    }

    #[test]
    fn terminating_endpoints_serve_only_when_none_is_ready() {
        check(&[], &[], &[], false);
        check(&["1:ready", "2:notready"], &[1], &[], true);
        check(&["1:ready", "2:serving,terminating"], &[1], &[], true);
        check(&["1:terminating", "2:serving,terminating"], &[2], &[], true);
        check(&["1:terminating"], &[], &[], false);
        check(&["1:ready", "2:local,serving,terminating"], &[1], &[2], true);
        check(&["1:ready", "2:local,ready", "3:local,serving,terminating"], &[1, 2], &[2], true);
    }

    #[test]
    fn a_node_whose_endpoints_all_terminate_is_not_ready_for_load_balancers() {
        let check = |endpoints: &[&str], ready| {
            let all: Vec<Endpoint> = endpoints.iter().map(|text| endpoint(text)).collect();
            assert_eq!(usable(&all, &Node::default()).local_ready, ready, "{endpoints:?}");
        };
        check(&["1:ready"], false);
        check(&["1:local,serving,terminating"], false);
        check(&["1:local,serving,terminating", "2:local,ready"], true);
    }

    #[test]
    fn hints_count_only_when_complete_and_for_us() {
        check(&["1:ready,zone=a", "2:ready,zone=b"], &[1], &[], true);
        check(&["1:ready,zone=a", "2:ready"], &[1, 2], &[], true);
        check(&["1:ready,zone=b", "2:ready,zone=c"], &[1, 2], &[], true);
        check(&["1:ready,zone=a,node=n2", "2:ready,zone=a,node=n1"], &[2], &[], true);
        check(&["1:ready,zone=a,node=n2", "2:ready,zone=b,node=n3"], &[1], &[], true);
        check(&["1:notready,zone=a", "2:serving,terminating,zone=b"], &[2], &[], true);
    }
}
