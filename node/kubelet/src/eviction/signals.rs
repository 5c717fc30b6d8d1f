//! What is watched, and when it is too little.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use tokio::time::Instant;

use super::rank::Starved;
use crate::config::Config;
use crate::context::Context;
use crate::node::capacity::threshold_amount;
use crate::node::machine;
use ferry_linux::cgroup;
use ferry_linux::disk;

/// What there is of something, and what is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Observation {
    pub available: i64,
    pub capacity: i64,
}

pub type Observations = BTreeMap<&'static str, Observation>;

pub const SIGNALS: [(&str, Starved); 7] = [
    ("memory.available", Starved::Memory),
    (OF_PODS, Starved::Memory),
    ("nodefs.available", Starved::Disk),
    ("nodefs.inodesFree", Starved::Disk),
    ("imagefs.available", Starved::Disk),
    ("imagefs.inodesFree", Starved::Disk),
    ("pid.available", Starved::Pids),
];

/// What is left to pods of the memory they may take together. Its threshold is
/// the hard one of the node's memory: what is reserved is not for pods.
const OF_PODS: &str = "allocatableMemory.available";

/// A threshold that is met.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThresholdMet {
    pub signal: &'static str,
    pub starved: Starved,
    pub observed: Observation,
    pub threshold: String,
    /// Soft thresholds let pods end by themselves.
    pub is_hard: bool,
}

/// Reads every signal this machine has.
pub async fn observe(context: &Context) -> Observations {
    let mut observations = Observations::new();
    let number = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
    if let Some(usage) =
        context.cgroups.hierarchy().and_then(|hierarchy| hierarchy.usage(&cgroup::Path::new("/")).ok())
    {
        let available = context.machine_memory - number(usage.working_set_bytes);
        observations.insert("memory.available", Observation { available, capacity: context.machine_memory });
    }
    if let Some(usage) =
        context.cgroups.hierarchy().and_then(|hierarchy| hierarchy.usage(&context.cgroups.pods()).ok())
    {
        let capacity = context.memory_of_pods;
        let available = capacity - number(usage.working_set_bytes);
        observations.insert(OF_PODS, Observation { available, capacity });
    }
    let mut put = |prefix: [&'static str; 2], path: &Path| {
        if let Ok(space) = disk::space(path) {
            let bytes = Observation {
                available: number(space.available_bytes),
                capacity: number(space.capacity_bytes),
            };
            observations.insert(prefix[0], bytes);
            let inodes = Observation { available: number(space.inodes_free), capacity: number(space.inodes) };
            // some file systems have no fixed number of inodes
            if inodes.capacity > 0 {
                observations.insert(prefix[1], inodes);
            }
        }
    };
    put(["nodefs.available", "nodefs.inodesFree"], &context.config.root_dir);
    if let Ok(info) = context.runtime.image_fs_info().await
        && let Some(path) =
            info.image_filesystems.into_iter().next().and_then(|each| each.fs_id).map(|id| id.mountpoint)
    {
        put(["imagefs.available", "imagefs.inodesFree"], Path::new(&path));
    }
    if let Some((running, max)) = machine::process_ids() {
        let observation =
            Observation { available: number(max.saturating_sub(running)), capacity: number(max) };
        observations.insert("pid.available", observation);
    }
    observations
}

/// Tracks which thresholds are met, and since when the soft ones are.
#[derive(Debug, Default)]
pub struct ThresholdTracker {
    since: BTreeMap<&'static str, Instant>,
    acted_on: BTreeSet<&'static str>,
}

impl ThresholdTracker {
    /// The thresholds that are crossed, soft ones for long enough.
    pub fn crossed(
        &mut self,
        config: &Config,
        observations: &Observations,
        now: Instant,
    ) -> Vec<ThresholdMet> {
        let mut crossed = Vec::new();
        for (signal, starved) in SIGNALS {
            let Some(observed) = observations.get(signal).copied() else { continue };
            // once too little, it is enough again only with something to spare
            let reclaim =
                config.eviction_minimum_reclaim.get(signal).filter(|_| self.acted_on.contains(signal));
            let spare = reclaim.map_or(0, |reclaim| threshold_amount(reclaim, observed.capacity));
            let is_below = |threshold: &String| {
                observed.available < threshold_amount(threshold, observed.capacity) + spare
            };
            let found = |threshold: &String, is_hard| ThresholdMet {
                signal,
                starved,
                observed,
                threshold: threshold.clone(),
                is_hard,
            };
            let hard = if signal == OF_PODS { "memory.available" } else { signal };
            if let Some(threshold) = config.eviction_hard.get(hard).filter(|threshold| is_below(threshold)) {
                crossed.push(found(threshold, true));
            }
            match config.eviction_soft.get(signal).filter(|threshold| is_below(threshold)) {
                None => {
                    self.since.remove(signal);
                }
                Some(threshold) => {
                    let since = *self.since.entry(signal).or_insert(now);
                    let grace =
                        config.eviction_soft_grace_period.get(signal).copied().unwrap_or(Duration::ZERO);
                    if now.duration_since(since) >= grace {
                        crossed.push(found(threshold, false));
                    }
                }
            }
        }
        self.acted_on = crossed.iter().map(|each| each.signal).collect();
        crossed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hard_thresholds_act_at_once_and_soft_ones_after_their_grace() {
        let mut config = Config::new("n");
        config.eviction_hard = BTreeMap::from([
            ("memory.available".into(), "100Mi".into()),
            ("nodefs.available".into(), "10%".into()),
        ]);
        config.eviction_minimum_reclaim = BTreeMap::from([("nodefs.available".into(), "5%".into())]);
        config.eviction_soft = BTreeMap::from([("memory.available".into(), "300Mi".into())]);
        config.eviction_soft_grace_period =
            BTreeMap::from([("memory.available".into(), Duration::from_secs(60))]);
        let memory = |mib: i64| {
            Observations::from([(
                "memory.available",
                Observation { available: mib << 20, capacity: 1 << 30 },
            )])
        };
        let mut patience = ThresholdTracker::default();
        let start = Instant::now();
        let mut check = |observations: &Observations, seconds: u64, expected: &[bool]| {
            let crossed = patience.crossed(&config, observations, start + Duration::from_secs(seconds));
            assert_eq!(crossed.iter().map(|each| each.is_hard).collect::<Vec<_>>(), expected);
        };
        check(&memory(500), 0, &[]);
        check(&memory(200), 1, &[]);
        check(&memory(200), 61, &[false]);
        check(&memory(50), 62, &[true, false]);
        check(&memory(500), 63, &[]);
        check(&memory(200), 64, &[]);
        let disk =
            |available| Observations::from([("nodefs.available", Observation { available, capacity: 100 })]);
        check(&disk(9), 65, &[true]);
        check(&disk(12), 66, &[true]);
        check(&disk(16), 67, &[]);
        check(&disk(12), 68, &[]);
        let of_pods = Observations::from([(OF_PODS, Observation { available: 1, capacity: 1 << 30 })]);
        check(&of_pods, 69, &[true]);
    }
}
