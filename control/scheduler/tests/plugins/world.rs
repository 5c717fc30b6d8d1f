//! A small cluster in JSON, and what one plugin of the table says about a pod in it.

use std::sync::Arc;

use ferry_scheduler::devices::extended;
use ferry_scheduler::devices::slice::SliceInfo;
use ferry_scheduler::plugins::{self, Cluster, Cycle, Relevance, State};
use ferry_scheduler::pod_info::{NamespaceLabels, PodInfo};
use ferry_scheduler::profile::Profile;
use ferry_scheduler::snapshot::{NodeIndex, Snapshot};
use k8s_openapi::api::core::v1::{Namespace, Node, PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::resource::v1::{DeviceClass, ResourceClaim, ResourceSlice};
use k8s_openapi::api::storage::v1::{CSIDriver, CSINode, CSIStorageCapacity, StorageClass};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::core::{Selector, SelectorExt};
use kube::{Resource, ResourceExt};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

#[derive(Default)]
pub struct World {
    pub profile: Profile,
    pub snapshot: Snapshot,
    nodes: Vec<NodeIndex>,
    objects: Objects,
}

/// What plugins look up besides nodes and pods.
#[derive(Default)]
struct Objects {
    claims: Vec<Arc<PersistentVolumeClaim>>,
    volumes: Vec<Arc<PersistentVolume>>,
    classes: Vec<Arc<StorageClass>>,
    csi_nodes: Vec<Arc<CSINode>>,
    csi_drivers: Vec<Arc<CSIDriver>>,
    capacities: Vec<Arc<CSIStorageCapacity>>,
    budgets: Vec<Arc<PodDisruptionBudget>>,
    namespaces: Vec<Arc<Namespace>>,
    workload: Option<LabelSelector>,
    resource_claims: Vec<Arc<ResourceClaim>>,
    slices: Vec<Arc<SliceInfo>>,
    device_classes: Vec<Arc<DeviceClass>>,
    /// Claims that are being allocated, by uid.
    assumed: Vec<String>,
}

impl World {
    /// Nodes by name, with whatever else they have; four CPUs and 4Gi if they do not say.
    pub fn of(nodes: &[(&str, Value)]) -> Self {
        let mut world = World::default();
        for (name, more) in nodes {
            let mut node = json!({
                "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
                "status": {"allocatable": {"cpu": "4", "memory": "4Gi", "pods": "10"}},
            });
            merge(&mut node, more.clone());
            let index = world.snapshot.put_node(&Arc::new(read::<Node>(node)));
            world.nodes.push(index);
        }
        world.snapshot.refresh_node_order();
        world
    }

    /// A pod that is on a node.
    pub fn on(mut self, node: &str, more: Value) -> Self {
        let number = self.nodes.iter().map(|node| self.snapshot.pods(*node).len()).sum::<usize>();
        let pod = pod(&format!("placed-{number}"), more);
        self.snapshot.put_pod(pod, node);
        self
    }

    /// Any other object, by its kind.
    pub fn with(mut self, kind: &str, object: Value) -> Self {
        let objects = &mut self.objects;
        match kind {
            "claim" => objects.claims.push(Arc::new(read(object))),
            "volume" => objects.volumes.push(Arc::new(read(object))),
            "class" => objects.classes.push(Arc::new(read(object))),
            "csi node" => objects.csi_nodes.push(Arc::new(read(object))),
            "csi driver" => objects.csi_drivers.push(Arc::new(read(object))),
            "capacity" => objects.capacities.push(Arc::new(read(object))),
            "budget" => objects.budgets.push(Arc::new(read(object))),
            "namespace" => objects.namespaces.push(Arc::new(read(object))),
            "resource claim" => objects.resource_claims.push(Arc::new(read(object))),
            "slice" => objects.slices.push(Arc::new(SliceInfo::new(read::<ResourceSlice>(object)))),
            "device class" => objects.device_classes.push(Arc::new(read(object))),
            "assumed" => objects.assumed.push(read(object)),
            "workload" => objects.workload = Some(read(object)),
            other => panic!("no plugin asks for a {other}"),
        }
        self
    }

    /// The nodes that a plugin lets pass, with a space between them, must be `passing`; all others must be refused
    /// for `reason`.
    pub fn check(&self, plugin: &str, more: Value, passing: &str, reason: &str) {
        let pod = pod("new", more.clone());
        let plugin = plugins::find(plugin).expect("is in the table");
        let mut cycle = self.cycle(&pod);
        let prepared =
            plugin.prepare.map_or(Ok(Relevance::Judges), |prepare| prepare(&mut cycle, &self.snapshot));
        let mut passed = Vec::new();
        for node in &self.nodes {
            let verdict = match &prepared {
                Err(refusal) => Err(refusal.clone()),
                Ok(Relevance::Skips) => Ok(()),
                Ok(Relevance::Judges) => {
                    plugin.filter.map_or(Ok(()), |filter| filter(&cycle, &self.snapshot, *node))
                }
            };
            match verdict {
                Ok(()) => passed.push(&**self.snapshot.name(*node)),
                Err(refusal) => assert_eq!(refusal.reasons.join(", "), reason, "{} for {more}", plugin.name),
            }
        }
        assert_eq!(passed.join(" "), passing, "{} for {more}", plugin.name);
    }

    /// What a plugin scores each node.
    pub fn check_scores(&self, plugin: &str, more: Value, expected: &[i64]) {
        let pod = pod("new", more.clone());
        let plugin = plugins::find(plugin).expect("is in the table");
        let mut cycle = self.cycle(&pod);
        if let Some(prepare) = plugin.prepare {
            prepare(&mut cycle, &self.snapshot).expect("is not refused");
        }
        let mut scores = vec![0; self.nodes.len()];
        plugin.score.expect("scores")(&cycle, &self.snapshot, &self.nodes, &mut scores);
        assert_eq!(scores, expected, "{} for {more}", plugin.name);
    }

    pub fn cycle<'w>(&'w self, pod: &'w PodInfo) -> Cycle<'w> {
        Cycle { pod, profile: &self.profile, cluster: &self.objects, state: State::default() }
    }

    /// For what changes the snapshot while it tries.
    pub fn parts(&mut self) -> (&mut Snapshot, &Profile, &dyn Cluster) {
        (&mut self.snapshot, &self.profile, &self.objects)
    }
}

/// A pod in `default`, labelled `app: web`, with one container and whatever else it has.
pub fn pod(name: &str, more: Value) -> Arc<PodInfo> {
    let mut pod = json!({
        "metadata": {"name": name, "namespace": "default", "uid": name, "labels": {"app": "web"}},
        "spec": {"containers": [{"name": "c", "image": "web"}]},
    });
    merge(&mut pod, more);
    let mut info: PodInfo = read(pod);
    info.trim();
    Arc::new(info)
}

/// One container that asks for so much.
pub fn asks(requests: Value) -> Value {
    json!({"spec": {"containers": [{"name": "c", "resources": {"requests": requests}}]}})
}

fn merge(into: &mut Value, from: Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (key, value) in from {
                merge(into.entry(key).or_insert(Value::Null), value);
            }
        }
        (into, from) => *into = from,
    }
}

