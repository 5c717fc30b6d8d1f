//! NodeResourcesFit and NodeResourcesBalancedAllocation: what is left on a node, and how well
//! the pod would use it.

use std::borrow::Cow;

use smallvec::SmallVec;

use super::extended_resources::is_delegated;
use super::{Change, Cycle, MAX_SCORE, Reason, Refusal, Relevance};
use crate::devices::extended::may_be_devices;
use crate::pod_info::PodInfo;
use crate::profile::ScoringStrategy;
use crate::resources::Resource;
use crate::snapshot::{NodeIndex, Snapshot};

pub fn filter(cycle: &Cycle, snapshot: &Snapshot, node: NodeIndex) -> Result<(), Refusal> {
    let (wanted, room) = (&cycle.pod.requests, snapshot.room(node));
    let (there, taken) = (&room.allocatable, &room.requested);
    let fit = room.pods < room.allocatable_pods
        && fits(wanted.milli_cpu, there.milli_cpu - taken.milli_cpu)
        && fits(wanted.memory, there.memory - taken.memory)
        && fits(wanted.ephemeral_storage, there.ephemeral_storage - taken.ephemeral_storage);
    if fit && wanted.extended.is_empty() { Ok(()) } else { look_closely(cycle, snapshot, node) }
}

fn fits(amount: i64, free: i64) -> bool {
    amount == 0 || amount <= free
}

/// The same with every resource and every reason.
#[cold]
fn look_closely(cycle: &Cycle, snapshot: &Snapshot, node: NodeIndex) -> Result<(), Refusal> {
    let (wanted, room) = (&cycle.pod.requests, snapshot.room(node));
    let mut reasons: SmallVec<[Reason; 1]> = SmallVec::new();
    let mut resolvable = true;
    if room.pods >= room.allocatable_pods {
        reasons.push(Cow::Borrowed("Too many pods"));
    }
    let mut look = |resource: Resource, amount: i64, reason: &dyn Fn() -> Reason| {
        let allocatable = snapshot.allocatable(node, resource);
        if !fits(amount, allocatable - snapshot.requested(node, resource)) {
            reasons.push(reason());
            // not even an empty node would do
            resolvable &= amount <= allocatable;
        }
    };
    look(Resource::Cpu, wanted.milli_cpu, &|| Cow::Borrowed("Insufficient cpu"));
    look(Resource::Memory, wanted.memory, &|| Cow::Borrowed("Insufficient memory"));
    look(Resource::EphemeralStorage, wanted.ephemeral_storage, &|| {
        Cow::Borrowed("Insufficient ephemeral-storage")
    });
    for (name, amount) in &wanted.extended {
        let is_ignored = cycle.profile.ignored_resources.iter().any(|ignored| ignores(ignored, name));
        // DynamicResources judges what a class stands for
        if !is_ignored && !is_delegated(cycle.cluster, snapshot, node, name) {
            look(Resource::Extended(name), *amount, &|| Cow::Owned(format!("Insufficient {name}")));
        }
    }
    if reasons.is_empty() { Ok(()) } else { Err(Refusal { reasons, resolvable }) }
}

/// A class that stands for an extended resource has others judge it.
pub fn hint(cycle: &Cycle, change: &Change) -> bool {
    let mut requested = cycle.pod.requests.extended.iter();
    matches!(change, Change::Devices)
        && requested.any(|(name, _)| may_be_devices(name) && cycle.cluster.device_class_of(name).is_some())
}

/// `ignoredResources` names a resource, `ignoredResourceGroups` what stands before its slash.
fn ignores(ignored: &str, name: &str) -> bool {
    ignored == name || name.split_once('/').is_some_and(|(group, _)| group == ignored)
}

pub fn score(cycle: &Cycle, snapshot: &Snapshot, nodes: &[NodeIndex], scores: &mut [i64]) -> Relevance {
    match &cycle.profile.scoring {
        ScoringStrategy::LeastAllocated(resources) => {
            weigh(cycle, snapshot, nodes, scores, resources, |requested, allocatable| {
                if requested > allocatable { 0 } else { (allocatable - requested) * MAX_SCORE / allocatable }
            });
        }
        ScoringStrategy::MostAllocated(resources) => {
            weigh(cycle, snapshot, nodes, scores, resources, |requested, allocatable| {
                requested.min(allocatable) * MAX_SCORE / allocatable
            });
        }
        ScoringStrategy::RequestedToCapacityRatio { resources, shape } => {
            weigh(cycle, snapshot, nodes, scores, resources, |requested, allocatable| {
                let utilization = if requested > allocatable { 100 } else { requested * 100 / allocatable };
                interpolate(shape, utilization)
            });
        }
    }
    Relevance::Judges
}

