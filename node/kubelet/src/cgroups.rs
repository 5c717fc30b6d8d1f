//! Where pods are in the cgroup tree: below their quality of service, so that
//! the kernel serves guaranteed pods first and best-effort ones last.
//!
//! ```text
//! kubepods                     everything pods may use together
//! ├─ podUID                    guaranteed
//! ├─ burstable/podUID
//! └─ besteffort/podUID
//! ```

use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use ferry_linux::cgroup::{self, Hierarchy, Limits, MIN_SHARES, Path, Refused, Usage};
use k8s_openapi::api::core::v1::Pod;
use tokio::time::Instant;

use crate::config::CgroupDriver;
use crate::pod;
use crate::resources::{QosClass, pod_limits, qos_class};

/// A killed process takes a moment to be gone from its group, and one in the middle of a fork leaves another.
const KILL_PATIENCE: Duration = Duration::from_secs(5);
const KILL_STEP: Duration = Duration::from_millis(10);

pub struct PodCgroups {
    /// `None` where the machine has no cgroups: pods run unbounded.
    hierarchy: Option<Hierarchy>,
    driver: CgroupDriver,
    root: String,
    pids_limit: Option<i64>,
    cfs_quota: bool,
    /// What burstable pods were weighed with last; none yet when negative.
    weighed: AtomicI64,
    said: AtomicBool,
}

impl PodCgroups {
    pub fn new(driver: CgroupDriver, root: &str, pids_limit: Option<i64>, cfs_quota: bool) -> Self {
        let hierarchy = match Hierarchy::detect() {
            Ok(hierarchy) => Some(hierarchy),
            Err(error) => {
                tracing::warn!(%error, "pods run without resource limits");
                None
            }
        };
        Self {
            hierarchy,
            driver,
            root: root.trim_matches('/').to_string(),
            pids_limit,
            cfs_quota,
            weighed: AtomicI64::new(-1),
            said: AtomicBool::new(false),
        }
    }

    pub fn hierarchy(&self) -> Option<&Hierarchy> {
        self.hierarchy.as_ref()
    }

    /// The group all pods are in.
    pub fn pods(&self) -> Path {
        self.path(&[])
    }

    /// Makes the groups of the classes. `allocatable` is what pods may use
    /// together.
    pub fn set_up(&self, milli_cpu: i64, memory: i64) -> Result<(), cgroup::Error> {
        let Some(hierarchy) = &self.hierarchy else { return Ok(()) };
        let all = Limits {
            cpu_shares: Some(cgroup::shares_for_milli_cpu(milli_cpu.max(0) as u64)),
            memory_bytes: Some(memory),
            ..Limits::default()
        };
        self.say_once(hierarchy.ensure(&self.path(&[]), &all)?);
        let least = Limits { cpu_shares: Some(MIN_SHARES), ..Limits::default() };
        self.say_once(hierarchy.ensure(&self.path(&["burstable"]), &least)?);
        self.say_once(hierarchy.ensure(&self.path(&["besteffort"]), &least)?);
        Ok(())
    }

    /// Burstable pods together weigh what they asked for together.
    pub fn weigh_burstable(&self, milli_cpu: i64) {
        let Some(hierarchy) = &self.hierarchy else { return };
        let milli_cpu = milli_cpu.max(0);
        if self.weighed.swap(milli_cpu, Ordering::Relaxed) == milli_cpu {
            return;
        }
        let shares = cgroup::shares_for_milli_cpu(milli_cpu as u64);
        let limits = Limits { cpu_shares: Some(shares), ..Limits::default() };
        self.say_once(hierarchy.apply(&self.path(&["burstable"]), &limits));
    }

    /// Makes a pod's own group, wide enough for the pod as it still runs too.
    pub fn ensure(&self, pod: &Pod, as_it_runs: Option<&Pod>) -> Result<(), cgroup::Error> {
        let Some(hierarchy) = &self.hierarchy else { return Ok(()) };
        let mut limits = pod_limits(pod, self.pids_limit, self.cfs_quota);
        if let Some(as_it_runs) = as_it_runs {
            limits = widest(limits, pod_limits(as_it_runs, self.pids_limit, self.cfs_quota));
        }
        self.say_once(hierarchy.ensure(&self.pod_path(qos_class(pod), pod::uid(pod)), &limits)?);
        Ok(())
    }

    /// Removes a pod's group, in whichever class it is.
    pub fn remove(&self, uid: &str) -> Result<(), cgroup::Error> {
        let Some(hierarchy) = &self.hierarchy else { return Ok(()) };
        for path in self.paths(uid) {
            if hierarchy.exists(&path) {
                hierarchy.remove(&path)?;
            }
        }
        Ok(())
    }

    /// Kills what is left in a pod's group. For a pod of which the runtime has nothing alive: what it lost sight of,
    /// such as the `runc init` of a start that was broken off, nobody else ends.
    pub async fn kill(&self, uid: &str) {
        let Some(hierarchy) = &self.hierarchy else { return };
        let deadline = Instant::now() + KILL_PATIENCE;
        let mut said = false;
        loop {
            let killed: usize = self.paths(uid).iter().map(|path| hierarchy.kill(path)).sum();
            // removing the group tells of what does not end
            if killed == 0 || Instant::now() > deadline {
                return;
            }
            if !said {
                tracing::warn!(
                    uid,
                    processes = killed,
                    "processes left in a stopped pod's cgroup are killed"
                );
                said = true;
            }
            tokio::time::sleep(KILL_STEP).await;
        }
    }

