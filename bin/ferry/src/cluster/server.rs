//! `ferry server`: the whole cluster in the foreground, as systemd wants it.

use std::collections::BTreeSet;
use std::io::Write;
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::SystemTime;

use anyhow::{Context, bail};
use ferry_apiserver::run::Running;
use ferry_auth::User;
use ferry_auth::pki::Pki;
use ferry_auth::user::{ALL_AUTHENTICATED, NODE_PREFIX, NODES};
use ferry_client::{CancellationToken, Informers, NamespacedName};
use ferry_store::Store;
use k8s_openapi::api::core::v1::Node as ApiNode;
use tokio_util::task::TaskTracker;

use super::address::{self, End};
use super::control_plane::Instance;
use super::facts::Facts;
use super::layout::Layout;
use super::node::{self, Clients, Keys, Node};
use super::options::{NodeOptions, ServerOptions};
use super::parts::{Part, Parts, Snapshot, State};
use super::ranges::Ranges;
use super::{control_plane, founding, host_images, kubeconfig, programs, ranges, rotation};
use crate::roles::{apiserver, component};

pub fn run(options: ServerOptions) -> anyhow::Result<()> {
    must_be_root()?;
    programs::must_be_installed(options.node.proxy_mode)?;
    let layout = Layout::of(&options.api.data_dir)?;
    layout.make()?;
    let _lock = layout.lock()?;
    while component::run(|shutdown| serve(options.clone(), layout.clone(), shutdown))? == End::Outdated {}
    Ok(())
}

pub fn must_be_root() -> anyhow::Result<()> {
    if !nix::unistd::geteuid().is_root() {
        let words: Vec<String> =
            std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect();
        bail!(
            "this takes root, for it makes network interfaces, kernel rules, mounts and containers: sudo {}",
            words.join(" ")
        );
    }
    Ok(())
}

