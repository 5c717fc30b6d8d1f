//! ValidatingAdmissionPolicy: its expressions are compiled when they are written, so that one that can never
//! work is refused then.

use ferry_api::FieldErrors;
use ferry_cel::{Environment, Type};
use serde::Deserialize;

use super::super::checks::{self, Path};
use super::super::tables::cluster;
use super::rule::{self, Rule};
use super::webhook_configuration::{MatchCondition, match_conditions_in};
use crate::columns::Column;
use crate::strategy::{Rules, Traits, Typed};

pub static STRATEGY: Typed<Policy, ValidatingAdmissionPolicyRules> =
    Typed::new(ValidatingAdmissionPolicyRules);

pub struct ValidatingAdmissionPolicyRules;

#[derive(Debug, Deserialize)]
pub struct Policy {
    #[serde(default)]
    spec: Spec,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Spec {
    param_kind: Option<serde_json::Value>,
    match_constraints: MatchResources,
    match_conditions: Vec<MatchCondition>,
    variables: Vec<MatchCondition>,
    validations: Vec<Validation>,
    audit_annotations: Vec<AuditAnnotation>,
    failure_policy: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct MatchResources {
    resource_rules: Vec<Rule>,
    exclude_resource_rules: Vec<Rule>,
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
    value_expression: String,
}

const REASONS: &[&str] = &["Forbidden", "Invalid", "RequestEntityTooLarge", "Unauthorized"];

impl Rules<Policy> for ValidatingAdmissionPolicyRules {
    fn validate(&self, policy: &Policy, errors: &mut FieldErrors) {
        let (spec, root) = (&policy.spec, Path::root("spec"));
        let constraints = root.child("matchConstraints");
        for (field, rules) in [
            ("resourceRules", &spec.match_constraints.resource_rules),
            ("excludeResourceRules", &spec.match_constraints.exclude_resource_rules),
        ] {
            let path = constraints.child(field);
            for (index, one) in rules.iter().enumerate() {
                rule::validate(one, path.index(index), errors);
            }
        }
        checks::may_be(
            errors,
            root.child("failurePolicy"),
            spec.failure_policy.as_deref(),
            &["Fail", "Ignore"],
        );
        let mut environment = ferry_cel::admission::environment(spec.param_kind.is_some(), true);
        match_conditions_in(&environment, &spec.match_conditions, root.child("matchConditions"), errors);
        let path = root.child("variables");
        for (index, variable) in spec.variables.iter().enumerate() {
            let place = path.index(index);
            let place = place.child("expression");
            let kind = expression(&environment, &variable.expression, &[], place, errors);
            environment = environment.with(&format!("variables.{}", variable.name), kind);
        }
        let path = root.child("validations");
        for (index, validation) in spec.validations.iter().enumerate() {
            self.validation(&environment, validation, path.index(index), errors);
        }
        let path = root.child("auditAnnotations");
        for (index, annotation) in spec.audit_annotations.iter().enumerate() {
            let place = path.index(index);
            let types = [Type::String, Type::Null];
            expression(
                &environment,
                &annotation.value_expression,
                &types,
                place.child("valueExpression"),
                errors,
            );
        }
    }

    fn columns(&self) -> &'static [Column] {
        cluster::VALIDATING_POLICY
    }

    fn traits(&self) -> Traits {
        Traits { generation: true, unconditional_update: false, ..Traits::PLAIN }
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

/// The type that the expression comes to; anything, where it is wrong.
fn expression(
    environment: &Environment,
    source: &str,
    returns: &[Type],
    path: Path<'_>,
    errors: &mut FieldErrors,
) -> Type {
    if source.trim().is_empty() {
        errors.required(path, "expression is not specified");
        return Type::Dyn;
    }
    match environment.compile(source, returns) {
        Ok(program) => program.result().clone(),
        Err(error) => {
            errors.invalid(path, source, &error.0);
            Type::Dyn
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn faults(spec: Value) -> Vec<String> {
        let policy = serde_json::from_value(json!({"spec": spec})).expect("a view");
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
