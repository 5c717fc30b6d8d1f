//! CPU, memory and the rest: what a pod asks for and may use, its quality of
//! service, and the values its cgroups and containers get from them.

use std::collections::BTreeMap;

use ferry_api::quantity::Quantity;
use ferry_linux::cgroup::{self, Limits};
use k8s_openapi::api::core::v1::{Container, Pod, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as WireQuantity;

use crate::pod::{is_sidecar, spec};

/// How sure a pod can be of its resources.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum QosClass {
    Guaranteed,
    Burstable,
    BestEffort,
}

impl QosClass {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Guaranteed => "Guaranteed",
            Self::Burstable => "Burstable",
            Self::BestEffort => "BestEffort",
        }
    }
}

/// Milli-CPUs for "cpu", whole units for everything else.
pub type Amounts = BTreeMap<String, i64>;

/// What a pod asks of its node. Worked out once: whoever comes later is weighed against all who are there.
#[derive(Debug, PartialEq, Eq)]
pub struct Asks {
    pub class: QosClass,
    pub requests: Amounts,
}

impl Asks {
    pub fn of(pod: &Pod) -> Self {
        Self { class: qos_class(pod), requests: pod_amounts(pod, Side::Requests) }
    }

    pub fn request(&self, resource: &str) -> i64 {
        self.requests.get(resource).copied().unwrap_or(0)
    }
}

#[derive(Clone, Copy)]
pub enum Side {
    Requests,
    Limits,
}

/// The amount a quantity stands for; what cannot be read counts as nothing,
/// since the API server would have refused it.
pub fn amount(resource: &str, quantity: &WireQuantity) -> i64 {
    amount_of(resource, &quantity.0)
}

pub fn amount_of(resource: &str, text: &str) -> i64 {
    match Quantity::parse(text) {
        Ok(quantity) if resource == "cpu" => quantity.milli(),
        Ok(quantity) => quantity.value(),
        Err(_) => 0,
    }
}

/// One side of a container's requirements. A missing request is its limit.
pub fn container_amounts(requirements: Option<&ResourceRequirements>, side: Side) -> Amounts {
    let Some(requirements) = requirements else { return Amounts::new() };
    let read = |map: Option<&BTreeMap<String, WireQuantity>>| -> Amounts {
        map.into_iter().flatten().map(|(name, quantity)| (name.clone(), amount(name, quantity))).collect()
    };
    match side {
        Side::Limits => read(requirements.limits.as_ref()),
        Side::Requests => {
            let mut amounts = read(requirements.limits.as_ref());
            amounts.extend(read(requirements.requests.as_ref()));
            amounts
        }
    }
}

/// What the whole pod takes: the containers and sidecars together, or the
/// largest moment of initialisation if that is more, and the overhead.
pub fn pod_amounts(pod: &Pod, side: Side) -> Amounts {
    let spec = spec(pod);
    let mut total = Amounts::new();
    for container in &spec.containers {
        add(&mut total, &container_amounts(container.resources.as_ref(), side));
    }
    let mut sidecars = Amounts::new();
    let mut initialising = Amounts::new();
    for container in spec.init_containers.iter().flatten() {
        let amounts = container_amounts(container.resources.as_ref(), side);
        if is_sidecar(container) {
            add(&mut sidecars, &amounts);
            add(&mut total, &amounts);
            raise(&mut initialising, &sidecars);
        } else {
            let mut moment = sidecars.clone();
            add(&mut moment, &amounts);
            raise(&mut initialising, &moment);
        }
    }
    raise(&mut total, &initialising);
    // limits of the pod as a whole come before those of its containers
    if let Some(whole) = &spec.resources {
        total.extend(container_amounts(Some(whole), side));
    }
    for (name, quantity) in spec.overhead.iter().flatten() {
        if matches!(side, Side::Requests) || total.contains_key(name) {
            *total.entry(name.clone()).or_default() += amount(name, quantity);
        }
    }
    total
}

