//! The conditions the kubelet keeps on a pod. Those of others (a readiness
//! gate's controller, the scheduler) are never touched.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerStatus, Pod, PodCondition, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::Resize;
use super::phase::Phase;
use crate::pod;

pub struct Facts<'a> {
    pub pod: &'a Pod,
    pub phase: Phase,
    pub init: &'a [ContainerStatus],
    pub regular: &'a [ContainerStatus],
    /// The sandbox runs and has its network.
    pub sandbox_ready: bool,
    pub now: Timestamp,
}

/// True, or why not.
struct Verdict {
    status: bool,
    reason: &'static str,
    message: String,
}

impl Verdict {
    fn yes() -> Self {
        Self { status: true, reason: "", message: String::new() }
    }

    fn no(reason: &'static str, message: String) -> Self {
        Self { status: false, reason, message }
    }
}

/// The kubelet's conditions; times of transition are kept from `old` where
/// nothing changed.
pub fn conditions(facts: &Facts<'_>, old: &PodStatus) -> Vec<PodCondition> {
    let containers_ready = containers_ready(facts);
    let ready = ready(facts, &containers_ready, old);
    let initialized = initialized(facts);
    let sandbox = if facts.sandbox_ready { Verdict::yes() } else { Verdict::no("", String::new()) };
    let all = [
        ("PodReadyToStartContainers", sandbox),
        ("Initialized", initialized),
        ("Ready", ready),
        ("ContainersReady", containers_ready),
        ("PodScheduled", Verdict::yes()),
    ];
    all.into_iter().map(|(kind, verdict)| condition(kind, verdict, facts, old)).collect()
}

/// How a change of resources goes on, while it does.
pub fn of_resize(resize: &Resize<'_>, facts: &Facts<'_>, old: &PodStatus) -> Vec<PodCondition> {
    let pending = resize.pending.map(|pending| {
        let reason = pending.reason.as_str();
        ("PodResizePending", Verdict { status: true, reason, message: pending.message.clone() })
    });
    let in_progress = resize.in_progress.then(|| {
        let reason = if resize.problem.is_some() { "Error" } else { "" };
        let message = resize.problem.unwrap_or_default().to_string();
        ("PodResizeInProgress", Verdict { status: true, reason, message })
    });
    let all = pending.into_iter().chain(in_progress);
    all.map(|(kind, verdict)| condition(kind, verdict, facts, old)).collect()
}

/// Adds or replaces one condition beside those computed.
pub fn put(conditions: &mut Vec<PodCondition>, condition: PodCondition) {
    conditions.retain(|each| each.type_ != condition.type_);
    conditions.push(condition);
}

pub fn find<'a>(status: &'a PodStatus, kind: &str) -> Option<&'a PodCondition> {
    status.conditions.iter().flatten().find(|condition| condition.type_ == kind)
}

fn condition(kind: &str, verdict: Verdict, facts: &Facts<'_>, old: &PodStatus) -> PodCondition {
    let status = if verdict.status { "True" } else { "False" };
    let before = find(old, kind).filter(|condition| condition.status == status);
    PodCondition {
        type_: kind.into(),
        status: status.into(),
        reason: Some(verdict.reason.to_string()).filter(|reason| !reason.is_empty()),
        message: Some(verdict.message).filter(|message| !message.is_empty()),
        last_transition_time: before
            .and_then(|condition| condition.last_transition_time.clone())
            .or(Some(Time(facts.now))),
        observed_generation: facts.pod.metadata.generation,
        last_probe_time: None,
    }
}

fn finished(phase: Phase) -> Option<Verdict> {
    match phase {
        Phase::Succeeded => Some(Verdict::no("PodCompleted", String::new())),
        Phase::Failed => Some(Verdict::no("PodFailed", String::new())),
        Phase::Pending | Phase::Running => None,
    }
}

fn initialized(facts: &Facts<'_>) -> Verdict {
    if facts.phase == Phase::Succeeded {
        return Verdict { status: true, reason: "PodCompleted", message: String::new() };
    }
    let any_ran = facts.regular.iter().any(|status| {
        let state = status.state.as_ref();
        state.is_some_and(|state| state.running.is_some() || state.terminated.is_some())
    });
    if any_ran {
        return Verdict::yes();
    }
    let incomplete: Vec<&str> = pod::spec(facts.pod)
        .init_containers
        .iter()
        .flatten()
        .filter(|container| {
            let status = facts.init.iter().find(|status| status.name == container.name);
            !status.is_some_and(|status| {
                if pod::is_sidecar(container) { status.started == Some(true) } else { status.ready }
            })
        })
        .map(|container| container.name.as_str())
        .collect();
    if incomplete.is_empty() {
        Verdict::yes()
    } else {
        let message = format!("containers with incomplete status: [{}]", incomplete.join(" "));
        Verdict::no("ContainersNotInitialized", message)
    }
}

