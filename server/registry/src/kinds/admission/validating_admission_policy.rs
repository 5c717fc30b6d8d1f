//! ValidatingAdmissionPolicy: what must hold of a request, and what is said when it does not.

use std::collections::HashSet;

use ferry_api::FieldErrors;
use ferry_cel::{Environment, Type};
use serde::Deserialize;

use super::super::checks::{self, Path};
use super::super::tables::cluster;
use super::policy_parts::{MatchResources, ParamKind, environment_of, expression};
use super::webhook_configuration::MatchCondition;
use crate::columns::Column;
use crate::strategy::{Rules, StrategyOptions, Typed};

pub static STRATEGY: Typed<Policy, ValidatingAdmissionPolicyRules> =
    Typed::new(ValidatingAdmissionPolicyRules);

pub struct ValidatingAdmissionPolicyRules;

#[derive(Debug, Deserialize)]
pub struct Policy {
    #[serde(default)]
    metadata: Metadata,
    #[serde(default)]
    spec: Spec,
}

#[derive(Debug, Default, Deserialize)]
struct Metadata {
    #[serde(default)]
    name: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Spec {
    param_kind: Option<ParamKind>,
    match_constraints: Option<MatchResources>,
    match_conditions: Vec<MatchCondition>,
    variables: Vec<MatchCondition>,
    validations: Vec<Validation>,
    audit_annotations: Vec<AuditAnnotation>,
    failure_policy: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Validation {
    expression: String,
    message: String,
    message_expression: String,
    reason: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct AuditAnnotation {
    key: String,
    value_expression: String,
}

const REASONS: &[&str] = &["Forbidden", "Invalid", "RequestEntityTooLarge"];

impl Rules<Policy> for ValidatingAdmissionPolicyRules {
    fn validate(&self, policy: &Policy, errors: &mut FieldErrors) {
        let (spec, root) = (&policy.spec, Path::root("spec"));
        let failure = spec.failure_policy.as_deref();
        checks::one_of(errors, root.child("failurePolicy"), failure, &["Fail", "Ignore"]);
        if let Some(kind) = &spec.param_kind {
            kind.validate(root.child("paramKind"), errors);
        }
        MatchResources::required(spec.match_constraints.as_ref(), root.child("matchConstraints"), errors);
        let has_params = spec.param_kind.is_some();
        let environment = environment_of(has_params, &spec.match_conditions, &spec.variables, root, errors);
        if spec.validations.is_empty() && spec.audit_annotations.is_empty() {
            let why = "validations or auditAnnotations must contain at least one item";
            errors.required(root.child("validations"), why);
            errors.required(root.child("auditAnnotations"), why);
        }
        let path = root.child("validations");
        for (index, validation) in spec.validations.iter().enumerate() {
            self.validation(&environment, validation, path.index(index), errors);
        }
        let path = root.child("auditAnnotations");
        let mut seen = HashSet::new();
        for (index, annotation) in spec.audit_annotations.iter().enumerate() {
            let place = path.index(index);
            let full = format!("{}/{}", policy.metadata.name, annotation.key);
            checks::named(errors, place.child("key"), &full, ferry_api::names::qualified_name);
            let types = [Type::String, Type::Null];
            expression(
                &environment,
                &annotation.value_expression,
                &types,
                place.child("valueExpression"),
                errors,
            );
            if !seen.insert(annotation.key.as_str()) {
                errors.duplicate(place.child("key"), annotation.key.as_str());
            }
        }
    }

    fn columns(&self) -> &[Column] {
        cluster::VALIDATING_POLICY
    }

    fn options(&self) -> StrategyOptions {
        StrategyOptions { generation: true, unconditional_update: false, ..StrategyOptions::PLAIN }
    }
}

impl ValidatingAdmissionPolicyRules {
    fn validation(
        &self,
        environment: &Environment,
        validation: &Validation,
        path: Path<'_>,
        errors: &mut FieldErrors,
    ) {
        expression(environment, &validation.expression, &[Type::Bool], path.child("expression"), errors);
        if !validation.message_expression.is_empty() {
            let place = path.child("messageExpression");
            expression(environment, &validation.message_expression, &[Type::String], place, errors);
        }
        let message = path.child("message");
        if validation.message.contains('\n') {
            errors.invalid(message, validation.message.as_str(), "must not contain line breaks");
        } else if validation.message.is_empty() && validation.expression.trim().contains('\n') {
            errors.required(message, "message must be specified if expression contains line breaks");
        }
        checks::may_be(errors, path.child("reason"), validation.reason.as_deref(), REASONS);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn faults(spec: Value) -> Vec<String> {
        let mut whole = json!({"failurePolicy": "Fail", "matchConstraints": {
            "matchPolicy": "Equivalent", "namespaceSelector": {}, "objectSelector": {},
            "resourceRules": [{"operations": ["CREATE"], "apiGroups": ["apps"], "apiVersions": ["v1"], "resources": ["deployments"]}],
        }});
        for (field, value) in spec.as_object().expect("fields") {
            whole[field] = value.clone();
        }
        let policy = serde_json::from_value(json!({"spec": whole})).expect("a view");
        let mut errors = FieldErrors::default();
        ValidatingAdmissionPolicyRules.validate(&policy, &mut errors);
        errors.0.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn expressions_that_cannot_work_are_refused() {
        let good = json!({"variables": [{"name": "n", "expression": "object.spec.replicas"}],
            "validations": [{"expression": "variables.n > 1", "messageExpression": "'n is ' + string(variables.n)"}]});
        assert!(faults(good).is_empty());
        let check = |spec: Value, expected: &str| {
            let found = faults(spec);
            assert!(found.len() == 1 && found[0].contains(expected), "{found:?}");
        };
        check(
            json!({"validations": [{"expression": "true"}], "matchConstraints": null}),
            "spec.matchConstraints: Required value",
        );
        check(
            json!({"validations": [{"expression": "true"}], "paramKind": {"apiVersion": "v1"}}),
            "spec.paramKind.kind: Required value",
        );
        check(
            json!({"validations": [{"expression": "1"}]}),
            "spec.validations[0].expression: Invalid value: \"1\": must evaluate to bool but got int",
        );
        check(
            json!({"validations": [{"expression": ""}]}),
            "spec.validations[0].expression: Required value: expression is not specified",
        );
        check(json!({"validations": [{"expression": "params.x"}]}), "undeclared reference to 'params'");
        check(
            json!({"validations": [{"expression": "variables.none"}]}),
            "undeclared reference to 'variables'",
        );
        check(
            json!({"validations": [{"expression": "true", "reason": "Because"}]}),
            "Unsupported value: \"Because\"",
        );
    }
}
