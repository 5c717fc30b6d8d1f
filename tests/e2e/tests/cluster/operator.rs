//! An operator that somebody else wrote, on kube-rs (`examples/operator`), in two pods of a cluster: its definition, both
//! webhooks, server-side apply, owner references, status, finalizer and leader election; through its own end, orderly and
//! not, and the server's. At the end nothing of it is left.

use std::process::Command;

use serde_json::{Value, json};

use crate::cluster::{Cluster, WELCOME};
use crate::host::{belongings, ferry, run};
use crate::images;

const MANIFEST: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/operator/operator.yaml");
const NAMESPACE: &str = "site-operator";

#[test]
fn an_operator_on_kube_rs_lives_and_leaves_nothing() {
    let Some(binary) = ferry() else { return };
    let program = binary.with_file_name("site-operator");
    assert!(program.is_file(), "{} is built by `cargo xtask test`", program.display());
    let cluster = Cluster::new(binary, &[]);
    cluster.up();
    let name = cluster.status()["cluster"].as_str().unwrap().to_owned();
    let archive = images::of_program(&cluster.directory.path().join("operator"), &program);
    run(cluster.ferry().args(["image", "load", "--data-dir"]).arg(cluster.data_dir()).arg(archive));
    cluster.kubectl(&["apply", "-f", MANIFEST]);
    rolled_out(&cluster);

    two_versions_are_one_object(&cluster);
    a_site_is_what_it_asks_for(&cluster);
    the_validating_webhook_is_asked(&cluster);
    another_pod_leads_when_the_leader_goes(&cluster);
    a_killed_leader_comes_back(&cluster);
    the_server_is_killed(&cluster);
    a_site_waits_for_its_finalizer(&cluster);
    nothing_is_left(&cluster);

    cluster.down();
    let left = belongings(&name, &cluster.data_dir());
    assert!(left.is_empty(), "left behind: {left:#?}");
}

fn rolled_out(cluster: &Cluster) {
    let words = ["rollout", "status", "deployment/site-operator", "-n", NAMESPACE, "--timeout=120s"];
    cluster.kubectl(&words);
}

fn get(cluster: &Cluster, words: &[&str], path: &str) -> String {
    let path = format!("jsonpath={{{path}}}");
    cluster.kubectl(&[&["get", "--ignore-not-found"], words, &["-o", &path]].concat())
}

fn leader(cluster: &Cluster) -> String {
    get(cluster, &["lease", "site-operator", "-n", NAMESPACE], ".spec.holderIdentity")
}

fn write(cluster: &Cluster, verb: &str, object: &Value) -> std::process::Output {
    let file = cluster.directory.path().join("object.json");
    std::fs::write(&file, object.to_string()).unwrap();
    cluster.try_kubectl(&[verb, "-f", file.to_str().unwrap()])
}

fn site(name: &str, spec: Value) -> Value {
    json!({"apiVersion": "example.dev/v1", "kind": "Site", "metadata": {"name": name}, "spec": spec})
}

/// Gives the site another message, and waits until the leader has seen to it.
fn say(cluster: &Cluster, name: &str, message: &str) {
    let patch = json!({"spec": {"message": message}}).to_string();
    cluster.until("the site can be changed", || {
        let words = ["patch", "site", name, "--type=merge", "-p", &patch];
        cluster.try_kubectl(&words).status.success().then_some(())
    });
    cluster.until(&format!("{name} says {message:?}"), || {
        let site = cluster.try_kubectl(&["get", "site", name, "-o", "json"]);
        let site: Value = serde_json::from_slice(&site.stdout).ok()?;
        let page = cluster.try_kubectl(&["get", "configmap", name, "-o", "jsonpath={.data.index\\.html}"]);
        let status = &site["status"];
        (status["observedGeneration"] == site["metadata"]["generation"]
            && status["reconciledBy"] == leader(cluster)
            && status["readyReplicas"] == site["spec"]["replicas"]
            && page.stdout == message.as_bytes())
        .then_some(())
    });
}

