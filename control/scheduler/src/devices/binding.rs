//! Devices that somebody has to attach to the node before the pod may go there (KEP 5007): their conditions in the claim's
//! status say when they are.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::resource::v1::{AllocationResult, DeviceRequestAllocationResult, ResourceClaim};

/// Upstream's `bindingTimeout`.
pub const WITHIN: Duration = Duration::from_secs(600);

#[derive(Clone, Debug, PartialEq)]
pub enum Readiness {
    Ready,
    Waits,
    Failed(String),
}

pub fn results(allocation: &AllocationResult) -> &[DeviceRequestAllocationResult] {
    allocation.devices.as_ref().and_then(|devices| devices.results.as_deref()).unwrap_or(&[])
}

pub fn allocation(claim: &ResourceClaim) -> Option<&AllocationResult> {
    claim.status.as_ref()?.allocation.as_ref()
}

/// Whether the devices of an allocated claim are ready for its pod.
pub fn readiness(claim: &ResourceClaim, now: Timestamp) -> Readiness {
    let Some(allocation) = allocation(claim) else { return Readiness::Waits };
    let name = claim.metadata.name.as_deref().unwrap_or("");
    let mut waits = false;
    for result in results(allocation) {
        let wanted = result.binding_conditions.as_deref().unwrap_or(&[]);
        if wanted.is_empty() {
            continue;
        }
        let devices = claim.status.iter().flat_map(|status| status.devices.iter().flatten());
        let mut devices = devices.filter(|device| {
            (&device.driver, &device.pool, &device.device) == (&result.driver, &result.pool, &result.device)
        });
        let conditions = devices.next().and_then(|device| device.conditions.as_deref()).unwrap_or(&[]);
        let is_true =
            |name: &String| conditions.iter().find(|own| own.type_ == *name && own.status == "True");
        if let Some(failed) = result.binding_failure_conditions.iter().flatten().find_map(is_true) {
            return Readiness::Failed(format!(
                "device binding failed: claim={name}, reason={}, message={:?}",
                failed.reason, failed.message
            ));
        }
        waits |= !wanted.iter().all(|name| is_true(name).is_some());
    }
    let since = allocation.allocation_timestamp.as_ref().map(|time| time.0);
    match (waits, since) {
        (false, _) => Readiness::Ready,
        (true, Some(since)) if now.duration_since(since).unsigned_abs() > WITHIN && now > since => {
            Readiness::Failed(format!("device binding timeout: claim={name}"))
        }
        (true, _) => Readiness::Waits,
    }
}

/// Whether a claim's devices have conditions at all.
pub fn has_conditions(allocation: &AllocationResult) -> bool {
    results(allocation)
        .iter()
        .any(|result| result.binding_conditions.as_ref().is_some_and(|list| !list.is_empty()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_claim_is_ready_when_all_conditions_of_its_devices_are_true() {
        let check = |conditions: serde_json::Value, expected: &str| {
            let claim: ResourceClaim = serde_json::from_value(json!({
                "metadata": {"name": "claim"}, "spec": {},
                "status": {
                    "allocation": {"allocationTimestamp": "2026-01-01T00:00:00Z", "devices": {"results": [
                        {"request": "r", "driver": "d", "pool": "p", "device": "a", "bindingConditions": ["Attached"],
                            "bindingFailureConditions": ["Broken"]},
                        {"request": "r", "driver": "d", "pool": "p", "device": "b"},
                    ]}},
                    "devices": [{"driver": "d", "pool": "p", "device": "a", "conditions": conditions}],
                },
            }))
            .unwrap();
            let soon: Timestamp = "2026-01-01T00:00:10Z".parse().unwrap();
            assert_eq!(format!("{:?}", readiness(&claim, soon)), expected);
            let late: Timestamp = "2026-01-01T00:10:01Z".parse().unwrap();
            if expected == "Waits" {
                let failed = Readiness::Failed("device binding timeout: claim=claim".into());
                assert_eq!(readiness(&claim, late), failed);
            }
        };
        let condition = |kind: &str, status: &str| {
            json!({"type": kind, "status": status, "reason": "R", "message": "m",
                "lastTransitionTime": "2026-01-01T00:00:00Z"})
        };
        check(json!([]), "Waits");
        check(json!([condition("Attached", "False")]), "Waits");
        check(json!([condition("Attached", "True")]), "Ready");
        check(
            json!([condition("Attached", "True"), condition("Broken", "True")]),
            "Failed(\"device binding failed: claim=claim, reason=R, message=\\\"m\\\"\")",
        );
    }
}
