//! DynamicResources: a pod's ResourceClaims have devices that its node can use, or devices of the node can be allocated for
//! them ([`crate::devices`]); the same for its extended resources that DeviceClasses stand for ([`super::extended_resources`]).
//! What was chosen is written into the claims before the pod is bound.

use std::collections::HashSet;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::NodeSelector;
use k8s_openapi::api::resource::v1::{AllocationResult, ResourceClaim};

use super::extended_resources::{ExtendedReservation, ExtendedResources, Variant};
use super::{Change, Cluster, Cycle, Refusal, Relevance, node_affinity, normalize};
use crate::cycle::FitError;
use crate::devices::binding::{self, Readiness};
use crate::devices::demand::Demand;
use crate::devices::pools::SlicesByNode;
use crate::devices::search::{Choice, Failure, search};
use crate::devices::taken::Taken;
use crate::devices::{Node, result};
use crate::pod_info::{PodInfo, ResourceClaimUse};
use crate::snapshot::{NodeIndex, Snapshot};

pub const NAME: &str = "DynamicResources";
const UNAVAILABLE: &str = "resourceclaim not available on the node";
/// Upstream's limit of alternatives, from which scores count down.
const MOST_ALTERNATIVES: i64 = 8;

#[derive(Clone, Default)]
pub struct Prepared(Option<Arc<Claims>>);

/// A pod's claims, and what there is to allocate from.
struct Claims {
    /// All of them, in the pod's order.
    claims: Vec<Arc<ResourceClaim>>,
    /// Those without devices, in the same order.
    demands: Vec<Demand>,
    extended: Option<ExtendedResources>,
    offer: SlicesByNode,
    taken: Taken,
    now: Timestamp,
}

/// What is to be written into the claims before a pod is bound: they are reserved for it, and those that have an allocation
/// here get it.
#[derive(Clone, Debug, Default)]
pub struct Reservations {
    pub claims: Vec<(Arc<ResourceClaim>, Option<AllocationResult>)>,
    /// The claim to create for the pod's extended resources.
    pub extended: Option<ExtendedReservation>,
}

/// What to do about a claim whose devices keep the pod from every node.
pub enum Release {
    /// It may be allocated elsewhere.
    Deallocate(Arc<ResourceClaim>),
    /// The scheduler made it itself, and makes another.
    Delete(Arc<ResourceClaim>),
}

pub fn prepare(cycle: &mut Cycle, _: &Snapshot) -> Result<Relevance, Refusal> {
    if cycle.pod.resource_claims.is_empty() && cycle.pod.extended.is_empty() {
        return Ok(Relevance::Skips);
    }
    let claims = claims(cycle.pod, cycle.cluster).map_err(Refusal::unresolvable)?;
    let extended = ExtendedResources::of(cycle);
    if claims.is_empty() && extended.is_none() {
        return Ok(Relevance::Skips);
    }
    let classes = |name: &str| cycle.cluster.device_class(name);
    let mut demands = Vec::new();
    for claim in claims.iter().filter(|claim| binding::allocation(claim).is_none()) {
        let uid = claim.metadata.uid.as_deref().unwrap_or("");
        if cycle.cluster.is_being_allocated(uid) {
            let (namespace, name) = names(claim);
            let reason = format!("resource claim {namespace}/{name} is in the process of being allocated");
            return Err(Refusal::unresolvable(reason));
        }
        demands.push(Demand::new(claim, &classes).map_err(Refusal::unresolvable)?);
    }
    // whoever has devices already asks for none, and need not know what there is
    let is_content = demands.is_empty() && extended.as_ref().is_none_or(|extended| extended.stale.is_some());
    let (offer, taken) = match is_content {
        true => (SlicesByNode::default(), Taken::default()),
        false => {
            let allocated = cycle.cluster.resource_claims();
            (SlicesByNode::new(cycle.cluster.resource_slices()), Taken::of(allocated.iter().map(Arc::as_ref)))
        }
    };
    let now = Timestamp::now();
    cycle.state.devices = Prepared(Some(Arc::new(Claims { claims, demands, extended, offer, taken, now })));
    Ok(Relevance::Judges)
}

