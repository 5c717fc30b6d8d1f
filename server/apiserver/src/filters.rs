//! The filter chain that every request passes before its verb. [`filter`] lists the steps in their order, each
//! is one function below; [`serve`] runs the verb; [`Responder`] finishes the response.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use ferry_api::{GroupResource, Status};
use ferry_auth::authenticate::ClientCertificates;
use ferry_auth::impersonate::{Impersonated, wanted_user};
use ferry_auth::{Attributes, Credentials, Decision, Forbidden, User};
use ferry_trace::{Moment, Span};
use futures::FutureExt;
use http::HeaderMap;
use http::header::{AUTHORIZATION, EXPECT, HeaderName, HeaderValue, WARNING};
use parking_lot::Mutex;
use tokio::time::Instant as Deadline;

use crate::aggregation::proxy::{self, ProxiedRequest};
use crate::aggregation::{self, Remote};
use crate::api::Api;
use crate::auditing::Auditing;
use crate::body::{Body, PIECE, Response};
use crate::compress::FiniteStream;
use crate::fair_limit::FairLimit;
use crate::flow_control::{Class, Stored};
use crate::headers::{self, PlainHeaders, websocket_token, without_credentials};
use crate::long_running::{self, ConnectionPlace, LongRunning};
use crate::negotiate::{MediaType, View, negotiate};
use crate::request::Request;
use crate::request_body::{self, Memory, RequestBody, Unread};
use crate::request_info::{BadPath, Query, RequestInfo};
use crate::response_memory::{self, ResponseMemory};
use crate::run_to_completion::RunToCompletion;
use crate::{compress, indent, metrics, paths, respond, tokens, ui, verbs};
use ferry_serving::unauthenticated_connections::UnauthenticatedConnection;

const FLOW_SCHEMA_UID: HeaderName = HeaderName::from_static("x-kubernetes-pf-flowschema-uid");
const PRIORITY_LEVEL_UID: HeaderName = HeaderName::from_static("x-kubernetes-pf-prioritylevel-uid");

/// What a connection brings to each of its requests.
#[derive(Clone, Default)]
pub struct Connection {
    pub peer: Option<std::net::SocketAddr>,
    pub client_certificates: Arc<ClientCertificates>,
    /// The user of a component in this process, whose connection needs no authentication.
    pub identity: Option<Arc<User>>,
    pub memory: Arc<ConnectionMemory>,
    /// Set for connections from the network.
    pub unauthenticated: Option<Arc<UnauthenticatedConnection>>,
    pub place: ConnectionPlace,
}

/// What the requests of one connection may hold together.
pub struct ConnectionMemory {
    bodies: Arc<FairLimit>,
    answers: Arc<FairLimit>,
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
    let (head, body) = receive(request);
    let mut responder = Responder::new(&connection, &head);
    let deadline = match deadline(api.limits.request_timeout, &head.info, &head.query) {
        Ok(deadline) => deadline,
        Err(status) => return responder.refuse(&status),
    };
    let filtering = filter(&api, &connection, head, body, &mut responder.context);
    let filtering = responder.span.in_scope(within(deadline, filtering));
    let admitted = match AssertUnwindSafe(filtering).catch_unwind().await {
        Ok(Ok(Filtered::Admitted(admitted))) => *admitted,
        Ok(Ok(Filtered::Proxied(response))) => return responder.finish(response),
        Ok(Err(status)) => return responder.refuse(&status),
        Err(_) => return responder.panicked(),
    };
    let media_type = responder.media_type;
    if !admitted.request.info.is_mutating() || admitted.request.info.is_long_running() {
        return serve(api, admitted, responder, deadline).await;
    }
    // The deadline limits how long the client waits, not the write.
    let tasks = api.unfinished.clone();
    let writing = RunToCompletion::new(serve(api, admitted, responder, None), &tasks);
    within(deadline, writing.map(Ok)).await.unwrap_or_else(|status| respond::status_as(&status, media_type))
}

/// A request as it arrived, without its body.
struct Head {
    parts: http::request::Parts,
    query: Query,
    info: RequestInfo,
    /// Why the path cannot be read. The request is audited before it is refused.
    path: Result<(), Status>,
    started: Instant,
    received: SystemTime,
}

fn receive<B: RequestBody>(request: http::Request<B>) -> (Head, Unread<B>) {
    let (started, received) = (Instant::now(), SystemTime::now());
    let (parts, body) = request.into_parts();
    // A client that expects `100 Continue` is sent the response instead, and sends no body.
    let body = if parts.headers.contains_key(EXPECT) { Unread::silent(body) } else { Unread::new(body) };
    let query = Query::parse(parts.uri.query().unwrap_or(""));
    let (info, path) = request_info(&parts, &query);
    (Head { parts, query, info, path, started, received }, body)
}

