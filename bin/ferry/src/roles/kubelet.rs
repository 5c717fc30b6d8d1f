//! `ferry kubelet`: the node agent alone, with upstream's flag names.

use std::net::IpAddr;
use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use ferry_kubelet::Config;

use super::component::{self, Connection};

#[derive(Args)]
pub struct Flags {
    #[command(flatten)]
    connection: Connection,
    /// Name of the node [default: the host's name]
    #[arg(long)]
    hostname_override: Option<String>,
    #[arg(long, value_delimiter = ',')]
    node_ip: Vec<IpAddr>,
    #[arg(long, default_value = "/var/lib/kubelet")]
    root_dir: PathBuf,
    #[arg(long, default_value = "/var/log/pods")]
    pod_logs_dir: PathBuf,
    #[arg(long, default_value = "unix:///run/containerd/containerd.sock")]
    container_runtime_endpoint: String,
    /// Directory of static pod manifests
    #[arg(long)]
    pod_manifest_path: Option<PathBuf>,
    #[arg(long, value_delimiter = ',')]
    cluster_dns: Vec<IpAddr>,
    #[arg(long, default_value = "cluster.local")]
    cluster_domain: String,
    #[arg(long, default_value_t = 10250)]
    port: u16,
    #[arg(long, requires = "tls_private_key_file")]
    tls_cert_file: Option<PathBuf>,
    #[arg(long, requires = "tls_cert_file")]
    tls_private_key_file: Option<PathBuf>,
    #[arg(long)]
    client_ca_file: Option<PathBuf>,
    #[arg(long, default_value_t = 110)]
    max_pods: u32,
    /// KubeletConfiguration file; it overrides the flags
    #[arg(long)]
    config: Option<PathBuf>,
}

pub fn run(flags: Flags) -> anyhow::Result<()> {
    component::run(|shutdown| async move {
        let client = flags.connection.client("kubelet").await?;
        ferry_kubelet::run(Some(client), flags.config()?, shutdown).await.context("run the kubelet")
    })
}

impl Flags {
    fn config(self) -> anyhow::Result<Config> {
        let name = match self.hostname_override {
            Some(name) => name,
            None => component::host_name()?,
        };
        let mut config = Config {
            node_ips: self.node_ip,
            root_dir: self.root_dir,
            pod_logs_dir: self.pod_logs_dir,
            container_runtime_endpoint: self.container_runtime_endpoint,
            static_pod_path: self.pod_manifest_path,
            cluster_dns: self.cluster_dns,
            cluster_domain: self.cluster_domain,
            port: self.port,
            tls_cert_file: self.tls_cert_file,
            tls_private_key_file: self.tls_private_key_file,
            client_ca_file: self.client_ca_file,
            max_pods: self.max_pods,
            ..Config::new(name)
        };
        if let Some(file) = &self.config {
            ferry_kubelet::config_file::apply(file, &mut config)?;
        }
        Ok(config)
    }
}
