//! Proxies a request to an aggregated API server: streams bodies and responses, and copies upgraded connections byte for
//! byte.

use std::net::SocketAddr;

use bytes::Bytes;
use ferry_auth::User;
use http::header::{CONNECTION, HOST, HeaderMap, HeaderName, HeaderValue, LOCATION, UPGRADE};
use http::{Method, StatusCode, Version};
use http_body_util::BodyExt;

use super::{Remote, identity};
use crate::body::{self, Body, ProxiedBody, Response};
use crate::long_running::LongRunning;
use crate::node_connection::{copy_headers, join};
use crate::request_info::RequestInfo;
use crate::{proxied_pages, respond};

const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// A request after the filters, its body unread.
pub struct ProxiedRequest<B> {
    pub method: Method,
    pub path_and_query: String,
    /// Without credentials.
    pub headers: HeaderMap,
    pub body: B,
    pub upgrade: Option<hyper::upgrade::OnUpgrade>,
    pub peer: Option<SocketAddr>,
    pub long_running: LongRunning,
}

/// Errors are plain text, as upstream's are: clients make of the code what they make of any proxy's.
pub async fn pass<B>(remote: &Remote, info: &RequestInfo, user: &User, passing: ProxiedRequest<B>) -> Response
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let mut span = ferry_trace::span("apiserver.aggregated");
    span.set("service", format!("{}/{}", remote.backend.service.namespace, remote.backend.service.name));
    if !remote.is_available {
        return plain(503, "service unavailable");
    }
    let _place = match remote.backend.places.try_acquire() {
        _ if info.is_long_running() => None,
        Ok(place) => Some(place),
        Err(_) => return plain(429, "too many requests to this API server, please try again later"),
    };
    let is_shown = proxied_pages::is_shown(&passing.headers);
    let long_running = passing.long_running.clone();
    let (request, client) = match request(remote, user, passing) {
        Ok(request) => request,
        Err(why) => return plain(500, &why),
    };
    match span.in_scope(remote.backend.send(request)).await {
        Ok(response) => answer(response, client, is_shown, long_running),
        Err(why) => {
            span.fail(&why);
            remote.backend.failing.notify_one();
            plain(503, &format!("error trying to reach service: {why}"))
        }
    }
}

type Outgoing = http::Request<super::backend::PassedBody>;

fn request<B>(
    remote: &Remote,
    user: &User,
    passing: ProxiedRequest<B>,
) -> Result<(Outgoing, Option<hyper::upgrade::OnUpgrade>), String>
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let mut request = http::Request::builder()
        .method(passing.method)
        .version(Version::HTTP_11)
        .uri(remote.backend.url(&passing.path_and_query))
        .body(passing.body.map_err(Into::into).boxed_unsync())
        .map_err(|error| error.to_string())?;
    let headers = request.headers_mut();
    copy_headers(&passing.headers, headers);
    // What its connection to us needed is none of the next one's.
    for name in named_by_connection(&passing.headers) {
        headers.remove(name);
    }
    headers.remove(HOST);
    identity::put(headers, user).map_err(|error| error.to_string())?;
    if let Some(peer) = passing.peer
        && let Ok(address) = HeaderValue::try_from(peer.ip().to_string())
    {
        headers.append(FORWARDED_FOR, address);
    }
    let wanted = passing.headers.get(UPGRADE).filter(|_| passing.upgrade.is_some());
    let Some(protocol) = wanted else { return Ok((request, None)) };
    headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(UPGRADE, protocol.clone());
    Ok((request, passing.upgrade))
}

fn named_by_connection(headers: &HeaderMap) -> Vec<String> {
    let values = headers.get_all(CONNECTION).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).map(|name| name.trim().to_ascii_lowercase()).collect()
}

fn answer(
    mut response: http::Response<hyper::body::Incoming>,
    client: Option<hyper::upgrade::OnUpgrade>,
    is_shown: bool,
    long_running: LongRunning,
) -> Response {
    // How fast it is read is between the client and who answers.
    let mut builder = http::Response::builder().status(response.status()).extension(ProxiedBody);
    if response.status() == StatusCode::SWITCHING_PROTOCOLS {
        let Some(client) = client else {
            return plain(502, "the API server behind upgraded a plain request");
        };
        tokio::spawn(join(client, hyper::upgrade::on(&mut response), long_running));
        for (name, value) in response.headers() {
            builder = builder.header(name, value);
        }
        return respond::finish(builder, Body::Empty);
    }
    if is_redirect(response.status(), response.headers()) {
        return plain(502, REDIRECTED);
    }
    let (parts, body) = response.into_parts();
    if let Some(headers) = builder.headers_mut() {
        copy_headers(&parts.headers, headers);
        if is_shown {
            proxied_pages::confine(headers);
        }
    }
    respond::finish(builder, Body::passed_on(body::pieces_of(body)).hold(long_running))
}

pub(crate) const REDIRECTED: &str = "the backend attempted to redirect this request, which is not permitted";

/// Clients follow a redirect with their credentials, which would lead wherever the backend wants them (CVE-2022-3172).
pub(crate) fn is_redirect(status: StatusCode, headers: &HeaderMap) -> bool {
    status.is_redirection() && headers.contains_key(LOCATION)
}

fn plain(code: u16, text: &str) -> Response {
    let mut response = respond::plain(code, format!("{text}\n"));
    response.headers_mut().insert("x-content-type-options", HeaderValue::from_static("nosniff"));
    response
}
