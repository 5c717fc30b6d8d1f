//! `ferry dns`: names of Services and pods.

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use ferry_client::Informers;
use ferry_dns::Config;

use super::component::{self, Connection};

#[derive(Args)]
pub struct Flags {
    #[command(flatten)]
    connection: Connection,
    #[arg(long, default_value = "cluster.local")]
    cluster_domain: String,
    #[arg(long, value_delimiter = ',', default_value = "127.0.0.1:5353")]
    listen: Vec<SocketAddr>,
    /// Where names outside the cluster are asked for
    #[arg(long, default_value = "/etc/resolv.conf")]
    resolv_conf: PathBuf,
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
        ferry_dns::run(informers, config, shutdown).await.context("answer names")
    })
}
