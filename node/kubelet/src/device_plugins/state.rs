//! The resources of device plugins, as the node's status has them, and which devices a container is given. Pure.
//!
//! ```text
//!   plugin lists its devices ──▶ present ──▶ gone (0 allocatable) ──▶ removed after the grace (0 capacity)
//!          a former kubelet's checkpoint ──▶ gone ▲ │ plugin comes back
//!                                                 └─┘
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ferry_plugins_api::deviceplugin;
use k8s_openapi::api::core::v1::Pod;
use tokio::time::Instant;

use super::allocations::{Allocation, Allocations, NO_NODE};
use crate::pod;

/// A plugin that is gone has this long to come back before its resource leaves the node's capacity, as upstream has it.
pub const GRACE: Duration = Duration::from_secs(5 * 60);
/// Of one resource.
const MAX_DEVICES: usize = 65_536;

/// In upstream's words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error(
        "pod \"{uid}\" container \"{container}\" changed request for resource \"{resource}\" from {had} to {required}"
    )]
    Changed { uid: String, container: String, resource: String, had: usize, required: usize },
    #[error("cannot allocate unregistered device {0}")]
    Unregistered(String),
    #[error("no healthy devices present; cannot allocate unhealthy devices {0}")]
    NoneHealthy(String),
    #[error("previously allocated devices are no longer healthy; cannot allocate unhealthy devices {0}")]
    NoLongerHealthy(String),
    #[error(
        "requested number of devices unavailable for {resource}. Requested: {requested}, Available: {available}"
    )]
    Unavailable { resource: String, requested: usize, available: usize },
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Device {
    is_healthy: bool,
    /// NUMA nodes.
    nodes: Vec<i64>,
}

#[derive(Debug)]
struct Resource {
    /// As the plugin last told; none of one that is known from the checkpoint alone.
    devices: BTreeMap<String, Device>,
    /// Since when there is no plugin.
    gone: Option<Instant>,
    /// Whether a plugin has told of devices since the kubelet started.
    told: bool,
}

impl Resource {
    fn healthy(&self) -> BTreeSet<&str> {
        let healthy = self.devices.iter().filter(|(_, device)| device.is_healthy && self.gone.is_none());
        healthy.map(|(id, _)| id.as_str()).collect()
    }
}

/// How much of a resource the node's status has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    pub capacity: usize,
    pub allocatable: usize,
}

/// The devices a container may be given.
#[derive(Debug, PartialEq, Eq)]
pub struct Candidates {
    pub required: usize,
    /// Those that are the container's already: init containers of its pod were given them.
    pub reused: BTreeSet<String>,
    pub available: BTreeSet<String>,
}

impl Candidates {
    /// Whether there is nothing left to choose.
    pub fn is_decided(&self) -> bool {
        self.reused.len() == self.required
    }

    /// As many as are required, those that the plugin prefers first.
    pub fn choose(self, preferred: &[String]) -> BTreeSet<String> {
        let preferred = preferred.iter().filter(|id| self.available.contains(*id));
        let mut chosen = self.reused;
        for id in preferred.chain(&self.available) {
            if chosen.len() == self.required {
                break;
            }
            chosen.insert(id.clone());
        }
        chosen
    }
}

#[derive(Debug, Default)]
pub struct State {
    resources: BTreeMap<String, Resource>,
    /// Those whose plugin did not come back: the node's status has them with nothing, which tells them from resources
    /// that are none of the kubelet's.
    removed: BTreeSet<String>,
    pub allocations: Allocations,
}

impl State {
    /// As a former kubelet left it. None of its plugins is there yet.
    pub fn new(resources: impl IntoIterator<Item = String>, allocations: Allocations, now: Instant) -> Self {
        let gone = |name| (name, Resource { devices: BTreeMap::new(), gone: Some(now), told: false });
        Self { resources: resources.into_iter().map(gone).collect(), removed: BTreeSet::new(), allocations }
    }

    /// A plugin tells of all its devices. Says which are not as they were.
    pub fn take_in(&mut self, resource: &str, devices: Vec<deviceplugin::Device>) -> BTreeSet<String> {
        let devices = devices.into_iter().take(MAX_DEVICES).map(|device| {
            let nodes = device.topology.iter().flat_map(|topology| topology.nodes.iter().map(|node| node.id));
            let nodes = nodes.collect();
            (device.id, Device { is_healthy: device.health == "Healthy", nodes })
        });
        let devices: BTreeMap<_, _> = devices.collect();
        let before = self.resources.remove(resource).map(|before| before.devices).unwrap_or_default();
        let health = |of: &BTreeMap<String, Device>, id: &str| of.get(id).map(|device| device.is_healthy);
        let changed = devices.keys().filter(|id| health(&before, id) != health(&devices, id)).cloned();
        let changed = changed.collect();
        self.removed.remove(resource);
        self.resources.insert(resource.into(), Resource { devices, gone: None, told: true });
        changed
    }

