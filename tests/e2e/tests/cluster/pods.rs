//! Pods as their specs say: hooks, deadlines, gates, containers that come later, parts of volumes, profiles, pods
//! without an API server, logs that grow.

use std::path::Path;

use serde_json::Value;

use crate::cluster::Cluster;
use crate::conversation::Conversation;
use crate::host::ferry;

const SLEEPS: &str = r#""command":["sleep","3600"]"#;

#[test]
fn pods_live_as_their_specs_say() {
    let Some(binary) = ferry() else { return };
    let mut cluster = Cluster::new(binary, &[]);
    let manifests = cluster.directory.path().join("manifests");
    let file = cluster.directory.path().join("kubelet.yaml");
    let settings = format!(
        "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n\
         staticPodPath: {}\ncontainerLogMaxSize: 20Ki\ncontainerLogMaxFiles: 3\n",
        manifests.display()
    );
    std::fs::write(&file, settings).unwrap();
    cluster.add_flags(&["--kubelet-config", file.to_str().unwrap()]);
    cluster.up();
    events_say_who_speaks(&cluster);
    settings_are_shown(&cluster, &manifests);
    a_hook_that_hangs_holds_its_container_back(&cluster);
    a_hook_that_fails_ends_its_container(&cluster);
    containers_start_in_order_and_end_with_the_pod(&cluster);
    a_deadline_ends_a_pod(&cluster);
    a_gate_holds_readiness_back(&cluster);
    a_container_joins_later(&cluster);
    parts_of_volumes_stay_in_them(&cluster);
    changes_reach_running_pods(&cluster);
    claims_are_mounted(&cluster);
    profiles_confine(&cluster);
    a_label_set_before_a_pod_lets_it_in(&cluster);
    manifests_run_and_are_mirrored(&cluster, &manifests);
    logs_that_grow_are_rotated(&cluster);
}

fn gone(cluster: &Cluster, pod: &str) {
    cluster.kubectl(&["delete", "pod", pod, "--force", "--grace-period=0"]);
}

fn state(cluster: &Cluster, pod: &str) -> Value {
    let text = cluster.field(pod, ".status.containerStatuses[0].state");
    serde_json::from_str(&text).unwrap_or(Value::Null)
}

/// What a command in a pod prints.
fn prints(cluster: &Cluster, pod: &str, script: &str) -> String {
    cluster.kubectl(&["exec", pod, "--", "sh", "-c", script]).trim().to_string()
}

fn events_say_who_speaks(cluster: &Cluster) {
    cluster.create_pod("speaks", SLEEPS, "");
    cluster.ready_pod("speaks");
    let events = cluster.until("the pod's events are written", || {
        let words = ["get", "events", "--field-selector", "involvedObject.name=speaks", "-o", "json"];
        let list: Value = serde_json::from_str(&cluster.kubectl(&words)).unwrap();
        let events = list["items"].as_array().unwrap().clone();
        let told = |reason: &str| events.iter().any(|event| event["reason"] == reason);
        (told("Started") && told("Scheduled")).then_some(events)
    });
    let node = cluster.field("speaks", ".spec.nodeName");
    let event = |reason: &str| events.iter().find(|event| event["reason"] == reason).unwrap();
    let started = event("Started");
    assert_eq!(started["source"], serde_json::json!({"component": "kubelet", "host": node}));
    assert_eq!(started["reportingComponent"], "kubelet");
    assert_eq!(started["reportingInstance"], node.as_str());
    assert_eq!(started["involvedObject"]["fieldPath"], "spec.containers{c}");
    assert_eq!(started["count"], 1);
    assert!(started["firstTimestamp"].is_string() && started["eventTime"].is_null(), "{started}");
    let scheduled = event("Scheduled");
    assert_eq!(scheduled["reportingComponent"], "default-scheduler");
    assert_eq!(scheduled["action"], "Binding");
    let described = cluster.kubectl(&["describe", "pod", "speaks"]);
    let from = |reason: &str| {
        let line = described.lines().find(|line| line.split_whitespace().nth(1) == Some(reason));
        line.and_then(|line| line.split_whitespace().nth(3))
            .unwrap_or_else(|| panic!("{described}"))
            .to_string()
    };
    assert_eq!((from("Scheduled").as_str(), from("Started").as_str()), ("default-scheduler", "kubelet"));
    gone(cluster, "speaks");
}

