//! What the kernel tells about this process, and which program it is.

use std::sync::{LazyLock, OnceLock};

use crate::page::Page;
use crate::registry::{Collect, Description};

pub struct Process;

static DESCRIPTIONS: [Description; 6] = [
    Description::counter("process_cpu_seconds_total", "User and system CPU time spent, in seconds", &[]),
    Description::gauge("process_max_fds", "How many file descriptors may be open", &[]),
    Description::gauge("process_open_fds", "How many file descriptors are open", &[]),
    Description::gauge("process_resident_memory_bytes", "Resident memory in bytes", &[]),
    Description::gauge("process_start_time_seconds", "When the process started, in seconds since 1970", &[]),
    Description::gauge("process_virtual_memory_bytes", "Virtual memory in bytes", &[]),
];

/// `sysconf(_SC_CLK_TCK)`: the kernel shows times to programs in hundredths of a second on every architecture.
const TICKS: f64 = 100.0;
const PAGE: f64 = 4096.0;

impl Collect for Process {
    fn describe(&self) -> Vec<Description> {
        DESCRIPTIONS.to_vec()
    }

    fn collect(&self, page: &mut Page) {
        for (description, value) in DESCRIPTIONS.iter().zip(values()) {
            // what cannot be read is left out
            if let Some(value) = value {
                page.sample(description, &[], value);
            }
        }
    }
}

fn values() -> [Option<f64>; 6] {
    let read = |file: &str| std::fs::read_to_string(format!("/proc/self/{file}")).ok();
    let stat = read("stat");
    // behind the name, which may hold anything
    let fields: Vec<&str> = stat
        .as_deref()
        .and_then(|stat| stat.rsplit_once(')'))
        .map_or_else(Vec::new, |(_, rest)| rest.split_whitespace().collect());
    let field = |at: usize| fields.get(at).and_then(|value| value.parse::<f64>().ok());
    let limits = read("limits");
    let max_fds = limits.as_deref().and_then(|limits| {
        let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
        line.split_whitespace().next()?.parse().ok()
    });
    let open_fds = std::fs::read_dir("/proc/self/fd").ok().map(|all| all.count() as f64);
    let started = booted().and_then(|booted| Some(booted + field(19)? / TICKS));
    let cpu = field(11).zip(field(12)).map(|(user, system)| (user + system) / TICKS);
    [cpu, max_fds, open_fds, field(21).map(|pages| pages * PAGE), started, field(20)]
}

fn booted() -> Option<f64> {
    static BOOTED: LazyLock<Option<f64>> = LazyLock::new(|| {
        let stat = std::fs::read_to_string("/proc/stat").ok()?;
        stat.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()
    });
    *BOOTED
}

/// Which Kubernetes this is: `kubernetes_build_info`. The API server's `/version` says the same.
pub struct BuildInfo;

/// The API's version, and Ferry's.
pub const GIT_VERSION: &str = concat!("v1.36.4+ferry.", env!("CARGO_PKG_VERSION"));

static REPORTED: OnceLock<String> = OnceLock::new();

/// Says another version of the same release from now on; the first call counts.
pub fn report_version(version: String) {
    let _ = REPORTED.set(version);
}

/// The version to tell others.
pub fn git_version() -> &'static str {
    REPORTED.get().map_or(GIT_VERSION, String::as_str)
}

static BUILD_INFO: Description = Description::gauge(
    "kubernetes_build_info",
    "Always 1; the labels say which version this is and how it was built",
    &[
        "build_date",
        "compiler",
        "git_commit",
        "git_tree_state",
        "git_version",
        "go_version",
        "major",
        "minor",
        "platform",
    ],
);

impl Collect for BuildInfo {
    fn describe(&self) -> Vec<Description> {
        vec![BUILD_INFO]
    }

    fn collect(&self, page: &mut Page) {
        let platform = format!("linux/{}", architecture());
        let labels = ["1970-01-01T00:00:00Z", "rustc", "", "clean", git_version(), "", "1", "36", &platform];
        page.sample(&BUILD_INFO, &labels, 1.0);
    }
}

/// As Go names it.
fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_tells_everything_about_this_process() {
        let values = values().map(|value| value.expect("is told"));
        let [_, max_fds, open_fds, resident, started, size] = values;
        assert!(open_fds > 2.0 && open_fds <= max_fds, "{values:?}");
        assert!(resident > 100_000.0 && resident <= size, "{values:?}");
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970");
        let age = now.as_secs_f64() - started;
        assert!((-5.0..3600.0).contains(&age), "{age}");
    }
}
