//! Routes of the main table.

use std::net::IpAddr;

use ipnet::IpNet;
use netlink_packet_route::{
    AddressFamily, RouteNetlinkMessage,
    route::{
        RouteAddress, RouteAttribute, RouteFlags, RouteHeader, RouteMessage, RouteMetric, RouteProtocol,
        RouteScope, RouteType,
    },
};

use super::{Netlink, Result, netlink::IfPresent};

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Route {
    pub destination: IpNet,
    pub gateway: Option<IpAddr>,
    pub link: u32,
    /// The gateway is reached over the link though no address of the link covers it.
    pub on_link: bool,
    pub mtu: Option<u32>,
    pub priority: Option<u32>,
    /// Who made the route, as the kernel keeps it and `ip route` shows it (`proto`).
    pub protocol: u8,
}

impl Route {
    /// Made by an administrator, or by a tool that does not say.
    pub const STATIC: u8 = 4;

    pub fn new(destination: IpNet, gateway: Option<IpAddr>, link: u32) -> Self {
        Self { destination, gateway, link, on_link: false, mtu: None, priority: None, protocol: Self::STATIC }
    }
}

impl Netlink {
    /// Adds a route or replaces the one to the same destination.
    pub fn replace_route(&mut self, route: &Route) -> Result<()> {
        self.create(
            || format!("setting the route to {}", route.destination),
            RouteNetlinkMessage::NewRoute(message_of(route)),
            IfPresent::Replace,
        )
    }

    /// Removes a route; true when it was there.
    pub fn delete_route(&mut self, route: &Route) -> Result<bool> {
        let deleted = self.change(
            || format!("deleting the route to {}", route.destination),
            RouteNetlinkMessage::DelRoute(message_of(route)),
        );
        match deleted {
            Ok(()) => Ok(true),
            Err(error) if error.is_not_found() => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// The unicast routes of the main table that leave by a link.
    pub fn routes(&mut self) -> Result<Vec<Route>> {
        let mut routes = Vec::new();
        for family in [AddressFamily::Inet, AddressFamily::Inet6] {
            let mut message = RouteMessage::default();
            message.header.address_family = family;
            let all = self.dump(|| "listing routes".into(), RouteNetlinkMessage::GetRoute(message))?;
            routes.extend(all.into_iter().filter_map(route_of));
        }
        Ok(routes)
    }
}

fn message_of(route: &Route) -> RouteMessage {
    let mut message = RouteMessage::default();
    message.header = RouteHeader {
        address_family: match route.destination {
            IpNet::V4(_) => AddressFamily::Inet,
            IpNet::V6(_) => AddressFamily::Inet6,
        },
        destination_prefix_length: route.destination.prefix_len(),
        table: RouteHeader::RT_TABLE_MAIN,
        protocol: RouteProtocol::from(route.protocol),
        scope: if route.gateway.is_some() { RouteScope::Universe } else { RouteScope::Link },
        kind: RouteType::Unicast,
        flags: if route.on_link { RouteFlags::Onlink } else { RouteFlags::empty() },
        ..RouteHeader::default()
    };
    if route.destination.prefix_len() > 0 {
        message.attributes.push(RouteAttribute::Destination(route.destination.network().into()));
    }
    message.attributes.push(RouteAttribute::Oif(route.link));
    message.attributes.extend(route.gateway.map(|gateway| RouteAttribute::Gateway(gateway.into())));
    message.attributes.extend(route.mtu.map(|mtu| RouteAttribute::Metrics(vec![RouteMetric::Mtu(mtu)])));
    message.attributes.extend(route.priority.map(RouteAttribute::Priority));
    message
}

fn route_of(message: RouteNetlinkMessage) -> Option<Route> {
    let RouteNetlinkMessage::NewRoute(message) = message else {
        return None;
    };
    if message.header.table != RouteHeader::RT_TABLE_MAIN || message.header.kind != RouteType::Unicast {
        return None;
    }
    let any: IpAddr = match message.header.address_family {
        AddressFamily::Inet => std::net::Ipv4Addr::UNSPECIFIED.into(),
        AddressFamily::Inet6 => std::net::Ipv6Addr::UNSPECIFIED.into(),
        _ => return None,
    };
    let mut destination = any;
    let mut gateway = None;
    let mut link = None;
    let mut mtu = None;
    let mut priority = None;
    for attribute in message.attributes {
        match attribute {
            RouteAttribute::Destination(address) => destination = ip_of(&address)?,
            RouteAttribute::Gateway(address) => gateway = ip_of(&address),
            RouteAttribute::Oif(index) => link = Some(index),
            RouteAttribute::Priority(value) => priority = Some(value),
            RouteAttribute::Metrics(metrics) => {
                mtu = metrics.iter().find_map(
                    |m| {
                        if let RouteMetric::Mtu(mtu) = m { Some(*mtu) } else { None }
                    },
                );
            }
            _ => {}
        }
    }
    Some(Route {
        destination: IpNet::new(destination, message.header.destination_prefix_length).ok()?,
        gateway,
        link: link?,
        on_link: message.header.flags.contains(RouteFlags::Onlink),
        mtu,
        priority,
        protocol: message.header.protocol.into(),
    })
}

fn ip_of(address: &RouteAddress) -> Option<IpAddr> {
    match address {
        RouteAddress::Inet(ip) => Some((*ip).into()),
        RouteAddress::Inet6(ip) => Some((*ip).into()),
        _ => None,
    }
}
