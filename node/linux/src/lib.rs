//! The kernel behind small typed calls: the only crate with system calls and `unsafe`.
//!
//! This crate knows no Kubernetes: no pods, services or API. Callers pass names, addresses and numbers; every error
//! contains the attempted operation. Calls block; async callers run those that may take long on a blocking thread.
//!
//! Start reading at [`net`] for links, addresses, routes, namespaces and packet rules, at [`cgroup::Hierarchy`] for
//! cgroups, and at [`mount`], [`beneath`], [`tree`] and [`quota`] for volumes.

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
