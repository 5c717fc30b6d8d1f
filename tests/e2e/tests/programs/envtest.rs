//! envtest of controller-runtime: the flags it passes, the files it lays down, and how it waits and stops. Neither
//! program is told of a directory of its own beyond the ones given, and neither needs root.

use http::Method;
use kube::config::Kubeconfig;
use serde_json::json;

use crate::authority::{Authority, write};
use crate::links::{Links, free_port};

fn kubeconfig(url: &str, authority: &str, user: Option<&(String, String)>) -> Kubeconfig {
    use base64::Engine;
    let encode = |text: &str| base64::engine::general_purpose::STANDARD.encode(text);
    let user = match user {
        Some((certificate, key)) => {
            json!({"client-certificate-data": encode(certificate), "client-key-data": encode(key)})
        }
        None => json!({}),
    };
    let text = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "envtest",
        "clusters": [{"name": "envtest", "cluster": {
            "server": url, "certificate-authority-data": encode(authority),
        }}],
        "contexts": [{"name": "envtest", "context": {"cluster": "envtest", "user": "envtest"}}],
        "users": [{"name": "envtest", "user": user}],
    });
    serde_json::from_value(text).expect("a kubeconfig")
}

async fn client(kubeconfig: Kubeconfig) -> kube::Client {
    let config =
        kube::Config::from_custom_kubeconfig(kubeconfig, &Default::default()).await.expect("a config");
    kube::Client::try_from(config).expect("a client")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn envtest_starts_uses_and_stops_both_programs() {
    let Some(links) = Links::make() else { return };
    let help = links.output("kube-apiserver", &["--help"]);
    assert!(help.status.success());
    let help = String::from_utf8_lossy(&help.stdout).into_owned();
    let listed = |flag: &str| help.lines().any(|line| line.trim_start().starts_with(&format!("--{flag}")));
    for flag in ["secure-port", "cert-dir", "client-ca-file", "etcd-servers", "allow-privileged"] {
        assert!(listed(flag), "--{flag} is not in the help");
    }
    assert!(!listed("insecure-port"), "envtest would pass it");

    let directory = tempfile::tempdir().expect("a directory");
    let certificates = directory.path().join("k8s_test_framework_1");
    std::fs::create_dir(&certificates).expect("a directory");
    let (etcd, etcd_url) = links.etcd(&directory.path().join("k8s_test_framework_2"), &[]);

    let (serving, clients, accounts) =
        (Authority::new("serving"), Authority::new("clients"), Authority::new("accounts"));
    let pair = serving.sign(&["localhost", "127.0.0.1"], None);
    write(&certificates, "apiserver.crt", &pair.0);
    write(&certificates, "apiserver.key", &pair.1);
    let account_key = accounts.issuer.key().serialize_pem();
    let port = free_port();
    let url = format!("https://127.0.0.1:{port}");
    let mut server = links.start(
        "kube-apiserver",
        &[
            "--allow-privileged=true".into(),
            "--authorization-mode=RBAC".into(),
            "--bind-address=127.0.0.1".into(),
            format!("--cert-dir={}", certificates.display()),
            format!("--client-ca-file={}", write(&certificates, "client-cert-auth-ca.crt", &clients.pem)),
            "--disable-admission-plugins=ServiceAccount".into(),
            format!("--etcd-servers={etcd_url}"),
            format!("--secure-port={port}"),
            format!("--service-account-issuer={url}/"),
            format!("--service-account-key-file={}", write(&certificates, "sa-signer.crt", &accounts.pem)),
            format!(
                "--service-account-signing-key-file={}",
                write(&certificates, "sa-signer.key", &account_key)
            ),
            "--service-cluster-ip-range=10.0.0.0/24".into(),
        ],
    );

    // Anonymous, with the authority that envtest laid down.
    let nobody = client(kubeconfig(&url, &serving.pem, None)).await;
    let deadline = tokio::time::Instant::now() + crate::links::PATIENCE;
    loop {
        let asked = http::Request::get("/healthz").body(Vec::new()).expect("a request");
        if nobody.request_text(asked).await.is_ok_and(|text| text == "ok") {
            break;
        }
        assert!(tokio::time::Instant::now() < deadline, "not ready in time");
        server.wait_for(|| true);
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    let get = async |client: &kube::Client, path: &str| {
        ferry_testkit::send(client, Method::GET, path, &[], Vec::new()).await
    };
    assert_eq!(get(&nobody, "/readyz").await.code, 200);
    assert_ne!(get(&nobody, "/api/v1/namespaces").await.code, 200);

    let user = clients.sign(&[], Some(("admin", "system:masters")));
    let admin = client(kubeconfig(&url, &serving.pem, Some(&user))).await;
    get(&admin, "/api/v1/namespaces/default").await.expect(200);
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}}).to_string();
    let headers = [("content-type", "application/json")];
    let path = "/api/v1/namespaces/default/configmaps";
    ferry_testkit::send(&admin, Method::POST, path, &headers, map.into_bytes()).await.expect(201);
    let token = "/api/v1/namespaces/default/serviceaccounts/tester/token";
    let account =
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "tester"}}).to_string();
    let accounts = "/api/v1/namespaces/default/serviceaccounts";
    ferry_testkit::send(&admin, Method::POST, accounts, &headers, account.into_bytes()).await.expect(201);
    let request =
        json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}).to_string();
    let answer =
        ferry_testkit::send(&admin, Method::POST, token, &headers, request.into_bytes()).await.expect(201);
    let issued = answer["status"]["token"].as_str().expect("a token").to_owned();
    let mut config =
        kube::Config::from_custom_kubeconfig(kubeconfig(&url, &serving.pem, None), &Default::default())
            .await
            .expect("a config");
    config.auth_info.token = Some(issued.into());
    let holder = kube::Client::try_from(config).expect("a client");
    assert_eq!(get(&holder, "/api").await.code, 200, "a token signed with envtest's key is believed");

    assert!(server.terminate().success());
    assert!(etcd.terminate().success());
}