    /// The plugin of a resource is gone: none of its devices can be given.
    pub fn set_gone(&mut self, resource: &str, now: Instant) {
        if let Some(resource) = self.resources.get_mut(resource) {
            resource.gone.get_or_insert(now);
        }
    }

    /// What the node has of each resource, without those whose plugins did not come back. Says whether one was removed.
    pub fn counts(&mut self, now: Instant) -> (BTreeMap<String, Count>, bool) {
        let is_over = |resource: &Resource| resource.gone.is_some_and(|since| now >= since + GRACE);
        let over: Vec<String> =
            self.resources.extract_if(.., |_, resource| is_over(resource)).map(|(name, _)| name).collect();
        let is_less = !over.is_empty();
        self.removed.extend(over);
        let present = self.resources.iter().map(|(name, resource)| {
            let count = Count { capacity: resource.devices.len(), allocatable: resource.healthy().len() };
            (name.clone(), count)
        });
        let removed = self.removed.iter().map(|name| (name.clone(), Count::default()));
        (removed.chain(present).collect(), is_less)
    }

    /// The healthy devices of each resource, for a kubelet that comes after.
    pub fn registered(&self) -> BTreeMap<String, Vec<String>> {
        let ids = |resource: &Resource| resource.healthy().into_iter().map(str::to_owned).collect();
        self.resources.iter().map(|(name, resource)| (name.clone(), ids(resource))).collect()
    }

    /// The healthy devices of each resource, and the NUMA nodes they are near.
    pub fn healthy(&self) -> Vec<(&str, &str, &[i64])> {
        self.resources
            .iter()
            .filter(|(_, resource)| resource.gone.is_none())
            .flat_map(|(name, resource)| {
                let healthy = resource.devices.iter().filter(|(_, device)| device.is_healthy);
                healthy.map(move |(id, device)| (name.as_str(), id.as_str(), device.nodes.as_slice()))
            })
            .collect()
    }

    /// Whether a device is healthy, as its plugin last said. One that it no longer lists counts as healthy, as upstream
    /// has it.
    pub fn is_healthy(&self, resource: &str, device: &str) -> bool {
        let device = self.resources.get(resource).and_then(|resource| resource.devices.get(device));
        device.is_none_or(|device| device.is_healthy)
    }

    /// Whether a resource is a device plugin's: others are not the kubelet's to give.
    pub fn is_of_plugin(&self, resource: &str) -> bool {
        self.resources.contains_key(resource) || self.allocations.has_resource(resource)
    }

    /// What a container may be given of a resource. `None` if it has it already.
    pub fn candidates(
        &self,
        pod: &Pod,
        container: &str,
        resource: &str,
        required: usize,
    ) -> Result<Option<Candidates>, Error> {
        let uid = pod::uid(pod);
        let had = self.allocations.get(uid, container, resource).map(Allocation::ids);
        if let Some(had) = had.as_ref().map(BTreeSet::len)
            && had != required
        {
            let (uid, container, resource) = (uid.into(), container.into(), resource.into());
            return Err(Error::Changed { uid, container, resource, had, required });
        }
        let known = self.resources.get(resource);
        // what a former kubelet gave is the container's, though its plugin has not come back yet
        if had.is_some() && known.is_none_or(|known| !known.told) {
            return Ok(None);
        }
        let known = known.ok_or_else(|| Error::Unregistered(resource.into()))?;
        let healthy = known.healthy();
        if healthy.is_empty() {
            return Err(Error::NoneHealthy(resource.into()));
        }
        if let Some(had) = had {
            let are_healthy = had.is_subset(&healthy);
            return if are_healthy { Ok(None) } else { Err(Error::NoLongerHealthy(resource.into())) };
        }
        let reused: BTreeSet<String> =
            self.allocations.reusable(pod, resource).into_iter().take(required).collect();
        let in_use = self.allocations.in_use(resource);
        let available: BTreeSet<String> = healthy.difference(&in_use).map(|id| (*id).to_owned()).collect();
        let requested = required - reused.len();
        if available.len() < requested {
            let available = available.len();
            return Err(Error::Unavailable { resource: resource.into(), requested, available });
        }
        Ok(Some(Candidates { required, reused, available }))
    }

    /// Devices by the NUMA nodes they are near.
    pub fn by_node(&self, resource: &str, devices: &BTreeSet<String>) -> BTreeMap<i64, Vec<String>> {
        let known = self.resources.get(resource);
        let mut by_node: BTreeMap<i64, Vec<String>> = BTreeMap::new();
        for id in devices {
            let device = known.and_then(|known| known.devices.get(id));
            let nodes = device.map(|device| device.nodes.as_slice()).filter(|nodes| !nodes.is_empty());
            for node in nodes.unwrap_or(&[NO_NODE]) {
                by_node.entry(*node).or_default().push(id.clone());
            }
        }
        by_node
    }
}
