//! How a component reaches the API: by configuration only, so that it can be moved between
//! processes without knowing.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::uri::PathAndQuery;
use http::{Request, Response, Uri};
use hyper_rustls::{FixedServerNameResolver, HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioIo};
use kube::client::{Body, ClientBuilder, ConfigExt};
use kube::config::{KubeConfigOptions, Kubeconfig as KubeconfigFile};
use kube::{Client, Config};
use rustls_pki_types::{InvalidDnsNameError, ServerName};
use serde::Deserialize;
use tower::buffer::Buffer;
use tower::{BoxError, Layer, Service, ServiceBuilder};

use crate::coalesce::CoalescedWrites;
use crate::kubeconfig::{Files, KubeconfigError};
use crate::propagate::PropagateLayer;
use crate::servers::{self, BadServers, Resolver};
use crate::trusted_certificates::TrustedCertificates;

/// A connection that says nothing is asked after this long whether it lives, and then this often.
const IDLE: Duration = Duration::from_secs(15);
const PROBE: Duration = Duration::from_secs(5);
/// Without an answer for this long a connection is given up and a new one made.
const SILENCE: Duration = Duration::from_secs(15);

/// Where a component's kubeconfig is and which part of it holds.
#[derive(Clone, Debug, Default)]
pub struct Kubeconfig {
    /// Without it: `$KUBECONFIG`, then `~/.kube/config`, then the pod's service account.
    pub path: Option<PathBuf>,
    /// Without it: the file's current context.
    pub context: Option<String>,
    /// Sent as User-Agent, which audit logs and field managers show.
    pub user_agent: Option<String>,
    /// Instead of the file's server: any of these, as https://HOST:PORT.
    pub servers: Vec<String>,
}

