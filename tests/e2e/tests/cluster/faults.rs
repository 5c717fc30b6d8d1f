//! What goes wrong on a node: killed servers and runtimes, probes and containers that hang, volumes that cannot
//! be mounted, full disks, leftovers. It is put right, or the pod's status and events say what is wrong.

use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;

use crate::cluster::Cluster;
use crate::host::{belongings, ferry, run};

#[test]
fn node_faults_are_repaired_or_reported() {
    let Some(binary) = ferry() else { return };
    let cluster = Cluster::new(binary, &[]);
    cluster.up();
    thirty_pods_outlive_the_server(&cluster);
    the_runtime_is_killed(&cluster);
    a_probe_hangs(&cluster);
    a_container_does_not_stop(&cluster);
    a_volume_cannot_be_mounted(&cluster);
    an_image_cannot_be_mounted(&cluster);
    an_image_is_not_there(&cluster);
    all_is_taken_down_after_both_were_killed(&cluster);
}

/// Waits until an event of a pod has these words.
fn event(cluster: &Cluster, pod: &str, reason: &str, words: &str) {
    cluster.until(&format!("{reason} of {pod} says {words:?}"), || {
        let selector = format!("involvedObject.name={pod},reason={reason}");
        let path = "jsonpath={.items[*].message}";
        let messages = cluster.kubectl(&["get", "events", "--field-selector", &selector, "-o", path]);
        messages.contains(words).then_some(())
    });
}

fn node_is_ready(cluster: &Cluster, expected: &str) {
    cluster.until(&format!("the node's condition Ready is {expected}"), || {
        let path = "jsonpath={.items[0].status.conditions[?(@.type==\"Ready\")].status}";
        (cluster.kubectl(&["get", "nodes", "-o", path]) == expected).then_some(())
    });
}

/// Processes with exactly these words.
fn processes(words: &[&str]) -> usize {
    let wanted: Vec<u8> = words.iter().flat_map(|word| [word.as_bytes(), b"\0"].concat()).collect();
    let all = std::fs::read_dir("/proc").unwrap().flatten();
    all.filter(|entry| std::fs::read(entry.path().join("cmdline")).is_ok_and(|text| text == wanted)).count()
}

/// How long a process of this test sleeps, so that no other's is taken for it.
fn unlike_others() -> String {
    (86_400 + std::process::id() % 10_000).to_string()
}

fn container_ids(cluster: &Cluster) -> String {
    let path = "jsonpath={range .items[*]}{.metadata.name} {.status.containerStatuses[0].containerID} \
                {.status.containerStatuses[0].restartCount}{\"\\n\"}{end}";
    cluster.kubectl(&["get", "pods", "-l", "app=many", "--sort-by=.metadata.name", "-o", path])
}

fn kills(cluster: &Cluster, pid: &Value) {
    let pid = pid.to_string();
    run(Command::new("kill").args(["-KILL", &pid]));
    cluster.until("the process is gone", || {
        let command = std::fs::read(format!("/proc/{pid}/cmdline"));
        command.map_or(true, |text| text.is_empty()).then_some(())
    });
}

/// No container restarts, none is lost, none doubled. What a pod left behind while nobody looked is taken away.
fn thirty_pods_outlive_the_server(cluster: &Cluster) {
    let sleep = unlike_others();
    let words = ["create", "deployment", "many", "--image=nginx", "--replicas=30", "--", "sleep", &sleep];
    cluster.kubectl(&words);
    cluster.ready_pods("many", 30);
    let before = container_ids(cluster);
    // a container counts as started a moment before its process is what it is to be
    cluster.until("all run", || (processes(&["sleep", &sleep]) == 30).then_some(()));

    kills(cluster, &cluster.status()["pid"]);
    assert_eq!(processes(&["sleep", &sleep]), 30, "containers go on");
    let orphan = cluster.data_dir().join("kubelet/pods/7c2f2a30-0000-4000-8000-000000000000");
    let mount = orphan.join("volumes/kubernetes.io~empty-dir/memory");
    std::fs::create_dir_all(&mount).unwrap();
    run(Command::new("mount").args(["-t", "tmpfs", "tmpfs"]).arg(&mount));
    cluster.up();
    cluster.ready_pods("many", 30);
    assert_eq!(container_ids(cluster), before);
    assert_eq!(processes(&["sleep", &sleep]), 30);
    cluster.until("the orphaned directory and its mount are gone", || {
        let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
        (!orphan.exists() && !mounts.contains(mount.to_str().unwrap())).then_some(())
    });
    cluster.kubectl(&["scale", "deployment", "many", "--replicas=2"]);
    cluster.ready_pods("many", 2);
    cluster.until("28 pods are gone with their containers", || {
        let left = container_ids(cluster).lines().count();
        (left == 2 && processes(&["sleep", &sleep]) == 2).then_some(())
    });
}

