//! The scale subresource: one small object over any kind that has replicas.

use async_trait::async_trait;
use ferry_api::selector::LabelSelector;
use ferry_api::{GroupVersionKind, Object, Schema, Status, json as codec};
use ferry_patch::managed_fields::Versions;
use ferry_patch::{json_patch, managed_fields, merge, strategic};
use ferry_registry::columns::{self, Column};
use ferry_registry::verbs::create::managed_write;
use ferry_registry::verbs::list::Freshness;
use ferry_registry::verbs::update::Change;
use ferry_registry::verbs::{Admission, Call, Operation, ResponseObject};
use http::header::CONTENT_TYPE;
use serde_json::{Value, json};

use super::{Target, patch};
use crate::body::Response;
use crate::negotiate::View;
use crate::request::WriteOptions;
use crate::respond;

pub async fn scale(target: Target<'_>) -> Result<Response, Status> {
    let media_type = target.media_type()?;
    let kind = if target.request.info.verb == "patch" { "PatchOptions" } else { "UpdateOptions" };
    let options = target.request.write_options(kind)?;
    let (admission, kind) = (ScaleAdmission(target), scale_kind());
    let call = Call { object_kind: Some(&kind), admission: &admission, ..target.call(&options) };
    let answer = match (target.request.info.verb, content_type(target)) {
        ("get", _) => ResponseObject::Entry(target.api.registry.get(&call, Freshness::Current).await?),
        ("patch", patch::APPLY_YAML | patch::APPLY_JSON) => {
            let applied = applied_replicas(target, &options)?;
            let (api_version, rows) = (target.kind.api_version(), target.kind.codec.field_rows());
            let transform = |live: Option<&Object>, versions: &dyn Versions| {
                live.ok_or_else(|| call.not_found())?;
                let write = managed_write(&call, &api_version, rows, versions);
                let merged = patch::apply(target, &options, &applied, live, &write);
                merged.map_err(|status| in_words_of_scale(status, target))
            };
            let change = Change { transform: &transform, tracked: true, may_create: false, uid: None };
            target.api.registry.update(&call, change).await?.0
        }
        _ => {
            let transform = |live: Option<&Object>, _: &dyn Versions| {
                let live = live.ok_or_else(|| call.not_found())?;
                scaled(target, live)
            };
            let change = Change { transform: &transform, tracked: false, may_create: false, uid: None };
            target.api.registry.update(&call, change).await?.0
        }
    };
    let answer = target.resource.prepare_answer(&answer, target.kind).await?;
    let object = respond::whole(target.resource, target.kind, &answer)?;
    require_replicas(target, &object)?;
    let scale = scale_of(target, &object)?;
    match media_type.view {
        View::Table => respond::made(target.request, target.kind, COLUMNS, scale, media_type),
        _ => Ok(respond::object(200, scale, media_type)),
    }
}

static COLUMNS: &[Column] = &[
    Column::text("Name", |scale, _| scale.name().into()),
    Column::number("Desired", "spec.replicas"),
    Column::number("Available", "status.replicas"),
    columns::AGE,
];

/// Shows admission the scale of an object in its place: that is what the request is about.
struct ScaleAdmission<'a>(Target<'a>);

impl ScaleAdmission<'_> {
    /// The scale of an object as it is stored.
    async fn scale_of(&self, object: &Object) -> Result<Object, Status> {
        let seen = self.0.resource.seen_in(object, self.0.kind).await?;
        scale_of(self.0, &seen)
    }

    async fn scale(&self, object: Option<&Object>) -> Result<Option<Object>, Status> {
        match object {
            Some(object) => self.scale_of(object).await.map(Some),
            None => Ok(None),
        }
    }
}

