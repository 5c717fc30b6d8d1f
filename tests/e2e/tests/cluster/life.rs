//! The life of one command on one node.

use std::collections::HashMap;
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use crate::cluster::{Cluster, WELCOME};
use crate::host::{belongings, ferry, free_port, get, has_upstreams_kubectl, in_path, run};

#[test]
fn the_whole_command_on_the_embedded_store() {
    let Some(binary) = ferry() else { return };
    the_whole_command(Cluster::new(binary, &[]));
}

#[test]
fn the_whole_command_on_etcd() {
    let Some(binary) = ferry() else { return };
    if !in_path("etcd") {
        ferry_skip::missing("etcd (Debian: etcd-server)");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let etcd = Etcd::start(directory.path());
    the_whole_command(Cluster::new(binary, &["--datastore-endpoint", &etcd.url]));
}

struct Etcd {
    child: Child,
    url: String,
}

impl Etcd {
    fn start(directory: &std::path::Path) -> Etcd {
        let (client, peer) = (free_port(), free_port());
        let url = format!("http://127.0.0.1:{client}");
        let peers = format!("http://127.0.0.1:{peer}");
        let child = Command::new("etcd")
            .arg("--data-dir")
            .arg(directory)
            .args(["--listen-client-urls", &url, "--advertise-client-urls", &url])
            .args(["--listen-peer-urls", &peers, "--initial-advertise-peer-urls", &peers])
            .args(["--initial-cluster", &format!("default={peers}")])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Etcd { child, url }
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What an unconfigured cluster lacks, and nothing else; and what is opened after it was looked at once.
fn the_security_check_finds_what_is_open(cluster: &Cluster) {
    let check = || {
        let words = ["check", "security", "-o", "json", "--data-dir"];
        let output = cluster.ferry().args(words).arg(cluster.data_dir()).output().unwrap();
        let told = format!(
            "{} {}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
        assert_eq!(output.status.code(), Some(1), "{told}");
        let report: serde_json::Value =
            serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{told}"));
        let items = report["items"].as_array().unwrap().clone();
        assert!(items.len() > 35, "{told}");
        assert!(items.iter().any(|item| item["id"] == "4.2.1" && item["found"] == "1 asked"), "{told}");
        let failed = items.iter().filter(|item| item["verdict"] == "FAIL");
        failed.map(|item| item["id"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let on_etcd = !cluster.data_dir().join("store").exists();
    let mut open = vec!["1.2.16", "3.2.1", "1.2.27"];
    if on_etcd {
        open.extend(["1.2.26", "1.2.23"]);
    }
    assert_eq!(check(), open);
    let kubeconfig = cluster.data_dir().join("admin.kubeconfig");
    let set = |mode| std::fs::set_permissions(&kubeconfig, std::fs::Permissions::from_mode(mode)).unwrap();
    set(0o644);
    open.insert(0, "1.1.13");
    assert_eq!(check(), open);
    set(0o600);
}

fn the_whole_command(cluster: Cluster) {
    let shown = cluster.up();
    for part in ["apiserver", "runtime", "controllers", "scheduler", "kubelet", "network", "proxy", "dns"] {
        assert!(shown.contains(&format!("✓ {part}")), "{part} is not shown: {shown}");
    }
    assert!(cluster.up().contains("already up"));
    let status = cluster.status();
    assert_eq!((&status["ready"], &status["problems"]), (&true.into(), &serde_json::json!([])), "{status}");
    let name = status["cluster"].as_str().unwrap().to_owned();
    assert!(!belongings(&name, &cluster.data_dir()).is_empty());

    // The line as it was always written.
    let said = cluster.kubectl(&["run", "--image=nginx", "--replicas=3", "--port=80", "--expose"]);
    assert_eq!(said, "service/nginx created\ndeployment.apps/nginx created\n");
    cluster.ready_pods("nginx", 3);

    let address = cluster.kubectl(&["get", "service", "nginx", "-o", "jsonpath={.spec.clusterIP}"]);
    cluster.until("the service answers by its address", || get(&format!("{address}:80")));

    let probe = ["run", "probe", "--image=nginx", "--restart=Never", "--command", "--", "sleep", "3600"];
    cluster.kubectl(&probe);
    cluster.kubectl(&["wait", "--for=condition=Ready", "pod/probe", "--timeout=60s"]);
    let by_name = || cluster.pod_reaches("probe", "nginx.default.svc.cluster.local");
    cluster.until("the service answers by its name", by_name);
    let short = cluster.kubectl(&["exec", "probe", "--", "nslookup", "nginx.default.svc.cluster.local"]);
    assert!(short.contains(&address), "{short}");

    the_trace_holds_every_chapter(&cluster);
    a_command_is_followed_as_it_happens(&cluster);
    a_pod_that_cannot_run_says_why(&cluster);
    a_label_counts_at_once(&cluster);

    // A pod is killed: another takes its place, and the service goes on.
    let pods = cluster.kubectl(&["get", "pods", "-l", "run=nginx", "-o", "name"]);
    let victim = pods.lines().next().unwrap();
    cluster.kubectl(&["delete", victim, "--wait=true"]);
    cluster.ready_pods("nginx", 3);
    cluster.until("the service answers by its name again", by_name);

    uses_upstreams_kubectl(&cluster);
    the_security_check_finds_what_is_open(&cluster);
    a_killed_server_restarts_no_container(&cluster);

    let said = cluster.down();
    assert!(said.ends_with("down\n"), "{said}");
    let left = belongings(&name, &cluster.data_dir());
    assert!(left.is_empty(), "left behind: {left:#?}");
    // What was written is there again.
    cluster.up();
    cluster.ready_pods("nginx", 3);
}

/// A pod that needs a label is not turned away by a kubelet that knows an older node.
fn a_label_counts_at_once(cluster: &Cluster) {
    let node = cluster.kubectl(&["get", "nodes", "-o", "name"]);
    cluster.kubectl(&["label", node.trim(), "disk=fast"]);
    let needs = r#"--overrides={"spec":{"nodeSelector":{"disk":"fast"}}}"#;
    let words =
        ["run", "picky", "--image=nginx", "--restart=Never", needs, "--command", "--", "sleep", "3600"];
    cluster.kubectl(&words);
    cluster.kubectl(&["wait", "--for=condition=Ready", "pod/picky", "--timeout=60s"]);
    cluster.kubectl(&["delete", "pod", "picky", "--grace-period=1"]);
}

/// What happened to the command, from its line to the name in DNS: told in the order of its life, and each step after
/// what caused it.
fn the_trace_holds_every_chapter(cluster: &Cluster) {
    let trace = |words: &[&str]| {
        let mut command = cluster.ferry();
        command.args(["trace", "deployment/nginx", "--data-dir"]).arg(cluster.data_dir()).args(words);
        String::from_utf8(run(&mut command)).unwrap()
    };
    let chapters = [
        "Command",
        "Authentication",
        "Authorization",
        "Admission",
        "Storage and watch",
        "Controllers",
        "Scheduling",
        "Pod on its node",
        "Sandbox and network",
        "Containers",
        "Endpoints and proxy",
        "DNS",
    ];
    // A step is recorded when it is over, a moment after others see what it did.
    cluster.until("the trace has every chapter, in order", || {
        let told = trace(&[]);
        let found: Vec<&str> = told.lines().filter(|line| chapters.contains(line)).collect();
        (found == chapters).then_some(())
    });

    let records: Value = serde_json::from_str(&trace(&["-o", "json"])).unwrap();
    let records = records["records"].as_array().unwrap();
    let start = |record: &Value| record["start"].as_u64().unwrap();
    let by_span: HashMap<&str, &Value> =
        records.iter().map(|record| (record["span"].as_str().unwrap(), record)).collect();
    let writes: HashMap<i64, &Value> =
        records.iter().filter_map(|record| Some((record["committed"].as_i64()?, record))).collect();
    let mut answered = 0;
    for record in records {
        if let Some(parent) = record["parent"].as_str().and_then(|parent| by_span.get(parent)) {
            assert!(start(parent) <= start(record), "{record} began before {parent}, which called it");
        }
        for write in record["causes"].as_array().into_iter().flatten().filter_map(Value::as_i64) {
            if let Some(write) = writes.get(&write) {
                assert!(start(write) <= start(record), "{record} began before {write}, which woke it");
                answered += 1;
            }
        }
    }
    // The Deployment, its ReplicaSet and three pods that were made, bound and run woke somebody each.
    assert!(answered >= 8, "only {answered} steps name a write that woke them");
}

/// `ferry trace -- COMMAND` runs it, tells each step while it happens, and shows its whole life at the end.
fn a_command_is_followed_as_it_happens(cluster: &Cluster) {
    let mut command = cluster.ferry();
    command.args(["trace", "--timeout", "60", "--data-dir"]).arg(cluster.data_dir());
    command.args(["--", "kubectl", "run", "followed", "--image=nginx", "--port=80", "--expose"]);
    let output = command.output().unwrap();
    let (told, shown) = (String::from_utf8_lossy(&output.stderr), String::from_utf8_lossy(&output.stdout));
    assert!(output.status.success(), "{told}");
    for step in ["kubectl run", "schedule pods/default/followed", "container followed"] {
        assert!(told.lines().any(|line| line.starts_with('+') && line.contains(step)), "{step}: {told}");
    }
    assert!(shown.contains("pod/followed created"), "{shown}");
    for chapter in ["Command", "Scheduling", "Sandbox and network", "Containers", "DNS"] {
        assert!(shown.lines().any(|line| line == chapter), "{chapter}: {shown}");
    }
    cluster.kubectl(&["delete", "pod,service", "followed", "--grace-period=1"]);

    // What is removed for its owner's sake is told with the removal.
    cluster.kubectl(&["create", "deployment", "brief", "--image=nginx"]);
    cluster.ready_pods("brief", 1);
    let mut command = cluster.ferry();
    command.args(["trace", "--timeout", "60", "--data-dir"]).arg(cluster.data_dir());
    let shown =
        String::from_utf8(run(command.args(["--", "kubectl", "delete", "deployment", "brief"]))).unwrap();
    let removal =
        shown.lines().skip_while(|line| *line != "Removal").skip(1).take_while(|line| !line.is_empty());
    let removal: Vec<&str> = removal.collect();
    let told = |what: &str| removal.iter().any(|line| line.contains(what));
    assert!(told("delete replicasets.apps/default/brief-") && told("delete pods/default/brief-"), "{shown}");
}

/// The trace of a pod that is not running ends with the reason; its chart is for a page.
fn a_pod_that_cannot_run_says_why(cluster: &Cluster) {
    let needs = r#"--overrides={"spec":{"nodeSelector":{"disk":"none-has-it"}}}"#;
    cluster.kubectl(&["run", "homeless", "--image=nginx", needs]);
    let trace = |words: &[&str]| {
        let mut command = cluster.ferry();
        command.args(["trace", "pod/homeless", "--data-dir"]).arg(cluster.data_dir()).args(words);
        String::from_utf8(run(&mut command)).unwrap()
    };
    cluster.until("the trace says why", || {
        let told = trace(&[]);
        let reason = told.lines().find(|line| line.starts_with("pod default/homeless is Pending"))?;
        (reason.contains("0/1 nodes are available") && told.contains("NodeAffinity")).then_some(())
    });
    let chart = trace(&["-o", "mermaid"]);
    assert!(chart.starts_with("gantt") && chart.contains("section Scheduling"), "{chart}");
    cluster.kubectl(&["delete", "pod", "homeless", "--grace-period=1"]);
}

/// Today's form of the command, with the kubectl that users have.
fn uses_upstreams_kubectl(cluster: &Cluster) {
    if !has_upstreams_kubectl() {
        return;
    }
    let kubectl = |words: &[&str]| {
        let words = [&["--request-timeout=60s"], words].concat();
        String::from_utf8(run(cluster.command("kubectl".as_ref()).args(words))).unwrap()
    };
    kubectl(&["create", "deployment", "web", "--image=nginx", "--replicas=2", "--port=80"]);
    kubectl(&["expose", "deployment", "web"]);
    cluster.ready_pods("web", 2);
    let pod = kubectl(&["get", "pods", "-l", "app=web", "-o", "jsonpath={.items[0].metadata.name}"]);
    assert_eq!(kubectl(&["exec", &pod, "--", "cat", "/var/www/html/index.html"]).trim(), WELCOME);
    kubectl(&["delete", "deployment,service", "web"]);
}

fn a_killed_server_restarts_no_container(cluster: &Cluster) {
    let containers = || {
        let words = ["get", "pods", "-l", "run=nginx", "--sort-by=.metadata.name", "-o"];
        let path = "jsonpath={range .items[*]}{.metadata.uid} {.status.containerStatuses[0].containerID} \
                    {.status.containerStatuses[0].restartCount}{\"\\n\"}{end}";
        cluster.kubectl(&[&words[..], &[path]].concat())
    };
    let before = containers();
    assert_eq!(before.lines().count(), 3, "{before}");
    let pid = cluster.status()["pid"].to_string();
    run(Command::new("kill").args(["-KILL", &pid]));
    cluster.until("the server is gone", || {
        (!std::path::Path::new(&format!("/proc/{pid}/cmdline")).exists()
            || std::fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|text| text.is_empty()))
        .then_some(())
    });
    cluster.up();
    cluster.ready_pods("nginx", 3);
    assert_eq!(containers(), before);
}
