//! A status as the patch that shows it: what the kubelet owns, absent fields
//! removed, conditions of others untouched because the list merges by type.

use k8s_openapi::api::core::v1::{ContainerStatus, PodCondition, PodStatus, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde::Serialize;
use std::collections::BTreeMap;

/// Conditions the kubelet answers for; only these are sent.
pub const OWN_CONDITIONS: [&str; 8] = [
    "PodReadyToStartContainers",
    "Initialized",
    "Ready",
    "ContainersReady",
    "PodScheduled",
    "DisruptionTarget",
    PENDING,
    IN_PROGRESS,
];
/// Those that go away when what they tell of is over.
const PENDING: &str = "PodResizePending";
const IN_PROGRESS: &str = "PodResizeInProgress";

/// The body of a strategic merge patch that makes a status what is shown of the pod with this uid.
pub fn body(uid: &str, status: &PodStatus) -> serde_json::Result<Vec<u8>> {
    serde_json::to_vec(&Patch { metadata: Identity { uid }, status: Status::of(status) })
}

/// Whether a status says no more than that the pod begins: nothing of it has run, failed or ended yet.
pub fn begins(status: &PodStatus) -> bool {
    let is_awaited = |container: &ContainerStatus| {
        let waiting = container.state.as_ref().and_then(|state| state.waiting.as_ref());
        let reason = waiting.and_then(|waiting| waiting.reason.as_deref());
        matches!(reason, Some("ContainerCreating" | "PodInitializing"))
            && container.restart_count == 0
            && container.last_state.as_ref().is_none_or(|last| last.terminated.is_none())
    };
    let mut containers =
        [&status.init_container_statuses, &status.container_statuses, &status.ephemeral_container_statuses]
            .into_iter()
            .flatten()
            .flatten();
    status.phase.as_deref() == Some("Pending") && status.reason.is_none() && containers.all(is_awaited)
}

#[derive(Serialize)]
struct Patch<'a> {
    metadata: Identity<'a>,
    status: Status<'a>,
}

#[derive(Serialize)]
struct Identity<'a> {
    uid: &'a str,
}

/// A field that is `None` is written as null, which removes it.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Status<'a> {
    phase: &'a Option<String>,
    reason: &'a Option<String>,
    message: &'a Option<String>,
    conditions: Vec<Condition<'a>>,
    #[serde(rename = "hostIP")]
    host_ip: &'a Option<String>,
    #[serde(rename = "hostIPs")]
    host_ips: Vec<Address<'a>>,
    #[serde(rename = "podIP")]
    pod_ip: &'a Option<String>,
    #[serde(rename = "podIPs")]
    pod_ips: Vec<Address<'a>>,
    start_time: &'a Option<Time>,
    qos_class: &'a Option<String>,
    observed_generation: Option<i64>,
    container_statuses: &'a Option<Vec<ContainerStatus>>,
    init_container_statuses: &'a Option<Vec<ContainerStatus>>,
    ephemeral_container_statuses: &'a Option<Vec<ContainerStatus>>,
    resources: &'a Option<ResourceRequirements>,
    allocated_resources: &'a Option<BTreeMap<String, Quantity>>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Condition<'a> {
    #[serde(rename_all = "camelCase")]
    Shown {
        #[serde(rename = "type")]
        kind: &'a str,
        status: &'a str,
        reason: &'a Option<String>,
        message: &'a Option<String>,
        last_transition_time: &'a Option<Time>,
        observed_generation: Option<i64>,
    },
    Over {
        #[serde(rename = "$patch")]
        patch: &'static str,
        #[serde(rename = "type")]
        kind: &'static str,
    },
}

#[derive(Serialize)]
#[serde(untagged)]
enum Address<'a> {
    Of {
        ip: &'a str,
    },
    /// These lists merge by address; a pod that moved must lose the old one.
    Replace {
        #[serde(rename = "$patch")]
        patch: &'static str,
    },
}

