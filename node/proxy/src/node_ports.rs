//! On which of a node's addresses its node ports are open. Pure.

use std::net::{IpAddr, Ipv4Addr};

use ipnet::IpNet;
use k8s_openapi::api::core::v1::Node;

use crate::{Family, Mode};

/// What the user asks for, in the words of `--nodeport-addresses`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodePortAddresses {
    /// Those that the Node object names.
    Primary,
    /// Those in these networks; all, where a family has none.
    In(Vec<IpNet>),
}

impl NodePortAddresses {
    /// With maps, only where the node is known to be; with iptables everywhere, as it always was.
    pub fn default_of(mode: Mode) -> Self {
        match mode {
            Mode::Nftables => NodePortAddresses::Primary,
            Mode::Iptables => NodePortAddresses::In(Vec::new()),
        }
    }
}

/// The same, with the node's own addresses put in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodePorts {
    /// `None`: on all addresses the node has.
    at: Option<Vec<IpNet>>,
    loopback: bool,
}

impl NodePorts {
    /// `loopback`: on loopback addresses too, if they are among those asked for.
    pub fn of(asked: &NodePortAddresses, node: &[IpAddr], loopback: bool) -> Self {
        let at = match asked {
            NodePortAddresses::Primary => Some(node.iter().map(|address| IpNet::from(*address)).collect()),
            NodePortAddresses::In(networks) => {
                let mut networks = networks.clone();
                for everything in ["0.0.0.0/0", "::/0"] {
                    let everything: IpNet = everything.parse().expect("a network");
                    let same_family = |net: &IpNet| net.addr().is_ipv4() == everything.addr().is_ipv4();
                    if !networks.iter().any(same_family) {
                        networks.push(everything);
                    }
                }
                Some(networks)
            }
        };
        Self { at, loopback }
    }

    /// The networks they are open in; `None` if that is no restriction.
    pub fn addresses(&self, family: Family) -> Option<Vec<IpNet>> {
        let own = self.at.as_ref()?.iter().filter(|net| Family::of(net.addr()) == family).copied();
        let own: Vec<IpNet> = own.collect();
        (!own.iter().any(|net| net.prefix_len() == 0)).then_some(own)
    }

    /// IPv6 has no way from a loopback address to another host's.
    pub fn on_loopback(&self, family: Family) -> bool {
        let loopback = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let is_asked_for =
            || self.addresses(family).is_none_or(|own| own.iter().any(|n| n.contains(&loopback)));
        self.loopback && family == Family::V4 && is_asked_for()
    }
}

/// A node's own addresses, the first of each family.
pub fn primary_addresses(node: &Node) -> Vec<IpAddr> {
    let mut found: Vec<IpAddr> = Vec::new();
    for address in all_addresses(node) {
        if !found.iter().any(|known| known.is_ipv4() == address.is_ipv4()) {
            found.push(address);
        }
    }
    found
}

/// All of a node's own addresses, the internal ones first.
pub fn all_addresses(node: &Node) -> Vec<IpAddr> {
    let all = node.status.iter().flat_map(|status| status.addresses.iter().flatten());
    let of = |kind: &'static str| {
        all.clone().filter(move |a| a.type_ == kind).filter_map(|a| a.address.parse::<IpAddr>().ok())
    };
    of("InternalIP").chain(of("ExternalIP")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(asked: &NodePortAddresses, family: Family, expected: Option<&[&str]>, on_loopback: bool) {
        let node = ["192.0.2.1".parse().unwrap(), "fd00::1".parse().unwrap()];
        let ports = NodePorts::of(asked, &node, true);
        let found = ports.addresses(family);
        let found = found.map(|all| all.iter().map(IpNet::to_string).collect::<Vec<_>>());
        let expected = expected.map(|all| all.iter().map(ToString::to_string).collect());
        assert_eq!((found, ports.on_loopback(family)), (expected, on_loopback), "{asked:?} {family:?}");
        assert!(!NodePorts::of(asked, &node, false).on_loopback(family));
    }

    #[test]
    fn node_ports_are_open_where_it_was_asked_for() {
        let networks =
            |texts: &[&str]| NodePortAddresses::In(texts.iter().map(|text| text.parse().unwrap()).collect());
        check(&NodePortAddresses::Primary, Family::V4, Some(&["192.0.2.1/32"]), false);
        check(&NodePortAddresses::Primary, Family::V6, Some(&["fd00::1/128"]), false);
        check(&networks(&[]), Family::V4, None, true);
        check(&networks(&[]), Family::V6, None, false);
        check(&networks(&["10.0.0.0/8"]), Family::V4, Some(&["10.0.0.0/8"]), false);
        check(&networks(&["10.0.0.0/8"]), Family::V6, None, false);
        check(&networks(&["127.0.0.0/8"]), Family::V4, Some(&["127.0.0.0/8"]), true);
        check(&networks(&["10.0.0.0/8", "0.0.0.0/0"]), Family::V4, None, true);
    }

    #[test]
    fn the_first_address_of_each_family_is_a_nodes_own() {
        let node: Node = serde_json::from_value(serde_json::json!({ "status": { "addresses": [
            { "type": "ExternalIP", "address": "203.0.113.1" },
            { "type": "InternalIP", "address": "192.0.2.1" },
            { "type": "InternalIP", "address": "192.0.2.2" },
            { "type": "Hostname", "address": "n" },
            { "type": "ExternalIP", "address": "fd00::1" },
        ] } }))
        .unwrap();
        let found: Vec<String> = primary_addresses(&node).iter().map(ToString::to_string).collect();
        assert_eq!(found, ["192.0.2.1", "fd00::1"]);
        let all: Vec<String> = all_addresses(&node).iter().map(ToString::to_string).collect();
        assert_eq!(all, ["192.0.2.1", "192.0.2.2", "203.0.113.1", "fd00::1"]);
        assert!(primary_addresses(&Node::default()).is_empty());
    }
}
