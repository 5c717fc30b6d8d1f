//! The filter chain: what every request goes through before a verb sees it. `admit` lists the steps in
//! their order; each is one function below. What comes after, the verb's work and what is told of it, is `carry_out`.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use ferry_api::{GroupResource, Status};
use ferry_auth::authenticate::ClientCertificates;
use ferry_auth::impersonate::{Impersonated, wanted_user};
use ferry_auth::user::ANONYMOUS;
use ferry_auth::{Attributes, Credentials, Decision, Forbidden, User};
use ferry_trace::Span;
use futures::FutureExt;
use http::HeaderMap;
use http::header::{AUTHORIZATION, EXPECT, HeaderValue, WARNING};
use parking_lot::Mutex;
use tokio::time::Instant as Deadline;

use crate::aggregation::proxy::{self, Passing};
use crate::aggregation::{self, Remote};
use crate::api::Api;
use crate::auditing::Auditing;
use crate::body::{Body, PIECE, Response};
use crate::compress::FiniteStream;
use crate::headers::{self, PlainHeaders, websocket_token, without_credentials};
use crate::negotiate::{View, Wanted, wanted};
use crate::request::Request;
use crate::request_body::{self, Memory, RequestBody, Unread};
use crate::request_info::{BadPath, Query, RequestInfo};
use crate::response_memory::{self, ResponseMemory};
use crate::run_to_completion::RunToCompletion;
use crate::shares::{Share, Shares};
use crate::unauthenticated_connections::UnauthenticatedConnection;
use crate::{compress, paths, respond, verbs};

/// What a connection brings to each of its requests.
#[derive(Clone, Default)]
pub struct Connection {
    pub peer: Option<std::net::SocketAddr>,
    pub client_certificates: Arc<ClientCertificates>,
    /// A component in this process: it is who it was made as.
    pub identity: Option<Arc<User>>,
    pub memory: Arc<ConnectionMemory>,
    /// Set for connections from the network.
    pub unauthenticated: Option<Arc<UnauthenticatedConnection>>,
}

/// What the requests of one connection may hold together.
pub struct ConnectionMemory {
    bodies: Arc<Shares>,
    answers: Arc<Shares>,
}

impl Default for ConnectionMemory {
    fn default() -> ConnectionMemory {
        ConnectionMemory { bodies: request_body::of_connection(), answers: response_memory::of_connection() }
    }
}

pub async fn handle<B: RequestBody>(
    api: Arc<Api>,
    connection: Connection,
    request: http::Request<B>,
) -> Response {
    let arrival = Arrival { started: Instant::now(), received: SystemTime::now() };
    let (parts, body) = request.into_parts();
    // Who waits for a word before it sends its body hears the answer instead.
    let body = if parts.headers.contains_key(EXPECT) { Unread::silent(body) } else { Unread::new(body) };
    let query = Query::parse(parts.uri.query().unwrap_or(""));
    let (info, legible) = request_info(&parts, &query);
    let mut told = Told::new(&connection, &parts);
    let deadline = deadline(&api, &info);
    let asked = Asked { parts, body, query, info, legible };
    let admitting = admit(&api, &connection, arrival, asked, &mut told.notes);
    let admitting = told.span.in_scope(within(deadline, admitting));
    let admitted = match AssertUnwindSafe(admitting).catch_unwind().await {
        Ok(Ok(Passed::Here(admitted))) => *admitted,
        Ok(Ok(Passed::On(response))) => return told.finish(response),
        Ok(Err(status)) => return told.refuse(&status),
        Err(_) => return told.panicked(),
    };
    let wanted = told.wanted;
    if !admitted.request.info.is_mutating() || admitted.request.info.is_long_running() {
        return carry_out(api, admitted, told, deadline).await;
    }
    // The time is the client's to wait, not the write's to take.
    let tasks = api.unfinished.clone();
    let written = RunToCompletion::new(carry_out(api, admitted, told, None), &tasks);
    let answer = within(deadline, written.map(Ok)).await;
    answer.unwrap_or_else(|status| respond::status_as(&status, wanted))
}

