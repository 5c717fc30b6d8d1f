//! InterPodAffinity: near some pods, away from others, within a node, zone or other topology.
//!
//! Pods are counted per topology domain once, a group of peers at a time; a node then only looks
//! up its own domains.

use smallvec::SmallVec;

use super::{Change, Cycle, MAX_SCORE, Refusal, Relevance};
use crate::numbers::ByNumber;
use crate::pod_info::{PodInfo, PodTerm};
use crate::snapshot::{NodeIndex, Snapshot};
use crate::symbols::Symbol;

#[derive(Clone, Default)]
pub struct Counts {
    /// Pods that all of the pod's own affinity terms match.
    affinity: Domains,
    /// Pods that one of its anti-affinity terms matches.
    anti_affinity: Domains,
    /// Pods whose anti-affinity matches the pod.
    repelled: Domains,
    /// The topology of each of the pod's own affinity terms; None is one that no node knows.
    topologies: SmallVec<[Option<Symbol>; 2]>,
}

/// A number for each topology domain, which is a label's key and value.
#[derive(Clone, Default)]
struct Domains {
    keys: SmallVec<[Symbol; 2]>,
    counts: ByNumber<(Symbol, Symbol), i64>,
    /// How many of the counts are not zero.
    taken: usize,
}

impl Domains {
    /// Adds to the domains of a term what is on each node.
    fn add(&mut self, snapshot: &Snapshot, term: &PodTerm, on: impl Iterator<Item = (NodeIndex, i64)>) {
        let Some(key) = snapshot.symbols.find(&term.topology_key) else { return };
        if !self.keys.contains(&key) {
            self.keys.push(key);
        }
        for (node, by) in on {
            let Some(value) = snapshot.label(node, key) else { continue };
            let count = self.counts.entry((key, value)).or_default();
            let before = std::mem::replace(count, *count + by);
            match (before, *count) {
                (0, 0) => {}
                (0, _) => self.taken += 1,
                (_, 0) => self.taken -= 1,
                _ => {}
            }
        }
    }

    fn at(&self, snapshot: &Snapshot, node: NodeIndex, key: Symbol) -> Option<i64> {
        let count = self.counts.get(&(key, snapshot.label(node, key)?));
        Some(count.copied().unwrap_or(0))
    }

    /// The sum over all domains that a node is in.
    fn sum_at(&self, snapshot: &Snapshot, node: NodeIndex) -> i64 {
        self.keys.iter().filter_map(|key| self.at(snapshot, node, *key)).sum()
    }

    fn has_any_at(&self, snapshot: &Snapshot, node: NodeIndex) -> bool {
        self.keys.iter().any(|key| self.at(snapshot, node, *key).is_some_and(|count| count > 0))
    }

    fn are_empty(&self) -> bool {
        self.taken == 0
    }
}

pub fn prepare(cycle: &mut Cycle, snapshot: &Snapshot) -> Result<Relevance, Refusal> {
    let pod = cycle.pod;
    let own = !pod.affinity.is_empty() || !pod.anti_affinity.is_empty();
    if !own && !snapshot.has_anti_affinity() {
        return Ok(Relevance::Skips);
    }
    let topologies = pod.affinity.iter().map(|term| snapshot.symbols.find(&term.topology_key));
    let mut counts = Counts { topologies: topologies.collect(), ..Counts::default() };
    for group in snapshot.groups() {
        if own || !group.like.anti_affinity.is_empty() {
            count(&mut counts, cycle, snapshot, &group.like, group.on());
        }
    }
    let skips = !own && counts.repelled.are_empty();
    cycle.state.inter_pod_affinity = counts;
    Ok(if skips { Relevance::Skips } else { Relevance::Judges })
}

pub fn moved(cycle: &mut Cycle, snapshot: &Snapshot, other: &PodInfo, node: NodeIndex, sign: i64) {
    let mut counts = std::mem::take(&mut cycle.state.inter_pod_affinity);
    count(&mut counts, cycle, snapshot, other, std::iter::once((node, sign)));
    cycle.state.inter_pod_affinity = counts;
}

fn count(
    counts: &mut Counts,
    cycle: &Cycle,
    snapshot: &Snapshot,
    other: &PodInfo,
    on: impl Iterator<Item = (NodeIndex, i64)> + Clone,
) {
    let (pod, cluster) = (cycle.pod, cycle.cluster);
    if !pod.affinity.is_empty() && pod.affinity.iter().all(|term| term.matches(other, cluster)) {
        for term in &pod.affinity {
            counts.affinity.add(snapshot, term, on.clone());
        }
    }
    for term in pod.anti_affinity.iter().filter(|term| term.matches(other, cluster)) {
        counts.anti_affinity.add(snapshot, term, on.clone());
    }
    for term in other.anti_affinity.iter().filter(|term| term.matches(pod, cluster)) {
        counts.repelled.add(snapshot, term, on.clone());
    }
}

