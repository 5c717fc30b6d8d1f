//! Address ranges that meet where they must not: a node's pods with another node's, with the services, with what the
//! host itself has. Somebody's traffic would end up elsewhere, and nothing would say why; so it is said, and a node
//! whose range is not its own takes no pods. Pure, but for [`HostNetworks::read`] and [`tell`].

use std::{fmt, net::IpAddr};

use ferry_client::{
    Api, Client,
    events::{EventType, Recorder},
};
use ferry_linux::net::{self, Netlink};
use ipnet::IpNet;
use k8s_openapi::api::core::v1::Node;
use kube::api::{Patch, PatchParams};
use serde_json::json;

use crate::{
    install,
    overlay::{self, Host},
};

/// On a Node: which of its ranges overlap with what, for people.
pub const ANNOTATION: &str = "ferry.dev/overlapping-cidrs";

/// Two ranges that meet, each with what it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Overlap {
    pub one: String,
    pub other: String,
}

impl fmt::Display for Overlap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} overlaps with {}", self.one, self.other)
    }
}

pub fn overlap(one: &IpNet, other: &IpNet) -> bool {
    one.contains(&other.network()) || other.contains(&one.network())
}

/// What a host has besides the cluster: its addresses, and where it has ways to, each with its interface.
#[derive(Clone, Debug, Default)]
pub struct HostNetworks {
    addresses: Vec<(IpAddr, String)>,
    routes: Vec<(IpNet, String)>,
}

impl HostNetworks {
    /// Without what this cluster made. Blocks.
    pub fn read(cluster: &str) -> net::Result<Self> {
        let mut netlink = Netlink::open()?;
        let own = [install::bridge_name(cluster), overlay::interface_name(cluster)];
        let links = netlink.links()?;
        let name = |index: u32| {
            let link = links.iter().find(|link| link.index == index)?;
            (!own.contains(&link.name)).then(|| link.name.clone())
        };
        let addresses = netlink.addresses()?.into_iter();
        let routes = netlink.routes()?.into_iter();
        Ok(Self {
            addresses: addresses.filter_map(|a| Some((a.net.addr(), name(a.link)?))).collect(),
            routes: routes
                .filter(|route| route.protocol != overlay::PROTOCOL && route.destination.prefix_len() > 0)
                .filter_map(|route| Some((route.destination, name(route.link)?)))
                .collect(),
        })
    }

    /// What of the host lies in a range. A way to more than the range is no matter: the narrower one is taken.
    pub fn within(&self, range: &IpNet) -> Option<String> {
        let address = self.addresses.iter().find(|(address, _)| range.contains(address));
        let route = self.routes.iter().find(|(net, _)| range.contains(net));
        let address = address.map(|(address, link)| format!("this host's address {address} ({link})"));
        address.or_else(|| route.map(|(net, link)| format!("this host's way to {net} ({link})")))
    }
}

/// What is wrong with a node's ranges. The older of two nodes has its range rightly, but both say it.
pub fn overlaps(own: &Host, hosts: &[Host], services: &[IpNet], host: &HostNetworks) -> Vec<Overlap> {
    let mut found = Vec::new();
    for cidr in &own.pod_cidrs {
        let mut add = |other: String| found.push(Overlap { one: format!("the pod CIDR {cidr}"), other });
        for (peer, theirs) in peers(own, hosts).filter(|(_, theirs)| overlap(cidr, theirs)) {
            add(format!("{theirs} of node {}", peer.name));
        }
        for services in services.iter().filter(|services| overlap(cidr, services)) {
            add(format!("the services' {services}"));
        }
        host.within(cidr).into_iter().for_each(add);
    }
    for services in services {
        if let Some(other) = host.within(services) {
            found.push(Overlap { one: format!("the services' {services}"), other });
        }
    }
    found
}

/// Whether pods may have a node's addresses: nobody has a better right to them.
pub fn is_usable(own: &Host, hosts: &[Host], services: &[IpNet], host: &HostNetworks) -> bool {
    let older = |peer: &Host| peer.rank() < own.rank();
    own.pod_cidrs.iter().all(|cidr| {
        !peers(own, hosts).any(|(peer, theirs)| older(peer) && overlap(cidr, theirs))
            && !services.iter().any(|services| overlap(cidr, services))
            && host.within(cidr).is_none()
    })
}

