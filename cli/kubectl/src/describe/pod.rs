//! Pods, and the pod templates of workloads.

use serde_json::Value;

use super::container::containers;
use super::metadata::{annotations, controller, labels, tolerations};
use super::volume::volumes;
use super::{given, time};
use crate::fields::Fields;
use crate::printers::duration;

pub fn page(pod: &Value) -> String {
    let spec = pod.at("spec");
    let own_containers =
        |title: &str, field: &str, statuses: &str| containers(title, spec, field, pod, statuses, false);
    [
        identity(pod),
        labels("Labels", pod, "metadata.labels", ""),
        annotations(pod, ""),
        status(pod),
        addresses(pod),
        controller(pod),
        given(pod, &[("NominatedNodeName", "status.nominatedNodeName")]),
        own_containers("Init Containers", "initContainers", "status.initContainerStatuses"),
        own_containers("Containers", "containers", "status.containerStatuses"),
        own_containers("Ephemeral Containers", "ephemeralContainers", "status.ephemeralContainerStatuses"),
        gates_and_conditions(pod),
        volumes(spec, ""),
        format!("QoS Class:\t{}\n", pod.text("status.qosClass")),
        labels("Node-Selectors", pod, "spec.nodeSelector", ""),
        tolerations(pod.list("spec.tolerations"), ""),
    ]
    .concat()
}

fn identity(pod: &Value) -> String {
    let mut text = format!("Name:\t{}\nNamespace:\t{}\n", pod.name(), pod.namespace());
    if let Some(priority) = pod.int("spec.priority") {
        text.push_str(&format!("Priority:\t{priority}\n"));
    }
    text.push_str(&given(
        pod,
        &[
            ("Priority Class Name", "spec.priorityClassName"),
            ("Runtime Class Name", "spec.runtimeClassName"),
            ("Service Account", "spec.serviceAccountName"),
        ],
    ));
    text.push_str(&match pod.text("spec.nodeName") {
        "" => "Node:\t<none>\n".to_owned(),
        node => format!("Node:\t{node}/{}\n", pod.text("status.hostIP")),
    });
    if !pod.text("status.startTime").is_empty() {
        text.push_str(&format!("Start Time:\t{}\n", time(pod.text("status.startTime"))));
    }
    text
}

fn status(pod: &Value) -> String {
    let has_ended = matches!(pod.text("status.phase"), "Failed" | "Succeeded");
    let mut text = if pod.has("metadata.deletionTimestamp") && !has_ended {
        let age = duration::age(pod.text("metadata.deletionTimestamp"), jiff::Timestamp::now());
        let grace = pod.int("metadata.deletionGracePeriodSeconds").unwrap_or(0);
        format!("Status:\tTerminating (lasts {age})\nTermination Grace Period:\t{grace}s\n")
    } else {
        format!("Status:\t{}\n", pod.text("status.phase"))
    };
    text.push_str(&given(
        pod,
        &[
            ("Reason", "status.reason"),
            ("Message", "status.message"),
            ("SeccompProfile", "spec.securityContext.seccompProfile.type"),
        ],
    ));
    text
}

fn addresses(pod: &Value) -> String {
    let mut text = format!("IP:\t{}\n", pod.text("status.podIP"));
    let addresses = pod.list("status.podIPs");
    if addresses.is_empty() {
        text.push_str("IPs:\t<none>\n");
    } else {
        text.push_str("IPs:\n");
        addresses.iter().for_each(|address| text.push_str(&format!("  IP:\t{}\n", address.text("ip"))));
    }
    text
}

fn gates_and_conditions(pod: &Value) -> String {
    let mut text = String::new();
    let conditions = pod.list("status.conditions");
    if !pod.list("spec.readinessGates").is_empty() {
        text.push_str("Readiness Gates:\n  Type\tStatus\n");
        for gate in pod.list("spec.readinessGates") {
            let kind = gate.text("conditionType");
            let status = conditions
                .iter()
                .find(|condition| condition.text("type") == kind)
                .map_or("<none>", |condition| condition.text("status"));
            text.push_str(&format!("  {kind} \t{status} \n"));
        }
    }
    if !conditions.is_empty() {
        text.push_str("Conditions:\n  Type\tStatus\n");
        conditions.iter().for_each(|condition| {
            text.push_str(&format!("  {} \t{} \n", condition.text("type"), condition.text("status")))
        });
    }
    text
}

/// A workload's template; `cause` is why this revision was made.
pub fn pod_template(template: &Value, cause: &str) -> String {
    let mut text = "Pod Template:\n".to_owned();
    if template.is_null() {
        return "Pod Template:\n  <unset>\n".to_owned();
    }
    let mut template = template.clone();
    if !cause.is_empty() {
        crate::fields::set_keyed(&mut template, "metadata.annotations", crate::write::CHANGE_CAUSE, cause);
    }
    text.push_str(&labels("Labels", &template, "metadata.labels", "  "));
    if template.map("metadata.annotations").is_some_and(|annotations| !annotations.is_empty()) {
        text.push_str(&annotations(&template, "  "));
    }
    let spec = template.at("spec");
    if !spec.text("serviceAccountName").is_empty() {
        text.push_str(&format!("  Service Account:\t{}\n", spec.text("serviceAccountName")));
    }
    text.push_str(&containers("Init Containers", spec, "initContainers", &Value::Null, "", true));
    text.push_str(&containers("Containers", spec, "containers", &Value::Null, "", true));
    text.push_str(&volumes(spec, "  "));
    if !spec.text("priorityClassName").is_empty() {
        text.push_str(&format!("  Priority Class Name:\t{}\n", spec.text("priorityClassName")));
    }
    text.push_str(&labels("Node-Selectors", spec, "nodeSelector", "  "));
    text.push_str(&tolerations(spec.list("tolerations"), "  "));
    text
}
