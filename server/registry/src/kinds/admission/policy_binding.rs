//! ValidatingAdmissionPolicyBinding and MutatingAdmissionPolicyBinding: which policy, where, and with which parameters.

use ferry_api::{FieldErrors, names};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use serde::Deserialize;

use super::super::checks::{self, Path};
use super::super::tables::cluster;
use super::policy_parts::MatchResources;
use crate::columns::Column;
use crate::strategy::{Rules, StrategyOptions, Typed};

pub static MUTATING: Typed<Binding, PolicyBindingRules> = Typed::new(PolicyBindingRules { mutating: true });
pub static VALIDATING: Typed<Binding, PolicyBindingRules> =
    Typed::new(PolicyBindingRules { mutating: false });

pub struct PolicyBindingRules {
    mutating: bool,
}

#[derive(Debug, Deserialize)]
pub struct Binding {
    #[serde(default)]
    spec: Spec,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Spec {
    policy_name: String,
    param_ref: Option<ParamRef>,
    match_resources: Option<MatchResources>,
    validation_actions: Vec<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ParamRef {
    name: String,
    selector: Option<LabelSelector>,
    parameter_not_found_action: Option<String>,
}

impl Rules<Binding> for PolicyBindingRules {
    fn validate(&self, binding: &Binding, errors: &mut FieldErrors) {
        let (spec, root) = (&binding.spec, Path::root("spec"));
        checks::required_name(errors, root.child("policyName"), &spec.policy_name, names::dns1123_subdomain);
        if let Some(reference) = &spec.param_ref {
            param_ref(reference, root.child("paramRef"), errors);
        }
        if let Some(resources) = &spec.match_resources {
            let path = root.child("matchResources");
            resources.validate(path, errors);
            if self.mutating {
                resources.validate_mutable(path, errors);
            }
        }
        if !self.mutating {
            validation_actions(&spec.validation_actions, root.child("validationActions"), errors);
        }
    }

    fn columns(&self) -> &[Column] {
        cluster::POLICY_BINDING
    }

    fn options(&self) -> StrategyOptions {
        StrategyOptions { generation: true, unconditional_update: false, ..StrategyOptions::PLAIN }
    }
}

fn param_ref(reference: &ParamRef, path: Path<'_>, errors: &mut FieldErrors) {
    const EXCLUSIVE: &str = "name and selector are mutually exclusive";
    let both = !reference.name.is_empty() && reference.selector.is_some();
    if !reference.name.is_empty() {
        checks::named(errors, path.child("name"), &reference.name, names::path_segment);
    }
    if both {
        errors.forbidden(path.child("name"), EXCLUSIVE);
    }
    if let Some(selector) = &reference.selector {
        checks::selector(errors, path.child("selector"), selector);
    }
    if both {
        errors.forbidden(path.child("selector"), EXCLUSIVE);
    }
    if reference.name.is_empty() && reference.selector.is_none() {
        errors.required(path, "one of name or selector must be specified");
    }
    let action = reference.parameter_not_found_action.as_deref();
    checks::one_of(errors, path.child("parameterNotFoundAction"), action, &["Deny", "Allow"]);
}

fn validation_actions(actions: &[String], path: Path<'_>, errors: &mut FieldErrors) {
    for (index, action) in actions.iter().enumerate() {
        checks::may_be(errors, path.index(index), Some(action), &["Audit", "Deny", "Warn"]);
        if actions[..index].contains(action) {
            errors.duplicate(path.index(index), action.as_str());
        }
    }
    let has = |wanted: &str| actions.iter().any(|action| action == wanted);
    if has("Deny") && has("Warn") {
        errors.invalid(
            path,
            actions,
            "must not contain both Deny and Warn (repeating the same validation failure information in the API response and headers serves no purpose)",
        );
    }
    if actions.is_empty() {
        errors.required(path, "at least one validation action is required");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn check(rules: &PolicyBindingRules, spec: Value, expected: &[&str]) {
        let binding = serde_json::from_value(json!({"spec": spec})).expect("a view");
        let mut errors = FieldErrors::default();
        rules.validate(&binding, &mut errors);
        let found: Vec<String> = errors.0.iter().map(ToString::to_string).collect();
        assert_eq!(found, expected, "{spec}");
    }

    #[test]
    fn a_binding_says_which_policy_with_which_parameters_and_what_follows() {
        let validating = PolicyBindingRules { mutating: false };
        let with = |change: Value| {
            let mut spec = json!({"policyName": "p", "validationActions": ["Deny"]});
            for (field, value) in change.as_object().expect("fields") {
                spec[field] = value.clone();
            }
            spec
        };
        check(&validating, with(json!({})), &[]);
        check(&validating, with(json!({"policyName": ""})), &["spec.policyName: Required value"]);
        check(
            &validating,
            with(json!({"validationActions": []})),
            &["spec.validationActions: Required value: at least one validation action is required"],
        );
        check(
            &validating,
            with(json!({"validationActions": ["Deny", "Deny"]})),
            &["spec.validationActions[1]: Duplicate value: \"Deny\""],
        );
        let action = json!("Deny");
        check(
            &validating,
            with(json!({"paramRef": {"parameterNotFoundAction": action}})),
            &["spec.paramRef: Required value: one of name or selector must be specified"],
        );
        check(
            &validating,
            with(json!({"paramRef": {"name": "a", "selector": {}, "parameterNotFoundAction": action}})),
            &[
                "spec.paramRef.name: Forbidden: name and selector are mutually exclusive",
                "spec.paramRef.selector: Forbidden: name and selector are mutually exclusive",
            ],
        );
        check(
            &validating,
            with(json!({"paramRef": {"name": "a"}})),
            &["spec.paramRef.parameterNotFoundAction: Required value"],
        );
    }

    #[test]
    fn mutating_policy_bindings_cannot_match_only_deletions() {
        let rule = json!({"operations": ["DELETE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]});
        let spec = json!({"policyName": "p", "matchResources": {"matchPolicy": "Exact", "namespaceSelector": {},
            "objectSelector": {}, "resourceRules": [rule]}});
        check(
            &PolicyBindingRules { mutating: true },
            spec,
            &[
                "spec.matchResources.resourceRules.operations: Unsupported value: \"DELETE\": supported values: \"*\", \"CONNECT\", \"CREATE\", \"UPDATE\"",
            ],
        );
    }
}
