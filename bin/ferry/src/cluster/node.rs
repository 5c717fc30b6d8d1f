//! The parts of a node: kubelet, pod network, proxy, DNS.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use anyhow::{Context, bail};
use ferry_client::{CancellationToken, Client, Informers};
use ferry_cni::overlay;
use ferry_containerd::{RestartOutcome, Runtime};
use ferry_dns::publish::PORT_LABEL;
use k8s_openapi::api::core::v1::Node as ApiNode;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio_util::task::TaskTracker;

use super::address;
use super::layout::Layout;
use super::metrics_ports::{self, MetricsPorts};
use super::options::{NodeOptions, ProxyMode};
use super::parts::Parts;
use super::ports::{self, Protocols};
use super::ranges::Ranges;
use crate::roles::serving;

const KUBELET_PORT: u16 = 10250;
/// In the kubelet's settings: [`KUBELET_PORT`], or another where that is taken.
const ANY_PORT: u16 = 0;
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
    /// The way to other hosts; `None` where the pods' network is not ours.
    pub overlay: Option<overlay::Mode>,
    /// The server is on this host too, and so is what was loaded there.
    pub has_server: bool,
    pub runtime: Runtime,
    pub keys: Keys,
    pub clients: Clients,
}

/// Finds the host's container runtime, or starts Ferry's own containerd.
pub async fn find_runtime(layout: &Layout, node: &NodeOptions, parts: &Parts) -> anyhow::Result<Runtime> {
    parts.starting("runtime");
    let endpoint = node.container_runtime_endpoint.as_deref();
    let runtime =
        ferry_containerd::find_or_start(&layout.containerd(), endpoint, &node.registry_config_dir).await?;
    parts.running("runtime", runtime.description.clone());
    Ok(runtime)
}

/// The kubelet's serving certificate, and the authority its callers are believed by.
#[derive(Clone)]
pub struct Keys {
    pub certificate: PathBuf,
    pub key: PathBuf,
    pub client_ca: PathBuf,
}

impl Keys {
    pub fn below(directory: &Path) -> Keys {
        Keys {
            certificate: directory.join("kubelet.crt"),
            key: directory.join("kubelet.key"),
            client_ca: directory.join("client-ca.crt"),
        }
    }

    /// A node that has just joined has no serving certificate yet.
    pub fn exist(&self) -> bool {
        self.certificate.exists() && self.key.exists()
    }

    /// Whether callers will believe the certificate at this address. One that cannot be read is made anew.
    pub fn serve_at(&self, address: IpAddr) -> bool {
        let read = || std::fs::read_to_string(&self.certificate).ok();
        self.key.exists() && read().is_some_and(|pem| is_for(&pem, address))
    }
}

/// A kubelet that runs, and can be started again without its node's other parts. No container notices.
#[derive(Clone, Default)]
pub struct KubeletPart(Arc<Mutex<CancellationToken>>);

impl KubeletPart {
    pub fn restart(&self) {
        self.0.lock().cancel();
    }

    #[cfg(test)]
    pub fn running(&self) -> CancellationToken {
        self.0.lock().clone()
    }
}

/// The identities a node's parts act with.
pub struct Clients {
    pub kubelet: Client,
    /// For the pod network, the proxy and the DNS's records.
    pub network: Client,
}

impl Node {
    /// Starts all parts, which end with `shutdown`.
    pub fn start(
        &self,
        informers: &Informers,
        parts: &Parts,
        tasks: &TaskTracker,
        shutdown: &CancellationToken,
    ) -> anyhow::Result<KubeletPart> {
        let span = ferry_trace::span("cluster.node");
        span.enter(|| {
            self.keep_runtime(parts, tasks, shutdown);
            let kubelet = KubeletPart::default();
            let dns_port = self.start_dns(&kubelet, informers, parts, tasks, shutdown)?;
            self.start_kubelet(&kubelet, dns_port, parts, tasks, shutdown)?;
            self.start_network(informers, parts, tasks, shutdown)?;
            self.start_proxy(informers, parts, tasks, shutdown);
            address::lead_to_further_services(&self.layout, informers);
            let metrics = MetricsPorts { cluster: &self.layout.cluster, parts, tasks, shutdown };
            metrics.plain("proxy", metrics_ports::PROXY, serving::proxy());
            metrics.plain("dns", metrics_ports::DNS, serving::dns());
            Ok(kubelet)
        })
    }

