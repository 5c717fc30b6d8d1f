//! What a Job does next, and what its status says.
//!
//! Every pod is counted exactly once, though pods, status and finalizers are written one by
//! one and a crash may fall between any two:
//!
//! ```text
//! pod ends ──▶ its uid is noted in the status ──▶ its finalizer goes ──▶ it is counted
//!              (uncountedTerminatedPods)          (it may now vanish)    and the note goes
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::batch::v1::{Job, JobCondition, JobSpec, JobStatus, UncountedTerminatedPods};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;

use super::failure_policy::{self, has_failed, replaces_only_failed};
use super::indexes;
use crate::pods::{counted, is_active, is_ready, is_terminating, phase, sort_for_deletion};

/// Keeps a pod until its end is counted.
pub const TRACKING: &str = "batch.kubernetes.io/job-tracking";
pub const INDEX: &str = "batch.kubernetes.io/job-completion-index";
/// How often the pods of one index have failed, on the newest of them.
pub const INDEX_FAILURES: &str = "batch.kubernetes.io/job-index-failure-count";
/// Never more writes at a time.
const BURST: usize = 500;
const FIRST_BACKOFF: Duration = Duration::from_secs(10);
const MAX_BACKOFF: Duration = Duration::from_secs(600);

/// Failures since the last success, as far as this process has seen them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Failures {
    pub count: u32,
    pub last: Option<Timestamp>,
}

#[derive(Debug, Default)]
pub struct Plan {
    pub status: JobStatus,
    /// After the status is written: pods whose end is noted.
    pub release: Vec<Arc<Pod>>,
    pub delete: Vec<Arc<Pod>>,
    /// Pods to make; the index and its failures so far for indexed Jobs.
    pub create: Vec<Option<(i32, i32)>>,
    pub events: Vec<(bool, String, String)>,
    pub failures: Failures,
    pub again: Option<Duration>,
}

pub fn is_indexed(job: &Job) -> bool {
    job.spec.as_ref().and_then(|spec| spec.completion_mode.as_deref()) == Some("Indexed")
}

pub fn is_finished(job: &Job) -> bool {
    job.status.as_ref().is_some_and(|status| holds(status, "Complete") || holds(status, "Failed"))
}

fn holds(status: &JobStatus, kind: &str) -> bool {
    status.conditions.iter().flatten().any(|condition| condition.type_ == kind && condition.status == "True")
}

fn has_finalizer(pod: &Pod) -> bool {
    pod.finalizers().iter().any(|finalizer| finalizer == TRACKING)
}

pub fn index_of(pod: &Pod) -> Option<i32> {
    pod.annotations().get(INDEX)?.parse().ok().filter(|index| *index >= 0)
}

/// Decides over all pods the Job controls. `seen` tells whether what it did last has shown up
/// in `pods`; until then no pod is made or deleted.
pub fn plan(job: &Job, pods: &[Arc<Pod>], failures: Failures, seen: bool, now: Timestamp) -> Plan {
    let mut decision = Decision::new(job, pods, failures, now);
    decision.count_pods();
    decision.find_end();
    decision.suspend_or_resume();
    if seen {
        decision.adjust_pods();
    }
    decision.finish();
    decision.into_plan()
}

struct Decision<'a> {
    job: &'a Job,
    spec: JobSpec,
    pods: &'a [Arc<Pod>],
    now: Timestamp,
    status: JobStatus,
    plan: Plan,
    completions: i32,
    succeeded_indexes: BTreeSet<i32>,
    failed_indexes: BTreeSet<i32>,
    /// Pods that have succeeded or failed, counted or noted.
    succeeded: i32,
    failed: i32,
    active: Vec<Arc<Pod>>,
    /// Why the Job ends, once that is decided: condition, reason, message.
    end: Option<End>,
}

#[derive(Clone, Debug, PartialEq)]
struct End {
    success: bool,
    reason: String,
    message: String,
}

impl End {
    fn failed(reason: &str, message: impl Into<String>) -> End {
        End { success: false, reason: reason.into(), message: message.into() }
    }
}

