//! `ferry snapshot`: a cluster's state in a file, taken while it runs, and another cluster made of it. With values that
//! are encrypted at rest, which stay so in the file.

use std::path::Path;
use std::process::{Command, Output};

use ferry_e2e::binary::{Process, ferry};
use http::Method;
use serde_json::json;

const SECRETS: &str = "/api/v1/namespaces/default/secrets";
const ENCRYPTION: &str = r#"{
    "apiVersion": "apiserver.config.k8s.io/v1", "kind": "EncryptionConfiguration",
    "resources": [{"resources": ["secrets"], "providers": [
        {"aesgcm": {"keys": [{"name": "one", "secret": "MTExMTExMTExMTExMTExMTExMTExMTExMTExMTExMTE="}]}}
    ]}]
}"#;

fn encryption(directory: &Path) -> String {
    let file = directory.join("encryption.json");
    std::fs::write(&file, ENCRYPTION).expect("written");
    format!("--encryption-provider-config={}", file.display())
}

fn snapshot(ferry: &Path, words: &[&str], data_dir: &Path) -> Output {
    let mut command = Command::new(ferry);
    command.arg("snapshot").args(words).arg("--data-dir").arg(data_dir).output().expect("ferry runs")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_running_cluster_is_saved_and_another_made_of_it() {
    let Some(ferry) = ferry() else { return };
    let folder = tempfile::tempdir().expect("a directory");
    let file = folder.path().join("cluster.snapshot").display().to_string();
    let process = Process::apiserver(&ferry, |directory| vec![encryption(directory)]).await;
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "kept"}, "stringData": {"v": "deeply-hidden"}});
    let headers = [("content-type", "application/json")];
    let admin = process.admin().await;
    let body = secret.to_string().into_bytes();
    let before = ferry_testkit::send(&admin, Method::POST, SECRETS, &headers, body).await.expect(201);

    let saved = snapshot(&ferry, &["save", &file], process.directory());
    assert!(saved.status.success(), "{}", String::from_utf8_lossy(&saved.stderr));
    drop(process);
    let bytes = std::fs::read(&file).expect("a file");
    let has = |text: &str| bytes.windows(text.len()).any(|piece| piece == text.as_bytes());
    assert!(has("k8s:enc:aesgcm:v1:one:") && !has("ZGVlcGx5LWhpZGRlbg=="));

    let restored = Process::apiserver(&ferry, |directory| {
        let restored = snapshot(&ferry, &["restore", &file], directory);
        assert!(restored.status.success(), "{}", String::from_utf8_lossy(&restored.stderr));
        vec![encryption(directory)]
    })
    .await;
    let admin = restored.admin().await;
    let path = format!("{SECRETS}/kept");
    let after = ferry_testkit::send(&admin, Method::GET, &path, &[], Vec::new()).await.expect(200);
    assert_eq!(after["data"], before["data"]);
    assert_eq!(after["metadata"]["uid"], before["metadata"]["uid"]);

    // What is not whole is not restored.
    std::fs::write(&file, &bytes[..bytes.len() - 7]).expect("written");
    let refused = snapshot(&ferry, &["restore", &file], &folder.path().join("data"));
    assert!(!refused.status.success());
}
