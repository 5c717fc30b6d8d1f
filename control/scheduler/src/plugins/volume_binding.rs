//! VolumeBinding: a pod's claims are bound to volumes that its node can reach, or a volume can
//! be found or made for them there. What was chosen is written before the pod is bound, and the
//! pod waits on its node until its claims are bound.

use std::sync::Arc;

use ferry_api::quantity::Quantity;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::core::{Selector, SelectorExt};

use super::storage_capacity::has_room;
use super::{Change, Cluster, Cycle, Refusal, Relevance, node_affinity};
use crate::pod_info::PodInfo;
use crate::snapshot::{NodeIndex, Snapshot};

pub const BIND_COMPLETED: &str = "pv.kubernetes.io/bind-completed";
pub const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
const NO_PROVISIONER: &str = "kubernetes.io/no-provisioner";
const NONE_TO_BIND: &str = "node(s) didn't find available persistent volumes to bind";
const NO_ROOM: &str = "node(s) did not have enough free storage";

#[derive(Clone, Default)]
pub struct Volumes {
    /// Volumes of claims that are bound.
    bound: Vec<Arc<PersistentVolume>>,
    a_volume_is_missing: bool,
    /// Claims whose volume waits for a node to be chosen.
    delayed: Vec<Arc<PersistentVolumeClaim>>,
}

/// What is to be written so that a pod's claims are bound for a node.
#[derive(Clone, Debug, Default)]
pub struct Choices {
    pub bind: Vec<(Arc<PersistentVolume>, Arc<PersistentVolumeClaim>)>,
    pub provision: Vec<Arc<PersistentVolumeClaim>>,
}

impl Choices {
    pub fn is_empty(&self) -> bool {
        self.bind.is_empty() && self.provision.is_empty()
    }
}

pub fn prepare(cycle: &mut Cycle, _: &Snapshot) -> Result<Relevance, Refusal> {
    if cycle.pod.claims.is_empty() {
        return Ok(Relevance::Skips);
    }
    let mut volumes = Volumes::default();
    let mut immediate = false;
    for claim in claims(cycle.pod, cycle.cluster)? {
        let wanted = claim.spec.as_ref().and_then(|spec| spec.volume_name.as_deref()).unwrap_or("");
        if !wanted.is_empty() && has_annotation(&claim, BIND_COMPLETED) {
            match cycle.cluster.volume(wanted) {
                Some(volume) => volumes.bound.push(volume),
                None => volumes.a_volume_is_missing = true,
            }
        } else if wanted.is_empty() && waits_for_node(&claim, cycle.cluster) {
            volumes.delayed.push(claim);
        } else {
            immediate = true;
        }
    }
    if immediate {
        return Err(Refusal::unresolvable("pod has unbound immediate PersistentVolumeClaims"));
    }
    cycle.state.volumes = volumes;
    Ok(Relevance::Judges)
}

pub fn filter(cycle: &Cycle, snapshot: &Snapshot, node: NodeIndex) -> Result<(), Refusal> {
    let volumes = &cycle.state.volumes;
    if volumes.a_volume_is_missing {
        let reason = "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)";
        return Err(Refusal::unresolvable(reason));
    }
    if !volumes.bound.iter().all(|volume| reachable(volume, snapshot, node)) {
        return Err(Refusal::unresolvable("node(s) didn't match PersistentVolume's node affinity"));
    }
    if volumes.delayed.is_empty() {
        return Ok(());
    }
    try_choose(cycle, snapshot, node).map(|_| ()).map_err(Refusal::unresolvable)
}

/// What the filter found for a node that it let pass.
pub fn choose(cycle: &Cycle, snapshot: &Snapshot, node: NodeIndex) -> Choices {
    if cycle.state.volumes.delayed.is_empty() {
        return Choices::default();
    }
    try_choose(cycle, snapshot, node).unwrap_or_default()
}

