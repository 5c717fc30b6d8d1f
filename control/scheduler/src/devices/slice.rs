//! A ResourceSlice as the allocator reads it: amounts are parsed once, where the slice arrives.

use std::borrow::Cow;
use std::collections::BTreeMap;

use ferry_api::quantity::Quantity;
use k8s_openapi::api::resource::v1::{Device, DeviceAttribute, ResourceSlice, ResourceSliceSpec};
use kube::Resource;
use kube::api::ObjectMeta;
use kube::core::ClusterResourceScope;
use serde::{Deserialize, Deserializer};

use super::capacity::Capacity;
use super::device_id;

#[derive(Clone, Debug)]
pub struct SliceInfo {
    pub slice: ResourceSlice,
    /// In the order of the slice's devices.
    pub devices: Vec<DeviceInfo>,
    /// By the names of their sets.
    pub counters: Vec<(String, Counters)>,
}

pub type Counters = BTreeMap<String, Quantity>;

/// A device, with what the search asks about over and over.
#[derive(Clone, Debug)]
pub struct DeviceInfo {
    pub id: String,
    pub is_shared: bool,
    pub capacity: BTreeMap<String, Capacity>,
    /// What it takes from the counters of its pool, by the names of their sets.
    pub consumes: Vec<(String, Counters)>,
    /// Its place in the slice.
    pub index: usize,
}

impl SliceInfo {
    pub fn new(slice: ResourceSlice) -> SliceInfo {
        let spec = &slice.spec;
        let devices = spec.devices.iter().flatten().enumerate();
        let devices = devices.map(|(index, device)| DeviceInfo::new(spec, index, device)).collect();
        let counters = spec.shared_counters.iter().flatten();
        let counters = counters.map(|set| (set.name.clone(), read_counters(&set.counters))).collect();
        SliceInfo { devices, counters, slice }
    }

    pub fn spec(&self) -> &ResourceSliceSpec {
        &self.slice.spec
    }

    pub fn name(&self) -> &str {
        self.slice.metadata.name.as_deref().unwrap_or("")
    }

    pub fn device(&self, info: &DeviceInfo) -> &Device {
        static NONE: std::sync::LazyLock<Device> = std::sync::LazyLock::new(Device::default);
        self.slice.spec.devices.as_deref().unwrap_or(&[]).get(info.index).unwrap_or(&NONE)
    }

    /// The attribute of a device by its full name; a driver's own need not say the domain.
    pub fn attribute(&self, info: &DeviceInfo, name: &str) -> Option<&DeviceAttribute> {
        let attributes = self.device(info).attributes.as_ref()?;
        let own = || {
            let (domain, id) = name.split_once('/')?;
            attributes.get(id).filter(|_| domain == self.slice.spec.driver)
        };
        attributes.get(name).or_else(own)
    }
}

impl DeviceInfo {
    fn new(spec: &ResourceSliceSpec, index: usize, device: &Device) -> DeviceInfo {
        let capacity = device.capacity.iter().flatten();
        let consumes = device.consumes_counters.iter().flatten();
        DeviceInfo {
            id: device_id(&spec.driver, &spec.pool.name, &device.name),
            is_shared: device.allow_multiple_allocations == Some(true),
            capacity: capacity.map(|(name, given)| (name.clone(), Capacity::new(given))).collect(),
            consumes: consumes
                .map(|taken| (taken.counter_set.clone(), read_counters(&taken.counters)))
                .collect(),
            index,
        }
    }
}

fn read_counters(counters: &BTreeMap<String, k8s_openapi::api::resource::v1::Counter>) -> Counters {
    counters.iter().map(|(name, counter)| (name.clone(), super::capacity::amount(&counter.value))).collect()
}

impl<'de> Deserialize<'de> for SliceInfo {
    fn deserialize<D: Deserializer<'de>>(json: D) -> Result<Self, D::Error> {
        ResourceSlice::deserialize(json).map(SliceInfo::new)
    }
}

impl Resource for SliceInfo {
    type DynamicType = ();
    type Scope = ClusterResourceScope;

    fn kind(own: &()) -> Cow<'_, str> {
        ResourceSlice::kind(own)
    }

    fn group(own: &()) -> Cow<'_, str> {
        ResourceSlice::group(own)
    }

    fn version(own: &()) -> Cow<'_, str> {
        ResourceSlice::version(own)
    }

    fn plural(own: &()) -> Cow<'_, str> {
        ResourceSlice::plural(own)
    }

    fn meta(&self) -> &ObjectMeta {
        &self.slice.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.slice.metadata
    }
}
