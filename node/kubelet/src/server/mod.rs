//! The kubelet's own server: logs, exec, attach, port-forward, statistics.
//! Whoever calls must show who they are, and the API server says whether they
//! may.

mod auth;
mod cadvisor;
mod health;
mod host_logs;
mod logs;
pub mod metrics;
mod running_pods;
mod stats;
mod streams;
mod volume_stats;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Instant;

use ferry_client::CancellationToken;
use ferry_serving::{Certificate, Check, ClientCa, Guard, Tls, User, respond, text};
use http::{Request, Response, StatusCode};
use hyper::body::Incoming;
use k8s_openapi::api::core::v1::Pod;

pub use ferry_serving::{Error, Listener};

use crate::config::Config;
use crate::config_file;
use crate::context::Context;
use crate::metrics as counted;
use crate::node::status::NodeStatusSource;
use crate::pods::Pods;

type Body = ferry_serving::Body;

/// Binds the port, before anything is served on it: the node's status names it.
pub fn bind(config: &Config, addresses: &[IpAddr]) -> Result<Listener, Error> {
    let certificate = match (&config.tls_cert_file, &config.tls_private_key_file) {
        (Some(certificate), Some(key)) => {
            Certificate::Files { certificate: certificate.clone(), key: key.clone() }
        }
        _ => {
            let mut names = vec![config.node_name.clone()];
            names.extend(addresses.iter().map(IpAddr::to_string));
            Certificate::SelfSigned(names)
        }
    };
    let tls = Tls { certificate, client_ca: config.client_ca_file.clone().map(ClientCa::File) };
    Listener::bind(SocketAddr::new(config.address, config.port), &tls)
}

/// What every request handler needs.
pub(crate) struct Server {
    context: Arc<Context>,
    node: Arc<NodeStatusSource>,
    pods: Pods,
    guard: Guard,
    checks: Vec<Check>,
    sampler: stats::Sampler,
}

/// Serves until stopped. Connections that carry streams end with it.
pub async fn run(
    listener: Listener,
    context: Arc<Context>,
    node: Arc<NodeStatusSource>,
    pods: Pods,
    stop: CancellationToken,
) {
    let guard = Guard::new(context.client.clone(), context.config.anonymous_auth);
    let checks = health::checks(context.seen.clone());
    let server = Arc::new(Server { context, node, pods, guard, checks, sampler: stats::Sampler::default() });
    let answer = move |request, certificate| {
        let server = server.clone();
        async move { server.handle(request, certificate).await }
    };
    ferry_serving::serve(listener, answer, stop).await;
}

impl Server {
    async fn handle(
        self: &Arc<Self>,
        request: Request<Incoming>,
        certificate: Option<User>,
    ) -> Response<Body> {
        let user = match self.guard.authenticate(certificate, request.headers()).await {
            Ok(user) => user,
            Err(problem) => return text(StatusCode::UNAUTHORIZED, problem),
        };
        match auth::authorize(&self.guard, &user, &self.context.config.node_name, &request).await {
            Ok(true) => {}
            Ok(false) => {
                let path = request.uri().path().to_string();
                let message = format!(
                    "Forbidden (user={}, verb={}, resource=nodes, path={path})",
                    user.name,
                    request.method()
                );
                return text(StatusCode::FORBIDDEN, message);
            }
            Err(problem) => {
                return text(StatusCode::INTERNAL_SERVER_ERROR, format!("Authorization error: {problem}"));
            }
        }
        let (method, path, began) =
            (request.method().clone(), request.uri().path().to_owned(), Instant::now());
        let response = self.route(request).await;
        counted::served(&method, &path, began.elapsed());
        response
    }

