//! `ferry down`: stops the cluster and takes away all that it made on this host: processes, containers,
//! interfaces, rules, mounts, cgroups. Its data stays, unless it is to go too.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::Args;
use ferry_cni::overlay;
use ferry_containerd::Runtime;
use ferry_kubelet::cri;
use ferry_linux::{cgroup, mount, tree};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::layout::{DEFAULT_DATA_DIR, Layout};
use super::options::ProxyMode;
use super::ranges::{self, Ranges};
use super::{address, kubeconfig, node, status};

/// How long the server may take to end by itself.
const PATIENCE: Duration = Duration::from_secs(20);
const STEP: Duration = Duration::from_millis(10);
/// The label by which a runtime tells whose sandbox it is.
const POD_UID: &str = "io.kubernetes.pod.uid";

#[derive(Args)]
pub struct Flags {
    /// Data directory of the cluster
    #[arg(long, default_value = DEFAULT_DATA_DIR)]
    pub data_dir: PathBuf,
    /// Also remove the cluster's data, and its context from the kubeconfig
    #[arg(long)]
    pub purge: bool,
    /// Kubeconfig from which --purge removes the cluster's context [default: ~/.kube/config]
    #[arg(long)]
    pub kubeconfig: Option<PathBuf>,
    /// Socket of the container runtime, if one was passed to `ferry up`
    #[arg(long)]
    pub container_runtime_endpoint: Option<String>,
}

pub fn run(flags: &Flags) -> anyhow::Result<()> {
    let layout = Layout::of(&flags.data_dir)?;
    if !layout.data_dir.is_dir() {
        bail!("there is no cluster in {}", layout.data_dir.display());
    }
    stop_server(&layout)?;
    // From here on nobody else may work on it.
    let lock = layout.lock()?;
    layout.make()?;
    let mut steps = Steps::default();
    // Before the runtime forgets them.
    let namespaces = steps.done(layout.containerd().network_namespaces());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let endpoint = flags.container_runtime_endpoint.as_deref();
    let removed = runtime.block_on(remove_pods(&layout, endpoint, &mut steps));
    let found = steps.done(removed).flatten();
    steps.done(kill_left_behind(&layout));
    if let Some(ranges) = steps.done(ranges::choose(&layout, None, None)) {
        steps.done(remove_network(&layout, &ranges, found.as_ref()));
    }
    steps.done(address::forget_alone(&layout));
    let mut unmounted = steps.done(unmount(&layout)).is_some();
    if steps.done(layout.containerd().stop()) == Some(true) {
        println!("containerd stopped");
    }
    steps.done(layout.containerd().end_shims());
    for namespace in namespaces.into_iter().flatten() {
        steps.done(remove_namespace(&namespace));
    }
    unmounted &= steps.done(unmount_below(&layout.run_dir)).is_some();
    steps.done(remove_cgroups(&layout));
    // Below what is still mounted lies the user's data, not ours.
    if unmounted {
        steps.done(remove_directory(&layout.run_dir));
    }
    if flags.purge && unmounted {
        let file = kubeconfig::path(flags.kubeconfig.clone());
        steps.done(file.and_then(|file| kubeconfig::remove(&file, &layout.cluster)));
        drop(lock);
        steps.done(remove_directory(&layout.data_dir));
    }
    steps.finish()?;
    println!("down");
    Ok(())
}

/// Every step is taken, whatever became of the others: what can go goes, and what could not is said at the end.
#[derive(Default)]
struct Steps {
    failed: Vec<anyhow::Error>,
}

impl Steps {
    fn done<T, E: Into<anyhow::Error>>(&mut self, step: Result<T, E>) -> Option<T> {
        step.map_err(|error| self.failed.push(error.into())).ok()
    }

    fn finish(self) -> anyhow::Result<()> {
        if self.failed.is_empty() {
            return Ok(());
        }
        let failed: Vec<String> = self.failed.iter().map(|error| format!("{error:#}")).collect();
        bail!("not everything could be removed; try again:\n  {}", failed.join("\n  "))
    }
}

fn stop_server(layout: &Layout) -> anyhow::Result<()> {
    let Some(server) = status::running(layout)? else { return Ok(()) };
    let pid = Pid::from_raw(i32::try_from(server.pid).context("the server's process number")?);
    kill(pid, Signal::SIGTERM).with_context(|| format!("end process {pid}"))?;
    let deadline = Instant::now() + PATIENCE;
    let mut killed = false;
    while status::running(layout)?.is_some() {
        if !killed && Instant::now() > deadline {
            eprintln!("the server does not end by itself and is killed");
            kill(pid, Signal::SIGKILL).with_context(|| format!("kill process {pid}"))?;
            killed = true;
        }
        std::thread::sleep(STEP);
    }
    println!("server stopped");
    Ok(())
}

/// Stops and removes the pods of this cluster, and none of another kubelet that shares the runtime.
async fn remove_pods(
    layout: &Layout,
    endpoint: Option<&str>,
    steps: &mut Steps,
) -> anyhow::Result<Option<Runtime>> {
    let Some(runtime) = ferry_containerd::find(&layout.containerd(), endpoint).await? else {
        return Ok(None);
    };
    let own = pod_uids(layout)?;
    let client = cri::Client::new(&runtime.endpoint)?;
    let mut removed = 0;
    for sandbox in client.list_pod_sandboxes(None).await.context("list the pods that run")? {
        if sandbox.labels.get(POD_UID).is_some_and(|uid| own.contains(uid)) {
            match remove_pod(&client, &sandbox.id).await {
                Ok(()) => removed += 1,
                // A runtime of our own ends with us: its pods' processes, interfaces and mounts are found without
                // it. One that goes on would keep what it could not remove.
                Err(error) if runtime.endpoint == Runtime::own(&layout.containerd()).endpoint => {
                    eprintln!("not removed in order: {error:#}");
                }
                failed => {
                    steps.done(failed);
                }
            }
        }
    }
    if removed > 0 {
        println!("{removed} pods removed");
    }
    Ok(Some(runtime))
}

