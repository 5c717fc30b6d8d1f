//! Responses: an object, a list or a Status, in the negotiated media type. If that is the JSON of the stored version, the
//! response copies the cache's bytes without decoding them.

use std::sync::Arc;

use bytes::Bytes;
use ferry_api::{Kind, Object, Status, protobuf, yaml};
use ferry_patch::PatchError;
use ferry_registry::Resource;
use ferry_registry::cache::{Encoding as FormEncoding, Entry, Form};
use ferry_registry::columns::Column;
use ferry_registry::conversion::Conversion;
use ferry_registry::verbs::ResponseObject;
use ferry_registry::verbs::list::Listed;
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use serde_json::{Map, Value, json};

use crate::body::{Body, Response};
use crate::negotiate::{Encoding, JSON, MediaType, View};
use crate::request::Request;
use crate::verbs::Target;
use crate::{continue_token, list_body, table};

pub fn status(status: &Status) -> Response {
    status_as(status, MediaType::JSON)
}

pub fn status_as(status: &Status, media_type: MediaType) -> Response {
    let mut response = http::Response::builder().status(status.code);
    if let Some(seconds) =
        status.details.as_ref().map(|details| details.retry_after_seconds).filter(|s| *s > 0)
    {
        response = response.header(RETRY_AFTER, seconds);
    }
    let object = || serde_json::to_value(status).ok().and_then(Object::from_value);
    let (content_type, body): (_, Vec<u8>) = match (media_type.encoding, object()) {
        (Encoding::Yaml, Some(object)) => (media_type.content_type(), yaml::encode(&object).into_bytes()),
        (Encoding::Protobuf, Some(object)) => match status_protobuf(&object) {
            Some(bytes) => (media_type.content_type(), bytes),
            None => (JSON, status.to_json()),
        },
        _ => (JSON, status.to_json()),
    };
    finish(response.header(CONTENT_TYPE, content_type), body.into())
}

fn status_protobuf(object: &Object) -> Option<Vec<u8>> {
    let schema = ferry_api::Schema::builtin(&ferry_api::GroupVersionKind::new("", "v1", "Status"))?;
    protobuf::encode(object, &schema).ok()
}

pub fn plain(code: u16, text: impl Into<String>) -> Response {
    let text: String = text.into();
    finish(
        http::Response::builder().status(code).header(CONTENT_TYPE, "text/plain; charset=utf-8"),
        text.into_bytes().into(),
    )
}

/// A path that nothing in the server answers for.
pub fn page_not_found() -> Response {
    let mut response = plain(404, "404 page not found\n");
    response.headers_mut().insert("x-content-type-options", http::HeaderValue::from_static("nosniff"));
    response
}

pub fn json_bytes(code: u16, bytes: Bytes) -> Response {
    finish(http::Response::builder().status(code).header(CONTENT_TYPE, JSON), bytes.into())
}

pub fn finish(builder: http::response::Builder, body: Body) -> Response {
    builder.body(body).expect("the server's own headers are well formed")
}

/// One object, in the version `kind`.
pub async fn answer(
    target: Target<'_>,
    code: u16,
    answer: &ResponseObject,
    media_type: MediaType,
) -> Result<Response, Status> {
    let (kind, resource) = (target.kind, target.resource);
    match &resource.conversion {
        Conversion::Local => encode(target, code, answer, media_type),
        Conversion::Webhook(_) => {
            encode(target, code, &resource.prepare_answer(answer, kind).await?, media_type)
        }
    }
}

fn encode(
    target: Target<'_>,
    code: u16,
    answer: &ResponseObject,
    media_type: MediaType,
) -> Result<Response, Status> {
    let _span = ferry_trace::span("apiserver.encode");
    let (kind, resource) = (target.kind, target.resource);
    let builder = http::Response::builder().status(code).header(CONTENT_TYPE, media_type.content_type());
    let body: Body = match media_type.view {
        View::Table => {
            let object = whole(resource, kind, answer)?;
            let columns = resource.strategy.columns(&kind.version);
            let table = table::of_objects(target.request, columns, &[object], json!({}))?;
            return Ok(encode_value(code, table, media_type));
        }
        View::PartialMetadata => {
            let object = partial(&whole(resource, kind, answer)?);
            return Ok(encode_value(code, object.into_value(), media_type));
        }
        View::Whole => match (media_type.encoding, answer) {
            (Encoding::Json, ResponseObject::Entry(entry)) => resource.json_of(entry, kind)?.into(),
            (Encoding::Protobuf, ResponseObject::Entry(entry)) => protobuf_of(resource, kind, entry)?.into(),
            (Encoding::Yaml, _) => yaml::encode(&whole(resource, kind, answer)?).into_bytes().into(),
            (Encoding::Json, ResponseObject::Object(_)) => whole(resource, kind, answer)?.to_json().into(),
            (Encoding::Protobuf, ResponseObject::Object(_)) => {
                kind.encode_protobuf(&whole(resource, kind, answer)?)?.into()
            }
        },
    };
    Ok(finish(builder, body))
}