fn add(total: &mut Amounts, amounts: &Amounts) {
    for (name, amount) in amounts {
        *total.entry(name.clone()).or_default() += amount;
    }
}

fn raise(total: &mut Amounts, amounts: &Amounts) {
    for (name, amount) in amounts {
        let entry = total.entry(name.clone()).or_default();
        *entry = (*entry).max(*amount);
    }
}

/// The class that CPU and memory of all containers make.
pub fn qos_class(pod: &Pod) -> QosClass {
    let spec = spec(pod);
    if let Some(whole) = &spec.resources {
        return class_of([Some(whole)].into_iter());
    }
    class_of(all_containers(pod).map(|container| container.resources.as_ref()))
}

fn class_of<'a>(all: impl Iterator<Item = Option<&'a ResourceRequirements>>) -> QosClass {
    let mut any = false;
    let mut guaranteed = true;
    for requirements in all {
        let limits = container_amounts(requirements, Side::Limits);
        let requests = container_amounts(requirements, Side::Requests);
        for resource in ["cpu", "memory"] {
            let request = requests.get(resource).copied().unwrap_or(0);
            let limit = limits.get(resource).copied().unwrap_or(0);
            any |= request > 0 || limit > 0;
            guaranteed &= limit > 0 && limit == request;
        }
    }
    match (any, guaranteed) {
        (false, _) => QosClass::BestEffort,
        (true, true) => QosClass::Guaranteed,
        (true, false) => QosClass::Burstable,
    }
}

pub fn all_containers(pod: &Pod) -> impl Iterator<Item = &Container> {
    let spec = spec(pod);
    spec.init_containers.iter().flatten().chain(&spec.containers)
}

/// The limits of a pod's own cgroup. A limit holds for the pod only where
/// every container has one: else one of them may use all there is.
pub fn pod_limits(pod: &Pod, pids: Option<i64>, cfs_quota: bool) -> Limits {
    let requests = pod_amounts(pod, Side::Requests);
    let limits = pod_amounts(pod, Side::Limits);
    let all_have =
        |resource: &str| {
            spec(pod).resources.as_ref().is_some_and(|whole| {
                whole.limits.as_ref().is_some_and(|limits| limits.contains_key(resource))
            }) || all_containers(pod).all(|container| {
                container_amounts(container.resources.as_ref(), Side::Limits)
                    .get(resource)
                    .is_some_and(|amount| *amount > 0)
            })
        };
    let limit = |resource: &str| limits.get(resource).copied().filter(|_| all_have(resource));
    let milli = requests.get("cpu").copied().unwrap_or(0).max(0) as u64;
    Limits {
        cpu_shares: Some(cgroup::shares_for_milli_cpu(milli)),
        cpu_quota_microseconds: limit("cpu")
            .filter(|_| cfs_quota)
            .map(|milli| cgroup::quota_for_milli_cpu(milli.max(0) as u64)),
        memory_bytes: limit("memory"),
        pids,
    }
}

