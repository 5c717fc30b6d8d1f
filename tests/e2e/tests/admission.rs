//! Admission plugins through a real server, as clients see them.

use ferry_testkit::{Answer, TestServer};
use futures::future::join_all;
use serde_json::{Value, json};

const PODS: &str = "/api/v1/namespaces/default/pods";
const QUOTAS: &str = "/api/v1/namespaces/default/resourcequotas";

fn pod(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {"containers": [{
            "name": "c", "image": "i", "resources": {"requests": {"cpu": "100m"}, "limits": {"cpu": "200m"}},
        }]},
    })
}

fn message(answer: &Answer, code: u16) -> String {
    answer.expect(code)["message"].as_str().expect("words").to_string()
}

/// A quota that was counted once, as the quota controller does.
async fn quota(server: &TestServer, spec: Value) {
    let hard = spec["hard"].clone();
    let zeros: serde_json::Map<String, Value> =
        hard.as_object().expect("limits").keys().map(|name| (name.clone(), "0".into())).collect();
    let quota = json!({
        "apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q"}, "spec": spec,
    });
    server.post(QUOTAS, &quota).await.expect(201);
    let status = json!({"status": {"hard": hard, "used": zeros}});
    server.patch(&format!("{QUOTAS}/q/status"), "merge", &status).await.expect(200);
}

async fn used(server: &TestServer) -> Value {
    server.get(&format!("{QUOTAS}/q")).await.expect(200)["status"]["used"].clone()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fifty_clients_at_once_never_get_more_than_the_quota_has() {
    let server = TestServer::start().await;
    quota(&server, json!({"hard": {"pods": "20", "requests.cpu": "1500m"}})).await;
    let create = |number: usize| {
        let server = &server;
        async move { server.post(PODS, &pod(&format!("p{number}"))).await }
    };
    let answers = join_all((0..50).map(create)).await;
    let made = answers.iter().filter(|answer| answer.code == 201).count();
    assert_eq!(made, 15);
    for refused in answers.iter().filter(|answer| answer.code != 201) {
        let words = message(refused, 403);
        assert!(
            words.ends_with(
                "is forbidden: exceeded quota: q, requested: requests.cpu=100m, used: requests.cpu=1500m, limited: requests.cpu=1500m"
            ),
            "{words}"
        );
    }
    let pods = server.get(PODS).await.expect(200);
    assert_eq!(pods["items"].as_array().map(Vec::len), Some(15));
    assert_eq!(used(&server).await, json!({"pods": "15", "requests.cpu": "1500m"}));
}

#[tokio::test]
async fn a_write_that_does_not_happen_costs_nothing() {
    let server = TestServer::start().await;
    quota(&server, json!({"hard": {"pods": "2", "count/configmaps": "5"}})).await;
    server.post(&format!("{PODS}?dryRun=All"), &pod("a")).await.expect(201);
    assert_eq!(used(&server).await["pods"], "0");
    server.post(PODS, &pod("a")).await.expect(201);
    server.post(PODS, &pod("a")).await.expect(409);
    let mut invalid = pod("b");
    invalid["spec"]["containers"] = json!([]);
    server.post(PODS, &invalid).await.expect(422);
    assert_eq!(used(&server).await, json!({"pods": "1", "count/configmaps": "0"}));
    // A dry run is refused where the real one would be.
    server.post(PODS, &pod("b")).await.expect(201);
    server.post(&format!("{PODS}?dryRun=All"), &pod("c")).await.expect(403);
}

#[tokio::test]
async fn updates_that_use_more_are_charged_too() {
    let server = TestServer::start().await;
    quota(
        &server,
        json!({"hard": {"requests.cpu": "300m", "services.nodeports": "1", "requests.storage": "2Gi"}}),
    )
    .await;
    server.post(PODS, &pod("a")).await.expect(201);
    let resize = |cpu: &str| json!({"spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}, "limits": {"cpu": "1"}}}]}});
    let path = format!("{PODS}/a/resize");
    let refused = server.patch(&path, "strategic-merge", &resize("400m")).await;
    assert_eq!(
        message(&refused, 403),
        "pods \"a\" is forbidden: exceeded quota: q, requested: requests.cpu=300m, used: requests.cpu=100m, limited: requests.cpu=300m"
    );
    server.patch(&path, "strategic-merge", &resize("250m")).await.expect(200);
    assert_eq!(used(&server).await["requests.cpu"], "250m");

    let services = "/api/v1/namespaces/default/services";
    let service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"},
        "spec": {"ports": [{"name": "a", "port": 80}, {"name": "b", "port": 81}]},
    });
    server.post(services, &service).await.expect(201);
    let refused =
        server.patch(&format!("{services}/s"), "merge", &json!({"spec": {"type": "NodePort"}})).await;
    assert!(message(&refused, 403).contains("requested: services.nodeports=2"), "{refused:?}");

    let claims = "/api/v1/namespaces/default/persistentvolumeclaims";
    let claim = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "v"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "3Gi"}}},
    });
    assert!(message(&server.post(claims, &claim).await, 403).contains("limited: requests.storage=2Gi"));
}

#[tokio::test]
async fn a_pod_runs_as_an_account_that_exists() {
    let server = TestServer::start_with(|config| config.disable_admission_plugins.clear()).await;
    let refused = server.post(PODS, &pod("a")).await;
    assert_eq!(
        message(&refused, 403),
        "pods \"a\" is forbidden: error looking up service account default/default: serviceaccount \"default\" not found"
    );
    let accounts = "/api/v1/namespaces/default/serviceaccounts";
    let account = json!({
        "apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"},
        "imagePullSecrets": [{"name": "pull"}],
    });
    // The account comes while the pod's request waits for it.
    let wanted = pod("a");
    let (pod_answer, account_answer) =
        tokio::join!(server.post(PODS, &wanted), server.post(accounts, &account));
    account_answer.expect(201);
    let created = pod_answer.expect(201);
    assert_eq!(created["spec"]["serviceAccountName"], "default");
    assert_eq!(created["spec"]["serviceAccount"], "default");
    assert_eq!(created["spec"]["imagePullSecrets"], json!([{"name": "pull"}]));
    let volume = &created["spec"]["volumes"][0];
    let name = volume["name"].as_str().expect("a name");
    assert!(name.starts_with("kube-api-access-") && name.len() == "kube-api-access-".len() + 5, "{name}");
    assert_eq!(volume["projected"]["sources"][0]["serviceAccountToken"]["expirationSeconds"], 3607);
    let mount = &created["spec"]["containers"][0]["volumeMounts"][0];
    assert_eq!(mount["name"], name);
    assert_eq!(mount["mountPath"], "/var/run/secrets/kubernetes.io/serviceaccount");

    let mut quiet = pod("b");
    quiet["spec"]["automountServiceAccountToken"] = false.into();
    assert!(server.post(PODS, &quiet).await.expect(201)["spec"]["volumes"].is_null());
    let mut stranger = pod("c");
    stranger["spec"]["serviceAccountName"] = "nobody".into();
    server.post(PODS, &stranger).await.expect(403);
}
