//! MutatingAdmissionPolicy: what its expressions make of an object has to be a configuration or a patch of it.

use ferry_api::FieldErrors;
use ferry_cel::literals::{JSON_PATCH, OBJECT};
use ferry_cel::{Environment, Type};
use serde::Deserialize;

use super::super::checks::{self, Path};
use super::super::tables::cluster;
use super::policy_parts::{MatchResources, ParamKind, environment_of, expression};
use super::webhook_configuration::MatchCondition;
use crate::columns::Column;
use crate::strategy::{Rules, StrategyOptions, Typed};

pub static STRATEGY: Typed<Policy, MutatingAdmissionPolicyRules> = Typed::new(MutatingAdmissionPolicyRules);

pub struct MutatingAdmissionPolicyRules;

#[derive(Debug, Deserialize)]
pub struct Policy {
    #[serde(default)]
    spec: Spec,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Spec {
    param_kind: Option<ParamKind>,
    match_constraints: Option<MatchResources>,
    match_conditions: Vec<MatchCondition>,
    variables: Vec<MatchCondition>,
    mutations: Vec<Mutation>,
    failure_policy: Option<String>,
    reinvocation_policy: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Mutation {
    patch_type: String,
    apply_configuration: Option<Written>,
    json_patch: Option<Written>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Written {
    expression: String,
}

impl Rules<Policy> for MutatingAdmissionPolicyRules {
    fn validate(&self, policy: &Policy, errors: &mut FieldErrors) {
        let (spec, root) = (&policy.spec, Path::root("spec"));
        let failure = spec.failure_policy.as_deref();
        checks::one_of(errors, root.child("failurePolicy"), failure, &["Fail", "Ignore"]);
        if let Some(kind) = &spec.param_kind {
            kind.validate(root.child("paramKind"), errors);
        }
        let constraints = root.child("matchConstraints");
        MatchResources::required(spec.match_constraints.as_ref(), constraints, errors);
        if let Some(resources) = &spec.match_constraints {
            resources.validate_mutable(constraints, errors);
        }
        let has_params = spec.param_kind.is_some();
        let environment = environment_of(has_params, &spec.match_conditions, &spec.variables, root, errors)
            .with_object_literals();
        let list = root.child("mutations");
        if spec.mutations.is_empty() {
            errors.required(list, "mutations must contain at least one item");
        }
        for (index, one) in spec.mutations.iter().enumerate() {
            mutation(&environment, one, list.index(index), errors);
        }
        let reinvocation = spec.reinvocation_policy.as_deref();
        checks::one_of(errors, root.child("reinvocationPolicy"), reinvocation, &["IfNeeded", "Never"]);
    }

    fn columns(&self) -> &[Column] {
        cluster::MUTATING_POLICY
    }

    fn options(&self) -> StrategyOptions {
        StrategyOptions { generation: true, unconditional_update: false, ..StrategyOptions::PLAIN }
    }
}

/// Exactly the field that its type names.
fn mutation(environment: &Environment, mutation: &Mutation, path: Path<'_>, errors: &mut FieldErrors) {
    let configuration = ("applyConfiguration", &mutation.apply_configuration, Type::literal(OBJECT));
    let patch = ("jsonPatch", &mutation.json_patch, Type::list(Type::literal(JSON_PATCH)));
    let place = path.child("patchType");
    let ((wanted, written, returns), (other, unwanted, _)) = match mutation.patch_type.as_str() {
        "ApplyConfiguration" => (configuration, patch),
        "JSONPatch" => (patch, configuration),
        "" => return errors.required(place, ""),
        unknown => return errors.not_supported(place, unknown, &["ApplyConfiguration", "JSONPatch"]),
    };
    let sort = &mutation.patch_type;
    match written {
        Some(written) => {
            let field = path.child(wanted);
            expression(environment, &written.expression, &[returns], field.child("expression"), errors);
        }
        None => errors.required(path.child(wanted), &format!("must be specified when patchType is {sort}")),
    }
    if unwanted.is_some() {
        let why = format!("must not be specified when patchType is {sort}");
        errors.invalid(path.child(other), format!("{{{other}}}"), &why);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn check(mutations: Value, expected: &[&str]) {
        let rule = json!({"operations": ["CREATE"], "apiGroups": ["apps"], "apiVersions": ["v1"], "resources": ["deployments"]});
        let spec = json!({
            "failurePolicy": "Fail", "reinvocationPolicy": "Never", "mutations": mutations,
            "matchConstraints": {"matchPolicy": "Equivalent", "namespaceSelector": {}, "objectSelector": {}, "resourceRules": [rule]},
        });
        let policy = serde_json::from_value(json!({"spec": spec})).expect("a view");
        let mut errors = FieldErrors::default();
        MutatingAdmissionPolicyRules.validate(&policy, &mut errors);
        let found: Vec<String> = errors.0.iter().map(ToString::to_string).collect();
        assert!(
            found.len() == expected.len()
                && found.iter().zip(expected).all(|(found, start)| found.starts_with(start)),
            "{found:#?}"
        );
    }

    #[test]
    fn a_mutation_comes_to_a_configuration_or_to_a_patch() {
        let apply = |expression: &str| json!([{"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": expression}}]);
        let patch =
            |expression: &str| json!([{"patchType": "JSONPatch", "jsonPatch": {"expression": expression}}]);
        check(apply("Object{spec: Object.spec{replicas: 3}}"), &[]);
        check(apply("Object{metadata: Object.metadata{labels: {'a': 'b'}}}"), &[]);
        check(
            patch(
                "[JSONPatch{op: 'add', path: '/metadata/labels/' + jsonpatch.escapeKey('a/b'), value: 'c'}]",
            ),
            &[],
        );
        check(patch("has(object.x) ? [JSONPatch{op: 'remove', path: '/x'}] : []"), &[]);
        check(
            apply("{'spec': 1}"),
            &[
                "spec.mutations[0].applyConfiguration.expression: Invalid value: \"{'spec': 1}\": must evaluate to Object but got map",
            ],
        );
        check(
            apply("Object{spec: Object.wrong{replicas: 3}}"),
            &["spec.mutations[0].applyConfiguration.expression: Invalid value"],
        );
        check(
            patch("[JSONPatch{operation: 'add'}]"),
            &["spec.mutations[0].jsonPatch.expression: Invalid value"],
        );
        check(json!([]), &["spec.mutations: Required value: mutations must contain at least one item"]);
        check(
            json!([{"patchType": "JSONPatch", "applyConfiguration": {"expression": "Object{}"}}]),
            &[
                "spec.mutations[0].jsonPatch: Required value: must be specified when patchType is JSONPatch",
                "spec.mutations[0].applyConfiguration: Invalid value: \"{applyConfiguration}\": must not be specified when patchType is JSONPatch",
            ],
        );
    }
}
