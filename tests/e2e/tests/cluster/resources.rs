//! CPUs and memory of pods that run: resized in place, and whole CPUs for those who ask for whole CPUs.

use crate::cluster::Cluster;
use crate::host::ferry;

#[test]
fn resources_of_running_pods_change() {
    let Some(binary) = ferry() else { return };
    let mut cluster = Cluster::new(binary, &[]);
    let file = cluster.directory.path().join("kubelet.yaml");
    let settings = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n\
                    cpuManagerPolicy: static\nreservedSystemCPUs: \"0\"\n";
    std::fs::write(&file, settings).unwrap();
    cluster.add_flags(&["--kubelet-config", file.to_str().unwrap()]);
    cluster.up();
    a_pod_is_resized(&cluster);
    a_resize_waits_for_room_or_is_refused(&cluster);
    whole_cpus_are_taken_from_the_others(&cluster);
}

fn resizes(cluster: &Cluster, pod: &str, resources: &str) {
    let patch = format!(r#"{{"spec":{{"containers":[{{"name":"c","resources":{resources}}}]}}}}"#);
    cluster.kubectl(&["patch", "pod", pod, "--subresource", "resize", "-p", &patch]);
}

/// The kernel's own word on what a container may use.
fn cgroup(cluster: &Cluster, pod: &str, one: &str, unified: &str) -> String {
    let script = format!("cat /sys/fs/cgroup/{one} 2>/dev/null || cat /sys/fs/cgroup/{unified}");
    cluster.kubectl(&["exec", pod, "--", "sh", "-c", &script]).trim().to_string()
}

fn a_pod_is_resized(cluster: &Cluster) {
    let container = r#""command":["sleep","3600"],
        "resources":{"requests":{"cpu":"100m","memory":"32Mi"},"limits":{"cpu":"200m","memory":"64Mi"}},
        "resizePolicy":[{"resourceName":"cpu","restartPolicy":"NotRequired"},
                        {"resourceName":"memory","restartPolicy":"RestartContainer"}]"#;
    cluster.create_pod("grows", container, r#","terminationGracePeriodSeconds":1"#);
    cluster.ready_pod("grows");
    let id = cluster.field("grows", ".status.containerStatuses[0].containerID");

    resizes(cluster, "grows", r#"{"requests":{"cpu":"150m"},"limits":{"cpu":"300m"}}"#);
    cluster.until("the status has the new limit", || {
        let shown = cluster.field("grows", ".status.containerStatuses[0].resources.limits.cpu");
        let conditions = cluster.field("grows", ".status.conditions[*].type");
        (shown == "300m" && !conditions.contains("PodResize")).then_some(())
    });
    assert_eq!(cluster.field("grows", ".status.containerStatuses[0].allocatedResources.cpu"), "150m");
    assert_eq!(cluster.field("grows", ".status.containerStatuses[0].containerID"), id, "no restart");
    let quota = cgroup(cluster, "grows", "cpu/cpu.cfs_quota_us", "cpu.max");
    assert!(quota.starts_with("30000"), "{quota}");

    // Its policy wants a restart for memory.
    resizes(cluster, "grows", r#"{"limits":{"memory":"96Mi"}}"#);
    cluster.until("the container started anew with the new limit", || {
        let count = cluster.field("grows", ".status.containerStatuses[0].restartCount");
        let shown = cluster.field("grows", ".status.containerStatuses[0].resources.limits.memory");
        (count == "1" && shown == "96Mi").then_some(())
    });
    let limit = cgroup(cluster, "grows", "memory/memory.limit_in_bytes", "memory.max");
    assert_eq!(limit, (96 << 20).to_string());
    cluster.kubectl(&["delete", "pod", "grows"]);
}

fn a_resize_waits_for_room_or_is_refused(cluster: &Cluster) {
    let allocatable = cluster.kubectl(&["get", "nodes", "-o", "jsonpath={.items[0].status.allocatable.cpu}"]);
    let cpus: u32 = allocatable.parse().unwrap();
    let asks =
        |cpu: String| format!(r#""command":["sleep","3600"],"resources":{{"requests":{{"cpu":"{cpu}"}}}}"#);
    let quick = r#","terminationGracePeriodSeconds":1"#;
    cluster.create_pod("large", &asks(format!("{}m", cpus * 1000 - 300)), quick);
    cluster.create_pod("small", &asks("100m".into()), quick);
    cluster.ready_pod("large");
    cluster.ready_pod("small");
    let pending = |reason: &str| {
        cluster.until(&format!("the resize is {reason}"), || {
            let path = ".status.conditions[?(@.type==\"PodResizePending\")].reason";
            (cluster.field("small", path) == reason).then_some(())
        });
    };
    resizes(cluster, "small", &format!(r#"{{"requests":{{"cpu":"{}m"}}}}"#, cpus * 1000 - 50));
    pending("Deferred");
    assert_eq!(cluster.field("small", ".status.containerStatuses[0].allocatedResources.cpu"), "100m");
    cluster.kubectl(&["delete", "pod", "large"]);
    cluster.until("there is room, and the resize is done", || {
        let path = ".status.containerStatuses[0].allocatedResources.cpu";
        (cluster.field("small", path) == format!("{}m", cpus * 1000 - 50)).then_some(())
    });
    cluster.kubectl(&["delete", "pod", "small"]);
}

/// Under the static policy a container that has CPUs for itself is alone on them, whoever ran there before.
fn whole_cpus_are_taken_from_the_others(cluster: &Cluster) {
    let cpus = std::thread::available_parallelism().unwrap().get();
    if cpus < 2 {
        ferry_skip::unchecked("CPUs of their own for containers: this machine has one");
        return;
    }
    let allowed = |pod: &str| {
        let status = cluster.kubectl(&["exec", pod, "--", "cat", "/proc/1/status"]);
        let line = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
        line.unwrap().trim().to_string()
    };
    cluster.create_pod("shares", r#""command":["sleep","3600"]"#, "");
    cluster.ready_pod("shares");
    let before = allowed("shares");
    let container = r#""command":["sleep","3600"],"resources":{"limits":{"cpu":"1","memory":"64Mi"}}"#;
    cluster.create_pod("alone", container, r#","terminationGracePeriodSeconds":1"#);
    cluster.ready_pod("alone");
    let own = allowed("alone");
    assert!(own.parse::<u32>().is_ok_and(|cpu| cpu > 0), "one CPU, and not the reserved one: {own}");
    cluster.until("the other container has left that CPU", || {
        let now = allowed("shares");
        (now != before && !now.split(',').any(|part| part == own)).then_some(())
    });
    cluster.kubectl(&["delete", "pod", "alone"]);
    cluster.until("the CPU is shared again", || (allowed("shares") == before).then_some(()));
}
