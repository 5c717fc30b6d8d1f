//! `componentstatuses`: the health of the store, the scheduler and the controllers, checked for each request and not
//! stored.
//!
//! As in upstream, it probes scheduler and controllers on this host's loopback: on upstream's ports, or on the actual ports
//! if they run in this process.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use bytes::Bytes;
use ferry_api::selector::{FieldSelector, LabelSelector};
use ferry_api::{GroupResource, Kind, Object, Status};
use ferry_client::unverified_tls;
use http::header::{HOST, USER_AGENT};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde_json::json;
use tokio::net::TcpStream;

use crate::api::Api;
use crate::body::Response;
use crate::negotiate::negotiate;
use crate::request::Request;
use crate::verbs::ALL_VIEWS;
use crate::{health, respond};

/// Upstream's patience with a component.
const PATIENCE: Duration = Duration::from_secs(20);
/// What is read of a component's words.
const LONGEST_ANSWER: usize = 10 << 10;

/// Where the other components of the control plane answer.
pub struct ComponentPorts {
    pub controller_manager: AtomicU16,
    pub scheduler: AtomicU16,
}

impl Default for ComponentPorts {
    fn default() -> ComponentPorts {
        ComponentPorts { controller_manager: AtomicU16::new(10257), scheduler: AtomicU16::new(10259) }
    }
}

/// The condition Healthy of a component.
#[derive(Debug, PartialEq, Eq)]
struct Healthy {
    is_healthy: bool,
    message: String,
    error: String,
}

impl Healthy {
    fn unhealthy(message: impl Into<String>) -> Healthy {
        Healthy { is_healthy: false, message: message.into(), error: String::new() }
    }
}

pub async fn answer(api: &Arc<Api>, request: &Request, kind: &Arc<Kind>) -> Result<Response, Status> {
    let media_type = negotiate(&request.headers, ALL_VIEWS)?;
    let columns = ferry_registry::kinds::strategy(kind).columns(&kind.version);
    let name = request.info.name.as_str();
    if request.info.verb == "get" {
        let healthy = match name {
            "controller-manager" => of_port(&api.component_ports.controller_manager).await,
            "etcd-0" => of_store(api).await,
            "scheduler" => of_port(&api.component_ports.scheduler).await,
            // The singular is upstream's word.
            _ => return Err(Status::not_found(&GroupResource::new("", "componentstatus"), name)),
        };
        return respond::made(request, kind, columns, object(kind, name, &healthy), media_type);
    }
    let selects = selection(request)?;
    let ports = &api.component_ports;
    let (controller_manager, etcd, scheduler) =
        tokio::join!(of_port(&ports.controller_manager), of_store(api), of_port(&ports.scheduler));
    let all = [("controller-manager", controller_manager), ("etcd-0", etcd), ("scheduler", scheduler)];
    let objects = all.iter().filter(|(name, _)| selects(name));
    let objects = objects.map(|(name, healthy)| object(kind, name, healthy)).collect();
    respond::objects(request, kind, columns, objects, json!({}), media_type)
}

/// Which components the request selects. They have a name, and neither namespace nor labels.
fn selection(request: &Request) -> Result<impl Fn(&str) -> bool, Status> {
    let labels = LabelSelector::parse(request.query.text("labelSelector"))
        .map_err(|error| Status::bad_request(error.to_string()))?;
    let fields = FieldSelector::parse(request.query.text("fieldSelector"))
        .map_err(|error| Status::bad_request(error.to_string()))?;
    let is_known = |field: &str| ["metadata.name", "metadata.namespace"].contains(&field);
    if let Some(unknown) = fields.requirements().find(|requirement| !is_known(&requirement.field)) {
        return Err(Status::bad_request(format!(
            "{:?} is not a known field selector: only \"metadata.name\", \"metadata.namespace\"",
            unknown.field
        )));
    }
    Ok(move |name: &str| {
        let fits = fields.requirements().all(|requirement| {
            let value = if requirement.field == "metadata.name" { name } else { "" };
            (value == requirement.value) == requirement.equal
        });
        fits && labels.matches(|_| None)
    })
}

fn object(kind: &Kind, name: &str, healthy: &Healthy) -> Object {
    let mut condition =
        json!({"type": "Healthy", "status": if healthy.is_healthy { "True" } else { "False" }});
    for (field, text) in [("message", &healthy.message), ("error", &healthy.error)] {
        if !text.is_empty() {
            condition[field] = text.as_str().into();
        }
    }
    Object::from_value(json!({
        "kind": kind.kind,
        "apiVersion": kind.api_version(),
        "metadata": {"name": name},
        "conditions": [condition],
    }))
    .expect("a map is an object")
}

async fn of_store(api: &Api) -> Healthy {
    match health::of_store(api).await {
        Ok(()) => Healthy { is_healthy: true, message: "ok".into(), error: String::new() },
        Err(error) => Healthy { is_healthy: false, message: String::new(), error },
    }
}

async fn of_port(port: &AtomicU16) -> Healthy {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port.load(Ordering::Relaxed)));
    let failed = |why: String| Healthy::unhealthy(format!("Get \"https://{address}/healthz\": {why}"));
    match tokio::time::timeout(PATIENCE, probe(address)).await {
        Ok(Ok((code, text))) => judge(code, text),
        Ok(Err(why)) => failed(why),
        Err(_) => failed("context deadline exceeded".into()),
    }
}

fn judge(code: http::StatusCode, text: String) -> Healthy {
    match code.as_u16() {
        200..=299 => Healthy { is_healthy: true, message: text, error: String::new() },
        // What the component says of itself is for those who may ask it.
        code => Healthy::unhealthy(format!("HTTP probe failed with statuscode: {code}")),
    }
}

async fn probe(address: SocketAddr) -> Result<(http::StatusCode, String), String> {
    let dialed = TcpStream::connect(address).await;
    let stream = dialed.map_err(|error| match error.kind() {
        std::io::ErrorKind::ConnectionRefused => {
            format!("dial tcp {address}: connect: connection refused")
        }
        _ => format!("dial tcp {address}: {error}"),
    })?;
    let host = address.ip().to_string();
    let stream = unverified_tls::connect(stream, &host).await.map_err(|error| error.to_string())?;
    let (mut sender, connection) =
        http1::handshake(TokioIo::new(stream)).await.map_err(|error| error.to_string())?;
    // Ends with its sender.
    tokio::spawn(connection);
    let request = http::Request::get("/healthz")
        .header(HOST, address.to_string())
        .header(USER_AGENT, "kube-probe/1.36")
        .body(Empty::<Bytes>::new())
        .map_err(|error| error.to_string())?;
    let response = sender.send_request(request).await.map_err(|error| error.to_string())?;
    let code = response.status();
    let body = Limited::new(response.into_body(), LONGEST_ANSWER).collect().await;
    let bytes = body.map_err(|error| error.to_string())?.to_bytes();
    Ok((code, String::from_utf8_lossy(&bytes).into_owned()))
}
