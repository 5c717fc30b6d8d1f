//! The table of plugins, in the order they run.

mod always;
mod default_class;
mod default_toleration_seconds;
mod namespace_lifecycle;
mod node_restriction;
mod priority;
mod runtime_class;
mod storage_object_in_use_protection;
mod taint_nodes_by_condition;

use std::sync::Arc;

use ferry_auth::Authorization;
use ferry_registry::Registry;

use crate::chain::Plugin;

/// What plugins are made from.
pub struct Context {
    pub registry: Arc<Registry>,
    pub authorization: Authorization,
}

pub struct Row {
    pub name: &'static str,
    pub by_default: bool,
    pub make: fn(&Context) -> Arc<dyn Plugin>,
}

const fn row(name: &'static str, by_default: bool, make: fn(&Context) -> Arc<dyn Plugin>) -> Row {
    Row { name, by_default, make }
}

/// NodeRestriction is on by default here, unlike upstream: the Node authorizer is, and needs it.
pub static TABLE: &[Row] = &[
    row("AlwaysAdmit", false, always::make_admit),
    row("NamespaceLifecycle", true, namespace_lifecycle::make),
    row("NodeRestriction", true, node_restriction::make),
    row("TaintNodesByCondition", true, taint_nodes_by_condition::make),
    row("AlwaysPullImages", false, always::make_pull_images),
    row("Priority", true, priority::make),
    row("DefaultTolerationSeconds", true, default_toleration_seconds::make),
    row("StorageObjectInUseProtection", true, storage_object_in_use_protection::make),
    row("RuntimeClass", true, runtime_class::make),
    row("DefaultStorageClass", true, default_class::make_storage),
    row("DefaultIngressClass", true, default_class::make_ingress),
    row("AlwaysDeny", false, always::make_deny),
];
