//! PATCH: JSON patch, merge patch, strategic merge patch, and server-side apply. Each is a function from
//! the object as it is to the object as it should be; the registry's update does the rest.

use ferry_api::status::{Cause, Details};
use ferry_api::{FieldValidation, Object, Status, json};
use ferry_patch::managed_fields::{ApplyError, Versions, Write};
use ferry_patch::{PatchError, json_patch, managed_fields, merge, strategic};
use ferry_registry::verbs::create::managed_write;
use ferry_registry::verbs::update::Change;
use http::header::CONTENT_TYPE;
use serde_json::{Map, Value};

use super::Target;
use crate::body::Response;
use crate::request::{Request, WriteOptions, complete};
use crate::respond;

pub(super) const JSON_PATCH: &str = "application/json-patch+json";
pub(super) const MERGE_PATCH: &str = "application/merge-patch+json";
pub(super) const STRATEGIC_PATCH: &str = "application/strategic-merge-patch+json";
pub(super) const APPLY_YAML: &str = "application/apply-patch+yaml";
pub(super) const APPLY_JSON: &str = "application/apply-patch+json";

pub async fn patch(target: Target<'_>) -> Result<Response, Status> {
    let media_type = target.media_type()?;
    let options = target.request.write_options("PatchOptions")?;
    let content_type =
        target.request.headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or("");
    let content_type = content_type.split(';').next().unwrap_or("").trim();
    let call = target.call(&options);

    let (answer, created) = if [APPLY_YAML, APPLY_JSON].contains(&content_type) {
        let applied = applied_configuration(target, &options)?;
        let (api_version, rows) = (target.kind.api_version(), target.kind.codec.field_rows());
        let transform = |live: Option<&Object>, versions: &dyn Versions| {
            apply(target, &options, &applied, live, &managed_write(&call, &api_version, rows, versions))
        };
        let may_create = target.request.info.subresource.is_empty();
        let change = Change { transform: &transform, tracked: true, may_create, uid: None };
        target.api.registry.update(&call, change).await?
    } else {
        if options.force {
            return Err(force_without_apply());
        }
        let patch = Patch::parse(content_type, target)?;
        let transform = |live: Option<&Object>, _: &dyn Versions| patched(target, &options, &patch, live);
        let change = Change { transform: &transform, tracked: false, may_create: false, uid: None };
        target.api.registry.update(&call, change).await?
    };
    respond::answer(target, if created { 201 } else { 200 }, &answer, media_type).await
}

/// What is said of a patch in another form. Upstream's built-in kinds have no route for it, its custom ones read every form.
pub fn unsupported(target: Target<'_>) -> Status {
    match target.kind.codec.typed() {
        Some(_) => Status::unknown_media_type(),
        None => Status::unsupported_media_type(&[JSON_PATCH, MERGE_PATCH, APPLY_YAML]),
    }
}

enum Patch<'a> {
    Json(&'a [u8]),
    Merge(Value),
    Strategic(Value),
}