pub fn filter(cycle: &Cycle, snapshot: &Snapshot, node: NodeIndex) -> Result<(), Refusal> {
    let counts = &cycle.state.inter_pod_affinity;
    if !near_enough(cycle, snapshot, node) {
        return Err(Refusal::unresolvable("node(s) didn't match pod affinity rules"));
    }
    if counts.anti_affinity.has_any_at(snapshot, node) {
        return Err(Refusal::resolvable("node(s) didn't match pod anti-affinity rules"));
    }
    if counts.repelled.has_any_at(snapshot, node) {
        return Err(Refusal::resolvable("node(s) didn't satisfy existing pods anti-affinity rules"));
    }
    Ok(())
}

/// Every term finds a matching pod in the node's domain. The first of a group that asks only for
/// its own kind may start it anywhere the topology is known.
fn near_enough(cycle: &Cycle, snapshot: &Snapshot, node: NodeIndex) -> bool {
    let (pod, counts) = (cycle.pod, &cycle.state.inter_pod_affinity);
    let mut found = true;
    for key in &counts.topologies {
        let Some(here) = key.and_then(|key| counts.affinity.at(snapshot, node, key)) else { return false };
        found &= here > 0;
    }
    found || counts.affinity.are_empty() && pod.affinity.iter().all(|term| term.matches(pod, cycle.cluster))
}

pub fn score(cycle: &Cycle, snapshot: &Snapshot, nodes: &[NodeIndex], scores: &mut [i64]) -> Relevance {
    let (pod, cluster, hard) = (cycle.pod, cycle.cluster, cycle.profile.hard_pod_affinity_weight);
    let own = !pod.preferred_affinity.is_empty() || !pod.preferred_anti_affinity.is_empty();
    if !own && (!snapshot.has_affinity() || cycle.profile.ignore_preferred_terms_of_existing_pods) {
        return Relevance::Skips;
    }
    let mut domains = Domains::default();
    for group in snapshot.groups() {
        let other = &*group.like;
        if !own && !other.has_pod_affinity() {
            continue;
        }
        let mut weigh = |term: &PodTerm, target: &PodInfo, weight: i64| {
            if weight != 0 && term.matches(target, cluster) {
                domains.add(snapshot, term, group.on().map(|(node, count)| (node, weight * count)));
            }
        };
        pod.preferred_affinity.iter().for_each(|(weight, term)| weigh(term, other, *weight));
        pod.preferred_anti_affinity.iter().for_each(|(weight, term)| weigh(term, other, -weight));
        other.affinity.iter().for_each(|term| weigh(term, pod, hard));
        other.preferred_affinity.iter().for_each(|(weight, term)| weigh(term, pod, *weight));
        other.preferred_anti_affinity.iter().for_each(|(weight, term)| weigh(term, pod, -weight));
    }
    if domains.counts.is_empty() {
        return Relevance::Skips;
    }
    for (score, node) in scores.iter_mut().zip(nodes) {
        *score = domains.sum_at(snapshot, *node);
    }
    let (min, max) = (scores.iter().min().copied().unwrap_or(0), scores.iter().max().copied().unwrap_or(0));
    for score in scores {
        let share = if max > min { (*score - min) as f64 / (max - min) as f64 } else { 0.0 };
        *score = (MAX_SCORE as f64 * share) as i64;
    }
    Relevance::Judges
}

pub fn hint(cycle: &Cycle, change: &Change) -> bool {
    let (pod, cluster) = (cycle.pod, cycle.cluster);
    match change {
        Change::PodPlaced(other) => pod.affinity.iter().any(|term| term.matches(other, cluster)),
        Change::PodLeft { pod: other, .. } => {
            pod.anti_affinity.iter().any(|term| term.matches(other, cluster))
                || other.anti_affinity.iter().any(|term| term.matches(pod, cluster))
        }
        // a new domain, or a node that moved to another
        Change::Node { what, .. } => what & super::fact::LABELS != 0,
        Change::Namespace => true,
        Change::Claim(..) | Change::Storage | Change::ResourceClaim { .. } | Change::Devices => false,
    }
}
