//! The container runtime: one that runs already, or a containerd of the cluster's own.

use std::collections::BTreeSet;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, bail};
use ferry_kubelet::config::CgroupDriver;
use ferry_kubelet::cri;
use ferry_linux::memory;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use super::layout::Layout;
use super::parts::Parts;

/// Where runtimes listen by custom.
const SOCKETS: [&str; 2] = ["/run/containerd/containerd.sock", "/run/crio/crio.sock"];
const PATIENCE: Duration = Duration::from_secs(30);
/// How often it is seen whether containerd still runs.
const LOOK: Duration = Duration::from_secs(1);
const STEP: Duration = Duration::from_millis(10);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Runtime {
    pub endpoint: String,
    /// Where it looks for network configurations and plugins.
    pub cni_configuration: PathBuf,
    pub cni_plugins: PathBuf,
    pub cgroup_driver: CgroupDriver,
    /// What the user is told.
    pub description: String,
}

/// The runtime the user named; else the cluster's own containerd if it runs; else the host's; else a
/// containerd of the cluster's own is started.
pub async fn find_or_start(
    layout: &Layout,
    endpoint: Option<&str>,
    registry_config: &Path,
) -> anyhow::Result<Runtime> {
    let span = ferry_trace::span("cluster.runtime");
    let look = async {
        match find(layout, endpoint).await? {
            Some(found) => Ok(found),
            None => start_containerd(layout, registry_config).await,
        }
    };
    span.in_scope(look).await
}

/// The runtime of this cluster among those that run.
pub async fn find(layout: &Layout, endpoint: Option<&str>) -> anyhow::Result<Option<Runtime>> {
    if let Some(endpoint) = endpoint {
        let found = ask(endpoint).await;
        return found.map(Some).with_context(|| format!("no container runtime answers at {endpoint}"));
    }
    let own = own_socket(layout);
    if own.exists()
        && let Ok(found) = ask(&own.display().to_string()).await
    {
        return Ok(Some(found));
    }
    for socket in SOCKETS.iter().filter(|socket| Path::new(socket).exists()) {
        match ask(socket).await {
            Ok(found) if !serves_another_cluster(&found, layout) => return Ok(Some(found)),
            Ok(_) => tracing::info!(socket, "the runtime there serves another cluster"),
            Err(error) => tracing::info!(socket, error = format!("{error:#}"), "no runtime answers there"),
        }
    }
    Ok(None)
}

impl Runtime {
    /// The cluster's own containerd, whether it runs or not.
    pub fn own(layout: &Layout) -> Runtime {
        let cni = layout.containerd().join("cni");
        Runtime {
            endpoint: own_socket(layout).display().to_string(),
            cni_configuration: cni.join("conf"),
            cni_plugins: cni.join("bin"),
            cgroup_driver: CgroupDriver::Cgroupfs,
            description: String::new(),
        }
    }
}

fn own_socket(layout: &Layout) -> PathBuf {
    layout.run_dir.join("containerd.sock")
}

/// Asks a runtime who it is and how it is set up.
async fn ask(endpoint: &str) -> anyhow::Result<Runtime> {
    let client = cri::Client::new(endpoint)?;
    let version = client.version().await?;
    let status = client.status(true).await?;
    let config: Value = match status.info.get("config") {
        Some(text) => serde_json::from_str(text).context("understand the runtime's configuration")?,
        None => Value::Null,
    };
    let path = |key: &str, otherwise: &str| {
        PathBuf::from(config["cni"][key].as_str().filter(|text| !text.is_empty()).unwrap_or(otherwise))
    };
    Ok(Runtime {
        endpoint: endpoint.to_owned(),
        cni_configuration: path("confDir", "/etc/cni/net.d"),
        cni_plugins: path("binDir", "/opt/cni/bin"),
        cgroup_driver: cgroup_driver(&config),
        description: format!("{} {} at {endpoint}", version.runtime_name, version.runtime_version),
    })
}

fn cgroup_driver(config: &Value) -> CgroupDriver {
    let name = config["containerd"]["defaultRuntimeName"].as_str().unwrap_or("runc");
    match config["containerd"]["runtimes"][name]["options"]["SystemdCgroup"].as_bool() {
        Some(true) => CgroupDriver::Systemd,
        _ => CgroupDriver::Cgroupfs,
    }
}

