//! The part of DynamicResources for extended resources that DeviceClasses stand for: the claim that a node needs for the
//! pod, and what an earlier attempt left. Which node needs a claim depends on its device plugins, so there are as many
//! variants of the claim as sets of resources without one.

use std::collections::HashMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::ContainerExtendedResourceRequest;
use k8s_openapi::api::resource::v1::{AllocationResult, DeviceClass, ResourceClaim};
use parking_lot::Mutex;

use super::{Cluster, Cycle, Refusal};
use crate::devices::demand::Demand;
use crate::devices::extended;
use crate::resources::Resource;
use crate::snapshot::{NodeIndex, Snapshot};

/// The extended resources of a pod; a class stands for one of them at least.
pub struct ExtendedResources {
    /// The claim of an earlier attempt to schedule the pod. Its allocation may be outdated, so it is deleted first.
    pub stale: Option<Arc<ResourceClaim>>,
    resources: Vec<(Box<str>, Option<Arc<DeviceClass>>)>,
    /// By the places in `resources` of those that come from devices.
    variants: Mutex<HashMap<Vec<usize>, Made>>,
}

type Made = Result<Arc<Variant>, String>;

/// What is asked of a node that provides these resources as devices.
pub struct Variant {
    /// Of the claim as it is created.
    pub demand: Demand,
    pub mappings: Vec<ContainerExtendedResourceRequest>,
}

/// A claim that is created before the pod is bound.
#[derive(Clone, Debug)]
pub struct ExtendedReservation {
    /// As it is created, but for its temporary uid.
    pub claim: Arc<ResourceClaim>,
    pub allocation: AllocationResult,
    pub mappings: Vec<ContainerExtendedResourceRequest>,
}

/// Whether a node has no device plugin for a resource that a class stands for.
pub fn is_delegated(cluster: &dyn Cluster, snapshot: &Snapshot, node: NodeIndex, resource: &str) -> bool {
    snapshot.allocatable(node, Resource::Extended(resource)) == 0
        && extended::may_be_devices(resource)
        && cluster.device_class_of(resource).is_some()
}

impl ExtendedResources {
    pub fn of(cycle: &Cycle) -> Option<ExtendedResources> {
        if cycle.pod.extended.is_empty() {
            return None;
        }
        let requested = cycle.pod.requests.extended.iter();
        let requested = requested.filter(|(name, amount)| *amount != 0 && extended::may_be_devices(name));
        let resources: Vec<_> =
            requested.map(|(name, _)| (name.clone(), cycle.cluster.device_class_of(name))).collect();
        if resources.iter().all(|(_, class)| class.is_none()) {
            return None;
        }
        let stale = cycle.cluster.extended_claim(cycle.pod);
        Some(ExtendedResources { stale, resources, variants: Mutex::default() })
    }

    /// What a node has to provide as devices; None where device plugins provide everything.
    pub fn on(
        &self,
        cycle: &Cycle,
        snapshot: &Snapshot,
        node: NodeIndex,
    ) -> Result<Option<Arc<Variant>>, Refusal> {
        if self.stale.is_some() {
            return Err(Refusal::unresolvable("cannot schedule extended resource claim"));
        }
        let mut devices = Vec::new();
        for (at, (name, class)) in self.resources.iter().enumerate() {
            if snapshot.allocatable(node, Resource::Extended(name)) != 0 {
                continue;
            }
            match class {
                Some(_) => devices.push(at),
                None if snapshot.has_extended(node, name) => {}
                None => return Err(Refusal::unresolvable("cannot fit resource")),
            }
        }
        if devices.is_empty() {
            return Ok(None);
        }
        let mut variants = self.variants.lock();
        let variant = match variants.get(&devices) {
            Some(variant) => variant.clone(),
            None => {
                let variant = self.variant(cycle, &devices).map(Arc::new);
                variants.insert(devices, variant.clone());
                variant
            }
        };
        variant.map(Some).map_err(Refusal::unresolvable)
    }

    fn variant(&self, cycle: &Cycle, devices: &[usize]) -> Result<Variant, String> {
        let named = devices.iter().filter_map(|at| {
            let (resource, class) = &self.resources[*at];
            Some((&**resource, class.as_ref()?.metadata.name.as_deref()?))
        });
        let named: Vec<(&str, &str)> = named.collect();
        let (requests, mappings) = extended::requests(&cycle.pod.extended, &named);
        let claim = Arc::new(extended::claim(cycle.pod, requests));
        let demand = Demand::new(&claim, &|name: &str| cycle.cluster.device_class(name))?;
        Ok(Variant { demand, mappings })
    }
}
