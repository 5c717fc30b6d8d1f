//! Listening: TCP, TLS where an address asks for it, HTTP/1.1 and HTTP/2 on one port.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ferry_store::{Embedded, Store};
use http::header::CONTENT_TYPE;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use sha2::{Digest, Sha256};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::lease::Leases;
pub use crate::service::Limits;
use crate::service::{Identity, Service};

/// A client that begins a connection and then says nothing is not waited for.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// How often a client that says nothing is asked whether it is still there, and how long it may take to answer.
const PING: (Duration, Duration) = (Duration::from_secs(30), Duration::from_secs(20));
/// Requests that are being answered when the server stops may take so long.
const GRACE: Duration = Duration::from_secs(2);

pub struct Config {
    pub listen: Vec<Listen>,
    /// For addresses that ask for it.
    pub tls: Option<Tls>,
    pub member: Member,
    /// Where leases are kept; nowhere, for a store in memory.
    pub lease_file: Option<PathBuf>,
    /// Whether what is acknowledged survives the loss of power.
    pub sync: bool,
    pub limits: Limits,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listen {
    pub address: SocketAddr,
    pub tls: bool,
    /// Health and metrics, for whoever has no client certificate; not the API.
    pub pages_only: bool,
}

/// Files in PEM format.
#[derive(Debug, Clone)]
pub struct Tls {
    pub certificate: PathBuf,
    pub key: PathBuf,
    /// Clients need a certificate that one of these has signed.
    pub client_ca: Option<PathBuf>,
}

#[derive(Debug, Clone)]
pub struct Member {
    pub name: String,
    pub peer_urls: Vec<String>,
    pub client_urls: Vec<String>,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot listen on {address}: {source}")]
    Listen { address: SocketAddr, source: io::Error },
    #[error("cannot use {}: {words}", path.display())]
    Certificate { path: PathBuf, words: String },
    #[error("an address is https and no certificate and key were given")]
    NoCertificate,
    #[error("cannot read the leases: {0}")]
    Leases(io::Error),
}

pub struct Running {
    pub addresses: Vec<SocketAddr>,
    store: Arc<Embedded>,
    stopped: CancellationToken,
    tasks: TaskTracker,
}

/// Listens on every address, and serves the store until `stop`.
pub async fn start(config: Config, store: Arc<Embedded>) -> Result<Running, Error> {
    let leases = Leases::open(config.lease_file.as_deref(), config.sync, store.leased());
    let service = Service {
        store: store.clone(),
        leases: Arc::new(leases.map_err(Error::Leases)?),
        member: Arc::new(identity(config.member)),
        limits: config.limits,
        stopped: CancellationToken::new(),
    };
    let (stopped, tasks) = (service.stopped.clone(), TaskTracker::new());
    let mut addresses = Vec::new();
    for Listen { address, tls, pages_only } in config.listen {
        let acceptor = match (tls, &config.tls) {
            (false, _) => None,
            (true, Some(tls)) => {
                let tls = Tls { client_ca: tls.client_ca.clone().filter(|_| !pages_only), ..tls.clone() };
                Some(TlsAcceptor::from(Arc::new(server_config(&tls)?)))
            }
            (true, None) => return Err(Error::NoCertificate),
        };
        let door = ClientAccess { tls: acceptor, pages_only };
        let cannot_listen = |source| Error::Listen { address, source };
        let listener = TcpListener::bind(address).await.map_err(cannot_listen)?;
        addresses.push(listener.local_addr().map_err(cannot_listen)?);
        tasks.spawn(accept(listener, door, service.clone(), tasks.clone()));
    }
    tasks.spawn(service.leases.clone().expire(store.clone(), stopped.clone()));
    Ok(Running { addresses, store, stopped, tasks })
}

impl Running {
    /// Ends every connection and closes the store.
    pub async fn stop(self) -> ferry_store::Result<()> {
        self.stopped.cancel();
        self.tasks.close();
        if tokio::time::timeout(GRACE, self.tasks.wait()).await.is_err() {
            tracing::warn!("some requests are not answered: they took too long");
        }
        self.store.close().await
    }
}

/// What one address serves, and with which TLS.
#[derive(Clone)]
struct ClientAccess {
    tls: Option<TlsAcceptor>,
    pages_only: bool,
}

async fn accept(listener: TcpListener, door: ClientAccess, service: Service, tasks: TaskTracker) {
    let stopped = service.stopped.clone();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = stopped.cancelled() => return,
        };
        match accepted {
            Ok((stream, _)) => drop(tasks.spawn(connection(stream, door.clone(), service.clone()))),
            Err(error) => {
                // No descriptor is left, as a rule; one that is closed helps.
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn connection(stream: TcpStream, door: ClientAccess, service: Service) {
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "a connection waits for full packets");
    }
    let pages_only = door.pages_only;
    match door.tls {
        None => serve(stream, pages_only, service).await,
        Some(tls) => match tokio::time::timeout(HANDSHAKE, tls.accept(stream)).await {
            Ok(Ok(stream)) => serve(stream, pages_only, service).await,
            Ok(Err(error)) => tracing::info!(%error, "a client could not agree on TLS"),
            Err(_) => tracing::info!("a client did not finish its TLS handshake"),
        },
    }
}

async fn serve(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    pages_only: bool,
    service: Service,
) {
    let stopped = service.stopped.clone();
    let first_request = service.limits.first_request;
    let came = Arc::new(Notify::new());
    let first = came.clone();
    let answer = service_fn(move |request: http::Request<Incoming>| {
        came.notify_one();
        let service = service.clone();
        async move { Ok::<_, std::convert::Infallible>(respond(service, pages_only, request).await) }
    });
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(HANDSHAKE);
    // A watch is a stream that does not end, and one client of etcd's may have very many.
    builder.http2().timer(TokioTimer::new()).max_concurrent_streams(u32::MAX);
    builder.http2().keep_alive_interval(PING.0).keep_alive_timeout(PING.1);
    // Which version of HTTP it is the first bytes tell, and hyper waits for them without a limit.
    let silent = async {
        if tokio::time::timeout(first_request, first.notified()).await.is_ok() {
            std::future::pending::<()>().await;
        }
    };
    let connection = builder.serve_connection(TokioIo::new(stream), answer);
    tokio::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = silent => {
            connection.as_mut().graceful_shutdown();
            tokio::time::timeout(GRACE, connection).await.unwrap_or_else(|_| Err("it goes on all the same".into()))
        }
        () = stopped.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection ended");
    }
}

