//! Keys and certificates while the server runs: they are renewed before they end, they follow the host to another
//! address, and they are rotated, without a restart.

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Output};
use std::time::{Duration, SystemTime};

use ferry_auth::pki::{Pki, PkiConfig};
use ferry_e2e::binary::ferry;
use ferry_testkit::TestServer;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use serde_json::{Value, json};

const SECRETS: &str = "GET /api/v1/namespaces/default/secrets";
const HOUR: Duration = Duration::from_secs(3600);

/// Asks until the answer is there, within a bound.
async fn until<T>(what: &str, mut ask: impl AsyncFnMut() -> Option<T>) -> T {
    let give_up = tokio::time::Instant::now() + Duration::from_secs(60);
    loop {
        if let Some(answer) = ask().await {
            return answer;
        }
        assert!(tokio::time::Instant::now() < give_up, "never: {what}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

fn count(pem: &str) -> usize {
    CertificateDer::pem_slice_iter(pem.as_bytes()).filter(Result::is_ok).count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_certificate_renews_while_the_server_runs() {
    let directory = tempfile::tempdir().expect("a directory");
    // Keys that were made for an hour, and of which two thirds of the hour (less the minutes that they are dated
    // back) are over five seconds from now.
    let names = ["127.0.0.1", "10.96.0.1"];
    let config =
        PkiConfig { ca_validity: HOUR, leaf_validity: HOUR, ..PkiConfig::new("cluster.local", names) };
    let made = SystemTime::now() + Duration::from_secs(5) - Duration::from_secs(2300);
    let old = Pki::open_or_create_at(directory.path().join("pki"), config, made).expect("keys");
    let (old_ca, old_proxy) = (old.ca_pem(), old.front_proxy_client());
    let old_serving = old.serving().current().cert.clone();
    drop(old);

    let store = ferry_store::embedded::Config::new(directory.path().join("store"));
    let store = std::sync::Arc::new(ferry_store::Embedded::open(store).expect("a store"));
    let server = TestServer::start_on(store, directory, |config| {
        config.certificate_check = Duration::from_millis(50);
    })
    .await;
    let pki = &server.running().pki;
    assert_eq!(pki.ca_pem(), old_ca, "not due yet");
    let kubeconfig = || std::fs::read_to_string(server.kubeconfig()).expect("a kubeconfig");
    let old_kubeconfig = kubeconfig();
    let old_admin = pki.client_certificate("root", &["system:masters"], SystemTime::now()).expect("a pair");

    // Each is made anew; what is served and who is believed follow.
    until("a new authority", async || (count(&pki.ca_pem()) == 2).then_some(())).await;
    until("a new authority of front proxies", async || (count(&pki.front_proxy_ca_pem()) == 2).then_some(()))
        .await;
    until("a new serving certificate", async || (pki.serving().current().cert != old_serving).then_some(()))
        .await;
    until("a new kubeconfig of the administrator", async || (kubeconfig() != old_kubeconfig).then_some(()))
        .await;
    let mode = std::fs::metadata(server.kubeconfig()).expect("a file").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let trust = "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication";
    until("others are told of it", async || {
        let data = server.get(trust).await.expect(200)["data"].clone();
        let both = ["client-ca-file", "requestheader-client-ca-file"];
        both.iter().all(|file| count(data[file].as_str().unwrap_or("")) == 2).then_some(())
    })
    .await;

    // Whoever was let in before is let in, by the server that has the new certificate.
    let root = server.outside(Some((&old_admin.certificate, &old_admin.key)));
    assert_eq!(root.ask(SECRETS, &[], "").await.code, 200);
    let shown = root.connect().await.get_ref().1.peer_certificates().map(<[_]>::to_vec);
    assert_eq!(shown.expect("a chain"), pki.serving().current().cert);
    let vouched = ["x-remote-user: root".to_string(), "x-remote-group: system:masters".into()];
    let new_proxy = pki.front_proxy_client();
    assert_ne!(old_proxy.certificate, new_proxy.certificate);
    for proxy in [old_proxy, new_proxy] {
        let said = server.outside(Some((&proxy.certificate, &proxy.key))).ask(SECRETS, &vouched, "").await;
        assert_eq!(said.code, 200, "{said:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_of_service_accounts_rotate_while_the_server_runs() {
    let server = TestServer::start_with(|config| config.certificate_check = Duration::from_millis(50)).await;
    let accounts = "/api/v1/namespaces/default/serviceaccounts";
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "robot"}});
    server.post(accounts, &account).await.expect(201);
    let token = async || {
        let request = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}});
        let made = server.post(&format!("{accounts}/robot/token"), &request).await.expect(201);
        made["status"]["token"].as_str().expect("a token").to_string()
    };
    let code = async |token: &str| {
        let header = format!("authorization: Bearer {token}");
        server.outside(None).ask("GET /api", &[header], "").await.code
    };
    let keys = async || -> BTreeSet<String> {
        let set = server.get("/openid/v1/jwks").await.expect(200);
        let keys = set["keys"].as_array().expect("keys").iter();
        keys.map(|key| key["kid"].as_str().expect("an id").to_string()).collect()
    };
    let (old_token, old_keys) = (token().await, keys().await);
    assert_eq!(code(&old_token).await, 200);

    // The old key is kept to believe its tokens, and another one signs.
    let pki = server.directory().join("pki");
    std::fs::rename(pki.join("sa.pub"), pki.join("sa-old.pub")).expect("renamed");
    let key = rcgen::KeyPair::generate().expect("a key");
    std::fs::write(pki.join("sa.key"), key.serialize_pem()).expect("written");
    let both = until("both keys are published", async || {
        let keys = keys().await;
        (keys.len() == 2).then_some(keys)
    })
    .await;
    assert!(both.is_superset(&old_keys));
    let new_token = token().await;
    assert_eq!((code(&old_token).await, code(&new_token).await), (200, 200));

    std::fs::remove_file(pki.join("sa-old.pub")).expect("removed");
    until("the old key is withdrawn", async || (code(&old_token).await == 401).then_some(())).await;
    assert_eq!(code(&new_token).await, 200);
    assert!(keys().await.is_disjoint(&old_keys));
}

