//! The roles: flags in, a component's `run` out.

mod access;
pub mod apiserver;
mod audit;
pub mod bench;
pub mod component;
pub mod controller_manager;
pub mod dns;
mod encryption;
pub mod kubelet;
pub mod manual;
pub mod proxy;
pub mod scheduler;
pub mod snapshot;
pub mod trace;
