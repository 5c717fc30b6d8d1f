//! Rules: which operations on which resources are meant.

use std::collections::HashSet;

use ferry_api::FieldErrors;
use serde::Deserialize;

use super::super::checks::{self, Path};

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Rule {
    pub operations: Vec<String>,
    pub api_groups: Vec<String>,
    pub api_versions: Vec<String>,
    pub resources: Vec<String>,
    pub scope: Option<String>,
}

const OPERATIONS: &[&str] = &["*", "CONNECT", "CREATE", "DELETE", "UPDATE"];

pub fn validate(rule: &Rule, path: Path<'_>, errors: &mut FieldErrors) {
    let operations = path.child("operations");
    only_star(&rule.operations, operations, "operations", errors);
    for (index, operation) in rule.operations.iter().enumerate() {
        checks::one_of(errors, operations.index(index), Some(operation), OPERATIONS);
    }
    validate_resources(rule, path, errors);
}

/// Everything but the operations, which rules of initializers do not have.
pub fn validate_resources(rule: &Rule, path: Path<'_>, errors: &mut FieldErrors) {
    only_star(&rule.api_groups, path.child("apiGroups"), "API groups", errors);
    let versions = path.child("apiVersions");
    only_star(&rule.api_versions, versions, "API versions", errors);
    for (index, version) in rule.api_versions.iter().enumerate() {
        if version.is_empty() {
            errors.required(versions.index(index), "");
        }
    }
    resources(&rule.resources, path.child("resources"), errors);
    checks::may_be(errors, path.child("scope"), rule.scope.as_deref(), &["*", "Cluster", "Namespaced"]);
}

fn only_star(list: &[String], path: Path<'_>, what: &str, errors: &mut FieldErrors) {
    if list.is_empty() {
        errors.required(path, "");
    } else if list.len() > 1 && list.iter().any(|item| item == "*") {
        errors.invalid(path, list, &format!("if '*' is present, must not specify other {what}"));
    }
}

fn resources(list: &[String], path: Path<'_>, errors: &mut FieldErrors) {
    if list.is_empty() {
        errors.required(path, "");
    }
    let given: HashSet<&str> = list.iter().map(String::as_str).collect();
    let has = |wanted: &str| given.contains(wanted);
    for (index, resource) in list.iter().enumerate() {
        let (name, sub) = resource.split_once('/').unwrap_or((resource, ""));
        if resource.is_empty() {
            errors.required(path.index(index), "");
        } else if sub != "*" && !sub.is_empty() && has(&format!("{name}/*")) {
            let why = format!("if '{name}/*' is present, must not specify {resource}");
            errors.invalid(path.index(index), resource.as_str(), &why);
        } else if name != "*" && !sub.is_empty() && has(&format!("*/{sub}")) {
            let why = format!("if '*/{sub}' is present, must not specify {resource}");
            errors.invalid(path.index(index), resource.as_str(), &why);
        }
    }
    let plain = list.iter().filter(|item| !item.contains('/')).count();
    if list.len() > 1 && has("*/*") {
        errors.invalid(path, list, "if '*/*' is present, must not specify other resources");
    } else if plain > 1 && has("*") {
        errors.invalid(
            path,
            list,
            "if '*' is present, must not specify other resources without subresources",
        );
    }
}