#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    #[error("read kubeconfig: {0}")]
    Files(#[from] KubeconfigError),
    #[error("read kubeconfig: {0}")]
    Fields(#[source] serde_json::Error),
    #[error("read kubeconfig: {0}")]
    Kubeconfig(#[from] kube::config::KubeconfigError),
    #[error("there is no kubeconfig, and no service account of a pod: {0}")]
    InCluster(#[from] kube::config::InClusterError),
    #[error("set up the client: {0}")]
    Client(#[from] kube::Error),
    #[error("tls-server-name: {0}")]
    ServerName(#[source] InvalidDnsNameError),
    #[error(transparent)]
    Servers(#[from] BadServers),
}

/// A client over HTTPS.
pub async fn connect(kubeconfig: &Kubeconfig) -> Result<Client, ConnectError> {
    let mut config = read_kubeconfig(kubeconfig).await?;
    if kubeconfig.servers.is_empty() {
        return connect_with(config);
    }
    let (url, resolver) = servers::reach(&kubeconfig.servers)?;
    config.cluster_url = url;
    connect_by(config, resolver, None)
}

/// What the file says: the server, and who calls it.
pub async fn read_kubeconfig(kubeconfig: &Kubeconfig) -> Result<Config, ConnectError> {
    let files = Files::load(kubeconfig.path.as_deref())?;
    let mut config = if files.is_empty() && kubeconfig.path.is_none() && kubeconfig.context.is_none() {
        Config::incluster()?
    } else {
        let options = KubeConfigOptions { context: kubeconfig.context.clone(), ..Default::default() };
        let merged = KubeconfigFile::deserialize(files.merged_with_absolute_paths());
        Config::from_custom_kubeconfig(merged.map_err(ConnectError::Fields)?, &options).await?
    };
    if let Some(agent) = &kubeconfig.user_agent
        && let Ok(value) = agent.parse()
    {
        config.headers.push((http::header::USER_AGENT, value));
    }
    Ok(config)
}

/// A client over HTTPS, for those who have the parts of a configuration at hand.
pub fn connect_with(config: Config) -> Result<Client, ConnectError> {
    connect_by(config, Resolver::system(), None)
}

/// The same with a server that shows one of these certificates, or one that they signed.
pub fn connect_trusting(config: Config, trusted: TrustedCertificates) -> Result<Client, ConnectError> {
    connect_by(config, Resolver::system(), Some(trusted))
}

fn connect_by(
    config: Config,
    resolver: Resolver,
    trusted: Option<TrustedCertificates>,
) -> Result<Client, ConnectError> {
    let propagate =
        PropagateLayer { host: config.cluster_url.authority().map_or("", |at| at.as_str()).into() };
    // Proxies and plugins are kube's own affair.
    if config.proxy_url.is_some() || config.auth_info.exec.is_some() {
        let traced = tower::layer::layer_fn(|service| propagate.layer(cloneable(service)));
        return Ok(ClientBuilder::try_from(config)?.with_layer(&traced).build());
    }
    let connector = tls(&config, trusted, tcp(config.connect_timeout, resolver))?;
    let service = ServiceBuilder::new()
        .filter(at(&config.cluster_url))
        .layer(config.extra_headers_layer()?)
        .map_err(BoxError::from)
        .service(legacy::Client::builder(TokioExecutor::new()).build::<_, Body>(coalescing(connector)));
    Ok(match config.auth_layer()? {
        Some(auth) => Client::new(propagate.layer(cloneable(auth.layer(service))), config.default_namespace),
        // who shows a certificate needs no header, and no buffer
        None => Client::new(propagate.layer(service), config.default_namespace),
    })
}

/// Sends requests to the server, below the path that its URL may have. kube's own layer would write and read the
/// whole URL anew for each.
fn at(server: &Uri) -> impl Fn(Request<Body>) -> Result<Request<Body>, BoxError> + Clone + Send + 'static {
    let server = server.clone();
    let below = server.path().trim_end_matches('/').to_owned();
    move |mut request| {
        let mut parts = std::mem::take(request.uri_mut()).into_parts();
        parts.scheme = server.scheme().cloned();
        parts.authority = server.authority().cloned();
        if !below.is_empty() {
            let path = parts.path_and_query.as_ref().map_or("/", PathAndQuery::as_str);
            parts.path_and_query = Some(format!("{below}{path}").parse()?);
        }
        *request.uri_mut() = Uri::from_parts(parts)?;
        Ok(request)
    }
}

/// TLS, and in it HTTP/2 with every server that has it. kube's own connector offers HTTP/1.1 only, where each
/// watch and each request under way is a connection of its own, with its handshake and its buffers at both
/// ends: a manager that follows eighty kinds and makes five hundred pods at a time had as many.
fn tls(
    config: &Config,
    trusted: Option<TrustedCertificates>,
    tcp: HttpConnector<Resolver>,
) -> Result<HttpsConnector<HttpConnector<Resolver>>, ConnectError> {
    let mut tls = config.rustls_client_config()?;
    if let Some(trusted) = trusted {
        tls.dangerous().set_certificate_verifier(Arc::new(trusted));
    }
    let builder = HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http();
    let builder = match &config.tls_server_name {
        Some(name) => {
            let name = ServerName::try_from(name.clone()).map_err(ConnectError::ServerName)?;
            builder.with_server_name_resolver(FixedServerNameResolver::new(name))
        }
        None => builder,
    };
    Ok(builder.enable_all_versions().wrap_connector(tcp))
}

fn coalescing<C, IO>(
    connector: C,
) -> impl Service<Uri, Response = TokioIo<CoalescedWrites<TokioIo<IO>>>, Error = C::Error, Future: Send + Unpin>
+ Clone
where
    C: Service<Uri, Response = IO> + Clone,
    C::Future: Send + Unpin,
{
    ServiceBuilder::new()
        .map_response(|io| TokioIo::new(CoalescedWrites::new(TokioIo::new(io))))
        .service(connector)
}

/// kube's layers are not all made to be cloned; a buffer in front of them is.
fn cloneable<S>(service: S) -> Buffer<Request<Body>, S::Future>
where
    S: Service<Request<Body>> + Send + 'static,
    S::Future: Send,
    S::Error: Into<BoxError> + Send + Sync,
{
    Buffer::new(service, 1024)
}

/// Connections that notice when the other side is gone. Left to the kernel's own patience, a node that was cut
/// off for a minute would wait for its old connections for minutes more.
fn tcp(connect_timeout: Option<Duration>, resolver: Resolver) -> HttpConnector<Resolver> {
    let mut connector = HttpConnector::new_with_resolver(resolver);
    connector.enforce_http(false);
    connector.set_nodelay(true);
    connector.set_connect_timeout(connect_timeout);
    connector.set_keepalive(Some(IDLE));
    connector.set_keepalive_interval(Some(PROBE));
    connector.set_tcp_user_timeout(Some(SILENCE));
    connector
}

/// A client of any service that answers as an API server does: in one process, the server's
/// own filter chain, to which the caller has added the component's identity.
pub fn over<S, B>(service: S) -> Client
where
    S: Service<Request<Body>, Response = Response<B>> + Clone + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Into<BoxError> + 'static,
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    Client::new(PropagateLayer { host: "in-process".into() }.layer(service), "default")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_go_below_the_servers_path() {
        let check = |server: &'static str, path: &'static str, expected: &str| {
            let request = Request::get(path).body(Body::empty()).expect("a request");
            let sent = at(&Uri::from_static(server))(request).expect("a URL");
            assert_eq!(sent.uri().to_string(), expected);
        };
        check("https://host:6443", "/api/v1/pods?watch=true", "https://host:6443/api/v1/pods?watch=true");
        check("https://host/", "/api", "https://host/api");
        check("https://host/clusters/a/", "/api?b=c", "https://host/clusters/a/api?b=c");
    }

    #[test]
    fn a_url_that_cannot_be_is_not_another_one() {
        let request = |path: &str| Request::get(path).body(Body::empty()).expect("a request");
        let no_scheme = Uri::from_static("host:6443");
        assert!(at(&no_scheme)(request("/api")).is_err());
        let long = format!("/{}", "a".repeat(65_000));
        let below = Uri::from_static("https://host/below");
        assert!(at(&below)(request(&long)).is_ok());
        let too_long = format!("/{}", "a".repeat(65_530));
        assert!(at(&below)(request(&too_long)).is_err());
    }
}
