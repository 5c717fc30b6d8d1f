//! Pod networking: the CNI plugins inside the Ferry binary, and the way between hosts.
//!
//! Two callers meet here. A container runtime starts the binary under a plugin's name for each pod
//! ([`plugin`]: `bridge` with `host-local` addresses, `portmap`, `loopback`). And the node keeps the
//! rest ([`node`]): the configuration the runtime reads ([`install`]), kernel settings, masquerading, and
//! the way to other hosts ([`overlay`]); ranges that overlap are seen and said ([`overlap`]). Who may talk to whom is [`policy`]'s.
//!
//! It deliberately knows no Services and no DNS names: packets to a Service are the proxy's.
//!
//! Start reading at [`plugin::run`] for one plugin call from environment to result, at [`node::run`] for
//! what a node's start does.

pub mod install;
pub mod node;
pub mod overlap;
pub mod overlay;
pub mod plugin;
pub mod policy;
