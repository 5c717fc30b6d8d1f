//! What an operator may choose.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use ferry_client::leader::Election;

use crate::cidr::Cidr;
use crate::service_account_token::SigningKey;
use crate::table::{self, Row};

/// Settings of the controllers, named after upstream's flags.
#[derive(Clone, Debug)]
pub struct Config {
    /// `--controllers`: names, `*` for all that are on by default, `-name` to leave one out.
    pub controllers: Vec<String>,
    /// Told apart in events and leases: the host's name.
    pub instance: String,
    /// Without it every instance works, which is right only for a single one.
    pub leader_election: Option<Election>,
    /// Pod subnets are cut from these (one per family) when `allocate_node_cidrs`.
    pub cluster_cidrs: Vec<String>,
    /// Not given to nodes, should it lie within a cluster CIDR.
    pub service_cidrs: Vec<String>,
    pub allocate_node_cidrs: bool,
    /// Prefix lengths of a node's pod subnet.
    pub node_cidr_mask_v4: u8,
    pub node_cidr_mask_v6: u8,
    /// The bundle pods verify the API server by (`kube-root-ca.crt`).
    pub root_ca: Option<Vec<u8>>,
    /// The authority that signs certificate requests, in PEM.
    pub signing_ca: Option<SigningCa>,
    pub certificate_duration: Duration,
    /// Sign what a node wants to serve with, when it names only the node's own addresses. Upstream leaves
    /// this to the administrator.
    pub approve_kubelet_serving: bool,
    /// No node gets a certificate for one of these.
    pub api_server_names: ApiServerNames,
    /// The key that signs long-lived service account tokens, in PEM; without it none are made.
    pub service_account_key: Option<Vec<u8>>,
    /// How long a token that was made for an account by itself must be unused before it is marked invalid, and how long
    /// marked before it is removed.
    pub legacy_token_clean_up_period: Duration,
    pub node_monitor_period: Duration,
    pub node_monitor_grace_period: Duration,
    pub node_startup_grace_period: Duration,
    /// How many finished pods may stay before the oldest are removed; 0 keeps all.
    pub terminated_pod_threshold: usize,
    /// How many keys each controller works on at a time.
    pub workers: usize,
    pub horizontal_pod_autoscaler: HorizontalPodAutoscaling,
}

/// `--horizontal-pod-autoscaler-*`
#[derive(Clone, Copy, Debug)]
pub struct HorizontalPodAutoscaling {
    pub sync_period: Duration,
    /// How long a target is held at the highest of its recommendations.
    pub downscale_stabilization: Duration,
    /// How far from 1 a metric's ratio to its target must be to change anything.
    pub tolerance: f64,
    /// How long after a pod's start its CPU may say nothing of the load.
    pub cpu_initialization_period: Duration,
    /// How long after a pod's start a change of readiness is its first.
    pub initial_readiness_delay: Duration,
    pub concurrent_syncs: usize,
}

impl Default for HorizontalPodAutoscaling {
    fn default() -> Self {
        HorizontalPodAutoscaling {
            sync_period: Duration::from_secs(15),
            downscale_stabilization: Duration::from_secs(300),
            tolerance: 0.1,
            cpu_initialization_period: Duration::from_secs(300),
            initial_readiness_delay: Duration::from_secs(30),
            concurrent_syncs: 5,
        }
    }
}

/// Names and addresses of the API server's certificate, as they are now: a host's address may change.
#[derive(Clone)]
pub struct ApiServerNames(pub Arc<dyn Fn() -> BTreeSet<String> + Send + Sync>);

impl Default for ApiServerNames {
    fn default() -> Self {
        ApiServerNames(Arc::new(BTreeSet::new))
    }
}

impl std::fmt::Debug for ApiServerNames {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0().fmt(f)
    }
}

/// A certificate authority's certificate and key, in PEM.
#[derive(Clone)]
pub struct SigningCa {
    pub certificate: Vec<u8>,
    pub key: Vec<u8>,
}

impl std::fmt::Debug for SigningCa {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SigningCa(…)")
    }
}

