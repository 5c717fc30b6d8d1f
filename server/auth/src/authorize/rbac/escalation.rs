//! Prevention of privilege escalation.
//!
//! Writing a role needs every permission in it, or the verb `escalate` on roles. Writing a binding
//! needs every permission of the role it refers to, or the verb `bind` on that role. The registry
//! strategies for roles and bindings call [`Rbac::check_role`] and [`Rbac::check_binding`].

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::rbac::v1::{PolicyRule, RoleRef};

use super::{
    GROUP, Rbac,
    rule::{ALL, path_matches, strings},
};
use crate::{
    attributes::{Attributes, quote, quote_list},
    authorize::Authorization,
    user::{MASTERS, User},
};

/// Why a role or binding may not be written.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum EscalationError {
    /// 403; the text goes behind `… is forbidden: `.
    #[error("{0}")]
    Forbidden(String),
    /// The role a binding refers to does not exist: 404, of the kind that was to be written.
    #[error("{resource}.{GROUP} {} not found", quote(role))]
    RoleNotFound { resource: &'static str, role: String },
    /// A binding that refers to neither kind of role.
    #[error("unsupported role reference kind: {}", quote(.0))]
    UnsupportedRoleKind(String),
}

/// A role about to be written. `resource` is `roles` or `clusterroles`.
pub struct RoleWrite<'a> {
    pub user: &'a User,
    pub resource: &'a str,
    /// Empty for a ClusterRole.
    pub namespace: &'a str,
    /// The name in the URL: empty when creating.
    pub request_name: &'a str,
    pub rules: &'a [PolicyRule],
    /// The new or the old object has an aggregation rule, which can gather anything.
    pub aggregates: bool,
}

impl Rbac {
    pub async fn check_role(
        &self,
        write: RoleWrite<'_>,
        authorization: &Authorization,
    ) -> Result<(), EscalationError> {
        if write.user.is_in(MASTERS) {
            return Ok(());
        }
        let escalate = Attributes {
            name: write.request_name,
            namespace: write.namespace,
            ..Attributes::resource(write.user, "escalate", GROUP, write.resource)
        };
        if authorization.authorize(&escalate).await.is_allowed() {
            return Ok(());
        }
        self.confirm_no_escalation(write.user, write.namespace, write.rules)?;
        if write.aggregates
            && self.confirm_no_escalation(write.user, write.namespace, &full_authority()).is_err()
        {
            let refusal = "must have cluster-admin privileges to use the aggregationRule";
            return Err(EscalationError::Forbidden(refusal.to_owned()));
        }
        Ok(())
    }

    /// `namespace` is the binding's, empty for a ClusterRoleBinding.
    pub async fn check_binding(
        &self,
        user: &User,
        role_ref: &RoleRef,
        namespace: &str,
        authorization: &Authorization,
    ) -> Result<(), EscalationError> {
        if user.is_in(MASTERS) {
            return Ok(());
        }
        let resource = match role_ref.kind.as_str() {
            "ClusterRole" => Some("clusterroles"),
            "Role" => Some("roles"),
            _ => None,
        };
        if let Some(resource) = resource {
            let bind = Attributes {
                name: &role_ref.name,
                namespace,
                ..Attributes::resource(user, "bind", role_ref.api_group.as_deref().unwrap_or(GROUP), resource)
            };
            if authorization.authorize(&bind).await.is_allowed() {
                return Ok(());
            }
        }
        let rules = self.role_reference_rules(role_ref, namespace).map_err(|_| match resource {
            None => EscalationError::UnsupportedRoleKind(role_ref.kind.clone()),
            Some(_) => {
                let resource = if namespace.is_empty() { "clusterrolebindings" } else { "rolebindings" };
                EscalationError::RoleNotFound { resource, role: role_ref.name.clone() }
            }
        })?;
        self.confirm_no_escalation(user, namespace, &rules)
    }

    fn confirm_no_escalation(
        &self,
        user: &User,
        namespace: &str,
        rules: &[PolicyRule],
    ) -> Result<(), EscalationError> {
        let (held, resolution_errors) = self.policy_rules_for(user, namespace);
        let missing = covers(&held, rules);
        if missing.is_empty() {
            return Ok(());
        }
        let descriptions: BTreeSet<String> = compact(missing).iter().map(describe).collect();
        let mut message = format!(
            "user {} (groups={}) is attempting to grant RBAC permissions not currently held:\n{}",
            quote(&user.name),
            quote_list(&user.groups),
            descriptions.into_iter().collect::<Vec<_>>().join("\n")
        );
        if !resolution_errors.is_empty() {
            message.push_str(&format!("; resolution errors: [{}]", resolution_errors.join(" ")));
        }
        Err(EscalationError::Forbidden(message))
    }
}