/// A runtime reads one network configuration, so it can serve the pods of one cluster.
fn serves_another_cluster(runtime: &Runtime, layout: &Layout) -> bool {
    let own = format!("10-ferry-{}.conflist", layout.cluster);
    let Ok(entries) = std::fs::read_dir(&runtime.cni_configuration) else { return false };
    entries.flatten().any(|entry| {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        name.starts_with("10-ferry-") && *name != *own
    })
}

async fn start_containerd(layout: &Layout, registry_config: &Path) -> anyhow::Result<Runtime> {
    if let Some(missing) = missing(in_path) {
        bail!(missing);
    }
    let directory = layout.containerd();
    for part in ["cni/conf", "cni/bin"] {
        std::fs::create_dir_all(directory.join(part))
            .with_context(|| format!("make {}", directory.join(part).display()))?;
    }
    let settings = directory.join("config.toml");
    std::fs::write(&settings, configuration(layout, registry_config, may_lower_scores()))
        .with_context(|| format!("write {}", settings.display()))?;
    let log = std::fs::OpenOptions::new().create(true).append(true).open(directory.join("containerd.log"));
    let log = log.context("open containerd's log")?;
    // In a session of its own: it and the containers go on when Ferry restarts.
    let mut command = Command::new("containerd");
    command.arg("--config").arg(&settings).process_group(0);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
    let child = memory::with_huge_pages(|| command.spawn()).context("start containerd")?;
    let pid_file = pid_file(layout);
    std::fs::write(&pid_file, child.id().to_string())
        .with_context(|| format!("write {}", pid_file.display()))?;
    // A thread and no task: a runtime that stops would wait for it.
    std::thread::spawn(move || reap(child));
    let endpoint = own_socket(layout).display().to_string();
    let deadline = tokio::time::Instant::now() + PATIENCE;
    loop {
        match ask(&endpoint).await {
            Ok(found) => return Ok(found),
            Err(error) if tokio::time::Instant::now() > deadline => {
                let log = directory.join("containerd.log");
                return Err(error)
                    .with_context(|| format!("containerd does not answer; its log is {}", log.display()));
            }
            Err(_) => tokio::time::sleep(STEP).await,
        }
    }
}

/// What keeps a containerd from being started here, and what to do about it.
fn missing(is_installed: impl Fn(&str) -> bool) -> Option<String> {
    // Debian's packages are named like the programs.
    let program = ["containerd", "runc"].into_iter().find(|program| !is_installed(program))?;
    Some(format!(
        "no container runtime runs here and {program} is not installed; install it with \
         `apt-get install {program}`, or name one with --container-runtime-endpoint"
    ))
}

/// Starts the cluster's own containerd again when it has ended; containers did not notice. A runtime of the
/// host's is the host's to keep.
pub async fn keep_own(runtime: Runtime, layout: Layout, registry_config: PathBuf, parts: Parts) {
    if runtime.endpoint != own_socket(&layout).display().to_string() {
        return;
    }
    // It may be the child of a Ferry that is gone, so it cannot be waited for.
    let mut ticks = tokio::time::interval(LOOK);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        if own_pid(&layout).is_some() {
            continue;
        }
        tracing::warn!("containerd is gone and is started again");
        parts.failed("runtime", &"containerd ended");
        match start_containerd(&layout, &registry_config).await {
            Ok(started) => parts.running("runtime", started.description),
            Err(error) => tracing::error!(error = format!("{error:#}"), "containerd does not start"),
        }
    }
}

/// A child that has ended and is not waited for would stay as a zombie.
fn reap(mut child: std::process::Child) {
    if let Ok(status) = child.wait() {
        tracing::warn!(%status, "containerd ended");
    }
}

