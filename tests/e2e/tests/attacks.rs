//! What must be refused, from outside and over the network: the refusal, its code, and the line in the audit
//! log that tells of it.

use std::time::{Duration, SystemTime};

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use ferry_e2e::audited::AuditedServer;
use ferry_e2e::webhook_server::{Reply, WebhookServer, configuration, patch};
use ferry_testkit::TestServer;
use ferry_testkit::outside::{Outside, read};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;

const ISSUER: &str = "https://kubernetes.default.svc.cluster.local";
const SECRETS: &str = "/api/v1/namespaces/default/secrets";

struct Attacked {
    audited: AuditedServer,
    _files: tempfile::TempDir,
}

impl std::ops::Deref for Attacked {
    type Target = AuditedServer;

    fn deref(&self) -> &AuditedServer {
        &self.audited
    }
}

impl Attacked {
    async fn start() -> Attacked {
        Attacked::start_with(|_| {}).await
    }

    /// A server with an audit log, and jane, who may do nothing. `change` has the last word on its configuration.
    async fn start_with(change: impl FnOnce(&mut ferry_apiserver::run::Config)) -> Attacked {
        let files = tempfile::tempdir().expect("a directory");
        let users = files.path().join("users");
        std::fs::write(&users, "janes-token,jane,1\nnode-token,system:node:one,2,system:nodes\n")
            .expect("written");
        let audited = AuditedServer::start("Metadata", |config| {
            config.token_auth_file = Some(users);
            change(config);
        })
        .await;
        Attacked { audited, _files: files }
    }

    /// The line about a request that never became one: nothing is known of it but how it ended.
    async fn unheard(&self, code: u16) {
        let line = self.line_where(&code.to_string(), |line| line["responseStatus"]["code"] == code).await;
        assert_eq!((&line["requestURI"], &line["sourceIPs"]), (&json!(""), &json!(["127.0.0.1"])), "{line}");
    }

    /// Asks with these headers, and finds the code in the answer and in the log.
    async fn refused(&self, id: &str, line: &str, headers: &[String], body: &str, code: u16) -> Value {
        self.refused_by(&self.server.outside(None), id, line, headers, body, code).await
    }

    async fn refused_by(
        &self,
        outside: &Outside,
        id: &str,
        line: &str,
        headers: &[String],
        body: &str,
        code: u16,
    ) -> Value {
        let mut headers = headers.to_vec();
        headers.push(format!("audit-id: {id}"));
        let said = outside.ask(line, &headers, body).await;
        assert_eq!(said.code, code, "{id}: {said:?}");
        let told = self.line(id).await;
        assert_eq!(told["responseStatus"]["code"], code, "{id}: {told:#}");
        said.json()
    }

    /// Somebody whom the cluster's own authority made this certificate for.
    fn certified(&self, name: &str, groups: &[&str], at: SystemTime) -> Outside {
        let pair = self.server.running().pki.client_certificate(name, groups, at).expect("a certificate");
        self.server.outside(Some((&pair.certificate, &pair.key)))
    }
}

fn bearer(token: &str) -> Vec<String> {
    vec![format!("authorization: Bearer {token}")]
}

