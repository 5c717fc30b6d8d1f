//! Resources that change while a pod runs (KEP-1287).
//!
//! A pod asks for resources, the node grants them, its containers are given
//! them. Workers see a pod with what was granted, never with what it merely
//! asks for; [`decide`] says whether a wish is granted. What a former kubelet
//! had granted is read off the status it wrote, so nothing else is kept.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Container, Pod, PodStatus, ResourceRequirements};

use crate::admit::GrantedPod;
use crate::node::capacity::Capacity;
use crate::pod;
use crate::resources::{Side, container_amounts, pod_amounts};

/// A wish that is not granted, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pending {
    pub reason: Reason,
    pub message: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// There may be room later.
    Deferred,
    /// There never will be.
    Infeasible,
}

impl Reason {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Deferred => "Deferred",
            Self::Infeasible => "Infeasible",
        }
    }
}

/// Whether two versions of a pod ask for the same.
pub fn is_same(one: &Pod, other: &Pod) -> bool {
    let all = |pod| {
        let spec = pod::spec(pod);
        let containers = spec.init_containers.iter().flatten().chain(&spec.containers);
        let of_containers = containers.map(|each| stated(each.resources.as_ref()));
        [stated(spec.resources.as_ref())].into_iter().chain(of_containers).collect::<Vec<_>>()
    };
    all(one) == all(other)
}

/// Requirements that say nothing are none.
pub fn stated(requirements: Option<&ResourceRequirements>) -> Option<&ResourceRequirements> {
    requirements.filter(|stated| **stated != ResourceRequirements::default())
}

/// `pod`, but with the resources that `granted` has.
pub fn with_resources_of(pod: &Pod, granted: &Pod) -> Pod {
    let granted = pod::spec(granted);
    let of_container = |name: &str| {
        let mut all = granted.init_containers.iter().flatten().chain(&granted.containers);
        all.find(|each| each.name == name).map(|each| each.resources.clone())
    };
    let mut pod = with_container_resources(pod, of_container);
    if let Some(spec) = &mut pod.spec {
        spec.resources = granted.resources.clone();
    }
    pod
}

/// `pod` as its status says that it runs: what was granted to it last.
pub fn as_shown(pod: &Arc<Pod>) -> Arc<Pod> {
    let status = pod::status(pod);
    let has_run = |status: &PodStatus| {
        status.resources.is_some()
            || status.container_statuses.is_some()
            || status.init_container_statuses.is_some()
    };
    if !has_run(status) {
        return pod.clone();
    }
    let mut shown = with_container_resources(pod, |name| {
        let status = pod::container_status(status, name)?;
        status.resources.clone().map(Some)
    });
    if let (Some(spec), Some(resources)) = (&mut shown.spec, &status.resources) {
        spec.resources = Some(resources.clone());
    }
    Arc::new(shown)
}

/// `None` leaves a container what it has.
fn with_container_resources(pod: &Pod, of: impl Fn(&str) -> Option<Option<ResourceRequirements>>) -> Pod {
    let mut pod = pod.clone();
    if let Some(spec) = &mut pod.spec {
        for container in spec.init_containers.iter_mut().flatten().chain(&mut spec.containers) {
            if let Some(resources) = of(&container.name) {
                container.resources = resources;
            }
        }
    }
    pod
}

/// Whether the node gives a pod what it now asks for. `others` are the pods
/// beside it, with what was granted to them.
pub fn decide(
    wanted: &Pod,
    others: &[GrantedPod],
    allocatable: Capacity,
    has_own_cpus: bool,
) -> Result<(), Pending> {
    let never = |message: String| Err(Pending { reason: Reason::Infeasible, message });
    if pod::is_static(wanted) {
        return never("In-place resize of static-pods is not supported".into());
    }
    if has_own_cpus {
        return never("Resize is infeasible for Guaranteed Pods alongside CPU Manager static policy".into());
    }
    let requests = pod_amounts(wanted, Side::Requests);
    for (resource, capacity) in [("cpu", allocatable.milli_cpu), ("memory", allocatable.memory)] {
        let requested = requests.get(resource).copied().unwrap_or(0);
        if requested > capacity {
            return never(format!(
                "Node didn't have enough capacity: {resource}, requested: {requested}, capacity: {capacity}"
            ));
        }
        let used: i64 = others.iter().map(|other| other.asks.request(resource)).sum();
        if used + requested > capacity {
            let message = format!(
                "Node didn't have enough resource: {resource}, requested: {requested}, used: {used}, capacity: {capacity}"
            );
            return Err(Pending { reason: Reason::Deferred, message });
        }
    }
    Ok(())
}

