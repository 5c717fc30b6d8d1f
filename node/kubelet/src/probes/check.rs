//! Asking a container once: by a command, over HTTP, by a connection, or over
//! gRPC's health protocol.

use std::net::IpAddr;
use std::time::Duration;

use ferry_client::unverified_tls;
use http_body_util::{BodyExt, Empty, Limited};
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::{Container, ExecAction, GRPCAction, HTTPGetAction, TCPSocketAction};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use prost::Message;
use tokio::net::TcpStream;

use crate::cri;

/// How much of an answer is kept for the event.
const BODY_LIMIT: usize = 10 << 10;
const MAX_REDIRECTS: usize = 10;

/// A result, with what is worth telling.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    pub succeeded: bool,
    /// It succeeded, and somebody should look at it all the same.
    pub is_warning: bool,
    pub output: String,
}

impl Outcome {
    pub fn success(output: impl Into<String>) -> Self {
        Self { succeeded: true, is_warning: false, output: output.into() }
    }

    pub fn warning(output: impl Into<String>) -> Self {
        Self { succeeded: true, is_warning: true, output: output.into() }
    }

    pub fn failure(output: impl Into<String>) -> Self {
        Self { succeeded: false, is_warning: false, output: output.into() }
    }
}

/// Where and whom to ask.
#[derive(Clone)]
pub struct Target {
    pub runtime: cri::Client,
    pub container_id: String,
    pub container: Container,
    pub pod_ip: Option<IpAddr>,
}

pub async fn exec(target: &Target, action: &ExecAction, timeout: Duration) -> Outcome {
    let command = action.command.clone().unwrap_or_default();
    match target.runtime.exec_sync(&target.container_id, &command, timeout).await {
        Ok(answer) => {
            let mut output = answer.stdout;
            output.extend(answer.stderr);
            output.truncate(BODY_LIMIT);
            let output = String::from_utf8_lossy(&output).into_owned();
            if answer.exit_code == 0 { Outcome::success(output) } else { Outcome::failure(output) }
        }
        Err(cri::Error::Timeout { .. }) => {
            Outcome::failure(format!("command {command:?} timed out after {}s", timeout.as_secs()))
        }
        Err(error) => Outcome::failure(error.to_string()),
    }
}

pub async fn tcp(target: &Target, action: &TCPSocketAction, timeout: Duration) -> Outcome {
    let (host, port) = match address(target, action.host.as_deref(), &action.port) {
        Ok(address) => address,
        Err(problem) => return Outcome::failure(problem),
    };
    match tokio::time::timeout(timeout, TcpStream::connect((host.as_str(), port))).await {
        Ok(Ok(_)) => Outcome::success(""),
        Ok(Err(error)) => Outcome::failure(format!("dial tcp {host}:{port}: {error}")),
        Err(_) => Outcome::failure(format!("dial tcp {host}:{port}: i/o timeout")),
    }
}

pub async fn http_get(target: &Target, action: &HTTPGetAction, timeout: Duration, agent: &str) -> Outcome {
    let (host, port) = match address(target, action.host.as_deref(), &action.port) {
        Ok(address) => address,
        Err(problem) => return Outcome::failure(problem),
    };
    let request = async {
        let mut path = action.path.clone().unwrap_or_default();
        if !path.starts_with('/') {
            path.insert(0, '/');
        }
        let tls = action.scheme.as_deref().is_some_and(|scheme| scheme.eq_ignore_ascii_case("https"));
        for _ in 0..MAX_REDIRECTS {
            let (status, location, body) = get(&host, port, tls, &path, action, agent).await?;
            let redirected = location.filter(|_| (300..400).contains(&status));
            match redirected.and_then(|location| same_host(&location, &host, port)) {
                Some(next) => path = next,
                None if (300..400).contains(&status) => {
                    return Ok(Outcome::warning(format!(
                        "Probe terminated redirects, Response body: {body}"
                    )));
                }
                None if (200..300).contains(&status) => return Ok(Outcome::success(body)),
                None => return Err(format!("HTTP probe failed with statuscode: {status}")),
            }
        }
        Err("stopped after 10 redirects".to_string())
    };
    match tokio::time::timeout(timeout, request).await {
        Ok(Ok(outcome)) => outcome,
        Ok(Err(problem)) => Outcome::failure(problem),
        Err(_) => Outcome::failure(format!(
            "Get \"http://{host}:{port}{}\": context deadline exceeded (Client.Timeout exceeded while awaiting headers)",
            action.path.as_deref().unwrap_or("/")
        )),
    }
}

