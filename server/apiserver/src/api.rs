//! The server's shared state: what every request is answered from.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use ferry_api::Kind;
use ferry_auth::audit::Audit;
use ferry_auth::authenticate::{ServiceAccounts, Tokens};
use ferry_auth::impersonate::Impersonation;
use ferry_auth::{Authentication, Authorization, Rbac};
use ferry_registry::Registry;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio_util::task::TaskTracker;

use crate::admission::AdmissionChain;
use crate::fair_limit::FairLimit;
use crate::flow_control::FlowControl;
use crate::long_running;
use crate::metrics::Metrics;
use crate::served::Served;

pub struct Api {
    pub registry: Arc<Registry>,
    pub authentication: Authentication,
    /// All that a token may be known to, for TokenReview.
    pub tokens: Arc<Tokens>,
    /// The audit log; none without a policy.
    pub audit: Option<Arc<Audit>>,
    /// The spans of the last days on disk; without it only those in memory exist.
    pub history: Option<Arc<ferry_trace::History>>,
    /// The user as which servers of the cluster connect to each other and to kubelets.
    pub server_user: String,
    pub authorization: Authorization,
    pub impersonation: Impersonation,
    /// Every role and binding, for escalation checks.
    pub rbac: Arc<Rbac>,
    pub admission: AdmissionChain,
    pub metrics: Metrics,
    pub limits: Limits,
    pub flow_control: FlowControl,
    /// Writes whose clients have disconnected.
    pub unfinished: TaskTracker,
    pub health: crate::health::Health,
    pub node_connection: crate::node_connection::NodeConnection,
    pub component_ports: crate::component_statuses::ComponentPorts,
    /// Current resource usage of nodes and pods.
    pub kubelets: crate::resource_metrics::Kubelets,
    /// Resource usage of all nodes together in the last hours.
    pub hours: crate::resource_metrics::hours::Hours,
    /// Images that were loaded on this server's host.
    pub host_images: crate::host_images::HostImages,
    /// The sessions of the web page.
    pub sign_ins: crate::ui::SignIns,
    pub service_accounts: Arc<ServiceAccounts>,
    pub jwks_uri: String,
    /// The address and port that discovery names.
    pub advertised: String,
    served: watch::Sender<Arc<Served>>,
    /// Held while the next snapshot is built, so that concurrent changes are not lost.
    changing: Mutex<()>,
}

pub struct Limits {
    pub body_bytes: usize,
    /// Memory for the bodies of all unfinished requests.
    pub unfinished_body_bytes: Arc<FairLimit>,
    /// Memory for all unread responses that are written as a whole.
    pub unread_answer_bytes: Arc<FairLimit>,
    /// Long-running requests: watches, followed logs, connections to pods, proxied streams.
    pub long_running: Arc<FairLimit>,
    /// Connections that authenticated users hold open.
    pub connections: Arc<FairLimit>,
    pub request_timeout: Duration,
    /// The longest life of a token of TokenRequest, where it has one.
    pub token_life: Option<Duration>,
    /// A watch ends by itself after this time and up to as much again, so that clients spread out.
    pub min_watch: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            body_bytes: 3 << 20,
            unfinished_body_bytes: FairLimit::new(256 << 20),
            unread_answer_bytes: FairLimit::new(256 << 20),
            long_running: long_running::limit(long_running::OF_USER),
            connections: long_running::limit(long_running::CONNECTIONS_OF_USER),
            request_timeout: Duration::from_secs(60),
            token_life: None,
            min_watch: Duration::from_secs(1800),
        }
    }
}

/// The parts that an [`Api`] is made of.
pub struct Parts {
    pub registry: Arc<Registry>,
    pub authentication: Authentication,
    /// All that a token may be known to, for TokenReview.
    pub tokens: Arc<Tokens>,
    /// The audit log; none without a policy.
    pub audit: Option<Arc<Audit>>,
    pub history: Option<Arc<ferry_trace::History>>,
    /// The user as which servers of the cluster connect to each other and to kubelets.
    pub server_user: String,
    pub authorization: Authorization,
    /// Every role and binding, for escalation checks.
    pub rbac: Arc<Rbac>,
    pub admission: AdmissionChain,
    pub limits: Limits,
    pub flow_control: FlowControl,
    pub node_connection: crate::node_connection::NodeConnection,
    pub service_accounts: Arc<ServiceAccounts>,
    /// Where others find the keys that verify service account tokens.
    pub jwks_uri: String,
    pub advertised: String,
    pub rows: Vec<Arc<Kind>>,
}