fn peers<'a>(own: &'a Host, hosts: &'a [Host]) -> impl Iterator<Item = (&'a Host, &'a IpNet)> {
    let peers = hosts.iter().filter(|host| host.name != own.name);
    peers.flat_map(|peer| peer.pod_cidrs.iter().map(move |cidr| (peer, cidr)))
}

/// What a node has said.
pub fn told(node: &Node) -> Option<&str> {
    node.metadata.annotations.as_ref()?.get(ANNOTATION).map(String::as_str)
}

/// Says it where people look: the log, an event, the Node, from which `ferry status` has it. Nothing where it was
/// said before.
pub async fn tell(overlaps: &[Overlap], node: &Node, client: &Client, recorder: &Recorder) {
    let texts: Vec<String> = overlaps.iter().map(ToString::to_string).collect();
    let text = Some(texts.join("; ")).filter(|text| !text.is_empty());
    if text.as_deref() == told(node) {
        return;
    }
    if let Some(text) = &text {
        tracing::error!("{text}");
        recorder.event(node, EventType::Warning, "OverlappingCIDR", "Network", text.clone());
    }
    let name = node.metadata.name.as_deref().unwrap_or_default();
    let mut span = ferry_trace::span("cni.tell");
    span.object("nodes", "", name);
    let patch = json!({ "metadata": { "annotations": { ANNOTATION: text } } });
    let nodes: Api<Node> = Api::all(client.clone());
    let written = span.in_scope(nodes.patch(name, &PatchParams::default(), &Patch::Merge(patch))).await;
    if let Err(error) = written {
        tracing::warn!(%error, "overlapping ranges cannot be written to the node");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(name: &str, created: i64, cidr: &str) -> Host {
        let address = std::net::Ipv4Addr::new(192, 0, 2, 1);
        Host { name: name.into(), created, address, pod_cidrs: vec![cidr.parse().unwrap()] }
    }

    fn networks(address: &str, route: &str) -> HostNetworks {
        HostNetworks {
            addresses: vec![(address.parse().unwrap(), "eth0".into())],
            routes: vec![(route.parse().unwrap(), "tun0".into())],
        }
    }

    /// The node `own`, made second, among others.
    fn check(others: &[Host], services: &str, networks: &HostNetworks, said: &[&str], usable: bool) {
        let own = host("own", 2, "10.244.0.0/24");
        let services = [services.parse().unwrap()];
        let found = overlaps(&own, others, &services, networks);
        let found: Vec<String> = found.iter().map(ToString::to_string).collect();
        assert_eq!(found, said);
        assert_eq!(is_usable(&own, others, &services, networks), usable, "{said:?}");
    }

    #[test]
    fn overlapping_pod_cidrs_are_reported_and_the_older_node_keeps_its() {
        let free = networks("192.0.2.1", "172.16.0.0/12");
        let peers = |created| [host("own", 2, "10.244.0.0/24"), host("b", created, "10.244.0.0/16")];
        check(
            &[host("own", 2, "10.244.0.0/24"), host("b", 1, "10.244.1.0/24")],
            "10.96.0.0/16",
            &free,
            &[],
            true,
        );
        let said = "the pod CIDR 10.244.0.0/24 overlaps with 10.244.0.0/16 of node b";
        check(&peers(1), "10.96.0.0/16", &free, &[said], false);
        check(&peers(3), "10.96.0.0/16", &free, &[said], true);
        let said = "the pod CIDR 10.244.0.0/24 overlaps with the services' 10.244.0.0/20";
        check(&[], "10.244.0.0/20", &free, &[said], false);
    }

    #[test]
    fn pod_cidrs_that_overlap_with_the_host_are_reported() {
        let said = "the pod CIDR 10.244.0.0/24 overlaps with this host's address 10.244.0.7 (eth0)";
        check(&[], "10.96.0.0/16", &networks("10.244.0.7", "10.244.0.0/24"), &[said], false);
        let said = "the pod CIDR 10.244.0.0/24 overlaps with this host's way to 10.244.0.128/25 (tun0)";
        check(&[], "10.96.0.0/16", &networks("192.0.2.1", "10.244.0.128/25"), &[said], false);
        // By a gateway of the firm's, as to much else.
        check(&[], "10.96.0.0/16", &networks("192.0.2.1", "10.0.0.0/8"), &[], true);
        let said = "the services' 10.96.0.0/16 overlaps with this host's address 10.96.3.3 (eth0)";
        check(&[], "10.96.0.0/16", &networks("10.96.3.3", "172.16.0.0/12"), &[said], true);
    }
}
