//! An API server as somebody else would write it: it believes the front proxy alone, and tells what it was asked.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use base64::Engine;
use bytes::Bytes;
use ferry_testkit::TestServer;
use futures::StreamExt;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use rustls::pki_types::PrivateKeyDer;
use rustls::server::WebPkiClientVerifier;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::broadcast;
use tokio::task::JoinHandle;

pub const GROUP: &str = "wardle.example.com";
pub const RESOURCES: &str = "/apis/wardle.example.com/v1/namespaces/default/flunders";
pub const SERVICES: &str = "/apis/apiregistration.k8s.io/v1/apiservices";

type Body = UnsyncBoxBody<Bytes, Infallible>;

pub struct Extension {
    pub port: u16,
    pub ca_bundle: String,
    state: Arc<State>,
    task: JoinHandle<()>,
}

struct State {
    group: String,
    version: String,
    hangs: AtomicBool,
    /// Lines for those who watch.
    events: broadcast::Sender<Bytes>,
}

impl Extension {
    /// Answers for a version of a group, as the Service `api` in `default`.
    pub async fn start(server: &TestServer, group: &str, version: &str) -> Extension {
        let pair =
            rcgen::generate_simple_self_signed(["api.default.svc".to_string()]).expect("a certificate");
        let key = PrivateKeyDer::Pkcs8(pair.signing_key.serialize_der().into());
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut roots = rustls::RootCertStore::empty();
        roots.add_parsable_certificates(server.running().pki.front_proxy_ca_bundle());
        let clients = WebPkiClientVerifier::builder_with_provider(roots.into(), provider.clone());
        let tls = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("known protocols")
            .with_client_cert_verifier(clients.build().expect("an authority"))
            .with_single_cert(vec![pair.cert.der().clone()], key)
            .expect("a pair");
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let port = listener.local_addr().expect("it listens").port();
        let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(tls));
        let state = Arc::new(State {
            group: group.into(),
            version: version.into(),
            hangs: AtomicBool::new(false),
            events: broadcast::channel(16).0,
        });
        let shared = state.clone();
        let task = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let (acceptor, state) = (acceptor.clone(), shared.clone());
                connections.spawn(async move {
                    let Ok(stream) = acceptor.accept(stream).await else { return };
                    let service = service_fn(move |request| answer(state.clone(), request));
                    let server = hyper::server::conn::http1::Builder::new();
                    let connection = server.serve_connection(TokioIo::new(stream), service);
                    // A client that goes away is no failure of the server.
                    let _ = connection.with_upgrades().await;
                });
            }
        });
        let ca_bundle = base64::prelude::BASE64_STANDARD.encode(pair.cert.pem());
        Extension { port, ca_bundle, state, task }
    }

    /// Answers nothing from now on, or does again.
    pub fn hang(&self, hangs: bool) {
        self.state.hangs.store(hangs, Ordering::Relaxed);
    }

    /// Says something to everybody who watches; how many that are.
    pub fn tell(&self, event: &Value) -> usize {
        self.state.events.send(format!("{event}\n").into()).unwrap_or(0)
    }

    /// The APIService that leads to it.
    pub fn registration(&self) -> Value {
        registration(&self.state.group, &self.state.version, &self.ca_bundle)
    }

    /// Its Service, which selects nobody, and the EndpointSlice that leads to it.
    pub async fn publish(&self, server: &TestServer) {
        server.post("/api/v1/namespaces/default/services", &service(443)).await.expect(201);
        server
            .post("/apis/discovery.k8s.io/v1/namespaces/default/endpointslices", &slice(self.port, true))
            .await
            .expect(201);
    }
}

impl Drop for Extension {
    fn drop(&mut self) {
        self.task.abort();
    }
}

pub fn registration(group: &str, version: &str, ca_bundle: &str) -> Value {
    json!({
        "apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
        "metadata": {"name": format!("{version}.{group}")},
        "spec": {
            "group": group, "version": version, "groupPriorityMinimum": 2000, "versionPriority": 10,
            "caBundle": ca_bundle, "service": {"namespace": "default", "name": "api"},
        },
    })
}

pub fn service(port: u16) -> Value {
    json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "api"},
        "spec": {"ports": [{"name": "https", "port": port}]}})
}

