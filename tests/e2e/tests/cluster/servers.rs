//! Three servers on three members of etcd, each pair on a host of its own. Any server and any member may die while
//! somebody writes: writes go on, and nothing that was acknowledged is lost.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::cluster::Cluster;
use crate::host::{ferry, in_path, run};
use crate::segment::{HOSTS, Segment, address};

/// A program on one host, which dies with the test.
struct Process {
    child: Child,
}

impl Process {
    fn start(enter: &[String], program: &str, words: &[String], log: PathBuf) -> Process {
        let log = std::fs::File::options().create(true).append(true).open(log).unwrap();
        let mut command = Command::new(&enter[0]);
        command.args(&enter[1..]).arg(program).args(words);
        Process { child: command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn().unwrap() }
    }

    fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// One member of etcd.
fn member(cluster: &Cluster, segment: &Segment, index: usize) -> Process {
    let name = HOSTS[index];
    let at = |index: usize, port: u16| format!("http://{}:{port}", address(index));
    let all: Vec<String> = (0..3).map(|index| format!("{}={}", HOSTS[index], at(index, 2380))).collect();
    let directory = cluster.directory.path().join(format!("etcd-{name}"));
    let words = [
        ("--name", name.to_owned()),
        ("--data-dir", directory.display().to_string()),
        ("--listen-client-urls", at(index, 2379)),
        ("--advertise-client-urls", at(index, 2379)),
        ("--listen-peer-urls", at(index, 2380)),
        ("--initial-advertise-peer-urls", at(index, 2380)),
        ("--initial-cluster", all.join(",")),
    ];
    let words: Vec<String> = words.into_iter().flat_map(|(flag, value)| [flag.to_owned(), value]).collect();
    let log = cluster.directory.path().join(format!("etcd-{name}.log"));
    Process::start(&segment.on(name), "etcd", &words, log)
}

/// A further server of the cluster, in the foreground.
struct Server {
    process: Process,
    data_dir: PathBuf,
    binary: PathBuf,
    enter: Vec<String>,
    words: Vec<String>,
}

impl Server {
    fn new(cluster: &Cluster, segment: &Segment, index: usize, token: &str) -> Server {
        let name = HOSTS[index];
        let data_dir = cluster.directory.path().join(format!("server-{name}"));
        let words = vec![
            "server".to_owned(),
            format!("--server-token={token}"),
            format!("--datastore-endpoint={}", endpoints()),
            format!("--data-dir={}", data_dir.display()),
            format!("--port={}", cluster.port()),
            format!("--node-name={name}"),
            format!("--node-ip={}", address(index)),
            format!("--kubeconfig={}", data_dir.with_extension("kubeconfig").display()),
        ];
        let (enter, binary) = (segment.on(name), cluster.binary.clone());
        let process = Server::process(&enter, &binary, &words, &data_dir);
        Server { process, data_dir, binary, enter, words }
    }

    fn process(enter: &[String], binary: &Path, words: &[String], data_dir: &Path) -> Process {
        Process::start(enter, binary.to_str().unwrap(), words, data_dir.with_extension("log"))
    }

    fn restart(&mut self) {
        self.process = Server::process(&self.enter, &self.binary, &self.words, &self.data_dir);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.process.kill();
        let mut down = Command::new(&self.enter[0]);
        down.args(&self.enter[1..]).arg(&self.binary).args(["down", "--data-dir"]).arg(&self.data_dir);
        if !down.output().is_ok_and(|output| output.status.success()) {
            eprintln!("the server in {} could not be taken down", self.data_dir.display());
        }
    }
}

fn endpoints() -> String {
    let members: Vec<String> = (0..3).map(|index| format!("http://{}:2379", address(index))).collect();
    members.join(",")
}

/// Writes on and on, to whichever server takes it, and remembers what was acknowledged.
struct Writer<'a> {
    cluster: &'a Cluster,
    acknowledged: Vec<String>,
}

impl Writer<'_> {
    /// Returns when so many more were acknowledged.
    fn write(&mut self, count: usize) {
        for _ in 0..count {
            let name = format!("written-{}", self.acknowledged.len());
            let mut server = self.acknowledged.len();
            self.cluster.until(&format!("{name} is acknowledged"), || {
                server += 1;
                let server = format!("--server=https://{}:{}", address(server % 3), self.cluster.port());
                let answer = self.cluster.try_kubectl(&[
                    "create",
                    "configmap",
                    &name,
                    &server,
                    "--request-timeout=5s",
                ]);
                // A server may have died after it wrote and before it answered.
                let there = String::from_utf8_lossy(&answer.stderr).contains("already exists");
                (answer.status.success() || there).then_some(())
            });
            self.acknowledged.push(name);
        }
    }
}

