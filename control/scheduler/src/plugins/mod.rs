//! The plugins: one file and one row each, under upstream's names. A plugin is a few pure
//! functions over the pod, the snapshot and a node's place in it; what it has worked out for
//! the pod stays in [`State`], between its functions.

pub mod default_preemption;
pub mod dynamic_resources;
pub mod extended_resources;
mod image_locality;
mod inter_pod_affinity;
pub mod node_affinity;
mod node_declared_features;
mod node_name;
mod node_ports;
pub mod node_resources;
mod node_unschedulable;
mod node_volume_limits;
mod pod_topology_spread;
mod storage_capacity;
mod taint_toleration;
mod volume_binding;
mod volume_restrictions;
mod volume_zone;

use std::borrow::Cow;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::resource::v1::{DeviceClass, ResourceClaim};
use k8s_openapi::api::storage::v1::{CSIDriver, CSINode, CSIStorageCapacity, StorageClass};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use smallvec::{SmallVec, smallvec};

use crate::devices::slice::SliceInfo;
use crate::pod_info::{NamespaceLabels, PodInfo};
use crate::profile::Profile;
use crate::snapshot::{NodeIndex, Snapshot};

pub use volume_binding::{Choices, SELECTED_NODE, bound};

pub const MAX_SCORE: i64 = 100;

pub type Reason = Cow<'static, str>;

/// Why a node was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    pub reasons: SmallVec<[Reason; 1]>,
    /// Whether removing other pods from the node could help.
    pub resolvable: bool,
}

impl Refusal {
    pub fn resolvable(reason: &'static str) -> Self {
        Refusal { reasons: smallvec![Cow::Borrowed(reason)], resolvable: true }
    }

    pub fn unresolvable(reason: impl Into<Reason>) -> Self {
        Refusal { reasons: smallvec![reason.into()], resolvable: false }
    }
}

/// Whether a plugin has anything to say about a pod at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Relevance {
    Judges,
    Skips,
}

/// What plugins look up besides nodes and pods.
pub trait Cluster: NamespaceLabels + Sync {
    fn claim(&self, namespace: &str, name: &str) -> Option<Arc<PersistentVolumeClaim>>;
    fn volume(&self, name: &str) -> Option<Arc<PersistentVolume>>;
    fn volumes(&self) -> Vec<Arc<PersistentVolume>>;
    fn storage_class(&self, name: &str) -> Option<Arc<StorageClass>>;
    fn csi_node(&self, name: &str) -> Option<Arc<CSINode>>;
    fn csi_driver(&self, name: &str) -> Option<Arc<CSIDriver>>;
    fn storage_capacities(&self) -> Vec<Arc<CSIStorageCapacity>>;
    fn budgets(&self, namespace: &str) -> Vec<Arc<PodDisruptionBudget>>;
    fn resource_claim(&self, namespace: &str, name: &str) -> Option<Arc<ResourceClaim>>;
    /// All of them, those with the allocations that are about to be written.
    fn resource_claims(&self) -> Vec<Arc<ResourceClaim>>;
    /// Whether an allocation is about to be written for a claim, by its uid.
    fn is_being_allocated(&self, uid: &str) -> bool;
    fn resource_slices(&self) -> Vec<Arc<SliceInfo>>;
    fn device_class(&self, name: &str) -> Option<Arc<DeviceClass>>;
    /// The class that stands for an extended resource.
    fn device_class_of(&self, resource: &str) -> Option<Arc<DeviceClass>>;
    /// The claim that the scheduler has made for a pod's extended resources.
    fn extended_claim(&self, pod: &PodInfo) -> Option<Arc<ResourceClaim>>;
    /// What selects a pod and its likes: its services and the workload that controls it.
    fn workload_selector(&self, pod: &PodInfo) -> Option<LabelSelector>;
}

/// One pod's way through the plugins.
pub struct Cycle<'a> {
    pub pod: &'a PodInfo,
    pub profile: &'a Profile,
    pub cluster: &'a dyn Cluster,
    pub state: State,
}