fn containers_ready(facts: &Facts<'_>) -> Verdict {
    if let Some(verdict) = finished(facts.phase) {
        return verdict;
    }
    let spec = pod::spec(facts.pod);
    let sidecars = spec.init_containers.iter().flatten().filter(|container| pod::is_sidecar(container));
    let unready: Vec<&str> = sidecars
        .chain(&spec.containers)
        .filter(|container| {
            let mut statuses = facts.init.iter().chain(facts.regular);
            !statuses.any(|status| status.name == container.name && status.ready)
        })
        .map(|container| container.name.as_str())
        .collect();
    if unready.is_empty() {
        Verdict::yes()
    } else {
        Verdict::no("ContainersNotReady", format!("containers with unready status: [{}]", unready.join(" ")))
    }
}

fn ready(facts: &Facts<'_>, containers: &Verdict, old: &PodStatus) -> Verdict {
    if !containers.status {
        return Verdict::no(containers.reason, containers.message.clone());
    }
    let mut closed = Vec::new();
    for gate in pod::spec(facts.pod).readiness_gates.iter().flatten() {
        // gates are written by others, so the API's copy counts
        let condition =
            find(pod::status(facts.pod), &gate.condition_type).or_else(|| find(old, &gate.condition_type));
        match condition {
            None => closed.push(format!(
                "corresponding condition of pod readiness gate \"{}\" does not exist.",
                gate.condition_type
            )),
            Some(condition) if condition.status != "True" => closed.push(format!(
                "the status of pod readiness gate \"{}\" is not \"True\", but {}",
                gate.condition_type, condition.status
            )),
            Some(_) => {}
        }
    }
    if closed.is_empty() { Verdict::yes() } else { Verdict::no("ReadinessGatesNotReady", closed.join(", ")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn status(name: &str, ready: bool) -> ContainerStatus {
        let state = if ready { json!({"running": {}}) } else { json!({"waiting": {}}) };
        serde_json::from_value(json!({
            "name": name, "image": "", "imageID": "", "restartCount": 0, "ready": ready, "started": ready, "state": state,
        }))
        .expect("the status is well formed")
    }

    fn shown(pod: &Pod, phase: Phase, init: &[ContainerStatus], regular: &[ContainerStatus]) -> Vec<String> {
        let facts = Facts { pod, phase, init, regular, sandbox_ready: true, now: Timestamp::UNIX_EPOCH };
        conditions(&facts, pod::status(pod))
            .iter()
            .map(|each| {
                format!("{}={} {}", each.type_, each.status, each.reason.as_deref().unwrap_or(""))
                    .trim()
                    .into()
            })
            .collect()
    }

    #[test]
    fn readiness_needs_containers_and_gates() {
        let mut pod: Pod = serde_json::from_value(json!({
            "spec": {"containers": [{"name": "a"}], "readinessGates": [{"conditionType": "example.com/gate"}]},
        }))
        .expect("the pod is well formed");
        let ready = [status("a", true)];
        assert!(
            shown(&pod, Phase::Running, &[], &ready)
                .contains(&"Ready=False ReadinessGatesNotReady".to_string())
        );
        pod.status =
            serde_json::from_value(json!({"conditions": [{"type": "example.com/gate", "status": "True"}]}))
                .ok();
        assert!(shown(&pod, Phase::Running, &[], &ready).contains(&"Ready=True".to_string()));
        let unready = shown(&pod, Phase::Running, &[], &[status("a", false)]);
        assert!(unready.contains(&"Ready=False ContainersNotReady".to_string()));
        assert!(unready.contains(&"ContainersReady=False ContainersNotReady".to_string()));
        assert!(shown(&pod, Phase::Succeeded, &[], &[]).contains(&"Ready=False PodCompleted".to_string()));
    }

    #[test]
    fn transition_times_change_only_with_the_status() {
        let then = Timestamp::from_second(1000).expect("a time");
        let now = Timestamp::from_second(2000).expect("a time");
        let pod: Pod =
            serde_json::from_value(json!({"spec": {"containers": [{"name": "a"}]}})).expect("well formed");
        let at = |ready: bool, now: Timestamp, old: &PodStatus| {
            let regular = [status("a", ready)];
            let facts = Facts {
                pod: &pod,
                phase: Phase::Running,
                init: &[],
                regular: &regular,
                sandbox_ready: true,
                now,
            };
            let conditions = Some(conditions(&facts, old));
            PodStatus { conditions, ..PodStatus::default() }
        };
        let first = at(true, then, &PodStatus::default());
        let time =
            |status: &PodStatus| find(status, "Ready").and_then(|each| each.last_transition_time.clone());
        assert_eq!(time(&at(true, now, &first)), Some(Time(then)));
        assert_eq!(time(&at(false, now, &first)), Some(Time(now)));
    }
}
