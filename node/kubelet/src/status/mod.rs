//! A pod's status: computed here from the runtime's records, written to the
//! API by [`writer`].

pub mod conditions;
pub mod containers;
pub mod patch;
pub mod phase;
pub mod writer;

use std::collections::HashMap;
use std::net::IpAddr;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{
    ContainerStatus, HostIP, Pod, PodCondition, PodIP, PodStatus, ResourceRequirements,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::pod::{self, ContainerKind};
use crate::resize::Pending;
use crate::resources::qos_class;
use crate::runtime::view::PodRuntime;
use containers::{Readiness, StartFailure};
use phase::Phase;

/// A verdict on the whole pod that outlives its containers: evicted, rejected,
/// past its deadline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ending {
    pub reason: String,
    pub message: String,
    /// Told as the condition DisruptionTarget with this reason.
    pub disruption: Option<&'static str>,
    /// The pod counts as failed even if its containers end well.
    pub failed: bool,
}

/// How a change of the pod's resources goes on.
#[derive(Clone, Copy, Default)]
pub struct Resize<'a> {
    pub pending: Option<&'a Pending>,
    /// Granted, but not all containers have it yet.
    pub in_progress: bool,
    pub problem: Option<&'a str>,
}

pub struct Facts<'a> {
    pub pod: &'a Pod,
    pub runtime: &'a PodRuntime,
    pub runtime_name: &'a str,
    pub host_ips: &'a [IpAddr],
    pub failures: &'a HashMap<String, StartFailure>,
    pub messages: &'a HashMap<String, String>,
    pub readiness: &'a dyn Fn(&str) -> Readiness,
    /// What a running container has, by id.
    pub resources: &'a dyn Fn(&str) -> Option<ResourceRequirements>,
    pub resize: Resize<'a>,
    pub ending: Option<&'a Ending>,
    /// Nothing of the pod will be started again.
    pub terminating: bool,
    pub now: Timestamp,
}

/// The status as the kubelet sees it; `old` is what it saw last.
pub fn status(facts: &Facts<'_>, old: &PodStatus) -> PodStatus {
    let pod = facts.pod;
    let container_facts = containers::Facts {
        pod,
        old,
        runtime: facts.runtime,
        runtime_name: facts.runtime_name,
        failures: facts.failures,
        messages: facts.messages,
        readiness: facts.readiness,
        resources: facts.resources,
        terminating: facts.terminating,
    };
    let init = containers::statuses(&container_facts, &[ContainerKind::Init, ContainerKind::Sidecar]);
    let regular = containers::statuses(&container_facts, &[ContainerKind::Regular]);
    let ephemeral = containers::statuses(&container_facts, &[ContainerKind::Ephemeral]);

    let computed =
        phase::phase(pod, &init, &regular, facts.terminating && !facts.runtime.is_anything_alive());
    let phase = match (old.phase.as_deref(), facts.ending) {
        // an end is final
        (Some("Failed"), _) => Phase::Failed,
        (Some("Succeeded"), _) => Phase::Succeeded,
        (_, Some(ending)) if ending.failed => Phase::Failed,
        _ => computed,
    };
    let conditions = conditions_of(facts, phase, (&init, &regular), old);
    let host_ips: Vec<String> = facts.host_ips.iter().map(IpAddr::to_string).collect();
    let pod_ips = pod_ips(facts, &host_ips, old);
    // of a pod that was turned away, "creating" would be a lie
    let has_begun = facts.ending.is_none()
        || !facts.runtime.containers.is_empty()
        || old.container_statuses.iter().flatten().any(|status| status.container_id.is_some());
    let some = |list: Vec<_>| Some(list).filter(|list| has_begun && !list.is_empty());
    PodStatus {
        phase: Some(phase.as_str().into()),
        conditions: Some(conditions),
        reason: facts.ending.map(|ending| ending.reason.clone()).or_else(|| old.reason.clone()),
        message: facts
            .ending
            .map(|ending| ending.message.clone())
            .filter(|message| !message.is_empty())
            .or_else(|| old.message.clone()),
        host_ip: host_ips.first().cloned(),
        host_ips: Some(host_ips.into_iter().map(|ip| HostIP { ip }).collect()),
        pod_ip: pod_ips.first().cloned(),
        pod_ips: Some(pod_ips.into_iter().map(|ip| PodIP { ip }).collect::<Vec<_>>())
            .filter(|all| !all.is_empty()),
        start_time: old.start_time.clone().or(Some(Time(facts.now))),
        qos_class: old.qos_class.clone().or_else(|| Some(qos_class(pod).as_str().into())),
        observed_generation: pod.metadata.generation,
        container_statuses: some(regular),
        init_container_statuses: some(init),
        ephemeral_container_statuses: some(ephemeral),
        resources: pod::spec(pod).resources.clone(),
        allocated_resources: pod::spec(pod).resources.as_ref().and_then(|whole| whole.requests.clone()),
        ..PodStatus::default()
    }
}

