//! A strategy per kind: only what differs from a plain kind. The table below is the only place that binds
//! a kind to its rules.

mod config_map;
mod deployment;
mod namespace;
mod node;
mod plain;
mod pod;
mod replica_set;
mod secret;
mod service;

use ferry_api::Kind;

use crate::strategy::{PLAIN, Strategy};

/// The rules of a kind; a custom resource has those of a plain kind.
pub fn strategy(kind: &Kind) -> &'static dyn Strategy {
    match (&*kind.group, &*kind.kind) {
        ("", "ConfigMap") => &config_map::STRATEGY,
        ("", "Namespace") => &namespace::STRATEGY,
        ("", "Node") => &node::STRATEGY,
        ("", "Pod") => &pod::STRATEGY,
        ("", "Secret") => &secret::STRATEGY,
        ("", "Service") => &service::STRATEGY,
        ("apps", "Deployment") => &deployment::STRATEGY,
        ("apps", "ReplicaSet") => &replica_set::STRATEGY,
        (group, kind) => plain::strategy(group, kind).unwrap_or(&PLAIN),
    }
}
