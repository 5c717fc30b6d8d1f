//! `ferry proxy`: Services in this host's kernel.

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::Context;
use clap::{Args, ValueEnum};
use ferry_client::Informers;
use ferry_proxy::{Config, NodePortAddresses};

use super::component::{self, Connection};
use super::feature_gates::FeatureGateFlags;
use super::no_effect::{CONTENT_TYPES, NoEffect, Row, Table};
use super::{proxy_config_file, serving};
use crate::cluster::metrics_ports;

#[derive(Args)]
pub struct Flags {
    #[command(flatten)]
    connection: Connection,
    /// Name of the node [default: the host's name]
    #[arg(long)]
    hostname_override: Option<String>,
    /// Cluster name, from which the names of tables and chains derive
    #[arg(long, default_value = "ferry")]
    cluster_name: String,
    /// Addresses of pods; traffic from elsewhere to Services is masqueraded
    #[arg(long, value_delimiter = ',', default_value = "10.244.0.0/16")]
    cluster_cidr: Vec<String>,
    /// Kernel interface for the rules
    #[arg(long, value_enum, default_value = "nftables")]
    proxy_mode: Mode,
    /// Networks whose addresses serve node ports, or "primary" for the node's own [default: primary with nftables, all with
    /// iptables]
    #[arg(long, value_delimiter = ',')]
    nodeport_addresses: Vec<String>,
    /// Serve node ports on 127.0.0.1 too (iptables mode)
    #[arg(long, default_value_t = true, default_missing_value = "true", num_args = 0..=1, action = clap::ArgAction::Set)]
    iptables_localhost_nodeports: bool,
    /// Address of the health page; none by default
    #[arg(long)]
    healthz_bind_address: Option<SocketAddr>,
    /// Address of the metrics page, without TLS and authentication; port 0 turns it off [default: 127.0.0.1:10249 if it is
    /// free]
    #[arg(long)]
    metrics_bind_address: Option<SocketAddr>,
    /// KubeProxyConfiguration file; it overrides the flags
    #[arg(long)]
    config: Option<PathBuf>,
    #[command(flatten)]
    feature_gates: FeatureGateFlags,
    #[command(flatten)]
    no_effect: NoEffect<Upstream>,
}

struct Upstream;

impl Table for Upstream {
    const ROWS: &'static [Row] = &[
        // What is always so here.
        Row::Only("detect-local-mode", &["ClusterCIDR"]),
        Row::Only("iptables-masquerade-bit", &["14"]),
        Row::Switch("bind-address-hard-fail"),
        Row::Switch("conntrack-tcp-be-liberal"),
        Row::Switch("ipvs-strict-arp"),
        Row::Switch("profiling"),
        Row::Value("bind-address"),
        Row::Value("config-sync-period"),
        Row::Value("conntrack-max-per-core"),
        Row::Value("conntrack-min"),
        Row::Value("conntrack-tcp-timeout-established"),
        Row::Value("conntrack-tcp-timeout-close-wait"),
        Row::Value("conntrack-udp-timeout"),
        Row::Value("conntrack-udp-timeout-stream"),
        Row::Value("iptables-min-sync-period"),
        Row::Value("iptables-sync-period"),
        Row::Value("ipvs-exclude-cidrs"),
        Row::Value("ipvs-min-sync-period"),
        Row::Value("ipvs-scheduler"),
        Row::Value("ipvs-sync-period"),
        Row::Value("ipvs-tcp-timeout"),
        Row::Value("ipvs-tcpfin-timeout"),
        Row::Value("ipvs-udp-timeout"),
        Row::Value("kube-api-burst"),
        Row::Only("kube-api-content-type", CONTENT_TYPES),
        Row::Value("kube-api-qps"),
        Row::Value("oom-score-adj"),
        Row::Value("show-hidden-metrics-for-version"),
        // How much is logged: FERRY_LOG.
        Row::Value("v"),
        Row::Value("vmodule"),
        Row::Value("logging-format"),
        Row::Value("log-flush-frequency"),
    ];
}

#[derive(Clone, Copy, ValueEnum)]
enum Mode {
    Nftables,
    Iptables,
}

pub fn run(mut flags: Flags) -> anyhow::Result<()> {
    flags.no_effect.log();
    flags.feature_gates.log();
    flags.read_config_file()?;
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
    fn read_config_file(&mut self) -> anyhow::Result<()> {
        let Some(path) = &self.config else { return Ok(()) };
        let file = proxy_config_file::read(path)?;
        let in_file = || format!("understand {}", path.display());
        if let Some(kubeconfig) = file.kubeconfig() {
            self.connection.kubeconfig = Some(kubeconfig);
        }
        if let Some(address) = file.healthz_bind_address().with_context(in_file)? {
            self.healthz_bind_address = Some(address);
        }
        if let Some(address) = file.metrics_bind_address().with_context(in_file)? {
            self.metrics_bind_address = Some(address);
        }
        if let Some(serves) = file.localhost_node_ports() {
            self.iptables_localhost_nodeports = serves;
        }
        if let Some(mode) = file.mode.filter(|mode| !mode.is_empty()) {
            self.proxy_mode = Mode::from_str(&mode, false)
                .map_err(|_| anyhow::anyhow!("mode: {mode:?} is neither nftables nor iptables"))
                .with_context(in_file)?;
        }
        if let Some(cidrs) = file.cluster_cidr.filter(|cidrs| !cidrs.is_empty()) {
            self.cluster_cidr = cidrs.split(',').map(str::to_owned).collect();
        }
        if let Some(name) = file.hostname_override.filter(|name| !name.is_empty()) {
            self.hostname_override = Some(name);
        }
        if let Some(addresses) = file.node_port_addresses.filter(|addresses| !addresses.is_empty()) {
            self.nodeport_addresses = addresses;
        }
        Ok(())
    }

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
