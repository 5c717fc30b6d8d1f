//! MutatingAdmissionPolicy: CEL expressions that change an object.

use std::sync::Arc;

use async_trait::async_trait;
use ferry_api::status::Cause;
use ferry_api::{Object, Status};
use ferry_auth::Authorization;
use ferry_cel::Budget;
use ferry_cel::admission::POLICY_BUDGET;
use ferry_patch::{PatchError, json_patch, managed_fields};
use ferry_registry::Registry;
use ferry_registry::verbs::Operation;
use serde_json::Value;

use super::evaluation::Evaluation;
use super::invocations::{Invocation, invocations};
use super::policies::{Binding, Expression, Mutation, Policies, Policy, PolicyKind};
use crate::chain::{Phase, Plugin, Request};
use crate::expressions::{self, Context, Verdict};
use crate::plugins;
use crate::reinvocation::Mutator;
use crate::versions::Versioned;
use crate::webhook::mutating::is_exempt;

pub fn make(context: &plugins::Context) -> Arc<dyn Plugin> {
    Arc::new(MutatingPolicies {
        policies: Policies::new(context.registry.clone(), PolicyKind::Mutating),
        registry: context.registry.clone(),
        authorization: context.authorization.clone(),
    })
}

struct MutatingPolicies {
    policies: Policies,
    registry: Arc<Registry>,
    authorization: Authorization,
}

/// Why a policy could not do what it is there for.
struct Failed<'p> {
    policy: &'p Policy,
    binding: Option<&'p Binding>,
    why: String,
    reason: Option<&'static str>,
}

#[async_trait]
impl Plugin for MutatingPolicies {
    fn phases(&self) -> &'static [Phase] {
        &[Phase::Mutate]
    }

    fn handles(&self, request: &Request<'_>) -> bool {
        matches!(request.operation, Operation::Create | Operation::Update)
            && !is_exempt(request)
            && !self.policies.current().is_empty()
    }

    async fn mutate(
        &self,
        request: &Request<'_>,
        object: &mut Object,
        old: Option<&Object>,
    ) -> Result<(), Status> {
        let context = Context::new(&self.registry, &self.authorization);
        let reinvoked = request.reinvocation.begin(Mutator::Policies, object);
        let policies = self.policies.current();
        // All are chosen by the object as it came, whatever those before them make of it.
        let mut chosen = Vec::new();
        for policy in policies.policies()? {
            chosen.extend(invocations(policy, &self.registry, &context, request, Some(object), old));
        }
        let mut failures: Vec<Failed<'_>> = Vec::new();
        for invocation in chosen {
            let invocation = match invocation {
                Ok(invocation) => invocation,
                Err(wrong) => {
                    let (policy, binding, why) = (wrong.policy, wrong.binding, wrong.to_string());
                    failures.push(Failed { policy, binding, why, reason: None });
                    continue;
                }
            };
            let member = member(&invocation);
            if reinvoked && !request.reinvocation.is_due(Mutator::Policies, &member) {
                continue;
            }
            let mut span = ferry_trace::span("admission.policy");
            span.set("policy", invocation.policy.name.clone());
            let before = object.clone();
            let changing = self.change(&invocation, &context, request, object, old);
            let Some(whys) = span.in_scope(changing).await? else { continue };
            failures.extend(whys.into_iter().map(|why| Failed {
                policy: invocation.policy,
                binding: Some(invocation.binding),
                why,
                reason: Some("Invalid"),
            }));
            if *object != before {
                span.set("verdict", "changed");
                request.reinvocation.changed(Mutator::Policies);
            }
            if invocation.policy.is_reinvoked_if_needed() {
                request.reinvocation.invoked(Mutator::Policies, &member);
            }
        }
        request.reinvocation.end(Mutator::Policies, object);
        failures.retain(|failed| !failed.policy.ignores_failure());
        refusal(request, &failures).map_or(Ok(()), Err)
    }
}

/// Names an invocation among those of one request.
fn member(invocation: &Invocation<'_>) -> String {
    let param = |field: &str| invocation.params.pointer(field).and_then(Value::as_str).unwrap_or("");
    let (policy, binding) = (&invocation.policy.name, &invocation.binding.name);
    format!("{policy}/{binding}/{}/{}", param("/metadata/namespace"), param("/metadata/name"))
}

