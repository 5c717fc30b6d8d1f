//! A bound port and its connections.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use ferry_client::CancellationToken;
use http::header::{AUTHORIZATION, CONTENT_LENGTH};
use http::{Method, Request, Response, StatusCode};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Empty, Full};
use hyper::body::{Body as _, Incoming};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use rustls::server::WebPkiClientVerifier;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_util::task::TaskTracker;

use crate::guard::User;
use crate::unauthenticated_connections::{self, UnauthenticatedConnection, UnauthenticatedConnections};

const HANDSHAKE: Duration = Duration::from_secs(10);
/// From the connection's beginning, or one request's, until the next one's headers are there.
const IDLE: Duration = Duration::from_secs(60);
/// How often a caller that says nothing is asked whether it is still there, and how long it may take to answer.
const PING: (Duration, Duration) = (Duration::from_secs(30), Duration::from_secs(20));

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("listening on {address}: {source}")]
    Listen { address: SocketAddr, source: io::Error },
    #[error("reading {file}: {problem}")]
    File { file: String, problem: String },
    #[error("making a serving certificate: {0}")]
    Certificate(#[from] rcgen::Error),
    #[error("TLS settings: {0}")]
    Tls(String),
}

pub type Body = BoxBody<Bytes, io::Error>;

/// How a port shows who it is, and whose certificates it believes.
#[derive(Clone, Debug)]
pub struct Tls {
    pub certificate: Certificate,
    pub client_ca: Option<ClientCa>,
}

#[derive(Clone, Debug)]
pub enum Certificate {
    Files {
        certificate: PathBuf,
        key: PathBuf,
    },
    /// Made at each start, for these names. Nobody vouches for it, as upstream makes one too.
    SelfSigned(Vec<String>),
}

#[derive(Clone, Debug)]
pub enum ClientCa {
    File(PathBuf),
    Pem(String),
}

/// The bound port, before anything is served on it.
pub struct Listener {
    socket: std::net::TcpListener,
    tls: Option<TlsAcceptor>,
    address: SocketAddr,
}

impl Listener {
    pub fn bind(address: SocketAddr, tls: &Tls) -> Result<Self, Error> {
        let mut listener = Listener::plain(address)?;
        listener.tls = Some(TlsAcceptor::from(Arc::new(tls_config(tls)?)));
        Ok(listener)
    }

    /// Without TLS.
    pub fn plain(address: SocketAddr) -> Result<Self, Error> {
        let listen = |source| Error::Listen { address, source };
        let socket = std::net::TcpListener::bind(address).map_err(listen)?;
        socket.set_nonblocking(true).map_err(listen)?;
        let address = socket.local_addr().map_err(listen)?;
        Ok(Listener { socket, tls: None, address })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

fn tls_config(settings: &Tls) -> Result<rustls::ServerConfig, Error> {
    let (chain, key) = match &settings.certificate {
        Certificate::Files { certificate, key } => {
            let chain = CertificateDer::pem_file_iter(certificate)
                .and_then(Iterator::collect::<Result<Vec<_>, _>>)
                .map_err(|error| bad_file(certificate, &error))?;
            (chain, PrivateKeyDer::from_pem_file(key).map_err(|error| bad_file(key, &error))?)
        }
        Certificate::SelfSigned(names) => self_signed(names)?,
    };
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = rustls::ServerConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(|error| Error::Tls(error.to_string()))?;
    let builder = match &settings.client_ca {
        None => builder.with_no_client_auth(),
        Some(ca) => {
            // a token serves as well, so a certificate is not demanded
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots(ca)?), provider)
                .allow_unauthenticated()
                .build()
                .map_err(|error| Error::Tls(error.to_string()))?;
            builder.with_client_cert_verifier(verifier)
        }
    };
    let mut tls = builder.with_single_cert(chain, key).map_err(|error| Error::Tls(error.to_string()))?;
    tls.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(tls)
}

fn bad_file(path: &Path, problem: &dyn std::fmt::Display) -> Error {
    Error::File { file: path.display().to_string(), problem: problem.to_string() }
}

fn roots(ca: &ClientCa) -> Result<rustls::RootCertStore, Error> {
    let (path, certificates) = match ca {
        ClientCa::File(path) => (
            path.as_path(),
            CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>),
        ),
        ClientCa::Pem(pem) => {
            (Path::new("the client CA"), CertificateDer::pem_slice_iter(pem.as_bytes()).collect())
        }
    };
    let mut roots = rustls::RootCertStore::empty();
    for certificate in certificates.map_err(|error| bad_file(path, &error))? {
        roots.add(certificate).map_err(|error| bad_file(path, &error))?;
    }
    Ok(roots)
}