/// How readily the kernel kills a container when memory runs out: 1000 is
/// first. Guaranteed pods go last; burstable ones by how little of the
/// machine they asked for.
pub fn oom_score_adjustment(pod: &Pod, container: &Container, machine_memory: i64) -> i64 {
    if crate::pod::is_critical(pod) {
        return -997;
    }
    match qos_class(pod) {
        QosClass::Guaranteed => -997,
        QosClass::BestEffort => 1000,
        QosClass::Burstable => {
            let requests = container_amounts(container.resources.as_ref(), Side::Requests);
            let memory = requests.get("memory").copied().unwrap_or(0);
            let share = if machine_memory > 0 { 1000 * memory / machine_memory } else { 0 };
            // above guaranteed pods, below best-effort ones
            (1000 - share).clamp(3, 999)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(spec: serde_json::Value) -> Pod {
        serde_json::from_value(json!({"spec": spec})).expect("the spec is well formed")
    }

    fn container(requests: serde_json::Value, limits: serde_json::Value) -> serde_json::Value {
        json!({"name": "c", "resources": {"requests": requests, "limits": limits}})
    }

    #[test]
    fn class_follows_cpu_and_memory_of_all_containers() {
        let both = json!({"cpu": "1", "memory": "1Gi"});
        for (containers, class) in [
            (vec![json!({"name": "c"})], QosClass::BestEffort),
            (vec![container(json!({"ephemeral-storage": "1Gi"}), json!({}))], QosClass::BestEffort),
            (vec![container(json!({"cpu": "100m"}), json!({}))], QosClass::Burstable),
            (vec![container(json!({}), both.clone())], QosClass::Guaranteed),
            (vec![container(both.clone(), both.clone())], QosClass::Guaranteed),
            (vec![container(json!({"cpu": "500m"}), both.clone())], QosClass::Burstable),
            (vec![container(json!({}), both.clone()), json!({"name": "d"})], QosClass::Burstable),
            (vec![container(json!({}), json!({"cpu": "1"}))], QosClass::Burstable),
        ] {
            assert_eq!(qos_class(&pod(json!({"containers": containers}))), class, "{containers:?}");
        }
    }

    #[test]
    fn a_pod_takes_its_largest_moment() {
        let pod = pod(json!({
            "initContainers": [
                {"name": "big", "resources": {"requests": {"cpu": "3"}}},
                {"name": "side", "restartPolicy": "Always", "resources": {"requests": {"cpu": "500m", "memory": "1Mi"}}},
                {"name": "late", "resources": {"requests": {"cpu": "1"}}},
            ],
            "containers": [{"name": "c", "resources": {"requests": {"cpu": "1", "memory": "1Mi"}}}],
            "overhead": {"cpu": "250m"},
        }));
        let amounts = pod_amounts(&pod, Side::Requests);
        assert_eq!(amounts["cpu"], 3250, "the first init container is the largest moment");
        assert_eq!(amounts["memory"], 2 << 20, "sidecar and container together");
    }

    #[test]
    fn pod_limits_hold_only_where_every_container_has_one() {
        let limited = json!({"name": "a", "resources": {"limits": {"cpu": "500m", "memory": "64Mi"}}});
        let limits = pod_limits(&pod(json!({"containers": [limited]})), Some(100), true);
        assert_eq!(limits.cpu_quota_microseconds, Some(50_000));
        assert_eq!(limits.memory_bytes, Some(64 << 20));
        assert_eq!(limits.cpu_shares, Some(512));
        assert_eq!(limits.pids, Some(100));
        let open = pod_limits(&pod(json!({"containers": [limited, {"name": "b"}]})), None, true);
        assert_eq!((open.cpu_quota_microseconds, open.memory_bytes), (None, None));
        assert_eq!(
            pod_limits(&pod(json!({"containers": [limited]})), None, false).cpu_quota_microseconds,
            None
        );
    }

    #[test]
    fn memory_asked_for_protects_from_the_oom_killer() {
        let gib = 1i64 << 30;
        for (spec, score) in [
            (json!({"containers": [{"name": "c"}]}), 1000),
            (json!({"containers": [container(json!({}), json!({"cpu": "1", "memory": "1Gi"}))]}), -997),
            (json!({"containers": [container(json!({"memory": "1Gi"}), json!({}))]}), 900),
            (json!({"containers": [container(json!({"cpu": "1"}), json!({}))]}), 999),
            (json!({"containers": [container(json!({"memory": "100Gi"}), json!({}))]}), 3),
            (json!({"priority": 2_000_001_000, "containers": [{"name": "c"}]}), -997),
        ] {
            let pod = pod(spec);
            let first = &pod.spec.as_ref().expect("has a spec").containers[0];
            assert_eq!(oom_score_adjustment(&pod, first, 10 * gib), score);
        }
    }
}
