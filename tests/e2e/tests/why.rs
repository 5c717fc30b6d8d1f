//! `ferry why` and `ferry trace` over the recorded history: who deleted, scaled and changed what, and because of what;
//! the same after the server was killed and started again.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use ferry_e2e::binary::{self, Process};
use ferry_trace::history::{Wanted, read};
use ferry_trace::{Record, SpanId};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};

const PATIENCE: Duration = Duration::from_secs(60);

/// A child that does not outlive the test.
struct Child(std::process::Child);

impl Drop for Child {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

struct Cluster {
    binary: PathBuf,
    server: Process,
}

impl Cluster {
    fn ask(&self, words: &[&str]) -> String {
        let output = Command::new(&self.binary)
            .args(words)
            .arg("--data-dir")
            .arg(self.server.directory())
            .output()
            .expect("ferry runs");
        let (out, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        format!("{out}{}", if output.status.success() { "" } else { &error })
    }

    /// Components hand in their spans once a second: asked again until the answer has all of it.
    async fn until_told(&self, words: &[&str], expected: &[&str]) -> String {
        let give_up = Instant::now() + PATIENCE;
        loop {
            let told = self.ask(words);
            if expected.iter().all(|expected| told.contains(expected)) {
                return told;
            }
            assert!(Instant::now() < give_up, "{words:?} says\n{told}\nand not {expected:?}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}

async fn until<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let give_up = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(Instant::now() < give_up, "{what} did not come about");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

fn tokens(directory: &Path) -> Vec<String> {
    let file = directory.join("tokens.csv");
    let users = ["alice", "bob", "carol"].map(|name| format!("{name}-token,{name},{name},system:masters"));
    std::fs::write(&file, users.join("\n")).expect("written");
    vec!["--token-auth-file".into(), file.display().to_string()]
}

fn deployment() -> Deployment {
    let deployment = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"},
        "spec": {
            "replicas": 2, "selector": {"matchLabels": {"app": "web"}},
            "template": {
                "metadata": {"labels": {"app": "web"}},
                "spec": {"containers": [{"name": "web", "image": "nginx:1"}]},
            },
        },
    });
    serde_json::from_value(deployment).expect("a deployment")
}

async fn pods(client: &Client, count: usize) -> Vec<String> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), "default");
    until(&format!("{count} pods"), async || {
        let found = pods.list(&ListParams::default()).await.ok()?;
        let names: Vec<String> = found.items.iter().map(|pod| pod.name_any()).collect();
        (names.len() == count).then_some(names)
    })
    .await
}

/// Nothing else is going on when the next write comes: what follows from it has one cause.
async fn caught_up(deployments: &Api<Deployment>, replicas: i32) {
    until("the controllers have caught up", async || {
        let seen = deployments.get("web").await.ok()?;
        let status = seen.status?;
        let is_seen = status.observed_generation == seen.metadata.generation;
        (is_seen && status.replicas == Some(replicas)).then_some(())
    })
    .await;
}

#[tokio::test]
async fn who_scaled_changed_and_deleted_is_known_also_after_a_restart() {
    let Some(binary) = binary::ferry() else { return };
    let server = Process::apiserver(&binary, tokens).await;
    let mut cluster = Cluster { binary, server };
    let manager = Command::new(&cluster.binary)
        .arg("controller-manager")
        .arg("--kubeconfig")
        .arg(cluster.server.directory().join("admin.kubeconfig"))
        .spawn()
        .expect("ferry starts");
    let manager = Child(manager);
    let alice = cluster.server.with_token("alice-token").await;
    let bob = cluster.server.with_token("bob-token").await;
    let carol = cluster.server.with_token("carol-token").await;

    let deployments: Api<Deployment> = Api::namespaced(alice.clone(), "default");
    let first = deployments.create(&PostParams::default(), &deployment()).await.expect("created");
    let before = pods(&alice, 2).await;
    caught_up(&deployments, 2).await;
    let scale = Patch::Merge(json!({"spec": {"replicas": 1}}));
    let scaled = deployments.patch("web", &PatchParams::default(), &scale).await.expect("scaled");
    let revision = scaled.resource_version().expect("a revision");
    let after = pods(&alice, 1).await;
    let gone = before.into_iter().find(|pod| !after.contains(pod)).expect("one of the two went");

    let maps: Api<ConfigMap> = Api::namespaced(bob.clone(), "default");
    let map =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"color": "red"}});
    maps.create(&PostParams::default(), &serde_json::from_value(map).expect("a map")).await.expect("created");
    let blue = Patch::Merge(json!({"data": {"color": "blue"}}));
    maps.patch("c", &PatchParams::default(), &blue).await.expect("changed");

    caught_up(&deployments, 1).await;
    let deployments: Api<Deployment> = Api::namespaced(carol, "default");
    deployments.delete("web", &DeleteParams::background()).await.expect("deleted");
    pods(&alice, 0).await;

    // What is asked, and what the answer has to name.
    let pod = format!("pod/{gone}");
    let scaled_by = format!("deployments.apps/default/web: spec.replicas 2→1 (r{revision}), by alice");
    let last = after[0].clone();
    let last = format!("pod/{last}");
    let questions: Vec<(Vec<&str>, Vec<&str>)> = vec![
        (vec!["why", &pod], vec!["was deleted", "by the replicaset controller", &scaled_by]),
        (vec!["why", "deployment/web", "--field", "spec.replicas"], vec!["spec.replicas 2→1", "by alice"]),
        (vec!["why", "deployment/web", "scaled"], vec!["was scaled: spec.replicas 2→1", "by alice"]),
        (vec!["why", "cm/c", "changed"], vec!["data[color] changed", "by bob"]),
        (vec!["why", "deployment/web"], vec!["deployments.apps/default/web was deleted", "by carol"]),
        (vec!["why", &last], vec!["was deleted", "deployments.apps/default/web was deleted", "by carol"]),
    ];
    for (words, expected) in &questions {
        let told = cluster.until_told(words, expected).await;
        assert!(!told.contains("red") && !told.contains("blue"), "a value is told: {told}");
    }

    // All of it is on disk before the server is killed: what ended in the last half second would be lost.
    let directory = cluster.server.directory().join("trace");
    let known: Value = {
        let request = http::Request::get("/ferry/v1/trace").body(Vec::new()).expect("a request");
        serde_json::from_str(&alice.request_text(request).await.expect("the trace")).expect("JSON")
    };
    let known: Vec<Record> = serde_json::from_value(known["records"].clone()).expect("records");
    until("the history on disk", async || {
        let written = read(&directory, &Wanted::default()).ok()?.records;
        let written: HashSet<SpanId> = written.iter().map(|record| record.span).collect();
        // Steps that say nothing stay in memory.
        let mut to_keep =
            known.iter().filter(|record| record.committed.is_some() || !record.causes.is_empty());
        to_keep.all(|record| written.contains(&record.span)).then_some(())
    })
    .await;
    let uid = first.uid().expect("a uid");
    cluster.server.restart().await;
    for (words, expected) in &questions {
        cluster.until_told(words, expected).await;
    }
    let answer = cluster.ask(&["why", "deployment/web", "--field", "spec.replicas", "-o", "json"]);
    let answer: Value = serde_json::from_str(&answer).unwrap_or_else(|error| panic!("{error}: {answer}"));
    let changed =
        answer["reasons"].as_array().expect("reasons").iter().find(|reason| reason["what"] == "changed");
    let changed = changed.expect("the change");
    assert_eq!(changed["user"], "alice");
    assert_eq!(changed["revision"].to_string(), revision);
    assert_eq!(changed["changes"], json!([{"field": "spec.replicas", "from": "2", "to": "1"}]));

    // A second object of the name is another one; the first can still be asked for.
    let deployments: Api<Deployment> = Api::namespaced(alice, "default");
    let second = deployments.create(&PostParams::default(), &deployment()).await.expect("created");
    let second = second.uid().expect("a uid");
    let told = cluster
        .until_told(
            &["trace", "deployment/web"],
            &["create deployments.apps/default/web", "Other objects named"],
        )
        .await;
    assert!(told.contains(&uid) && !told.contains("delete deployments.apps/default/web"), "{told}");
    let told = cluster.ask(&["trace", "deployment/web", "--uid", &uid]);
    assert!(told.contains("delete deployments.apps/default/web") && told.contains(&second), "{told}");
    let told = cluster.ask(&["trace", "deployment/web", "--all", "-o", "perfetto"]);
    let events: Value = serde_json::from_str(&told).unwrap_or_else(|error| panic!("{error}: {told}"));
    assert!(events["traceEvents"].as_array().is_some_and(|events| events.len() > 20));
    let told = cluster.ask(&["trace", "--user", "bob"]);
    assert!(told.contains("configmaps/default/c") && !told.contains("deployments.apps"), "{told}");
    drop(manager);
}
