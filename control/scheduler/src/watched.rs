//! The scheduler's informers, and an inbox of changed objects.
//!
//! The inbox holds names and not events, each once, so it is bounded by what exists however far
//! the scheduler is behind. The scheduling loop reads the current state from the informers.

use std::sync::Arc;

use ferry_client::informer::{Object, Projection};
use ferry_client::{Index, Informer, Informers, NamespacedName};
use indexmap::IndexSet;
use k8s_openapi::api::apps::v1::{ReplicaSet, StatefulSet};
use k8s_openapi::api::core::v1::{
    Namespace, Node, PersistentVolume, PersistentVolumeClaim, ReplicationController, Service,
};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::resource::v1::{DeviceClass, ResourceClaim};
use k8s_openapi::api::storage::v1::{CSIDriver, CSINode, CSIStorageCapacity, StorageClass};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::core::{Selector, SelectorExt};
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::assumed::Assumed;
use crate::devices::extended;
use crate::devices::slice::SliceInfo;
use crate::plugins::Cluster;
use crate::pod_info::{NamespaceLabels, PodInfo};

#[derive(Clone)]
pub struct Watched {
    pub pods: Informer<PodInfo>,
    pub nodes: Informer<Node>,
    claims: Informer<PersistentVolumeClaim>,
    volumes: Informer<PersistentVolume>,
    unbound_volumes: Index<PersistentVolume>,
    classes: Informer<StorageClass>,
    csi_nodes: Informer<CSINode>,
    csi_drivers: Informer<CSIDriver>,
    capacities: Informer<CSIStorageCapacity>,
    namespaces: Informer<Namespace>,
    budgets: Informer<PodDisruptionBudget>,
    services: Informer<Service>,
    replication_controllers: Informer<ReplicationController>,
    replica_sets: Informer<ReplicaSet>,
    stateful_sets: Informer<StatefulSet>,
    pub resource_claims: Informer<ResourceClaim>,
    /// By the uid of the controller.
    claims_by_owner: Index<ResourceClaim>,
    resource_slices: Informer<SliceInfo>,
    device_classes: Informer<DeviceClass>,
    by_extended_resource: Index<DeviceClass>,
    /// Allocations that were decided and are not seen yet.
    pub assumed: Assumed,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Changed {
    Pod(NamespacedName),
    Node(String),
    Claim(NamespacedName),
    Storage,
    Namespace,
    ResourceClaim(NamespacedName),
    Devices,
}

#[derive(Default)]
pub struct Inbox {
    changed: Mutex<IndexSet<Changed>>,
    arrived: Notify,
}

impl Inbox {
    fn put(&self, changed: Changed) {
        self.changed.lock().insert(changed);
        self.arrived.notify_one();
    }

    /// Everything since the last call, in the order it first changed.
    pub fn take(&self) -> IndexSet<Changed> {
        std::mem::take(&mut self.changed.lock())
    }