fn two_versions_are_one_object(cluster: &Cluster) {
    let mut older = site("first", json!({"text": WELCOME}));
    older["apiVersion"] = "example.dev/v1alpha1".into();
    let made = write(cluster, "create", &older);
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let read = |version: &str| {
        let printed = cluster.kubectl(&["get", &format!("sites.{version}.example.dev"), "-o", "json"]);
        let list: Value = serde_json::from_str(&printed).unwrap();
        (list["items"][0]["spec"].clone(), list["items"][0]["apiVersion"].clone())
    };
    assert_eq!(read("v1"), (json!({"message": WELCOME, "replicas": 1}), "example.dev/v1".into()));
    assert_eq!(read("v1alpha1"), (json!({"text": WELCOME, "replicas": 1}), "example.dev/v1alpha1".into()));
    // Through the older version, and with field managers of both.
    cluster.kubectl(&[
        "patch",
        "sites.v1alpha1.example.dev",
        "first",
        "--type=merge",
        "-p",
        r#"{"spec":{"text":"x"}}"#,
    ]);
    assert_eq!(read("v1").0["message"], "x");
    say(cluster, "first", WELCOME);
}

fn a_site_is_what_it_asks_for(cluster: &Cluster) {
    let uid = get(cluster, &["site", "first"], ".metadata.uid");
    for owned in ["deployment", "configmap"] {
        let object = cluster.kubectl(&["get", owned, "first", "-o", "json", "--show-managed-fields"]);
        let object: Value = serde_json::from_str(&object).unwrap();
        let owner = &object["metadata"]["ownerReferences"][0];
        assert_eq!((&owner["uid"], &owner["controller"]), (&uid.clone().into(), &true.into()), "{object}");
        let managers = object["metadata"]["managedFields"].as_array().unwrap();
        let applied =
            managers.iter().any(|entry| entry["manager"] == "site-operator" && entry["operation"] == "Apply");
        assert!(applied, "{object}");
    }
    let pod = get(cluster, &["pods", "-l", "example.dev/site=first"], ".items[0].metadata.name");
    cluster.until("the site is served", || cluster.pod_reaches(&pod, "127.0.0.1"));
    let finalizers = get(cluster, &["site", "first"], ".metadata.finalizers");
    assert_eq!(finalizers, r#"["example.dev/ledger"]"#);
    let ledger = get(cluster, &["configmap", "sites", "-n", NAMESPACE], ".data");
    assert_eq!(ledger, json!({"default.first": WELCOME}).to_string());

    // What the operator applied and somebody took away is there again.
    cluster.kubectl(&["delete", "configmap", "first"]);
    cluster.until("the page is back", || {
        (!get(cluster, &["configmap", "first"], ".metadata.uid").is_empty()).then_some(())
    });
}

fn the_validating_webhook_is_asked(cluster: &Cluster) {
    let refused = |verb: &str, object: &Value, words: &str| {
        let answer = write(cluster, verb, object);
        let said = String::from_utf8_lossy(&answer.stderr).into_owned();
        assert!(!answer.status.success() && said.contains(words), "{said}");
    };
    let words = r#"admission webhook "sites.example.dev" denied the request: a site has at most 3 replicas"#;
    refused("create", &site("large", json!({"message": "hello", "replicas": 4})), words);
    // Asked about v1alpha1 as v1: the webhook's rule names that alone.
    let mut silent = site("silent", json!({"text": " "}));
    silent["apiVersion"] = "example.dev/v1alpha1".into();
    refused("create", &silent, "a site has something to say");
    refused("create", &site("odd", json!({"message": "hello", "replicas": -1})), "spec.replicas");
    let names = get(cluster, &["sites"], ".items[*].metadata.name");
    assert_eq!(names, "first");
}

fn another_pod_leads_when_the_leader_goes(cluster: &Cluster) {
    let before = leader(cluster);
    cluster.kubectl(&["delete", "pod", &before, "-n", NAMESPACE]);
    cluster.until("another pod leads", || {
        let now = leader(cluster);
        (!now.is_empty() && now != before).then_some(())
    });
    say(cluster, "first", "after the leader went");
    let log = cluster.kubectl(&["logs", &leader(cluster), "-n", NAMESPACE]);
    assert!(log.contains("leading"), "{log}");
}

fn a_killed_leader_comes_back(cluster: &Cluster) {
    let restarts =
        |pod: &str| get(cluster, &["pod", pod, "-n", NAMESPACE], ".status.containerStatuses[0].restartCount");
    let killed = leader(cluster);
    let before = restarts(&killed);
    run(Command::new("kill").args(["-KILL", &process_of(&killed).to_string()]));
    cluster.until("its container is started again", || (restarts(&killed) > before).then_some(()));
    say(cluster, "first", "after the leader was killed");
}

/// The process of an operator's pod, as this host sees it.
fn process_of(pod: &str) -> u32 {
    let wanted = format!("POD_NAME={pod}");
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let is_wanted = |pid: &u32| {
        std::fs::read(format!("/proc/{pid}/environ"))
            .is_ok_and(|text| text.split(|byte| *byte == 0).any(|entry| entry == wanted.as_bytes()))
    };
    let mut found = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter(is_wanted);
    found.next().unwrap_or_else(|| panic!("no process runs in {pod}"))
}

fn the_server_is_killed(cluster: &Cluster) {
    let pods = || {
        let words = ["pods", "-n", NAMESPACE, "--sort-by=.metadata.name"];
        let ready = r#".items[*].status.conditions[?(@.type=="Ready")].lastTransitionTime"#;
        (get(cluster, &words, ".items[*].metadata.uid"), get(cluster, &words, ready))
    };
    let ready = ["wait", "--for=condition=Ready", "pod", "-l", "app=site-operator", "--timeout=60s"];
    cluster.kubectl(&[&ready[..], &["-n", NAMESPACE]].concat());
    let before = pods();
    let pid = cluster.status()["pid"].to_string();
    run(Command::new("kill").args(["-KILL", &pid]));
    cluster.until("the server is gone", || {
        let command = std::fs::read(format!("/proc/{pid}/cmdline"));
        command.map_or(true, |text| text.is_empty()).then_some(())
    });
    cluster.up();
    say(cluster, "first", "after the server was killed");
    assert_eq!(pods(), before, "no pod of the operator was replaced, or unready for a moment");
    let made = site("second", json!({"message": "hello", "replicas": 0}));
    cluster.until("the webhooks answer", || write(cluster, "create", &made).status.success().then_some(()));
    say(cluster, "second", "hello again");
}

/// Deleted while nobody is there to finalize it, a site stays until somebody is.
fn a_site_waits_for_its_finalizer(cluster: &Cluster) {
    let scale = |replicas: &str| {
        cluster.kubectl(&["scale", "deployment/site-operator", "-n", NAMESPACE, "--replicas", replicas]);
    };
    scale("0");
    cluster.until("no pod of the operator runs", || {
        get(cluster, &["pods", "-n", NAMESPACE], ".items[*].metadata.name").is_empty().then_some(())
    });
    cluster.kubectl(&["delete", "site", "first", "--wait=false"]);
    assert!(!get(cluster, &["site", "first"], ".metadata.deletionTimestamp").is_empty());
    assert!(!get(cluster, &["deployment", "first"], ".metadata.uid").is_empty());
    scale("2");
    // Each pod applies the definition when it starts; none does so later, when it is to be gone.
    rolled_out(cluster);
    cluster.kubectl(&["wait", "--for=delete", "site/first", "--timeout=120s"]);
    let ledger = get(cluster, &["configmap", "sites", "-n", NAMESPACE], ".data");
    assert_eq!(ledger, json!({"default.second": "hello again"}).to_string());
}

fn nothing_is_left(cluster: &Cluster) {
    // With the definition go its objects, one after another through their finalizers.
    cluster.kubectl(&["delete", "crd", "sites.example.dev", "--timeout=120s"]);
    assert_eq!(get(cluster, &["configmap", "sites", "-n", NAMESPACE], ".data"), "");
    cluster.until("what the sites owned is gone", || {
        let owned =
            ["deployments,replicasets,pods,configmaps", "-l", "app.kubernetes.io/managed-by=site-operator"];
        let pods = ["pods", "-l", "example.dev/site"];
        (get(cluster, &owned, ".items[*].metadata.name").is_empty()
            && get(cluster, &pods, ".items[*].metadata.name").is_empty())
        .then_some(())
    });
    cluster.kubectl(&["delete", "validatingwebhookconfiguration", "site-operator"]);
    cluster.kubectl(&["delete", "-f", MANIFEST, "--timeout=120s"]);
    let kinds = cluster.kubectl(&["api-resources", "--verbs=list", "-o", "name"]);
    // Events stay for their hour, and a node names the images it has.
    for kind in kinds.lines().filter(|kind| !kind.starts_with("events") && *kind != "nodes") {
        let found = cluster.kubectl(&["get", kind, "-A", "-o", "json"]);
        assert!(!found.contains("site-operator") && !found.contains("example.dev"), "{kind}: {found}");
    }
    assert!(!kinds.contains("example.dev"), "{kinds}");
}
