//! What the scheduler does when one of its writes has ended: a pod is bound, its volumes or devices are on their way, or it
//! goes back to the queue.

use std::sync::Arc;

use ferry_client::EventType;
use tokio::time::Instant;

use super::{Scheduler, has_conditions};
use crate::metrics;
use crate::pod_info::{PodInfo, node_name};
use crate::write::WriteError;

/// How a write went that the scheduler has to hear of.
pub(super) struct Finished {
    pub pod: Arc<PodInfo>,
    pub node: String,
    pub step: Step,
    /// Claims that got an allocation, by uid, and the revisions that have it; also where a later one failed.
    pub allocated: Vec<(String, i64)>,
    pub result: Result<(), WriteError>,
    /// When the attempt began.
    pub began: Instant,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    Bind,
    BindVolumes,
    ReserveClaims,
}

impl Scheduler {
    pub(super) fn finish(&mut self, done: Finished) {
        match (done.step, &done.result) {
            (Step::Bind, Ok(())) => self.bound(&done),
            (Step::BindVolumes, Ok(())) => self.volumes_written(&done),
            (Step::ReserveClaims, Ok(())) => self.claims_reserved(&done),
            (_, Err(error)) => self.binding_failed(&done, error),
        }
    }

    fn bound(&mut self, done: &Finished) {
        let Finished { pod, node, began, .. } = done;
        metrics::attempted(pod.scheduler_name(), "scheduled", began.elapsed());
        if let Some((attempts, first)) = self.queue.attempts(&pod.key) {
            metrics::bound(attempts, first.elapsed());
        }
        metrics::knows(self.snapshot.len(), self.snapshot.placed_pods());
        self.queue.remove(&pod.key);
        if let Some(at) = self.profile_of(pod) {
            let note = format!("Successfully assigned {} to {node}", pod.key);
            self.profiles[at].0.event(&pod.pod, EventType::Normal, "Scheduled", "Binding", note);
        }
    }

    fn volumes_written(&mut self, done: &Finished) {
        let own = self.awaiting_volumes.get_mut(&done.pod.key).filter(|own| own.pod.uid == done.pod.uid);
        if let Some(awaiting) = own {
            awaiting.written = true;
            // the claims may have been bound before we heard of our own write
            self.look_at_volumes();
        }
    }

    fn claims_reserved(&mut self, done: &Finished) {
        let Finished { pod, node, allocated, .. } = done;
        let own = self.awaiting_devices.get_mut(&pod.key).filter(|own| own.pod.uid == pod.uid);
        let Some(awaiting) = own else { return self.forget_allocations(pod, allocated) };
        awaiting.written = true;
        let reservations = awaiting.reservations.clone();
        self.settle_allocations(pod, &reservations, allocated);
        if let (Some(at), true) = (self.profile_of(pod), has_conditions(&reservations)) {
            let note = format!("waiting for binding conditions for device on node {node}");
            let recorder = &self.profiles[at].0;
            recorder.event(&pod.pod, EventType::Normal, "BindingConditionsPending", "Scheduling", note);
        }
        self.look_at_devices();
    }

    fn binding_failed(&mut self, done: &Finished, error: &WriteError) {
        let Finished { pod, node, step, allocated, began, .. } = done;
        self.awaiting_volumes.remove(&pod.key);
        match self.awaiting_devices.remove(&pod.key) {
            Some(awaiting) => self.settle_allocations(pod, &awaiting.reservations, allocated),
            None => self.forget_allocations(pod, allocated),
        }
        // someone may have bound it; the informer then has the last word
        let seen = self.watched.pods.get(&pod.key);
        if seen.as_ref().is_some_and(|seen| node_name(&seen.pod).is_some()) {
            return;
        }
        self.leave(&pod.key);
        self.unreserve(pod);
        if seen.is_none_or(|seen| seen.uid != pod.uid) {
            self.queue.remove(&pod.key);
            return;
        }
        tracing::warn!(pod = %pod.key, node, error = %error, "binding failed");
        metrics::attempted(pod.scheduler_name(), "error", began.elapsed());
        self.queue.failed(&pod.key, Instant::now());
        if let Some(at) = self.profile_of(pod) {
            let message = match step {
                Step::ReserveClaims => format!("running PreBind plugin \"DynamicResources\": {error}"),
                Step::Bind | Step::BindVolumes => format!("binding rejected: {error}"),
            };
            self.tell(at, pod, "SchedulerError", &message, None);
        }
    }
}
