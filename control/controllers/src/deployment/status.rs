//! A Deployment's status: counts, and the conditions that tell whether it is getting there.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{Deployment, DeploymentCondition, DeploymentStatus, ReplicaSet};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;

use super::sets::{available, bounds, desired, replicas};
use crate::pods::counted;

const PROGRESSING: &str = "Progressing";
const AVAILABLE: &str = "Available";
const REPLICA_FAILURE: &str = "ReplicaFailure";

const NEW_SET_AVAILABLE: &str = "NewReplicaSetAvailable";
const TIMED_OUT: &str = "ProgressDeadlineExceeded";
const PAUSED: &str = "DeploymentPaused";

/// A deadline of the largest number means none.
pub fn has_progress_deadline(deployment: &Deployment) -> bool {
    progress_deadline(deployment).is_some()
}

fn progress_deadline(deployment: &Deployment) -> Option<Duration> {
    let seconds = deployment.spec.as_ref()?.progress_deadline_seconds?;
    (seconds != i32::MAX).then(|| Duration::from_secs(seconds.max(0) as u64))
}

pub fn condition<'a>(status: &'a DeploymentStatus, kind: &str) -> Option<&'a DeploymentCondition> {
    status.conditions.iter().flatten().find(|condition| condition.type_ == kind)
}

/// Sets a condition unless it already says so; its time changes only with its status.
fn set(status: &mut DeploymentStatus, mut new: DeploymentCondition) {
    if let Some(old) = condition(status, &new.type_).filter(|old| old.status == new.status) {
        if old.reason == new.reason {
            return;
        }
        new.last_transition_time = old.last_transition_time.clone();
    }
    remove(status, &new.type_);
    status.conditions.get_or_insert_default().push(new);
}

fn remove(status: &mut DeploymentStatus, kind: &str) {
    if let Some(conditions) = &mut status.conditions {
        conditions.retain(|condition| condition.type_ != kind);
    }
}

fn make(kind: &str, status: &str, reason: &str, message: &str, now: Timestamp) -> DeploymentCondition {
    DeploymentCondition {
        type_: kind.into(),
        status: status.into(),
        reason: Some(reason.into()),
        message: Some(message.into()),
        last_update_time: Some(Time(now)),
        last_transition_time: Some(Time(now)),
    }
}

pub fn set_progressing(
    deployment: &mut Deployment,
    status: &str,
    reason: &str,
    message: &str,
    now: Timestamp,
) {
    set(deployment.status.get_or_insert_default(), make(PROGRESSING, status, reason, message, now));
}

/// Pausing stops the clock of the progress deadline, resuming starts it again.
pub fn note_pause(deployment: &mut Deployment, now: Timestamp) {
    if !has_progress_deadline(deployment) {
        return;
    }
    let status = deployment.status.clone().unwrap_or_default();
    let reason = condition(&status, PROGRESSING).and_then(|condition| condition.reason.as_deref());
    let paused = deployment.spec.as_ref().and_then(|spec| spec.paused).unwrap_or(false);
    match (paused, reason) {
        // That it took too long stays said.
        (_, Some(TIMED_OUT)) => {}
        (true, Some(PAUSED)) => {}
        (true, _) => set_progressing(deployment, "Unknown", PAUSED, "Deployment is paused", now),
        (false, Some(PAUSED)) => {
            set_progressing(deployment, "Unknown", "DeploymentResumed", "Deployment is resumed", now)
        }
        (false, _) => {}
    }
}

/// The first mention of a set that was there before anyone watched the progress.
pub fn note_found(deployment: &mut Deployment, set: &ReplicaSet, now: Timestamp) {
    let status = deployment.status.clone().unwrap_or_default();
    if has_progress_deadline(deployment) && condition(&status, PROGRESSING).is_none() {
        set_progressing(
            deployment,
            "True",
            "FoundNewReplicaSet",
            &format!("Found new replica set {:?}", set.name_any()),
            now,
        );
    }
}

pub fn note_created(deployment: &mut Deployment, set: &ReplicaSet, now: Timestamp) {
    if has_progress_deadline(deployment) {
        set_progressing(
            deployment,
            "True",
            "NewReplicaSetCreated",
            &format!("Created new replica set {:?}", set.name_any()),
            now,
        );
    }
}

/// The counts, and whether enough pods are available.
pub fn count(deployment: &mut Deployment, new: Option<&ReplicaSet>, old: &[ReplicaSet], now: Timestamp) {
    let sum =
        |of: fn(&ReplicaSet) -> i32| -> i32 { old.iter().chain(new).map(of).fold(0, i32::saturating_add) };
    let actual = |set: &ReplicaSet| set.status.as_ref().map_or(0, |status| status.replicas);
    let available_count = sum(available);
    let wanted = desired(deployment);
    let enough = available_count >= wanted - bounds(deployment).1;
    let generation = deployment.metadata.generation;
    let status = deployment.status.get_or_insert_default();
    status.observed_generation = generation;
    status.replicas = counted(sum(actual));
    status.updated_replicas = counted(new.map_or(0, actual));
    status.ready_replicas =
        counted(sum(|set| set.status.as_ref().and_then(|status| status.ready_replicas).unwrap_or(0)));
    status.available_replicas = counted(available_count);
    status.unavailable_replicas = counted((sum(replicas) - available_count).max(0));
    let terminating =
        old.iter().chain(new).map(|set| set.status.as_ref().and_then(|status| status.terminating_replicas));
    // Unknown as soon as one set has not said.
    status.terminating_replicas = terminating.sum();
    let (answer, reason, message) = match enough {
        true => ("True", "MinimumReplicasAvailable", "Deployment has minimum availability."),
        false => ("False", "MinimumReplicasUnavailable", "Deployment does not have minimum availability."),
    };
    set(status, make(AVAILABLE, answer, reason, message, now));
}