async fn remove_pod(client: &cri::Client, sandbox: &str) -> anyhow::Result<()> {
    client.stop_pod_sandbox(sandbox).await.with_context(|| format!("stop pod {sandbox}"))?;
    client.remove_pod_sandbox(sandbox).await.with_context(|| format!("remove pod {sandbox}"))
}

/// The kubelet makes a pod's directory before anything else of it.
fn pod_uids(layout: &Layout) -> anyhow::Result<HashSet<String>> {
    let directory = layout.kubelet().join("pods");
    let entries = match std::fs::read_dir(&directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(HashSet::new()),
        Err(error) => return Err(error).with_context(|| format!("read {}", directory.display())),
    };
    let name =
        |entry: std::io::Result<std::fs::DirEntry>| Ok(entry?.file_name().to_string_lossy().into_owned());
    entries.map(name).collect::<std::io::Result<_>>().with_context(|| format!("read {}", directory.display()))
}

/// What a runtime that is gone has left running.
fn kill_left_behind(layout: &Layout) -> anyhow::Result<()> {
    let hierarchy = cgroup::Hierarchy::detect().context("find the cgroups")?;
    for pid in hierarchy.processes(&cgroup::Path::new(layout.cgroup_root())) {
        match kill(Pid::from_raw(pid), Signal::SIGKILL) {
            Ok(()) | Err(nix::errno::Errno::ESRCH) => {}
            Err(error) => return Err(error).with_context(|| format!("kill process {pid}")),
        }
    }
    Ok(())
}

fn remove_network(layout: &Layout, ranges: &Ranges, runtime: Option<&Runtime>) -> anyhow::Result<()> {
    for mode in [ProxyMode::Nftables, ProxyMode::Iptables] {
        let config = node::proxy_config(layout, "", ranges, mode);
        match ferry_proxy::remove(&config) {
            Ok(()) => {}
            // A host without iptables has no rules in it.
            Err(error) if mode == ProxyMode::Iptables => tracing::debug!(%error, "no iptables rules removed"),
            Err(error) => return Err(error).context("remove the services' rules"),
        }
    }
    let own = Runtime::own(&layout.containerd());
    // What is removed does not depend on the way between hosts.
    let any = overlay::Mode::HostGateway;
    let config = node::network_config(layout, "", ranges, runtime.unwrap_or(&own), any)?;
    ferry_cni::node::remove(&config).context("remove the pods' network")
}

fn unmount(layout: &Layout) -> anyhow::Result<()> {
    unmount_below(&layout.data_dir)?;
    unmount_below(&layout.run_dir)
}

/// What is mounted at the directory itself is the user's: a disk of its own for the data.
fn unmount_below(directory: &Path) -> anyhow::Result<()> {
    unmount_if(directory, |target| target != directory)
}

fn unmount_if(directory: &Path, is_ours: impl Fn(&Path) -> bool) -> anyhow::Result<()> {
    let mounts = mount::mounts_below(directory).context("list the mounts")?;
    for target in mounts.iter().filter(|target| is_ours(target)) {
        mount::unmount(target).with_context(|| format!("unmount {}", target.display()))?;
    }
    Ok(())
}

/// One that the runtime removed in order is gone already.
fn remove_namespace(file: &Path) -> anyhow::Result<()> {
    unmount_if(file, |_| true)?;
    match std::fs::remove_file(file) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("remove {}", file.display()))
        }
        _ => Ok(()),
    }
}

fn remove_cgroups(layout: &Layout) -> anyhow::Result<()> {
    let hierarchy = cgroup::Hierarchy::detect().context("find the cgroups")?;
    let path = cgroup::Path::new(layout.cgroup_root());
    let deadline = Instant::now() + PATIENCE;
    // The kernel takes a moment to let go of processes that were killed.
    loop {
        match hierarchy.remove(&path) {
            Ok(()) => return Ok(()),
            Err(error) if Instant::now() > deadline => return Err(error).context("remove the cgroups"),
            Err(_) => std::thread::sleep(STEP),
        }
    }
}

/// Where something is mounted at the directory, that is emptied and stays.
fn remove_directory(directory: &Path) -> anyhow::Result<()> {
    let remove = || {
        tree::remove_content(directory)?;
        match std::fs::remove_dir(directory) {
            Err(error)
                if !matches!(
                    error.kind(),
                    std::io::ErrorKind::NotFound | std::io::ErrorKind::ResourceBusy
                ) =>
            {
                Err(error)
            }
            _ => Ok(()),
        }
    };
    remove().with_context(|| format!("remove {}", directory.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_reported_after_all_steps_were_tried() {
        let mut steps = Steps::default();
        assert_eq!(steps.done(anyhow::Ok(1)), Some(1));
        assert_eq!(steps.done::<(), anyhow::Error>(Err(anyhow::anyhow!("busy").context("unmount a"))), None);
        assert_eq!(steps.done::<(), anyhow::Error>(Err(anyhow::anyhow!("remove b"))), None);
        let error = steps.finish().unwrap_err().to_string();
        assert!(error.contains("unmount a: busy\n  remove b"), "{error}");
        Steps::default().finish().unwrap();
    }
}
