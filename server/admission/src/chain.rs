//! The admission chain: the enabled plugins in upstream's order.

use std::sync::Arc;
use std::time::Instant;

use async_trait::async_trait;
use ferry_api::{GroupResource, Object, Status};
use ferry_registry::verbs::{Annotation, Call, Operation, Reservation};
use ferry_trace::Moment;

use crate::configuration::BadConfiguration;
use crate::reinvocation::Reinvocation;
use crate::{metrics, plugins};

/// A write, deletion or connection as plugins see it.
pub struct Request<'a> {
    pub call: &'a Call<'a>,
    pub operation: Operation,
    /// The object's name where the URL has none; empty while it is still to be generated.
    pub name: &'a str,
    pub generate_name: &'a str,
    pub reinvocation: Reinvocation,
}

impl Request<'_> {
    pub fn resource(&self) -> GroupResource {
        self.call.kind.group_resource()
    }

    /// This request is about objects of `resource` themselves, not a subresource of them.
    pub fn is_for(&self, group: &str, plural: &str) -> bool {
        self.call.subresource.is_empty() && self.call.kind.group == group && self.call.kind.plural == plural
    }

    /// This request is about the named subresource.
    pub fn is_sub(&self, group: &str, plural: &str, subresource: &str) -> bool {
        self.call.subresource == subresource
            && self.call.kind.group == group
            && self.call.kind.plural == plural
    }

    /// A refusal with upstream's message.
    pub fn forbid(&self, why: impl std::fmt::Display) -> Status {
        let name = if self.name.is_empty() { self.generate_name } else { self.name };
        Status::forbidden(&self.resource(), name, why)
    }

    pub fn warn(&self, warning: impl Into<String>) {
        self.call.warnings.lock().push(warning.into());
    }

    pub fn annotate(&self, key: String, value: String) {
        self.call.annotations.lock().push(Annotation { key, value, is_content: false });
    }

    /// An annotation with content of the object: written only if the audit policy logs bodies.
    pub fn annotate_content(&self, key: String, value: String) {
        self.call.annotations.lock().push(Annotation { key, value, is_content: true });
    }
}

/// The phases in which plugins run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    Mutate,
    /// Mutating plugins at a request without an object to change: a deletion or a connection.
    Before,
    Validate,
    /// The last phase: reserves quota in the object's transaction.
    Reserve,
}

#[async_trait]
pub trait Plugin: Send + Sync {
    /// The phases in which this plugin runs; each has a method below. Called once, when the chain is built.
    fn phases(&self) -> &'static [Phase];