fn self_signed(names: &[String]) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), Error> {
    let made = rcgen::generate_simple_self_signed(names)?;
    let key = PrivateKeyDer::try_from(made.signing_key.serialize_der())
        .map_err(|error| Error::Tls(error.into()))?;
    Ok((vec![made.cert.der().clone()], key))
}

/// Serves until stopped. Connections that carry streams end with it. `answer` is told whom the caller's certificate
/// stands for, if it showed one.
pub async fn serve<A, F>(listener: Listener, answer: A, stop: CancellationToken)
where
    A: Fn(Request<Incoming>, Option<User>) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Response<Body>> + Send + 'static,
{
    let socket = match tokio::net::TcpListener::from_std(listener.socket) {
        Ok(socket) => socket,
        Err(error) => {
            tracing::error!(%error, address = %listener.address, "the port cannot be served");
            return;
        }
    };
    let connections = TaskTracker::new();
    let strangers = UnauthenticatedConnections::new(unauthenticated_connections::MOST);
    loop {
        let accepted = tokio::select! {
            () = stop.cancelled() => break,
            accepted = socket.accept() => accepted,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                // out of descriptors, say: others must end before this can go on
                tracing::warn!(%error, "connection not accepted");
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        let (tls, answer, stop) = (listener.tls.clone(), answer.clone(), stop.clone());
        let stranger = Arc::new(strangers.add());
        connections.spawn(async move {
            tokio::select! {
                () = stop.cancelled() => {}
                () = stranger.evicted() => {}
                () = serve_connection(stream, tls, answer, stranger.clone()) => {}
            }
        });
    }
    connections.close();
    connections.wait().await;
}

async fn serve_connection<A, F>(
    stream: TcpStream,
    tls: Option<TlsAcceptor>,
    answer: A,
    stranger: Arc<UnauthenticatedConnection>,
) where
    A: Fn(Request<Incoming>, Option<User>) -> F + Send + Sync + 'static,
    F: Future<Output = Response<Body>> + Send + 'static,
{
    // failing to set it only costs latency
    let _ = stream.set_nodelay(true);
    let Some(tls) = tls else {
        ended(converse(stream, false, move |request| answer(request, None)).await);
        return;
    };
    let stream = match tokio::time::timeout(HANDSHAKE, tls.accept(stream)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => {
            tracing::debug!(%error, "TLS handshake failed");
            return;
        }
        Err(_) => return,
    };
    let certificate = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
    let caller = certificate.and_then(User::of_certificate);
    if caller.is_some() {
        // TLS has verified it.
        stranger.authenticated();
    }
    let is_second = stream.get_ref().1.alpn_protocol() == Some(b"h2");
    let answer = move |request: Request<Incoming>| {
        let (shows_token, stranger) = (request.headers().contains_key(AUTHORIZATION), stranger.clone());
        let answered = answer(request, caller.clone());
        async move {
            let response = answered.await;
            if shows_token && !is_refusal(response.status()) {
                stranger.authenticated();
            }
            response
        }
    };
    ended(converse(stream, is_second, answer).await);
}

fn is_refusal(code: StatusCode) -> bool {
    matches!(code, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN)
}

fn ended(result: Result<(), Box<dyn std::error::Error + Send + Sync>>) {
    if let Err(error) = result {
        tracing::debug!(%error, "connection ended");
    }
}

/// One connection's requests, in the version of HTTP that TLS agreed on: waiting for a first byte that tells it would
/// be without a limit. Whoever sends no request for a while is let go; what is being answered is answered to its end.
async fn converse<S, F>(
    stream: S,
    is_second: bool,
    answer: impl Fn(Request<Incoming>) -> F + Send + 'static,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    F: Future<Output = Response<Body>> + Send + 'static,
{
    let builder = auto::Builder::new(TokioExecutor::new());
    let mut builder = if is_second { builder.http2_only() } else { builder.http1_only() };
    builder.http1().timer(TokioTimer::new()).header_read_timeout(IDLE);
    builder.http2().timer(TokioTimer::new()).keep_alive_interval(PING.0).keep_alive_timeout(PING.1);
    let (came, mut requests) = tokio::sync::watch::channel(());
    let service = hyper::service::service_fn(move |request| {
        came.send_replace(());
        let is_head = request.method() == Method::HEAD;
        let answered = answer(request);
        async move {
            let response = answered.await;
            Ok::<_, Infallible>(if is_head { without_body(response) } else { response })
        }
    });
    let mut serving = pin!(builder.serve_connection_with_upgrades(TokioIo::new(stream), service));
    let idle = async { while let Ok(Ok(())) = tokio::time::timeout(IDLE, requests.changed()).await {} };
    tokio::select! {
        served = &mut serving => served,
        () = idle => {
            serving.as_mut().graceful_shutdown();
            serving.await
        }
    }
}

/// What a HEAD is answered with: hyper leaves the body off in HTTP/1 only, and clients take one in HTTP/2 for an error.
fn without_body(response: Response<Body>) -> Response<Body> {
    let (mut head, body) = response.into_parts();
    if let Some(length) = body.size_hint().exact() {
        head.headers.entry(CONTENT_LENGTH).or_insert(length.into());
    }
    Response::from_parts(head, Empty::new().map_err(|never| match never {}).boxed())
}

pub fn text(status: StatusCode, message: impl Into<String>) -> Response<Body> {
    let mut message = message.into();
    message.push('\n');
    respond(status, "text/plain; charset=utf-8", message.into())
}

pub fn respond(status: StatusCode, content_type: &'static str, body: Bytes) -> Response<Body> {
    let mut response = Response::new(Full::new(body).map_err(|never| match never {}).boxed());
    *response.status_mut() = status;
    response.headers_mut().insert("content-type", http::HeaderValue::from_static(content_type));
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    /// A caller says this and no more; the connection must end all the same.
    async fn is_let_go(is_second: bool, says: &[u8]) {
        let (mut caller, stream) = tokio::io::duplex(1 << 16);
        caller.write_all(says).await.expect("there is room");
        let served = converse(stream, is_second, |_| std::future::ready(text(StatusCode::OK, "ok")));
        let limit = IDLE + PING.0 + PING.1;
        let ended = tokio::time::timeout(limit, served).await;
        assert!(ended.is_ok(), "still there after {limit:?}: {:?}", String::from_utf8_lossy(says));
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn unauthenticated_connections_are_limited() {
        let listener = Listener::plain(SocketAddr::from(([127, 0, 0, 1], 0))).expect("a port");
        let (address, stop) = (listener.address(), CancellationToken::new());
        let answer = |_: Request<Incoming>, _: Option<User>| std::future::ready(text(StatusCode::OK, "ok"));
        let serving = tokio::spawn(serve(listener, answer, stop.clone()));
        let mut strangers = Vec::new();
        for _ in 0..unauthenticated_connections::MOST + 10 {
            strangers.push(TcpStream::connect(address).await.expect("a connection"));
        }
        // The oldest is let go long before its time for a request is over; the newest is served.
        let first = strangers.first_mut().expect("many");
        let ended = tokio::time::timeout(IDLE / 4, first.read(&mut [0; 1])).await.expect("let go");
        assert!(!matches!(ended, Ok(1..)), "{ended:?}");
        let last = strangers.last_mut().expect("many");
        last.write_all(b"GET / HTTP/1.1\r\nhost: node\r\n\r\n").await.expect("there is room");
        let mut said = [0; 12];
        last.read_exact(&mut said).await.expect("an answer");
        assert_eq!(&said, b"HTTP/1.1 200");
        stop.cancel();
        serving.await.expect("an orderly end");
    }

    #[tokio::test]
    async fn a_head_is_answered_without_a_body_in_the_second_version_too() {
        let (caller, stream) = tokio::io::duplex(1 << 16);
        tokio::spawn(converse(stream, true, |_| std::future::ready(text(StatusCode::OK, "ok"))));
        let (mut send, connection) =
            hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(caller)).await.unwrap();
        tokio::spawn(connection);
        for (method, expected) in [(Method::GET, "ok\n"), (Method::HEAD, "")] {
            let request = Request::builder().method(method).uri("https://node/healthz");
            let response = send.send_request(request.body(Empty::<Bytes>::new()).unwrap()).await.unwrap();
            assert_eq!(response.headers()[CONTENT_LENGTH], "3");
            assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), expected);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn connections_with_unfinished_requests_are_closed() {
        is_let_go(false, b"").await;
        is_let_go(false, b"GET /healthz HTTP/1.1\r\nhost:").await;
        is_let_go(false, b"GET /healthz HTTP/1.1\r\nhost: node\r\n\r\n").await;
        is_let_go(true, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await;
        is_let_go(true, b"PRI * HTTP/2.0\r\n").await;
    }
}