fn settings_are_shown(cluster: &Cluster, manifests: &Path) {
    let node = cluster.kubectl(&["get", "nodes", "-o", "jsonpath={.items[0].metadata.name}"]);
    let path = format!("/api/v1/nodes/{node}/proxy/configz");
    let shown: Value = serde_json::from_str(&cluster.kubectl(&["get", "--raw", &path])).unwrap();
    let settings = &shown["kubeletconfig"];
    assert_eq!(settings["staticPodPath"], manifests.to_str().unwrap());
    assert_eq!(settings["imagePullCredentialsVerificationPolicy"], "NeverVerifyPreloadedImages");
}

/// While its hook runs, the container's process does, but the container is not shown as running.
fn a_hook_that_hangs_holds_its_container_back(cluster: &Cluster) {
    let shared = cluster.directory.path().join("hook");
    std::fs::create_dir(&shared).unwrap();
    let container = r#""command":["sh","-c","touch /shared/began; sleep 3600"],
        "volumeMounts":[{"name":"shared","mountPath":"/shared"}],
        "lifecycle":{"postStart":{"exec":{"command":
            ["sh","-c","touch /shared/hooked; until [ -e /shared/go ]; do sleep 0.1; done"]}}}"#;
    let volume = format!(r#","volumes":[{{"name":"shared","hostPath":{{"path":"{}"}}}}]"#, shared.display());
    cluster.create_pod("hook-hangs", container, &volume);
    let there = |name: &str| shared.join(name).exists().then_some(());
    cluster.until("the container and its hook have begun", || there("began").and(there("hooked")));
    cluster.until("the container is shown to wait", || {
        (state(cluster, "hook-hangs")["waiting"]["reason"] == "ContainerCreating").then_some(())
    });
    std::fs::write(shared.join("go"), "").unwrap();
    cluster.ready_pod("hook-hangs");
    gone(cluster, "hook-hangs");

    std::fs::remove_file(shared.join("go")).unwrap();
    std::fs::remove_file(shared.join("hooked")).unwrap();
    cluster.create_pod("hook-hangs", container, &volume);
    cluster.until("the hook hangs again", || there("hooked"));
    let words = ["delete", "pod", "hook-hangs", "--grace-period=1", "--timeout=60s"];
    cluster.kubectl(&words);
}

fn a_hook_that_fails_ends_its_container(cluster: &Cluster) {
    let container = format!(
        r#"{SLEEPS},"lifecycle":{{"postStart":{{"exec":{{"command":["sh","-c","echo no >&2; exit 4"]}}}}}}"#
    );
    cluster.create_pod("hook-fails", &container, r#","terminationGracePeriodSeconds":1"#);
    let words = ["get", "events", "-o", "jsonpath={.items[*].message}", "--field-selector"];
    cluster.until("the failure is told", || {
        let selector = "involvedObject.name=hook-fails,reason=FailedPostStartHook";
        cluster.kubectl(&[&words[..], &[selector]].concat()).contains("PostStartHook failed").then_some(())
    });
    assert!(state(cluster, "hook-fails")["running"].is_null());
    gone(cluster, "hook-fails");
}

/// Init containers one after the other, sidecars beside the rest, all of them before the first regular one.
fn containers_start_in_order_and_end_with_the_pod(cluster: &Cluster) {
    let mount = r#""volumeMounts":[{"name":"notes","mountPath":"/notes"}]"#;
    let init = |name: &str, script: &str, more: &str| {
        format!(r#"{{"name":"{name}","image":"nginx","command":["sh","-c","{script}"],{mount}{more}}}"#)
    };
    let first = init("first", "echo first >> /notes/order", "");
    let side = init("side", "echo side >> /notes/order; sleep 3600", r#","restartPolicy":"Always""#);
    let last = init("last", "echo last >> /notes/order", "");
    let container = format!(r#""command":["sh","-c","echo main >> /notes/order; cat /notes/order"],{mount}"#);
    let spec = format!(
        r#","restartPolicy":"Never","terminationGracePeriodSeconds":1,"initContainers":[{first},{side},{last}],
        "volumes":[{{"name":"notes","emptyDir":{{"medium":"Memory","sizeLimit":"1Mi"}}}}]"#
    );
    cluster.create_pod("order", &container, &spec);
    cluster.until("the pod has succeeded, though its sidecar never ends by itself", || {
        (cluster.field("order", ".status.phase") == "Succeeded").then_some(())
    });
    assert_eq!(cluster.kubectl(&["logs", "order", "-c", "c"]), "first\nside\nlast\nmain\n");
    gone(cluster, "order");
}

fn a_deadline_ends_a_pod(cluster: &Cluster) {
    cluster.create_pod("deadline", SLEEPS, r#","activeDeadlineSeconds":2,"terminationGracePeriodSeconds":1"#);
    cluster.until("the pod is past its deadline", || {
        let shown = (cluster.field("deadline", ".status.phase"), cluster.field("deadline", ".status.reason"));
        (shown == ("Failed".into(), "DeadlineExceeded".into())).then_some(())
    });
    gone(cluster, "deadline");
}

fn a_gate_holds_readiness_back(cluster: &Cluster) {
    let gate = r#","readinessGates":[{"conditionType":"example.com/open"}]"#;
    cluster.create_pod("gated", SLEEPS, gate);
    let condition =
        |kind: &str| cluster.field("gated", &format!(".status.conditions[?(@.type==\"{kind}\")].status"));
    cluster.until("its containers are ready", || (condition("ContainersReady") == "True").then_some(()));
    assert_eq!(condition("Ready"), "False");
    let patch = r#"{"status":{"conditions":[{"type":"example.com/open","status":"True"}]}}"#;
    cluster.kubectl(&["patch", "pod", "gated", "--subresource", "status", "-p", patch]);
    cluster.ready_pod("gated");
    gone(cluster, "gated");
}

/// An ephemeral container sees the processes of the one it was made for.
fn a_container_joins_later(cluster: &Cluster) {
    cluster.create_pod("joined", SLEEPS, "");
    cluster.ready_pod("joined");
    let script = "cat /proc/1/cmdline; echo; sleep 3600";
    let patch = format!(
        r#"{{"spec":{{"ephemeralContainers":[{{"name":"looks","image":"nginx","targetContainerName":"c",
        "command":["sh","-c","{script}"]}}]}}}}"#
    );
    cluster.kubectl(&["patch", "pod", "joined", "--subresource", "ephemeralcontainers", "-p", &patch]);
    cluster.until("the ephemeral container runs", || {
        let path = ".status.ephemeralContainerStatuses[0].state.running.startedAt";
        (!cluster.field("joined", path).is_empty()).then_some(())
    });
    cluster.until("it sees the other's process", || {
        let log = cluster.kubectl(&["logs", "joined", "-c", "looks"]);
        log.starts_with("sleep\u{0}3600").then_some(())
    });
    assert_eq!(cluster.field("joined", ".status.containerStatuses[0].restartCount"), "0");
    gone(cluster, "joined");
}

