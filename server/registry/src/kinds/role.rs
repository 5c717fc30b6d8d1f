//! Role and ClusterRole: every rule names verbs, and what they are for.

use ferry_api::FieldErrors;
use k8s_openapi::api::rbac::v1::{ClusterRole, PolicyRule, Role};
use serde_json::{Value, json};

use super::checks::{self, Path};
use crate::strategy::{NameRule, Rules, StrategyOptions, Typed};

pub static STRATEGY: Typed<Role, RoleRules> = Typed::new(RoleRules);
pub static CLUSTER_STRATEGY: Typed<ClusterRole, RoleRules> = Typed::new(RoleRules);

pub struct RoleRules;

const TRAITS: StrategyOptions =
    StrategyOptions { name: NameRule::PathSegment, create_on_update: true, ..StrategyOptions::PLAIN };

impl Rules<Role> for RoleRules {
    fn validate(&self, role: &Role, errors: &mut FieldErrors) {
        validate_rules(role.rules.as_deref().unwrap_or(&[]), true, errors);
    }

    fn options(&self) -> StrategyOptions {
        TRAITS
    }
}

impl Rules<ClusterRole> for RoleRules {
    fn validate(&self, role: &ClusterRole, errors: &mut FieldErrors) {
        validate_rules(role.rules.as_deref().unwrap_or(&[]), false, errors);
        let selectors =
            role.aggregation_rule.as_ref().map(|rule| rule.cluster_role_selectors.as_deref().unwrap_or(&[]));
        let path = Path::root("aggregationRule");
        let list = path.child("clusterRoleSelectors");
        if selectors.is_some_and(<[_]>::is_empty) {
            errors.required(list, "at least one clusterRoleSelector required if aggregationRule is non-nil");
        }
        for (index, selector) in selectors.into_iter().flatten().enumerate() {
            let before = errors.0.len();
            checks::selector(errors, list.index(index), selector);
            // upstream tries to read what it has just refused, and says so
            if errors.0.len() > before {
                errors.invalid(list.index(index), Value::Null, "invalid label selector.");
            }
        }
    }

    fn options(&self) -> StrategyOptions {
        TRAITS
    }
}

fn validate_rules(rules: &[PolicyRule], namespaced: bool, errors: &mut FieldErrors) {
    let list = Path::root("rules");
    for (index, rule) in rules.iter().enumerate() {
        let path = list.index(index);
        let filled = |list: &Option<Vec<String>>| list.as_ref().is_some_and(|list| !list.is_empty());
        if rule.verbs.is_empty() {
            errors.required(path.child("verbs"), "verbs must contain at least one value");
        }
        if filled(&rule.non_resource_urls) {
            if namespaced {
                errors.invalid(
                    path.child("nonResourceURLs"),
                    json!(rule.non_resource_urls),
                    "namespaced rules cannot apply to non-resource URLs",
                );
            }
            if filled(&rule.api_groups) || filled(&rule.resources) || filled(&rule.resource_names) {
                errors.invalid(
                    path.child("nonResourceURLs"),
                    json!(rule.non_resource_urls),
                    "rules cannot apply to both regular resources and non-resource URLs",
                );
            }
            continue;
        }
        if !filled(&rule.api_groups) {
            errors.required(path.child("apiGroups"), "resource rules must supply at least one api group");
        }
        if !filled(&rule.resources) {
            errors.required(path.child("resources"), "resource rules must supply at least one resource");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_says_what_it_is_for() {
        let check = |rule: serde_json::Value, expected: &[&str]| {
            let rules: Vec<PolicyRule> = serde_json::from_value(json!([rule])).expect("rules");
            let mut errors = FieldErrors::default();
            validate_rules(&rules, true, &mut errors);
            let paths: Vec<&str> = errors.0.iter().map(|error| error.path.as_str()).collect();
            assert_eq!(paths, expected);
        };
        check(json!({"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]}), &[]);
        check(json!({"verbs": []}), &["rules[0].verbs", "rules[0].apiGroups", "rules[0].resources"]);
        check(json!({"verbs": ["get"], "nonResourceURLs": ["/x"]}), &["rules[0].nonResourceURLs"]);
    }
}
