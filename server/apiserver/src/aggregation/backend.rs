//! The connections to one aggregated API server: TLS with this server's front-proxy certificate, to whatever address its
//! Service has when a connection is made.

use std::error::Error;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use ferry_admission::service_address;
use ferry_client::tls::{self, Trust};
use ferry_client::trusted_certificates::TrustedCertificates;
use ferry_registry::Registry;
use futures::FutureExt;
use futures::future::BoxFuture;
use http::{Request, Response, Uri};
use http_body_util::combinators::UnsyncBoxBody;
use hyper::body::Incoming;
use hyper_rustls::{FixedServerNameResolver, HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use parking_lot::RwLock;
use rustls::client::ResolvesClientCert;
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, SignatureScheme};
use rustls_pki_types::ServerName;
use tokio::net::TcpStream;
use tokio::sync::{Notify, Semaphore};

use super::registration::{Registration, ServiceReference};

pub type BoxError = Box<dyn Error + Send + Sync>;
/// Passed on as it comes in.
pub type PassedBody = UnsyncBoxBody<Bytes, BoxError>;
type Client = legacy::Client<HttpsConnector<Dial>, PassedBody>;

const CONNECT: Duration = Duration::from_secs(10);
/// Connections that are kept for the next request, and how long.
const IDLE_CONNECTIONS: usize = 32;
const IDLE: Duration = Duration::from_secs(90);
/// Requests at once that are no watches or streams. A backend that is slow holds no more of the server than this, and
/// none of the places that other requests have.
const AT_ONCE: usize = 400;

pub struct Backend {
    pub group: String,
    pub version: String,
    pub service: ServiceReference,
    pub places: Semaphore,
    /// Requests fail that reached it before.
    pub failing: Notify,
    /// For requests; why there is none where the caBundle cannot be read.
    client: Result<Client, String>,
    /// For the question whether anybody is there, which believes everybody and keeps no connection: it shall see what
    /// a new one would.
    probe: Client,
}

impl Backend {
    pub fn new(
        registry: Arc<Registry>,
        front_proxy: Arc<FrontProxy>,
        registration: &Registration,
        service: &ServiceReference,
    ) -> Result<Backend, String> {
        let name = format!("{}.{}.svc", service.name, service.namespace);
        let name = ServerName::try_from(name).map_err(|error| error.to_string())?;
        let client = |config: ClientConfig, idle: usize| {
            let dial = Dial { registry: registry.clone(), service: service.clone() };
            let connector = HttpsConnectorBuilder::new()
                .with_tls_config(config)
                .https_only()
                .with_server_name_resolver(FixedServerNameResolver::new(name.clone()))
                .enable_http1()
                .wrap_connector(dial);
            legacy::Client::builder(TokioExecutor::new())
                .pool_timer(TokioTimer::new())
                .pool_max_idle_per_host(idle)
                .pool_idle_timeout(IDLE)
                .build(connector)
        };
        let probe = client(outgoing(Trust::Anybody, &front_proxy)?, 0);
        let trust = match (&registration.ca_bundle, registration.skips_verification) {
            (_, true) => Ok(Trust::Anybody),
            (Some(bundle), false) => TrustedCertificates::bundle(bundle)
                .map(Trust::Certificates)
                .map_err(|error| error.to_string()),
            (None, false) => Ok(Trust::System),
        };
        Ok(Backend {
            group: registration.group.clone(),
            version: registration.version.clone(),
            service: service.clone(),
            places: Semaphore::new(AT_ONCE),
            failing: Notify::new(),
            client: trust
                .and_then(|trust| outgoing(trust, &front_proxy))
                .map(|config| client(config, IDLE_CONNECTIONS)),
            probe,
        })
    }

    /// `/apis/GROUP/VERSION`, the path that each has to answer.
    pub fn path(&self) -> String {
        match self.group.as_str() {
            "" => format!("/api/{}", self.version),
            group => format!("/apis/{group}/{}", self.version),
        }
    }

