//! `/ui/`: the web page, and signing in.
//!
//! | request | from | answer |
//! | --- | --- | --- |
//! | `GET /ui/…` | everybody | a file of the page |
//! | `POST /ui/links` | whoever is known | a link's secret, for the caller |
//! | `POST /ui/sessions` with `link` or `token` | the page | a cookie, and the key that goes with it |
//! | `DELETE /ui/sessions` | the page, signed in | the session has ended |
//!
//! A session is no identity of its own. It keeps what its user showed (a token, a client certificate) and shows it to the
//! authenticators again with each request: it cannot outlive the token, the certificate or the trust in either.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::SystemTime;

use ferry_api::Status;
use ferry_auth::authenticate::{ClientCertificates, NoHeaders, Unauthorized};
use ferry_auth::authorize::Reason;
use ferry_auth::user::ALL_AUTHENTICATED;
use ferry_auth::{Credentials, Decision, User};
use ferry_ui::origin::{self, Facts, Refusal};
use ferry_ui::secrets::{Key, LINKS, SESSIONS as SESSION_LIMITS, Secrets};
use ferry_ui::{HEADERS, KEY_HEADER, assets, cookie};
use http::header::{
    AUTHORIZATION, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_TYPE, COOKIE, ETAG, HOST, HeaderValue,
    IF_NONE_MATCH, LOCATION, ORIGIN, SET_COOKIE, UPGRADE, VARY,
};
use http::request::Parts;
use http::{HeaderMap, Method};
use serde::Deserialize;
use serde_json::json;

use crate::api::Api;
use crate::body::Response;
use crate::filters::Connection;
use crate::request::Request;
use crate::request_info::RequestInfo;
use crate::{compress, respond};

pub const BELOW: &str = "/ui/";
const LINKS_PATH: &str = "/ui/links";
pub const SESSIONS: &str = "/ui/sessions";
/// A token or a link: much less than this.
const MOST_BYTES: usize = 64 * 1024;

pub fn is_ours(info: &RequestInfo) -> bool {
    info.path == "/ui" || info.path.starts_with(BELOW)
}

/// The files say nothing about the cluster, and whoever signs in is nobody yet.
pub fn is_public(info: &RequestInfo) -> bool {
    is_ours(info)
        && match info.verb {
            "get" | "head" => true,
            verb => verb == "post" && info.path == SESSIONS,
        }
}

/// Authorizers are not asked about the page: it gives nobody anything that they do not have.
pub fn may(info: &RequestInfo, user: &User) -> Option<Decision> {
    let is_allowed = is_public(info) || (is_ours(info) && user.is_in(ALL_AUTHENTICATED));
    is_allowed.then_some(Decision::Allow { reason: Reason::Static("the page is for everybody") })
}

/// What a caller showed to be known, in a form that can be shown again.
#[derive(Clone, Default)]
pub struct Shown {
    authorization: Option<String>,
    client_certificates: Arc<ClientCertificates>,
    /// The secret of the session that the request was made in.
    session: Option<String>,
}

impl Shown {
    pub fn credentials<'a>(
        &'a self,
        path: &'a str,
        peer: Option<SocketAddr>,
        now: SystemTime,
    ) -> Credentials<'a> {
        Credentials {
            authorization: self.authorization.as_deref(),
            websocket_bearer: None,
            client_certificates: &self.client_certificates,
            // What a front proxy says counts for the one request in which it says it.
            headers: &NoHeaders,
            path,
            peer,
            now,
        }
    }
}

/// For requests to sign in or out; every other request's credentials end with the filters.
pub fn shown(connection: &Connection, parts: &Parts, info: &RequestInfo) -> Result<Option<Shown>, Status> {
    if !is_ours(info) || matches!(info.verb, "get" | "head") {
        return Ok(None);
    }
    if info.path == SESSIONS && info.verb == "post" {
        // Somebody else's page must not sign its visitor in as somebody else.
        origin::of_page(&facts(parts))
            .map_err(|refusal| Status::new(403, "Forbidden", refusal.to_string()))?;
        return Ok(Some(Shown::default()));
    }
    Ok(Some(Shown {
        authorization: text(&parts.headers, AUTHORIZATION.as_str()).map(str::to_owned),
        client_certificates: connection.client_certificates.clone(),
        session: secret(parts).map(str::to_owned),
    }))
}

