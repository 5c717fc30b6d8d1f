//! Paths that are not resources: discovery, OpenAPI, health, version, metrics, keys of service accounts.

use std::sync::Arc;

use ferry_api::Status;
use futures::StreamExt;
use http::Method;
use http::header::CONTENT_TYPE;
use serde_json::json;

use crate::api::Api;
use crate::body::{Body, Response};
use crate::request::Request;
use crate::{documents, health, respond, trace, ui, version};

pub async fn dispatch(api: &Arc<Api>, request: &Request) -> Result<Response, Status> {
    if request.method == Method::POST && request.info.path == trace::PATH {
        return trace::receive(api, request);
    }
    if ui::is_ours(&request.info) {
        return ui::answer(api, request).await;
    }
    if ![Method::GET, Method::HEAD].contains(&request.method) {
        return Err(Status::method_not_allowed());
    }
    let path = request.info.path.as_str();
    // Only documents of the API have a second form with a slash behind.
    let documents = ["/api", "/apis", "/version"].iter().any(|start| path.starts_with(start));
    let path = if documents { path.trim_end_matches('/') } else { path };
    let parts: Vec<&str> = path.split('/').skip(1).collect();
    match parts.as_slice() {
        [] | [""] => Ok(root(api)),
        ["healthz" | "livez" | "readyz", .., ""] => Ok(respond::page_not_found()),
        ["healthz" | "livez" | "readyz", ..] => Ok(health::answer(api, request, &parts).await),
        ["version"] => Ok(respond::json_bytes(200, version::document().into())),
        ["metrics"] => Ok(text(api.metrics.text(api).await)),
        ["metrics", "slis"] => Ok(text(health::slis(api).await)),
        ["debug", "api_priority_and_fairness", what] => {
            let with_details = !request.query.text("includeRequestDetails").is_empty();
            let fairness = api.flow_control.fairness();
            Ok(match fairness.and_then(|fairness| fairness.dump(what, with_details)) {
                Some(table) => text(table),
                None => respond::page_not_found(),
            })
        }
        ["api" | "apis" | "openapi", ..] => documents::answer(api, request, &parts),
        // The whole store: RBAC gives this path to administrators only.
        ["ferry", "v1", "snapshot"] => snapshot(api).await,
        // Names of everybody's objects: administrators only, too.
        ["ferry", "v1", "trace"] => trace::answer(api, request).await,
        ["ferry", "v1", "usage"] => {
            Ok(respond::json_bytes(200, json!({ "samples": api.hours.samples() }).to_string().into()))
        }
        // Nodes only.
        ["ferry", "v1", "images", path @ ..] => Ok(api.host_images.answer(request, path).await),
        [".well-known", "openid-configuration"] => api.openid_configuration(),
        ["openid", "v1", "jwks"] => api.openid_keys(),
        _ => Ok(respond::page_not_found()),
    }
}

fn text(text: String) -> Response {
    let builder = http::Response::builder().header(CONTENT_TYPE, ferry_metrics::CONTENT_TYPE);
    respond::finish(builder, text.into_bytes().into())
}

async fn snapshot(api: &Api) -> Result<Response, Status> {
    let chunks = api.registry.store.snapshot().await.map_err(ferry_registry::verbs::store_failure)?;
    // A chunk that cannot be read cuts the snapshot short, which its checksum tells.
    let whole =
        chunks.take_while(|chunk| std::future::ready(chunk.is_ok())).filter_map(|chunk| async { chunk.ok() });
    let builder = http::Response::builder().header(CONTENT_TYPE, "application/octet-stream");
    Ok(respond::finish(builder, Body::stream(whole)))
}

fn root(api: &Api) -> Response {
    let served = api.served();
    let mut paths: Vec<String> = vec![
        "/.well-known/openid-configuration".into(),
        "/api".into(),
        "/api/v1".into(),
        "/apis".into(),
        "/apis/".into(),
    ];
    let own = served.rows.iter().map(|row| (&*row.group, &*row.version));
    let others = served.remotes().iter().map(|remote| (remote.group(), remote.version()));
    for (group, version) in own.chain(others).filter(|(group, _)| !group.is_empty()) {
        paths.push(format!("/apis/{group}"));
        paths.push(format!("/apis/{group}/{version}"));
    }
    paths.extend(
        [
            "/healthz",
            "/livez",
            "/metrics",
            "/metrics/slis",
            "/openapi/v2",
            "/openapi/v3",
            "/openid/v1/jwks",
            "/readyz",
            "/version",
        ]
        .map(String::from),
    );
    paths.sort();
    paths.dedup();
    respond::json_bytes(200, json!({"paths": paths}).to_string().into())
}
