//! Reviews of tokens and access, decided by the server's own authenticators and authorizers.

use std::sync::Arc;

use ferry_api::field_error::Reason;
use ferry_api::{FieldErrors, Kind, Object, Status};
use ferry_auth::{Attributes, Decision, User};
use ferry_patch::managed_fields::{self, OneVersion, Reset, Write};
use jiff::Timestamp;
use serde_json::{Map, Value, json};

use crate::actions::Review;
use crate::api::Api;
use crate::body::Response;
use crate::negotiate::{View, negotiate};
use crate::request::Request;
use crate::respond;
use crate::verbs::Target;

pub async fn review(
    api: &Arc<Api>,
    request: &Request,
    kind: &Kind,
    review: Review,
) -> Result<Response, Status> {
    let media_type = negotiate(&request.headers, &[View::Whole])?;
    let options = request.write_options("CreateOptions")?;
    let mut object = request.decode_as(kind, options.validation)?;
    let sent = metadata_of(&object, kind, &options.manager, &request.info.namespace);
    let status = match review {
        Review::SelfSubject => {
            // of what was sent nothing is kept
            let now = ferry_registry::metadata::timestamp(Timestamp::now().as_second());
            object.0.insert("metadata".into(), json!({"creationTimestamp": now}));
            json!({"userInfo": user_info(&request.user)})
        }
        Review::SelfSubjectAccess => {
            refuse(with_metadata(question_errors(&object), &sent, "must be empty"))?;
            access(api, &object, &request.user).await
        }
        Review::SubjectAccess => {
            refuse(with_metadata(subject_errors(&object), &sent, "must be empty"))?;
            access(api, &object, &asked_user(&object)).await
        }
        Review::LocalSubjectAccess => {
            let errors = local_errors(&object, &request.info.namespace);
            refuse(with_metadata(errors, &sent, "must be empty except for namespace"))?;
            access(api, &object, &asked_user(&object)).await
        }
        Review::SelfSubjectRules => {
            if object.text_at(&["spec", "namespace"]).is_empty() {
                return Err(Status::bad_request("no namespace on request"));
            }
            let status = rules(api, &object, &request.user);
            object.0.insert("metadata".into(), json!({}));
            object.0.insert("spec".into(), json!({}));
            status
        }
        Review::Token => api.review_token(&object).await?,
    };
    object.0.insert("status".into(), status);
    Ok(respond::object(201, object, media_type))
}

/// `serviceaccounts/NAME/token`: a token bound to its account.
pub async fn token(target: Target<'_>) -> Result<Response, Status> {
    let media_type = target.media_type()?;
    let object = target.api.request_token(target).await?;
    Ok(respond::object(201, object, media_type))
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

/// A review's metadata as a refusal quotes it: with the fields that its writer would own.
fn metadata_of(review: &Object, kind: &Kind, manager: &str, namespace: &str) -> Value {
    let mut review = review.clone();
    let api_version = kind.api_version();
    managed_fields::update(
        None,
        &mut review,
        &Write {
            manager,
            subresource: "",
            api_version: &api_version,
            now: Timestamp::now(),
            schema: kind.codec.field_rows(),
            reset: Reset::Nothing,
            versions: &OneVersion,
        },
    );
    // managers are kept apart from the fields, and only written out together with them
    let written: Value = serde_json::from_slice(&review.to_stored_json()).unwrap_or_default();
    let mut metadata = written.get("metadata").cloned().unwrap_or_else(|| json!({}));
    // where it was sent to counts, whatever it says itself
    if let Some(fields) = metadata.as_object_mut() {
        match namespace {
            "" => drop(fields.remove("namespace")),
            namespace => drop(fields.insert("namespace".into(), namespace.into())),
        }
    }
    metadata
}

/// A review is not kept, so nothing about it can be said in its metadata.
fn with_metadata(mut errors: FieldErrors, sent: &Value, why: &str) -> FieldErrors {
    let is_local = why != "must be empty";
    let allowed = |field: &str| field == "managedFields" || (is_local && field == "namespace");
    let fields = sent.as_object().into_iter().flatten();
    if fields.into_iter().any(|(field, value)| !allowed(field) && !value.is_null()) {
        errors.push("metadata", Reason::Invalid, format!("{}: {why}", in_order(sent, METADATA)));
    }
    errors
}

/// The order in which upstream writes metadata, and a manager's entry in it.
const METADATA: &[&str] = &[
    "name",
    "generateName",
    "namespace",
    "selfLink",
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "labels",
    "annotations",
    "ownerReferences",
    "finalizers",
    "managedFields",
];
const MANAGER: &[&str] =
    &["manager", "operation", "apiVersion", "time", "fieldsType", "fieldsV1", "subresource"];

fn in_order(value: &Value, order: &[&str]) -> String {
    let none = Map::new();
    let fields = value.as_object().unwrap_or(&none);
    let known = order.iter().filter_map(|field| Some((*field, fields.get(*field)?)));
    let written = known.map(|(field, value)| match value.as_array().filter(|_| field == "managedFields") {
        Some(entries) => {
            let entries: Vec<String> = entries.iter().map(|entry| in_order(entry, MANAGER)).collect();
            format!("\"{field}\":[{}]", entries.join(","))
        }
        None => format!("\"{field}\":{value}"),
    });
    format!("{{{}}}", written.collect::<Vec<_>>().join(","))
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
    for field in ["fieldSelector", "labelSelector"] {
        if let Some(selector) = resource.and_then(|resource| resource.get(field)) {
            selector_errors(selector, field, &mut errors);
        }
    }
    errors
}

/// A selector is given as a text or as a list; which operators there are is for the authorizer to know.
fn selector_errors(selector: &Value, field: &str, errors: &mut FieldErrors) {
    let path = format!("spec.resourceAttributes.{field}");
    let raw = selector.get("rawSelector").and_then(Value::as_str).unwrap_or("");
    let requirements = selector.get("requirements").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    match (raw.is_empty(), requirements.is_empty()) {
        (false, false) => {
            errors.invalid(
                format!("{path}.rawSelector"),
                raw,
                "may not specified at the same time as requirements",
            );
        }
        (true, true) => {
            let why = format!("when {path} is specified, requirements or rawSelector is required");
            errors.required(format!("{path}.requirements"), &why);
        }
        _ => {}
    }
    for (index, requirement) in requirements.iter().enumerate() {
        let path = format!("{path}.requirements[{index}]");
        let text = |field: &str| requirement.get(field).and_then(Value::as_str).unwrap_or("");
        let has_values = !texts(requirement.get("values")).is_empty();
        match (field, text("key")) {
            ("fieldSelector", "") => errors.required(format!("{path}.key"), "must be specified"),
            ("labelSelector", key) => {
                for why in ferry_api::names::qualified_name(key) {
                    errors.invalid(format!("{path}.key"), key, &why);
                }
            }
            _ => {}
        }
        match text("operator") {
            "In" | "NotIn" if !has_values => errors
                .required(format!("{path}.values"), "must be specified when `operator` is 'In' or 'NotIn'"),
            "Exists" | "DoesNotExist" if has_values => errors.forbidden(
                format!("{path}.values"),
                "may not be specified when `operator` is 'Exists' or 'DoesNotExist'",
            ),
            _ => {}
        }
    }
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
