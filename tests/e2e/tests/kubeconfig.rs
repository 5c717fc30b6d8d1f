//! `ferry kubectl` with every sort of credential that a kubeconfig can hold, against a server that asks for them.

use std::path::Path;
use std::process::{Command, Output};
use std::sync::{Arc, OnceLock};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use ferry_auth::jws::SigningKey;
use ferry_e2e::binary::{Process, ferry};
use ferry_e2e::responder::Responder;
use serde_json::{Value, json};

/// A server that knows a token, a password and an identity provider, and a kubectl to ask it with.
struct Subject {
    ferry: std::path::PathBuf,
    server: Process,
}

impl Subject {
    /// Whom the server takes the user of this kubeconfig for.
    fn whoami(&self, user: &Value, words: &[&str]) -> Output {
        let file = self.server.directory().join("asks.kubeconfig");
        std::fs::write(&file, self.kubeconfig(user)).expect("written");
        self.kubectl(file.as_os_str().to_str().expect("a path"), words)
    }

    fn kubectl(&self, kubeconfig: &str, words: &[&str]) -> Output {
        let asked = ["kubectl", "auth", "whoami", "-o", "jsonpath={.status.userInfo.username}"];
        let mut command = Command::new(&self.ferry);
        command.args(asked).args(words).env("KUBECONFIG", kubeconfig).env("HOME", self.server.directory());
        command.output().expect("kubectl runs")
    }

    /// JSON is YAML too.
    fn kubeconfig(&self, user: &Value) -> String {
        json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "c", "cluster": {
                "server": format!("https://127.0.0.1:{}", self.server.port()),
                "certificate-authority": self.server.directory().join("pki/ca.crt"),
            }}],
            "users": [{"name": "u", "user": user}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        })
        .to_string()
    }
}

