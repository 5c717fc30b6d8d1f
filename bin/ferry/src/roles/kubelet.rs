//! `ferry kubelet`: the node agent alone, with upstream's flag names.

use std::net::IpAddr;
use std::path::PathBuf;

use anyhow::{Context, bail};
use clap::Args;
use ferry_kubelet::Config;

use super::component::{self, Connection};
use super::feature_gates::FeatureGateFlags;
use super::kubelet_settings::SettingFlags;
use super::no_effect::{CONTENT_TYPES, NoEffect, Row, Table};

#[derive(Args)]
pub struct Flags {
    #[command(flatten)]
    connection: Connection,
    /// Kubeconfig with a bootstrap token. Ferry does not ask for a certificate with it: the file of --kubeconfig has to be
    /// there
    #[arg(long)]
    bootstrap_kubeconfig: Option<PathBuf>,
    /// Name of the node [default: the host's name]
    #[arg(long)]
    hostname_override: Option<String>,
    /// Addresses of the node, one per IP family
    #[arg(long, value_delimiter = ',')]
    node_ip: Vec<IpAddr>,
    /// Labels that the node registers with, e.g. zone=a,disk=fast
    #[arg(long, value_delimiter = ',', value_parser = label)]
    node_labels: Vec<(String, String)>,
    /// Directory for pods, volumes and the kubelet's own state
    #[arg(long, default_value = "/var/lib/kubelet")]
    root_dir: PathBuf,
    /// Directory for container logs
    #[arg(long, default_value = "/var/log/pods")]
    pod_logs_dir: PathBuf,
    /// KubeletConfiguration file
    #[arg(long)]
    config: Option<PathBuf>,
    #[command(flatten)]
    settings: SettingFlags,
    #[command(flatten)]
    feature_gates: FeatureGateFlags,
    #[command(flatten)]
    no_effect: NoEffect<Upstream>,
}

struct Upstream;

impl Table for Upstream {
    const ROWS: &'static [Row] = &[
        // What is always so here.
        Row::Only("authorization-mode", &["Webhook"]),
        Row::Only("cloud-provider", &[""]),
        Row::Only("memory-manager-policy", &["None"]),
        Row::Only("read-only-port", &["0"]),
        Row::Only("topology-manager-policy", &["none"]),
        Row::Only("topology-manager-scope", &["container"]),
        Row::Switch("authentication-token-webhook"),
        Row::Switch("cgroups-per-qos"),
        Row::Switch("enable-controller-attach-detach"),
        Row::OnlySwitch("enable-server", "true"),
        Row::Switch("fail-cgroupv1"),
        Row::Switch("fail-swap-on"),
        Row::Switch("kernel-memcg-notification"),
        Row::Switch("local-storage-capacity-isolation"),
        Row::Switch("make-iptables-util-chains"),
        Row::Switch("protect-kernel-defaults"),
        Row::Switch("rotate-certificates"),
        Row::Switch("rotate-server-certificates"),
        Row::Switch("contention-profiling"),
        Row::Value("authentication-token-webhook-cache-ttl"),
        Row::Value("authorization-webhook-cache-authorized-ttl"),
        Row::Value("authorization-webhook-cache-unauthorized-ttl"),
        Row::Value("cert-dir"),
        Row::Value("cpu-cfs-quota-period"),
        Row::Value("cpu-manager-reconcile-period"),
        Row::Value("enforce-node-allocatable"),
        Row::Value("event-burst"),
        Row::Value("event-qps"),
        Row::Value("hairpin-mode"),
        Row::Value("healthz-bind-address"),
        Row::Value("healthz-port"),
        Row::Value("http-check-frequency"),
        Row::Value("image-service-endpoint"),
        Row::Value("kube-api-burst"),
        Row::Only("kube-api-content-type", CONTENT_TYPES),
        Row::Value("kube-api-qps"),
        Row::Value("kube-reserved-cgroup"),
        Row::Value("kubelet-cgroups"),
        Row::Value("max-open-files"),
        Row::Value("maximum-dead-containers"),
        Row::Value("maximum-dead-containers-per-container"),
        Row::Value("minimum-container-ttl-duration"),
        Row::Value("node-status-max-images"),
        Row::Value("oom-score-adj"),
        Row::Value("pod-infra-container-image"),
        Row::Value("pods-per-core"),
        Row::Value("registry-burst"),
        Row::Value("registry-qps"),
        Row::Value("runtime-cgroups"),
        Row::Value("runtime-request-timeout"),
        Row::Value("streaming-connection-idle-timeout"),
        Row::Value("system-cgroups"),
        Row::Value("system-reserved-cgroup"),
        Row::Value("tls-cipher-suites"),
        Row::Only("tls-min-version", &["VersionTLS10", "VersionTLS11", "VersionTLS12"]),
        Row::Value("volume-plugin-dir"),
        Row::Value("volume-stats-agg-period"),
        // How much is logged: FERRY_LOG.
        Row::Value("v"),
        Row::Value("vmodule"),
        Row::Value("logging-format"),
        Row::Value("log-flush-frequency"),
    ];
}

pub fn run(flags: Flags) -> anyhow::Result<()> {
    flags.no_effect.log();
    flags.feature_gates.log();
    flags.check_bootstrap()?;
    component::run(|shutdown| async move {
        let client = flags.connection.client("kubelet").await?;
        ferry_kubelet::run(Some(client), flags.config()?, shutdown).await.context("run the kubelet")
    })
}

fn label(word: &str) -> Result<(String, String), String> {
    let (key, value) = word.split_once('=').unwrap_or((word, ""));
    if key.is_empty() { Err("a label has a key".into()) } else { Ok((key.to_owned(), value.to_owned())) }
}

impl Flags {
    /// With both files upstream's kubelet asks for a certificate only as long as it has none.
    fn check_bootstrap(&self) -> anyhow::Result<()> {
        let Some(bootstrap) = &self.bootstrap_kubeconfig else { return Ok(()) };
        match &self.connection.kubeconfig {
            Some(kubeconfig) if kubeconfig.exists() => {
                tracing::info!(
                    "--bootstrap-kubeconfig has no effect here: the file of --kubeconfig is there"
                );
                Ok(())
            }
            _ => bail!(
                "--bootstrap-kubeconfig {}: this kubelet asks for no certificate; write the file of --kubeconfig before, or \
                 join the node with `ferry agent`",
                bootstrap.display()
            ),
        }
    }

    fn config(self) -> anyhow::Result<Config> {
        let name = match self.hostname_override {
            Some(name) => name,
            None => component::host_name()?,
        };
        let mut config = Config {
            node_ips: self.node_ip,
            node_labels: self.node_labels.into_iter().collect(),
            root_dir: self.root_dir,
            pod_logs_dir: self.pod_logs_dir,
            ..Config::new(name)
        };
        if let Some(file) = &self.config {
            ferry_kubelet::config_file::apply(file, &mut config)?;
        }
        let applied = ferry_kubelet::config_file::apply_fields(self.settings.0, &mut config);
        applied.map_err(anyhow::Error::msg).context("understand the flags")?;
        if config.tls_cert_file.is_some() != config.tls_private_key_file.is_some() {
            bail!("--tls-cert-file and --tls-private-key-file need each other");
        }
        Ok(config)
    }
}