#[async_trait]
impl Admission for ScaleAdmission<'_> {
    async fn mutate(
        &self,
        call: &Call<'_>,
        operation: Operation,
        object: &mut Object,
        old: Option<&Object>,
    ) -> Result<(), Status> {
        let (shown, old) = (self.scale_of(object).await?, self.scale(old).await?);
        let mut changed = shown.clone();
        self.0.api.mutate(call, operation, &mut changed, old.as_ref()).await?;
        let replicas = |scale: &Object| scale.get(&["spec", "replicas"]).and_then(Value::as_i64).unwrap_or(0);
        if replicas(&changed) != replicas(&shown) {
            check_replicas(replicas(&changed), shown.name())?;
            let resource = self.0.resource;
            let paths = resource.strategy.scale(&resource.stored.version).ok_or_else(Status::no_such_path)?;
            set_replicas(object, &paths.replicas, replicas(&changed));
        }
        Ok(())
    }

    async fn validate(
        &self,
        call: &Call<'_>,
        operation: Operation,
        object: Option<&Object>,
        old: Option<&Object>,
    ) -> Result<(), Status> {
        let (object, old) = (self.scale(object).await?, self.scale(old).await?);
        self.0.api.validate(call, operation, object.as_ref(), old.as_ref()).await
    }

    async fn authorize_create(&self, call: &Call<'_>) -> Result<(), Status> {
        self.0.api.authorize_create(call).await
    }
}

fn content_type(target: Target<'_>) -> &str {
    target.request.header(CONTENT_TYPE.as_str()).split(';').next().unwrap_or("").trim()
}

fn scale_kind() -> GroupVersionKind {
    GroupVersionKind::new("autoscaling", "v1", "Scale")
}

fn schema() -> Schema {
    Schema::builtin(&scale_kind()).expect("Scale is in the table")
}

/// A custom object that says nothing of replicas has no scale yet; a write gives it one.
fn require_replicas(target: Target<'_>, object: &Object) -> Result<(), Status> {
    let paths = target.resource.strategy.scale(&target.kind.version).ok_or_else(Status::no_such_path)?;
    let is_set = columns::at(object, &paths.replicas).is_some_and(|replicas| !replicas.is_null());
    if is_set || target.kind.codec.typed().is_some() {
        return Ok(());
    }
    Err(Status::internal(format!(
        "the spec replicas field {:?} does not exist",
        format!(".{}", paths.replicas)
    )))
}

