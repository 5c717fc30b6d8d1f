//! The parts of a server, made from its configuration.

use std::net::SocketAddr;
use std::sync::Arc;

use ferry_admission::usage_history::UsageHistory;
use ferry_admission::{Chain, Configuration, plugins};
use ferry_auth::Rbac;
use ferry_auth::authenticate::ServiceAccounts;
use ferry_auth::authenticate::service_account::ServiceAccountConfig;
use ferry_auth::pki::Pki;
use ferry_registry::settings::AddressRange;
use ferry_registry::{Registry, Settings};
use ferry_store::Store;
use ferry_trace::History;
use tokio::sync::mpsc;

use super::{StartError, config_error};
use crate::account_keys::AccountKeys;
use crate::api::{Api, Limits, Parts};
use crate::certificates::{self, CertificateAuthenticators};
use crate::config::Config;
use crate::flow_control::{FlowControl, FlowControlConfig};
use crate::node_connection::NodeConnection;
use crate::tokens::{CachedObjects, UsedToken};
use crate::{access, follow, long_running};

/// The registry of the built-in kinds that are served, and their rows.
pub fn registry(
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

pub async fn api(
    config: &Config,
    pki: &Pki,
    registry: Arc<Registry>,
    rows: Vec<Arc<ferry_api::Kind>>,
    advertise: SocketAddr,
    usage: Arc<UsageHistory>,
) -> Result<(Api, CertificateAuthenticators, mpsc::Receiver<UsedToken>), StartError> {
    let (service_accounts, used_tokens) = service_accounts(config, pki, &registry)?;
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
        limits: limits(config),
        node_connection: NodeConnection::new(certificates::kubelet_tls(config, pki)?),
        service_accounts,
        advertised: advertise.to_string(),
        jwks_uri: format!("https://{advertise}/openid/v1/jwks"),
        registry,
        rows,
    });
    Ok((api, authenticators.certificate_authenticators, used_tokens))
}

/// Service accounts, and the uses of tokens that Secrets keep.
fn service_accounts(
    config: &Config,
    pki: &Pki,
    registry: &Arc<Registry>,
) -> Result<(Arc<ServiceAccounts>, mpsc::Receiver<UsedToken>), StartError> {
    let mut issuers = config.service_account_issuers.clone();
    if issuers.is_empty() {
        issuers.push(format!("https://kubernetes.default.svc.{}", config.cluster_domain));
    }
    let mut api_audiences = config.api_audiences.clone();
    if api_audiences.is_empty() {
        api_audiences.clone_from(&issuers);
    }
    let keys = AccountKeys::at_start(config, pki)?;
    let (bound_objects, used_tokens) = CachedObjects::new(registry.clone());
    let settings = ServiceAccountConfig {
        issuers,
        api_audiences,
        signing_key: keys.signing,
        verifying_keys: keys.verifying,
        lookup: config.service_account_lookup,
    };
    let accounts = ServiceAccounts::new(settings, Arc::new(bound_objects)).map_err(config_error)?;
    Ok((Arc::new(accounts), used_tokens))
}

fn limits(config: &Config) -> Limits {
    Limits {
        request_timeout: config.request_timeout,
        token_life: config.service_account_max_token_expiration,
        long_running: long_running::limit(config.max_long_running_of_user),
        connections: long_running::limit(config.max_connections_of_user),
        ..Limits::default()
    }
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

pub fn admission_configuration(config: &Config) -> Result<Configuration, StartError> {
    match &config.admission_configuration {
        Some(path) => Configuration::open(path).map_err(config_error),
        None => Ok(Configuration::default()),
    }
}
