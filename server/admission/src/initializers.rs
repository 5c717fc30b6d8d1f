//! Initializers: a new object that an InitializerConfiguration matches gets the names of its initializers. Until the list
//! is empty, only the first of them may change the object.
//!
//! Whose turn it is: whoever may `initialize` the resource, as the first servers with initializers had it;
//! or, to give each initializer a right of its own, whoever may `initialize` the resource `initializers` of
//! the group admissionregistration.k8s.io under the name that stands first.

use std::sync::Arc;

use async_trait::async_trait;
use ferry_api::{FieldErrors, GroupResource, Object, Status};
use ferry_auth::Authorization;
use ferry_auth::attributes::Attributes;
use ferry_registry::Registry;
use ferry_registry::verbs::Operation;
use ferry_registry::verbs::initialize::pending;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::chain::{Phase, Plugin, Request};
use crate::plugins;
use crate::webhook::rules::{RequestAttributes, Rule};

const GROUP: &str = "admissionregistration.k8s.io";
const PLURAL: &str = "initializerconfigurations";
const FIELD: &str = "initializers";
const MIRROR: &str = "kubernetes.io/config.mirror";

pub fn make(context: &plugins::Context) -> Arc<dyn Plugin> {
    Arc::new(Initializers {
        registry: context.registry.clone(),
        authorization: context.authorization.clone(),
    })
}

struct Initializers {
    registry: Arc<Registry>,
    authorization: Authorization,
}

/// One initializer as it is configured.
#[derive(Debug, Deserialize)]
struct Initializer {
    name: String,
    #[serde(default)]
    rules: Vec<Rule>,
}

#[async_trait]
impl Plugin for Initializers {
    fn phases(&self) -> &'static [Phase] {
        &[Phase::Mutate]
    }

    fn handles(&self, request: &Request<'_>) -> bool {
        self.registry.settings.initializers
            && request.call.object_kind.is_none()
            && !matches!(request.operation, Operation::Delete | Operation::Connect)
    }

    async fn mutate(
        &self,
        request: &Request<'_>,
        object: &mut Object,
        old: Option<&Object>,
    ) -> Result<(), Status> {
        match old {
            None => self.begin(request, object).await,
            Some(old) => self.proceed(request, object, old).await,
        }
    }
}

impl Initializers {
    /// Who has to finish this object, in order.
    fn configured(&self, request: &Request<'_>) -> Result<Vec<String>, Status> {
        let Some(resource) = self.registry.resource(&GroupResource::new(GROUP, PLURAL)) else {
            return Ok(Vec::new());
        };
        let attributes = RequestAttributes {
            operation: Operation::Create,
            kind: request.call.kind,
            subresource: request.call.subresource,
            name: request.name,
        };
        let mut names = Vec::new();
        for entry in resource.cache.snapshot().0.values() {
            let configuration = entry.read_object()?;
            let listed = configuration.get(&[FIELD]).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
            for initializer in listed {
                let initializer = Initializer::deserialize(initializer)
                    .map_err(|error| Status::internal(format!("an initializer cannot be read: {error}")))?;
                if is_for(&initializer, attributes) && !names.contains(&initializer.name) {
                    names.push(initializer.name);
                }
            }
        }
        Ok(names)
    }

    async fn begin(&self, request: &Request<'_>, object: &mut Object) -> Result<(), Status> {
        // What configures admission must not wait for it.
        if request.call.kind.group == GROUP {
            object.remove_meta(FIELD);
            return Ok(());
        }
        if let Some(given) = pending(object) {
            // Who may initialize may also leave it out, or begin with names of their own.
            let bypasses = given.is_empty();
            let head = given.first().map(|name| name.to_string());
            self.must_hold(request, head.as_deref(), "create with initializers denied").await?;
            if bypasses {
                object.remove_meta(FIELD);
            }
            return Ok(());
        }
        // Mirror pods run already; there is nothing to finish.
        if object.annotation(MIRROR).is_some() {
            return Ok(());
        }
        let names = self.configured(request)?;
        if !names.is_empty() {
            let names: Vec<Value> = names.into_iter().map(|name| json!({"name": name})).collect();
            object.set_meta(FIELD, json!({"pending": names}));
        }
        Ok(())
    }

