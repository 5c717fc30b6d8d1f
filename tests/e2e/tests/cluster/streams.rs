//! What people do with pods that run: logs, exec, cp, port-forward, attach, top. With Ferry's kubectl, and with
//! upstream's where the host has it.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::cluster::Cluster;
use crate::conversation::Conversation;
use crate::host::{ferry, get, has_upstreams_kubectl, in_path, run};

/// One of the two kubectls, on one cluster.
struct Kubectl<'a> {
    name: &'static str,
    cluster: &'a Cluster,
}

impl Kubectl<'_> {
    fn command(&self, words: &[&str]) -> Command {
        let mut command = match self.name {
            "ferry" => {
                let mut command = self.cluster.ferry();
                command.arg("kubectl");
                command
            }
            _ => self.cluster.command("kubectl".as_ref()),
        };
        command.args(words);
        command
    }

    fn run(&self, words: &[&str]) -> String {
        String::from_utf8(run(&mut self.command(words))).unwrap()
    }

    fn start(&self, words: &[&str]) -> Conversation {
        Conversation::start(&mut self.command(words))
    }

    /// What it prints when it is given `input`, which then ends.
    fn run_with_input(&self, words: &[&str], input: &str) -> String {
        let mut command = self.command(words);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{command:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// The words as a shell reads them.
    fn line(&self, words: &str) -> String {
        let program = match self.name {
            "ferry" => format!("{} kubectl", self.cluster.binary.display()),
            _ => "kubectl".to_string(),
        };
        format!("{program} {words}")
    }

    fn runs_pod(&self, pod: &str, script: &str) {
        let command = ["--image=nginx", "--restart=Never", "--command", "--", "sh", "-c", script];
        self.run(&[&["run", pod][..], &command].concat());
        self.cluster.ready_pod(pod);
    }
}

#[test]
fn pods_are_talked_to_with_both_kubectls() {
    let Some(binary) = ferry() else { return };
    let cluster = Cluster::new(binary, &[]);
    cluster.up();
    let mut names = vec!["ferry"];
    if has_upstreams_kubectl() {
        names.push("upstream");
    }
    for name in names {
        let kubectl = Kubectl { name, cluster: &cluster };
        let counts = format!("counts-{name}");
        kubectl.runs_pod(&counts, "while true; do i=$((i+1)); echo line $i; sleep 0.2; done");
        follows_logs(&kubectl, &counts);
        executes(&kubectl, &counts);
        has_a_terminal(&kubectl, &counts);
        copies(&kubectl, &counts);
        attaches(&kubectl);
        forwards_a_port(&kubectl);
        shows_what_is_used(&kubectl, &counts);
        kubectl.run(&["delete", "pods", "--all", "--grace-period=0", "--force"]);
    }
    may_be_read_by_viewers(&cluster);
}

fn follows_logs(kubectl: &Kubectl, counts: &str) {
    let follow = kubectl.start(&["logs", "-f", counts, "--tail=1"]);
    follow.hears("line ");
    follow.hears("line ");
    follow.hears("line ");
    let first = kubectl.run(&["logs", counts, "--limit-bytes=6"]);
    assert_eq!(first, "line 1");
    let stamped = kubectl.run(&["logs", counts, "--timestamps", "--tail=1"]);
    assert!(stamped.contains('T') && stamped.contains("Z line "), "{stamped}");

    // Following ends with the container; the one before it is kept.
    let once = format!("once-{}", kubectl.name);
    let script = "test -e /data/again && sleep 3600; touch /data/again; sleep 1; echo over; exit 1";
    let overrides = format!(
        r#"{{"spec":{{"restartPolicy":"OnFailure","containers":[{{"name":"{once}","image":"nginx",
        "command":["sh","-c","{script}"],"volumeMounts":[{{"name":"data","mountPath":"/data"}}]}}],
        "volumes":[{{"name":"data","emptyDir":{{}}}}]}}}}"#
    );
    kubectl.run(&["run", &once, "--image=nginx", "--overrides", &overrides]);
    kubectl.cluster.ready_pod(&once);
    let followed = kubectl.start(&["logs", "-f", &once]).rest();
    assert!(followed.is_empty() || followed == ["over"], "{followed:?}");
    kubectl.cluster.until("the container that ended can be read", || {
        let previous = kubectl.command(&["logs", &once, "--previous"]).output().unwrap();
        (previous.stdout == b"over\n").then_some(())
    });
}