#[derive(Clone, Copy)]
struct Arrival {
    started: Instant,
    received: SystemTime,
}

/// A request as it came.
struct Asked<B: RequestBody> {
    parts: http::request::Parts,
    body: Unread<B>,
    query: Query,
    info: RequestInfo,
    legible: Result<(), Status>,
}

/// Where a request goes that has passed the filters.
enum Passed {
    Here(Box<Admitted>),
    /// To another API server, which has answered.
    On(Response),
}

/// A request that has passed the filters, and what it holds while it is answered.
struct Admitted {
    request: Request,
    started: Instant,
    body: request_body::Whole,
    place: Option<Share>,
}

async fn admit<B: RequestBody>(
    api: &Api,
    connection: &Connection,
    arrival: Arrival,
    asked: Asked<B>,
    notes: &mut Notes,
) -> Result<Passed, Status> {
    let Asked { mut parts, body, query, info, legible } = asked;
    let checked = headers::check(&parts.headers);
    let authenticated = match &checked {
        Ok(()) => authenticate(api, connection, &parts, &info).await,
        Err(status) => Err(status.clone()),
    };
    let caller = authenticated.as_ref().map_or_else(|_| Arc::new(User::default()), Arc::clone);
    notes.auditing =
        Auditing::begin(api.audit.as_ref(), connection, &parts, &info, &caller, arrival.received);
    checked?;
    legible?;
    let caller = authenticated?;
    let acting = impersonate(api, &parts.headers, &info, caller.clone()).await?;
    if !Arc::ptr_eq(&acting.user, &caller) {
        notes.audit(|auditing| auditing.impersonated(&acting));
    }
    let user = acting.user;
    notes.actor = Some(user.clone());
    let decision = authorize(api, &info, &user).await;
    notes.audit(|auditing| auditing.decided(&decision));
    permit(&info.attributes(&user), decision)?;
    if let Some(remote) = aggregation::remote(api, &info) {
        // However slow who answers is, it takes nobody's place here.
        let response = pass_on(&remote, connection, &info, &user, parts, body).await;
        api.metrics.passed_on(&info, response.status(), arrival.started.elapsed());
        return Ok(Passed::On(response));
    }
    let response_memory = limit_unread_answers(api, connection, &user)?;
    let body = match request_body::is_wanted(&parts.method, &info) {
        true => body.read(api.limits.body_bytes, &user, body_memory(api, connection).as_ref()).await?,
        false => request_body::Whole::default(),
    };
    notes.audit(|auditing| auditing.request_body(&parts.headers, &body.bytes));
    let place = limit_in_flight(api, connection, &info, &user)?;
    let upgrade = parts.extensions.remove::<hyper::upgrade::OnUpgrade>();
    let request = Request {
        method: parts.method,
        info,
        query,
        headers: without_credentials(parts.headers),
        body: body.bytes.clone(),
        user,
        peer: connection.peer,
        warnings: Default::default(),
        annotations: Default::default(),
        response_memory,
        upgrade: Mutex::new(upgrade),
    };
    Ok(Passed::Here(Box::new(Admitted { request, started: arrival.started, body, place })))
}

/// Answers a request, and tells of it.
async fn carry_out(
    api: Arc<Api>,
    admitted: Admitted,
    mut told: Told,
    deadline: Option<Deadline>,
) -> Response {
    let Admitted { request, started, body, place } = admitted;
    let answering = told.span.in_scope(within(deadline, answer(&api, &request)));
    let mut response = match AssertUnwindSafe(answering).catch_unwind().await {
        Ok(answer) => answer.unwrap_or_else(|status| respond::status_as(&status, told.wanted)),
        Err(_) => return told.panicked(),
    };
    drop(body);
    add_warnings(&mut response, &request);
    told.notes.audit(|auditing| auditing.annotate_all(&request.annotations.lock()));
    api.metrics.finished(&api.served(), &request, response.status(), started.elapsed());
    // A component has no place, and reads.
    let Some(place) = place else { return told.finish(response) };
    match is_kept(&response, &request) {
        Ok(true) => told.finish(response).map(|body| body.hold((request.response_memory, place))),
        Ok(false) => told.finish(response),
        Err(status) => told.refuse(&status),
    }
}

