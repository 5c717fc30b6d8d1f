//! Objects that others finish before anyone sees them, with the example initializers against the real server.

use std::time::Duration;

use base64::Engine;
use ferry_apiserver::RuntimeConfig;
use ferry_example_initializers::{Decision, Initializer, long_secrets, run, sidecar, test_certificates};
use ferry_testkit::{TestServer, send};
use futures::{StreamExt, TryStreamExt};
use http::Method;
use kube::Client;
use kube::core::WatchEvent;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

const CONFIGURATIONS: &str = "/apis/admissionregistration.k8s.io/v1alpha1/initializerconfigurations";
const MAPS: &str = "/api/v1/namespaces/default/configmaps";

async fn server() -> TestServer {
    TestServer::start_with(|config| {
        config.runtime_config =
            RuntimeConfig::parse("admissionregistration.k8s.io/v1alpha1=true").expect("well formed");
    })
    .await
}

async fn configure(server: &TestServer, name: &str, initializers: &[(&str, &str)]) {
    let rule = |resource: &str| json!([{"apiGroups": [""], "apiVersions": ["v1"], "resources": [resource]}]);
    let initializers: Vec<Value> =
        initializers.iter().map(|(name, resource)| json!({"name": name, "rules": rule(resource)})).collect();
    let configuration = json!({
        "apiVersion": "admissionregistration.k8s.io/v1alpha1", "kind": "InitializerConfiguration",
        "metadata": {"name": name}, "initializers": initializers,
    });
    server.post(CONFIGURATIONS, &configuration).await.expect(201);
}

/// An initializer at work, until it is dropped.
struct Working(JoinHandle<()>);

impl Drop for Working {
    fn drop(&mut self) {
        self.0.abort();
    }
}

fn work(
    client: Client,
    name: &str,
    path: &str,
    decide: impl Fn(&mut Value) -> Decision + Send + Sync + 'static,
) -> Working {
    let initializer = Initializer { name: name.into(), path: path.into() };
    Working(tokio::spawn(async move {
        run(&client, &initializer, decide).await.expect("the initializer works");
    }))
}

fn config_map(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"k": "v"}})
}

fn pod(name: &str, annotations: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "annotations": annotations},
        "spec": {"containers": [{"name": "app", "image": "app:1"}], "automountServiceAccountToken": false}})
}

async fn namespace(server: &TestServer, name: &str) {
    if name != "default" {
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
        server.post("/api/v1/namespaces", &namespace).await.expect(201);
    }
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}});
    server.post(&format!("/api/v1/namespaces/{name}/serviceaccounts"), &account).await.expect(201);
}

#[tokio::test]
async fn initializers_are_served_on_request_only() {
    let plain = TestServer::start().await;
    assert_eq!(plain.get(CONFIGURATIONS).await.code, 404);
    // Without them the field means nothing.
    let mut object = config_map("a");
    object["metadata"]["initializers"] = json!({"pending": [{"name": "x.example.com"}]});
    let created = plain.post(MAPS, &object).await.expect(201);
    assert_eq!(created["metadata"]["initializers"], Value::Null);
    let served = server().await;
    assert_eq!(served.get(CONFIGURATIONS).await.expect(200)["kind"], "InitializerConfigurationList");
    let refused = json!({
        "apiVersion": "admissionregistration.k8s.io/v1alpha1", "kind": "InitializerConfiguration",
        "metadata": {"name": "bad"}, "initializers": [{"name": "short", "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods/status"]}]}],
    });
    let message = served.post(CONFIGURATIONS, &refused).await.expect(422)["message"].to_string();
    assert!(message.contains("should be a domain with at least three segments"), "{message}");
    assert!(message.contains("must not specify subresources"), "{message}");
}

