//! `ferry apiserver` as a process, and requests to it.

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use ferry_e2e::binary::{Process, ferry};
use ferry_testkit::{Answer, send};
use http::Method;
use kube::Client;
use serde_json::{Value, json};

pub const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

/// Nothing is waited for any longer.
pub const PATIENCE: Duration = Duration::from_secs(60);

pub struct Server {
    pub process: Process,
    pub client: Client,
}

impl Server {
    /// `None`, with a note, where the binary is not built.
    pub async fn start() -> Option<Server> {
        let Some(binary) = ferry() else {
            eprintln!("passed over: the ferry binary is not built");
            return None;
        };
        let process =
            Process::apiserver(&binary, |_| vec!["--disable-admission-plugins=ServiceAccount".into()]).await;
        let client = process.admin().await;
        Some(Server { process, client })
    }

    pub fn kubeconfig(&self) -> PathBuf {
        self.process.directory().join("admin.kubeconfig")
    }

    pub async fn send(&self, method: Method, path: &str, headers: &[(&str, &str)], body: &Value) -> Answer {
        let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
        send(&self.client, method, path, headers, body).await
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.send(Method::GET, path, &[], &Value::Null).await
    }

    pub async fn post(&self, path: &str, object: &Value) -> Answer {
        self.send(Method::POST, path, &[("content-type", "application/json")], object).await
    }

    pub async fn put(&self, path: &str, object: &Value) -> Answer {
        self.send(Method::PUT, path, &[("content-type", "application/json")], object).await
    }

    pub async fn delete(&self, path: &str) -> Answer {
        self.send(Method::DELETE, path, &[], &Value::Null).await
    }

    pub async fn merge(&self, path: &str, patch: &Value) -> Answer {
        self.send(Method::PATCH, path, &[("content-type", "application/merge-patch+json")], patch).await
    }

    pub async fn apply(&self, path: &str, object: &Value) -> Answer {
        self.send(Method::PATCH, path, &[("content-type", "application/apply-patch+yaml")], object).await
    }

    /// The lines of a watch, until it ends by itself.
    pub async fn watch(&self, path: &str) -> Vec<Value> {
        let answer = self.get(path).await;
        assert_eq!(answer.code, 200, "{}", String::from_utf8_lossy(&answer.bytes));
        let lines = answer.bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        lines.map(|line| serde_json::from_slice(line).expect("an event")).collect()
    }

    /// Makes a definition and waits until it is established.
    pub async fn define(&self, definition: &Value) -> Value {
        let created = self.post(DEFINITIONS, definition).await.expect(201);
        let name = created["metadata"]["name"].as_str().expect("a name").to_string();
        self.established(&name).await
    }

    pub async fn established(&self, name: &str) -> Value {
        self.definition_until(name, |it| condition(it, "Established").0 == "True").await
    }

    pub async fn definition_until(&self, name: &str, is_so: impl Fn(&Value) -> bool) -> Value {
        let path = format!("{DEFINITIONS}/{name}");
        self.until(&path, |answer| answer.code == 200 && is_so(&answer.json())).await.json()
    }

    /// Changes the spec of a definition, however often others write it in between.
    pub async fn change(&self, name: &str, change: impl Fn(&mut Value)) -> Value {
        let path = format!("{DEFINITIONS}/{name}");
        loop {
            let mut definition = self.get(&path).await.expect(200);
            change(&mut definition);
            let answer = self.put(&path, &definition).await;
            if answer.code != 409 {
                return answer.expect(200);
            }
        }
    }

    /// Asks until the answer is the one that is waited for.
    pub async fn until(&self, path: &str, is_so: impl Fn(&Answer) -> bool) -> Answer {
        let give_up = Instant::now() + PATIENCE;
        loop {
            let answer = self.get(path).await;
            if is_so(&answer) {
                return answer;
            }
            let last = String::from_utf8_lossy(&answer.bytes);
            assert!(Instant::now() < give_up, "never at {path}: {} {last}", answer.code);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// What kubectl says, and whether it succeeded; `None` where there is no kubectl.
    pub async fn kubectl(&self, words: &[&str]) -> Option<(bool, String)> {
        let mut command = Command::new("kubectl");
        command.args(words).env("KUBECONFIG", self.kubeconfig()).env("HOME", self.process.directory());
        let output = tokio::task::spawn_blocking(move || command.output()).await.expect("the thread ends");
        let Ok(output) = output else {
            eprintln!("passed over: there is no kubectl");
            return None;
        };
        let text = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        Some((output.status.success(), text.concat()))
    }
}

/// Status and reason of a condition, empty where there is none.
pub fn condition<'o>(object: &'o Value, kind: &str) -> (&'o str, &'o str) {
    let conditions = object["status"]["conditions"].as_array();
    let found = conditions.into_iter().flatten().find(|condition| condition["type"] == kind);
    let text = |field: &str| found.and_then(|condition| condition[field].as_str()).unwrap_or("");
    (text("status"), text("reason"))
}

/// The causes of a refusal: field and message.
pub fn causes(status: &Value) -> Vec<(String, String)> {
    let causes = status["details"]["causes"].as_array();
    let text = |value: &Value| value.as_str().unwrap_or("").to_string();
    causes.into_iter().flatten().map(|cause| (text(&cause["field"]), text(&cause["message"]))).collect()
}

pub fn names(list: &Value) -> Vec<&str> {
    let items = list["items"].as_array().map_or(&[][..], Vec::as_slice);
    items.iter().filter_map(|item| item["metadata"]["name"].as_str()).collect()
}

pub fn namespace(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
}
