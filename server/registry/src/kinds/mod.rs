//! A strategy per kind: only what differs from a plain kind. The table below is the only place that binds
//! a kind to its rules.

mod checks;
mod config_map;
mod cron_job;
mod daemon_set;
mod deployment;
mod job;
mod namespace;
mod node;
mod plain;
mod pod;
mod replica_set;
mod replication_controller;
mod secret;
mod service;
mod stateful_set;
mod tables;
mod workload;

use ferry_api::Kind;

use crate::strategy::{PLAIN, Strategy};

/// The rules of a kind; a custom resource has those of a plain kind.
pub fn strategy(kind: &Kind) -> &'static dyn Strategy {
    match (&*kind.group, &*kind.kind) {
        ("", "ConfigMap") => &config_map::STRATEGY,
        ("", "Namespace") => &namespace::STRATEGY,
        ("", "Node") => &node::STRATEGY,
        ("", "Pod") => &pod::STRATEGY,
        ("", "ReplicationController") => &replication_controller::STRATEGY,
        ("", "Secret") => &secret::STRATEGY,
        ("", "Service") => &service::STRATEGY,
        ("apps", "DaemonSet") => &daemon_set::STRATEGY,
        ("apps", "Deployment") => &deployment::STRATEGY,
        ("apps", "ReplicaSet") => &replica_set::STRATEGY,
        ("apps", "StatefulSet") => &stateful_set::STRATEGY,
        ("batch", "CronJob") => &cron_job::STRATEGY,
        ("batch", "Job") => &job::STRATEGY,
        (group, kind) => plain::strategy(group, kind).unwrap_or(&PLAIN),
    }
}
