//! MutatingAdmissionWebhook: webhooks that may change an object, one after the other.

use std::sync::Arc;

use async_trait::async_trait;
use ferry_api::{Object, Status};
use ferry_auth::Authorization;
use ferry_patch::json_patch;
use ferry_registry::Registry;
use serde_json::{Value, json};

use super::hooks::{Hook, Hooks, Invocation};
use super::review::{self, ReviewVersion, WebhookVerdict};
use super::{call, hooks};
use crate::chain::{Phase, Plugin, Request};
use crate::expressions::Context;
use crate::reinvocation::Mutator;
use crate::versions::Versioned;
use crate::{metrics, plugins};

pub fn make(context: &plugins::Context) -> Arc<dyn Plugin> {
    Arc::new(MutatingWebhooks {
        hooks: Hooks::new(context.registry.clone(), "mutatingwebhookconfigurations"),
        registry: context.registry.clone(),
        authorization: context.authorization.clone(),
    })
}

struct MutatingWebhooks {
    hooks: Hooks,
    registry: Arc<Registry>,
    authorization: Authorization,
}

/// Why a webhook's word does not count, or that it said no.
pub enum Failed {
    /// It could not be asked: its failure policy decides.
    Calling(String),
    /// It refused, or did what nobody may.
    Refused(Box<Status>),
}

/// What is asked about these would decide whether they can be repaired: they are never asked about.
pub fn is_exempt(request: &Request<'_>) -> bool {
    request.call.kind.group == hooks::GROUP
        && matches!(
            &*request.call.kind.kind,
            "ValidatingWebhookConfiguration"
                | "MutatingWebhookConfiguration"
                | "ValidatingAdmissionPolicy"
                | "ValidatingAdmissionPolicyBinding"
                | "MutatingAdmissionPolicy"
                | "MutatingAdmissionPolicyBinding"
        )
}

#[async_trait]
impl Plugin for MutatingWebhooks {
    fn phases(&self) -> &'static [Phase] {
        &[Phase::Mutate, Phase::Before]
    }

    fn handles(&self, request: &Request<'_>) -> bool {
        !is_exempt(request) && !self.hooks.current().is_empty()
    }

    async fn mutate(
        &self,
        request: &Request<'_>,
        object: &mut Object,
        old: Option<&Object>,
    ) -> Result<(), Status> {
        let context = Context::new(&self.registry, &self.authorization);
        let reinvoked = request.reinvocation.begin(Mutator::Webhooks, object);
        for (index, hook) in self.hooks.current().hooks()?.iter().enumerate() {
            if reinvoked && !request.reinvocation.is_due(Mutator::Webhooks, &hook.uid) {
                continue;
            }
            let Some(invocation) = hook.wants(&context, request, Some(object), old).await? else { continue };
            let round = Round { number: usize::from(reinvoked), index };
            let outcome = self.change(&invocation, request, object, old, round).await;
            if apply_failure_policy(hook, request, outcome, "mutation", round)? {
                request.reinvocation.changed(Mutator::Webhooks);
            }
            if hook.reinvoked_if_needed() {
                request.reinvocation.invoked(Mutator::Webhooks, &hook.uid);
            }
        }
        request.reinvocation.end(Mutator::Webhooks, object);
        Ok(())
    }

    /// Webhooks are asked about deletions and connections too; there is nothing they could change.
    async fn before(
        &self,
        request: &Request<'_>,
        object: Option<&Object>,
        old: Option<&Object>,
    ) -> Result<(), Status> {
        let context = Context::new(&self.registry, &self.authorization);
        for (index, hook) in self.hooks.current().hooks()?.iter().enumerate() {
            let Some(invocation) = hook.wants(&context, request, object, old).await? else { continue };
            let versioned = Versioned::new(&self.registry, request, object, old, &invocation.kind).await?;
            let outcome = call_webhook(&self.registry, hook, request, &versioned, true).await.and_then(|answered| {
                match answered.patch.is_empty() {
                    true => Ok(false),
                    false => Err(refused(Status::internal(format!(
                        "admission webhook {:?} attempted to modify the object, which is not supported for this operation",
                        hook.spec.name
                    )))),
                }
            });
            apply_failure_policy(hook, request, outcome, "mutation", Round { number: 0, index })?;
        }
        Ok(())
    }
}

/// Where in the order of calls a webhook stood, for the audit log.
#[derive(Clone, Copy)]
pub struct Round {
    pub number: usize,
    pub index: usize,
}

