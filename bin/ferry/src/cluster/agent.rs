//! `ferry agent`: a further node of a cluster, in the foreground.

use std::path::PathBuf;

use anyhow::bail;
use clap::Args;
use ferry_client::{CancellationToken, Informers};
use tokio_util::task::TaskTracker;

use super::layout::{DEFAULT_DATA_DIR, Layout};
use super::node::{Clients, Keys, Node};
use super::options::NodeOptions;
use super::parts::{Parts, Snapshot};
use super::token::Token;
use super::{facts, join, ranges, runtime, server};
use crate::roles::component;

#[derive(Args)]
pub struct Flags {
    /// Where the API server is: https://HOST:6443
    #[arg(long)]
    server: String,
    /// What `ferry token create` printed; needed the first time only
    #[arg(long)]
    token: Option<Token>,
    #[arg(long, default_value = DEFAULT_DATA_DIR)]
    data_dir: PathBuf,
    #[command(flatten)]
    node: NodeOptions,
}

pub fn run(flags: Flags) -> anyhow::Result<()> {
    server::must_be_root()?;
    if !flags.server.starts_with("https://") {
        bail!("--server {:?} does not begin with https://", flags.server);
    }
    let layout = Layout::of(&flags.data_dir)?;
    layout.make()?;
    let _lock = layout.lock()?;
    component::run(|shutdown| serve(flags, layout, shutdown))
}

async fn serve(flags: Flags, layout: Layout, shutdown: CancellationToken) -> anyhow::Result<()> {
    let span = ferry_trace::span("cluster.agent_start");
    let name = flags.node.node_name.clone().map_or_else(component::host_name, Ok)?;
    let snapshot = Snapshot {
        pid: std::process::id(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        data_dir: layout.data_dir.clone(),
        node_name: name.clone(),
        url: flags.server.clone(),
        ..Snapshot::default()
    };
    let parts = Parts::new(layout.state(), snapshot, server::tell_as_text);
    let tasks = TaskTracker::new();
    span.in_scope(start(flags, layout, name, &parts, &tasks, &shutdown)).await?;
    drop(span);
    parts.ready();
    shutdown.cancelled().await;
    tracing::info!("stopping; containers go on");
    tasks.close();
    tasks.wait().await;
    Ok(())
}

async fn start(
    flags: Flags,
    layout: Layout,
    name: String,
    parts: &Parts,
    tasks: &TaskTracker,
    shutdown: &CancellationToken,
) -> anyhow::Result<()> {
    let joining = async {
        parts.starting("join");
        let directory = layout.kubelet().join("pki");
        let identity = join::join(&directory, &flags.server, flags.token.as_ref(), &name).await?;
        let kubelet = identity.client("kubelet").await?;
        let facts = facts::fetch(&kubelet).await?;
        parts.running("join", flags.server.clone());
        anyhow::Ok((identity, kubelet, facts))
    };
    let runtime = async {
        parts.starting("runtime");
        let endpoint = flags.node.container_runtime_endpoint.as_deref();
        let found = runtime::find_or_start(&layout, endpoint, &flags.node.registry_config_dir).await?;
        parts.running("runtime", found.description.clone());
        anyhow::Ok(found)
    };
    let ((identity, kubelet, facts), runtime) = tokio::try_join!(joining, runtime)?;
    // Kept for whoever takes the node down.
    let ranges = ranges::choose(&layout, Some(facts.ranges.cluster_cidr), Some(facts.ranges.service_cidr))?;
    let node = Node {
        keys: Keys::below(&layout.kubelet().join("pki")),
        clients: Clients { kubelet: kubelet.clone(), network: identity.client("kube-proxy").await? },
        address: flags.node.node_ip.unwrap_or_else(server::node_address),
        overlay: facts.overlay.mode(),
        domain: facts.domain,
        options: flags.node,
        name,
        ranges,
        runtime,
        layout,
    };
    let informers = Informers::new(node.clients.network.clone(), shutdown.clone());
    let kubelet_part = node.start(&informers, parts, tasks, shutdown)?;
    let ready = async {
        node.registered(&informers).await;
        if !node.keys.exist() {
            let keys = &node.keys;
            join::serving(&kubelet, &node.name, node.address, &keys.certificate, &keys.key).await?;
            kubelet_part.restart();
        }
        tokio::join!(node.ready(&informers, parts), node.names_answered(parts)).1
    };
    tokio::select! {
        done = ready => done,
        () = shutdown.cancelled() => Ok(()),
    }
}
