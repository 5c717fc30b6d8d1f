//! `ferry apiserver`: the API server alone, with upstream's flag names.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use ferry_apiserver::run::{Config, Running, start};
use ferry_apiserver::{RuntimeConfig, StorageFormat};
use ferry_client::CancellationToken;
use ferry_store::{Embedded, Etcd, Store, embedded, etcd};

use super::certificates::CertificateFlags;
use super::feature_gates::FeatureGateFlags;
use super::no_effect::{NoEffect, Row, Table};
use super::{access, audit, certificates, component, encryption};

/// Upstream takes a second range, of the other IP family.
fn service_range(text: &str) -> Result<ipnet::IpNet, String> {
    if text.contains(',') {
        return Err("two ranges (dual-stack Services) are not supported".into());
    }
    text.parse().map_err(|_| format!("{text:?} is no range like 10.96.0.0/16"))
}

#[derive(Args, Clone)]
pub struct Flags {
    /// Directory for the store, keys and the administrator's kubeconfig
    #[arg(long, default_value = "/var/lib/ferry")]
    pub data_dir: PathBuf,
    /// HTTPS port
    #[arg(long, visible_alias = "port", default_value_t = 6443)]
    pub secure_port: u16,
    /// Address on which the server listens
    #[arg(long, default_value = "0.0.0.0")]
    pub bind_address: IpAddr,
    /// Address at which other hosts reach this server [default: the address of the default route]
    #[arg(long)]
    pub advertise_address: Option<IpAddr>,
    /// URLs of etcd's members [default: the embedded store]
    #[arg(long, visible_alias = "datastore-endpoint", value_delimiter = ',')]
    pub etcd_servers: Vec<String>,
    /// Certificate authority that signs etcd's certificates
    #[arg(long, requires = "etcd_servers")]
    pub etcd_cafile: Option<PathBuf>,
    /// Client certificate for etcd
    #[arg(long, requires = "etcd_keyfile")]
    pub etcd_certfile: Option<PathBuf>,
    /// Key of --etcd-certfile
    #[arg(long, requires = "etcd_certfile")]
    pub etcd_keyfile: Option<PathBuf>,
    /// Size in bytes above which the embedded store refuses writes; 0 for no limit
    #[arg(long, default_value_t = 0)]
    pub quota_backend_bytes: u64,
    /// Address range of Services [default: 10.96.0.0/16]
    #[arg(long, value_parser = service_range)]
    pub service_cluster_ip_range: Option<ipnet::IpNet>,
    /// DNS domain of the cluster
    #[arg(long, default_value = "cluster.local")]
    pub cluster_domain: String,
    /// Ports for Services of type NodePort
    #[arg(long, default_value = "30000-32767", value_parser = port_range)]
    pub service_node_port_range: std::ops::RangeInclusive<u16>,
    /// API versions to enable or disable: api/all=true, storage.k8s.io/v1beta1=true
    #[arg(long, default_value = "")]
    pub runtime_config: String,
    /// Authorizers, in order: Node, RBAC, ABAC, Webhook, AlwaysAllow, AlwaysDeny
    #[arg(long, value_delimiter = ',', default_value = "Node,RBAC")]
    pub authorization_mode: Vec<String>,
    /// Policy file with one line of JSON for each policy; for the mode ABAC
    #[arg(long)]
    pub authorization_policy_file: Option<PathBuf>,
    #[command(flatten)]
    pub access: access::AccessFlags,
    #[command(flatten)]
    pub audit: audit::AuditFlags,
    /// Time to keep an Event after its last write, e.g. 30m
    #[arg(long, default_value = "1h", value_parser = component::duration)]
    pub event_ttl: Duration,
    /// Format of built-in kinds in the store: application/json (also when empty) or
    /// application/vnd.kubernetes.protobuf. The server reads both; custom resources are always JSON
    #[arg(long, default_value = "application/json", value_parser = storage_format)]
    pub storage_media_type: StorageFormat,
    /// Amount of the trace to keep on disk, for `ferry trace` and `ferry why`: a size, an age or both, whichever is
    /// less; 0 for nothing
    #[arg(long, default_value = "256MB,7d")]
    pub trace_retention: ferry_trace::Retention,
    #[command(flatten)]
    pub encryption: encryption::EncryptionFlags,
    /// CSV file with tokens: TOKEN,USER,UID,"GROUP1,GROUP2"
    #[arg(long)]
    pub token_auth_file: Option<PathBuf>,
    /// CSV file with passwords: PASSWORD,USER,UID,"GROUP1,GROUP2"
    #[arg(long)]
    pub basic_auth_file: Option<PathBuf>,
    /// Issuer of service account tokens; if repeated, tokens of the other issuers are accepted too
    #[arg(long, value_delimiter = ',')]
    pub service_account_issuer: Vec<String>,
    /// Private key that signs service account tokens [default: pki/sa.key in the data directory]
    #[arg(long)]
    pub service_account_signing_key_file: Option<PathBuf>,
    /// Public keys that verify service account tokens [default: pki/sa*.pub in the data directory]
    #[arg(long, value_delimiter = ',')]
    pub service_account_key_file: Vec<PathBuf>,
    /// Refuse a token that is stored in a Secret if the Secret or its account is gone; tokens of TokenRequest always end with
    /// the objects that they are bound to
    #[arg(long, default_value_t = true, action = clap::ArgAction::Set, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub service_account_lookup: bool,
    /// Maximum lifetime of a requested service account token, at least 1h; longer requests are shortened to it
    #[arg(long, value_parser = token_life)]
    pub service_account_max_token_expiration: Option<Duration>,
    /// Let requests without credentials read health and version
    #[arg(long, default_value_t = true, action = clap::ArgAction::Set, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub anonymous_auth: bool,
    /// Default audiences of service account tokens [default: the issuers]
    #[arg(long, value_delimiter = ',')]
    pub api_audiences: Vec<String>,
    /// Admission plugins to run in addition to the default ones
    #[arg(long, value_delimiter = ',')]
    pub enable_admission_plugins: Vec<String>,
    /// Default admission plugins that do not run
    #[arg(long, value_delimiter = ',')]
    pub disable_admission_plugins: Vec<String>,
    /// Deprecated: run exactly these admission plugins, none with an empty value
    #[arg(long, value_delimiter = ',', num_args = 1, conflicts_with_all = ["enable_admission_plugins", "disable_admission_plugins"])]
    pub admission_control: Option<Vec<String>>,
    /// AdmissionConfiguration file with the configuration of admission plugins
    #[arg(long)]
    pub admission_control_config_file: Option<PathBuf>,
    /// Maximum duration of a request, except watches and streams
    #[arg(long, default_value = "60s", value_parser = access::duration)]
    pub request_timeout: Duration,
    /// Limit concurrency by FlowSchemas and PriorityLevelConfigurations
    #[arg(long, default_value_t = true, action = clap::ArgAction::Set, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub enable_priority_and_fairness: bool,
    /// With priority and fairness, the sum of this and --max-mutating-requests-inflight is the number of seats that
    /// priority levels share. Without, the maximum number of concurrent reads; 0 for no limit
    #[arg(long, default_value_t = 400)]
    pub max_requests_inflight: usize,
    /// See --max-requests-inflight; without priority and fairness, the maximum number of concurrent writes
    #[arg(long, default_value_t = 200)]
    pub max_mutating_requests_inflight: usize,
    /// Maximum number of concurrent watches, followed logs and connections to pods of one user; further ones get 429. 0 for no limit
    #[arg(long, default_value_t = 10_000)]
    pub max_long_running_requests_per_user: usize,
    /// Maximum number of connections of one user; requests on further ones get 429. 0 for no limit
    #[arg(long, default_value_t = 1_000)]
    pub max_connections_per_user: usize,
}