/// A redirect is followed on the same host only; elsewhere it is an answer.
fn same_host(location: &str, host: &str, port: u16) -> Option<String> {
    if location.starts_with('/') {
        return Some(location.to_string());
    }
    let uri: http::Uri = location.parse().ok()?;
    let same = uri.host()? == host && uri.port_u16().unwrap_or(port) == port;
    same.then(|| uri.path_and_query().map_or_else(|| "/".into(), ToString::to_string))
}

async fn get(
    host: &str,
    port: u16,
    tls: bool,
    path: &str,
    action: &HTTPGetAction,
    agent: &str,
) -> Result<(u16, Option<String>, String), String> {
    let stream =
        TcpStream::connect((host, port)).await.map_err(|error| format!("dial tcp {host}:{port}: {error}"))?;
    let authority = if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
    let mut request = http::Request::get(path);
    let headers = request.headers_mut().ok_or_else(|| format!("path {path:?} is not valid"))?;
    let put = |headers: &mut http::HeaderMap, name: &str, value: &str| -> Result<(), String> {
        let name: http::HeaderName =
            name.parse().map_err(|_| format!("header name {name:?} is not valid"))?;
        let value = value.parse().map_err(|_| format!("header {name} has a value that is not valid"))?;
        headers.insert(name, value);
        Ok(())
    };
    put(headers, "Host", &authority)?;
    put(headers, "User-Agent", agent)?;
    put(headers, "Accept", "*/*")?;
    put(headers, "Connection", "close")?;
    for header in action.http_headers.iter().flatten() {
        put(headers, &header.name, &header.value)?;
    }
    let request = request.body(Empty::<bytes::Bytes>::new()).map_err(|error| error.to_string())?;
    if tls {
        let stream = unverified_tls::connect(stream, host).await.map_err(|error| error.to_string())?;
        send(TokioIo::new(stream), request).await
    } else {
        send(TokioIo::new(stream), request).await
    }
}

async fn send<S>(
    stream: S,
    request: http::Request<Empty<bytes::Bytes>>,
) -> Result<(u16, Option<String>, String), String>
where
    S: hyper::rt::Read + hyper::rt::Write + Send + Unpin + 'static,
{
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(stream).await.map_err(|error| error.to_string())?;
    // the connection ends with the exchange, or is dropped with this future
    let exchange = async {
        let answer = sender.send_request(request).await.map_err(|error| error.to_string())?;
        let status = answer.status().as_u16();
        let location =
            answer.headers().get("location").and_then(|value| value.to_str().ok()).map(str::to_string);
        let body = Limited::new(answer.into_body(), BODY_LIMIT).collect().await;
        let body = body
            .map(|body| String::from_utf8_lossy(&body.to_bytes()).into_owned())
            .unwrap_or_else(|_| String::new());
        Ok((status, location, body))
    };
    tokio::pin!(exchange);
    tokio::pin!(connection);
    tokio::select! {
        result = &mut exchange => result,
        ended = &mut connection => match ended {
            Err(error) => Err(error.to_string()),
            Ok(()) => exchange.await,
        },
    }
}

#[derive(Clone, PartialEq, Message)]
struct HealthCheckRequest {
    #[prost(string, tag = "1")]
    service: String,
}

#[derive(Clone, PartialEq, Message)]
struct HealthCheckResponse {
    #[prost(int32, tag = "1")]
    status: i32,
}

const SERVING: i32 = 1;