impl<'a> Decision<'a> {
    fn new(job: &'a Job, pods: &'a [Arc<Pod>], failures: Failures, now: Timestamp) -> Self {
        let spec = job.spec.clone().unwrap_or_default();
        let mut status = job.status.clone().unwrap_or_default();
        let completions = spec.completions.unwrap_or(i32::MAX);
        if status.start_time.is_none() && spec.suspend != Some(true) {
            status.start_time = Some(Time(now));
        }
        // After a clock that went back, a failure has not yet been: it counts as one of now.
        let failures = Failures { last: failures.last.map(|last| last.min(now)), ..failures };
        let read = |text: &Option<String>| indexes::parse(text.as_deref().unwrap_or(""), completions);
        Decision {
            job,
            pods,
            now,
            succeeded_indexes: read(&status.completed_indexes),
            failed_indexes: read(&status.failed_indexes),
            succeeded: 0,
            failed: 0,
            active: pods.iter().filter(|pod| is_active(pod)).cloned().collect(),
            end: None,
            plan: Plan { failures, ..Default::default() },
            completions,
            spec,
            status,
        }
    }

    /// Notes pods that have ended, counts those noted before whose finalizer is gone.
    fn count_pods(&mut self) {
        let noted = self.status.uncounted_terminated_pods.clone().unwrap_or_default();
        let held: BTreeSet<String> =
            self.pods.iter().filter(|pod| has_finalizer(pod)).filter_map(|pod| pod.uid()).collect();
        let (kept_succeeded, gone_succeeded): (Vec<String>, Vec<String>) =
            noted.succeeded.unwrap_or_default().into_iter().partition(|uid| held.contains(uid));
        let (kept_failed, gone_failed): (Vec<String>, Vec<String>) =
            noted.failed.unwrap_or_default().into_iter().partition(|uid| held.contains(uid));
        let indexed = is_indexed(self.job);
        self.status.failed = counted(self.status.failed.unwrap_or(0) + gone_failed.len() as i32);
        if !indexed {
            self.status.succeeded = counted(self.status.succeeded.unwrap_or(0) + gone_succeeded.len() as i32);
        }
        let (mut succeeded, mut failed) = (kept_succeeded, kept_failed);
        for pod in self.pods.iter().filter(|pod| has_finalizer(pod)) {
            let uid = pod.uid().unwrap_or_default();
            let index = index_of(pod).filter(|index| *index < self.completions);
            if phase(pod) == "Succeeded" && !failed.contains(&uid) {
                let is_new = match index {
                    // An index says by itself whether it was counted; other pods are noted by uid.
                    Some(index) if indexed => self.succeeded_indexes.insert(index),
                    _ if !indexed && !succeeded.contains(&uid) => {
                        succeeded.push(uid);
                        true
                    }
                    _ => false,
                };
                if is_new {
                    self.plan.failures = Failures::default();
                }
                self.plan.release.push(pod.clone());
            } else if has_failed(self.job, pod) {
                if !failed.contains(&uid) && (!indexed || index.is_some()) {
                    self.note_failure(pod, index, &mut failed, uid);
                }
                self.plan.release.push(pod.clone());
            }
        }
        self.succeeded = match indexed {
            true => self.succeeded_indexes.len() as i32,
            false => self.status.succeeded.unwrap_or(0) + succeeded.len() as i32,
        };
        self.failed = self.status.failed.unwrap_or(0) + failed.len() as i32;
        let some = |list: Vec<String>| (!list.is_empty()).then_some(list);
        self.status.uncounted_terminated_pods =
            Some(UncountedTerminatedPods { succeeded: some(succeeded), failed: some(failed) });
    }

    fn note_failure(&mut self, pod: &Pod, index: Option<i32>, failed: &mut Vec<String>, uid: String) {
        let action = failure_policy::judge(self.job, pod);
        if action != failure_policy::Action::Ignore {
            failed.push(uid);
            let known = self.plan.failures;
            self.plan.failures = Failures { count: known.count + 1, last: known.last.max(Some(self.now)) };
        }
        match action {
            failure_policy::Action::FailJob(message) => {
                self.end.get_or_insert(End::failed("PodFailurePolicy", message));
            }
            failure_policy::Action::FailIndex => self.failed_indexes.extend(index),
            failure_policy::Action::Count => {
                let limit = self.spec.backoff_limit_per_index;
                if limit.is_some_and(|limit| index_failures(pod) >= limit) {
                    self.failed_indexes.extend(index);
                }
            }
            failure_policy::Action::Ignore => {}
        }
    }

