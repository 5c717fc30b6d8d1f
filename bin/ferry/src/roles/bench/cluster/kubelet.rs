//! Kubelets as the API server sees them: each asks as its own node, so that the Node authorizer, NodeRestriction and
//! priority and fairness have their part.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::Context;
use ferry_api::time::{format_micros, format_seconds};
use ferry_client::Client;
use futures::{StreamExt, TryStreamExt};
use http::{Method, StatusCode};
use http_body_util::BodyExt;
use jiff::Timestamp;
use kube::client::Body;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use super::latencies::Latencies;
use crate::roles::bench::part::Server;
use crate::roles::bench::requests::{JSON, STRATEGIC};

/// As kubelets renew theirs.
const RENEWAL: Duration = Duration::from_secs(10);
/// Watches and requests of so many kubelets share a connection, well below what one may carry at a time.
const PER_CONNECTION: usize = 64;

/// The first error of any kubelet.
pub type Failed = oneshot::Receiver<anyhow::Error>;

/// Ends all of them with its value.
pub struct Kubelets {
    pub running: Arc<AtomicUsize>,
    pub removed: Arc<AtomicUsize>,
    /// How often a watch fell behind and its kubelet listed anew.
    pub relists: Arc<AtomicUsize>,
    pub failed: Failed,
    _tasks: JoinSet<()>,
}

impl Kubelets {
    /// Ends when every node is registered and has its Lease and its watch.
    pub async fn start(server: &Server, count: usize, leases: Arc<Latencies>) -> anyhow::Result<Kubelets> {
        const AT_A_TIME: usize = 32;
        let clients = server.clients(count.div_ceil(PER_CONNECTION)).await?;
        let (running, removed) = (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default());
        let relists = Arc::<AtomicUsize>::default();
        let registering = (0..count).map(|number| {
            let kubelet = Kubelet {
                node: format!("node-{number}"),
                client: clients[number / PER_CONNECTION].clone(),
                leases: leases.clone(),
                running: running.clone(),
                removed: removed.clone(),
                relists: relists.clone(),
            };
            async move { kubelet.register().await }
        });
        let registered: Vec<(Kubelet, Value)> =
            futures::stream::iter(registering).buffer_unordered(AT_A_TIME).try_collect().await?;
        let (tell, failed) = oneshot::channel();
        let (first, mut errors) = tokio::sync::mpsc::channel::<anyhow::Error>(1);
        let mut tasks = JoinSet::new();
        for (index, (kubelet, lease)) in registered.into_iter().enumerate() {
            let first = first.clone();
            // Leases are spread over the time between two renewals, as those of machines that start by chance are.
            let offset = RENEWAL.mul_f64(index as f64 / count as f64);
            tasks.spawn(async move {
                if let Err(why) = kubelet.run(lease, offset).await {
                    // Only the first is told; the others find the place taken.
                    let _ = first.try_send(why.context(kubelet.node));
                }
            });
        }
        tasks.spawn(async move {
            if let Some(why) = errors.recv().await {
                // Nobody waits for it where the bench has ended.
                let _ = tell.send(why);
            }
        });
        Ok(Kubelets { running, removed, relists, failed, _tasks: tasks })
    }

    /// How many pods were run until now.
    pub fn running(&self) -> usize {
        self.running.load(Ordering::Relaxed)
    }

    pub fn removed(&self) -> usize {
        self.removed.load(Ordering::Relaxed)
    }
}

struct Kubelet {
    node: String,
    client: Client,
    leases: Arc<Latencies>,
    running: Arc<AtomicUsize>,
    removed: Arc<AtomicUsize>,
    relists: Arc<AtomicUsize>,
}

/// How the line of an event begins that ends a watch.
const ERROR: &[u8] = br#"{"type":"ERROR""#;

#[derive(Deserialize)]
struct Event {
    #[serde(rename = "type")]
    kind: String,
    object: Pod,
}

#[derive(Deserialize)]
struct Pod {
    metadata: Metadata,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    name: String,
    namespace: String,
    deletion_timestamp: Option<String>,
}

/// What a kubelet does about a pod.
#[derive(Debug, PartialEq)]
enum Step {
    Run,
    Remove,
    Nothing,
}

/// The pods of a node that run, as their kubelet knows it.
#[derive(Default)]
struct Running(HashSet<String>);