#[tokio::test]
async fn an_unfinished_object_is_hidden_until_the_last_name_is_gone() {
    let server = server().await;
    configure(&server, "two", &[("a.example.com", "configmaps"), ("b.example.com", "configmaps")]).await;
    let request = http::Request::get(format!("{MAPS}?watch=true")).body(Vec::new()).expect("a request");
    let admin = server.admin();
    let events = admin.request_events::<Value>(request).await.expect("a watch");
    let mut events = Box::pin(events.filter(|event| {
        let own = !matches!(event, Ok(WatchEvent::Added(object)) if object["metadata"]["name"] == "kube-root-ca.crt");
        futures::future::ready(own)
    }));

    // Asking to see it means not to wait.
    let created =
        server.post(&format!("{MAPS}?includeUninitialized=true"), &config_map("x")).await.expect(201);
    let pending = json!([{"name": "a.example.com"}, {"name": "b.example.com"}]);
    assert_eq!(created["metadata"]["initializers"]["pending"], pending);
    let one = format!("{MAPS}/x");
    let hidden = server.get(&one).await.expect(404);
    assert_eq!(hidden["message"], "configmaps \"x\" not found");
    assert_eq!(server.get(&format!("{one}?includeUninitialized=true")).await.expect(200), created);
    let names = |list: Value| -> Vec<String> {
        let items = list["items"].as_array().cloned().unwrap_or_default();
        items.iter().map(|item| item["metadata"]["name"].as_str().unwrap_or("").to_string()).collect()
    };
    assert!(!names(server.get(MAPS).await.expect(200)).contains(&"x".to_string()));
    assert!(
        names(server.get(&format!("{MAPS}?includeUninitialized=true")).await.expect(200))
            .contains(&"x".into())
    );
    // The name is taken all the same.
    server.post(MAPS, &config_map("x")).await.expect(409);

    // Not the second before the first, and not both at once.
    let only_a = json!({"metadata": {"initializers": {"pending": [{"name": "a.example.com"}]}}});
    let refused = server.patch(&one, "merge", &only_a).await.expect(422);
    assert!(refused["message"].as_str().expect("a message").contains("only the first name may be removed"));
    server.patch(&one, "merge", &json!({"metadata": {"initializers": null}})).await.expect(422);
    let only_b =
        json!({"metadata": {"initializers": {"pending": [{"name": "b.example.com"}]}}, "data": {"by": "a"}});
    server.patch(&one, "merge", &only_b).await.expect(200);
    server.get(&one).await.expect(404);
    server.patch(&one, "merge", &json!({"metadata": {"initializers": {"pending": []}}})).await.expect(200);

    let shown = server.get(&one).await.expect(200);
    assert_eq!(shown["metadata"]["initializers"], Value::Null);
    assert_eq!(shown["data"], json!({"k": "v", "by": "a"}));
    // To a watcher it is new now, and only now.
    let event = tokio::time::timeout(Duration::from_secs(10), events.try_next()).await.expect("in time");
    match event.expect("no error") {
        Some(WatchEvent::Added(object)) => assert_eq!(object, shown),
        other => panic!("{other:?}"),
    }
    // Finished is finished.
    let again = json!({"metadata": {"initializers": {"pending": [{"name": "a.example.com"}]}}});
    let refused = server.patch(&one, "merge", &again).await.expect(422);
    assert!(
        refused["message"]
            .as_str()
            .expect("a message")
            .contains("immutable once initialization has completed")
    );
}

#[tokio::test]
async fn the_creating_request_waits_with_its_deadline() {
    let server = server().await;
    configure(&server, "slow", &[("never.example.com", "configmaps")]).await;
    let failed = server.post(&format!("{MAPS}?timeout=2s"), &config_map("x")).await.expect(504);
    assert_eq!(
        failed["message"],
        "Timeout: server has timed out waiting for the initialization of configmaps x"
    );
    // It still waits for its initializer, and can be deleted.
    server.get(&format!("{MAPS}/x?includeUninitialized=true")).await.expect(200);
    server.delete(&format!("{MAPS}/x")).await.expect(200);
    server.get(&format!("{MAPS}/x?includeUninitialized=true")).await.expect(404);
    // A collection is emptied of what is not seen as well.
    server.post(&format!("{MAPS}?includeUninitialized=true"), &config_map("y")).await.expect(201);
    server.delete(MAPS).await.expect(200);
    server.get(&format!("{MAPS}/y?includeUninitialized=true")).await.expect(404);
}

