//! `ferry scheduler`: binds pods to nodes, with upstream's flag names.

use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use ferry_scheduler::Config;

use super::component::{self, Connection};

#[derive(Args)]
pub struct Flags {
    #[command(flatten)]
    connection: Connection,
    /// A KubeSchedulerConfiguration
    #[arg(long)]
    config: Option<PathBuf>,
    /// One of several instances works at a time
    #[arg(long, default_value_t = true, action = clap::ArgAction::Set)]
    leader_elect: bool,
}

pub fn run(flags: Flags) -> anyhow::Result<()> {
    component::run(|shutdown| async move {
        let client = flags.connection.client("kube-scheduler").await?;
        ferry_scheduler::run(client, flags.config()?, shutdown).await.context("run the scheduler")
    })
}

impl Flags {
    fn config(&self) -> anyhow::Result<Config> {
        let host = component::host_name()?;
        let mut config = Config { instance: host.clone(), ..Config::default() };
        if let Some(path) = &self.config {
            let text = std::fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?;
            config = ferry_scheduler::configuration_file::read(&text, config)
                .with_context(|| format!("understand {}", path.display()))?;
        }
        config.leader_election = self.leader_elect.then(|| {
            let identity = format!("{host}_{}", std::process::id());
            ferry_client::leader::Election::new("kube-system", "kube-scheduler", identity)
        });
        Ok(config)
    }
}
