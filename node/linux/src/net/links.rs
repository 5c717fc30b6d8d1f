//! Links: bridges, veth pairs, vxlan devices, and what can be said of any of them.

use std::{
    fmt,
    net::Ipv4Addr,
    os::fd::{AsFd, AsRawFd},
};

use netlink_packet_route::{
    RouteNetlinkMessage,
    link::{
        InfoBridge, InfoBridgePort, InfoData, InfoKind, InfoPortData, InfoPortKind, InfoVeth, InfoVxlan,
        LinkAttribute, LinkFlags, LinkInfo, LinkMessage,
    },
};

use super::{Error, Namespace, Netlink, Result, netlink::IfPresent};

/// An Ethernet address.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MacAddress(pub [u8; 6]);

impl MacAddress {
    /// An address for an interface that must keep it, made from the bytes of an IPv4 address: unique on
    /// a segment where that address is. The prefix is locally administered and unicast.
    pub fn from_ipv4(address: Ipv4Addr) -> Self {
        let [a, b, c, d] = address.octets();
        Self([0x0a, 0x58, a, b, c, d])
    }

    pub fn parse(text: &str) -> Option<Self> {
        let mut bytes = [0; 6];
        let mut parts = text.split(':');
        for byte in &mut bytes {
            *byte = u8::from_str_radix(parts.next().filter(|part| part.len() == 2)?, 16).ok()?;
        }
        parts.next().is_none().then_some(Self(bytes))
    }
}

impl fmt::Display for MacAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl fmt::Debug for MacAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// What is read back of a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    pub index: u32,
    pub name: String,
    pub kind: Option<String>,
    pub mac: Option<MacAddress>,
    pub mtu: u32,
    pub up: bool,
    /// The bridge this link is a port of.
    pub controller: Option<u32>,
    /// The other end of a veth pair, by its index in the namespace it is in.
    pub peer_index: Option<u32>,
    pub vxlan: Option<Vxlan>,
}

pub struct Bridge<'a> {
    pub name: &'a str,
    /// Set, never left to the kernel: a bridge without an address of its own takes its lowest port's,
    /// and every pod's neighbour entry for the gateway turns stale when that port goes.
    pub mac: Option<MacAddress>,
    pub mtu: Option<u32>,
}

pub struct Veth<'a> {
    pub name: &'a str,
    pub peer_name: &'a str,
    pub peer_namespace: &'a Namespace,
    pub peer_mac: Option<MacAddress>,
    pub mtu: Option<u32>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vxlan {
    pub id: u32,
    pub local: Option<Ipv4Addr>,
    pub port: u16,
}