/// A client certificate goes with every request of a browser's, whichever page made it.
pub fn refuse_other_pages(shown: &Credentials<'_>, parts: &Parts) -> Result<(), Refusal> {
    match shown.authorization.is_none() && !shown.client_certificates.chain().is_empty() {
        true => origin::of_certificate(&facts(parts)),
        false => Ok(()),
    }
}

/// Links that were given out, and sessions.
pub struct SignIns {
    links: Secrets<Shown>,
    sessions: Secrets<(Shown, Key)>,
}

impl Default for SignIns {
    fn default() -> SignIns {
        SignIns { links: Secrets::new(LINKS), sessions: Secrets::new(SESSION_LIMITS) }
    }
}

/// Why a session's key was shown in vain.
#[derive(Debug)]
pub enum NoSession {
    NoCookie,
    Ended,
    Origin(Refusal),
}

impl fmt::Display for NoSession {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NoSession::NoCookie => formatter.write_str("a session's key without its cookie"),
            NoSession::Ended => formatter.write_str("there is no such session"),
            NoSession::Origin(refusal) => refusal.fmt(formatter),
        }
    }
}

impl SignIns {
    /// The session that a request is made in. A cookie without the key is no credential: browsers send it along with what
    /// any page asks for, and to other ports of the host.
    pub fn session(&self, parts: &Parts, now: SystemTime) -> Result<Option<Shown>, NoSession> {
        let Some(key) = text(&parts.headers, KEY_HEADER) else { return Ok(None) };
        origin::of_page(&facts(parts)).map_err(NoSession::Origin)?;
        let secret = secret(parts).ok_or(NoSession::NoCookie)?;
        let (shown, kept) = self.sessions.get(secret, now).ok_or(NoSession::Ended)?;
        if kept.is(key) { Ok(Some(shown)) } else { Err(NoSession::Ended) }
    }
}

fn facts(parts: &Parts) -> Facts<'_> {
    let said = |name: &str| text(&parts.headers, name);
    Facts {
        site: said("sec-fetch-site"),
        mode: said("sec-fetch-mode"),
        destination: said("sec-fetch-dest"),
        // There, but unreadable, is another one.
        origin: parts.headers.get(ORIGIN).map(|origin| origin.to_str().unwrap_or("")),
        authority: parts.uri.authority().map(http::uri::Authority::as_str).or_else(|| said(HOST.as_str())),
        is_read: parts.method == Method::GET || parts.method == Method::HEAD,
        is_upgrade: parts.headers.contains_key(UPGRADE) || parts.method == Method::CONNECT,
    }
}

/// Nothing where a header is there twice: nobody can say which of them counts.
fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    let mut values = headers.get_all(name).iter();
    let value = values.next()?.to_str().ok()?;
    values.next().is_none().then_some(value)
}

fn secret(parts: &Parts) -> Option<&str> {
    cookie::find(parts.headers.get_all(COOKIE).iter().filter_map(|value| value.to_str().ok()))
}

