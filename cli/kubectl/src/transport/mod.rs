//! One HTTP/1.1 connection to the API server, opened when first needed. A command makes a handful
//! of requests and ends, so there is no pool: an idle connection is reused, a busy one joined by
//! another.

mod kept_stream;
pub mod log;
pub mod query;
pub mod tls;
pub mod websocket;

use std::cell::{Cell, OnceCell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};

use base64::Engine as _;
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::SendRequest;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};

use crate::error::{Error, Result, Status};
use crate::kubeconfig::exec_plugin;
use crate::kubeconfig::oidc;
use crate::kubeconfig::resolve::{ClientConfig, Credentials};
use crate::version;
pub use query::{Query, form_encode};

pub const JSON: &str = "application/json";
pub const JSON_PATCH: &str = "application/json-patch+json";
pub const MERGE_PATCH: &str = "application/merge-patch+json";
pub const STRATEGIC_MERGE_PATCH: &str = "application/strategic-merge-patch+json";
pub const APPLY_PATCH: &str = "application/apply-patch+yaml";
pub const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json";

pub struct Client {
    config: ClientConfig,
    origin: Origin,
    log: log::Log,
    user_agent: String,
    tls: OnceCell<tokio_rustls::TlsConnector>,
    identity: tokio::sync::OnceCell<Identity>,
    idle: RefCell<Option<SendRequest<Full<Bytes>>>>,
    warned: RefCell<Vec<String>>,
    is_traced: Cell<bool>,
    /// Asked of the server before anything else, once.
    requires_version: Cell<bool>,
}

/// Where the server is, taken apart once.
#[derive(Debug, Clone)]
struct Origin {
    secure: bool,
    host: String,
    port: u16,
    /// `host:port` as the URL has it, for the Host header and for messages.
    authority: String,
    /// What a path of the API is appended to, when the server lives below a path.
    prefix: String,
}

/// What the caller presents, once a plugin or a provider has been asked.
#[derive(Debug, Clone, Default)]
struct Identity {
    authorization: Option<HeaderValue>,
    certificate: Vec<u8>,
    key: Vec<u8>,
}

pub struct Request<'a> {
    pub method: Method,
    /// Path and query.
    pub path: &'a str,
    pub accept: &'a str,
    pub content_type: &'a str,
    pub body: Bytes,
}

impl<'a> Request<'a> {
    pub fn get(path: &'a str) -> Self {
        Request { method: Method::GET, path, accept: JSON, content_type: "", body: Bytes::new() }
    }
    pub fn with_body(method: Method, path: &'a str, content_type: &'a str, body: impl Into<Bytes>) -> Self {
        Request { method, path, accept: JSON, content_type, body: body.into() }
    }
    pub fn accept(mut self, accept: &'a str) -> Self {
        self.accept = accept;
        self
    }
}

pub struct Response {
    pub status: StatusCode,
    pub headers: HeaderMap,
    body: Incoming,
    // a streaming body needs its connection; once the body is read the connection is idle again
    sender: Option<SendRequest<Full<Bytes>>>,
    /// `--request-timeout` covers the body, too.
    deadline: Option<tokio::time::Instant>,
    expired: bool,
}

impl Response {
    /// The next piece of the body, or `None` at its end.
    pub async fn chunk(&mut self) -> Result<Option<Bytes>> {
        let Some(deadline) = self.deadline else { return self.next_chunk().await };
        match tokio::time::timeout_at(deadline, self.next_chunk()).await {
            Ok(outcome) => outcome,
            Err(_) => {
                self.expired = true;
                Err(Error::message(
                    "context deadline exceeded (Client.Timeout or context cancellation while reading body)",
                ))
            }
        }
    }

    /// Whether `--request-timeout` ended the body.
    pub fn is_expired(&self) -> bool {
        self.expired
    }

    async fn next_chunk(&mut self) -> Result<Option<Bytes>> {
        loop {
            match self.body.frame().await {
                None => return Ok(None),
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        return Ok(Some(data));
                    }
                }
                Some(Err(error)) => {
                    return Err(Error::message(format!("unexpected end of the response: {error}")));
                }
            }
        }
    }
}

impl Client {
    pub fn new(config: ClientConfig, verbosity: i64, user_agent: &str) -> Result<Self> {
        let origin = Origin::parse(&config.server)?;
        Ok(Client {
            config,
            origin,
            log: log::Log::new(verbosity),
            user_agent: user_agent.to_owned(),
            tls: OnceCell::new(),
            identity: tokio::sync::OnceCell::new(),
            idle: RefCell::new(None),
            warned: RefCell::new(Vec::new()),
            is_traced: Cell::new(false),
            requires_version: Cell::new(false),
        })
    }