impl Running {
    /// A pod is run once and removed once, however often an event tells of it.
    fn step(&mut self, event: &Event) -> Step {
        let Metadata { name, deletion_timestamp, .. } = &event.object.metadata;
        match (event.kind.as_str(), deletion_timestamp) {
            ("ADDED" | "MODIFIED", None) if self.0.insert(name.clone()) => Step::Run,
            ("ADDED" | "MODIFIED", Some(_)) if self.0.remove(name) => Step::Remove,
            _ => Step::Nothing,
        }
    }
}

impl Kubelet {
    async fn register(self) -> anyhow::Result<(Kubelet, Value)> {
        self.send(Method::POST, "/api/v1/nodes", JSON, &node(&self.node)).await?;
        let lease = json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": self.node},
            "spec": {"holderIdentity": self.node, "leaseDurationSeconds": 40, "renewTime": format_micros(Timestamp::now())},
        });
        let lease = self.send(Method::POST, LEASES, JSON, &lease).await?;
        Ok((self, lease))
    }

    async fn run(&self, lease: Value, offset: Duration) -> anyhow::Result<()> {
        tokio::try_join!(self.renew(lease, offset), self.follow()).map(drop)
    }

    async fn renew(&self, mut lease: Value, offset: Duration) -> anyhow::Result<()> {
        let path = format!("{LEASES}/{}", self.node);
        let mut turn = tokio::time::interval_at(tokio::time::Instant::now() + offset, RENEWAL);
        loop {
            turn.tick().await;
            lease["spec"]["renewTime"] = json!(format_micros(Timestamp::now()));
            let renewal = self.leases.measure(self.send(Method::PUT, &path, JSON, &lease)).await;
            lease = match renewal {
                Ok(lease) => lease,
                // The answer to the renewal before was lost.
                Err(why) if is(&why, StatusCode::CONFLICT) => {
                    self.send(Method::GET, &path, JSON, &json!({})).await?
                }
                Err(why) => return Err(why),
            };
        }
    }

    /// Watches the pods of the node and does what they ask for. A watch that ends is begun anew, with what is there then.
    async fn follow(&self) -> anyhow::Result<()> {
        let mut running = Running::default();
        loop {
            let path = format!("/api/v1/pods?watch=1&fieldSelector=spec.nodeName%3D{}", self.node);
            let response = self.answer(Method::GET, &path, JSON, Vec::new()).await?;
            let mut data = response.into_body().into_data_stream();
            let mut lines = Vec::new();
            'events: while let Some(Ok(bytes)) = data.next().await {
                lines.extend_from_slice(&bytes);
                while let Some(end) = lines.iter().position(|byte| *byte == b'\n') {
                    let line: Vec<u8> = lines.drain(..=end).collect();
                    // The watch fell behind what the server remembers; all is listed anew, as kubelets do.
                    if line.starts_with(ERROR) {
                        self.relists.fetch_add(1, Ordering::Relaxed);
                        break 'events;
                    }
                    let event: Event = serde_json::from_slice(&line)
                        .with_context(|| format!("understand {}", String::from_utf8_lossy(&line)))?;
                    self.act(&event, running.step(&event)).await?;
                }
            }
        }
    }

    async fn act(&self, event: &Event, step: Step) -> anyhow::Result<()> {
        let Metadata { name, namespace, .. } = &event.object.metadata;
        let path = format!("/api/v1/namespaces/{namespace}/pods/{name}");
        let (done, counter) = match step {
            Step::Nothing => return Ok(()),
            Step::Run => {
                let path = format!("{path}/status");
                (self.send(Method::PATCH, &path, STRATEGIC, &running()).await, &self.running)
            }
            Step::Remove => {
                let options = json!({"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0});
                (self.send(Method::DELETE, &path, JSON, &options).await, &self.removed)
            }
        };
        match done {
            Err(why) if !is(&why, StatusCode::NOT_FOUND) => return Err(why),
            // Gone before: by a request whose answer was lost, or by somebody who did not wait for the kubelet.
            Ok(_) | Err(_) => counter.fetch_add(1, Ordering::Relaxed),
        };
        Ok(())
    }

    fn request(&self, method: Method, path: &str) -> http::request::Builder {
        http::Request::builder()
            .method(method)
            .uri(path)
            .header("Impersonate-User", format!("system:node:{}", self.node))
            .header("Impersonate-Group", "system:nodes")
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        content_type: &str,
        object: &Value,
    ) -> anyhow::Result<Value> {
        let response = self.answer(method, path, content_type, serde_json::to_vec(object)?).await?;
        let answer = response.into_body().collect_bytes().await.with_context(|| path.to_owned())?;
        serde_json::from_slice(&answer).with_context(|| path.to_owned())
    }

    /// Asks again where the server is busy or gone for a moment, as every client does.
    async fn answer(
        &self,
        method: Method,
        path: &str,
        content_type: &str,
        body: Vec<u8>,
    ) -> anyhow::Result<http::Response<Body>> {
        const TRIES: usize = 60;
        const PAUSE: Duration = Duration::from_secs(1);
        let mut last = None;
        for _ in 0..TRIES {
            let request = self.request(method.clone(), path).header(http::header::CONTENT_TYPE, content_type);
            match self.client.send(request.body(Body::from(body.clone()))?).await {
                Ok(response) if response.status().is_success() => return Ok(response),
                Ok(response) if response.status() != StatusCode::TOO_MANY_REQUESTS => {
                    let status = response.status();
                    let answer = response.into_body().collect_bytes().await.unwrap_or_default();
                    let refused = format!("{method} {path}: {}", String::from_utf8_lossy(&answer));
                    return Err(anyhow::Error::new(Refused(status)).context(refused));
                }
                Ok(_) => last = Some(anyhow::anyhow!("the server is busy")),
                Err(why) => last = Some(why.into()),
            }
            tokio::time::sleep(PAUSE).await;
        }
        let why = last.unwrap_or_else(|| anyhow::anyhow!("nothing was tried"));
        Err(why.context(format!("{method} {path}, {TRIES} times")))
    }
}

/// What the server answered instead of doing it.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Refused(StatusCode);

fn is(why: &anyhow::Error, status: StatusCode) -> bool {
    why.downcast_ref::<Refused>().is_some_and(|refused| refused.0 == status)
}

const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";

fn node(name: &str) -> Value {
    let resources = json!({"cpu": "16", "memory": "64Gi", "pods": "110", "ephemeral-storage": "100Gi"});
    let now = format_seconds(Timestamp::now());
    let condition = |kind: &str, status: &str, reason: &str| json!({"type": kind, "status": status, "reason": reason, "lastHeartbeatTime": now, "lastTransitionTime": now});
    json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": name, "labels": {
            "kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64",
        }},
        "status": {
            "capacity": resources, "allocatable": resources,
            "addresses": [{"type": "Hostname", "address": name}],
            "conditions": [
                condition("MemoryPressure", "False", "KubeletHasSufficientMemory"),
                condition("DiskPressure", "False", "KubeletHasNoDiskPressure"),
                condition("PIDPressure", "False", "KubeletHasSufficientPID"),
                condition("Ready", "True", "KubeletReady"),
            ],
            "nodeInfo": {
                "machineID": "", "systemUUID": "", "bootID": "", "kernelVersion": "6.1", "osImage": "simulated",
                "containerRuntimeVersion": "simulated://1", "kubeletVersion": "v1.36.0", "kubeProxyVersion": "",
                "operatingSystem": "linux", "architecture": "amd64",
            },
        },
    })
}