/// A host of its own: a network namespace with one address. It and the server in it go with the test.
struct Host {
    name: String,
    server: Option<Child>,
}

impl Host {
    fn new(address: &str) -> Host {
        let host = Host { name: format!("ferry-moves-{}", std::process::id()), server: None };
        ip(&["netns", "add", &host.name]);
        host.ip(&["link", "set", "lo", "up"]);
        // Nobody is at the other end; the address is what matters.
        host.ip(&["link", "add", "uplink", "type", "veth", "peer", "name", "nowhere"]);
        host.ip(&["link", "set", "uplink", "up"]);
        host.ip(&["link", "set", "nowhere", "up"]);
        host.move_to(address);
        host
    }

    fn move_to(&self, address: &str) {
        self.ip(&["address", "flush", "dev", "uplink"]);
        self.ip(&["address", "add", &format!("{address}/24"), "dev", "uplink"]);
        self.ip(&["route", "replace", "default", "dev", "uplink"]);
    }

    fn ip(&self, words: &[&str]) {
        ip(&[&["-n", &self.name], words].concat());
    }

    fn command(&self, program: &Path) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name]).arg(program);
        command
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if let Some(server) = &mut self.server {
            // It may have ended by itself.
            let _ = server.kill();
            let _ = server.wait();
        }
        let _ = Command::new("ip").args(["netns", "delete", &self.name]).status();
    }
}

fn ip(words: &[&str]) {
    let output = Command::new("ip").args(words).output().expect("ip runs");
    assert!(output.status.success(), "ip {words:?}: {}", String::from_utf8_lossy(&output.stderr));
}