fn now() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    i64::try_from(since.expect("after 1970").as_secs()).expect("a time")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn invalid_tokens_are_refused() {
    let attacked = Attacked::start().await;
    let server = &attacked.server;
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "robot"}});
    let made = server.post("/api/v1/namespaces/default/serviceaccounts", &account).await.expect(201);
    let claims = |change: &dyn Fn(&mut Value)| {
        let mut claims = json!({
            "iss": ISSUER, "aud": [ISSUER], "sub": "system:serviceaccount:default:robot",
            "iat": now(), "nbf": now(), "exp": now() + 3600,
            "kubernetes.io": {"namespace": "default", "serviceaccount": {"name": "robot", "uid": made["metadata"]["uid"]}},
        });
        change(&mut claims);
        claims
    };
    // The token is right but for one thing at a time.
    let good = server.sign_token(&claims(&|_| {}));
    let said = server.outside(None).ask("GET /api", &bearer(&good), "").await;
    assert_eq!(said.code, 200, "{said:?}");

    let payload = |claims: &Value| BASE64_URL_SAFE_NO_PAD.encode(claims.to_string());
    let parts: Vec<&str> = good.split('.').collect();
    let none = BASE64_URL_SAFE_NO_PAD.encode(r#"{"alg":"none"}"#);
    let other = claims(&|claims| claims["sub"] = "system:serviceaccount:kube-system:admin".into());
    let cases = [
        ("expired", server.sign_token(&claims(&|claims| claims["exp"] = (now() - 60).into()))),
        ("early", server.sign_token(&claims(&|claims| claims["nbf"] = (now() + 3600).into()))),
        ("audience", server.sign_token(&claims(&|claims| claims["aud"] = json!(["elsewhere"])))),
        ("unsigned", format!("{none}.{}.", parts[1])),
        ("unsigned-kept", format!("{none}.{}.{}", parts[1], parts[2])),
        ("tampered", format!("{}.{}.{}", parts[0], payload(&other), parts[2])),
        ("cut", good[..good.len() - 4].to_string()),
        ("nonsense", "a.b.c".to_string()),
    ];
    for (id, token) in cases {
        let said = attacked.refused(id, "GET /api", &bearer(&token), "", 401).await;
        assert_eq!(said["reason"], "Unauthorized", "{id}");
    }
    // The account goes, and its tokens with it.
    server.delete("/api/v1/namespaces/default/serviceaccounts/robot").await.expect(200);
    attacked.refused("orphan", "GET /api", &bearer(&good), "", 401).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_and_headers_make_nobody_else() {
    let attacked = Attacked::start().await;
    let server = &attacked.server;
    // A certificate of somebody else's authority, with the administrators' group in it.
    let mut params = rcgen::CertificateParams::default();
    params.distinguished_name.push(rcgen::DnType::CommonName, "root");
    params.distinguished_name.push(rcgen::DnType::OrganizationName, "system:masters");
    params.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ClientAuth];
    let key = rcgen::KeyPair::generate().expect("a key");
    let forged = params.self_signed(&key).expect("a certificate").pem();
    let stranger = server.outside(Some((&forged, &key.serialize_pem())));
    let line = &format!("GET {SECRETS}");
    attacked.refused_by(&stranger, "stranger", line, &[], "", 401).await;
    // One of the right authority that has ended, and one that has not begun.
    let (now, day) = (SystemTime::now(), Duration::from_secs(24 * 3600));
    for (id, made) in [("ended", now - 366 * day), ("not-begun", now + day)] {
        let root = attacked.certified("root", &["system:masters"], made);
        attacked.refused_by(&root, id, line, &[], "", 401).await;
    }
    let root = attacked.certified("root", &["system:masters"], now);
    assert_eq!(root.ask(line, &[], "").await.code, 200, "the same, in its time");

    // Jane calls herself root, without being the front proxy.
    let mut headers = bearer("janes-token");
    headers.extend(["x-remote-user: root".into(), "x-remote-group: system:masters".into()]);
    let said = attacked.refused("front", &format!("GET {SECRETS}"), &headers, "", 403).await;
    assert!(said["message"].as_str().is_some_and(|words| words.contains("User \"jane\"")), "{said}");
    assert_eq!(attacked.line("front").await["user"]["username"], "jane");
    // So does nobody.
    let headers = ["x-remote-user: root".to_string(), "x-remote-group: system:masters".into()];
    attacked.refused("front-nobody", &format!("GET {SECRETS}"), &headers, "", 401).await;

    // A client of the cluster's own authority is no front proxy either.
    let mallory = attacked.certified("mallory", &[], now);
    attacked.refused_by(&mallory, "front-mallory", line, &headers, "", 403).await;
    assert_eq!(attacked.line("front-mallory").await["user"]["username"], "mallory");
    // The front proxy itself may say who asks: the check is not just off.
    let proxy = server.running().pki.front_proxy_client();
    let said = server
        .outside(Some((&proxy.certificate, &proxy.key)))
        .ask(&format!("GET {SECRETS}"), &headers, "")
        .await;
    assert_eq!(said.code, 200, "{said:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_path_encoding_bypasses_authorization() {
    let attacked = Attacked::start().await;
    let tricks = [
        "//api/v1/namespaces/default/secrets",
        "/api//v1/namespaces/default/secrets",
        "/api/v1/namespaces/default/secrets/",
        "/healthz/../api/v1/namespaces/default/secrets",
        "/healthz/%2e%2e/api/v1/namespaces/default/secrets",
        "/healthz%2f..%2fapi/v1/namespaces/default/secrets",
        "/version/..;/api/v1/namespaces/default/secrets",
        "/api/v1/namespaces/default/secrets;x=/healthz",
        "/api/v1/namespaces/default/%73ecrets",
        "/api/v1/namespaces/default/configmaps/../secrets",
        "/api/v1/namespaces/default/configmaps/%2e%2e/secrets",
        "/./api/v1/namespaces/default/secrets",
        "/api/v1/namespaces//secrets",
        "/api/v1/namespaces/default%2fsecrets",
        "/api/v1/namespaces/default/secrets%",
        "/api/v1/namespaces/default/%ffsecrets",
        "/api/v1/watch",
        "https://example.com/api/v1/namespaces/default/secrets",
    ];
    for (number, path) in tricks.iter().enumerate() {
        for (who, headers) in [("jane", bearer("janes-token")), ("nobody", Vec::new())] {
            let id = format!("path-{who}-{number}");
            let mut headers = headers.clone();
            headers.push(format!("audit-id: {id}"));
            let said = attacked.server.outside(None).ask(&format!("GET {path}"), &headers, "").await;
            assert!([301, 400, 401, 403, 404].contains(&said.code), "{who} {path}: {said:?}");
            assert!(!said.body.contains("SecretList"), "{who} {path}");
            let told = attacked.line(&id).await;
            assert_eq!(told["responseStatus"]["code"], said.code, "{path}: {told}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn users_can_neither_impersonate_nor_escalate_without_the_right() {
    let attacked = Attacked::start().await;
    let server = &attacked.server;
    let rbac = "/apis/rbac.authorization.k8s.io/v1";
    let role = |name: &str, rules: Value| json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": name}, "rules": rules});
    let binding = |name: &str, role: &str| {
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": name},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
            "subjects": [{"kind": "User", "name": "jane", "apiGroup": "rbac.authorization.k8s.io"}],
        })
    };
    let rules = json!([
        {"apiGroups": ["rbac.authorization.k8s.io"], "resources": ["clusterroles", "clusterrolebindings"], "verbs": ["create", "update"]},
        {"apiGroups": [""], "resources": ["serviceaccounts"], "verbs": ["get"]},
        {"apiGroups": [""], "resources": ["users"], "resourceNames": ["root"], "verbs": ["impersonate"]},
    ]);
    server.post(&format!("{rbac}/clusterroles"), &role("writer", rules)).await.expect(201);
    server.post(&format!("{rbac}/clusterrolebindings"), &binding("writer", "writer")).await.expect(201);

    let jane = bearer("janes-token");
    let everything = role("all", json!([{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]));
    let line = format!("POST {rbac}/clusterroles");
    let said = attacked.refused("role", &line, &jane, &everything.to_string(), 403).await;
    assert!(
        said["message"]
            .as_str()
            .is_some_and(|words| words.contains("attempting to grant RBAC permissions not currently held")),
        "{said}"
    );
    let line = format!("POST {rbac}/clusterrolebindings");
    let admin = binding("own", "cluster-admin").to_string();
    attacked.refused("bind", &line, &jane, &admin, 403).await;
    // Nor by changing a role that is hers already.
    let more = role("writer", json!([{"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]}]));
    let line = format!("PUT {rbac}/clusterroles/writer");
    attacked.refused("role-update", &line, &jane, &more.to_string(), 403).await;

    for (id, header) in [
        ("as-user", "impersonate-user: admin"),
        ("as-robot", "impersonate-user: system:serviceaccount:default:x"),
    ] {
        let mut headers = jane.clone();
        headers.push(header.into());
        attacked.refused(id, &format!("GET {SECRETS}"), &headers, "", 403).await;
    }
    // She may be root, but that does not put her into root's groups.
    let mut headers = jane.clone();
    headers.push("impersonate-user: root".into());
    let said = attacked.refused("as-root", &format!("GET {SECRETS}"), &headers, "", 403).await;
    assert!(
        said["message"].as_str().is_some_and(|words| words.contains("User \"root\" cannot list")),
        "{said}"
    );
    assert_eq!(attacked.line("as-root").await["impersonatedUser"]["username"], "root");
    headers.push("impersonate-group: system:masters".into());
    attacked.refused("as-master", &format!("GET {SECRETS}"), &headers, "", 403).await;
    let told = attacked.line("as-master").await;
    assert_eq!((&told["user"]["username"], &told["impersonatedUser"]), (&json!("jane"), &Value::Null));

    // Who may read an account may not take its token.
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "robot"}});
    server.post("/api/v1/namespaces/default/serviceaccounts", &account).await.expect(201);
    let line = "POST /api/v1/namespaces/default/serviceaccounts/robot/token";
    let request =
        json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}).to_string();
    attacked.refused("token", line, &jane, &request, 403).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_cannot_access_objects_of_other_nodes() {
    let attacked = Attacked::start().await;
    let server = &attacked.server;
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "robot"}});
    server.post("/api/v1/namespaces/default/serviceaccounts", &account).await.expect(201);
    for name in ["one", "two"] {
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}});
        server.post("/api/v1/nodes", &node).await.expect(201);
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": format!("on-{name}")},
            "spec": {"nodeName": name, "serviceAccountName": "robot", "containers": [{"name": "c", "image": "i"}]},
        });
        server.post("/api/v1/namespaces/default/pods", &pod).await.expect(201);
    }
    let node = bearer("node-token");
    let status = json!({"status": {"phase": "Failed"}}).to_string();
    let token = "POST /api/v1/namespaces/default/serviceaccounts/robot/token";
    let cases = [
        ("other-pod", "DELETE /api/v1/namespaces/default/pods/on-two", String::new()),
        ("other-node", "DELETE /api/v1/nodes/two", String::new()),
        (
            "other-token",
            token,
            json!({
                "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
                "spec": {"boundObjectRef": {"kind": "Pod", "apiVersion": "v1", "name": "on-two", "uid": "x"}},
            })
            .to_string(),
        ),
        (
            "unbound-token",
            token,
            json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}).to_string(),
        ),
    ];
    for (id, line, body) in cases {
        let said = attacked.refused(id, line, &node, &body, 403).await;
        assert_eq!(said["reason"], "Forbidden", "{id}");
        assert_eq!(attacked.line(id).await["user"]["username"], "system:node:one");
    }
    let request = format!(
        "PATCH /api/v1/namespaces/default/pods/on-two/status HTTP/1.1\r\nhost: x\r\nconnection: close\r\nauthorization: Bearer node-token\r\naudit-id: other-status\r\ncontent-type: application/merge-patch+json\r\ncontent-length: {}\r\n\r\n{status}",
        status.len()
    );
    let said = server.outside(None).send(request.as_bytes()).await;
    assert_eq!(said.code, 403, "{said:?}");
    assert_eq!(attacked.line("other-status").await["responseStatus"]["code"], 403);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_webhook_gets_no_more_than_its_say() {
    let attacked = Attacked::start().await;
    let server = &attacked.server;
    let admin = attacked.certified("admin", &["system:masters"], SystemTime::now());
    let add = |path: &str, value: Value| patch(&json!([{"op": "add", "path": path, "value": value}]));
    type Answer = Box<dyn Fn() -> Reply + Send + Sync>;
    let cases: [(&str, Answer, u16, &str); 5] = [
        ("hangs", Box::new(|| Reply::Hang), 500, "context deadline exceeded"),
        (
            "garbage",
            Box::new(|| Reply::Raw(200, b"<html>".to_vec())),
            500,
            "received invalid webhook response",
        ),
        (
            "other-namespace",
            Box::new(move || add("/metadata/namespace", json!("kube-system"))),
            400,
            "does not match the namespace sent on the request",
        ),
        ("other-kind", Box::new(move || add("/kind", json!("Secret"))), 500, "not v1, Kind=ConfigMap"),
        (
            "invalid",
            Box::new(move || add("/data/bad key", json!("x"))),
            422,
            "a valid config key must consist of",
        ),
    ];
    let configurations = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations";
    for (id, answer, code, expected) in cases {
        let hook = WebhookServer::start(move |_| answer()).await;
        let mut webhook = hook.webhook("attack.example.com");
        webhook["timeoutSeconds"] = json!(1);
        let hooks = configuration("MutatingWebhookConfiguration", id, vec![webhook]);
        server.post(configurations, &hooks).await.expect(201);
        let map =
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": id}, "data": {"k": "v"}})
                .to_string();
        let line = "POST /api/v1/namespaces/default/configmaps";
        let said = attacked.refused_by(&admin, id, line, &[], &map, code).await;
        assert!(said["message"].as_str().is_some_and(|words| words.contains(expected)), "{id}: {said}");
        assert_eq!(hook.count(), 1, "{id}");
        server.delete(&format!("{configurations}/{id}")).await.expect(200);
    }
    let maps = server.get("/api/v1/configmaps?fieldSelector=metadata.namespace=default").await.expect(200);
    assert_eq!(maps["items"], json!([]), "nothing was written");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn oversized_requests_are_refused() {
    let attacked = Attacked::start().await;
    // Ten megabytes where three are the most.
    let huge = format!(
        r#"{{"apiVersion":"v1","kind":"ConfigMap","metadata":{{"name":"a"}},"data":{{"k":"{}"}}}}"#,
        "x".repeat(10 << 20)
    );
    let admin = attacked.certified("admin", &["system:masters"], SystemTime::now());
    let line = "POST /api/v1/namespaces/default/configmaps";
    let said = admin.ask(line, &["audit-id: huge".into()], &huge).await;
    // The answer is lost when the client is still sending as the server closes.
    assert!([0, 413].contains(&said.code), "{said:?}");
    assert_eq!(attacked.line("huge").await["responseStatus"]["code"], 413);
    // Ten thousand headers, and one of a megabyte.
    let many: Vec<String> = (0..10_000).map(|number| format!("x-{number}: y")).collect();
    for headers in [many, vec![format!("x: {}", "y".repeat(1 << 20))]] {
        let said = admin.ask("GET /api", &headers, "").await;
        assert!([0, 431].contains(&said.code), "{said:?}");
        attacked.unheard(431).await;
    }
    let said = admin.ask("GET /api\0", &[], "").await;
    assert_eq!(said.code, 400, "{said:?}");
    attacked.unheard(400).await;
    // The server is well.
    assert_eq!(admin.ask("GET /readyz", &[], "").await.code, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_clients_time_out_without_delaying_others() {
    let attacked = Attacked::start_with(|config| {
        config.request_timeout = Duration::from_secs(2);
        config.max_mutating_requests_in_flight = 1;
    })
    .await;
    let outside = attacked.server.outside(None);
    let mut slow = Vec::new();
    for _ in 0..50 {
        let mut stream = outside.connect().await;
        stream.write_all(b"GET /api HTTP/1.1\r\nhost: x\r\n").await.expect("a slow start");
        stream.flush().await.expect("sent");
        slow.push(stream);
    }
    // Another begins a body and leaves it at that.
    let admin = attacked.certified("admin", &["system:masters"], SystemTime::now());
    let mut sender = admin.connect().await;
    let head = "POST /api/v1/namespaces/default/configmaps HTTP/1.1\r\nhost: x\r\naudit-id: slow-body\r\n\
                connection: close\r\ncontent-type: application/json\r\ncontent-length: 1000\r\n\r\n{";
    sender.write_all(head.as_bytes()).await.expect("a slow start");
    sender.flush().await.expect("sent");
    let begun = std::time::Instant::now();
    assert_eq!(outside.ask("GET /readyz", &[], "").await.code, 200);
    assert!(begun.elapsed() < Duration::from_secs(5), "others wait for the slow");
    // It has no place in flight before its body is there: others write meanwhile.
    let map = r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a"}}"#;
    let line = "POST /api/v1/namespaces/default/configmaps";
    assert_eq!(admin.ask(line, &[], map).await.code, 201);
    let said = read(&mut sender).await;
    assert_eq!(said.code, 504, "{said:?}");
    assert_eq!(attacked.line("slow-body").await["responseStatus"]["code"], 504);
    // Nobody ever finishes their headers; the server ends it.
    for stream in &mut slow {
        let said = read(stream).await;
        assert!([0, 408].contains(&said.code), "{said:?}");
    }
    attacked.unheard(408).await;
}

#[tokio::test]
async fn without_anonymous_auth_health_needs_credentials() {
    for (anonymous_auth, code) in [(true, 200), (false, 401)] {
        let server = TestServer::start_with(|config| config.anonymous_auth = anonymous_auth).await;
        for path in ["/version", "/healthz", "/livez", "/readyz"] {
            let said = server.outside(None).ask(&format!("GET {path}"), &[], "").await;
            assert_eq!(said.code, code, "{path}");
        }
    }
}

#[tokio::test]
async fn token_lifetimes_are_limited_by_the_flag() {
    let longest = std::time::Duration::from_secs(7200);
    let server =
        TestServer::start_with(|config| config.service_account_max_token_expiration = Some(longest)).await;
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "a"}});
    server.post("/api/v1/namespaces/default/serviceaccounts", &account).await.expect(201);
    let path = "/api/v1/namespaces/default/serviceaccounts/a/token";
    for (asked, expected) in [(3600, 3600), (7200, 7200), (1_i64 << 32, 7200)] {
        let request = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
            "spec": {"expirationSeconds": asked}});
        let answer = server.post(path, &request).await;
        let warning =
            format!("299 - \"requested expiration of {asked} seconds shortened to {expected} seconds\"");
        assert_eq!(answer.header("warning"), if asked > expected { warning.as_str() } else { "" });
        let issued = answer.expect(201);
        assert_eq!(issued["spec"]["expirationSeconds"], expected, "{asked}");
        let token = issued["status"]["token"].as_str().expect("a token");
        let claims = token.split('.').nth(1).expect("claims");
        let claims = BASE64_URL_SAFE_NO_PAD.decode(claims).expect("base64");
        let claims: Value = serde_json::from_slice(&claims).expect("JSON");
        let life = claims["exp"].as_i64().expect("a time") - claims["iat"].as_i64().expect("a time");
        assert_eq!(life, expected, "{asked}");
    }
}
