//! `ferry apiserver` with the flags that let others say who comes in and what they may: ABAC, webhooks, OpenID
//! Connect, bootstrap tokens, and an audit webhook.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use ferry_auth::jws::SigningKey;
use ferry_e2e::binary::{Process, ferry};
use ferry_e2e::responder::{Asked, Responder};
use http::Method;
use kube::Client;
use serde_json::{Value, json};

async fn get(client: &Client, path: &str) -> u16 {
    ferry_testkit::send(client, Method::GET, path, &[], Vec::new()).await.code
}

async fn whoami(client: &Client) -> Value {
    let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}).to_string();
    let path = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
    let headers = [("content-type", "application/json")];
    let answer = ferry_testkit::send(client, Method::POST, path, &headers, review.into_bytes()).await;
    answer.expect(201)["status"]["userInfo"].clone()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_policy_file_says_who_may_what() {
    let Some(ferry) = ferry() else { return };
    let process = Process::apiserver(&ferry, |directory| {
        let (users, policy) = (directory.join("users.csv"), directory.join("abac.jsonl"));
        std::fs::write(&users, "a-token,alice,1\nb-token,bob,2\n").expect("written");
        let rule = json!({
            "apiVersion": "abac.authorization.kubernetes.io/v1beta1", "kind": "Policy",
            "spec": {"user": "alice", "namespace": "*", "resource": "configmaps", "apiGroup": "", "readonly": true},
        });
        std::fs::write(&policy, format!("{rule}\n")).expect("written");
        vec![
            "--authorization-mode=ABAC".into(),
            format!("--authorization-policy-file={}", policy.display()),
            format!("--token-auth-file={}", users.display()),
        ]
    })
    .await;
    let (alice, bob) = (process.with_token("a-token").await, process.with_token("b-token").await);
    let maps = "/api/v1/namespaces/default/configmaps";
    assert_eq!(get(&alice, maps).await, 200);
    assert_eq!(get(&alice, "/api/v1/namespaces/default/secrets").await, 403);
    assert_eq!(get(&bob, maps).await, 403);
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}}).to_string();
    let headers = [("content-type", "application/json")];
    let answer = ferry_testkit::send(&alice, Method::POST, maps, &headers, map.into_bytes()).await;
    assert_eq!(answer.code, 403, "readonly");
}

