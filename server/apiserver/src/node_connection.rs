//! Connections to nodes: logs, exec, attach, port-forward and the proxies. The request is passed on to the
//! kubelet (or pod, or service endpoint) and, when it asks for an upgrade, the two connections are joined
//! byte for byte, so that every streaming protocol passes unchanged.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use bytes::Bytes;
use ferry_api::{GroupResource, Object, Status};
use ferry_auth::Attributes;
use ferry_client::unverified_tls;
use futures::StreamExt;
use http::header::{
    ACCEPT_ENCODING, CONNECTION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, HOST, LOCATION, UPGRADE,
};
use http::{HeaderMap, Method, Uri};
use http_body_util::{BodyExt, Collected, Full, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use parking_lot::RwLock;
use rustls_pki_types::ServerName;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite, copy_bidirectional};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::aggregation::proxy::{REDIRECTED, is_redirect};
use crate::api::Api;
use crate::body::{self, Body, ProxiedBody, Response};
use crate::connection_options::ConnectionOptions;
use crate::filters::permit;
use crate::long_running::LongRunning;
use crate::proxied_links::{self, Page};
use crate::proxied_pages;
use crate::verbs::Target;
use crate::{kubelet_identity, respond, websocket};

pub struct NodeConnection {
    /// How the server shows itself to kubelets, and whom it believes.
    kubelet_tls: RwLock<Arc<rustls::ClientConfig>>,
}

/// Some hundred bytes for each container of a node, and room.
const LONGEST_ANSWER: usize = 16 << 20;

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// Where a request goes.
struct Destination {
    host: String,
    port: u16,
    security: Security,
    path_and_query: String,
}

enum Security {
    Plain,
    /// Both sides show certificates of the cluster; the other one is this node's kubelet.
    Kubelet {
        node: String,
    },
    /// Encrypted, to a pod whose certificate nobody vouches for.
    Unverified,
}

impl Security {
    fn of_proxy(tls: bool) -> Security {
        if tls { Security::Unverified } else { Security::Plain }
    }
}

impl NodeConnection {
    pub fn new(kubelet_tls: Arc<rustls::ClientConfig>) -> NodeConnection {
        NodeConnection { kubelet_tls: RwLock::new(kubelet_tls) }
    }

    /// For connections from now on, when a certificate was renewed.
    pub fn set_tls(&self, kubelet_tls: Arc<rustls::ClientConfig>) {
        *self.kubelet_tls.write() = kubelet_tls;
    }

    pub async fn connect(&self, target: Target<'_>) -> Result<Response, Status> {
        let options = ConnectionOptions::read(&target.request.query)?;
        authorize_streams(target).await?;
        crate::admission::connect(target, &options).await?;
        let mut span = ferry_trace::span("apiserver.node");
        if let Some(redirect) = to_the_root(target) {
            return Ok(redirect);
        }
        let destination = destination(target, &options)?;
        span.set("host", destination.host.clone());
        let stream = self.open(&destination).await?;
        forward(target, destination, stream).await
    }

    /// The body of a short answer of a kubelet.
    pub async fn ask_kubelet(&self, node: &Object, path: &str) -> Result<Bytes, Status> {
        let (host, port) = kubelet_address(node)?;
        let destination =
            Destination { host, port, security: of_kubelet(node), path_and_query: path.to_string() };
        let stream = self.open(&destination).await?;
        let mut sender = handshake(stream).await?;
        let request = http::Request::get(path)
            .header(HOST, format!("{}:{}", destination.host, destination.port))
            .body(Full::default())
            .map_err(|error| Status::internal(error.to_string()))?;
        let response = sender.send_request(request).await.map_err(unreachable)?;
        if !response.status().is_success() {
            return Err(Status::unavailable(format!("the kubelet answered {}", response.status())));
        }
        let body = Limited::new(response.into_body(), LONGEST_ANSWER).collect().await;
        body.map(Collected::to_bytes)
            .map_err(|error| Status::unavailable(format!("the kubelet's answer cannot be read: {error}")))
    }

    async fn open(&self, destination: &Destination) -> Result<Box<dyn Stream>, Status> {
        let failed = |error: std::io::Error| dial_failure(destination, &error);
        let found = tokio::net::lookup_host((destination.host.as_str(), destination.port)).await;
        let addresses: Vec<SocketAddr> = found.map_err(failed)?.collect();
        // A kubelet proves who it is; anything else that users have the server connect to must not be on the server's
        // own side of the network. The addresses that were checked are those that are connected to.
        let is_verified = matches!(destination.security, Security::Kubelet { .. });
        if !is_verified && !addresses.iter().all(|address| is_proxyable(address.ip())) {
            return Err(Status::bad_request("address not allowed"));
        }
        self.secure(destination, &addresses).await.map_err(failed)
    }

