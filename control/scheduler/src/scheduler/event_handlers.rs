//! Event handlers: what a change in a watched object does to the snapshot, the queue and the nominated pods, and which
//! unschedulable pods it moves back to the queue.

use ferry_client::NamespacedName;
use tokio::time::Instant;

use super::Scheduler;
use crate::devices::binding;
use crate::extender::EXTENDER;
use crate::plugins::{self, Change, Cycle, State, changed_facts, fact, may_help};
use crate::pod_info::{is_finished, node_name};
use crate::watched::Changed;

impl Scheduler {
    pub(super) fn handle(&mut self, changed: Changed) {
        match changed {
            Changed::Pod(key) => self.pod_changed(&key),
            Changed::Node(name) => self.node_changed(&name),
            Changed::Claim(key) => {
                self.wake(&Change::Claim(&key.namespace, &key.name));
                self.check_volume_bindings();
            }
            Changed::Storage => {
                self.wake(&Change::Storage);
                self.check_volume_bindings();
            }
            Changed::Namespace => self.wake(&Change::Namespace),
            Changed::Devices => self.wake(&Change::Devices),
            Changed::ResourceClaim(key) => self.resource_claim_changed(&key),
        }
    }

    fn pod_changed(&mut self, key: &NamespacedName) {
        let pod = self.watched.pods.get(key).filter(|info| !is_finished(&info.pod));
        let Some(info) = pod else {
            self.stop_awaiting(key);
            self.queue.remove(key);
            self.delete_nominated_pod(key, None);
            self.remove_placed_pod(key);
            return;
        };
        if let Some(node) = node_name(&info.pod) {
            self.stop_awaiting(key);
            self.queue.remove(key);
            self.delete_nominated_pod(key, Some(node));
            let before = self.snapshot.placed(key).map(|(before, _)| before.clone());
            self.snapshot.put_pod(info.clone(), node);
            match before {
                // A smaller request or a deletion that began leaves room, as a deleted pod does.
                Some(before)
                    if before.requests != info.requests
                        || before.is_terminating() != info.is_terminating() =>
                {
                    let index = self.snapshot.find(node);
                    self.wake(&Change::PodLeft { pod: &before, index });
                }
                Some(before) if before.labels() == info.labels() && node_name(&before.pod).is_some() => {}
                _ => self.wake(&Change::PodPlaced(&info)),
            }
            return;
        }
        let ours = self.profiles.iter().any(|(_, profile)| profile.name == info.scheduler_name());
        if !ours || info.is_terminating() {
            self.stop_awaiting(key);
            self.queue.remove(key);
            self.delete_nominated_pod(key, None);
            self.remove_placed_pod(key);
            return;
        }
        if let Some((before, _)) = self.snapshot.placed(key) {
            if before.uid == info.uid {
                // Assumed: this event precedes the binding, or the binding is under way.
                if self.queue.place(key).is_some() {
                    self.queue.put(info, Instant::now());
                }
                return;
            }
            self.remove_placed_pod(key);
            if self.stop_awaiting(key) {
                self.queue.remove(key);
            }
        }
        if let Some(node) = info.nominated_node() {
            self.nominated.put(info.clone(), node);
        }
        self.queue.put(info, Instant::now());
    }

    fn node_changed(&mut self, name: &str) {
        let Some(node) = self.watched.nodes.get(&NamespacedName::cluster(name)) else {
            self.snapshot.remove_node(name);
            return;
        };
        let known = self.snapshot.find(name).and_then(|index| self.snapshot.node(index));
        let what = known.map_or(fact::ADDED, |known| changed_facts(known, &node));
        let index = self.snapshot.put_node(&node);
        if what != 0 {
            self.wake(&Change::Node { index, what });
        }
    }

    fn resource_claim_changed(&mut self, key: &NamespacedName) {
        let claim = self.watched.resource_claims.get(key);
        let revision = claim.as_ref().and_then(|claim| ferry_client::name::revision(&**claim));
        self.watched.assumed.observe((&key.namespace, &key.name), claim.as_deref(), revision);
        let frees = claim.is_none_or(|claim| binding::allocation(&claim).is_none());
        self.wake(&Change::ResourceClaim { namespace: &key.namespace, name: &key.name, frees });
        self.check_device_bindings();
    }

    /// Removes the pod's nomination. Unless the pod goes to that node, pods that wait for room there may fit now.
    pub(super) fn delete_nominated_pod(&mut self, key: &NamespacedName, goes_to: Option<&str>) {
        let Some((pod, node)) = self.nominated.remove(key) else { return };
        if goes_to != Some(&node) {
            let index = self.snapshot.find(&node);
            self.wake(&Change::PodLeft { pod: &pod, index });
        }
    }

    /// Removes the pod from its node in the snapshot, and wakes the pods that may fit there now.
    pub(super) fn remove_placed_pod(&mut self, key: &NamespacedName) {
        if let Some((pod, index)) = self.snapshot.remove_pod(key) {
            self.wake(&Change::PodLeft { pod: &pod, index: Some(index) });
        }
    }

    /// Returns whether the pod was waiting in PreBind. The resource claim controller unreserves its claims.
    pub(super) fn stop_awaiting(&mut self, key: &NamespacedName) -> bool {
        let volumes = self.awaiting_volumes.remove(key).is_some();
        let devices = self.awaiting_devices.remove(key).is_some();
        volumes || devices
    }

    /// Moves the unschedulable pods that a change may help back to the queue: those of which a plugin that refused them
    /// says so (upstream's queueing hints). The plugins judge with the pods that are nominated to the changed node placed
    /// on it; otherwise every pod would be retried for room that preemption made for one.
    pub(super) fn wake(&mut self, change: &Change) {
        if !self.queue.has_unschedulable() {
            return;
        }
        self.snapshot.refresh_node_order();
        let changed = match change {
            Change::Node { index, .. } | Change::PodLeft { index: Some(index), .. } => Some(*index),
            _ => None,
        };
        let changed = changed.filter(|node| self.nominated.any_on(&self.snapshot, *node));
        let (profiles, nominated, watched) = (&self.profiles, &self.nominated, &self.watched);
        let snapshot = &mut self.snapshot;
        let woken = self.queue.wake(Instant::now(), change.event(), |pod, refused_by| {
            let Some((_, profile)) = profiles.iter().find(|(_, p)| p.name == pod.scheduler_name()) else {
                return false;
            };
            // An extender has no queueing hints.
            if refused_by.contains(&EXTENDER) {
                return true;
            }
            // Without nodes no plugin refused it.
            if refused_by.is_empty() {
                return matches!(change, Change::Node { .. });
            }
            let nominees = changed.map(|node| (node, nominated.before(pod, snapshot, node)));
            let nominees = || nominees.iter().flat_map(|(node, pods)| pods.iter().map(|pod| (*node, pod)));
            nominees().for_each(|(node, other)| snapshot.occupy(other, node));
            let helped = refused_by.iter().filter_map(|name| plugins::find(name)).any(|plugin| {
                let mut cycle = Cycle { pod, profile, cluster: watched, state: State::default() };
                may_help(plugin, &mut cycle, snapshot, change)
            });
            nominees().for_each(|(node, other)| snapshot.vacate(other, node));
            helped
        });
        if woken > 0 {
            tracing::debug!(woken, "pods to be tried again");
        }
    }
}