    async fn route(self: &Arc<Self>, request: Request<Incoming>) -> Response<Body> {
        let path = request.uri().path().trim_matches('/').to_string();
        let parts: Vec<String> = path
            .split('/')
            .map(|part| percent_encoding::percent_decode_str(part).decode_utf8_lossy().into_owned())
            .collect();
        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        if !self.context.config.enable_debugging_handlers && is_debugging(&parts) {
            return text(StatusCode::METHOD_NOT_ALLOWED, "Debug endpoints are disabled.");
        }
        match parts.as_slice() {
            ["healthz"] => {
                let is_verbose = query(request.uri()).iter().any(|(key, _)| key == "verbose");
                ferry_serving::health("healthz", &self.checks, is_verbose)
            }
            ["healthz", name] => ferry_serving::one_check("healthz", &self.checks, name),
            ["configz"] => {
                json(&serde_json::json!({"kubeletconfig": config_file::shown(&self.context.config)}))
            }
            ["pods"] => self.list_pods(),
            ["runningpods"] => match running_pods::list(&self.context.runtime).await {
                Ok(pods) => json(&pods),
                Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
            },
            ["stats", "summary"] | ["stats"] => self.summary().await,
            ["metrics"] => self.metrics().await,
            ["metrics", "resource"] => self.resource_metrics().await,
            ["metrics", "cadvisor"] => self.cadvisor_metrics().await,
            ["metrics", "probes"] => self.probe_metrics(),
            ["metrics", "slis"] => ferry_serving::slis_page(&["healthz"], &self.checks),
            ["logs", path @ ..] => host_logs::serve(path).await,
            ["containerLogs", namespace, pod, container] => {
                self.logs(&request, namespace, pod, container).await
            }
            ["exec", namespace, pod, container] | ["exec", namespace, pod, _, container] => {
                self.exec(request, namespace, pod, container).await
            }
            ["attach", namespace, pod, container] | ["attach", namespace, pod, _, container] => {
                self.attach(request, namespace, pod, container).await
            }
            ["portForward", namespace, pod] | ["portForward", namespace, pod, _] => {
                self.port_forward(request, namespace, pod).await
            }
            _ => text(StatusCode::NOT_FOUND, "404 page not found"),
        }
    }

    /// The node's pods with their latest status, which the API may not have yet.
    fn shown_pods(&self) -> Vec<Pod> {
        let latest = |pod: Arc<Pod>| {
            let mut pod = Arc::unwrap_or_clone(pod);
            if let Some(status) = self.context.writer.latest(crate::pod::uid(&pod)) {
                pod.status = Some(status);
            }
            pod
        };
        self.pods.list().into_iter().map(latest).collect()
    }

    fn list_pods(&self) -> Response<Body> {
        let items = self.shown_pods();
        json(&serde_json::json!({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": items}))
    }
}

/// What `enableDebuggingHandlers: false` turns off.
fn is_debugging(parts: &[&str]) -> bool {
    const ROOTS: [&str; 8] =
        ["run", "exec", "attach", "portForward", "containerLogs", "runningpods", "logs", "debug"];
    parts.first().is_some_and(|root| ROOTS.contains(root))
}

fn json(value: &serde_json::Value) -> Response<Body> {
    respond(StatusCode::OK, "application/json", value.to_string().into())
}

/// The values of a query, in order.
fn query(uri: &http::Uri) -> Vec<(String, String)> {
    let decode = |text: &str| {
        percent_encoding::percent_decode_str(&text.replace('+', " ")).decode_utf8_lossy().into_owned()
    };
    let pairs = uri.query().unwrap_or_default().split('&').filter(|pair| !pair.is_empty());
    pairs
        .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
        .map(|(key, value)| (decode(key), decode(value)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debugging_handlers_are_logs_exec_attach_and_port_forward() {
        for path in [
            "exec/ns/p/c",
            "attach/ns/p/c",
            "containerLogs/ns/p/c",
            "portForward/ns/p",
            "runningpods",
            "logs",
        ] {
            assert!(is_debugging(&path.split('/').collect::<Vec<_>>()), "{path}");
        }
        for path in ["", "healthz", "pods", "metrics/cadvisor", "stats/summary", "configz"] {
            assert!(!is_debugging(&path.split('/').collect::<Vec<_>>()), "{path}");
        }
    }
}
