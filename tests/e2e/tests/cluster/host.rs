//! The host under the cluster: programs to run, ports to take, and what a cluster may leave behind.

use std::collections::BTreeSet;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU16, Ordering};

/// The binary under test, built beside this test; `None`, with a note, where the host cannot run a cluster.
pub fn ferry() -> Option<PathBuf> {
    let missing: Vec<&str> = ["containerd", "runc", "nft", "docker-registry", "dpkg"]
        .into_iter()
        .filter(|program| !in_path(program))
        .collect();
    let root = run(Command::new("id").arg("-u")) == b"0\n";
    if !missing.is_empty() || !root {
        ferry_skip::missing(&format!("root or one of {missing:?}"));
        return None;
    }
    let mut path = std::env::current_exe().unwrap();
    path.pop();
    path.pop();
    path.push("ferry");
    assert!(path.is_file(), "{} is built by `cargo xtask test`", path.display());
    Some(path)
}

pub fn in_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap();
    std::env::split_paths(&path)
        .chain(["/usr/sbin".into(), "/sbin".into()])
        .any(|directory| directory.join(program).is_file())
}

/// Whether the host has a kubectl of upstream's that speaks to today's servers; says so where not.
pub fn has_upstreams_kubectl() -> bool {
    let minor = || {
        let output = Command::new("kubectl").args(["version", "--client", "-o", "json"]).output().ok()?;
        let version: serde_json::Value = serde_json::from_slice(&output.stdout).ok()?;
        version["clientVersion"]["minor"].as_str()?.trim_end_matches('+').parse::<u32>().ok()
    };
    let found = minor().is_some_and(|minor| minor >= 32);
    if !found {
        // Debian has no newer one
        ferry_skip::unchecked("upstream's kubectl: there is none, or one older than 1.32");
    }
    found
}

/// A port that nobody has, and that the kernel gives to no outgoing connection before the test uses it.
pub fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let first = 20_000 + u16::try_from(std::process::id() % 5_000).unwrap();
    let mut ports = std::iter::repeat_with(|| first + NEXT.fetch_add(1, Ordering::Relaxed)).take(5_000);
    ports.find(|port| TcpListener::bind(("0.0.0.0", *port)).is_ok()).expect("a port is free")
}

/// What a program printed; it must succeed.
pub fn run(command: &mut Command) -> Vec<u8> {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?} failed: {said}{}", String::from_utf8_lossy(&output.stdout));
    output.stdout
}

/// One page over plain HTTP, from the host.
pub fn get(address: &str) -> Option<()> {
    use std::io::{Read, Write};
    let address = address.parse().unwrap();
    let timeout = std::time::Duration::from_secs(2);
    let mut stream = std::net::TcpStream::connect_timeout(&address, timeout).ok()?;
    stream.set_read_timeout(Some(timeout)).ok()?;
    stream.write_all(b"GET / HTTP/1.0\r\n\r\n").ok()?;
    let mut page = String::new();
    stream.read_to_string(&mut page).ok()?;
    page.contains(crate::cluster::WELCOME).then_some(())
}

/// Everything on the host that belongs to one cluster, by its name or its data directory, and all interfaces.
/// A `ferry up` and `down` must leave it as it was.
pub fn belongings(cluster: &str, data_dir: &Path) -> BTreeSet<String> {
    let data_dir = data_dir.to_str().unwrap();
    let mut found = BTreeSet::new();
    let mut keep = |sort: &str, text: String| {
        for line in text.lines().filter(|line| line.contains(cluster) || line.contains(data_dir)) {
            found.insert(format!("{sort}: {line}"));
        }
    };
    let text = |command: &mut Command| String::from_utf8(run(command)).unwrap();
    keep("interface", text(Command::new("ip").args(["-o", "link"])));
    keep("route", text(Command::new("ip").args(["route", "show", "table", "all"])));
    keep("rules", text(Command::new("nft").args(["list", "tables"])));
    keep("mount", std::fs::read_to_string("/proc/self/mounts").unwrap());
    keep("cgroup", text(Command::new("find").args(["/sys/fs/cgroup", "-maxdepth", "2", "-type", "d"])));
    keep("namespace", text(Command::new("find").args(["/run/ferry", "-maxdepth", "1"]).current_dir("/")));
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let pid = entry.file_name().to_string_lossy().into_owned();
        let Ok(command) = std::fs::read(entry.path().join("cmdline")) else { continue };
        let command = String::from_utf8_lossy(&command).replace('\0', " ");
        // The test itself may name the directory.
        if pid != std::process::id().to_string() {
            keep("process", command);
        }
    }
    found
}

/// The name of whoever has this data directory, by which its things on the host are called. While it is up.
pub fn name_of(data_dir: &Path) -> String {
    let clusters = std::fs::read_dir("/run/ferry").unwrap().flatten();
    let own = clusters.filter(|entry| {
        std::fs::read_link(entry.path().join("data"))
            .is_ok_and(|link| link == data_dir.canonicalize().unwrap())
    });
    let names: Vec<String> = own.map(|entry| entry.file_name().into_string().unwrap()).collect();
    assert_eq!(names.len(), 1, "who has {}", data_dir.display());
    names.into_iter().next().unwrap()
}

/// The network namespaces of its pods, as its containerd names them.
pub fn pod_namespaces(name: &str) -> BTreeSet<PathBuf> {
    let bundles = format!("/run/ferry/{name}/containerd/io.containerd.runtime.v2.task/k8s.io");
    let mut found = BTreeSet::new();
    for bundle in std::fs::read_dir(bundles).into_iter().flatten().flatten() {
        let Ok(spec) = std::fs::read(bundle.path().join("config.json")) else { continue };
        let spec: serde_json::Value = serde_json::from_slice(&spec).unwrap();
        let namespaces = spec["linux"]["namespaces"].as_array().into_iter().flatten();
        let network = namespaces.filter(|namespace| namespace["type"] == "network");
        found.extend(network.filter_map(|namespace| namespace["path"].as_str().map(PathBuf::from)));
    }
    found
}
