//! Puts a server together from its configuration, starts it, and says when it is ready.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;

use ferry_admission::usage_history::UsageHistory;
use ferry_admission::{Chain, Configuration, plugins};
use ferry_auth::audit::{Audit, LogFile, LogFileConfig, Policy, WebhookSink, WebhookSinkConfig};
use ferry_auth::authenticate::service_account::ServiceAccountConfig;
use ferry_auth::authenticate::{OidcConfig, ServiceAccounts, X509};
use ferry_auth::pki::{Pki, PkiConfig};
use ferry_auth::tls::AnyClientCertificate;
use ferry_auth::user::MASTERS;
use ferry_auth::{Rbac, User};
use ferry_registry::settings::AddressRange;
use ferry_registry::{Registry, Settings};
use ferry_store::Store;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::access::{AuthorizationWebhook, TokenWebhook};
use crate::api::{Api, Limits, Parts, RuntimeConfig};
use crate::bootstrap::Bootstrap;
use crate::in_process::InProcess;
use crate::node_connection::NodeConnection;
use crate::tokens::CachedObjects;
use crate::{access, follow, policy, server, usage_samples};

/// How often certificates are looked at, and the host's address with them.
const RENEWAL: std::time::Duration = std::time::Duration::from_secs(300);

/// Everything a server needs to know, with upstream's defaults.
#[derive(Debug, Clone)]
pub struct Config {
    pub data_dir: PathBuf,
    pub bind: SocketAddr,
    /// Where others reach this server; found out when not given.
    pub advertise: Option<IpAddr>,
    /// Further names and addresses for the serving certificate.
    pub names: Vec<String>,
    pub cluster_domain: String,
    /// The first address of this range is the `kubernetes` Service's.
    pub service_cidr: String,
    pub service_node_ports: std::ops::RangeInclusive<u16>,
    pub runtime_config: RuntimeConfig,
    pub authorization_modes: Vec<String>,
    /// For the mode ABAC.
    pub authorization_policy_file: Option<PathBuf>,
    /// For the mode Webhook.
    pub authorization_webhook: Option<AuthorizationWebhook>,
    pub token_auth_file: Option<PathBuf>,
    pub basic_auth_file: Option<PathBuf>,
    pub bootstrap_tokens: bool,
    pub oidc: Option<OidcConfig>,
    pub token_webhook: Option<TokenWebhook>,
    pub audit: AuditConfig,
    pub service_account_issuer: Option<String>,
    pub enable_admission_plugins: Vec<String>,
    pub disable_admission_plugins: Vec<String>,
    /// The AdmissionConfiguration file.
    pub admission_configuration: Option<PathBuf>,
}

impl Config {
    pub fn new(data_dir: impl Into<PathBuf>) -> Config {
        Config {
            data_dir: data_dir.into(),
            bind: SocketAddr::from(([0, 0, 0, 0], 6443)),
            advertise: None,
            names: Vec::new(),
            cluster_domain: "cluster.local".into(),
            service_cidr: "10.96.0.0/16".into(),
            service_node_ports: 30_000..=32_767,
            runtime_config: RuntimeConfig::default(),
            authorization_modes: vec!["Node".into(), "RBAC".into()],
            authorization_policy_file: None,
            authorization_webhook: None,
            token_auth_file: None,
            basic_auth_file: None,
            bootstrap_tokens: true,
            oidc: None,
            token_webhook: None,
            audit: AuditConfig::default(),
            service_account_issuer: None,
            enable_admission_plugins: Vec::new(),
            disable_admission_plugins: Vec::new(),
            admission_configuration: None,
        }
    }
}

/// What is written down of requests. Without a policy nothing is.
#[derive(Debug, Clone, Default)]
pub struct AuditConfig {
    pub policy_file: Option<PathBuf>,
    pub log: Option<LogFileConfig>,
    pub webhook: Option<PathBuf>,
}

