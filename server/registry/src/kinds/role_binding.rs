//! RoleBinding and ClusterRoleBinding: the role they give never changes, and their subjects are complete.

use ferry_api::{FieldErrors, Object};
use k8s_openapi::api::rbac::v1::{ClusterRoleBinding, RoleBinding, RoleRef, Subject};
use serde_json::{Value, json};

use super::checks::{self, Path};
use crate::columns::Column;
use crate::strategy::{NameRule, Rules, StrategyOptions, Typed};

pub static STRATEGY: Typed<RoleBinding, BindingRules> = Typed::new(BindingRules);
pub static CLUSTER_STRATEGY: Typed<ClusterRoleBinding, BindingRules> = Typed::new(BindingRules);

pub struct BindingRules;

const GROUP: &str = "rbac.authorization.k8s.io";
const TRAITS: StrategyOptions =
    StrategyOptions { name: NameRule::PathSegment, create_on_update: true, ..StrategyOptions::PLAIN };

impl Rules<RoleBinding> for BindingRules {
    fn default(&self, object: &mut Object) {
        complete(object);
    }

    fn validate(&self, binding: &RoleBinding, errors: &mut FieldErrors) {
        validate_role(&binding.role_ref, &["Role", "ClusterRole"], errors);
        validate_subjects(binding.subjects.as_deref().unwrap_or(&[]), true, errors);
    }

    fn validate_update(&self, new: &RoleBinding, old: &RoleBinding, errors: &mut FieldErrors) {
        same_role(&new.role_ref, &old.role_ref, errors);
    }

    fn columns(&self) -> &[Column] {
        super::tables::cluster::ROLE_BINDING
    }

    fn options(&self) -> StrategyOptions {
        TRAITS
    }
}

impl Rules<ClusterRoleBinding> for BindingRules {
    fn default(&self, object: &mut Object) {
        complete(object);
    }

    fn validate(&self, binding: &ClusterRoleBinding, errors: &mut FieldErrors) {
        validate_role(&binding.role_ref, &["ClusterRole"], errors);
        validate_subjects(binding.subjects.as_deref().unwrap_or(&[]), false, errors);
    }

    fn validate_update(&self, new: &ClusterRoleBinding, old: &ClusterRoleBinding, errors: &mut FieldErrors) {
        same_role(&new.role_ref, &old.role_ref, errors);
    }

    fn columns(&self) -> &[Column] {
        super::tables::cluster::ROLE_BINDING
    }

    fn options(&self) -> StrategyOptions {
        TRAITS
    }
}

fn complete(object: &mut Object) {
    let role = object.section_mut("roleRef");
    if role.get("apiGroup").and_then(Value::as_str).unwrap_or("").is_empty() {
        role.insert("apiGroup".into(), GROUP.into());
    }
    for subject in object.0.get_mut("subjects").and_then(Value::as_array_mut).into_iter().flatten() {
        let people = matches!(subject.get("kind").and_then(Value::as_str), Some("User" | "Group"));
        let unset = subject.get("apiGroup").and_then(Value::as_str).unwrap_or("").is_empty();
        if let (true, true, Value::Object(subject)) = (people, unset, subject) {
            subject.insert("apiGroup".into(), GROUP.into());
        }
    }
}

fn validate_role(role: &RoleRef, kinds: &[&str], errors: &mut FieldErrors) {
    let path = Path::root("roleRef");
    let group = role.api_group.as_deref().unwrap_or("");
    checks::may_be(errors, path.child("apiGroup"), Some(group), &[GROUP]);
    if !kinds.contains(&role.kind.as_str()) {
        errors.not_supported(path.child("kind"), role.kind.as_str(), kinds);
    }
    checks::required_name(errors, path.child("name"), &role.name, ferry_api::names::path_segment);
}

/// An account that a namespaced binding names without a namespace is of the binding's own.
fn validate_subjects(subjects: &[Subject], is_namespaced: bool, errors: &mut FieldErrors) {
    let list = Path::root("subjects");
    for (index, subject) in subjects.iter().enumerate() {
        let path = list.index(index);
        if subject.name.is_empty() {
            errors.required(path.child("name"), "");
        }
        let group = subject.api_group.as_deref().unwrap_or("");
        match subject.kind.as_str() {
            "ServiceAccount" => {
                if !subject.name.is_empty() {
                    checks::named(
                        errors,
                        path.child("name"),
                        &subject.name,
                        ferry_api::names::dns1123_subdomain,
                    );
                }
                if !group.is_empty() {
                    errors.not_supported(path.child("apiGroup"), group, &[""]);
                }
                if !is_namespaced && subject.namespace.as_deref().unwrap_or("").is_empty() {
                    errors.required(path.child("namespace"), "");
                }
            }
            "User" | "Group" => checks::may_be(errors, path.child("apiGroup"), Some(group), &[GROUP]),
            other => {
                errors.not_supported(path.child("kind"), other, &["ServiceAccount", "User", "Group"]);
            }
        }
    }
}

fn same_role(new: &RoleRef, old: &RoleRef, errors: &mut FieldErrors) {
    if new != old {
        // The internal type's own names: it has no others.
        let shown = json!({"APIGroup": new.api_group, "Kind": new.kind, "Name": new.name});
        errors.invalid("roleRef", shown, "cannot change roleRef");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_binding_for_the_cluster_has_to_say_where_an_account_is() {
        let check = |namespace: Option<&str>, is_namespaced, expected: &[&str]| {
            let (kind, name) = ("ServiceAccount".into(), "builder".into());
            let subject = Subject { kind, name, namespace: namespace.map(Into::into), ..Default::default() };
            let mut errors = FieldErrors::default();
            validate_subjects(&[subject], is_namespaced, &mut errors);
            let missing: Vec<&str> = errors.0.iter().map(|error| error.path.as_str()).collect();
            assert_eq!(missing, expected, "{namespace:?} {is_namespaced}");
        };
        check(Some("default"), true, &[]);
        check(Some("default"), false, &[]);
        check(None, true, &[]);
        check(Some(""), true, &[]);
        check(None, false, &["subjects[0].namespace"]);
        check(Some(""), false, &["subjects[0].namespace"]);
    }
}
