//! The binding cycle of a pod that has a node: reserve its resource claims, bind its volumes, bind the pod. Each step is a
//! task beside the next searches, whose result comes back to the scheduling loop as a [`StepResult`].

use std::sync::Arc;

use ferry_client::EventType;
use tokio::time::Instant;

use super::Scheduler;
use super::pre_bind::{AwaitingDevices, AwaitingVolumes, BIND_TIMEOUT, has_conditions};
use crate::devices::binding;
use crate::metrics;
use crate::plugins::Choices;
use crate::plugins::dynamic_resources::Reservations;
use crate::pod_info::{PodInfo, node_name};
use crate::snapshot::NodeIndex;
use crate::write::{self, WriteError, Written};

/// How a step of a pod's binding cycle ended.
pub(super) struct StepResult {
    pub pod: Arc<PodInfo>,
    pub node: String,
    pub step: BindingStep,
    pub written: Written,
    /// When the scheduling attempt began.
    pub began: Instant,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum BindingStep {
    Bind,
    BindVolumes,
    ReserveClaims,
}

impl Scheduler {
    /// Assumes the pod on its node, so that the next pods are scheduled around it, and starts its binding cycle.
    pub(super) fn assume(
        &mut self,
        pod: &Arc<PodInfo>,
        node: NodeIndex,
        choices: Choices,
        reservations: Reservations,
        began: Instant,
    ) {
        let name = self.snapshot.name(node).to_string();
        self.snapshot.place(pod.clone(), node);
        self.delete_nominated_pod(&pod.key, Some(&name));
        if reservations.is_empty() {
            return self.bind_volumes(pod, name, choices, began);
        }
        for (claim, allocation) in &reservations.claims {
            if let Some(allocation) = allocation {
                self.watched.assumed.put(claim, allocation);
            }
        }
        if let Some(extended) = &reservations.extended {
            self.watched.assumed.put(&extended.claim, &extended.allocation);
        }
        let awaiting = AwaitingDevices {
            pod: pod.clone(),
            node: name.clone(),
            choices,
            reservations: reservations.clone(),
            written: false,
            until: Instant::now() + binding::WITHIN,
            began,
        };
        self.awaiting_devices.insert(pod.key.clone(), awaiting);
        let (client, user) = (self.client.clone(), pod.clone());
        self.write(pod.clone(), name, BindingStep::ReserveClaims, began, async move {
            write::reserve_claims(&client, &reservations, &user).await
        });
    }

    /// Binds the pod's volumes first where it has unbound ones.
    pub(super) fn bind_volumes(
        &mut self,
        pod: &Arc<PodInfo>,
        name: String,
        choices: Choices,
        began: Instant,
    ) {
        if choices.is_empty() {
            return self.bind(pod.clone(), name, began);
        }
        let awaiting = AwaitingVolumes {
            pod: pod.clone(),
            node: name.clone(),
            choices: choices.clone(),
            written: false,
            until: Instant::now() + BIND_TIMEOUT,
            began,
        };
        self.awaiting_volumes.insert(pod.key.clone(), awaiting);
        let (client, node) = (self.client.clone(), name.clone());
        self.write(pod.clone(), name, BindingStep::BindVolumes, began, async move {
            write::bind_volumes(&client, &choices, &node).await.map_err(WriteError::from).into()
        });
    }

    pub(super) fn bind(&mut self, pod: Arc<PodInfo>, name: String, began: Instant) {
        let binder = self.extenders.iter().find(|own| own.binds() && own.is_interested(&pod)).cloned();
        let (client, bound, node) = (self.client.clone(), pod.clone(), name.clone());
        self.write(pod, name, BindingStep::Bind, began, async move {
            let written = match binder {
                Some(binder) => binder.bind(&bound, &node).await.map_err(WriteError::from),
                None => write::bind(&client, &bound, &node).await.map_err(WriteError::from),
            };
            written.into()
        });
    }