impl MutatingPolicies {
    /// Does what the policy says, one mutation after the other; tells what could not be done. `None` when its
    /// conditions do not hold.
    async fn change(
        &self,
        invocation: &Invocation<'_>,
        context: &Context<'_>,
        request: &Request<'_>,
        object: &mut Object,
        old: Option<&Object>,
    ) -> Result<Option<Vec<String>>, Status> {
        let policy = invocation.policy;
        let mut failures = Vec::new();
        for (index, mutation) in policy.mutations.iter().enumerate() {
            let versioned =
                Versioned::new(&self.registry, request, Some(object), old, &invocation.kind).await?;
            let about = expressions::request_value(request, &versioned);
            let namespace = context.namespace(request);
            let mut bindings = context.bindings(request, &versioned, &about, &namespace);
            bindings.set("params", &invocation.params);
            if index == 0 && !policy.conditions.is_empty() {
                match context.judge_with(&policy.conditions, &bindings, request.call.user).await {
                    Verdict::Holds => {}
                    Verdict::Fails { .. } => return Ok(None),
                    Verdict::Error(why) => return Ok(Some(vec![why])),
                }
            }
            let mut evaluation = Evaluation::new(policy, context, request, bindings);
            match changed(mutation, &mut evaluation, &versioned).await {
                Ok(Some(value)) => *object = versioned.take_back(&self.registry, value).await?,
                Ok(None) => {}
                Err(why) => failures.push(why),
            }
        }
        Ok(Some(failures))
    }
}

/// The object after the mutation; `None` when it says nothing new.
async fn changed(
    mutation: &Mutation,
    evaluation: &mut Evaluation<'_, '_>,
    versioned: &Versioned,
) -> Result<Option<Value>, String> {
    let mut budget = Budget::new(POLICY_BUDGET);
    let mut run = async |expression: &Expression| -> Result<Value, String> {
        let outcome = evaluation.run(expression, &mut budget).await?;
        outcome
            .to_json()
            .ok_or_else(|| format!("unsupported return type from expression: {}", outcome.type_name()))
    };
    let value = match mutation {
        Mutation::ApplyConfiguration(expression) => {
            let configuration = run(expression).await?;
            laid_over(versioned, configuration).map_err(|why| format!("error applying patch: {why}"))?
        }
        Mutation::JsonPatch(expression) => patched(versioned, &run(expression).await?)?,
    };
    Ok((value != versioned.object).then_some(value))
}

/// The object with the configuration on top of it, element by element, as apply merges.
fn laid_over(versioned: &Versioned, configuration: Value) -> Result<Value, String> {
    let schema = versioned.schema().ok_or("the kind has no schema")?;
    let object = |value: Value| Object::from_value(value).ok_or("no object");
    let (mut live, mut configuration) = (object(versioned.object.clone())?, object(configuration)?);
    let (api_version, kind) = (live.api_version().to_string(), live.kind().to_string());
    configuration.set_type(&api_version, &kind);
    managed_fields::overlay(&mut live, &configuration, &schema).map_err(|error| error.to_string())?;
    Ok(live.into_value())
}

/// The object after the patch; as it was, where the patch tests for something else.
fn patched(versioned: &Versioned, patch: &Value) -> Result<Value, String> {
    let mut value = versioned.object.clone();
    match json_patch::apply(&mut value, patch.to_string().as_bytes()) {
        Ok(()) => Ok(value),
        Err(PatchError::TestFailed(_)) => Ok(versioned.object.clone()),
        Err(error) => Err(format!("JSON Patch: {error}")),
    }
}

/// What the client is told of policies that failed: the first in the message, all in the details.
fn refusal(request: &Request<'_>, failures: &[Failed<'_>]) -> Option<Status> {
    let messages: Vec<String> = failures
        .iter()
        .map(|failed| match failed.binding {
            Some(binding) => format!(
                "policy '{}' with binding '{}' denied request: {}",
                failed.policy.name, binding.name, failed.why
            ),
            None => format!("policy {:?} denied request: {}", failed.policy.name, failed.why),
        })
        .collect();
    let mut status = request.forbid("admission request denied by policy");
    status.message = messages.first()?.clone();
    if let Some(reason) = failures.first().and_then(|failed| failed.reason) {
        status.reason = reason.to_string();
    }
    if let Some(details) = &mut status.details {
        details.causes.extend(messages.into_iter().map(|message| Cause { message, ..Cause::default() }));
    }
    Some(status)
}