    /// The cluster's own containerd is started again when it ends; a runtime of the host's is the host's to keep.
    fn keep_runtime(&self, parts: &Parts, tasks: &TaskTracker, shutdown: &CancellationToken) {
        let containerd = self.layout.containerd();
        if self.runtime.endpoint != Runtime::own(&containerd).endpoint {
            return;
        }
        let (parts, registries) = (parts.clone(), self.options.registry_config_dir.clone());
        tasks.spawn(shutdown.clone().run_until_cancelled_owned(async move {
            let tell = |kept| match kept {
                RestartOutcome::Ended => parts.failed("runtime", &"containerd ended"),
                RestartOutcome::Started(runtime) => parts.running("runtime", runtime.description),
            };
            containerd.keep(&registries, tell).await;
        }));
    }

    fn start_kubelet(
        &self,
        part: &KubeletPart,
        dns_port: Arc<AtomicU16>,
        parts: &Parts,
        tasks: &TaskTracker,
        shutdown: &CancellationToken,
    ) -> anyhow::Result<()> {
        let config = self.kubelet_config()?;
        let keys = self.keys.clone();
        let client = self.clients.kubelet.clone();
        let cluster = self.layout.cluster.clone();
        let (parts, stop) = (parts.clone(), shutdown.clone());
        parts.starting("kubelet");
        let current = part.0.clone();
        tasks.spawn(async move {
            // Ended by us, it starts again at once; ended by itself, it is a failure.
            while !stop.is_cancelled() {
                let one = stop.child_token();
                *current.lock() = one.clone();
                let run = || {
                    let (mut config, client, one) = (config.clone(), client.clone(), one.clone());
                    let pair = keys.exist().then(|| (keys.certificate.clone(), keys.key.clone()));
                    (config.tls_cert_file, config.tls_private_key_file) = pair.unzip();
                    let dns_port = dns_port.load(Ordering::Relaxed).to_string();
                    config.node_labels.entry(PORT_LABEL.to_owned()).or_insert(dns_port);
                    let port = match config.port {
                        // Each time: somebody else may have the one of the last time.
                        ANY_PORT => ports::choose(config.address, KUBELET_PORT, Protocols::Tcp, &cluster),
                        // The user's own choice stands.
                        port => Ok(port),
                    };
                    async move {
                        config.port = port?;
                        anyhow::Ok(ferry_kubelet::run(Some(client), config, one).await?)
                    }
                };
                parts.keep("kubelet", one.clone(), run).await;
            }
        });
        Ok(())
    }

    fn kubelet_config(&self) -> anyhow::Result<ferry_kubelet::Config> {
        let mut labels = BTreeMap::new();
        for text in &self.options.node_labels {
            let Some((key, value)) = text.split_once('=') else {
                bail!("--node-labels: {text:?} is not key=value")
            };
            labels.insert(key.to_owned(), value.to_owned());
        }
        let mut config = ferry_kubelet::Config {
            node_ips: vec![self.address],
            node_labels: labels,
            root_dir: self.layout.kubelet(),
            pod_logs_dir: self.layout.pod_logs(),
            static_pod_path: Some(self.layout.data_dir.join("manifests")),
            container_runtime_endpoint: self.runtime.endpoint.clone(),
            pod_infra_container_image: self
                .runtime
                .sandbox_image(&self.layout.containerd())
                .map(str::to_owned),
            cluster_dns: vec![self.ranges.dns()?],
            cluster_domain: self.domain.clone(),
            port: ANY_PORT,
            client_ca_file: Some(self.keys.client_ca.clone()),
            max_pods: self.options.max_pods,
            asks_server_for_images: !self.has_server,
            cni_trace_dir: Some(ferry_cni::install::trace_dir(&self.layout.leases())),
            cgroup_driver: self.runtime.cgroup_driver,
            cgroup_root: self.layout.cgroup_root(),
            // Upstream's shares of the disk are those of a server that does nothing else. A developer's disk is
            // often fuller, and an image that was loaded by hand must not be collected for it.
            eviction_hard: [
                ("memory.available", "100Mi"),
                ("nodefs.available", "1Gi"),
                ("nodefs.inodesFree", "2%"),
                ("imagefs.available", "1Gi"),
                ("imagefs.inodesFree", "2%"),
            ]
            .map(|(signal, limit)| (signal.to_owned(), limit.to_owned()))
            .into(),
            image_gc_high_threshold_percent: 97,
            image_gc_low_threshold_percent: 95,
            ..ferry_kubelet::Config::new(&self.name)
        };
        if let Some(file) = &self.options.kubelet_config {
            ferry_kubelet::config_file::apply(file, &mut config)?;
        }
        Ok(config)
    }

