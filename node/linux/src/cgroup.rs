//! Control groups, version 1 and 2, behind one type.
//!
//! A [`Path`] names a group from the root of the hierarchy; where its files
//! are, and what they are called, differs between the versions and is known
//! only here. Values that the kernel refuses for want of a capability are
//! reported, not fatal: a node without them still runs pods.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read};
use std::path::{Path as FsPath, PathBuf};

use nix::sys::signal::{self, Signal};
use nix::unistd::Pid;

use crate::tree;

/// Where the kernel schedules CPU time by default: 100 ms.
pub const CPU_PERIOD_MICROSECONDS: u64 = 100_000;
/// The smallest share a group can have.
pub const MIN_SHARES: u64 = 2;
const MAX_SHARES: u64 = 262_144;

/// Controllers a pod's group is made in. Others (freezer, blkio) are the
/// runtime's own affair.
const POD_CONTROLLERS: [&str; 6] = ["cpu", "cpuacct", "cpuset", "memory", "pids", "hugetlb"];

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("reading the mount table: {0}")]
    Mounts(#[source] io::Error),
    #[error("no cgroup hierarchy is mounted")]
    NotMounted,
    #[error("making cgroup {path}: {source}")]
    Create { path: String, source: io::Error },
    #[error("removing cgroup {path}: {source}")]
    Remove { path: String, source: io::Error },
    #[error("reading {file}: {source}")]
    Read { file: PathBuf, source: io::Error },
}

/// A group's place below the root of the hierarchy, such as
/// `/kubepods/burstable/pod1234`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Path(String);

impl Path {
    pub fn new(path: impl Into<String>) -> Self {
        let path = path.into();
        let trimmed = path.trim_matches('/');
        Self(if trimmed.is_empty() { "/".into() } else { format!("/{trimmed}") })
    }

    pub fn child(&self, name: &str) -> Self {
        Self::new(format!("{}/{name}", self.0))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    fn below(&self, mount: &FsPath) -> PathBuf {
        mount.join(self.0.trim_start_matches('/'))
    }
}

/// What a group may use; `None` leaves the kernel's value alone, a negative
/// limit means no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    pub cpu_shares: Option<u64>,
    pub cpu_quota_microseconds: Option<i64>,
    pub memory_bytes: Option<i64>,
    pub pids: Option<i64>,
}

/// What a group has used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    pub cpu_nanoseconds: u64,
    pub memory_bytes: u64,
    /// Memory that cannot be reclaimed at once: usage less inactive file pages.
    pub working_set_bytes: u64,
    pub rss_bytes: u64,
    /// Pages of files.
    pub cache_bytes: u64,
    pub page_faults: u64,
    pub major_page_faults: u64,
    pub pids: u64,
    pub throttling: Throttling,
}

/// How often a limit on CPU time was met.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Throttling {
    pub periods: u64,
    pub throttled_periods: u64,
    pub throttled_nanoseconds: u64,
}

/// A value the kernel did not take, for the caller to say once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    pub file: PathBuf,
    pub value: String,
    pub error: String,
}

/// The hierarchy mounted on this machine.
#[derive(Clone, Debug)]
pub enum Hierarchy {
    /// One mount per controller. The others hold no limits of ours, but the
    /// runtime makes groups in each of them.
    V1 { controllers: BTreeMap<String, PathBuf>, others: Vec<PathBuf> },
    /// One mount for all.
    V2(PathBuf),
}

impl Hierarchy {
    pub fn detect() -> Result<Self, Error> {
        let mountinfo = fs::read_to_string("/proc/self/mountinfo").map_err(Error::Mounts)?;
        Self::from_mountinfo(&mountinfo).ok_or(Error::NotMounted)
    }

