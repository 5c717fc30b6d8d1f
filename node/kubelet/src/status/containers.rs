//! Container records of the runtime, told in the API's words.

use std::collections::HashMap;

use k8s_openapi::api::core::v1::{
    ContainerState, ContainerStateRunning, ContainerStateTerminated, ContainerStateWaiting, ContainerStatus,
    Pod, PodStatus, ResourceRequirements,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::plan::should_restart;
use crate::pod::{self, ContainerKind, ContainerOf};
use crate::runtime::view::{Container, PodRuntime, State};

/// Why a container could not be started, until it can.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StartFailure {
    /// `CrashLoopBackOff`, `ErrImagePull`, …
    pub reason: String,
    pub message: String,
}

/// What the probes say of a container, for its status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Readiness {
    pub started: bool,
    pub ready: bool,
}

pub struct Facts<'a> {
    pub pod: &'a Pod,
    /// What was shown last.
    pub old: &'a PodStatus,
    pub runtime: &'a PodRuntime,
    /// `containerd`, as in `containerd://ID`.
    pub runtime_name: &'a str,
    pub failures: &'a HashMap<String, StartFailure>,
    /// Last words of ended containers, by container id.
    pub messages: &'a HashMap<String, String>,
    pub readiness: &'a dyn Fn(&str) -> Readiness,
    /// What a running container has, by id.
    pub resources: &'a dyn Fn(&str) -> Option<ResourceRequirements>,
    /// The pod will start nothing more.
    pub terminating: bool,
}

/// The statuses of one list of containers, in the spec's order.
pub fn statuses(facts: &Facts<'_>, kinds: &[ContainerKind]) -> Vec<ContainerStatus> {
    let all = pod::containers(facts.pod);
    all.iter().filter(|each| kinds.contains(&each.kind)).map(|each| status(facts, each)).collect()
}

fn status(facts: &Facts<'_>, each: &ContainerOf<'_>) -> ContainerStatus {
    let name = &each.container.name;
    let old = pod::container_status(facts.old, name);
    let mut records = facts.runtime.containers.iter().filter(|record| &record.name == name);
    let latest = records.next();
    let previous = records.find(|record| record.state == State::Exited);

    let mut status = ContainerStatus {
        name: name.clone(),
        image: each.container.image.clone().unwrap_or_default(),
        image_id: String::new(),
        ..ContainerStatus::default()
    };
    match latest {
        Some(record) => fill(facts, record, &mut status, each.kind),
        None => fill_missing(facts, old, &mut status, each.kind),
    }
    if let Some(previous) = previous {
        status.last_state = Some(terminated(facts, previous));
    } else if let (None, Some(old)) = (&status.last_state, old) {
        // the runtime's record may be collected; what was told stays told
        if latest.is_none_or(|latest| latest.restart_count > 0) {
            status.last_state = old.last_state.clone();
        }
    }

    let runs = status.state.as_ref().is_some_and(|state| state.running.is_some());
    if let Some(failure) = facts.failures.get(name)
        && !runs
        && !facts.terminating
        && may_start(facts.pod, each, latest)
    {
        if status.state.as_ref().is_some_and(|state| state.terminated.is_some()) {
            status.last_state = status.state.take();
        }
        status.state = Some(waiting(&failure.reason, &failure.message));
    }

    let readiness = match latest {
        Some(record) if runs => (facts.readiness)(&record.id),
        _ => Readiness { started: false, ready: false },
    };
    status.started = Some(readiness.started);
    status.ready = match each.kind {
        ContainerKind::Init => status
            .state
            .as_ref()
            .and_then(|state| state.terminated.as_ref())
            .is_some_and(|ended| ended.exit_code == 0),
        _ => readiness.ready,
    };
    if let Some(record) = latest.filter(|_| runs) {
        let granted = each.container.resources.as_ref();
        status.allocated_resources = granted.and_then(|granted| granted.requests.clone());
        status.resources = (facts.resources)(&record.id).or_else(|| granted.cloned());
    }
    status
}

