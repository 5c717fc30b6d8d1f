//! What load balancers ask a node: the proxy's own health, and for each service with a health check
//! port whether this node has an endpoint of it.

use std::{
    collections::HashMap,
    convert::Infallible,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use ferry_client::{CancellationToken, NamespacedName};
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use hyper::{body::Bytes, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::{net::TcpListener, task::JoinSet};

/// Before the next connection is tried after one could not be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// The health check servers of services, each on its node port.
pub struct HealthChecks {
    servers: HashMap<NamespacedName, Server>,
    /// Set once the rules are in the kernel.
    healthy: Health,
    shutdown: CancellationToken,
}

struct Server {
    port: u16,
    local_endpoints: Arc<AtomicUsize>,
    stop: CancellationToken,
}

/// Whether the rules in the kernel are what the API asks for.
#[derive(Clone, Default)]
pub struct Health(Arc<std::sync::atomic::AtomicBool>);

impl Health {
    pub fn set(&self, healthy: bool) {
        self.0.store(healthy, Ordering::Relaxed);
    }

    fn get(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

impl HealthChecks {
    pub fn new(healthy: Health, shutdown: CancellationToken) -> Self {
        Self { servers: HashMap::new(), healthy, shutdown }
    }

    /// Makes a service's server what it should be: on this port with this count, or none.
    pub async fn set(&mut self, service: &NamespacedName, wanted: Option<(u16, usize)>) {
        let Some((port, count)) = wanted else {
            if let Some(server) = self.servers.remove(service) {
                server.stop.cancel();
            }
            return;
        };
        if let Some(server) = self.servers.get(service) {
            if server.port == port {
                server.local_endpoints.store(count, Ordering::Relaxed);
                return;
            }
            server.stop.cancel();
            self.servers.remove(service);
        }
        let listener = match listen(port).await {
            Ok(listener) => listener,
            Err(error) => {
                tracing::warn!(%service, port, %error, "cannot open the health check port");
                return;
            }
        };
        let local_endpoints = Arc::new(AtomicUsize::new(count));
        let stop = self.shutdown.child_token();
        let (answer_service, answer_count, healthy) =
            (service.clone(), local_endpoints.clone(), self.healthy.clone());
        let answer = move |_: &str| {
            let count = answer_count.load(Ordering::Relaxed);
            let body = json!({
                "service": { "namespace": answer_service.namespace, "name": answer_service.name },
                "localEndpoints": count,
                "serviceProxyHealthy": healthy.get(),
            });
            (count > 0 && healthy.get(), body, Some(count))
        };
        tokio::spawn(serve(listener, stop.clone(), answer));
        self.servers.insert(service.clone(), Server { port, local_endpoints, stop });
    }
}

/// On every address of both families, or of IPv4 alone where the machine has no other.
async fn listen(port: u16) -> std::io::Result<TcpListener> {
    match TcpListener::bind((Ipv6Addr::UNSPECIFIED, port)).await {
        Err(error) if error.kind() != std::io::ErrorKind::AddrInUse => {
            TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).await
        }
        bound => bound,
    }
}

/// `/healthz` and `/livez` of the proxy itself.
pub async fn serve_own(
    address: SocketAddr,
    healthy: Health,
    shutdown: CancellationToken,
) -> std::io::Result<()> {
    let listener = TcpListener::bind(address).await?;
    let answer = move |_: &str| {
        let is_healthy = healthy.get();
        let code = if is_healthy { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
        crate::metrics::health_answered(code);
        (is_healthy, json!({ "healthy": is_healthy }), None)
    };
    serve(listener, shutdown, answer).await;
    Ok(())
}

/// Answers until told to stop. Connections are its own tasks, and end with it.
async fn serve(
    listener: TcpListener,
    stop: CancellationToken,
    answer: impl Fn(&str) -> (bool, Value, Option<usize>) + Clone + Send + 'static,
) {
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            Some(_) = connections.join_next() => continue,
            () = stop.cancelled() => return,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            // Out of descriptors, most likely: the same error would come at once again.
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let answer = answer.clone();
        let respond = service_fn(move |request: Request<hyper::body::Incoming>| {
            let (healthy, body, weight) = answer(request.uri().path());
            async move { Ok::<_, Infallible>(response(healthy, &body, weight)) }
        });
        connections.spawn(async move {
            // A client that breaks off harms nobody but itself.
            let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), respond).await;
        });
    }
}

fn response(healthy: bool, body: &Value, weight: Option<usize>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(body.to_string())));
    *response.status_mut() = if healthy { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let headers = response.headers_mut();
    headers.insert(http::header::CONTENT_TYPE, http::HeaderValue::from_static("application/json"));
    headers.insert("x-content-type-options", http::HeaderValue::from_static("nosniff"));
    if let Some(weight) = weight {
        headers.insert("x-load-balancing-endpoint-weight", http::HeaderValue::from(weight));
    }
    response
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpStream,
    };

    use super::*;

    async fn get(port: u16) -> std::io::Result<String> {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?;
        stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await?;
        let mut text = String::new();
        stream.read_to_string(&mut text).await?;
        Ok(text)
    }

    #[tokio::test]
    async fn a_node_without_endpoints_says_so() {
        let free = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = free.local_addr().unwrap().port();
        drop(free);
        let health = Health::default();
        health.set(true);
        let mut checks = HealthChecks::new(health.clone(), CancellationToken::new());
        let service = NamespacedName::new("ns", "web");
        checks.set(&service, Some((port, 0))).await;
        assert!(get(port).await.unwrap().starts_with("HTTP/1.1 503"));
        checks.set(&service, Some((port, 2))).await;
        let text = get(port).await.unwrap();
        assert!(text.starts_with("HTTP/1.1 200") && text.contains("\"localEndpoints\":2"), "{text}");
        assert!(text.contains("x-load-balancing-endpoint-weight: 2"), "{text}");
        health.set(false);
        assert!(
            get(port).await.unwrap().starts_with("HTTP/1.1 503"),
            "rules that are not in place serve nobody"
        );
        checks.set(&service, None).await;
        // The server's task ends when it is next run.
        let closed = async {
            while get(port).await.is_ok() {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(std::time::Duration::from_secs(5), closed).await.unwrap();
    }
}