/// What plugins have worked out for the pod of a cycle.
#[derive(Clone, Default)]
pub struct State {
    node_affinity: node_affinity::Compiled,
    tolerated: Vec<bool>,
    inter_pod_affinity: inter_pod_affinity::Counts,
    spread: pod_topology_spread::Counts,
    volumes: volume_binding::Volumes,
    zones: volume_zone::Wanted,
    devices: dynamic_resources::Prepared,
    /// The only nodes worth trying, where NodeAffinity names them.
    pub only: Option<Vec<NodeIndex>>,
}

impl State {
    /// What VolumeBinding chose for a node, to be written before the pod is bound there.
    pub fn volume_choices(&self, cycle: &Cycle, snapshot: &Snapshot, node: NodeIndex) -> Choices {
        volume_binding::choose(cycle, snapshot, node)
    }
}

/// Something that happened in the cluster and may help a waiting pod.
pub enum Change<'a> {
    /// A node as it is now, and which of its facts changed.
    Node { index: NodeIndex, what: u8 },
    /// A pod now runs somewhere, or its labels changed.
    PodPlaced(&'a PodInfo),
    /// A pod has left its node.
    PodLeft { pod: &'a PodInfo, index: Option<NodeIndex> },
    /// A claim, by namespace and name.
    Claim(&'a str, &'a str),
    /// A volume, a storage class or a node's drivers.
    Storage,
    /// A ResourceClaim; it frees devices if it has none any more.
    ResourceClaim { namespace: &'a str, name: &'a str, frees: bool },
    /// A ResourceSlice or a DeviceClass.
    Devices,
    /// A namespace's labels.
    Namespace,
}

impl Change<'_> {
    /// Upstream's name of such an event.
    pub fn event(&self) -> &'static str {
        match self {
            Change::Node { what, .. } if what & fact::ADDED != 0 => "NodeAdd",
            Change::Node { .. } => "NodeUpdate",
            Change::PodPlaced(_) => "AssignedPodAdd",
            Change::PodLeft { .. } => "AssignedPodDelete",
            Change::Claim(..) => "PersistentVolumeClaimUpdate",
            Change::Storage => "PersistentVolumeUpdate",
            Change::ResourceClaim { .. } => "ResourceClaimUpdate",
            Change::Devices => "ResourceSliceUpdate",
            Change::Namespace => "NamespaceUpdate",
        }
    }
}

/// Facts of a node, as bits of [`Change::Node`] and of [`Plugin::node_facts`].
pub mod fact {
    pub const ALLOCATABLE: u8 = 1;
    pub const LABELS: u8 = 2;
    pub const TAINTS: u8 = 4;
    pub const UNSCHEDULABLE: u8 = 8;
    pub const ADDED: u8 = 16;
    pub const DECLARED_FEATURES: u8 = 32;
}

type Prepare = fn(&mut Cycle, &Snapshot) -> Result<Relevance, Refusal>;
type Filter = fn(&Cycle, &Snapshot, NodeIndex) -> Result<(), Refusal>;
type Score = fn(&Cycle, &Snapshot, &[NodeIndex], &mut [i64]) -> Relevance;
type Moved = fn(&mut Cycle, &Snapshot, &PodInfo, NodeIndex, i64);
type Hint = fn(&Cycle, &Change) -> bool;

pub struct Plugin {
    pub name: &'static str,
    /// Of its score among the others', by default.
    pub weight: i64,
    /// Once per pod, before any node is looked at.
    pub prepare: Option<Prepare>,
    pub filter: Option<Filter>,
    /// Fills a column of scores from 0 to 100 for the nodes that are left; one that skips leaves it at 0.
    pub score: Option<Score>,
    /// A pod was put onto a node or taken away while it is tried what that would help.
    pub moved: Option<Moved>,
    /// The facts of a node that its filter reads: only their change can help.
    pub node_facts: u8,
    /// Whether its filter reads the node's pods, so that one that leaves can help.
    pub reads_pods: bool,
    /// Whether some other change may help the pod; asked only of plugins that refused it.
    pub hint: Option<Hint>,
}