impl Default for Config {
    fn default() -> Self {
        Config {
            controllers: vec!["*".into()],
            instance: "ferry".into(),
            leader_election: None,
            cluster_cidrs: vec!["10.244.0.0/16".into()],
            service_cidrs: vec!["10.96.0.0/16".into()],
            allocate_node_cidrs: true,
            node_cidr_mask_v4: 24,
            node_cidr_mask_v6: 64,
            root_ca: None,
            signing_ca: None,
            certificate_duration: Duration::from_secs(365 * 24 * 3600),
            approve_kubelet_serving: false,
            api_server_names: ApiServerNames::default(),
            service_account_key: None,
            legacy_token_clean_up_period: Duration::from_secs(365 * 24 * 3600),
            node_monitor_period: Duration::from_secs(5),
            node_monitor_grace_period: Duration::from_secs(50),
            node_startup_grace_period: Duration::from_secs(60),
            terminated_pod_threshold: 12_500,
            workers: 5,
            horizontal_pod_autoscaler: HorizontalPodAutoscaling::default(),
        }
    }
}

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ConfigError {
    #[error("unknown controller {0:?}; known are: {1}")]
    UnknownController(String, String),
    #[error("invalid CIDR {0:?}")]
    InvalidCidr(String),
    #[error("the sync period of the horizontal pod autoscaler must be greater than 0")]
    NoSyncPeriod,
    #[error("the service account key is neither an ECDSA P-256 nor an RSA key in PEM")]
    InvalidServiceAccountKey,
    #[error("requests cannot be signed with the cluster's certificate and key: {0}")]
    InvalidSigningCa(String),
}

impl Config {
    /// Refuses what could only fail later, in some controller's corner.
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        for text in self.cluster_cidrs.iter().chain(&self.service_cidrs) {
            text.parse::<Cidr>().map_err(|_| ConfigError::InvalidCidr(text.clone()))?;
        }
        if self.horizontal_pod_autoscaler.sync_period.is_zero() {
            return Err(ConfigError::NoSyncPeriod);
        }
        if let Some(pem) = &self.service_account_key {
            SigningKey::parse(pem)?;
        }
        if let Some(ca) = &self.signing_ca {
            crate::certificates::check(ca).map_err(ConfigError::InvalidSigningCa)?;
        }
        Ok(())
    }

    /// The rows that `controllers` names. The last word on a name holds.
    pub(crate) fn chosen(&self) -> Result<Vec<&'static Row>, ConfigError> {
        let all = table::ROWS;
        let mut chosen: Vec<bool> = vec![false; all.len()];
        for word in &self.controllers {
            if word == "*" {
                for (chosen, row) in chosen.iter_mut().zip(all) {
                    *chosen |= row.on_by_default;
                }
                continue;
            }
            let (name, on) = word.strip_prefix('-').map_or((word.as_str(), true), |name| (name, false));
            let is_absent =
                |(own, alias): &(&str, &str)| *own == name || (*alias == name && !alias.is_empty());
            if !on && table::ABSENT.iter().any(is_absent) {
                continue;
            }
            let position = all.iter().position(|row| row.name == name || row.alias == name);
            let position = position.ok_or_else(|| {
                let known: Vec<&str> = all.iter().map(|row| row.name).collect();
                ConfigError::UnknownController(name.into(), known.join(", "))
            })?;
            chosen[position] = on;
        }
        Ok(all.iter().zip(chosen).filter(|(_, chosen)| *chosen).map(|(row, _)| row).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(words: &[&str]) -> Result<Vec<&'static str>, ConfigError> {
        let config =
            Config { controllers: words.iter().map(ToString::to_string).collect(), ..Default::default() };
        Ok(config.chosen()?.iter().map(|row| row.name).collect())
    }

    #[test]
    fn controllers_are_chosen_by_name_alias_and_star() {
        assert_eq!(chosen(&["replicaset"]), Ok(vec!["replicaset-controller"]));
        assert_eq!(chosen(&["replicaset-controller", "-replicaset"]), Ok(vec![]));
        let all = chosen(&["*"]).unwrap();
        let without = chosen(&["*", "-deployment"]).unwrap();
        assert_eq!(without.len(), all.len() - 1);
        assert!(!without.contains(&"deployment-controller"));
    }

    #[test]
    fn controllers_that_only_upstream_has_can_be_disabled_but_not_enabled() {
        assert_eq!(chosen(&["*", "-cloud-node-lifecycle", "-selinux-warning-controller"]), chosen(&["*"]));
        assert!(chosen(&["*", "service-lb-controller"]).is_err());
        assert!(table::ABSENT.iter().all(|(name, _)| table::ROWS.iter().all(|row| row.name != *name)));
    }

    #[test]
    fn invalid_configuration_is_refused_at_the_start() {
        assert_eq!(Config::default().check(), Ok(()));
        let bad = Config { service_cidrs: vec!["10.96/16".into()], ..Default::default() };
        assert_eq!(bad.check(), Err(ConfigError::InvalidCidr("10.96/16".into())));
        let bad = Config { service_account_key: Some(b"secret".to_vec()), ..Default::default() };
        assert_eq!(bad.check(), Err(ConfigError::InvalidServiceAccountKey));
    }

    #[test]
    fn an_unknown_controller_is_an_error() {
        assert!(
            matches!(chosen(&["*", "nonsense"]), Err(ConfigError::UnknownController(name, _)) if name == "nonsense")
        );
    }
}
