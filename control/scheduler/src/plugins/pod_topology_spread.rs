//! PodTopologySpread: matching pods evenly over zones, nodes or other domains.

use k8s_openapi::api::core::v1::TopologySpreadConstraint;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelectorRequirement;
use kube::core::{Selector, SelectorExt};

use super::node_affinity::{self, Compiled};
use super::taint_toleration::tolerates_node;
use super::{Change, Cycle, MAX_SCORE, Refusal, Relevance};
use crate::numbers::ByNumber;
use crate::pod_info::PodInfo;
use crate::profile::DefaultSpread;
use crate::snapshot::{HOSTNAME, NodeIndex, Snapshot};
use crate::symbols::Symbol;

const REFUSED: &str = "node(s) didn't match pod topology spread constraints";
const NO_LABEL: &str = "node(s) didn't match pod topology spread constraints (missing required label)";

#[derive(Clone, Default)]
pub struct Counts {
    constraints: Vec<Constraint>,
    /// Matching pods per domain; every domain that takes part is there, empty ones too.
    domains: Vec<ByNumber<Symbol, i64>>,
    /// The least of each, kept so that a node need not look through all domains.
    fewest: Vec<i64>,
    affinity: Compiled,
}

impl Counts {
    fn with_minimums(mut self) -> Self {
        let both = self.constraints.iter().zip(&self.domains);
        self.fewest = both
            .map(|(constraint, domains)| {
                let enough = domains.len() as i64 >= constraint.min_domains;
                if enough { domains.values().min().copied().unwrap_or(0) } else { 0 }
            })
            .collect();
        self
    }
}

#[derive(Clone)]
struct Constraint {
    max_skew: i64,
    min_domains: i64,
    key: Option<Symbol>,
    is_hostname: bool,
    selector: Option<Selector>,
    honor_affinity: bool,
    honor_taints: bool,
    matches_itself: bool,
}

impl Constraint {
    fn new(constraint: &TopologySpreadConstraint, pod: &PodInfo, snapshot: &Snapshot) -> Self {
        let selector = constraint.label_selector.clone().and_then(|mut selector| {
            // the values of these keys are the pod's own: revisions of a workload spread apart
            for key in constraint.match_label_keys.iter().flatten() {
                if let Some(value) = pod.labels().get(key) {
                    selector.match_expressions.get_or_insert_default().push(LabelSelectorRequirement {
                        key: key.clone(),
                        operator: "In".into(),
                        values: Some(vec![value.clone()]),
                    });
                }
            }
            Selector::try_from(selector).ok()
        });
        Constraint {
            max_skew: constraint.max_skew.into(),
            min_domains: constraint.min_domains.unwrap_or(1).into(),
            key: snapshot.symbols.find(&constraint.topology_key),
            is_hostname: constraint.topology_key == HOSTNAME,
            honor_affinity: constraint.node_affinity_policy.as_deref() != Some("Ignore"),
            honor_taints: constraint.node_taints_policy.as_deref() == Some("Honor"),
            matches_itself: selector.as_ref().is_some_and(|selector| selector.matches(pod.labels())),
            selector,
        }
    }

    fn value(&self, snapshot: &Snapshot, node: NodeIndex) -> Option<Symbol> {
        snapshot.label(node, self.key?)
    }

    fn takes_part(&self, cycle: &Cycle, affinity: &Compiled, snapshot: &Snapshot, node: NodeIndex) -> bool {
        let tolerated = || tolerates_node(cycle.pod.tolerations(), snapshot.taints(snapshot.taint_set(node)));
        (!self.honor_affinity || affinity.matches(snapshot, node)) && (!self.honor_taints || tolerated())
    }

    fn counts(&self, pod: &PodInfo, other: &PodInfo) -> bool {
        other.key.namespace == pod.key.namespace
            && !other.is_terminating()
            && self.selector.as_ref().is_some_and(|selector| selector.matches(other.labels()))
    }

