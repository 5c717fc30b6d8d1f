//! Pods that are deleted while they are being made: wherever the kubelet and the runtime are by then, everything goes.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};

use crate::cluster::Cluster;
use crate::host::{ferry, name_of, pod_namespaces, run};

/// How many pods, where a person wants more of them.
const COUNT: &str = "TEST_PODS";
/// Enough to meet every step of a start, and few enough for a minute.
const PODS: u32 = 60;
/// From one pod to the next.
const BETWEEN: Duration = Duration::from_millis(100);
/// The longest life of a pod; the shortest is nothing.
const LONGEST_MILLISECONDS: u32 = 800;

#[test]
fn pods_deleted_while_they_start_leave_nothing_behind() {
    let Some(binary) = ferry() else { return };
    let cluster = Cluster::new(binary, &[]);
    cluster.up();
    // What the pods are made of is there: none of them spends its life on a pull.
    cluster.kubectl(&["run", "first", "--image=nginx"]);
    cluster.ready_pod("first");
    let name = name_of(&cluster.data_dir());
    cluster.kubectl(&["delete", "pod", "first", "--grace-period=1"]);
    cluster.until("nothing of the first pod is left", || {
        left(&name, &cluster.data_dir()).is_empty().then_some(())
    });

    let count = std::env::var(COUNT).ok().map_or(PODS, |text| text.parse().expect(COUNT));
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(make_and_delete(&cluster, count));
    cluster.until("no pod is left in the API", || {
        cluster.kubectl(&["get", "pods", "-o", "name"]).is_empty().then_some(())
    });
    let mut before = BTreeSet::new();
    cluster.until("nothing is left on the host", || {
        let left = left(&name, &cluster.data_dir());
        if left != before {
            println!("left on the host: {left:#?}");
            before.clone_from(&left);
        }
        left.is_empty().then_some(())
    });
}

async fn make_and_delete(cluster: &Cluster, count: u32) {
    let kubeconfig = Kubeconfig::read_from(cluster.data_dir().join("admin.kubeconfig")).unwrap();
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.unwrap();
    let pods: Api<Pod> = Api::namespaced(Client::try_from(config).unwrap(), "default");
    let mut tasks = tokio::task::JoinSet::new();
    for index in 0..count {
        let pods = pods.clone();
        tasks.spawn(async move {
            tokio::time::sleep(BETWEEN * index).await;
            let pod = serde_json::json!({
                "metadata": {"name": format!("brief-{index}")},
                "spec": {
                    "terminationGracePeriodSeconds": 1,
                    "containers": [{
                        "name": "c", "image": "nginx", "imagePullPolicy": "IfNotPresent",
                        "command": ["sleep", "3600"],
                    }],
                },
            });
            pods.create(&PostParams::default(), &serde_json::from_value(pod).unwrap()).await.unwrap();
            // 101 and 801 have no divisor in common: every length of life comes, in no order.
            let life = index * 101 % (LONGEST_MILLISECONDS + 1);
            tokio::time::sleep(Duration::from_millis(life.into())).await;
            pods.delete(&format!("brief-{index}"), &DeleteParams::default()).await.unwrap();
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
    let there = pods.list(&ListParams::default()).await.unwrap().items.len();
    println!("{count} pods were made and deleted, {there} are still there");
}

/// What the host has of a cluster's pods.
fn left(name: &str, data_dir: &Path) -> BTreeSet<String> {
    let mut left = BTreeSet::new();
    for directory in ["kubelet/pods", "log/pods"] {
        let entries = std::fs::read_dir(data_dir.join(directory)).into_iter().flatten().flatten();
        left.extend(entries.map(|entry| entry.path().display().to_string()));
    }
    left.extend(pod_namespaces(name).into_iter().map(|path| path.display().to_string()));
    let pattern = format!("*/{name}/kubepods*/pod*");
    let groups = run(Command::new("find").args(["/sys/fs/cgroup", "-type", "d", "-path", &pattern]));
    left.extend(String::from_utf8(groups).unwrap().lines().map(str::to_owned));
    let addresses =
        run(Command::new("find").arg(format!("/run/ferry/{name}/cni")).args(["-name", "*.*.*.*"]));
    left.extend(String::from_utf8(addresses).unwrap().lines().map(str::to_owned));
    let own = format!("/run/ferry/{name}/");
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    left.extend(mounts.lines().filter(|line| line.contains(&own)).map(str::to_owned));
    let socket = format!("{own}containerd.sock");
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let command = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let command = String::from_utf8_lossy(&command).replace('\0', " ");
        if command.contains("containerd-shim") && command.contains(&socket) {
            left.insert(command);
        }
    }
    left
}