/// kubeadm's static pods start in any order.
#[test]
fn an_api_server_waits_for_an_etcd_that_is_not_there_yet() {
    let Some(links) = Links::make() else { return };
    let directory = tempfile::tempdir().expect("a directory");
    let place = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    place.set_nonblocking(true).expect("a socket");
    let at = format!("http://{}", place.local_addr().expect("its number"));
    let port = free_port();
    let mut server = links.start(
        "kube-apiserver",
        &[
            "--bind-address=127.0.0.1".into(),
            format!("--cert-dir={}", directory.path().join("certificates").display()),
            format!("--etcd-servers={at}"),
            format!("--secure-port={port}"),
        ],
    );
    // More often than one attempt connects, and every connection ends at once.
    let mut connections = 0;
    server.wait_for(|| {
        while place.accept().is_ok() {
            connections += 1;
        }
        connections >= 8
    });
    drop(place);
    let etcd = links.start(
        "etcd",
        &[
            format!("--data-dir={}", directory.path().join("etcd").display()),
            format!("--listen-client-urls={at}"),
            "--listen-peer-urls=http://127.0.0.1:0".into(),
        ],
    );
    server.wait_for(|| std::net::TcpStream::connect(("127.0.0.1", port)).is_ok());
    assert!(server.terminate().success());
    assert!(etcd.terminate().success());
}

#[test]
fn unsupported_flag_values_are_errors_and_flags_without_effect_are_logged() {
    let Some(links) = Links::make() else { return };
    let directory = tempfile::tempdir().expect("a directory");
    let data = format!("--data-dir={}", directory.path().display());
    let refused = |flag: &str| {
        let output =
            links.output("kube-apiserver", &[&data, "--bind-address=127.0.0.1", "--secure-port=0", flag]);
        assert!(!output.status.success(), "{flag}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    assert!(refused("--no-such-flag=1").contains("--no-such-flag"));
    let said = refused("--allow-privileged=false");
    assert!(said.contains("allow-privileged") && said.contains("true"), "{said}");
    assert!(refused("--etcd-prefix=/elsewhere").contains("/registry"));
    let version = links.output("kube-apiserver", &["--version"]);
    assert!(String::from_utf8_lossy(&version.stdout).starts_with("Kubernetes v1.36."));
    let version = links.output("etcd", &["--version"]);
    assert!(String::from_utf8_lossy(&version.stdout).starts_with("etcd Version: 3."));

    // Ends by itself, for want of a certificate, after it has said what has no effect.
    let etcd = links.output(
        "etcd",
        &[
            &data,
            "--listen-client-urls=https://127.0.0.1:0",
            "--initial-cluster-state=new",
            "--initial-cluster",
            "a=b",
        ],
    );
    let said = String::from_utf8_lossy(&etcd.stderr).into_owned();
    assert!(!etcd.status.success() && said.contains("no certificate"), "{said}");
    assert_eq!(said.matches("--initial-cluster has no effect here").count(), 1, "{said}");
}
