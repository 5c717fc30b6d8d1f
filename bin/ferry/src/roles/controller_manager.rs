//! `ferry controller-manager`: the control loops alone, with upstream's flag names.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use ferry_controllers::Config;
use ferry_controllers::config::{HorizontalPodAutoscaling, SigningCa};

use super::component::{self, Connection, LeaderFlags};
use super::feature_gates::FeatureGateFlags;
use super::no_effect::{self, NoEffect, Row, Table};
use super::serving::{self, ServingFlags};

#[derive(Args)]
pub struct Flags {
    #[command(flatten)]
    connection: Connection,
    /// Controllers to run: names, * for all that are on by default, -NAME to exclude one, e.g. *,-ttl-controller
    #[arg(long, value_delimiter = ',', default_value = "*", allow_hyphen_values = true)]
    controllers: Vec<String>,
    /// Address ranges of the pods, one per IP family, e.g. 10.244.0.0/16
    #[arg(long, value_delimiter = ',')]
    cluster_cidr: Vec<String>,
    /// Address ranges of the Services, one per IP family, e.g. 10.96.0.0/12
    #[arg(long, value_delimiter = ',')]
    service_cluster_ip_range: Vec<String>,
    /// Give each node a range of --cluster-cidr for its pods
    #[arg(long, default_value_t = false, default_missing_value = "true", num_args = 0..=1, require_equals = true, action = clap::ArgAction::Set)]
    allocate_node_cidrs: bool,
    /// Prefix length of a node's range of IPv4 addresses
    #[arg(long, visible_alias = "node-cidr-mask-size", default_value_t = 24, value_parser = clap::value_parser!(u8).range(0..=32))]
    node_cidr_mask_size_ipv4: u8,
    /// Prefix length of a node's range of IPv6 addresses
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u8).range(0..=128))]
    node_cidr_mask_size_ipv6: u8,
    /// PEM file of the key that signs the tokens of Secrets of type kubernetes.io/service-account-token; without it the
    /// controller creates none
    #[arg(long)]
    service_account_private_key_file: Option<PathBuf>,
    /// PEM file of the authority that every namespace's ConfigMap kube-root-ca.crt publishes
    #[arg(long)]
    root_ca_file: Option<PathBuf>,
    /// PEM certificate of the authority that signs approved CertificateSigningRequests
    #[arg(long, requires = "cluster_signing_key_file")]
    cluster_signing_cert_file: Option<PathBuf>,
    /// PEM key of that authority
    #[arg(long, requires = "cluster_signing_cert_file")]
    cluster_signing_key_file: Option<PathBuf>,
    /// Maximum lifetime of a signed certificate
    #[arg(long, default_value = "8760h", value_parser = component::duration)]
    cluster_signing_duration: Duration,
    /// Period in which the controller checks the heartbeats of nodes
    #[arg(long, default_value = "5s", value_parser = component::duration)]
    node_monitor_period: Duration,
    /// Time that a new node has for its first heartbeat
    #[arg(long, default_value = "1m", value_parser = component::duration)]
    node_startup_grace_period: Duration,
    /// Number of finished pods above which the oldest are deleted; 0 for no limit
    #[arg(long, default_value_t = 12500)]
    terminated_pod_gc_threshold: usize,
    /// Time after a node's last heartbeat until it is marked unreachable, e.g. 40s
    #[arg(long, default_value = "50s", value_parser = component::duration)]
    node_monitor_grace_period: Duration,
    /// Time without use after which an auto-generated service account token is marked invalid, and again that time until
    /// it is deleted, e.g. 720h
    #[arg(long, default_value = "8760h", value_parser = component::duration)]
    legacy_service_account_token_clean_up_period: Duration,
    /// Period in which each HorizontalPodAutoscaler reads its metrics, e.g. 30s
    #[arg(long, default_value = "15s", value_parser = component::duration)]
    horizontal_pod_autoscaler_sync_period: Duration,
    /// Autoscaling down uses the highest recommendation of this period, e.g. 1m
    #[arg(long, default_value = "5m", value_parser = component::duration)]
    horizontal_pod_autoscaler_downscale_stabilization: Duration,
    /// Minimum deviation from 1 of a metric's ratio to its target for scaling; 0.1 is ten percent
    #[arg(long, default_value_t = 0.1)]
    horizontal_pod_autoscaler_tolerance: f64,
    /// Time after a pod's start in which its CPU samples may be skipped
    #[arg(long, default_value = "5m", value_parser = component::duration)]
    horizontal_pod_autoscaler_cpu_initialization_period: Duration,
    /// Time after a pod's start in which a readiness change counts as its initial readiness
    #[arg(long, default_value = "30s", value_parser = component::duration)]
    horizontal_pod_autoscaler_initial_readiness_delay: Duration,
    /// Number of HorizontalPodAutoscalers that are reconciled concurrently
    #[arg(long, default_value_t = 5)]
    concurrent_horizontal_pod_autoscaler_syncs: usize,
    #[command(flatten)]
    leader: LeaderFlags,
    #[command(flatten)]
    serving: ServingFlags<10257>,
    #[command(flatten)]
    feature_gates: FeatureGateFlags,
    #[command(flatten)]
    no_effect: NoEffect<Upstream>,
}

struct Upstream;

