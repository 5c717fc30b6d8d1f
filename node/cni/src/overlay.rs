//! The way between hosts: each node's share of the pod addresses, reached over VXLAN or by plain routes.
//!
//! A node's tunnel end has the first address of its pod CIDR, and a hardware address made from that. So
//! everything a peer must know follows from the Node object (its pod CIDR and its internal address), and
//! nothing is learned from packets:
//!
//! ```text
//! route       10.244.2.0/24 via 10.244.2.0 dev ferry-vx0 onlink
//! neighbour   10.244.2.0 is at 0a:58:0a:f4:02:00
//! forwarding  0a:58:0a:f4:02:00 is behind 192.0.2.12
//! ```

use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr},
};

use ferry_linux::net::{self, ForwardingEntry, MacAddress, Neighbour, Netlink, Route, Vxlan, names};
use ipnet::IpNet;
use k8s_openapi::api::core::v1::Node;

use crate::overlap::overlap;

/// The tunnel's header: outer Ethernet, IPv4, UDP and VXLAN.
pub const VXLAN_OVERHEAD: u32 = 50;

/// Marks our routes in the kernel; a number nobody has registered.
pub(crate) const PROTOCOL: u8 = 170;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// In UDP packets between hosts, whatever is between them.
    Vxlan { id: u32, port: u16 },
    /// Plain routes, where hosts share a segment.
    HostGateway,
}

/// A node as others see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    pub name: String,
    /// When its Node was made, in seconds: who was first has the better right to a range.
    pub created: i64,
    pub address: Ipv4Addr,
    pub pod_cidrs: Vec<IpNet>,
}

/// What the kernel should hold for the peers of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Entries {
    /// Pod CIDR and gateway.
    pub routes: BTreeSet<(IpNet, IpAddr)>,
    pub neighbours: BTreeSet<(IpAddr, MacAddress)>,
    pub forwarding: BTreeSet<(MacAddress, Ipv4Addr)>,
}

impl Host {
    /// `None` while the node has no pod CIDR or no internal IPv4 address.
    pub fn of(node: &Node) -> Option<Self> {
        let spec = node.spec.as_ref()?;
        let mut cidrs: Vec<&String> = spec.pod_cidrs.iter().flatten().collect();
        if cidrs.is_empty() {
            cidrs.extend(&spec.pod_cidr);
        }
        let pod_cidrs: Vec<IpNet> = cidrs.into_iter().filter_map(|cidr| cidr.parse().ok()).collect();
        let addresses = node.status.as_ref()?.addresses.as_ref()?;
        let internal = addresses.iter().filter(|address| address.type_ == "InternalIP");
        let address = internal.filter_map(|address| address.address.parse().ok()).next()?;
        let name = node.metadata.name.clone()?;
        let created = node.metadata.creation_timestamp.as_ref().map_or(0, |time| time.0.as_second());
        (!pod_cidrs.is_empty()).then_some(Self { name, created, address, pod_cidrs })
    }

    /// All nodes put each other in the same order.
    pub fn rank(&self) -> (i64, &str) {
        (self.created, &self.name)
    }

    /// The hardware address of the node's tunnel end.
    pub fn mac(&self) -> MacAddress {
        let v4 = self.pod_cidrs.iter().find_map(|cidr| match cidr.network() {
            IpAddr::V4(address) => Some(address),
            IpAddr::V6(_) => None,
        });
        MacAddress::from_ipv4(v4.unwrap_or(self.address))
    }
}

/// What `own` needs to reach the pods of all others. A peer whose pod CIDR overlaps with an older one's is left out:
/// traffic for the first must not be drawn away. That it is so is [`crate::overlap`]'s to say.
pub fn desired(hosts: &[Host], own: &Host, mode: Mode) -> Entries {
    let mut entries = Entries::default();
    let mut taken: Vec<IpNet> = own.pod_cidrs.clone();
    let mut peers: Vec<&Host> = hosts.iter().filter(|host| host.name != own.name).collect();
    peers.sort_by(|a, b| a.rank().cmp(&b.rank()));
    for peer in peers {
        let overlaps = |cidr: &IpNet| taken.iter().any(|other| overlap(cidr, other));
        if peer.pod_cidrs.iter().any(overlaps) {
            continue;
        }
        taken.extend(&peer.pod_cidrs);
        for cidr in &peer.pod_cidrs {
            match mode {
                Mode::Vxlan { .. } => {
                    entries.routes.insert((cidr.trunc(), cidr.network()));
                    entries.neighbours.insert((cidr.network(), peer.mac()));
                }
                Mode::HostGateway if cidr.addr().is_ipv4() => {
                    entries.routes.insert((cidr.trunc(), peer.address.into()));
                }
                // An IPv6 route needs an IPv6 gateway, which the node's address is not.
                Mode::HostGateway => {}
            }
        }
        if let Mode::Vxlan { .. } = mode {
            entries.forwarding.insert((peer.mac(), peer.address));
        }
    }
    entries
}

