//! A real server with a scheduler beside it, and no kubelets.

use std::time::Duration;

use ferry_client::CancellationToken;
use ferry_scheduler::{Config, RunError};
use ferry_testkit::TestServer;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::DeleteParams;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

pub struct Cluster {
    pub server: TestServer,
    stop: CancellationToken,
    scheduler: JoinHandle<Result<(), RunError>>,
}

impl Cluster {
    pub async fn start() -> Self {
        Cluster::start_with(Config::default()).await
    }

    pub async fn start_with(config: Config) -> Self {
        let server = TestServer::start().await;
        let stop = CancellationToken::new();
        let scheduler = tokio::spawn(ferry_scheduler::run(server.admin(), config, stop.clone()));
        let accounts = "/api/v1/namespaces/default/serviceaccounts";
        server.post("/api/v1/namespaces", &json!({"metadata": {"name": "default"}})).await;
        server.post(accounts, &json!({"metadata": {"name": "default"}})).await;
        Cluster { server, stop, scheduler }
    }

    pub async fn node(&self, name: &str, cpu: &str, change: Value) {
        let mut node = json!({
            "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
        });
        let taints = change.pointer("/spec/taints").cloned().unwrap_or(Value::Null);
        merge(&mut node, change);
        self.server.post("/api/v1/nodes", &node).await.expect(201);
        // A new node is tainted as not ready until its controller finds it ready; none runs here.
        let spec = json!({"spec": {"taints": taints}});
        self.server.patch(&format!("/api/v1/nodes/{name}"), "merge", &spec).await.expect(200);
        let resources = json!({"cpu": cpu, "memory": "4Gi", "pods": "10"});
        let status = json!({"status": {"capacity": resources, "allocatable": resources}});
        self.server.patch(&format!("/api/v1/nodes/{name}/status"), "merge", &status).await.expect(200);
    }

    pub async fn pod(&self, name: &str, cpu: &str, change: Value) {
        let mut pod = json!({
            "metadata": {"name": name},
            "spec": {"containers": [{"name": "c", "image": "i", "resources": {"requests": {"cpu": cpu}}}]}
        });
        merge(&mut pod, change);
        self.server.post("/api/v1/namespaces/default/pods", &pod).await.expect(201);
    }

    /// Waits until the scheduler has heard of a node, and so of those that were made before it.
    pub async fn knows(&self, node: &str) {
        let field = json!({"key": "metadata.name", "operator": "In", "values": [node]});
        let terms = json!({"nodeSelectorTerms": [{"matchFields": [field]}]});
        let affinity = json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}});
        let everywhere = json!([{"operator": "Exists"}]);
        self.pod("probe", "1m", json!({"spec": {"affinity": affinity, "tolerations": everywhere}})).await;
        assert_eq!(self.bound("probe").await, node);
        self.pods().delete("probe", &DeleteParams::default().grace_period(0)).await.unwrap();
    }

    pub fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.server.admin(), "default")
    }

    /// Waits until the pod is as `wanted` says, within a bound.
    pub async fn until(&self, name: &str, wanted: impl Fn(&Pod) -> bool) -> Pod {
        let mut last = None;
        for _ in 0..1500 {
            let pod = self.pods().get(name).await.unwrap();
            if wanted(&pod) {
                return pod;
            }
            last = Some(pod);
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("never: {:?}", last.map(|pod| (pod.spec.map(|spec| spec.node_name), pod.status)));
    }

    pub async fn bound(&self, name: &str) -> String {
        let pod = self.until(name, |pod| node(pod).is_some()).await;
        node(&pod).unwrap().to_owned()
    }

    pub async fn refused(&self, name: &str, message: &str) {
        self.until(name, |pod| {
            let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
            conditions.into_iter().flatten().any(|condition| {
                condition.type_ == "PodScheduled"
                    && condition.status == "False"
                    && condition.reason.as_deref() == Some("Unschedulable")
                    && condition.message.as_deref() == Some(message)
            })
        })
        .await;
    }

    pub async fn stop(self) {
        self.stop.cancel();
        self.scheduler.await.unwrap().unwrap();
        self.server.stop().await;
    }
}

pub fn node(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref()?.node_name.as_deref()
}

fn merge(into: &mut Value, change: Value) {
    match (into, change) {
        (Value::Object(into), Value::Object(change)) => {
            for (key, value) in change {
                merge(into.entry(key).or_insert(Value::Null), value);
            }
        }
        (into, change) => *into = change,
    }
}