    /// How many pods it counts on each place of the snapshot.
    fn count_on_nodes(&self, pod: &PodInfo, snapshot: &Snapshot) -> Vec<i64> {
        snapshot.count_on_nodes(|other| self.counts(pod, other))
    }
}

fn constraints(cycle: &Cycle, snapshot: &Snapshot, when: &str) -> Vec<Constraint> {
    if says_how(cycle.pod) {
        let own = cycle.pod.spec().topology_spread_constraints.iter().flatten();
        let own = own.filter(|constraint| constraint.when_unsatisfiable == when);
        return own.map(|constraint| Constraint::new(constraint, cycle.pod, snapshot)).collect();
    }
    let default = cycle.profile.default_spread.constraints().iter();
    let mut default = default.filter(|own| own.when_unsatisfiable == when).peekable();
    let selector = default.peek().and_then(|_| cycle.cluster.workload_selector(cycle.pod));
    let Some(selector) = selector else { return Vec::new() };
    let default = default.map(|constraint| {
        let label_selector = Some(selector.clone());
        let constraint = TopologySpreadConstraint { label_selector, ..constraint.clone() };
        Constraint::new(&constraint, cycle.pod, snapshot)
    });
    default.collect()
}

fn says_how(pod: &PodInfo) -> bool {
    pod.spec().topology_spread_constraints.as_ref().is_some_and(|own| !own.is_empty())
}

/// A node counts for any constraint only if it has the labels of all.
fn has_all_labels(constraints: &[Constraint], snapshot: &Snapshot, node: NodeIndex) -> bool {
    constraints.iter().all(|constraint| constraint.value(snapshot, node).is_some())
}

pub fn prepare(cycle: &mut Cycle, snapshot: &Snapshot) -> Result<Relevance, Refusal> {
    let constraints = constraints(cycle, snapshot, "DoNotSchedule");
    if constraints.is_empty() {
        return Ok(Relevance::Skips);
    }
    let affinity = node_affinity::required_of(cycle.pod, snapshot);
    let mut domains: Vec<ByNumber<Symbol, i64>> = vec![ByNumber::default(); constraints.len()];
    for (constraint, domains) in constraints.iter().zip(&mut domains) {
        let counts = constraint.count_on_nodes(cycle.pod, snapshot);
        for &node in snapshot.order() {
            if let Some(value) = constraint.value(snapshot, node)
                && has_all_labels(&constraints, snapshot, node)
                && constraint.takes_part(cycle, &affinity, snapshot, node)
            {
                *domains.entry(value).or_default() += counts[node.0 as usize];
            }
        }
    }
    cycle.state.spread = Counts { constraints, domains, fewest: Vec::new(), affinity }.with_minimums();
    Ok(Relevance::Judges)
}

pub fn moved(cycle: &mut Cycle, snapshot: &Snapshot, other: &PodInfo, node: NodeIndex, sign: i64) {
    let mut spread = std::mem::take(&mut cycle.state.spread);
    if has_all_labels(&spread.constraints, snapshot, node) {
        for (constraint, domains) in spread.constraints.iter().zip(&mut spread.domains) {
            if let Some(value) = constraint.value(snapshot, node)
                && constraint.counts(cycle.pod, other)
                && constraint.takes_part(cycle, &spread.affinity, snapshot, node)
            {
                *domains.entry(value).or_default() += sign;
            }
        }
    }
    cycle.state.spread = spread.with_minimums();
}

pub fn filter(cycle: &Cycle, snapshot: &Snapshot, node: NodeIndex) -> Result<(), Refusal> {
    let spread = &cycle.state.spread;
    let constraints = spread.constraints.iter().zip(&spread.domains).zip(&spread.fewest);
    for ((constraint, domains), fewest) in constraints {
        let Some(value) = constraint.value(snapshot, node) else {
            return Err(Refusal::unresolvable(NO_LABEL));
        };
        let here = domains.get(&value).copied().unwrap_or(0) + i64::from(constraint.matches_itself);
        if here - fewest > constraint.max_skew {
            return Err(Refusal::resolvable(REFUSED));
        }
    }
    Ok(())
}

