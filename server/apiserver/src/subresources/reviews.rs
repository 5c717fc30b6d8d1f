//! Reviews: questions about identity and access, answered from the server's own authenticators and
//! authorizers.

use std::sync::Arc;

use ferry_api::{FieldErrors, Kind, Object, Status};
use ferry_auth::{Attributes, Decision, User};
use serde_json::{Value, json};

use crate::actions::Review;
use crate::api::Api;
use crate::body::Response;
use crate::negotiate::{View, wanted};
use crate::request::Request;
use crate::respond;
use crate::verbs::Target;

pub async fn review(
    api: &Arc<Api>,
    request: &Request,
    kind: &Kind,
    review: Review,
) -> Result<Response, Status> {
    let wanted = wanted(&request.headers, &[View::Whole])?;
    let options = request.write_options("CreateOptions")?;
    let mut object = request.decode_as(kind, options.validation)?;
    let status = match review {
        Review::SelfSubject => json!({"userInfo": user_info(&request.user)}),
        Review::SelfSubjectAccess => {
            refuse(question_errors(&object))?;
            access(api, &object, &request.user).await
        }
        Review::SubjectAccess => {
            refuse(subject_errors(&object))?;
            access(api, &object, &asked_user(&object)).await
        }
        Review::LocalSubjectAccess => {
            refuse(local_errors(&object, &request.info.namespace))?;
            access(api, &object, &asked_user(&object)).await
        }
        Review::SelfSubjectRules => {
            if object.text_at(&["spec", "namespace"]).is_empty() {
                return Err(Status::bad_request("no namespace on request"));
            }
            rules(api, &object, &request.user)
        }
        Review::Token => api.review_token(&object).await?,
    };
    object.0.insert("status".into(), status);
    Ok(respond::object(201, object, wanted))
}

/// `serviceaccounts/NAME/token`: a token bound to its account.
pub async fn token(target: Target<'_>) -> Result<Response, Status> {
    let wanted = target.wanted()?;
    let object = target.api.request_token(target).await?;
    Ok(respond::object(201, object, wanted))
}

/// A user as reviews show one.
pub fn user_info(user: &User) -> Value {
    let mut info = json!({"username": user.name, "groups": user.groups});
    if !user.uid.is_empty() {
        info["uid"] = user.uid.as_str().into();
    }
    if !user.extra.is_empty() {
        info["extra"] = json!(user.extra);
    }
    info
}

/// Reviews are invalid without naming their kind.
fn refuse(errors: FieldErrors) -> Result<(), Status> {
    if errors.is_empty() { Ok(()) } else { Err(Status::invalid("authorization.k8s.io", "", "", &errors)) }
}

/// A question is about a resource or about a path.
fn question_errors(review: &Object) -> FieldErrors {
    let mut errors = FieldErrors::default();
    let resource = review.get(&["spec", "resourceAttributes"]);
    match (resource, path_asked(review)) {
        (Some(_), Some(path)) => {
            let why = "cannot be specified in combination with resourceAttributes";
            errors.invalid("spec.nonResourceAttributes", path, why);
        }
        (None, None) => {
            let why = "exactly one of nonResourceAttributes or resourceAttributes must be specified";
            errors.invalid("spec.resourceAttributes", Value::Null, why);
        }
        (Some(_), None) | (None, Some(_)) => {}
    }
    errors
}

fn subject_errors(review: &Object) -> FieldErrors {
    let mut errors = question_errors(review);
    if review.text_at(&["spec", "user"]).is_empty() && texts(review.get(&["spec", "groups"])).is_empty() {
        errors.invalid("spec.user", "", "at least one of user or group must be specified");
    }
    errors
}

fn local_errors(review: &Object, namespace: &str) -> FieldErrors {
    let mut errors = subject_errors(review);
    let asked = review.text_at(&["spec", "resourceAttributes", "namespace"]);
    if review.get(&["spec", "resourceAttributes"]).is_some() && asked != namespace {
        errors.invalid("spec.resourceAttributes.namespace", asked, "must match metadata.namespace");
    }
    if let Some(path) = path_asked(review) {
        errors.invalid("spec.nonResourceAttributes", path, "disallowed on this kind of request");
    }
    errors
}

/// As refusals show it.
fn path_asked(review: &Object) -> Option<Value> {
    let asked = review.get(&["spec", "nonResourceAttributes"])?;
    let text = |field: &str| asked.get(field).and_then(Value::as_str).unwrap_or("");
    Some(json!({"Path": text("path"), "Verb": text("verb")}))
}

/// The strings of a list in an object.
pub fn texts(value: Option<&Value>) -> Vec<String> {
    value
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(|text| Some(text.as_str()?.to_string()))
        .collect()
}

fn asked_user(review: &Object) -> User {
    let extra = review
        .get(&["spec", "extra"])
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
        .map(|(key, values)| (key.to_lowercase(), texts(Some(values))))
        .collect();
    User {
        name: review.text_at(&["spec", "user"]).to_string(),
        uid: review.text_at(&["spec", "uid"]).to_string(),
        groups: texts(review.get(&["spec", "groups"])),
        extra,
    }
}

async fn access(api: &Api, object: &Object, user: &User) -> Value {
    let resource = object.get(&["spec", "resourceAttributes"]);
    let path = object.get(&["spec", "nonResourceAttributes"]);
    let text = |value: Option<&Value>, field: &str| -> String {
        value.and_then(|value| value.get(field)).and_then(Value::as_str).unwrap_or("").to_string()
    };
    let (verb, group, version, plural, sub, namespace, name, url) = (
        text(resource.or(path), "verb"),
        text(resource, "group"),
        text(resource, "version"),
        text(resource, "resource"),
        text(resource, "subresource"),
        text(resource, "namespace"),
        text(resource, "name"),
        text(path, "path"),
    );
    let attributes = Attributes {
        api_version: &version,
        resource: &plural,
        subresource: &sub,
        namespace: &namespace,
        name: &name,
        path: &url,
        is_resource_request: resource.is_some(),
        api_group: &group,
        ..Attributes::path(user, &verb, &url)
    };
    let decision = api.authorization.authorize(&attributes).await;
    let mut status = json!({"allowed": decision.is_allowed()});
    if matches!(decision, Decision::Deny { .. }) {
        status["denied"] = true.into();
    }
    if !decision.reason().is_empty() {
        let field = if matches!(decision, Decision::Failed { .. }) { "evaluationError" } else { "reason" };
        status[field] = decision.reason().into();
    }
    status
}

fn rules(api: &Api, object: &Object, user: &User) -> Value {
    let rules = api.authorization.rules_for(user, object.text_at(&["spec", "namespace"]));
    let resource: Vec<Value> = rules
        .resource_rules
        .iter()
        .map(|rule| {
            let mut value =
                json!({"verbs": rule.verbs, "apiGroups": rule.api_groups, "resources": rule.resources});
            if !rule.resource_names.is_empty() {
                value["resourceNames"] = json!(rule.resource_names);
            }
            value
        })
        .collect();
    let paths: Vec<Value> = rules
        .non_resource_rules
        .iter()
        .map(|rule| json!({"verbs": rule.verbs, "nonResourceURLs": rule.non_resource_urls}))
        .collect();
    let mut status =
        json!({"resourceRules": resource, "nonResourceRules": paths, "incomplete": rules.incomplete});
    if !rules.errors.is_empty() {
        status["evaluationError"] = rules.errors.join(", ").into();
    }
    status
}