fn executes(kubectl: &Kubectl, pod: &str) {
    assert_eq!(kubectl.run_with_input(&["exec", "-i", pod, "--", "cat"], "hi\n"), "hi\n");
    let failed = kubectl.command(&["exec", pod, "--", "sh", "-c", "echo why >&2; exit 7"]).output().unwrap();
    assert_eq!(failed.status.code(), Some(7));
    assert!(String::from_utf8_lossy(&failed.stderr).starts_with("why\n"), "{failed:?}");
}

/// A terminal of the user's, its size in the container too.
fn has_a_terminal(kubectl: &Kubectl, pod: &str) {
    if !in_path("script") {
        ferry_skip::unchecked("a terminal: there is no script(1) to make one");
        return;
    }
    let wait = "until [ \"$(busybox stty size)\" = \"33 101\" ]; do sleep 0.05; done; echo resized";
    let exec = kubectl.line(&format!("exec -it {pod} -- timeout 30 sh -c '{wait}'"));
    let mut command = kubectl.cluster.command("script".as_ref());
    command.args(["-qec", &format!("stty rows 33 cols 101; {exec}"), "/dev/null"]).stdin(Stdio::null());
    let printed = String::from_utf8(run(&mut command)).unwrap();
    assert!(printed.contains("resized"), "{printed}");

    // A pod for one look: it has the terminal, and is gone afterwards.
    let look = format!("look-{}", kubectl.name);
    // What it prints before somebody is attached nobody sees.
    let script = "for i in 1 2 3 4 5 6 7 8 9 10; do test -t 0 && echo on a terminal; sleep 0.5; done";
    let words = format!("--rm -it --restart=Never --image=nginx --command -- sh -c '{script}'");
    let mut command = kubectl.cluster.command("script".as_ref());
    command.args(["-qec", &kubectl.line(&format!("run {look} {words}")), "/dev/null"]).stdin(Stdio::null());
    let printed = String::from_utf8(run(&mut command)).unwrap();
    assert!(
        printed.contains("on a terminal") && printed.contains(&format!("pod \"{look}\" deleted")),
        "{printed}"
    );
    assert_eq!(kubectl.run(&["get", "pod", &look, "--ignore-not-found"]), "");
}

fn copies(kubectl: &Kubectl, pod: &str) {
    let directory = kubectl.cluster.directory.path().join(format!("copy-{}", kubectl.name));
    std::fs::create_dir_all(directory.join("there")).unwrap();
    let content: Vec<u8> = (0..300_000u32).map(|number| (number % 251) as u8).collect();
    std::fs::write(directory.join("there/file"), &content).unwrap();
    let text = |path: &Path| path.to_str().unwrap().to_string();
    kubectl.run(&["cp", &text(&directory.join("there")), &format!("{pod}:/tmp/there")]);
    kubectl.run(&["cp", &format!("{pod}:/tmp/there/file"), &text(&directory.join("back"))]);
    assert_eq!(std::fs::read(directory.join("back")).unwrap(), content);
}

fn attaches(kubectl: &Kubectl) {
    let pod = format!("hears-{}", kubectl.name);
    let container = r#""stdin":true,"command":["sh","-c","while read line; do echo heard $line; done"]"#;
    kubectl.cluster.create_pod(&pod, container, "");
    kubectl.cluster.ready_pod(&pod);
    let mut attached = kubectl.start(&["attach", "-i", "-q", &pod]);
    attached.say("one\n");
    attached.hears("heard one");
    attached.say("two\n");
    attached.hears("heard two");

    let passing = format!("passing-{}", kubectl.name);
    let words =
        ["run", &passing, "-i", "-q", "--rm", "--restart=Never", "--image=nginx", "--command", "--", "cat"];
    assert_eq!(kubectl.run_with_input(&words, "through\n"), "through\n");
    let gone = kubectl.run(&["get", "pod", &passing, "--ignore-not-found"]);
    assert_eq!(gone, "", "--rm leaves no pod");
}

