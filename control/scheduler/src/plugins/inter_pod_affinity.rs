//! InterPodAffinity: near some pods, away from others, within a node, zone or other topology.
//!
//! Pods are counted per topology domain once; a node then only looks up its own domains.

use std::collections::HashMap;

use super::{Change, Cycle, MAX_SCORE, Refusal, Relevance};
use crate::pod_info::{PodInfo, PodTerm};
use crate::snapshot::{NodeIndex, Snapshot};
use crate::symbols::Symbol;

/// A topology domain: a label's key and value.
type Domain = (Symbol, Symbol);

#[derive(Clone, Default)]
pub struct Counts {
    /// Pods that all of the pod's own affinity terms match.
    affinity: HashMap<Domain, i64>,
    /// Pods that one of its anti-affinity terms matches.
    anti_affinity: HashMap<Domain, i64>,
    /// Pods whose anti-affinity matches the pod.
    repelled: HashMap<Domain, i64>,
}

pub fn prepare(cycle: &mut Cycle, snapshot: &Snapshot) -> Result<Relevance, Refusal> {
    let pod = cycle.pod;
    let own = !pod.affinity.is_empty() || !pod.anti_affinity.is_empty();
    if !own && !snapshot.has_anti_affinity() {
        return Ok(Relevance::Skips);
    }
    let mut counts = Counts::default();
    for &node in snapshot.order() {
        for other in snapshot.pods(node) {
            if own || !other.anti_affinity.is_empty() {
                count(&mut counts, cycle, snapshot, other, node, 1);
            }
        }
    }
    cycle.state.inter_pod_affinity = counts;
    let skips = !own && cycle.state.inter_pod_affinity.repelled.is_empty();
    Ok(if skips { Relevance::Skips } else { Relevance::Filters })
}

pub fn moved(cycle: &mut Cycle, snapshot: &Snapshot, other: &PodInfo, node: NodeIndex, sign: i64) {
    let mut counts = std::mem::take(&mut cycle.state.inter_pod_affinity);
    count(&mut counts, cycle, snapshot, other, node, sign);
    cycle.state.inter_pod_affinity = counts;
}

fn count(
    counts: &mut Counts,
    cycle: &Cycle,
    snapshot: &Snapshot,
    other: &PodInfo,
    node: NodeIndex,
    sign: i64,
) {
    let (pod, cluster) = (cycle.pod, cycle.cluster);
    if !pod.affinity.is_empty() && pod.affinity.iter().all(|term| term.matches(other, cluster)) {
        for term in &pod.affinity {
            add(&mut counts.affinity, snapshot, term, node, sign);
        }
    }
    for term in pod.anti_affinity.iter().filter(|term| term.matches(other, cluster)) {
        add(&mut counts.anti_affinity, snapshot, term, node, sign);
    }
    for term in other.anti_affinity.iter().filter(|term| term.matches(pod, cluster)) {
        add(&mut counts.repelled, snapshot, term, node, sign);
    }
}

fn add(counts: &mut HashMap<Domain, i64>, snapshot: &Snapshot, term: &PodTerm, node: NodeIndex, by: i64) {
    let Some(domain) = domain(snapshot, term, node) else { return };
    let count = counts.entry(domain).or_default();
    *count += by;
    if *count == 0 {
        counts.remove(&domain);
    }
}

fn domain(snapshot: &Snapshot, term: &PodTerm, node: NodeIndex) -> Option<Domain> {
    let key = snapshot.symbols.find(&term.topology_key)?;
    Some((key, snapshot.label(node, key)?))
}

pub fn filter(cycle: &Cycle, snapshot: &Snapshot, node: NodeIndex) -> Result<(), Refusal> {
    let counts = &cycle.state.inter_pod_affinity;
    if !near_enough(cycle, snapshot, node) {
        return Err(Refusal::unresolvable("node(s) didn't match pod affinity rules"));
    }
    let crowded = |term: &PodTerm| {
        domain(snapshot, term, node).is_some_and(|domain| counts.anti_affinity.contains_key(&domain))
    };
    if cycle.pod.anti_affinity.iter().any(crowded) {
        return Err(Refusal::resolvable("node(s) didn't match pod anti-affinity rules"));
    }
    if counts.repelled.keys().any(|(key, value)| snapshot.label(node, *key) == Some(*value)) {
        return Err(Refusal::resolvable("node(s) didn't satisfy existing pods anti-affinity rules"));
    }
    Ok(())
}

/// Every term finds a matching pod in the node's domain. The first of a group that asks only for
/// its own kind may start it anywhere the topology is known.
fn near_enough(cycle: &Cycle, snapshot: &Snapshot, node: NodeIndex) -> bool {
    let (pod, counts) = (cycle.pod, &cycle.state.inter_pod_affinity.affinity);
    let mut found = true;
    for term in &pod.affinity {
        let Some(domain) = domain(snapshot, term, node) else { return false };
        found &= counts.get(&domain).is_some_and(|count| *count > 0);
    }
    found || counts.is_empty() && pod.affinity.iter().all(|term| term.matches(pod, cycle.cluster))
}

pub fn score(cycle: &Cycle, snapshot: &Snapshot, nodes: &[NodeIndex], scores: &mut [i64]) {
    let (pod, cluster, hard) = (cycle.pod, cycle.cluster, cycle.profile.hard_pod_affinity_weight);
    let own = !pod.preferred_affinity.is_empty() || !pod.preferred_anti_affinity.is_empty();
    if !own && (!snapshot.has_affinity() || cycle.profile.ignore_preferred_terms_of_existing_pods) {
        return;
    }
    let mut domains: HashMap<Domain, i64> = HashMap::new();
    for &node in snapshot.order() {
        for other in snapshot.pods(node) {
            if !own && !other.has_pod_affinity() {
                continue;
            }
            let mut weigh = |term: &PodTerm, target: &PodInfo, weight: i64| {
                if weight != 0
                    && term.matches(target, cluster)
                    && let Some(domain) = domain(snapshot, term, node)
                {
                    *domains.entry(domain).or_default() += weight;
                }
            };
            pod.preferred_affinity.iter().for_each(|(weight, term)| weigh(term, other, *weight));
            pod.preferred_anti_affinity.iter().for_each(|(weight, term)| weigh(term, other, -weight));
            other.affinity.iter().for_each(|term| weigh(term, pod, hard));
            other.preferred_affinity.iter().for_each(|(weight, term)| weigh(term, pod, *weight));
            other.preferred_anti_affinity.iter().for_each(|(weight, term)| weigh(term, pod, -weight));
        }
    }
    if domains.is_empty() {
        return;
    }
    let mut keys: Vec<Symbol> = domains.keys().map(|(key, _)| *key).collect();
    keys.sort();
    keys.dedup();
    for (score, node) in scores.iter_mut().zip(nodes) {
        let own = keys.iter().filter_map(|key| domains.get(&(*key, snapshot.label(*node, *key)?)));
        *score = own.sum();
    }
    let (min, max) = (scores.iter().min().copied().unwrap_or(0), scores.iter().max().copied().unwrap_or(0));
    for score in scores {
        let share = if max > min { (*score - min) as f64 / (max - min) as f64 } else { 0.0 };
        *score = (MAX_SCORE as f64 * share) as i64;
    }
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
        Change::Claim(..) | Change::Storage => false,
    }
}
