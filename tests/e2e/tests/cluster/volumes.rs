//! Claims and their volumes: a database keeps its data over pods, kubelets and servers; a claim's directory goes with
//! it or stays, as its class says; and no volume leads out of the node's own directory of volumes.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::cluster::Cluster;
use crate::host::{ferry, run};
use crate::images;

#[test]
fn a_claim_gets_a_volume() {
    let Some(binary) = ferry() else { return };
    let cluster = Cluster::new(binary, &[]);
    cluster.up();
    let classes = cluster.kubectl(&["get", "storageclass"]);
    assert!(classes.contains("local (default)"), "{classes}");
    a_database_keeps_its_data(&cluster);
    what_is_retained_stays(&cluster);
    no_volume_leads_out_of_its_root(&cluster);
}

pub fn apply(cluster: &Cluster, objects: &[Value]) {
    let file = cluster.directory.path().join("objects.json");
    std::fs::write(&file, json!({"apiVersion": "v1", "kind": "List", "items": objects}).to_string()).unwrap();
    cluster.kubectl(&["apply", "-f", file.to_str().unwrap()]);
}

pub fn get(cluster: &Cluster, words: &[&str], path: &str) -> String {
    let path = format!("jsonpath={{{path}}}");
    cluster.kubectl(&[&["get"], words, &["--ignore-not-found", "-o", &path]].concat())
}

fn directories(cluster: &Cluster) -> PathBuf {
    cluster.data_dir().join("kubelet/local-volumes")
}

fn gone(cluster: &Cluster, path: &Path) {
    cluster.until(&format!("{} is gone", path.display()), || (!path.exists()).then_some(()));
}

fn told(cluster: &Cluster, claim: &str, reason: &str) {
    cluster.until(&format!("claim {claim} is told {reason}"), || {
        let selector = format!("involvedObject.name={claim},reason={reason}");
        let events = cluster.kubectl(&["get", "events", "--field-selector", &selector, "-o", "name"]);
        (!events.is_empty()).then_some(())
    });
}

fn a_database_keeps_its_data(cluster: &Cluster) {
    let archive = images::postgres(&cluster.directory.path().join("postgres"));
    run(cluster.ferry().args(["image", "load", "--data-dir"]).arg(cluster.data_dir()).arg(archive));
    let ready = ["/usr/lib/postgresql/15/bin/psql", "-h", "/tmp", "-U", "postgres", "-c", "select 1"];
    let container = json!({
        "name": "db", "image": "postgres", "imagePullPolicy": "Never", "command": ["/start"],
        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
        "readinessProbe": {"exec": {"command": ready}, "periodSeconds": 1},
    });
    let user = images::POSTGRES_USER;
    let template = json!({
        "metadata": {"labels": {"app": "db"}},
        "spec": {"containers": [container], "securityContext": {"runAsUser": user, "runAsGroup": user}},
    });
    let claim = json!({
        "metadata": {"name": "data"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "128Mi"}}},
    });
    apply(
        cluster,
        &[json!({
            "apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "db"},
            "spec": {"serviceName": "db", "replicas": 1, "selector": {"matchLabels": {"app": "db"}},
                "template": template, "volumeClaimTemplates": [claim]},
        })],
    );
    cluster.ready_pod("db-0");
    let psql = |query: &str| {
        let words = ["exec", "db-0", "--", ready[0], "-h", "/tmp", "-U", "postgres", "-A", "-t", "-c", query];
        cluster.kubectl(&words).trim().to_owned()
    };
    psql("create table rows as select generate_series(1, 1000) as n");
    let counted = || assert_eq!(psql("select count(*) from rows"), "1000");
    counted();

    // The volume is where its pod is, and says who made it and for whom.
    let volume = get(cluster, &["pvc", "data-db-0"], ".spec.volumeName");
    let directory = directories(cluster).join(&volume);
    assert!(directory.join("pg/PG_VERSION").exists(), "{}", directory.display());
    let spec: Value = serde_json::from_str(&get(cluster, &["pv", &volume], ".spec")).unwrap();
    let node = get(cluster, &["pod", "db-0"], ".spec.nodeName");
    let term = &spec["nodeAffinity"]["required"]["nodeSelectorTerms"][0]["matchExpressions"][0];
    assert_eq!((&term["key"], &term["values"][0]), (&json!("kubernetes.io/hostname"), &json!(node)));
    for reason in ["WaitForFirstConsumer", "Provisioning", "ProvisioningSucceeded"] {
        told(cluster, "data-db-0", reason);
    }
    let metrics = cluster.kubectl(&["get", "--raw", &format!("/api/v1/nodes/{node}/proxy/metrics")]);
    let series = "kubelet_volume_stats_used_bytes{namespace=\"default\",persistentvolumeclaim=\"data-db-0\"}";
    let used =
        metrics.lines().find_map(|line| line.strip_prefix(series)).unwrap_or_else(|| panic!("{metrics}"));
    assert!(used.trim().parse::<f64>().unwrap() > 1e6, "{used}");
    let summary = cluster.kubectl(&["get", "--raw", &format!("/api/v1/nodes/{node}/proxy/stats/summary")]);
    assert!(summary.contains(r#""pvcRef":{"name":"data-db-0","namespace":"default"}"#), "{summary}");

    // The claim grows, and the next pod finds it grown.
    let larger = r#"{"spec":{"resources":{"requests":{"storage":"256Mi"}}}}"#;
    cluster.kubectl(&["patch", "pvc", "data-db-0", "-p", larger]);
    let state = ".status.allocatedResourceStatuses.storage";
    cluster.until("the node is waited for", || {
        (get(cluster, &["pvc", "data-db-0"], state) == "NodeResizePending").then_some(())
    });
    cluster.kubectl(&["delete", "pod", "db-0"]);
    cluster.ready_pod("db-0");
    counted();
    cluster.until("the claim has grown", || {
        (get(cluster, &["pvc", "data-db-0"], ".status.capacity.storage") == "256Mi").then_some(())
    });
    assert_eq!(get(cluster, &["pvc", "data-db-0"], ".status.conditions"), "");
    assert_eq!(get(cluster, &["pv", &volume], ".spec.capacity.storage"), "256Mi");

    // The server, and the kubelet in it, is killed; then all of the cluster goes down and comes up again.
    run(Command::new("kill").args(["-KILL", &cluster.status()["pid"].to_string()]));
    cluster.up();
    cluster.ready_pod("db-0");
    counted();
    // A class that somebody deletes is not made again.
    cluster.kubectl(&["delete", "storageclass", "local"]);
    cluster.down();
    cluster.up();
    assert!(!cluster.kubectl(&["get", "storageclass"]).contains("local"));
    cluster.ready_pod("db-0");
    counted();

    cluster.kubectl(&["delete", "statefulset", "db"]);
    assert!(directory.exists());
    cluster.kubectl(&["delete", "pvc", "data-db-0"]);
    gone(cluster, &directory);
    cluster.until("the volume is gone", || get(cluster, &["pv", &volume], ".spec").is_empty().then_some(()));
}

fn what_is_retained_stays(cluster: &Cluster) {
    let claim = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "kept"},
        "spec": {"storageClassName": "kept", "accessModes": ["ReadWriteOncePod"],
            "resources": {"requests": {"storage": "1Mi"}}},
    });
    let class = json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": "kept"},
        "provisioner": "local.ferry.io", "reclaimPolicy": "Retain", "volumeBindingMode": "WaitForFirstConsumer",
    });
    apply(cluster, &[class, claim]);
    let container = r#""command":["sh","-c","echo kept >/data/file; sleep 3600"],
        "volumeMounts":[{"name":"data","mountPath":"/data"}]"#;
    let volumes = r#","terminationGracePeriodSeconds":0,
        "volumes":[{"name":"data","persistentVolumeClaim":{"claimName":"kept"}}]"#;
    cluster.create_pod("writes", container, volumes);
    cluster.ready_pod("writes");
    // Of two pods one at a time may have it.
    cluster.create_pod("waits", container, volumes);
    cluster.until("the second pod is told why it waits", || {
        let path = ".status.conditions[?(@.type==\"PodScheduled\")].message";
        cluster.field("waits", path).contains("ReadWriteOncePod").then_some(())
    });
    let volume = get(cluster, &["pvc", "kept"], ".spec.volumeName");
    let file = directories(cluster).join(&volume).join("file");
    cluster.until("the file is written", || file.exists().then_some(()));
    cluster.kubectl(&["delete", "pod", "waits", "writes"]);
    cluster.kubectl(&["delete", "pvc", "kept"]);
    cluster.until("the volume is released", || {
        (get(cluster, &["pv", &volume], ".status.phase") == "Released").then_some(())
    });
    cluster.kubectl(&["delete", "pv", &volume]);
    assert_eq!(get(cluster, &["pv", &volume], ".spec"), "");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "kept\n");
}