#[tokio::test]
async fn only_the_holder_of_the_first_name_may_act() {
    let server = server().await;
    configure(&server, "two", &[("a.example.com", "configmaps"), ("b.example.com", "configmaps")]).await;
    let role = |name: &str, rules: Value| json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": name}, "rules": rules});
    let edit = json!({"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "update", "patch"]});
    for user in ["a", "b", "plain"] {
        let mut rules = vec![edit.clone()];
        if user != "plain" {
            rules.push(json!({"apiGroups": ["admissionregistration.k8s.io"], "resources": ["initializers"],
                "resourceNames": [format!("{user}.example.com")], "verbs": ["initialize"]}));
        }
        server
            .post("/apis/rbac.authorization.k8s.io/v1/clusterroles", &role(user, rules.into()))
            .await
            .expect(201);
        let binding = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": user},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": user},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}]});
        server.post("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", &binding).await.expect(201);
    }
    server.post(&format!("{MAPS}?includeUninitialized=true"), &config_map("x")).await.expect(201);
    let patch = async |user: &str, patch: Value| {
        let headers = [("content-type", "application/merge-patch+json")];
        send(&server.user(user, &[]), Method::PATCH, &format!("{MAPS}/x"), &headers, patch.to_string().into())
            .await
    };
    let take_first = json!({"metadata": {"initializers": {"pending": [{"name": "b.example.com"}]}}});
    for user in ["plain", "b"] {
        for change in [json!({"data": {"mine": "yes"}}), take_first.clone()] {
            let refused = patch(user, change).await.expect(403);
            let message = refused["message"].as_str().expect("a message");
            assert!(message.contains("update to uninitialized resource denied"), "{message}");
        }
    }
    patch("a", take_first).await.expect(200);
    // Its turn is over.
    patch("a", json!({"data": {"mine": "yes"}})).await.expect(403);
    patch("b", json!({"metadata": {"initializers": null}})).await.expect(200);
    // Now it is an object like any other.
    patch("plain", json!({"data": {"mine": "yes"}})).await.expect(200);
    // Nor can just anyone leave the initializers out.
    let mut bypassing = config_map("y");
    bypassing["metadata"]["initializers"] = json!({"pending": []});
    let made = server.post(MAPS, &bypassing).await.expect(201);
    assert_eq!(made["metadata"]["initializers"], Value::Null);
}

#[tokio::test]
async fn the_example_initializers_finish_and_refuse() {
    let server = server().await;
    namespace(&server, "default").await;
    namespace(&server, "tests").await;
    let _sidecar = work(server.admin(), "sidecar.example.com", "/api/v1/pods", sidecar);
    let _certificates =
        work(server.admin(), "test-certificates.example.com", "/api/v1/pods", test_certificates("tests"));
    let _secrets = work(server.admin(), "long-secrets.example.com", "/api/v1/secrets", long_secrets);
    configure(
        &server,
        "examples",
        &[
            ("sidecar.example.com", "pods"),
            ("test-certificates.example.com", "pods"),
            ("long-secrets.example.com", "secrets"),
        ],
    )
    .await;

    let plain = server.post("/api/v1/namespaces/default/pods", &pod("plain", json!({}))).await.expect(201);
    assert_eq!(plain["metadata"]["initializers"], Value::Null);
    assert_eq!(plain["spec"]["containers"].as_array().map(Vec::len), Some(1));
    let asked = pod("asked", json!({"sidecar.example.com/image": "proxy:2"}));
    let asked = server.post("/api/v1/namespaces/tests/pods", &asked).await.expect(201);
    assert_eq!(asked["spec"]["containers"][1]["image"], "proxy:2");
    assert_eq!(asked["spec"]["volumes"][0]["secret"]["secretName"], "test-certificates");
    for container in asked["spec"]["containers"].as_array().expect("containers") {
        assert_eq!(container["volumeMounts"][0]["mountPath"], "/var/run/test-certificates");
    }

    let secret = |name: &str, value: &str| {
        let value = base64::engine::general_purpose::STANDARD.encode(value);
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "data": {"password": value}})
    };
    let secrets = "/api/v1/namespaces/default/secrets";
    server.post(secrets, &secret("long", "a value of more than twenty characters")).await.expect(201);
    let refused = server.post(secrets, &secret("short", "hunter2")).await.expect(403);
    assert_eq!(refused["message"], "the value of \"password\" has fewer than 20 characters");
    server.get(&format!("{secrets}/short")).await.expect(404);
    wait_gone(&server, &format!("{secrets}/short?includeUninitialized=true")).await;
}

/// The refusal is told with the write that says so; the deletion is the next.
async fn wait_gone(server: &TestServer, path: &str) {
    let gone = async {
        while server.get(path).await.code != 404 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), gone).await.expect("deleted in time");
}
