//! What must be refused, from outside and over the network: the refusal, its code, and the line in the audit
//! log that tells of it.

use std::path::PathBuf;
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use ferry_testkit::TestServer;
use ferry_testkit::outside::read;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;

const POLICY: &str =
    "apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived]\nrules: [{level: Metadata}]\n";
const ISSUER: &str = "https://kubernetes.default.svc.cluster.local";
const SECRETS: &str = "/api/v1/namespaces/default/secrets";

struct Attacked {
    server: TestServer,
    log: PathBuf,
    _files: tempfile::TempDir,
}

impl Attacked {
    /// A server with an audit log, and jane, who may do nothing.
    async fn start() -> Attacked {
        let files = tempfile::tempdir().expect("a directory");
        let path = |name: &str| files.path().join(name);
        std::fs::write(path("policy"), POLICY).expect("written");
        std::fs::write(path("users"), "janes-token,jane,1\nnode-token,system:node:one,2,system:nodes\n")
            .expect("written");
        let (policy, users, log) = (path("policy"), path("users"), path("audit.log"));
        let server = TestServer::start_with(|config| {
            config.token_auth_file = Some(users);
            config.audit.policy_file = Some(policy);
            config.audit.log = Some(ferry_testkit::audit_log(&log));
        })
        .await;
        Attacked { server, log: path("audit.log"), _files: files }
    }

