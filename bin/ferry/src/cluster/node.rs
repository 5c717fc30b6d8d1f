//! The parts of a node: kubelet, pod network, proxy, DNS.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use ferry_client::{CancellationToken, Client, Informers};
use k8s_openapi::api::core::v1::Node as ApiNode;
use tokio::sync::Notify;
use tokio_util::task::TaskTracker;

use super::layout::Layout;
use super::options::{NodeOptions, ProxyMode};
use super::parts::Parts;
use super::ranges::Ranges;
use super::runtime::Runtime;

const KUBELET_PORT: u16 = 10250;
const DNS_PORT: u16 = 10053;
/// Between two questions to a DNS that does not answer yet.
const DNS_STEP: Duration = Duration::from_millis(5);

/// Everything a node's parts are made from.
pub struct Node {
    pub layout: Layout,
    pub name: String,
    pub address: IpAddr,
    pub options: NodeOptions,
    pub ranges: Ranges,
    pub domain: String,
    pub runtime: Runtime,
    pub keys: Keys,
    pub clients: Clients,
}

/// The kubelet's serving certificate, and the authority its callers are believed by.
pub struct Keys {
    pub certificate: PathBuf,
    pub key: PathBuf,
    pub client_ca: PathBuf,
}

/// The identities a node's parts act with.
pub struct Clients {
    pub kubelet: Client,
    /// For the pod network, the proxy and the DNS's records.
    pub network: Client,
}

impl Node {
    /// Starts all parts, which end with `shutdown`. Returns where the node's DNS listens.
    pub fn start(
        &self,
        informers: &Informers,
        parts: &Parts,
        tasks: &TaskTracker,
        shutdown: &CancellationToken,
    ) -> anyhow::Result<SocketAddr> {
        let span = ferry_trace::span("cluster.node");
        span.enter(|| {
            self.start_kubelet(parts, tasks, shutdown)?;
            self.start_network(informers, parts, tasks, shutdown)?;
            self.start_proxy(informers, parts, tasks, shutdown);
            self.start_dns(informers, parts, tasks, shutdown)
        })
    }

    fn start_kubelet(
        &self,
        parts: &Parts,
        tasks: &TaskTracker,
        shutdown: &CancellationToken,
    ) -> anyhow::Result<()> {
        let defaults = ferry_kubelet::Config::new(&self.name);
        let labels = self.options.node_labels.iter().map(|text| {
            let (key, value) = text.split_once('=').unwrap_or((text, ""));
            (key.to_owned(), value.to_owned())
        });
        let config = ferry_kubelet::Config {
            node_ips: vec![self.address],
            node_labels: labels.collect(),
            root_dir: self.layout.kubelet(),
            pod_logs_dir: self.layout.pod_logs(),
            static_pod_path: Some(self.layout.data_dir.join("manifests")),
            container_runtime_endpoint: self.runtime.endpoint.clone(),
            cluster_dns: vec![self.ranges.dns()?],
            cluster_domain: self.domain.clone(),
            port: free_port(self.address, KUBELET_PORT),
            tls_cert_file: Some(self.keys.certificate.clone()),
            tls_private_key_file: Some(self.keys.key.clone()),
            client_ca_file: Some(self.keys.client_ca.clone()),
            max_pods: self.options.max_pods,
            cni_trace_dir: Some(ferry_cni::install::trace_dir(&self.layout.leases())),
            cgroup_driver: self.runtime.cgroup_driver,
            cgroup_root: self.layout.cgroup_root(),
            ..defaults
        };
        let client = self.clients.kubelet.clone();
        let (parts, stop) = (parts.clone(), shutdown.clone());
        parts.starting("kubelet");
        tasks.spawn(async move {
            let run = || ferry_kubelet::run(Some(client.clone()), config.clone(), stop.clone());
            parts.keep("kubelet", stop.clone(), run).await;
        });
        Ok(())
    }

    fn start_network(
        &self,
        informers: &Informers,
        parts: &Parts,
        tasks: &TaskTracker,
        shutdown: &CancellationToken,
    ) -> anyhow::Result<()> {
        let Some(config) = self.network_config()? else {
            parts.running("network", "left to others");
            return Ok(());
        };
        parts.starting("network");
        tasks.spawn(ferry_cni::node::run(informers.clone(), config, shutdown.clone()));
        Ok(())
    }

    fn network_config(&self) -> anyhow::Result<Option<ferry_cni::node::Config>> {
        network_config(&self.layout, &self.name, &self.ranges, &self.runtime, &self.options)
    }

    fn start_proxy(
        &self,
        informers: &Informers,
        parts: &Parts,
        tasks: &TaskTracker,
        shutdown: &CancellationToken,
    ) {
        parts.starting("proxy");
        let config = proxy_config(&self.layout, &self.name, &self.ranges, self.options.proxy_mode);
        tasks.spawn(ferry_proxy::run(informers.clone(), config, shutdown.clone()));
    }