    fn start_network(
        &self,
        informers: &Informers,
        parts: &Parts,
        tasks: &TaskTracker,
        shutdown: &CancellationToken,
    ) -> anyhow::Result<()> {
        let Some(overlay) = self.overlay else {
            // Whose configuration it is, it may name the plugins that are in this program.
            ferry_cni::install::link_plugins(&self.runtime.cni_plugins, &this_program()?)
                .context("link the CNI plugins")?;
            parts.running("network", "left to others");
            return Ok(());
        };
        let config = network_config(&self.layout, &self.name, &self.ranges, &self.runtime, overlay)?;
        parts.starting("network");
        let policies = ferry_cni::policy::run(
            informers.clone(),
            config.cluster.clone(),
            self.name.clone(),
            shutdown.clone(),
        );
        tasks.spawn(policies);
        let own = self.clients.kubelet.clone();
        tasks.spawn(ferry_cni::node::run(informers.clone(), own, config, shutdown.clone()));
        Ok(())
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
        let own = self.clients.kubelet.clone();
        tasks.spawn(ferry_proxy::run(informers.clone(), own, config, shutdown.clone()));
    }

    /// Returns the port it listens on, which a label of the node tells; the kubelet sets that when it starts.
    fn start_dns(
        &self,
        kubelet: &KubeletPart,
        informers: &Informers,
        parts: &Parts,
        tasks: &TaskTracker,
        shutdown: &CancellationToken,
    ) -> anyhow::Result<Arc<AtomicU16>> {
        parts.starting("dns");
        let (address, cluster) = (self.address, self.layout.cluster.clone());
        let choose = move |wanted| ports::choose(address, wanted, Protocols::TcpAndUdp, &cluster);
        let told = Arc::new(AtomicU16::new(choose(DNS_PORT)?));
        let config = ferry_dns::Config {
            domain: self.domain.clone(),
            listen: vec![],
            resolv_conf: "/etc/resolv.conf".into(),
            own_addresses: vec![self.ranges.dns()?],
        };
        let (informers, parts, stop) = (informers.clone(), parts.clone(), shutdown.clone());
        let (port, kubelet) = (told.clone(), kubelet.clone());
        tasks.spawn(async move {
            let run = || {
                let before = port.load(Ordering::Relaxed);
                let chosen = choose(before).inspect(|chosen| {
                    if *chosen != before {
                        port.store(*chosen, Ordering::Relaxed);
                        kubelet.restart();
                    }
                });
                let (informers, mut config, stop) = (informers.clone(), config.clone(), stop.clone());
                async move {
                    config.listen = vec![SocketAddr::new(address, chosen?)];
                    anyhow::Ok(ferry_dns::run(informers, config, stop).await?)
                }
            };
            parts.keep("dns", stop.clone(), run).await;
        });
        Ok(told)
    }