impl<'a> Status<'a> {
    fn of(status: &'a PodStatus) -> Self {
        let replaced = |ips: &mut dyn Iterator<Item = &'a str>| {
            let list = ips.map(|ip| Address::Of { ip });
            std::iter::once(Address::Replace { patch: "replace" }).chain(list).collect()
        };
        Self {
            phase: &status.phase,
            reason: &status.reason,
            message: &status.message,
            conditions: conditions(status),
            host_ip: &status.host_ip,
            host_ips: replaced(&mut status.host_ips.iter().flatten().map(|each| each.ip.as_str())),
            pod_ip: &status.pod_ip,
            pod_ips: replaced(&mut status.pod_ips.iter().flatten().map(|each| each.ip.as_str())),
            start_time: &status.start_time,
            qos_class: &status.qos_class,
            observed_generation: status.observed_generation,
            container_statuses: &status.container_statuses,
            init_container_statuses: &status.init_container_statuses,
            ephemeral_container_statuses: &status.ephemeral_container_statuses,
            resources: &status.resources,
            allocated_resources: &status.allocated_resources,
        }
    }
}

fn conditions(status: &PodStatus) -> Vec<Condition<'_>> {
    let all = || status.conditions.iter().flatten();
    let shown = |condition: &'_ &PodCondition| OWN_CONDITIONS.contains(&condition.type_.as_str());
    let own = all().filter(shown).map(|condition| Condition::Shown {
        kind: &condition.type_,
        status: &condition.status,
        reason: &condition.reason,
        message: &condition.message,
        last_transition_time: &condition.last_transition_time,
        observed_generation: condition.observed_generation,
    });
    let over = [PENDING, IN_PROGRESS].into_iter().filter(|kind| !all().any(|shown| shown.type_ == *kind));
    own.chain(over.map(|kind| Condition::Over { patch: "delete", kind })).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn status(status: Value) -> PodStatus {
        serde_json::from_value(status).expect("the status is well formed")
    }

    #[test]
    fn the_status_patch_removes_own_fields_and_keeps_those_of_others() {
        let status = status(json!({
            "phase": "Running",
            "podIP": "10.0.0.1",
            "podIPs": [{"ip": "10.0.0.1"}],
            "conditions": [
                {"type": "Ready", "status": "True", "observedGeneration": 2},
                {"type": "gate.example.com/open", "status": "True"},
            ],
        }));
        let body: Value = serde_json::from_slice(&body("u", &status).expect("it is encoded")).expect("JSON");
        assert_eq!(body["metadata"], json!({"uid": "u"}));
        let status = &body["status"];
        assert_eq!(
            status["conditions"],
            json!([
                {"type": "Ready", "status": "True", "reason": null, "message": null, "lastTransitionTime": null, "observedGeneration": 2},
                {"$patch": "delete", "type": "PodResizePending"},
                {"$patch": "delete", "type": "PodResizeInProgress"},
            ])
        );
        assert_eq!(status["podIPs"], json!([{"$patch": "replace"}, {"ip": "10.0.0.1"}]));
        assert_eq!(status["hostIPs"], json!([{"$patch": "replace"}]));
        for removed in ["hostIP", "reason", "message", "startTime", "containerStatuses", "resources"] {
            assert_eq!(status.get(removed), Some(&Value::Null), "{removed}");
        }
    }

    #[test]
    fn only_what_has_not_run_or_failed_begins() {
        let check = |phase: &str, state: Value, restarts: i32, expected: bool| {
            let container = json!({"name": "c", "image": "i", "imageID": "", "ready": false, "restartCount": restarts, "state": state});
            let status = status(json!({"phase": phase, "containerStatuses": [container]}));
            assert_eq!(begins(&status), expected, "{status:?}");
        };
        let waiting = |reason: &str| json!({"waiting": {"reason": reason}});
        check("Pending", waiting("ContainerCreating"), 0, true);
        check("Pending", waiting("PodInitializing"), 0, true);
        check("Pending", waiting("ContainerCreating"), 1, false);
        check("Pending", waiting("ErrImagePull"), 0, false);
        check("Pending", json!({"running": {}}), 0, false);
        check("Running", waiting("ContainerCreating"), 0, false);
        check("Failed", waiting("ContainerCreating"), 0, false);
    }
}
