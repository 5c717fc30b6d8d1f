//! The kubelet's own server: logs, exec, attach, port-forward, statistics.
//! Whoever calls must show who they are, and the API server says whether they
//! may.

mod auth;
mod host_logs;
mod logs;
mod metrics;
mod stats;
mod streams;
mod volume_stats;

use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use ferry_client::CancellationToken;
use http::{Request, Response, StatusCode};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use k8s_openapi::api::core::v1::Pod;
use rustls::server::WebPkiClientVerifier;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsAcceptor;
use tokio_util::task::TaskTracker;

use crate::config::Config;
use crate::config_file;
use crate::context::Context;
use crate::node::status::NodeStatusSource;
use crate::pods::Pods;

const HANDSHAKE: Duration = Duration::from_secs(10);
/// From the connection's beginning, or one request's, until the next one's headers are there.
const IDLE: Duration = Duration::from_secs(60);
/// How often a caller that says nothing is asked whether it is still there, and how long it may take to answer.
const PING: (Duration, Duration) = (Duration::from_secs(30), Duration::from_secs(20));

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("listening on {address}: {source}")]
    Listen { address: SocketAddr, source: io::Error },
    #[error("reading {file}: {problem}")]
    File { file: String, problem: String },
    #[error("making a serving certificate: {0}")]
    Certificate(#[from] rcgen::Error),
    #[error("TLS settings: {0}")]
    Tls(String),
}

type Body = BoxBody<Bytes, io::Error>;

/// The bound port, before anything is served on it: the node's status names
/// it.
pub struct Listener {
    socket: std::net::TcpListener,
    tls: TlsAcceptor,
    port: u16,
}

impl Listener {
    pub fn bind(config: &Config, addresses: &[IpAddr]) -> Result<Self, Error> {
        let address = SocketAddr::new(config.address, config.port);
        let listen = |source| Error::Listen { address, source };
        let socket = std::net::TcpListener::bind(address).map_err(listen)?;
        socket.set_nonblocking(true).map_err(listen)?;
        let port = socket.local_addr().map_err(listen)?.port();
        Ok(Self { socket, tls: TlsAcceptor::from(Arc::new(tls_config(config, addresses)?)), port })
    }

    pub fn port(&self) -> u16 {
        self.port
    }
}

fn tls_config(config: &Config, addresses: &[IpAddr]) -> Result<rustls::ServerConfig, Error> {
    let (chain, key) = match (&config.tls_cert_file, &config.tls_private_key_file) {
        (Some(certificate), Some(key)) => {
            let file = |path: &std::path::Path, problem: String| Error::File {
                file: path.display().to_string(),
                problem,
            };
            let chain = CertificateDer::pem_file_iter(certificate)
                .and_then(Iterator::collect::<Result<Vec<_>, _>>)
                .map_err(|error| file(certificate, error.to_string()))?;
            (chain, PrivateKeyDer::from_pem_file(key).map_err(|error| file(key, error.to_string()))?)
        }
        _ => self_signed(config, addresses)?,
    };
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = rustls::ServerConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(|error| Error::Tls(error.to_string()))?;
    let builder = match &config.client_ca_file {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let bad = |problem: String| Error::File { file: path.display().to_string(), problem };
            let mut roots = rustls::RootCertStore::empty();
            for certificate in CertificateDer::pem_file_iter(path).map_err(|error| bad(error.to_string()))? {
                let certificate = certificate.map_err(|error| bad(error.to_string()))?;
                roots.add(certificate).map_err(|error| bad(error.to_string()))?;
            }
            // a token serves as well, so a certificate is not demanded
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
                .allow_unauthenticated()
                .build()
                .map_err(|error| bad(error.to_string()))?;
            builder.with_client_cert_verifier(verifier)
        }
    };
    let mut tls = builder.with_single_cert(chain, key).map_err(|error| Error::Tls(error.to_string()))?;
    tls.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(tls)
}

/// A certificate nobody vouches for, as upstream makes one too.
fn self_signed(
    config: &Config,
    addresses: &[IpAddr],
) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), Error> {
    let mut names = vec![config.node_name.clone()];
    names.extend(addresses.iter().map(IpAddr::to_string));
    let made = rcgen::generate_simple_self_signed(names)?;
    let key = PrivateKeyDer::try_from(made.signing_key.serialize_der())
        .map_err(|error| Error::Tls(error.into()))?;
    Ok((vec![made.cert.der().clone()], key))
}