/// Everything: what an aggregation rule may end up granting.
pub fn full_authority() -> [PolicyRule; 2] {
    let all = || Some(vec![ALL.to_owned()]);
    [
        PolicyRule {
            verbs: vec![ALL.to_owned()],
            api_groups: all(),
            resources: all(),
            ..PolicyRule::default()
        },
        PolicyRule { verbs: vec![ALL.to_owned()], non_resource_urls: all(), ..PolicyRule::default() },
    ]
}

/// The parts of `wanted` that no rule of `held` covers, each with one verb, one resource and at
/// most one name. Empty if all is covered.
pub fn covers(held: &[PolicyRule], wanted: &[PolicyRule]) -> Vec<PolicyRule> {
    let atoms = wanted.iter().flat_map(break_down);
    atoms
        .filter(|atom| !held.iter().any(|rule| atom.is_covered_by(rule)))
        .map(|atom| atom.to_rule())
        .collect()
}

/// The smallest thing a rule can grant.
enum Atom<'a> {
    Resource { group: &'a str, resource: &'a str, name: Option<&'a str>, verb: &'a str },
    Path { path: &'a str, verb: &'a str },
}

fn break_down(rule: &PolicyRule) -> Vec<Atom<'_>> {
    let names = strings(&rule.resource_names);
    let names: Vec<Option<&str>> =
        if names.is_empty() { vec![None] } else { names.iter().map(|name| Some(name.as_str())).collect() };
    let mut atoms = Vec::new();
    for group in strings(&rule.api_groups) {
        for resource in strings(&rule.resources) {
            for verb in &rule.verbs {
                atoms.extend(names.iter().map(|name| Atom::Resource { group, resource, name: *name, verb }));
            }
        }
    }
    for path in strings(&rule.non_resource_urls) {
        atoms.extend(rule.verbs.iter().map(|verb| Atom::Path { path, verb }));
    }
    atoms
}

impl Atom<'_> {
    fn is_covered_by(&self, rule: &PolicyRule) -> bool {
        let has = |list: &[String], item: &str| list.iter().any(|held| held == ALL || held == item);
        match *self {
            Atom::Path { path, verb } => {
                // A rule bound to names never speaks of paths.
                has(&rule.verbs, verb)
                    && strings(&rule.resource_names).is_empty()
                    && strings(&rule.non_resource_urls).iter().any(|held| path_matches(held, path))
            }
            Atom::Resource { group, resource, name, verb } => {
                let names = strings(&rule.resource_names);
                let name_covered =
                    names.is_empty() || name.is_some_and(|name| names.iter().any(|held| held == name));
                has(&rule.verbs, verb)
                    && has(strings(&rule.api_groups), group)
                    && covers_resource(strings(&rule.resources), resource)
                    && name_covered
            }
        }
    }

    fn to_rule(&self) -> PolicyRule {
        let one = |text: &str| vec![text.to_owned()];
        match *self {
            Atom::Path { path, verb } => {
                PolicyRule { verbs: one(verb), non_resource_urls: Some(one(path)), ..PolicyRule::default() }
            }
            Atom::Resource { group, resource, name, verb } => PolicyRule {
                verbs: one(verb),
                api_groups: Some(one(group)),
                resources: Some(one(resource)),
                resource_names: name.map(one),
                ..PolicyRule::default()
            },
        }
    }
}

fn covers_resource(held: &[String], resource: &str) -> bool {
    held.iter().any(|pattern| {
        if pattern == ALL || pattern == resource {
            return true;
        }
        match (pattern.strip_prefix("*/"), resource.split_once('/')) {
            (Some(held_subresource), Some((_, subresource))) => held_subresource == subresource,
            _ => false,
        }
    })
}

/// Joins atoms that differ only in their verb, for a readable refusal.
fn compact(atoms: Vec<PolicyRule>) -> Vec<PolicyRule> {
    let mut paths = Vec::new();
    let mut resources: BTreeMap<[Option<Vec<String>>; 3], PolicyRule> = BTreeMap::new();
    for atom in atoms {
        if atom.non_resource_urls.is_some() {
            paths.push(atom);
            continue;
        }
        let key = [atom.api_groups.clone(), atom.resources.clone(), atom.resource_names.clone()];
        match resources.get_mut(&key) {
            Some(joined) => joined.verbs.extend(atom.verbs),
            None => {
                resources.insert(key, atom);
            }
        }
    }
    paths.extend(resources.into_values());
    paths
}

fn describe(rule: &PolicyRule) -> String {
    let fields = [
        ("APIGroups", strings(&rule.api_groups)),
        ("Resources", strings(&rule.resources)),
        ("NonResourceURLs", strings(&rule.non_resource_urls)),
        ("ResourceNames", strings(&rule.resource_names)),
        ("Verbs", &rule.verbs),
    ];
    let given = fields.iter().filter(|(_, values)| !values.is_empty());
    let given: Vec<String> = given.map(|(name, values)| format!("{name}:{}", quote_list(values))).collect();
    format!("{{{}}}", given.join(", "))
}
