//! API servers besides this one: how they are registered, when they are taken for alive, and what passes through to them.

mod extension;

use std::time::Duration;

use ferry_testkit::{Answer, TestServer};
use http::Method;
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use extension::{Extension, GROUP, RESOURCES, SERVICES, registration, service, slice};

const SLICE: &str = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/api-1";
const SLICES: &str = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices";
const FLUNDERS: &str = "/apis/apiregistration.k8s.io/v1/apiservices/v1.wardle.example.com";

async fn until<T>(what: &str, mut ask: impl AsyncFnMut() -> Option<T>) -> T {
    for _ in 0..600 {
        if let Some(found) = ask().await {
            return found;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("{what} did not come");
}

fn available(service: &Value) -> (&str, &str, &str) {
    let conditions = service["status"]["conditions"].as_array().map_or(&[][..], Vec::as_slice);
    let found = conditions.iter().find(|condition| condition["type"] == "Available");
    found.map_or(("", "", ""), |found| {
        let text = |field: &str| found[field].as_str().unwrap_or("");
        (text("status"), text("reason"), text("message"))
    })
}

/// Waits for this reason, and gives back the message.
async fn told(server: &TestServer, path: &str, reason: &str) -> String {
    let mut last = String::new();
    let what = format!("the reason {reason} of {path}");
    let found = until(&what, async || {
        let service = server.get(path).await.expect(200);
        let (_, is, message) = available(&service);
        if last != is {
            last = is.to_string();
            eprintln!("{path}: {is}: {message}");
        }
        (is == reason).then(|| message.to_string())
    });
    found.await
}

/// A backend that is asked, and is there.
async fn served(server: &TestServer) -> Extension {
    let extension = Extension::start(server, GROUP, "v1").await;
    extension.publish(server).await;
    server.post(SERVICES, &extension.registration()).await.expect(201);
    assert_eq!(told(server, FLUNDERS, "Passed").await, "all checks passed");
    until("a request to pass", async || (server.get(RESOURCES).await.code == 200).then_some(())).await;
    extension
}

fn text(answer: &Answer) -> String {
    String::from_utf8_lossy(&answer.bytes).into_owned()
}

fn header<'v>(asked: &'v Value, name: &str) -> Vec<&'v str> {
    let headers = asked["asked"]["headers"].as_array().expect("headers");
    headers.iter().filter(|header| header[0] == name).filter_map(|header| header[1].as_str()).collect()
}