fn fill(facts: &Facts<'_>, record: &Container, status: &mut ContainerStatus, kind: ContainerKind) {
    status.container_id = Some(format!("{}://{}", facts.runtime_name, record.id));
    status.restart_count = i32::try_from(record.restart_count).unwrap_or(i32::MAX);
    if !record.image.is_empty() {
        status.image = record.image.clone();
    }
    status.image_id = record.image_id.clone();
    status.state = Some(match record.state {
        State::Running => ContainerState {
            running: Some(ContainerStateRunning { started_at: record.started_at.map(Time) }),
            ..ContainerState::default()
        },
        State::Exited => terminated(facts, record),
        State::Created | State::Unknown => waiting(waiting_reason(facts, kind), ""),
    });
}

/// No record of the container. If it ran before, it was lost, and saying
/// "waiting" would hide that.
fn fill_missing(
    facts: &Facts<'_>,
    old: Option<&ContainerStatus>,
    status: &mut ContainerStatus,
    kind: ContainerKind,
) {
    status.state = Some(waiting(waiting_reason(facts, kind), ""));
    let Some(old) = old else { return };
    status.restart_count = old.restart_count;
    let Some(old_state) = &old.state else { return };
    if old_state.terminated.is_some() {
        *status = old.clone();
    } else if old_state.running.is_some() {
        let lost = ContainerState {
            terminated: Some(ContainerStateTerminated {
                exit_code: 137,
                reason: Some("ContainerStatusUnknown".into()),
                message: Some(
                    "The container could not be located when the pod was deleted.  The container used to be Running"
                        .into(),
                ),
                container_id: old.container_id.clone(),
                ..ContainerStateTerminated::default()
            }),
            ..ContainerState::default()
        };
        if facts.terminating {
            status.state = Some(lost);
            status.container_id = old.container_id.clone();
        } else {
            status.last_state = Some(lost);
            status.restart_count += 1;
        }
    }
}

fn may_start(pod: &Pod, each: &ContainerOf<'_>, latest: Option<&Container>) -> bool {
    match each.kind {
        ContainerKind::Init => {
            latest.is_none_or(|record| record.state != State::Exited || record.exit_code != 0)
        }
        ContainerKind::Ephemeral => latest.is_none(),
        ContainerKind::Sidecar => true,
        ContainerKind::Regular => should_restart(pod, &each.container, latest),
    }
}

fn waiting_reason(facts: &Facts<'_>, kind: ContainerKind) -> &'static str {
    let has_init = pod::spec(facts.pod).init_containers.as_ref().is_some_and(|all| !all.is_empty());
    if has_init && kind != ContainerKind::Ephemeral { "PodInitializing" } else { "ContainerCreating" }
}

fn waiting(reason: &str, message: &str) -> ContainerState {
    ContainerState {
        waiting: Some(ContainerStateWaiting {
            reason: Some(reason.into()),
            message: Some(message.to_string()).filter(|message| !message.is_empty()),
        }),
        ..ContainerState::default()
    }
}

fn terminated(facts: &Facts<'_>, record: &Container) -> ContainerState {
    let reason = match (record.reason.as_str(), record.exit_code) {
        ("", 0) => "Completed",
        ("", _) => "Error",
        (reason, _) => reason,
    };
    let message = facts.messages.get(&record.id).cloned().unwrap_or_else(|| record.message.clone());
    ContainerState {
        terminated: Some(ContainerStateTerminated {
            container_id: Some(format!("{}://{}", facts.runtime_name, record.id)),
            exit_code: record.exit_code,
            finished_at: record.finished_at.map(Time),
            message: Some(message).filter(|message| !message.is_empty()),
            reason: Some(reason.into()),
            signal: None,
            // a container that failed to start was never started
            started_at: record.started_at.or(Some(record.created_at)).map(Time),
        }),
        ..ContainerState::default()
    }
}
