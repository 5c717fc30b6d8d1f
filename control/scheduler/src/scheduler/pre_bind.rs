//! PreBind: pods that have a node and wait there for their volumes to be bound or for their resource claims to be
//! reserved and ready.

use std::sync::Arc;
use std::time::Duration;

use ferry_client::NamespacedName;
use jiff::Timestamp;
use k8s_openapi::api::resource::v1::ResourceClaim;
use tokio::time::Instant;

use super::Scheduler;
use crate::devices::binding::{self, Readiness};
use crate::devices::extended;
use crate::plugins::dynamic_resources::{self, Reservations};
use crate::plugins::{self, Change, Choices};
use crate::pod_info::PodInfo;
use crate::watched::Watched;
use crate::write::{self, Written};

/// Upstream's `bindTimeoutSeconds`.
pub(super) const BIND_TIMEOUT: Duration = Duration::from_secs(600);

/// A pod whose volumes are being bound or provisioned. It stays assumed on its node, since the volumes are made for it.
pub(super) struct AwaitingVolumes {
    pub pod: Arc<PodInfo>,
    pub node: String,
    pub choices: Choices,
    /// Whether the chosen volumes are written to the claims.
    pub written: bool,
    pub until: Instant,
    /// When the scheduling attempt began.
    pub began: Instant,
}

/// A pod whose resource claims are being reserved, or whose devices are being attached to its node.
pub(super) struct AwaitingDevices {
    pub pod: Arc<PodInfo>,
    pub node: String,
    /// The volumes to bind once the devices are ready.
    pub choices: Choices,
    pub reservations: Reservations,
    /// Whether the reservations are written to the claims.
    pub written: bool,
    pub until: Instant,
    /// When the scheduling attempt began.
    pub began: Instant,
}

impl Scheduler {
    /// Binds the pods whose volumes are bound; pods whose volumes failed or timed out go back to the queue.
    pub(super) fn check_volume_bindings(&mut self) {
        let now = Instant::now();
        let mut decided = Vec::new();
        for (key, awaiting) in &self.awaiting_volumes {
            let bound = match self.snapshot.find(&awaiting.node) {
                _ if !awaiting.written => Ok(false),
                Some(index) => plugins::bound(&awaiting.choices, &self.snapshot, index, &self.watched),
                None => Err(format!("node \"{}\" not found", awaiting.node)),
            };
            match bound {
                Ok(false) if awaiting.until > now => {}
                Ok(false) => decided.push((key.clone(), Err("timed out waiting for the condition".into()))),
                Ok(true) => decided.push((key.clone(), Ok(()))),
                Err(why) => decided.push((key.clone(), Err(why))),
            }
        }
        for (key, outcome) in decided {
            let Some(AwaitingVolumes { pod, node, began, .. }) = self.awaiting_volumes.remove(&key) else {
                continue;
            };
            match outcome {
                Ok(()) => self.bind(pod, node, began),
                Err(why) => {
                    self.pre_bind_failed(&pod, &node, "VolumeBinding", &format!("binding volumes: {why}"));
                }
            }
        }
    }

    /// Binds the volumes of the pods whose devices are ready; pods whose devices failed or timed out go back to the queue.
    pub(super) fn check_device_bindings(&mut self) {
        let now = Instant::now();
        let wall = Timestamp::now();
        let mut decided = Vec::new();
        for (key, awaiting) in self.awaiting_devices.iter().filter(|(_, awaiting)| awaiting.written) {
            let readiness = awaiting.readiness(&self.watched, wall);
            match readiness {
                Readiness::Waits if awaiting.until > now => {}
                Readiness::Waits => {
                    decided.push((key.clone(), Err("device binding timeout".to_owned())));
                }
                Readiness::Ready => decided.push((key.clone(), Ok(()))),
                Readiness::Failed(why) => decided.push((key.clone(), Err(why))),
            }
        }
        for (key, outcome) in decided {
            let Some(AwaitingDevices { pod, node, choices, began, .. }) = self.awaiting_devices.remove(&key)
            else {
                continue;
            };
            match outcome {
                Ok(()) => self.bind_volumes(&pod, node, choices, began),
                Err(why) => self.pre_bind_failed(&pod, &node, "DynamicResources", &why),
            }
        }
    }

    /// The pod goes back to the queue, and its room and claims are free again.
    fn pre_bind_failed(&mut self, pod: &Arc<PodInfo>, node: &str, plugin: &str, why: &str) {
        tracing::warn!(pod = %pod.key, node, plugin, why, "PreBind failed");
        self.remove_placed_pod(&pod.key);
        self.unreserve(pod);
        self.queue.failed(&pod.key, Instant::now());
        if let Some(at) = self.profile_of(pod) {
            let message = format!("running PreBind plugin \"{plugin}\": {why}");
            self.handle_scheduling_failure(at, pod, "SchedulerError", &message, None);
        }
    }

    /// Removes the pod from its claims' `reservedFor`, and deletes the claim that was made for its extended resources.
    pub(super) fn unreserve(&mut self, pod: &Arc<PodInfo>) {
        for name in dynamic_resources::names_of(pod) {
            let key = NamespacedName::new(&pod.key.namespace, name);
            let Some(claim) = self.watched.resource_claims.get(&key) else { continue };
            let (client, pod) = (self.client.clone(), pod.clone());
            self.writes.spawn(ferry_trace::inherit(async move {
                if let Err(error) = write::unreserve_claim(&client, &claim, &pod).await {
                    tracing::warn!(%error, "claim not unreserved");
                }
            }));
        }
        if let Some(claim) = self.watched.made_claim(pod) {
            self.delete_claim(claim);
        }
    }