#[tokio::test]
async fn served_versions_are_registered_as_apiservices() {
    let server = TestServer::start().await;
    let apps = server.get(&format!("{SERVICES}/v1.apps")).await.expect(200);
    assert_eq!(apps["metadata"]["labels"], json!({"kube-aggregator.kubernetes.io/automanaged": "onstart"}));
    assert_eq!(
        apps["spec"],
        json!({"group": "apps", "version": "v1", "groupPriorityMinimum": 17800, "versionPriority": 15})
    );
    assert_eq!(available(&apps), ("True", "Local", "Local APIServices are always available"));
    server.get(&format!("{SERVICES}/v1.")).await.expect(200);
    server.get(&format!("{SERVICES}/v1beta1.metrics.k8s.io")).await.expect(404);

    let version = |name: &str, served: bool| json!({"name": name, "served": served, "storage": name == "v1", "schema": {"openAPIV3Schema": {"type": "object"}}});
    let definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "widgets.example.com"},
        "spec": {
            "group": "example.com", "scope": "Namespaced",
            "names": {"plural": "widgets", "singular": "widget", "kind": "Widget", "listKind": "WidgetList"},
            "versions": [version("v1", true), version("v2", true)],
        },
    });
    let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    server.post(definitions, &definition).await.expect(201);
    let path = format!("{SERVICES}/v1.example.com");
    let custom = async || {
        let answer = server.get(&path).await;
        (answer.code == 200).then(|| answer.json())
    };
    let made = until("the definition's APIService", custom).await;
    assert_eq!(made["metadata"]["labels"]["kube-aggregator.kubernetes.io/automanaged"], "true");
    assert_eq!(
        (&made["spec"]["groupPriorityMinimum"], &made["spec"]["versionPriority"]),
        (&json!(1000), &json!(100))
    );
    // It is kept, whoever takes it away.
    server.delete(&path).await.expect(200);
    let again = until("the APIService to come back", custom).await;
    assert_ne!(again["metadata"]["uid"], made["metadata"]["uid"]);
    // A version that is served no more is registered no more.
    let second = format!("{SERVICES}/v2.example.com");
    until("the second version's APIService", async || (server.get(&second).await.code == 200).then_some(()))
        .await;
    let versions = json!({"spec": {"versions": [version("v1", true), version("v2", false)]}});
    server.patch(&format!("{definitions}/widgets.example.com"), "merge", &versions).await.expect(200);
    until("the APIService to go", async || (server.get(&second).await.code == 404).then_some(())).await;
    server.get(&path).await.expect(200);

    let refused = registration("a.example.com", "v1", "");
    let refused = json!({"apiVersion": refused["apiVersion"], "kind": "APIService", "metadata": {"name": "v2.a.example.com"}, "spec": refused["spec"]});
    let refused = server.post(SERVICES, &refused).await.expect(422);
    let words = "must be `spec.version+\".\"+spec.group`: \"v1.a.example.com\"";
    assert!(refused["message"].as_str().is_some_and(|message| message.contains(words)), "{refused}");
}

#[tokio::test]
async fn the_condition_tells_what_is_missing_until_the_backend_is_there_and_when_it_goes() {
    let server = TestServer::start().await;
    let extension = Extension::start(&server, GROUP, "v1").await;
    server.post(SERVICES, &extension.registration()).await.expect(201);
    assert_eq!(told(&server, FLUNDERS, "ServiceNotFound").await, "service/api in \"default\" is not present");
    let away = server.get(RESOURCES).await;
    assert_eq!((away.code, text(&away)), (503, "service unavailable\n".into()));

    let services = "/api/v1/namespaces/default/services";
    let made = server.post(services, &service(80)).await.expect(201);
    let message = told(&server, FLUNDERS, "ServicePortError").await;
    assert_eq!(message, "service/api in \"default\" is not listening on port 443");
    let mut right = made.clone();
    right["spec"]["ports"] = json!([{"name": "https", "port": 443}]);
    server.put(&format!("{services}/api"), &right).await.expect(200);
    let message = told(&server, FLUNDERS, "EndpointsNotFound").await;
    assert_eq!(message, "cannot find endpointslices for service/api in \"default\"");

    server.post(SLICES, &slice(extension.port, false)).await.expect(201);
    let message = told(&server, FLUNDERS, "MissingEndpoints").await;
    let expected = "endpointslices for service/api in \"default\" have no addresses with port name \"https\"";
    assert_eq!(message, expected);
    let ready = json!({"endpoints": [{"addresses": ["127.0.0.1"], "conditions": {"ready": true}}]});
    server.patch(SLICE, "merge", &ready).await.expect(200);
    told(&server, FLUNDERS, "Passed").await;
    until("a request to pass", async || (server.get(RESOURCES).await.code == 200).then_some(())).await;

    let address = format!("127.0.0.1:{}", extension.port);
    drop(extension);
    let gone = until("the backend to be missed", async || {
        let answer = server.get(RESOURCES).await;
        (answer.code != 200).then_some(answer)
    });
    assert_eq!(gone.await.code, 503);
    let message = told(&server, FLUNDERS, "FailedDiscoveryCheck").await;
    assert!(message.contains(&format!("dial tcp {address}: connect: connection refused")), "{message}");
    assert!(
        message.starts_with("failing or missing response from https://api.default.svc:443/apis/"),
        "{message}"
    );
    until("requests to be refused at once", async || {
        (text(&server.get(RESOURCES).await) == "service unavailable\n").then_some(())
    })
    .await;
    // Nobody else has anything of it.
    assert_eq!(server.get("/readyz").await.code, 200);
    server.get("/api/v1/namespaces").await.expect(200);
    let group = server.get(&format!("/apis/{GROUP}")).await.expect(200);
    assert_eq!(group["preferredVersion"]["groupVersion"], format!("{GROUP}/v1"));

    // When the APIService goes the group goes with it.
    server.delete(FLUNDERS).await.expect(200);
    until("the group to go", async || {
        (server.get(&format!("/apis/{GROUP}")).await.code == 404).then_some(())
    })
    .await;
    assert_eq!(server.get(RESOURCES).await.code, 404);
}