    /// Returns when the API knows the node, at the address it has.
    pub async fn registered(&self, informers: &Informers) {
        let nodes = informers.of::<ApiNode>();
        let changed = Arc::new(Notify::new());
        let wake = changed.clone();
        nodes.handle(move |_| wake.notify_one());
        let is_known = |node: &ApiNode| {
            let addresses = node.status.iter().flat_map(|status| status.addresses.iter().flatten());
            let own = self.address.to_string();
            node.metadata.name.as_ref() == Some(&self.name)
                && addresses.into_iter().any(|address| address.address == own)
        };
        while !nodes.list().iter().any(|node| is_known(node)) {
            changed.notified().await;
        }
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

fn is_for(pem: &str, address: IpAddr) -> bool {
    let Ok((_, pem)) = x509_parser::pem::parse_x509_pem(pem.as_bytes()) else { return false };
    let Ok(certificate) = pem.parse_x509() else { return false };
    let own = match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    };
    let Ok(Some(names)) = certificate.subject_alternative_name() else { return false };
    names.value.general_names.iter().any(
        |name| matches!(name, x509_parser::extensions::GeneralName::IPAddress(bytes) if **bytes == own[..]),
    )
}

pub fn ready_condition(node: &ApiNode) -> Option<&k8s_openapi::api::core::v1::NodeCondition> {
    node.status.as_ref()?.conditions.as_ref()?.iter().find(|condition| condition.type_ == "Ready")
}

pub fn network_config(
    layout: &Layout,
    node_name: &str,
    ranges: &Ranges,
    runtime: &Runtime,
    overlay: overlay::Mode,
) -> anyhow::Result<ferry_cni::node::Config> {
    Ok(ferry_cni::node::Config {
        cluster: layout.cluster.clone(),
        node_name: node_name.to_owned(),
        cluster_cidrs: vec![ranges.cluster_cidr],
        service_cidrs: vec![ranges.service_cidr],
        configuration_dir: runtime.cni_configuration.clone(),
        plugin_dir: runtime.cni_plugins.clone(),
        binary: this_program()?,
        lease_dir: layout.leases(),
        overlay: Some(overlay),
    })
}

fn this_program() -> anyhow::Result<PathBuf> {
    std::env::current_exe().map(installed).context("find this program")
}

/// Where this program is installed. The kernel says of one that was replaced while it runs, by an upgrade, that
/// it is deleted; who calls plugins by that path must find the new one.
fn installed(running: PathBuf) -> PathBuf {
    let path = running.to_string_lossy();
    path.strip_suffix(" (deleted)").map_or(running.clone(), PathBuf::from)
}

pub fn proxy_config(
    layout: &Layout,
    node_name: &str,
    ranges: &Ranges,
    mode: ProxyMode,
) -> ferry_proxy::Config {
    let mode = match mode {
        ProxyMode::Nftables => ferry_proxy::Mode::Nftables,
        ProxyMode::Iptables => ferry_proxy::Mode::Iptables,
    };
    ferry_proxy::Config {
        cluster: layout.cluster.clone(),
        node_name: node_name.to_owned(),
        pod_cidrs: vec![ranges.cluster_cidr],
        mode,
        masquerade_mark: 0x4000,
        node_port_addresses: ferry_proxy::NodePortAddresses::default_of(mode),
        localhost_node_ports: true,
        health_address: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_was_replaced_is_where_it_was() {
        let path = |text: &str| installed(PathBuf::from(text));
        assert_eq!(path("/usr/bin/ferry (deleted)"), path("/usr/bin/ferry"));
        assert_eq!(path("/usr/bin/ferry"), PathBuf::from("/usr/bin/ferry"));
    }

    #[test]
    fn a_certificate_for_another_address_is_of_no_use() {
        let key = rcgen::KeyPair::generate().unwrap();
        let of = |name: &str| {
            rcgen::CertificateParams::new(vec![name.to_owned()]).unwrap().self_signed(&key).unwrap().pem()
        };
        let pem = of("192.0.2.1");
        assert!(is_for(&pem, "192.0.2.1".parse().unwrap()));
        assert!(!is_for(&pem, "192.0.2.9".parse().unwrap()));
        assert!(is_for(&of("fd00::1"), "fd00::1".parse().unwrap()));
        assert!(!is_for(&of("node"), "192.0.2.1".parse().unwrap()));
        assert!(!is_for("no certificate", "192.0.2.1".parse().unwrap()));
    }
}
