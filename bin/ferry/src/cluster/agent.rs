//! `ferry agent`: an additional node of a cluster, in the foreground.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;
use ferry_client::{CancellationToken, Client, Informers};
use tokio_util::task::TaskTracker;

use super::address::{self, End};
use super::facts::{self, Facts};
use super::layout::{DEFAULT_DATA_DIR, Layout};
use super::node::{self, Clients, Keys, Node};
use super::options::NodeOptions;
use super::parts::{Parts, Snapshot};
use super::token::Token;
use super::{join, programs, ranges, rotation, server};
use crate::roles::component;

/// Between two attempts of a node that has joined to reach its server.
const RETRY: Duration = Duration::from_secs(2);

#[derive(Args, Clone)]
pub struct Flags {
    /// URL of the API server: https://HOST:6443; any of them if the cluster has several. Pass the new URL if the server
    /// has moved
    #[arg(long, required = true, value_delimiter = ',')]
    server: Vec<String>,
    /// Token from `ferry token create`; required for the first start only
    #[arg(long)]
    token: Option<Token>,
    /// Directory for the node's data
    #[arg(long, default_value = DEFAULT_DATA_DIR)]
    data_dir: PathBuf,
    #[command(flatten)]
    node: NodeOptions,
}

pub fn run(flags: Flags) -> anyhow::Result<()> {
    server::must_be_root()?;
    programs::must_be_installed(flags.node.proxy_mode)?;
    if let Some(server) = flags.server.iter().find(|server| !server.starts_with("https://")) {
        bail!("--server {server:?} does not begin with https://");
    }
    let layout = Layout::of(&flags.data_dir)?;
    layout.make()?;
    let _lock = layout.lock()?;
    crate::data_version::claim(&layout.data_dir)?;
    while component::run(|shutdown| serve(flags.clone(), layout.clone(), shutdown))? == End::Outdated {}
    Ok(())
}

async fn serve(flags: Flags, layout: Layout, shutdown: CancellationToken) -> anyhow::Result<End> {
    let span = ferry_trace::span("cluster.agent_start");
    let name = flags.node.node_name.clone().map_or_else(component::host_name, Ok)?;
    let snapshot = Snapshot {
        pid: std::process::id(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        data_dir: layout.data_dir.clone(),
        node_name: name.clone(),
        url: flags.server.join(","),
        ..Snapshot::default()
    };
    let parts = Parts::new(layout.state(), snapshot, server::print_text);
    let tasks = TaskTracker::new();
    let address = flags.node.node_ip.map_or_else(|| address::of_host(&layout), Ok)?;
    let watched = address::watch(address, flags.node.node_ip.is_some(), shutdown.clone());
    let (keys, life) = (layout.kubelet().join("pki"), shutdown.clone());
    let end = tokio::spawn(async move {
        tokio::select! {
            end = watched => end,
            () = rotation::due(keys) => {
                life.cancel();
                End::Outdated
            }
        }
    });
    let start = start(flags, layout, name, address, &parts, &tasks, &shutdown);
    tokio::select! {
        started = span.in_scope(start) => started?,
        () = shutdown.cancelled() => {}
    }
    drop(span);
    parts.ready();
    shutdown.cancelled().await;
    tracing::info!("stopping; containers keep running");
    tasks.close();
    tasks.wait().await;
    end.await.context("watch the host's address")
}

async fn start(
    flags: Flags,
    layout: Layout,
    name: String,
    address: IpAddr,
    parts: &Parts,
    tasks: &TaskTracker,
    shutdown: &CancellationToken,
) -> anyhow::Result<()> {
    let joining = join_cluster(&flags, &layout, &name, parts);
    let runtime = node::find_runtime(&layout, &flags.node, parts);
    let (Joined { identity, kubelet, facts }, runtime) = tokio::try_join!(joining, runtime)?;
    // The server keeps the trace of the whole cluster, this node's spans too.
    let hand_in = ferry_client::spans::hand_in(kubelet.clone());
    tasks.spawn(shutdown.clone().run_until_cancelled_owned(hand_in));
    // `ferry down` reads them.
    let ranges = ranges::choose(&layout, Some(facts.ranges.cluster_cidr), Some(facts.ranges.service_cidr))?;
    address::lead_to_services(&layout, ranges.service_cidr)?;
    let node = Node {
        keys: Keys::below(&layout.kubelet().join("pki")),
        clients: Clients { kubelet: kubelet.clone(), network: identity.client("kube-proxy").await? },
        address,
        overlay: facts.overlay.mode(),
        domain: facts.domain,
        options: flags.node,
        has_server: false,
        name,
        ranges,
        runtime,
        layout,
    };
    let informers = Informers::new(node.clients.network.clone(), shutdown.clone());
    let kubelet_part = node.start(&informers, parts, tasks, shutdown)?;
    node.registered(&informers).await;
    if !node.keys.serve_at(node.address) || rotation::is_due(&node.keys.certificate) {
        let keys = &node.keys;
        join::serving(&kubelet, &node.name, node.address, &keys.certificate, &keys.key).await?;
        kubelet_part.restart();
    }
    tokio::join!(node.ready(&informers, parts), node.names_answered(parts)).1
}

/// What a node has once it has joined.
struct Joined {
    identity: join::Identity,
    /// The kubelet's client.
    kubelet: Client,
    facts: Facts,
}

async fn join_cluster(flags: &Flags, layout: &Layout, name: &str, parts: &Parts) -> anyhow::Result<Joined> {
    parts.starting("join");
    let directory = layout.kubelet().join("pki");
    let had_joined = join::Identity::below(&directory, &flags.server).exists();
    let identity = join::join(&directory, &flags.server, flags.token.as_ref(), name).await?;
    let kubelet = identity.client("kubelet").await?;
    let facts = loop {
        match facts::fetch(&kubelet).await {
            // The node belongs to this cluster: its server or the network will come back.
            Err(error) if had_joined => {
                parts.failed("join", &format!("{error:#}"));
                tokio::time::sleep(RETRY).await;
            }
            fetched => break fetched?,
        }
    };
    parts.running("join", flags.server.join(","));
    Ok(Joined { identity, kubelet, facts })
}
