//! Hosts, each a network namespace, on one segment; and what runs on them.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::cluster::{Cluster, WELCOME};
use crate::host::{name_of, run};

pub const HOSTS: [&str; 3] = ["one", "two", "three"];
/// The machine at the other end of the hosts' default route, which has no part in the cluster.
const OUTSIDE: &str = "198.51.100.254";

/// Network namespaces, joined by a bridge in one more.
pub struct Segment {
    prefix: String,
}

impl Segment {
    pub fn new() -> Segment {
        static MADE: AtomicUsize = AtomicUsize::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let segment = Segment { prefix: format!("ferry-test-{}-{number}", std::process::id()) };
        let switch = segment.namespace("switch");
        ip(&["netns", "add", &switch]);
        ip(&["-n", &switch, "link", "add", "br0", "type", "bridge"]);
        ip(&["-n", &switch, "link", "set", "br0", "up"]);
        ip(&["-n", &switch, "address", "add", &format!("{OUTSIDE}/24"), "dev", "br0"]);
        for (index, host) in HOSTS.iter().enumerate() {
            let namespace = segment.namespace(host);
            ip(&["netns", "add", &namespace]);
            ip(&["-n", &namespace, "link", "set", "lo", "up"]);
            ip(&[
                "-n", &switch, "link", "add", host, "type", "veth", "peer", "name", "eth0", "netns",
                &namespace,
            ]);
            ip(&["-n", &switch, "link", "set", host, "master", "br0", "up"]);
            ip(&["-n", &namespace, "link", "set", "eth0", "up"]);
            segment.give_address(host, &address(index));
        }
        segment
    }

    fn namespace(&self, host: &str) -> String {
        format!("{}-{host}", self.prefix)
    }

    /// Words before a command. Only the network is the host's own; the file system is shared.
    pub fn on(&self, host: &str) -> Vec<String> {
        vec!["nsenter".into(), format!("--net=/run/netns/{}", self.namespace(host))]
    }

    /// Into the network of a machine that has no part in the cluster.
    pub fn outside(&self) -> Vec<String> {
        self.on("switch")
    }

    pub fn cut_off(&self, host: &str) {
        ip(&["-n", &self.namespace("switch"), "link", "set", host, "down"]);
    }

    pub fn join_again(&self, host: &str) {
        ip(&["-n", &self.namespace("switch"), "link", "set", host, "up"]);
    }

    /// As a new lease does it: the old address goes with its routes, the new one comes.
    pub fn give_address(&self, host: &str, address: &str) {
        let namespace = self.namespace(host);
        ip(&["-n", &namespace, "address", "flush", "dev", "eth0"]);
        ip(&["-n", &namespace, "address", "add", &format!("{address}/24"), "dev", "eth0"]);
        ip(&["-n", &namespace, "route", "add", "default", "via", OUTSIDE]);
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        for host in HOSTS.iter().chain(&["switch"]) {
            let _ = Command::new("ip").args(["netns", "delete", &self.namespace(host)]).status();
        }
    }
}

fn ip(words: &[&str]) {
    run(Command::new("ip").args(words));
}

/// What a host has at first.
pub fn address(index: usize) -> String {
    format!("198.51.100.{}", index + 1)
}

/// Whether nginx answers there.
pub fn welcomes(enter: &[String], host: &str, port: &str) -> Option<()> {
    get(enter, host, port, "/").contains(WELCOME).then_some(())
}

/// What an HTTP server answers, head and body; nothing where none does.
pub fn get(enter: &[String], host: &str, port: &str, path: &str) -> String {
    let script =
        format!("exec 3<>/dev/tcp/{host}/{port} && printf 'GET {path} HTTP/1.0\\r\\n\\r\\n' >&3 && cat <&3");
    String::from_utf8_lossy(&bash(enter, &script)).into_owned()
}

/// What a script printed on a host, within a moment.
pub fn bash(enter: &[String], script: &str) -> Vec<u8> {
    let mut command = Command::new(&enter[0]);
    command.args(&enter[1..]).args(["timeout", "2", "bash", "-c", script]);
    command.output().unwrap().stdout
}

/// `ferry agent` on one host.
pub struct Agent {
    pub host: &'static str,
    pub data_dir: PathBuf,
    binary: PathBuf,
    enter: Vec<String>,
    child: Child,
}

impl Agent {
    pub fn join(
        cluster: &Cluster,
        segment: &Segment,
        host: &'static str,
        server: &str,
        token: &str,
    ) -> Agent {
        let data_dir = cluster.directory.path().join(format!("agent-{host}"));
        let enter = segment.on(host);
        let child = start(cluster, &enter, host, &data_dir, server, &["--token", token]);
        Agent { host, data_dir, binary: cluster.binary.clone(), enter, child }
    }

    /// Ended in order and started anew, with what it has from its joining. Containers go on meanwhile.
    pub fn restart(&mut self, cluster: &Cluster, server: &str) {
        run(Command::new("kill").args(["-TERM", &self.child.id().to_string()]));
        self.child.wait().unwrap();
        self.child = start(cluster, &self.enter, self.host, &self.data_dir, server, &[]);
    }

    /// The agent, its runtime and what keeps its containers die at once.
    pub fn kill(&mut self) {
        // A shim knows the runtime's socket alone, which lies elsewhere.
        let run_dir = Path::new("/run/ferry").join(name_of(&self.data_dir));
        for pid in [&self.data_dir, &run_dir].into_iter().flat_map(|directory| processes_of(directory)) {
            // One of them may take another with it.
            let _ = Command::new("kill").args(["-KILL", &pid]).output();
        }
        self.child.wait().unwrap();
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let down = Command::new(&self.enter[0])
            .args(&self.enter[1..])
            .arg(&self.binary)
            .args(["down", "--data-dir"])
            .arg(&self.data_dir)
            .status();
        if !down.is_ok_and(|status| status.success()) {
            eprintln!("the agent in {} could not be taken down", self.data_dir.display());
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn start(
    cluster: &Cluster,
    enter: &[String],
    host: &str,
    data_dir: &Path,
    server: &str,
    more: &[&str],
) -> Child {
    let log = cluster.directory.path().join(format!("agent-{host}.log"));
    let log = std::fs::File::options().create(true).append(true).open(log).unwrap();
    let mut command = Command::new(&enter[0]);
    command.args(&enter[1..]).arg(&cluster.binary).args(["agent", "--node-name", host]).args(more);
    command.args(["--server", &format!("https://{server}:{}", cluster.port()), "--data-dir"]).arg(data_dir);
    command.arg("--registry-config-dir").arg(&cluster.registry.config_dir);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn().unwrap()
}

fn processes_of(directory: &Path) -> Vec<String> {
    let own = std::process::id().to_string();
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let pid = entry.file_name().to_string_lossy().into_owned();
        let Ok(command) = std::fs::read(entry.path().join("cmdline")) else { continue };
        if pid != own && String::from_utf8_lossy(&command).contains(directory.to_str().unwrap()) {
            found.push(pid);
        }
    }
    found
}