/// What every request handler needs.
pub(crate) struct Server {
    context: Arc<Context>,
    node: Arc<NodeStatusSource>,
    pods: Pods,
    guard: auth::Guard,
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
    let socket = match tokio::net::TcpListener::from_std(listener.socket) {
        Ok(socket) => socket,
        Err(error) => {
            tracing::error!(%error, "the kubelet's server cannot start");
            return;
        }
    };
    let guard = auth::Guard::new(
        context.client.clone(),
        context.config.node_name.clone(),
        context.config.anonymous_auth,
    );
    let server = Arc::new(Server { context, node, pods, guard, sampler: stats::Sampler::default() });
    let connections = TaskTracker::new();
    loop {
        let accepted = tokio::select! {
            () = stop.cancelled() => break,
            accepted = socket.accept() => accepted,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                // out of descriptors, say: others must end before this can go on
                tracing::warn!(%error, "connection not accepted");
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        let (tls, server, stop) = (listener.tls.clone(), server.clone(), stop.clone());
        connections.spawn(async move {
            tokio::select! {
                () = stop.cancelled() => {}
                () = serve(stream, tls, server) => {}
            }
        });
    }
    connections.close();
    connections.wait().await;
}

async fn serve(stream: tokio::net::TcpStream, tls: TlsAcceptor, server: Arc<Server>) {
    // failing to set it only costs latency
    let _ = stream.set_nodelay(true);
    let stream = match tokio::time::timeout(HANDSHAKE, tls.accept(stream)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => {
            tracing::debug!(%error, "TLS handshake failed");
            return;
        }
        Err(_) => return,
    };
    let certificate = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
    let caller = certificate.and_then(auth::user_of_certificate);
    let is_second = stream.get_ref().1.alpn_protocol() == Some(b"h2");
    let answer = move |request| {
        let (server, caller) = (server.clone(), caller.clone());
        async move { server.handle(request, caller).await }
    };
    if let Err(error) = converse(stream, is_second, answer).await {
        tracing::debug!(%error, "connection ended");
    }
}

/// One connection's requests, in the version of HTTP that TLS agreed on: waiting for a first byte that tells it would
/// be without a limit. Whoever sends no request for a while is let go; what is being answered is answered to its end.
async fn converse<S, F>(
    stream: S,
    is_second: bool,
    answer: impl Fn(Request<Incoming>) -> F + Send + 'static,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    F: Future<Output = Response<Body>> + Send + 'static,
{
    let builder = auto::Builder::new(TokioExecutor::new());
    let mut builder = if is_second { builder.http2_only() } else { builder.http1_only() };
    builder.http1().timer(TokioTimer::new()).header_read_timeout(IDLE);
    builder.http2().timer(TokioTimer::new()).keep_alive_interval(PING.0).keep_alive_timeout(PING.1);
    let (came, mut requests) = tokio::sync::watch::channel(());
    let service = hyper::service::service_fn(move |request| {
        came.send_replace(());
        let answered = answer(request);
        async move { Ok::<_, Infallible>(answered.await) }
    });
    let mut serving = pin!(builder.serve_connection_with_upgrades(TokioIo::new(stream), service));
    let idle = async { while let Ok(Ok(())) = tokio::time::timeout(IDLE, requests.changed()).await {} };
    tokio::select! {
        served = &mut serving => served,
        () = idle => {
            serving.as_mut().graceful_shutdown();
            serving.await
        }
    }
}

impl Server {
    async fn handle(
        self: &Arc<Self>,
        request: Request<Incoming>,
        certificate: Option<auth::User>,
    ) -> Response<Body> {
        let user = match self.guard.authenticate(certificate, request.headers()).await {
            Ok(user) => user,
            Err(problem) => return text(StatusCode::UNAUTHORIZED, problem),
        };
        match self.guard.authorize(&user, request.method(), request.uri().path()).await {
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
        self.route(request).await
    }

    async fn route(self: &Arc<Self>, request: Request<Incoming>) -> Response<Body> {
        let path = request.uri().path().trim_matches('/').to_string();
        let parts: Vec<String> = path
            .split('/')
            .map(|part| percent_encoding::percent_decode_str(part).decode_utf8_lossy().into_owned())
            .collect();
        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        match parts.as_slice() {
            ["healthz"] | ["healthz", "ping"] => text(StatusCode::OK, "ok"),
            ["healthz", "syncloop" | "log"] => text(StatusCode::OK, "ok"),
            ["configz"] => {
                json(&serde_json::json!({"kubeletconfig": config_file::shown(&self.context.config)}))
            }
            ["pods"] | ["runningpods"] => self.list_pods(),
            ["stats", "summary"] | ["stats"] => self.summary().await,
            ["metrics"] => self.metrics().await,
            ["metrics", "resource"] => self.resource_metrics().await,
            ["metrics", "cadvisor" | "probes"] => text(StatusCode::OK, ""),
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

fn text(status: StatusCode, message: impl Into<String>) -> Response<Body> {
    let mut message = message.into();
    message.push('\n');
    respond(status, "text/plain; charset=utf-8", message.into())
}

fn json(value: &serde_json::Value) -> Response<Body> {
    respond(StatusCode::OK, "application/json", value.to_string().into())
}

fn respond(status: StatusCode, content_type: &'static str, body: Bytes) -> Response<Body> {
    let mut response = Response::new(Full::new(body).map_err(|never| match never {}).boxed());
    *response.status_mut() = status;
    response.headers_mut().insert("content-type", http::HeaderValue::from_static(content_type));
    response
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
    use tokio::io::AsyncWriteExt;

    /// A caller says this and no more; the connection must end all the same.
    async fn is_let_go(is_second: bool, says: &[u8]) {
        let (mut caller, stream) = tokio::io::duplex(1 << 16);
        caller.write_all(says).await.expect("there is room");
        let served = converse(stream, is_second, |_| std::future::ready(text(StatusCode::OK, "ok")));
        let limit = IDLE + PING.0 + PING.1;
        let ended = tokio::time::timeout(limit, served).await;
        assert!(ended.is_ok(), "still there after {limit:?}: {:?}", String::from_utf8_lossy(says));
    }

    #[tokio::test(start_paused = true)]
    async fn who_does_not_finish_a_request_is_let_go() {
        is_let_go(false, b"").await;
        is_let_go(false, b"GET /healthz HTTP/1.1\r\nhost:").await;
        is_let_go(false, b"GET /healthz HTTP/1.1\r\nhost: node\r\n\r\n").await;
        is_let_go(true, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await;
        is_let_go(true, b"PRI * HTTP/2.0\r\n").await;
    }
}