/// Knows one token, and lets its holder read config maps.
fn decide(asked: &Asked, reviews: &AtomicUsize) -> (u16, Value) {
    let review = asked.json();
    match review["kind"].as_str() {
        Some("TokenReview") => {
            reviews.fetch_add(1, Ordering::SeqCst);
            let known = review["spec"]["token"] == "hook-token";
            let user = json!({"username": "hooked", "uid": "7", "groups": ["hooks"]});
            let status = if known {
                json!({"authenticated": true, "user": user})
            } else {
                json!({"authenticated": false})
            };
            (200, json!({"apiVersion": review["apiVersion"], "kind": "TokenReview", "status": status}))
        }
        Some("SubjectAccessReview") => {
            let allowed = review["spec"]["resourceAttributes"]["resource"] == "configmaps"
                && review["spec"]["resourceAttributes"]["verb"] == "list";
            let status = json!({"allowed": allowed, "denied": !allowed, "reason": "the hook said so"});
            (
                200,
                json!({"apiVersion": review["apiVersion"], "kind": "SubjectAccessReview", "status": status}),
            )
        }
        _ => (400, json!({})),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn webhooks_say_who_it_is_and_what_they_may() {
    let Some(ferry) = ferry() else { return };
    let reviews = Arc::new(AtomicUsize::new(0));
    let counted = reviews.clone();
    let hook = Responder::start(move |asked| decide(asked, &counted)).await;
    let kubeconfig = hook.kubeconfig();
    let process = Process::apiserver(&ferry, |directory| {
        let file = directory.join("hook.kubeconfig");
        std::fs::write(&file, kubeconfig).expect("written");
        vec![
            "--authorization-mode=Webhook".into(),
            format!("--authorization-webhook-config-file={}", file.display()),
            "--authorization-webhook-version=v1".into(),
            format!("--authentication-token-webhook-config-file={}", file.display()),
            "--authentication-token-webhook-version=v1".into(),
        ]
    })
    .await;
    let client = process.with_token("hook-token").await;
    assert_eq!(get(&client, "/api/v1/namespaces/default/configmaps").await, 200);
    assert_eq!(get(&client, "/api/v1/namespaces/default/configmaps").await, 200);
    let refused =
        ferry_testkit::send(&client, Method::GET, "/api/v1/namespaces/default/secrets", &[], Vec::new())
            .await;
    let words = refused.expect(403)["message"].as_str().expect("words").to_string();
    assert!(words.contains("User \"hooked\"") && words.ends_with("the hook said so"), "{words}");
    assert_eq!(reviews.load(Ordering::SeqCst), 1, "a token is asked about once");
    let stranger = process.with_token("other-token").await;
    assert_eq!(get(&stranger, "/api").await, 401);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_of_an_identity_provider_lets_its_holder_in() {
    let Some(ferry) = ferry() else { return };
    let pem = rcgen::KeyPair::generate().expect("a key").serialize_pem();
    let key = SigningKey::from_pem(&pem).expect("a key that signs");
    let jwks = json!({"keys": [key.public.to_jwk()]});
    // The provider has to name itself, and learns its own address only when it listens.
    let url = Arc::new(std::sync::OnceLock::<String>::new());
    let own = url.clone();
    let provider = Responder::start(move |asked| match asked.path.as_str() {
        "/.well-known/openid-configuration" => {
            let issuer = own.get().cloned().unwrap_or_else(String::new);
            (200, json!({"issuer": issuer, "jwks_uri": format!("{issuer}/keys")}))
        }
        "/keys" => (200, jwks.clone()),
        _ => (404, json!({})),
    })
    .await;
    url.set(provider.url()).expect("set once");
    let (issuer, ca) = (provider.url(), provider.ca_pem.clone());
    let process = Process::apiserver(&ferry, |directory| {
        let file = directory.join("oidc.crt");
        std::fs::write(&file, ca).expect("written");
        vec![
            format!("--oidc-issuer-url={issuer}"),
            "--oidc-client-id=ferry".into(),
            "--oidc-username-claim=email".into(),
            "--oidc-username-prefix=oidc:".into(),
            "--oidc-groups-claim=groups".into(),
            "--oidc-groups-prefix=oidc:".into(),
            "--oidc-signing-algs=ES256".into(),
            format!("--oidc-ca-file={}", file.display()),
        ]
    })
    .await;
    let now =
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970").as_secs();
    let token = |audience: &str, until: u64| {
        let claims = json!({
            "iss": issuer, "aud": audience, "sub": "1", "exp": until, "iat": now - 10,
            "email": "ann@example.com", "email_verified": true, "groups": ["staff"],
        });
        key.sign(&claims).expect("signed")
    };
    let ann = process.with_token(&token("ferry", now + 600)).await;
    let user = whoami(&ann).await;
    assert_eq!(user["username"], "oidc:ann@example.com");
    assert_eq!(user["groups"], json!(["oidc:staff", "system:authenticated"]));
    for bad in [token("other", now + 600), token("ferry", now - 5)] {
        let client = process.with_token(&bad).await;
        assert_eq!(get(&client, "/api").await, 401);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bootstrap_token_lets_a_new_node_ask_for_a_certificate() {
    let Some(ferry) = ferry() else { return };
    let process = Process::apiserver(&ferry, |_| vec!["--enable-bootstrap-token-auth".into()]).await;
    let admin = process.admin().await;
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "type": "bootstrap.kubernetes.io/token",
        "metadata": {"name": "bootstrap-token-abcdef", "namespace": "kube-system"},
        "stringData": {
            "token-id": "abcdef", "token-secret": "0123456789abcdef", "usage-bootstrap-authentication": "true",
            "auth-extra-groups": "system:bootstrappers:new",
        },
    });
    let headers = [("content-type", "application/json")];
    let path = "/api/v1/namespaces/kube-system/secrets";
    ferry_testkit::send(&admin, Method::POST, path, &headers, secret.to_string().into_bytes())
        .await
        .expect(201);
    let node = process.with_token("abcdef.0123456789abcdef").await;
    let user = whoami(&node).await;
    assert_eq!(user["username"], "system:bootstrap:abcdef");
    assert_eq!(
        user["groups"],
        json!(["system:bootstrappers", "system:bootstrappers:new", "system:authenticated"])
    );
    assert_eq!(get(&process.with_token("abcdef.0000000000000000").await, "/api").await, 401);
    let gone = format!("{path}/bootstrap-token-abcdef");
    ferry_testkit::send(&admin, Method::DELETE, &gone, &[], Vec::new()).await.expect(200);
    assert_eq!(get(&node, "/api").await, 401);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn audit_events_go_to_a_webhook() {
    let Some(ferry) = ferry() else { return };
    let collector = Responder::start(|_| (200, json!({}))).await;
    let kubeconfig = collector.kubeconfig();
    let process = Process::apiserver(&ferry, |directory| {
        let (hook, policy) = (directory.join("hook.kubeconfig"), directory.join("policy.yaml"));
        std::fs::write(&hook, kubeconfig).expect("written");
        let rules = "apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived]\nrules: [{level: Metadata}]\n";
        std::fs::write(&policy, rules).expect("written");
        vec![
            format!("--audit-policy-file={}", policy.display()),
            format!("--audit-webhook-config-file={}", hook.display()),
        ]
    })
    .await;
    let admin = process.admin().await;
    let headers = [("audit-id", "to-the-hook")];
    let path = "/api/v1/namespaces/default/secrets";
    ferry_testkit::send(&admin, Method::GET, path, &headers, Vec::new()).await.expect(200);
    loop {
        let list = collector.asked().await.json();
        assert_eq!(list["kind"], "EventList");
        let events = list["items"].as_array().cloned().unwrap_or_default();
        if let Some(event) = events.iter().find(|event| event["auditID"] == "to-the-hook") {
            assert_eq!(event["user"]["username"], "kubernetes-admin");
            assert_eq!(event["responseStatus"]["code"], 200);
            return;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unknown_plugin_ends_the_start_with_its_name() {
    let Some(ferry) = ferry() else { return };
    let directory = tempfile::tempdir().expect("a directory");
    let run = |flag: &str| {
        let output = std::process::Command::new(&ferry)
            .args(["apiserver", "--bind-address", "127.0.0.1", "--port", "0", flag, "--data-dir"])
            .arg(directory.path())
            .output()
            .expect("ferry runs");
        assert!(!output.status.success());
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let said = run("--enable-admission-plugins=Nonsense");
    assert!(said.contains("enable-admission-plugins plugin \"Nonsense\" is unknown"), "{said}");
    let said = run("--disable-admission-plugins=Nonsense");
    assert!(said.contains("disable-admission-plugins plugin \"Nonsense\" is unknown"), "{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_signing_key_of_service_accounts_that_cannot_be_read_ends_the_start() {
    let Some(ferry) = ferry() else { return };
    let directory = tempfile::tempdir().expect("a directory");
    std::fs::write(directory.path().join("text.key"), "no key at all\n").expect("it is written");
    for key in ["missing.key", "text.key"] {
        let key = directory.path().join(key);
        let output = std::process::Command::new(&ferry)
            .args(["apiserver", "--bind-address", "127.0.0.1", "--port", "0", "--data-dir"])
            .arg(directory.path().join("data"))
            .arg("--service-account-signing-key-file")
            .arg(&key)
            .output()
            .expect("ferry runs");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains("key"), "{}: {said}", key.display());
    }
}

/// Claims of a token that a Secret keeps, or rather does not: nothing of what they name exists.
fn token_of_nobody(pem: &str) -> String {
    let claims = json!({
        "iss": "kubernetes/serviceaccount", "sub": "system:serviceaccount:default:gone",
        "kubernetes.io/serviceaccount/namespace": "default",
        "kubernetes.io/serviceaccount/secret.name": "gone",
        "kubernetes.io/serviceaccount/service-account.name": "gone",
        "kubernetes.io/serviceaccount/service-account.uid": "0",
    });
    SigningKey::from_pem(pem).expect("a key that signs").sign(&claims).expect("signed")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_service_account_lookup_a_kept_token_outlives_its_secret() {
    let Some(ferry) = ferry() else { return };
    let pem = rcgen::KeyPair::generate().expect("a key").serialize_pem();
    let token = token_of_nobody(&pem);
    for (flag, is_let_in) in [("--service-account-lookup=false", true), ("--service-account-lookup", false)] {
        let process = Process::apiserver(&ferry, |directory| {
            let file = directory.join("signing.key");
            std::fs::write(&file, &pem).expect("written");
            vec![format!("--service-account-signing-key-file={}", file.display()), flag.into()]
        })
        .await;
        let client = process.with_token(&token).await;
        if is_let_in {
            assert_eq!(whoami(&client).await["username"], "system:serviceaccount:default:gone");
        } else {
            assert_eq!(get(&client, "/api").await, 401, "{flag}");
        }
    }
}

/// All that the embedded store has written.
fn stored_bytes(directory: &std::path::Path) -> Vec<u8> {
    let mut bytes = Vec::new();
    for entry in std::fs::read_dir(directory).expect("the store") {
        let path = entry.expect("an entry").path();
        let more = if path.is_dir() { stored_bytes(&path) } else { std::fs::read(&path).expect("read") };
        bytes.extend(more);
    }
    bytes
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_storage_media_type_says_how_objects_are_stored() {
    let Some(ferry) = ferry() else { return };
    let count =
        |bytes: &[u8], wanted: &[u8]| bytes.windows(wanted.len()).filter(|part| *part == wanted).count();
    const JSON: &[u8] = br#""name":"told-apart""#;
    // The envelope's start: its magic, then the apiVersion and kind of the object inside.
    const PROTOBUF: &[u8] = b"k8s\0\n\x0f\n\x02v1\x12\tConfigMap";
    for (media_type, in_json, in_protobuf) in [
        ("application/json", true, false),
        ("", true, false),
        ("application/vnd.kubernetes.protobuf", false, true),
    ] {
        let mut process =
            Process::apiserver(&ferry, |_| vec![format!("--storage-media-type={media_type}")]).await;
        let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "told-apart"}, "data": {"a": "b"}});
        let maps = "/api/v1/namespaces/default/configmaps";
        let headers = [("content-type", "application/json")];
        let admin = process.admin().await;
        let made =
            ferry_testkit::send(&admin, Method::POST, maps, &headers, map.to_string().into_bytes()).await;
        let made = made.expect(201);
        let stored = stored_bytes(&process.directory().join("store"));
        assert_eq!(count(&stored, JSON) > 0, in_json, "{media_type}");
        assert_eq!(count(&stored, PROTOBUF) > 0, in_protobuf, "{media_type}");
        process.restart().await;
        let path = format!("{maps}/told-apart");
        let read = ferry_testkit::send(&process.admin().await, Method::GET, &path, &[], Vec::new()).await;
        assert_eq!(read.expect(200), made, "{media_type}: read again from the store");
    }
    refused(
        &ferry,
        "apiserver",
        "--storage-media-type=application/yaml",
        "allowed values: application/json, application/vnd.kubernetes.protobuf",
    );
}

/// The role does not start with this flag, and says why.
fn refused(ferry: &std::path::Path, role: &str, flag: &str, why: &str) {
    let output = std::process::Command::new(ferry).args([role, flag]).output().expect("ferry runs");
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{role} {flag}");
    assert!(words.contains(why), "{role} {flag}: {words}");
}

#[test]
fn feature_gates_are_checked_by_every_role_that_takes_them() {
    let Some(ferry) = ferry() else { return };
    for role in ["apiserver", "controller-manager", "scheduler"] {
        refused(&ferry, role, "--feature-gates=Nothing=true", "unrecognized feature gate: Nothing");
        let locked = "cannot set feature gate APIServerTracing to false, feature is locked to true";
        refused(&ferry, role, "--feature-gates=APIServerTracing=false", locked);
    }
    for role in ["controller-manager", "scheduler"] {
        refused(&ferry, role, "--kube-api-content-type=text/plain", "application/vnd.kubernetes.protobuf");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_reports_the_version_it_is_told_and_shows_its_certificate() {
    let Some(ferry) = ferry() else { return };
    let process = Process::apiserver(&ferry, |directory| {
        vec![
            "--version=v1.36.4-custom".into(),
            format!("--cert-dir={}", directory.join("shown").display()),
            "--feature-gates=ContextualLogging=true,AllAlpha=false".into(),
        ]
    })
    .await;
    let version = process.admin().await.apiserver_version().await.expect("a version");
    assert_eq!(version.git_version, "v1.36.4-custom");
    let shown = std::fs::read(process.directory().join("shown/apiserver.crt")).expect("a certificate");
    assert_eq!(shown, std::fs::read(process.directory().join("pki/apiserver.crt")).expect("its own"));
    let other = "version \"v1.35.0\" must match major/minor/patch of default version";
    refused(&ferry, "apiserver", "--version=v1.35.0", other);
}
