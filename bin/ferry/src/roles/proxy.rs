//! `ferry proxy`: Services in this host's kernel.

use std::net::SocketAddr;

use anyhow::Context;
use clap::{Args, ValueEnum};
use ferry_client::Informers;
use ferry_proxy::Config;

use super::component::{self, Connection};

#[derive(Args)]
pub struct Flags {
    #[command(flatten)]
    connection: Connection,
    #[arg(long)]
    hostname_override: Option<String>,
    /// Names of tables and chains derive from it
    #[arg(long, default_value = "ferry")]
    cluster_name: String,
    #[arg(long, value_delimiter = ',', default_value = "10.244.0.0/16")]
    cluster_cidr: Vec<String>,
    #[arg(long, value_enum, default_value = "nftables")]
    proxy_mode: Mode,
    #[arg(long)]
    healthz_bind_address: Option<SocketAddr>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Mode {
    Nftables,
    Iptables,
}

pub fn run(flags: Flags) -> anyhow::Result<()> {
    component::run(|shutdown| async move {
        let client = flags.connection.client("kube-proxy").await?;
        let config = flags.config()?;
        let informers = Informers::new(client, shutdown.clone());
        ferry_proxy::run(informers, config, shutdown).await;
        Ok(())
    })
}

impl Flags {
    fn config(self) -> anyhow::Result<Config> {
        let node_name = match self.hostname_override {
            Some(name) => name,
            None => component::host_name()?,
        };
        let cidrs = self
            .cluster_cidr
            .iter()
            .map(|cidr| cidr.parse().with_context(|| format!("--cluster-cidr {cidr}")));
        Ok(Config {
            cluster: self.cluster_name,
            node_name,
            pod_cidrs: cidrs.collect::<Result<_, _>>()?,
            mode: match self.proxy_mode {
                Mode::Nftables => ferry_proxy::Mode::Nftables,
                Mode::Iptables => ferry_proxy::Mode::Iptables,
            },
            masquerade_mark: 0x4000,
            health_address: self.healthz_bind_address,
        })
    }
}