pub async fn grpc(target: &Target, action: &GRPCAction, timeout: Duration) -> Outcome {
    let Some(ip) = target.pod_ip else { return Outcome::failure("the pod has no address") };
    let socket = std::net::SocketAddr::new(ip, action.port as u16);
    let ask = async {
        let endpoint = tonic::transport::Endpoint::from_shared(format!("http://{socket}"))
            .map_err(|error| error.to_string())?;
        let channel = endpoint.connect().await.map_err(|error| format!("connection error: {error}"))?;
        let mut grpc = tonic::client::Grpc::new(channel);
        grpc.ready().await.map_err(|error| error.to_string())?;
        let codec = tonic_prost::ProstCodec::<HealthCheckRequest, HealthCheckResponse>::default();
        let request = HealthCheckRequest { service: action.service.clone().unwrap_or_default() };
        let path = tonic::codegen::http::uri::PathAndQuery::from_static("/grpc.health.v1.Health/Check");
        let answer = grpc.unary(tonic::Request::new(request), path, codec).await;
        Ok::<i32, String>(answer.map_err(|status| status.message().to_string())?.into_inner().status)
    };
    match tokio::time::timeout(timeout, ask).await {
        Ok(Ok(SERVING)) => Outcome::success("service healthy"),
        Ok(Ok(status)) => Outcome::failure(format!("service unhealthy (responded with {status})")),
        Ok(Err(problem)) => Outcome::failure(problem),
        Err(_) => {
            Outcome::failure(format!("timeout: health rpc did not complete within {}s", timeout.as_secs()))
        }
    }
}

