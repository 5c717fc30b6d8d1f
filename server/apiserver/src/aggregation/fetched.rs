//! The last fetched documents of an aggregated API server: its discovery and its OpenAPI.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use ferry_api::discovery;
use ferry_api::openapi::merge;
use http::header::{ACCEPT, ETAG, HeaderMap, IF_NONE_MATCH};
use http_body_util::{BodyExt, Limited};
use serde_json::Value;

use super::availability::nothing;
use super::backend::Backend;
use super::identity;

/// For the whole of one document.
const PATIENCE: Duration = Duration::from_secs(10);
/// OpenAPI of a large server has some megabytes.
const LONGEST: usize = 32 << 20;

#[derive(Debug, Clone, Default, PartialEq)]
pub struct Fetched {
    /// As aggregated discovery lists them.
    pub resources: Vec<Value>,
    /// The last attempt to fetch them succeeded.
    pub is_current: bool,
    /// Where the document of OpenAPI v3 is; clients are led to it with the hash that the backend gave it.
    pub openapi_v3: Option<String>,
    pub openapi_v2: Option<OpenApiV2>,
}

/// The part of a document that is about the backend's own paths.
#[derive(Debug, Clone)]
pub struct OpenApiV2 {
    pub part: Arc<Value>,
    etag: String,
}

impl PartialEq for OpenApiV2 {
    fn eq(&self, other: &OpenApiV2) -> bool {
        Arc::ptr_eq(&self.part, &other.part)
    }
}

/// Asks for everything anew. What cannot be had stays as it was.
pub async fn fetch(backend: &Backend, previous: &Fetched) -> Fetched {
    let (path, json) = (backend.path(), [(ACCEPT.as_str(), "application/json")]);
    let (resources, index, v2) = tokio::join!(
        get(backend, &path, &json),
        get(backend, "/openapi/v3", &json),
        openapi_v2(backend, previous.openapi_v2.as_ref()),
    );
    let mut fetched = previous.clone();
    fetched.is_current = false;
    match resources.map(|answer| answer.json()) {
        Ok(Some(list)) => {
            fetched.resources = discovery::aggregated_resources(&list, &backend.group, &backend.version);
            fetched.is_current = true;
        }
        Ok(None) => tracing::warn!(path = backend.path(), "the discovery of an API server cannot be read"),
        Err(error) => tracing::warn!(path = backend.path(), error, "the discovery of an API server failed"),
    }
    // A server need not have OpenAPI.
    if let Ok(answer) = index {
        fetched.openapi_v3 = answer.json().and_then(|index| v3_url(&index, backend));
    }
    if let Ok(v2) = v2 {
        fetched.openapi_v2 = v2;
    }
    fetched
}

/// Only to the backend's own document: an index may list what others answer for.
fn v3_url(index: &Value, backend: &Backend) -> Option<String> {
    let path = backend.path();
    let listed = index.get("paths")?.get(path.trim_start_matches('/'))?;
    let url = listed.get("serverRelativeURL").and_then(Value::as_str).unwrap_or("");
    let own = format!("/openapi/v3{path}");
    let is_own = url.strip_prefix(&own).is_some_and(|rest| rest.is_empty() || rest.starts_with('?'));
    Some(if is_own { url.to_string() } else { own })
}

async fn openapi_v2(backend: &Backend, known: Option<&OpenApiV2>) -> Result<Option<OpenApiV2>, String> {
    let mut headers = vec![(ACCEPT.as_str(), "application/json")];
    let etag = known.map(|known| known.etag.as_str()).filter(|etag| !etag.is_empty());
    headers.extend(etag.map(|etag| (IF_NONE_MATCH.as_str(), etag)));
    let answer = get(backend, "/openapi/v2", &headers).await?;
    if answer.code == 304 {
        return Ok(known.cloned());
    }
    let Some(document) = answer.json() else { return Ok(None) };
    let etag = answer.headers.get(ETAG).and_then(|etag| etag.to_str().ok()).unwrap_or("").to_string();
    let part = merge::part(&document, &backend.path());
    Ok(match known {
        // A server without ETags is asked for the same thing again and again.
        Some(known) if *known.part == part => Some(OpenApiV2 { part: known.part.clone(), etag }),
        _ => Some(OpenApiV2 { part: Arc::new(part), etag }),
    })
}

struct Document {
    code: u16,
    headers: HeaderMap,
    body: Bytes,
}

impl Document {
    fn json(&self) -> Option<Value> {
        serde_json::from_slice(&self.body).ok().filter(Value::is_object)
    }
}

async fn get(backend: &Backend, path: &str, headers: &[(&str, &str)]) -> Result<Document, String> {
    let mut request = identity::as_aggregator(&backend.url(path));
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let request = request.body(nothing()).map_err(|error| error.to_string())?;
    let answer = async {
        let response = backend.send(request).await?;
        let (parts, body) = response.into_parts();
        if !parts.status.is_success() && parts.status != http::StatusCode::NOT_MODIFIED {
            return Err(format!("the answer is {}", parts.status));
        }
        let body = Limited::new(body, LONGEST).collect().await.map_err(|error| error.to_string())?;
        Ok(Document { code: parts.status.as_u16(), headers: parts.headers, body: body.to_bytes() })
    };
    tokio::time::timeout(PATIENCE, answer).await.unwrap_or_else(|_| Err("no answer in time".into()))
}