    /// Has the Job reached its goal, or lost it?
    fn find_end(&mut self) {
        let known = |kind: &str| {
            let conditions = self.status.conditions.iter().flatten();
            let found = conditions
                .into_iter()
                .find(|condition| condition.type_ == kind && condition.status == "True");
            found.map(|found| {
                (found.reason.clone().unwrap_or_default(), found.message.clone().unwrap_or_default())
            })
        };
        if let Some((reason, message)) = known("FailureTarget") {
            self.end = Some(End { success: false, reason, message });
            return;
        }
        if let Some((reason, message)) = known("SuccessCriteriaMet") {
            self.end = Some(End { success: true, reason, message });
            return;
        }
        if self.end.is_some() {
            return;
        }
        self.end = self.lost().or_else(|| self.won());
    }

    fn lost(&self) -> Option<End> {
        if self.failed > self.spec.backoff_limit.unwrap_or(6) || self.restarted_too_often() {
            return Some(End::failed("BackoffLimitExceeded", "Job has reached the specified backoff limit"));
        }
        if self.past_deadline() == Some(Duration::ZERO) {
            return Some(End::failed("DeadlineExceeded", "Job was active longer than specified deadline"));
        }
        let failed = self.failed_indexes.len() as i32;
        if self.spec.max_failed_indexes.is_some_and(|limit| failed > limit) {
            let message = "Job has exceeded the specified maximal number of failed indexes";
            return Some(End::failed("MaxFailedIndexesExceeded", message));
        }
        let all_decided = self.succeeded_indexes.len() as i32 + failed >= self.completions;
        (failed > 0 && all_decided).then(|| End::failed("FailedIndexes", "Job has failed indexes"))
    }

    fn won(&self) -> Option<End> {
        if let Some(rule) = self.met_success_rule() {
            let message = format!("Matched rules at index {rule}");
            return Some(End { success: true, reason: "SuccessPolicy".into(), message });
        }
        let complete = match self.spec.completions {
            // A work queue: one that succeeded says all is done, and the others end too.
            None => self.succeeded > 0 && self.active.is_empty(),
            Some(completions) => self.succeeded >= completions,
        };
        let complete = complete && self.spec.suspend != Some(true) || self.spec.completions == Some(0);
        complete.then(|| End {
            success: true,
            reason: "CompletionsReached".into(),
            message: "Reached expected number of succeeded pods".into(),
        })
    }

    fn met_success_rule(&self) -> Option<usize> {
        let policy = self.spec.success_policy.as_ref()?;
        policy.rules.iter().position(|rule| {
            let wanted = rule.succeeded_indexes.as_deref().map(|text| indexes::parse(text, self.completions));
            let counted = match &wanted {
                Some(wanted) => self.succeeded_indexes.intersection(wanted).count(),
                None => self.succeeded_indexes.len(),
            };
            match (rule.succeeded_count, wanted) {
                (Some(count), _) => counted as i32 >= count,
                (None, Some(wanted)) => counted == wanted.len(),
                (None, None) => false,
            }
        })
    }

    /// Pods that restart in place never fail; their restarts count instead.
    fn restarted_too_often(&self) -> bool {
        let in_place = self
            .spec
            .template
            .spec
            .as_ref()
            .is_some_and(|spec| spec.restart_policy.as_deref() == Some("OnFailure"));
        let counted = self.active.iter().filter(|pod| matches!(phase(pod), "Running" | "Pending"));
        let restarts: i32 = counted
            .filter_map(|pod| pod.status.as_ref())
            .flat_map(|status| {
                status
                    .init_container_statuses
                    .iter()
                    .flatten()
                    .chain(status.container_statuses.iter().flatten())
            })
            .map(|container| container.restart_count)
            .sum();
        let limit = self.spec.backoff_limit.unwrap_or(6);
        in_place && if limit == 0 { restarts > 0 } else { restarts >= limit }
    }

