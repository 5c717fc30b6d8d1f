//! What can be set about a cluster and about a node of it.

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
    /// Addresses of pods; 10.244.0.0/16, or the next range that is free on this host
    #[arg(long)]
    pub cluster_cidr: Option<IpNet>,
    /// How pods reach other hosts; none leaves the pods' network to somebody else
    #[arg(long, value_enum, default_value = "vxlan")]
    pub network: Network,
    /// The StorageClass that a new cluster starts with; none makes none, and claims wait for a class of yours
    #[arg(long, value_enum, default_value = "local")]
    pub default_storage_class: DefaultStorageClass,
    /// For a further server of a cluster in etcd: what the file server-token of the first one's data directory holds
    #[arg(long)]
    pub server_token: Option<String>,
    #[command(flatten)]
    pub node: NodeOptions,
    /// Where the context of this cluster is added
    #[arg(long)]
    pub kubeconfig: Option<PathBuf>,
    /// How many seconds `ferry up` waits for all parts to run. Then it ends with what is wrong; the rest of the cluster
    /// goes on, and the part is tried again
    #[arg(long, default_value_t = 120, value_name = "SECONDS")]
    pub timeout: u64,
    /// Tell the progress of the start as lines of JSON, for the program that waits for it
    #[arg(long, hide = true)]
    pub progress: bool,
}

/// What a node needs, be it the server's own or a further one.
#[derive(Args, Clone)]
pub struct NodeOptions {
    /// The node's name; the host's when not given
    #[arg(long, visible_alias = "hostname-override")]
    pub node_name: Option<String>,
    /// The node's address; that of the default route when not given
    #[arg(long)]
    pub node_ip: Option<IpAddr>,
    /// A YAML file with options, named like the flags
    #[arg(long)]
    pub config: Option<PathBuf>,
    /// A container runtime's socket; without it a running one is looked for, then containerd is started
    #[arg(long)]
    pub container_runtime_endpoint: Option<String>,
    /// Where containerd, when started by Ferry, looks up mirrors of registries
    #[arg(long, default_value = "/etc/containerd/certs.d")]
    pub registry_config_dir: PathBuf,
    #[arg(long, value_enum, default_value = "nftables")]
    pub proxy_mode: ProxyMode,
    #[arg(long, default_value_t = 110)]
    pub max_pods: u32,
    /// A KubeletConfiguration file, for what no flag sets
    #[arg(long)]
    pub kubelet_config: Option<PathBuf>,
    /// Labels the node registers with: key=value,…
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

/// All nodes of a cluster must take the same, and two clusters of one host different ones.
fn vxlan_id(cluster: &str) -> u32 {
    if cluster == "ferry" {
        return 1;
    }
    u32::from_str_radix(&names::hex(cluster)[11..], 16).map_or(1, |id| id + 2)
}
