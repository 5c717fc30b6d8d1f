//! The kernel, behind small typed calls: the only room with system calls and `unsafe`.
//!
//! It deliberately knows no Kubernetes: no pods, no services, no API. Callers hand it names, addresses
//! and numbers; it hands back what the kernel said, with what was being attempted in every error.
//!
//! Start reading at [`net`] for links, addresses, routes, namespaces and packet rules.

pub mod net;