/// How long a server that starts waits for etcd, as upstream's does: both are often started at once.
const ETCD_PATIENCE: Duration = Duration::from_secs(20);

/// The API server by itself, also when called as kube-apiserver.
#[derive(Args, Clone)]
pub struct Alone {
    #[command(flatten)]
    flags: Flags,
    #[command(flatten)]
    certificates: CertificateFlags,
    /// Version that /version and metrics report; it must be of the same release, e.g. v1.36.4-custom
    #[arg(long, value_parser = reported_version, require_equals = true)]
    version: Option<String>,
    #[command(flatten)]
    feature_gates: FeatureGateFlags,
    #[command(flatten)]
    no_effect: NoEffect<Upstream>,
}

#[derive(Clone)]
struct Upstream;

/// Not `blocking-strict`: requests are served though their event could not be written.
const AUDIT_MODES: &[&str] = &["batch", "blocking"];

impl Table for Upstream {
    const ROWS: &'static [Row] = &[
        // What is always so here.
        Row::Only("allow-privileged", &["true"]),
        Row::OnlySwitch("aggregator-reject-forwarding-redirect", "true"),
        Row::Only("etcd-prefix", &["/registry", "registry"]),
        Row::Only("storage-backend", &["etcd3"]),
        Row::Only("tls-min-version", &["VersionTLS10", "VersionTLS11", "VersionTLS12"]),
        Row::Switch("profiling"),
        Row::Switch("contention-profiling"),
        Row::Switch("enable-aggregator-routing"),
        Row::Switch("enable-garbage-collector"),
        Row::Switch("service-account-extend-token-expiration"),
        Row::Switch("permit-port-sharing"),
        Row::Switch("permit-address-sharing"),
        Row::Switch("disable-http2-serving"),
        Row::Switch("enable-logs-handler"),
        Row::Switch("shutdown-send-retry-after"),
        Row::Switch("watch-cache"),
        Row::Value("apiserver-count"),
        Row::Value("default-watch-cache-size"),
        Row::Value("max-connection-bytes-per-sec"),
        Row::Value("shutdown-watch-termination-grace-period"),
        Row::Value("storage-initialization-timeout"),
        Row::Value("watch-cache-sizes"),
        Row::Value("delete-collection-workers"),
        Row::Value("endpoint-reconciler-type"),
        Row::Value("etcd-compaction-interval"),
        Row::Value("etcd-count-metric-poll-period"),
        Row::Value("etcd-db-metric-poll-interval"),
        Row::Value("etcd-healthcheck-timeout"),
        Row::Value("etcd-readycheck-timeout"),
        Row::Value("external-hostname"),
        Row::Value("goaway-chance"),
        Row::Value("http2-max-streams-per-connection"),
        Row::Value("kubelet-port"),
        Row::Value("kubelet-preferred-address-types"),
        Row::Value("kubelet-timeout"),
        Row::Value("lease-reuse-duration-seconds"),
        Row::Value("livez-grace-period"),
        Row::Value("min-request-timeout"),
        Row::Value("shutdown-delay-duration"),
        Row::Value("tls-cipher-suites"),
        Row::Value("tracing-config-file"),
        // How audit events are gathered before they are written.
        Row::Only("audit-log-format", &["json"]),
        Row::Only("audit-log-mode", AUDIT_MODES),
        Row::Value("audit-log-batch-buffer-size"),
        Row::Value("audit-log-batch-max-size"),
        Row::Value("audit-log-batch-max-wait"),
        Row::Only("audit-webhook-mode", AUDIT_MODES),
        Row::Value("audit-webhook-initial-backoff"),
        Row::Value("audit-webhook-batch-buffer-size"),
        Row::Value("audit-webhook-batch-max-size"),
        Row::Value("audit-webhook-batch-max-wait"),
        // How much is logged: FERRY_LOG.
        Row::Value("log-json-info-buffer-size"),
        Row::Switch("log-json-split-stream"),
        Row::Value("log-text-info-buffer-size"),
        Row::Switch("log-text-split-stream"),
        Row::Value("v"),
        Row::Value("vmodule"),
        Row::Value("logging-format"),
        Row::Value("log-flush-frequency"),
    ];
}