impl Netlink {
    pub fn link(&mut self, name: &str) -> Result<Option<Link>> {
        let mut message = LinkMessage::default();
        message.attributes.push(LinkAttribute::IfName(name.into()));
        let found = self.get(|| format!("reading link {name}"), RouteNetlinkMessage::GetLink(message));
        match found {
            Ok(answers) => Ok(answers.into_iter().find_map(link_of)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub fn links(&mut self) -> Result<Vec<Link>> {
        let all =
            self.dump(|| "listing links".into(), RouteNetlinkMessage::GetLink(LinkMessage::default()))?;
        Ok(all.into_iter().filter_map(link_of).collect())
    }

    /// The index of a link that must be there.
    pub fn link_index(&mut self, name: &str) -> Result<u32> {
        match self.link(name)? {
            Some(link) => Ok(link.index),
            None => Err(Error::new(
                format!("looking for link {name}"),
                std::io::Error::from_raw_os_error(libc::ENODEV),
            )),
        }
    }

    pub fn add_bridge(&mut self, bridge: &Bridge) -> Result<()> {
        let mut message = LinkMessage::default();
        message.header.flags = LinkFlags::Up;
        message.header.change_mask = LinkFlags::Up;
        message.attributes.push(LinkAttribute::IfName(bridge.name.into()));
        message.attributes.extend(bridge.mac.map(|mac| LinkAttribute::Address(mac.0.to_vec())));
        message.attributes.extend(bridge.mtu.map(LinkAttribute::Mtu));
        message.attributes.push(LinkAttribute::LinkInfo(vec![
            LinkInfo::Kind(InfoKind::Bridge),
            // No multicast snooping: pods are no multicast routers, and a querier is missing.
            LinkInfo::Data(InfoData::Bridge(vec![InfoBridge::MulticastSnooping(false)])),
        ]));
        self.create(
            || format!("adding bridge {}", bridge.name),
            RouteNetlinkMessage::NewLink(message),
            IfPresent::Fail,
        )
    }

    /// One message makes both ends, the peer already in its namespace under its final name.
    pub fn add_veth(&mut self, veth: &Veth) -> Result<()> {
        let mut peer = LinkMessage::default();
        peer.attributes.push(LinkAttribute::IfName(veth.peer_name.into()));
        peer.attributes.push(LinkAttribute::NetNsFd(veth.peer_namespace.as_fd().as_raw_fd()));
        peer.attributes.extend(veth.mtu.map(LinkAttribute::Mtu));
        peer.attributes.extend(veth.peer_mac.map(|mac| LinkAttribute::Address(mac.0.to_vec())));

        let mut message = LinkMessage::default();
        message.attributes.push(LinkAttribute::IfName(veth.name.into()));
        message.attributes.extend(veth.mtu.map(LinkAttribute::Mtu));
        message.attributes.push(LinkAttribute::LinkInfo(vec![
            LinkInfo::Kind(InfoKind::Veth),
            LinkInfo::Data(InfoData::Veth(InfoVeth::Peer(peer))),
        ]));
        self.create(
            || format!("adding the veth pair {} and {}", veth.name, veth.peer_name),
            RouteNetlinkMessage::NewLink(message),
            IfPresent::Fail,
        )
    }

    pub fn add_vxlan(&mut self, name: &str, vxlan: &Vxlan, mac: MacAddress, mtu: Option<u32>) -> Result<()> {
        let mut data = vec![
            InfoVxlan::Id(vxlan.id),
            InfoVxlan::Port(vxlan.port),
            // Entries come from Node objects alone.
            InfoVxlan::Learning(false),
        ];
        data.extend(vxlan.local.map(InfoVxlan::Local));
        let mut message = LinkMessage::default();
        message.header.flags = LinkFlags::Up;
        message.header.change_mask = LinkFlags::Up;
        message.attributes.push(LinkAttribute::IfName(name.into()));
        message.attributes.push(LinkAttribute::Address(mac.0.to_vec()));
        message.attributes.extend(mtu.map(LinkAttribute::Mtu));
        message.attributes.push(LinkAttribute::LinkInfo(vec![
            LinkInfo::Kind(InfoKind::Vxlan),
            LinkInfo::Data(InfoData::Vxlan(data)),
        ]));
        self.create(|| format!("adding vxlan {name}"), RouteNetlinkMessage::NewLink(message), IfPresent::Fail)
    }

    pub fn set_up(&mut self, index: u32) -> Result<()> {
        let mut message = of_index(index);
        message.header.flags = LinkFlags::Up;
        message.header.change_mask = LinkFlags::Up;
        self.change(|| format!("setting link {index} up"), RouteNetlinkMessage::SetLink(message))
    }

    pub fn set_promiscuous(&mut self, index: u32) -> Result<()> {
        let mut message = of_index(index);
        message.header.flags = LinkFlags::Promisc;
        message.header.change_mask = LinkFlags::Promisc;
        self.change(|| format!("setting link {index} promiscuous"), RouteNetlinkMessage::SetLink(message))
    }

    pub fn set_controller(&mut self, index: u32, bridge: u32) -> Result<()> {
        let mut message = of_index(index);
        message.attributes.push(LinkAttribute::Controller(bridge));
        self.change(
            || format!("making link {index} a port of bridge {bridge}"),
            RouteNetlinkMessage::SetLink(message),
        )
    }

    /// What a bridge port does beside forwarding: send frames back where they came from, and keep them
    /// from other isolated ports.
    pub fn set_bridge_port(&mut self, index: u32, hairpin: bool, isolated: bool) -> Result<()> {
        let mut message = of_index(index);
        message.attributes.push(LinkAttribute::LinkInfo(vec![
            LinkInfo::PortKind(InfoPortKind::Bridge),
            LinkInfo::PortData(InfoPortData::BridgePort(vec![
                InfoBridgePort::HairpinMode(hairpin),
                InfoBridgePort::Isolated(isolated),
            ])),
        ]));
        self.change(|| format!("setting port modes of link {index}"), RouteNetlinkMessage::NewLink(message))
    }

    /// Removes a link; true when it was there.
    pub fn delete_link(&mut self, name: &str) -> Result<bool> {
        let mut message = LinkMessage::default();
        message.attributes.push(LinkAttribute::IfName(name.into()));
        match self.change(|| format!("deleting link {name}"), RouteNetlinkMessage::DelLink(message)) {
            Ok(()) => Ok(true),
            Err(error) if error.is_not_found() => Ok(false),
            Err(error) => Err(error),
        }
    }
}

fn of_index(index: u32) -> LinkMessage {
    let mut message = LinkMessage::default();
    message.header.index = index;
    message
}

fn link_of(message: RouteNetlinkMessage) -> Option<Link> {
    let RouteNetlinkMessage::NewLink(message) = message else {
        return None;
    };
    let mut link = Link {
        index: message.header.index,
        name: String::new(),
        kind: None,
        mac: None,
        mtu: 0,
        up: message.header.flags.contains(LinkFlags::Up),
        controller: None,
        peer_index: None,
        vxlan: None,
    };
    for attribute in message.attributes {
        match attribute {
            LinkAttribute::IfName(name) => link.name = name,
            LinkAttribute::Mtu(mtu) => link.mtu = mtu,
            LinkAttribute::Controller(index) => link.controller = Some(index),
            LinkAttribute::Link(index) => link.peer_index = Some(index),
            LinkAttribute::Address(bytes) => link.mac = bytes.try_into().ok().map(MacAddress),
            LinkAttribute::LinkInfo(infos) => {
                for info in infos {
                    match info {
                        LinkInfo::Kind(kind) => link.kind = Some(kind.to_string()),
                        LinkInfo::Data(InfoData::Vxlan(data)) => link.vxlan = Some(vxlan_of(&data)),
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
    Some(link)
}

fn vxlan_of(data: &[InfoVxlan]) -> Vxlan {
    let mut vxlan = Vxlan { id: 0, local: None, port: 0 };
    for item in data {
        match item {
            InfoVxlan::Id(id) => vxlan.id = *id,
            InfoVxlan::Local(local) => vxlan.local = Some(*local),
            InfoVxlan::Port(port) => vxlan.port = *port,
            _ => {}
        }
    }
    vxlan
}
