//! Three hosts, each a network namespace on one segment: a server and two agents that joined with a token. Pods on
//! different hosts talk to each other and to services, names are answered on each, and a host that was cut off comes
//! back.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use crate::cluster::Cluster;
use crate::host::{belongings, ferry, run};
use crate::images;

const HOSTS: [&str; 3] = ["one", "two", "three"];

/// Network namespaces, joined by a bridge in one more.
struct Segment {
    prefix: String,
}

impl Segment {
    fn new() -> Segment {
        let segment = Segment { prefix: format!("ferry-test-{}", std::process::id()) };
        let switch = segment.namespace("switch");
        ip(&["netns", "add", &switch]);
        ip(&["-n", &switch, "link", "add", "br0", "type", "bridge"]);
        ip(&["-n", &switch, "link", "set", "br0", "up"]);
        for (index, host) in HOSTS.iter().enumerate() {
            let namespace = segment.namespace(host);
            ip(&["netns", "add", &namespace]);
            ip(&["-n", &namespace, "link", "set", "lo", "up"]);
            ip(&[
                "-n", &switch, "link", "add", host, "type", "veth", "peer", "name", "eth0", "netns",
                &namespace,
            ]);
            ip(&["-n", &switch, "link", "set", host, "master", "br0", "up"]);
            ip(&["-n", &namespace, "address", "add", &format!("{}/24", address(index)), "dev", "eth0"]);
            ip(&["-n", &namespace, "link", "set", "eth0", "up"]);
            ip(&["-n", &namespace, "route", "add", "default", "via", "198.51.100.254"]);
        }
        segment
    }

    fn namespace(&self, host: &str) -> String {
        format!("{}-{host}", self.prefix)
    }

    /// Only the network is the host's own; the file system is shared.
    fn on(&self, host: &str) -> Vec<String> {
        vec!["nsenter".into(), format!("--net=/run/netns/{}", self.namespace(host))]
    }
}

impl Segment {
    fn cut_off(&self, host: &str) {
        ip(&["-n", &self.namespace("switch"), "link", "set", host, "down"]);
    }

    fn join_again(&self, host: &str) {
        ip(&["-n", &self.namespace("switch"), "link", "set", host, "up"]);
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

fn address(index: usize) -> String {
    format!("198.51.100.{}", index + 1)
}

/// `ferry agent` on one host.
struct Agent {
    child: Child,
    binary: PathBuf,
    data_dir: PathBuf,
    enter: Vec<String>,
}

impl Agent {
    fn start(cluster: &Cluster, segment: &Segment, index: usize, token: &str) -> Agent {
        let host = HOSTS[index];
        let data_dir = cluster.directory.path().join(format!("agent-{host}"));
        let enter = segment.on(host);
        let log = std::fs::File::create(cluster.directory.path().join(format!("agent-{host}.log"))).unwrap();
        let child = Command::new(&enter[0])
            .args(&enter[1..])
            .arg(&cluster.binary)
            .args(["agent", "--token", token, "--node-name", host, "--node-ip", &address(index)])
            .args(["--server", &format!("https://{}:{}", address(0), cluster.port()), "--data-dir"])
            .arg(&data_dir)
            .arg("--registry-config-dir")
            .arg(&cluster.registry.config_dir)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        Agent { child, binary: cluster.binary.clone(), data_dir, enter }
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

#[test]
fn three_hosts_are_one_cluster() {
    let Some(binary) = ferry() else { return };
    let segment = Segment::new();
    let mut cluster = Cluster::new(binary, &["--node-name", "one", "--node-ip", "198.51.100.1"]);
    cluster.enter = segment.on("one");
    cluster.up();
    let token = run(cluster.ferry().args(["token", "create", "--data-dir"]).arg(cluster.data_dir()));
    let token = String::from_utf8(token).unwrap().trim().to_owned();
    let agents: Vec<Agent> = [1, 2].map(|index| Agent::start(&cluster, &segment, index, &token)).into();
    let directories: Vec<PathBuf> = agents.iter().map(|agent| agent.data_dir.clone()).collect();
    // Nothing but the hosts is on their segment, so no registry.
    let archive = images::archive(cluster.directory.path(), &cluster.root);
    for host in HOSTS {
        cluster.until(&format!("{host} is Ready"), || ready(&cluster, host));
    }

    for directory in directories.iter().chain([&cluster.data_dir()]) {
        run(cluster.ferry().args(["image", "load"]).arg(&archive).arg("--data-dir").arg(directory));
    }
    one_pod_on_each(&cluster);
    pods_talk_across_hosts(&cluster);

    // A host is cut off: the cluster notices, and hears of it again when it is back.
    segment.cut_off("three");
    cluster.until("three is lost", || (ready_status(&cluster, "three") == "Unknown").then_some(()));
    segment.join_again("three");
    cluster.until("three is back", || ready(&cluster, "three"));
    pods_talk_across_hosts(&cluster);

    drop(agents);
    for directory in directories {
        let left = belongings("no-cluster-of-this-name", &directory);
        assert!(left.is_empty(), "left behind: {left:#?}");
    }
}

fn ready_status(cluster: &Cluster, node: &str) -> String {
    let path = "jsonpath={.status.conditions[?(@.type==\"Ready\")].status}";
    let answer = cluster.try_kubectl(&["get", "node", node, "-o", path]);
    String::from_utf8_lossy(&answer.stdout).into_owned()
}

fn ready(cluster: &Cluster, node: &str) -> Option<()> {
    (ready_status(cluster, node) == "True").then_some(())
}

fn one_pod_on_each(cluster: &Cluster) {
    for host in HOSTS {
        let overrides = format!(r#"{{"spec":{{"nodeName":"{host}"}}}}"#);
        let pod = format!("on-{host}");
        let image = ["--image=nginx", "--image-pull-policy=IfNotPresent"];
        cluster
            .kubectl(&[&["run", &pod, "--labels=app=web", "--overrides", &overrides], &image[..]].concat());
    }
    for host in HOSTS {
        let pod = format!("pod/on-{host}");
        cluster.kubectl(&["wait", "--for=condition=Ready", &pod, "--timeout=120s"]);
    }
    cluster.kubectl(&["create", "service", "clusterip", "web", "--tcp=80"]);
    cluster.kubectl(&["set", "selector", "service", "web", "app=web"]);
}

fn pods_talk_across_hosts(cluster: &Cluster) {
    for from in HOSTS {
        let pod = format!("on-{from}");
        for to in HOSTS {
            let other = format!("on-{to}");
            let address = cluster.kubectl(&["get", "pod", &other, "-o", "jsonpath={.status.podIP}"]);
            cluster.until(&format!("{from} reaches the pod on {to}"), || cluster.pod_reaches(&pod, &address));
        }
        let service = "web.default.svc.cluster.local";
        cluster.until(&format!("{from} reaches the service by name"), || cluster.pod_reaches(&pod, service));
    }
}