/// Everything wanted is there, new and available, and nothing else.
pub fn is_complete(deployment: &Deployment, status: &DeploymentStatus) -> bool {
    let wanted = desired(deployment);
    status.updated_replicas.unwrap_or(0) == wanted
        && status.replicas.unwrap_or(0) == wanted
        && status.available_replicas.unwrap_or(0) == wanted
        && status.observed_generation >= deployment.metadata.generation
}

/// Judges the progress from `before` to the counts now, and takes over the sets' failures.
/// Returns when to look again for a deadline that passes silently.
pub fn judge(
    deployment: &mut Deployment,
    before: &DeploymentStatus,
    new: Option<&ReplicaSet>,
    old: &[ReplicaSet],
    now: Timestamp,
) -> Option<Duration> {
    let subject = match new {
        Some(set) => format!("ReplicaSet {:?}", set.name_any()),
        None => format!("Deployment {:?}", deployment.name_any()),
    };
    let mut status = deployment.status.clone().unwrap_or_default();
    let deadline = progress_deadline(deployment);
    let current = condition(before, PROGRESSING).cloned();
    let reason = current.as_ref().and_then(|condition| condition.reason.as_deref()).unwrap_or("");
    let settled = status.replicas == status.updated_replicas && reason == NEW_SET_AVAILABLE;
    if deadline.is_none() {
        remove(&mut status, PROGRESSING);
    } else if !settled {
        if is_complete(deployment, &status) {
            let message = format!("{subject} has successfully progressed.");
            set(&mut status, make(PROGRESSING, "True", NEW_SET_AVAILABLE, &message, now));
        } else if has_progressed(before, &status) {
            let mut progress =
                make(PROGRESSING, "True", "ReplicaSetUpdated", &format!("{subject} is progressing."), now);
            if let Some(known) = current.as_ref().filter(|known| known.status == "True") {
                progress.last_transition_time = known.last_transition_time.clone();
            }
            // Even with the same reason: its update time is what the deadline counts from.
            remove(&mut status, PROGRESSING);
            set(&mut status, progress);
        } else if is_late(current.as_ref(), deadline, now) {
            let message = format!("{subject} has timed out progressing.");
            set(&mut status, make(PROGRESSING, "False", TIMED_OUT, &message, now));
        }
    }
    take_over_failure(&mut status, new, old);
    let again = until_deadline(deployment, &status, deadline, now);
    deployment.status = Some(status);
    again
}

fn has_progressed(before: &DeploymentStatus, after: &DeploymentStatus) -> bool {
    let count = |field: Option<i32>| field.unwrap_or(0);
    let old_ones = |status: &DeploymentStatus| count(status.replicas) - count(status.updated_replicas);
    count(after.updated_replicas) > count(before.updated_replicas)
        || old_ones(after) < old_ones(before)
        || count(after.ready_replicas) > count(before.ready_replicas)
        || count(after.available_replicas) > count(before.available_replicas)
}

fn is_late(current: Option<&DeploymentCondition>, deadline: Option<Duration>, now: Timestamp) -> bool {
    let (Some(current), Some(deadline)) = (current, deadline) else { return false };
    match current.reason.as_deref() {
        Some(NEW_SET_AVAILABLE) => false,
        Some(TIMED_OUT) => true,
        _ => age(current, now).is_some_and(|age| age > deadline),
    }
}

fn age(condition: &DeploymentCondition, now: Timestamp) -> Option<Duration> {
    let since = condition.last_update_time.as_ref()?.0;
    Some(Duration::try_from(now.duration_since(since)).unwrap_or(Duration::ZERO))
}

fn until_deadline(
    deployment: &Deployment,
    status: &DeploymentStatus,
    deadline: Option<Duration>,
    now: Timestamp,
) -> Option<Duration> {
    let current = condition(status, PROGRESSING)?;
    if is_complete(deployment, status)
        || matches!(current.reason.as_deref(), Some(TIMED_OUT | NEW_SET_AVAILABLE))
    {
        return None;
    }
    let left = deadline?.saturating_sub(age(current, now)?);
    // A second more: times in objects have no fractions.
    Some(left.saturating_add(Duration::from_secs(1)))
}

/// Why a set cannot make its pods is what users look for on the Deployment.
fn take_over_failure(status: &mut DeploymentStatus, new: Option<&ReplicaSet>, old: &[ReplicaSet]) {
    let conditions = new
        .into_iter()
        .chain(old)
        .filter_map(|set| set.status.as_ref())
        .filter_map(|status| status.conditions.as_ref());
    match conditions.flatten().find(|condition| condition.type_ == REPLICA_FAILURE) {
        Some(failure) => set(
            status,
            DeploymentCondition {
                type_: REPLICA_FAILURE.into(),
                status: failure.status.clone(),
                reason: failure.reason.clone(),
                message: failure.message.clone(),
                last_update_time: failure.last_transition_time.clone(),
                last_transition_time: failure.last_transition_time.clone(),
            },
        ),
        None => remove(status, REPLICA_FAILURE),
    }
}
