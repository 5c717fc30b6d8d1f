//! PostFilter: makes room for a pod that no node takes, by preemption or by deallocating a resource claim.

use std::sync::Arc;

use ferry_client::EventType;
use tokio::time::Instant;

use super::Scheduler;
use crate::consult;
use crate::cycle::{Filters, FitError};
use crate::metrics;
use crate::plugins::dynamic_resources::Release;
use crate::plugins::{Cycle, default_preemption, dynamic_resources};
use crate::pod_info::PodInfo;
use crate::write;

impl Scheduler {
    /// Looks for less important pods whose removal makes room; returns the node that the pod is nominated to.
    pub(super) async fn post_filter(
        &mut self,
        cycle: &mut Cycle<'_>,
        filters: &Filters,
        error: &mut FitError,
    ) -> Option<String> {
        if !cycle.profile.preempts || error.refused_at_once.is_some() || error.nodes == 0 {
            return None;
        }
        let claims = self.release(cycle, error);
        let from = self.search.random() as usize;
        let mut span = ferry_trace::span("scheduler.preempt");
        metrics::preemption_attempted();
        let began = Instant::now();
        let found =
            default_preemption::find(cycle, &mut self.snapshot, filters, &self.nominated, error, from);
        let status = if found.is_ok() { "Success" } else { "Unschedulable" };
        metrics::ran("PostFilter", cycle.profile.name, status, began.elapsed());
        let candidates = match found {
            Ok(candidates) => candidates,
            Err(message) => {
                error.preemption = format!("{claims}, {message}");
                return None;
            }
        };
        let agreed = consult::preempt(&self.extenders, cycle.pod, &self.snapshot, candidates);
        let candidate = match span.in_scope(agreed).await {
            Ok(candidates) => default_preemption::best(candidates)?,
            Err(failed) => {
                error.preemption = format!("{claims}, preemption: {failed}");
                return None;
            }
        };
        let node = self.snapshot.name(candidate.node).to_string();
        span.set("node", node.clone());
        span.set("victims", candidate.victims.len() as i64);
        metrics::preempted(candidate.victims.len());
        self.preempt(candidate.victims, cycle, &node);
        self.clear_lower_nominations(cycle.pod, &node);
        Some(node)
    }

    fn preempt(&mut self, victims: Vec<Arc<PodInfo>>, cycle: &Cycle<'_>, node: &str) {
        let recorder = self.profiles.iter().find(|(_, profile)| profile.name == cycle.profile.name);
        // A victim that is terminating already needs no second delete.
        for victim in victims.into_iter().filter(|victim| !victim.is_terminating()) {
            let note = format!("Preempted by pod {} on node {node}", cycle.pod.uid);
            if let Some((recorder, _)) = recorder {
                recorder.event(&victim.pod, EventType::Normal, "Preempted", "Preempting", note);
            }
            let (client, scheduler) = (self.client.clone(), cycle.profile.name);
            self.writes.spawn(ferry_trace::inherit(async move {
                if let Err(error) = write::preempt(&client, &victim, scheduler).await {
                    tracing::warn!(%error, "preemption failed");
                }
            }));
        }
    }

    /// Clears the nominations of less important pods to the node, since their room is taken.
    fn clear_lower_nominations(&mut self, pod: &PodInfo, node: &str) {
        for key in self.nominated.after(pod, node) {
            self.nominated.remove(&key);
            if let Some(pod) = self.queue.pod(&key).cloned() {
                let client = self.client.clone();
                self.writes.spawn(ferry_trace::inherit(async move {
                    if let Err(error) = write::status(&client, &pod, None, Some("")).await {
                        tracing::warn!(%error, "nomination not cleared");
                    }
                }));
            }
        }
    }

    /// Releases a claim whose devices keep the pod from every node; returns upstream's words for the outcome.
    fn release(&mut self, cycle: &Cycle<'_>, error: &FitError) -> &'static str {
        if !dynamic_resources::has_claims(cycle) {
            return "no new claims to deallocate";
        }
        match dynamic_resources::to_release(cycle, &self.snapshot, error) {
            None => "still not schedulable",
            Some(Release::Delete(claim)) => {
                self.delete_claim(claim);
                "deletion of ResourceClaim completed"
            }
            Some(Release::Deallocate(claim)) => {
                let client = self.client.clone();
                self.writes.spawn(ferry_trace::inherit(async move {
                    if let Err(error) = write::deallocate_claim(&client, &claim).await {
                        tracing::warn!(%error, "claim not deallocated");
                    }
                }));
                "deallocation of ResourceClaim completed"
            }
        }
    }
}