    /// The address of a path; its host is the name that the certificate has to bear.
    pub fn url(&self, path_and_query: &str) -> String {
        let ServiceReference { namespace, name, port } = &self.service;
        format!("https://{name}.{namespace}.svc:{port}{path_and_query}")
    }

    pub async fn send(&self, request: Request<PassedBody>) -> Result<Response<Incoming>, String> {
        let client = self.client.as_ref().map_err(Clone::clone)?;
        client.request(request).await.map_err(|error| cause(&error))
    }

    pub async fn probe(&self, request: Request<PassedBody>) -> Result<Response<Incoming>, String> {
        self.probe.request(request).await.map_err(|error| cause(&error))
    }
}

/// The certificate by which backends know this server; connections take whichever is current.
pub struct FrontProxy(RwLock<Arc<CertifiedKey>>);

impl FrontProxy {
    pub fn new(key: CertifiedKey) -> FrontProxy {
        FrontProxy(RwLock::new(Arc::new(key)))
    }

    pub fn replace(&self, key: CertifiedKey) {
        *self.0.write() = Arc::new(key);
    }
}

impl std::fmt::Debug for FrontProxy {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("FrontProxy")
    }
}

impl ResolvesClientCert for FrontProxy {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        Some(self.0.read().clone())
    }

    fn has_certs(&self) -> bool {
        true
    }
}

fn outgoing(trust: Trust, front_proxy: &Arc<FrontProxy>) -> Result<ClientConfig, String> {
    let builder = tls::trusting(trust).map_err(|error| error.to_string())?;
    Ok(builder.with_client_cert_resolver(front_proxy.clone()))
}

/// Makes connections to where the Service is now.
#[derive(Clone)]
struct Dial {
    registry: Arc<Registry>,
    service: ServiceReference,
}

#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct DialError(String);

impl tower::Service<Uri> for Dial {
    type Response = TokioIo<TcpStream>;
    type Error = DialError;
    type Future = BoxFuture<'static, Result<TokioIo<TcpStream>, DialError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), DialError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let ServiceReference { namespace, name, port } = &self.service;
        let address = service_address::resolve(&self.registry, namespace, name, *port);
        async move {
            let address = address.map_err(DialError)?;
            let failed = |why: &str| DialError(format!("dial tcp {address}: {why}"));
            match tokio::time::timeout(CONNECT, TcpStream::connect(&address)).await {
                Ok(Ok(stream)) => {
                    // Without it a short question waits for the answer to the one before.
                    let _ = stream.set_nodelay(true);
                    Ok(TokioIo::new(stream))
                }
                Ok(Err(error)) if error.kind() == std::io::ErrorKind::ConnectionRefused => {
                    Err(failed("connect: connection refused"))
                }
                Ok(Err(error)) => Err(failed(&error.to_string())),
                Err(_) => Err(failed("i/o timeout")),
            }
        }
        .boxed()
    }
}

/// The reason at the end of a chain of errors, in the words that clients know.
fn cause(error: &(dyn Error + 'static)) -> String {
    let mut last = error;
    let mut chain = vec![last.to_string()];
    while let Some(source) = last.source() {
        if let Some(dial) = source.downcast_ref::<DialError>() {
            return dial.to_string();
        }
        last = source;
        chain.push(last.to_string());
    }
    let whole = chain.join(": ");
    const UNVERIFIED: &str = "tls: failed to verify certificate: x509: certificate";
    match () {
        // An authority of the right name that did not sign it is as unknown as one of another name.
        () if whole.contains("UnknownIssuer") || whole.contains("BadSignature") => {
            format!("{UNVERIFIED} signed by unknown authority")
        }
        () if whole.contains("NotValidForName") => {
            format!("{UNVERIFIED} is not valid for the requested name")
        }
        () => chain.pop().unwrap_or(whole),
    }
}