pub fn filter(cycle: &Cycle, snapshot: &Snapshot, node: NodeIndex) -> Result<(), Refusal> {
    let Some(claims) = &cycle.state.devices.0 else { return Ok(()) };
    let extended = claims.extended_on(cycle, snapshot, node)?;
    if claims.claims.iter().any(|claim| !is_available(claim, claims.now, snapshot, node)) {
        return Err(Refusal::unresolvable(UNAVAILABLE));
    }
    match claims.allocate(snapshot, node, extended.as_deref()) {
        Ok(Some(_)) => Ok(()),
        Ok(None) => Err(Refusal::unresolvable("cannot allocate all claims")),
        Err(failure) => Err(Refusal::unresolvable(failure.to_string())),
    }
}

/// Prefers nodes where earlier alternatives of the requests are to be had.
pub fn score(cycle: &Cycle, snapshot: &Snapshot, nodes: &[NodeIndex], scores: &mut [i64]) -> Relevance {
    let Some(claims) = &cycle.state.devices.0 else { return Relevance::Skips };
    if !claims.demands.iter().any(Demand::has_alternatives) {
        return Relevance::Skips;
    }
    for (score, node) in scores.iter_mut().zip(nodes) {
        let Ok(extended) = claims.extended_on(cycle, snapshot, *node) else { continue };
        let Ok(Some(choices)) = claims.allocate(snapshot, *node, extended.as_deref()) else { continue };
        *score = claims.demands.iter().zip(&choices).map(|(demand, choices)| rank(demand, choices)).sum();
    }
    normalize(scores, false);
    Relevance::Judges
}

fn rank(demand: &Demand, choices: &[Choice]) -> i64 {
    let requests = demand.requests.iter().enumerate().filter(|(_, wanted)| wanted.alternatives.len() > 1);
    let chosen = requests.filter_map(|(number, _)| choices.iter().find(|choice| choice.request == number));
    chosen.map(|choice| MOST_ALTERNATIVES - choice.alternative as i64).sum()
}

/// What has to be written for a node that the filter let pass.
pub fn choose(cycle: &Cycle, snapshot: &Snapshot, node: NodeIndex) -> Reservations {
    let Some(claims) = &cycle.state.devices.0 else { return Reservations::default() };
    let Ok(extended) = claims.extended_on(cycle, snapshot, node) else { return Reservations::default() };
    let Ok(Some(choices)) = claims.allocate(snapshot, node, extended.as_deref()) else {
        return Reservations::default();
    };
    let selects = |selector: &NodeSelector| node_affinity::selector_matches(selector, snapshot, node);
    let here = Node { name: snapshot.name(node), matches: &selects };
    let share_id = || uuid::Uuid::new_v4().to_string();
    let demands = claims.demands.iter().chain(extended.as_ref().map(|variant| &variant.demand));
    let mut allocations =
        demands.zip(&choices).map(|(demand, choices)| result::result(demand, choices, &here, share_id));
    // Every claim without an allocation has a demand, in the same order.
    let each: Vec<_> = claims
        .claims
        .iter()
        .map(|claim| match binding::allocation(claim) {
            Some(_) => (claim.clone(), None),
            None => (claim.clone(), allocations.next()),
        })
        .collect();
    let unreserved = each.into_iter().filter(|(claim, _)| !is_reserved_for(claim, cycle.pod)).collect();
    let extended = extended.as_ref().zip(allocations.next());
    let extended = extended.map(|(variant, allocation)| ExtendedReservation {
        claim: variant.demand.claim.clone(),
        allocation,
        mappings: variant.mappings.clone(),
    });
    Reservations { claims: unreserved, extended }
}

/// A claim whose devices keep the pod from every node, and that nobody else uses: without them it may get others.
pub fn to_release(cycle: &Cycle, snapshot: &Snapshot, error: &FitError) -> Option<Release> {
    let claims = cycle.state.devices.0.as_ref()?;
    let refused = error.refused.iter().filter(|(_, plugin, _)| *plugin == NAME).map(|(node, _, _)| *node);
    let refused: Vec<NodeIndex> = refused.collect();
    let hinders = |claim: &&Arc<ResourceClaim>| {
        refused.iter().any(|node| !is_available(claim, claims.now, snapshot, *node))
    };
    let is_ours = |claim: &&Arc<ResourceClaim>| {
        let users = claim.status.as_ref().and_then(|status| status.reserved_for.as_deref()).unwrap_or(&[]);
        users.iter().all(|user| user.uid == cycle.pod.uid)
    };
    let hindering = claims.claims.iter().filter(is_ours).find(hinders).cloned();
    let stale = || claims.extended.as_ref()?.stale.clone();
    hindering.map(Release::Deallocate).or_else(|| stale().map(Release::Delete))
}