fn running() -> Value {
    let now = format_seconds(Timestamp::now());
    let conditions = ["Initialized", "Ready", "ContainersReady", "PodReadyToStartContainers"]
        .map(|kind| json!({"type": kind, "status": "True", "lastTransitionTime": now}));
    json!({"status": {
        "phase": "Running", "startTime": now, "hostIP": "192.0.2.1", "podIP": "198.51.100.1",
        "podIPs": [{"ip": "198.51.100.1"}],
        "conditions": conditions,
        "containerStatuses": [{
            "name": "c", "ready": true, "started": true, "restartCount": 0, "image": "registry.example/app:1.2.3",
            "imageID": "registry.example/app@sha256:0000", "containerID": "simulated://1",
            "state": {"running": {"startedAt": now}},
        }],
    }})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kubelet_runs_what_is_new_and_removes_what_is_deleted() {
        let mut running = Running::default();
        let mut step = |kind: &str, deletion: Option<&str>| {
            let metadata = json!({"name": "a", "namespace": "b", "deletionTimestamp": deletion});
            let event = serde_json::from_value(json!({"type": kind, "object": {"metadata": metadata}}));
            running.step(&event.expect("an event"))
        };
        let deleted = Some("2026-01-01T00:00:00Z");
        assert_eq!(step("ADDED", None), Step::Run);
        assert_eq!(step("MODIFIED", None), Step::Nothing);
        assert_eq!(step("MODIFIED", deleted), Step::Remove);
        assert_eq!(step("MODIFIED", deleted), Step::Nothing);
        assert_eq!(step("DELETED", deleted), Step::Nothing);
    }
}
