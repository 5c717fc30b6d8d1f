//! ValidatingAdmissionPolicies are checked against the kinds they are about, and told what could never work there: a
//! warning in their status. It changes nothing about what they do.

mod served_kinds;

use std::collections::BTreeSet;

use ferry_api::{GroupVersionKind, Schema, kinds};
use ferry_cel::{Environment, Type};
use std::sync::Arc;

use ferry_client::{Attempt, Client, Error, Informer, NamespacedName, Outcome, error};
use k8s_openapi::api::admissionregistration::v1::{
    ExpressionWarning, NamedRuleWithOperations, ValidatingAdmissionPolicy, ValidatingAdmissionPolicySpec,
};
use kube::api::{Api, Patch, PatchParams};
use serde_json::json;

use crate::context::{Context, Running};

const CONTROLLER: &str = "validatingadmissionpolicy-status-controller";
const MANAGER: &str = "validatingadmissionpolicy-status";
/// A rule may name many kinds; the first of them say enough.
const MOST_KINDS: usize = 10;

/// Whether this generation of the policy was checked.
fn is_checked(policy: &ValidatingAdmissionPolicy) -> bool {
    let observed = policy.status.as_ref().and_then(|status| status.observed_generation).unwrap_or(0);
    policy.metadata.generation.unwrap_or(0) <= observed
}

/// What is to be said of the policy's expressions, about objects of these kinds.
fn plan(
    spec: &ValidatingAdmissionPolicySpec,
    kinds: &[(GroupVersionKind, Schema)],
) -> Vec<ExpressionWarning> {
    let mut warnings = Vec::new();
    for (index, validation) in spec.validations.iter().flatten().enumerate() {
        let message = validation.message_expression.as_deref().filter(|source| !source.is_empty());
        for (field, source) in
            [("expression", Some(validation.expression.as_str())), ("messageExpression", message)]
        {
            let Some(source) = source else { continue };
            let said: Vec<String> =
                kinds.iter().filter_map(|(kind, schema)| issue(spec, kind, schema, source)).collect();
            if !said.is_empty() {
                let field_ref = format!("spec.validations[{index}].{field}");
                warnings.push(ExpressionWarning { field_ref, warning: said.join("\n") });
            }
        }
    }
    warnings
}

/// What the compiler has to say of an expression about objects of this kind.
fn issue(
    spec: &ValidatingAdmissionPolicySpec,
    kind: &GroupVersionKind,
    schema: &Schema,
    source: &str,
) -> Option<String> {
    let why = environment(spec, schema).compile(source, &[]).err()?;
    let api_version = kind.api_version();
    Some(format!("{api_version}, Kind={}: {why}\n", kind.kind))
}

/// The policy's environment, with the object's fields known.
fn environment(spec: &ValidatingAdmissionPolicySpec, schema: &Schema) -> Environment {
    let object = ferry_cel::schema::type_of(schema);
    let mut environment = ferry_cel::admission::environment(spec.param_kind.is_some(), true)
        .with("object", object.clone())
        .with("oldObject", object);
    if let Some(param) = &spec.param_kind {
        let api_version = param.api_version.as_deref().unwrap_or("");
        let kind = GroupVersionKind::from_api_version(api_version, param.kind.as_deref().unwrap_or(""));
        if let Some(schema) = Schema::builtin(&kind) {
            environment = environment.with("params", ferry_cel::schema::type_of(&schema));
        }
    }
    for variable in spec.variables.iter().flatten() {
        let compiled = environment.compile(&variable.expression, &[]);
        let kind = compiled.map_or(Type::Dyn, |program| program.result().clone());
        environment = environment.with(&format!("variables.{}", variable.name), kind);
    }
    environment
}

/// What a rule is about, where it says it without a star.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Resource {
    group: String,
    version: String,
    plural: String,
}

/// The resources that the policy's rules name one by one, in order; a rule with a star says nothing about types.
fn resources_of(spec: &ValidatingAdmissionPolicySpec) -> BTreeSet<Resource> {
    let constraints = spec.match_constraints.as_ref();
    let rules = constraints.and_then(|constraints| constraints.resource_rules.as_ref()).into_iter().flatten();
    let mut found = BTreeSet::new();
    for rule in rules.filter(|rule| is_exact(rule)) {
        for group in rule.api_groups.iter().flatten() {
            for version in rule.api_versions.iter().flatten() {
                let plurals = rule.resources.iter().flatten().filter(|plural| !plural.contains(['*', '/']));
                found.extend(plurals.map(|plural| Resource {
                    group: group.clone(),
                    version: version.clone(),
                    plural: plural.clone(),
                }));
            }
        }
    }
    found
}

/// The kind of a resource that is built in, and its fields.
fn built_in(resource: &Resource) -> Option<(GroupVersionKind, Schema)> {
    let row = kinds::builtin().iter().find(|row| {
        (&*row.group, &*row.version, &*row.plural)
            == (&*resource.group, &*resource.version, &*resource.plural)
    })?;
    let kind = row.gvk();
    let schema = Schema::builtin(&kind)?;
    Some((kind, schema))
}

fn is_exact(rule: &NamedRuleWithOperations) -> bool {
    [&rule.api_groups, &rule.api_versions]
        .iter()
        .all(|list| list.iter().flatten().all(|name| !name.contains('*')))
}

struct Controller {
    client: Client,
    policies: Informer<ValidatingAdmissionPolicy>,
}

