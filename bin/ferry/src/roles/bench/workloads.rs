//! The workloads of `ferry bench scheduler`: what nodes and pods look like. They follow upstream's
//! scheduler_perf, so that its floors can stand beside the figures.

use clap::ValueEnum;
use ferry_client::Client;
use serde_json::{Value, json};

use super::requests::{MERGE, post, send};

pub const NAMESPACE: &str = "bench";
/// The `app` of the pods that are measured, and of those that are placed before.
pub const MEASURED: &str = "bench";
const ZONE: &str = "topology.kubernetes.io/zone";
const HOSTNAME: &str = "kubernetes.io/hostname";
const HIGH: &str = "bench-high";
const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Workload {
    /// CPU and memory, nothing else
    Plain,
    /// Two of three zones will do
    NodeAffinity,
    /// Evenly over three zones
    TopologySpread,
    /// No two on one node
    AntiAffinity,
    /// Where others of its kind are
    PodAffinity,
    /// Plain pods, while more important ones keep coming that each remove three less important ones
    Preemption,
    /// Every pod has to remove three less important ones
    PreemptionBasic,
}

impl Workload {
    /// In pods per second at 5,000 nodes; upstream asks nothing of PreemptionBasic there.
    pub fn upstream_floor(self) -> Option<u32> {
        match self {
            Workload::Plain => Some(270),
            Workload::NodeAffinity => Some(220),
            Workload::TopologySpread => Some(85),
            Workload::AntiAffinity => Some(60),
            Workload::PodAffinity => Some(35),
            // PreemptionAsync
            Workload::Preemption => Some(160),
            Workload::PreemptionBasic => None,
        }
    }

    /// Whether pods that preempt come while others are measured.
    pub fn churns(self) -> bool {
        self == Workload::Preemption
    }

    /// How many pods are on the nodes before anything is measured.
    pub fn placed(self, nodes: usize) -> usize {
        match self {
            Workload::Plain | Workload::NodeAffinity | Workload::AntiAffinity => nodes / 5,
            Workload::TopologySpread | Workload::PodAffinity => nodes,
            Workload::Preemption | Workload::PreemptionBasic => 4 * nodes,
        }
    }

    /// How many pods more the nodes have room for, within reason.
    pub fn room(self, nodes: usize) -> usize {
        match self {
            Workload::Plain | Workload::NodeAffinity => 10 * nodes,
            Workload::TopologySpread | Workload::PodAffinity => 5 * nodes,
            Workload::AntiAffinity => 2 * nodes / 5,
            Workload::Preemption | Workload::PreemptionBasic => nodes,
        }
    }

    pub fn pod(self, number: usize) -> Value {
        if self == Workload::PreemptionBasic {
            return important(&format!("p{number}"), MEASURED);
        }
        let mut pod = template(&format!("p{number}"), "100m");
        self.shape(&mut pod["spec"]);
        pod
    }

    pub fn placed_pod(self, number: usize, node: usize) -> Value {
        let cpu = match self {
            Workload::Preemption | Workload::PreemptionBasic => "900m",
            _ => "100m",
        };
        let mut pod = template(&format!("placed{number}"), cpu);
        self.shape(&mut pod["spec"]);
        pod["spec"]["nodeName"] = json!(node_name(node));
        pod
    }

    fn shape(self, spec: &mut Value) {
        let ours = json!({"matchLabels": {"app": MEASURED}});
        match self {
            Workload::Plain | Workload::Preemption | Workload::PreemptionBasic => {}
            Workload::NodeAffinity => {
                let zones = json!({"key": ZONE, "operator": "In", "values": ["z1", "z2"]});
                let terms = json!({"nodeSelectorTerms": [{"matchExpressions": [zones]}]});
                spec["affinity"] = json!({"nodeAffinity": {REQUIRED: terms}});
            }
            Workload::TopologySpread => {
                spec["topologySpreadConstraints"] = json!([{"maxSkew": 5, "topologyKey": ZONE,
                    "whenUnsatisfiable": "DoNotSchedule", "labelSelector": ours}]);
            }
            Workload::AntiAffinity => {
                let term = json!({"topologyKey": HOSTNAME, "labelSelector": ours});
                spec["affinity"] = json!({"podAntiAffinity": {REQUIRED: [term]}});
            }
            Workload::PodAffinity => {
                let term = json!({"topologyKey": ZONE, "labelSelector": ours});
                spec["affinity"] = json!({"podAffinity": {REQUIRED: [term]}});
            }
        }
    }
}

fn template(name: &str, cpu: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": MEASURED}},
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "automountServiceAccountToken": false,
            "containers": [{"name": "c", "image": "registry.k8s.io/pause:3.10",
                "resources": {"requests": {"cpu": cpu, "memory": "500Mi"}}}],
        }
    })
}

/// A pod that only fits where three of those that are placed go.
fn important(name: &str, app: &str) -> Value {
    let mut pod = template(name, "3");
    pod["metadata"]["labels"]["app"] = json!(app);
    pod["spec"]["priorityClassName"] = json!(HIGH);
    pod
}

/// A pod that preempts and is not measured.
pub fn churning_pod(number: usize) -> Value {
    important(&format!("churn{number}"), "churn")
}

fn node_name(number: usize) -> String {
    format!("node-{number}")
}

/// The namespace, its account, and the class of the more important pods.
pub async fn prepare(client: &Client) -> anyhow::Result<()> {
    let named = |name: &str| json!({"metadata": {"name": name}});
    post(client, "/api/v1/namespaces", named(NAMESPACE)).await?;
    post(client, &format!("/api/v1/namespaces/{NAMESPACE}/serviceaccounts"), named("default")).await?;
    let class = json!({"metadata": {"name": HIGH}, "value": 1000});
    post(client, "/apis/scheduling.k8s.io/v1/priorityclasses", class).await
}

pub async fn create_node(client: &Client, number: usize) -> anyhow::Result<()> {
    let name = node_name(number);
    let resources = json!({"cpu": "4", "memory": "32Gi", "pods": "110"});
    let ready = json!({"type": "Ready", "status": "True", "reason": "KubeletReady"});
    let node = json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": name, "labels": {HOSTNAME: name, ZONE: format!("z{}", number % 3)}},
        "status": {"capacity": resources, "allocatable": resources, "conditions": [ready]},
    });
    post(client, "/api/v1/nodes", node).await?;
    // a new node is tainted until its controller finds it ready; none runs here
    let untainted = json!({"spec": {"taints": null}});
    send(client, http::Method::PATCH, &format!("/api/v1/nodes/{name}"), MERGE, untainted).await
}
