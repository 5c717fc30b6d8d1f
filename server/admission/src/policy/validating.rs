//! ValidatingAdmissionPolicy: expressions that say yes or no, without anyone outside being asked.

use std::sync::Arc;

use async_trait::async_trait;
use ferry_api::status::Cause;
use ferry_api::{Object, Status};
use ferry_auth::Authorization;
use ferry_cel::admission::POLICY_BUDGET;
use ferry_cel::{Bindings, Budget, Failure, Outcome};
use ferry_registry::Registry;
use serde_json::{Value, json};

use super::params;
use super::policies::{Binding, Expression, Policies, Policy, Validation};
use crate::chain::{Plugin, Request};
use crate::expressions::{self, Context, Verdict, namespace_of};
use crate::plugins;
use crate::versions::Versioned;
use crate::webhook::mutating::is_exempt;

/// A message that is longer, or that has several lines, is replaced.
const LONGEST_MESSAGE: usize = 5 << 10;
const LONGEST_ANNOTATION: usize = 10 << 10;

pub fn make(context: &plugins::Context) -> Arc<dyn Plugin> {
    Arc::new(ValidatingPolicies {
        policies: Policies::new(context.registry.clone()),
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
        for policy in self.policies.current().iter() {
            let mut span = ferry_trace::span("admission.policy");
            span.set("policy", policy.name.clone());
            let judged = span.in_scope(self.judge(policy, &context, request, object, old)).await;
            if let Some(status) = judged? {
                span.set("verdict", "denied");
                refusal.get_or_insert(status);
            }
        }
        refusal.map_or(Ok(()), Err)
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
    ) -> Result<Option<Status>, Status> {
        let misconfigured = |binding: Option<&Binding>, why: String| match policy.ignores_failure() {
            true => None,
            false => {
                let what = if binding.is_some() { "binding" } else { "policy" };
                Some(deny(request, policy, binding, &format!("failed to configure {what}: {why}"), None))
            }
        };
        let kind = match policy.matching.version(context, request, object, old) {
            Ok(Some(kind)) => kind,
            Ok(None) => return Ok(None),
            Err(status) => return Ok(misconfigured(None, status.message)),
        };
        let versioned = Versioned::new(&self.registry, request, object, old, &kind)?;
        let mut refusal = None;
        for binding in &policy.bindings {
            match binding.matching.as_ref().map_or(Ok(true), |own| own.narrows(context, request, object, old))
            {
                Ok(true) => {}
                Ok(false) => continue,
                Err(status) => {
                    refusal = refusal.or(misconfigured(Some(binding), status.message));
                    continue;
                }
            }
            let (kind, reference) = (policy.spec.param_kind.as_ref(), binding.spec.param_ref.as_ref());
            let params = match params::collect(&self.registry, kind, reference, namespace_of(request)) {
                Ok(params) => params,
                Err(why) => {
                    refusal = refusal.or(misconfigured(Some(binding), why));
                    continue;
                }
            };
            for params in params {
                let denials = evaluate(policy, context, request, &versioned, &params).await;
                refusal = refusal.or(act(policy, binding, request, &denials));
            }
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
        match context.judge_with(&policy.conditions, &bindings, request.user).await {
            Verdict::Holds => {}
            Verdict::Fails { .. } => return Vec::new(),
            Verdict::Error(why) => return failed(0, why).into_iter().collect(),
        }
    }
    let mut budget = Budget::new(POLICY_BUDGET);
    let mut evaluation = Evaluation { policy, context, request, bindings, done: Vec::new() };
    let mut denials = Vec::new();
    for (index, validation) in policy.validations.iter().enumerate() {
        match evaluation.run(&validation.expression, &mut budget).await.map(|outcome| outcome.as_bool()) {
            Ok(Some(true)) => {}
            Ok(_) => {
                let message = evaluation.message(validation, &mut budget).await;
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
                    request.annotate(format!("{}/{key}", policy.name), text.to_string());
                }
            }
            Err(why) => denials.extend(failed(policy.validations.len(), why)),
        }
    }
    denials
}

/// The expressions of one policy over one request; each variable is evaluated once, when first needed.
struct Evaluation<'a, 'v> {
    policy: &'a Policy,
    context: &'a Context<'a>,
    request: &'a Request<'a>,
    bindings: Bindings<'v>,
    done: Vec<&'a str>,
}

impl<'v> Evaluation<'_, 'v> {
    async fn run(&mut self, expression: &Expression, budget: &mut Budget) -> Result<Outcome<'v>, String> {
        let said =
            |why: String| format!("expression '{}' resulted in error: {why}", expression.source.trim());
        let program = expression.program.as_ref().map_err(Clone::clone)?;
        for variable in self.policy.needed(program) {
            if self.done.contains(&variable.name.as_str()) {
                continue;
            }
            let outcome = match &variable.expression.program {
                Ok(program) => {
                    self.context.evaluate(program, &self.bindings, budget, self.request.user).await
                }
                Err(why) => Err(Failure::Error(why.clone())),
            };
            self.bindings.set_variable(&variable.name, outcome);
            self.done.push(&variable.name);
        }
        let outcome = self.context.evaluate(program, &self.bindings, budget, self.request.user).await;
        outcome.map_err(|failure| said(failure.to_string()))
    }

    /// What is said of a validation that does not hold: the message made for this object, the fixed one,
    /// or the expression itself.
    async fn message(&mut self, validation: &Validation, budget: &mut Budget) -> String {
        if let Some(expression) = &validation.message_expression
            && let Ok(outcome) = self.run(expression, budget).await
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
