//! Addresses of links.

use std::net::IpAddr;

use ipnet::IpNet;
use netlink_packet_route::{
    AddressFamily, RouteNetlinkMessage,
    address::{AddressAttribute, AddressFlags, AddressHeaderFlags, AddressMessage, AddressScope},
};

use super::{Netlink, Result, netlink::IfPresent};

/// An address with its prefix on a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    pub link: u32,
    pub net: IpNet,
}

impl Netlink {
    /// Adds an address, usable at once: no duplicate address detection, since the caller allocated it.
    pub fn add_address(&mut self, link: u32, net: IpNet) -> Result<()> {
        let mut message = of(link, net);
        message.attributes.push(AddressAttribute::Flags(AddressFlags::Nodad));
        message.header.flags = AddressHeaderFlags::Nodad;
        if let IpNet::V4(net) = net
            && net.prefix_len() < 31
        {
            message.attributes.push(AddressAttribute::Broadcast(net.broadcast()));
        }
        self.create(
            || format!("adding address {net} to link {link}"),
            RouteNetlinkMessage::NewAddress(message),
            IfPresent::Replace,
        )
    }

    pub fn delete_address(&mut self, link: u32, net: IpNet) -> Result<()> {
        self.change(
            || format!("deleting address {net} of link {link}"),
            RouteNetlinkMessage::DelAddress(of(link, net)),
        )
    }

    /// All addresses of this namespace, but for the kernel's own link-local ones.
    pub fn addresses(&mut self) -> Result<Vec<Address>> {
        let all = self.dump(
            || "listing addresses".into(),
            RouteNetlinkMessage::GetAddress(AddressMessage::default()),
        )?;
        Ok(all.into_iter().filter_map(address_of).collect())
    }
}

fn of(link: u32, net: IpNet) -> AddressMessage {
    let mut message = AddressMessage::default();
    message.header.index = link;
    message.header.prefix_len = net.prefix_len();
    message.header.family = match net {
        IpNet::V4(_) => AddressFamily::Inet,
        IpNet::V6(_) => AddressFamily::Inet6,
    };
    message.attributes.push(AddressAttribute::Local(net.addr()));
    message.attributes.push(AddressAttribute::Address(net.addr()));
    message
}

fn address_of(message: RouteNetlinkMessage) -> Option<Address> {
    let RouteNetlinkMessage::NewAddress(message) = message else {
        return None;
    };
    let address_in =
        |wanted: fn(&AddressAttribute) -> Option<IpAddr>| message.attributes.iter().find_map(wanted);
    // On a point-to-point link ADDRESS is the peer and LOCAL is ours; IPv6 has ADDRESS alone.
    let address = address_in(|a| if let AddressAttribute::Local(ip) = a { Some(*ip) } else { None })
        .or_else(|| address_in(|a| if let AddressAttribute::Address(ip) = a { Some(*ip) } else { None }))?;
    if address.is_ipv6() && message.header.scope == AddressScope::Link {
        return None;
    }
    let net = IpNet::new(address, message.header.prefix_len).ok()?;
    Some(Address { link: message.header.index, net })
}
