//! Puts a server together from its configuration, starts it, and says when it is ready.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ferry_admission::usage_history::UsageHistory;
use ferry_admission::{Chain, Configuration, plugins};
use ferry_api::Status;
use ferry_auth::audit::{Audit, LogFile, LogFileConfig, Policy, WebhookSink, WebhookSinkConfig};
use ferry_auth::authenticate::service_account::ServiceAccountConfig;
use ferry_auth::authenticate::{OidcConfig, ServiceAccounts};
use ferry_auth::pki::Pki;
use ferry_auth::user::MASTERS;
use ferry_auth::{Rbac, User};
use ferry_registry::settings::AddressRange;
use ferry_registry::settings::StorageFormat;
use ferry_registry::{Registry, Settings};
use ferry_store::Store;
use ferry_trace::{History, Retention};
use futures::TryFutureExt;
use futures::future::OptionFuture;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::access::{AuthorizationWebhook, TokenWebhook};
use crate::account_keys::AccountKeys;
use crate::aggregation::{Aggregation, FrontProxy};
use crate::api::{Api, Limits, Parts, RuntimeConfig};
use crate::bootstrap::Bootstrap;
use crate::certificates::{self, CertificateAuthenticators, Upkeep};
use crate::definitions::Definitions;
use crate::flow_control::{self, Fairness, FlowControl, FlowControlConfig};
use crate::founding::{self, FirstObject};
use crate::given_files::GivenFiles;
use crate::in_process::InProcess;
use crate::long_running;
use crate::node_connection::NodeConnection;
use crate::resource_metrics::hours;
use crate::server_addresses::{self, ServerAddresses};
use crate::tokens::{self, CachedObjects, UsedToken};
use crate::trace_peers::TracePeers;
use crate::{access, address_repair, aggregation, follow, policy, server, usage_samples};

/// How long a server has been ready when it makes documents that nobody asked for yet.
const WARM_AFTER: Duration = Duration::from_secs(2);

/// Everything a server needs to know, with upstream's defaults.
#[derive(Debug, Clone)]
pub struct Config {
    pub data_dir: PathBuf,
    pub bind: SocketAddr,
    /// Other servers may work on the same store.
    pub shared_store: bool,
    /// Where others reach this server; found out when not given.
    pub advertise: Option<IpAddr>,
    /// Further names and addresses for the serving certificate.
    pub names: Vec<String>,
    pub cluster_domain: String,
    /// The first address of this range is the `kubernetes` Service's.
    pub service_cidr: String,
    pub service_node_ports: std::ops::RangeInclusive<u16>,
    /// How long an Event is kept after its last write.
    pub event_ttl: std::time::Duration,
    pub storage_format: StorageFormat,
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
    /// How much of the trace is kept in `data_dir/trace`; nothing when not given.
    pub trace_retention: Option<Retention>,
    /// The first signs; tokens of all are accepted.
    pub service_account_issuers: Vec<String>,
    /// Whom tokens are for that name nobody; the issuers when empty.
    pub api_audiences: Vec<String>,
    pub service_account_signing_key_file: Option<PathBuf>,
    pub service_account_key_files: Vec<PathBuf>,
    /// Whether tokens that Secrets keep end with the Secret and the account.
    pub service_account_lookup: bool,
    /// Tokens of TokenRequest that are asked for longer than this are shortened to it.
    pub service_account_max_token_expiration: Option<Duration>,
    /// Whether requests without credentials may read health and version.
    pub anonymous_auth: bool,
    /// Certificates that others have made.
    pub given: GivenFiles,
    /// How often certificates are looked at, and the host's address with them.
    pub certificate_check: Duration,
    pub enable_admission_plugins: Vec<String>,
    pub disable_admission_plugins: Vec<String>,
    /// Exactly these run, whatever is on by default.
    pub only_admission_plugins: Option<Vec<String>>,
    /// The AdmissionConfiguration file.
    pub admission_configuration: Option<PathBuf>,
    /// How long a request may take that is no watch or stream.
    pub request_timeout: Duration,
    /// Flow schemas and priority levels decide; otherwise the two limits below apply to everybody.
    pub priority_and_fairness: bool,
    /// The sum of both is what priority levels share.
    pub max_requests_in_flight: usize,
    pub max_mutating_requests_in_flight: usize,
    /// Watches and streams, and connections, that one user may hold; zero is no limit.
    pub max_long_running_of_user: usize,
    pub max_connections_of_user: usize,
}

