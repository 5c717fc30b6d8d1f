//! What one search costs, without a server: `cargo run --release -p ferry-scheduler --example
//! cycle_cost [NODES]`. Pods are placed one after the other, as the loop places them.

use std::sync::Arc;
use std::time::Instant;

use ferry_scheduler::cycle::Search;
use ferry_scheduler::nominated::Nominated;
use ferry_scheduler::plugins::{Cluster, Cycle, State};
use ferry_scheduler::pod_info::{NamespaceLabels, PodInfo};
use ferry_scheduler::profile::Profile;
use ferry_scheduler::snapshot::Snapshot;
use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::storage::v1::{CSINode, StorageClass};
use kube::core::Selector;
use serde_json::{Value, json};

/// A cluster without volumes, budgets or labelled namespaces.
struct Bare;

impl NamespaceLabels for Bare {
    fn matches(&self, _: &str, _: &Selector) -> bool {
        false
    }
}

impl Cluster for Bare {
    fn claim(&self, _: &str, _: &str) -> Option<Arc<PersistentVolumeClaim>> {
        None
    }
    fn volume(&self, _: &str) -> Option<Arc<PersistentVolume>> {
        None
    }
    fn volumes(&self) -> Vec<Arc<PersistentVolume>> {
        Vec::new()
    }
    fn storage_class(&self, _: &str) -> Option<Arc<StorageClass>> {
        None
    }
    fn csi_node(&self, _: &str) -> Option<Arc<CSINode>> {
        None
    }
    fn budgets(&self, _: &str) -> Vec<Arc<PodDisruptionBudget>> {
        Vec::new()
    }
}

fn main() {
    let nodes: usize = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(5000);
    let term =
        json!({"topologyKey": "topology.kubernetes.io/zone", "labelSelector": {"matchLabels": {"app": "x"}}});
    let alone =
        json!({"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "x"}}});
    let zone = json!({"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["z1", "z2"]});
    let required = "requiredDuringSchedulingIgnoredDuringExecution";
    let cases = [
        ("plain", json!({})),
        (
            "node affinity",
            json!({"affinity": {"nodeAffinity": {required: {"nodeSelectorTerms": [{"matchExpressions": [zone]}]}}}}),
        ),
        (
            "topology spread",
            json!({"topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "topology.kubernetes.io/zone",
                "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {"matchLabels": {"app": "x"}}}]}),
        ),
        ("pod anti-affinity", json!({"affinity": {"podAntiAffinity": {required: [alone]}}})),
        ("pod affinity", json!({"affinity": {"podAffinity": {required: [term]}}})),
    ];
    for (name, spec) in cases {
        let pods = 2000.min(nodes);
        let seconds = measure(nodes, pods, &spec);
        println!(
            "{nodes} nodes, {name}: {:.0} pods/s, {:.0} us each",
            pods as f64 / seconds,
            seconds * 1e6 / pods as f64
        );
    }
}

fn measure(nodes: usize, pods: usize, spec: &Value) -> f64 {
    let mut snapshot = Snapshot::default();
    for number in 0..nodes {
        let node = json!({
            "metadata": {"name": format!("n{number}"), "labels": {"kubernetes.io/hostname": format!("n{number}"),
                "topology.kubernetes.io/zone": format!("z{}", number % 3)}},
            "status": {"allocatable": {"cpu": "4", "memory": "32Gi", "pods": "110"}}
        });
        let node: Node = serde_json::from_value(node).expect("is a node");
        snapshot.put_node(&Arc::new(node));
    }
    let pods: Vec<Arc<Pod>> = (0..pods)
        .map(|number| {
            let mut pod = json!({
                "metadata": {"name": format!("p{number}"), "namespace": "n", "uid": number.to_string(), "labels": {"app": "x"}},
                "spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "100m", "memory": "500Mi"}}}]}
            });
            for (key, value) in spec.as_object().expect("is an object") {
                pod["spec"][key] = value.clone();
            }
            Arc::new(serde_json::from_value(pod).expect("is a pod"))
        })
        .collect();
    let (profile, nominated, mut search) = (Profile::default(), Nominated::default(), Search::new(1));
    let start = Instant::now();
    for pod in pods {
        let info = Arc::new(PodInfo::new(pod));
        let mut cycle = Cycle { pod: &info, profile: &profile, cluster: &Bare, state: State::default() };
        let found = search.feasible(&mut cycle, &mut snapshot, &nominated).nodes;
        assert!(!found.is_empty(), "there is room");
        let node = search.pick(&cycle, &snapshot, &found, None);
        snapshot.place(info.clone(), node);
    }
    start.elapsed().as_secs_f64()
}