fn weigh(
    cycle: &Cycle,
    snapshot: &Snapshot,
    nodes: &[NodeIndex],
    scores: &mut [i64],
    resources: &[(String, i64)],
    score: impl Fn(i64, i64) -> i64,
) {
    let resources: SmallVec<[(Resource, i64); 4]> =
        resources.iter().map(|(name, weight)| (Resource::named(name), *weight)).collect();
    for (total, node) in scores.iter_mut().zip(nodes) {
        let (mut sum, mut weights) = (0, 0);
        for (resource, weight) in &resources {
            let (requested, allocatable) = counted_with_pod(cycle.pod, snapshot, *node, *resource);
            if allocatable != 0 {
                sum += score(requested, allocatable) * weight;
                weights += weight;
            }
        }
        *total = if weights == 0 { 0 } else { sum / weights };
    }
}

/// What would be in use with the pod on the node, and what there is. An extended resource that
/// the pod does not ask for does not count.
fn counted_with_pod(pod: &PodInfo, snapshot: &Snapshot, node: NodeIndex, resource: Resource) -> (i64, i64) {
    let room = snapshot.room(node);
    match resource {
        Resource::Cpu => (room.counted_cpu + pod.counted_cpu, room.allocatable.milli_cpu),
        Resource::Memory => (room.counted_memory + pod.counted_memory, room.allocatable.memory),
        resource => match pod.requests.get(resource) {
            0 if matches!(resource, Resource::Extended(_)) => (0, 0),
            wanted => (snapshot.requested(node, resource) + wanted, snapshot.allocatable(node, resource)),
        },
    }
}

/// A line through points of (utilization in percent, score), level beyond its ends.
fn interpolate(shape: &[(i64, i64)], utilization: i64) -> i64 {
    let mut before: Option<(i64, i64)> = None;
    for &(x, y) in shape {
        if utilization <= x {
            return match before {
                Some((left, low)) => low + (y - low) * (utilization - left) / (x - left),
                None => y,
            };
        }
        before = Some((x, y));
    }
    before.map_or(0, |(_, y)| y)
}

/// How much the pod would even out the use of a node's resources, around 75 when not at all. By
/// what pods really ask for, so a pod that asks for nothing has no say.
pub fn score_balance(
    cycle: &Cycle,
    snapshot: &Snapshot,
    nodes: &[NodeIndex],
    scores: &mut [i64],
) -> Relevance {
    let resources = cycle.profile.balanced_resources.iter().map(|name| {
        let resource = Resource::named(name);
        (resource, cycle.pod.requests.get(resource))
    });
    // an extended resource that the pod does not ask for does not count
    let counts =
        |(resource, wanted): &(Resource, i64)| !matches!(resource, Resource::Extended(_)) || *wanted != 0;
    let resources: SmallVec<[(Resource, i64); 4]> = resources.filter(counts).collect();
    if resources.iter().all(|(_, wanted)| *wanted == 0) {
        return Relevance::Skips;
    }
    // of what there is, with the pod and without
    let shares = |node: NodeIndex, (resource, wanted): &(Resource, i64)| {
        let allocatable = snapshot.allocatable(node, *resource);
        let used = snapshot.requested(node, *resource);
        let share = |amount: i64| (amount as f64 / allocatable as f64).min(1.0);
        (allocatable != 0).then(|| (share(used + wanted), share(used)))
    };
    for (score, &node) in scores.iter_mut().zip(nodes) {
        let gain = match &resources[..] {
            // as by default, and then without a list
            [one, two] => match (shares(node, one), shares(node, two)) {
                (Some(one), Some(two)) => evenness(&[one.0, two.0]) - evenness(&[one.1, two.1]),
                _ => 0,
            },
            all => {
                let all = all.iter().filter_map(|resource| shares(node, resource));
                let (with, without): (Vec<f64>, Vec<f64>) = all.unzip();
                evenness(&with) - evenness(&without)
            }
        };
        *score = MAX_SCORE / 2 + (MAX_SCORE / 2 + gain) / 2;
    }
    Relevance::Judges
}

/// 100 when all shares are equal; less by their standard deviation.
#[inline]
fn evenness(shares: &[f64]) -> i64 {
    let deviation = match shares {
        [] | [_] => 0.0,
        [a, b] => ((a - b) / 2.0).abs(),
        shares => {
            let mean = shares.iter().sum::<f64>() / shares.len() as f64;
            let variance = shares.iter().map(|share| (share - mean).powi(2)).sum::<f64>();
            (variance / shares.len() as f64).sqrt()
        }
    };
    ((1.0 - deviation) * MAX_SCORE as f64) as i64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shape_is_followed_between_its_points() {
        let shape = [(0, 0), (50, 100), (100, 20)];
        for (utilization, expected) in [(0, 0), (25, 50), (50, 100), (75, 60), (100, 20), (120, 20)] {
            assert_eq!(interpolate(&shape, utilization), expected, "{utilization}");
        }
        assert_eq!(interpolate(&[(10, 7)], 3), 7);
    }

    #[test]
    fn equal_shares_are_even() {
        assert_eq!(evenness(&[0.3, 0.3]), 100);
        assert_eq!(evenness(&[1.0, 0.0]), 50);
        assert_eq!(evenness(&[0.5]), 100);
    }
}
