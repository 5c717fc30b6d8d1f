//! Matches requests with a webhook or policy: rules, excluded rules, and selectors.

use std::sync::Arc;

use ferry_api::selector::LabelSelector;
use ferry_api::{Kind, Object, Status};
use serde::Deserialize;
use serde_json::Value;

use crate::chain::Request;
use crate::expressions::Context;
use crate::versions;
use crate::webhook::rules::{RequestAttributes, Rule};

/// As it is written: the fields that webhooks have themselves and policies in `matchConstraints`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Constraints {
    pub namespace_selector: Option<Value>,
    pub object_selector: Option<Value>,
    /// Webhooks call them `rules`.
    #[serde(alias = "rules")]
    pub resource_rules: Vec<Rule>,
    pub exclude_resource_rules: Vec<Rule>,
    pub match_policy: Option<String>,
}

/// Constraints with their selectors read.
pub struct Matching {
    rules: Vec<Rule>,
    excluded: Vec<Rule>,
    namespaces: Result<LabelSelector, String>,
    objects: Result<LabelSelector, String>,
    exact: bool,
}

impl Matching {
    pub fn new(constraints: &Constraints) -> Matching {
        let selector = |value: &Option<Value>| match value {
            // Absent means everything here, unlike in other places.
            None => Ok(LabelSelector::everything()),
            Some(value) => LabelSelector::from_structured(Some(value)).map_err(|error| error.to_string()),
        };
        Matching {
            rules: constraints.resource_rules.clone(),
            excluded: constraints.exclude_resource_rules.clone(),
            namespaces: selector(&constraints.namespace_selector),
            objects: selector(&constraints.object_selector),
            exact: constraints.match_policy.as_deref() == Some("Exact"),
        }
    }

    /// The version of the kind in which the request is spoken of; `None` when it is not.
    pub fn version(
        &self,
        context: &Context<'_>,
        request: &Request<'_>,
        object: Option<&Object>,
        old: Option<&Object>,
    ) -> Result<Option<Arc<Kind>>, Status> {
        let Some(kind) = self.version_of_rules(context, request) else { return Ok(None) };
        Ok(self.selects(context, request, object, old)?.then_some(kind))
    }

    /// A binding need not have rules: then the policy's own count.
    pub fn narrows(
        &self,
        context: &Context<'_>,
        request: &Request<'_>,
        object: Option<&Object>,
        old: Option<&Object>,
    ) -> Result<bool, Status> {
        let ruled = match self.rules.is_empty() {
            true => !self.excluded.iter().any(|rule| rule.matches(attributes(request, request.call.kind))),
            false => self.version_of_rules(context, request).is_some(),
        };
        Ok(ruled && self.selects(context, request, object, old)?)
    }

    fn selects(
        &self,
        context: &Context<'_>,
        request: &Request<'_>,
        object: Option<&Object>,
        old: Option<&Object>,
    ) -> Result<bool, Status> {
        let objects = self.objects.as_ref().map_err(Status::internal)?;
        let selected = |one: &Object| objects.matches(|key| one.label(key));
        if !objects.is_everything() && ![object, old].into_iter().flatten().any(selected) {
            return Ok(false);
        }
        let namespaces = self.namespaces.as_ref().map_err(Status::internal)?;
        Ok(namespaces.is_everything() || context.namespace_matches(namespaces, request, object)?)
    }

    /// The request's own version, or (unless it must be exact) another one of the same resource.
    fn version_of_rules(&self, context: &Context<'_>, request: &Request<'_>) -> Option<Arc<Kind>> {
        if self.excluded.iter().any(|rule| rule.matches(attributes(request, request.call.kind))) {
            return None;
        }
        if self.rules.iter().any(|rule| rule.matches(attributes(request, request.call.kind))) {
            return Some(Arc::new(request.call.kind.clone()));
        }
        if self.exact {
            return None;
        }
        let equivalents = versions::equivalents(context.registry, request.call.kind);
        self.rules
            .iter()
            .find_map(|rule| equivalents.iter().find(|kind| rule.matches(attributes(request, kind))).cloned())
    }
}

fn attributes<'a>(request: &'a Request<'_>, kind: &'a Kind) -> RequestAttributes<'a> {
    RequestAttributes {
        operation: request.operation,
        kind,
        subresource: request.call.subresource,
        name: request.name,
    }
}