#[test]
fn three_servers_on_three_members() {
    let Some(binary) = ferry() else { return };
    if !in_path("etcd") {
        ferry_skip::missing("etcd (Debian: etcd-server)");
        return;
    }
    let segment = Segment::new();
    let endpoints = endpoints();
    let flags =
        ["--node-name", "one", "--node-ip", "198.51.100.1", "--datastore-endpoint", endpoints.as_str()];
    let mut cluster = Cluster::new(binary, &flags);
    cluster.enter = segment.on("one");
    let mut members: Vec<Process> = (0..3).map(|index| member(&cluster, &segment, index)).collect();
    for host in HOSTS {
        cluster.until(&format!("the member of etcd on {host} serves"), || {
            let log =
                std::fs::read_to_string(cluster.directory.path().join(format!("etcd-{host}.log"))).ok()?;
            log.contains("ready to serve client requests").then_some(())
        });
    }
    cluster.up();
    let token = std::fs::read_to_string(cluster.data_dir().join("server-token")).unwrap();

    // Whoever does not know the token does not become a server.
    let mut stranger = cluster.ferry();
    stranger.args(["server", "--datastore-endpoint", &endpoints, "--server-token", "wrong", "--data-dir"]);
    let its_data = cluster.directory.path().join("stranger");
    let refused = stranger.arg(&its_data).output().unwrap();
    let why = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && why.contains("another server token"), "{why}");
    run(cluster.ferry().args(["down", "--purge", "--data-dir"]).arg(&its_data));

    let mut servers = [1, 2].map(|index| Server::new(&cluster, &segment, index, &token));
    known_servers(&cluster, "198.51.100.1 198.51.100.2 198.51.100.3");
    for host in HOSTS {
        cluster.until(&format!("{host} is Ready"), || {
            let path = r#"jsonpath={.status.conditions[?(@.type=="Ready")].status}"#;
            (cluster.try_kubectl(&["get", "node", host, "-o", path]).stdout == b"True").then_some(())
        });
    }

    // Of three that could, one does the work.
    for lease in ["kube-controller-manager", "kube-scheduler"] {
        let path = "jsonpath={.spec.holderIdentity}";
        let holder = cluster.kubectl(&["get", "lease", "-n", "kube-system", lease, "-o", path]);
        assert_eq!(holder, "one_198.51.100.1", "{lease}");
    }
    let reasons = "jsonpath={.items[?(@.reason==\"RegisteredNode\")].involvedObject.name}";
    cluster.until("each node was registered once", || {
        let registered = cluster.kubectl(&["get", "events", "-o", reasons]);
        let mut nodes: Vec<&str> = registered.split_whitespace().collect();
        nodes.sort_unstable();
        (nodes == ["one", "three", "two"]).then_some(())
    });

    let mut writer = Writer { cluster: &cluster, acknowledged: Vec::new() };
    writer.write(6);
    for (index, host) in HOSTS.iter().enumerate() {
        members[index].kill();
        writer.write(6);
        members[index] = member(&cluster, &segment, index);
        println!("the member on {host} died and came back");
    }
    for (server, others) in servers.iter_mut().zip(["198.51.100.1 198.51.100.3", "198.51.100.1 198.51.100.2"])
    {
        // Killed, not stopped: it cannot take itself off.
        server.process.kill();
        writer.write(6);
        known_servers(&cluster, others);
        server.restart();
        known_servers(&cluster, "198.51.100.1 198.51.100.2 198.51.100.3");
    }
    let first = cluster.status()["pid"].to_string();
    run(Command::new("kill").args(["-KILL", &first]));
    writer.write(6);

    // The loops of the server that died are done by another.
    let elsewhere = format!("--server=https://{}:{}", address(1), cluster.port());
    cluster.kubectl(&["create", "deployment", "later", "--image=none", &elsewhere]);
    cluster.until("somebody controls", || {
        let sets = cluster.try_kubectl(&["get", "replicasets", "-o", "name", &elsewhere]);
        (!sets.stdout.is_empty()).then_some(())
    });
    cluster.up();
    for (index, host) in HOSTS.iter().enumerate() {
        let server = format!("--server=https://{}:{}", address(index), cluster.port());
        let there = cluster.kubectl(&["get", "configmaps", "-o", "name", &server]);
        let lost: Vec<&String> = writer
            .acknowledged
            .iter()
            .filter(|name| !there.lines().any(|line| line == format!("configmap/{name}")))
            .collect();
        assert_eq!(lost, Vec::<&String>::new(), "lost on {host}");
    }
}

fn known_servers(cluster: &Cluster, wanted: &str) {
    cluster.until(&format!("the servers are {wanted}"), || {
        let path = "jsonpath={.endpoints[*].addresses[0]}";
        let slice = cluster.try_kubectl(&["get", "endpointslice", "kubernetes", "-o", path]);
        (String::from_utf8_lossy(&slice.stdout) == wanted).then_some(())
    });
}