/// The host and port of an action: the pod's address unless another is named,
/// the port by number or by its name in the container.
fn address(target: &Target, host: Option<&str>, port: &IntOrString) -> Result<(String, u16), String> {
    let number = match port {
        IntOrString::Int(number) => *number,
        IntOrString::String(name) => {
            let mut ports = target.container.ports.iter().flatten();
            match ports.find(|each| each.name.as_deref() == Some(name)) {
                Some(port) => port.container_port,
                None => name.parse().map_err(|_| format!("couldn't find port: {name:?}"))?,
            }
        }
    };
    let number = u16::try_from(number).map_err(|_| format!("invalid port number: {number}"))?;
    match host.filter(|host| !host.is_empty()) {
        Some(host) => Ok((host.into(), number)),
        None => {
            target.pod_ip.map(|ip| (ip.to_string(), number)).ok_or_else(|| "the pod has no address".into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redirects_are_followed_on_the_same_host_only() {
        assert_eq!(same_host("/next?x=1", "10.0.0.1", 80), Some("/next?x=1".into()));
        assert_eq!(same_host("http://10.0.0.1:80/a", "10.0.0.1", 80), Some("/a".into()));
        assert_eq!(same_host("http://10.0.0.1:81/a", "10.0.0.1", 80), None);
        assert_eq!(same_host("http://elsewhere/a", "10.0.0.1", 80), None);
    }

    type Answer =
        http::Response<http_body_util::combinators::BoxBody<bytes::Bytes, std::convert::Infallible>>;

    /// A server on this host, HTTP/1.1 and 2; its port.
    async fn serve(answer: fn(&str, &http::HeaderMap) -> Answer) -> u16 {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
        let port = listener.local_addr().expect("it is bound").port();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let service =
                    hyper::service::service_fn(move |request: http::Request<hyper::body::Incoming>| {
                        let answer = answer(request.uri().path(), request.headers());
                        std::future::ready(Ok::<_, std::convert::Infallible>(answer))
                    });
                let builder =
                    hyper_util::server::conn::auto::Builder::new(hyper_util::rt::TokioExecutor::new());
                tokio::spawn(async move {
                    builder.serve_connection(TokioIo::new(stream), service).await.expect("it is served");
                });
            }
        });
        port
    }

    fn target(port: u16) -> Target {
        let ports = serde_json::json!([{"name": "web", "containerPort": port}]);
        Target {
            runtime: cri::Client::new("/nowhere").expect("a path"),
            container_id: "c".into(),
            container: serde_json::from_value(serde_json::json!({"name": "c", "ports": ports}))
                .expect("the container is well formed"),
            pod_ip: Some(IpAddr::from([127, 0, 0, 1])),
        }
    }

    const A_MOMENT: Duration = Duration::from_secs(5);

    /// The health protocol: a message of one field, and the call's status behind it.
    fn health(path: &str, _: &http::HeaderMap) -> Answer {
        assert_eq!(path, "/grpc.health.v1.Health/Check");
        let message = bytes::Bytes::from_static(&[0, 0, 0, 0, 2, 0x08, 0x01]);
        let trailers = http::HeaderMap::from_iter([(
            http::HeaderName::from_static("grpc-status"),
            http::HeaderValue::from_static("0"),
        )]);
        let frames = [hyper::body::Frame::data(message), hyper::body::Frame::trailers(trailers)];
        let body = http_body_util::StreamBody::new(futures::stream::iter(frames.map(Ok)));
        let mut answer = http::Response::new(BodyExt::boxed(body));
        answer.headers_mut().insert("content-type", http::HeaderValue::from_static("application/grpc"));
        answer
    }

    fn unhealthy(_: &str, _: &http::HeaderMap) -> Answer {
        let mut answer = http::Response::new(Empty::new().boxed());
        let headers = answer.headers_mut();
        headers.insert("content-type", http::HeaderValue::from_static("application/grpc"));
        headers.insert("grpc-status", http::HeaderValue::from_static("5"));
        headers.insert("grpc-message", http::HeaderValue::from_static("unknown service"));
        answer
    }

    #[tokio::test]
    async fn health_is_asked_for_over_grpc() {
        let ask = async |port: u16, service: &str| {
            let action = GRPCAction { port: i32::from(port), service: Some(service.into()) };
            grpc(&target(port), &action, A_MOMENT).await
        };
        assert_eq!(ask(serve(health).await, "").await, Outcome::success("service healthy"));
        assert_eq!(ask(serve(unhealthy).await, "other").await, Outcome::failure("unknown service"));
        let nobody = ask(closed_port().await, "").await;
        assert!(nobody.output.starts_with("connection error"), "{nobody:?}");
    }

    async fn closed_port() -> u16 {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
        listener.local_addr().expect("it is bound").port()
    }

    fn pages(path: &str, headers: &http::HeaderMap) -> Answer {
        let mut answer = http::Response::new(Empty::new().boxed());
        match path {
            "/moved" => {
                *answer.status_mut() = http::StatusCode::FOUND;
                answer.headers_mut().insert("location", http::HeaderValue::from_static("/ready"));
            }
            "/elsewhere" => {
                *answer.status_mut() = http::StatusCode::FOUND;
                let place = http::HeaderValue::from_static("http://elsewhere.invalid/ready");
                answer.headers_mut().insert("location", place);
            }
            "/ready" if headers.get("x-asks").is_some_and(|value| value == "kubelet") => {}
            _ => *answer.status_mut() = http::StatusCode::SERVICE_UNAVAILABLE,
        }
        answer
    }

    #[tokio::test]
    async fn pages_and_ports_are_asked_for() {
        let port = serve(pages).await;
        let page = async |path: &str| {
            let action = serde_json::json!({
                "path": path, "port": "web", "httpHeaders": [{"name": "X-Asks", "value": "kubelet"}],
            });
            let action = serde_json::from_value(action).expect("the action is well formed");
            http_get(&target(port), &action, A_MOMENT, "test").await
        };
        assert!(page("/ready").await.succeeded);
        assert!(page("moved").await.succeeded, "a redirect on the same host is followed");
        let elsewhere = page("/elsewhere").await;
        assert!(elsewhere.succeeded && elsewhere.is_warning, "{elsewhere:?}");
        assert!(!page("moved").await.is_warning);
        assert_eq!(page("/busy").await, Outcome::failure("HTTP probe failed with statuscode: 503"));
        let connects = async |port: u16| {
            let action = TCPSocketAction { host: None, port: IntOrString::Int(i32::from(port)) };
            tcp(&target(port), &action, A_MOMENT).await.succeeded
        };
        assert!(connects(port).await);
        assert!(!connects(closed_port().await).await);
    }
}
