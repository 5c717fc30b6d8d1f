//! Ferry called as etcd with the flags of kubeadm's static pod: clients come over TLS, with certificates; health and
//! metrics are on a port of their own, without.

use std::path::Path;
use std::process::{Command, Output};

use crate::authority::{Authority, write};
use crate::links::{Links, Program, free_port, http_get, installed};

/// What the flags of a client name.
struct Files {
    authority: String,
    pair: Option<(String, String)>,
}

fn pair(directory: &Path, name: &str, authority: &Authority, names: &[&str]) -> (String, String) {
    let (certificate, key) = authority.sign(names, Some((name, "etcd")));
    (write(directory, &format!("{name}.crt"), &certificate), write(directory, &format!("{name}.key"), &key))
}

fn etcdctl(program: &Path, endpoint: &str, files: &Files, words: &[&str]) -> Output {
    let mut command = Command::new(program);
    command.env("ETCDCTL_API", "3").args(["--endpoints", endpoint, "--cacert", &files.authority]);
    if let Some((certificate, key)) = &files.pair {
        command.args(["--cert", certificate, "--key", key]);
    }
    command.args(words).output().expect("etcdctl runs")
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr[..]].concat()).into_owned()
}

#[test]
fn etcd_serves_clients_with_certificates_as_kubeadm_asks_it_to() {
    let Some(links) = Links::make() else { return };
    let Some(program) = installed("etcdctl", "etcd-client") else { return };
    let directory = tempfile::tempdir().expect("a directory");
    let files = directory.path();
    let (authority, stranger) = (Authority::new("etcd-ca"), Authority::new("somebody"));
    let ca = write(files, "ca.crt", &authority.pem);
    let server = pair(files, "server", &authority, &["localhost", "127.0.0.1"]);
    let client = pair(files, "client", &authority, &[]);
    let foreign = pair(files, "foreign", &stranger, &[]);
    let endpoint = format!("https://127.0.0.1:{}", free_port());
    let metrics = format!("http://127.0.0.1:{}", free_port());
    let data = files.join("data");
    let start = || -> Program {
        let peers = "https://127.0.0.1:2380";
        let mut etcd = links.start(
            "etcd",
            &[
                "--name=control-plane".into(),
                format!("--data-dir={}", data.display()),
                format!("--advertise-client-urls={endpoint}"),
                format!("--listen-client-urls={endpoint}"),
                format!("--listen-metrics-urls={metrics}"),
                format!("--cert-file={}", server.0),
                format!("--key-file={}", server.1),
                format!("--trusted-ca-file={ca}"),
                "--client-cert-auth=true".into(),
                format!("--initial-advertise-peer-urls={peers}"),
                format!("--initial-cluster=control-plane={peers}"),
                format!("--listen-peer-urls={peers}"),
                format!("--peer-cert-file={}", server.0),
                format!("--peer-key-file={}", server.1),
                format!("--peer-trusted-ca-file={ca}"),
                "--peer-client-cert-auth=true".into(),
                "--snapshot-count=10000".into(),
                "--feature-gates=InitialCorruptCheck=true".into(),
                "--watch-progress-notify-interval=5s".into(),
            ],
        );
        etcd.wait_for(|| {
            http_get(&metrics, "/health").is_some_and(|page| page.contains("\"health\":\"true\""))
        });
        etcd
    };
    let etcd = start();
    let with = |pair: Option<&(String, String)>| Files { authority: ca.clone(), pair: pair.cloned() };
    let run = |files: &Files, words: &[&str]| etcdctl(&program, &endpoint, files, words);

    let trusted = with(Some(&client));
    let put = run(&trusted, &["put", "/a", "1"]);
    assert!(put.status.success(), "{}", said(&put));
    assert_eq!(run(&trusted, &["get", "/a"]).stdout, b"/a\n1\n");
    assert!(said(&run(&trusted, &["member", "list"])).contains(&endpoint));
    assert!(said(&run(&trusted, &["endpoint", "health"])).contains("is healthy"));
    for (files, why) in [
        (with(None), "no certificate"),
        (with(Some(&foreign)), "a certificate of another authority"),
        (
            Files { authority: write(files, "other.crt", &stranger.pem), ..with(Some(&client)) },
            "does not trust it",
        ),
    ] {
        // It tries again until its time is over.
        let answer = run(&files, &["get", "/a", "--command-timeout=2s", "--dial-timeout=2s"]);
        assert!(!answer.status.success(), "{why}: {}", said(&answer));
    }
    // The port of metrics has no keys, and the port of clients no plain HTTP.
    assert!(http_get(&metrics, "/metrics").expect("a page").contains("\netcd_server_has_leader 1\n"));
    let plain = etcdctl(&program, &metrics, &trusted, &["get", "/a", "--command-timeout=2s"]);
    assert!(!plain.status.success(), "{}", said(&plain));
    let plain = http_get(&endpoint.replace("https", "http"), "/health").unwrap_or_default();
    assert!(!plain.contains("200 OK"), "{plain}");

    // Ferry's own API server with upstream's flags for it, and what it wrote is still there after a restart.
    let own = files.join("apiserver");
    let mut api = links.start(
        "kube-apiserver",
        &[
            format!("--cert-dir={}", own.display()),
            "--bind-address=127.0.0.1".into(),
            format!("--secure-port={}", free_port()),
            format!("--etcd-servers={endpoint}"),
            format!("--etcd-cafile={ca}"),
            format!("--etcd-certfile={}", client.0),
            format!("--etcd-keyfile={}", client.1),
        ],
    );
    let kubeconfig = own.join("admin.kubeconfig");
    let ready = ["--kubeconfig", kubeconfig.to_str().expect("a path"), "get", "--raw=/readyz"];
    api.wait_for(|| links.output("kubectl", &ready).status.success());
    let has_default = || {
        let found = run(&trusted, &["get", "/registry/namespaces/default", "--keys-only"]);
        found.stdout.starts_with(b"/registry/namespaces/default")
    };
    assert!(has_default());
    assert!(api.terminate().success());
    assert!(etcd.terminate().success());
    let etcd = start();
    assert!(has_default());
    assert!(etcd.terminate().success());
}
