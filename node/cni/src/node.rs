//! A node's network from its start on: kernel settings, the runtime's configuration, masquerading of
//! what leaves the cluster, and the way to the other nodes, kept right as Node objects change.

use std::{path::PathBuf, sync::Arc, time::Duration};

use ferry_client::{CancellationToken, Client, Informers, events::Events};
use ferry_linux::net::{Netlink, names, nftables, sysctl};
use ipnet::IpNet;
use k8s_openapi::api::core::v1::Node;
use tokio::{sync::Notify, time::MissedTickBehavior};

use crate::{
    install::{self, NodeNetwork, Written},
    overlap::{self, HostNetworks, Overlap},
    overlay::{self, Host, Mode},
};

/// After a refusal by the kernel.
const RETRY: Duration = Duration::from_secs(2);
/// How often the host's own networks are compared with the cluster's.
const LOOK: Duration = Duration::from_secs(30);

#[derive(Clone, Debug)]
pub struct Config {
    pub cluster: String,
    pub node_name: String,
    /// All pods of the cluster: what goes beyond takes the node's address.
    pub cluster_cidrs: Vec<IpNet>,
    /// Its services, which must lie elsewhere.
    pub service_cidrs: Vec<IpNet>,
    /// Where the container runtime looks for configurations and plugins.
    pub configuration_dir: PathBuf,
    pub plugin_dir: PathBuf,
    /// This program, which the plugins are links to.
    pub binary: PathBuf,
    /// Leases and host ports; best where a reboot empties it.
    pub lease_dir: PathBuf,
    /// The way to other nodes; `None`: somebody else sees to it.
    pub overlay: Option<Mode>,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Kernel(#[from] ferry_linux::net::Error),
    #[error(transparent)]
    Rules(#[from] ferry_linux::net::ToolError),
    #[error("{attempt}: {source}")]
    File { attempt: &'static str, source: std::io::Error },
}

/// Sets the node's network up as soon as the node has its pod CIDR, and keeps it until told to stop.
/// What was set up stays: pods go on while Ferry restarts. [`remove`] takes it away.
///
/// `own` is who may write to the own Node what there is to say of its ranges.
pub async fn run(informers: Informers, own: Client, config: Config, shutdown: CancellationToken) {
    let nodes = informers.of::<Node>();
    let changed = Arc::new(Notify::new());
    let wake = changed.clone();
    nodes.handle(move |event| {
        // Heartbeats come often; only what makes a host matters.
        if event.is_deleted() || event.old().is_none_or(|old| Host::of(old) != Host::of(event.object())) {
            wake.notify_one();
        }
    });
    tokio::select! {
        () = nodes.synced() => {}
        () = shutdown.cancelled() => return,
    }
    let events = Events::start(own.clone(), config.node_name.clone(), shutdown.clone());
    let recorder = events.recorder("ferry-network");
    let config = Arc::new(config);
    let mut installed: Option<Vec<IpNet>> = None;
    let mut look = tokio::time::interval(LOOK);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let all = nodes.list();
        let hosts: Vec<Host> = all.iter().filter_map(|node| Host::of(node)).collect();
        let outcome = step_in_span(&config, hosts, installed.clone()).await;
        let failed = match outcome {
            Ok((now, overlaps)) => {
                installed = now;
                let is_own = |node: &&Arc<Node>| node.metadata.name.as_ref() == Some(&config.node_name);
                if let Some(node) = all.iter().find(is_own) {
                    overlap::tell(&overlaps, node, &own, &recorder).await;
                }
                None
            }
            Err(error) => Some(error),
        };
        let retry = async {
            match &failed {
                None => std::future::pending().await,
                Some(error) => {
                    tracing::error!(%error, "the node's network could not be set up");
                    tokio::time::sleep(RETRY).await;
                }
            }
        };
        look.reset();
        tokio::select! {
            () = changed.notified() => {}
            _ = look.tick() => {}
            () = retry => {}
            () = shutdown.cancelled() => return,
        }
    }
}

/// For which CIDRs the network is set up, and what overlaps.
type Stepped = Result<(Option<Vec<IpNet>>, Vec<Overlap>), Error>;

/// One [`step`], on a thread that may block. Without a host of its own the node has no CIDR yet: nothing changes.
async fn step_in_span(config: &Arc<Config>, hosts: Vec<Host>, before: Option<Vec<IpNet>>) -> Stepped {
    let Some(own) = hosts.iter().find(|host| host.name == config.node_name).cloned() else {
        return Ok((before, Vec::new()));
    };
    let config = config.clone();
    let work = move || step(&config, own, &hosts, before);
    let done = ferry_trace::span("cni.network").in_scope(tokio::task::spawn_blocking(work)).await;
    done.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()))
}

/// One step of [`run`]: sets up what can be. `before`: what an earlier step set up. Blocks.
pub fn step(config: &Config, own: Host, hosts: &[Host], before: Option<Vec<IpNet>>) -> Stepped {
    let theirs = install::theirs(&config.configuration_dir, &config.cluster)
        .map_err(|source| Error::File { attempt: "reading the CNI configurations", source })?;
    // Who brings a network of their own has ways to the pods of their own too.
    let host = if theirs.is_some() { HostNetworks::default() } else { HostNetworks::read(&config.cluster)? };
    let overlaps = overlap::overlaps(&own, hosts, &config.service_cidrs, &host);
    let is_new = before.as_ref() != Some(&own.pod_cidrs);
    // What pods have already they keep, whoever came later.
    if is_new && !overlap::is_usable(&own, hosts, &config.service_cidrs, &host) {
        return Ok((before, overlaps));
    }
    set_up(config, &own, hosts, is_new)?;
    Ok((Some(own.pod_cidrs), overlaps))
}

