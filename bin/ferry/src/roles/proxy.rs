//! `ferry proxy`: Services in this host's kernel.

use std::net::SocketAddr;

use anyhow::Context;
use clap::{Args, ValueEnum};
use ferry_client::Informers;
use ferry_proxy::{Config, NodePortAddresses};

use super::component::{self, Connection};
use super::serving;
use crate::cluster::metrics_ports;

#[derive(Args)]
pub struct Flags {
    #[command(flatten)]
    connection: Connection,
    #[arg(long)]
    hostname_override: Option<String>,
    /// Cluster name, from which the names of tables and chains derive
    #[arg(long, default_value = "ferry")]
    cluster_name: String,
    #[arg(long, value_delimiter = ',', default_value = "10.244.0.0/16")]
    cluster_cidr: Vec<String>,
    #[arg(long, value_enum, default_value = "nftables")]
    proxy_mode: Mode,
    /// Networks whose addresses serve node ports, or "primary" for the node's own [default: primary with nftables, all with
    /// iptables]
    #[arg(long, value_delimiter = ',')]
    nodeport_addresses: Vec<String>,
    /// Serve node ports on 127.0.0.1 too (iptables mode)
    #[arg(long, default_value_t = true, default_missing_value = "true", num_args = 0..=1, action = clap::ArgAction::Set)]
    iptables_localhost_nodeports: bool,
    #[arg(long)]
    healthz_bind_address: Option<SocketAddr>,
    /// Address of the metrics page, without TLS and authentication; port 0 turns it off [default: 127.0.0.1:10249 if it is
    /// free]
    #[arg(long)]
    metrics_bind_address: Option<SocketAddr>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Mode {
    Nftables,
    Iptables,
}

pub fn run(flags: Flags) -> anyhow::Result<()> {
    component::run(|shutdown| async move {
        let client = flags.connection.client("kube-proxy").await?;
        let metrics = flags.metrics_bind_address;
        let config = flags.config()?;
        let serving = serving::plain(metrics, metrics_ports::PROXY, serving::proxy(), &shutdown)?;
        let informers = Informers::new(client.clone(), shutdown.clone());
        ferry_proxy::run(informers, client, config, shutdown).await;
        serving.wait().await;
        Ok(())
    })
}

fn node_port_addresses(words: &[String], mode: ferry_proxy::Mode) -> anyhow::Result<NodePortAddresses> {
    match words {
        [] => Ok(NodePortAddresses::default_of(mode)),
        [word] if word == "primary" => Ok(NodePortAddresses::Primary),
        words => {
            let networks =
                words.iter().map(|word| word.parse().with_context(|| format!("--nodeport-addresses {word}")));
            Ok(NodePortAddresses::In(networks.collect::<Result<_, _>>()?))
        }
    }
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
        let mode = match self.proxy_mode {
            Mode::Nftables => ferry_proxy::Mode::Nftables,
            Mode::Iptables => ferry_proxy::Mode::Iptables,
        };
        Ok(Config {
            cluster: self.cluster_name,
            node_name,
            pod_cidrs: cidrs.collect::<Result<_, _>>()?,
            mode,
            masquerade_mark: 0x4000,
            node_port_addresses: node_port_addresses(&self.nodeport_addresses, mode)?,
            localhost_node_ports: self.iptables_localhost_nodeports,
            health_address: self.healthz_bind_address,
        })
    }
}