    /// The lines about requests that came with this id, once they are written.
    async fn audited(&self, id: &str) -> Value {
        let give_up = tokio::time::Instant::now() + Duration::from_secs(20);
        loop {
            let text = std::fs::read_to_string(&self.log).unwrap_or_else(|_| String::new());
            let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
            if let Some(line) = lines.into_iter().find(|line| line["auditID"] == id) {
                return line;
            }
            assert!(tokio::time::Instant::now() < give_up, "no audit line of {id}:\n{text}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Asks with these headers, and finds the code in the answer and in the log.
    async fn refused(&self, id: &str, line: &str, headers: &[String], body: &str, code: u16) -> Value {
        let mut headers = headers.to_vec();
        headers.push(format!("audit-id: {id}"));
        let said = self.server.outside(None).ask(line, &headers, body).await;
        assert_eq!(said.code, code, "{id}: {said:?}");
        let told = self.audited(id).await;
        assert_eq!(told["responseStatus"]["code"], code, "{id}: {told:#}");
        said.json()
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
async fn tokens_that_are_not_right_open_nothing() {
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
    let said = stranger.ask(&format!("GET {SECRETS}"), &["audit-id: stranger".into()], "").await;
    assert_eq!(said.code, 401, "{said:?}");
    assert_eq!(attacked.audited("stranger").await["responseStatus"]["code"], 401);

    // Jane calls herself root, without being the front proxy.
    let mut headers = bearer("janes-token");
    headers.extend(["x-remote-user: root".into(), "x-remote-group: system:masters".into()]);
    let said = attacked.refused("front", &format!("GET {SECRETS}"), &headers, "", 403).await;
    assert!(said["message"].as_str().is_some_and(|words| words.contains("User \"jane\"")), "{said}");
    assert_eq!(attacked.audited("front").await["user"]["username"], "jane");
    // So does nobody.
    let headers = ["x-remote-user: root".to_string(), "x-remote-group: system:masters".into()];
    attacked.refused("front-nobody", &format!("GET {SECRETS}"), &headers, "", 401).await;

    // A client of the cluster's own authority is no front proxy either.
    let pair = server
        .running()
        .pki
        .client_certificate("mallory", &[], std::time::SystemTime::now())
        .expect("a certificate");
    let mallory = server.outside(Some((&pair.certificate, &pair.key)));
    let said = mallory.ask(&format!("GET {SECRETS}"), &headers, "").await;
    assert_eq!(said.code, 403, "{said:?}");
    assert!(said.body.contains("mallory"), "{said:?}");
    // The front proxy itself may say who asks: the check is not just off.
    let proxy = server.running().pki.front_proxy_client();
    let said = server
        .outside(Some((&proxy.certificate, &proxy.key)))
        .ask(&format!("GET {SECRETS}"), &headers, "")
        .await;
    assert_eq!(said.code, 200, "{said:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_way_of_writing_a_path_leads_past_authorization() {
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
            if [401, 403].contains(&said.code) {
                assert_eq!(attacked.audited(&id).await["responseStatus"]["code"], said.code, "{path}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_becomes_another_or_gives_more_than_they_have() {
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

    for (id, header) in [
        ("as-user", "impersonate-user: admin"),
        ("as-robot", "impersonate-user: system:serviceaccount:default:x"),
    ] {
        let mut headers = jane.clone();
        headers.push(header.into());
        attacked.refused(id, &format!("GET {SECRETS}"), &headers, "", 403).await;
    }
    let mut headers = jane.clone();
    headers.extend(["impersonate-user: root".into(), "impersonate-group: system:masters".into()]);
    attacked.refused("as-master", &format!("GET {SECRETS}"), &headers, "", 403).await;
    let told = attacked.audited("as-master").await;
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
async fn a_node_keeps_to_itself() {
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
        assert_eq!(attacked.audited(id).await["user"]["username"], "system:node:one");
    }
    let request = format!(
        "PATCH /api/v1/namespaces/default/pods/on-two/status HTTP/1.1\r\nhost: x\r\nconnection: close\r\nauthorization: Bearer node-token\r\naudit-id: other-status\r\ncontent-type: application/merge-patch+json\r\ncontent-length: {}\r\n\r\n{status}",
        status.len()
    );
    let said = server.outside(None).send(request.as_bytes()).await;
    assert_eq!(said.code, 403, "{said:?}");
    assert_eq!(attacked.audited("other-status").await["responseStatus"]["code"], 403);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_too_much_is_not_read() {
    let attacked = Attacked::start().await;
    let server = &attacked.server;
    // Ten megabytes where three are the most.
    let huge = format!(
        r#"{{"apiVersion":"v1","kind":"ConfigMap","metadata":{{"name":"a"}},"data":{{"k":"{}"}}}}"#,
        "x".repeat(10 << 20)
    );
    let admin = server
        .running()
        .pki
        .client_certificate("admin", &["system:masters"], std::time::SystemTime::now())
        .expect("a certificate");
    let outside = server.outside(Some((&admin.certificate, &admin.key)));
    let line = "POST /api/v1/namespaces/default/configmaps";
    let said = outside.ask(line, &["audit-id: huge".into()], &huge).await;
    assert!([0, 413].contains(&said.code), "{said:?}");
    assert_eq!(attacked.audited("huge").await["responseStatus"]["code"], 413);
    // Ten thousand headers.
    let headers: Vec<String> = (0..10_000).map(|number| format!("x-{number}: y")).collect();
    let said = outside.ask("GET /api", &headers, "").await;
    assert!([0, 431].contains(&said.code), "{said:?}");
    // One header of a megabyte.
    let said = outside.ask("GET /api", &[format!("x: {}", "y".repeat(1 << 20))], "").await;
    assert!([0, 400, 431].contains(&said.code), "{said:?}");
    // The server is well.
    assert_eq!(outside.ask("GET /readyz", &[], "").await.code, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_clients_hold_nobody_up_and_are_not_waited_for() {
    let server = TestServer::start().await;
    let outside = server.outside(None);
    let mut slow = Vec::new();
    for _ in 0..50 {
        let mut stream = outside.connect().await;
        stream.write_all(b"GET /api HTTP/1.1\r\nhost: x\r\n").await.expect("a slow start");
        stream.flush().await.expect("sent");
        slow.push(stream);
    }
    let begun = std::time::Instant::now();
    assert_eq!(outside.ask("GET /readyz", &[], "").await.code, 200);
    assert!(begun.elapsed() < Duration::from_secs(5), "others wait for the slow");
    // Nobody ever finishes their headers; the server ends it.
    for stream in &mut slow {
        let said = read(stream).await;
        assert!([0, 408].contains(&said.code), "{said:?}");
    }
}
