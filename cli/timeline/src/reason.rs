//! Why a pod is not running: from the scheduler's refusals, the pod's own status and the last thing said about it.

use ferry_trace::Record;
use k8s_openapi::api::core::v1::{ContainerState, ContainerStatus, Event, Node, Pod, PodStatus};

/// Namespace and name, where what was asked for is a pod.
pub fn pod_name(object: &str, namespace: &str) -> Option<(String, String)> {
    let words: Vec<&str> = object.split('/').collect();
    let (kind, namespace, name) = match words.as_slice() {
        [kind, namespace, name] => (*kind, *namespace, *name),
        [kind, name] => (*kind, namespace, *name),
        _ => return None,
    };
    ["pod", "pods", "po"].contains(&kind).then(|| (namespace.to_owned(), name.to_owned()))
}

/// Whether nothing more is to be waited for: it is ready, or has done what it was made for.
pub fn is_well(pod: &Pod) -> bool {
    let Some(status) = &pod.status else { return false };
    let is_staying = pod.metadata.deletion_timestamp.is_none();
    is_staying && (status.phase.as_deref() == Some("Succeeded") || is_true(status, "Ready"))
}

/// Whether it is stuck as far as anyone can tell now: no node takes it, or a container is held back.
pub fn is_stuck(pod: &Pod) -> bool {
    let Some(status) = &pod.status else { return false };
    let is_held = |container: &ContainerStatus| {
        let waiting = container.state.as_ref().and_then(|state| state.waiting.as_ref());
        waiting.and_then(|waiting| waiting.reason.as_deref()).is_some_and(|reason| {
            reason.ends_with("BackOff") || reason.starts_with("Err") || reason.ends_with("Error")
        })
    };
    status.phase.as_deref() == Some("Failed") || refused(status).is_some() || containers(status).any(is_held)
}

/// What keeps the pod from being well; nothing if it is. `events` are its own, oldest first.
pub fn reason(pod: &Pod, events: &[Event], records: &[Record]) -> Option<String> {
    if is_well(pod) {
        return None;
    }
    let status = pod.status.clone().unwrap_or_default();
    let (namespace, name) = (
        pod.metadata.namespace.as_deref().unwrap_or("default"),
        pod.metadata.name.as_deref().unwrap_or_default(),
    );
    let phase = status.phase.as_deref().unwrap_or("Pending");
    let mut lines = vec![format!("pod {namespace}/{name} is {phase}{}", why(pod, &status))];
    if refused(&status).is_some() {
        lines.extend(refusals(records, namespace, name));
    }
    for container in containers(&status) {
        lines.extend(held_back(container));
    }
    let warning = events.iter().rev().find(|event| event.type_.as_deref() == Some("Warning"));
    if let Some(event) = warning.or(events.last()) {
        let (reason, message) =
            (event.reason.as_deref().unwrap_or(""), event.message.as_deref().unwrap_or(""));
        lines.push(format!("  last event: {reason}: {}", message.trim_end()));
    }
    Some(lines.join("\n"))
}

/// What keeps a node from being ready; nothing if it is.
pub fn node_reason(node: &Node) -> Option<String> {
    let name = node.metadata.name.as_deref().unwrap_or_default();
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_ref());
    let ready = conditions.into_iter().flatten().find(|condition| condition.type_ == "Ready");
    match ready {
        None => Some(format!("node {name} has no condition Ready")),
        Some(ready) if ready.status == "True" => None,
        Some(ready) => {
            let words = [&ready.reason, &ready.message].into_iter().flatten().cloned().collect::<Vec<_>>();
            let state = if ready.status == "Unknown" { "unreachable" } else { "not ready" };
            Some(format!("node {name} is {state}: {}", words.join(": ")))
        }
    }
}

fn why(pod: &Pod, status: &PodStatus) -> String {
    if pod.metadata.deletion_timestamp.is_some() {
        return ", and is being deleted".to_owned();
    }
    if let Some(message) = refused(status) {
        return format!(": no node fits it: {message}");
    }
    match (&status.reason, &status.message) {
        (Some(reason), Some(message)) => format!(": {reason}: {message}"),
        (Some(reason), None) => format!(": {reason}"),
        (None, Some(message)) => format!(": {message}"),
        (None, None) if status.phase.as_deref() == Some("Running") => ", but not ready".to_owned(),
        (None, None) if !is_true(status, "PodScheduled") => ": no scheduler has processed it".to_owned(),
        (None, None) => String::new(),
    }
}

/// The scheduler's words, where it found no node.
fn refused(status: &PodStatus) -> Option<&str> {
    let conditions = status.conditions.iter().flatten();
    let scheduled = conditions.into_iter().find(|condition| condition.type_ == "PodScheduled")?;
    (scheduled.status == "False").then(|| scheduled.message.as_deref().unwrap_or("no reason given"))
}

/// Node by node, from the last attempt that is recorded.
fn refusals(records: &[Record], namespace: &str, name: &str) -> Vec<String> {
    let object = format!("pods/{namespace}/{name}");
    let attempts = records
        .iter()
        .filter(|record| record.name == "scheduler.schedule" && record.object.as_deref() == Some(&object));
    let last = attempts.max_by_key(|record| record.start);
    let nodes = last.and_then(|attempt| attempt.attribute("refused_nodes")?.as_str()).unwrap_or("");
    nodes.split("; ").filter(|node| !node.is_empty()).map(|node| format!("  node {node}")).collect()
}

