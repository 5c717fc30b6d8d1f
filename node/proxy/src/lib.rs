//! The service proxy: programs the API's Services and EndpointSlices as kernel rules.
//!
//! ```text
//! Service, EndpointSlices ─► service::ports ─► nftables::rules_of ─► Ledger ─► script ─► nft -f -
//!                          (required rules)    or iptables::…        (only differences, atomically)
//! ```
//!
//! Everything up to the script is a pure function; only [`sync`] acts. This crate knows no pods: EndpointSlices contain
//! the addresses. DNS names are the responsibility of `node/dns`.
//!
//! Start reading at [`service`], then [`nftables`], then [`sync`].

pub mod backend;
pub mod endpoints;
pub mod health;
pub mod host_firewall;
pub mod host_ports;
pub mod iptables;
pub mod ledger;
pub mod load_balancer;
pub mod metrics;
pub mod nftables;
pub mod node_ports;
pub mod report;
pub mod service;
pub mod stale_flows;
pub mod sync;
#[cfg(test)]
mod test_objects;

use std::{
    fmt,
    net::{IpAddr, SocketAddr},
};

use ipnet::IpNet;

pub use host_ports::HostPorts;
pub use node_ports::{NodePortAddresses, NodePorts};
pub use sync::run;

/// How the proxy of a node is set up.
#[derive(Clone, Debug)]
pub struct Config {
    /// Names of tables and chains derive from it.
    pub cluster: String,
    pub node_name: String,
    /// The cluster's pod addresses, of both families.
    pub pod_cidrs: Vec<IpNet>,
    pub mode: Mode,
    /// One bit of the packet mark; by custom 0x4000.
    pub masquerade_mark: u32,
    pub node_port_addresses: NodePortAddresses,
    /// Node ports on 127.0.0.1 too, in iptables mode.
    pub localhost_node_ports: bool,
    /// Where the proxy answers for its own health.
    pub health_address: Option<SocketAddr>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    #[default]
    Nftables,
    Iptables,
}

/// Takes all rules of a cluster's proxy out of the kernel. Blocks.
pub fn remove(config: &Config) -> Result<(), ferry_linux::net::ToolError> {
    backend::Backend::remove(config)
}

/// What rules need to know of the node they are for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Node {
    pub name: String,
    /// The label `topology.kubernetes.io/zone`.
    pub zone: Option<String>,
    /// The first of each family.
    pub addresses: Vec<IpAddr>,
    /// All that its Node object names, which a load balancer may give out.
    pub all_addresses: Vec<IpAddr>,
    /// What it listens on itself.
    pub host_ports: HostPorts,
    /// The cluster's pod addresses: traffic from them is inside traffic.
    pub pod_cidrs: Vec<IpNet>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Family {
    V4,
    V6,
}

impl Family {
    pub fn of(address: IpAddr) -> Self {
        if address.is_ipv4() { Family::V4 } else { Family::V6 }
    }

    /// As EndpointSlices call it.
    fn address_type(self) -> &'static str {
        match self {
            Family::V4 => "IPv4",
            Family::V6 => "IPv6",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Protocol {
    Tcp,
    Udp,
    Sctp,
}

impl Protocol {
    /// The API's word; none is TCP.
    pub fn of(text: Option<&str>) -> Option<Self> {
        match text {
            None | Some("TCP" | "") => Some(Protocol::Tcp),
            Some("UDP") => Some(Protocol::Udp),
            Some("SCTP") => Some(Protocol::Sctp),
            Some(_) => None,
        }
    }
}

impl Protocol {
    /// As the API has it.
    pub fn name(self) -> &'static str {
        match self {
            Protocol::Tcp => "TCP",
            Protocol::Udp => "UDP",
            Protocol::Sctp => "SCTP",
        }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Protocol::Tcp => "tcp",
            Protocol::Udp => "udp",
            Protocol::Sctp => "sctp",
        })
    }
}
