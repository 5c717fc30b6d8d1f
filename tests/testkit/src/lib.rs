//! A real server for tests, in the test's process: embedded store in a temporary directory, TLS on a free port, the complete
//! filter chain. Dropping it removes everything.
//!
//! Start reading at [`TestServer`]. [`skip`] reports and counts what a test does not check; [`raw`] is for requests that no
//! client would send; [`outside`] is a client over TLS that can misbehave.

pub mod outside;
pub mod raw;

pub use ferry_skip as skip;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ferry_apiserver::run::{Config, Running, start};
use ferry_auth::User;
use ferry_auth::user::MASTERS;
use ferry_store::{Embedded, Store, embedded};
use http::{Method, Request};
use http_body_util::BodyExt;
use kube::Client;
use kube::client::Body;
use serde_json::Value;
use tempfile::TempDir;

pub struct TestServer {
    running: Option<Running>,
    directory: TempDir,
}

/// What the server answered.
#[derive(Debug)]
pub struct Answer {
    pub code: u16,
    pub headers: http::HeaderMap,
    pub bytes: bytes::Bytes,
}

impl TestServer {
    pub async fn start() -> TestServer {
        TestServer::start_with(|_| {}).await
    }

    /// A server whose configuration `change` has the last word on. Nobody makes the accounts that pods run as,
    /// so the plugin that demands them is off.
    pub async fn start_with(change: impl FnOnce(&mut Config)) -> TestServer {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let store =
            Embedded::open(embedded::Config::new(directory.path().join("store"))).expect("an empty store");
        TestServer::start_on(Arc::new(store), directory, change).await
    }

    pub async fn start_on(
        store: Arc<dyn Store>,
        directory: TempDir,
        change: impl FnOnce(&mut Config),
    ) -> TestServer {
        let mut config = Config {
            bind: SocketAddr::from(([127, 0, 0, 1], 0)),
            advertise: Some([127, 0, 0, 1].into()),
            disable_admission_plugins: vec!["ServiceAccount".into()],
            ..Config::new(directory.path())
        };
        change(&mut config);
        let running = Box::pin(start(config, store)).await.expect("the server starts");
        until_settled(&running).await;
        TestServer { running: Some(running), directory }
    }

    pub fn running(&self) -> &Running {
        self.running.as_ref().expect("runs until it is stopped")
    }

    /// A client of the administrator's, inside the process.
    pub fn admin(&self) -> Client {
        self.running().client(User::new("admin").with_groups([MASTERS]))
    }

    /// A client of someone with no special rights.
    pub fn user(&self, name: &str, groups: &[&str]) -> Client {
        self.running().client(User::new(name).with_groups(groups.iter().copied()))
    }

    /// A client over the network that says what it likes; `certificate` is a chain and its key.
    pub fn outside(&self, certificate: Option<(&str, &str)>) -> outside::Outside {
        let running = self.running();
        outside::Outside::new(running.address, &running.pki.ca_pem(), certificate)
    }

    /// A token with these claims, signed with the server's own key: what only the server should be able to make.
    pub fn sign_token(&self, claims: &Value) -> String {
        let key = ferry_auth::jws::SigningKey::from_pem(self.running().pki.service_account_key());
        key.and_then(|key| key.sign(claims)).expect("the server's key signs")
    }

    pub fn url(&self) -> &str {
        &self.running().url
    }

    /// The administrator's kubeconfig, for programs outside.
    pub fn kubeconfig(&self) -> PathBuf {
        self.directory.path().join("admin.kubeconfig")
    }

    pub fn directory(&self) -> &std::path::Path {
        self.directory.path()
    }

    /// One request as it is, without a client's help.
    pub async fn send(
        &self,
        method: Method,
        path: &str,
        content_type: &str,
        body: impl Into<Vec<u8>>,
    ) -> Answer {
        send(&self.admin(), method, path, &[("content-type", content_type)], body.into()).await
    }

    pub async fn get(&self, path: &str) -> Answer {
        send(&self.admin(), Method::GET, path, &[], Vec::new()).await
    }

    pub async fn post(&self, path: &str, object: &Value) -> Answer {
        self.send(Method::POST, path, "application/json", object.to_string()).await
    }

    pub async fn put(&self, path: &str, object: &Value) -> Answer {
        self.send(Method::PUT, path, "application/json", object.to_string()).await
    }

    pub async fn delete(&self, path: &str) -> Answer {
        send(&self.admin(), Method::DELETE, path, &[], Vec::new()).await
    }

    pub async fn patch(&self, path: &str, kind: &str, patch: &Value) -> Answer {
        let content_type = match kind {
            "apply" => "application/apply-patch+yaml".to_string(),
            kind => format!("application/{kind}-patch+json"),
        };
        self.send(Method::PATCH, path, &content_type, patch.to_string()).await
    }

    /// Stops the server and keeps its directory, to start again on it.
    pub async fn stop(mut self) -> TempDir {
        if let Some(running) = self.running.take() {
            running.stop().await;
        }
        std::mem::replace(&mut self.directory, tempfile::tempdir().expect("a temporary directory"))
    }
}

/// Waits for what a server writes of itself after it is ready, so that what is written later is the test's.
async fn until_settled(running: &Running) {
    let Some(fairness) = running.api.flow_control.fairness() else { return };
    let give_up = Instant::now() + Duration::from_secs(10);
    while !fairness.is_settled() && Instant::now() < give_up {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// An audit log in this file, for a server's configuration.
pub fn audit_log(path: &std::path::Path) -> ferry_auth::audit::LogFileConfig {
    ferry_auth::audit::LogFileConfig::new(path)
}

pub async fn send(
    client: &Client,
    method: Method,
    path: &str,
    headers: &[(&str, &str)],
    body: Vec<u8>,
) -> Answer {
    let mut request = Request::builder().method(method).uri(path);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let request = request.body(Body::from(body)).expect("a well-formed request");
    let response = client.send(request).await.expect("the server answers");
    let (parts, body) = response.into_parts();
    let bytes = body.collect().await.expect("the body arrives").to_bytes();
    Answer { code: parts.status.as_u16(), headers: parts.headers, bytes }
}

impl Answer {
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.bytes)
            .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&self.bytes)))
    }

    /// The object, after a check that this is the code.
    #[track_caller]
    pub fn expect(&self, code: u16) -> Value {
        let value = self.json();
        assert_eq!(self.code, code, "{value:#}");
        value
    }

    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or("")
    }
}
