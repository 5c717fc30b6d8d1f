//! Expressions about a request: what they are evaluated over, and the questions to the authorizer that
//! come up on the way.

use ferry_api::selector::LabelSelector;
use ferry_api::{GroupResource, Kind, Object, Status};
use ferry_auth::attributes::Attributes;
use ferry_auth::{Authorization, User};
use ferry_cel::admission::MATCH_CONDITIONS_BUDGET;
use ferry_cel::{
    Access, AccessReviews, Bindings, Budget, Environment, Failure, Outcome, Program, Question, Type,
};
use ferry_registry::Registry;
use serde_json::{Value, json};

use crate::chain::Request;
use crate::lookup::lookup;
use crate::versions::Versioned;
use crate::webhook::rules::operation_word;

/// Conditions that must all hold, each compiled once.
pub struct Conditions(Vec<Condition>);

struct Condition {
    name: String,
    source: String,
    program: Result<Program, String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    Holds,
    Fails {
        condition: String,
    },
    /// None said no, but some could not be evaluated.
    Error(String),
}

impl Conditions {
    pub fn compile<'c>(
        conditions: impl IntoIterator<Item = (&'c str, &'c str)>,
        environment: &Environment,
    ) -> Conditions {
        let compiled = conditions.into_iter().map(|(name, expression)| {
            let program = environment.compile(expression, &[Type::Bool]).map_err(|error| error.to_string());
            Condition { name: name.to_string(), source: expression.trim().to_string(), program }
        });
        Conditions(compiled.collect())
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Where expressions find the cluster.
pub struct Context<'a> {
    pub registry: &'a Registry,
    pub authorization: &'a Authorization,
    /// What the authorizer said in the course of this request.
    pub answers: AccessReviews,
}

impl<'a> Context<'a> {
    pub fn new(registry: &'a Registry, authorization: &'a Authorization) -> Context<'a> {
        Context { registry, authorization, answers: AccessReviews::default() }
    }

    /// Whether the selector picks the namespace of the request. Objects of the cluster are in none and
    /// always match; a namespace is judged by its own labels.
    pub fn namespace_matches(
        &self,
        selector: &LabelSelector,
        request: &Request<'_>,
        object: Option<&Object>,
    ) -> Result<bool, Status> {
        if is_namespace(request)
            && let Some(object) = object
        {
            return Ok(selector.matches(|key| object.label(key)));
        }
        let name = if is_namespace(request) { request.name } else { request.call.namespace };
        if name.is_empty() {
            return Ok(true);
        }
        match lookup(self.registry, "", "namespaces", "", name)? {
            Some(namespace) => Ok(selector.matches(|key| namespace.label(key))),
            None => Err(Status::not_found(&GroupResource::new("", "namespaces"), name)),
        }
    }

    pub async fn judge(
        &self,
        conditions: &Conditions,
        request: &Request<'_>,
        versioned: &Versioned,
    ) -> Verdict {
        let about = request_value(request, versioned);
        let namespace = self.namespace(request);
        let bindings = self.bindings(request, versioned, &about, &namespace);
        self.judge_with(conditions, &bindings, request.call.user).await
    }

    /// What all expressions about a request may name.
    pub fn bindings<'v>(
        &self,
        request: &Request<'_>,
        versioned: &'v Versioned,
        about: &'v Value,
        namespace: &'v Value,
    ) -> Bindings<'v> {
        let mut bindings = Bindings::new();
        bindings
            .set("object", &versioned.object)
            .set("oldObject", &versioned.old)
            .set("request", about)
            .set("namespaceObject", namespace)
            .set_authorizer(self.answers.clone(), request_resource(request));
        bindings
    }

    pub async fn judge_with(&self, conditions: &Conditions, bindings: &Bindings<'_>, user: &User) -> Verdict {
        let mut budget = Budget::new(MATCH_CONDITIONS_BUDGET);
        let mut errors = Vec::new();
        for Condition { name, source, program } in &conditions.0 {
            let outcome = match program {
                Ok(program) => self.evaluate(program, bindings, &mut budget, user).await,
                Err(why) => Err(Failure::Error(why.clone())),
            };
            match outcome.map(|outcome| outcome.as_bool()) {
                Ok(Some(true)) => {}
                Ok(Some(false)) => return Verdict::Fails { condition: name.clone() },
                Ok(None) => errors.push(format!("expression of {name:?} did not evaluate to bool")),
                Err(failure) => errors.push(format!("expression '{source}' resulted in error: {failure}")),
            }
        }
        match errors.as_slice() {
            [] => Verdict::Holds,
            [one] => Verdict::Error(one.clone()),
            many => Verdict::Error(format!("[{}]", many.join(", "))),
        }
    }

    /// Evaluates, asking the authorizer whatever the expression wants to know.
    pub async fn evaluate<'v>(
        &self,
        program: &Program,
        bindings: &Bindings<'v>,
        budget: &mut Budget,
        user: &User,
    ) -> Result<Outcome<'v>, Failure> {
        loop {
            match program.evaluate(bindings, budget) {
                Err(Failure::Asks(questions)) => {
                    for question in questions {
                        let access = self.ask(&question, user).await;
                        self.answers.answer(question, access);
                    }
                }
                other => return other,
            }
        }
    }

    async fn ask(&self, question: &Question, user: &User) -> Access {
        let _span = ferry_trace::span("admission.expression.authorize");
        let account = question
            .service_account
            .as_ref()
            .map(|(namespace, name)| User::service_account(namespace, name, ""));
        let user = account.as_ref().unwrap_or(user);
        let attributes = match &question.path {
            Some(path) => Attributes::path(user, &question.verb, path),
            None => Attributes {
                subresource: &question.subresource,
                namespace: &question.namespace,
                name: &question.name,
                ..Attributes::resource(user, &question.verb, &question.group, &question.resource)
            },
        };
        let decision = self.authorization.authorize(&attributes).await;
        let error = match &decision {
            ferry_auth::Decision::Failed { error } => Some(error.clone()),
            _ => None,
        };
        let reason = if error.is_some() { String::new() } else { decision.reason().to_string() };
        Access { allowed: decision.is_allowed(), reason, error }
    }

    /// The namespace of the request as expressions see it; null for objects of the cluster.
    pub fn namespace(&self, request: &Request<'_>) -> Value {
        if request.call.namespace.is_empty() || is_namespace(request) {
            return Value::Null;
        }
        match lookup(self.registry, "", "namespaces", "", request.call.namespace) {
            Ok(Some(namespace)) => namespace.into_value(),
            Ok(None) | Err(_) => Value::Null,
        }
    }
}