    pub async fn arrived(&self) {
        self.arrived.notified().await;
    }
}

impl Watched {
    pub fn start(informers: &Informers, inbox: &Arc<Inbox>) -> Self {
        let volumes = informers.of::<PersistentVolume>();
        let resource_claims = informers.of::<ResourceClaim>();
        let device_classes = informers.of::<DeviceClass>();
        let watched = Watched {
            pods: informers.of(),
            nodes: informers.of(),
            claims: informers.of(),
            unbound_volumes: volumes.index("unbound", |volume| {
                let phase = volume.status.as_ref().and_then(|status| status.phase.as_deref());
                if matches!(phase, Some("Bound" | "Released" | "Failed")) { vec![] } else { vec!["".into()] }
            }),
            volumes,
            classes: informers.of(),
            csi_nodes: informers.of(),
            csi_drivers: informers.of(),
            capacities: informers.of(),
            namespaces: informers.of(),
            budgets: informers.of(),
            services: informers.of(),
            replication_controllers: informers.of(),
            replica_sets: informers.of(),
            stateful_sets: informers.of(),
            claims_by_owner: resource_claims.index("owner", ferry_client::informer::controller_uid),
            resource_claims,
            resource_slices: informers.of(),
            by_extended_resource: device_classes.index("extended resource", |class| {
                class.spec.extended_resource_name.iter().cloned().collect()
            }),
            device_classes,
            assumed: Assumed::default(),
        };
        notify(&watched.pods, inbox, Changed::Pod);
        notify(&watched.nodes, inbox, |key| Changed::Node(key.name));
        notify(&watched.claims, inbox, Changed::Claim);
        notify(&watched.volumes, inbox, |_| Changed::Storage);
        notify(&watched.classes, inbox, |_| Changed::Storage);
        notify(&watched.csi_nodes, inbox, |_| Changed::Storage);
        notify(&watched.csi_drivers, inbox, |_| Changed::Storage);
        notify(&watched.capacities, inbox, |_| Changed::Storage);
        notify(&watched.namespaces, inbox, |_| Changed::Namespace);
        notify(&watched.resource_claims, inbox, Changed::ResourceClaim);
        notify(&watched.resource_slices, inbox, |_| Changed::Devices);
        notify(&watched.device_classes, inbox, |_| Changed::Devices);
        watched
    }

    /// The claim that was made for a pod's extended resources, as far as it is seen.
    pub fn made_claim(&self, pod: &PodInfo) -> Option<Arc<ResourceClaim>> {
        self.claims_by_owner.get(&pod.uid).into_iter().find(|claim| extended::is_of(claim, pod))
    }

    /// All first lists are complete: a search among half of the nodes, or without half of the
    /// pods on them, would book twice.
    pub async fn synced(&self) {
        tokio::join!(
            self.pods.synced(),
            self.nodes.synced(),
            self.claims.synced(),
            self.volumes.synced(),
            self.classes.synced(),
            self.csi_nodes.synced(),
            self.csi_drivers.synced(),
            self.capacities.synced(),
            self.namespaces.synced(),
            self.budgets.synced(),
            self.services.synced(),
            self.replication_controllers.synced(),
            self.replica_sets.synced(),
            self.stateful_sets.synced(),
            self.resource_claims.synced(),
            self.resource_slices.synced(),
            self.device_classes.synced(),
        );
    }
}

/// What is read of a node; extenders are given whole ones, so with them all is.
pub static NODE: Projection = Projection::Except(&[
    (
        "metadata",
        Projection::Except(&[("annotations", Projection::None), ("managedFields", Projection::None)]),
    ),
    (
        "status",
        Projection::Only(&[
            ("allocatable", Projection::All),
            ("capacity", Projection::All),
            ("declaredFeatures", Projection::All),
            ("images", Projection::All),
        ]),
    ),
]);

/// Capacity counts only where nothing says what of it can be given away.
pub fn trim_node(node: &mut Node) {
    if let Some(status) = &mut node.status {
        status.capacity.take_if(|_| status.allocatable.is_some());
    }
}

fn notify<K: Object>(
    informer: &Informer<K>,
    inbox: &Arc<Inbox>,
    changed: impl Fn(NamespacedName) -> Changed + Send + Sync + 'static,
) {
    let inbox = inbox.clone();
    informer.handle(move |event| inbox.put(changed(event.key())));
}

impl NamespaceLabels for Watched {
    fn matches(&self, namespace: &str, selector: &Selector) -> bool {
        let namespace = self.namespaces.get(&NamespacedName::cluster(namespace));
        namespace.is_some_and(|namespace| {
            selector.matches(namespace.metadata.labels.as_ref().unwrap_or(&Default::default()))
        })
    }
}

impl Cluster for Watched {
    fn claim(&self, namespace: &str, name: &str) -> Option<Arc<PersistentVolumeClaim>> {
        self.claims.get(&NamespacedName::new(namespace, name))
    }

    fn volume(&self, name: &str) -> Option<Arc<PersistentVolume>> {
        self.volumes.get(&NamespacedName::cluster(name))
    }

    fn volumes(&self) -> Vec<Arc<PersistentVolume>> {
        self.unbound_volumes.get("")
    }