pub fn score(cycle: &Cycle, snapshot: &Snapshot, nodes: &[NodeIndex], scores: &mut [i64]) -> Relevance {
    let constraints = constraints(cycle, snapshot, "ScheduleAnyway");
    if constraints.is_empty() {
        return Relevance::Skips;
    }
    let affinity = node_affinity::required_of(cycle.pod, snapshot);
    // With the system's defaults a cluster without zones still spreads over its nodes.
    let all_labels = says_how(cycle.pod) || cycle.profile.default_spread != DefaultSpread::System;
    let counts_in = |node: NodeIndex| !all_labels || has_all_labels(&constraints, snapshot, node);
    let candidates: Vec<bool> = nodes.iter().map(|node| counts_in(*node)).collect();
    let counts: Vec<Vec<i64>> =
        constraints.iter().map(|constraint| constraint.count_on_nodes(cycle.pod, snapshot)).collect();
    let mut domains: Vec<ByNumber<Symbol, i64>> = vec![ByNumber::default(); constraints.len()];
    for ((constraint, domains), counts) in constraints.iter().zip(&mut domains).zip(&counts) {
        for (node, _) in nodes.iter().zip(&candidates).filter(|(_, candidate)| **candidate) {
            if let Some(value) = constraint.value(snapshot, *node) {
                domains.entry(value).or_default();
            }
        }
        if constraint.is_hostname {
            continue;
        }
        for &node in snapshot.order() {
            if let Some(value) = constraint.value(snapshot, node)
                && let Some(count) = domains.get_mut(&value)
                && counts_in(node)
                && constraint.takes_part(cycle, &affinity, snapshot, node)
            {
                *count += counts[node.0 as usize];
            }
        }
    }
    // With more domains the differences between them are smaller; the weight compensates for that.
    let weights: Vec<f64> = domains.iter().map(|domains| ((domains.len() + 2) as f64).ln()).collect();
    for ((score, node), _) in scores.iter_mut().zip(nodes).zip(&candidates).filter(|(_, c)| **c) {
        let mut sum = 0.0;
        let each = constraints.iter().zip(&domains).zip(&weights).zip(&counts);
        for (((constraint, domains), weight), counts) in each {
            let Some(value) = constraint.value(snapshot, *node) else { continue };
            let count = match constraint.is_hostname {
                true => counts[node.0 as usize],
                false => domains.get(&value).copied().unwrap_or(0),
            };
            sum += count as f64 * weight + (constraint.max_skew - 1) as f64;
        }
        *score = sum.round() as i64;
    }
    normalize(scores, &candidates);
    Relevance::Judges
}

/// The fewest matching pods get the highest score; nodes that are no candidates get 0.
fn normalize(scores: &mut [i64], candidates: &[bool]) {
    let counted = || scores.iter().zip(candidates).filter(|(_, candidate)| **candidate);
    let (min, max) = (
        counted().map(|(score, _)| *score).min().unwrap_or(0),
        counted().map(|(score, _)| *score).max().unwrap_or(0),
    );
    for (score, candidate) in scores.iter_mut().zip(candidates) {
        *score = match (candidate, max) {
            (false, _) => 0,
            (true, 0) => MAX_SCORE,
            (true, max) => MAX_SCORE * (max + min - *score) / max,
        };
    }
}

pub fn hint(cycle: &Cycle, change: &Change) -> bool {
    let own = |other: &PodInfo| other.key.namespace == cycle.pod.key.namespace;
    match change {
        Change::PodPlaced(other) | Change::PodLeft { pod: other, .. } => own(other),
        Change::Node { what, .. } => {
            what & (super::fact::LABELS | super::fact::TAINTS | super::fact::ADDED) != 0
        }
        Change::Claim(..)
        | Change::Storage
        | Change::ResourceClaim { .. }
        | Change::Devices
        | Change::Namespace => false,
    }
}