#[tokio::test]
async fn backends_get_the_authenticated_user_and_no_forged_headers() {
    let server = TestServer::start().await;
    let _extension = served(&server).await;
    let pki = &server.running().pki;
    let jane =
        pki.client_certificate("jane", &["developers"], std::time::SystemTime::now()).expect("a certificate");
    let outside = server.outside(Some((&jane.certificate, &jane.key)));
    // The server decides too, before anybody else is asked.
    let refused = outside.ask(&format!("GET {RESOURCES}"), &[], "").await;
    assert_eq!(refused.code, 403, "{refused:?}");

    let role = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "flunders"},
        "rules": [{"apiGroups": [GROUP], "resources": ["flunders"], "verbs": ["*"]}]});
    server.post("/apis/rbac.authorization.k8s.io/v1/clusterroles", &role).await.expect(201);
    let binding = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": "flunders"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "flunders"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "developers"}]});
    server.post("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", &binding).await.expect(201);
    let lies: Vec<String> = [
        "x-remote-user: root",
        "x-remote-group: system:masters",
        "x-remote-extra-scopes: all",
        "x-remote-uid: 0",
        "x-kept: yes",
    ]
    .map(String::from)
    .to_vec();
    let line = format!("POST {RESOURCES}?fieldManager=a%20b");
    let body = json!({"padding": "x".repeat(5 << 20)}).to_string();
    let said = outside.ask(&line, &lies, &body).await;
    assert_eq!(said.code, 200, "{said:?}");
    let asked = said.json();
    assert_eq!(header(&asked, "x-remote-user"), ["jane"]);
    assert_eq!(header(&asked, "x-remote-group"), ["developers", "system:authenticated"]);
    assert_eq!(header(&asked, "x-remote-uid"), [""; 0]);
    assert_eq!(header(&asked, "x-remote-extra-scopes"), [""; 0]);
    assert_eq!(header(&asked, "x-remote-extra-authentication.kubernetes.io%2fcredential-id").len(), 1);
    assert_eq!(header(&asked, "x-kept"), ["yes"]);
    assert_eq!(header(&asked, "authorization"), [""; 0]);
    assert_eq!(asked["asked"]["uri"], format!("{RESOURCES}?fieldManager=a%20b"));
    // More than the server itself would read: it passes through unread.
    assert_eq!(asked["asked"]["length"], body.len());

    let (admin, as_joe) =
        (server.admin(), [("impersonate-user", "joe"), ("impersonate-group", "developers")]);
    let asked = ferry_testkit::send(&admin, Method::GET, RESOURCES, &as_joe, Vec::new()).await.expect(200);
    assert_eq!(header(&asked, "x-remote-user"), ["joe"]);
    assert_eq!(header(&asked, "impersonate-user"), [""; 0]);

    // Shown in a browser, a backend's answer has no part in the API's origin.
    let browser = [("sec-fetch-site", "none")];
    let shown = ferry_testkit::send(&admin, Method::GET, RESOURCES, &browser, Vec::new()).await;
    let policy = shown.headers.get("content-security-policy").and_then(|policy| policy.to_str().ok());
    assert!(policy.is_some_and(|policy| policy.starts_with("sandbox ") && !policy.contains("same-origin")));
    let proxy = [("sec-fetch-site", "none"), ("x-forwarded-for", "127.0.0.1")];
    let passed = ferry_testkit::send(&admin, Method::GET, RESOURCES, &proxy, Vec::new()).await;
    assert!(!passed.headers.contains_key("content-security-policy"));
}

