//! The kernel's network: namespaces, links, addresses, routes, neighbours, packet rules.
//!
//! [`Netlink`] is a blocking route socket bound to the namespace it was opened in; every change is one
//! acknowledged message. Blocking on purpose: a CNI plugin is a process of a few milliseconds, and a
//! node's changes are rare; neither pays for a reactor. Packet rules go through the tools of their
//! makers ([`nftables`], [`iptables`]), one atomic call per change.

mod addresses;
mod changes;
pub mod conntrack;
pub mod counters;
pub mod iptables;
mod links;
pub mod names;
mod namespace;
mod neighbours;
mod netlink;
pub mod nftables;
mod routes;
pub mod sockets;
pub mod sysctl;
mod tool;

pub use addresses::Address;
pub use changes::Changes;
pub use links::{Bridge, Link, MacAddress, Veth, Vxlan};
pub use namespace::Namespace;
pub use neighbours::{ForwardingEntry, Neighbour};
pub use netlink::{Error, Netlink, Result};
pub use routes::Route;
pub use tool::{ToolError, load_module};