    async fn proceed(&self, request: &Request<'_>, object: &mut Object, old: &Object) -> Result<(), Status> {
        // Nobody finishes an object by way of its status.
        if !request.call.subresource.is_empty() {
            ferry_registry::metadata::copy(object, old, FIELD);
            return Ok(());
        }
        let ended = |object: &Object| {
            object.meta(FIELD).is_some_and(|initializers| {
                initializers.get("result").is_none_or(Value::is_null)
                    && initializers.get("pending").and_then(Value::as_array).is_none_or(Vec::is_empty)
            })
        };
        if ended(object) {
            object.remove_meta(FIELD);
        }
        if pending(object).is_none() && pending(old).is_none() {
            return Ok(());
        }
        let mut errors = FieldErrors::default();
        check_step(object, old, &mut errors);
        if !errors.is_empty() {
            return Err(Status::invalid(
                &request.call.kind.group,
                &request.call.kind.kind,
                request.name,
                &errors,
            ));
        }
        let head = pending(old).and_then(|names| names.first().map(|name| name.to_string()));
        self.must_hold(request, head.as_deref(), "update to uninitialized resource denied").await
    }

    /// The caller may initialize the resource, or holds the name whose turn it is.
    async fn must_hold(&self, request: &Request<'_>, head: Option<&str>, what: &str) -> Result<(), Status> {
        let _span = ferry_trace::span("admission.initializers.authorize");
        let resource = Attributes {
            api_version: &request.call.kind.version,
            namespace: request.call.namespace,
            name: request.name,
            ..Attributes::resource(
                request.call.user,
                "initialize",
                &request.call.kind.group,
                &request.call.kind.plural,
            )
        };
        let decision = self.authorization.authorize(&resource).await;
        if decision.is_allowed() {
            return Ok(());
        }
        if let Some(name) = head {
            let named =
                Attributes { name, ..Attributes::resource(request.call.user, "initialize", GROUP, FIELD) };
            if self.authorization.authorize(&named).await.is_allowed() {
                return Ok(());
            }
        }
        Err(request.forbid(format!("{what}: {}", decision.reason())))
    }
}

fn is_for(initializer: &Initializer, attributes: RequestAttributes<'_>) -> bool {
    initializer.rules.iter().any(|rule| {
        // Rules of initializers name no operations: they are about creation.
        Rule { operations: vec!["*".into()], ..rule.clone() }.matches(attributes)
    })
}

/// Whether the list of names may become what it becomes: only the first may be taken off, and once there
/// is a result it stays. Pure.
fn check_step(new: &Object, old: &Object, errors: &mut FieldErrors) {
    let path = "metadata.initializers";
    let result = |object: &Object| ferry_registry::verbs::initialize::result(object).cloned();
    match (pending(old), pending(new)) {
        (None, Some(_)) => {
            errors.invalid(path, Value::Null, "field is immutable once initialization has completed")
        }
        (Some(before), after) => {
            let after = after.unwrap_or_else(Vec::new);
            if after != before && after != before[before.len().min(1)..] {
                let left: Vec<Value> = after.iter().map(|name| json!({"name": name})).collect();
                errors.invalid(format!("{path}.pending"), left, "only the first name may be removed");
            }
            match (result(old), result(new)) {
                (Some(old), new) if new.as_ref() != Some(&old) => {
                    errors.invalid(format!("{path}.result"), new, "field is immutable");
                }
                (None, Some(new)) => {
                    let status = new.get("status").and_then(Value::as_str).unwrap_or("");
                    if !["", "Success", "Failure"].contains(&status) {
                        errors.not_supported(
                            format!("{path}.result.status"),
                            status,
                            &["Failure", "Success"],
                        );
                    }
                }
                _ => {}
            }
        }
        (None, None) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(pending: &[&str], result: Option<Value>) -> Object {
        let names: Vec<Value> = pending.iter().map(|name| json!({"name": name})).collect();
        let mut initializers = json!({"pending": names});
        if let Some(result) = result {
            initializers["result"] = result;
        }
        Object::from_value(json!({"metadata": {"name": "x", "initializers": initializers}}))
            .expect("an object")
    }

    fn finished() -> Object {
        Object::from_value(json!({"metadata": {"name": "x"}})).expect("an object")
    }

    #[test]
    fn only_the_first_name_is_taken_off() {
        let check = |old: &Object, new: &Object, expected: usize| {
            let mut errors = FieldErrors::default();
            check_step(new, old, &mut errors);
            assert_eq!(errors.0.len(), expected, "{:?}", errors.0);
        };
        let two = object(&["a", "b"], None);
        check(&two, &two, 0);
        check(&two, &object(&["b"], None), 0);
        check(&two, &object(&["a"], None), 1);
        check(&two, &finished(), 1);
        check(&two, &object(&["a", "b", "c"], None), 1);
        check(&object(&["a"], None), &finished(), 0);
        check(&finished(), &two, 1);
        let failed = json!({"status": "Failure", "message": "no"});
        check(&two, &object(&["a", "b"], Some(failed.clone())), 0);
        check(&two, &object(&["a", "b"], Some(json!({"status": "Maybe"}))), 1);
        check(&object(&["a"], Some(failed)), &object(&["a"], None), 1);
    }
}