fn conditions_of(
    facts: &Facts<'_>,
    phase: Phase,
    (init, regular): (&[ContainerStatus], &[ContainerStatus]),
    old: &PodStatus,
) -> Vec<PodCondition> {
    let pod = facts.pod;
    let sandbox = facts.runtime.sandbox();
    let condition_facts = conditions::Facts {
        pod,
        phase,
        init,
        regular,
        sandbox_ready: sandbox
            .is_some_and(|sandbox| sandbox.ready && (sandbox.host_network || !sandbox.ips.is_empty())),
        now: facts.now,
    };
    let mut conditions = conditions::conditions(&condition_facts, old);
    if facts.ending.is_none() && !facts.terminating {
        for condition in conditions::of_resize(&facts.resize, &condition_facts, old) {
            conditions::put(&mut conditions, condition);
        }
    }
    if let Some(ending) = facts.ending
        && let Some(condition) = disrupted(facts, ending, old)
    {
        conditions::put(&mut conditions, condition);
    }
    conditions
}

/// The condition of a pod that was ended from outside, as it was first told.
fn disrupted(facts: &Facts<'_>, ending: &Ending, old: &PodStatus) -> Option<PodCondition> {
    let reason = ending.disruption?;
    if let Some(before) = conditions::find(old, "DisruptionTarget") {
        return Some(before.clone());
    }
    Some(PodCondition {
        type_: "DisruptionTarget".into(),
        status: "True".into(),
        reason: Some(reason.into()),
        message: Some(ending.message.clone()),
        last_transition_time: Some(Time(facts.now)),
        observed_generation: facts.pod.metadata.generation,
        last_probe_time: None,
    })
}

fn pod_ips(facts: &Facts<'_>, host_ips: &[String], old: &PodStatus) -> Vec<String> {
    let sandbox = facts.runtime.sandbox();
    if pod::uses_host_network(facts.pod) {
        return if sandbox.is_some() { host_ips.to_vec() } else { vec![] };
    }
    match sandbox.map(|sandbox| sandbox.ips.clone()).filter(|ips| !ips.is_empty()) {
        Some(ips) => ips,
        // a stopped pod keeps the address it had
        None => old.pod_ips.iter().flatten().map(|each| each.ip.clone()).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resize::Reason;
    use serde_json::json;

    fn shown(ending: Option<&Ending>, resize: Resize<'_>) -> PodStatus {
        let pod: Pod = serde_json::from_value(json!({"spec": {"containers": [{"name": "c", "image": "i"}]}}))
            .expect("the pod is well formed");
        let facts = Facts {
            pod: &pod,
            runtime: &PodRuntime::default(),
            runtime_name: "containerd",
            host_ips: &[],
            failures: &HashMap::new(),
            messages: &HashMap::new(),
            readiness: &|_| Readiness { started: false, ready: false },
            resources: &|_| None,
            resize,
            ending,
            terminating: ending.is_some(),
            now: Timestamp::UNIX_EPOCH,
        };
        status(&facts, &PodStatus::default())
    }

    #[test]
    fn a_pod_that_was_turned_away_creates_no_containers() {
        let ending =
            Ending { reason: "OutOfcpu".into(), message: "no room".into(), disruption: None, failed: true };
        let status = shown(Some(&ending), Resize::default());
        assert_eq!((status.phase.as_deref(), status.reason.as_deref()), (Some("Failed"), Some("OutOfcpu")));
        assert_eq!(status.container_statuses, None);
        assert!(shown(None, Resize::default()).container_statuses.is_some());
    }

    #[test]
    fn a_resize_is_told_while_it_goes_on() {
        let pending = Pending { reason: Reason::Deferred, message: "no room yet".into() };
        let resize = Resize { pending: Some(&pending), in_progress: true, problem: Some("refused") };
        let status = shown(None, resize);
        let told = |kind: &str| {
            let condition = conditions::find(&status, kind).expect(kind);
            (condition.reason.clone().expect("a reason"), condition.message.clone().expect("a message"))
        };
        assert_eq!(told("PodResizePending"), ("Deferred".into(), "no room yet".into()));
        assert_eq!(told("PodResizeInProgress"), ("Error".into(), "refused".into()));
        assert!(conditions::find(&shown(None, Resize::default()), "PodResizePending").is_none());
    }
}