/// The result of the filters.
enum Filtered {
    Admitted(Box<Admitted>),
    /// The response of an aggregated API server.
    Proxied(Response),
}

/// A request that has passed the filters, with the resources that it holds until its response.
struct Admitted {
    request: Request,
    started: Instant,
    body: request_body::Whole,
}

/// The filters, in their order.
async fn filter<B: RequestBody>(
    api: &Api,
    connection: &Connection,
    head: Head,
    body: Unread<B>,
    context: &mut Context,
) -> Result<Filtered, Status> {
    let user = identify(api, connection, &head, context).await?;
    let Head { mut parts, query, info, started, .. } = head;
    context.class = api.flow_control.classify(&info, &user);
    let decision = match ui::may(&info, &user) {
        Some(decision) => decision,
        None => authorize(api, &info, &user).await,
    };
    context.audit(|auditing| auditing.decided(&decision));
    permit(&info.attributes(&user), decision)?;
    let long_running = long_running::begin(api, connection, &info, &user)?;
    if let Some(remote) = aggregation::remote(api, &info) {
        // The other server limits its requests itself; a slow one takes no seats here.
        let method = parts.method.clone();
        let response = proxy_request(&remote, connection, &info, &user, (parts, body), long_running).await;
        api.metrics.passed_on(&info, &method, response.status(), started.elapsed());
        return Ok(Filtered::Proxied(response));
    }
    let shown = ui::shown(connection, &parts, &info)?;
    let response_memory = limit_unread_responses(api, connection, &user)?;
    // Before it gets seats: a client that sends its body slowly waits for itself.
    let body = match request_body::is_wanted(&parts.method, &info) {
        true => body.read(api.limits.body_bytes, &user, body_memory(api, connection).as_ref()).await?,
        false => request_body::Whole::default(),
    };
    context.audit(|auditing| auditing.request_body(&parts.headers, &body.bytes));
    let stored = || stored(api, &info);
    let seats = api.flow_control.acquire(context.class.clone(), &info, &query, &user, stored).await?;
    let upgrade = parts.extensions.remove::<hyper::upgrade::OnUpgrade>();
    let request = Request {
        method: parts.method,
        info,
        query,
        headers: without_credentials(parts.headers),
        body: body.bytes.clone(),
        user,
        shown,
        peer: connection.peer,
        warnings: Default::default(),
        annotations: Default::default(),
        response_memory,
        seats: Mutex::new(seats),
        long_running,
        upgrade: Mutex::new(upgrade),
    };
    request.warn(context.warning.map(str::to_owned));
    Ok(Filtered::Admitted(Box::new(Admitted { request, started, body })))
}

/// Authentication, the start of the audit record, impersonation.
async fn identify(
    api: &Api,
    connection: &Connection,
    head: &Head,
    context: &mut Context,
) -> Result<Arc<User>, Status> {
    let Head { parts, info, .. } = head;
    let checked = headers::check(&parts.headers);
    let authenticated = match &checked {
        Ok(()) => authenticate(api, connection, parts, info).await,
        Err(status) => Err(status.clone()),
    };
    let caller = authenticated.as_ref().cloned().unwrap_or_default().user;
    context.auditing = Auditing::begin(api.audit.as_ref(), connection, parts, info, &caller, head.received);
    checked?;
    head.path.clone()?;
    let Caller { user: caller, token_kept_in } = authenticated?;
    long_running::keep_connection(api, connection, &caller)?;
    if let Some(secret) = token_kept_in {
        let (annotation, warning) = tokens::about_kept_token(&api.registry, &caller, &secret);
        context.audit(|auditing| auditing.annotate(annotation, &secret));
        context.warning = warning;
    }
    let acting = impersonate(api, &parts.headers, info, caller.clone()).await?;
    if !Arc::ptr_eq(&acting.user, &caller) {
        context.audit(|auditing| auditing.impersonated(&acting));
    }
    context.user = Some(acting.user.clone());
    Ok(acting.user)
}

/// The number and size of the resource's objects, for the cost of a list.
fn stored(api: &Api, info: &RequestInfo) -> Option<Stored> {
    let resource = api.registry.resource(&GroupResource::new(info.group.clone(), info.resource.clone()))?;
    Some(Stored { objects: resource.cache.len(), bytes: resource.cache.bytes() })
}

