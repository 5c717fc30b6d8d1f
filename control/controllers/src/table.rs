//! The controllers, a row each, under the names upstream's `--controllers` knows.

use crate::context::{Context, Running};
use crate::{
    deployment, endpoint_slice, endpoints, garbage_collector, namespace, node_ipam, replica_set, root_ca,
    service_account,
};

pub struct Row {
    pub name: &'static str,
    /// What it was called before upstream renamed them all.
    pub alias: &'static str,
    pub on_by_default: bool,
    pub(crate) start: fn(&Context) -> Running,
}

const fn row(name: &'static str, alias: &'static str, start: fn(&Context) -> Running) -> Row {
    Row { name, alias, on_by_default: true, start }
}

pub static ROWS: &[Row] = &[
    row("deployment-controller", "deployment", deployment::start),
    row("replicaset-controller", "replicaset", replica_set::start_replica_set),
    row(
        "replicationcontroller-controller",
        "replicationcontroller",
        replica_set::start_replication_controller,
    ),
    row("endpointslice-controller", "endpointslice", endpoint_slice::start),
    row("endpoints-controller", "endpoint", endpoints::start),
    row("serviceaccount-controller", "serviceaccount", service_account::start),
    row("root-ca-certificate-publisher-controller", "root-ca-cert-publisher", root_ca::start),
    row("namespace-controller", "namespace", namespace::start),
    row("garbage-collector-controller", "garbagecollector", garbage_collector::start),
    row("node-ipam-controller", "nodeipam", node_ipam::start),
];
