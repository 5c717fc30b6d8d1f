//! `ferry dns`: names of Services and pods.

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use ferry_client::Informers;
use ferry_dns::Config;

use super::component::{self, Connection};
use super::serving;
use crate::cluster::metrics_ports;

#[derive(Args)]
pub struct Flags {
    #[command(flatten)]
    connection: Connection,
    /// DNS domain of the cluster
    #[arg(long, default_value = "cluster.local")]
    cluster_domain: String,
    /// Addresses on which the server answers over UDP and TCP
    #[arg(long, value_delimiter = ',', default_value = "127.0.0.1:5353")]
    listen: Vec<SocketAddr>,
    /// DNS servers for names outside the cluster
    #[arg(long, default_value = "/etc/resolv.conf")]
    resolv_conf: PathBuf,
    /// Address of the metrics page, without TLS and authentication; port 0 turns it off [default: 127.0.0.1:9153 if it is
    /// free]
    #[arg(long)]
    metrics_bind_address: Option<SocketAddr>,
}

pub fn run(flags: Flags) -> anyhow::Result<()> {
    component::run(|shutdown| async move {
        let client = flags.connection.client("ferry-dns").await?;
        let informers = Informers::new(client, shutdown.clone());
        let config = Config {
            domain: flags.cluster_domain,
            listen: flags.listen,
            resolv_conf: flags.resolv_conf,
            own_addresses: Vec::new(),
        };
        let serving =
            serving::plain(flags.metrics_bind_address, metrics_ports::DNS, serving::dns(), &shutdown)?;
        let ran = ferry_dns::run(informers, config, shutdown.clone()).await;
        shutdown.cancel();
        serving.wait().await;
        ran.context("answer names")
    })
}
