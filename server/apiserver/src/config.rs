//! Everything that can be set about a server. Field names follow upstream's flags.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ferry_auth::audit::{Audit, LogFile, LogFileConfig, Policy, WebhookSink, WebhookSinkConfig};
use ferry_auth::authenticate::OidcConfig;
use ferry_registry::settings::StorageFormat;
use ferry_trace::Retention;

use crate::access::{AuthorizationWebhook, TokenWebhook};
use crate::api::RuntimeConfig;
use crate::given_files::GivenFiles;
use crate::long_running;
use crate::run::{StartError, config_error};

#[derive(Debug, Clone)]
pub struct Config {
    pub data_dir: PathBuf,
    pub bind: SocketAddr,
    /// Other servers may work on the same store.
    pub shared_store: bool,
    /// The address at which others reach this server; detected by default.
    pub advertise: Option<IpAddr>,
    /// Further names and addresses for the serving certificate.
    pub names: Vec<String>,
    pub cluster_domain: String,
    /// The first address of this range is the `kubernetes` Service's.
    pub service_cidr: String,
    pub service_node_ports: std::ops::RangeInclusive<u16>,
    /// How long an Event is kept after its last write.
    pub event_ttl: Duration,
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
    /// The size and age of the trace in `data_dir/trace`; none by default.
    pub trace_retention: Option<Retention>,
    /// The first signs; tokens of all are accepted.
    pub service_account_issuers: Vec<String>,
    /// Default audiences of tokens; the issuers when empty.
    pub api_audiences: Vec<String>,
    pub service_account_signing_key_file: Option<PathBuf>,
    pub service_account_key_files: Vec<PathBuf>,
    /// Whether tokens in Secrets are invalid without the Secret and the account.
    pub service_account_lookup: bool,
    /// Tokens of TokenRequest that are asked for longer than this are shortened to it.
    pub service_account_max_token_expiration: Option<Duration>,
    /// Whether requests without credentials may read health and version.
    pub anonymous_auth: bool,
    /// Certificates that the flags name.
    pub given: GivenFiles,
    /// How often certificates and the host's address are checked.
    pub certificate_check: Duration,
    pub enable_admission_plugins: Vec<String>,
    pub disable_admission_plugins: Vec<String>,
    /// Exactly these plugins run, instead of the defaults.
    pub only_admission_plugins: Option<Vec<String>>,
    /// The AdmissionConfiguration file.
    pub admission_configuration: Option<PathBuf>,
    /// Maximum duration of a request, except watches and streams.
    pub request_timeout: Duration,
    /// Use flow schemas and priority levels; otherwise the two limits below apply to all users.
    pub priority_and_fairness: bool,
    /// Priority levels share the sum of both.
    pub max_requests_in_flight: usize,
    pub max_mutating_requests_in_flight: usize,
    /// Watches and streams, and connections, that one user may hold; zero is no limit.
    pub max_long_running_of_user: usize,
    pub max_connections_of_user: usize,
}

impl Config {
    /// Upstream's defaults.
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

/// The audit log and webhook. Without a policy nothing is logged.
#[derive(Debug, Clone, Default)]
pub struct AuditConfig {
    pub policy_file: Option<PathBuf>,
    pub log: Option<LogFileConfig>,
    pub webhook: Option<PathBuf>,
}

impl AuditConfig {
    pub(crate) async fn open(&self) -> Result<Option<Arc<Audit>>, StartError> {
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