    /// A machine may mount a bare version 2 tree beside version 1 controllers
    /// (hybrid); the controllers decide, since limits need them.
    fn from_mountinfo(mountinfo: &str) -> Option<Self> {
        let mut controllers = BTreeMap::new();
        let mut unified = None;
        let mut others = Vec::new();
        for line in mountinfo.lines() {
            let (before, after) = line.split_once(" - ")?;
            let mount_point = before.split(' ').nth(4)?;
            let mut after = after.split(' ');
            match after.next() {
                Some("cgroup") => {
                    let options = after.nth(1).unwrap_or("").split(',');
                    let ours: Vec<&str> = options.filter(|option| POD_CONTROLLERS.contains(option)).collect();
                    if ours.is_empty() {
                        others.push(PathBuf::from(mount_point));
                    }
                    for controller in ours {
                        controllers
                            .entry(controller.to_string())
                            .or_insert_with(|| PathBuf::from(mount_point));
                    }
                }
                Some("cgroup2") if unified.is_none() => unified = Some(PathBuf::from(mount_point)),
                _ => {}
            }
        }
        if controllers.is_empty() {
            return unified.map(Self::V2);
        }
        others.extend(unified);
        Some(Self::V1 { controllers, others })
    }

    pub fn is_v2(&self) -> bool {
        matches!(self, Self::V2(_))
    }

    /// Whether a controller can be used below the root.
    pub fn has_controller(&self, name: &str) -> bool {
        match self {
            Self::V1 { controllers, .. } => controllers.contains_key(name),
            Self::V2(root) => fs::read_to_string(root.join("cgroup.controllers"))
                .is_ok_and(|list| list.split_whitespace().any(|each| each == name)),
        }
    }

    pub fn exists(&self, path: &Path) -> bool {
        self.directories(path).iter().any(|directory| directory.exists())
    }

    /// Makes the group and gives it its limits. Doing so again changes only
    /// what differs.
    pub fn ensure(&self, path: &Path, limits: &Limits) -> Result<Vec<Refused>, Error> {
        let create = |source| Error::Create { path: path.as_str().into(), source };
        match self {
            Self::V1 { controllers, .. } => {
                for (controller, mount) in controllers {
                    let directory = path.below(mount);
                    create_below(&directory).map_err(create)?;
                    if controller == "cpuset" {
                        inherit_cpuset(mount, &directory).map_err(create)?;
                    }
                }
            }
            Self::V2(root) => create_unified(root, path).map_err(create)?,
        }
        Ok(self.apply(path, limits))
    }

    /// Writes the limits into an existing group.
    pub fn apply(&self, path: &Path, limits: &Limits) -> Vec<Refused> {
        self.files(path, limits)
            .into_iter()
            .filter_map(|(file, value)| write_if_different(file, value))
            .collect()
    }

    /// Which files get which values.
    fn files(&self, path: &Path, limits: &Limits) -> Vec<(PathBuf, String)> {
        let mut files = Vec::new();
        match self {
            Self::V1 { controllers, .. } => {
                let mut put = |controller: &str, file: &str, value: String| {
                    if let Some(mount) = controllers.get(controller) {
                        files.push((path.below(mount).join(file), value));
                    }
                };
                if let Some(shares) = limits.cpu_shares {
                    put("cpu", "cpu.shares", shares.clamp(MIN_SHARES, MAX_SHARES).to_string());
                }
                if let Some(quota) = limits.cpu_quota_microseconds {
                    put("cpu", "cpu.cfs_period_us", CPU_PERIOD_MICROSECONDS.to_string());
                    put("cpu", "cpu.cfs_quota_us", quota.max(-1).to_string());
                }
                if let Some(bytes) = limits.memory_bytes {
                    put("memory", "memory.limit_in_bytes", bytes.max(-1).to_string());
                }
                if let Some(pids) = limits.pids {
                    put("pids", "pids.max", unlimited_or(pids));
                }
            }
            Self::V2(root) => {
                let directory = path.below(root);
                if let Some(shares) = limits.cpu_shares {
                    files.push((directory.join("cpu.weight"), shares_to_weight(shares).to_string()));
                }
                if let Some(quota) = limits.cpu_quota_microseconds {
                    files.push((
                        directory.join("cpu.max"),
                        format!("{} {CPU_PERIOD_MICROSECONDS}", unlimited_or(quota)),
                    ));
                }
                if let Some(bytes) = limits.memory_bytes {
                    files.push((directory.join("memory.max"), unlimited_or(bytes)));
                }
                if let Some(pids) = limits.pids {
                    files.push((directory.join("pids.max"), unlimited_or(pids)));
                }
            }
        }
        files
    }