impl<'a> Patch<'a> {
    fn parse(content_type: &str, target: Target<'a>) -> Result<Patch<'a>, Status> {
        let body = &target.request.body;
        let value = || decode_patch(body);
        match content_type {
            JSON_PATCH => Ok(Patch::Json(body)),
            MERGE_PATCH => Ok(Patch::Merge(value()?)),
            STRATEGIC_PATCH if target.kind.codec.typed().is_some() => Ok(Patch::Strategic(value()?)),
            _ => Err(unsupported(target)),
        }
    }

    fn may_see_managers(&self) -> bool {
        match self {
            // Its paths may lead anywhere, and its tests ask for what is there.
            Patch::Json(_) => true,
            Patch::Merge(patch) | Patch::Strategic(patch) => {
                patch.pointer("/metadata/managedFields").is_some()
            }
        }
    }
}

pub(super) fn decode_patch(body: &[u8]) -> Result<Value, Status> {
    serde_json::from_slice(body).map_err(|error| {
        Status::bad_request(format!("error decoding patch: {}", json::why_unreadable(body, &error)))
    })
}

/// The patch, applied to the object in the version the client speaks.
fn patched(
    target: Target<'_>,
    options: &WriteOptions,
    patch: &Patch<'_>,
    live: Option<&Object>,
) -> Result<Object, Status> {
    let _span = ferry_trace::span("apiserver.patch");
    let Some(live) = live else {
        return Err(Status::not_found(&target.kind.group_resource(), &target.request.info.name));
    };
    let mut object = live.clone();
    // A patch that does not speak of managers need not see them.
    let managers = if patch.may_see_managers() { None } else { Some(object.take_managers()) };
    let mut value = object.into_value();
    match patch {
        Patch::Json(patch) => json_patch::apply(&mut value, patch),
        Patch::Merge(patch) => {
            merge::apply(&mut value, patch);
            Ok(())
        }
        Patch::Strategic(patch) => match target.kind.codec.typed() {
            Some(schema) => strategic::apply(&mut value, patch.clone(), schema),
            None => Ok(()),
        },
    }
    .map_err(|error| patch_failure(target, error))?;
    let untouched = set_aside(&mut value, live);
    let mut object = match patch {
        Patch::Strategic(patch) => restored(target, value, patch, untouched, options.validation)?,
        _ => read_back(target, value, untouched, options.validation)?,
    };
    if let Some(managers) = managers {
        object.set_managers(managers);
    }
    Ok(complete(object, target.kind, target.resource))
}

/// Takes out what the patch left as it was: most of an object, as a rule, and known to fit its kind.
fn set_aside(value: &mut Value, live: &Object) -> Map<String, Value> {
    let Value::Object(fields) = value else { return Map::new() };
    let same = |field: &str, fields: &Map<String, Value>| {
        !matches!(field, "apiVersion" | "kind") && fields.get(field) == live.0.get(field)
    };
    let names: Vec<String> = fields.keys().filter(|field| same(field, fields)).cloned().collect();
    names.iter().filter_map(|name| fields.remove_entry(name)).collect()
}

/// Reads back what a strategic merge patch made. Where it does not fit its kind, the patch is what is invalid.
fn restored(
    target: Target<'_>,
    value: Value,
    patch: &Value,
    untouched: Map<String, Value>,
    validation: FieldValidation,
) -> Result<Object, Status> {
    let Some(schema) = target.kind.codec.typed() else {
        return read_back(target, value, untouched, validation);
    };
    strategic::restore(&value, patch, schema).map_err(|error| patch_failure(target, error))?;
    if validation == FieldValidation::Strict {
        let unknown = target.kind.decode_value(value.clone(), FieldValidation::Warn)?.warnings;
        if !unknown.is_empty() {
            let why = format!("strict decoding error: {}", unknown.join(", "));
            return Err(patch_failure(target, strategic::does_not_restore(patch, why)));
        }
    }
    read_back(target, value, untouched, validation)
}

/// What a patch made of an object has to be an object of the kind again.
fn read_back(
    target: Target<'_>,
    value: Value,
    untouched: Map<String, Value>,
    validation: FieldValidation,
) -> Result<Object, Status> {
    let decoded = target.kind.decode_value(value, validation)?;
    target.request.warn(decoded.warnings);
    let mut object = decoded.object;
    object.0.extend(untouched);
    if object.name() != target.request.info.name && !object.name().is_empty() {
        let name = object.name().to_string();
        return Err(Status::bad_request(format!(
            "the name of the object ({name}) does not match the name on the URL ({})",
            target.request.info.name
        )));
    }
    object.set_type(&target.kind.api_version(), &target.kind.kind);
    Ok(object)
}

/// Who applies says who they are: the fields are theirs until they let go of them.
pub(super) fn require_manager(request: &Request) -> Result<(), Status> {
    if !request.query.text("fieldManager").is_empty() {
        return Ok(());
    }
    let mut errors = ferry_api::FieldErrors::default();
    errors.required("fieldManager", "is required for apply patch");
    Err(Status::invalid("meta.k8s.io", "PatchOptions", "", &errors))
}

fn applied_configuration(target: Target<'_>, options: &WriteOptions) -> Result<Object, Status> {
    require_manager(target.request)?;
    let decoded = target.kind.decode_applied(&target.request.body, options.validation)?;
    target.request.warn(decoded.warnings);
    let mut object = decoded.object;
    if object.api_version() != target.kind.api_version() {
        return Err(Status::bad_request(format!(
            "the API version in the data ({}) does not match the expected API version ({})",
            object.api_version(),
            target.kind.api_version()
        )));
    }
    if !object.managers().is_empty() {
        return Err(Status::bad_request("metadata.managedFields must be nil"));
    }
    if object.name().is_empty() {
        object.set_meta("name", target.request.info.name.as_str());
    }
    Ok(object)
}

pub(super) fn apply(
    target: Target<'_>,
    options: &WriteOptions,
    applied: &Object,
    live: Option<&Object>,
    write: &Write<'_>,
) -> Result<Object, Status> {
    let _span = ferry_trace::span("apiserver.apply");
    let mut merged = managed_fields::apply(live, applied, options.force, write).map_err(apply_failure)?;
    if let Some(live) = live
        && applied.resource_version().is_empty()
    {
        merged.set_meta("resourceVersion", live.resource_version());
    }
    let managers = merged.take_managers();
    let mut value = merged.into_value();
    let untouched = live.map_or_else(Map::new, |live| set_aside(&mut value, live));
    let mut object = read_back(target, value, untouched, FieldValidation::Ignore)?;
    object.set_managers(managers);
    Ok(complete(object, target.kind, target.resource))
}

fn patch_failure(target: Target<'_>, error: PatchError) -> Status {
    respond::patch_failure(error, &target.kind.group, &target.kind.kind, &target.request.info.name)
}

fn apply_failure(error: ApplyError) -> Status {
    match error {
        ApplyError::Conflicts(conflicts) => {
            let mut status = Status::new(409, "Conflict", conflicts.to_string());
            let causes = conflicts
                .0
                .iter()
                .map(|conflict| Cause {
                    reason: "FieldManagerConflict".into(),
                    message: format!("conflict with {}", conflict.manager),
                    field: conflict.path.clone(),
                })
                .collect();
            status.details = Some(Details { causes, ..Details::default() });
            status
        }
        ApplyError::BadRequest(why) => Status::bad_request(why),
        ApplyError::Invalid(why) => Status::unexpected(why),
    }
}

fn force_without_apply() -> Status {
    let mut errors = ferry_api::FieldErrors::default();
    errors.forbidden("force", "may not be specified for non-apply patch");
    Status::invalid("meta.k8s.io", "PatchOptions", "", &errors)
}
