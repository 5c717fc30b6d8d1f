//! The requests of pods and the allocatable resources of nodes, as integers.

use std::collections::BTreeMap;

use ferry_api::quantity::Quantity as Exact;
use k8s_openapi::api::core::v1::{Container, ContainerStatus, Pod, PodSpec, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

pub const CPU: &str = "cpu";
pub const MEMORY: &str = "memory";
pub const EPHEMERAL_STORAGE: &str = "ephemeral-storage";
pub const PODS: &str = "pods";

/// What a container without a request is taken to use when nodes are compared, so that pods
/// that ask for nothing still spread.
const DEFAULT_MILLI_CPU: i64 = 100;
const DEFAULT_MEMORY: i64 = 200 * 1024 * 1024;

/// Amounts of the resources every node has, and of others by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resources {
    pub milli_cpu: i64,
    pub memory: i64,
    pub ephemeral_storage: i64,
    /// Extended resources and huge pages, by name; few, so a sorted list.
    pub extended: Vec<(Box<str>, i64)>,
}

pub type ResourceList = BTreeMap<String, Quantity>;

/// A resource by its name, told apart once and not again for every node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resource<'n> {
    Cpu,
    Memory,
    EphemeralStorage,
    Extended(&'n str),
}

impl<'n> Resource<'n> {
    pub fn named(name: &'n str) -> Self {
        match name {
            CPU => Resource::Cpu,
            MEMORY => Resource::Memory,
            EPHEMERAL_STORAGE => Resource::EphemeralStorage,
            _ => Resource::Extended(name),
        }
    }
}

impl Resources {
    /// Reads a resource list; the amount of `pods` is not part of it. Text that is no quantity
    /// counts as nothing: validation keeps it out.
    pub fn of(list: &ResourceList) -> Self {
        let mut resources = Resources::default();
        for (name, quantity) in list {
            let amount = amount(name, quantity);
            match name.as_str() {
                CPU => resources.milli_cpu = amount,
                MEMORY => resources.memory = amount,
                EPHEMERAL_STORAGE => resources.ephemeral_storage = amount,
                PODS => {}
                // already sorted: the list is an ordered map
                _ => resources.extended.push((name.as_str().into(), amount)),
            }
        }
        resources
    }

    pub fn get(&self, resource: Resource) -> i64 {
        match resource {
            Resource::Cpu => self.milli_cpu,
            Resource::Memory => self.memory,
            Resource::EphemeralStorage => self.ephemeral_storage,
            Resource::Extended(name) => self.extended(name),
        }
    }

    pub fn extended(&self, name: &str) -> i64 {
        self.extended.iter().find(|(own, _)| &**own == name).map_or(0, |(_, amount)| *amount)
    }

    pub fn is_nothing(&self) -> bool {
        self.milli_cpu == 0
            && self.memory == 0
            && self.ephemeral_storage == 0
            && self.extended.iter().all(|(_, amount)| *amount == 0)
    }

    pub fn add(&mut self, other: &Resources) {
        self.combine(other, i64::saturating_add);
    }

    pub fn subtract(&mut self, other: &Resources) {
        self.combine(other, i64::saturating_sub);
    }

    fn max(&mut self, other: &Resources) {
        self.combine(other, |a, b| a.max(b));
    }

    fn combine(&mut self, other: &Resources, with: impl Fn(i64, i64) -> i64) {
        self.milli_cpu = with(self.milli_cpu, other.milli_cpu);
        self.memory = with(self.memory, other.memory);
        self.ephemeral_storage = with(self.ephemeral_storage, other.ephemeral_storage);
        for (name, amount) in &other.extended {
            match self.extended.binary_search_by(|(own, _)| own.cmp(name)) {
                Ok(at) => self.extended[at].1 = with(self.extended[at].1, *amount),
                Err(at) => self.extended.insert(at, (name.clone(), with(0, *amount))),
            }
        }
    }
}

pub fn amount(name: &str, quantity: &Quantity) -> i64 {
    let exact = Exact::parse(&quantity.0).unwrap_or(Exact::ZERO);
    if name == CPU { exact.milli() } else { exact.value() }
}

/// What a pod needs at its worst moment: its containers together, or an init container beside
/// the sidecars started before it; and what running it costs besides.
pub fn pod_requests(pod: &Pod) -> Resources {
    total(pod, requests)
}

/// What a pod may take at most, counted in the same way.
pub fn pod_limits(pod: &Pod) -> Resources {
    let limits = |container: &Container, _: Option<&ContainerStatus>| {
        let limits = container.resources.as_ref().and_then(|resources| resources.limits.as_ref());
        limits.map(Resources::of).unwrap_or_default()
    };
    // a request on the pod itself is none of its limits
    let mut pod = pod.clone();
    if let Some(resources) = pod.spec.as_mut().and_then(|spec| spec.resources.as_mut()) {
        resources.requests = resources.limits.take();
    }
    total(&pod, limits)
}

/// What a pod asks for, with a little for every container that asks for no CPU or memory.
pub fn pod_requests_never_zero(pod: &Pod) -> Resources {
    total(pod, |container, status| {
        let mut resources = requests(container, status);
        let asked = |name: &str| {
            container
                .resources
                .as_ref()
                .and_then(|r| r.requests.as_ref())
                .is_some_and(|r| r.contains_key(name))
        };
        if !asked(CPU) {
            resources.milli_cpu = resources.milli_cpu.max(DEFAULT_MILLI_CPU);
        }
        if !asked(MEMORY) {
            resources.memory = resources.memory.max(DEFAULT_MEMORY);
        }
        resources
    })
}