    /// Time until the deadline, zero when it has passed; None without one.
    fn past_deadline(&self) -> Option<Duration> {
        let deadline = Duration::from_secs(self.spec.active_deadline_seconds?.max(0) as u64);
        if self.spec.suspend == Some(true) {
            return None;
        }
        let start = self.status.start_time.as_ref()?.0;
        let passed = Duration::try_from(self.now.duration_since(start)).unwrap_or(Duration::ZERO);
        Some(deadline.saturating_sub(passed))
    }

    fn suspend_or_resume(&mut self) {
        if self.end.is_some() {
            return;
        }
        let suspended = holds(&self.status, "Suspended");
        match (self.spec.suspend == Some(true), suspended) {
            (true, false) => {
                self.set("Suspended", "True", "JobSuspended", "Job suspended");
                self.event(true, "Suspended", "Job suspended");
                self.status.start_time = None;
            }
            (false, true) => {
                self.set("Suspended", "False", "JobResumed", "Job resumed");
                self.event(true, "Resumed", "Job resumed");
                self.status.start_time = Some(Time(self.now));
            }
            _ => {}
        }
    }

    fn adjust_pods(&mut self) {
        let suspended = self.spec.suspend == Some(true);
        if self.end.is_some() || suspended || self.job.metadata.deletion_timestamp.is_some() {
            if self.job.metadata.deletion_timestamp.is_none() {
                self.plan.delete = std::mem::take(&mut self.active);
            }
            return;
        }
        self.drop_surplus_of_indexes();
        let parallelism = self.spec.parallelism.unwrap_or(1).max(0);
        let terminating = self.pods.iter().filter(|pod| is_terminating(pod)).count() as i32;
        let occupied =
            self.active.len() as i32 + if replaces_only_failed(self.job) { terminating } else { 0 };
        let wanted = match self.spec.completions {
            None if self.succeeded > 0 => self.active.len() as i32,
            None => parallelism,
            Some(completions) => {
                let decided = self.succeeded + self.failed_indexes.len() as i32;
                parallelism.min((completions - decided).max(0))
            }
        };
        let surplus = (self.active.len() as i32 - wanted).max(0) as usize;
        if surplus > 0 {
            sort_for_deletion(&mut self.active, &Default::default(), self.now);
            self.plan.delete.extend(self.active.drain(..surplus.min(BURST)));
        } else if occupied < wanted {
            self.make(((wanted - occupied) as usize).min(BURST));
        }
    }

    fn make(&mut self, count: usize) {
        let Failures { count: failures, last } = self.plan.failures;
        if let Some(last) = last.filter(|_| failures > 0) {
            let delay = FIRST_BACKOFF.saturating_mul(1 << (failures - 1).min(6)).min(MAX_BACKOFF);
            let passed = Duration::try_from(self.now.duration_since(last)).unwrap_or(Duration::ZERO);
            if let Some(left) = delay.checked_sub(passed).filter(|left| !left.is_zero()) {
                self.again(left);
                return;
            }
        }
        if !is_indexed(self.job) {
            self.plan.create = vec![None; count];
            return;
        }
        let mut taken: BTreeSet<i32> = self.active.iter().filter_map(|pod| index_of(pod)).collect();
        if replaces_only_failed(self.job) {
            taken.extend(self.pods.iter().filter(|pod| is_terminating(pod)).filter_map(|pod| index_of(pod)));
        }
        let mut failures: BTreeMap<i32, i32> = BTreeMap::new();
        for pod in self.pods.iter().filter(|pod| has_failed(self.job, pod)) {
            if let Some(index) = index_of(pod) {
                let count = failures.entry(index).or_default();
                *count = (*count).max(index_failures(pod) + 1);
            }
        }
        let free = (0..self.completions).filter(|index| {
            !taken.contains(index)
                && !self.succeeded_indexes.contains(index)
                && !self.failed_indexes.contains(index)
        });
        self.plan.create =
            free.take(count).map(|index| Some((index, failures.get(&index).copied().unwrap_or(0)))).collect();
    }