    /// Whether the plugin handles the request. Most handle few kinds; the chain calls this before it boxes a future.
    fn handles(&self, request: &Request<'_>) -> bool;

    async fn mutate(
        &self,
        _request: &Request<'_>,
        _object: &mut Object,
        _old: Option<&Object>,
    ) -> Result<(), Status> {
        Ok(())
    }

    /// Runs in [`Phase::Before`]: an object is about to be deleted (`old`), or connected to (`object` holds the options).
    async fn before(
        &self,
        _request: &Request<'_>,
        _object: Option<&Object>,
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

    /// Reserves quota for a write that all other plugins have allowed.
    async fn reserve(
        &self,
        _request: &Request<'_>,
        _object: &Object,
        _old: Option<&Object>,
    ) -> Result<Reservation, Status> {
        Ok(Reservation::default())
    }
}

/// The plugins of one server, in the table's order: those of each phase.
#[derive(Default, Clone)]
pub struct Chain {
    names: Vec<&'static str>,
    mutating: Plugins,
    before: Plugins,
    validating: Plugins,
    reserving: Plugins,
}

type Plugins = Vec<(&'static str, Arc<dyn Plugin>)>;

impl Chain {
    /// The default plugins, with those enabled and without those disabled by name.
    pub fn new(
        context: &plugins::Context,
        enable: &[String],
        disable: &[String],
    ) -> Result<Chain, BadConfiguration> {
        let is_in = |names: &[String], row: &plugins::Row| names.iter().any(|name| name == row.name);
        for (flag, names) in [("enable-admission-plugins", enable), ("disable-admission-plugins", disable)] {
            if let Some(name) = names.iter().find(|name| !plugins::TABLE.iter().any(|row| row.name == **name))
            {
                return Err(BadConfiguration(format!("{flag} plugin {name:?} is unknown")));
            }
        }
        let both: Vec<&str> = plugins::TABLE
            .iter()
            .filter(|row| is_in(enable, row) && is_in(disable, row))
            .map(|row| row.name)
            .collect();
        if !both.is_empty() {
            let both = both.join(" ");
            let why =
                format!("[{both}] in enable-admission-plugins and disable-admission-plugins overlapped");
            return Err(BadConfiguration(why));
        }
        let enabled = |row: &&plugins::Row| (row.by_default && !is_in(disable, row)) || is_in(enable, row);
        let mut chain = Chain::default();
        for row in plugins::TABLE.iter().filter(enabled) {
            let plugin = row.make(context)?;
            chain.names.push(row.name);
            for phase in plugin.phases() {
                chain.of(*phase).push((row.name, plugin.clone()));
            }
        }
        Ok(chain)
    }

    /// Whether this plugin is part of the chain.
    pub fn has(&self, name: &str) -> bool {
        self.names.contains(&name)
    }

    fn of(&mut self, phase: Phase) -> &mut Plugins {
        match phase {
            Phase::Mutate => &mut self.mutating,
            Phase::Before => &mut self.before,
            Phase::Validate => &mut self.validating,
            Phase::Reserve => &mut self.reserving,
        }
    }

    /// Runs the plugins again after webhooks or policies have changed the object.
    pub async fn mutate(
        &self,
        request: &Request<'_>,
        object: &mut Object,
        old: Option<&Object>,
    ) -> Result<(), Status> {
        let began = Instant::now();
        let mut verdict = self.mutate_once(request, object, old).await;
        if verdict.is_ok() && request.reinvocation.next_round() {
            verdict = self.mutate_once(request, object, old).await;
        }
        metrics::step(request.operation, "admit", &verdict, began.elapsed());
        verdict
    }

    async fn mutate_once(
        &self,
        request: &Request<'_>,
        object: &mut Object,
        old: Option<&Object>,
    ) -> Result<(), Status> {
        for (name, plugin) in &self.mutating {
            if plugin.handles(request) {
                let began = Moment::now();
                let mut span = ferry_trace::span_since("admission.mutate", began);
                span.set("plugin", *name);
                let verdict = span.in_scope(plugin.mutate(request, object, old)).await;
                let took = began.elapsed();
                metrics::plugin(name, request.operation, "admit", &verdict, took);
                judge(span.took(took), verdict)?;
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
        let began = Instant::now();
        let verdict = self.validate_all(request, object, old).await;
        metrics::step(request.operation, "validate", &verdict, began.elapsed());
        verdict
    }

    async fn validate_all(
        &self,
        request: &Request<'_>,
        object: Option<&Object>,
        old: Option<&Object>,
    ) -> Result<(), Status> {
        if matches!(request.operation, Operation::Delete | Operation::Connect) {
            self.before(request, object, old).await?;
        }
        for (name, plugin) in &self.validating {
            if plugin.handles(request) {
                let began = Moment::now();
                let mut span = ferry_trace::span_since("admission.validate", began);
                span.set("plugin", *name);
                let verdict = span.in_scope(plugin.validate(request, object, old)).await;
                let took = began.elapsed();
                metrics::plugin(name, request.operation, "validate", &verdict, took);
                judge(span.took(took), verdict)?;
            }
        }
        Ok(())
    }

    pub async fn reserve(
        &self,
        request: &Request<'_>,
        object: &Object,
        old: Option<&Object>,
    ) -> Result<Reservation, Status> {
        let mut total = Reservation::default();
        for (name, plugin) in &self.reserving {
            if plugin.handles(request) {
                let began = Moment::now();
                let mut span = ferry_trace::span_since("admission.reserve", began);
                span.set("plugin", *name);
                let reserved = span.in_scope(plugin.reserve(request, object, old)).await;
                let took = began.elapsed();
                metrics::plugin(name, request.operation, "validate", &reserved, took);
                span.took(took);
                let reserved = reserved.inspect_err(|status| {
                    span.fail(status);
                })?;
                total.txn_parts.extend(reserved.txn_parts);
                total.lock = match (total.lock, reserved.lock) {
                    (Some(one), Some(other)) => Some(Box::new((one, other))),
                    (one, other) => one.or(other),
                };
            }
        }
        Ok(total)
    }

    async fn before(
        &self,
        request: &Request<'_>,
        object: Option<&Object>,
        old: Option<&Object>,
    ) -> Result<(), Status> {
        for (_, plugin) in &self.before {
            if plugin.handles(request) {
                plugin.before(request, object, old).await?;
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