fn read<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).expect("is what its type says")
}

fn find<K: Resource + Clone>(all: &[Arc<K>], name: &str) -> Option<Arc<K>> {
    all.iter().find(|object| object.name_any() == name).cloned()
}

impl NamespaceLabels for Objects {
    fn matches(&self, namespace: &str, selector: &Selector) -> bool {
        find(&self.namespaces, namespace).is_some_and(|namespace| selector.matches(namespace.labels()))
    }
}

impl Cluster for Objects {
    fn claim(&self, _: &str, name: &str) -> Option<Arc<PersistentVolumeClaim>> {
        find(&self.claims, name)
    }

    fn volume(&self, name: &str) -> Option<Arc<PersistentVolume>> {
        find(&self.volumes, name)
    }

    fn volumes(&self) -> Vec<Arc<PersistentVolume>> {
        self.volumes.clone()
    }

    fn storage_class(&self, name: &str) -> Option<Arc<StorageClass>> {
        find(&self.classes, name)
    }

    fn csi_node(&self, name: &str) -> Option<Arc<CSINode>> {
        find(&self.csi_nodes, name)
    }

    fn csi_driver(&self, name: &str) -> Option<Arc<CSIDriver>> {
        find(&self.csi_drivers, name)
    }

    fn storage_capacities(&self) -> Vec<Arc<CSIStorageCapacity>> {
        self.capacities.clone()
    }

    fn budgets(&self, _: &str) -> Vec<Arc<PodDisruptionBudget>> {
        self.budgets.clone()
    }

    fn resource_claim(&self, _: &str, name: &str) -> Option<Arc<ResourceClaim>> {
        find(&self.resource_claims, name)
    }

    fn resource_claims(&self) -> Vec<Arc<ResourceClaim>> {
        self.resource_claims.clone()
    }

    fn is_being_allocated(&self, uid: &str) -> bool {
        self.assumed.iter().any(|own| own == uid)
    }

    fn resource_slices(&self) -> Vec<Arc<SliceInfo>> {
        self.slices.clone()
    }

    fn device_class(&self, name: &str) -> Option<Arc<DeviceClass>> {
        find(&self.device_classes, name)
    }

    fn device_class_of(&self, resource: &str) -> Option<Arc<DeviceClass>> {
        let named =
            |class: &&Arc<DeviceClass>| class.spec.extended_resource_name.as_deref() == Some(resource);
        match resource.strip_prefix(extended::CLASS_PREFIX) {
            Some(class) => self.device_class(class),
            None => extended::preferred(self.device_classes.iter().filter(named).cloned().collect()),
        }
    }

    fn extended_claim(&self, pod: &PodInfo) -> Option<Arc<ResourceClaim>> {
        self.resource_claims.iter().find(|claim| extended::is_of(claim, pod)).cloned()
    }

    fn workload_selector(&self, _: &PodInfo) -> Option<LabelSelector> {
        self.workload.clone()
    }
}