    /// Two pods of one index, or one of an index that is done: all but one go.
    fn drop_surplus_of_indexes(&mut self) {
        if !is_indexed(self.job) {
            return;
        }
        let mut seen = BTreeSet::new();
        let (keep, drop): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.active).into_iter().partition(|pod| match index_of(pod) {
                Some(index) if index < self.completions && !self.failed_indexes.contains(&index) => {
                    !self.succeeded_indexes.contains(&index) && seen.insert(index)
                }
                _ => false,
            });
        self.active = keep;
        self.plan.delete.extend(drop);
    }

    /// The end is announced at once and final when the last pod is.
    fn finish(&mut self) {
        if let Some(left) = self.past_deadline().filter(|left| !left.is_zero()) {
            self.again(left);
        }
        let Some(end) = self.end.clone() else { return };
        if holds(&self.status, "Complete") || holds(&self.status, "Failed") {
            return;
        }
        let announced = if end.success { "SuccessCriteriaMet" } else { "FailureTarget" };
        self.set(announced, "True", &end.reason, &end.message);
        let running = self.pods.iter().any(|pod| is_active(pod) || is_terminating(pod));
        let noted = self.status.uncounted_terminated_pods.as_ref();
        let uncounted = noted.is_some_and(|noted| noted.succeeded.is_some() || noted.failed.is_some());
        if running || uncounted || self.plan.release.iter().any(|pod| has_finalizer(pod)) {
            return;
        }
        if end.success {
            self.status.completion_time = Some(Time(self.now));
            self.set("Complete", "True", &end.reason, &end.message);
            self.event(true, "Completed", "Job completed");
        } else {
            self.set("Failed", "True", &end.reason, &end.message);
            self.event(false, &end.reason.clone(), &end.message.clone());
        }
    }

    fn again(&mut self, time: Duration) {
        self.plan.again = Some(self.plan.again.map_or(time, |known| known.min(time)));
    }

    fn event(&mut self, normal: bool, reason: &str, message: &str) {
        self.plan.events.push((normal, reason.into(), message.into()));
    }

    fn set(&mut self, kind: &str, status: &str, reason: &str, message: &str) {
        let conditions = self.status.conditions.get_or_insert_default();
        if conditions.iter().any(|condition| condition.type_ == kind && condition.status == status) {
            return;
        }
        conditions.retain(|condition| condition.type_ != kind);
        conditions.push(JobCondition {
            type_: kind.into(),
            status: status.into(),
            reason: Some(reason.into()),
            message: Some(message.into()),
            last_probe_time: Some(Time(self.now)),
            last_transition_time: Some(Time(self.now)),
        });
    }

    fn into_plan(mut self) -> Plan {
        // What is deleted now counts as terminating already: the API server refuses more ready pods than active ones.
        let going: BTreeSet<Option<String>> = self.plan.delete.iter().map(|pod| pod.uid()).collect();
        let is_going = |pod: &Pod| going.contains(&pod.uid());
        let count = |wanted: &dyn Fn(&Pod) -> bool| self.pods.iter().filter(|pod| wanted(pod)).count() as i32;
        let stays = |pod: &Pod| is_active(pod) && !is_going(pod);
        self.status.active = counted(count(&stays) + self.plan.create.len() as i32);
        self.status.ready = Some(count(&|pod| stays(pod) && is_ready(pod)));
        self.status.terminating = Some(count(&|pod| is_terminating(pod) || is_going(pod)));
        if is_indexed(self.job) {
            self.status.succeeded = counted(self.succeeded_indexes.len() as i32);
            self.status.completed_indexes =
                Some(indexes::print(&self.succeeded_indexes)).filter(|text| !text.is_empty());
            if self.spec.backoff_limit_per_index.is_some() {
                self.status.failed_indexes = Some(indexes::print(&self.failed_indexes));
            }
        }
        let done = holds(&self.status, "Complete") || holds(&self.status, "Failed");
        if done {
            self.status.active = None;
        }
        self.plan.status = self.status;
        self.plan
    }
}

fn index_failures(pod: &Pod) -> i32 {
    pod.annotations().get(INDEX_FAILURES).and_then(|count| count.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
