//! A server that writes everything down, and the lines it writes.

use std::path::PathBuf;
use std::time::Duration;

use ferry_apiserver::run::Config;
use ferry_testkit::{Answer, TestServer, send};
use serde_json::Value;

pub struct AuditedServer {
    pub server: TestServer,
    log: PathBuf,
    _files: tempfile::TempDir,
}

impl AuditedServer {
    /// Writes down all requests at this level. `change` has the last word on the configuration.
    pub async fn start(level: &str, change: impl FnOnce(&mut Config)) -> AuditedServer {
        let files = tempfile::tempdir().expect("a directory");
        let (policy, log) = (files.path().join("policy.yaml"), files.path().join("audit.log"));
        let rules = format!("omitStages: [RequestReceived]\nrules: [{{level: {level}}}]\n");
        std::fs::write(&policy, format!("apiVersion: audit.k8s.io/v1\nkind: Policy\n{rules}"))
            .expect("written");
        let server = TestServer::start_with(|config| {
            config.audit.policy_file = Some(policy);
            config.audit.log = Some(ferry_testkit::audit_log(&log));
            change(config);
        })
        .await;
        AuditedServer { server, log, _files: files }
    }

    /// The administrator's request, under this audit id.
    pub async fn ask(&self, method: &str, path: &str, id: &str, object: &Value) -> Answer {
        let method = method.parse().expect("a method");
        let headers = [("content-type", "application/json"), ("audit-id", id)];
        send(&self.server.admin(), method, path, &headers, object.to_string().into_bytes()).await
    }

    /// The line about the request that came with this id, once it is written.
    pub async fn line(&self, id: &str) -> Value {
        self.line_where(id, |line| line["auditID"] == id).await
    }

    /// All that is written by now.
    pub fn lines(&self) -> Vec<Value> {
        let text = std::fs::read_to_string(&self.log).unwrap_or_else(|_| String::new());
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    pub async fn line_where(&self, what: &str, is_it: impl Fn(&Value) -> bool) -> Value {
        let give_up = tokio::time::Instant::now() + Duration::from_secs(20);
        loop {
            let lines = self.lines();
            if let Some(line) = lines.iter().find(|line| is_it(line)) {
                return line.clone();
            }
            assert!(tokio::time::Instant::now() < give_up, "no audit line of {what}:\n{lines:#?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}