pub fn interface_name(cluster: &str) -> String {
    names::interface(cluster, "vx0")
}

/// Brings the kernel from what it holds to what it should, entry by entry: nothing that is right is
/// touched, so no packet is lost for another node's sake. Blocks.
pub fn apply(
    cluster: &str,
    cluster_cidrs: &[IpNet],
    own: &Host,
    mode: Mode,
    entries: &Entries,
) -> net::Result<()> {
    let mut netlink = Netlink::open()?;
    match mode {
        Mode::Vxlan { id, port } => {
            let name = interface_name(cluster);
            let link = ensure_vxlan(&mut netlink, &name, own, &Vxlan { id, local: Some(own.address), port })?;
            apply_forwarding(&mut netlink, link, entries)?;
            apply_neighbours(&mut netlink, link, entries)?;
            let wanted = entries.routes.iter().map(|(cidr, gateway)| Route {
                on_link: true,
                protocol: PROTOCOL,
                ..Route::new(*cidr, Some(*gateway), link)
            });
            apply_routes(&mut netlink, wanted.collect(), |route| route.link == link)
        }
        Mode::HostGateway => {
            let link = link_of_address(&mut netlink, own.address)?;
            let wanted = entries.routes.iter().map(|(cidr, gateway)| Route {
                protocol: PROTOCOL,
                ..Route::new(*cidr, Some(*gateway), link)
            });
            // Ours by their protocol and by being to pods of this cluster: another cluster on this machine
            // has other pods.
            let is_ours = |route: &Route| {
                route.protocol == PROTOCOL
                    && cluster_cidrs.iter().any(|cidr| cidr.contains(&route.destination))
            };
            apply_routes(&mut netlink, wanted.collect(), is_ours)
        }
    }
}

/// Takes the tunnel and all routes to other nodes away.
pub fn remove(cluster: &str, cluster_cidrs: &[IpNet]) -> net::Result<()> {
    let mut netlink = Netlink::open()?;
    netlink.delete_link(&interface_name(cluster))?;
    let is_ours = |route: &Route| {
        route.protocol == PROTOCOL && cluster_cidrs.iter().any(|cidr| cidr.contains(&route.destination))
    };
    apply_routes(&mut netlink, Vec::new(), is_ours)
}

fn ensure_vxlan(netlink: &mut Netlink, name: &str, own: &Host, wanted: &Vxlan) -> net::Result<u32> {
    if let Some(link) = netlink.link(name)? {
        if link.vxlan.as_ref() == Some(wanted) && link.mac == Some(own.mac()) {
            return Ok(link.index);
        }
        // The node's address changed: a tunnel's end cannot be moved.
        netlink.delete_link(name)?;
    }
    let below = link_of_address(netlink, own.address)?;
    let mtu = netlink.links()?.into_iter().find(|link| link.index == below).map(|link| link.mtu);
    let mtu = mtu.map(|mtu| mtu.saturating_sub(VXLAN_OVERHEAD));
    netlink.add_vxlan(name, wanted, own.mac(), mtu)?;
    let link = netlink.link_index(name)?;
    for cidr in &own.pod_cidrs {
        let end = IpNet::new(cidr.network(), cidr.max_prefix_len()).expect("the greatest prefix length fits");
        netlink.add_address(link, end)?;
    }
    Ok(link)
}

fn link_of_address(netlink: &mut Netlink, address: Ipv4Addr) -> net::Result<u32> {
    let all = netlink.addresses()?;
    let found = all.iter().find(|candidate| candidate.net.addr() == IpAddr::V4(address));
    found.map(|found| found.link).ok_or_else(|| net::Error {
        attempt: format!("looking for the interface with the node's address {address}"),
        source: std::io::Error::from(std::io::ErrorKind::AddrNotAvailable),
    })
}