    /// Removes the group and all below it, those of the runtime too.
    /// Processes must be gone.
    pub fn remove(&self, path: &Path) -> Result<(), Error> {
        for directory in self.all_directories(path) {
            // depth first: a group with children cannot go
            tree::remove_directories(&directory)
                .map_err(|source| Error::Remove { path: path.as_str().into(), source })?;
        }
        Ok(())
    }

    /// Every process in the group and below it. A process that is being started may be in some hierarchies only.
    pub fn processes(&self, path: &Path) -> Vec<i32> {
        let mut processes = Vec::new();
        for directory in self.all_directories(path) {
            collect_processes(&directory, &mut processes);
        }
        processes.sort_unstable();
        processes.dedup();
        processes
    }

    /// Kills every process in the group and below it, and says how many there were. They are gone a moment later.
    pub fn kill(&self, path: &Path) -> usize {
        let processes = self.processes(path);
        for pid in &processes {
            // one that has ended meanwhile is no matter
            let _ = signal::kill(Pid::from_raw(*pid), Signal::SIGKILL);
        }
        if !processes.is_empty() {
            // version 1 ends no process that is frozen
            self.all_directories(path).iter().for_each(|directory| thaw(directory));
        }
        processes.len()
    }

    /// The names of the groups directly below.
    pub fn children(&self, path: &Path) -> Vec<String> {
        let mut names = std::collections::BTreeSet::new();
        for directory in self.directories(path) {
            names
                .extend(subdirectories(&directory).filter_map(|child| {
                    child.file_name().and_then(|name| name.to_str()).map(str::to_string)
                }));
        }
        names.into_iter().collect()
    }

    /// What the group has used so far.
    pub fn usage(&self, path: &Path) -> Result<Usage, Error> {
        match self {
            Self::V1 { controllers, .. } => {
                let mut usage = Usage::default();
                if let Some(mount) = controllers.get("cpuacct") {
                    usage.cpu_nanoseconds = read_number(&path.below(mount).join("cpuacct.usage"))?;
                }
                if let Some(mount) = controllers.get("memory") {
                    let directory = path.below(mount);
                    usage.memory_bytes = read_number(&directory.join("memory.usage_in_bytes"))?;
                    let stat = read_table(&directory.join("memory.stat"))?;
                    let value = |key: &str| stat.get(key).copied().unwrap_or(0);
                    usage.working_set_bytes = usage.memory_bytes.saturating_sub(value("total_inactive_file"));
                    usage.rss_bytes = value("total_rss");
                    usage.cache_bytes = value("total_cache");
                    usage.page_faults = value("total_pgfault");
                    usage.major_page_faults = value("total_pgmajfault");
                }
                // the root group has none
                if let Some(mount) = controllers.get("cpu")
                    && let Ok(stat) = read_table(&path.below(mount).join("cpu.stat"))
                {
                    usage.throttling = throttling(&stat, "throttled_time", 1);
                }
                if let Some(mount) = controllers.get("pids") {
                    // the root group has no such file
                    usage.pids = read_number(&path.below(mount).join("pids.current")).unwrap_or(0);
                }
                Ok(usage)
            }
            Self::V2(root) => {
                let directory = path.below(root);
                let cpu = read_table(&directory.join("cpu.stat"))?;
                let memory = read_table(&directory.join("memory.stat"))?;
                let value = |key: &str| memory.get(key).copied().unwrap_or(0);
                // the root group has no memory.current; its stat still adds up
                let bytes = read_number(&directory.join("memory.current"))
                    .unwrap_or_else(|_| value("anon") + value("file") + value("kernel"));
                Ok(Usage {
                    cpu_nanoseconds: cpu.get("usage_usec").copied().unwrap_or(0) * 1000,
                    memory_bytes: bytes,
                    working_set_bytes: bytes.saturating_sub(value("inactive_file")),
                    rss_bytes: value("anon"),
                    cache_bytes: value("file"),
                    page_faults: value("pgfault"),
                    major_page_faults: value("pgmajfault"),
                    pids: read_number(&directory.join("pids.current")).unwrap_or(0),
                    throttling: throttling(&cpu, "throttled_usec", 1000),
                })
            }
        }
    }

