//! Whole CPUs for those who ask for whole CPUs.
//!
//! Under the static policy a container of a guaranteed pod that asks for an
//! integer number of CPUs gets them for itself; everyone else shares the
//! rest. Assignments are kept in the file upstream keeps them in, so that a
//! restarted kubelet takes nothing away.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::PathBuf;

use k8s_openapi::api::core::v1::{Container, Pod};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use crate::config::CpuManagerPolicy;
use crate::pod;
use crate::resources::{QosClass, Side, container_amounts, qos_class};

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("not enough cpus available to satisfy request: requested={requested}, available={available}")]
    NotEnough { requested: usize, available: usize },
    #[error("writing the CPU assignments: {0}")]
    Write(#[source] io::Error),
    #[error("CPU list {0:?} is not a list like 0-1,4")]
    List(String),
}

pub type CpuSet = BTreeSet<u32>;

pub struct CpuManager {
    policy: CpuManagerPolicy,
    file: PathBuf,
    state: Mutex<State>,
    changed: watch::Sender<()>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct State {
    /// CPUs nobody has for itself.
    shared: CpuSet,
    /// Never given away.
    reserved: CpuSet,
    /// By pod uid and container name.
    assigned: BTreeMap<String, BTreeMap<String, CpuSet>>,
}

/// The file's form.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Saved {
    policy_name: String,
    default_cpu_set: String,
    #[serde(default)]
    entries: BTreeMap<String, BTreeMap<String, String>>,
}

impl CpuManager {
    /// Takes up the assignments a former kubelet left.
    pub fn new(policy: CpuManagerPolicy, file: PathBuf, online: CpuSet, reserved: CpuSet) -> Self {
        let mut state = State { shared: online, reserved, assigned: BTreeMap::new() };
        if policy == CpuManagerPolicy::Static
            && let Some(saved) =
                std::fs::read_to_string(&file).ok().and_then(|text| serde_json::from_str::<Saved>(&text).ok())
        {
            for (uid, containers) in saved.entries {
                for (name, list) in containers {
                    if let Ok(cpus) = parse_list(&list) {
                        state.shared.retain(|cpu| !cpus.contains(cpu));
                        state.assigned.entry(uid.clone()).or_default().insert(name, cpus);
                    }
                }
            }
        }
        Self { policy, file, state: Mutex::new(state), changed: watch::Sender::new(()) }
    }

    /// The CPUs a container about to start may use; `None` leaves it all.
    pub fn allocate(&self, pod: &Pod, container: &Container) -> Result<Option<CpuSet>, Error> {
        if self.policy == CpuManagerPolicy::None {
            return Ok(None);
        }
        let mut state = self.state.lock();
        if let Some(cpus) = state.assigned.get(pod::uid(pod)).and_then(|all| all.get(&container.name)) {
            return Ok(Some(cpus.clone()));
        }
        let Some(count) = exclusive_cpus(pod, container) else { return Ok(Some(state.shared.clone())) };
        let free: CpuSet = state.shared.difference(&state.reserved).copied().collect();
        if free.len() < count {
            return Err(Error::NotEnough { requested: count, available: free.len() });
        }
        let cpus: CpuSet = free.into_iter().take(count).collect();
        state.shared.retain(|cpu| !cpus.contains(cpu));
        state.assigned.entry(pod::uid(pod).into()).or_default().insert(container.name.clone(), cpus.clone());
        self.save(&state)?;
        self.changed.send_replace(());
        Ok(Some(cpus))
    }

    /// Gives back what a pod had. Says whether anything came back.
    pub fn release(&self, uid: &str) -> bool {
        let mut state = self.state.lock();
        let Some(containers) = state.assigned.remove(uid) else { return false };
        for cpus in containers.into_values() {
            state.shared.extend(cpus);
        }
        if let Err(error) = self.save(&state) {
            tracing::warn!(%error, "CPU assignments");
        }
        self.changed.send_replace(());
        true
    }

    /// The CPUs a running container should be on, as a list: its own, or those
    /// that nobody has for itself. `None` leaves it all.
    pub fn of_running(&self, uid: &str, container: &str) -> Option<String> {
        if self.policy == CpuManagerPolicy::None {
            return None;
        }
        let state = self.state.lock();
        let own = state.assigned.get(uid).and_then(|all| all.get(container));
        Some(format_list(own.unwrap_or(&state.shared)))
    }

    /// The CPUs that a container has for itself.
    pub fn own(&self, uid: &str, container: &str) -> CpuSet {
        let state = self.state.lock();
        state.assigned.get(uid).and_then(|all| all.get(container)).cloned().unwrap_or_default()
    }

    /// The CPUs that containers may have for themselves, taken or not.
    pub fn allocatable(&self) -> CpuSet {
        if self.policy == CpuManagerPolicy::None {
            return CpuSet::new();
        }
        let state = self.state.lock();
        let taken = state.assigned.values().flat_map(BTreeMap::values).flatten();
        taken.chain(&state.shared).filter(|cpu| !state.reserved.contains(cpu)).copied().collect()
    }