impl MutatingWebhooks {
    /// Asks one webhook and does what it says; tells whether that changed anything.
    async fn change(
        &self,
        invocation: &Invocation,
        request: &Request<'_>,
        object: &mut Object,
        old: Option<&Object>,
        round: Round,
    ) -> Result<bool, Failed> {
        let hook = &invocation.hook;
        let versioned = Versioned::new(&self.registry, request, Some(object), old, &invocation.kind)
            .await
            .map_err(refused)?;
        let answered = call_webhook(&self.registry, hook, request, &versioned, true).await?;
        let changed = match answered.patch.is_empty() {
            true => None,
            false => apply(&self.registry, &versioned, &answered.patch).await.map_err(refused)?,
        };
        let annotation = json!({"configuration": hook.configuration, "webhook": hook.spec.name, "mutated": changed.is_some()});
        let place = format!("round_{}_index_{}", round.number, round.index);
        request.annotate(format!("mutation.webhook.admission.k8s.io/{place}"), annotation.to_string());
        if changed.is_some()
            && let Ok(patch) = serde_json::from_slice::<Value>(&answered.patch)
        {
            let annotation = json!({"configuration": hook.configuration, "webhook": hook.spec.name, "patch": patch, "patchType": "JSONPatch"});
            request
                .annotate_content(format!("patch.webhook.admission.k8s.io/{place}"), annotation.to_string());
        }
        match changed {
            Some(new) if new != *object => {
                *object = new;
                Ok(true)
            }
            _ => Ok(false),
        }
    }
}

/// The object after the patch; `None` when it says nothing new.
async fn apply(registry: &Registry, versioned: &Versioned, patch: &[u8]) -> Result<Option<Object>, Status> {
    let mut patched = versioned.object.clone();
    json_patch::apply(&mut patched, patch).map_err(|error| Status::internal(error.to_string()))?;
    if patched == versioned.object {
        return Ok(None);
    }
    versioned.take_back(registry, patched).await.map(Some)
}

/// Sends the review. An invalid response or a timeout is a failure to call the webhook.
pub async fn call_webhook(
    registry: &Registry,
    hook: &Hook,
    request: &Request<'_>,
    versioned: &Versioned,
    may_patch: bool,
) -> Result<WebhookVerdict, Failed> {
    let name = &hook.spec.name;
    let mut span = ferry_trace::span("admission.webhook");
    span.set("webhook", name.clone()).set("configuration", hook.configuration.clone());
    if request.call.dry_run && !matches!(hook.spec.side_effects.as_deref(), Some("None" | "NoneOnDryRun")) {
        let refusal = format!("admission webhook {name:?} does not support dry run");
        span.set("verdict", "unsupported");
        return Err(refused(Status::bad_request(refusal)));
    }
    let uid = uuid::Uuid::new_v4().to_string();
    let asked = async {
        let version = ReviewVersion::choose(&hook.spec.admission_review_versions)
            .map_err(|why| format!("could not create admission objects: {why}"))?;
        let body = review::encode(version, &uid, request, versioned).to_string().into_bytes();
        let body = call::post(registry, hook, body).await?;
        review::read(&body, version, &uid, may_patch)
            .map_err(|why| format!("received invalid webhook response: {why}"))
    };
    let began = std::time::Instant::now();
    let asked = span.in_scope(asked).await;
    let (is_rejected, code) = match &asked {
        Ok(answered) if answered.allowed => (false, 200),
        Ok(answered) => (true, answered.status.as_ref().map_or(403, |status| status.code)),
        Err(_) => (false, 600),
    };
    let kind = if may_patch { "admit" } else { "validating" };
    metrics::webhook(name, request.operation, kind, is_rejected, code, began.elapsed());
    let answered = asked.map_err(|why| {
        span.set("verdict", "failed").fail_unquoted(&why);
        Failed::Calling(format!("failed calling webhook {name:?}: {why}"))
    })?;
    for (key, value) in &answered.audit_annotations {
        request.annotate(format!("{name}/{key}"), value.clone());
    }
    for warning in &answered.warnings {
        request.warn(warning.clone());
    }
    span.set("verdict", if answered.allowed { "allowed" } else { "denied" });
    match answered.allowed {
        true => Ok(answered),
        false => Err(refused(review::refusal(name, answered.status))),
    }
}

/// What a webhook's outcome means for the request: a failure to call it is forgiven if its policy says so.
pub fn apply_failure_policy<T: Default>(
    hook: &Hook,
    request: &Request<'_>,
    outcome: Result<T, Failed>,
    sort: &str,
    round: Round,
) -> Result<T, Status> {
    match outcome {
        Ok(value) => Ok(value),
        Err(Failed::Refused(status)) => Err(*status),
        Err(Failed::Calling(why)) if hook.ignores_failure() => {
            tracing::warn!(webhook = hook.spec.name, why, "failed calling webhook, failing open");
            request.annotate(
                format!(
                    "failed-open.{sort}.webhook.admission.k8s.io/round_{}_index_{}",
                    round.number, round.index
                ),
                hook.spec.name.clone(),
            );
            Ok(T::default())
        }
        Err(Failed::Calling(why)) => Err(Status::internal(why)),
    }
}

fn refused(status: Status) -> Failed {
    Failed::Refused(Box::new(status))
}
