//! The filter chain: what every request goes through before a verb sees it. `handle` lists the steps in
//! their order; each is one function below.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use ferry_api::{GroupResource, Status};
use ferry_auth::authenticate::{
    AuthenticationError, ClientCertificates, Headers, WebSocketBearer, websocket_bearer,
};
use ferry_auth::impersonate::{
    EXTRA_HEADER_PREFIX, GROUP_HEADER, Impersonated, UID_HEADER, USER_HEADER, wanted_user,
};
use ferry_auth::{Credentials, Decision, Forbidden, User};
use ferry_trace::Span;
use futures::FutureExt;
use http::HeaderMap;
use http::header::{AUTHORIZATION, HeaderValue, SEC_WEBSOCKET_PROTOCOL, WARNING};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use parking_lot::Mutex;
use tokio::sync::SemaphorePermit;

use crate::aggregation::proxy::{self, Passing};
use crate::aggregation::{self, Remote};
use crate::api::Api;
use crate::auditing::Auditing;
use crate::body::Response;
use crate::negotiate::{View, Wanted, wanted};
use crate::request::Request;
use crate::request_info::{BadPath, Query, RequestInfo};
use crate::server::MAX_HEADERS;
use crate::{compress, paths, respond, verbs, websocket};

/// What a connection brings to each of its requests.
#[derive(Clone, Default)]
pub struct Connection {
    pub peer: Option<std::net::SocketAddr>,
    pub client_certificates: Arc<ClientCertificates>,
    /// A component in this process: it is who it was made as.
    pub identity: Option<Arc<User>>,
}

pub async fn handle<B>(api: Arc<Api>, connection: Connection, request: http::Request<B>) -> Response
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let (started, received) = (Instant::now(), SystemTime::now());
    let (parts, body) = request.into_parts();
    let wanted =
        wanted(&parts.headers, &[View::Whole, View::Table, View::PartialMetadata]).unwrap_or(Wanted::JSON);
    let accept_gzip = compress::accepts(&parts.headers);
    let mut span = trace(&parts);
    let is_traced_write = connection.identity.is_none()
        && parts.headers.contains_key("traceparent")
        && parts.method != http::Method::GET;
    // Who acts is known inside the chain and told by its span, which is outside.
    let actor: Mutex<Option<Arc<User>>> = Mutex::new(None);
    // Outside the chain, so that it outlives a panic in it.
    let auditing: Mutex<Option<Auditing>> = Mutex::new(None);
    let audit = |note: &dyn Fn(&mut Auditing)| auditing.lock().as_mut().map_or((), note);
    let chain = async {
        let query = Query::parse(parts.uri.query().unwrap_or(""));
        let (info, legible) = request_info(&parts, &query);
        within(deadline(&api, &info), async {
            let place = limit_in_flight(&api, &connection, &info)?;
            let authenticated = authenticate(&api, &connection, &parts, &info).await;
            let nobody = || Arc::new(User::default());
            let caller = authenticated.as_ref().map_or_else(|_| nobody(), Arc::clone);
            *auditing.lock() =
                Auditing::begin(api.audit.as_ref(), &connection, &parts, &info, &caller, received);
            limit_headers(&parts.headers)?;
            legible?;
            let caller = authenticated?;
            let acting = impersonate(&api, &parts.headers, &info, caller.clone()).await?;
            if !Arc::ptr_eq(&acting.user, &caller) {
                audit(&|auditing| auditing.impersonated(&acting));
            }
            let user = acting.user;
            *actor.lock() = Some(user.clone());
            let decision = authorize(&api, &info, &user).await;
            audit(&|auditing| auditing.decided(&decision));
            permit(&info, &user, decision)?;
            if let Some(remote) = aggregation::remote(&api, &info) {
                // However slow who answers is, it takes nobody's place here.
                drop(place);
                let response = pass_on(&remote, &connection, &info, &user, parts, body).await;
                api.metrics.passed_on(&info, response.status(), started.elapsed());
                return Ok(response);
            }
            let body = read_body(&api, body).await?;
            audit(&|auditing| auditing.request_body(&parts.headers, &body));
            let mut parts = parts;
            let upgrade = parts.extensions.remove::<hyper::upgrade::OnUpgrade>();
            let request = Request {
                method: parts.method,
                info,
                query,
                headers: without_credentials(parts.headers),
                body,
                user,
                peer: connection.peer,
                warnings: Default::default(),
                annotations: Default::default(),
                upgrade: Mutex::new(upgrade),
            };
            let answer = answer(&api, &request).await;
            let mut response = answer.unwrap_or_else(|status| respond::status_as(&status, wanted));
            add_warnings(&mut response, &request);
            audit(&|auditing| auditing.annotate_all(&request.annotations.lock()));
            api.metrics.finished(&request, response.status(), started.elapsed());
            Ok(response)
        })
        .await
    };
    // A panic is a defect of ours; it ends one request and no other.
    let caught = std::panic::AssertUnwindSafe(span.in_scope(chain)).catch_unwind().await;
    let result = caught.unwrap_or_else(|_| {
        audit(&|auditing| auditing.panicked());
        Err(Status::internal("This request caused apiserver to panic. Look in the logs for details."))
    });
    let mut response = result.unwrap_or_else(|status: Status| respond::status_as(&status, wanted));
    span.set("code", response.status().as_u16());
    if let Some(user) = actor.into_inner() {
        span.set("user", &user.name);
    }
    // The W3C draft's answer to `traceparent`: it tells a caller that its own spans are welcome too.
    if is_traced_write && let Ok(context) = HeaderValue::try_from(span.context().to_string()) {
        response.headers_mut().insert("traceresponse", context);
    }
    drop(span);
    if let Some(auditing) = auditing.into_inner() {
        response = auditing.finish(response);
    }
    if accept_gzip { compress::gzip(response) } else { response }
}

