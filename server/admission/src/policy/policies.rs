//! The compiled policies with their bindings, from the caches. They are compiled again after a change.

use std::collections::BTreeSet;
use std::sync::Arc;

use ferry_api::{GroupResource, Object, Status};
use ferry_cel::{Environment, Program, Type};
use ferry_registry::Registry;
use ferry_registry::cache::{Cache, Derived};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::expressions::Conditions;
use crate::matching::{Constraints, Matching};

pub const GROUP: &str = "admissionregistration.k8s.io";

pub struct Policies {
    registry: Arc<Registry>,
    sort: PolicyKind,
    /// Those of the policies and of their bindings; named once, since every write asks for them.
    resources: [GroupResource; 2],
    compiled: Derived<Compiled, 2>,
}

/// Mutating or validating policies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PolicyKind {
    Mutating,
    Validating,
}

impl PolicyKind {
    /// The resources of the policies and of their bindings.
    fn resources(self) -> [&'static str; 2] {
        match self {
            PolicyKind::Mutating => ["mutatingadmissionpolicies", "mutatingadmissionpolicybindings"],
            PolicyKind::Validating => ["validatingadmissionpolicies", "validatingadmissionpolicybindings"],
        }
    }
}

/// The policies of one moment, or why one of them that has to be asked cannot be.
pub struct Compiled(Result<Vec<Policy>, String>);

impl Compiled {
    pub fn is_empty(&self) -> bool {
        self.0.as_ref().is_ok_and(Vec::is_empty)
    }

    pub fn policies(&self) -> Result<&[Policy], Status> {
        match &self.0 {
            Ok(policies) => Ok(policies),
            Err(why) => Err(Status::internal(why)),
        }
    }
}

pub struct Policy {
    pub name: String,
    pub spec: Spec,
    pub matching: Matching,
    pub conditions: Conditions,
    pub variables: Vec<Variable>,
    pub validations: Vec<Validation>,
    pub mutations: Vec<Mutation>,
    pub audit_annotations: Vec<(String, Expression)>,
    pub bindings: Vec<Binding>,
}

pub struct Variable {
    pub name: String,
    pub expression: Expression,
}

pub struct Validation {
    pub expression: Expression,
    pub message: String,
    pub message_expression: Option<Expression>,
    pub reason: Option<String>,
}

pub enum Mutation {
    /// Comes to a configuration that is laid over the object.
    ApplyConfiguration(Expression),
    /// Comes to a list of operations.
    JsonPatch(Expression),
}

/// An expression, and the program it is or why it is none.
pub struct Expression {
    pub source: String,
    pub program: Result<Program, String>,
}

