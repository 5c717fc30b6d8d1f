//! The kernel, behind small typed calls: the only room with system calls and `unsafe`.
//!
//! It deliberately knows no Kubernetes: no pods, no services, no API. Callers hand it names, addresses
//! and numbers; it hands back what the kernel said, with what was being attempted in every error. Calls
//! here block; async callers hand those that may take long to a blocking thread.
//!
//! Start reading at [`net`] for links, addresses, routes, namespaces and packet rules, at
//! [`cgroup::Hierarchy`] for resource groups, at [`mount`], [`beneath`], [`tree`] and [`quota`] for volumes.

pub mod beneath;
pub mod cgroup;
pub mod descriptors;
pub mod disk;
pub mod memory;
pub mod mount;
pub mod net;
pub mod programs;
pub mod quota;
pub mod scheduling;
pub mod tree;
