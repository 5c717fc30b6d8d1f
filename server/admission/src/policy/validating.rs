//! ValidatingAdmissionPolicy: CEL expressions that accept or refuse a request.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use ferry_api::status::Cause;
use ferry_api::{Object, Status};
use ferry_auth::Authorization;
use ferry_cel::Budget;
use ferry_cel::admission::POLICY_BUDGET;
use ferry_registry::Registry;
use serde_json::{Value, json};

use super::evaluation::Evaluation;
use super::invocations::{Invocation, invocations};
use super::policies::{Binding, Policies, Policy, PolicyKind, Validation};
use crate::chain::{Phase, Plugin, Request};
use crate::expressions::{self, Context, Verdict};
use crate::plugins;
use crate::versions::Versioned;
use crate::webhook::mutating::is_exempt;

/// A message that is longer, or that has several lines, is replaced.
const LONGEST_MESSAGE: usize = 5 << 10;
const LONGEST_ANNOTATION: usize = 10 << 10;

pub fn make(context: &plugins::Context) -> Arc<dyn Plugin> {
    Arc::new(ValidatingPolicies {
        policies: Policies::new(context.registry.clone(), PolicyKind::Validating),
        registry: context.registry.clone(),
        authorization: context.authorization.clone(),
    })
}

struct ValidatingPolicies {
    policies: Policies,
    registry: Arc<Registry>,
    authorization: Authorization,
}

/// A validation that did not hold, or could not be evaluated.
#[derive(Debug, Clone, PartialEq)]
struct Denial {
    index: usize,
    message: String,
    reason: Option<String>,
}

#[async_trait]
impl Plugin for ValidatingPolicies {
    fn phases(&self) -> &'static [Phase] {
        &[Phase::Validate]
    }

    fn handles(&self, request: &Request<'_>) -> bool {
        !is_exempt(request) && !self.policies.current().is_empty()
    }

    async fn validate(
        &self,
        request: &Request<'_>,
        object: Option<&Object>,
        old: Option<&Object>,
    ) -> Result<(), Status> {
        let context = Context::new(&self.registry, &self.authorization);
        let mut refusal = None;
        let mut published = Published::default();
        for policy in self.policies.current().policies()? {
            let mut span = ferry_trace::span("admission.policy");
            span.set("policy", policy.name.clone());
            let judging = self.judge(policy, &context, request, object, old, &mut published);
            let judged = span.in_scope(judging).await;
            if let Some(status) = judged? {
                span.set("verdict", "denied");
                refusal.get_or_insert(status);
            }
        }
        for (key, texts) in published.0 {
            request.annotate(key, texts.join(", "));
        }
        refusal.map_or(Ok(()), Err)
    }
}

/// What policies say to the audit log: one text for each key, with all that bindings and parameters made of it.
#[derive(Default)]
struct Published(BTreeMap<String, Vec<String>>);

impl Published {
    fn add(&mut self, policy: &Policy, key: &str, text: &str) {
        let texts = self.0.entry(format!("{}/{key}", policy.name)).or_default();
        if !texts.iter().any(|known| known == text) {
            texts.push(text.to_string());
        }
    }
}

impl ValidatingPolicies {
    /// The refusal of one policy, by the first of its bindings that denies.
    async fn judge(
        &self,
        policy: &Policy,
        context: &Context<'_>,
        request: &Request<'_>,
        object: Option<&Object>,
        old: Option<&Object>,
        published: &mut Published,
    ) -> Result<Option<Status>, Status> {
        let mut refusal = None;
        for invocation in invocations(policy, &self.registry, context, request, object, old) {
            let refused = match invocation {
                Ok(Invocation { binding, kind, params, .. }) => {
                    let versioned = Versioned::new(&self.registry, request, object, old, &kind).await?;
                    let denials = evaluate(policy, context, request, &versioned, &params, published).await;
                    act(policy, binding, request, &denials)
                }
                Err(_) if policy.ignores_failure() => None,
                Err(wrong) => Some(deny(request, policy, wrong.binding, &wrong.to_string(), None)),
            };
            refusal = refusal.or(refused);
        }
        Ok(refusal)
    }
}