async fn respond(
    service: Service,
    pages_only: bool,
    request: http::Request<Incoming>,
) -> http::Response<tonic::body::Body> {
    let kind = request.headers().get(CONTENT_TYPE).map(http::HeaderValue::as_bytes).unwrap_or_default();
    match kind.starts_with(b"application/grpc") && !pages_only {
        true => service.call(request).await,
        false => service.page(request.method(), request.uri().path()).await,
    }
}

fn server_config(tls: &Tls) -> Result<ServerConfig, Error> {
    let unusable = |path: &PathBuf| {
        let path = path.clone();
        move |words: String| Error::Certificate { path, words }
    };
    let certificates = |path: &PathBuf| -> Result<Vec<CertificateDer<'static>>, Error> {
        let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect);
        read.map_err(|error| unusable(path)(error.to_string()))
    };
    let chain = certificates(&tls.certificate)?;
    let key =
        PrivateKeyDer::from_pem_file(&tls.key).map_err(|error| unusable(&tls.key)(error.to_string()))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(|error| unusable(&tls.certificate)(error.to_string()))?;
    let builder = match &tls.client_ca {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let mut roots = RootCertStore::empty();
            for certificate in certificates(path)? {
                roots.add(certificate).map_err(|error| unusable(path)(error.to_string()))?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build();
            builder.with_client_cert_verifier(verifier.map_err(|error| unusable(path)(error.to_string()))?)
        }
    };
    let mut config = builder
        .with_single_cert(chain, key)
        .map_err(|error| unusable(&tls.certificate)(error.to_string()))?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}

/// Its numbers follow from its name and addresses, as etcd's do, so that they are the same after a restart.
fn identity(member: Member) -> Identity {
    let number = |parts: &[&str]| {
        let digest = Sha256::digest(parts.join("\n"));
        u64::from_be_bytes(digest[..8].try_into().expect("a digest has more than 8 bytes"))
    };
    let urls = member.peer_urls.join(",");
    Identity {
        cluster: number(&["cluster", &urls]),
        id: number(&["member", &member.name, &urls]),
        name: member.name,
        peer_urls: member.peer_urls,
        client_urls: member.client_urls,
    }
}
