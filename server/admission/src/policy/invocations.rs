//! The bindings of a policy that match a request, and their parameters.

use std::fmt::{self, Display};
use std::sync::Arc;

use ferry_api::{Kind, Object};
use ferry_registry::Registry;
use serde_json::Value;

use super::params;
use super::policies::{Binding, Policy};
use crate::chain::Request;
use crate::expressions::{Context, namespace_of};

/// A policy is evaluated once for each of these.
pub struct Invocation<'p> {
    pub policy: &'p Policy,
    pub binding: &'p Binding,
    /// The version of the kind that the policy speaks.
    pub kind: Arc<Kind>,
    /// Null for a policy without parameters.
    pub params: Value,
}

/// A policy or binding that cannot be used: the policy's failure policy decides.
pub struct Misconfigured<'p> {
    pub policy: &'p Policy,
    pub binding: Option<&'p Binding>,
    why: String,
}

impl Display for Misconfigured<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = if self.binding.is_some() { "binding" } else { "policy" };
        write!(f, "failed to configure {what}: {}", self.why)
    }
}

pub fn invocations<'p>(
    policy: &'p Policy,
    registry: &Registry,
    context: &Context<'_>,
    request: &Request<'_>,
    object: Option<&Object>,
    old: Option<&Object>,
) -> Vec<Result<Invocation<'p>, Misconfigured<'p>>> {
    let wrong = |binding: Option<&'p Binding>, why: String| Err(Misconfigured { policy, binding, why });
    let kind = match policy.matching.version(context, request, object, old) {
        Ok(Some(kind)) => kind,
        Ok(None) => return Vec::new(),
        Err(status) => return vec![wrong(None, status.message)],
    };
    let mut found = Vec::new();
    for binding in &policy.bindings {
        let narrowed =
            binding.matching.as_ref().map_or(Ok(true), |own| own.narrows(context, request, object, old));
        match narrowed {
            Ok(true) => {}
            Ok(false) => continue,
            Err(status) => {
                found.push(wrong(Some(binding), status.message));
                continue;
            }
        }
        let (param_kind, reference) = (policy.spec.param_kind.as_ref(), binding.spec.param_ref.as_ref());
        match params::collect(registry, param_kind, reference, namespace_of(request)) {
            Ok(all) => found.extend(
                all.into_iter().map(|params| Ok(Invocation { policy, binding, kind: kind.clone(), params })),
            ),
            Err(why) => found.push(wrong(Some(binding), why)),
        }
    }
    found
}