pub fn has_claims(cycle: &Cycle) -> bool {
    cycle.state.devices.0.is_some()
}

pub fn hint(cycle: &Cycle, change: &Change) -> bool {
    match change {
        Change::ResourceClaim { namespace, name, frees } => {
            *frees || cycle.pod.key.namespace == *namespace && names_of(cycle.pod).any(|own| own == *name)
        }
        Change::Devices => true,
        _ => false,
    }
}

/// The names of the pod's claims, as far as they are known.
pub fn names_of(pod: &PodInfo) -> impl Iterator<Item = &str> {
    pod.resource_claims.iter().filter_map(|used| match used {
        ResourceClaimUse::Named(name) | ResourceClaimUse::Generated(name) => Some(name.as_str()),
        ResourceClaimUse::NotGenerated(_) | ResourceClaimUse::Unneeded => None,
    })
}

/// The pod's claims, each once whatever names it goes by, or why it has to wait for one.
fn claims(pod: &PodInfo, cluster: &dyn Cluster) -> Result<Vec<Arc<ResourceClaim>>, String> {
    let mut found = Vec::new();
    let mut seen = HashSet::new();
    for used in &pod.resource_claims {
        let (name, is_generated) = match used {
            ResourceClaimUse::Named(name) => (name, false),
            ResourceClaimUse::Generated(name) => (name, true),
            ResourceClaimUse::Unneeded => continue,
            ResourceClaimUse::NotGenerated(_) => {
                return Err(format!("pod \"{}\": ResourceClaim not created yet", pod.key));
            }
        };
        if !seen.insert(name.as_str()) {
            continue;
        }
        let Some(claim) = cluster.resource_claim(&pod.key.namespace, name) else {
            return Err(format!("resourceclaim.resource.k8s.io \"{name}\" not found"));
        };
        if claim.metadata.deletion_timestamp.is_some() {
            return Err(format!("resourceclaim \"{name}\" is being deleted"));
        }
        let owners = claim.metadata.owner_references.iter().flatten();
        let mut owners = owners.filter(|owner| owner.controller == Some(true));
        if is_generated && !owners.any(|owner| owner.uid == pod.uid) {
            return Err(format!(
                "ResourceClaim {}/{name} was not created for Pod {} (Pod is not owner)",
                pod.key.namespace, pod.key
            ));
        }
        found.push(claim);
    }
    Ok(found)
}

fn names(claim: &ResourceClaim) -> (&str, &str) {
    let metadata = &claim.metadata;
    (metadata.namespace.as_deref().unwrap_or(""), metadata.name.as_deref().unwrap_or(""))
}

fn is_reserved_for(claim: &ResourceClaim, pod: &PodInfo) -> bool {
    let users = claim.status.as_ref().and_then(|status| status.reserved_for.as_ref());
    users.into_iter().flatten().any(|user| user.uid == pod.uid)
}

/// Whether the devices of a claim, if it has any, can be used on a node.
fn is_available(claim: &ResourceClaim, now: Timestamp, snapshot: &Snapshot, node: NodeIndex) -> bool {
    let Some(allocation) = binding::allocation(claim) else { return true };
    let selector = allocation.node_selector.as_ref();
    selector.is_none_or(|selector| node_affinity::selector_matches(selector, snapshot, node))
        && !matches!(binding::readiness(claim, now), Readiness::Failed(_))
}

impl Reservations {
    pub fn is_empty(&self) -> bool {
        self.claims.is_empty() && self.extended.is_none()
    }
}

impl Claims {
    fn extended_on(
        &self,
        cycle: &Cycle,
        snapshot: &Snapshot,
        node: NodeIndex,
    ) -> Result<Option<Arc<Variant>>, Refusal> {
        self.extended.as_ref().map_or(Ok(None), |extended| extended.on(cycle, snapshot, node))
    }

    /// The devices of each demand, the one for extended resources last.
    fn allocate(
        &self,
        snapshot: &Snapshot,
        node: NodeIndex,
        extended: Option<&Variant>,
    ) -> Result<Option<Vec<Vec<Choice>>>, Failure> {
        let selects = |selector: &NodeSelector| node_affinity::selector_matches(selector, snapshot, node);
        let here = Node { name: snapshot.name(node), matches: &selects };
        let demands: Vec<&Demand> =
            self.demands.iter().chain(extended.map(|variant| &variant.demand)).collect();
        if demands.is_empty() {
            return Ok(Some(Vec::new()));
        }
        search(&demands, &self.offer, &self.taken, &here)
    }
}