/// The error is why there is no choice.
fn try_choose(cycle: &Cycle, snapshot: &Snapshot, node: NodeIndex) -> Result<Choices, &'static str> {
    let mut choices = Choices::default();
    let mut free = cycle.cluster.volumes();
    // the smallest that is large enough
    free.sort_by_key(|volume| capacity(volume));
    for claim in &cycle.state.volumes.delayed {
        let selected = claim.metadata.annotations.as_ref().and_then(|all| all.get(SELECTED_NODE));
        if selected.is_some_and(|selected| selected != &**snapshot.name(node)) {
            return Err(NONE_TO_BIND);
        }
        let found = free.iter().position(|v| suits(v, claim) && reachable(v, snapshot, node));
        match found {
            Some(at) if selected.is_none() => choices.bind.push((free.remove(at), claim.clone())),
            _ => {
                let class = class_name(claim).and_then(|name| cycle.cluster.storage_class(name));
                let class = class.ok_or(NONE_TO_BIND)?;
                if class.provisioner == NO_PROVISIONER || !allows(&class, snapshot, node) {
                    return Err(NONE_TO_BIND);
                }
                if !has_room(cycle.cluster, &class, claim, snapshot, node) {
                    return Err(NO_ROOM);
                }
                choices.provision.push(claim.clone());
            }
        }
    }
    Ok(choices)
}

/// Whether what was written for a node has led to claims that are bound. An error when it cannot any more, so that
/// the pod has to look for a node again.
pub fn bound(
    choices: &Choices,
    snapshot: &Snapshot,
    node: NodeIndex,
    cluster: &dyn Cluster,
) -> Result<bool, String> {
    let chosen = choices.bind.iter().map(|(volume, claim)| (claim, Some(volume)));
    let made = choices.provision.iter().map(|claim| (claim, None));
    let mut all = true;
    for (claim, volume) in chosen.chain(made) {
        let (namespace, name) = (claim.metadata.namespace.as_deref(), claim.metadata.name.as_deref());
        let (namespace, name) = (namespace.unwrap_or(""), name.unwrap_or(""));
        let now = cluster.claim(namespace, name).filter(|now| now.metadata.uid == claim.metadata.uid);
        let Some(now) = now else { return Err(format!("persistentvolumeclaim \"{name}\" not found")) };
        let wanted = now.spec.as_ref().and_then(|spec| spec.volume_name.as_deref()).unwrap_or("");
        if volume.is_none() && wanted.is_empty() {
            // a provisioner that cannot serve the node takes the choice back
            let annotations = now.metadata.annotations.as_ref();
            let selected = annotations.and_then(|all| all.get(SELECTED_NODE)).map_or("", String::as_str);
            // the answer to our own write may be older than what it wrote
            let stale = now.metadata.resource_version == claim.metadata.resource_version;
            if selected != &**snapshot.name(node) && !stale {
                return Err(format!(
                    "provisioning failed for PVC \"{name}\": selected-node annotation is {selected:?}"
                ));
            }
        }
        if let Some(volume) = volume {
            let volume = volume.metadata.name.as_deref().unwrap_or("");
            let Some(now) = cluster.volume(volume) else { return Err(format!("PV \"{volume}\" not found")) };
            let owner = now.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref()?.uid.clone());
            if owner.is_some() && owner != claim.metadata.uid {
                return Err(format!("PV \"{volume}\" is bound to another claim"));
            }
        }
        if wanted.is_empty() || !has_annotation(&now, BIND_COMPLETED) {
            all = false;
            continue;
        }
        match cluster.volume(wanted) {
            Some(volume) if reachable(&volume, snapshot, node) => {}
            Some(_) => {
                return Err(format!(
                    "PV \"{wanted}\" node affinity doesn't match node \"{}\"",
                    snapshot.name(node)
                ));
            }
            // the claim may be heard of before its volume is
            None => all = false,
        }
    }
    Ok(all)
}

pub fn hint(cycle: &Cycle, change: &Change) -> bool {
    match change {
        Change::Claim(namespace, name) => uses(cycle.pod, namespace, name),
        Change::Storage => true,
        _ => false,
    }
}

pub fn uses(pod: &PodInfo, namespace: &str, name: &str) -> bool {
    pod.key.namespace == namespace && pod.claims.iter().any(|claim| claim.name == name)
}

