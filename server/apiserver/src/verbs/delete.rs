//! DELETE of one object and of many.

use ferry_api::{Status, json};
use ferry_registry::verbs::delete::{DeleteOptions, Deleted};
use ferry_registry::verbs::list::{Freshness, Listed};
use serde_json::Value;

use super::{Target, read};
use crate::body::Response;
use crate::negotiate::{self, Encoding};
use crate::request::WriteOptions;
use crate::respond;

pub async fn delete(target: Target<'_>) -> Result<Response, Status> {
    let media_type = target.media_type()?;
    let (options, write) = delete_options(target)?;
    let call = target.call(&write);
    match target.api.registry.delete(&call, &options).await? {
        Deleted::Gone(answer) if target.kind.returns_deleted => {
            respond::answer(target, 200, &answer, media_type).await
        }
        Deleted::Gone(answer) => {
            // Its name and uid are the same in every version.
            let object = respond::whole(target.resource, &target.resource.stored, &answer)?;
            let status = Status::deleted(&target.kind.group_resource(), object.name(), object.uid());
            Ok(respond::status_as(&status, media_type))
        }
        Deleted::Terminating(answer) => {
            let waits = options.orphan_dependents == Some(false)
                || options.propagation_policy.as_deref() == Some("Foreground");
            let code = if waits { 202 } else { 200 };
            respond::answer(target, code, &answer, media_type).await
        }
    }
}

pub async fn delete_collection(target: Target<'_>) -> Result<Response, Status> {
    let media_type = target.media_type()?;
    let (options, write) = delete_options(target)?;
    let call = target.call(&write);
    let filter = read::filter(target)?;
    let revision = target.api.registry.wait_until_fresh(Freshness::Current).await?;
    let entries = target.api.registry.delete_collection(&call, &filter, &options).await?;
    let listed = Listed { entries, revision, next: None, remaining: None };
    respond::list(target, listed, media_type).await
}

/// What is asked of the deletion, and what it shares with all writes.
fn delete_options(target: Target<'_>) -> Result<(DeleteOptions, WriteOptions), Status> {
    let (options, value) = read_options(target)?;
    let mut write = target.request.write_options("DeleteOptions")?;
    write.dry_run |= !options.dry_run.is_empty();
    write.value = value;
    Ok((options, write))
}

/// From the body, or from the query where the body says nothing.
fn read_options(target: Target<'_>) -> Result<(DeleteOptions, Value), Status> {
    let request = target.request;
    let mut value = if request.body.is_empty() {
        Value::Object(Default::default())
    } else {
        let bad = |why: String| Status::bad_request(format!("error decoding DeleteOptions: {why}"));
        match negotiate::body_encoding(&request.headers)? {
            Encoding::Protobuf => ferry_api::protobuf::decode(&request.body)?.1.into_value(),
            Encoding::Yaml => {
                ferry_api::yaml::decode_untyped(&request.body, ferry_api::FieldValidation::Ignore)?
                    .object
                    .into_value()
            }
            Encoding::Json => serde_json::from_slice(&request.body)
                .map_err(|error| bad(json::why_unreadable(&request.body, &error)))?,
        }
    };
    if let Some(kind) = value.get("kind").and_then(Value::as_str).filter(|kind| *kind != "DeleteOptions") {
        return Err(Status::bad_request(format!(
            "decoded object cannot be converted to DeleteOptions: {kind}"
        )));
    }
    if request.body.is_empty() {
        for name in ["gracePeriodSeconds", "orphanDependents", "propagationPolicy"] {
            let Some(text) = request.query.get(name) else { continue };
            value[name] = match name {
                "propagationPolicy" => text.into(),
                _ => serde_json::from_str(text)
                    .map_err(|_| Status::bad_request(format!("invalid {name}: {text:?}")))?,
            };
        }
        if let Some(dry_run) = request.query.get("dryRun") {
            value["dryRun"] = Value::from(vec![dry_run.to_string()]);
        }
    }
    let options = ferry_api::view::of_value(&value)
        .map_err(|error| Status::bad_request(format!("error decoding DeleteOptions: {error}")))?;
    value["apiVersion"] = "meta.k8s.io/v1".into();
    value["kind"] = "DeleteOptions".into();
    Ok((options, value))
}
