//! The search for a node for one pod: prepare → filter → score → select. Nothing here waits or writes.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Instant;

use smallvec::SmallVec;

use crate::metrics;
use crate::nominated::Nominated;
use crate::plugins::{Cycle, Plugin, Reason, Refusal, Relevance};
use crate::pod_info::PodInfo;
use crate::snapshot::{NodeIndex, Snapshot};

/// Why no node took the pod.
#[derive(Clone, Debug, Default)]
pub struct FitError {
    pub nodes: usize,
    /// A plugin refused the pod before any node was looked at.
    pub refused_at_once: Option<(&'static str, Refusal)>,
    pub refused: Vec<(NodeIndex, &'static str, Refusal)>,
    /// Nodes not looked at since a plugin named the only possible ones.
    pub excluded: usize,
    /// What preemption had to say.
    pub preemption: String,
}

impl FitError {
    /// The plugins whose verdict has to change.
    pub fn plugins(&self) -> Vec<&'static str> {
        let mut names: Vec<&'static str> = Vec::new();
        let excluded = (self.excluded > 0).then_some("NodeAffinity");
        let at_once = self.refused_at_once.as_ref().map(|(plugin, _)| *plugin);
        // thousands of nodes, refused by a handful of plugins
        for name in self.refused.iter().map(|(_, plugin, _)| *plugin).chain(at_once).chain(excluded) {
            if !names.contains(&name) {
                names.push(name);
            }
        }
        names.sort_unstable();
        names
    }

    pub fn summary(&self) -> String {
        let reasons = self.refused.iter().map(|(_, _, refusal)| refusal);
        let mut summary = match &self.refused_at_once {
            Some((_, refusal)) => {
                format!("0/{} nodes are available: {}.", self.nodes, refusal.reasons.join(", "))
            }
            None => {
                let excluded = "node(s) didn't satisfy plugin(s) [NodeAffinity]";
                let excluded = (self.excluded > 0).then_some((Cow::Borrowed(excluded), self.excluded));
                summarize(self.nodes, reasons, excluded)
            }
        };
        if !self.preemption.is_empty() {
            summary.push(' ');
            summary.push_str(&self.preemption);
        }
        summary
    }
}

/// `0/3 nodes are available: 1 Insufficient cpu, 2 node(s) were unschedulable.`
pub fn summarize<'r>(
    nodes: usize,
    refusals: impl Iterator<Item = &'r Refusal>,
    more: Option<(Reason, usize)>,
) -> String {
    // few reasons for thousands of nodes: a short list is sooner looked through than a tree
    let mut histogram: Vec<(Reason, usize)> = Vec::new();
    let mut count = |reason: &Reason, by: usize| match histogram.iter_mut().find(|(own, _)| own == reason) {
        Some((_, count)) => *count += by,
        None => histogram.push((reason.clone(), by)),
    };
    refusals.flat_map(|refusal| &refusal.reasons).for_each(|reason| count(reason, 1));
    if let Some((reason, by)) = &more {
        count(reason, *by);
    }
    // sorted as text, numbers too: that is how users know it
    let mut parts: Vec<String> =
        histogram.iter().map(|(reason, count)| format!("{count} {reason}")).collect();
    parts.sort();
    let mut summary = format!("0/{nodes} nodes are available:");
    if !parts.is_empty() {
        summary.push_str(&format!(" {}.", parts.join(", ")));
    }
    summary
}

/// What outlives a single search: where to begin, and memory to work in.
pub struct Search {
    start: usize,
    random: u64,
    scores: Vec<i64>,
    column: Vec<i64>,
}

/// The result of filtering.
pub struct FeasibleNodes {
    /// Nodes that fit; none if the pod cannot be placed.
    pub nodes: Vec<NodeIndex>,
    pub filters: Filters,
    /// The other examined nodes, and the reasons.
    pub refused: FitError,
}

