//! DefaultPreemption: when no node fits, where could the pod run if others of lower priority
//! went, and who must go at the least? Tried on the snapshot itself and undone again.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use ferry_client::NamespacedName;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::core::{Selector, SelectorExt};

use super::{Cluster, Cycle, Refusal};
use crate::cycle::{Filters, FitError, moved, passes, passes_beside, summarize};
use crate::nominated::Nominated;
use crate::pod_info::PodInfo;
use crate::snapshot::{NodeIndex, Snapshot};

/// A node, and who has to leave it. Never empty: then the pod would have fitted.
#[derive(Clone, Debug)]
pub struct Candidate {
    pub node: NodeIndex,
    /// Most important first.
    pub victims: Vec<Arc<PodInfo>>,
    /// How many of them a disruption budget wants to keep.
    pub violations: usize,
}

/// The candidates, or upstream's words for why there are none. `from` is where to begin.
pub fn find(
    cycle: &mut Cycle,
    snapshot: &mut Snapshot,
    filters: &Filters,
    nominated: &Nominated,
    error: &FitError,
    from: usize,
) -> Result<Vec<Candidate>, String> {
    if let Some(reason) = ineligible(cycle.pod, snapshot, nominated) {
        return Err(format!("preemption: {reason}"));
    }
    let hopeful: Vec<NodeIndex> =
        error.refused.iter().filter(|(_, _, refusal)| refusal.resolvable).map(|(node, _, _)| *node).collect();
    let profile = cycle.profile;
    let wanted = (hopeful.len() * profile.min_candidate_nodes_percentage / 100)
        .max(profile.min_candidate_nodes_absolute)
        .min(hopeful.len());
    let mut budgets = Budgets { cluster: cycle.cluster, by_namespace: BTreeMap::new() };
    let mut candidates: Vec<Candidate> = Vec::new();
    let mut harmless = 0;
    let mut refusals: Vec<Refusal> = Vec::new();
    for offset in 0..hopeful.len() {
        let node = hopeful[(from + offset) % hopeful.len()];
        match victims_on(cycle, snapshot, filters, nominated, &mut budgets, node) {
            Ok(candidate) => {
                harmless += usize::from(candidate.violations == 0);
                candidates.push(candidate);
            }
            Err(refusal) => refusals.push(refusal),
        }
        if harmless > 0 && candidates.len() >= wanted {
            break;
        }
    }
    if candidates.is_empty() {
        let rest = error.nodes - refusals.len();
        let rest = (rest > 0).then_some(("Preemption is not helpful for scheduling".into(), rest));
        return Err(format!("preemption: {}", summarize(error.nodes, refusals.iter(), rest)));
    }
    Ok(candidates)
}

/// The candidate that costs the least.
pub fn best(candidates: Vec<Candidate>) -> Option<Candidate> {
    candidates.into_iter().min_by_key(cost)
}

fn ineligible(pod: &PodInfo, snapshot: &Snapshot, nominated: &Nominated) -> Option<&'static str> {
    if pod.spec().preemption_policy.as_deref() == Some("Never") {
        return Some("not eligible due to preemptionPolicy=Never.");
    }
    let node = nominated.node_of(&pod.key).or(pod.nominated_node()).and_then(|name| snapshot.find(name))?;
    // room is already being made for it there
    let leaving = snapshot.pods(node).iter().any(|o| o.is_terminating() && o.priority < pod.priority);
    leaving.then_some("not eligible due to a terminating pod on the nominated node.")
}

fn victims_on(
    cycle: &mut Cycle,
    snapshot: &mut Snapshot,
    filters: &Filters,
    nominated: &Nominated,
    budgets: &mut Budgets,
    node: NodeIndex,
) -> Result<Candidate, Refusal> {
    let lower = |pod: &&Arc<PodInfo>| pod.priority < cycle.pod.priority;
    let mut lesser: Vec<Arc<PodInfo>> = snapshot.pods(node).iter().filter(lower).cloned().collect();
    if lesser.is_empty() {
        return Err(Refusal::unresolvable("No preemption victims found for incoming pod"));
    }
    lesser.sort_unstable_by(|one, other| importance(one).cmp(&importance(other)));
    let promised = nominated.before(cycle.pod, snapshot, node);
    let mut trial = Trial { cycle, snapshot, filters, node, promised };
    lesser.iter().for_each(|pod| trial.take(pod));
    let mut victims = Vec::new();
    let mut violations = 0;
    let verdict = trial.fits();
    if verdict.is_ok() {
        // spare whom we can: first those a budget protects, then the more important
        let (protected, others) = budgets.protect(&lesser);
        for (pod, is_protected) in
            protected.into_iter().map(|pod| (pod, true)).chain(others.into_iter().map(|pod| (pod, false)))
        {
            trial.give_back(&pod);
            if trial.fits().is_err() {
                trial.take(&pod);
                violations += usize::from(is_protected);
                victims.push(pod);
            }
        }
    }
    let gone: &[Arc<PodInfo>] = if verdict.is_ok() { &victims } else { &lesser };
    gone.iter().for_each(|pod| trial.give_back(pod));
    verdict?;
    victims.sort_unstable_by(|one, other| importance(one).cmp(&importance(other)));
    Ok(Candidate { node, victims, violations })
}

