//! RBAC: bindings and roles that reach far, and the default service accounts.

use k8s_openapi::api::rbac::v1::{ClusterRole, PolicyRule, Subject};

use super::{Item, SYSTEM_NAMESPACES};
use crate::cluster::security::Finding;
use crate::cluster::security::facts::Facts;

pub(super) fn rights(facts: &Facts) -> Vec<Finding> {
    vec![
        Item("5.1.1", "few subjects have cluster-admin", "bind a narrower role where one does")
            .should_find_none(cluster_admins(facts), "only system:masters"),
        Item("5.1.13", "unauthenticated users have no rights", "delete these ClusterRoleBindings")
            .must_find_none(bindings_for_everybody(facts), "no binding but that of version and health"),
        Item("5.1.3", "roles use no wildcards", "name groups, resources and verbs")
            .should_find_none(wildcard_roles(facts), "no role of * but cluster-admin"),
        Item("5.1.5", "default service accounts have no rights", "give the workload an account of its own")
            .must_find_none(bindings_of_default_accounts(facts), "no binding names one"),
        Item(
            "5.1.6",
            "default service accounts mount no tokens",
            "automountServiceAccountToken: false on the account default of these namespaces",
        )
        .should_find_none(mounted_default_accounts(facts), "automountServiceAccountToken is false"),
    ]
}

fn cluster_admins(facts: &Facts) -> Vec<String> {
    let bindings = facts.cluster_role_bindings.iter();
    bindings
        .filter(|binding| binding.role_ref.kind == "ClusterRole" && binding.role_ref.name == "cluster-admin")
        .flat_map(|binding| binding.subjects.iter().flatten())
        .filter(|subject| subject.name != "system:masters")
        .map(|subject| format!("{} {}", subject.kind, subject.name))
        .collect()
}

fn bindings_for_everybody(facts: &Facts) -> Vec<String> {
    let is_everybody = |subject: &Subject| {
        matches!(subject.name.as_str(), "system:anonymous" | "system:unauthenticated")
            && subject.kind != "ServiceAccount"
    };
    let bindings = facts.cluster_role_bindings.iter();
    bindings
        // Bootstrapped in every cluster: lets everybody read version and health.
        .filter(|binding| binding.role_ref.name != "system:public-info-viewer")
        .filter(|binding| binding.subjects.iter().flatten().any(is_everybody))
        .map(|binding| binding.metadata.name.clone().unwrap_or_default())
        .collect()
}

fn wildcard_roles(facts: &Facts) -> Vec<String> {
    let allows_everything = |rule: &PolicyRule| {
        let has_star = |list: &[String]| list.iter().any(|word| word == "*");
        has_star(&rule.verbs)
            && has_star(rule.resources.as_deref().unwrap_or_default())
            && has_star(rule.api_groups.as_deref().unwrap_or_default())
    };
    let wild = |role: &&ClusterRole| role.rules.iter().flatten().any(allows_everything);
    let names = facts.cluster_roles.iter().filter(wild).filter_map(|role| role.metadata.name.clone());
    names.filter(|name| name != "cluster-admin" && !name.starts_with("system:")).collect()
}

fn bindings_of_default_accounts(facts: &Facts) -> Vec<String> {
    let is_default = |subject: &Subject| subject.kind == "ServiceAccount" && subject.name == "default";
    let cluster_wide = facts.cluster_role_bindings.iter().map(|it| (&it.metadata, &it.subjects));
    let namespaced = facts.role_bindings.iter().map(|it| (&it.metadata, &it.subjects));
    cluster_wide
        .chain(namespaced)
        .filter(|(_, subjects)| subjects.iter().flatten().any(is_default))
        .map(|(metadata, _)| metadata.name.clone().unwrap_or_default())
        .collect()
}

fn mounted_default_accounts(facts: &Facts) -> Vec<String> {
    let accounts = facts.service_accounts.iter();
    accounts
        .filter(|account| account.metadata.name.as_deref() == Some("default"))
        .filter(|account| account.automount_service_account_token != Some(false))
        .filter_map(|account| account.metadata.namespace.clone())
        .filter(|namespace| !SYSTEM_NAMESPACES.contains(&namespace.as_str()))
        .map(|namespace| format!("namespace {namespace}"))
        .collect()
}
