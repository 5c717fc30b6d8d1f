//! Encryption at rest: `ferry apiserver --encryption-provider-config`.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use ferry_e2e::binary::{Process, ferry};
use http::Method;
use kube::Client;
use serde_json::{Value, json};

const SECRETS: &str = "/api/v1/namespaces/default/secrets";
const JSON: (&str, &str) = ("content-type", "application/json");
/// 32 bytes each.
const ONE: &str = "MTExMTExMTExMTExMTExMTExMTExMTExMTExMTExMTE=";
const TWO: &str = "MjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjIyMjI=";

fn configuration(providers: Value) -> String {
    json!({
        "apiVersion": "apiserver.config.k8s.io/v1", "kind": "EncryptionConfiguration",
        "resources": [{"resources": ["secrets"], "providers": providers}],
    })
    .to_string()
}

fn keys(name: &str, secret: &str) -> Value {
    json!({"keys": [{"name": name, "secret": secret}]})
}

async fn create(admin: &Client, kind: &str, name: &str, value: &str) {
    let object = match kind {
        "Secret" => {
            json!({"apiVersion": "v1", "kind": kind, "metadata": {"name": name}, "stringData": {"v": value}})
        }
        _ => json!({"apiVersion": "v1", "kind": kind, "metadata": {"name": name}, "data": {"v": value}}),
    };
    let path = format!("/api/v1/namespaces/default/{}s", kind.to_lowercase());
    let body = object.to_string().into_bytes();
    ferry_testkit::send(admin, Method::POST, &path, &[JSON], body).await.expect(201);
}

/// Whether the store's files hold these bytes.
fn lies_in(directory: &Path, bytes: &str) -> bool {
    std::fs::read_dir(directory.join("store")).expect("the store's directory").any(|file| {
        let file = std::fs::read(file.expect("an entry").path()).expect("a file");
        file.windows(bytes.len()).any(|piece| piece == bytes.as_bytes())
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn secrets_are_encrypted_and_their_key_is_replaced_while_the_server_runs() {
    let Some(ferry) = ferry() else { return };
    let mut process = Process::apiserver(&ferry, |directory| {
        let file = directory.join("encryption.yaml");
        std::fs::write(&file, configuration(json!([{"aescbc": keys("one", ONE)}, {"identity": {}}])))
            .expect("written");
        vec![
            format!("--encryption-provider-config={}", file.display()),
            "--encryption-provider-config-automatic-reload=true".into(),
        ]
    })
    .await;
    let directory = process.directory().to_owned();
    let file = directory.join("encryption.yaml");
    let admin = process.admin().await;
    create(&admin, "ConfigMap", "shown", "easily-seen").await;
    create(&admin, "Secret", "kept", "deeply-hidden").await;
    // Written as JSON, a secret's value is in base64.
    let hidden = "ZGVlcGx5LWhpZGRlbg==";
    let path = format!("{SECRETS}/kept");
    let kept = ferry_testkit::send(&admin, Method::GET, &path, &[], Vec::new()).await.expect(200);
    assert_eq!(kept["data"]["v"], hidden);
    assert!(lies_in(&directory, "easily-seen"), "what is not encrypted is found by this way of looking");
    assert!(lies_in(&directory, "k8s:enc:aescbc:v1:one:"));
    assert!(!lies_in(&directory, hidden) && !lies_in(&directory, "deeply-hidden"));

    // Another key comes to the front. A write that changes nothing takes it; a second one is none again.
    let providers = json!([{"secretbox": keys("two", TWO)}, {"aescbc": keys("one", ONE)}]);
    std::fs::write(&file, configuration(providers)).expect("written");
    let put = async || {
        let body = kept.to_string().into_bytes();
        ferry_testkit::send(&admin, Method::PUT, &path, &[JSON], body).await
    };
    let give_up = Instant::now() + Duration::from_secs(60);
    while !lies_in(&directory, "k8s:enc:secretbox:v1:two:") {
        assert!(Instant::now() < give_up, "the new key is never taken");
        put().await;
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let again = ferry_testkit::send(&admin, Method::GET, &path, &[], Vec::new()).await.expect(200);
    assert_eq!(again["data"], kept["data"]);
    assert_ne!(again["metadata"]["resourceVersion"], kept["metadata"]["resourceVersion"]);
    let body = again.to_string().into_bytes();
    let same = ferry_testkit::send(&admin, Method::PUT, &path, &[JSON], body).await.expect(200);
    assert_eq!(same["metadata"]["resourceVersion"], again["metadata"]["resourceVersion"]);

    // Without the key that wrote it last the server does not start, and says why.
    process.kill();
    let started = |providers: Value| {
        std::fs::write(&file, configuration(providers)).expect("written");
        let mut server = Command::new(&ferry);
        server
            .args(["apiserver", "--bind-address", "127.0.0.1", "--port", "0", "--data-dir"])
            .arg(&directory);
        server.arg(format!("--encryption-provider-config={}", file.display()));
        server
    };
    let refused = started(json!([{"aescbc": keys("one", ONE)}])).output().expect("ferry runs");
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success());
    assert!(said.contains("/registry/secrets/default/kept cannot be decrypted"), "{said}");
    let refused =
        started(json!([{"kms": {"name": "k", "endpoint": "unix:///x"}}])).output().expect("ferry runs");
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && said.contains("encryption.yaml") && said.contains("kms"), "{said}");
}