    /// Uids of the pods that have a group.
    pub fn pods_present(&self) -> Vec<String> {
        let Some(hierarchy) = &self.hierarchy else { return vec![] };
        let mut uids = Vec::new();
        for class in [vec![], vec!["burstable"], vec!["besteffort"]] {
            for name in hierarchy.children(&self.path(&class)) {
                let name = name.trim_end_matches(".slice");
                if let Some((_, uid)) =
                    name.rsplit_once("pod").filter(|(before, _)| !before.ends_with("kube"))
                {
                    uids.push(uid.replace('_', "-"));
                }
            }
        }
        uids
    }

    /// How the runtime is told where to put the pod.
    pub fn parent_for_runtime(&self, pod: &Pod) -> String {
        match self.driver {
            CgroupDriver::Cgroupfs => self.pod_path(qos_class(pod), pod::uid(pod)).as_str().to_string(),
            CgroupDriver::Systemd => {
                let path = self.pod_path(qos_class(pod), pod::uid(pod));
                path.as_str().rsplit('/').next().unwrap_or_default().to_string()
            }
        }
    }

    pub fn usage(&self, pod: &Pod) -> Option<Usage> {
        self.hierarchy.as_ref()?.usage(&self.path_of(pod)).ok()
    }

    /// The pod's own group.
    pub fn path_of(&self, pod: &Pod) -> Path {
        self.pod_path(qos_class(pod), pod::uid(pod))
    }

    /// Where a pod's group may be: it is not always known of which class the pod was.
    fn paths(&self, uid: &str) -> [Path; 3] {
        [QosClass::Guaranteed, QosClass::Burstable, QosClass::BestEffort]
            .map(|class| self.pod_path(class, uid))
    }

    fn pod_path(&self, class: QosClass, uid: &str) -> Path {
        let pod = format!("pod{uid}");
        match class {
            QosClass::Guaranteed => self.path(&[&pod]),
            QosClass::Burstable => self.path(&["burstable", &pod]),
            QosClass::BestEffort => self.path(&["besteffort", &pod]),
        }
    }

    fn path(&self, below: &[&str]) -> Path {
        let mut parts: Vec<String> =
            self.root.split('/').filter(|part| !part.is_empty()).map(str::to_string).collect();
        parts.push("kubepods".into());
        parts.extend(below.iter().map(ToString::to_string));
        match self.driver {
            CgroupDriver::Cgroupfs => Path::new(parts.join("/")),
            CgroupDriver::Systemd => Path::new(slices(&parts)),
        }
    }

    /// What the machine does not let us set is worth one line, not one a pod.
    fn say_once(&self, refused: Vec<Refused>) {
        if let Some(first) = refused.first()
            && !self.said.swap(true, Ordering::Relaxed)
        {
            tracing::warn!(file = %first.file.display(), value = %first.value, error = %first.error,
                "the kernel refuses a cgroup value; pods run without it");
        }
    }
}

/// Limits that keep to neither side where one has none.
fn widest(one: Limits, other: Limits) -> Limits {
    let larger = |one: Option<i64>, other: Option<i64>| one.zip(other).map(|(one, other)| one.max(other));
    Limits {
        cpu_shares: one.cpu_shares.max(other.cpu_shares),
        cpu_quota_microseconds: larger(one.cpu_quota_microseconds, other.cpu_quota_microseconds),
        memory_bytes: larger(one.memory_bytes, other.memory_bytes),
        pids: larger(one.pids, other.pids),
    }
}

/// systemd spells a path out in every slice's name:
/// `kubepods.slice/kubepods-burstable.slice/…`. Dashes inside a part become
/// underscores, since a dash separates parts.
fn slices(parts: &[String]) -> String {
    let mut path = String::new();
    let mut name = String::new();
    for part in parts {
        if !name.is_empty() {
            name.push('-');
        }
        name.push_str(&part.replace('-', "_"));
        path.push_str(&format!("/{name}.slice"));
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(requests: serde_json::Value) -> Pod {
        serde_json::from_value(json!({
            "metadata": {"uid": "12-34"},
            "spec": {"containers": [{"name": "c", "resources": {"requests": requests}}]},
        }))
        .expect("the pod is well formed")
    }

    #[test]
    fn pods_are_placed_below_their_class() {
        let parent = |driver, root: &str, requests| {
            PodCgroups::new(driver, root, None, true).parent_for_runtime(&pod(requests))
        };
        assert_eq!(parent(CgroupDriver::Cgroupfs, "/", json!({"cpu": "1"})), "/kubepods/burstable/pod12-34");
        assert_eq!(
            parent(CgroupDriver::Cgroupfs, "/node1", json!({})),
            "/node1/kubepods/besteffort/pod12-34"
        );
        assert_eq!(parent(CgroupDriver::Systemd, "/", json!({})), "kubepods-besteffort-pod12_34.slice");
    }

    #[test]
    fn while_a_pod_is_resized_the_larger_limit_holds() {
        let limits = |quota, memory| Limits {
            cpu_quota_microseconds: quota,
            memory_bytes: memory,
            ..Limits::default()
        };
        assert_eq!(widest(limits(Some(5), Some(9)), limits(Some(7), Some(3))), limits(Some(7), Some(9)));
        assert_eq!(widest(limits(None, Some(9)), limits(Some(7), None)), limits(None, None));
    }

    #[test]
    fn slices_spell_out_their_path() {
        let parts = ["kubepods", "burstable", "podab-cd"].map(str::to_string);
        assert_eq!(
            slices(&parts),
            "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podab_cd.slice"
        );
    }
}
