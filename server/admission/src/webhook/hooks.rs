//! The compiled webhooks, from the caches. They are compiled again after a change of a configuration.

use std::sync::Arc;
use std::time::Duration;

use ferry_api::{GroupResource, Kind, Object, Status};
use ferry_registry::Registry;
use ferry_registry::cache::{Cache, Derived};
use serde::Deserialize;
use serde_json::Value;

use super::call::Endpoint;
use crate::chain::Request;
use crate::expressions::{self, Conditions, Verdict};
use crate::matching::{Constraints, Matching};
use crate::versions::Versioned;

pub const GROUP: &str = "admissionregistration.k8s.io";

/// The webhooks of one sort, in the order they are called: by the name of their configuration, then as
/// they stand in it.
pub struct Hooks {
    registry: Arc<Registry>,
    /// Named once, since every write asks for it.
    configurations: GroupResource,
    compiled: Derived<Compiled, 1>,
}

/// The webhooks of one moment, or why one of them that has to be asked cannot be.
pub struct Compiled(Result<Vec<Arc<Hook>>, String>);

impl Compiled {
    pub fn is_empty(&self) -> bool {
        self.0.as_ref().is_ok_and(Vec::is_empty)
    }

    /// Fails as the call of a webhook does that has to be asked and does not answer.
    pub fn hooks(&self) -> Result<&[Arc<Hook>], Status> {
        match &self.0 {
            Ok(hooks) => Ok(hooks),
            Err(why) => Err(Status::internal(format!("failed calling webhook: {why}"))),
        }
    }
}

/// One webhook, ready to be asked.
pub struct Hook {
    pub configuration: String,
    /// Tells apart webhooks of one name, for reinvocation.
    pub uid: String,
    pub spec: Spec,
    matching: Matching,
    conditions: Conditions,
    pub endpoint: Endpoint,
}

/// A webhook as it is written.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Spec {
    pub name: String,
    pub client_config: ClientConfig,
    #[serde(flatten)]
    pub constraints: Constraints,
    pub failure_policy: Option<String>,
    pub side_effects: Option<String>,
    pub timeout_seconds: Option<u64>,
    #[serde(default)]
    pub admission_review_versions: Vec<String>,
    pub reinvocation_policy: Option<String>,
    #[serde(default)]
    pub match_conditions: Vec<MatchCondition>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClientConfig {
    pub url: Option<String>,
    pub service: Option<ServiceReference>,
    pub ca_bundle: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ServiceReference {
    pub namespace: String,
    pub name: String,
    pub path: Option<String>,
    pub port: Option<u16>,
}

#[derive(Debug, Clone, Deserialize)]
pub struct MatchCondition {
    pub name: String,
    pub expression: String,
}

/// What a webhook is to be asked: in which version of the kind.
pub struct Invocation {
    pub hook: Arc<Hook>,
    pub kind: Arc<Kind>,
}

impl Hooks {
    pub fn new(registry: Arc<Registry>, plural: &'static str) -> Hooks {
        Hooks { registry, configurations: GroupResource::new(GROUP, plural), compiled: Derived::default() }
    }

    /// The webhooks as of now. Nothing is read or compiled while the configurations stay the same.
    pub fn current(&self) -> Arc<Compiled> {
        match self.registry.resource(&self.configurations) {
            Some(resource) => self.compiled.get([&resource.cache], || Compiled(compile_all(&resource.cache))),
            None => Arc::new(Compiled(Ok(Vec::new()))),
        }
    }
}

fn compile_all(cache: &Cache) -> Result<Vec<Arc<Hook>>, String> {
    let _span = ferry_trace::span("admission.webhook.compile");
    let unreadable = |key: &str, why: &str| {
        tracing::error!(key, why, "a webhook configuration cannot be read");
        format!("configuration {key:?} cannot be read: {why}")
    };
    let mut hooks = Vec::new();
    for entry in cache.snapshot().0.values() {
        let read = entry.read_object().map_err(|error| error.to_string());
        let compiled = read.and_then(|configuration| compile(&configuration));
        hooks.extend(compiled.map_err(|why| unreadable(&entry.key, &why))?.into_iter().map(Arc::new));
    }
    match cache.unreadable() {
        Some(key) => Err(unreadable(&key, "its stored value is no object")),
        None => Ok(hooks),
    }
}

/// The webhooks of one configuration. One that cannot be read is passed over if its failures are.
fn compile(configuration: &Object) -> Result<Vec<Hook>, String> {
    let name = configuration.name();
    let webhooks = configuration.get(&["webhooks"]).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let mut seen: Vec<&str> = Vec::new();
    webhooks
        .iter()
        .filter_map(|webhook| {
            let spec = match Spec::deserialize(webhook) {
                Ok(spec) => spec,
                Err(error) if webhook.get("failurePolicy").and_then(Value::as_str) == Some("Ignore") => {
                    tracing::error!(name, %error, "a webhook cannot be read");
                    return None;
                }
                Err(error) => return Some(Err(error.to_string())),
            };
            let written = webhook.get("name").and_then(Value::as_str).unwrap_or("");
            let uid = format!("{name}/{written}/{}", seen.iter().filter(|have| **have == written).count());
            seen.push(written);
            Some(Ok(Hook {
                configuration: name.to_string(),
                uid,
                matching: Matching::new(&spec.constraints),
                conditions: Conditions::compile(
                    spec.match_conditions.iter().map(|one| (one.name.as_str(), one.expression.as_str())),
                    &ferry_cel::admission::environment(false, true),
                ),
                endpoint: Endpoint::default(),
                spec,
            }))
        })
        .collect()
}

impl Hook {
    pub fn ignores_failure(&self) -> bool {
        self.spec.failure_policy.as_deref() == Some("Ignore")
    }

    pub fn reinvoked_if_needed(&self) -> bool {
        self.spec.reinvocation_policy.as_deref() == Some("IfNeeded")
    }

    pub fn timeout(&self) -> Duration {
        Duration::from_secs(self.spec.timeout_seconds.unwrap_or(10))
    }

    /// Whether this webhook is asked about the request, and in which version.
    pub async fn wants(
        self: &Arc<Hook>,
        context: &expressions::Context<'_>,
        request: &Request<'_>,
        object: Option<&Object>,
        old: Option<&Object>,
    ) -> Result<Option<Invocation>, Status> {
        let Some(kind) = self.matching.version(context, request, object, old)? else { return Ok(None) };
        if self.conditions.is_empty() {
            return Ok(Some(Invocation { hook: self.clone(), kind }));
        }
        let versioned = Versioned::new(context.registry, request, object, old, &kind).await?;
        match context.judge(&self.conditions, request, &versioned).await {
            Verdict::Holds => Ok(Some(Invocation { hook: self.clone(), kind })),
            Verdict::Fails { .. } => Ok(None),
            Verdict::Error(_) if self.ignores_failure() => Ok(None),
            Verdict::Error(why) => Err(request.forbid(why)),
        }
    }
}