impl Table for Upstream {
    const SHARED: &'static [Row] = no_effect::COMPONENT;
    /// All controllers have one identity, which the kubeconfig gives.
    const ROWS: &'static [Row] = &[
        Row::Value("cluster-name"),
        Row::Switch("use-service-account-credentials"),
        // What is always so here.
        Row::Only("cidr-allocator-type", &["RangeAllocator"]),
        Row::Only("cloud-provider", &["", "external"]),
        Row::Only("flex-volume-plugin-dir", &["", "/usr/libexec/kubernetes/kubelet-plugins/volume/exec/"]),
        Row::Only("leader-elect-resource-lock", &["leases"]),
        Row::Only("leader-elect-resource-name", &["kube-controller-manager"]),
        Row::Only("leader-elect-resource-namespace", &["kube-system"]),
        Row::Switch("configure-cloud-routes"),
        Row::Switch("contention-profiling"),
        Row::Switch("disable-attach-detach-reconcile-sync"),
        Row::Switch("disable-force-detach-on-timeout"),
        Row::Switch("disable-http2-serving"),
        Row::Switch("enable-dynamic-provisioning"),
        Row::Switch("enable-garbage-collector"),
        Row::Switch("permit-address-sharing"),
        Row::Switch("permit-port-sharing"),
        // Controllers act on changes, and as many at a time as there are.
        Row::Value("attach-detach-reconcile-sync-period"),
        Row::Value("concurrent-cron-job-syncs"),
        Row::Value("concurrent-daemonset-syncs"),
        Row::Value("concurrent-deployment-syncs"),
        Row::Value("concurrent-device-taint-eviction-syncs"),
        Row::Value("concurrent-endpoint-syncs"),
        Row::Value("concurrent-ephemeralvolume-syncs"),
        Row::Value("concurrent-gc-syncs"),
        Row::Value("concurrent-job-syncs"),
        Row::Value("concurrent-namespace-syncs"),
        Row::Value("concurrent-node-syncs"),
        Row::Value("concurrent-rc-syncs"),
        Row::Value("concurrent-replicaset-syncs"),
        Row::Value("concurrent-resource-quota-syncs"),
        Row::Value("concurrent-resourceclaim-syncs"),
        Row::Value("concurrent-service-endpoint-syncs"),
        Row::Value("concurrent-service-syncs"),
        Row::Value("concurrent-serviceaccount-token-syncs"),
        Row::Value("concurrent-statefulset-syncs"),
        Row::Value("concurrent-ttl-after-finished-syncs"),
        Row::Value("concurrent-validating-admission-policy-status-syncs"),
        Row::Value("controller-start-interval"),
        Row::Value("endpoint-updates-batch-period"),
        Row::Value("endpointslice-updates-batch-period"),
        Row::Value("http2-max-streams-per-connection"),
        Row::Value("min-resync-period"),
        Row::Value("mirroring-concurrent-service-endpoint-syncs"),
        Row::Value("mirroring-endpointslice-updates-batch-period"),
        Row::Value("namespace-sync-period"),
        Row::Value("node-sync-period"),
        Row::Value("pvclaimbinder-sync-period"),
        Row::Value("resource-quota-sync-period"),
        Row::Value("route-reconciliation-period"),
    ];
}

pub fn run(flags: Flags) -> anyhow::Result<()> {
    flags.no_effect.log();
    flags.feature_gates.log();
    component::run_on_one_thread(|shutdown| async move {
        let client = flags.connection.client("kube-controller-manager").await?;
        let config = flags.config()?;
        let serving = flags.serving.start(serving::controllers(), &client, &shutdown).await?;
        let ran = ferry_controllers::run(client, config, shutdown.clone()).await;
        shutdown.cancel();
        serving.wait().await;
        ran.context("run the controllers")
    })
}

impl Flags {
    fn config(&self) -> anyhow::Result<Config> {
        let read = |path: &PathBuf| std::fs::read(path).with_context(|| format!("read {}", path.display()));
        let host = component::host_name()?;
        let mut config = Config { instance: host.clone(), ..Config::default() };
        config.controllers.clone_from(&self.controllers);
        config.cluster_cidrs.clone_from(&self.cluster_cidr);
        config.service_cidrs.clone_from(&self.service_cluster_ip_range);
        config.allocate_node_cidrs = self.allocate_node_cidrs;
        config.root_ca = self.root_ca_file.as_ref().map(read).transpose()?;
        if let (Some(certificate), Some(key)) =
            (&self.cluster_signing_cert_file, &self.cluster_signing_key_file)
        {
            config.signing_ca = Some(SigningCa { certificate: read(certificate)?, key: read(key)? });
        }
        config.service_account_key = self.service_account_private_key_file.as_ref().map(read).transpose()?;
        config.certificate_duration = self.cluster_signing_duration;
        config.node_cidr_mask_v4 = self.node_cidr_mask_size_ipv4;
        config.node_cidr_mask_v6 = self.node_cidr_mask_size_ipv6;
        config.terminated_pod_threshold = self.terminated_pod_gc_threshold;
        config.node_monitor_period = self.node_monitor_period;
        config.node_startup_grace_period = self.node_startup_grace_period;
        config.node_monitor_grace_period = self.node_monitor_grace_period;
        config.legacy_token_clean_up_period = self.legacy_service_account_token_clean_up_period;
        config.horizontal_pod_autoscaler = HorizontalPodAutoscaling {
            sync_period: self.horizontal_pod_autoscaler_sync_period,
            downscale_stabilization: self.horizontal_pod_autoscaler_downscale_stabilization,
            tolerance: self.horizontal_pod_autoscaler_tolerance,
            cpu_initialization_period: self.horizontal_pod_autoscaler_cpu_initialization_period,
            initial_readiness_delay: self.horizontal_pod_autoscaler_initial_readiness_delay,
            concurrent_syncs: self.concurrent_horizontal_pod_autoscaler_syncs,
        };
        config.leader_election = self.leader.election("kube-controller-manager", &host);
        Ok(config)
    }
}
