//! Pod networking: the CNI plugins inside the Ferry binary, and the way between hosts.
//!
//! Two callers meet here. A container runtime starts the binary under a plugin's name for each pod
//! ([`plugin`]: `bridge` with `host-local` addresses, `portmap`, `loopback`). And the node, at its
//! start, writes the configuration the runtime reads ([`install`]).
//!
//! It deliberately knows no Services and no DNS names: packets to a Service are the proxy's.
//!
//! Start reading at [`plugin::run`] for one plugin call from environment to result, at
//! [`install::configuration`] for what a node's pods get.

pub mod install;
pub mod plugin;