    fn start_dns(
        &self,
        informers: &Informers,
        parts: &Parts,
        tasks: &TaskTracker,
        shutdown: &CancellationToken,
    ) -> anyhow::Result<SocketAddr> {
        parts.starting("dns");
        let listen = SocketAddr::new(self.address, free_port(self.address, DNS_PORT));
        let config = ferry_dns::Config {
            domain: self.domain.clone(),
            listen: vec![listen],
            resolv_conf: "/etc/resolv.conf".into(),
            own_addresses: vec![self.ranges.dns()?],
        };
        let (informers, parts, stop) = (informers.clone(), parts.clone(), shutdown.clone());
        tasks.spawn(async move {
            let run = || ferry_dns::run(informers.clone(), config.clone(), stop.clone());
            parts.keep("dns", stop.clone(), run).await;
        });
        Ok(listen)
    }

    /// Returns when the node is registered and Ready, telling the parts as they come.
    pub async fn ready(&self, informers: &Informers, parts: &Parts) {
        let span = ferry_trace::span("cluster.node_ready");
        let nodes = informers.of::<ApiNode>();
        let changed = Arc::new(Notify::new());
        let wake = changed.clone();
        nodes.handle(move |_| wake.notify_one());
        // What the node said before this start is no news of it.
        let since = jiff::Timestamp::now().as_second();
        let is_fresh = |condition: &&k8s_openapi::api::core::v1::NodeCondition| {
            condition.last_heartbeat_time.as_ref().is_some_and(|time| time.0.as_second() >= since)
        };
        let wait = async {
            loop {
                let all = nodes.list();
                if let Some(own) = all.iter().find(|node| node.metadata.name.as_ref() == Some(&self.name)) {
                    parts.running("kubelet", self.runtime.description.clone());
                    let condition = ready_condition(own).filter(is_fresh);
                    if condition.is_some_and(|condition| condition.status == "True") {
                        let cidr = own.spec.as_ref().and_then(|spec| spec.pod_cidr.clone());
                        parts.running("network", cidr.unwrap_or_else(|| "left to others".into()));
                        return;
                    }
                }
                changed.notified().await;
            }
        };
        span.in_scope(wait).await;
    }

    /// Returns when names are answered at the cluster's DNS address, which takes the DNS and the proxy.
    pub async fn names_answered(&self, parts: &Parts) -> anyhow::Result<()> {
        let span = ferry_trace::span("cluster.dns_ready");
        let server = SocketAddr::new(self.ranges.dns()?, 53);
        let wait = async {
            while !ferry_dns::probe::answers(server, &self.domain).await {
                tokio::time::sleep(DNS_STEP).await;
            }
        };
        span.in_scope(wait).await;
        parts.running("proxy", format!("{:?}", self.options.proxy_mode).to_lowercase());
        parts.running("dns", server.ip().to_string());
        Ok(())
    }
}

pub fn ready_condition(node: &ApiNode) -> Option<&k8s_openapi::api::core::v1::NodeCondition> {
    node.status.as_ref()?.conditions.as_ref()?.iter().find(|condition| condition.type_ == "Ready")
}

/// `None` where the pods' network is not ours.
pub fn network_config(
    layout: &Layout,
    node_name: &str,
    ranges: &Ranges,
    runtime: &Runtime,
    options: &NodeOptions,
) -> anyhow::Result<Option<ferry_cni::node::Config>> {
    let Some(overlay) = options.network.overlay(&layout.cluster) else { return Ok(None) };
    Ok(Some(ferry_cni::node::Config {
        cluster: layout.cluster.clone(),
        node_name: node_name.to_owned(),
        cluster_cidrs: vec![ranges.cluster_cidr],
        configuration_dir: runtime.cni_configuration.clone(),
        plugin_dir: runtime.cni_plugins.clone(),
        binary: std::env::current_exe().context("find this program")?,
        lease_dir: layout.leases(),
        overlay: Some(overlay),
    }))
}

pub fn proxy_config(
    layout: &Layout,
    node_name: &str,
    ranges: &Ranges,
    mode: ProxyMode,
) -> ferry_proxy::Config {
    ferry_proxy::Config {
        cluster: layout.cluster.clone(),
        node_name: node_name.to_owned(),
        pod_cidrs: vec![ranges.cluster_cidr],
        mode: match mode {
            ProxyMode::Nftables => ferry_proxy::Mode::Nftables,
            ProxyMode::Iptables => ferry_proxy::Mode::Iptables,
        },
        masquerade_mark: 0x4000,
        health_address: None,
    }
}

/// The port by custom, or where another cluster of this host has it, any.
fn free_port(address: IpAddr, wanted: u16) -> u16 {
    for port in [wanted, 0] {
        let tcp = std::net::TcpListener::bind((address, port)).and_then(|socket| socket.local_addr());
        if let Ok(found) = tcp
            && std::net::UdpSocket::bind(found).is_ok()
        {
            return found.port();
        }
    }
    wanted
}