    /// Also where no limits of ours are: the runtime makes groups in every hierarchy.
    fn all_directories(&self, path: &Path) -> Vec<PathBuf> {
        let others = match self {
            Self::V1 { others, .. } => others.as_slice(),
            Self::V2(_) => &[],
        };
        self.directories(path).into_iter().chain(others.iter().map(|mount| path.below(mount))).collect()
    }

    fn directories(&self, path: &Path) -> Vec<PathBuf> {
        match self {
            Self::V1 { controllers, .. } => {
                let mut directories: Vec<_> = controllers.values().map(|mount| path.below(mount)).collect();
                directories.dedup();
                directories
            }
            Self::V2(root) => vec![path.below(root)],
        }
    }
}

fn throttling(stat: &BTreeMap<String, u64>, time: &str, nanoseconds: u64) -> Throttling {
    let value = |key: &str| stat.get(key).copied().unwrap_or(0);
    Throttling {
        periods: value("nr_periods"),
        throttled_periods: value("nr_throttled"),
        throttled_nanoseconds: value(time).saturating_mul(nanoseconds),
    }
}

/// Shares for a CPU request, as the scheduler weighs it: 1024 a core.
pub fn shares_for_milli_cpu(milli: u64) -> u64 {
    if milli == 0 { MIN_SHARES } else { (milli * 1024 / 1000).clamp(MIN_SHARES, MAX_SHARES) }
}

/// Quota for a CPU limit over the default period; the kernel takes no less
/// than 1 ms.
pub fn quota_for_milli_cpu(milli: u64) -> i64 {
    let quota = milli * CPU_PERIOD_MICROSECONDS / 1000;
    i64::try_from(quota.max(1000)).unwrap_or(i64::MAX)
}

/// Version 2 weighs from 1 to 10000 where version 1 has 2 to 262144. The
/// curve is the one runc and crun moved to: 1024 shares are weight 100.
fn shares_to_weight(shares: u64) -> u64 {
    if shares <= MIN_SHARES {
        return 1;
    }
    if shares >= MAX_SHARES {
        return 10_000;
    }
    let log = (shares as f64).log2();
    let exponent = (log * log + 125.0 * log) / 612.0 - 7.0 / 34.0;
    10f64.powf(exponent).ceil() as u64
}

fn unlimited_or(value: i64) -> String {
    if value < 0 { "max".into() } else { value.to_string() }
}

/// Makes a group; that it is there already is the usual case of the second time, and told by one call.
fn create_below(directory: &FsPath) -> io::Result<()> {
    match fs::create_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => fs::create_dir_all(directory),
        made => made,
    }
}

/// A version 1 cpuset group is empty until told its CPUs, and takes no
/// process until then. Each level inherits from the one above.
fn inherit_cpuset(mount: &FsPath, directory: &FsPath) -> io::Result<()> {
    for file in ["cpuset.cpus", "cpuset.mems"] {
        inherited(mount, directory, file)?;
    }
    Ok(())
}