const PLUGIN: Plugin = Plugin {
    name: "",
    weight: 0,
    prepare: None,
    filter: None,
    score: None,
    moved: None,
    node_facts: 0,
    reads_pods: false,
    hint: None,
};

/// Every plugin, in upstream's order.
pub static PLUGINS: &[Plugin] = &[
    // holds a pod back before it enters the queue; see `queue`
    Plugin { name: "SchedulingGates", ..PLUGIN },
    // the order of the queue; see `queue`
    Plugin { name: "PrioritySort", ..PLUGIN },
    Plugin {
        name: "NodeUnschedulable",
        prepare: Some(node_unschedulable::prepare),
        filter: Some(node_unschedulable::filter),
        node_facts: fact::UNSCHEDULABLE,
        ..PLUGIN
    },
    Plugin { name: "NodeName", prepare: Some(node_name::prepare), filter: Some(node_name::filter), ..PLUGIN },
    Plugin {
        name: "TaintToleration",
        weight: 3,
        prepare: Some(taint_toleration::prepare),
        filter: Some(taint_toleration::filter),
        score: Some(taint_toleration::score),
        node_facts: fact::TAINTS,
        ..PLUGIN
    },
    Plugin {
        name: "NodeAffinity",
        weight: 2,
        prepare: Some(node_affinity::prepare),
        filter: Some(node_affinity::filter),
        score: Some(node_affinity::score),
        node_facts: fact::LABELS,
        ..PLUGIN
    },
    Plugin {
        name: "NodePorts",
        prepare: Some(node_ports::prepare),
        filter: Some(node_ports::filter),
        reads_pods: true,
        ..PLUGIN
    },
    Plugin {
        name: "NodeResourcesFit",
        weight: 1,
        filter: Some(node_resources::filter),
        score: Some(node_resources::score),
        node_facts: fact::ALLOCATABLE,
        reads_pods: true,
        hint: Some(node_resources::hint),
        ..PLUGIN
    },
    Plugin {
        name: "VolumeRestrictions",
        prepare: Some(volume_restrictions::prepare),
        filter: Some(volume_restrictions::filter),
        reads_pods: true,
        hint: Some(volume_restrictions::hint),
        ..PLUGIN
    },
    Plugin {
        name: "NodeVolumeLimits",
        prepare: Some(node_volume_limits::prepare),
        filter: Some(node_volume_limits::filter),
        reads_pods: true,
        hint: Some(node_volume_limits::hint),
        ..PLUGIN
    },
    Plugin {
        name: "VolumeBinding",
        prepare: Some(volume_binding::prepare),
        filter: Some(volume_binding::filter),
        node_facts: fact::LABELS,
        hint: Some(volume_binding::hint),
        ..PLUGIN
    },
    Plugin {
        name: "VolumeZone",
        prepare: Some(volume_zone::prepare),
        filter: Some(volume_zone::filter),
        node_facts: fact::LABELS,
        hint: Some(volume_zone::hint),
        ..PLUGIN
    },
    Plugin {
        name: "PodTopologySpread",
        weight: 2,
        prepare: Some(pod_topology_spread::prepare),
        filter: Some(pod_topology_spread::filter),
        score: Some(pod_topology_spread::score),
        moved: Some(pod_topology_spread::moved),
        hint: Some(pod_topology_spread::hint),
        ..PLUGIN
    },
    Plugin {
        name: "InterPodAffinity",
        weight: 2,
        prepare: Some(inter_pod_affinity::prepare),
        filter: Some(inter_pod_affinity::filter),
        score: Some(inter_pod_affinity::score),
        moved: Some(inter_pod_affinity::moved),
        hint: Some(inter_pod_affinity::hint),
        ..PLUGIN
    },
    Plugin {
        name: dynamic_resources::NAME,
        weight: 2,
        prepare: Some(dynamic_resources::prepare),
        filter: Some(dynamic_resources::filter),
        score: Some(dynamic_resources::score),
        node_facts: fact::LABELS | fact::ALLOCATABLE,
        hint: Some(dynamic_resources::hint),
        ..PLUGIN
    },
    // makes room when no node fits; see `default_preemption` and `scheduler`
    Plugin { name: "DefaultPreemption", ..PLUGIN },
    Plugin {
        name: "NodeResourcesBalancedAllocation",
        weight: 1,
        score: Some(node_resources::score_balance),
        ..PLUGIN
    },
    Plugin { name: "ImageLocality", weight: 1, score: Some(image_locality::score), ..PLUGIN },
    // writes the binding; see `bind`
    Plugin { name: "DefaultBinder", ..PLUGIN },
    Plugin {
        name: "NodeDeclaredFeatures",
        prepare: Some(node_declared_features::prepare),
        filter: Some(node_declared_features::filter),
        node_facts: fact::DECLARED_FEATURES,
        ..PLUGIN
    },
];