/// What the URL asks for. One that cannot be read is a request too: it is written down and then refused.
fn request_info(parts: &http::request::Parts, query: &Query) -> (RequestInfo, Result<(), Status>) {
    match RequestInfo::parse(&parts.method, parts.uri.path(), query) {
        Ok(info) => (info, Ok(())),
        Err(BadPath) => {
            let path = parts.uri.path().to_string();
            let info = RequestInfo { sent_path: path.clone(), path, ..RequestInfo::default() };
            (info, Err(Status::bad_request("the path cannot be read")))
        }
    }
}

/// Hands a request to the API server that answers for it, its body unread.
async fn pass_on<B>(
    remote: &Remote,
    connection: &Connection,
    info: &RequestInfo,
    user: &User,
    mut parts: http::request::Parts,
    body: B,
) -> Response
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let upgrade = parts.extensions.remove::<hyper::upgrade::OnUpgrade>();
    let passing = Passing {
        method: parts.method,
        path_and_query: parts.uri.path_and_query().map_or_else(String::new, ToString::to_string),
        headers: without_credentials(parts.headers),
        body,
        upgrade,
        peer: connection.peer,
    };
    proxy::pass(remote, info, user, passing).await
}

async fn answer(api: &Arc<Api>, request: &Request) -> Result<Response, Status> {
    if request.info.is_resource {
        verbs::dispatch(api, request).await
    } else {
        paths::dispatch(api, request).await
    }
}

fn trace(parts: &http::request::Parts) -> Span {
    let remote = parts
        .headers
        .get("traceparent")
        .and_then(|value| value.to_str().ok())
        .and_then(|text| text.parse().ok());
    let mut span = Span::root("apiserver.request", remote);
    // Reads change nothing: they are traced only as part of a trace that someone else began.
    let is_read = parts.method == http::Method::GET || parts.method == http::Method::HEAD;
    if (remote.is_none() && is_read) || parts.uri.path() == crate::trace::PATH {
        return span.unsampled();
    }
    span.set("method", parts.method.as_str().to_string());
    span.set("path", parts.uri.path().to_string());
    if let Some(cause) = cause_of(&parts.headers) {
        span.caused_by(cause);
    }
    span
}

/// The revision that a controller was woken by, as its client says.
fn cause_of(headers: &HeaderMap) -> Option<i64> {
    let baggage = headers.get("baggage")?.to_str().ok()?;
    baggage.split(',').find_map(|entry| entry.trim().strip_prefix("ferry-cause=")?.parse().ok())
}

/// Whoever is outside must not take the places of the server's own parts, which know how much they do at once.
fn limit_in_flight<'a>(
    api: &'a Api,
    connection: &Connection,
    info: &RequestInfo,
) -> Result<Option<SemaphorePermit<'a>>, Status> {
    if connection.identity.is_some() || info.is_long_running() || !info.is_resource {
        return Ok(None);
    }
    let places = if info.is_mutating() { &api.limits.writing } else { &api.limits.reading };
    places
        .try_acquire()
        .map(Some)
        .map_err(|_| Status::too_many_requests("Too many requests, please try again later.", 1))
}

/// Over HTTP/1.1 the connection refuses them, see [`crate::unheard`].
fn limit_headers(headers: &HeaderMap) -> Result<(), Status> {
    match headers.len() > MAX_HEADERS {
        true => Err(Status::new(431, "", format!("the request has more than {MAX_HEADERS} headers"))),
        false => Ok(()),
    }
}

async fn authenticate(
    api: &Api,
    connection: &Connection,
    parts: &http::request::Parts,
    info: &RequestInfo,
) -> Result<Arc<User>, Status> {
    if let Some(identity) = &connection.identity {
        return Ok(identity.clone());
    }
    let mut span = ferry_trace::span("filter.authentication");
    let refused = |error: &dyn std::fmt::Display, span: &mut Span| {
        span.fail(error);
        tracing::debug!(path = %info.path, %error, "unauthorized");
        Status::unauthorized()
    };
    let websocket_bearer = websocket_token(&parts.headers).map_err(|error| refused(&error, &mut span))?;
    let credentials = Credentials {
        authorization: parts.headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok()),
        websocket_bearer: websocket_bearer.as_ref().map(|bearer| bearer.token.as_str()),
        client_certificates: &connection.client_certificates,
        headers: &PlainHeaders(&parts.headers),
        path: &info.path,
        peer: connection.peer,
        now: SystemTime::now(),
    };
    match span.in_scope(api.authentication.authenticate(&credentials)).await {
        Ok(identity) => {
            span.set("user", &identity.user.name);
            Ok(identity.user)
        }
        Err(unauthorized) => Err(refused(&unauthorized, &mut span)),
    }
}

