//! Exec, attach and port-forward: the request becomes a connection.

use std::sync::Arc;

use http::header::{CONNECTION, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_PROTOCOL, UPGRADE};
use http::{HeaderMap, Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::Role;

use super::{Body, Server, query, respond, text};
use crate::cri;
use crate::pod;
use crate::runtime;
use crate::runtime::view::{Container, PodRuntime, State};
use crate::streaming::channels::{self, Protocol};
use crate::streaming::remote_command::{self, Wanted};
use crate::streaming::{port_forward, upgrade};

/// A tunnel of SPDY in WebSocket messages, as newer clients forward ports.
const TUNNEL: &str = "SPDY/3.1+portforward.k8s.io";
const STREAM_PROTOCOL: &str = "x-stream-protocol-version";

type Refused = Box<Response<Body>>;

fn refuse(status: StatusCode, message: impl Into<String>) -> Refused {
    Box::new(text(status, message))
}

impl Server {
    pub(super) async fn exec(
        self: &Arc<Self>,
        request: Request<Incoming>,
        namespace: &str,
        name: &str,
        container: &str,
    ) -> Response<Body> {
        let pairs = query(request.uri());
        let wanted = wanted(&pairs);
        let command: Vec<String> =
            pairs.iter().filter(|(key, _)| key == "command").map(|(_, value)| value.clone()).collect();
        if command.is_empty() {
            return text(StatusCode::BAD_REQUEST, "you must specify at least 1 command to run");
        }
        let found = self.running_container(namespace, name, container).await;
        let record = match found {
            Ok(record) => record,
            Err(refused) => return *refused,
        };
        let ask = cri::ExecRequest {
            container_id: record.id,
            cmd: command,
            tty: wanted.tty,
            stdin: wanted.stdin,
            stdout: wanted.stdout,
            stderr: wanted.stderr && !wanted.tty,
        };
        match self.context.runtime.exec(ask).await {
            Ok(url) => stream_command(request, url, wanted).await,
            Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
        }
    }

    pub(super) async fn attach(
        self: &Arc<Self>,
        request: Request<Incoming>,
        namespace: &str,
        name: &str,
        container: &str,
    ) -> Response<Body> {
        let mut wanted = wanted(&query(request.uri()));
        let record = match self.running_container(namespace, name, container).await {
            Ok(record) => record,
            Err(refused) => return *refused,
        };
        // whether it is a terminal was decided when the container was made
        wanted.tty = self.pods.find(namespace, name).is_some_and(|pod| {
            pod::find_container(&pod, container).is_some_and(|each| each.container.tty == Some(true))
        });
        let ask = cri::AttachRequest {
            container_id: record.id,
            tty: wanted.tty,
            stdin: wanted.stdin,
            stdout: wanted.stdout,
            stderr: wanted.stderr && !wanted.tty,
        };
        match self.context.runtime.attach(ask).await {
            Ok(url) => stream_command(request, url, wanted).await,
            Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
        }
    }

    pub(super) async fn port_forward(
        self: &Arc<Self>,
        request: Request<Incoming>,
        namespace: &str,
        name: &str,
    ) -> Response<Body> {
        let known = match self.runtime_of(namespace, name).await {
            Ok(known) => known,
            Err(refused) => return *refused,
        };
        let Some(sandbox) = known.sandbox().filter(|sandbox| sandbox.ready) else {
            return text(StatusCode::NOT_FOUND, format!("pod not found (\"{name}_{namespace}\")"));
        };
        let pairs = query(request.uri());
        let named = pairs.iter().filter(|(key, _)| key == "port" || key == "ports");
        let ports: Result<Vec<u16>, _> =
            named.flat_map(|(_, value)| value.split(',')).map(str::parse::<u16>).collect();
        let Ok(ports) = ports else { return text(StatusCode::BAD_REQUEST, "port is not a number") };
        let url = match self
            .context
            .runtime
            .port_forward(&sandbox.id, ports.iter().map(|port| i32::from(*port)).collect())
            .await
        {
            Ok(url) => url,
            Err(error) => return text(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
        };
        if !is_websocket(request.headers()) {
            return pass_through(request, &url).await;
        }
        let offered = offered_protocols(request.headers());
        if offered.iter().any(|protocol| protocol == TUNNEL) {
            let connection = match upgrade::connect(&url, &["portforward.k8s.io"]).await {
                Ok(connection) => connection,
                Err(error) => return text(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
            };
            return websocket(request, Some(TUNNEL), |socket| async move {
                remote_command::splice_tunnel(socket, connection.stream).await;
            });
        }
        if ports.is_empty() {
            return text(StatusCode::BAD_REQUEST, "query parameter \"port\" is required");
        }
        let offered: Vec<&str> = offered.iter().map(String::as_str).collect();
        let Some(protocol) = Protocol::choose(&offered) else {
            return text(StatusCode::FORBIDDEN, "no supported protocol was offered");
        };
        let name = (!offered.is_empty()).then_some(protocol.name);
        websocket(request, name, move |socket| async move {
            port_forward::serve(socket, protocol, &url, &ports).await;
        })
    }

    async fn runtime_of(&self, namespace: &str, name: &str) -> Result<PodRuntime, Refused> {
        let Some(pod) = self.pods.find(namespace, name) else {
            return Err(refuse(StatusCode::NOT_FOUND, format!("pod does not exist: {name}_{namespace}")));
        };
        let known = runtime::pod(&self.context.runtime, pod::uid(&pod)).await;
        known.map_err(|error| refuse(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))
    }

    async fn running_container(
        &self,
        namespace: &str,
        name: &str,
        container: &str,
    ) -> Result<Container, Refused> {
        let known = self.runtime_of(namespace, name).await?;
        let record = known.container(container).filter(|record| record.state == State::Running).cloned();
        record.ok_or_else(|| {
            refuse(
                StatusCode::NOT_FOUND,
                format!("container not found (\"{container}\") or not running in pod {name}_{namespace}"),
            )
        })
    }
}

/// The kubelet's names for the streams, and those of the API server.
fn wanted(pairs: &[(String, String)]) -> Wanted {
    let flag = |names: &[&str]| {
        pairs
            .iter()
            .any(|(key, value)| names.contains(&key.as_str()) && matches!(value.as_str(), "1" | "true"))
    };
    Wanted {
        stdin: flag(&["input", "stdin"]),
        stdout: flag(&["output", "stdout"]),
        stderr: flag(&["error", "stderr"]),
        tty: flag(&["tty"]),
    }
}

async fn stream_command(request: Request<Incoming>, url: String, wanted: Wanted) -> Response<Body> {
    if !is_websocket(request.headers()) {
        return pass_through(request, &url).await;
    }
    let offered = offered_protocols(request.headers());
    let offered: Vec<&str> = offered.iter().map(String::as_str).collect();
    let Some(protocol) = Protocol::choose(&offered) else {
        return text(StatusCode::FORBIDDEN, "no supported protocol was offered");
    };
    let name = (!offered.is_empty()).then_some(protocol.name);
    websocket(request, name, move |socket| async move {
        remote_command::serve(socket, protocol, &url, wanted).await;
    })
}

/// A client that speaks SPDY is connected with the runtime as it is.
async fn pass_through(mut request: Request<Incoming>, url: &str) -> Response<Body> {
    let asked = request.headers().get(UPGRADE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    if !asked.eq_ignore_ascii_case("SPDY/3.1") {
        return text(StatusCode::BAD_REQUEST, "unable to upgrade: missing upgrade headers in request");
    }
    let offered: Vec<String> = request
        .headers()
        .get_all(STREAM_PROTOCOL)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(',').map(|each| each.trim().to_string()))
        .collect();
    let offered: Vec<&str> = offered.iter().map(String::as_str).collect();
    let connection = match upgrade::connect(url, &offered).await {
        Ok(connection) => connection,
        Err(error) => return text(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
    };
    let upgrade = hyper::upgrade::on(&mut request);
    tokio::spawn(async move {
        match upgrade.await {
            Ok(client) => remote_command::splice(TokioIo::new(client), connection.stream).await,
            Err(error) => tracing::debug!(%error, "client did not upgrade"),
        }
    });
    let mut response = switching("SPDY/3.1");
    if let Some(value) = connection.protocol.and_then(|protocol| protocol.parse().ok()) {
        response.headers_mut().insert(STREAM_PROTOCOL, value);
    }
    response
}

fn switching(protocol: &'static str) -> Response<Body> {
    let mut response = respond(StatusCode::SWITCHING_PROTOCOLS, "", bytes::Bytes::new());
    response.headers_mut().clear();
    response.headers_mut().insert(CONNECTION, http::HeaderValue::from_static("Upgrade"));
    response.headers_mut().insert(UPGRADE, http::HeaderValue::from_static(protocol));
    response
}

fn is_websocket(headers: &HeaderMap) -> bool {
    headers
        .get(UPGRADE)
        .and_then(|value| value.to_str().ok())
        .is_some_and(|value| value.eq_ignore_ascii_case("websocket"))
}

fn offered_protocols(headers: &HeaderMap) -> Vec<String> {
    let values = headers.get_all(SEC_WEBSOCKET_PROTOCOL);
    let values = values.iter().filter_map(|value| value.to_str().ok());
    values
        .flat_map(|value| value.split(','))
        .map(|each| each.trim().to_string())
        .filter(|each| !each.is_empty())
        .collect()
}

type Socket = WebSocketStream<TokioIo<hyper::upgrade::Upgraded>>;

fn websocket<F, W>(mut request: Request<Incoming>, protocol: Option<&'static str>, work: F) -> Response<Body>
where
    F: FnOnce(Socket) -> W + Send + 'static,
    W: Future<Output = ()> + Send,
{
    let Some(key) = request.headers().get(SEC_WEBSOCKET_KEY) else {
        return text(StatusCode::BAD_REQUEST, "not a WebSocket request: the key is missing");
    };
    let accept = derive_accept_key(key.as_bytes());
    let upgrade = hyper::upgrade::on(&mut request);
    tokio::spawn(async move {
        match upgrade.await {
            Ok(client) => {
                let socket = WebSocketStream::from_raw_socket(
                    TokioIo::new(client),
                    Role::Server,
                    Some(channels::limits()),
                )
                .await;
                work(socket).await;
            }
            Err(error) => tracing::debug!(%error, "client did not upgrade"),
        }
    });
    let mut response = switching("websocket");
    if let Ok(accept) = accept.parse() {
        response.headers_mut().insert(SEC_WEBSOCKET_ACCEPT, accept);
    }
    if let Some(protocol) = protocol {
        response.headers_mut().insert(SEC_WEBSOCKET_PROTOCOL, http::HeaderValue::from_static(protocol));
    }
    response
}
