//! All rules that are granted to a subject, indexed by resource.

use std::{collections::HashMap, sync::Arc};

use super::rule::{ALL, ResourcePattern, Rule, Subresource, VerbSet, asked, strings};
use crate::attributes::Attributes;

/// The rules of all roles bound to a subject. A request looks at the rules that name its resource
/// and at those that name every resource, never at the rest.
#[derive(Default)]
pub(super) struct Grants {
    by_resource: HashMap<Box<str>, ResourceGrants>,
    paths: Vec<Grant>,
    /// Bindings to roles that do not exist: an administrator wants to read that in the refusal.
    pub(super) missing_roles: Vec<String>,
}

/// What was granted on one resource. Most refusals are of a verb that none of the rules has; those
/// need not look at each.
#[derive(Default)]
struct ResourceGrants {
    verbs: VerbSet,
    grants: Vec<ResourceGrant>,
}

struct ResourceGrant {
    /// `None` is any, including none.
    subresource: Option<Box<str>>,
    grant: Grant,
}

/// A rule of a shared role, and the sentence that names the binding it came through.
#[derive(Clone)]
struct Grant {
    role: Arc<[Rule]>,
    rule: usize,
    source: Arc<str>,
}

impl Grant {
    fn rule(&self) -> &Rule {
        &self.role[self.rule]
    }
}

impl Grants {
    pub(super) fn add(&mut self, role: &Arc<[Rule]>, source: &Arc<str>) {
        for (index, rule) in role.iter().enumerate() {
            let grant = Grant { role: role.clone(), rule: index, source: source.clone() };
            if !strings(&rule.policy.non_resource_urls).is_empty() {
                self.paths.push(grant.clone());
            }
            for pattern in
                strings(&rule.policy.resources).iter().filter_map(|written| ResourcePattern::parse(written))
            {
                let subresource = match pattern.subresource {
                    Subresource::Any => None,
                    Subresource::Exactly(name) => Some(name.into()),
                };
                let entry = self.by_resource.entry(pattern.resource.into()).or_default();
                entry.verbs.unite(rule.verb_set());
                entry.grants.push(ResourceGrant { subresource, grant: grant.clone() });
            }
        }
    }

    /// The source of the first rule that allows the request.
    pub(super) fn allowing(&self, attributes: &Attributes<'_>) -> Option<&Arc<str>> {
        if !attributes.is_resource_request {
            let allows = |grant: &&Grant| {
                let rule = grant.rule();
                rule.allows_verb(attributes.verb) && rule.allows_path(attributes.path)
            };
            return self.paths.iter().find(allows).map(|grant| &grant.source);
        }
        let (resource, subresource) = asked(attributes);
        let named = self.by_resource.get(resource).map(|granted| (granted, subresource));
        let wildcard = self.by_resource.get(ALL).filter(|_| resource != ALL);
        let wildcard = wildcard.map(|granted| (granted, attributes.subresource));
        named
            .into_iter()
            .chain(wildcard)
            .filter(|(granted, _)| granted.verbs.may_contain(attributes.verb))
            .flat_map(|(granted, asked)| granted.grants.iter().map(move |candidate| (candidate, asked)))
            .filter(|(candidate, asked)| {
                candidate.subresource.as_deref().is_none_or(|required| required == *asked)
            })
            .map(|(candidate, _)| &candidate.grant)
            .find(|grant| {
                let rule = grant.rule();
                rule.allows_verb(attributes.verb)
                    && rule.allows_group(attributes.api_group)
                    && rule.allows_name(attributes.name)
            })
            .map(|grant| &grant.source)
    }
}