/// The kernel's part and the runtime's. Blocks.
pub fn set_up(config: &Config, own: &Host, hosts: &[Host], is_new: bool) -> Result<(), Error> {
    if is_new {
        set_kernel_up(&own.pod_cidrs);
        nftables::apply(&masquerade(&config.cluster, &config.cluster_cidrs))?;
        let file = |attempt| move |source| Error::File { attempt, source };
        install::link_plugins(&config.plugin_dir, &config.binary).map_err(file("linking the CNI plugins"))?;
    }
    if let Some(mode) = config.overlay {
        overlay::apply(
            &config.cluster,
            &config.cluster_cidrs,
            own,
            mode,
            &overlay::desired(hosts, own, mode),
        )?;
    }
    if is_new {
        // Last: the runtime starts pods when it sees this.
        let network = NodeNetwork {
            cluster: config.cluster.clone(),
            pod_cidrs: own.pod_cidrs.clone(),
            mtu: pod_mtu(config)?,
            lease_dir: config.lease_dir.clone(),
        };
        let written = install::write_configuration(&config.configuration_dir, &network)
            .map_err(|source| Error::File { attempt: "writing the CNI configuration", source })?;
        if let Written::Theirs(path) = written {
            tracing::info!(path = %path.display(), "using the existing CNI configuration");
        }
    }
    Ok(())
}

/// Takes away everything [`run`] made: links, rules, leases, configuration. Blocks.
pub fn remove(config: &Config) -> Result<(), Error> {
    let file = |attempt| move |source| Error::File { attempt, source };
    install::remove_configuration(&config.configuration_dir, &config.cluster)
        .map_err(file("removing the CNI configuration"))?;
    install::unlink_plugins(&config.plugin_dir, &config.binary).map_err(file("removing the CNI plugins"))?;
    overlay::remove(&config.cluster, &config.cluster_cidrs)?;
    Netlink::open()?.delete_link(&install::bridge_name(&config.cluster))?;
    crate::policy::remove(&config.cluster)?;
    for suffix in ["pods", "hostports"] {
        nftables::delete_table("inet", &names::table(&config.cluster, suffix))?;
    }
    ferry_linux::tree::remove(&config.lease_dir).map_err(file("removing the leases"))
}

/// What forwarding between pods needs of the kernel. Each change is said; a setting the machine does not
/// have is said too, and the node goes on.
fn set_kernel_up(pod_cidrs: &[IpNet]) {
    let mut settings = vec![("net/ipv4/ip_forward", "1"), ("net/bridge/bridge-nf-call-iptables", "1")];
    if pod_cidrs.iter().any(|cidr| cidr.addr().is_ipv6()) {
        settings.push(("net/ipv6/conf/all/forwarding", "1"));
        settings.push(("net/bridge/bridge-nf-call-ip6tables", "1"));
    }
    if sysctl::get("net/bridge/bridge-nf-call-iptables").is_err() {
        // Without this module packets between two pods of one bridge pass no rules, and an answer from a
        // service's pod would come from the wrong address.
        if let Err(error) = ferry_linux::net::load_module("br_netfilter") {
            tracing::warn!(%error, "br_netfilter cannot be loaded");
        }
    }
    for (name, value) in settings {
        match sysctl::set(name, value) {
            Ok(true) => tracing::info!(setting = name, value, "set for pod networking"),
            Ok(false) => {}
            Err(error) => {
                tracing::warn!(setting = name, %error, "cannot be set; pods may not reach services")
            }
        }
    }
}

/// What leaves the cluster's pods for elsewhere takes the node's address.
fn masquerade(cluster: &str, cidrs: &[IpNet]) -> String {
    let table = names::table(cluster, "pods");
    let mut script = format!(
        "add table inet {table}\ndelete table inet {table}\nadd table inet {table}\n\
         add chain inet {table} postrouting {{ type nat hook postrouting priority srcnat; }}\n"
    );
    for (family, multicast, is_ipv4) in [("ip", "224.0.0.0/4", true), ("ip6", "ff00::/8", false)] {
        let own = cidrs.iter().filter(|cidr| cidr.addr().is_ipv4() == is_ipv4);
        let own: Vec<String> = own.map(IpNet::to_string).collect();
        if !own.is_empty() {
            let own = own.join(", ");
            script.push_str(&format!(
                "add rule inet {table} postrouting {family} saddr {{ {own} }} {family} daddr != {{ {own}, {multicast} }} \
                 masquerade fully-random\n"
            ));
        }
    }
    script
}

/// Pods send what the tunnel can carry.
fn pod_mtu(config: &Config) -> Result<Option<u32>, Error> {
    match config.overlay {
        Some(Mode::Vxlan { .. }) => {
            Ok(Netlink::open()?.link(&overlay::interface_name(&config.cluster))?.map(|link| link.mtu))
        }
        Some(Mode::HostGateway) | None => Ok(None),
    }
}