pub fn run(alone: Alone) -> anyhow::Result<()> {
    alone.no_effect.log();
    alone.feature_gates.log();
    if let Some(version) = &alone.version {
        ferry_apiserver::version::report(version.clone());
    }
    component::run(|shutdown| serve(alone, shutdown))
}

/// Opens the store and serves it.
pub async fn start_server(flags: Flags, store: Arc<dyn Store>) -> anyhow::Result<Running> {
    start(config(flags)?, store).await.context("start the API server")
}

async fn serve(alone: Alone, shutdown: CancellationToken) -> anyhow::Result<()> {
    let data_dir = alone.flags.data_dir.clone();
    let cert_dir = alone.certificates.cert_dir.clone();
    // Takes milliseconds, in which the store is connected to.
    let reading = tokio::task::spawn_blocking(ferry_api::kinds::builtin);
    let starting = async {
        let store = open_store(&alone.flags).await?;
        reading.await.context("read the table of kinds")?;
        let config = Config { given: alone.certificates.files(), ..config(alone.flags)? };
        let shown = cert_dir.filter(|_| config.given.serving.is_none());
        let running = start(config, store).await.context("start the API server")?;
        if let Some(directory) = shown {
            certificates::show_own(&directory, &data_dir.join("pki/apiserver.crt"))
                .with_context(|| format!("show the certificate in {}", directory.display()))?;
        }
        anyhow::Ok(running)
    };
    let running = tokio::select! {
        running = starting => running?,
        // A store that does not answer may take for ever.
        () = shutdown.cancelled() => return Ok(()),
    };
    tracing::info!(url = %running.url, kubeconfig = %data_dir.join("admin.kubeconfig").display(), "serving");
    running.warm_documents();
    shutdown.cancelled().await;
    tracing::info!("stopping");
    running.stop().await;
    Ok(())
}