fn configuration(layout: &Layout, registry_config: &Path, may_lower_scores: bool) -> String {
    let directory = layout.containerd();
    let text = |path: &Path| Value::from(path.to_string_lossy()).to_string();
    format!(
        "version = 2\nroot = {root}\nstate = {state}\n\
         disabled_plugins = [\"io.containerd.snapshotter.v1.aufs\", \"io.containerd.snapshotter.v1.btrfs\", \
         \"io.containerd.snapshotter.v1.devmapper\", \"io.containerd.snapshotter.v1.zfs\"]\n\
         [grpc]\naddress = {socket}\n\
         [plugins.\"io.containerd.grpc.v1.cri\"]\nsandbox_image = \"localhost/ferry/pause:1\"\n\
         restrict_oom_score_adj = {restrict}\nnetns_mounts_under_state_dir = true\n\
         [plugins.\"io.containerd.grpc.v1.cri\".cni]\nbin_dir = {plugins}\nconf_dir = {configuration}\n\
         [plugins.\"io.containerd.grpc.v1.cri\".registry]\nconfig_path = {registries}\n",
        root = text(&directory.join("root")),
        state = text(&layout.run_dir.join("containerd")),
        socket = text(&own_socket(layout)),
        restrict = !may_lower_scores,
        plugins = text(&directory.join("cni/bin")),
        configuration = text(&directory.join("cni/conf")),
        registries = text(registry_config),
    )
}

/// Without CAP_SYS_RESOURCE no process's OOM score can be lowered, and containerd must not try.
fn may_lower_scores() -> bool {
    const CAP_SYS_RESOURCE: u32 = 24;
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_else(|_| String::new());
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let bits = effective.and_then(|text| u64::from_str_radix(text.trim(), 16).ok());
    bits.is_some_and(|bits| bits & (1 << CAP_SYS_RESOURCE) != 0)
}

fn in_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_else(|| "/usr/sbin:/usr/bin:/sbin:/bin".into());
    std::env::split_paths(&path).any(|directory| directory.join(program).is_file())
}

fn pid_file(layout: &Layout) -> PathBuf {
    layout.run_dir.join("containerd.pid")
}

/// The cluster's own containerd, if it runs.
pub fn own_pid(layout: &Layout) -> Option<Pid> {
    let pid: i32 = std::fs::read_to_string(pid_file(layout)).ok()?.trim().parse().ok()?;
    // The number may be another process's by now.
    let command = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let settings = layout.containerd().join("config.toml");
    String::from_utf8_lossy(&command).contains(&*settings.to_string_lossy()).then(|| Pid::from_raw(pid))
}

/// Ends the cluster's own containerd. Blocks.
pub fn stop_own(layout: &Layout) -> anyhow::Result<bool> {
    let Some(pid) = own_pid(layout) else { return Ok(false) };
    kill(pid, Signal::SIGTERM).context("end containerd")?;
    let deadline = std::time::Instant::now() + PATIENCE;
    while own_pid(layout).is_some() {
        if std::time::Instant::now() > deadline {
            kill(pid, Signal::SIGKILL).context("kill containerd")?;
        }
        std::thread::sleep(STEP);
    }
    Ok(true)
}

/// The network namespaces of the containers that our own containerd keeps, running or left behind: what it starts a
/// container from names its namespace. Others of the host are not ours to touch.
pub fn network_namespaces(layout: &Layout) -> anyhow::Result<BTreeSet<PathBuf>> {
    let bundles = layout.run_dir.join("containerd/io.containerd.runtime.v2.task/k8s.io");
    let entries = match std::fs::read_dir(&bundles) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(BTreeSet::new()),
        Err(error) => return Err(error).with_context(|| format!("read {}", bundles.display())),
    };
    let mut found = BTreeSet::new();
    for entry in entries {
        let file = entry.with_context(|| format!("read {}", bundles.display()))?.path().join("config.json");
        // A container that went meanwhile took it along.
        let Ok(bytes) = std::fs::read(&file) else { continue };
        let spec: Value =
            serde_json::from_slice(&bytes).with_context(|| format!("understand {}", file.display()))?;
        found.extend(network_namespace(&spec));
    }
    Ok(found)
}

/// A pod's own namespace is a file that containerd made. One on the host's network names none, or a process's.
fn network_namespace(spec: &Value) -> Option<PathBuf> {
    let namespaces = spec["linux"]["namespaces"].as_array()?;
    let network = namespaces.iter().find(|namespace| namespace["type"] == "network")?;
    let path = Path::new(network["path"].as_str()?);
    let name = path.file_name()?;
    let is_containerds = name.to_str()?.starts_with("cni-");
    // By its real name, as mounts are listed.
    let directory = path.parent()?.canonicalize().ok()?;
    is_containerds.then(|| directory.join(name))
}

