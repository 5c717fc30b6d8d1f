//! Reviews: questions about identity and access, answered from the server's own authenticators and
//! authorizers.

use std::sync::Arc;

use ferry_api::{FieldErrors, Kind, Object, Status};
use ferry_auth::{Attributes, Decision, User};
use serde_json::{Value, json};

use crate::api::Api;
use crate::body::Response;
use crate::negotiate::{View, wanted};
use crate::request::Request;
use crate::respond;
use crate::verbs::Target;

pub async fn review(api: &Arc<Api>, request: &Request, kind: &Arc<Kind>) -> Result<Response, Status> {
    let wanted = wanted(&request.headers, &[View::Whole])?;
    let options = request.write_options("CreateOptions")?;
    let mut object = request.decode_as(kind, options.validation)?;
    let status = match &*kind.plural {
        "selfsubjectreviews" => json!({"userInfo": user_info(&request.user)}),
        "selfsubjectaccessreviews" => access(api, &object, &request.user).await?,
        "subjectaccessreviews" | "localsubjectaccessreviews" => {
            if kind.is_namespaced()
                && object.text_at(&["spec", "resourceAttributes", "namespace"]) != request.info.namespace
            {
                let mut errors = FieldErrors::default();
                errors.invalid(
                    "spec.resourceAttributes.namespace",
                    object.text_at(&["spec", "resourceAttributes", "namespace"]),
                    &format!("must match metadata.namespace: {}", request.info.namespace),
                );
                return Err(Status::invalid(&kind.group, &kind.kind, "", &errors));
            }
            let user = asked_user(&object, kind)?;
            access(api, &object, &user).await?
        }
        "selfsubjectrulesreviews" => rules(api, &object, &request.user),
        "tokenreviews" => api.review_token(&object).await?,
        _ => return Err(Status::method_not_allowed()),
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

fn asked_user(object: &Object, kind: &Kind) -> Result<User, Status> {
    let texts = |value: Option<&Value>| -> Vec<String> {
        value
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .filter_map(|text| Some(text.as_str()?.to_string()))
            .collect()
    };
    let name = object.text_at(&["spec", "user"]);
    let groups = texts(object.get(&["spec", "groups"]));
    if name.is_empty() && groups.is_empty() {
        let mut errors = FieldErrors::default();
        errors.invalid("spec.user", "", "at least one of user or group must be specified");
        return Err(Status::invalid(&kind.group, &kind.kind, "", &errors));
    }
    let extra = object
        .get(&["spec", "extra"])
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
        .map(|(key, values)| (key.to_lowercase(), texts(Some(values))))
        .collect();
    Ok(User { name: name.to_string(), uid: object.text_at(&["spec", "uid"]).to_string(), groups, extra })
}

async fn access(api: &Api, object: &Object, user: &User) -> Result<Value, Status> {
    let resource = object.get(&["spec", "resourceAttributes"]);
    let path = object.get(&["spec", "nonResourceAttributes"]);
    let text = |value: Option<&Value>, field: &str| -> String {
        value.and_then(|value| value.get(field)).and_then(Value::as_str).unwrap_or("").to_string()
    };
    if resource.is_some() == path.is_some() {
        let mut errors = FieldErrors::default();
        errors.invalid(
            "spec.resourceAttributes",
            Value::Null,
            "exactly one of nonResourceAttributes or resourceAttributes must be specified",
        );
        return Err(Status::invalid("authorization.k8s.io", object.kind(), "", &errors));
    }
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
        status["reason"] = decision.reason().into();
    }
    Ok(status)
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