/// The Scale that an object shows.
fn scale_of(target: Target<'_>, object: &Object) -> Result<Object, Status> {
    let paths = target.resource.strategy.scale(&target.kind.version).ok_or_else(Status::no_such_path)?;
    let number = |path: &str| columns::number_at(object, path);
    let selector = match paths.selector.as_deref().and_then(|path| columns::at(object, path)) {
        Some(Value::String(text)) => text.clone(),
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
    let mut scale = json!({
        "kind": "Scale", "apiVersion": "autoscaling/v1", "metadata": metadata,
        "spec": {"replicas": number(&paths.replicas)},
        "status": {"replicas": number(&paths.status_replicas)},
    });
    if !selector.is_empty() {
        scale["status"]["selector"] = selector.into();
    }
    Object::from_value(scale).ok_or_else(|| Status::internal("a scale is an object"))
}

/// An applied Scale, as what it means: a configuration of the object that has its replicas and no other
/// field. So field ownership is settled where it is kept, and a conflict is one of the object's own.
fn applied_replicas(target: Target<'_>, options: &WriteOptions) -> Result<Object, Status> {
    let request = target.request;
    patch::require_manager(request)?;
    let paths = target.resource.strategy.scale(&target.kind.version).ok_or_else(Status::no_such_path)?;
    let decoded = ferry_api::yaml::decode_applied(&request.body, &schema(), options.validation)?;
    request.warn(decoded.warnings);
    let scale = decoded.object;
    if (scale.api_version(), scale.kind()) != ("autoscaling/v1", "Scale") {
        let given = format!("{}, Kind={}", scale.api_version(), scale.kind());
        return Err(Status::bad_request(format!("invalid object type: {given}")));
    }
    managed_fields::check_declared(&scale.0, &schema())
        .map_err(|why| Status::unexpected(format!("failed to create typed patch object: {why}")))?;
    check_name(scale.name(), &request.info.name)?;
    let mut applied = Object::default();
    applied.set_type(&target.kind.api_version(), &target.kind.kind);
    applied.set_meta("name", request.info.name.as_str());
    if let Some(version) = scale.meta("resourceVersion") {
        applied.set_meta("resourceVersion", version.clone());
    }
    if let Some(replicas) = scale.get(&["spec", "replicas"]).and_then(Value::as_i64) {
        check_replicas(replicas, &request.info.name)?;
        set_replicas(&mut applied, &paths.replicas, replicas);
    }
    Ok(applied)
}

/// Whoever works with scales knows other managers by the version that a scale has.
fn in_words_of_scale(mut status: Status, target: Target<'_>) -> Status {
    let (own, scale) = (format!("using {}", target.kind.api_version()), "using autoscaling/v1");
    status.message = status.message.replace(&own, scale);
    for cause in status.details.iter_mut().flat_map(|details| &mut details.causes) {
        cause.message = cause.message.replace(&own, scale);
    }
    status
}

fn check_replicas(replicas: i64, name: &str) -> Result<(), Status> {
    if replicas >= 0 {
        return Ok(());
    }
    let mut errors = ferry_api::FieldErrors::default();
    errors.invalid("spec.replicas", replicas, "must be greater than or equal to 0");
    Err(Status::invalid("autoscaling", "Scale", name, &errors))
}

fn check_name(given: &str, name: &str) -> Result<(), Status> {
    if given.is_empty() || given == name {
        return Ok(());
    }
    Err(Status::bad_request(format!(
        "the name of the object ({given}) does not match the name on the URL ({name})"
    )))
}

fn set_replicas(object: &mut Object, path: &str, replicas: i64) {
    let (sections, field) = path.rsplit_once('.').unwrap_or(("", path));
    let mut section = &mut object.0;
    for name in sections.split('.').filter(|name| !name.is_empty()) {
        section = ferry_api::object::object_at(section, name);
    }
    section.insert(field.to_string(), replicas.into());
}

/// The object with the replicas that the request's Scale asks for.
fn scaled(target: Target<'_>, live: &Object) -> Result<Object, Status> {
    let paths = target.resource.strategy.scale(&target.kind.version).ok_or_else(Status::no_such_path)?;
    let asked = asked_scale(target, live)?;
    let replicas = asked.get(&["spec", "replicas"]).and_then(Value::as_i64).unwrap_or(0);
    // Those of a custom resource are judged with the rest of it.
    if target.kind.generation.is_none() {
        check_replicas(replicas, live.name())?;
    }
    check_name(asked.name(), live.name())?;
    let mut object = live.clone();
    match asked.resource_version() {
        // Whoever scales need not say which version, of any kind.
        "" if !target.resource.strategy.options().unconditional_update => {}
        "" => {
            object.remove_meta("resourceVersion");
        }
        version => object.set_meta("resourceVersion", version),
    }
    // The registry compares it with the object's.
    if !asked.uid().is_empty() {
        object.set_meta("uid", asked.uid());
    }
    set_replicas(&mut object, &paths.replicas, replicas);
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
    match content_type(target) {
        patch::JSON_PATCH => json_patch::apply(&mut value, &request.body),
        patch::STRATEGIC_PATCH if target.kind.codec.typed().is_some() => {
            strategic::apply(&mut value, patch::decode_patch(&request.body)?, &schema())
        }
        patch::MERGE_PATCH => {
            merge::apply(&mut value, &patch::decode_patch(&request.body)?);
            Ok(())
        }
        _ => return Err(patch::unsupported(target)),
    }
    .map_err(|error| respond::patch_failure(error, "autoscaling", "Scale", &request.info.name))?;
    Ok(codec::decode_value(value, &schema(), validation)?.object)
}

/// The row of the Scale type, which is no resource of its own.
fn autoscaling_kind(target: Target<'_>) -> ferry_api::Kind {
    ferry_api::Kind {
        group: "autoscaling".into(),
        version: "v1".into(),
        codec: ferry_api::Codec::Typed(schema()),
        storage_version: GroupVersionKind::new("autoscaling", "v1", "Scale"),
        ..(**target.kind).clone()
    }
}