/// A part of a volume is mounted by its name, or by what variables make of it; a link that leads out of it is not.
fn parts_of_volumes_stay_in_them(cluster: &Cluster) {
    let shared = cluster.directory.path().join("parts");
    std::fs::create_dir_all(shared.join("inner")).unwrap();
    std::fs::write(shared.join("inner/file"), "within").unwrap();
    std::os::unix::fs::symlink("inner", shared.join("to-inner")).unwrap();
    std::os::unix::fs::symlink("/etc", shared.join("to-etc")).unwrap();
    std::os::unix::fs::symlink("../../../../../../etc", shared.join("up")).unwrap();
    let volume = format!(r#","volumes":[{{"name":"parts","hostPath":{{"path":"{}"}}}}]"#, shared.display());
    let mounts = |part: &str| {
        format!(
            r#"{SLEEPS},"env":[{{"name":"NAME","valueFrom":{{"fieldRef":{{"fieldPath":"metadata.name"}}}}}}],
            "volumeMounts":[{{"name":"parts","mountPath":"/part",{part}}}]"#
        )
    };
    cluster.create_pod("part", &mounts(r#""subPath":"to-inner""#), &volume);
    cluster.create_pod("part-expr", &mounts(r#""subPathExpr":"made/$(NAME)""#), &volume);
    cluster.ready_pod("part");
    cluster.ready_pod("part-expr");
    assert_eq!(prints(cluster, "part", "cat /part/file"), "within");
    prints(cluster, "part-expr", "touch /part/here");
    assert!(shared.join("made/part-expr/here").exists());
    for (pod, link) in [("part-out", "to-etc"), ("part-up", "up")] {
        cluster.create_pod(pod, &mounts(&format!(r#""subPath":"{link}""#)), &volume);
        let waiting = cluster.until("the mount is refused", || {
            let waiting = state(cluster, pod)["waiting"].clone();
            (waiting["reason"] == "CreateContainerConfigError").then_some(waiting)
        });
        let message = waiting["message"].as_str().unwrap();
        assert!(message.contains("failed to prepare subPath for volumeMount \"parts\""), "{message}");
    }
    for pod in ["part", "part-expr", "part-out", "part-up"] {
        gone(cluster, pod);
    }
}

/// Files of ConfigMaps and Secrets in a running pod follow them.
fn changes_reach_running_pods(cluster: &Cluster) {
    cluster.kubectl(&["create", "configmap", "follows", "--from-literal=key=before"]);
    let container = format!(r#"{SLEEPS},"volumeMounts":[{{"name":"map","mountPath":"/map"}}]"#);
    cluster.create_pod(
        "follows",
        &container,
        r#","volumes":[{"name":"map","configMap":{"name":"follows"}}]"#,
    );
    cluster.ready_pod("follows");
    assert_eq!(prints(cluster, "follows", "cat /map/key"), "before");
    cluster.kubectl(&["patch", "configmap", "follows", "-p", r#"{"data":{"key":"after"}}"#]);
    cluster.until("the file has followed", || {
        (prints(cluster, "follows", "cat /map/key") == "after").then_some(())
    });
    gone(cluster, "follows");
}

/// Claims bound to volumes of the node, of both kinds; what is written is on the host, and for the group where asked.
fn claims_are_mounted(cluster: &Cluster) {
    let node = cluster.kubectl(&["get", "nodes", "-o", "jsonpath={.items[0].metadata.name}"]);
    let local = cluster.directory.path().join("local-volume");
    let on_host = cluster.directory.path().join("host-volume");
    std::fs::create_dir(&local).unwrap();
    let affinity = format!(
        r#""nodeAffinity":{{"required":{{"nodeSelectorTerms":[{{"matchExpressions":
        [{{"key":"kubernetes.io/hostname","operator":"In","values":["{node}"]}}]}}]}}}},"#
    );
    let local_source = format!(r#"{affinity}"local":{{"path":"{}"}}"#, local.display());
    let host_source = format!(r#""hostPath":{{"path":"{}"}}"#, on_host.display());
    for (name, source) in [("local", local_source), ("on-host", host_source)] {
        let bounds = r#""accessModes":["ReadWriteOnce"],"storageClassName":"""#;
        let list = format!(
            r#"{{"apiVersion":"v1","kind":"List","items":[
            {{"apiVersion":"v1","kind":"PersistentVolume","metadata":{{"name":"{name}"}},
              "spec":{{{bounds},"capacity":{{"storage":"1Gi"}},{source}}}}},
            {{"apiVersion":"v1","kind":"PersistentVolumeClaim","metadata":{{"name":"{name}"}},
              "spec":{{{bounds},"volumeName":"{name}","resources":{{"requests":{{"storage":"1Gi"}}}}}}}}]}}"#
        );
        let file = cluster.directory.path().join(format!("{name}-claim.json"));
        std::fs::write(&file, list).unwrap();
        cluster.kubectl(&["create", "-f", file.to_str().unwrap()]);
        let container = format!(r#"{SLEEPS},"volumeMounts":[{{"name":"data","mountPath":"/data"}}]"#);
        let spec = format!(
            r#","securityContext":{{"fsGroup":4321}},
            "volumes":[{{"name":"data","persistentVolumeClaim":{{"claimName":"{name}"}}}}]"#
        );
        cluster.create_pod(name, &container, &spec);
        cluster.ready_pod(name);
        prints(cluster, name, "echo kept > /data/file");
        gone(cluster, name);
    }
    for directory in [&local, &on_host] {
        assert_eq!(std::fs::read_to_string(directory.join("file")).unwrap(), "kept\n");
    }
    let group = std::os::unix::fs::MetadataExt::gid(&std::fs::metadata(&local).unwrap());
    assert_eq!(group, 4321);
}

fn profiles_confine(cluster: &Cluster) {
    let seccomp = |kind: &str| {
        format!(r#"{SLEEPS},"securityContext":{{"allowPrivilegeEscalation":false,"seccompProfile":{kind}}}"#)
    };
    cluster.create_pod("confined", &seccomp(r#"{"type":"RuntimeDefault"}"#), "");
    cluster.create_pod("unconfined", &seccomp(r#"{"type":"Unconfined"}"#), "");
    let missing = seccomp(r#"{"type":"Localhost","localhostProfile":"nowhere.json"}"#);
    cluster.create_pod("profile-missing", &missing, "");
    let status = |pod: &str, field: &str| {
        cluster.ready_pod(pod);
        let status = prints(cluster, pod, "cat /proc/1/status");
        let value = status.lines().find_map(|line| line.strip_prefix(field)).unwrap_or_default();
        value.trim_start_matches(':').trim().to_string()
    };
    assert_eq!((status("confined", "Seccomp:"), status("confined", "NoNewPrivs:")), ("2".into(), "1".into()));
    assert_eq!(status("unconfined", "Seccomp:"), "0");
    let message = cluster.until("a profile that is not there keeps the container from starting", || {
        let waiting = state(cluster, "profile-missing")["waiting"].clone();
        (waiting["reason"] == "CreateContainerError").then(|| waiting["message"].to_string())
    });
    assert!(message.contains("nowhere.json"), "{message}");
    let enabled = std::fs::read_to_string("/sys/module/apparmor/parameters/enabled");
    if !enabled.is_ok_and(|enabled| enabled.trim() == "Y") {
        let spec = r#","securityContext":{"appArmorProfile":{"type":"RuntimeDefault"}}"#;
        cluster.create_pod("armoured", SLEEPS, spec);
        cluster.until("a pod that asks for what the host lacks is turned away", || {
            (cluster.field("armoured", ".status.reason") == "AppArmor").then_some(())
        });
        gone(cluster, "armoured");
    }
    for pod in ["confined", "unconfined", "profile-missing"] {
        gone(cluster, pod);
    }
}

/// Nobody schedules these: the kubelet alone says whether the node fits.
fn a_label_set_before_a_pod_lets_it_in(cluster: &Cluster) {
    let node = cluster.kubectl(&["get", "nodes", "-o", "jsonpath={.items[0].metadata.name}"]);
    for round in 0..5 {
        let label = format!("example.com/round={round}");
        cluster.kubectl(&["label", "node", &node, &label, "--overwrite"]);
        let pod = format!("labelled-{round}");
        let spec = format!(
            r#","nodeName":"{node}","nodeSelector":{{"example.com/round":"{round}"}},"terminationGracePeriodSeconds":1"#
        );
        cluster.create_pod(&pod, SLEEPS, &spec);
        cluster.ready_pod(&pod);
        gone(cluster, &pod);
    }
    let spec = format!(r#","nodeName":"{node}","nodeSelector":{{"example.com/round":"none"}}"#);
    cluster.create_pod("unlabelled", SLEEPS, &spec);
    cluster.until("a pod the node does not fit is turned away", || {
        (cluster.field("unlabelled", ".status.reason") == "NodeAffinity").then_some(())
    });
    gone(cluster, "unlabelled");
}

/// A manifest runs; the API shows it, and cannot end it.
fn manifests_run_and_are_mirrored(cluster: &Cluster, manifests: &Path) {
    let manifest = format!(
        r#"{{"apiVersion":"v1","kind":"Pod","metadata":{{"name":"static"}},"spec":{{
        "terminationGracePeriodSeconds":1,"containers":[{{"name":"c","image":"nginx",{SLEEPS}}}]}}}}"#
    );
    let hidden = manifests.join(".static");
    std::fs::write(&hidden, manifest).unwrap();
    std::fs::rename(&hidden, manifests.join("static.json")).unwrap();
    let node = cluster.kubectl(&["get", "nodes", "-o", "jsonpath={.items[0].metadata.name}"]);
    let mirror = format!("static-{node}");
    cluster.ready_pod(&mirror);
    let running = (
        cluster.field(&mirror, ".metadata.uid"),
        cluster.field(&mirror, ".status.containerStatuses[0].containerID"),
    );
    cluster.kubectl(&["delete", "pod", &mirror, "--force", "--grace-period=0"]);
    cluster.until("the mirror is there again, of the container that went on", || {
        let id = cluster.field(&mirror, ".status.containerStatuses[0].containerID");
        (cluster.field(&mirror, ".metadata.uid") != running.0 && id == running.1).then_some(())
    });
    std::fs::remove_file(manifests.join("static.json")).unwrap();
    cluster.until("pod and mirror are gone with the manifest", || {
        cluster.field(&mirror, ".metadata.name").is_empty().then_some(())
    });
}

/// Old lines go, new ones come, and who follows misses none.
fn logs_that_grow_are_rotated(cluster: &Cluster) {
    // a file is looked at every ten seconds and is full by then
    let script =
        "i=0; while true; do i=$((i+1)); echo line $i of many, long enough to fill a file; sleep 0.01; done";
    cluster.create_pod("writes", &format!(r#""command":["sh","-c","{script}"]"#), "");
    cluster.ready_pod("writes");
    let mut command = cluster.ferry();
    command.args(["kubectl", "logs", "-f", "writes", "--tail=1"]);
    let follow = Conversation::start(&mut command);
    let number = |line: String| line.split_whitespace().nth(1).unwrap().parse::<u32>().unwrap();
    let first = number(follow.hears("line "));
    let uid = cluster.field("writes", ".metadata.uid");
    let mut logs = Vec::new();
    let mut stack = vec![cluster.data_dir()];
    while let Some(directory) = stack.pop() {
        for entry in std::fs::read_dir(directory).unwrap().flatten().filter(|entry| entry.path().is_dir()) {
            if entry.file_name().to_string_lossy().ends_with(&format!("_writes_{uid}")) {
                logs.push(entry.path());
            } else if !entry.file_name().to_string_lossy().contains("containerd") {
                stack.push(entry.path());
            }
        }
    }
    let directory = logs.first().unwrap_or_else(|| panic!("no logs of {uid}")).join("c");
    let files = || -> Vec<String> {
        let entries = std::fs::read_dir(&directory).unwrap().flatten();
        let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
        // What is just being compressed is still there as what it was.
        names.filter(|name| !name.ends_with(".tmp")).collect()
    };
    cluster.until("the log was rotated twice", || (files().len() >= 3).then_some(()));
    cluster.until("what is older is compressed", || {
        files().iter().any(|name| name.ends_with(".gz")).then_some(())
    });
    // While one is compressed it is there twice.
    cluster.until("no more are kept than there should be", || (files().len() <= 4).then_some(()));
    // far behind the first rotation by now; every line in between was heard
    for expected in first + 1..first + 1500 {
        assert_eq!(number(follow.hears("line ")), expected);
    }
    gone(cluster, "writes");
}
