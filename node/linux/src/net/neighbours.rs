//! Neighbour entries (address → MAC) and forwarding entries of a vxlan (MAC → host), both permanent.

use std::net::{IpAddr, Ipv4Addr};

use netlink_packet_route::{
    AddressFamily, RouteNetlinkMessage,
    neighbour::{NeighbourAddress, NeighbourAttribute, NeighbourFlags, NeighbourMessage, NeighbourState},
};

use super::{MacAddress, Netlink, Result, netlink::IfPresent};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Neighbour {
    pub link: u32,
    pub address: IpAddr,
    pub mac: MacAddress,
}

/// Frames for `mac` leave the vxlan `link` in packets to `host`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ForwardingEntry {
    pub link: u32,
    pub mac: MacAddress,
    pub host: Ipv4Addr,
}

impl Netlink {
    pub fn replace_neighbour(&mut self, neighbour: &Neighbour) -> Result<()> {
        self.create(
            || format!("setting the neighbour {}", neighbour.address),
            RouteNetlinkMessage::NewNeighbour(neighbour_message(neighbour)),
            IfPresent::Replace,
        )
    }

    pub fn delete_neighbour(&mut self, neighbour: &Neighbour) -> Result<bool> {
        let message = RouteNetlinkMessage::DelNeighbour(neighbour_message(neighbour));
        found(self.change(|| format!("deleting the neighbour {}", neighbour.address), message))
    }

    /// The permanent IPv4 and IPv6 neighbours of a link.
    pub fn neighbours(&mut self, link: u32) -> Result<Vec<Neighbour>> {
        let all = self.dump(
            || "listing neighbours".into(),
            RouteNetlinkMessage::GetNeighbour(NeighbourMessage::default()),
        )?;
        Ok(all.into_iter().filter_map(|message| neighbour_of(message, link)).collect())
    }

    pub fn replace_forwarding(&mut self, entry: &ForwardingEntry) -> Result<()> {
        self.create(
            || format!("setting the forwarding entry of {}", entry.mac),
            RouteNetlinkMessage::NewNeighbour(forwarding_message(entry)),
            IfPresent::Replace,
        )
    }

    pub fn delete_forwarding(&mut self, entry: &ForwardingEntry) -> Result<bool> {
        let message = RouteNetlinkMessage::DelNeighbour(forwarding_message(entry));
        found(self.change(|| format!("deleting the forwarding entry of {}", entry.mac), message))
    }

    pub fn forwarding_entries(&mut self, link: u32) -> Result<Vec<ForwardingEntry>> {
        let mut message = NeighbourMessage::default();
        message.header.family = AddressFamily::Bridge;
        let all =
            self.dump(|| "listing forwarding entries".into(), RouteNetlinkMessage::GetNeighbour(message))?;
        Ok(all.into_iter().filter_map(|message| forwarding_of(message, link)).collect())
    }
}

fn found(outcome: Result<()>) -> Result<bool> {
    match outcome {
        Ok(()) => Ok(true),
        Err(error) if error.is_not_found() => Ok(false),
        Err(error) => Err(error),
    }
}

fn neighbour_message(neighbour: &Neighbour) -> NeighbourMessage {
    let mut message = NeighbourMessage::default();
    message.header.ifindex = neighbour.link;
    message.header.state = NeighbourState::Permanent;
    let (family, address) = match neighbour.address {
        IpAddr::V4(ip) => (AddressFamily::Inet, NeighbourAddress::Inet(ip)),
        IpAddr::V6(ip) => (AddressFamily::Inet6, NeighbourAddress::Inet6(ip)),
    };
    message.header.family = family;
    message.attributes.push(NeighbourAttribute::Destination(address));
    message.attributes.push(NeighbourAttribute::LinkLayerAddress(neighbour.mac.0.to_vec()));
    message
}

fn forwarding_message(entry: &ForwardingEntry) -> NeighbourMessage {
    let mut message = NeighbourMessage::default();
    message.header.family = AddressFamily::Bridge;
    message.header.ifindex = entry.link;
    message.header.state = NeighbourState::Permanent;
    message.header.flags = NeighbourFlags::Own;
    message.attributes.push(NeighbourAttribute::Destination(NeighbourAddress::Inet(entry.host)));
    message.attributes.push(NeighbourAttribute::LinkLayerAddress(entry.mac.0.to_vec()));
    message
}

fn neighbour_of(message: RouteNetlinkMessage, link: u32) -> Option<Neighbour> {
    let RouteNetlinkMessage::NewNeighbour(message) = message else {
        return None;
    };
    if message.header.ifindex != link || message.header.state != NeighbourState::Permanent {
        return None;
    }
    let address = match destination(&message)? {
        NeighbourAddress::Inet(ip) => IpAddr::V4(*ip),
        NeighbourAddress::Inet6(ip) => IpAddr::V6(*ip),
        _ => return None,
    };
    Some(Neighbour { link, address, mac: mac(&message)? })
}

fn forwarding_of(message: RouteNetlinkMessage, link: u32) -> Option<ForwardingEntry> {
    let RouteNetlinkMessage::NewNeighbour(message) = message else {
        return None;
    };
    if message.header.ifindex != link {
        return None;
    }
    let host = match destination(&message)? {
        NeighbourAddress::Inet(ip) => *ip,
        // In the bridge family the parser leaves the host's address as bytes.
        NeighbourAddress::Other(bytes) => Ipv4Addr::from(<[u8; 4]>::try_from(bytes.as_slice()).ok()?),
        _ => return None,
    };
    Some(ForwardingEntry { link, mac: mac(&message)?, host })
}

fn destination(message: &NeighbourMessage) -> Option<&NeighbourAddress> {
    message
        .attributes
        .iter()
        .find_map(|a| if let NeighbourAttribute::Destination(d) = a { Some(d) } else { None })
}

fn mac(message: &NeighbourMessage) -> Option<MacAddress> {
    message.attributes.iter().find_map(|attribute| match attribute {
        NeighbourAttribute::LinkLayerAddress(bytes) => bytes.as_slice().try_into().ok().map(MacAddress),
        _ => None,
    })
}
