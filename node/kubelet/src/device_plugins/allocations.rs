//! Which devices the containers of pods have.

use std::collections::{BTreeMap, BTreeSet};

use ferry_plugins_api::deviceplugin::ContainerAllocateResponse;
use k8s_openapi::api::core::v1::Pod;

use crate::pod;

/// The NUMA node of devices whose plugin names none, as upstream's checkpoint has it.
pub const NO_NODE: i64 = -1;

/// What a container has of a resource.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Allocation {
    /// By NUMA node; a device that is near several stands at each of them.
    pub devices: BTreeMap<i64, Vec<String>>,
    /// What the plugin answered to Allocate.
    pub answer: ContainerAllocateResponse,
}

impl Allocation {
    pub fn ids(&self) -> BTreeSet<&str> {
        self.devices.values().flatten().map(String::as_str).collect()
    }

    /// Each device with the NUMA nodes that it is near.
    pub fn nodes(&self) -> BTreeMap<&str, Vec<i64>> {
        let mut nodes: BTreeMap<&str, Vec<i64>> = BTreeMap::new();
        for (node, devices) in &self.devices {
            for device in devices {
                let near = nodes.entry(device).or_default();
                if *node != NO_NODE {
                    near.push(*node);
                }
            }
        }
        nodes
    }
}

type OfContainer = BTreeMap<String, Allocation>;
type OfPod = BTreeMap<String, OfContainer>;

/// By pod, container and resource.
#[derive(Debug, Default, PartialEq)]
pub struct Allocations {
    pods: BTreeMap<String, OfPod>,
}

impl Allocations {
    pub fn insert(&mut self, uid: &str, container: &str, resource: &str, allocation: Allocation) {
        let of_pod = self.pods.entry(uid.into()).or_default();
        of_pod.entry(container.into()).or_default().insert(resource.into(), allocation);
    }

    /// Whether there was anything.
    pub fn remove(&mut self, uid: &str) -> bool {
        self.pods.remove(uid).is_some()
    }

    pub fn has(&self, uid: &str) -> bool {
        self.pods.contains_key(uid)
    }

    pub fn pods(&self) -> Vec<String> {
        self.pods.keys().cloned().collect()
    }

    pub fn get(&self, uid: &str, container: &str, resource: &str) -> Option<&Allocation> {
        self.of_container(uid, container)?.get(resource)
    }

    pub fn of_container(&self, uid: &str, container: &str) -> Option<&OfContainer> {
        self.pods.get(uid)?.get(container)
    }

    /// Pod, container, resource, allocation.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str, &str, &Allocation)> {
        self.pods.iter().flat_map(|(uid, containers)| {
            containers.iter().flat_map(move |(container, resources)| {
                resources.iter().map(move |(resource, allocation)| {
                    (uid.as_str(), container.as_str(), resource.as_str(), allocation)
                })
            })
        })
    }

    /// Whether some container has, or had, something of a resource.
    pub fn has_resource(&self, resource: &str) -> bool {
        self.iter().any(|(_, _, of, _)| of == resource)
    }

    /// The devices of a resource that somebody has.
    pub fn in_use(&self, resource: &str) -> BTreeSet<&str> {
        let of_resource = self.iter().filter(|(_, _, of, _)| *of == resource);
        of_resource.flat_map(|(_, _, _, allocation)| allocation.ids()).collect()
    }

    /// The pods that have one of these devices of a resource.
    pub fn pods_with(&self, resource: &str, devices: &BTreeSet<String>) -> BTreeSet<String> {
        let has = |allocation: &Allocation| allocation.ids().iter().any(|id| devices.contains(*id));
        let with = self.iter().filter(|(_, _, of, allocation)| *of == resource && has(allocation));
        with.map(|(uid, ..)| uid.to_owned()).collect()
    }

    /// The devices that init containers of a pod were given and that are free for its other containers: those of
    /// sidecars, which go on running, and of containers stay theirs.
    pub fn reusable(&self, pod: &Pod, resource: &str) -> BTreeSet<String> {
        let (uid, spec) = (pod::uid(pod), pod::spec(pod));
        let of = |name: &str| self.get(uid, name, resource).map(Allocation::ids).unwrap_or_default();
        let (sidecars, initial): (Vec<_>, Vec<_>) =
            spec.init_containers.iter().flatten().partition(|container| pod::is_sidecar(container));
        let kept: BTreeSet<&str> =
            sidecars.into_iter().chain(&spec.containers).flat_map(|container| of(&container.name)).collect();
        let had = initial.into_iter().flat_map(|container| of(&container.name));
        had.filter(|id| !kept.contains(id)).map(str::to_owned).collect()
    }
}