/// A PersistentVolume that somebody writes names no other directory than its own.
fn no_volume_leads_out_of_its_root(cluster: &Cluster) {
    let outside = cluster.data_dir().join("kubelet/outside");
    std::fs::create_dir(&outside).unwrap();
    std::fs::write(outside.join("kept"), "").unwrap();
    let node = cluster.kubectl(&["get", "nodes", "-o", "jsonpath={.items[0].metadata.name}"]);
    apply(
        cluster,
        &[
            json!({
                "apiVersion": "v1", "kind": "PersistentVolume",
                "metadata": {"name": "hostile", "labels": {"local.ferry.io/node": node},
                    "finalizers": ["local.ferry.io/directory"]},
                "spec": {"capacity": {"storage": "1Mi"}, "accessModes": ["ReadWriteOnce"],
                    "persistentVolumeReclaimPolicy": "Delete", "storageClassName": "",
                    "claimRef": {"namespace": "default", "name": "hostile"},
                    "csi": {"driver": "local.ferry.io", "volumeHandle": "../outside",
                        "volumeAttributes": {"local.ferry.io/node": node}}},
            }),
            json!({
                "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "hostile"},
                "spec": {"storageClassName": "", "volumeName": "hostile", "accessModes": ["ReadWriteOnce"],
                    "resources": {"requests": {"storage": "1Mi"}}},
            }),
        ],
    );
    let container = r#""command":["sh","-c","rm -r /data/*; sleep 3600"],
        "volumeMounts":[{"name":"data","mountPath":"/data"}]"#;
    let volumes = r#","volumes":[{"name":"data","persistentVolumeClaim":{"claimName":"hostile"}}]"#;
    cluster.create_pod("hostile", container, volumes);
    let says = |reason: &str, words: &str| {
        cluster.until(&format!("{reason} is told"), || {
            let selector = format!("involvedObject.name=hostile,reason={reason}");
            let path = "jsonpath={.items[*].message}";
            let said = cluster.kubectl(&["get", "events", "-A", "--field-selector", &selector, "-o", path]);
            said.contains(words).then_some(())
        });
    };
    says("FailedMount", "is not the volume's name");
    cluster.kubectl(&["delete", "pod", "hostile", "--force", "--grace-period=0"]);
    cluster.kubectl(&["delete", "pvc", "hostile"]);
    cluster.kubectl(&["delete", "pv", "hostile", "--wait=false"]);
    says("VolumeFailedDelete", "is not the volume's name");
    assert!(outside.join("kept").exists());
}
