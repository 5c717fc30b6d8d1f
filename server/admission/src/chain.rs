//! The chain: which plugins run, and in which order.

use std::sync::Arc;

use async_trait::async_trait;
use ferry_api::{GroupResource, Kind, Object, Status};
use ferry_auth::User;
use ferry_registry::verbs::Operation;
use parking_lot::Mutex;
use serde_json::Value;

use crate::plugins;

/// What a plugin may know of the request it judges.
pub struct Request<'a> {
    pub operation: Operation,
    pub kind: &'a Kind,
    pub namespace: &'a str,
    pub name: &'a str,
    pub subresource: &'a str,
    pub user: &'a User,
    pub dry_run: bool,
    /// The CreateOptions, UpdateOptions, PatchOptions or DeleteOptions.
    pub options: &'a Value,
    pub warnings: &'a Mutex<Vec<String>>,
    /// Said to the audit log.
    pub annotations: &'a Mutex<Vec<(String, String)>>,
}

impl Request<'_> {
    pub fn resource(&self) -> GroupResource {
        self.kind.group_resource()
    }

    /// This request is about objects of `resource` themselves, not a subresource of them.
    pub fn is_for(&self, group: &str, plural: &str) -> bool {
        self.subresource.is_empty() && self.kind.group == group && self.kind.plural == plural
    }

    /// A refusal in the words that clients know.
    pub fn forbid(&self, why: impl std::fmt::Display) -> Status {
        Status::forbidden(&self.resource(), self.name, why)
    }

    pub fn warn(&self, warning: impl Into<String>) {
        self.warnings.lock().push(warning.into());
    }
}

#[async_trait]
pub trait Plugin: Send + Sync {
    /// Most plugins look at few kinds; this is asked before anything is boxed.
    fn handles(&self, request: &Request<'_>) -> bool;

    async fn mutate(
        &self,
        _request: &Request<'_>,
        _object: &mut Object,
        _old: Option<&Object>,
    ) -> Result<(), Status> {
        Ok(())
    }

    /// `object` is absent when it is being deleted.
    async fn validate(
        &self,
        _request: &Request<'_>,
        _object: Option<&Object>,
        _old: Option<&Object>,
    ) -> Result<(), Status> {
        Ok(())
    }
}

/// The plugins of one server, in the table's order.
#[derive(Default, Clone)]
pub struct Chain {
    plugins: Vec<(&'static str, Arc<dyn Plugin>)>,
}

#[derive(Debug, PartialEq, Eq)]
pub struct UnknownPlugin(pub String);

impl std::fmt::Display for UnknownPlugin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "admission plugin {:?} is unknown", self.0)
    }
}

impl std::error::Error for UnknownPlugin {}

impl Chain {
    /// The default plugins, with those enabled and without those disabled by name.
    pub fn new(
        context: &plugins::Context,
        enable: &[String],
        disable: &[String],
    ) -> Result<Chain, UnknownPlugin> {
        for name in enable.iter().chain(disable) {
            if !plugins::TABLE.iter().any(|row| row.name == name) {
                return Err(UnknownPlugin(name.clone()));
            }
        }
        let plugins = plugins::TABLE
            .iter()
            .filter(|row| {
                (row.by_default && !disable.iter().any(|name| name == row.name))
                    || enable.iter().any(|name| name == row.name)
            })
            .map(|row| (row.name, (row.make)(context)))
            .collect();
        Ok(Chain { plugins })
    }

    pub async fn mutate(
        &self,
        request: &Request<'_>,
        object: &mut Object,
        old: Option<&Object>,
    ) -> Result<(), Status> {
        for (name, plugin) in &self.plugins {
            if plugin.handles(request) {
                let mut span = ferry_trace::span("admission.mutate");
                span.set("plugin", *name);
                let verdict = span.in_scope(plugin.mutate(request, object, old)).await;
                judge(&mut span, verdict)?;
            }
        }
        Ok(())
    }

    pub async fn validate(
        &self,
        request: &Request<'_>,
        object: Option<&Object>,
        old: Option<&Object>,
    ) -> Result<(), Status> {
        for (name, plugin) in &self.plugins {
            if plugin.handles(request) {
                let mut span = ferry_trace::span("admission.validate");
                span.set("plugin", *name);
                let verdict = span.in_scope(plugin.validate(request, object, old)).await;
                judge(&mut span, verdict)?;
            }
        }
        Ok(())
    }
}

fn judge(span: &mut ferry_trace::Span, verdict: Result<(), Status>) -> Result<(), Status> {
    if let Err(status) = &verdict {
        span.fail(status);
    }
    verdict
}