    async fn secure(
        &self,
        destination: &Destination,
        addresses: &[SocketAddr],
    ) -> std::io::Result<Box<dyn Stream>> {
        let tcp = TcpStream::connect(addresses).await?;
        tcp.set_nodelay(true)?;
        match &destination.security {
            Security::Plain => Ok(Box::new(tcp)),
            Security::Unverified => Ok(Box::new(unverified_tls::connect(tcp, &destination.host).await?)),
            Security::Kubelet { node } => {
                let name = ServerName::try_from(destination.host.clone()).map_err(std::io::Error::other)?;
                let connector = TlsConnector::from(self.kubelet_tls.read().clone());
                let stream = connector.connect(name, tcp).await?;
                let shown = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
                kubelet_identity::check(shown, node).map_err(|problem| {
                    std::io::Error::other(format!("not the kubelet of {node}: {problem}"))
                })?;
                Ok(Box::new(stream))
            }
        }
    }
}

/// Global unicast, as upstream has it: not the host itself, its link, where clouds keep a machine's credentials, or
/// many hosts at once.
fn is_proxyable(address: IpAddr) -> bool {
    let is_local = match address.to_canonical() {
        IpAddr::V4(v4) => v4.is_link_local() || v4.is_broadcast(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    };
    let address = address.to_canonical();
    !(is_local || address.is_loopback() || address.is_unspecified() || address.is_multicast())
}

/// A WebSocket's handshake is a GET, which is authorized as a read; what it opens takes the right to create, as it does
/// by POST (KEP-4006).
async fn authorize_streams(target: Target<'_>) -> Result<(), Status> {
    let info = &target.request.info;
    let streams = ["exec", "attach", "portforward"].contains(&info.subresource.as_str());
    if !streams || info.verb == "create" {
        return Ok(());
    }
    let attributes = Attributes { verb: "create", ..info.attributes(&target.request.user) };
    permit(&attributes, target.api.authorization.authorize(&attributes).await)
}

fn destination(target: Target<'_>, options: &ConnectionOptions) -> Result<Destination, Status> {
    let info = &target.request.info;
    match (&*target.kind.plural, info.subresource.as_str()) {
        ("pods", "proxy") => pod_proxy(target),
        ("services", "proxy") => service_proxy(target),
        ("nodes", "proxy") => {
            let (name, port) = info.name.split_once(':').unwrap_or((&info.name, ""));
            let node = object(target, &GroupResource::new("", "nodes"), "", name)?;
            let (host, kubelet_port) = kubelet_address(&node)?;
            let port = if port.is_empty() { kubelet_port } else { parse_port(port)? };
            let security = if port == kubelet_port { of_kubelet(&node) } else { Security::Plain };
            Ok(Destination { host, port, security, path_and_query: rest(target) })
        }
        _ => kubelet(target, options),
    }
}

/// Logs, exec, attach and port-forward are the kubelet's own paths.
fn kubelet(target: Target<'_>, options: &ConnectionOptions) -> Result<Destination, Status> {
    let info = &target.request.info;
    let pods = GroupResource::new("", "pods");
    let pod = object(target, &pods, &info.namespace, &info.name)?;
    let node_name = pod.text_at(&["spec", "nodeName"]);
    if node_name.is_empty() {
        return Err(Status::bad_request(format!("pod {} does not have a host assigned", pod.name())));
    }
    let node = object(target, &GroupResource::new("", "nodes"), "", node_name)?;
    let (host, port) = kubelet_address(&node)?;
    let path = match info.subresource.as_str() {
        "portforward" => format!("/portForward/{}/{}", pod.namespace(), pod.name()),
        action => {
            let container = container(&pod, &options.container, action)?;
            let action = if action == "log" { "containerLogs" } else { action };
            format!("/{action}/{}/{}/{container}", pod.namespace(), pod.name())
        }
    };
    let query = options.kubelet_query(&info.subresource, &target.request.query);
    let path_and_query = if query.is_empty() { path } else { format!("{path}?{query}") };
    Ok(Destination { host, port, security: of_kubelet(&node), path_and_query })
}

/// The container that is meant: the one named, or the pod's default, or its only one.
fn container(pod: &Object, asked: &str, action: &str) -> Result<String, Status> {
    let names = |list: &str| -> Vec<String> {
        pod.get(&["spec", list])
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .filter_map(|container| Some(container.get("name")?.as_str()?.to_string()))
            .collect()
    };
    let (containers, init, ephemeral) =
        (names("containers"), names("initContainers"), names("ephemeralContainers"));
    if !asked.is_empty() {
        return match containers.iter().chain(&init).chain(&ephemeral).any(|name| name == asked) {
            true => Ok(asked.to_string()),
            false => {
                Err(Status::bad_request(format!("container {asked} is not valid for pod {}", pod.name())))
            }
        };
    }
    match containers.as_slice() {
        [only] if init.is_empty() || action != "log" => Ok(only.clone()),
        [only] => Ok(only.clone()),
        [] => Err(Status::bad_request(format!("a container name must be specified for pod {}", pod.name()))),
        many => {
            let also = if init.is_empty() {
                String::new()
            } else {
                format!(" or one of the init containers: [{}]", init.join(" "))
            };
            Err(Status::bad_request(format!(
                "a container name must be specified for pod {}, choose one of: [{}]{also}",
                pod.name(),
                many.join(" ")
            )))
        }
    }
}

fn pod_proxy(target: Target<'_>) -> Result<Destination, Status> {
    let info = &target.request.info;
    let (tls, name, port) = split_proxy_name(&info.name);
    let pod = object(target, &GroupResource::new("", "pods"), &info.namespace, name)?;
    let host = pod.text_at(&["status", "podIP"]).to_string();
    if host.is_empty() {
        return Err(Status::internal(format!("pod {name} has no address")));
    }
    let port = match port {
        "" => first_port(&pod).unwrap_or(80),
        port => parse_port(port)?,
    };
    Ok(Destination { host, port, security: Security::of_proxy(tls), path_and_query: rest(target) })
}

fn first_port(pod: &Object) -> Option<u16> {
    let containers = pod.get(&["spec", "containers"])?.as_array()?;
    let port = containers
        .iter()
        .find_map(|container| container.get("ports")?.as_array()?.first()?.get("containerPort"))?;
    u16::try_from(port.as_u64()?).ok()
}

fn service_proxy(target: Target<'_>) -> Result<Destination, Status> {
    let info = &target.request.info;
    let (tls, name, port) = split_proxy_name(&info.name);
    let service = object(target, &GroupResource::new("", "services"), &info.namespace, name)?;
    let ports = service.get(&["spec", "ports"]).and_then(Value::as_array).cloned().unwrap_or_default();
    let wanted = ports
        .iter()
        .find(|candidate| match port {
            "" => ports.len() == 1,
            port => {
                candidate.get("name").and_then(Value::as_str) == Some(port)
                    || candidate
                        .get("port")
                        .and_then(Value::as_u64)
                        .map(|number| number.to_string())
                        .as_deref()
                        == Some(port)
            }
        })
        .ok_or_else(|| Status::unavailable(format!("no service port {port:?} found for service {name:?}")))?;
    let wanted_name = wanted.get("name").and_then(Value::as_str).unwrap_or("");
    let (host, port) = endpoint(target, &info.namespace, name, wanted_name)?
        .ok_or_else(|| Status::unavailable(format!("no endpoints available for service {name:?}")))?;
    Ok(Destination { host, port, security: Security::of_proxy(tls), path_and_query: rest(target) })
}

/// A ready endpoint of the service's port, any one.
fn endpoint(
    target: Target<'_>,
    namespace: &str,
    service: &str,
    port: &str,
) -> Result<Option<(String, u16)>, Status> {
    let slices = resource(target.api, &GroupResource::new("discovery.k8s.io", "endpointslices"))?;
    let (snapshot, _) = slices.cache.snapshot();
    let mut found = Vec::new();
    for entry in snapshot.values().filter(|entry| {
        entry.namespace() == namespace && entry.label("kubernetes.io/service-name") == Some(service)
    }) {
        let slice = entry.read_object()?;
        let number =
            slice.get(&["ports"]).and_then(Value::as_array).into_iter().flatten().find_map(|candidate| {
                let same = candidate.get("name").and_then(Value::as_str).unwrap_or("") == port;
                same.then(|| candidate.get("port")?.as_u64()).flatten()
            });
        let Some(number) = number.and_then(|number| u16::try_from(number).ok()) else { continue };
        for endpoint in slice.get(&["endpoints"]).and_then(Value::as_array).into_iter().flatten() {
            let ready = endpoint.pointer("/conditions/ready").and_then(Value::as_bool) != Some(false);
            if let Some(address) = endpoint.pointer("/addresses/0").and_then(Value::as_str).filter(|_| ready)
            {
                found.push((address.to_string(), number));
            }
        }
    }
    if found.is_empty() {
        return Ok(None);
    }
    let pick = rand::random_range(0..found.len());
    Ok(Some(found.swap_remove(pick)))
}

/// `https:name:port`, `name:port` or `name`.
fn split_proxy_name(name: &str) -> (bool, &str, &str) {
    let mut parts = name.split(':');
    match (parts.next(), parts.next(), parts.next()) {
        (Some(scheme), Some(name), Some(port)) => (scheme == "https", name, port),
        (Some(name), Some(port), None) => (false, name, port),
        _ => (false, name, ""),
    }
}

fn parse_port(text: &str) -> Result<u16, Status> {
    text.parse().map_err(|_| Status::bad_request(format!("invalid port: {text:?}")))
}

/// A browser that asks for "…/proxy" is sent to "…/proxy/", or the relative links of what it sees would lead astray.
fn to_the_root(target: Target<'_>) -> Option<Response> {
    let request = target.request;
    let reads = matches!(request.method, Method::GET | Method::HEAD);
    if !reads || request.info.subresource != "proxy" || request.info.sent_path != prefix(target) {
        return None;
    }
    let location = format!("{}{}", request.info.sent_path, rest(target));
    let builder = http::Response::builder().status(301).header(LOCATION, location);
    Some(respond::finish(builder, Body::Empty))
}

/// The path as it was sent, up to and with "/proxy". Counted, since a name may be sent with escapes.
fn prefix(target: Target<'_>) -> &str {
    let info = &target.request.info;
    let segments = if info.namespace.is_empty() { 5 } else { 7 };
    let end = info.sent_path.match_indices('/').nth(segments);
    &info.sent_path[..end.map_or(info.sent_path.len(), |(at, _)| at)]
}

/// The path and query as they were sent, behind "/proxy".
fn rest(target: Target<'_>) -> String {
    let path = target.request.info.sent_path.strip_prefix(prefix(target)).unwrap_or("");
    let path = if path.is_empty() { "/" } else { path };
    let query: Vec<String> = target
        .request
        .query
        .iter()
        .map(|(key, value)| {
            let encode = |text: &str| {
                percent_encoding::utf8_percent_encode(text, percent_encoding::NON_ALPHANUMERIC).to_string()
            };
            format!("{}={}", encode(key), encode(value))
        })
        .collect();
    if query.is_empty() { path.to_string() } else { format!("{path}?{}", query.join("&")) }
}

fn resource(api: &Api, resource: &GroupResource) -> Result<Arc<ferry_registry::Resource>, Status> {
    api.registry.resource(resource).ok_or_else(|| Status::internal(format!("{resource} are not served")))
}

fn object(
    target: Target<'_>,
    group_resource: &GroupResource,
    namespace: &str,
    name: &str,
) -> Result<Object, Status> {
    let resource = resource(target.api, group_resource)?;
    let entry = resource
        .cache
        .get(&resource.key(namespace, name))
        .ok_or_else(|| Status::not_found(group_resource, name))?;
    entry.read_object()
}

fn of_kubelet(node: &Object) -> Security {
    Security::Kubelet { node: node.name().to_owned() }
}

fn kubelet_address(node: &Object) -> Result<(String, u16), Status> {
    let addresses = node.get(&["status", "addresses"]).and_then(Value::as_array);
    let of_kind = |kind: &str| {
        addresses.into_iter().flatten().find_map(|address| {
            (address.get("type")?.as_str()? == kind).then(|| address.get("address")?.as_str()).flatten()
        })
    };
    let host = ["InternalIP", "ExternalIP", "Hostname"]
        .into_iter()
        .find_map(of_kind)
        .ok_or_else(|| Status::internal(format!("no preferred addresses found for node {}", node.name())))?;
    let port = node
        .get(&["status", "daemonEndpoints", "kubeletEndpoint", "Port"])
        .and_then(Value::as_u64)
        .and_then(|port| u16::try_from(port).ok())
        .unwrap_or(10250);
    Ok((host.to_string(), port))
}

fn dial_failure(destination: &Destination, error: &std::io::Error) -> Status {
    let Destination { host, port, .. } = destination;
    Status::internal(format!("error dialing backend: dial tcp {host}:{port}: {error}"))
}

fn unreachable(error: hyper::Error) -> Status {
    Status::unavailable(format!("error trying to reach service: {error}"))
}

async fn handshake(stream: Box<dyn Stream>) -> Result<http1::SendRequest<Full<Bytes>>, Status> {
    let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(unreachable)?;
    tokio::spawn(async move {
        if let Err(error) = connection.with_upgrades().await {
            tracing::debug!(%error, "a connection to a node ended");
        }
    });
    Ok(sender)
}

/// Headers that belong to one connection and are not passed on.
const HOP_BY_HOP: [&str; 7] =
    ["connection", "keep-alive", "proxy-authenticate", "te", "trailer", "transfer-encoding", "upgrade"];

async fn forward(
    target: Target<'_>,
    destination: Destination,
    stream: Box<dyn Stream>,
) -> Result<Response, Status> {
    let mut sender = handshake(stream).await?;
    // Kubelets have logs as a plain stream only; for a WebSocket it is framed here.
    let framed = target.request.info.subresource == "log" && websocket::is_upgrade(&target.request.headers);
    let request = outgoing(target, &destination, framed)?;
    let mut response = sender.send_request(request).await.map_err(unreachable)?;
    if response.status() == http::StatusCode::SWITCHING_PROTOCOLS {
        // Bytes that nobody agreed to would reach whatever stands between the client and this server.
        let is_asked = target.request.headers.contains_key(UPGRADE) && !framed;
        return match target.request.upgrade.lock().take().filter(|_| is_asked) {
            Some(client) => Ok(switch_protocols(target, client, &mut response)),
            None => Err(Status::new(502, "", "the backend upgraded a plain request")),
        };
    }
    // Kubelets redirect nobody; pages of pods, services and nodes do, see [`redirection`].
    if !is_proxied(target) && is_redirect(response.status(), response.headers()) {
        return Err(Status::new(502, "", REDIRECTED));
    }
    let (parts, body) = response.into_parts();
    let stream = body::pieces_of(body);
    if framed && parts.status.is_success() {
        return websocket::serve_bytes(
            target.request,
            stream.filter_map(|piece| std::future::ready(piece.ok())),
        );
    }
    let mut builder = http::Response::builder().status(parts.status).extension(ProxiedBody);
    let Some(headers) = builder.headers_mut() else {
        return Err(Status::internal("the answer cannot be passed on"));
    };
    copy_headers(&parts.headers, headers);
    if !is_proxied(target) {
        return Ok(respond::finish(builder, Body::passed_on(stream)));
    }
    if proxied_pages::is_shown(&target.request.headers) {
        proxied_pages::confine(headers);
    }
    let (prefix, host) = (prefix(target).to_owned(), format!("{}:{}", destination.host, destination.port));
    if let Some(location) = redirection(&parts.headers, &prefix, &host) {
        headers.insert(LOCATION, location);
    }
    if !is_page(&parts.headers) {
        return Ok(respond::finish(builder, Body::passed_on(stream)));
    }
    headers.remove(CONTENT_LENGTH);
    Ok(respond::finish(builder, Body::passed_on(rewritten(stream, Page::new(prefix, host)))))
}

fn is_proxied(target: Target<'_>) -> bool {
    target.request.info.subresource == "proxy"
}

/// The client's request as the destination gets it.
fn outgoing(
    target: Target<'_>,
    destination: &Destination,
    framed: bool,
) -> Result<http::Request<Full<Bytes>>, Status> {
    let uri: Uri = destination
        .path_and_query
        .parse()
        .map_err(|error| Status::bad_request(format!("the path cannot be passed on: {error}")))?;
    let mut request = http::Request::builder()
        .method(target.request.method.clone())
        .uri(uri)
        .body(Full::new(target.request.body.clone()))
        .map_err(|error| Status::internal(error.to_string()))?;
    let headers = request.headers_mut();
    copy_headers(&target.request.headers, headers);
    if is_proxied(target) {
        // Pages are read on their way; the answer is compressed for the client here.
        headers.remove(ACCEPT_ENCODING);
    }
    if let Ok(host) = format!("{}:{}", destination.host, destination.port).parse() {
        headers.insert(HOST, host);
    }
    if let Some(upgrade) = target.request.headers.get(UPGRADE).filter(|_| !framed) {
        headers.insert(CONNECTION, http::HeaderValue::from_static("Upgrade"));
        headers.insert(UPGRADE, upgrade.clone());
    }
    Ok(request)
}

/// Joins both connections, each of which now speaks something else.
fn switch_protocols(
    target: Target<'_>,
    client: hyper::upgrade::OnUpgrade,
    response: &mut http::Response<hyper::body::Incoming>,
) -> Response {
    let node = hyper::upgrade::on(&mut *response);
    tokio::spawn(join(client, node, target.request.long_running.clone()));
    let mut builder = http::Response::builder().status(101);
    for (name, value) in response.headers() {
        builder = builder.header(name, value);
    }
    respond::finish(builder, Body::Empty)
}

/// A page whose links lead through the proxy.
fn rewritten<E: Send + 'static>(
    stream: impl futures::Stream<Item = Result<Bytes, E>> + Send + 'static,
    page: Page,
) -> impl futures::Stream<Item = Result<Bytes, E>> + Send + 'static {
    let rewritten = futures::stream::unfold((Box::pin(stream), Some(page)), |(mut stream, page)| async {
        let mut page = page?;
        match stream.next().await {
            Some(Ok(chunk)) => Some((Ok(page.feed(&chunk)), (stream, Some(page)))),
            Some(Err(broken)) => Some((Err(broken), (stream, None))),
            None => Some((Ok(page.finish()), (stream, None))),
        }
    });
    let is_empty = |chunk: &Result<Bytes, _>| matches!(chunk, Ok(chunk) if chunk.is_empty());
    rewritten.filter(move |chunk| std::future::ready(!is_empty(chunk)))
}