impl Api {
    pub fn new(parts: Parts) -> Api {
        Api {
            authentication: parts.authentication,
            tokens: parts.tokens,
            audit: parts.audit,
            history: parts.history,
            server_user: parts.server_user,
            authorization: parts.authorization,
            impersonation: Impersonation::default(),
            rbac: parts.rbac,
            admission: parts.admission,
            limits: parts.limits,
            flow_control: parts.flow_control,
            unfinished: TaskTracker::new(),
            node_connection: parts.node_connection,
            component_ports: Default::default(),
            kubelets: Default::default(),
            hours: Default::default(),
            host_images: Default::default(),
            sign_ins: Default::default(),
            service_accounts: parts.service_accounts,
            jwks_uri: parts.jwks_uri,
            advertised: parts.advertised,
            metrics: Metrics::default(),
            health: Default::default(),
            served: watch::Sender::new(Arc::new(Served::builtin(&parts.registry, &parts.rows))),
            changing: Mutex::default(),
            registry: parts.registry,
        }
    }

    pub fn served(&self) -> Arc<Served> {
        self.served.borrow().clone()
    }

    /// Replaces the snapshot of served resources. Requests use the old one until the new one is complete.
    pub fn change_served(&self, change: impl FnOnce(&Served) -> Served) {
        let _changing = self.changing.lock();
        let next = change(&self.served());
        self.served.send_replace(Arc::new(next));
    }

    /// Notifies of new snapshots.
    pub fn follow_served(&self) -> watch::Receiver<Arc<Served>> {
        self.served.subscribe()
    }
}

/// `--runtime-config`: which versions are served besides, or not, the usual ones.
#[derive(Debug, Clone, Default)]
pub struct RuntimeConfig(BTreeMap<String, bool>);

#[derive(Debug, thiserror::Error)]
#[error("runtime-config: {0:?} is not KEY=true|false")]
pub struct BadRuntimeConfig(String);

impl RuntimeConfig {
    /// `api/all=true,resource.k8s.io/v1beta1=true,batch/v1/cronjobs=false`
    pub fn parse(text: &str) -> Result<RuntimeConfig, BadRuntimeConfig> {
        text.split(',')
            .filter(|entry| !entry.is_empty())
            .map(|entry| {
                let (key, value) = entry.split_once('=').unwrap_or((entry, "true"));
                match value {
                    "true" | "" => Ok((key.to_string(), true)),
                    "false" => Ok((key.to_string(), false)),
                    _ => Err(BadRuntimeConfig(entry.to_string())),
                }
            })
            .collect::<Result<_, _>>()
            .map(RuntimeConfig)
    }

    pub fn serves(&self, row: &Kind) -> bool {
        let stage = match () {
            () if row.version.contains("alpha") => "api/alpha",
            () if row.version.contains("beta") => "api/beta",
            () => "api/ga",
        };
        let group_version =
            if row.group.is_empty() { format!("api/{}", row.version) } else { row.api_version() };
        let resource = format!("{}/{}", row.api_version(), row.plural);
        // The most exact word counts.
        [resource.as_str(), &group_version, stage, "api/all"]
            .iter()
            .find_map(|key| self.0.get(*key).copied())
            .unwrap_or(row.by_default)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_exact_word_of_the_runtime_config_counts() {
        let config = RuntimeConfig::parse("api/beta=true,storage.k8s.io/v1beta1=false").expect("well formed");
        let served = |group: &str, version: &str| {
            ferry_api::kinds::builtin()
                .iter()
                .any(|row| row.group == group && row.version == version && config.serves(row))
        };
        assert!(served("networking.k8s.io", "v1beta1"));
        assert!(!served("storage.k8s.io", "v1beta1"));
        assert!(!served("scheduling.k8s.io", "v1alpha2"));
        assert!(served("", "v1"));
        assert!(RuntimeConfig::parse("a=maybe").is_err());
    }
}