/// Whether a container that has `now` must start anew to get what it was granted.
pub fn needs_restart(container: &Container, now: Option<&ResourceRequirements>) -> bool {
    let amounts = |requirements: Option<&ResourceRequirements>, resource: &str| {
        [Side::Requests, Side::Limits]
            .map(|side| container_amounts(requirements, side).get(resource).copied())
    };
    container.resize_policy.iter().flatten().any(|policy| {
        policy.restart_policy == "RestartContainer"
            && amounts(now, &policy.resource_name)
                != amounts(container.resources.as_ref(), &policy.resource_name)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resources::Asks;
    use serde_json::{Value, json};

    fn pod(containers: Value, status: Value) -> Pod {
        serde_json::from_value(json!({"spec": {"containers": containers}, "status": status}))
            .expect("the pod is well formed")
    }

    fn asking(cpu: &str) -> Pod {
        pod(json!([{"name": "c", "resources": {"requests": {"cpu": cpu}}}]), json!({}))
    }

    #[test]
    fn a_wish_is_granted_deferred_or_refused() {
        let allocatable = Capacity { milli_cpu: 2000, memory: 1 << 30, ..Capacity::default() };
        let check = |cpu: &str, other: &str, has_own_cpus: bool, expected: Option<Reason>| {
            let other = asking(other);
            let others = [GrantedPod { asks: Arc::new(Asks::of(&other)), pod: Arc::new(other) }];
            let decided = decide(&asking(cpu), &others, allocatable, has_own_cpus);
            assert_eq!(decided.err().map(|pending| pending.reason), expected, "{cpu}");
        };
        check("1", "1", false, None);
        check("1100m", "1", false, Some(Reason::Deferred));
        check("2100m", "0", false, Some(Reason::Infeasible));
        check("1", "0", true, Some(Reason::Infeasible));
    }

    #[test]
    fn granted_resources_are_read_from_the_status() {
        let running = json!({"containerStatuses": [{
            "name": "c", "image": "", "imageID": "", "ready": true, "restartCount": 0,
            "resources": {"requests": {"cpu": "100m"}},
        }]});
        let containers = json!([{"name": "c", "resources": {"requests": {"cpu": "200m"}}}, {"name": "d"}]);
        let wanted = Arc::new(pod(containers, running));
        let granted = as_shown(&wanted);
        assert!(!is_same(&wanted, &granted));
        assert!(is_same(&with_resources_of(&wanted, &granted), &granted));
        let containers = &pod::spec(&granted).containers;
        assert_eq!(container_amounts(containers[0].resources.as_ref(), Side::Requests)["cpu"], 100);
        assert_eq!(containers[1].resources, None);
    }

    #[test]
    fn only_what_its_policy_names_restarts_a_container() {
        let container: Container = serde_json::from_value(json!({
            "name": "c",
            "resources": {"requests": {"cpu": "200m"}, "limits": {"memory": "64Mi"}},
            "resizePolicy": [
                {"resourceName": "cpu", "restartPolicy": "NotRequired"},
                {"resourceName": "memory", "restartPolicy": "RestartContainer"},
            ],
        }))
        .expect("well formed");
        let had = |cpu: &str, memory: &str| -> ResourceRequirements {
            serde_json::from_value(json!({"requests": {"cpu": cpu}, "limits": {"memory": memory}}))
                .expect("well formed")
        };
        assert!(!needs_restart(&container, Some(&had("100m", "64Mi"))));
        assert!(!needs_restart(&container, Some(&had("200m", "65536Ki"))), "another word for the same");
        assert!(needs_restart(&container, Some(&had("200m", "32Mi"))));
    }
}
