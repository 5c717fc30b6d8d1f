//! Pod networking: the CNI plugins inside the Ferry binary, and the network between hosts.
//!
//! It has two callers. A container runtime starts the binary under a plugin's name for each pod ([`plugin`]: `bridge` with
//! `host-local` addresses, `portmap`, `loopback`). The node manages the rest ([`node`]): the runtime's CNI configuration
//! ([`install`]), kernel settings, masquerading, routes to other hosts ([`overlay`]) and the detection of overlapping
//! ranges ([`overlap`]). [`policy`] enforces network policies.
//!
//! This crate knows no Services and no DNS names: the proxy handles packets to Services.
//!
//! Start reading at [`plugin::run`] for one plugin call from environment to result, and at [`node::run`] for the start of
//! a node.

pub mod install;
pub mod node;
pub mod overlap;
pub mod overlay;
pub mod plugin;
pub mod policy;