/// Whether the answer keeps its memory and its place in flight until the client has read it. Long ones do: who reads
/// slowly waits for itself.
fn is_kept(response: &Response, request: &Request) -> Result<bool, Status> {
    match response.body() {
        Body::Bytes(bytes) if bytes.len() > PIECE => {
            match request.info.is_mutating() {
                true => request.response_memory.add(bytes.len()),
                false => request.response_memory.take(bytes.len())?,
            }
            Ok(true)
        }
        Body::Stream(_) => Ok(response.extensions().get::<FiniteStream>().is_some()),
        _ => Ok(false),
    }
}

/// What is told of a request: to its caller, to the trace, to the audit log.
struct Told {
    span: Span,
    notes: Notes,
    wanted: Wanted,
    accept_gzip: bool,
    is_traced_write: bool,
}

/// What the filters find out.
#[derive(Default)]
struct Notes {
    auditing: Option<Auditing>,
    actor: Option<Arc<User>>,
}

impl Notes {
    fn audit(&mut self, note: impl FnOnce(&mut Auditing)) {
        if let Some(auditing) = &mut self.auditing {
            note(auditing);
        }
    }
}

impl Told {
    fn new(connection: &Connection, parts: &http::request::Parts) -> Told {
        let wanted = wanted(&parts.headers, &[View::Whole, View::Table, View::PartialMetadata]);
        Told {
            span: trace(parts),
            notes: Notes::default(),
            wanted: wanted.unwrap_or(Wanted::JSON),
            accept_gzip: compress::accepts(&parts.headers),
            is_traced_write: connection.identity.is_none()
                && parts.headers.contains_key("traceparent")
                && parts.method != http::Method::GET,
        }
    }

    fn refuse(self, status: &Status) -> Response {
        let response = respond::status_as(status, self.wanted);
        self.finish(response)
    }

    /// A panic is a defect of ours; it ends one request and no other.
    fn panicked(mut self) -> Response {
        self.notes.audit(Auditing::panicked);
        self.refuse(&Status::internal(
            "This request caused apiserver to panic. Look in the logs for details.",
        ))
    }

