//! `ferry scheduler`: binds pods to nodes, with upstream's flag names.

use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Args;
use ferry_scheduler::{Config, configuration_file, policy_file};

use super::component::{self, Connection, LeaderFlags};
use super::feature_gates::FeatureGateFlags;
use super::no_effect::{self, NoEffect, Row, Table};
use super::serving::{self, ServingFlags};

#[derive(Args)]
pub struct Flags {
    #[command(flatten)]
    connection: Connection,
    /// KubeSchedulerConfiguration file; it overrides the flags
    #[arg(long)]
    config: Option<PathBuf>,
    /// Policy file, the older format: predicates and priorities by name
    #[arg(long, conflicts_with = "config")]
    policy_config_file: Option<PathBuf>,
    #[command(flatten)]
    leader: LeaderFlags,
    #[command(flatten)]
    serving: ServingFlags<10259>,
    #[command(flatten)]
    feature_gates: FeatureGateFlags,
    #[command(flatten)]
    no_effect: NoEffect<Upstream>,
}

struct Upstream;

impl Table for Upstream {
    const SHARED: &'static [Row] = no_effect::COMPONENT;
    const ROWS: &'static [Row] = &[
        // What is always so here.
        Row::Only("leader-elect-resource-lock", &["leases"]),
        Row::Only("leader-elect-resource-name", &["kube-scheduler"]),
        Row::Only("leader-elect-resource-namespace", &["kube-system"]),
        Row::Switch("contention-profiling"),
        Row::Switch("disable-http2-serving"),
        Row::Switch("permit-address-sharing"),
        Row::Switch("permit-port-sharing"),
        Row::Value("http2-max-streams-per-connection"),
    ];
}

pub fn run(flags: Flags) -> anyhow::Result<()> {
    flags.no_effect.log();
    flags.feature_gates.log();
    component::run_on_one_thread(|shutdown| async move {
        let client = flags.connection.client("kube-scheduler").await?;
        let config = flags.config()?;
        let serving = flags.serving.start(serving::scheduler(client.clone()), &client, &shutdown).await?;
        let ran = ferry_scheduler::run(client, config, shutdown.clone()).await;
        shutdown.cancel();
        serving.wait().await;
        ran.context("run the scheduler")
    })
}

impl Flags {
    fn config(&self) -> anyhow::Result<Config> {
        let host = component::host_name()?;
        let mut config = Config { instance: host.clone(), ..Config::default() };
        // The configuration file overrides the flags, as in upstream.
        config.leader_election = self.leader.election("kube-scheduler", &host);
        let read =
            |path: &Path| std::fs::read_to_string(path).with_context(|| format!("read {}", path.display()));
        let understand = |path: &Path| format!("understand {}", path.display());
        if let Some(path) = &self.config {
            return configuration_file::read(&read(path)?, config).with_context(|| understand(path));
        }
        if let Some(path) = &self.policy_config_file {
            return policy_file::read(&read(path)?, config).with_context(|| understand(path));
        }
        Ok(config)
    }
}