fn containers(status: &PodStatus) -> impl Iterator<Item = &ContainerStatus> {
    status.init_container_statuses.iter().flatten().chain(status.container_statuses.iter().flatten())
}

/// Why a container does not run, or what ended it the last time.
fn held_back(container: &ContainerStatus) -> Option<String> {
    let name = &container.name;
    let ended = |state: &ContainerState| {
        let ended = state.terminated.as_ref()?;
        let reason = ended.reason.as_deref().unwrap_or("ended");
        let message = ended.message.as_deref().map(|message| format!(": {}", message.trim_end()));
        Some(format!("exit code {} ({reason}){}", ended.exit_code, message.unwrap_or_default()))
    };
    let before = container.last_state.as_ref().and_then(ended);
    let before = before.map(|before| format!("; last state: {before}")).unwrap_or_default();
    let state = container.state.as_ref()?;
    if let Some(waiting) = &state.waiting {
        let reason = waiting.reason.as_deref().unwrap_or("waiting");
        let message = waiting.message.as_deref().map(|message| format!(": {message}")).unwrap_or_default();
        return Some(format!("  container {name} is waiting: {reason}{message}{before}"));
    }
    if let Some(ended) = ended(state).filter(|_| !container.ready) {
        return Some(format!("  container {name} terminated: {ended}{before}"));
    }
    (!container.ready).then(|| format!("  container {name} is running, but not ready{before}"))
}

fn is_true(status: &PodStatus, condition: &str) -> bool {
    status.conditions.iter().flatten().any(|found| found.type_ == condition && found.status == "True")
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use ferry_trace::script::history;

    fn pod(status: Value) -> Pod {
        let pod = json!({ "metadata": { "namespace": "default", "name": "x" }, "status": status });
        serde_json::from_value(pod).expect("a pod")
    }

    fn check(status: Value, records: &str, expected: Option<&[&str]>) {
        let found = reason(&pod(status), &[], &history(records));
        assert_eq!(found, expected.map(|lines| lines.join("\n")));
    }

    #[test]
    fn a_pod_that_is_well_has_no_reason() {
        check(json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}), "", None);
        check(json!({"phase": "Succeeded"}), "", None);
    }

    #[test]
    fn an_unschedulable_pod_names_each_node_and_the_plugin_that_refused() {
        let unschedulable = json!({"phase": "Pending", "conditions": [
            {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/2 nodes are available"}
        ]});
        assert!(is_stuck(&pod(unschedulable.clone())));
        check(
            unschedulable,
            "scheduler.schedule @pods/default/x refused_nodes=old
             scheduler.schedule @pods/default/x refused_nodes=n1-Fit:cpu;n2-Taint
             scheduler.schedule @pods/default/other refused_nodes=n3",
            Some(&[
                "pod default/x is Pending: no node fits it: 0/2 nodes are available",
                "  node n1-Fit:cpu;n2-Taint",
            ]),
        );
    }

    #[test]
    fn a_crashing_container_tells_how_it_ended() {
        let crashing = json!({"phase": "Running", "containerStatuses": [{
            "name": "c", "ready": false, "restartCount": 3, "image": "i", "imageID": "",
            "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 40s"}},
            "lastState": {"terminated": {"exitCode": 3, "reason": "Error"}},
        }]});
        assert!(is_stuck(&pod(crashing.clone())));
        check(
            crashing,
            "",
            Some(&[
                "pod default/x is Running, but not ready",
                "  container c is waiting: CrashLoopBackOff: back-off 40s; last state: exit code 3 (Error)",
            ]),
        );
    }

    #[test]
    fn the_last_warning_is_told_rather_than_the_last_event() {
        let event = |kind: &str, reason: &str| -> Event {
            let event = json!({"metadata": {}, "involvedObject": {}, "type": kind, "reason": reason, "message": "m\n"});
            serde_json::from_value(event).expect("an event")
        };
        let events = [event("Warning", "Failed"), event("Warning", "Unhealthy"), event("Normal", "Pulled")];
        let status = json!({"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "True"}]});
        let found = reason(&pod(status), &events, &[]).expect("is not well");
        assert_eq!(found, "pod default/x is Pending\n  last event: Unhealthy: m");
    }

    #[test]
    fn a_node_tells_what_it_lacks() {
        let node = |conditions: Value| {
            let node = json!({ "metadata": { "name": "one" }, "status": { "conditions": conditions } });
            node_reason(&serde_json::from_value(node).expect("a node"))
        };
        assert_eq!(node(json!([{"type": "Ready", "status": "True"}])), None);
        let lost =
            json!([{"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown", "message": "m"}]);
        assert_eq!(node(lost).as_deref(), Some("node one is unreachable: NodeStatusUnknown: m"));
        assert_eq!(node(json!([])).as_deref(), Some("node one has no condition Ready"));
    }

    #[test]
    fn pods_are_known_by_their_names() {
        let found = |object| pod_name(object, "ns").map(|(namespace, name)| format!("{namespace}/{name}"));
        assert_eq!(found("pod/x").as_deref(), Some("ns/x"));
        assert_eq!(found("pods/other/x").as_deref(), Some("other/x"));
        assert_eq!(found("deployment/x"), None);
        assert_eq!(found("x"), None);
    }
}