    fn write(
        &mut self,
        pod: Arc<PodInfo>,
        node: String,
        step: BindingStep,
        began: Instant,
        act: impl Future<Output = Written> + Send + 'static,
    ) {
        let sender = self.sender.clone();
        let write = async move {
            let mut span = ferry_trace::span("scheduler.bind");
            span.object("pods", &pod.key.namespace, &pod.key.name).set("node", node.as_str());
            let binding = Instant::now();
            let written = span.in_scope(act).await;
            if step == BindingStep::Bind {
                let status = if written.result.is_ok() { "Success" } else { "Error" };
                metrics::ran("Bind", pod.scheduler_name(), status, binding.elapsed());
            }
            // Sending fails only when the scheduler has ended.
            let _ = sender.send(StepResult { pod, node, step, written, began }).await;
        };
        self.writes.spawn(ferry_trace::inherit(write));
    }

    pub(super) fn step_ended(&mut self, ended: StepResult) {
        match (ended.step, &ended.written.result) {
            (BindingStep::Bind, Ok(())) => self.bound(&ended),
            (BindingStep::BindVolumes, Ok(())) => self.volumes_written(&ended),
            (BindingStep::ReserveClaims, Ok(())) => self.claims_reserved(&ended),
            (_, Err(error)) => self.binding_failed(&ended, error),
        }
    }

    fn bound(&mut self, result: &StepResult) {
        let StepResult { pod, node, began, .. } = result;
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

    fn volumes_written(&mut self, result: &StepResult) {
        let own = self.awaiting_volumes.get_mut(&result.pod.key).filter(|own| own.pod.uid == result.pod.uid);
        if let Some(awaiting) = own {
            awaiting.written = true;
            // The informer may have delivered the bound claims already.
            self.check_volume_bindings();
        }
    }

    fn claims_reserved(&mut self, result: &StepResult) {
        let StepResult { pod, node, written, .. } = result;
        self.made_claim(pod, written);
        let own = self.awaiting_devices.get_mut(&pod.key).filter(|own| own.pod.uid == pod.uid);
        let Some(awaiting) = own else { return self.forget_allocations(pod, &written.allocated) };
        awaiting.written = true;
        if let Some((made, extended)) = written.made.clone().zip(awaiting.reservations.extended.take()) {
            awaiting.reservations.claims.push((made, Some(extended.allocation)));
        }
        let reservations = awaiting.reservations.clone();
        self.record_allocations(pod, &reservations, &written.allocated);
        if let (Some(at), true) = (self.profile_of(pod), has_conditions(&reservations)) {
            let note = format!("waiting for binding conditions for device on node {node}");
            let recorder = &self.profiles[at].0;
            recorder.event(&pod.pod, EventType::Normal, "BindingConditionsPending", "Scheduling", note);
        }
        self.check_device_bindings();
    }

    fn binding_failed(&mut self, result: &StepResult, error: &WriteError) {
        let StepResult { pod, node, step, written, began } = result;
        self.awaiting_volumes.remove(&pod.key);
        self.made_claim(pod, written);
        match self.awaiting_devices.remove(&pod.key) {
            Some(awaiting) => self.record_allocations(pod, &awaiting.reservations, &written.allocated),
            None => self.forget_allocations(pod, &written.allocated),
        }
        if let Some(made) = &written.made {
            self.delete_claim(made.clone());
        }
        // Another scheduler may have bound it; the informer's pod decides.
        let seen = self.watched.pods.get(&pod.key);
        if seen.as_ref().is_some_and(|seen| node_name(&seen.pod).is_some()) {
            return;
        }
        self.remove_placed_pod(&pod.key);
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
                BindingStep::ReserveClaims => format!("running PreBind plugin \"DynamicResources\": {error}"),
                BindingStep::Bind | BindingStep::BindVolumes => format!("binding rejected: {error}"),
            };
            self.handle_scheduling_failure(at, pod, "SchedulerError", &message, None);
        }
    }
}