/// The plugins whose filters apply to a pod.
pub type Filters = SmallVec<[&'static Plugin; 16]>;

impl Search {
    /// `seed` decides between equals.
    pub fn new(seed: u64) -> Self {
        Search { start: 0, random: seed | 1, scores: Vec::new(), column: Vec::new() }
    }

    /// Looks for nodes that fit, at most as many as are worth comparing.
    pub fn feasible(
        &mut self,
        cycle: &mut Cycle,
        snapshot: &mut Snapshot,
        nominated: &Nominated,
    ) -> FeasibleNodes {
        snapshot.refresh_node_order();
        let mut error = FitError { nodes: snapshot.len(), ..FitError::default() };
        let began = Instant::now();
        let prepared = prepare(cycle, snapshot);
        let status = if prepared.is_ok() { "Success" } else { "Unschedulable" };
        metrics::ran("PreFilter", cycle.profile.name, status, began.elapsed());
        let filters = match prepared {
            Ok(filters) => filters,
            Err((plugin, refusal)) => {
                error.refused_at_once = Some((plugin.name, refusal));
                return FeasibleNodes { nodes: Vec::new(), filters: Filters::new(), refused: error };
            }
        };
        // Preemption made room on the nominated node: use it while the pod fits there.
        if let Some(node) = promised_node(cycle.pod, snapshot, nominated)
            && fits(cycle, snapshot, &filters, nominated, node).is_ok()
        {
            return FeasibleNodes { nodes: vec![node], filters, refused: error };
        }
        let began = Instant::now();
        let only = cycle.state.only.take();
        let nodes: &[NodeIndex] = only.as_deref().unwrap_or(snapshot.order());
        error.excluded = snapshot.len() - nodes.len();
        let enough = worth_comparing(nodes.len(), cycle.profile.percentage_of_nodes_to_score);
        let begin = if nodes.is_empty() { 0 } else { self.start % nodes.len() };
        let (mut found, seen) =
            search(cycle, snapshot, &filters, (&nodes[begin..], &nodes[..begin]), enough, &mut error);
        if only.is_none() {
            self.start = begin + seen;
        }
        if !nominated.is_empty() && !found.is_empty() {
            found.retain(|&node| {
                let promised = nominated.before(cycle.pod, snapshot, node);
                match passes_beside(cycle, snapshot, &filters, node, &promised) {
                    Ok(()) => true,
                    Err((plugin, refusal)) => {
                        error.refused.push((node, plugin.name, refusal));
                        false
                    }
                }
            });
        }
        let status = if found.is_empty() { "Unschedulable" } else { "Success" };
        metrics::ran("Filter", cycle.profile.name, status, began.elapsed());
        FeasibleNodes { nodes: found, filters, refused: error }
    }

    /// The best of the nodes; among equals a random one. `extra` adds to the plugins' scores.
    pub fn pick(
        &mut self,
        cycle: &Cycle,
        snapshot: &Snapshot,
        nodes: &[NodeIndex],
        extra: Option<&[i64]>,
    ) -> NodeIndex {
        if let [only] = nodes {
            return *only;
        }
        let began = Instant::now();
        for column in [&mut self.scores, &mut self.column] {
            column.clear();
            column.resize(nodes.len(), 0);
        }
        for (plugin, weight) in &cycle.profile.scores {
            let Some(score) = plugin.score else { continue };
            if score(cycle, snapshot, nodes, &mut self.column) == Relevance::Skips {
                continue;
            }
            for (total, score) in self.scores.iter_mut().zip(&mut self.column) {
                *total += weight * std::mem::take(score);
            }
        }
        for (total, extra) in self.scores.iter_mut().zip(extra.into_iter().flatten()) {
            *total += extra;
        }
        metrics::ran("Score", cycle.profile.name, "Success", began.elapsed());
        let best = self.scores.iter().copied().max().unwrap_or(0);
        let equals = self.scores.iter().filter(|score| **score == best).count();
        let drawn = self.random() as usize % equals.max(1);
        let mut best = self.scores.iter().zip(nodes).filter(|(score, _)| **score == best);
        *best.nth(drawn).expect("as many as were counted").1
    }

    /// The nodes of the last pick with the highest scores, the best first and of equals the first.
    pub fn best(&self, nodes: &[NodeIndex], count: usize) -> SmallVec<[(i64, NodeIndex); 8]> {
        let mut best: SmallVec<[(i64, NodeIndex); 8]> = SmallVec::new();
        let mut bar = i64::MIN;
        for (&score, &node) in self.scores.iter().zip(nodes) {
            if best.len() == count {
                if score <= bar {
                    continue;
                }
                best.pop();
            }
            let at = best.partition_point(|(better, _)| *better >= score);
            best.insert(at, (score, node));
            bar = best.last().map_or(bar, |(least, _)| *least);
        }
        best
    }

    /// xorshift: good enough to be fair, and repeatable.
    pub fn random(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }
}

/// Filters the nodes, in the order of both parts, until `enough` fit. Returns those that fit and the number examined.
fn search(
    cycle: &Cycle,
    snapshot: &Snapshot,
    filters: &Filters,
    (first, second): (&[NodeIndex], &[NodeIndex]),
    enough: usize,
    error: &mut FitError,
) -> (Vec<NodeIndex>, usize) {
    let mut found = Vec::with_capacity(enough.min(first.len() + second.len()));
    let mut seen = 0;
    for &node in first.iter().chain(second) {
        seen += 1;
        match passes(cycle, snapshot, filters, node) {
            Ok(()) => found.push(node),
            Err((plugin, refusal)) => error.refused.push((node, plugin.name, refusal)),
        }
        if found.len() == enough {
            break;
        }
    }
    (found, seen)
}

fn prepare(cycle: &mut Cycle, snapshot: &Snapshot) -> Result<Filters, (&'static Plugin, Refusal)> {
    let mut filters = Filters::new();
    for plugin in &cycle.profile.filters {
        let relevance = match plugin.prepare {
            Some(prepare) => prepare(cycle, snapshot).map_err(|refusal| (*plugin, refusal))?,
            None => Relevance::Judges,
        };
        if relevance == Relevance::Judges {
            filters.push(plugin);
        }
    }
    Ok(filters)
}

fn promised_node(pod: &PodInfo, snapshot: &Snapshot, nominated: &Nominated) -> Option<NodeIndex> {
    snapshot.find(nominated.node_of(&pod.key).or(pod.nominated_node())?)
}

/// Whether the pod fits now, and also beside those to whom the node was promised.
pub fn fits(
    cycle: &mut Cycle,
    snapshot: &mut Snapshot,
    filters: &Filters,
    nominated: &Nominated,
    node: NodeIndex,
) -> Result<(), (&'static Plugin, Refusal)> {
    passes(cycle, snapshot, filters, node)?;
    let promised = nominated.before(cycle.pod, snapshot, node);
    passes_beside(cycle, snapshot, filters, node, &promised)
}

pub fn passes(
    cycle: &Cycle,
    snapshot: &Snapshot,
    filters: &Filters,
    node: NodeIndex,
) -> Result<(), (&'static Plugin, Refusal)> {
    for plugin in filters {
        if let Some(filter) = plugin.filter {
            filter(cycle, snapshot, node).map_err(|refusal| (*plugin, refusal))?;
        }
    }
    Ok(())
}

/// Whether the pod also fits beside pods that were promised the node. Tried with them and, by
/// the caller, without: they may not come, and an affinity to them must not count yet.
pub fn passes_beside(
    cycle: &mut Cycle,
    snapshot: &mut Snapshot,
    filters: &Filters,
    node: NodeIndex,
    promised: &[Arc<PodInfo>],
) -> Result<(), (&'static Plugin, Refusal)> {
    if promised.is_empty() {
        return Ok(());
    }
    for other in promised {
        snapshot.occupy(other, node);
        moved(cycle, snapshot, filters, other, node, 1);
    }
    let verdict = passes(cycle, snapshot, filters, node);
    for other in promised {
        snapshot.vacate(other, node);
        moved(cycle, snapshot, filters, other, node, -1);
    }
    verdict
}

/// Tells the plugins of the cycle that a pod came or went.
pub fn moved(
    cycle: &mut Cycle,
    snapshot: &Snapshot,
    filters: &Filters,
    pod: &PodInfo,
    node: NodeIndex,
    sign: i64,
) {
    for plugin in filters {
        if let Some(moved) = plugin.moved {
            moved(cycle, snapshot, pod, node, sign);
        }
    }
}

/// In large clusters a good node among some is found sooner than the best of all.
fn worth_comparing(nodes: usize, percentage: Option<u32>) -> usize {
    const AT_LEAST: usize = 100;
    if nodes < AT_LEAST {
        return nodes.max(1);
    }
    let percentage = match percentage {
        Some(percentage) if percentage > 0 => (percentage as usize).min(100),
        _ => 50usize.saturating_sub(nodes / 125).max(5),
    };
    (nodes * percentage / 100).max(AT_LEAST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_scores_come_first_and_of_equals_the_first() {
        let nodes: Vec<NodeIndex> = (0..6).map(NodeIndex).collect();
        let search = Search { scores: vec![3, 9, 9, 1, 9, 4], ..Search::new(1) };
        let best = |count| search.best(&nodes, count).iter().map(|(score, node)| (*score, node.0)).collect();
        let check = |count, expected: &[(i64, u32)]| {
            let best: Vec<(i64, u32)> = best(count);
            assert_eq!(best, expected);
        };
        check(2, &[(9, 1), (9, 2)]);
        check(4, &[(9, 1), (9, 2), (9, 4), (4, 5)]);
        check(8, &[(9, 1), (9, 2), (9, 4), (4, 5), (3, 0), (1, 3)]);
    }

    #[test]
    fn the_summary_counts_reasons_in_upstreams_words() {
        let refused = |reason| Refusal::resolvable(reason);
        let refusals = [
            refused("Insufficient cpu"),
            refused("node(s) had untolerated taint(s)"),
            refused("node(s) had untolerated taint(s)"),
        ];
        assert_eq!(
            summarize(3, refusals.iter(), None),
            "0/3 nodes are available: 1 Insufficient cpu, 2 node(s) had untolerated taint(s)."
        );
        assert_eq!(summarize(0, [].iter(), None), "0/0 nodes are available:");
    }

    #[test]
    fn the_more_nodes_the_smaller_the_share_looked_at() {
        for (nodes, percentage, expected) in [
            (1, None, 1),
            (99, None, 99),
            (100, None, 100),
            (1000, None, 420),
            (5000, None, 500),
            (15_000, None, 750),
            (5000, Some(100), 5000),
            (5000, Some(1), 100),
        ] {
            assert_eq!(worth_comparing(nodes, percentage), expected, "{nodes} {percentage:?}");
        }
    }
}