fn may_make_hosts() -> bool {
    let name = format!("ferry-may-{}", std::process::id());
    let made = Command::new("ip").args(["netns", "add", &name]).output();
    let _ = Command::new("ip").args(["netns", "delete", &name]).output();
    made.is_ok_and(|output| output.status.success())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_that_moves_is_reached_at_its_new_address() {
    let Some(binary) = ferry() else { return };
    if !may_make_hosts() {
        ferry_skip::missing("the right to make a network namespace");
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let mut host = Host::new("192.168.77.1");
    let server = host
        .command(&binary)
        .args(["apiserver", "--port", "6443", "--data-dir"])
        .arg(directory.path())
        .spawn();
    host.server = Some(server.expect("ferry starts"));
    let ask = |address: &str, path: &str| -> Output {
        let server = format!("--server=https://{address}:6443");
        let mut command = host.command(&binary);
        command.args(["kubectl", &server, "--request-timeout=5s", "get", "--raw", path]);
        command.env("KUBECONFIG", directory.path().join("admin.kubeconfig")).output().expect("kubectl runs")
    };
    let answers = async |address: &str| {
        until(&format!("it answers at {address}"), async || {
            ask(address, "/readyz").status.success().then_some(())
        })
        .await;
    };
    answers("192.168.77.1").await;
    host.move_to("192.168.88.2");
    // Over TLS, by a client that checks the name in the certificate.
    answers("192.168.88.2").await;
    until("its endpoints are known", async || {
        let said =
            ask("192.168.88.2", "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/kubernetes");
        let slice: Value = serde_json::from_slice(&said.stdout).ok()?;
        (slice["endpoints"][0]["addresses"] == json!(["192.168.88.2"])).then_some(())
    })
    .await;
}

/// The use of a token that a Secret keeps is noted by the day; one that is marked invalid is refused, and accepted again
/// when the mark goes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_use_of_tokens_in_secrets_is_noted() {
    use base64::Engine;
    const SECRET: &str = "/api/v1/namespaces/default/secrets/kept";
    let server = TestServer::start().await;
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "robot"}});
    let account = server.post("/api/v1/namespaces/default/serviceaccounts", &account).await.expect(201);
    let token = server.sign_token(&json!({
        "iss": "kubernetes/serviceaccount", "sub": "system:serviceaccount:default:robot",
        "kubernetes.io/serviceaccount/namespace": "default",
        "kubernetes.io/serviceaccount/secret.name": "kept",
        "kubernetes.io/serviceaccount/service-account.name": "robot",
        "kubernetes.io/serviceaccount/service-account.uid": account["metadata"]["uid"],
    }));
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/service-account-token",
        "metadata": {"name": "kept", "annotations": {"kubernetes.io/service-account.name": "robot"}},
        "data": {"token": base64::prelude::BASE64_STANDARD.encode(&token)},
    });
    server.post("/api/v1/namespaces/default/secrets", &secret).await.expect(201);
    let used = async || {
        let bearer = [format!("authorization: Bearer {token}")];
        server.outside(None).ask("GET /api", &bearer, "").await.code
    };
    let noted = async || {
        let secret = server.get(SECRET).await.expect(200);
        secret["metadata"]["labels"]["kubernetes.io/legacy-token-last-used"].as_str().map(str::to_owned)
    };
    let label = async |name: &str, value: Value| {
        let patch = json!({"metadata": {"labels": {name: value}}});
        server.patch(SECRET, "merge", &patch).await.expect(200);
    };
    assert_eq!(noted().await, None);
    assert_eq!(used().await, 200);
    let day = until("the use is noted", noted).await;
    assert!(day.len() == 10 && day.as_str() > "2026-01-01", "{day}");

    label("kubernetes.io/legacy-token-invalid-since", "2026-01-01".into()).await;
    label("kubernetes.io/legacy-token-last-used", "2026-01-01".into()).await;
    assert_eq!(used().await, 401);
    until("the refused use is noted", async || noted().await.filter(|day| day != "2026-01-01")).await;
    label("kubernetes.io/legacy-token-invalid-since", Value::Null).await;
    assert_eq!(used().await, 200);

    let warned = async || {
        let bearer = [format!("authorization: Bearer {token}")];
        let said = server.outside(None).ask("GET /api", &bearer, "").await;
        said.header("warning").map(str::to_owned)
    };
    assert_eq!(warned().await, None, "somebody made it");
    let patch = json!({"secrets": [{"name": "kept"}]});
    server.patch("/api/v1/namespaces/default/serviceaccounts/robot", "merge", &patch).await.expect(200);
    assert_eq!(
        warned().await.as_deref(),
        Some(
            "299 - \"Use tokens from the TokenRequest API or manually created secret-based tokens instead of auto-generated \
             secret-based tokens.\""
        )
    );
    let metrics = server.get("/metrics").await;
    let metrics = String::from_utf8_lossy(&metrics.bytes).into_owned();
    for (name, least) in [
        ("serviceaccount_legacy_tokens_total", 4.0),
        ("serviceaccount_legacy_manual_token_uses_total", 3.0),
        ("serviceaccount_legacy_auto_token_uses_total", 1.0),
        ("serviceaccount_invalid_legacy_auto_token_uses_total", 1.0),
    ] {
        let line = metrics.lines().find(|line| line.starts_with(&format!("{name} "))).unwrap_or(name);
        let count = line.rsplit(' ').next().and_then(|count| count.parse::<f64>().ok());
        // Tests of one process count together.
        assert!(count.is_some_and(|count| count >= least), "{line}");
    }
}