/// A group's value, taken from the level above where it has none. A level that has one has it from all above.
fn inherited(mount: &FsPath, directory: &FsPath, file: &str) -> io::Result<String> {
    let own = read_value(&directory.join(file))?;
    let parent = directory.parent().filter(|_| own.is_empty() && directory != mount);
    let Some(parent) = parent else { return Ok(own) };
    let value = inherited(mount, parent, file)?;
    fs::write(directory.join(file), &value)?;
    Ok(value)
}

/// A version 2 group has the controllers its parent hands down.
fn create_unified(root: &FsPath, path: &Path) -> io::Result<()> {
    let available = read_value(&root.join("cgroup.controllers"))?;
    let mut directory = root.to_path_buf();
    for component in path.as_str().split('/').filter(|part| !part.is_empty()) {
        let file = directory.join("cgroup.subtree_control");
        let handed_down = read_value(&file)?;
        let is_missing = |name: &&str| !handed_down.split_whitespace().any(|each| each == *name);
        let wanted = available.split_whitespace().filter(|name| POD_CONTROLLERS.contains(name));
        for controller in wanted.filter(is_missing) {
            // one by one, so that a controller that cannot be handed down takes no other with it
            if let Err(error) = fs::write(&file, format!("+{controller}")) {
                tracing::debug!(%error, controller, directory = %directory.display(), "controller not handed down");
            }
        }
        directory.push(component);
        create_below(&directory)?;
    }
    Ok(())
}

fn write_if_different(file: PathBuf, value: String) -> Option<Refused> {
    if read_value(&file).is_ok_and(|current| current == value) {
        return None;
    }
    match fs::write(&file, &value) {
        Ok(()) => None,
        Err(error) => Some(Refused { file, value, error: error.to_string() }),
    }
}

/// The value in a file of a single one. The kernel tells no size of it beforehand, and gives all of it at once.
fn read_value(file: &FsPath) -> io::Result<String> {
    let mut buffer = [0; 4096];
    let length = fs::File::open(file)?.read(&mut buffer)?;
    Ok(String::from_utf8_lossy(&buffer[..length]).trim().to_string())
}

