//! The scale subresource: one small object over any kind that has replicas.

use ferry_api::selector::LabelSelector;
use ferry_api::{GroupVersionKind, Object, Schema, Status, json as codec};
use ferry_patch::{json_patch, merge, strategic};
use ferry_registry::verbs::Answer;
use ferry_registry::verbs::list::Freshness;
use ferry_registry::verbs::update::Change;
use http::header::CONTENT_TYPE;
use serde_json::{Value, json};

use super::Target;
use crate::body::Response;
use crate::request::Writing;
use crate::respond;

pub async fn scale(target: Target<'_>) -> Result<Response, Status> {
    let wanted = target.wanted()?;
    let kind = if target.request.info.verb == "patch" { "PatchOptions" } else { "UpdateOptions" };
    let options = target.request.write_options(kind)?;
    let writing = Writing::new(target.api, target.request, target.kind, &options);
    let call = writing.call(target.request, target.kind, target.resource);
    let answer = match target.request.info.verb {
        "get" => Answer::Entry(target.api.registry.get(&call, Freshness::Current).await?),
        _ => {
            let transform = |live: Option<&Object>| {
                let live = live.ok_or_else(|| call.not_found())?;
                scaled(target, live)
            };
            let change = Change { transform: &transform, tracked: false, may_create: false, uid: None };
            target.api.registry.update(&call, change).await?.0
        }
    };
    let object = respond::whole(target.kind, &answer)?;
    Ok(respond::object(200, scale_of(target, &object)?, wanted))
}

fn schema() -> Schema {
    Schema::builtin(&GroupVersionKind::new("autoscaling", "v1", "Scale")).expect("Scale is in the table")
}

/// The Scale that an object shows.
fn scale_of(target: Target<'_>, object: &Object) -> Result<Object, Status> {
    let paths = target.resource.strategy.scale().ok_or_else(Status::no_such_path)?;
    let number = |path: &[&str]| object.get(path).and_then(Value::as_i64).unwrap_or(0);
    let selector = match object.get(paths.selector) {
        Some(Value::Object(map))
            if map.contains_key("matchLabels") || map.contains_key("matchExpressions") =>
        {
            LabelSelector::from_structured(Some(&Value::Object(map.clone())))
                .map_err(|error| Status::internal(error.to_string()))?
                .to_string()
        }
        Some(Value::Object(map)) => map
            .iter()
            .filter_map(|(key, value)| Some(format!("{key}={}", value.as_str()?)))
            .collect::<Vec<_>>()
            .join(","),
        _ => String::new(),
    };
    let mut metadata = json!({});
    for field in ["name", "namespace", "uid", "resourceVersion", "creationTimestamp"] {
        if let Some(value) = object.meta(field) {
            metadata[field] = value.clone();
        }
    }
    let scale = json!({
        "kind": "Scale", "apiVersion": "autoscaling/v1", "metadata": metadata,
        "spec": {"replicas": number(paths.replicas)},
        "status": {"replicas": number(paths.status_replicas), "selector": selector},
    });
    Object::from_value(scale).ok_or_else(|| Status::internal("a scale is an object"))
}

/// The object with the replicas that the request's Scale asks for.
fn scaled(target: Target<'_>, live: &Object) -> Result<Object, Status> {
    let paths = target.resource.strategy.scale().ok_or_else(Status::no_such_path)?;
    let asked = asked_scale(target, live)?;
    let replicas = asked.get(&["spec", "replicas"]).and_then(Value::as_i64).unwrap_or(0);
    if replicas < 0 {
        let mut errors = ferry_api::FieldErrors::default();
        errors.invalid("spec.replicas", replicas, "must be greater than or equal to 0");
        return Err(Status::invalid("autoscaling", "Scale", live.name(), &errors));
    }
    if !asked.name().is_empty() && asked.name() != live.name() {
        return Err(Status::bad_request(format!(
            "the name of the object ({}) does not match the name on the URL ({})",
            asked.name(),
            live.name()
        )));
    }
    let mut object = live.clone();
    match asked.resource_version() {
        "" => {
            object.remove_meta("resourceVersion");
        }
        version => object.set_meta("resourceVersion", version),
    }
    let (field, sections) = paths.replicas.split_last().expect("a path has steps");
    let mut section = &mut object.0;
    for name in sections {
        section = ferry_api::object::object_at(section, name);
    }
    section.insert((*field).to_string(), replicas.into());
    Ok(object)
}

fn asked_scale(target: Target<'_>, live: &Object) -> Result<Object, Status> {
    let request = target.request;
    let validation = request.write_options("UpdateOptions")?.validation;
    if request.info.verb != "patch" {
        let kind = ferry_api::Kind { kind: "Scale".into(), ..autoscaling_kind(target) };
        return request.decode_as(&kind, validation);
    }
    let mut value = scale_of(target, live)?.into_value();
    let content_type = request.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or("");
    let patch = || -> Result<Value, Status> {
        serde_json::from_slice(&request.body)
            .map_err(|error| Status::bad_request(format!("error decoding patch: {error}")))
    };
    match content_type.split(';').next().unwrap_or("").trim() {
        "application/json-patch+json" => json_patch::apply(&mut value, &request.body),
        "application/strategic-merge-patch+json" => strategic::apply(&mut value, patch()?, &schema()),
        "application/merge-patch+json" | "application/apply-patch+yaml" => {
            let patch = match serde_json::from_slice(&request.body) {
                Ok(patch) => patch,
                Err(_) => ferry_api::yaml::decode_untyped(&request.body, validation)?.object.into_value(),
            };
            merge::apply(&mut value, &patch);
            Ok(())
        }
        _ => {
            return Err(Status::unsupported_media_type(&[
                "application/json-patch+json",
                "application/merge-patch+json",
                "application/strategic-merge-patch+json",
            ]));
        }
    }
    .map_err(|error| respond::patch_failure(error, "autoscaling", "Scale", &request.info.name))?;
    Ok(codec::decode_value(value, &schema(), validation)?.object)
}

/// The row of the Scale type, which is no resource of its own.
fn autoscaling_kind(target: Target<'_>) -> ferry_api::Kind {
    ferry_api::Kind {
        group: "autoscaling".into(),
        version: "v1".into(),
        schema: Some(schema()),
        storage_version: GroupVersionKind::new("autoscaling", "v1", "Scale"),
        ..(**target.kind).clone()
    }
}