    pub fn server(&self) -> &str {
        &self.config.server
    }
    pub fn verbosity(&self) -> i64 {
        self.log.verbosity()
    }
    pub fn authority(&self) -> &str {
        &self.origin.authority
    }
    /// Whether the server has said of a write that it keeps a trace of it.
    pub fn is_traced(&self) -> bool {
        self.is_traced.get()
    }
    pub fn warnings(&self) -> usize {
        self.warned.borrow().len()
    }

    /// `--match-server-version`: no request goes to a server of another version.
    pub fn require_version(&self) {
        self.requires_version.set(true);
    }

    async fn check_version(&self) -> Result<()> {
        let server = self.get_json("/version").await;
        let unread = |error| Error::message(format!("couldn't read version from server: {error}"));
        version::require_match(&server.map_err(unread)?)
    }

    /// Sends a request and hands back whatever the server answers, once the headers are here.
    pub async fn send(&self, request: Request<'_>) -> Result<Response> {
        if self.requires_version.take() {
            Box::pin(self.check_version()).await?;
        }
        let mut span = ferry_trace::span("kubectl.request");
        span.set("method", request.method.as_str());
        span.set("path", ferry_trace::recorded_path(request.path));
        let url = format!("{}{}", self.config.server, request.path);
        let headers = span.in_scope(self.headers(&request)).await?;
        self.log.request(&request.method, &url, &headers, &request.body);
        let started = Instant::now();
        let exchange = span.in_scope(self.exchange(&request, headers));
        let deadline = self.config.timeout.map(|timeout| tokio::time::Instant::now() + timeout);
        let response = match deadline {
            Some(deadline) => tokio::time::timeout_at(deadline, exchange).await.unwrap_or_else(|_| {
                Err(Error::plain(
                    "Unable to connect to the server: net/http: request canceled (Client.Timeout exceeded while awaiting headers)",
                ))
            }),
            None => exchange.await,
        };
        let response = match response {
            Ok(mut response) => {
                response.deadline = deadline;
                response
            }
            Err(error) => {
                span.fail(&error);
                return Err(error);
            }
        };
        self.log.response(&request.method, &url, response.status, &response.headers, started.elapsed());
        self.show_warnings(&response.headers);
        if response.headers.contains_key("traceresponse") {
            self.is_traced.set(true);
        }
        span.set("code", response.status.as_u16());
        Ok(response)
    }

    /// Sends a request and reads the answer whole; anything but success is a Status.
    pub async fn bytes(&self, request: Request<'_>) -> Result<Bytes> {
        let method = request.method.clone();
        let what = resource_of(&method, request.path);
        let response = self.send(request).await?;
        let status = response.status;
        let body = self.read(response).await?;
        if status.is_success() {
            return Ok(body);
        }
        Err(Error::Status(Box::new(Status::from_response(status.as_u16(), &body, method.as_str(), &what))))
    }

    pub async fn json(&self, request: Request<'_>) -> Result<Value> {
        let body = self.bytes(request).await?;
        serde_json::from_slice(&body)
            .map_err(|error| Error::message(format!("the server's answer is not JSON: {error}")))
    }

    pub async fn get_json(&self, path: &str) -> Result<Value> {
        self.json(Request::get(path)).await
    }

    pub async fn post_form(&self, path: &str, form: String) -> Result<Value> {
        self.json(Request::with_body(Method::POST, path, "application/x-www-form-urlencoded", form)).await
    }

    /// Reads the rest of a response and keeps its connection for the next request.
    pub async fn read(&self, mut response: Response) -> Result<Bytes> {
        let mut pieces: Vec<u8> = Vec::new();
        while let Some(piece) = response.chunk().await? {
            pieces.extend_from_slice(&piece);
        }
        if let Some(sender) = response.sender.take() {
            *self.idle.borrow_mut() = Some(sender);
        }
        self.log.response_body(&pieces);
        Ok(pieces.into())
    }