pub async fn answer(api: &Api, request: &Request) -> Result<Response, Status> {
    let answered = match (&request.method, request.info.path.as_str()) {
        (&Method::POST, LINKS_PATH) => give_link(api, request).await,
        (&Method::POST, SESSIONS) => sign_in(api, request).await,
        (&Method::DELETE, SESSIONS) => Ok(sign_out(api, request)),
        (&Method::GET | &Method::HEAD, path) => Ok(file(request, path)),
        _ => Err(Status::method_not_allowed()),
    };
    let mut response = answered.unwrap_or_else(|status| respond::status(&status));
    for (name, value) in HEADERS {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    Ok(response)
}

fn file(request: &Request, path: &str) -> Response {
    let Some(path) = path.strip_prefix(BELOW) else {
        let builder = http::Response::builder().status(308).header(LOCATION, BELOW);
        return respond::finish(builder, "".into());
    };
    let Some(asset) = assets::find(path) else { return respond::page_not_found() };
    let builder = http::Response::builder()
        .header(CONTENT_TYPE, asset.content_type)
        .header(ETAG, &asset.etag)
        .header(CACHE_CONTROL, "no-cache")
        .header(VARY, "Accept-Encoding");
    if request.header(IF_NONE_MATCH.as_str()).split(',').any(|known| known.trim() == asset.etag) {
        return respond::finish(builder.status(304), "".into());
    }
    match asset.gzip.as_deref().filter(|_| compress::accepts(&request.headers)) {
        Some(gzip) => {
            respond::finish(builder.header(CONTENT_ENCODING, "gzip"), bytes::Bytes::from_static(gzip).into())
        }
        None => respond::finish(builder, bytes::Bytes::from_static(asset.bytes).into()),
    }
}

/// A link for the caller, as whom it signs in.
async fn give_link(api: &Api, request: &Request) -> Result<Response, Status> {
    let shown = request.shown.clone().unwrap_or_default();
    let shown = Shown { session: None, ..shown };
    let now = SystemTime::now();
    let same = authenticate(api, request, &shown, now).await.is_ok_and(|user| *user == *request.user);
    if !same {
        // A front proxy's word, impersonation, a component of this process, a session.
        let message = "a link is given to whoever shows a token or a client certificate of their own";
        return Err(Status::new(403, "Forbidden", message));
    }
    let link = api.sign_ins.links.issue(&request.user.name, shown, now);
    let seconds = api.sign_ins.links.life().as_secs();
    Ok(secret_json(201, &json!({ "link": link, "expiresInSeconds": seconds })))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
enum SignIn {
    Link(String),
    Token(String),
}

async fn sign_in(api: &Api, request: &Request) -> Result<Response, Status> {
    if request.body.len() > MOST_BYTES {
        return Err(Status::too_large(MOST_BYTES));
    }
    // What was sent is a secret; no part of it is quoted.
    let asked = serde_json::from_slice(&request.body)
        .map_err(|_| Status::bad_request("the body must be {\"link\": …} or {\"token\": …}"))?;
    let now = SystemTime::now();
    let shown = match asked {
        SignIn::Link(link) => api.sign_ins.links.take(&link, now).ok_or_else(Status::unauthorized)?,
        SignIn::Token(token) => {
            Shown { authorization: Some(format!("Bearer {}", token.trim())), ..Shown::default() }
        }
    };
    let user = authenticate(api, request, &shown, now).await.map_err(|_| Status::unauthorized())?;
    if !user.is_in(ALL_AUTHENTICATED) {
        return Err(Status::unauthorized());
    }
    let (key, kept) = Key::generate();
    let secret = api.sign_ins.sessions.issue(&user.name, (shown, kept), now);
    let life = api.sign_ins.sessions.life();
    let mut response =
        secret_json(201, &json!({ "key": key, "user": user.name, "expiresInSeconds": life.as_secs() }));
    set_cookie(&mut response, &cookie::set(&secret, life));
    Ok(response)
}

fn sign_out(api: &Api, request: &Request) -> Response {
    if let Some(session) = request.shown.as_ref().and_then(|shown| shown.session.as_deref()) {
        api.sign_ins.sessions.take(session, SystemTime::now());
    }
    let mut response = secret_json(200, &json!({}));
    set_cookie(&mut response, &cookie::forget());
    response
}

async fn authenticate(
    api: &Api,
    request: &Request,
    shown: &Shown,
    now: SystemTime,
) -> Result<Arc<User>, Unauthorized> {
    let credentials = shown.credentials(&request.info.path, request.peer, now);
    Ok(api.authentication.authenticate(&credentials).await?.user)
}

/// An answer that nothing on the way may keep.
fn secret_json(code: u16, value: &serde_json::Value) -> Response {
    let mut response = respond::json_bytes(code, value.to_string().into());
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

fn set_cookie(response: &mut Response, cookie: &str) {
    if let Ok(cookie) = HeaderValue::from_str(cookie) {
        response.headers_mut().insert(SET_COOKIE, cookie);
    }
}