    fn storage_class(&self, name: &str) -> Option<Arc<StorageClass>> {
        self.classes.get(&NamespacedName::cluster(name))
    }

    fn csi_node(&self, name: &str) -> Option<Arc<CSINode>> {
        self.csi_nodes.get(&NamespacedName::cluster(name))
    }

    fn csi_driver(&self, name: &str) -> Option<Arc<CSIDriver>> {
        self.csi_drivers.get(&NamespacedName::cluster(name))
    }

    fn storage_capacities(&self) -> Vec<Arc<CSIStorageCapacity>> {
        self.capacities.list()
    }

    fn budgets(&self, namespace: &str) -> Vec<Arc<PodDisruptionBudget>> {
        self.budgets.list_namespace(namespace)
    }

    fn resource_claim(&self, namespace: &str, name: &str) -> Option<Arc<ResourceClaim>> {
        self.resource_claims.get(&NamespacedName::new(namespace, name))
    }

    fn resource_claims(&self) -> Vec<Arc<ResourceClaim>> {
        let mut claims = self.resource_claims.list();
        claims.extend(self.assumed.claims().cloned());
        claims
    }

    fn is_being_allocated(&self, uid: &str) -> bool {
        self.assumed.has(uid)
    }

    fn resource_slices(&self) -> Vec<Arc<SliceInfo>> {
        self.resource_slices.list()
    }

    fn device_class(&self, name: &str) -> Option<Arc<DeviceClass>> {
        self.device_classes.get(&NamespacedName::cluster(name))
    }

    fn device_class_of(&self, resource: &str) -> Option<Arc<DeviceClass>> {
        match resource.strip_prefix(extended::CLASS_PREFIX) {
            Some(class) => self.device_class(class),
            None => extended::preferred(self.by_extended_resource.get(resource)),
        }
    }

    fn extended_claim(&self, pod: &PodInfo) -> Option<Arc<ResourceClaim>> {
        let assumed = || self.assumed.claims().find(|claim| extended::is_of(claim, pod)).cloned();
        self.made_claim(pod).or_else(assumed)
    }

    fn workload_selector(&self, pod: &PodInfo) -> Option<LabelSelector> {
        let mut all = LabelSelector::default();
        for service in self.services.list_namespace(&pod.key.namespace) {
            let selector = service.spec.as_ref().and_then(|spec| spec.selector.as_ref());
            let selector = selector.filter(|selector| !selector.is_empty());
            if let Some(selector) = selector
                && selector.iter().all(|(key, value)| pod.labels().get(key) == Some(value))
            {
                all.match_labels.get_or_insert_default().extend(selector.clone());
            }
        }
        let owners = pod.pod.metadata.owner_references.iter().flatten();
        if let Some(owner) = owners.into_iter().find(|owner| owner.controller == Some(true)) {
            let key = NamespacedName::new(&pod.key.namespace, &owner.name);
            let own = match (&*owner.api_version, &*owner.kind) {
                ("v1", "ReplicationController") => {
                    let labels =
                        self.replication_controllers.get(&key).and_then(|own| own.spec.clone()?.selector);
                    labels.map(|labels| LabelSelector { match_labels: Some(labels), match_expressions: None })
                }
                ("apps/v1", "ReplicaSet") => {
                    self.replica_sets.get(&key).and_then(|own| Some(own.spec.as_ref()?.selector.clone()))
                }
                ("apps/v1", "StatefulSet") => {
                    self.stateful_sets.get(&key).and_then(|own| Some(own.spec.as_ref()?.selector.clone()))
                }
                _ => None,
            };
            if let Some(own) = own {
                all.match_labels.get_or_insert_default().extend(own.match_labels.unwrap_or_default());
                all.match_expressions = own.match_expressions;
            }
        }
        let says = all.match_labels.as_ref().is_some_and(|labels| !labels.is_empty())
            || all.match_expressions.as_ref().is_some_and(|expressions| !expressions.is_empty());
        says.then_some(all)
    }
}