fn said(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// An identity provider that gives a fresh token for the right refresh token.
async fn provider(key: SigningKey) -> Responder {
    let jwks = json!({"keys": [key.public.to_jwk()]});
    let url = Arc::new(OnceLock::<String>::new());
    let own = url.clone();
    let provider = Responder::start(move |asked| {
        let issuer = own.get().cloned().unwrap_or_else(String::new);
        match asked.path.as_str() {
            "/.well-known/openid-configuration" => {
                let endpoint = format!("{issuer}/token");
                (200, json!({"issuer": issuer, "jwks_uri": format!("{issuer}/keys"), "token_endpoint": endpoint}))
            }
            "/keys" => (200, jwks.clone()),
            "/token" if String::from_utf8_lossy(&asked.body).contains("refresh_token=right") => {
                (200, json!({"id_token": id_token(&key, &issuer, 600), "refresh_token": "next"}))
            }
            "/token" => (400, json!({"error": "invalid_grant"})),
            _ => (404, json!({})),
        }
    })
    .await;
    url.set(provider.url()).expect("set once");
    provider
}

/// Good for so many seconds from now.
fn id_token(key: &SigningKey, issuer: &str, seconds: i64) -> String {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970");
    let expiry = since.as_secs() as i64 + seconds;
    let claims = json!({"iss": issuer, "aud": "ferry", "sub": "ann", "exp": expiry, "iat": expiry - 3600});
    key.sign(&claims).expect("signed")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_sort_of_credential_lets_kubectl_in() {
    let Some(ferry) = ferry() else { return };
    let pem = rcgen::KeyPair::generate().expect("a key").serialize_pem();
    let key = || SigningKey::from_pem(&pem).expect("a key that signs");
    let provider = provider(key()).await;
    let (issuer, ca) = (provider.url(), provider.ca_pem.clone());
    let server = Process::apiserver(&ferry, |directory| {
        let write = |name: &str, text: &str| {
            std::fs::write(directory.join(name), text).expect("written");
            directory.join(name).display().to_string()
        };
        vec![
            format!("--token-auth-file={}", write("tokens.csv", "a-token,alice,1\n")),
            format!("--basic-auth-file={}", write("basic.csv", "open-sesame,bob,2\n")),
            format!("--oidc-issuer-url={issuer}"),
            "--oidc-client-id=ferry".into(),
            "--oidc-username-prefix=oidc:".into(),
            "--oidc-signing-algs=ES256".into(),
            format!("--oidc-ca-file={}", write("oidc.crt", &ca)),
        ]
    })
    .await;
    let subject = Subject { ferry, server };
    let ask = |user: Value, words: &[&str]| said(&subject.whoami(&user, words));

    assert_eq!(ask(json!({"token": "a-token"}), &[]), "alice");
    assert_eq!(ask(json!({"username": "bob", "password": "open-sesame"}), &[]), "bob");
    let file = subject.server.directory().join("token");
    std::fs::write(&file, "a-token\n").expect("written");
    assert_eq!(ask(json!({"tokenFile": file}), &[]), "alice");
    let admin = admin_certificate(subject.server.directory());
    assert_eq!(ask(admin.clone(), &[]), "kubernetes-admin");

    // A flag counts more than the file.
    assert_eq!(ask(json!({"token": "wrong"}), &["--token=a-token"]), "alice");
    assert_eq!(ask(json!({"token": "wrong"}), &["--username=bob", "--password=open-sesame"]), "bob");
    assert_eq!(ask(admin.clone(), &["--as=carol"]), "carol");

    // A plugin prints a token, or a certificate with its key.
    let plugin = |status: Value| {
        let answer = json!({"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": status});
        json!({"exec": {
            "apiVersion": "client.authentication.k8s.io/v1", "command": "printenv", "args": ["ANSWER"],
            "env": [{"name": "ANSWER", "value": answer.to_string()}], "interactiveMode": "Never",
        }})
    };
    assert_eq!(ask(plugin(json!({"token": "a-token"})), &[]), "alice");
    let decoded = |field: &str| {
        let text = admin[field].as_str().expect("a field of the administrator's");
        String::from_utf8(BASE64_STANDARD.decode(text).expect("base64")).expect("PEM")
    };
    let pair = json!({
        "clientCertificateData": decoded("client-certificate-data"), "clientKeyData": decoded("client-key-data"),
    });
    assert_eq!(ask(plugin(pair), &[]), "kubernetes-admin");
    // A certificate that flags name goes before what a plugin prints.
    let flags = [("client-certificate", "client-certificate-data"), ("client-key", "client-key-data")].map(
        |(flag, field)| {
            let file = subject.server.directory().join(flag);
            std::fs::write(&file, decoded(field)).expect("written");
            format!("--{flag}={}", file.display())
        },
    );
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    assert_eq!(ask(plugin(json!({"token": "a-token"})), &flags), "kubernetes-admin");

    // An identity provider's token is used while it lasts, then renewed, and the new one kept.
    let with_provider = |token: &str, refresh: &str| {
        json!({"auth-provider": {"name": "oidc", "config": {
            "idp-issuer-url": issuer, "client-id": "ferry", "id-token": token, "refresh-token": refresh,
            "idp-certificate-authority-data": BASE64_STANDARD.encode(&ca),
        }}})
    };
    let (fresh, stale) = (id_token(&key(), &issuer, 600), id_token(&key(), &issuer, -5));
    assert_eq!(ask(with_provider(&fresh, "unused"), &[]), "oidc:ann");
    assert_eq!(ask(with_provider(&stale, "right"), &[]), "oidc:ann");
    let kept = std::fs::read_to_string(subject.server.directory().join("asks.kubeconfig")).expect("a file");
    assert!(!kept.contains(&stale) && kept.contains("refresh-token: next"), "{kept}");
    let refused = subject.whoami(&with_provider(&stale, "wrong"), &[]);
    assert!(!refused.status.success(), "{refused:?}");

    // A list of files is one: here the cluster comes from the first, and its user from the second.
    let (one, two) = (subject.server.directory().join("one"), subject.server.directory().join("two"));
    let mut first: Value = serde_json::from_str(&subject.kubeconfig(&json!({}))).expect("JSON");
    first["users"] = json!([]);
    std::fs::write(&one, first.to_string()).expect("written");
    let second =
        json!({"apiVersion": "v1", "kind": "Config", "users": [{"name": "u", "user": {"token": "a-token"}}]});
    std::fs::write(&two, second.to_string()).expect("written");
    let list = format!("{}:{}", one.display(), two.display());
    assert_eq!(said(&subject.kubectl(&list, &[])), "alice");

    // Whatever is shown of requests, no credential is.
    for (user, secret) in [
        (json!({"token": "a-token"}), "a-token"),
        (json!({"username": "bob", "password": "open-sesame"}), "Ym9iOm9wZW4tc2VzYW1l"),
    ] {
        let shown = subject.whoami(&user, &["-v=9"]);
        let shown = String::from_utf8_lossy(&shown.stderr);
        assert!(shown.contains("selfsubjectreviews") && shown.contains("<masked>"), "{shown}");
        assert!(!shown.contains(secret), "{shown}");
    }
}

/// The user entry of the administrator's kubeconfig.
fn admin_certificate(directory: &Path) -> Value {
    let text = std::fs::read_to_string(directory.join("admin.kubeconfig")).expect("a kubeconfig");
    let documents = ferry_api::yaml::documents(&text).expect("YAML");
    documents[0]["users"][0]["user"].clone()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn match_server_version_sends_nothing_else_to_a_server_of_another_version() {
    let Some(ferry) = ferry() else { return };
    let home = tempfile::tempdir().expect("a directory");
    for (version, is_refused) in [("v1.36.4", false), ("v1.36.4+vendor", false), ("v1.35.0", true)] {
        let responder = Responder::start(move |asked| match asked.path.as_str() {
            "/version" => (200, json!({"major": "1", "minor": "36", "gitVersion": version})),
            "/api/v1/namespaces/default" => {
                (200, json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "default"}}))
            }
            path => (404, json!({"kind": "Status", "code": 404, "message": path})),
        })
        .await;
        let file = home.path().join("config");
        std::fs::write(&file, responder.kubeconfig()).expect("written");
        let ask = |words: &[&str]| {
            let mut command = Command::new(&ferry);
            command.args(["kubectl", "get", "--raw", "/api/v1/namespaces/default"]).args(words);
            command.env("KUBECONFIG", &file).env("HOME", home.path()).output().expect("kubectl runs")
        };
        assert!(ask(&[]).status.success(), "{version} without the flag");
        assert_eq!(responder.asked().await.path, "/api/v1/namespaces/default");
        let output = ask(&["--match-server-version"]);
        assert_eq!(responder.asked().await.path, "/version");
        assert_eq!(output.status.success(), !is_refused, "{version}: {output:?}");
        if is_refused {
            let words = String::from_utf8_lossy(&output.stderr);
            let server = r#"error: server version (&version.Info{Major:"1", Minor:"36", EmulationMajor:"", EmulationMinor:"", MinCompatibilityMajor:"", MinCompatibilityMinor:"", GitVersion:"v1.35.0", GitCommit:"","#;
            assert!(words.starts_with(server), "{words}");
            assert!(
                words.contains(r#"differs from client version (version.Info{Major:"1", Minor:"36","#),
                "{words}"
            );
            assert!(ask(&[]).status.success(), "it goes on without the flag");
        }
        // After a refusal this is the request without the flag: the refused one never came.
        assert_eq!(responder.asked().await.path, "/api/v1/namespaces/default");
    }
}