impl AuditConfig {
    async fn open(&self) -> Result<Option<Arc<Audit>>, StartError> {
        let Some(policy) = &self.policy_file else { return Ok(None) };
        let mut audit = Audit::new(Policy::open(policy).map_err(config_error)?);
        if let Some(log) = &self.log {
            let file = LogFile::open(log.clone())
                .map_err(|source| StartError::Write { path: log.path.clone(), source })?;
            audit = audit.with_sink(file);
        }
        if let Some(kubeconfig) = &self.webhook {
            let sink = WebhookSink::open(kubeconfig, WebhookSinkConfig::default()).await;
            audit = audit.with_sink(sink.map_err(config_error)?);
        }
        Ok(Some(Arc::new(audit)))
    }
}

/// A server that serves.
pub struct Running {
    pub api: Arc<Api>,
    pub pki: Arc<Pki>,
    pub address: SocketAddr,
    /// `https://…`, as the admin kubeconfig names it.
    pub url: String,
    stop: CancellationToken,
    serving: JoinHandle<()>,
    store: Arc<dyn Store>,
}

#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("{0}")]
    Config(String),
    #[error("listen on {address}: {source}")]
    Listen { address: SocketAddr, source: std::io::Error },
    #[error("write {}: {source}", path.display())]
    Write { path: PathBuf, source: std::io::Error },
    #[error(transparent)]
    Pki(#[from] ferry_auth::pki::PkiError),
    #[error("read the store: {0}")]
    Store(#[from] ferry_store::Error),
    #[error("make the objects that every cluster has: {0}")]
    Bootstrap(#[from] kube::Error),
}

fn config_error(error: impl std::fmt::Display) -> StartError {
    StartError::Config(error.to_string())
}

/// Starts serving. When this returns the server is ready: caches filled, default objects there.
pub async fn start(config: Config, store: Arc<dyn Store>) -> Result<Running, StartError> {
    let mut span = ferry_trace::span("apiserver.start");
    let listener = TcpListener::bind(config.bind)
        .await
        .map_err(|source| StartError::Listen { address: config.bind, source })?;
    let address =
        listener.local_addr().map_err(|source| StartError::Listen { address: config.bind, source })?;
    let advertise = config.advertise.unwrap_or_else(|| advertised(config.bind.ip()));
    let service_range: AddressRange = config.service_cidr.parse().map_err(config_error)?;
    let service_ip =
        service_range.nth(1).ok_or_else(|| config_error("the range of service addresses is too small"))?;
    let pki = Arc::new(Pki::open_or_create(
        config.data_dir.join("pki"),
        serving_names(&config, advertise, service_ip),
    )?);

    let rows: Vec<_> =
        ferry_api::kinds::builtin().iter().filter(|row| config.runtime_config.serves(row)).cloned().collect();
    let settings = Settings {
        service_ranges: vec![service_range],
        node_ports: config.service_node_ports.clone(),
        initializers: rows.iter().any(|row| row.kind == "InitializerConfiguration"),
    };
    let registry = Arc::new(Registry::new(store.clone(), &rows, settings));
    let stop = CancellationToken::new();
    fill_caches(&registry, stop.clone()).await?;

    let host =
        if config.bind.ip().is_unspecified() { IpAddr::from([127, 0, 0, 1]) } else { config.bind.ip() };
    let url = format!("https://{}", SocketAddr::new(host, address.port()));
    let advertised = SocketAddr::new(advertise, address.port());
    let usage = Arc::new(UsageHistory::default());
    let (api, x509) = api(&config, &pki, registry.clone(), rows, advertised, usage.clone()).await?;
    let api = Arc::new(api);
    api.health.caches_filled();

    let tls = tls_config(&pki)?;
    let serving = tokio::spawn(server::serve(api.clone(), listener, tls, stop.clone()));

    let client = ferry_client::connect::over(InProcess::new(api.clone(), server_identity()));
    Bootstrap {
        service_cidr: config.service_cidr.clone(),
        service_ip,
        advertise,
        port: address.port(),
        ca_pem: pki.ca_pem(),
        front_proxy_ca_pem: pki.front_proxy_ca_pem(),
    }
    .run(&client)
    .await?;
    if config.authorization_modes.iter().any(|mode| mode == "RBAC") {
        policy::bootstrap(&client).await?;
    }
    if api.admission.has(plugins::initial_resources::NAME) {
        tokio::spawn(usage_samples::follow(client, registry, usage, stop.clone()));
    }
    write_kubeconfig(&config, &pki, &url)?;
    tokio::spawn(keep_certificates_fresh(config, pki.clone(), api.clone(), x509, service_ip, stop.clone()));
    api.health.started();
    span.set("address", address.to_string());
    Ok(Running { api, pki, address, url, stop, serving, store })
}

impl Running {
    /// A client that acts as `user`, inside this process.
    pub fn client(&self, user: User) -> kube::Client {
        ferry_client::connect::over(InProcess::new(self.api.clone(), user))
    }

    /// Makes the documents that clients ask for first, before they ask. For servers that will live; it
    /// costs a moment of CPU, so it is done apart, when all else is ready.
    pub fn warm_documents(&self) {
        let api = self.api.clone();
        tokio::task::spawn_blocking(move || {
            let _span = ferry_trace::span("apiserver.documents");
            api.served().documents.openapi_v3_index();
        });
    }

    /// Stops taking requests, lets the open ones finish, and makes everything durable.
    pub async fn stop(self) {
        self.stop.cancel();
        if let Err(error) = self.serving.await {
            tracing::error!(%error, "the listener failed");
        }
        if let Some(audit) = &self.api.audit {
            audit.close().await;
        }
        if let Err(error) = self.store.close().await {
            tracing::error!(%error, "the store could not be closed");
        }
    }

    pub fn stopping(&self) -> CancellationToken {
        self.stop.clone()
    }
}

/// The server's own hand.
fn server_identity() -> User {
    User::new("system:apiserver").with_groups([MASTERS])
}

/// Follows the store for as long as the server lives; returns when the caches are filled.
async fn fill_caches(registry: &Arc<Registry>, stop: CancellationToken) -> Result<(), StartError> {
    let (ready, filled) = tokio::sync::oneshot::channel();
    let log = registry.log.clone();
    let (failed, failure) = tokio::sync::oneshot::channel();
    tokio::spawn(async move {
        let mut ready = Some(ready);
        let mut failed = Some(failed);
        let mut pause = std::time::Duration::from_millis(50);
        loop {
            let ended = tokio::select! {
                error = log.run(|| {
                    if let Some(ready) = ready.take() {
                        // Whoever started us may have given up.
                        let _ = ready.send(());
                    }
                }) => error,
                () = stop.cancelled() => return,
            };
            if ready.is_some() {
                if let Some(failed) = failed.take() {
                    let _ = failed.send(ended);
                }
                return;
            }
            // The store went away; reads go on from the caches until it is back.
            tracing::error!(error = %ended, "the store cannot be followed, trying again");
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(std::time::Duration::from_secs(5));
        }
    });
    tokio::select! {
        _ = filled => Ok(()),
        Ok(error) = failure => Err(StartError::Store(error)),
    }
}

async fn api(
    config: &Config,
    pki: &Pki,
    registry: Arc<Registry>,
    rows: Vec<Arc<ferry_api::Kind>>,
    advertise: SocketAddr,
    usage: Arc<UsageHistory>,
) -> Result<(Api, Arc<X509>), StartError> {
    let issuer = config
        .service_account_issuer
        .clone()
        .unwrap_or_else(|| format!("https://kubernetes.default.svc.{}", config.cluster_domain));
    let service_accounts = ServiceAccounts::new(
        ServiceAccountConfig {
            issuers: vec![issuer.clone()],
            api_audiences: vec![issuer],
            signing_key: pki.service_account_key().to_string(),
            verifying_keys: Vec::new(),
        },
        Arc::new(CachedObjects(registry.clone())),
    )
    .map_err(config_error)?;
    let service_accounts = Arc::new(service_accounts);
    let rbac = Arc::new(Rbac::new());
    follow::follow(&registry, &rbac, follow::RBAC);
    let authorization = access::authorization(config, &registry, &rbac).await?;
    let admission = Chain::new(
        &plugins::Context {
            registry: registry.clone(),
            authorization: authorization.clone(),
            configuration: admission_configuration(config)?,
            usage,
        },
        &config.enable_admission_plugins,
        &config.disable_admission_plugins,
    )
    .map_err(config_error)?;
    let authenticators = access::authentication(config, pki, &registry, service_accounts.clone()).await?;
    let api = Api::new(Parts {
        authentication: authenticators.union,
        tokens: authenticators.tokens,
        audit: config.audit.open().await?,
        authorization,
        rbac,
        admission,
        limits: Limits::default(),
        node_connection: NodeConnection::new(kubelet_tls(pki)?),
        service_accounts,
        advertised: advertise.to_string(),
        jwks_uri: format!("https://{advertise}/openid/v1/jwks"),
        registry,
        rows,
    });
    Ok((api, authenticators.x509))
}

fn admission_configuration(config: &Config) -> Result<Configuration, StartError> {
    match &config.admission_configuration {
        Some(path) => Configuration::open(path).map_err(config_error),
        None => Ok(Configuration::default()),
    }
}

/// Certificates are renewed long before they end, and the serving one whenever the host's address is
/// another; nobody has to restart anything for it.
async fn keep_certificates_fresh(
    config: Config,
    pki: Arc<Pki>,
    api: Arc<Api>,
    x509: Arc<X509>,
    service_ip: IpAddr,
    stop: CancellationToken,
) {
    let names = || {
        let advertise = config.advertise.unwrap_or_else(|| advertised(config.bind.ip()));
        serving_names(&config, advertise, service_ip).names
    };
    let take_over = |_: &[ferry_auth::pki::Renewed]| {
        if let Err(error) = x509.set_authorities(&pki.ca_bundle()) {
            tracing::error!(%error, "the renewed authority cannot be used");
        }
        match kubelet_tls(&pki) {
            Ok(tls) => api.node_connection.set_tls(tls),
            Err(error) => tracing::error!(%error, "the renewed kubelet client cannot be used"),
        }
    };
    pki.keep_fresh(RENEWAL, names, take_over, stop).await;
}

/// All that the server is reached by.
fn serving_names(config: &Config, advertise: IpAddr, service_ip: IpAddr) -> PkiConfig {
    let mut names = config.names.clone();
    names.extend([advertise.to_string(), service_ip.to_string()]);
    PkiConfig::new(&config.cluster_domain, names)
}

fn tls_config(pki: &Pki) -> Result<Arc<rustls::ServerConfig>, StartError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(config_error)?
        .with_client_cert_verifier(Arc::new(AnyClientCertificate::new(&pki.ca_bundle())))
        .with_cert_resolver(pki.serving());
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    // Large answers are written in large records.
    config.max_fragment_size = None;
    Ok(Arc::new(config))
}

/// Kubelets are believed when their certificate is of the cluster's CA; the server shows its own.
fn kubelet_tls(pki: &Pki) -> Result<Arc<rustls::ClientConfig>, StartError> {
    use rustls_pki_types::pem::PemObject;
    use rustls_pki_types::{CertificateDer, PrivateKeyDer};
    let mut roots = rustls::RootCertStore::empty();
    roots.add_parsable_certificates(pki.ca_bundle());
    let pair = pki.kubelet_client();
    let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_slice_iter(pair.certificate.as_bytes())
        .collect::<Result<_, _>>()
        .map_err(config_error)?;
    let key = PrivateKeyDer::from_pem_slice(pair.key.as_bytes()).map_err(config_error)?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(config_error)?
        .with_root_certificates(roots)
        .with_client_auth_cert(chain, key)
        .map_err(config_error)?;
    Ok(Arc::new(config))
}

fn write_kubeconfig(config: &Config, pki: &Pki, url: &str) -> Result<(), StartError> {
    use std::io::Write;
    use std::os::unix::fs::OpenOptionsExt;
    let path = config.data_dir.join("admin.kubeconfig");
    let text = pki.admin_kubeconfig(url)?;
    let write = || {
        let mut file =
            std::fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&path)?;
        file.write_all(text.as_bytes())
    };
    write().map_err(|source| StartError::Write { path: path.clone(), source })
}

/// The address that leads to the outside: what the kernel would send from. Nothing is sent.
fn advertised(bind: IpAddr) -> IpAddr {
    if !bind.is_unspecified() {
        return bind;
    }
    let probe = || {
        let socket = std::net::UdpSocket::bind("0.0.0.0:0")?;
        socket.connect("192.0.2.1:9")?;
        socket.local_addr()
    };
    probe().map_or(IpAddr::from([127, 0, 0, 1]), |address| address.ip())
}