pub async fn open_store(flags: &Flags) -> anyhow::Result<Arc<dyn Store>> {
    encryption::over(open_engine(flags).await?, &flags.encryption)
}

async fn open_engine(flags: &Flags) -> anyhow::Result<Arc<dyn Store>> {
    std::fs::create_dir_all(&flags.data_dir).with_context(|| format!("make {}", flags.data_dir.display()))?;
    let data_dir = flags.data_dir.clone();
    let claiming = tokio::task::spawn_blocking(move || crate::data_version::claim(&data_dir));
    let claimed = async { claiming.await.context("note this version")? };
    if flags.shares_store() {
        let mut config = etcd::Config::new(flags.etcd_servers.clone());
        config.tls.ca = flags.etcd_cafile.clone();
        config.tls.identity = flags.etcd_certfile.clone().zip(flags.etcd_keyfile.clone());
        // The one waits for the disk, the other for the network.
        config.patience = ETCD_PATIENCE;
        let connected = async { Etcd::connect(config).await.context("connect to etcd") };
        let ((), store) = tokio::try_join!(claimed, connected)?;
        return Ok(Arc::new(store));
    }
    claimed.await?;
    let directory = flags.data_dir.join("store");
    let mut config = embedded_store(&directory);
    if flags.quota_backend_bytes > 0 {
        config.quota = flags.quota_backend_bytes;
    }
    match Embedded::open(config) {
        Ok(store) => Ok(Arc::new(store)),
        Err(error) => {
            let directory = directory.display();
            let attempt = match error {
                ferry_store::Error::Corrupt { .. } => format!(
                    "open the store in {directory}, which is damaged: bring the file back, or make a store out of a \
                     snapshot with `ferry snapshot restore FILE --data-dir NEW_DIRECTORY`"
                ),
                _ => format!("open the store in {directory}"),
            };
            Err(error).context(attempt)
        }
    }
}

/// The embedded store in this process. Its writer waits for a free processor rather than for its turn at once: the
/// transactions that come in the meantime share one sync. Taken with 16 clients on 2 cores, a create then costs the
/// server a tenth less CPU, and more of them are done in the same time.
pub fn embedded_store(directory: &Path) -> embedded::Config {
    let mut config = embedded::Config::new(directory);
    config.at_writer_start = || {
        if let Err(error) = ferry_linux::scheduling::work_in_batches() {
            tracing::debug!(%error, "the store's thread is scheduled like any other");
        }
    };
    config
}

impl Flags {
    /// Other servers may work on the same store.
    pub fn shares_store(&self) -> bool {
        !self.etcd_servers.is_empty()
    }
}

fn config(flags: Flags) -> anyhow::Result<Config> {
    let shared_store = flags.shares_store();
    let defaults = Config::new(flags.data_dir);
    Ok(Config {
        shared_store,
        bind: SocketAddr::new(flags.bind_address, flags.secure_port),
        advertise: flags.advertise_address,
        service_cidr: flags.service_cluster_ip_range.map_or(defaults.service_cidr, |cidr| cidr.to_string()),
        cluster_domain: flags.cluster_domain,
        service_node_ports: flags.service_node_port_range,
        event_ttl: flags.event_ttl,
        storage_format: flags.storage_media_type,
        runtime_config: RuntimeConfig::parse(&flags.runtime_config)?,
        authorization_modes: flags.authorization_mode,
        authorization_policy_file: flags.authorization_policy_file,
        authorization_webhook: flags.access.authorization_webhook(),
        bootstrap_tokens: flags.access.enable_bootstrap_token_auth,
        oidc: flags.access.oidc()?,
        token_webhook: flags.access.token_webhook(),
        audit: flags.audit.config(),
        trace_retention: Some(flags.trace_retention),
        token_auth_file: flags.token_auth_file,
        basic_auth_file: flags.basic_auth_file,
        service_account_issuers: flags.service_account_issuer,
        service_account_signing_key_file: flags.service_account_signing_key_file,
        service_account_key_files: flags.service_account_key_file,
        service_account_lookup: flags.service_account_lookup,
        service_account_max_token_expiration: flags.service_account_max_token_expiration,
        anonymous_auth: flags.anonymous_auth,
        api_audiences: flags.api_audiences,
        enable_admission_plugins: flags.enable_admission_plugins,
        disable_admission_plugins: flags.disable_admission_plugins,
        only_admission_plugins: flags
            .admission_control
            .map(|names| names.into_iter().filter(|name| !name.is_empty()).collect()),
        admission_configuration: flags.admission_control_config_file,
        request_timeout: flags.request_timeout,
        priority_and_fairness: flags.enable_priority_and_fairness,
        max_requests_in_flight: flags.max_requests_inflight,
        max_mutating_requests_in_flight: flags.max_mutating_requests_inflight,
        max_long_running_of_user: flags.max_long_running_requests_per_user,
        max_connections_of_user: flags.max_connections_per_user,
        ..defaults
    })
}