pub struct Binding {
    pub name: String,
    pub spec: BindingSpec,
    pub matching: Option<Matching>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Spec {
    pub param_kind: Option<ParamKind>,
    #[serde(default)]
    match_constraints: Constraints,
    #[serde(default)]
    match_conditions: Vec<Named>,
    #[serde(default)]
    variables: Vec<Named>,
    #[serde(default)]
    validations: Vec<WrittenValidation>,
    #[serde(default)]
    audit_annotations: Vec<WrittenAnnotation>,
    #[serde(default)]
    mutations: Vec<WrittenMutation>,
    pub failure_policy: Option<String>,
    pub reinvocation_policy: Option<String>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ParamKind {
    pub api_version: String,
    pub kind: String,
}

#[derive(Debug, Clone, Deserialize)]
struct Named {
    name: String,
    expression: String,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
struct WrittenValidation {
    expression: String,
    #[serde(default)]
    message: String,
    message_expression: Option<String>,
    reason: Option<String>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
struct WrittenAnnotation {
    key: String,
    value_expression: String,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
struct WrittenMutation {
    patch_type: String,
    apply_configuration: Option<Written>,
    json_patch: Option<Written>,
}

#[derive(Debug, Clone, Deserialize)]
struct Written {
    expression: String,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BindingSpec {
    pub policy_name: String,
    pub param_ref: Option<ParamRef>,
    match_resources: Option<Constraints>,
    #[serde(default)]
    pub validation_actions: Vec<String>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ParamRef {
    pub name: Option<String>,
    pub namespace: Option<String>,
    pub selector: Option<Value>,
    pub parameter_not_found_action: Option<String>,
}

impl Policies {
    pub fn new(registry: Arc<Registry>, sort: PolicyKind) -> Policies {
        let resources = sort.resources().map(|plural| GroupResource::new(GROUP, plural));
        Policies { registry, sort, resources, compiled: Derived::default() }
    }

    /// The policies as of now. Nothing is read or compiled while they and their bindings stay the same.
    pub fn current(&self) -> Arc<Compiled> {
        let [Some(policies), Some(bindings)] =
            self.resources.each_ref().map(|name| self.registry.resource(name))
        else {
            return Arc::new(Compiled(Ok(Vec::new())));
        };
        let caches: [&Cache; 2] = [&policies.cache, &bindings.cache];
        self.compiled.get(caches, || Compiled(compile_all(caches, self.sort)))
    }
}

fn compile_all([policies, bindings]: [&Cache; 2], sort: PolicyKind) -> Result<Vec<Policy>, String> {
    let _span = ferry_trace::span("admission.policy.compile");
    let specs_of_policies = specs::<Spec>(policies)?.into_iter();
    let mut all: Vec<Policy> = specs_of_policies.map(|(name, spec)| compile(name, spec, sort)).collect();
    for (name, spec) in specs::<BindingSpec>(bindings)? {
        if let Some(policy) = all.iter_mut().find(|policy| policy.name == spec.policy_name) {
            let matching = spec.match_resources.as_ref().map(Matching::new);
            policy.bindings.push(Binding { name, spec, matching });
        }
    }
    all.retain(|policy| !policy.bindings.is_empty());
    Ok(all)
}

/// The name and spec of every object. One that cannot be read is passed over if the policy's failures are; else nobody
/// can say what it would refuse.
fn specs<T: DeserializeOwned>(cache: &Cache) -> Result<Vec<(String, T)>, String> {
    let unreadable = |key: &str, why: &str| {
        tracing::error!(key, why, "a policy or binding cannot be read");
        format!("policy or binding {key:?} cannot be read: {why}")
    };
    let mut all = Vec::new();
    for entry in cache.snapshot().0.values() {
        let object = Object::read(&entry.json).map_err(|error| unreadable(&entry.key, &error.to_string()))?;
        let spec = object.get(&["spec"]).unwrap_or(&Value::Null);
        match ferry_api::view::of_value(spec) {
            Ok(spec) => all.push((entry.name().to_string(), spec)),
            Err(error) => {
                let why = unreadable(&entry.key, &error.to_string());
                if object.text_at(&["spec", "failurePolicy"]) != "Ignore" {
                    return Err(why);
                }
            }
        }
    }
    match cache.unreadable() {
        Some(key) => Err(unreadable(&key, "its stored value is no object")),
        None => Ok(all),
    }
}

fn compile(name: String, spec: Spec, sort: PolicyKind) -> Policy {
    let has_params = spec.param_kind.is_some();
    let mut environment = ferry_cel::admission::environment(has_params, true);
    if sort == PolicyKind::Mutating {
        environment = environment.with_object_literals();
    }
    let conditions = Conditions::compile(
        spec.match_conditions.iter().map(|one| (one.name.as_str(), one.expression.as_str())),
        &environment,
    );
    let mut variables = Vec::new();
    for variable in &spec.variables {
        let expression = Expression::compile(&variable.expression, &environment, &[]);
        let kind = expression.program.as_ref().map_or(Type::Dyn, |program| program.result().clone());
        // Each may name those before it.
        environment = environment.with(&format!("variables.{}", variable.name), kind);
        variables.push(Variable { name: variable.name.clone(), expression });
    }
    let validations = spec.validations.iter().map(|one| Validation {
        expression: Expression::compile(&one.expression, &environment, &[Type::Bool]),
        message: one.message.clone(),
        message_expression: one
            .message_expression
            .as_ref()
            .map(|source| Expression::compile(source, &environment, &[Type::String])),
        reason: one.reason.clone(),
    });
    let annotations = spec.audit_annotations.iter().map(|one| {
        let types = [Type::String, Type::Null];
        (one.key.clone(), Expression::compile(&one.value_expression, &environment, &types))
    });
    let mutations = spec.mutations.iter().filter_map(|one| Mutation::compile(one, &environment)).collect();
    Policy {
        mutations,
        matching: Matching::new(&spec.match_constraints),
        conditions,
        validations: validations.collect(),
        audit_annotations: annotations.collect(),
        variables,
        bindings: Vec::new(),
        name,
        spec,
    }
}

impl Mutation {
    /// What neither says which sort it is nor what it does was refused when it was written.
    fn compile(written: &WrittenMutation, environment: &Environment) -> Option<Mutation> {
        use ferry_cel::literals::{JSON_PATCH, OBJECT};
        match (written.patch_type.as_str(), &written.apply_configuration, &written.json_patch) {
            ("ApplyConfiguration", Some(written), _) => {
                let returns = [Type::literal(OBJECT)];
                let expression = Expression::compile(&written.expression, environment, &returns);
                Some(Mutation::ApplyConfiguration(expression))
            }
            ("JSONPatch", _, Some(written)) => {
                let returns = [Type::list(Type::literal(JSON_PATCH))];
                Some(Mutation::JsonPatch(Expression::compile(&written.expression, environment, &returns)))
            }
            _ => None,
        }
    }
}

impl Expression {
    fn compile(source: &str, environment: &Environment, returns: &[Type]) -> Expression {
        let program = environment.compile(source, returns).map_err(|error| error.to_string());
        Expression { source: source.to_string(), program }
    }
}

impl Policy {
    pub fn is_reinvoked_if_needed(&self) -> bool {
        self.spec.reinvocation_policy.as_deref() == Some("IfNeeded")
    }

    pub fn ignores_failure(&self) -> bool {
        self.spec.failure_policy.as_deref() == Some("Ignore")
    }

    /// The variables that an expression needs, those that they need included, in their order.
    pub fn needed(&self, program: &Program) -> Vec<&Variable> {
        let mut wanted: BTreeSet<String> = program.references().clone();
        let mut needed = Vec::new();
        for variable in self.variables.iter().rev() {
            if wanted.contains(&format!("variables.{}", variable.name)) {
                if let Ok(program) = &variable.expression.program {
                    wanted.extend(program.references().iter().cloned());
                }
                needed.push(variable);
            }
        }
        needed.reverse();
        needed
    }
}