/// An object that has no kind of the table's behind it (reviews, scales, tables).
pub fn object(code: u16, object: Object, media_type: MediaType) -> Response {
    encode_value(code, object.into_value(), media_type)
}

fn encode_value(code: u16, value: Value, media_type: MediaType) -> Response {
    let object = Object::from_value(value).expect("answers are objects");
    let gvk = ferry_api::GroupVersionKind::from_api_version(object.api_version(), object.kind());
    let (content_type, bytes) = match media_type.encoding {
        Encoding::Yaml => (media_type.content_type(), yaml::encode(&object).into_bytes()),
        Encoding::Protobuf => {
            match ferry_api::Schema::on_the_wire(&gvk).map(|schema| protobuf::encode(&object, &schema)) {
                Some(Ok(bytes)) => (media_type.content_type(), bytes),
                _ => (JSON, object.to_json()),
            }
        }
        Encoding::Json => (JSON, object.to_json()),
    };
    finish(http::Response::builder().status(code).header(CONTENT_TYPE, content_type), bytes.into())
}

/// The object of an answer, in the version `kind`.
pub fn whole(resource: &Resource, kind: &Kind, answer: &ResponseObject) -> Result<Object, Status> {
    match answer {
        ResponseObject::Entry(entry) => parse(&resource.json_of(entry, kind)?),
        ResponseObject::Object(object) => resource.convert_here((**object).clone(), kind),
    }
}

pub fn parse(json: &[u8]) -> Result<Object, Status> {
    Object::read(json)
        .map_err(|error| Status::internal(format!("an object of the cache cannot be read: {error}")))
}

/// An entry's protobuf envelope in the version `kind`.
pub fn protobuf_of(resource: &Resource, kind: &Kind, entry: &Entry) -> Result<Bytes, Status> {
    entry.form(&form(kind, FormEncoding::Protobuf), || {
        Ok(kind.encode_protobuf(&parse(&resource.json_of(entry, kind)?)?)?.into())
    })
}

fn form(kind: &Kind, encoding: FormEncoding) -> Form {
    Form { version: kind.api_version().into(), encoding }
}

pub fn internal(error: protobuf::Error) -> Status {
    Status::internal(error.to_string())
}