impl Config {
    pub fn new(data_dir: impl Into<PathBuf>) -> Config {
        Config {
            data_dir: data_dir.into(),
            bind: SocketAddr::from(([0, 0, 0, 0], 6443)),
            shared_store: false,
            advertise: None,
            names: Vec::new(),
            cluster_domain: "cluster.local".into(),
            service_cidr: "10.96.0.0/16".into(),
            service_node_ports: 30_000..=32_767,
            event_ttl: ferry_registry::settings::EVENT_TTL,
            storage_format: StorageFormat::default(),
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
            trace_retention: None,
            service_account_issuers: Vec::new(),
            api_audiences: Vec::new(),
            service_account_signing_key_file: None,
            service_account_key_files: Vec::new(),
            service_account_lookup: true,
            service_account_max_token_expiration: None,
            anonymous_auth: true,
            given: GivenFiles::default(),
            certificate_check: Duration::from_secs(10),
            enable_admission_plugins: Vec::new(),
            disable_admission_plugins: Vec::new(),
            only_admission_plugins: None,
            admission_configuration: None,
            request_timeout: Duration::from_secs(60),
            priority_and_fairness: true,
            max_requests_in_flight: 400,
            max_mutating_requests_in_flight: 200,
            max_long_running_of_user: long_running::OF_USER,
            max_connections_of_user: long_running::CONNECTIONS_OF_USER,
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
    announcing: JoinHandle<()>,
    telling: Option<JoinHandle<()>>,
    store: Arc<dyn Store>,
}

#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("{0}")]
    Config(String),
    #[error("listen on {address}: {source}")]
    Listen { address: SocketAddr, source: std::io::Error },
    #[error("read {}: {source}", path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error("write {}: {source}", path.display())]
    Write { path: PathBuf, source: std::io::Error },
    #[error(transparent)]
    Pki(#[from] ferry_auth::pki::PkiError),
    #[error("read the store: {0}")]
    Store(#[from] ferry_store::Error),
    #[error("make the objects that every cluster has: {0}")]
    Bootstrap(#[from] kube::Error),
    #[error("make the objects that every cluster has: {}", .0.message)]
    Found(Box<Status>),
    #[error(transparent)]
    Addresses(#[from] server_addresses::Error),
}

pub(crate) fn config_error(error: impl std::fmt::Display) -> StartError {
    StartError::Config(error.to_string())
}

/// Starts serving. When this returns the server is ready: caches filled, default objects there.
pub async fn start(config: Config, store: Arc<dyn Store>) -> Result<Running, StartError> {
    let mut span = ferry_trace::span("apiserver.start");
    let (listener, address) = listen(config.bind).await?;
    let advertise = certificates::host_address(&config);
    let service_range: AddressRange = config.service_cidr.parse().map_err(config_error)?;
    let service_ip =
        service_range.nth(1).ok_or_else(|| config_error("the range of service addresses is too small"))?;
    let names = certificates::serving_names(&config, advertise, service_ip);
    let (pki, new_files) = Pki::open(config.data_dir.join("pki"), names)?;
    let pki = Arc::new(pki);
    // The disk takes its time; the server is not ready before.
    let writing = tokio::task::spawn_blocking(|| new_files.write());
    let stop = CancellationToken::new();
    let (registry, rows) = registry(&config, store.clone(), service_range);
    fill_caches(&registry, stop.clone()).await?;

    let url = local_url(config.bind.ip(), address.port());
    let advertised = SocketAddr::new(advertise, address.port());
    let usage = Arc::new(UsageHistory::default());
    let (api, certificate_authenticators, used_tokens) =
        api(&config, &pki, registry.clone(), rows, advertised, usage.clone()).await?;
    let api = Arc::new(api);
    api.health.caches_filled();

    let client = ferry_client::connect::over(InProcess::new(api.clone(), server_identity()));
    if let Some(definitions) = Definitions::new(api.clone(), client.clone(), stop.clone()) {
        definitions.start().await;
    }
    let serving_certificate = config.given.serving(&pki)?;
    let tls = certificates::server_tls(&config, &pki, serving_certificate.clone())?;
    if let Some(fairness) = api.flow_control.fairness() {
        tokio::spawn(fairness.clone().run(stop.clone()));
    }
    let serving = tokio::spawn(server::serve(api.clone(), listener, tls, stop.clone()));

    let bootstrap = Bootstrap {
        service_cidr: config.service_cidr.clone(),
        service_ip,
        port: address.port(),
        trust: config.given.trust(&pki)?,
    };
    let front_proxy =
        Arc::new(FrontProxy::new(certificates::certified_key(&config.given.front_proxy_client(&pki)?)?));
    let addresses = Arc::new(ServerAddresses::new(advertised, config.shared_store.then(|| store.clone())));
    let defaults = Defaults { config: &config, api: &api, client: &client, bootstrap: &bootstrap };
    let is_founded = defaults.found(&addresses).await?;
    let aggregation = Aggregation::new(api.clone(), client.clone(), front_proxy.clone(), stop.clone());
    let registering = OptionFuture::from(aggregation.map(Aggregation::start));
    let completed = async {
        match is_founded {
            true => defaults.in_force(&addresses).await,
            // In a box: it holds requests, and whoever starts a server would carry them on the stack through all calls.
            false => Box::pin(defaults.write(&addresses)).await,
        }
    };
    tokio::join!(registering, completed).1?;
    writing.await.map_err(config_error)??;
    certificates::write_kubeconfig(&config, &pki, &url)?;
    api.health.started();
    if let Some(fairness) = api.flow_control.fairness().filter(|_| serves_flow_control(&api)) {
        tokio::spawn(fairness.clone().keep(client.clone(), stop.clone()));
    }
    let announcing = tokio::spawn(addresses.clone().keep(client.clone(), stop.clone()));
    let telling = if config.shared_store {
        let peers = TracePeers {
            own: advertised,
            config: config.clone(),
            pki: pki.clone(),
            store: store.clone(),
            history: api.history.clone(),
        };
        Some(tokio::spawn(peers.run(stop.clone())))
    } else {
        None
    };
    tokio::spawn(tokens::note_uses(registry.clone(), client.clone(), used_tokens, stop.clone()));
    tokio::spawn(hours::follow(api.clone(), stop.clone()));
    let instance = advertised.ip().to_string();
    tokio::spawn(address_repair::start(registry.clone(), client.clone(), &instance, stop.clone()));
    follow_usage(&config, &api, &client, registry, usage, &stop)?;
    let upkeep = Upkeep {
        config,
        pki: pki.clone(),
        api: api.clone(),
        serving: serving_certificate,
        certificate_authenticators,
        front_proxy,
        bootstrap,
        addresses,
        client,
        url: url.clone(),
    };
    tokio::spawn(upkeep.run(stop.clone()));
    span.set("address", address.to_string());
    Ok(Running { api, pki, address, url, stop, serving, announcing, telling, store })
}

async fn listen(bind: SocketAddr) -> Result<(TcpListener, SocketAddr), StartError> {
    let failed = |source| StartError::Listen { address: bind, source };
    let listener = TcpListener::bind(bind).await.map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    Ok((listener, address))
}

/// As clients on this host reach the server.
fn local_url(bind: IpAddr, port: u16) -> String {
    let host = if bind.is_unspecified() { IpAddr::from([127, 0, 0, 1]) } else { bind };
    format!("https://{}", SocketAddr::new(host, port))
}

/// The registry of the built-in kinds that are served, and their rows.
fn registry(
    config: &Config,
    store: Arc<dyn Store>,
    service_range: AddressRange,
) -> (Arc<Registry>, Vec<Arc<ferry_api::Kind>>) {
    let rows: Vec<_> =
        ferry_api::kinds::builtin().iter().filter(|row| config.runtime_config.serves(row)).cloned().collect();
    let settings = Settings {
        service_ranges: vec![service_range],
        node_ports: config.service_node_ports.clone(),
        initializers: rows.iter().any(|row| row.kind == "InitializerConfiguration"),
        event_ttl: config.event_ttl,
        storage_format: config.storage_format,
    };
    (Arc::new(Registry::new(store, &rows, settings)), rows)
}

/// What every cluster has, through the API like everything else.
struct Defaults<'a> {
    config: &'a Config,
    api: &'a Api,
    client: &'a kube::Client,
    bootstrap: &'a Bootstrap,
}

impl Defaults<'_> {
    /// Writes all of it at once where there is none of it, and says whether it did.
    async fn found(&self, addresses: &ServerAddresses) -> Result<bool, StartError> {
        if !founding::is_due(self.api) {
            return Ok(false);
        }
        let mut objects = self.bootstrap.objects();
        objects.extend(addresses.first_objects());
        objects.extend(aggregation::first_objects(self.api));
        if self.uses_rbac() {
            objects.extend(policy::objects().map_err(config_error)?);
        }
        let mut first: Vec<_> = objects.into_iter().map(FirstObject::of_server).collect();
        if self.fairness().is_some() {
            first.extend(Fairness::first_objects().map_err(config_error)?);
        }
        founding::found(self.api, &server_identity(), first)
            .await
            .map_err(|status| StartError::Found(Box::new(status)))
    }

    /// Says that this server is there, too, and returns when what was written is in force.
    async fn in_force(&self, addresses: &ServerAddresses) -> Result<(), StartError> {
        let flow_control = async {
            if let Some(fairness) = self.fairness() {
                fairness.objects_in_force().await;
            }
        };
        tokio::join!(flow_control, addresses.publish(self.client)).1?;
        Ok(())
    }

    /// The store syncs once for what it is told at once, so all goes out together that needs nothing else to be there.
    async fn write(&self, addresses: &ServerAddresses) -> Result<(), StartError> {
        let (bootstrap, client) = (self.bootstrap, self.client);
        tokio::try_join!(bootstrap.without_namespace(client).err_into(), self.flow_control())?;
        let policy = async {
            match self.uses_rbac() {
                true => policy::bootstrap(client).await.map_err(StartError::from),
                false => Ok(()),
            }
        };
        let within = bootstrap.in_namespaces(client).err_into();
        tokio::try_join!(within, policy, addresses.publish(client).err_into())?;
        Ok(())
    }

    fn uses_rbac(&self) -> bool {
        self.config.authorization_modes.iter().any(|mode| mode == "RBAC")
    }

    fn fairness(&self) -> Option<&Arc<Fairness>> {
        self.api.flow_control.fairness().filter(|_| serves_flow_control(self.api))
    }

    async fn flow_control(&self) -> Result<(), StartError> {
        match self.fairness() {
            Some(fairness) => Ok(fairness.write_objects(self.client).await?),
            None => Ok(()),
        }
    }
}

/// Samples what containers use, where an admission plugin wants to know.
fn follow_usage(
    config: &Config,
    api: &Api,
    client: &kube::Client,
    registry: Arc<Registry>,
    usage: Arc<UsageHistory>,
    stop: &CancellationToken,
) -> Result<(), StartError> {
    if api.admission.has(plugins::initial_resources::NAME) {
        let settings = plugins::initial_resources::Settings::read(&admission_configuration(config)?);
        let interval = settings.map_err(config_error)?.interval();
        tokio::spawn(usage_samples::follow(client.clone(), registry, usage, interval, stop.clone()));
    }
    Ok(())
}

impl Running {
    /// A client that acts as `user`, inside this process.
    pub fn client(&self, user: User) -> kube::Client {
        ferry_client::connect::over(InProcess::new(self.api.clone(), user))
    }

    /// Makes the documents that clients ask for first, before they ask. They cost more CPU and memory than all else that a
    /// start does, so it is done apart, and not by a server that somebody starts for one short test.
    pub fn warm_documents(&self) {
        let (api, stop) = (self.api.clone(), self.stop.clone());
        tokio::spawn(async move {
            tokio::select! {
                () = tokio::time::sleep(WARM_AFTER) => {}
                () = stop.cancelled() => return,
            }
            let made = tokio::task::spawn_blocking(move || {
                let _span = ferry_trace::span("apiserver.documents");
                api.served().documents.openapi_v3_index();
            });
            if let Err(error) = made.await {
                tracing::error!(%error, "the documents of OpenAPI were not made");
            }
        });
    }

    /// Stops taking requests, lets the open ones finish, and makes everything durable.
    pub async fn stop(self) {
        self.stop.cancel();
        if let Err(error) = self.announcing.await {
            tracing::error!(%error, "the addresses of the servers were not kept");
        }
        if let Err(error) = self.serving.await {
            tracing::error!(%error, "the listener failed");
        }
        self.api.unfinished.close();
        if tokio::time::timeout(server::DRAIN, self.api.unfinished.wait()).await.is_err() {
            tracing::warn!("some writes did not finish in time");
        }
        if let Some(telling) = self.telling
            && let Err(error) = telling.await
        {
            tracing::error!(%error, "the other servers were not told the last spans");
        }
        if let Some(audit) = &self.api.audit {
            audit.close().await;
        }
        if let Some(history) = self.api.history.clone()
            && let Err(error) = tokio::task::spawn_blocking(move || history.close()).await
        {
            tracing::error!(%error, "the last spans were not written");
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
        let mut pause = Duration::from_millis(50);
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
            pause = (pause * 2).min(Duration::from_secs(5));
        }
    });
    tokio::select! {
        Ok(()) = filled => Ok(()),
        Ok(error) = failure => Err(StartError::Store(error)),
        else => Err(config_error("stopped before the store was read")),
    }
}

async fn api(
    config: &Config,
    pki: &Pki,
    registry: Arc<Registry>,
    rows: Vec<Arc<ferry_api::Kind>>,
    advertise: SocketAddr,
    usage: Arc<UsageHistory>,
) -> Result<(Api, CertificateAuthenticators, mpsc::Receiver<UsedToken>), StartError> {
    let or = |given: &[String], otherwise: &dyn Fn() -> Vec<String>| match given {
        [] => otherwise(),
        given => given.to_vec(),
    };
    let issuers = or(&config.service_account_issuers, &|| {
        vec![format!("https://kubernetes.default.svc.{}", config.cluster_domain)]
    });
    let keys = AccountKeys::at_start(config, pki)?;
    let (bound_objects, used_tokens) = CachedObjects::new(registry.clone());
    let service_accounts = ServiceAccounts::new(
        ServiceAccountConfig {
            api_audiences: or(&config.api_audiences, &|| issuers.clone()),
            issuers,
            signing_key: keys.signing,
            verifying_keys: keys.verifying,
            lookup: config.service_account_lookup,
        },
        Arc::new(bound_objects),
    )
    .map_err(config_error)?;
    let service_accounts = Arc::new(service_accounts);
    let rbac = Arc::new(Rbac::new());
    follow::follow(&registry, &rbac, follow::RBAC);
    let authorization = access::authorization(config, &registry, &rbac).await?;
    let context = plugins::Context {
        registry: registry.clone(),
        authorization: authorization.clone(),
        configuration: admission_configuration(config)?,
        usage,
    };
    let (enable, disable) = admission_plugins(config);
    let admission = Chain::new(&context, &enable, &disable).map_err(config_error)?;
    let authenticators = access::authentication(config, pki, &registry, service_accounts.clone()).await?;
    let api = Api::new(Parts {
        authentication: authenticators.union,
        tokens: authenticators.tokens,
        audit: config.audit.open().await?,
        history: open_history(config)?,
        server_user: certificates::common_name(&config.given.kubelet_client(pki)?)?,
        authorization,
        rbac,
        admission,
        flow_control: flow_control(config, &registry)?,
        limits: Limits {
            request_timeout: config.request_timeout,
            token_life: config.service_account_max_token_expiration,
            long_running: long_running::limit(config.max_long_running_of_user),
            connections: long_running::limit(config.max_connections_of_user),
            ..Limits::default()
        },
        node_connection: NodeConnection::new(certificates::kubelet_tls(config, pki)?),
        service_accounts,
        advertised: advertise.to_string(),
        jwks_uri: format!("https://{advertise}/openid/v1/jwks"),
        registry,
        rows,
    });
    Ok((api, authenticators.certificate_authenticators, used_tokens))
}

/// Fed from the registry's caches.
fn flow_control(config: &Config, registry: &Registry) -> Result<FlowControl, StartError> {
    let (reads, writes) = (config.max_requests_in_flight, config.max_mutating_requests_in_flight);
    if config.priority_and_fairness && reads + writes == 0 {
        return Err(config_error(
            "max-requests-inflight and max-mutating-requests-inflight have to sum to more than 0",
        ));
    }
    let flow_control = FlowControl::new(FlowControlConfig {
        enabled: config.priority_and_fairness,
        max_requests: reads,
        max_mutating_requests: writes,
        request_timeout: config.request_timeout,
    });
    if let Some(fairness) = flow_control.fairness() {
        follow::follow(registry, fairness, follow::FLOW_CONTROL);
    }
    Ok(flow_control)
}

fn serves_flow_control(api: &Api) -> bool {
    let is_served = |plural| api.served().kind(flow_control::GROUP, "v1", plural).is_some();
    is_served("flowschemas") && is_served("prioritylevelconfigurations")
}

/// The directory is beside the store, and its own: it can be removed at any time.
fn open_history(config: &Config) -> Result<Option<Arc<History>>, StartError> {
    let Some(retention) = config.trace_retention.filter(|retention| !retention.is_off()) else {
        return Ok(None);
    };
    let path = config.data_dir.join("trace");
    let history = History::start(&path, retention).map_err(|source| StartError::Write { path, source })?;
    Ok(Some(Arc::new(history)))
}

/// Those that are on beside the usual ones, and those that are off.
fn admission_plugins(config: &Config) -> (Vec<String>, Vec<String>) {
    match &config.only_admission_plugins {
        Some(only) => {
            let others = plugins::TABLE.iter().map(|row| row.name.to_owned());
            (only.clone(), others.filter(|name| !only.contains(name)).collect())
        }
        None => (config.enable_admission_plugins.clone(), config.disable_admission_plugins.clone()),
    }
}

fn admission_configuration(config: &Config) -> Result<Configuration, StartError> {
    match &config.admission_configuration {
        Some(path) => Configuration::open(path).map_err(config_error),
        None => Ok(Configuration::default()),
    }
}
