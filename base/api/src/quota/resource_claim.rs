//! A ResourceClaim against a quota: devices by class, at their worst, and by the extended resources that classes stand for.

use std::collections::BTreeMap;
use std::ops::Deref;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::resource::v1::ResourceClaim;

use super::{Amounts, add, number, one, pod};
use crate::quantity::{Format, Quantity};

const COUNT: &str = "count/resourceclaims.resource.k8s.io";
const OF_CLASS: &str = ".deviceclass.resource.k8s.io/devices";
const REQUESTS: &str = "requests.";
/// Set to `true` on claims that the scheduler makes for pods' extended resources.
const EXTENDED: &str = "resource.kubernetes.io/extended-resource-claim";
/// No claim can be given more devices than this.
const MOST: usize = 32;

/// The classes of devices, each with the extended resource that it names.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeviceClasses(BTreeMap<String, Option<String>>);

impl DeviceClasses {
    pub fn add(&mut self, class: impl Into<String>, resource: Option<impl Into<String>>) {
        self.0.insert(class.into(), resource.map(Into::into));
    }

    /// Does a class stand for a resource of this name? Each does for one made of its own.
    fn stand_for(&self, resource: &str) -> bool {
        match resource.strip_prefix(pod::DEVICE_CLASS) {
            Some(class) => self.0.contains_key(class),
            None => pod::is_extended(resource) && self.0.values().flatten().any(|named| named == resource),
        }
    }

    /// What a quota calls the extended resources that a class stands for.
    fn names(&self, class: &str) -> impl Iterator<Item = String> {
        let named = self.0.get(class);
        let own = named.map(|_| format!("{REQUESTS}{}{class}", pod::DEVICE_CLASS));
        let named = named.and_then(Option::as_ref).map(|resource| format!("{REQUESTS}{resource}"));
        own.into_iter().chain(named)
    }
}

/// A claim, and what its cost depends on beside it.
#[derive(Debug, Clone, Copy)]
pub struct ClaimOfDevices<'a> {
    pub claim: &'a ResourceClaim,
    pub classes: &'a DeviceClasses,
    /// The pod whose extended resources the claim provides: it is charged for them itself.
    pub pod: Option<&'a Pod>,
}

/// Can a quota over this name count claims for devices? For an extended resource that depends on the classes.
pub fn may_track(name: &str) -> bool {
    name.ends_with(OF_CLASS) || name.strip_prefix(REQUESTS).is_some_and(pod::is_extended)
}

/// The pod that a claim was made for, and no other claim before it. `find` knows the pods of the claim's namespace, and
/// `claims` has the claims there, if need be.
pub fn pod_of<P, C>(
    claim: &ResourceClaim,
    find: impl FnOnce(&str) -> Option<P>,
    claims: impl FnOnce() -> Vec<C>,
) -> Option<P>
where
    P: Deref<Target = Pod>,
    C: Deref<Target = ResourceClaim>,
{
    let (name, uid) = owner(claim)?;
    let pod = find(name).filter(|pod| pod.metadata.uid.as_deref() == Some(uid))?;
    let told = pod.status.as_ref().and_then(|status| status.extended_resource_claim_status.as_ref());
    let is_of_pod = match told {
        Some(status) => Some(&status.resource_claim_name) == claim.metadata.name.as_ref(),
        None => {
            let age = |claim: &ResourceClaim| {
                (claim.metadata.creation_timestamp.as_ref().map(|time| time.0), claim.metadata.name.clone())
            };
            let own = age(claim);
            let others = claims();
            !others.iter().any(|other| owner(other).is_some_and(|(_, of)| of == uid) && age(other) < own)
        }
    };
    is_of_pod.then_some(pod)
}

/// Name and uid of the pod that a claim for extended resources belongs to.
fn owner(claim: &ResourceClaim) -> Option<(&str, &str)> {
    let is_extended = claim.metadata.annotations.as_ref()?.get(EXTENDED)? == "true";
    let mut owners = claim.metadata.owner_references.iter().flatten();
    let owner = owners.find(|owner| owner.controller == Some(true))?;
    (is_extended && owner.kind == "Pod" && owner.api_version == "v1")
        .then_some((owner.name.as_str(), owner.uid.as_str()))
}

pub fn tracks(claim: ClaimOfDevices<'_>, name: &str) -> bool {
    name == COUNT
        || name.ends_with(OF_CLASS)
        || name.strip_prefix(REQUESTS).is_some_and(|resource| claim.classes.stand_for(resource))
}

pub fn usage(item: ClaimOfDevices<'_>, now: Timestamp) -> Amounts {
    let mut usage = devices(item.claim);
    let mut extended = Amounts::new();
    for (name, amount) in &usage {
        let Some(class) = name.strip_suffix(OF_CLASS) else { continue };
        add(&mut extended, item.classes.names(class).map(|name| (name, *amount)).collect());
    }
    let charged = item.pod.map(|pod| pod::usage(pod, now)).unwrap_or_default();
    for (name, amount) in extended {
        let more = amount - charged.get(&name).copied().unwrap_or(Quantity::ZERO);
        if more > Quantity::ZERO {
            usage.insert(name, more);
        }
    }
    usage.insert(COUNT.to_string(), one());
    usage
}