    pub(super) fn delete_claim(&mut self, claim: Arc<ResourceClaim>) {
        let client = self.client.clone();
        self.writes.spawn(ferry_trace::inherit(async move {
            if let Err(error) = write::delete_claim(&client, &claim).await {
                tracing::warn!(%error, "claim not deleted");
            }
        }));
    }

    /// From now on the allocation for a pod's extended resources is the claim's that was made for it, if it was written.
    pub(super) fn made_claim(&mut self, pod: &PodInfo, written: &Written) {
        let assumed = self.watched.assumed.take(&extended::temporary_uid(pod));
        let (Some(assumed), Some(made)) = (assumed, &written.made) else { return };
        let uid = made.metadata.uid.as_deref().unwrap_or("");
        let revision = written.allocated.iter().find(|(own, _)| own == uid).map(|(_, revision)| *revision);
        let (Some(allocation), Some(revision)) = (binding::allocation(&assumed), revision) else { return };
        // The informer may have delivered more than that: the claim is seen, or gone again.
        if !self.has_seen(Some(revision)) {
            self.watched.assumed.put(made, allocation);
            self.watched.assumed.written(uid, revision);
        }
    }

    /// Records in the assume cache which allocations are written, and drops the others.
    pub(super) fn record_allocations(
        &mut self,
        pod: &Arc<PodInfo>,
        reservations: &Reservations,
        allocated: &[(String, i64)],
    ) {
        for (claim, _) in reservations.claims.iter().filter(|(_, allocation)| allocation.is_some()) {
            let uid = claim.metadata.uid.as_deref().unwrap_or("");
            let written = allocated.iter().find(|(own, _)| own == uid).map(|(_, revision)| *revision);
            match written {
                Some(revision) => self.watched.assumed.written(uid, revision),
                None if self.watched.assumed.remove(uid) => {
                    let name = claim.metadata.name.as_deref().unwrap_or("");
                    let namespace = pod.key.namespace.as_str();
                    self.wake(&Change::ResourceClaim { namespace, name, frees: true });
                }
                None => {}
            }
            // The informer may have delivered the write already.
            let key = NamespacedName::new(&pod.key.namespace, claim.metadata.name.as_deref().unwrap_or(""));
            let seen = self.watched.resource_claims.get(&key);
            if seen.is_none() && !self.has_seen(written) {
                // made just now, not gone
                continue;
            }
            let revision = seen.as_ref().and_then(|claim| ferry_client::name::revision(&**claim));
            self.watched.assumed.observe((&key.namespace, &key.name), seen.as_deref(), revision);
        }
    }

    /// Whether the informer of claims shows what was written with this revision.
    fn has_seen(&self, written: Option<i64>) -> bool {
        written
            .is_none_or(|written| self.watched.resource_claims.revision().is_some_and(|seen| seen >= written))
    }

    /// The pod was deleted while its claims were written: keeps the allocations that are written until the informer
    /// delivers them.
    pub(super) fn forget_allocations(&mut self, pod: &Arc<PodInfo>, allocated: &[(String, i64)]) {
        for (uid, revision) in allocated {
            self.watched.assumed.written(uid, *revision);
        }
        for name in dynamic_resources::names_of(pod) {
            let key = NamespacedName::new(&pod.key.namespace, name);
            let seen = self.watched.resource_claims.get(&key);
            let uid = seen.as_ref().and_then(|claim| claim.metadata.uid.clone()).unwrap_or_default();
            if !allocated.iter().any(|(own, _)| *own == uid) {
                self.watched.assumed.remove(&uid);
            }
            let revision = seen.as_ref().and_then(|claim| ferry_client::name::revision(&**claim));
            self.watched.assumed.observe((&key.namespace, &key.name), seen.as_deref(), revision);
        }
    }
}

impl AwaitingDevices {
    /// Whether the devices of all its claims are ready.
    fn readiness(&self, watched: &Watched, now: Timestamp) -> Readiness {
        let mut all = Readiness::Ready;
        if !has_conditions(&self.reservations) {
            return all;
        }
        for (claim, _) in &self.reservations.claims {
            let name = claim.metadata.name.as_deref().unwrap_or("");
            let key = NamespacedName::new(&self.pod.key.namespace, name);
            let seen =
                watched.resource_claims.get(&key).filter(|seen| seen.metadata.uid == claim.metadata.uid);
            let is_assumed = || {
                let uid = claim.metadata.uid.as_deref();
                uid.is_some_and(|uid| watched.assumed.has(uid))
            };
            let Some(seen) = seen else {
                // made just now
                if is_assumed() {
                    all = Readiness::Waits;
                    continue;
                }
                return Readiness::Failed(format!("resourceclaim.resource.k8s.io \"{name}\" not found"));
            };
            match binding::readiness(&seen, now) {
                Readiness::Ready => {}
                Readiness::Waits => all = Readiness::Waits,
                failed => return failed,
            }
        }
        all
    }
}

/// Whether a driver has to report binding conditions of the devices before the pod is bound.
pub(super) fn has_conditions(reservations: &Reservations) -> bool {
    reservations.claims.iter().any(|(claim, allocation)| {
        allocation.as_ref().or(binding::allocation(claim)).is_some_and(binding::has_conditions)
    })
}