async fn serve(options: ServerOptions, layout: Layout, shutdown: CancellationToken) -> anyhow::Result<End> {
    let mut span = ferry_trace::span("cluster.start");
    span.set("cluster", layout.cluster.clone());
    let name = match &options.node.node_name {
        Some(name) => name.clone(),
        None => component::host_name()?,
    };
    let parts = Parts::new(
        layout.state(),
        Snapshot {
            pid: std::process::id(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            data_dir: layout.data_dir.clone(),
            node_name: name.clone(),
            ..Snapshot::default()
        },
        if options.progress { print_json } else { print_text },
    );
    let progress = options.progress;
    let address = options.node.node_ip.map_or_else(|| address::of_host(&layout), Ok)?;
    let end = tokio::spawn(address::watch(address, options.node.node_ip.is_some(), shutdown.clone()));
    let start = start(options, layout, name, address, &parts, &shutdown);
    let (running, tasks) = span.in_scope(start).await?;
    drop(span);
    parts.ready();
    if progress {
        close_stdout()?;
    }
    running.warm_documents();
    tracing::info!(url = %running.url, "the cluster is ready");
    shutdown.cancelled().await;
    tracing::info!("stopping; containers keep running");
    // Parts end before the API they are clients of.
    tasks.close();
    tasks.wait().await;
    running.stop().await;
    end.await.context("watch the host's address")
}

async fn start(
    options: ServerOptions,
    layout: Layout,
    name: String,
    address: IpAddr,
    parts: &Parts,
    shutdown: &CancellationToken,
) -> anyhow::Result<(Running, TaskTracker)> {
    let store = apiserver::open_store(&options.api).await?;
    let facts = agree(&options, &layout, &*store).await?;
    let ranges = facts.ranges.clone();
    address::lead_to_services(&layout, ranges.service_cidr)?;
    let node_options = options.node.clone();
    let instance = Instance {
        cluster: &layout.cluster,
        name: &name,
        address,
        shares_store: options.api.shares_store(),
        default_storage_class: options.default_storage_class,
    };
    let flags = apiserver_flags(options.api, &node_options, &facts, address);
    let tasks = TaskTracker::new();
    let control_plane = async {
        parts.starting("apiserver");
        let running = apiserver::start_server(flags, store).await?;
        parts.running("apiserver", running.url.clone());
        parts.update(|now| now.url.clone_from(&running.url));
        control_plane::start(&running, &facts, &instance, parts, &tasks, shutdown).await?;
        anyhow::Ok(running)
    };
    let runtime = node::find_runtime(&layout, &node_options, parts);
    let (running, runtime) = tokio::try_join!(control_plane, runtime)?;
    host_images::serve(&running.api, &runtime.endpoint)?;
    // From here on kubectl works, so that a node that does not become Ready can be examined.
    let file = kubeconfig::path(options.kubeconfig)?;
    kubeconfig::add(&file, &layout.cluster, &layout.admin_kubeconfig())?;
    let keys_of_kubelet = {
        let (pki, layout, name) = (running.pki.clone(), layout.clone(), name.clone());
        move || kubelet_keys(&pki, &layout, &name, address)
    };
    let node = Node {
        keys: keys_of_kubelet()?,
        clients: clients(&running, &name),
        name,
        address,
        options: node_options,
        ranges,
        domain: facts.domain,
        overlay: facts.overlay.mode(),
        has_server: true,
        runtime,
        layout,
    };
    start_node(&node, &running, keys_of_kubelet, parts, &tasks, shutdown).await?;
    Ok((running, tasks))
}

/// The API server's flags, with what was agreed and where its node is.
fn apiserver_flags(
    flags: apiserver::Flags,
    node: &NodeOptions,
    facts: &Facts,
    address: IpAddr,
) -> apiserver::Flags {
    let advertised = flags.advertise_address.or(node.node_ip).or_else(|| address::alone(address));
    apiserver::Flags {
        service_cluster_ip_range: Some(facts.ranges.service_cidr),
        cluster_domain: facts.domain.clone(),
        advertise_address: advertised,
        ..flags
    }
}

/// Starts the parts of this host's node, and waits until it is Ready and names are answered.
async fn start_node(
    node: &Node,
    running: &Running,
    keys_of_kubelet: impl Fn() -> anyhow::Result<Keys> + Send + Sync + 'static,
    parts: &Parts,
    tasks: &TaskTracker,
    shutdown: &CancellationToken,
) -> anyhow::Result<()> {
    let informers = Informers::new(node.clients.network.clone(), shutdown.clone());
    let kubelet = node.start(&informers, parts, tasks, shutdown)?;
    tasks.spawn(rotation::keep_fresh(node.keys.clone(), keys_of_kubelet, kubelet, shutdown.clone()));
    let ready = async { tokio::join!(node.ready(&informers, parts), node.names_answered(parts)).1 };
    tokio::select! {
        done = ready => done?,
        () = shutdown.cancelled() => {}
    }
    let kubelet = kubelet_metrics(&informers, &node.name);
    parts.update(|now| {
        now.metrics.insert("apiserver".into(), format!("{}/metrics", running.url));
        now.metrics.extend(kubelet.map(|url| ("kubelet".into(), url)));
    });
    Ok(())
}

/// Where the kubelet serves its metrics, as its Node says.
fn kubelet_metrics(informers: &Informers, name: &str) -> Option<String> {
    let node = informers.of::<ApiNode>().get(&NamespacedName::cluster(name))?;
    let status = node.status.as_ref()?;
    let port = status.daemon_endpoints.as_ref()?.kubelet_endpoint.as_ref()?.port;
    let address = status.addresses.as_ref()?.iter().find(|address| address.type_ == "InternalIP")?;
    let host = match address.address.parse().ok()? {
        IpAddr::V4(address) => address.to_string(),
        IpAddr::V6(address) => format!("[{address}]"),
    };
    Some(format!("https://{host}:{port}/metrics"))
}

/// The cluster's facts: those it was founded with, or, for the first server, those that its flags ask for.
async fn agree(options: &ServerOptions, layout: &Layout, store: &dyn Store) -> anyhow::Result<Facts> {
    let (cluster_cidr, service_cidr) = (options.cluster_cidr, options.api.service_cluster_ip_range);
    let proposed = Facts {
        ranges: ranges::choose(layout, cluster_cidr, service_cidr)?,
        domain: options.api.cluster_domain.clone(),
        overlay: options.network.overlay(&layout.cluster),
    };
    if !options.api.shares_store() {
        return Ok(proposed);
    }
    let facts = founding::agree(layout, store, options.server_token.as_deref(), proposed).await?;
    let Ranges { cluster_cidr: pods, service_cidr: services } = &facts.ranges;
    for (flag, wanted, agreed) in
        [("--cluster-cidr", cluster_cidr, pods), ("--service-cluster-ip-range", service_cidr, services)]
    {
        if let Some(wanted) = wanted.filter(|wanted| wanted != agreed) {
            bail!("{flag} {wanted} is not what the cluster in this etcd was founded with: {agreed}");
        }
    }
    // `ferry down` reads them.
    ranges::choose(layout, Some(*pods), Some(*services))?;
    Ok(facts)
}

fn clients(running: &Running, node: &str) -> Clients {
    let user = User::new(format!("{NODE_PREFIX}{node}")).with_groups([NODES, ALL_AUTHENTICATED]);
    Clients { kubelet: running.client(user), network: control_plane::component(running, "system:kube-proxy") }
}

/// The kubelet's serving certificate, made anew at each start.
fn kubelet_keys(pki: &Pki, layout: &Layout, name: &str, address: IpAddr) -> anyhow::Result<Keys> {
    let names =
        BTreeSet::from([name.to_owned(), address.to_string(), "localhost".into(), "127.0.0.1".into()]);
    let user = format!("{NODE_PREFIX}{name}");
    let pair = pki.serving_certificate(&user, &[NODES], &names, SystemTime::now());
    let pair = pair.context("make the kubelet's certificate")?;
    let directory = layout.kubelet().join("pki");
    std::fs::create_dir_all(&directory).with_context(|| format!("make {}", directory.display()))?;
    let keys = Keys::below(&directory);
    write_private(&keys.certificate, &pair.certificate)?;
    write_private(&keys.key, &pair.key)?;
    write_private(&keys.client_ca, &pki.ca_pem())?;
    Ok(keys)
}

/// Readable by the owner alone, and never seen half written: a node that lost its certificate could not come back.
pub fn write_private(path: &Path, text: &str) -> anyhow::Result<()> {
    let unfinished = path.with_extension("new");
    let write = || {
        let mut options = std::fs::OpenOptions::new();
        let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&unfinished)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        std::fs::rename(&unfinished, path)
    };
    write().with_context(|| format!("write {}", path.display()))
}

/// A line for the program that waits.
fn print_json(part: &Part) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    serde_json::to_writer(&mut out, part)?;
    out.write_all(b"\n")?;
    out.flush()
}

/// Lets the program that waited go: it reads until we close our end.
fn close_stdout() -> anyhow::Result<()> {
    let nowhere = std::fs::File::options().write(true).open("/dev/null").context("open /dev/null")?;
    nix::unistd::dup2_stdout(nowhere).context("close standard output")
}

/// A line for a person.
pub fn print_text(part: &Part) -> std::io::Result<()> {
    if part.state == State::Starting {
        return Ok(());
    }
    writeln!(std::io::stdout(), "{}", line(part))
}

/// How a part of the cluster is shown on a terminal.
pub fn line(part: &Part) -> String {
    let sign = match part.state {
        State::Running => "✓",
        State::Starting => "…",
        State::Failed => "✗",
    };
    let line = format!("{sign} {:<12} {:>6} ms  {}", part.name, part.after_milliseconds, part.detail);
    line.trim_end().to_owned()
}