/// The whole of a file of the kernel's, whose size it does not tell: a page at a time.
fn read_text(file: &FsPath) -> io::Result<String> {
    let mut text = Vec::with_capacity(4096);
    // without a bound in between, the file would be asked for its size first
    fs::File::open(file)?.take(u64::MAX).read_to_end(&mut text)?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

fn thaw(directory: &FsPath) {
    let file = directory.join("freezer.state");
    if file.exists()
        && let Err(error) = fs::write(&file, "THAWED")
    {
        tracing::warn!(file = %file.display(), %error, "a cgroup stays frozen");
    }
    subdirectories(directory).for_each(|child| thaw(&child));
}

fn collect_processes(directory: &FsPath, processes: &mut Vec<i32>) {
    if let Ok(list) = fs::read_to_string(directory.join("cgroup.procs")) {
        // one of another PID namespace shows as 0, and a signal to 0 goes to ourselves
        processes.extend(list.lines().filter_map(|line| line.parse::<i32>().ok()).filter(|pid| *pid > 0));
    }
    for child in subdirectories(directory) {
        collect_processes(&child, processes);
    }
}

fn subdirectories(directory: &FsPath) -> impl Iterator<Item = PathBuf> {
    fs::read_dir(directory)
        .into_iter()
        .flatten()
        .flatten()
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .map(|entry| entry.path())
}

fn read_number(file: &FsPath) -> Result<u64, Error> {
    let text = read_value(file).map_err(|source| Error::Read { file: file.into(), source })?;
    text.parse().map_err(|error| Error::Read {
        file: file.into(),
        source: io::Error::new(io::ErrorKind::InvalidData, error),
    })
}

fn read_table(file: &FsPath) -> Result<BTreeMap<String, u64>, Error> {
    let text = read_text(file).map_err(|source| Error::Read { file: file.into(), source })?;
    Ok(text
        .lines()
        .filter_map(|line| {
            let (key, value) = line.split_once(' ')?;
            Some((key.to_string(), value.trim().parse().ok()?))
        })
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const HYBRID: &str = "\
31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu,cpuacct
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw";

    fn v1() -> Hierarchy {
        Hierarchy::from_mountinfo(HYBRID).expect("controllers are mounted")
    }

    #[test]
    fn controllers_decide_on_a_hybrid_machine() {
        assert!(!v1().is_v2());
        assert!(v1().has_controller("cpuacct"));
        assert!(!v1().has_controller("pids"));
        let unified = "26 1 0:22 / /sys/fs/cgroup rw shared:4 - cgroup2 cgroup2 rw,nsdelegate";
        assert!(Hierarchy::from_mountinfo(unified).is_some_and(|hierarchy| hierarchy.is_v2()));
        assert!(Hierarchy::from_mountinfo("27 1 254:0 / / rw - ext4 /dev/vda rw").is_none());
    }

    #[test]
    fn limits_become_the_versions_own_files() {
        let limits = Limits {
            cpu_shares: Some(512),
            cpu_quota_microseconds: Some(50_000),
            memory_bytes: Some(1 << 20),
            pids: Some(-1),
        };
        let path = Path::new("kubepods/pod1/");
        let shown = |hierarchy: &Hierarchy| -> Vec<String> {
            hierarchy
                .files(&path, &limits)
                .iter()
                .map(|(file, value)| format!("{} = {value}", file.display()))
                .collect()
        };
        assert_eq!(
            shown(&v1()),
            [
                "/sys/fs/cgroup/cpu/kubepods/pod1/cpu.shares = 512",
                "/sys/fs/cgroup/cpu/kubepods/pod1/cpu.cfs_period_us = 100000",
                "/sys/fs/cgroup/cpu/kubepods/pod1/cpu.cfs_quota_us = 50000",
                "/sys/fs/cgroup/memory/kubepods/pod1/memory.limit_in_bytes = 1048576",
            ]
        );
        assert_eq!(
            shown(&Hierarchy::V2("/cg".into())),
            [
                "/cg/kubepods/pod1/cpu.weight = 59",
                "/cg/kubepods/pod1/cpu.max = 50000 100000",
                "/cg/kubepods/pod1/memory.max = 1048576",
                "/cg/kubepods/pod1/pids.max = max",
            ]
        );
    }

    #[test]
    fn milli_cpu_becomes_shares_weight_and_quota() {
        for (milli, shares, weight, quota) in [
            (0, 2, 1, 1000),
            (1, 2, 1, 1000),
            (100, 102, 17, 10_000),
            (1000, 1024, 100, 100_000),
            (2500, 2560, 208, 250_000),
        ] {
            assert_eq!(shares_for_milli_cpu(milli), shares, "{milli}m");
            assert_eq!(shares_to_weight(shares), weight, "{milli}m");
            assert_eq!(quota_for_milli_cpu(milli), quota, "{milli}m");
        }
    }

    #[test]
    fn a_group_is_made_limited_measured_and_removed() {
        let Ok(hierarchy) = Hierarchy::detect() else {
            ferry_skip::missing("cgroups");
            return;
        };
        let root = Path::new(format!("ferry-test-{}", std::process::id()));
        let pod = root.child("burstable").child("pod1");
        let limits = Limits { cpu_shares: Some(204), ..Limits::default() };
        if let Err(Error::Create { source, .. }) = hierarchy.ensure(&pod, &limits) {
            ferry_skip::missing(&format!("the right to make cgroups: {source}"));
            return;
        }
        assert!(hierarchy.exists(&pod));
        assert_eq!(hierarchy.children(&root), ["burstable"]);
        assert!(hierarchy.processes(&pod).is_empty());
        assert!(hierarchy.usage(&pod).is_ok());
        hierarchy.remove(&root).expect("an empty group can be removed");
        assert!(!hierarchy.exists(&root));
    }
}
