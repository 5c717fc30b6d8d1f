//! The options of a cluster and of its nodes.

use std::net::IpAddr;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use ferry_linux::net::names;
use ipnet::IpNet;

use super::facts::Overlay;
use crate::roles::apiserver;

#[derive(Args, Clone)]
pub struct ServerOptions {
    #[command(flatten)]
    pub api: apiserver::Flags,
    /// Address range of pods [default: 10.244.0.0/16, or the next range that is free on this host]
    #[arg(long)]
    pub cluster_cidr: Option<IpNet>,
    /// Network between the pods of different hosts; none for a network plugin of your own
    #[arg(long, value_enum, default_value = "vxlan")]
    pub network: Network,
    /// StorageClass of a new cluster; with none, claims stay pending until you create a class
    #[arg(long, value_enum, default_value = "local")]
    pub default_storage_class: DefaultStorageClass,
    /// For additional servers on the same etcd: the content of the file server-token in the first server's data directory
    #[arg(long)]
    pub server_token: Option<String>,
    #[command(flatten)]
    pub node: NodeOptions,
    /// Kubeconfig file to which the context of this cluster is added [default: $KUBECONFIG or ~/.kube/config]
    #[arg(long)]
    pub kubeconfig: Option<PathBuf>,
    /// Seconds that `ferry up` waits for all parts. After that it reports the problem and exits; the cluster keeps
    /// running and retries the failed part
    #[arg(long, default_value_t = 120, value_name = "SECONDS")]
    pub timeout: u64,
    /// Print the progress of the start as lines of JSON
    #[arg(long, hide = true)]
    pub progress: bool,
}

/// The options of a node, with or without a server on its host.
#[derive(Args, Clone)]
pub struct NodeOptions {
    /// Name of the node [default: the host's name]
    #[arg(long, visible_alias = "hostname-override")]
    pub node_name: Option<String>,
    /// Address of the node [default: the address of the default route]
    #[arg(long)]
    pub node_ip: Option<IpAddr>,
    /// YAML file with options, named like the flags
    #[arg(long)]
    pub config: Option<PathBuf>,
    /// Socket of the container runtime [default: a running runtime, or else containerd, started by Ferry]
    #[arg(long)]
    pub container_runtime_endpoint: Option<String>,
    /// Directory of registry mirrors for the containerd that Ferry starts
    #[arg(long, default_value = "/etc/containerd/certs.d")]
    pub registry_config_dir: PathBuf,
    /// Kernel interface for the rules of Services
    #[arg(long, value_enum, default_value = "nftables")]
    pub proxy_mode: ProxyMode,
    /// Maximum number of pods on the node
    #[arg(long, default_value_t = 110)]
    pub max_pods: u32,
    /// KubeletConfiguration file, for settings without a flag
    #[arg(long)]
    pub kubelet_config: Option<PathBuf>,
    /// Labels that the node registers with: key=value,…
    #[arg(long, value_delimiter = ',')]
    pub node_labels: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Network {
    Vxlan,
    HostGw,
    None,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DefaultStorageClass {
    Local,
    None,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ProxyMode {
    Nftables,
    Iptables,
}

impl Network {
    pub fn overlay(self, cluster: &str) -> Overlay {
        match self {
            Network::Vxlan => Overlay::Vxlan { id: vxlan_id(cluster), port: 8472 },
            Network::HostGw => Overlay::HostGateway,
            Network::None => Overlay::None,
        }
    }
}

/// The same on all nodes of a cluster, and different for two clusters on one host.
fn vxlan_id(cluster: &str) -> u32 {
    if cluster == "ferry" {
        return 1;
    }
    u32::from_str_radix(&names::hex(cluster)[11..], 16).map_or(1, |id| id + 2)
}