fn total(pod: &Pod, of: impl Fn(&Container, Option<&ContainerStatus>) -> Resources) -> Resources {
    let Some(spec) = &pod.spec else { return Resources::default() };
    let statuses = pod.status.as_ref().and_then(|status| status.container_statuses.as_deref());
    let init_statuses = pod.status.as_ref().and_then(|status| status.init_container_statuses.as_deref());

    let mut running = Resources::default();
    for container in &spec.containers {
        running.add(&of(container, status_of(container, statuses)));
    }
    let mut sidecars = Resources::default();
    let mut starting = Resources::default();
    for container in spec.init_containers.iter().flatten() {
        let mut needs = of(container, status_of(container, init_statuses));
        if container.restart_policy.as_deref() == Some("Always") {
            running.add(&needs);
            sidecars.add(&needs);
            needs = sidecars.clone();
        } else {
            needs.add(&sidecars);
        }
        starting.max(&needs);
    }
    running.max(&starting);
    apply_pod_level(spec, &mut running);
    if let Some(overhead) = &spec.overhead {
        running.add(&Resources::of(overhead));
    }
    running
}

fn status_of<'s>(
    container: &Container,
    statuses: Option<&'s [ContainerStatus]>,
) -> Option<&'s ContainerStatus> {
    statuses?.iter().find(|status| status.name == container.name)
}

/// A request on the pod itself stands for the sum of its containers' (KEP-2837).
fn apply_pod_level(spec: &PodSpec, resources: &mut Resources) {
    let requests = spec.resources.as_ref().and_then(|resources| resources.requests.as_ref());
    for (name, quantity) in requests.into_iter().flatten() {
        let amount = amount(name, quantity);
        match name.as_str() {
            CPU => resources.milli_cpu = amount,
            MEMORY => resources.memory = amount,
            name if name.starts_with("hugepages-") => {
                resources.extended.retain(|(own, _)| &**own != name);
                resources.add(&Resources { extended: vec![(name.into(), amount)], ..Resources::default() });
            }
            _ => {}
        }
    }
}

/// While a container is being resized it holds the most of what it has and what it asks for.
fn requests(container: &Container, status: Option<&ContainerStatus>) -> Resources {
    let list = |requirements: Option<&ResourceRequirements>| {
        requirements.and_then(|requirements| requirements.requests.as_ref()).map(Resources::of)
    };
    let mut resources = list(container.resources.as_ref()).unwrap_or_default();
    if let Some(status) = status {
        if let Some(actual) = list(status.resources.as_ref()) {
            resources.max(&actual);
        }
        if let Some(allocated) = &status.allocated_resources {
            resources.max(&Resources::of(allocated));
        }
    }
    resources
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(spec: serde_json::Value) -> Pod {
        serde_json::from_value(serde_json::json!({"spec": spec})).unwrap()
    }

    fn cpu(amount: &str) -> serde_json::Value {
        serde_json::json!({"requests": {"cpu": amount}})
    }

    fn check(spec: serde_json::Value, milli_cpu: i64) {
        assert_eq!(pod_requests(&pod(spec.clone())).milli_cpu, milli_cpu, "{spec}");
    }

    #[test]
    fn a_pod_needs_its_containers_or_its_largest_start() {
        let c = |name: &str, amount: &str| serde_json::json!({"name": name, "resources": cpu(amount)});
        let side = |amount: &str| serde_json::json!({"name": "s", "restartPolicy": "Always", "resources": cpu(amount)});
        check(serde_json::json!({"containers": [c("a", "100m"), c("b", "1")]}), 1100);
        check(serde_json::json!({"containers": [c("a", "1")], "initContainers": [c("i", "3")]}), 3000);
        check(
            serde_json::json!({"containers": [c("a", "1")], "initContainers": [side("2"), c("i", "3")]}),
            5000,
        );
        check(
            serde_json::json!({"containers": [c("a", "1")], "initContainers": [c("i", "3"), side("2")]}),
            3000,
        );
        check(serde_json::json!({"containers": [c("a", "1")], "overhead": {"cpu": "250m"}}), 1250);
        check(serde_json::json!({"containers": [c("a", "1")], "resources": cpu("4")}), 4000);
    }

    #[test]
    fn a_resize_counts_the_larger_until_it_is_done() {
        let pod: Pod = serde_json::from_value(serde_json::json!({
            "spec": {"containers": [{"name": "a", "resources": cpu("1")}]},
            "status": {"containerStatuses": [{"name": "a", "image": "", "imageID": "", "ready": true, "restartCount": 0,
                "allocatedResources": {"cpu": "2"}, "resources": cpu("1")}]}
        }))
        .unwrap();
        assert_eq!(pod_requests(&pod).milli_cpu, 2000);
    }

    #[test]
    fn containers_without_requests_count_with_a_minimum() {
        let pod =
            pod(serde_json::json!({"containers": [{"name": "a"}, {"name": "b", "resources": cpu("0")}]}));
        let counted = pod_requests_never_zero(&pod);
        assert_eq!((counted.milli_cpu, counted.memory), (100, 2 * DEFAULT_MEMORY));
        assert!(pod_requests(&pod).is_nothing());
    }
}