pub fn find(name: &str) -> Option<&'static Plugin> {
    PLUGINS.iter().find(|plugin| plugin.name == name)
}

/// Stretches scores so that the best has 100; reversed, the lowest is the best.
fn normalize(scores: &mut [i64], reverse: bool) {
    let max = scores.iter().copied().max().unwrap_or(0);
    for score in scores {
        let share = if max == 0 { 0 } else { MAX_SCORE * *score / max };
        *score = if reverse { MAX_SCORE - share } else { share };
    }
}

/// Which facts of a node differ.
pub fn changed_facts(old: &Node, new: &Node) -> u8 {
    let mut facts = 0;
    let mut note = |fact, differs: bool| facts |= if differs { fact } else { 0 };
    let allocatable = |node: &Node| node.status.as_ref().and_then(|status| status.allocatable.clone());
    let taints = |node: &Node| node.spec.as_ref().and_then(|spec| spec.taints.clone()).unwrap_or_default();
    let unschedulable = |node: &Node| node.spec.as_ref().and_then(|spec| spec.unschedulable).unwrap_or(false);
    let features = |node: &Node| node.status.as_ref().and_then(|status| status.declared_features.clone());
    note(fact::DECLARED_FEATURES, features(old) != features(new));
    note(fact::ALLOCATABLE, allocatable(old) != allocatable(new));
    note(fact::LABELS, old.metadata.labels != new.metadata.labels);
    note(fact::TAINTS, taints(old) != taints(new));
    note(fact::UNSCHEDULABLE, unschedulable(old) != unschedulable(new));
    facts
}

/// Whether a change may let a pod pass that this plugin has refused before.
pub fn may_help(plugin: &Plugin, cycle: &mut Cycle, snapshot: &Snapshot, change: &Change) -> bool {
    let passes_now = |cycle: &mut Cycle, index: NodeIndex| {
        let Some(filter) = plugin.filter else { return true };
        match plugin.prepare.map_or(Ok(Relevance::Judges), |prepare| prepare(cycle, snapshot)) {
            Ok(Relevance::Judges) => filter(cycle, snapshot, index).is_ok(),
            Ok(Relevance::Skips) => true,
            Err(_) => false,
        }
    };
    let hinted = plugin.hint.is_some_and(|hint| hint(cycle, change));
    match change {
        _ if hinted => true,
        // a node that was not there before can pass whoever is asked, unless it is refused too
        Change::Node { index, what } if what & fact::ADDED != 0 => passes_now(cycle, *index),
        Change::Node { index, what } => plugin.node_facts & what != 0 && passes_now(cycle, *index),
        Change::PodLeft { index: Some(index), .. } => plugin.reads_pods && passes_now(cycle, *index),
        _ => false,
    }
}