/// The node is not Ready without a runtime, and Ready again with it; containers do not notice.
fn the_runtime_is_killed(cluster: &Cluster) {
    let before = container_ids(cluster);
    let pid = cluster.status()["containerdPid"].clone();
    // Stopped, it neither answers nor ends: the node has to find out by itself.
    run(Command::new("kill").args(["-STOP", &pid.to_string()]));
    node_is_ready(cluster, "False");
    kills(cluster, &pid);
    node_is_ready(cluster, "True");
    assert_ne!(cluster.status()["containerdPid"], pid, "another containerd runs");
    cluster.until("a container is reached again", || {
        let exec = ["exec", "deployment/many", "--", "true"];
        cluster.try_kubectl(&exec).status.success().then_some(())
    });
    assert_eq!(container_ids(cluster), before);
    cluster.kubectl(&["delete", "deployment", "many"]);
}

fn a_probe_hangs(cluster: &Cluster) {
    let probe =
        r#""exec":{"command":["sleep","3600"]},"timeoutSeconds":1,"periodSeconds":1,"failureThreshold":1"#;
    let container =
        format!(r#""command":["sleep","3600"],"livenessProbe":{{{probe}}},"readinessProbe":{{{probe}}}"#);
    cluster.create_pod("hung-probe", &container, r#","terminationGracePeriodSeconds":1"#);
    event(cluster, "hung-probe", "Unhealthy", "Liveness probe");
    event(cluster, "hung-probe", "Killing", "failed liveness probe, will be restarted");
    cluster.until("it is started again", || {
        cluster
            .field("hung-probe", ".status.containerStatuses[0].restartCount")
            .parse::<u32>()
            .ok()
            .filter(|n| *n > 0)
    });
    assert_ne!(cluster.field("hung-probe", ".status.containerStatuses[0].ready"), "true");
    // It crashes from here on as often as it may, and is held back longer each time.
    cluster.until("it is held back", || {
        let reason = cluster.field("hung-probe", ".status.containerStatuses[0].state.waiting.reason");
        (reason == "CrashLoopBackOff").then_some(())
    });
    cluster.kubectl(&["delete", "pod", "hung-probe"]);
}

/// A container that ignores the signal, and a hook that never ends: the grace period ends both. Meanwhile another
/// pod of the same name runs.
fn a_container_does_not_stop(cluster: &Cluster) {
    let sleep = unlike_others();
    let script = format!("trap true TERM; while true; do sleep {sleep}; done");
    let container = format!(
        r#""command":["sh","-c","{script}"],"lifecycle":{{"preStop":{{"exec":{{"command":["sleep","3600"]}}}}}}"#
    );
    cluster.create_pod("stubborn", &container, r#","terminationGracePeriodSeconds":5"#);
    cluster.ready_pod("stubborn");
    cluster.kubectl(&["delete", "pod", "stubborn", "--force", "--grace-period=0"]);
    cluster.kubectl(&["run", "stubborn", "--image=nginx"]);
    cluster.ready_pod("stubborn");
    cluster.until("the first one is gone", || (processes(&["sleep", &sleep]) == 0).then_some(()));
    assert_eq!(cluster.field("stubborn", ".status.phase"), "Running");
    cluster.kubectl(&["delete", "pod", "stubborn"]);

    cluster.create_pod("hook", &container, r#","terminationGracePeriodSeconds":3"#);
    cluster.ready_pod("hook");
    cluster.kubectl(&["delete", "pod", "hook", "--timeout=60s"]);
    event(cluster, "hook", "FailedPreStopHook", "PreStopHook failed");
}

fn a_volume_cannot_be_mounted(cluster: &Cluster) {
    let missing = cluster.directory.path().join("not-there-yet");
    let mounts = r#""command":["sleep","3600"],"volumeMounts":[{"name":"data","mountPath":"/data"}]"#;
    let volume = format!(
        r#","volumes":[{{"name":"data","hostPath":{{"path":"{}","type":"Directory"}}}}]"#,
        missing.display()
    );
    cluster.create_pod("waits", mounts, &volume);
    event(cluster, "waits", "FailedMount", "is not a directory");
    cluster.until("its container is shown to wait", || {
        let reason = cluster.field("waits", ".status.containerStatuses[0].state.waiting.reason");
        (reason == "ContainerCreating").then_some(())
    });
    std::fs::create_dir(&missing).unwrap();
    cluster.ready_pod("waits");

    let secret = r#","volumes":[{"name":"data","secret":{"secretName":"nobodys"}}]"#;
    cluster.create_pod("no-secret", mounts, secret);
    event(cluster, "no-secret", "FailedMount", "nobodys");
    cluster.kubectl(&["create", "secret", "generic", "nobodys", "--from-literal=key=value"]);
    cluster.ready_pod("no-secret");
    assert_eq!(cluster.kubectl(&["exec", "no-secret", "--", "cat", "/data/key"]), "value");
    cluster.kubectl(&["delete", "pod", "waits", "no-secret", "--force", "--grace-period=0"]);
}

/// An image as a volume needs a runtime that can mount images; containerd 1.6 cannot.
fn an_image_cannot_be_mounted(cluster: &Cluster) {
    let mounts = r#""command":["sleep","3600"],"volumeMounts":[{"name":"files","mountPath":"/files"}]"#;
    let volume = r#","volumes":[{"name":"files","image":{"reference":"nginx"}}]"#;
    cluster.create_pod("image-volume", mounts, volume);
    let outcome = cluster.until("the image volume is mounted, or refused in words", || {
        let path = ".status.containerStatuses[0].state";
        let state: Value = serde_json::from_str(&cluster.field("image-volume", path)).ok()?;
        let refused =
            state["waiting"]["message"].as_str().is_some_and(|words| words.contains("image volume"));
        (refused || state["running"].is_object()).then_some(state)
    });
    if outcome["running"].is_object() {
        let page = cluster.kubectl(&["exec", "image-volume", "--", "cat", "/files/var/www/html/index.html"]);
        assert!(page.contains(crate::cluster::WELCOME));
    }
    cluster.kubectl(&["delete", "pod", "image-volume", "--force", "--grace-period=0"]);
}

fn an_image_is_not_there(cluster: &Cluster) {
    cluster.kubectl(&["run", "no-image", "--image=docker.io/library/nobody:1"]);
    cluster.until("the pull is given up for a while", || {
        let state = cluster.field("no-image", ".status.containerStatuses[0].state.waiting.reason");
        (state == "ImagePullBackOff").then_some(())
    });
    event(cluster, "no-image", "Failed", "docker.io/library/nobody:1");
    cluster.kubectl(&["delete", "pod", "no-image"]);
}

/// Server and runtime are gone, pods run on: `ferry down` finds them all, and their networks.
fn all_is_taken_down_after_both_were_killed(cluster: &Cluster) {
    let sleep = unlike_others();
    cluster.kubectl(&[
        "create",
        "deployment",
        "left",
        "--image=nginx",
        "--replicas=3",
        "--",
        "sleep",
        &sleep,
    ]);
    cluster.ready_pods("left", 3);
    cluster.until("all run", || (processes(&["sleep", &sleep]) == 3).then_some(()));
    let status = cluster.status();
    let name = status["cluster"].as_str().unwrap().to_owned();
    kills(cluster, &status["pid"]);
    kills(cluster, &status["containerdPid"]);
    assert_eq!(processes(&["sleep", &sleep]), 3, "containers go on");
    cluster.down();
    assert_eq!(processes(&["sleep", &sleep]), 0);
    let left = belongings(&name, &cluster.data_dir());
    assert!(left.is_empty(), "{left:#?}");
}

/// A cluster on a disk of its own, small enough to be filled. The disk goes after the cluster.
struct OnSmallDisk {
    cluster: Cluster,
    _disk: Disk,
}

struct Disk(PathBuf);

impl Disk {
    fn mount(path: PathBuf, size: &str) -> Disk {
        std::fs::create_dir_all(&path).unwrap();
        run(Command::new("mount").args(["-t", "tmpfs", "-o", &format!("size={size}"), "tmpfs"]).arg(&path));
        Disk(path)
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

/// The pod that fills the disk is evicted and the node says so; what it wrote is gone with it.
#[test]
fn pods_that_fill_the_disk_are_evicted() {
    let Some(binary) = ferry() else { return };
    let cluster = Cluster::new(binary, &[]);
    let data_dir = cluster.data_dir();
    // A gigabyte has to stay free.
    let disk = Disk::mount(data_dir.clone(), "1500m");
    let small = OnSmallDisk { cluster, _disk: disk };
    let cluster = &small.cluster;
    cluster.up();
    let script = "busybox dd if=/dev/zero of=/data/large bs=1M count=600; sleep 3600";
    let container =
        format!(r#""command":["sh","-c","{script}"],"volumeMounts":[{{"name":"data","mountPath":"/data"}}]"#);
    cluster.create_pod("greedy", &container, r#","volumes":[{"name":"data","emptyDir":{}}]"#);
    cluster.until("the pod is evicted", || {
        let ended = cluster.field("greedy", ".status.phase") == "Failed"
            && cluster.field("greedy", ".status.reason") == "Evicted";
        ended.then_some(())
    });
    let message = cluster.field("greedy", ".status.message");
    assert!(message.contains("The node was low on resource: ephemeral-storage"), "{message}");
    // It says so with its next status, and for some minutes after what filled the disk is gone.
    cluster.until("the node says that its disk is full", || {
        let pressure = "jsonpath={.items[0].status.conditions[?(@.type==\"DiskPressure\")].status}";
        (cluster.kubectl(&["get", "nodes", "-o", pressure]) == "True").then_some(())
    });
    cluster.until("what it wrote is gone", || {
        let uid = cluster.field("greedy", ".metadata.uid");
        let volumes =
            data_dir.join("kubelet/pods").join(uid).join("volumes/kubernetes.io~empty-dir/data/large");
        (!volumes.exists()).then_some(())
    });
}