/// Runs the action of an admitted request and finishes its response.
async fn serve(
    api: Arc<Api>,
    admitted: Admitted,
    mut responder: Responder,
    deadline: Option<Deadline>,
) -> Response {
    let Admitted { request, started, body } = admitted;
    let in_flight = metrics::in_flight(&request.info);
    let answering = responder.span.in_scope(within(deadline, answer(&api, &request)));
    let mut response = match AssertUnwindSafe(answering).catch_unwind().await {
        Ok(answer) => answer.unwrap_or_else(|status| respond::status_as(&status, responder.media_type)),
        Err(_) => {
            metrics::panicked(&request.info);
            return responder.panicked();
        }
    };
    // Seats are for the work. A response that its client has yet to read holds memory, which has a budget of its own.
    drop((body, request.seats.lock().take()));
    add_warnings(&mut response, &request);
    responder.context.audit(|auditing| auditing.annotate_all(&request.annotations.lock()));
    api.metrics.finished(&api.served(), &request, &response, started.elapsed());
    drop(in_flight);
    if let Some(place) = request.long_running.clone() {
        response = response.map(|body| body.hold(place));
    }
    match holds_memory(&response, &request) {
        Ok(true) => responder.finish(response).map(|body| body.hold(request.response_memory)),
        Ok(false) => responder.finish(response),
        Err(status) => responder.refuse(&status),
    }
}