/// A client would take its credentials along.
#[tokio::test]
async fn redirects_of_aggregated_servers_are_refused() {
    let server = TestServer::start().await;
    let _extension = served(&server).await;
    let answer = server.get(&format!("{RESOURCES}/moved")).await;
    assert_eq!((answer.code, answer.header("location")), (502, ""));
    assert_eq!(text(&answer), "the backend attempted to redirect this request, which is not permitted\n");
}

#[tokio::test]
async fn watches_and_upgraded_connections_pass_through_as_they_come() {
    let server = TestServer::start().await;
    let extension = served(&server).await;
    let request = http::Request::get(format!("{RESOURCES}?watch=true"))
        .body(kube::client::Body::empty())
        .expect("a request");
    let response = server.admin().send(request).await.expect("an answer");
    assert_eq!(response.status(), 200);
    let mut body = response.into_body();
    for word in ["first", "second"] {
        until("the watch to be heard", async || (extension.tell(&json!({"type": word})) > 0).then_some(()))
            .await;
        let frame =
            tokio::time::timeout(Duration::from_secs(30), body.frame()).await.expect("an event in time");
        let data = frame.expect("an event").expect("data").into_data().expect("data");
        assert_eq!(String::from_utf8_lossy(&data), format!("{}\n", json!({"type": word})));
    }

    let pki = &server.running().pki;
    let admin = pki
        .client_certificate("root", &["system:masters"], std::time::SystemTime::now())
        .expect("a certificate");
    let mut stream = server.outside(Some((&admin.certificate, &admin.key))).connect().await;
    let request = format!(
        "POST {RESOURCES}/a/exec HTTP/1.1\r\nhost: a\r\nconnection: Upgrade\r\nupgrade: words\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await.expect("it is read");
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.expect("an answer"));
    }
    let head = String::from_utf8_lossy(&head).to_ascii_lowercase();
    assert!(head.starts_with("http/1.1 101") && head.contains("upgrade: words"), "{head}");
    for (said, heard) in [(b"ping", b"PING"), (b"pong", b"PONG")] {
        stream.write_all(said).await.expect("it is read");
        let mut word = [0; 4];
        stream.read_exact(&mut word).await.expect("an answer");
        assert_eq!(&word, heard);
    }
}