/// The pod's claims, or why it has to wait for one.
pub fn claims(pod: &PodInfo, cluster: &dyn Cluster) -> Result<Vec<Arc<PersistentVolumeClaim>>, Refusal> {
    let mut found = Vec::new();
    for claim in &pod.claims {
        let name = &claim.name;
        let Some(object) = cluster.claim(&pod.key.namespace, name) else {
            return Err(Refusal::unresolvable(if claim.ephemeral {
                format!(
                    "waiting for ephemeral volume controller to create the persistentvolumeclaim \"{name}\""
                )
            } else {
                format!("persistentvolumeclaim \"{name}\" not found")
            }));
        };
        if object.metadata.deletion_timestamp.is_some() {
            return Err(Refusal::unresolvable(format!("persistentvolumeclaim \"{name}\" is being deleted")));
        }
        if object.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Lost") {
            let volume = object.spec.as_ref().and_then(|spec| spec.volume_name.clone()).unwrap_or_default();
            return Err(Refusal::unresolvable(format!(
                "persistentvolumeclaim \"{name}\" bound to non-existent persistentvolume \"{volume}\""
            )));
        }
        let owners = object.metadata.owner_references.iter().flatten();
        if claim.ephemeral && !owners.clone().any(|owner| owner.uid == pod.uid) {
            return Err(Refusal::unresolvable(format!(
                "PVC \"{}/{name}\" was not created for pod \"{}\" (pod is not owner)",
                pod.key.namespace, pod.key
            )));
        }
        found.push(object);
    }
    Ok(found)
}

pub fn class_name(claim: &PersistentVolumeClaim) -> Option<&str> {
    let class = claim.spec.as_ref()?.storage_class_name.as_deref();
    class.filter(|name| !name.is_empty())
}

fn waits_for_node(claim: &PersistentVolumeClaim, cluster: &dyn Cluster) -> bool {
    let class = class_name(claim).and_then(|name| cluster.storage_class(name));
    class.is_some_and(|class| class.volume_binding_mode.as_deref() == Some("WaitForFirstConsumer"))
}

fn has_annotation(claim: &PersistentVolumeClaim, name: &str) -> bool {
    claim.metadata.annotations.as_ref().is_some_and(|all| all.contains_key(name))
}

fn reachable(volume: &PersistentVolume, snapshot: &Snapshot, node: NodeIndex) -> bool {
    let affinity = volume.spec.as_ref().and_then(|spec| spec.node_affinity.as_ref());
    let required = affinity.and_then(|affinity| affinity.required.as_ref());
    required.is_none_or(|selector| node_affinity::selector_matches(selector, snapshot, node))
}

/// Whether an unbound volume is what a claim asks for.
fn suits(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    let (Some(have), Some(want)) = (&volume.spec, &claim.spec) else { return false };
    let phase = volume.status.as_ref().and_then(|status| status.phase.as_deref());
    let mode = |mode: &Option<String>| mode.as_deref().unwrap_or("Filesystem").to_owned();
    let offered = have.access_modes.as_deref().unwrap_or(&[]);
    let asked = want.resources.as_ref().and_then(|r| r.requests.as_ref()).and_then(|r| r.get("storage"));
    let asked = asked.map_or(0, |quantity| Quantity::parse(&quantity.0).map_or(0, |q| q.value()));
    let selector = want.selector.clone().map(Selector::try_from);
    let labels = volume.metadata.labels.clone().unwrap_or_default();
    let reserved = have.claim_ref.as_ref();
    volume.metadata.deletion_timestamp.is_none()
        && matches!(phase, None | Some("" | "Available"))
        && reserved.is_none_or(|reference| {
            reference.name == claim.metadata.name
                && reference.namespace == claim.metadata.namespace
                && (reference.uid.is_none() || reference.uid == claim.metadata.uid)
        })
        && have.storage_class_name.as_deref().unwrap_or("") == class_name(claim).unwrap_or("")
        && mode(&have.volume_mode) == mode(&want.volume_mode)
        && want.access_modes.iter().flatten().all(|mode| offered.contains(mode))
        && capacity(volume) >= asked
        && selector.is_none_or(|selector| selector.is_ok_and(|selector| selector.matches(&labels)))
}

fn capacity(volume: &PersistentVolume) -> i64 {
    let capacity = volume.spec.as_ref().and_then(|spec| spec.capacity.as_ref());
    let storage = capacity.and_then(|capacity| capacity.get("storage"));
    storage.map_or(0, |quantity| Quantity::parse(&quantity.0).map_or(0, |quantity| quantity.value()))
}

/// Whether volumes of a class may be made for a node.
fn allows(class: &StorageClass, snapshot: &Snapshot, node: NodeIndex) -> bool {
    let Some(terms) = class.allowed_topologies.as_ref().filter(|terms| !terms.is_empty()) else {
        return true;
    };
    terms.iter().any(|term| {
        let requirements = term.match_label_expressions.as_deref().unwrap_or(&[]);
        !requirements.is_empty()
            && requirements.iter().all(|requirement| {
                let value = snapshot.label_text(node, &requirement.key);
                value.is_some_and(|value| requirement.values.iter().any(|allowed| allowed == value))
            })
    })
}