/// Evaluates every validation; what is published for the audit log is published here.
async fn evaluate(
    policy: &Policy,
    context: &Context<'_>,
    request: &Request<'_>,
    versioned: &Versioned,
    params: &Value,
    published: &mut Published,
) -> Vec<Denial> {
    let about = expressions::request_value(request, versioned);
    let namespace = context.namespace(request);
    let mut bindings = context.bindings(request, versioned, &about, &namespace);
    bindings.set("params", params);
    let failed = |index: usize, message: String| match policy.ignores_failure() {
        true => None,
        false => Some(Denial { index, message, reason: None }),
    };
    if !policy.conditions.is_empty() {
        match context.judge_with(&policy.conditions, &bindings, request.call.user).await {
            Verdict::Holds => {}
            Verdict::Fails { .. } => return Vec::new(),
            Verdict::Error(why) => return failed(0, why).into_iter().collect(),
        }
    }
    let mut budget = Budget::new(POLICY_BUDGET);
    let mut evaluation = Evaluation::new(policy, context, request, bindings);
    let mut denials = Vec::new();
    for (index, validation) in policy.validations.iter().enumerate() {
        match evaluation.run(&validation.expression, &mut budget).await.map(|outcome| outcome.as_bool()) {
            Ok(Some(true)) => {}
            Ok(_) => {
                let message = message(&mut evaluation, validation, &mut budget).await;
                let reason = Some(validation.reason.clone().unwrap_or_else(|| "Invalid".into()));
                denials.push(Denial { index, message, reason });
            }
            Err(why) => denials.extend(failed(index, why)),
        }
    }
    for (key, expression) in &policy.audit_annotations {
        match evaluation.run(expression, &mut budget).await {
            Ok(outcome) => {
                let text = outcome.as_text().unwrap_or("").trim();
                if !text.is_empty() {
                    let end = text.char_indices().map(|(at, _)| at).find(|at| *at >= LONGEST_ANNOTATION);
                    let text = &text[..end.unwrap_or(text.len())];
                    published.add(policy, key, text);
                }
            }
            Err(why) => denials.extend(failed(policy.validations.len(), why)),
        }
    }
    denials
}

/// What is said of a validation that does not hold: the message made for this object, the fixed one,
/// or the expression itself.
async fn message(
    evaluation: &mut Evaluation<'_, '_>,
    validation: &Validation,
    budget: &mut Budget,
) -> String {
    if let Some(expression) = &validation.message_expression
        && let Ok(outcome) = evaluation.run(expression, budget).await
    {
        let message = outcome.as_text().unwrap_or("").trim();
        if !message.is_empty() && message.len() <= LONGEST_MESSAGE && !message.contains('\n') {
            return message.to_string();
        }
    }
    match validation.message.trim() {
        "" => format!("failed expression: {}", validation.expression.source.trim()),
        message => message.to_string(),
    }
}

/// Does what the binding says with what was found: deny, warn, or write it down.
fn act(policy: &Policy, binding: &Binding, request: &Request<'_>, denials: &[Denial]) -> Option<Status> {
    let mut refusal = None;
    for denial in denials {
        for action in &binding.spec.validation_actions {
            match action.as_str() {
                "Deny" => {
                    let reason = denial.reason.as_deref();
                    refusal
                        .get_or_insert_with(|| deny(request, policy, Some(binding), &denial.message, reason));
                }
                "Warn" => request.warn(format!(
                    "Validation failed for ValidatingAdmissionPolicy '{}' with binding '{}': {}",
                    policy.name, binding.name, denial.message
                )),
                "Audit" => {
                    let failure = json!([{
                        "message": denial.message, "policy": policy.name, "binding": binding.name,
                        "expressionIndex": denial.index, "validationActions": binding.spec.validation_actions,
                    }]);
                    let key = "validation.policy.admission.k8s.io/validation_failure".to_string();
                    request.annotate(key, failure.to_string());
                }
                _ => {}
            }
        }
    }
    refusal
}

fn deny(
    request: &Request<'_>,
    policy: &Policy,
    binding: Option<&Binding>,
    why: &str,
    reason: Option<&str>,
) -> Status {
    let by = binding.map_or_else(String::new, |binding| format!(" with binding '{}'", binding.name));
    let message = format!("ValidatingAdmissionPolicy '{}'{by} denied request: {why}", policy.name);
    let mut status = request.forbid(&message);
    let reason = reason.unwrap_or("Invalid");
    status.reason = reason.to_string();
    status.code = match reason {
        "Forbidden" => 403,
        "Unauthorized" => 401,
        "RequestEntityTooLarge" => 413,
        _ => 422,
    };
    if let Some(details) = &mut status.details {
        details.causes.push(Cause { message, ..Cause::default() });
    }
    status
}
