//! A node that runs short of memory or of processes: who takes more than it asked for goes first, the others stay.
//! Disks are filled among the faults; here images are collected as if one were full.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::cluster::Cluster;
use crate::host::{ferry, run};
use crate::images;

const MEBIBYTE: u64 = 1 << 20;

#[test]
fn pods_that_exceed_requests_on_a_node_under_pressure_are_evicted() {
    let Some(binary) = ferry() else { return };
    let mut cluster = Cluster::new(binary, &[]);
    let file = cluster.directory.path().join("kubelet.yaml");
    cluster.add_flags(&["--kubelet-config", file.to_str().unwrap()]);
    sets(&file, "{}");
    cluster.up();
    memory_is_short(&cluster, &file);
    processes_are_short(&cluster, &file);
    images_that_nobody_uses_are_collected(&cluster, &file);
}

fn sets(file: &PathBuf, hard: &str) {
    let settings = format!(
        "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n\
         evictionHard: {hard}\nevictionPressureTransitionPeriod: 1s\n"
    );
    std::fs::write(file, settings).unwrap();
}

/// With other settings, under the same pods.
fn starts_again(cluster: &Cluster) {
    let pid = cluster.status()["pid"].to_string();
    run(Command::new("kill").args(["-TERM", &pid]));
    cluster.until("the server has ended", || {
        std::fs::read(format!("/proc/{pid}/cmdline")).map_or(true, |text| text.is_empty()).then_some(())
    });
    cluster.up();
}

fn summary(cluster: &Cluster) -> Value {
    let node = cluster.kubectl(&["get", "nodes", "-o", "jsonpath={.items[0].metadata.name}"]);
    let path = format!("/api/v1/nodes/{node}/proxy/stats/summary");
    serde_json::from_str(&cluster.kubectl(&["get", "--raw", &path])).unwrap()
}

fn is_evicted(cluster: &Cluster, pod: &str, words: &str) {
    cluster.until(&format!("{pod} is evicted"), || {
        let shown = (cluster.field(pod, ".status.phase"), cluster.field(pod, ".status.reason"));
        (shown == ("Failed".into(), "Evicted".into())).then_some(())
    });
    let message = cluster.field(pod, ".status.message");
    assert!(message.contains(words), "{message}");
    let disrupted = ".status.conditions[?(@.type==\"DisruptionTarget\")].reason";
    assert_eq!(cluster.field(pod, disrupted), "TerminationByKubelet");
}

fn condition(cluster: &Cluster, kind: &str) -> String {
    let path = format!("jsonpath={{.items[0].status.conditions[?(@.type==\"{kind}\")].status}}");
    cluster.kubectl(&["get", "nodes", "-o", &path])
}

/// Two pods; one takes 700 MiB that it did not ask for, on a node with 400 MiB to give.
fn memory_is_short(cluster: &Cluster, file: &PathBuf) {
    let modest = r#""command":["sleep","3600"],"resources":{"requests":{"memory":"64Mi"}}"#;
    cluster.create_pod("modest", modest, "");
    cluster.ready_pod("modest");
    let available = summary(cluster)["node"]["memory"]["availableBytes"].as_u64().unwrap();
    let threshold = available.saturating_sub(400 * MEBIBYTE);
    sets(file, &format!("{{memory.available: \"{threshold}\"}}"));
    starts_again(cluster);
    let script = "busybox dd if=/dev/zero of=/memory/large bs=1M count=700; sleep 3600";
    let container = format!(
        r#""command":["sh","-c","{script}"],"resources":{{"requests":{{"memory":"1Mi"}}}},
        "volumeMounts":[{{"name":"memory","mountPath":"/memory"}}]"#
    );
    cluster.create_pod(
        "greedy",
        &container,
        r#","volumes":[{"name":"memory","emptyDir":{"medium":"Memory"}}]"#,
    );
    is_evicted(cluster, "greedy", "The node was low on resource: memory. Threshold quantity: ");
    let message = cluster.field("greedy", ".status.message");
    assert!(message.contains("Container c was using ") && message.contains("request is 1Mi"), "{message}");
    assert_eq!(cluster.field("modest", ".status.phase"), "Running");
    cluster.until("the node is at ease again", || {
        (condition(cluster, "MemoryPressure") == "False").then_some(())
    });
    cluster.kubectl(&["delete", "pod", "greedy", "modest", "--force", "--grace-period=0"]);
}

/// The one of higher priority has more processes, and stays.
fn processes_are_short(cluster: &Cluster, file: &PathBuf) {
    let limits = &summary(cluster)["node"]["rlimit"];
    let (most, present) = (limits["maxpid"].as_u64().unwrap(), limits["curproc"].as_u64().unwrap());
    sets(file, &format!("{{pid.available: \"{}\"}}", (most - present).saturating_sub(800)));
    starts_again(cluster);
    let class = r#"{"apiVersion":"scheduling.k8s.io/v1","kind":"PriorityClass","metadata":{"name":"high"},"value":1000}"#;
    let manifest = cluster.directory.path().join("high.json");
    std::fs::write(&manifest, class).unwrap();
    cluster.kubectl(&["create", "-f", manifest.to_str().unwrap()]);
    let sleeps = |count: u32| {
        format!(
            r#""command":["sh","-c","i=0; while [ $i -lt {count} ]; do sleep 3600 & i=$((i+1)); done; wait"]"#
        )
    };
    cluster.create_pod(
        "important",
        &sleeps(20),
        r#","priorityClassName":"high","terminationGracePeriodSeconds":1"#,
    );
    cluster.ready_pod("important");
    cluster.create_pod("forks", &sleeps(1500), r#","terminationGracePeriodSeconds":1"#);
    is_evicted(cluster, "forks", "The node was low on resource: pids.");
    assert_eq!(cluster.field("important", ".status.phase"), "Running");
    cluster.kubectl(&["delete", "pod", "forks", "important", "--force", "--grace-period=0"]);
}

/// But for those that were loaded by hand, which no registry need have.
fn images_that_nobody_uses_are_collected(cluster: &Cluster, file: &PathBuf) {
    let directory = cluster.directory.path().join("loaded");
    std::fs::create_dir(&directory).unwrap();
    let archive = images::of_program(&directory, Path::new("/usr/bin/sleep"));
    run(cluster.ferry().args(["image", "load", "--data-dir"]).arg(cluster.data_dir()).arg(archive));
    let listed = || {
        let mut command = cluster.ferry();
        command.args(["image", "ls", "--data-dir"]).arg(cluster.data_dir());
        String::from_utf8(run(&mut command)).unwrap()
    };
    assert!(listed().contains("library/nginx"), "{}", listed());
    // Every disk is used to a hundredth.
    let settings = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n\
                    evictionHard: {}\nimageGCHighThresholdPercent: 1\nimageGCLowThresholdPercent: 0\n\
                    imageMinimumGCAge: 1ms\n";
    std::fs::write(file, settings).unwrap();
    starts_again(cluster);
    cluster
        .until("the image that was pulled is gone", || (!listed().contains("library/nginx")).then_some(()));
    cluster.create_pod(
        "loaded",
        r#""image":"sleep","imagePullPolicy":"Never","command":["/sleep","3600"]"#,
        r#","terminationGracePeriodSeconds":1"#,
    );
    cluster.ready_pod("loaded");
}
