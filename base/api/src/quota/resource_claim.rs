//! A ResourceClaim against a quota: devices by class, at their worst.

use k8s_openapi::api::resource::v1::ResourceClaim;

use super::{Amounts, add, number, one};
use crate::quantity::{Format, Quantity};

const COUNT: &str = "count/resourceclaims.resource.k8s.io";
const OF_CLASS: &str = ".deviceclass.resource.k8s.io/devices";
/// No claim can be given more devices than this.
const MOST: usize = 32;

pub fn tracks(name: &str) -> bool {
    name == COUNT || name.ends_with(OF_CLASS)
}

pub fn usage(claim: &ResourceClaim) -> Amounts {
    let mut usage = Amounts::from([(COUNT.to_string(), one())]);
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
        let usage = usage(&claim);
        assert_eq!(usage["gpu.deviceclass.resource.k8s.io/devices"].to_string(), "5");
        assert_eq!(usage["nic.deviceclass.resource.k8s.io/devices"].to_string(), "32");
        assert!(usage.keys().all(|name| tracks(name)));
    }
}