fn devices(claim: &ResourceClaim) -> Amounts {
    let mut usage = Amounts::new();
    let requests = claim.spec.devices.iter().flat_map(|devices| devices.requests.iter().flatten());
    for request in requests {
        let mut worst = Amounts::new();
        let alternatives = request.first_available.iter().flatten();
        let alternatives =
            alternatives.map(|sub| (&sub.device_class_name, sub.allocation_mode.as_deref(), sub.count));
        let exact = request.exactly.iter();
        let exact =
            exact.map(|exact| (&exact.device_class_name, exact.allocation_mode.as_deref(), exact.count));
        for (class, mode, count) in alternatives.chain(exact) {
            let devices = match mode {
                Some("All") => number(MOST),
                Some("ExactCount") | None => Quantity::from_value(count.unwrap_or(1), Format::DecimalSi),
                // Of a newer version; nobody can say what it costs.
                Some(_) => Quantity::ZERO,
            };
            let known = worst.entry(format!("{class}{OF_CLASS}")).or_insert(devices);
            *known = (*known).max(devices);
        }
        add(&mut usage, worst);
    }
    usage
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn devices_are_charged_at_their_worst() {
        let claim: ResourceClaim = serde_json::from_value(json!({"spec": {"devices": {"requests": [
            {"name": "a", "exactly": {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 2}},
            {"name": "b", "firstAvailable": [
                {"name": "x", "deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 1},
                {"name": "y", "deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 3},
                {"name": "z", "deviceClassName": "nic", "allocationMode": "All"},
            ]},
        ]}}}))
        .expect("a claim");
        let classes = DeviceClasses::default();
        let item = ClaimOfDevices { claim: &claim, classes: &classes, pod: None };
        let usage = usage(item, Timestamp::UNIX_EPOCH);
        assert_eq!(usage["gpu.deviceclass.resource.k8s.io/devices"].to_string(), "5");
        assert_eq!(usage["nic.deviceclass.resource.k8s.io/devices"].to_string(), "32");
        assert!(usage.keys().all(|name| tracks(item, name)));
    }

    fn gpus(name: &str, count: i64) -> ResourceClaim {
        serde_json::from_value(json!({
            "metadata": {
                "name": name, "creationTimestamp": "2026-01-01T00:00:00Z",
                "annotations": {EXTENDED: "true"},
                "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u", "controller": true}],
            },
            "spec": {"devices": {"requests": [
                {"name": "a", "exactly": {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": count}},
            ]}},
        }))
        .expect("a claim")
    }

    #[test]
    fn devices_count_as_the_extended_resources_of_their_class() {
        let (own, named) = ("requests.deviceclass.resource.kubernetes.io/gpu", "requests.example.com/gpu");
        let mut classes = DeviceClasses::default();
        classes.add("other", None::<String>);
        let claim = gpus("c", 4);
        let check = |classes: &DeviceClasses, pod: Option<&Pod>, expected: [Option<&str>; 2]| {
            let item = ClaimOfDevices { claim: &claim, classes, pod };
            let usage = usage(item, Timestamp::UNIX_EPOCH);
            let shown = [own, named].map(|name| usage.get(name).map(ToString::to_string));
            assert_eq!(shown.each_ref().map(Option::as_deref), expected);
            assert!(usage.keys().all(|name| tracks(item, name)));
            assert_eq!(usage["gpu.deviceclass.resource.k8s.io/devices"].to_string(), "4");
        };
        check(&classes, None, [None, None]);
        classes.add("gpu", None::<String>);
        check(&classes, None, [Some("4"), None]);
        classes.add("gpu", Some("example.com/gpu"));
        check(&classes, None, [Some("4"), Some("4")]);
        // what the pod asked for is charged to the pod
        let pod: Pod = serde_json::from_value(json!({"spec": {"containers": [{"name": "a", "resources": {
            "requests": {"example.com/gpu": "1", "deviceclass.resource.kubernetes.io/gpu": "4"},
        }}]}}))
        .expect("a pod");
        check(&classes, Some(&pod), [None, Some("3")]);

        let item = ClaimOfDevices { claim: &claim, classes: &classes, pod: None };
        for untracked in
            ["requests.example.com/other", "requests.deviceclass.resource.kubernetes.io/x", "requests.cpu"]
        {
            assert!(!tracks(item, untracked), "{untracked}");
        }
        assert!(may_track(own) && may_track(named) && !may_track("requests.cpu") && !may_track(COUNT));
    }

    #[test]
    fn a_pod_pays_for_one_claim() {
        let pod = |claim: Option<&str>| -> Box<Pod> {
            let status = claim.map(|name| json!({"resourceClaimName": name, "requestMappings": []}));
            let pod = json!({"metadata": {"name": "p", "uid": "u"}, "status": {"extendedResourceClaimStatus": status}});
            serde_json::from_value(pod).expect("a pod")
        };
        let check = |claim: &ResourceClaim, pod: Box<Pod>, expected: bool| {
            let find = |name: &str| (name == "p").then_some(pod);
            let claims = || vec![Box::new(gpus("b", 1)), Box::new(gpus("c", 1))];
            assert_eq!(pod_of(claim, find, claims).is_some(), expected, "{:?}", claim.metadata.name);
        };
        check(&gpus("b", 1), pod(None), true);
        check(&gpus("c", 1), pod(None), false);
        check(&gpus("c", 1), pod(Some("c")), true);
        check(&gpus("b", 1), pod(Some("c")), false);
        let mut foreign = gpus("a", 1);
        foreign.metadata.annotations = None;
        check(&foreign, pod(None), false);
        let mut another = pod(None);
        another.metadata.uid = Some("v".into());
        check(&gpus("b", 1), another, false);
    }
}