pub fn slice(port: u16, ready: bool) -> Value {
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {"name": "api-1", "labels": {"kubernetes.io/service-name": "api"}},
        "ports": [{"name": "https", "port": port}],
        "endpoints": [{"addresses": ["127.0.0.1"], "conditions": {"ready": ready}}],
    })
}

async fn answer(state: Arc<State>, mut request: Request<Incoming>) -> Result<Response<Body>, Infallible> {
    if state.hangs.load(Ordering::Relaxed) {
        return std::future::pending().await;
    }
    let base = format!("/apis/{}/{}", state.group, state.version);
    let path = request.uri().path().to_string();
    let rest = path.strip_prefix(&base);
    Ok(match (path.as_str(), rest) {
        (_, Some("")) => reply(&resources(&state)),
        ("/openapi/v3", _) => {
            let url = format!("/openapi/v3{base}?hash=ABC");
            reply(
                &json!({"paths": {base.trim_start_matches('/'): {"serverRelativeURL": url}, "version": {"serverRelativeURL": "/openapi/v3/version?hash=X"}}}),
            )
        }
        ("/openapi/v2", _) => reply(&json!({
            "swagger": "2.0",
            "paths": {format!("{base}/flunders"): {"get": {"responses": {"200": {"schema": {"$ref": "#/definitions/example.Flunder"}}}}}, "/version/": {}},
            "definitions": {"example.Flunder": {"type": "object"}, "example.Unused": {"type": "object"}},
        })),
        (path, _) if path.starts_with("/openapi/v3/") => {
            reply(&json!({"openapi": "3.0.0", "paths": {base: {}}}))
        }
        (path, Some(_)) if path.ends_with("/exec") => {
            let upgrade = hyper::upgrade::on(&mut request);
            tokio::spawn(async move {
                let Ok(stream) = upgrade.await else { return };
                let (mut stream, mut word) = (TokioIo::new(stream), [0; 4]);
                while stream.read_exact(&mut word).await.is_ok() {
                    if stream.write_all(&word.map(|byte| byte.to_ascii_uppercase())).await.is_err() {
                        return;
                    }
                }
            });
            let response =
                Response::builder().status(101).header("connection", "Upgrade").header("upgrade", "words");
            response.body(Full::default().boxed_unsync()).expect("a well-formed answer")
        }
        (path, Some(_)) if path.ends_with("/moved") => {
            let response = Response::builder().status(302).header("location", "https://elsewhere.example/");
            response.body(Full::default().boxed_unsync()).expect("a well-formed answer")
        }
        (_, Some(_)) if request.uri().query().is_some_and(|query| query.contains("watch=true")) => {
            let events = futures::stream::unfold(state.events.subscribe(), |mut events| async {
                events.recv().await.ok().map(|event| (Ok(Frame::data(event)), events))
            });
            Response::new(StreamBody::new(events.boxed()).boxed_unsync())
        }
        (_, Some(_)) => echo(request).await,
        _ => Response::builder()
            .status(404)
            .body(Full::default().boxed_unsync())
            .expect("a well-formed answer"),
    })
}

fn resources(state: &State) -> Value {
    json!({
        "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": format!("{}/{}", state.group, state.version),
        "resources": [
            {"name": "flunders", "singularName": "flunder", "namespaced": true, "kind": "Flunder",
             "verbs": ["create", "get", "list", "watch"], "shortNames": ["fl"]},
            {"name": "flunders/status", "namespaced": true, "kind": "Flunder", "verbs": ["get"]},
        ],
    })
}

/// A list without items, and with it what was asked.
async fn echo(request: Request<Incoming>) -> Response<Body> {
    let (parts, body) = request.into_parts();
    let headers: Vec<Value> = parts
        .headers
        .iter()
        .map(|(name, value)| json!([name.as_str(), String::from_utf8_lossy(value.as_bytes())]))
        .collect();
    let length = body.collect().await.map_or(0, |body| body.to_bytes().len());
    reply(&json!({
        "kind": "FlunderList", "apiVersion": format!("{GROUP}/v1"), "metadata": {"resourceVersion": "1"}, "items": [],
        "asked": {"method": parts.method.as_str(), "uri": parts.uri.to_string(), "headers": headers, "length": length},
    }))
}

fn reply(value: &Value) -> Response<Body> {
    let response = Response::builder().header("content-type", "application/json");
    response.body(Full::new(Bytes::from(value.to_string())).boxed_unsync()).expect("a well-formed answer")
}