/// `{"kind":"Pod","apiVersion":"v1",`: items of a list leave it off, their kind is the list's.
pub fn type_head(kind: &Kind) -> String {
    format!(r#"{{"kind":"{}","apiVersion":"{}","#, kind.kind, kind.api_version())
}

pub async fn list(target: Target<'_>, listed: Listed, media_type: MediaType) -> Result<Response, Status> {
    let (kind, resource) = (target.kind, target.resource);
    resource.prepare(&listed.entries, kind).await?;
    let meta = list_meta(&listed, kind, media_type);
    let metadata = meta.as_object().cloned().unwrap_or_default();
    let Listed { entries, .. } = listed;
    match (media_type.encoding, media_type.view) {
        (Encoding::Json, View::Whole) => {
            let before = format!(
                r#"{{"kind":"{}","apiVersion":"{}","metadata":{meta},"items":["#,
                kind.list_kind,
                kind.api_version()
            );
            list_body::json(
                before,
                entries,
                list_body::whole_items(resource.clone(), kind.clone()),
                media_type,
            )
        }
        (Encoding::Json, View::Table) => {
            let rows = table::Rows::new(target)?;
            let before = format!(
                r#"{{"kind":"Table","apiVersion":"meta.k8s.io/v1","metadata":{meta},"columnDefinitions":{},"rows":["#,
                Value::from(rows.definitions())
            );
            list_body::json(
                before,
                entries,
                list_body::values(resource.clone(), kind.clone(), move |object| rows.row(object)),
                media_type,
            )
        }
        (Encoding::Json, View::PartialMetadata) => {
            let before = format!(
                r#"{{"kind":"PartialObjectMetadataList","apiVersion":"meta.k8s.io/v1","metadata":{meta},"items":["#
            );
            let write =
                list_body::values(resource.clone(), kind.clone(), |object| partial(object).into_value());
            list_body::json(before, entries, write, media_type)
        }
        (Encoding::Protobuf, View::Whole) => {
            list_body::protobuf(resource, kind, entries, &metadata, media_type)
        }
        (Encoding::Yaml, view) => yaml_list(target, view, entries, meta, media_type),
        // Rare media types are encoded as a whole.
        _ => {
            target.request.response_memory.take(entries.iter().map(|entry| entry.json.len()).sum())?;
            let parsed: Result<_, Status> =
                entries.iter().map(|entry| parse(&resource.json_of(entry, kind)?)).collect();
            let columns = resource.strategy.columns(&kind.version);
            objects(target.request, kind, columns, parsed?, meta, media_type)
        }
    }
}

fn yaml_list(
    target: Target<'_>,
    view: View,
    entries: Vec<Arc<Entry>>,
    meta: Value,
    media_type: MediaType,
) -> Result<Response, Status> {
    let (kind, of) = (target.kind, (target.resource.clone(), target.kind.clone()));
    let mut list = Map::from_iter([("metadata".to_string(), meta)]);
    let mut say = |kind: &str, api_version: &str| {
        list.insert("kind".into(), kind.into());
        list.insert("apiVersion".into(), api_version.into());
    };
    match view {
        View::Whole => {
            say(&kind.list_kind, &kind.api_version());
            let is_custom = kind.generation.is_some();
            let item = move |object: &Object| list_item(object.clone(), is_custom);
            list_body::yaml(&list, "items", entries, item, of, media_type)
        }
        View::PartialMetadata => {
            say("PartialObjectMetadataList", "meta.k8s.io/v1");
            let item = |object: &Object| partial(object).into_value();
            list_body::yaml(&list, "items", entries, item, of, media_type)
        }
        View::Table => {
            say("Table", "meta.k8s.io/v1");
            let rows = table::Rows::new(target)?;
            list.insert("columnDefinitions".into(), rows.definitions().into());
            list_body::yaml(&list, "rows", entries, move |object| rows.row(object), of, media_type)
        }
    }
}

/// Items of a built-in kind leave their type off, it is the list's.
fn list_item(mut object: Object, is_custom: bool) -> Value {
    if !is_custom {
        object.0.remove("kind");
        object.0.remove("apiVersion");
    }
    object.into_value()
}

fn list_meta(listed: &Listed, kind: &Kind, media_type: MediaType) -> Value {
    let mut meta = json!({"resourceVersion": listed.revision.to_string()});
    if kind.generation.is_some() && media_type.view == View::Whole {
        // Lists of custom resources always have it.
        meta["continue"] = "".into();
    }
    if let Some(next) = &listed.next {
        meta["continue"] = continue_token::encode(next).into();
        if let Some(remaining) = listed.remaining {
            meta["remainingItemCount"] = remaining.into();
        }
    }
    meta
}

/// Responds with an object that is not stored.
pub fn made(
    request: &Request,
    kind: &Kind,
    columns: &[Column],
    object: Object,
    media_type: MediaType,
) -> Result<Response, Status> {
    match media_type.view {
        View::Whole if media_type.encoding == Encoding::Protobuf => {
            let builder = http::Response::builder().header(CONTENT_TYPE, media_type.content_type());
            Ok(finish(builder, kind.encode_protobuf(&object)?.into()))
        }
        View::Whole => Ok(self::object(200, object, media_type)),
        View::Table => {
            Ok(encode_value(200, table::of_objects(request, columns, &[object], json!({}))?, media_type))
        }
        View::PartialMetadata => Ok(encode_value(200, partial(&object).into_value(), media_type)),
    }
}

/// Objects that were made for this answer, as a list.
pub fn objects(
    request: &Request,
    kind: &Kind,
    columns: &[Column],
    objects: Vec<Object>,
    meta: Value,
    media_type: MediaType,
) -> Result<Response, Status> {
    let list = match media_type.view {
        View::Table => table::of_objects(request, columns, &objects, meta)?,
        View::PartialMetadata => {
            let items: Vec<Value> = objects.iter().map(|object| partial(object).into_value()).collect();
            json!({
                "kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1", "metadata": meta, "items": items,
            })
        }
        View::Whole => {
            let is_custom = kind.generation.is_some();
            let items: Vec<Value> = objects.into_iter().map(|object| list_item(object, is_custom)).collect();
            json!({
                "kind": kind.list_kind, "apiVersion": kind.api_version(), "metadata": meta, "items": items,
            })
        }
    };
    Ok(encode_value(200, list, media_type))
}

/// The metadata of an object alone.
pub fn partial(object: &Object) -> Object {
    let mut partial = Object::default();
    partial.set_type("meta.k8s.io/v1", "PartialObjectMetadata");
    if let Some(metadata) = object.0.get("metadata") {
        partial.0.insert("metadata".into(), metadata.clone());
    }
    partial.set_managers(object.managers().to_vec());
    partial
}

/// Why a patch was refused.
pub fn patch_failure(error: PatchError, group: &str, kind: &str, name: &str) -> Status {
    match error {
        PatchError::Malformed(why) => Status::bad_request(why),
        PatchError::TooLarge(why) => Status::new(413, "RequestEntityTooLarge", why),
        PatchError::UnsupportedMediaType => {
            Status::unsupported_media_type(&["application/json-patch+json", "application/merge-patch+json"])
        }
        PatchError::DoesNotApply(why) | PatchError::TestFailed(why) => {
            tracing::debug!(%group, %kind, %name, %why, "a patch does not apply");
            Status::new(422, "Invalid", PatchError::UNPROCESSABLE)
        }
        PatchError::Contradicts(why) => Status::unexpected(why),
        PatchError::DoesNotRestore { patch, why } => {
            let mut errors = ferry_api::FieldErrors::default();
            errors.invalid("patch", patch, &why);
            Status::invalid("", "", "", &errors)
        }
    }
}