    async fn exchange(&self, request: &Request<'_>, headers: HeaderMap) -> Result<Response> {
        let path = format!("{}{}", self.origin.prefix, request.path);
        let build = |headers: HeaderMap| -> Result<http::Request<Full<Bytes>>> {
            let mut built = http::Request::builder()
                .method(request.method.clone())
                .uri(&path)
                .body(Full::new(request.body.clone()))
                .map_err(|error| Error::message(format!("invalid request path {path:?}: {error}")))?;
            *built.headers_mut() = headers;
            Ok(built)
        };
        let idle = self.idle.borrow_mut().take();
        if let Some(mut sender) = idle.filter(|sender| !sender.is_closed())
            && sender.ready().await.is_ok()
        {
            match sender.try_send_request(build(headers.clone())?).await {
                Ok(answer) => return Ok(respond(answer, sender)),
                // the server closed the idle connection before it saw the request: ask again
                Err(mut error) => {
                    if error.take_message().is_none() {
                        return Err(self.unreachable(&error.into_error()));
                    }
                }
            }
        }
        let mut sender = self.connect_http().await?;
        let answer = sender.send_request(build(headers)?).await.map_err(|error| self.unreachable(&error))?;
        Ok(respond(answer, sender))
    }

    async fn connect_http(&self) -> Result<SendRequest<Full<Bytes>>> {
        let stream = self.connect().await?;
        let (sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .map_err(|error| self.unreachable(&error))?;
        // the connection's own task ends with the runtime, or when the sender is dropped
        tokio::task::spawn_local(async move {
            let _ = connection.await;
        });
        Ok(sender)
    }

    /// A fresh connection, encrypted when the server's URL says so.
    pub async fn connect(&self) -> Result<tls::Stream> {
        let _span = ferry_trace::span("kubectl.connect");
        let connector = match self.origin.secure {
            true => Some(self.connector().await?),
            false => None,
        };
        let stream = match self.proxy() {
            Some(proxy) => self.connect_through(&proxy).await?,
            None => tokio::net::TcpStream::connect((self.origin.host.as_str(), self.origin.port))
                .await
                .map_err(|error| self.refused(&error))?,
        };
        let _ = stream.set_nodelay(true);
        let Some(connector) = connector else { return Ok(tls::Stream::Plain(stream)) };
        let name =
            if self.config.server_name.is_empty() { &self.origin.host } else { &self.config.server_name };
        tls::handshake(connector, name, stream)
            .await
            .map_err(|error| Error::plain(format!("Unable to connect to the server: {error}")))
    }

    /// Certificates that cannot be read are found before anything is sent.
    async fn connector(&self) -> Result<tokio_rustls::TlsConnector> {
        if let Some(connector) = self.tls.get() {
            return Ok(connector.clone());
        }
        let identity = self.identity().await?;
        let connector = tls::connector(
            &self.config.certificate_authority,
            self.config.insecure,
            &identity.certificate,
            &identity.key,
        )?;
        Ok(self.tls.get_or_init(|| connector).clone())
    }

    /// The proxy the kubeconfig names, else the one of the environment.
    fn proxy(&self) -> Option<String> {
        if !self.config.proxy.is_empty() {
            return Some(self.config.proxy.clone());
        }
        let direct = ["127.", "localhost", "::1"].iter().any(|local| self.origin.host.starts_with(local));
        if direct || !self.origin.secure {
            return None;
        }
        let excluded = std::env::var("NO_PROXY").or_else(|_| std::env::var("no_proxy")).unwrap_or_default();
        let is_excluded = excluded.split(',').map(str::trim).filter(|name| !name.is_empty()).any(|name| {
            name == "*"
                || self.origin.host == name.trim_start_matches('.')
                || self.origin.host.ends_with(&format!(".{}", name.trim_start_matches('.')))
        });
        if is_excluded {
            return None;
        }
        let proxy = std::env::var("HTTPS_PROXY").or_else(|_| std::env::var("https_proxy")).ok()?;
        (!proxy.is_empty()).then_some(proxy)
    }

    async fn connect_through(&self, proxy: &str) -> Result<tokio::net::TcpStream> {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let address = Origin::parse(proxy)?;
        let mut stream =
            tokio::net::TcpStream::connect((address.host.as_str(), address.port)).await.map_err(|error| {
                Error::plain(format!("Unable to connect to the server: proxyconnect tcp: {error}"))
            })?;
        let target = format!("{}:{}", self.origin.host, self.origin.port);
        stream.write_all(format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n").as_bytes()).await?;
        let mut answer = Vec::new();
        while !answer.ends_with(b"\r\n\r\n") {
            // a proxy's answer is a few lines; more is no proxy
            if answer.len() > 16 * 1024 {
                return Err(Error::plain("Unable to connect to the server: the proxy's answer is too long"));
            }
            answer.push(stream.read_u8().await?);
        }
        let line = String::from_utf8_lossy(&answer).lines().next().unwrap_or_default().to_owned();
        if line.split(' ').nth(1) != Some("200") {
            return Err(Error::plain(format!("Unable to connect to the server: proxy refused: {line}")));
        }
        Ok(stream)
    }

    /// Who we are: fixed by the kubeconfig, or asked of a plugin or provider once.
    async fn identity(&self) -> Result<&Identity> {
        self.identity
            .get_or_try_init(|| async {
                let mut identity = Identity {
                    authorization: None,
                    certificate: self.config.client_certificate.clone(),
                    key: self.config.client_key.clone(),
                };
                let token = match &self.config.credentials {
                    Credentials::None => String::new(),
                    Credentials::Token(token) => token.clone(),
                    Credentials::Basic { username, password } => {
                        let pair = base64::engine::general_purpose::STANDARD.encode(format!("{username}:{password}"));
                        identity.authorization = Some(secret_header(&format!("Basic {pair}"))?);
                        String::new()
                    }
                    Credentials::Exec { plugin, directory, stdin_taken } => {
                        let cluster = json!({"server": self.config.server,
                            "insecure-skip-tls-verify": self.config.insecure,
                            "certificate-authority-data": base64::engine::general_purpose::STANDARD.encode(&self.config.certificate_authority)});
                        let credential = exec_plugin::run(plugin, directory, &cluster, *stdin_taken)?;
                        if !credential.certificate.is_empty() {
                            identity.certificate = credential.certificate;
                            identity.key = credential.key;
                        }
                        credential.token
                    }
                    Credentials::Oidc { config, user, file } => Box::pin(oidc::token(config, user, file)).await?,
                };
                if !token.is_empty() {
                    identity.authorization = Some(secret_header(&format!("Bearer {token}"))?);
                }
                Ok(identity)
            })
            .await
    }

    async fn headers(&self, request: &Request<'_>) -> Result<HeaderMap> {
        let mut headers = HeaderMap::new();
        headers.insert(http::header::HOST, text_header(&self.origin.authority)?);
        headers.insert(http::header::USER_AGENT, text_header(&self.user_agent)?);
        headers.insert(http::header::ACCEPT, text_header(request.accept)?);
        if !request.content_type.is_empty() {
            headers.insert(http::header::CONTENT_TYPE, text_header(request.content_type)?);
        }
        self.identity_headers(&mut headers).await?;
        Ok(headers)
    }

    /// Authorization, impersonation and the trace this command belongs to.
    pub async fn identity_headers(&self, headers: &mut HeaderMap) -> Result<()> {
        if let Some(authorization) = &self.identity().await?.authorization {
            headers.insert(http::header::AUTHORIZATION, authorization.clone());
        }
        let who = &self.config.impersonate;
        if !who.user.is_empty() {
            headers.insert("impersonate-user", text_header(&who.user)?);
        }
        if !who.uid.is_empty() {
            headers.insert("impersonate-uid", text_header(&who.uid)?);
        }
        for group in &who.groups {
            headers.append("impersonate-group", text_header(group)?);
        }
        for (key, value) in &who.extra {
            let name = HeaderName::try_from(format!("impersonate-extra-{key}"))
                .map_err(|_| Error::message(format!("invalid key of --as-user-extra: {key:?}")))?;
            headers.append(name, text_header(value)?);
        }
        if let Some(context) = ferry_trace::current() {
            headers.insert("traceparent", text_header(&context.to_string())?);
        }
        Ok(())
    }

    fn show_warnings(&self, headers: &HeaderMap) {
        for value in headers.get_all(http::header::WARNING) {
            let Some(text) = value.to_str().ok().and_then(warning_text) else { continue };
            let mut warned = self.warned.borrow_mut();
            if !warned.contains(&text) {
                eprintln!("Warning: {text}");
                warned.push(text);
            }
        }
    }

    fn refused(&self, error: &std::io::Error) -> Error {
        if error.kind() == std::io::ErrorKind::ConnectionRefused {
            return Error::plain(format!(
                "The connection to the server {} was refused - did you specify the right host or port?",
                self.origin.authority
            ));
        }
        Error::plain(format!("Unable to connect to the server: dial tcp {}: {error}", self.origin.authority))
    }

    fn unreachable(&self, error: &hyper::Error) -> Error {
        Error::plain(format!("Unable to connect to the server: {error}"))
    }
}

fn respond(answer: http::Response<Incoming>, sender: SendRequest<Full<Bytes>>) -> Response {
    let (parts, body) = answer.into_parts();
    Response {
        status: parts.status,
        headers: parts.headers,
        body,
        sender: Some(sender),
        deadline: None,
        expired: false,
    }
}

fn text_header(text: &str) -> Result<HeaderValue> {
    HeaderValue::from_str(text).map_err(|_| Error::message(format!("{text:?} cannot be sent as a header")))
}

fn secret_header(text: &str) -> Result<HeaderValue> {
    let mut value = HeaderValue::from_str(text)
        .map_err(|_| Error::message("the credential holds characters a header cannot carry"))?;
    value.set_sensitive(true);
    Ok(value)
}

/// The words inside `299 - "…"`.
fn warning_text(header: &str) -> Option<String> {
    let quoted = header.strip_prefix("299 ")?.split_once(' ')?.1.trim();
    let inner = quoted.strip_prefix('"')?;
    let mut text = String::new();
    let mut characters = inner.chars();
    while let Some(character) = characters.next() {
        match character {
            '\\' => text.extend(characters.next()),
            '"' => break,
            other => text.push(other),
        }
    }
    Some(text)
}

/// What a request was about, for servers that answer without a Status: `get pods web`.
fn resource_of(method: &Method, path: &str) -> String {
    let path = path.split('?').next().unwrap_or(path);
    let mut parts: Vec<&str> = path.trim_matches('/').split('/').collect();
    let skip = match parts.first() {
        Some(&"api") => 2,
        Some(&"apis") => 3,
        _ => return String::new(),
    };
    if parts.len() <= skip {
        return String::new();
    }
    let group = if parts[0] == "apis" { format!(".{}", parts[1]) } else { String::new() };
    parts.drain(..skip);
    if parts.len() > 2 && parts[0] == "namespaces" {
        parts.drain(..2);
    }
    let verb = match method.as_str() {
        "POST" => "post",
        "PUT" => "put",
        "PATCH" => "patch",
        "DELETE" => "delete",
        _ => "get",
    };
    format!(
        "{verb} {}{group}{}",
        parts[0],
        parts[1..].iter().map(|part| format!(" {part}")).collect::<String>()
    )
}

impl Origin {
    fn parse(url: &str) -> Result<Self> {
        let invalid = || Error::message(format!("the server's URL {url:?} is not valid"));
        let (scheme, rest) = url.split_once("://").unwrap_or(("http", url));
        let secure = match scheme {
            "https" => true,
            "http" => false,
            _ => return Err(invalid()),
        };
        let (authority, prefix) = match rest.split_once('/') {
            Some((authority, path)) => (authority, format!("/{}", path.trim_end_matches('/'))),
            None => (rest, String::new()),
        };
        let authority = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
        let default_port = if secure { 443 } else { 80 };
        let (host, port) = match authority.rsplit_once(':') {
            Some((host, port)) if !port.contains(']') => (host, port.parse().map_err(|_| invalid())?),
            _ => (authority, default_port),
        };
        if host.is_empty() {
            return Err(invalid());
        }
        Ok(Origin {
            secure,
            host: host.trim_matches(['[', ']']).to_owned(),
            port,
            authority: authority.to_owned(),
            prefix: if prefix == "/" { String::new() } else { prefix },
        })
    }
}

/// Shared by every part of one command.
pub type SharedClient = Rc<Client>;

/// How long discovery may take before the server counts as unreachable.
pub const DISCOVERY_TIMEOUT: Duration = Duration::from_secs(32);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_url_comes_apart() {
        let check = |url: &str, host: &str, port: u16, prefix: &str| {
            let origin = Origin::parse(url).unwrap();
            assert_eq!(
                (origin.host.as_str(), origin.port, origin.prefix.as_str()),
                (host, port, prefix),
                "{url}"
            );
        };
        check("https://10.0.0.1:6443", "10.0.0.1", 6443, "");
        check("https://api.example/k8s/clusters/c1/", "api.example", 443, "/k8s/clusters/c1");
        check("http://[::1]:8080", "::1", 8080, "");
        check("https://[fd00::1]", "fd00::1", 443, "");
        assert!(Origin::parse("ftp://x").is_err());
    }

    #[test]
    fn warnings_are_unquoted() {
        assert_eq!(warning_text(r#"299 - "use \"v1\" instead""#).as_deref(), Some("use \"v1\" instead"));
        assert_eq!(warning_text("199 x"), None);
    }

    #[test]
    fn a_path_names_its_resource() {
        let check = |path: &str, expected: &str| assert_eq!(resource_of(&Method::GET, path), expected);
        check("/api/v1/namespaces/default/pods/web?x=y", "get pods web");
        check("/apis/apps/v1/namespaces/default/deployments", "get deployments.apps");
        check("/healthz", "");
    }
}