/// Where a redirect leads through the proxy.
fn redirection(headers: &HeaderMap, prefix: &str, host: &str) -> Option<http::HeaderValue> {
    let location = headers.get(LOCATION)?.to_str().ok()?;
    proxied_links::through(prefix, host, location)?.parse().ok()
}

fn is_page(headers: &HeaderMap) -> bool {
    let kind = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or("");
    kind.trim_start().starts_with("text/html") && !headers.contains_key(CONTENT_ENCODING)
}

pub(crate) fn copy_headers(from: &HeaderMap, to: &mut HeaderMap) {
    for (name, value) in from {
        if !HOP_BY_HOP.contains(&name.as_str()) && *name != HOST {
            to.append(name.clone(), value.clone());
        }
    }
}

/// Two upgraded connections become one, until either side is done.
pub(crate) async fn join(
    client: hyper::upgrade::OnUpgrade,
    node: hyper::upgrade::OnUpgrade,
    _until_then: LongRunning,
) {
    let joined = async {
        let (client, node) = tokio::try_join!(client, node).map_err(std::io::Error::other)?;
        copy_bidirectional(&mut TokioIo::new(client), &mut TokioIo::new(node)).await
    };
    if let Err(error) = joined.await {
        tracing::debug!(%error, "a stream to a node ended");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn proxies_lead_to_global_unicast_addresses_only() {
        let check = |address: &str, expected: bool| {
            assert_eq!(is_proxyable(address.parse().expect("an address")), expected, "{address}");
        };
        for address in ["10.1.2.3", "192.168.0.1", "100.64.0.1", "8.8.8.8", "fd00::1", "2001:db8::1"] {
            check(address, true);
        }
        for address in [
            "127.0.0.1",
            "127.8.8.8",
            "::1",
            "169.254.169.254",
            "fe80::1",
            "0.0.0.0",
            "::",
            "224.0.0.1",
            "ff02::1",
            "255.255.255.255",
            "::ffff:127.0.0.1",
            "::ffff:169.254.169.254",
        ] {
            check(address, false);
        }
    }

    #[test]
    fn the_container_that_is_meant_is_found() {
        let pod = |value: Value| Object::from_value(value).expect("an object");
        let one = pod(json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "a"}]}}));
        assert_eq!(container(&one, "", "log").expect("its only one"), "a");
        assert!(container(&one, "b", "log").is_err());
        let two =
            pod(json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "a"}, {"name": "b"}]}}));
        assert_eq!(
            container(&two, "", "log").expect_err("two").message,
            "a container name must be specified for pod p, choose one of: [a b]"
        );
    }
}