#[tokio::test]
async fn a_backends_discovery_and_openapi_stand_among_the_servers_own() {
    let server = TestServer::start().await;
    let extension = served(&server).await;
    let accept = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json";
    let aggregated = async || {
        let (admin, headers) = (server.admin(), [("accept", accept)]);
        let list = ferry_testkit::send(&admin, Method::GET, "/apis", &headers, Vec::new()).await.expect(200);
        assert_eq!(list["kind"], "APIGroupDiscoveryList");
        let items = list["items"].as_array().expect("groups");
        items.iter().find(|group| group["metadata"]["name"] == GROUP).cloned()
    };
    let version = until("its resources", async || {
        let version = aggregated().await?["versions"][0].clone();
        (version["freshness"] == "Current").then_some(version)
    });
    let version = version.await;
    let resource = &version["resources"][0];
    assert_eq!((&version["version"], &resource["resource"]), (&json!("v1"), &json!("flunders")));
    assert_eq!(resource["responseKind"], json!({"group": GROUP, "version": "v1", "kind": "Flunder"}));
    assert_eq!(resource["subresources"][0]["subresource"], "status");

    let groups = server.get("/apis").await.expect(200);
    let names: Vec<&str> = groups["groups"]
        .as_array()
        .expect("groups")
        .iter()
        .filter_map(|group| group["name"].as_str())
        .collect();
    // By its priority: behind all built-in groups but that of metrics.
    assert_eq!(names.iter().rev().take(2).copied().collect::<Vec<_>>(), ["metrics.k8s.io", GROUP]);
    let list = server.get(&format!("/apis/{GROUP}/v1")).await.expect(200);
    assert_eq!(list["resources"][0]["shortNames"], json!(["fl"]));

    let index = server.get("/openapi/v3").await.expect(200);
    let url = &index["paths"][format!("apis/{GROUP}/v1")]["serverRelativeURL"];
    assert_eq!(*url, format!("/openapi/v3/apis/{GROUP}/v1?hash=ABC"));
    let document = server.get(url.as_str().expect("a path")).await.expect(200);
    assert!(document["paths"].get(format!("/apis/{GROUP}/v1")).is_some(), "{document}");
    let v2 = server.get("/openapi/v2").await.expect(200);
    assert!(v2["paths"].get(format!("/apis/{GROUP}/v1/flunders")).is_some());
    assert!(v2["paths"].get("/api/v1/pods").is_some());
    assert!(v2["definitions"].get("example.Flunder").is_some());
    assert!(v2["definitions"].get("example.Unused").is_none());

    let kubectl = tokio::process::Command::new("kubectl")
        .args(["--kubeconfig", server.kubeconfig().to_str().expect("a path"), "--cache-dir"])
        .arg(server.directory().join("cache"))
        .args(["api-resources", "--api-group", GROUP, "--no-headers"])
        .output()
        .await;
    if let Ok(output) = kubectl {
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(text.starts_with("flunders"), "{text} {}", String::from_utf8_lossy(&output.stderr));
    }

    // Dead, it is known as it was, and as no longer current.
    drop(extension);
    until("the backend to be missed", async || {
        server.get(RESOURCES).await;
        let version = aggregated().await?["versions"][0].clone();
        (version["freshness"] == "Stale" && version["resources"][0]["resource"] == "flunders").then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_backend_that_hangs_takes_no_places_of_others() {
    let server = TestServer::start_with(|config| {
        config.max_requests_in_flight = 2;
        config.max_mutating_requests_in_flight = 2;
    })
    .await;
    let extension = served(&server).await;
    extension.hang(true);
    let client = server.user("root", &["system:masters"]);
    let pki = &server.running().pki;
    let admin = pki
        .client_certificate("root", &["system:masters"], std::time::SystemTime::now())
        .expect("a certificate");
    let outside = std::sync::Arc::new(server.outside(Some((&admin.certificate, &admin.key))));
    let mut waiting = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let outside = outside.clone();
        waiting.spawn(async move { outside.ask(&format!("GET {RESOURCES}"), &[], "").await });
    }
    for _ in 0..8 {
        let said = outside.ask("GET /api/v1/namespaces", &[], "").await;
        assert_eq!(said.code, 200, "{said:?}");
        ferry_testkit::send(&client, Method::GET, "/apis", &[], Vec::new()).await.expect(200);
    }
    extension.hang(false);
    waiting.abort_all();
}

#[tokio::test]
async fn a_server_of_metrics_takes_over_and_gives_back() {
    let server = TestServer::start().await;
    let nodes = "/apis/metrics.k8s.io/v1beta1/nodes";
    assert_eq!(server.get(nodes).await.expect(200)["kind"], "NodeMetricsList");
    let extension = Extension::start(&server, "metrics.k8s.io", "v1beta1").await;
    extension.publish(&server).await;
    server.post(SERVICES, &extension.registration()).await.expect(201);
    let path = format!("{SERVICES}/v1beta1.metrics.k8s.io");
    told(&server, &path, "Passed").await;
    let other = async || {
        let answer = server.get(nodes).await;
        (answer.code == 200 && answer.json()["kind"] == "FlunderList").then_some(())
    };
    until("the other to answer", other).await;
    let list = server.get("/apis/metrics.k8s.io/v1beta1").await.expect(200);
    assert_eq!(list["resources"][0]["name"], "flunders");
    server.delete(&path).await.expect(200);
    let own = async || {
        let answer = server.get(nodes).await;
        (answer.code == 200 && answer.json()["kind"] == "NodeMetricsList").then_some(())
    };
    until("the server's own measurements", own).await;
    let list = server.get("/apis/metrics.k8s.io/v1beta1").await.expect(200);
    assert_eq!(list["resources"][0]["name"], "nodes");
}

#[tokio::test]
async fn a_certificate_that_nobody_vouches_for_is_not_believed() {
    let server = TestServer::start().await;
    let extension = Extension::start(&server, GROUP, "v1").await;
    extension.publish(&server).await;
    let mut wrong = extension.registration();
    let pair = rcgen::generate_simple_self_signed(["api.default.svc".to_string()]).expect("a certificate");
    use base64::Engine;
    wrong["spec"]["caBundle"] = base64::prelude::BASE64_STANDARD.encode(pair.cert.pem()).into();
    server.post(SERVICES, &wrong).await.expect(201);
    // Whether anybody is there is asked without believing; requests are not passed on so.
    told(&server, FLUNDERS, "Passed").await;
    let refused = until("a request to be tried", async || {
        let answer = server.get(RESOURCES).await;
        (text(&answer) != "service unavailable\n").then_some(answer)
    });
    let refused = refused.await;
    assert_eq!(refused.code, 503);
    let words = "error trying to reach service: tls: failed to verify certificate: x509: certificate signed by unknown authority\n";
    assert_eq!(text(&refused), words);
    let skip = json!({"spec": {"caBundle": null, "insecureSkipTLSVerify": true}});
    server.patch(FLUNDERS, "merge", &skip).await.expect(200);
    until("a request to pass", async || (server.get(RESOURCES).await.code == 200).then_some(())).await;
}

/// A child that does not outlive the test.
struct Process(std::process::Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test]
async fn a_namespace_that_is_deleted_waits_for_a_group_that_is_away_and_says_so() {
    let Some(binary) = ferry_e2e::binary::ferry() else {
        return eprintln!("passed over: the ferry binary is not built");
    };
    let server = TestServer::start().await;
    server.post(SERVICES, &registration(GROUP, "v1", "")).await.expect(201);
    told(&server, FLUNDERS, "ServiceNotFound").await;
    let manager = std::process::Command::new(binary)
        .args(["controller-manager", "--leader-elect=false", "--kubeconfig"])
        .arg(server.kubeconfig())
        .stderr(std::process::Stdio::null())
        .spawn();
    let _manager = Process(manager.expect("ferry starts"));
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "doomed"}});
    server.post("/api/v1/namespaces", &namespace).await.expect(201);
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}});
    server.post("/api/v1/namespaces/doomed/configmaps", &map).await.expect(201);
    server.delete("/api/v1/namespaces/doomed").await.expect(200);
    let failure = until("the failure to be told", async || {
        let answer = server.get("/api/v1/namespaces/doomed").await;
        let namespace = answer.expect(200);
        let conditions = namespace["status"]["conditions"].as_array()?;
        let found = conditions.iter().find(|one| one["type"] == "NamespaceDeletionDiscoveryFailure")?;
        Some(found.clone())
    });
    let failure = failure.await;
    let words = format!(
        "Discovery failed for some groups, 1 failing: unable to retrieve the complete list of server APIs: {GROUP}/v1: stale GroupVersion discovery: {GROUP}/v1"
    );
    assert_eq!((&failure["status"], &failure["message"]), (&json!("True"), &json!(words)));
    // What can be asked for is deleted all the same.
    server.get("/api/v1/namespaces/doomed/configmaps/a").await.expect(404);
    server.delete(FLUNDERS).await.expect(200);
    until("the namespace to go", async || {
        (server.get("/api/v1/namespaces/doomed").await.code == 404).then_some(())
    })
    .await;
}