pub fn start(context: &Context) -> Running {
    let builder = context.controller(CONTROLLER);
    let policies = builder.informer::<ValidatingAdmissionPolicy>();
    let controller = Controller { client: context.client.clone(), policies: policies.clone() };
    builder.of(&policies, Arc::new(controller)).run(Controller::reconcile)
}

impl Controller {
    /// The kinds that the policy is about, as far as their fields are known.
    async fn kinds(
        &self,
        spec: &ValidatingAdmissionPolicySpec,
    ) -> Result<Vec<(GroupVersionKind, Schema)>, Error> {
        let mut kinds = Vec::new();
        for resource in resources_of(spec).into_iter().take(MOST_KINDS) {
            kinds.extend(match built_in(&resource) {
                Some(kind) => Some(kind),
                None => served_kinds::kind_of(&self.client, &resource).await?,
            });
        }
        Ok(kinds)
    }

    async fn reconcile(self: Arc<Self>, key: NamespacedName) -> Result<Outcome, Error> {
        let Some(policy) = self.policies.get(&key) else { return Ok(Outcome::Done) };
        if is_checked(&policy) {
            return Ok(Outcome::Done);
        }
        let spec = policy.spec.clone().unwrap_or_default();
        let warnings = plan(&spec, &self.kinds(&spec).await?);
        let mut checking = json!({});
        if !warnings.is_empty() {
            checking["expressionWarnings"] = json!(warnings);
        }
        let status = json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
            "metadata": {"name": key.name},
            "status": {"observedGeneration": policy.metadata.generation, "typeChecking": checking},
        });
        let api: Api<ValidatingAdmissionPolicy> = Api::all(self.client.clone());
        let params = PatchParams::apply(MANAGER).force();
        error::ignore_not_found(api.patch_status(&key.name, &params, &Patch::Apply(&status)).await)
            .attempting("write the status of a policy")?;
        Ok(Outcome::Done)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn warnings(spec: Value) -> Vec<(String, String)> {
        let mut whole = json!({"matchConstraints": {"resourceRules": [
            {"operations": ["CREATE"], "apiGroups": ["apps"], "apiVersions": ["v1"], "resources": ["deployments"]},
        ]}});
        for (field, value) in spec.as_object().expect("fields") {
            whole[field] = value.clone();
        }
        let spec: ValidatingAdmissionPolicySpec = serde_json::from_value(whole).expect("a policy");
        let kinds: Vec<_> = resources_of(&spec).iter().filter_map(built_in).collect();
        let found = plan(&spec, &kinds).into_iter();
        found.map(|warning| (warning.field_ref, warning.warning)).collect()
    }

    fn check(expression: &str, expected: &[&str]) {
        let found = warnings(json!({"validations": [{"expression": expression}]}));
        let fits = found.len() == expected.len()
            && found.iter().zip(expected).all(|((_, warning), part)| warning.contains(part));
        assert!(fits, "{expression}: {found:#?}");
    }

    #[test]
    fn policy_type_errors_on_the_kind_are_warnings() {
        check("object.spec.replicas > 1 && object.metadata.labels.all(key, key.size() < 10)", &[]);
        check("has(object.spec.template.spec.nodeName) && object.kind == 'Deployment'", &[]);
        check(
            "object.spec.template.spec.containers.all(c, quantity(c.resources.limits.cpu).isGreaterThan(quantity('1')))",
            &[],
        );
        check(
            "object.spec.replicas > '1'",
            &["found no matching overload for '_>_' applied to '(int, string)'"],
        );
        check("object.spec.replica > 1", &["undefined field 'replica'"]);
        check("object.spec.template.spec.containers[0].nam == ''", &["undefined field 'nam'"]);
        let both = warnings(json!({"validations": [{
            "expression": "object.spec.replicas > '1'", "messageExpression": "'got ' + object.spec.replicas",
        }]}));
        let fields: Vec<&str> = both.iter().map(|(field, _)| field.as_str()).collect();
        assert_eq!(fields, ["spec.validations[0].expression", "spec.validations[0].messageExpression"]);
        assert!(both[0].1.starts_with("apps/v1, Kind=Deployment: "), "{both:?}");
    }

    #[test]
    fn variables_and_parameters_have_types_too() {
        let spec = |expression: &str| {
            json!({
                "paramKind": {"apiVersion": "v1", "kind": "ConfigMap"},
                "variables": [{"name": "count", "expression": "object.spec.replicas"}],
                "validations": [{"expression": expression}],
            })
        };
        assert_eq!(warnings(spec("variables.count > int(params.data.least)")), []);
        assert_eq!(warnings(spec("variables.count > params.data.least")).len(), 1);
        assert_eq!(warnings(spec("params.daten.x == ''")).len(), 1);
    }

    #[test]
    fn a_rule_with_a_star_says_nothing_about_types() {
        let rules = json!({"resourceRules": [{"operations": ["*"], "apiGroups": ["*"], "apiVersions": ["v1"], "resources": ["deployments"]}]});
        assert_eq!(
            warnings(json!({"matchConstraints": rules, "validations": [{"expression": "object.x > '1'"}]})),
            []
        );
        for (observed, checked) in [(1, false), (2, true)] {
            let policy = json!({"metadata": {"generation": 2}, "status": {"observedGeneration": observed}});
            assert_eq!(is_checked(&serde_json::from_value(policy).expect("a policy")), checked);
        }
    }
}