pub fn is_namespace(request: &Request<'_>) -> bool {
    request.call.kind.group.is_empty() && request.call.kind.plural == "namespaces"
}

/// The namespace that reviews name: a namespace is in itself.
pub fn namespace_of<'r>(request: &'r Request<'_>) -> &'r str {
    if is_namespace(request) { request.name } else { request.call.namespace }
}

fn request_resource(request: &Request<'_>) -> Question {
    Question {
        group: request.call.kind.group.to_string(),
        resource: request.call.kind.plural.to_string(),
        subresource: request.call.subresource.to_string(),
        namespace: namespace_of(request).to_string(),
        name: request.name.to_string(),
        ..Question::default()
    }
}

/// The request as an AdmissionRequest, without its objects: those are variables of their own.
pub fn request_value(request: &Request<'_>, versioned: &Versioned) -> Value {
    let (asked, own) = (&versioned.kind, request.call.kind);
    let mut user = json!({"username": request.call.user.name});
    for (field, value) in [
        ("uid", json!(request.call.user.uid)),
        ("groups", json!(request.call.user.groups)),
        ("extra", json!(request.call.user.extra)),
    ] {
        if !is_empty(&value) {
            user[field] = value;
        }
    }
    let kind_of = |row: &Kind| match request.call.object_kind {
        Some(kind) => json!({"group": kind.group, "version": kind.version, "kind": kind.kind}),
        None => json!({"group": row.group, "version": row.version, "kind": row.kind}),
    };
    let mut value = json!({
        "kind": kind_of(asked),
        "resource": {"group": asked.group, "version": asked.version, "resource": asked.plural},
        "requestKind": kind_of(own),
        "requestResource": {"group": own.group, "version": own.version, "resource": own.plural},
        "operation": operation_word(request.operation),
        "userInfo": user,
        "dryRun": request.call.dry_run,
        "options": request.call.options,
    });
    for (field, text) in [
        ("subResource", request.call.subresource),
        ("requestSubResource", request.call.subresource),
        ("name", request.name),
        ("namespace", namespace_of(request)),
    ] {
        if !text.is_empty() {
            value[field] = text.into();
        }
    }
    value
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        _ => false,
    }
}