    fn finish(mut self, mut response: Response) -> Response {
        self.span.set("code", response.status().as_u16());
        if let Some(user) = self.notes.actor {
            self.span.set("user", &user.name);
        }
        // The W3C draft's answer to `traceparent`: it tells a caller that its own spans are welcome too.
        if self.is_traced_write
            && let Ok(context) = HeaderValue::try_from(self.span.context().to_string())
        {
            response.headers_mut().insert("traceresponse", context);
        }
        drop(self.span);
        if let Some(auditing) = self.notes.auditing {
            response = auditing.finish(response);
        }
        if self.accept_gzip { compress::gzip(response) } else { response }
    }
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
async fn pass_on<B: RequestBody>(
    remote: &Remote,
    connection: &Connection,
    info: &RequestInfo,
    user: &User,
    mut parts: http::request::Parts,
    body: Unread<B>,
) -> Response {
    let Some(body) = body.into_stream() else { return respond::page_not_found() };
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

/// Whoever is outside must not take the places of the server's own parts, which know how much they do at once; nor all
/// those of others. Whether the server is well can be asked at any time.
fn limit_in_flight(
    api: &Api,
    connection: &Connection,
    info: &RequestInfo,
    user: &User,
) -> Result<Option<Share>, Status> {
    if connection.identity.is_some() || info.is_long_running() || info.is_about_health() {
        return Ok(None);
    }
    let places =
        if info.is_mutating() && info.is_resource { &api.limits.writing } else { &api.limits.reading };
    places
        .take(user, 1)
        .map(Some)
        .ok_or_else(|| Status::too_many_requests("Too many requests, please try again later.", 1))
}

/// Who has not read what it asked for gets no more.
fn limit_unread_answers(api: &Api, connection: &Connection, user: &User) -> Result<ResponseMemory, Status> {
    match &connection.identity {
        Some(_) => Ok(ResponseMemory::default()),
        None => ResponseMemory::new([&connection.memory.answers, &api.limits.unread_answer_bytes], user),
    }
}

fn body_memory(api: &Api, connection: &Connection) -> Option<Memory> {
    connection.identity.is_none().then(|| Memory {
        connection: connection.memory.bodies.clone(),
        all: api.limits.unfinished_body_bytes.clone(),
    })
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
            if let Some(unauthenticated) =
                connection.unauthenticated.as_ref().filter(|_| identity.user.name != ANONYMOUS)
            {
                unauthenticated.authenticated();
            }
            Ok(identity.user)
        }
        Err(unauthorized) => Err(refused(&unauthorized, &mut span)),
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

async fn authorize(api: &Api, info: &RequestInfo, user: &User) -> Decision {
    let span = ferry_trace::span("filter.authorization");
    span.instrument(api.authorization.authorize(&info.attributes(user))).await
}

/// Only a clear yes lets a request on.
pub fn permit(attributes: &Attributes<'_>, decision: Decision) -> Result<(), Status> {
    match decision {
        Decision::Allow { .. } => Ok(()),
        Decision::Failed { error } => Err(Status::internal(error)),
        Decision::Deny { reason } | Decision::NoOpinion { reason } => {
            Err(forbidden(Forbidden::new(attributes, &reason)))
        }
    }
}

fn forbidden(refusal: Forbidden) -> Status {
    let resource = GroupResource::new(refusal.api_group, refusal.resource);
    Status::new(403, "Forbidden", refusal.message).about(&resource, &refusal.name)
}

/// For everything from the first filter to the answer, so that nobody holds a place by being slow.
fn deadline(api: &Api, info: &RequestInfo) -> Option<Deadline> {
    (!info.is_long_running()).then(|| Deadline::now() + api.limits.request_timeout)
}

async fn within<T>(
    deadline: Option<Deadline>,
    answer: impl Future<Output = Result<T, Status>>,
) -> Result<T, Status> {
    match deadline {
        None => answer.await,
        Some(deadline) => tokio::time::timeout_at(deadline, answer)
            .await
            .unwrap_or_else(|_| Err(Status::timeout("request did not complete within the allotted timeout"))),
    }
}

/// Of all warnings together, in characters. When there are more, each is cut to its beginning, as upstream does.
const WARNINGS_LENGTH: usize = 4096;
const CUT_WARNING: usize = 256;

/// RFC 7234's form, which kubectl prints: `299 - "text"`.
fn add_warnings(response: &mut Response, request: &Request) {
    for warning in told(&request.warnings.lock()) {
        let text = warning.replace('\\', "\\\\").replace('"', "\\\"").replace(['\n', '\r'], " ");
        if let Ok(value) = HeaderValue::from_str(&format!("299 - \"{text}\"")) {
            response.headers_mut().append(WARNING, value);
        }
    }
}

/// As much of the warnings as an answer has room for.
fn told(warnings: &[String]) -> Vec<&str> {
    let length = |warning: &str| warning.chars().take(WARNINGS_LENGTH + 1).count();
    if warnings.iter().map(|warning| length(warning)).sum::<usize>() <= WARNINGS_LENGTH {
        return warnings.iter().map(String::as_str).collect();
    }
    let mut left = WARNINGS_LENGTH;
    let cut = warnings.iter().map_while(|warning| {
        let end = warning.char_indices().nth(CUT_WARNING).map_or(warning.len(), |(end, _)| end);
        let cut = &warning[..end];
        left = left.checked_sub(cut.chars().count())?;
        Some(cut)
    });
    cut.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warnings_are_cut_when_they_are_many() {
        let few = vec!["é".repeat(2000), "b".repeat(96)];
        assert_eq!(told(&few), few);
        let long = vec!["é".repeat(1 << 20), "b".into()];
        assert_eq!(told(&long), ["é".repeat(CUT_WARNING).as_str(), "b"]);
        let many: Vec<String> = (0..100_000).map(|index| format!("{index:0300}")).collect();
        assert_eq!(told(&many).len(), WARNINGS_LENGTH / CUT_WARNING);
    }
}