/// As upstream bounds it; zero is no limit of its own.
fn token_life(text: &str) -> Result<Duration, String> {
    let life = component::duration(text)?;
    let range = Duration::from_secs(3600)..=Duration::from_secs(1 << 32);
    match life.is_zero() || range.contains(&life) {
        true => Ok(life),
        false => {
            Err("the service-account-max-token-expiration must be between 1 hour and 2^32 seconds".into())
        }
    }
}

fn storage_format(text: &str) -> Result<StorageFormat, String> {
    match text {
        "" | "application/json" => Ok(StorageFormat::Json),
        "application/vnd.kubernetes.protobuf" => Ok(StorageFormat::Protobuf),
        _ => Err("allowed values: application/json, application/vnd.kubernetes.protobuf".to_owned()),
    }
}

/// As upstream has it: any addition to the version, but no other version.
fn reported_version(text: &str) -> Result<String, String> {
    let release = |version: &str| version.split(['-', '+']).next().map(str::to_owned);
    let own = ferry_apiserver::version::GIT_VERSION;
    if release(text) != release(own) {
        return Err(format!("version {text:?} must match major/minor/patch of default version {own:?}"));
    }
    let is_part = |c: char| c.is_ascii_alphanumeric() || "-+.".contains(c);
    if !text[1..].chars().all(is_part) || text.ends_with(['-', '+', '.']) {
        return Err(format!("could not parse {text:?} as version"));
    }
    Ok(text.to_owned())
}

fn port_range(text: &str) -> Result<std::ops::RangeInclusive<u16>, String> {
    let bad = || format!("{text:?} is no range of ports like 30000-32767");
    let (first, last) = text.split_once('-').ok_or_else(bad)?;
    let (first, last): (u16, u16) = (first.parse().map_err(|_| bad())?, last.parse().map_err(|_| bad())?);
    if first == 0 || first > last { Err(bad()) } else { Ok(first..=last) }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    #[derive(Parser)]
    struct Program {
        #[command(flatten)]
        alone: super::Alone,
    }

    /// A flag that makes a server stricter has that effect, or is refused: what is silently ignored leaves it open.
    #[test]
    fn flags_that_restrict_the_server_take_effect_or_are_refused() {
        let read = |flag: &str| Program::try_parse_from(["apiserver", flag]).map(|read| read.alone.flags);
        assert!(read("--anonymous-auth=false").is_ok_and(|flags| !flags.anonymous_auth));
        assert!(read("--anonymous-auth").is_ok_and(|flags| flags.anonymous_auth));
        let life = |text: &str| {
            let flags = read(&format!("--service-account-max-token-expiration={text}"));
            flags.ok().and_then(|flags| flags.service_account_max_token_expiration).map(|life| life.as_secs())
        };
        assert_eq!((life("24h"), life("0s"), life("10m")), (Some(86_400), Some(0), None));
        for (flag, is_taken) in [
            ("--audit-log-mode=blocking", true),
            ("--audit-log-mode=blocking-strict", false),
            ("--audit-webhook-mode=blocking-strict", false),
            ("--audit-log-format=legacy", false),
            ("--aggregator-reject-forwarding-redirect", true),
            ("--aggregator-reject-forwarding-redirect=true", true),
            ("--aggregator-reject-forwarding-redirect=false", false),
        ] {
            assert_eq!(read(flag).is_ok(), is_taken, "{flag}");
        }
    }
}
