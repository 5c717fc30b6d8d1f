//! `ferry controller-manager`: the control loops alone, with upstream's flag names.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use ferry_controllers::Config;
use ferry_controllers::config::{HorizontalPodAutoscaling, SigningCa};

use super::component::{self, Connection, LeaderFlags};
use super::feature_gates::FeatureGateFlags;
use super::no_effect::{CONTENT_TYPES, NoEffect, Row, Table};
use super::serving::{self, ServingFlags};

#[derive(Args)]
pub struct Flags {
    #[command(flatten)]
    connection: Connection,
    /// Names, * for all that are on by default, -name to leave one out
    #[arg(long, value_delimiter = ',', default_value = "*", allow_hyphen_values = true)]
    controllers: Vec<String>,
    #[arg(long, value_delimiter = ',')]
    cluster_cidr: Vec<String>,
    #[arg(long, value_delimiter = ',')]
    service_cluster_ip_range: Vec<String>,
    #[arg(long, default_value_t = false, default_missing_value = "true", num_args = 0..=1, require_equals = true, action = clap::ArgAction::Set)]
    allocate_node_cidrs: bool,
    #[arg(long)]
    root_ca_file: Option<PathBuf>,
    #[arg(long, requires = "cluster_signing_key_file")]
    cluster_signing_cert_file: Option<PathBuf>,
    #[arg(long, requires = "cluster_signing_cert_file")]
    cluster_signing_key_file: Option<PathBuf>,
    /// How long after its last heartbeat a node counts as unreachable
    #[arg(long, default_value = "50s", value_parser = component::duration)]
    node_monitor_grace_period: Duration,
    /// How long a token that an account got by itself must be unused before it is marked invalid, and marked before it is
    /// removed, e.g. 720h
    #[arg(long, default_value = "8760h", value_parser = component::duration)]
    legacy_service_account_token_clean_up_period: Duration,
    /// How often each HorizontalPodAutoscaler looks at its metrics, e.g. 30s
    #[arg(long, default_value = "15s", value_parser = component::duration)]
    horizontal_pod_autoscaler_sync_period: Duration,
    /// How long a target is held at the highest size that was recommended for it, e.g. 1m
    #[arg(long, default_value = "5m", value_parser = component::duration)]
    horizontal_pod_autoscaler_downscale_stabilization: Duration,
    /// How far a metric's ratio to its target must be from 1 to change the size; 0.1 is ten percent
    #[arg(long, default_value_t = 0.1)]
    horizontal_pod_autoscaler_tolerance: f64,
    /// How long after a pod's start samples of its CPU may be left out
    #[arg(long, default_value = "5m", value_parser = component::duration)]
    horizontal_pod_autoscaler_cpu_initialization_period: Duration,
    /// How long after a pod's start a change of its readiness counts as the first
    #[arg(long, default_value = "30s", value_parser = component::duration)]
    horizontal_pod_autoscaler_initial_readiness_delay: Duration,
    /// How many HorizontalPodAutoscalers are worked on at a time
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
    /// Of how its port asks the API server, which its own kubeconfig tells; of its identity, which is one for all controllers;
    /// of its log.
    const ROWS: &'static [Row] = &[
        Row::Value("authentication-kubeconfig"),
        Row::Value("authorization-kubeconfig"),
        Row::Value("cert-dir"),
        Row::Value("cluster-name"),
        Row::Value("kube-api-burst"),
        Row::Only("kube-api-content-type", CONTENT_TYPES),
        Row::Value("kube-api-qps"),
        Row::Value("requestheader-client-ca-file"),
        Row::Value("service-account-private-key-file"),
        Row::Switch("profiling"),
        Row::Switch("use-service-account-credentials"),
        Row::Value("v"),
        Row::Value("vmodule"),
        Row::Value("logging-format"),
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