fn forwards_a_port(kubectl: &Kubectl) {
    let pod = format!("serves-{}", kubectl.name);
    kubectl.run(&["run", &pod, "--image=nginx", "--port=80"]);
    kubectl.cluster.ready_pod(&pod);
    let forward = kubectl.start(&["port-forward", &format!("pod/{pod}"), ":80"]);
    let said = forward.hears("Forwarding from 127.0.0.1:");
    let address = said.split_whitespace().nth(2).unwrap().to_string();
    for _ in 0..2 {
        kubectl.cluster.until("nginx answers through the forwarded port", || get(&address));
    }
}

fn shows_what_is_used(kubectl: &Kubectl, counts: &str) {
    // A container that has run for less than half a second has no rate yet.
    kubectl.cluster.until("the pod is measured", || {
        let top = kubectl.command(&["top", "pod", counts, "--no-headers"]).output().unwrap();
        let top = String::from_utf8(top.stdout).unwrap();
        let words: Vec<&str> = top.split_whitespace().collect();
        matches!(words[..], [name, cpu, memory] if name == counts && cpu.ends_with('m') && memory.ends_with("Mi"))
            .then_some(())
    });
    let containers = kubectl.run(&["top", "pods", "--containers"]);
    let headers: Vec<&str> = containers.lines().next().unwrap().split_whitespace().collect();
    assert_eq!(headers, ["POD", "NAME", "CPU(cores)", "MEMORY(bytes)"]);
    assert!(
        containers.lines().any(|line| line.split_whitespace().take(2).eq([counts, counts])),
        "{containers}"
    );
    kubectl.cluster.until("the node is measured", || {
        let nodes = String::from_utf8(kubectl.command(&["top", "nodes"]).output().unwrap().stdout).unwrap();
        let node: Vec<&str> = nodes.lines().nth(1)?.split_whitespace().collect();
        matches!(node[..], [_, cpu, share, memory, _]
            if cpu.ends_with('m') && cpu != "0m" && share.ends_with('%') && memory.ends_with("Mi") && memory != "0Mi")
            .then_some(())
    });

    let path = format!("/apis/metrics.k8s.io/v1beta1/namespaces/default/pods/{counts}");
    kubectl.cluster.until("the container is seen to use something", || {
        let metrics: serde_json::Value =
            serde_json::from_str(&kubectl.run(&["get", "--raw", &path])).unwrap();
        assert_eq!(metrics["kind"], "PodMetrics");
        assert_eq!(metrics["metadata"]["labels"]["run"], counts);
        let usage = &metrics["containers"][0]["usage"];
        (usage["cpu"] != "0" && usage["memory"] != "0").then_some(())
    });
    let table = kubectl.run(&["get", "nodemetrics"]);
    assert!(table.starts_with("NAME") && table.contains("WINDOW"), "{table}");
    let missing = kubectl.command(&["get", "podmetrics", "nobody"]).output().unwrap();
    assert!(String::from_utf8_lossy(&missing.stderr).contains("not found"), "{missing:?}");
}

/// Roles that may look at pods may look at what they use.
fn may_be_read_by_viewers(cluster: &Cluster) {
    cluster.kubectl(&["create", "rolebinding", "viewer", "--clusterrole=view", "--user=viewer"]);
    let may = |who: &str| {
        let words = ["auth", "can-i", "list", "pods.metrics.k8s.io", "--as", who];
        String::from_utf8(cluster.try_kubectl(&words).stdout).unwrap().trim() == "yes"
    };
    cluster.until("a viewer may read metrics", || may("viewer").then_some(()));
    assert!(!may("stranger"));
}