    /// Whether any container of a pod has CPUs for itself.
    pub fn has_own(&self, uid: &str) -> bool {
        self.state.lock().assigned.contains_key(uid)
    }

    /// Pods that have CPUs, also those that went while no kubelet ran.
    pub fn pods(&self) -> Vec<String> {
        self.state.lock().assigned.keys().cloned().collect()
    }

    /// Tells whenever the CPUs that are shared have changed.
    pub fn changes(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    fn save(&self, state: &State) -> Result<(), Error> {
        let list = |containers: &BTreeMap<String, CpuSet>| {
            containers.iter().map(|(name, cpus)| (name.clone(), format_list(cpus))).collect()
        };
        let saved = Saved {
            policy_name: "static".into(),
            default_cpu_set: format_list(&state.shared),
            entries: state.assigned.iter().map(|(uid, containers)| (uid.clone(), list(containers))).collect(),
        };
        let text = serde_json::to_string(&saved).map_err(|error| Error::Write(io::Error::other(error)))?;
        let fresh = self.file.with_extension("new");
        std::fs::write(&fresh, text).and_then(|()| std::fs::rename(&fresh, &self.file)).map_err(Error::Write)
    }
}

/// How many CPUs a container gets for itself, if any.
fn exclusive_cpus(pod: &Pod, container: &Container) -> Option<usize> {
    if qos_class(pod) != QosClass::Guaranteed {
        return None;
    }
    let milli = container_amounts(container.resources.as_ref(), Side::Requests).get("cpu").copied()?;
    (milli > 0 && milli % 1000 == 0).then(|| usize::try_from(milli / 1000).ok()).flatten()
}

/// `0-2,5` as a set.
pub fn parse_list(text: &str) -> Result<CpuSet, Error> {
    let mut cpus = CpuSet::new();
    let bad = || Error::List(text.to_string());
    for part in text.trim().split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let first: u32 = first.trim().parse().map_err(|_| bad())?;
        let last: u32 = last.trim().parse().map_err(|_| bad())?;
        if last < first || last > 65_535 {
            return Err(bad());
        }
        cpus.extend(first..=last);
    }
    Ok(cpus)
}

pub fn format_list(cpus: &CpuSet) -> String {
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    for &cpu in cpus {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == cpu => *last = cpu,
            _ => ranges.push((cpu, cpu)),
        }
    }
    let shown = ranges
        .iter()
        .map(|(first, last)| if first == last { first.to_string() } else { format!("{first}-{last}") });
    shown.collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(uid: &str, cpu: &str) -> Pod {
        let resources = json!({"limits": {"cpu": cpu, "memory": "1Mi"}});
        serde_json::from_value(json!({
            "metadata": {"uid": uid}, "spec": {"containers": [{"name": "c", "resources": resources}]}
        }))
        .expect("the pod is well formed")
    }

    #[test]
    fn lists_are_read_and_written() {
        for (text, shown) in [("", ""), ("3", "3"), ("0-2,5", "0-2,5"), ("5,0,1,2", "0-2,5"), ("1-1", "1")] {
            assert_eq!(format_list(&parse_list(text).expect("a list")), shown);
        }
        for text in ["a", "3-1", "1-", "0-99999999"] {
            assert!(parse_list(text).is_err(), "{text}");
        }
    }

    #[test]
    fn whole_cpus_are_given_out_once_and_survive_a_restart() {
        let directory = tempfile::tempdir().expect("a directory can be made");
        let file = directory.path().join("cpu_manager_state");
        let start = || CpuManager::new(CpuManagerPolicy::Static, file.clone(), (0..4).collect(), [0].into());
        let manager = start();
        let give = |manager: &CpuManager, pod: &Pod| {
            let container = &pod.spec.as_ref().expect("has a spec").containers[0];
            manager.allocate(pod, container).map(|cpus| cpus.map(|cpus| format_list(&cpus)))
        };
        assert_eq!(give(&manager, &pod("shared", "500m")).expect("fits"), Some("0-3".into()));
        assert_eq!(give(&manager, &pod("two", "2")).expect("fits"), Some("1-2".into()));
        assert_eq!(give(&manager, &pod("two", "2")).expect("has them"), Some("1-2".into()));
        assert!(matches!(
            give(&manager, &pod("more", "2")),
            Err(Error::NotEnough { requested: 2, available: 1 })
        ));
        let (changes, others) = (manager.changes(), |manager: &CpuManager| manager.of_running("other", "c"));
        assert_eq!(others(&manager), Some("0,3".into()));
        let restarted = start();
        assert!(restarted.has_own("two"));
        assert_eq!(restarted.of_running("two", "c"), Some("1-2".into()));
        assert_eq!(others(&restarted), others(&manager));
        assert!(manager.release("two"));
        assert!(changes.has_changed().expect("the manager lives"), "others are told");
        assert!(restarted.release("two"));
        assert!(!restarted.release("two"));
        assert_eq!(others(&restarted), Some("0-3".into()));
    }
}