/// A browser cannot set headers: it hides its token in the subprotocols of a WebSocket's handshake.
fn websocket_token(headers: &HeaderMap) -> Result<Option<WebSocketBearer>, AuthenticationError> {
    match websocket::is_upgrade(headers) {
        true => websocket_bearer(&PlainHeaders(headers).values(SEC_WEBSOCKET_PROTOCOL.as_str())),
        false => Ok(None),
    }
}

struct PlainHeaders<'a>(&'a HeaderMap);

impl Headers for PlainHeaders<'_> {
    fn values(&self, name: &str) -> Vec<&str> {
        self.0.get_all(name).iter().filter_map(|value| value.to_str().ok()).collect()
    }

    fn names(&self) -> Vec<&str> {
        self.0.keys().map(http::HeaderName::as_str).collect()
    }
}

/// `Impersonate-User` and its kin: acting as another, where one may.
async fn impersonate(
    api: &Api,
    headers: &HeaderMap,
    info: &RequestInfo,
    user: Arc<User>,
) -> Result<Impersonated, Status> {
    let wanted =
        wanted_user(&PlainHeaders(headers)).map_err(|error| Status::bad_request(error.to_string()))?;
    let Some(wanted) = wanted else { return Ok(Impersonated { user, constraint: None }) };
    let mut span = ferry_trace::span("filter.impersonation");
    let attributes = info.attributes(&user);
    api.impersonation.decide(&api.authorization, &wanted, &attributes).await.map_err(|refusal| {
        span.fail(&refusal);
        forbidden(refusal)
    })
}

/// Nothing behind the filters shall see who somebody wanted to be.
fn without_credentials(mut headers: HeaderMap) -> HeaderMap {
    headers.remove(AUTHORIZATION);
    if let Ok(Some(bearer)) = websocket_token(&headers)
        && let Ok(protocols) = HeaderValue::from_str(&bearer.protocols.join(", "))
    {
        headers.insert(SEC_WEBSOCKET_PROTOCOL, protocols);
    }
    let spoken: Vec<http::HeaderName> = headers
        .keys()
        .filter(|name| {
            [USER_HEADER, UID_HEADER, GROUP_HEADER].contains(&name.as_str())
                || name.as_str().starts_with(EXTRA_HEADER_PREFIX)
        })
        .cloned()
        .collect();
    for name in spoken {
        headers.remove(name);
    }
    headers
}

async fn authorize(api: &Api, info: &RequestInfo, user: &User) -> Decision {
    let span = ferry_trace::span("filter.authorization");
    span.instrument(api.authorization.authorize(&info.attributes(user))).await
}

/// Only a clear yes lets a request on.
fn permit(info: &RequestInfo, user: &User, decision: Decision) -> Result<(), Status> {
    match decision {
        Decision::Allow { .. } => Ok(()),
        Decision::Failed { error } => Err(Status::internal(error)),
        Decision::Deny { reason } | Decision::NoOpinion { reason } => {
            Err(forbidden(Forbidden::new(&info.attributes(user), &reason)))
        }
    }
}

fn forbidden(refusal: Forbidden) -> Status {
    let resource = GroupResource::new(refusal.api_group, refusal.resource);
    Status::new(403, "Forbidden", refusal.message).about(&resource, &refusal.name)
}

async fn read_body<B>(api: &Api, body: B) -> Result<Bytes, Status>
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    match Limited::new(body, api.limits.body_bytes).collect().await {
        Ok(collected) => Ok(collected.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => Err(Status::too_large(api.limits.body_bytes)),
        Err(error) => Err(Status::bad_request(format!("the body cannot be read: {error}"))),
    }
}

/// For everything from the first filter to the last byte of the body, so that nobody holds a place by being slow.
fn deadline(api: &Api, info: &RequestInfo) -> Option<Duration> {
    (!info.is_long_running()).then_some(api.limits.request_timeout)
}

async fn within(
    deadline: Option<Duration>,
    answer: impl Future<Output = Result<Response, Status>>,
) -> Result<Response, Status> {
    match deadline {
        None => answer.await,
        Some(limit) => tokio::time::timeout(limit, answer)
            .await
            .unwrap_or_else(|_| Err(Status::timeout("request did not complete within the allotted timeout"))),
    }
}

/// RFC 7234's form, which kubectl prints: `299 - "text"`.
fn add_warnings(response: &mut Response, request: &Request) {
    for warning in request.warnings.lock().iter() {
        let text = warning.replace('\\', "\\\\").replace('"', "\\\"").replace(['\n', '\r'], " ");
        if let Ok(value) = HeaderValue::from_str(&format!("299 - \"{text}\"")) {
            response.headers_mut().append(WARNING, value);
        }
    }
}
