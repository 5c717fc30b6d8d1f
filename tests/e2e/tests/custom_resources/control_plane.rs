//! Custom resources beside the control loops: garbage collection, namespaces and quotas know them; and the
//! definitions that people use are accepted.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use ferry_e2e::binary::ferry;
use serde_json::{Value, json};

use super::server::{DEFINITIONS, Server, condition, names, namespace};
use super::widgets::{WIDGETS, definition, red};

/// `ferry controller-manager`, for as long as the test lives.
struct ControlLoops(Child);

impl ControlLoops {
    fn start(server: &Server) -> ControlLoops {
        let child = Command::new(ferry().expect("the server was started from it"))
            .args(["controller-manager", "--leader-elect=false", "--kubeconfig"])
            .arg(server.kubeconfig())
            .stderr(Stdio::null())
            .spawn();
        ControlLoops(child.expect("ferry starts"))
    }
}

impl Drop for ControlLoops {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn owned(mut object: Value, owner: &Value) -> Value {
    object["metadata"]["ownerReferences"] = json!([{
        "apiVersion": owner["apiVersion"], "kind": owner["kind"], "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"], "blockOwnerDeletion": true,
    }]);
    object
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn garbage_collection_covers_custom_objects_as_owner_and_owned() {
    let Some(server) = Server::start().await else { return };
    let _loops = ControlLoops::start(&server);
    server.define(&definition()).await;
    let maps = "/api/v1/namespaces/default/configmaps";
    let map = |name: &str| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}});
    let root = server.post(maps, &map("root")).await.expect(201);
    let middle = server.post(WIDGETS, &owned(red("middle"), &root)).await.expect(201);
    server.post(maps, &owned(map("leaf"), &middle)).await.expect(201);
    server.post(WIDGETS, &owned(red("orphan"), &middle)).await.expect(201);
    server.delete(&format!("{maps}/root?propagationPolicy=Background")).await.expect(200);
    for path in [format!("{WIDGETS}/middle"), format!("{maps}/leaf"), format!("{WIDGETS}/orphan")] {
        server.until(&path, |answer| answer.code == 404).await;
    }
    // In the foreground the owner waits for what it owns.
    let owner = server.post(WIDGETS, &red("owner")).await.expect(201);
    server.post(maps, &owned(map("part"), &owner)).await.expect(201);
    server.delete(&format!("{WIDGETS}/owner?propagationPolicy=Foreground")).await.expect(202);
    server.until(&format!("{WIDGETS}/owner"), |answer| answer.code == 404).await;
    server.get(&format!("{maps}/part")).await.expect(404);
    // What is left an orphan stays, and forgets its owner.
    let owner = server.post(WIDGETS, &red("owner")).await.expect(201);
    server.post(WIDGETS, &owned(red("left"), &owner)).await.expect(201);
    server.delete(&format!("{WIDGETS}/owner?propagationPolicy=Orphan")).await.expect(200);
    server.until(&format!("{WIDGETS}/owner"), |answer| answer.code == 404).await;
    let left = server.get(&format!("{WIDGETS}/left")).await.expect(200);
    assert_eq!(left["metadata"]["ownerReferences"], Value::Null);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_autoscaler_scales_a_custom_object_by_the_paths_of_its_definition() {
    let Some(server) = Server::start().await else { return };
    let _loops = ControlLoops::start(&server);
    server.define(&definition()).await;
    let widget = json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "a"}, "spec": {"color": "red", "replicas": 1}});
    server.post(WIDGETS, &widget).await.expect(201);
    let status = json!({"status": {"replicas": 1, "selector": "app=a"}});
    server.merge(&format!("{WIDGETS}/a/status"), &status).await.expect(200);
    let scaler = json!({
        "apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": {"name": "a"},
        "spec": {
            "scaleTargetRef": {"apiVersion": "example.com/v1", "kind": "Widget", "name": "a"},
            "minReplicas": 3, "maxReplicas": 5,
            "metrics": [{"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 50}}}],
        },
    });
    let scalers = "/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers";
    server.post(scalers, &scaler).await.expect(201);
    server.until(&format!("{WIDGETS}/a"), |answer| answer.json()["spec"]["replicas"] == 3).await;
    let path = format!("{scalers}/a");
    server.until(&path, |answer| condition(&answer.json(), "AbleToScale").0 == "True").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_namespace_goes_with_its_custom_objects() {
    let Some(server) = Server::start().await else { return };
    let _loops = ControlLoops::start(&server);
    server.define(&definition()).await;
    server.post("/api/v1/namespaces", &namespace("doomed")).await.expect(201);
    let widgets = "/apis/example.com/v1/namespaces/doomed/widgets";
    let mut held = red("held");
    held["metadata"]["finalizers"] = json!(["example.com/hold"]);
    server.post(widgets, &held).await.expect(201);
    server.post(widgets, &red("free")).await.expect(201);
    server.delete("/api/v1/namespaces/doomed").await.expect(200);
    server.until(&format!("{widgets}/free"), |answer| answer.code == 404).await;
    let path = "/api/v1/namespaces/doomed";
    server.until(path, |answer| condition(&answer.json(), "NamespaceFinalizersRemaining").0 == "True").await;
    server.merge(&format!("{widgets}/held"), &json!({"metadata": {"finalizers": null}})).await.expect(200);
    server.until(path, |answer| answer.code == 404).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn custom_objects_are_counted_by_quotas() {
    let Some(server) = Server::start().await else { return };
    let _loops = ControlLoops::start(&server);
    server.define(&definition()).await;
    let quotas = "/api/v1/namespaces/default/resourcequotas";
    let quota = json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "few"}, "spec": {"hard": {"count/widgets.example.com": "1"}}});
    server.post(quotas, &quota).await.expect(201);
    let one = format!("{quotas}/few");
    let used = |count: &'static str| {
        move |answer: &ferry_testkit::Answer| {
            answer.json()["status"]["used"]["count/widgets.example.com"] == count
        }
    };
    server.until(&one, used("0")).await;
    server.post(WIDGETS, &red("a")).await.expect(201);
    server.until(&one, used("1")).await;
    let refused = server.post(WIDGETS, &red("b")).await.expect(403);
    assert_eq!(
        refused["message"],
        r#"widgets.example.com "b" is forbidden: exceeded quota: few, requested: count/widgets.example.com=1, used: count/widgets.example.com=1, limited: count/widgets.example.com=1"#
    );
    server.delete(&format!("{WIDGETS}/a")).await.expect(200);
    server.until(&one, used("0")).await;
    server.post(WIDGETS, &red("b")).await.expect(201);
}