fn apply_forwarding(netlink: &mut Netlink, link: u32, entries: &Entries) -> net::Result<()> {
    let held = netlink.forwarding_entries(link)?;
    for entry in &held {
        if !entries.forwarding.contains(&(entry.mac, entry.host)) {
            netlink.delete_forwarding(entry)?;
        }
    }
    for (mac, host) in &entries.forwarding {
        let entry = ForwardingEntry { link, mac: *mac, host: *host };
        if !held.contains(&entry) {
            netlink.replace_forwarding(&entry)?;
        }
    }
    Ok(())
}

fn apply_neighbours(netlink: &mut Netlink, link: u32, entries: &Entries) -> net::Result<()> {
    let held = netlink.neighbours(link)?;
    for neighbour in &held {
        if !entries.neighbours.contains(&(neighbour.address, neighbour.mac)) {
            netlink.delete_neighbour(neighbour)?;
        }
    }
    for (address, mac) in &entries.neighbours {
        let neighbour = Neighbour { link, address: *address, mac: *mac };
        if !held.contains(&neighbour) {
            netlink.replace_neighbour(&neighbour)?;
        }
    }
    Ok(())
}

fn apply_routes(
    netlink: &mut Netlink,
    wanted: Vec<Route>,
    is_ours: impl Fn(&Route) -> bool,
) -> net::Result<()> {
    let same =
        |a: &Route, b: &Route| a.destination == b.destination && a.gateway == b.gateway && a.link == b.link;
    let held: Vec<Route> =
        netlink.routes()?.into_iter().filter(|r| r.gateway.is_some() && is_ours(r)).collect();
    for route in &held {
        if !wanted.iter().any(|w| w.destination == route.destination) {
            netlink.delete_route(route)?;
        }
    }
    for route in &wanted {
        if !held.iter().any(|h| same(h, route)) {
            netlink.replace_route(route)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(name: &str, last: u8, cidr: &str) -> Host {
        Host {
            name: name.into(),
            created: 0,
            address: Ipv4Addr::new(192, 0, 2, last),
            pod_cidrs: vec![cidr.parse().unwrap()],
        }
    }

    #[test]
    fn peers_follow_from_their_nodes() {
        let own = host("a", 1, "10.244.0.0/24");
        let peer = host("b", 2, "10.244.1.0/24");
        let all = [own.clone(), peer.clone()];
        let vxlan = desired(&all, &own, Mode::Vxlan { id: 1, port: 8472 });
        let cidr: IpNet = "10.244.1.0/24".parse().unwrap();
        let end: IpAddr = "10.244.1.0".parse().unwrap();
        assert_eq!(vxlan.routes, BTreeSet::from([(cidr, end)]));
        assert_eq!(vxlan.neighbours, BTreeSet::from([(end, peer.mac())]));
        assert_eq!(vxlan.forwarding, BTreeSet::from([(peer.mac(), peer.address)]));
        assert_eq!(peer.mac().to_string(), "0a:58:0a:f4:01:00");
        let plain = desired(&all, &own, Mode::HostGateway);
        assert_eq!(plain.routes, BTreeSet::from([(cidr, peer.address.into())]));
        assert!(plain.neighbours.is_empty() && plain.forwarding.is_empty());
    }

    #[test]
    fn an_overlapping_cidr_draws_no_traffic_away() {
        let own = host("a", 1, "10.244.0.0/24");
        let all = [
            own.clone(),
            host("b", 2, "10.244.1.0/24"),
            host("c", 3, "10.244.0.0/16"),
            host("d", 4, "10.244.1.0/25"),
        ];
        let entries = desired(&all, &own, Mode::HostGateway);
        assert_eq!(entries.routes.len(), 1);
    }

    #[test]
    fn a_node_without_a_cidr_or_an_address_is_no_host_yet() {
        let node = |value| serde_json::from_value::<Node>(value).unwrap();
        let addresses = serde_json::json!([{ "type": "Hostname", "address": "n" }, { "type": "InternalIP", "address": "192.0.2.1" }]);
        let metadata = serde_json::json!({ "name": "n" });
        let full = node(
            serde_json::json!({ "metadata": metadata, "spec": { "podCIDR": "10.1.0.0/24" }, "status": { "addresses": addresses } }),
        );
        assert_eq!(Host::of(&full).unwrap().address.to_string(), "192.0.2.1");
        assert!(
            Host::of(&node(
                serde_json::json!({ "metadata": metadata, "spec": {}, "status": { "addresses": addresses } })
            ))
            .is_none()
        );
        assert!(
            Host::of(&node(
                serde_json::json!({ "metadata": metadata, "spec": { "podCIDR": "10.1.0.0/24" } })
            ))
            .is_none()
        );
    }
}
