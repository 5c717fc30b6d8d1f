//! What etcd serves over plain HTTP on its clients' port.

use ferry_metrics::{CONTENT_TYPE as METRICS, Description, Page};
use ferry_store::Store;
use http::header::CONTENT_TYPE;
use http::{Method, Response, StatusCode};
use tonic::body::Body;

use crate::maintenance::{CLUSTER_VERSION, VERSION};
use crate::service::Service;

impl Service {
    pub async fn page(&self, method: &Method, path: &str) -> Response<Body> {
        if !matches!(*method, Method::GET | Method::HEAD) {
            return text(StatusCode::METHOD_NOT_ALLOWED, "text/plain", "Method Not Allowed\n".into());
        }
        match path {
            "/health" | "/readyz" | "/livez" => self.health(path).await,
            "/version" => {
                let version =
                    format!("{{\"etcdserver\":\"{VERSION}\",\"etcdcluster\":\"{CLUSTER_VERSION}\"}}");
                text(StatusCode::OK, "application/json", version)
            }
            "/metrics" => match self.metrics().await {
                Ok(metrics) => text(StatusCode::OK, METRICS, metrics),
                Err(error) => text(StatusCode::SERVICE_UNAVAILABLE, "text/plain", format!("{error}\n")),
            },
            _ => text(StatusCode::NOT_FOUND, "text/plain", "404 page not found\n".into()),
        }
    }

    async fn health(&self, path: &str) -> Response<Body> {
        let failure = match self.store.health().await {
            Ok(()) => match self.store.usage().await {
                Ok(usage) if usage.no_space => Some("ALARM NOSPACE".to_owned()),
                Ok(_) => None,
                Err(error) => Some(error.to_string()),
            },
            Err(error) => Some(error.to_string()),
        };
        let code = if failure.is_some() { StatusCode::SERVICE_UNAVAILABLE } else { StatusCode::OK };
        if path != "/health" {
            let words = failure.map_or_else(|| "ok\n".into(), |failure| format!("failed: {failure}\n"));
            return text(code, "text/plain", words);
        }
        // Written by hand, quotes and backslashes in the words of an error aside.
        let reason = failure.unwrap_or_default().replace(['"', '\\'], "'");
        let healthy = reason.is_empty();
        text(code, "application/json", format!("{{\"health\":\"{healthy}\",\"reason\":\"{reason}\"}}"))
    }

    async fn metrics(&self) -> ferry_store::Result<String> {
        let usage = self.store.usage().await?;
        let revision = self.store.current_revision().await?.0;
        let values = [
            1,
            1,
            usage.keys as i64,
            revision,
            self.store.compacted_revision().0,
            usage.size as i64,
            usage.in_use as i64,
            usage.quota as i64,
        ];
        let mut page = Page::default();
        for (description, value) in GAUGES.iter().zip(values) {
            page.sample(description, &[], value as f64);
        }
        Ok(page.finish())
    }
}

/// Under etcd's names.
static GAUGES: [Description; 8] = [
    gauge("etcd_server_has_leader", "1 where there is a leader"),
    gauge("etcd_server_is_leader", "1 where this member is the leader"),
    gauge("etcd_debugging_mvcc_keys_total", "Current keys"),
    gauge("etcd_debugging_mvcc_current_revision", "The store's revision"),
    gauge("etcd_debugging_mvcc_compact_revision", "The revision of the last compaction"),
    gauge("etcd_mvcc_db_total_size_in_bytes", "Bytes on disk"),
    gauge("etcd_mvcc_db_total_size_in_use_in_bytes", "Bytes on disk that are still needed"),
    gauge("etcd_server_quota_backend_bytes", "Bytes past which writes are refused"),
];

const fn gauge(name: &'static str, help: &'static str) -> Description {
    Description::gauge(name, help, &[])
}

fn text(code: StatusCode, kind: &str, words: String) -> Response<Body> {
    let body = Body::new(http_body_util::Full::from(words));
    let mut response = Response::new(body);
    *response.status_mut() = code;
    if let Ok(kind) = kind.parse() {
        response.headers_mut().insert(CONTENT_TYPE, kind);
    }
    response
}