/// Definitions that people use, where they lie beside the repository.
fn shared() -> Vec<PathBuf> {
    fn files(directory: &Path, found: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(directory).into_iter().flatten().filter_map(Result::ok) {
            let path = entry.path();
            match path.extension().and_then(|extension| extension.to_str()) {
                _ if path.is_dir() => files(&path, found),
                Some("yaml") => found.push(path),
                _ => {}
            }
        }
    }
    let mut found = Vec::new();
    files(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/crds"), &mut found);
    found.sort();
    if found.is_empty() {
        eprintln!("passed over: there are no shared definitions");
    }
    found
}

fn definitions_in(files: &[PathBuf]) -> usize {
    let text = files.iter().map(|file| std::fs::read_to_string(file).expect("a file"));
    text.map(|text| text.lines().filter(|line| *line == "kind: CustomResourceDefinition").count()).sum()
}

async fn all_are_established(server: &Server, expected: usize) -> Vec<String> {
    let list = server.get(DEFINITIONS).await.expect(200);
    let all: Vec<String> = names(&list).into_iter().map(str::to_string).collect();
    assert_eq!(all.len(), expected);
    for name in &all {
        let path = format!("{DEFINITIONS}/{name}");
        let settled =
            server.until(&path, |answer| !condition(&answer.json(), "Established").0.is_empty()).await;
        assert_eq!(condition(&settled.json(), "Established").0, "True", "{name}");
    }
    all
}

#[tokio::test]
async fn definitions_that_people_use_are_created_by_kubectl() {
    let files = shared();
    let Some(server) = Server::start().await else { return };
    for file in &files {
        let path = file.to_str().expect("a path");
        // kubectl is older than some words of schemas: the server judges.
        let Some((done, text)) = server.kubectl(&["create", "--validate=false", "-f", path]).await else {
            return;
        };
        assert!(done && text.contains("created"), "{path}: {text}");
    }
    let names = all_are_established(&server, definitions_in(&files)).await;
    for name in &names {
        let Some((done, text)) = server.kubectl(&["get", name]).await else { return };
        assert!(done, "{name}: {text}");
    }
}

#[tokio::test]
async fn definitions_that_people_use_are_applied_and_applied_again() {
    let files = shared();
    let Some(server) = Server::start().await else { return };
    for round in ["applied", "applied again"] {
        for file in &files {
            let text = std::fs::read_to_string(file).expect("a file");
            for document in
                text.split("\n---").filter(|document| document.contains("kind: CustomResourceDefinition"))
            {
                let name = document.lines().find_map(|line| line.strip_prefix("  name: ")).expect("a name");
                let path = format!("{DEFINITIONS}/{}?fieldManager=tests&force=true", name.trim());
                let headers = [("content-type", "application/apply-patch+yaml")];
                let body = document.as_bytes().to_vec();
                let answer =
                    ferry_testkit::send(&server.client, http::Method::PATCH, &path, &headers, body).await;
                assert!(answer.code < 300, "{name} {round}: {}", answer.json()["message"]);
            }
        }
        let names = all_are_established(&server, definitions_in(&files)).await;
        for name in names {
            let definition = server.get(&format!("{DEFINITIONS}/{name}")).await.expect(200);
            assert_eq!(definition["metadata"]["generation"], 1, "{name}: nothing changed");
        }
    }
    server.get("/openapi/v2").await.expect(200);
}