/// Ends what our own containerd left beside its containers: the shim of a pod that could not be removed in order. A
/// shim is told whose it is by the socket among its words.
pub fn end_shims(layout: &Layout) -> anyhow::Result<()> {
    let socket = own_socket(layout);
    for entry in std::fs::read_dir("/proc").context("list the processes")?.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        // One that ended meanwhile is no matter.
        let Ok(words) = std::fs::read(entry.path().join("cmdline")) else { continue };
        if is_shim_of(&words, &socket) {
            match kill(Pid::from_raw(pid), Signal::SIGKILL) {
                Ok(()) | Err(nix::errno::Errno::ESRCH) => {}
                Err(error) => return Err(error).with_context(|| format!("kill process {pid}")),
            }
        }
    }
    Ok(())
}

fn is_shim_of(words: &[u8], socket: &Path) -> bool {
    use std::os::unix::ffi::OsStrExt;
    let mut words = words.split(|byte| *byte == 0);
    let program = words.next().map(|word| Path::new(std::ffi::OsStr::from_bytes(word)));
    let is_shim =
        program.and_then(Path::file_name).is_some_and(|name| name.as_bytes().starts_with(b"containerd-shim"));
    is_shim && words.any(|word| word == socket.as_os_str().as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_runtime_says_who_makes_cgroups() {
        let config = |systemd: Value| json!({"containerd": {"runtimes": {"runc": {"options": systemd}}}});
        assert_eq!(cgroup_driver(&config(json!({"SystemdCgroup": true}))), CgroupDriver::Systemd);
        assert_eq!(cgroup_driver(&config(json!({}))), CgroupDriver::Cgroupfs);
        assert_eq!(cgroup_driver(&Value::Null), CgroupDriver::Cgroupfs);
    }

    #[test]
    fn what_is_not_installed_is_named_with_the_command_that_installs_it() {
        assert_eq!(missing(|_| true), None);
        let said = missing(|_| false).unwrap();
        assert!(said.contains("`apt-get install containerd`"), "{said}");
        let said = missing(|program| program == "containerd").unwrap();
        assert!(
            said.contains("`apt-get install runc`") && said.contains("--container-runtime-endpoint"),
            "{said}"
        );
    }

    #[test]
    fn a_shim_is_known_by_its_socket() {
        let socket = Path::new("/run/ferry/a/containerd.sock");
        let ours = b"/usr/bin/containerd-shim-runc-v2\0-id\0x\0-address\0/run/ferry/a/containerd.sock\0";
        assert!(is_shim_of(ours, socket));
        assert!(!is_shim_of(ours, Path::new("/run/ferry/b/containerd.sock")));
        assert!(!is_shim_of(b"ctr\0-address\0/run/ferry/a/containerd.sock\0", socket));
        assert!(!is_shim_of(b"", socket));
    }

    #[test]
    fn a_pods_namespace_is_known_by_its_containers() {
        let spec = |path: Value| json!({"linux": {"namespaces": [{"type": "pid"}, {"type": "network", "path": path}]}});
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().canonicalize().unwrap();
        let file = folder.join("cni-1");
        assert_eq!(network_namespace(&spec(file.to_str().into())), Some(file));
        assert_eq!(network_namespace(&spec(folder.join("theirs").to_str().into())), None);
        assert_eq!(network_namespace(&spec("/proc/7/ns/net".into())), None);
        assert_eq!(network_namespace(&spec(Value::Null)), None);
        assert_eq!(network_namespace(&json!({})), None);
    }

    #[test]
    fn a_runtime_serves_one_cluster() {
        let folder = tempfile::tempdir().unwrap();
        let layout = Layout::of(&folder.path().join("data")).unwrap();
        let runtime = Runtime {
            endpoint: String::new(),
            cni_configuration: folder.path().to_owned(),
            cni_plugins: PathBuf::new(),
            cgroup_driver: CgroupDriver::Cgroupfs,
            description: String::new(),
        };
        assert!(!serves_another_cluster(&runtime, &layout));
        std::fs::write(folder.path().join(format!("10-ferry-{}.conflist", layout.cluster)), "").unwrap();
        assert!(!serves_another_cluster(&runtime, &layout));
        std::fs::write(folder.path().join("10-ferry-other.conflist"), "").unwrap();
        assert!(serves_another_cluster(&runtime, &layout));
    }
}
