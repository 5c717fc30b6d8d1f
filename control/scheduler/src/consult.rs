//! Asks the extenders about one pod: after the plugins' search, before the pick, and before
//! victims are told to go. Without extenders none of this waits for anything.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Node;

use crate::cycle::FitError;
use crate::extender::{EXTENDER, Extender, ExtenderError, Filtered, Victims};
use crate::plugins::Refusal;
use crate::plugins::default_preemption::Candidate;
use crate::pod_info::PodInfo;
use crate::snapshot::{NodeIndex, Snapshot};

/// The nodes that every extender passes; what the others were refused for goes into `refused`.
pub async fn filter(
    extenders: &[Arc<Extender>],
    pod: &PodInfo,
    snapshot: &Snapshot,
    mut nodes: Vec<NodeIndex>,
    refused: &mut FitError,
) -> Result<Vec<NodeIndex>, ExtenderError> {
    for extender in extenders.iter().filter(|extender| extender.filters() && extender.is_interested(pod)) {
        if nodes.is_empty() {
            break;
        }
        match extender.filter(&pod.pod, &objects(snapshot, &nodes)).await {
            Ok(filtered) => nodes = judge(&filtered, snapshot, &nodes, refused),
            Err(error) if extender.is_ignorable() => {
                tracing::warn!(%error, "extender failed and is ignorable; skipping it")
            }
            Err(error) => return Err(error),
        }
    }
    Ok(nodes)
}

/// Splits the nodes by an extender's answer.
fn judge(
    filtered: &Filtered,
    snapshot: &Snapshot,
    nodes: &[NodeIndex],
    refused: &mut FitError,
) -> Vec<NodeIndex> {
    let mut passed = Vec::new();
    for &node in nodes {
        let name = &**snapshot.name(node);
        let refusal = match (filtered.failed_for_good.get(name), filtered.failed.get(name)) {
            (Some(reason), _) => Refusal::unresolvable(reason.clone()),
            (None, Some(reason)) => Refusal { resolvable: true, ..Refusal::unresolvable(reason.clone()) },
            (None, None) if filtered.passed.iter().any(|own| own == name) => {
                passed.push(node);
                continue;
            }
            // left out without a word
            (None, None) => {
                Refusal { resolvable: true, ..Refusal::unresolvable("node(s) didn't pass an extender") }
            }
        };
        refused.refused.push((node, EXTENDER, refusal));
    }
    passed
}

/// What the extenders add to the plugins' scores. One that fails has no say.
pub async fn scores(
    extenders: &[Arc<Extender>],
    pod: &PodInfo,
    snapshot: &Snapshot,
    nodes: &[NodeIndex],
) -> Option<Vec<i64>> {
    let mut sums: Option<Vec<i64>> = None;
    for extender in extenders.iter().filter(|own| own.prioritizes() && own.is_interested(pod)) {
        match extender.prioritize(&pod.pod, &objects(snapshot, nodes)).await {
            Ok(scores) => {
                let sums = sums.get_or_insert_with(|| vec![0; nodes.len()]);
                for (sum, &node) in sums.iter_mut().zip(nodes) {
                    *sum += scores.get(&**snapshot.name(node)).copied().unwrap_or(0);
                }
            }
            Err(error) => tracing::debug!(%error, "extender failed to score; ignoring its scores"),
        }
    }
    sums
}

/// The candidates for preemption that every extender agrees with.
pub async fn preempt(
    extenders: &[Arc<Extender>],
    pod: &PodInfo,
    snapshot: &Snapshot,
    mut candidates: Vec<Candidate>,
) -> Result<Vec<Candidate>, ExtenderError> {
    for extender in extenders.iter().filter(|own| own.preempts() && own.is_interested(pod)) {
        if candidates.is_empty() {
            break;
        }
        let offered: Vec<_> = candidates
            .iter()
            .map(|own| (&**snapshot.name(own.node), own.victims.as_slice(), own.violations))
            .collect();
        match extender.preempt(&pod.pod, &offered).await {
            Ok(remaining) => {
                candidates.retain_mut(|candidate| {
                    let answer = remaining.get(&**snapshot.name(candidate.node));
                    answer.is_some_and(|victims| restrict(candidate, victims, snapshot))
                });
            }
            Err(error) if extender.is_ignorable() => {
                tracing::warn!(%error, "extender failed and is ignorable; skipping it")
            }
            Err(error) => return Err(error),
        }
    }
    Ok(candidates)
}

/// Takes over the victims an extender chose; false if it names a pod that is not on the node.
fn restrict(candidate: &mut Candidate, victims: &Victims, snapshot: &Snapshot) -> bool {
    let pods = snapshot.pods(candidate.node);
    let chosen = victims.uids.iter().map(|uid| pods.iter().find(|pod| pod.uid == *uid).cloned());
    let Some(chosen) = chosen.collect::<Option<Vec<_>>>() else { return false };
    candidate.victims = chosen;
    candidate.violations = victims.violations;
    !candidate.victims.is_empty()
}

fn objects<'s>(snapshot: &'s Snapshot, nodes: &[NodeIndex]) -> Vec<&'s Node> {
    nodes.iter().filter_map(|node| snapshot.node(*node)).map(|node| &**node).collect()
}