/// The snapshot while pods are taken from a node and given back.
struct Trial<'t, 'c> {
    cycle: &'t mut Cycle<'c>,
    snapshot: &'t mut Snapshot,
    filters: &'t Filters,
    node: NodeIndex,
    promised: Vec<Arc<PodInfo>>,
}

impl Trial<'_, '_> {
    fn take(&mut self, pod: &Arc<PodInfo>) {
        self.snapshot.vacate(pod, self.node);
        moved(self.cycle, self.snapshot, self.filters, pod, self.node, -1);
    }

    fn give_back(&mut self, pod: &Arc<PodInfo>) {
        self.snapshot.occupy(pod, self.node);
        moved(self.cycle, self.snapshot, self.filters, pod, self.node, 1);
    }

    fn fits(&mut self) -> Result<(), Refusal> {
        passes(self.cycle, self.snapshot, self.filters, self.node).map_err(|(_, refusal)| refusal)?;
        passes_beside(self.cycle, self.snapshot, self.filters, self.node, &self.promised)
            .map_err(|(_, refusal)| refusal)
    }
}

/// Sorts the more important first: by priority, then by who has run longest.
fn importance(pod: &PodInfo) -> (Reverse<i32>, jiff::Timestamp, &NamespacedName) {
    (Reverse(pod.priority), started(pod), &pod.key)
}

fn started(pod: &PodInfo) -> jiff::Timestamp {
    let status = pod.pod.status.as_ref();
    status.and_then(|status| status.start_time.as_ref()).map_or(jiff::Timestamp::MAX, |time| time.0)
}

/// Less is better: budgets broken, the highest priority lost, the sum of priorities, the number
/// of victims; then the node whose most important victim started last.
fn cost(candidate: &Candidate) -> (usize, i32, i64, usize, Reverse<jiff::Timestamp>) {
    let victims = &candidate.victims;
    let highest = victims.first().map_or(i32::MIN, |pod| pod.priority);
    // lifted above zero, so that fewer victims of negative priority are still fewer
    let sum = victims.iter().map(|pod| i64::from(pod.priority) + i64::from(i32::MAX) + 1).sum();
    let earliest = victims.iter().filter(|pod| pod.priority == highest).map(|pod| started(pod)).min();
    (candidate.violations, highest, sum, victims.len(), Reverse(earliest.unwrap_or(jiff::Timestamp::MAX)))
}

/// Disruption budgets, read when the first node with pods of their namespace is tried.
struct Budgets<'c> {
    cluster: &'c dyn Cluster,
    by_namespace: BTreeMap<String, Vec<Budget>>,
}

struct Budget {
    selector: Selector,
    allowed: i32,
    budget: Arc<PodDisruptionBudget>,
}

impl Budget {
    fn new(budget: Arc<PodDisruptionBudget>) -> Option<Self> {
        let selector = Selector::try_from(budget.spec.as_ref()?.selector.clone()?).ok()?;
        let allowed = budget.status.as_ref().and_then(|status| status.disruptions_allowed).unwrap_or(0);
        (!selector.selects_all()).then_some(Budget { selector, allowed, budget })
    }

    /// Whether it pays for the pod. One whose end it has already paid for costs nothing more.
    fn covers(&self, pod: &PodInfo) -> bool {
        let disrupted = self.budget.status.as_ref().and_then(|status| status.disrupted_pods.as_ref());
        let paid = disrupted.is_some_and(|pods| pods.contains_key(&pod.key.name));
        !paid && !pod.labels().is_empty() && self.selector.matches(pod.labels())
    }
}

impl Budgets<'_> {
    /// Who would break a budget by leaving, and who would not, if all left in this order.
    fn protect(&mut self, pods: &[Arc<PodInfo>]) -> (Vec<Arc<PodInfo>>, Vec<Arc<PodInfo>>) {
        let mut spent: BTreeMap<(&str, usize), i32> = BTreeMap::new();
        let (mut protected, mut others) = (Vec::new(), Vec::new());
        for pod in pods {
            let mut violates = false;
            for (at, budget) in self.of(&pod.key.namespace).iter().enumerate() {
                if budget.covers(pod) {
                    let spent = spent.entry((&pod.key.namespace, at)).or_default();
                    *spent += 1;
                    violates |= *spent > budget.allowed;
                }
            }
            if violates { protected.push(pod.clone()) } else { others.push(pod.clone()) }
        }
        (protected, others)
    }

    fn of(&mut self, namespace: &str) -> &[Budget] {
        if !self.by_namespace.contains_key(namespace) {
            let budgets = self.cluster.budgets(namespace).into_iter().filter_map(Budget::new).collect();
            self.by_namespace.insert(namespace.to_owned(), budgets);
        }
        &self.by_namespace[namespace]
    }
}
