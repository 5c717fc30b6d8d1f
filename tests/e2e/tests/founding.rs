//! What a new cluster has is written in few transactions, and is the same as if each object were created by a request.

use ferry_testkit::TestServer;
use serde_json::{Value, json};

const LISTS: &[&str] = &[
    "/api/v1/namespaces",
    "/api/v1/services",
    "/api/v1/endpoints",
    "/api/v1/configmaps",
    "/apis/apiregistration.k8s.io/v1/apiservices",
    "/apis/discovery.k8s.io/v1/endpointslices",
    "/apis/flowcontrol.apiserver.k8s.io/v1/flowschemas",
    "/apis/flowcontrol.apiserver.k8s.io/v1/prioritylevelconfigurations",
    "/apis/networking.k8s.io/v1/ipaddresses",
    "/apis/networking.k8s.io/v1/servicecidrs",
    "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
    "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    "/apis/rbac.authorization.k8s.io/v1/rolebindings",
    "/apis/rbac.authorization.k8s.io/v1/roles",
    "/apis/scheduling.k8s.io/v1/priorityclasses",
];

/// What differs between two servers: when and as what it was written, ports and certificates.
const OWN: &[&str] = &[
    "client-ca-file",
    "creationTimestamp",
    "lastTransitionTime",
    "port",
    "requestheader-client-ca-file",
    "resourceVersion",
    "targetPort",
    "time",
    "uid",
];

fn without_own(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|name, _| !OWN.contains(&name.as_str()));
            fields.values_mut().for_each(without_own);
        }
        Value::Array(items) => items.iter_mut().for_each(without_own),
        _ => {}
    }
}

async fn listed(server: &TestServer, path: &str) -> Vec<Value> {
    let mut items = server.get(path).await.expect(200)["items"].take();
    without_own(&mut items);
    items.as_array().expect("a list").clone()
}

async fn revision(server: &TestServer) -> i64 {
    let list = server.get("/api/v1/namespaces").await.expect(200);
    list["metadata"]["resourceVersion"].as_str().and_then(|text| text.parse().ok()).expect("a revision")
}

/// Requests that are written down are made one by one.
async fn audited() -> TestServer {
    let policy = json!({"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "rules": [{"level": "None"}]});
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), policy.to_string()).expect("written");
    TestServer::start_with(|config| config.audit.policy_file = Some(file.path().to_owned())).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn first_objects_equal_those_created_by_requests() {
    let (together, alone) = (TestServer::start().await, audited().await);
    let (few, many) = (revision(&together).await, revision(&alone).await);
    assert!(few < 40 && many > 150, "{few} and {many} transactions");
    let mut objects = 0;
    for path in LISTS {
        let (made, wanted) = (listed(&together, path).await, listed(&alone, path).await);
        assert_eq!(made.len(), wanted.len(), "{path}");
        for (made, wanted) in made.iter().zip(&wanted) {
            assert_eq!(made, wanted, "{path}");
        }
        objects += made.len();
    }
    assert!(objects > 150, "{objects}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn first_objects_keep_what_another_server_wrote_concurrently() {
    let directory = tempfile::tempdir().expect("a directory");
    let store =
        ferry_store::Embedded::open(ferry_store::embedded::Config::new(directory.path().join("store")))
            .expect("a store");
    let store: std::sync::Arc<dyn ferry_store::Store> = std::sync::Arc::new(store);
    let name = "system-node-critical";
    let class = json!({
        "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass",
        "metadata": {"name": name, "uid": "of-another"}, "value": 2_000_001_000, "description": "of another server",
    });
    let key = format!("/registry/priorityclasses/{name}");
    store.commit(ferry_store::Txn::create(key, class.to_string().into())).await.expect("written");

    let (server, alone) = (TestServer::start_on(store, directory, |_| {}).await, audited().await);
    let path = format!("/apis/scheduling.k8s.io/v1/priorityclasses/{name}");
    assert_eq!(server.get(&path).await.expect(200)["metadata"]["uid"], "of-another");
    for path in LISTS {
        assert_eq!(listed(&server, path).await.len(), listed(&alone, path).await.len(), "{path}");
    }
}
