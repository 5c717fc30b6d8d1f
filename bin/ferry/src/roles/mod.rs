//! The roles: flags in, a component's `run` out.

mod access;
pub mod apiserver;
mod audit;
pub mod bench;
mod certificates;
pub mod component;
pub mod controller_manager;
pub mod dns;
mod encryption;
pub mod etcd;
mod feature_gates;
pub mod kubelet;
mod kubelet_settings;
pub mod manual;
pub mod no_effect;
pub mod proxy;
mod proxy_config_file;
pub mod scheduler;
pub mod serving;
pub mod snapshot;
pub mod trace;
pub mod ui;