/// Whether the response counts against the memory budget until the client has read it, as long ones do.
fn holds_memory(response: &Response, request: &Request) -> Result<bool, Status> {
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

/// Finishes responses: headers, trace, audit, compression.
struct Responder {
    span: Span,
    context: Context,
    media_type: MediaType,
    is_indented: bool,
    accept_gzip: bool,
    is_traced_write: bool,
}

/// What the filters know about a request.
#[derive(Default)]
struct Context {
    auditing: Option<Auditing>,
    /// A warning about the client's credentials.
    warning: Option<&'static str>,
    user: Option<Arc<User>>,
    class: Option<Class>,
}

impl Context {
    fn audit(&mut self, note: impl FnOnce(&mut Auditing)) {
        if let Some(auditing) = &mut self.auditing {
            note(auditing);
        }
    }
}

impl Responder {
    fn new(connection: &Connection, head: &Head) -> Responder {
        let parts = &head.parts;
        let media_type = negotiate(&parts.headers, &[View::Whole, View::Table, View::PartialMetadata]);
        let media_type = media_type.unwrap_or(MediaType::JSON);
        // Objects and discovery are for people too; OpenAPI and the issuer's keys are not.
        let is_api = parts.uri.path().starts_with("/api");
        Responder {
            span: trace(parts),
            context: Context::default(),
            is_indented: is_api && (media_type.pretty || indent::is_wanted(&head.query, &parts.headers)),
            media_type,
            accept_gzip: compress::accepts(&parts.headers),
            is_traced_write: connection.identity.is_none()
                && parts.headers.contains_key("traceparent")
                && parts.method != http::Method::GET,
        }
    }

    fn refuse(self, status: &Status) -> Response {
        let response = respond::status_as(status, self.media_type);
        self.finish(response)
    }

    /// Responds after a panic, which ends only its own request.
    fn panicked(mut self) -> Response {
        self.context.audit(Auditing::panicked);
        self.refuse(&Status::internal(
            "This request caused apiserver to panic. Look in the logs for details.",
        ))
    }

    fn finish(mut self, mut response: Response) -> Response {
        self.span.set("code", response.status().as_u16());
        match &self.context.user {
            Some(user) => {
                self.span.set("user", &user.name);
            }
            // Somebody without credentials must not push out the history; the audit log has the request.
            None => self.span.forget(),
        }
        // The W3C draft's answer to `traceparent`: it tells a caller that its own spans are welcome too.
        if self.is_traced_write
            && let Ok(context) = HeaderValue::try_from(self.span.context().to_string())
        {
            response.headers_mut().insert("traceresponse", context);
        }
        if let Some(class) = self.context.class {
            add_class(&mut response, &class);
        }
        drop(self.span);
        if let Some(auditing) = self.context.auditing {
            response = auditing.finish(response);
        }
        if self.is_indented {
            response = indent::indent(response);
        }
        if self.accept_gzip { compress::gzip(response) } else { response }
    }
}

/// UIDs and not names, because clients should not see the names of flow schemas.
fn add_class(response: &mut Response, class: &Class) {
    let headers = [(PRIORITY_LEVEL_UID, class.level_uid.as_str()), (FLOW_SCHEMA_UID, class.schema_uid())];
    for (name, uid) in headers {
        if let Ok(uid) = HeaderValue::from_str(uid) {
            response.headers_mut().insert(name, uid);
        }
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

/// Proxies a request to the API server that serves its group, with its body unread.
async fn proxy_request<B: RequestBody>(
    remote: &Remote,
    connection: &Connection,
    info: &RequestInfo,
    user: &User,
    (mut parts, body): (http::request::Parts, Unread<B>),
    long_running: LongRunning,
) -> Response {
    let Some(body) = body.into_stream() else { return respond::page_not_found() };
    let upgrade = parts.extensions.remove::<hyper::upgrade::OnUpgrade>();
    let passing = ProxiedRequest {
        method: parts.method,
        path_and_query: parts.uri.path_and_query().map_or_else(String::new, ToString::to_string),
        headers: without_credentials(parts.headers),
        body,
        upgrade,
        peer: connection.peer,
        long_running,
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
    // Reads change nothing: they are traced only as part of a trace that someone else began.
    let is_read = parts.method == http::Method::GET || parts.method == http::Method::HEAD;
    let is_own = parts.uri.path() == crate::trace::PATH || parts.uri.path().starts_with(ui::BELOW);
    if (remote.is_none() && is_read) || is_own {
        return Span::unrecorded(remote);
    }
    let mut span = Span::root("apiserver.request", remote);
    span.set("method", parts.method.as_str()).set("path", ferry_trace::recorded_path(parts.uri.path()));
    if let Some(program) = program_of(&parts.headers) {
        span.set("program", program);
    }
    if let Some(cause) = cause_of(&parts.headers) {
        span.caused_by(cause);
    }
    span
}

/// What a program calls itself: the first word of its `User-Agent`, without version and remarks. What is no such word
/// is not recorded.
fn program_of(headers: &HeaderMap) -> Option<&str> {
    const LONGEST: usize = 40;
    let agent = headers.get(http::header::USER_AGENT)?.to_str().ok()?;
    let name = agent.split(['/', ' ', '(']).next()?;
    let is_name = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
    (is_name && (1..=LONGEST).contains(&name.len())).then_some(name)
}

/// The revision that a controller was woken by, as its client says.
fn cause_of(headers: &HeaderMap) -> Option<i64> {
    let baggage = headers.get("baggage")?.to_str().ok()?;
    baggage.split(',').find_map(|entry| entry.trim().strip_prefix("ferry-cause=")?.parse().ok())
}

/// Refuses a client that does not read its responses.
fn limit_unread_responses(api: &Api, connection: &Connection, user: &User) -> Result<ResponseMemory, Status> {
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

/// The authenticated caller.
#[derive(Clone, Default)]
struct Caller {
    user: Arc<User>,
    /// The Secret that keeps the token.
    token_kept_in: Option<Arc<str>>,
}

impl From<Arc<User>> for Caller {
    fn from(user: Arc<User>) -> Caller {
        Caller { user, token_kept_in: None }
    }
}

async fn authenticate(
    api: &Api,
    connection: &Connection,
    parts: &http::request::Parts,
    info: &RequestInfo,
) -> Result<Caller, Status> {
    if let Some(identity) = &connection.identity {
        return Ok(identity.clone().into());
    }
    if ui::is_public(info) {
        return Ok(Arc::new(User::anonymous()).into());
    }
    let began = Moment::now();
    let mut span = ferry_trace::span_since("filter.authentication", began);
    let refused = |error: &dyn std::fmt::Display, span: &mut Span| {
        span.forget();
        tracing::debug!(path = %info.path, %error, "unauthorized");
        Status::unauthorized()
    };
    let websocket_bearer = websocket_token(&parts.headers).map_err(|error| refused(&error, &mut span))?;
    let headers = PlainHeaders(&parts.headers);
    let shown = Credentials {
        authorization: parts.headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok()),
        websocket_bearer: websocket_bearer.as_ref().map(|bearer| bearer.token.as_str()),
        client_certificates: &connection.client_certificates,
        headers: &headers,
        path: &info.path,
        peer: connection.peer,
        now: SystemTime::now(),
    };
    ui::refuse_other_pages(&shown, parts).map_err(|error| refused(&error, &mut span))?;
    let session = api.sign_ins.session(parts, shown.now).map_err(|error| refused(&error, &mut span))?;
    let authenticated = match &session {
        Some(session) => {
            span.set("by", "session");
            let credentials = session.credentials(&info.path, connection.peer, shown.now);
            span.in_scope(api.authentication.authenticate(&credentials)).await
        }
        None => span.in_scope(api.authentication.authenticate(&shown)).await,
    };
    let took = began.elapsed();
    span.took(took);
    metrics::authenticated(authenticated.is_ok(), took);
    match authenticated {
        Ok(identity) => {
            span.set("user", &identity.user.name);
            Ok(Caller { user: identity.user, token_kept_in: identity.kept_in })
        }
        Err(unauthorized) => Err(refused(&unauthorized, &mut span)),
    }
}

/// Applies the `Impersonate-*` headers if the caller is authorized.
async fn impersonate(
    api: &Api,
    headers: &HeaderMap,
    info: &RequestInfo,
    user: Arc<User>,
) -> Result<Impersonated, Status> {
    let impersonated =
        wanted_user(&PlainHeaders(headers)).map_err(|error| Status::bad_request(error.to_string()))?;
    let Some(impersonated) = impersonated else { return Ok(Impersonated { user, constraint: None }) };
    let mut span = ferry_trace::span("filter.impersonation");
    let attributes = info.attributes(&user);
    api.impersonation.decide(&api.authorization, &impersonated, &attributes).await.map_err(|refusal| {
        span.fail(&refusal);
        forbidden(refusal)
    })
}

async fn authorize(api: &Api, info: &RequestInfo, user: &User) -> Decision {
    let began = Moment::now();
    let mut span = ferry_trace::span_since("filter.authorization", began);
    let decision = span.in_scope(api.authorization.authorize(&info.attributes(user))).await;
    let took = began.elapsed();
    span.took(took);
    metrics::authorized(&decision, took);
    decision
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

/// For everything from the first filter to the answer, so that nobody holds a place by being slow. The caller may ask
/// for less time than everybody has.
fn deadline(longest: Duration, info: &RequestInfo, query: &Query) -> Result<Option<Deadline>, Status> {
    if info.is_long_running() {
        return Ok(None);
    }
    let asked = match query.text("timeout") {
        "" => 0,
        text => ferry_api::duration::parse(text).ok_or_else(|| {
            Status::bad_request(format!(
                "invalid timeout specified in the request URL - time: invalid duration {text:?}"
            ))
        })?,
    };
    let asked = u64::try_from(asked).ok().filter(|asked| *asked > 0).map(Duration::from_nanos);
    Ok(Some(Deadline::now() + asked.map_or(longest, |asked| asked.min(longest))))
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
    for warning in fitting(&request.warnings.lock()) {
        let text = warning.replace('\\', "\\\\").replace('"', "\\\"").replace(['\n', '\r'], " ");
        if let Ok(value) = HeaderValue::from_str(&format!("299 - \"{text}\"")) {
            response.headers_mut().append(WARNING, value);
        }
    }
}

/// The warnings that fit into the response's headers.
fn fitting(warnings: &[String]) -> Vec<&str> {
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
    fn a_timeout_shortens_a_request_and_one_that_cannot_be_read_is_refused() {
        let longest = Duration::from_secs(60);
        let asked = |verb: &'static str, query: &str| {
            let info = RequestInfo { verb, ..RequestInfo::default() };
            let before = Deadline::now();
            deadline(longest, &info, &Query::parse(query)).map(|deadline| deadline.map(|end| end - before))
        };
        let within = |query: &str, least: u64, most: u64| {
            let time = asked("get", query).unwrap().unwrap().as_secs_f64();
            assert!(time >= least as f64 && time < most as f64, "{query}: {time}");
        };
        within("", 60, 90);
        within("timeout=10s", 10, 40);
        within("timeout=0s", 60, 90);
        within("timeout=2h", 60, 90);
        let refused = asked("get", "timeout=soon").unwrap_err();
        assert_eq!(refused.code, 400);
        assert!(refused.message.ends_with("time: invalid duration \"soon\""), "{}", refused.message);
        assert!(asked("watch", "timeout=soon").unwrap().is_none(), "what is long has no deadline");
    }

    #[test]
    fn warnings_of_a_response_are_limited() {
        let few = vec!["é".repeat(2000), "b".repeat(96)];
        assert_eq!(fitting(&few), few);
        let long = vec!["é".repeat(1 << 20), "b".into()];
        assert_eq!(fitting(&long), ["é".repeat(CUT_WARNING).as_str(), "b"]);
        let many: Vec<String> = (0..100_000).map(|index| format!("{index:0300}")).collect();
        assert_eq!(fitting(&many).len(), WARNINGS_LENGTH / CUT_WARNING);
    }
}
