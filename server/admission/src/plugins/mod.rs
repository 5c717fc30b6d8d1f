//! The table of plugins, in the order they run.

mod namespace_lifecycle;

use std::sync::Arc;

use ferry_registry::Registry;

use crate::chain::Plugin;

/// What plugins are made from.
pub struct Context {
    pub registry: Arc<Registry>,
}

pub struct Row {
    pub name: &'static str,
    pub by_default: bool,
    pub make: fn(&Context) -> Arc<dyn Plugin>,
}

pub static TABLE: &[Row] =
    &[Row { name: "NamespaceLifecycle", by_default: true, make: namespace_lifecycle::make }];
