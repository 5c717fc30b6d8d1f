//! What a StatefulSet does next: pods one after the other, each with its ordinal.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{StatefulSet, StatefulSetStatus};
use k8s_openapi::api::core::v1::Pod;

use super::identity::{ordinal, ordinals, revision_of};
use crate::deployment::share;
use crate::pods::{counted, is_available, is_deleting, is_finished, is_ready, phase};

/// A write, in the order they are to be made.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    Create { ordinal: i32, revision: String },
    Delete(Arc<Pod>),
}

#[derive(Debug, Default)]
pub struct Plan {
    pub actions: Vec<Action>,
    pub status: StatefulSetStatus,
}

/// `current` and `update` are the names of the revisions that pods come from and go to.
pub fn plan(set: &StatefulSet, pods: &[Arc<Pod>], current: &str, update: &str, now: Timestamp) -> Plan {
    let rollout = Rollout::new(set, pods, current, update, now);
    let actions = if set.metadata.deletion_timestamp.is_some() { Vec::new() } else { rollout.actions() };
    Plan { status: rollout.status(), actions }
}

struct Rollout<'a> {
    set: &'a StatefulSet,
    current: &'a str,
    update: &'a str,
    now: Timestamp,
    /// The ordinals of the pods that there are to be.
    wanted: Range<i32>,
    parallel: bool,
    pods: BTreeMap<i32, Arc<Pod>>,
}

impl<'a> Rollout<'a> {
    fn new(
        set: &'a StatefulSet,
        pods: &[Arc<Pod>],
        current: &'a str,
        update: &'a str,
        now: Timestamp,
    ) -> Self {
        let spec = set.spec.as_ref();
        Rollout {
            set,
            current,
            update,
            now,
            wanted: ordinals(set),
            parallel: spec.and_then(|spec| spec.pod_management_policy.as_deref()) == Some("Parallel"),
            pods: pods.iter().filter_map(|pod| Some((ordinal(set, pod)?, pod.clone()))).collect(),
        }
    }

    fn replicas(&self) -> i32 {
        self.wanted.end - self.wanted.start
    }

    fn is_healthy(&self, pod: &Pod) -> bool {
        let min_ready = self.set.spec.as_ref().and_then(|spec| spec.min_ready_seconds).unwrap_or(0);
        phase(pod) == "Running" && !is_deleting(pod) && is_available(pod, min_ready, self.now)
    }

    /// Ordinals below this stay with the current revision.
    fn partition(&self) -> i32 {
        let strategy = self.set.spec.as_ref().and_then(|spec| spec.update_strategy.as_ref());
        let rolling = strategy.and_then(|strategy| strategy.rolling_update.as_ref());
        self.wanted.start + rolling.and_then(|rolling| rolling.partition).unwrap_or(0)
    }

    fn revision_for(&self, ordinal: i32) -> String {
        let status = self.set.status.clone().unwrap_or_default();
        let rolls = self.rolls();
        // A pod that vanishes in the middle of an update comes back as what it was.
        let not_yet = ordinal < self.wanted.start + status.current_replicas.unwrap_or(0)
            && self.partition() == self.wanted.start;
        let current = rolls && (ordinal < self.partition() || not_yet);
        if current { self.current.into() } else { self.update.into() }
    }

    fn rolls(&self) -> bool {
        let strategy = self.set.spec.as_ref().and_then(|spec| spec.update_strategy.as_ref());
        strategy.and_then(|strategy| strategy.type_.as_deref()) != Some("OnDelete")
    }

    fn actions(&self) -> Vec<Action> {
        let mut actions = Vec::new();
        if self.fill(&mut actions) && self.condemn(&mut actions) && actions.is_empty() && self.rolls() {
            self.roll(&mut actions);
        }
        actions
    }

    /// Makes what is missing; true if the next phase may go on. In order, each pod waits for
    /// all before it.
    fn fill(&self, actions: &mut Vec<Action>) -> bool {
        for ordinal in self.wanted.clone() {
            match self.pods.get(&ordinal) {
                None => {
                    actions.push(Action::Create { ordinal, revision: self.revision_for(ordinal) });
                    if !self.parallel {
                        return false;
                    }
                }
                Some(pod) if is_finished(pod) && !is_deleting(pod) => {
                    actions.push(Action::Delete(pod.clone()));
                    if !self.parallel {
                        return false;
                    }
                }
                Some(pod) if !self.parallel && !self.is_healthy(pod) => {
                    // A pod that is stuck on an old revision may be replaced by the update.
                    return self.is_stuck_on_old(ordinal, pod);
                }
                Some(_) => {}
            }
        }
        true
    }

    /// Never came up, and the update has something else for it: waiting would wait for ever.
    fn is_stuck_on_old(&self, ordinal: i32, pod: &Pod) -> bool {
        let later_fine =
            self.wanted.clone().filter(|other| *other != ordinal).all(|other| self.pods.contains_key(&other));
        !is_deleting(pod) && later_fine && revision_of(pod) != self.update && ordinal >= self.partition()
    }

    /// Removes what is too much, highest first; true if the update may go on. In order, a pod that is not ready goes
    /// only if all before it are well: whatever made several of them unwell is to be looked at first.
    fn condemn(&self, actions: &mut Vec<Action>) -> bool {
        let too_many: Vec<(&i32, &Arc<Pod>)> =
            self.pods.iter().rev().filter(|(ordinal, _)| !self.wanted.contains(ordinal)).collect();
        let kept = self.pods.range(self.wanted.clone());
        let mut in_order = kept.chain(too_many.iter().rev().copied());
        let first_unwell = in_order.find(|(_, pod)| !self.is_healthy(pod)).map(|(ordinal, _)| *ordinal);
        for (ordinal, pod) in &too_many {
            if is_deleting(pod) {
                if !self.parallel {
                    return false;
                }
                continue;
            }
            if !self.parallel && !is_ready(pod) && first_unwell != Some(**ordinal) {
                return false;
            }
            actions.push(Action::Delete((*pod).clone()));
            if !self.parallel {
                return false;
            }
        }
        too_many.is_empty() || self.parallel
    }

    /// Replaces old pods from the top, as many at a time as may be missing.
    fn roll(&self, actions: &mut Vec<Action>) {
        let strategy = self.set.spec.as_ref().and_then(|spec| spec.update_strategy.as_ref());
        let rolling = strategy.and_then(|strategy| strategy.rolling_update.as_ref());
        let allowed = rolling.and_then(|rolling| rolling.max_unavailable.as_ref());
        let allowed = allowed.map_or(1, |value| share(Some(value), self.replicas(), true)).max(1);
        let mut missing = 0;
        for ordinal in self.wanted.clone().rev().filter(|ordinal| *ordinal >= self.partition()) {
            let Some(pod) = self.pods.get(&ordinal) else {
                missing += 1;
                continue;
            };
            let old = revision_of(pod) != self.update;
            if old && !is_deleting(pod) && (missing < allowed || !self.is_healthy(pod)) {
                actions.push(Action::Delete(pod.clone()));
                missing += 1;
            } else if !self.is_healthy(pod) {
                missing += 1;
            }
            if missing >= allowed {
                return;
            }
        }
    }

    fn status(&self) -> StatefulSetStatus {
        let old = self.set.status.clone().unwrap_or_default();
        let min_ready = self.set.spec.as_ref().and_then(|spec| spec.min_ready_seconds).unwrap_or(0);
        let count =
            |wanted: &dyn Fn(&Pod) -> bool| self.pods.values().filter(|pod| wanted(pod)).count() as i32;
        let ready = |pod: &Pod| phase(pod) == "Running" && is_ready(pod);
        let of = |revision: &str| count(&|pod| !is_deleting(pod) && revision_of(pod) == revision);
        let (mut current, updated) = (of(self.current), of(self.update));
        let mut current_revision = self.current.to_owned();
        let ready_count = count(&ready);
        // The update is complete: what was new is current.
        if self.rolls()
            && updated == self.replicas()
            && ready_count == self.replicas()
            && self.pods.len() as i32 == self.replicas()
        {
            current_revision = self.update.to_owned();
            current = updated;
        }
        StatefulSetStatus {
            observed_generation: self.set.metadata.generation,
            replicas: self.pods.len() as i32,
            ready_replicas: counted(ready_count),
            available_replicas: Some(count(&|pod| ready(pod) && is_available(pod, min_ready, self.now))),
            current_replicas: counted(current),
            updated_replicas: counted(updated),
            current_revision: Some(current_revision),
            update_revision: Some(self.update.into()),
            collision_count: old.collision_count.or(Some(0)),
            conditions: old.conditions,
        }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::apps::v1::{
        RollingUpdateStatefulSetStrategy, StatefulSetOrdinals, StatefulSetUpdateStrategy,
    };
    use kube::ResourceExt;

    use super::*;
    use crate::template_hash::CONTROLLER_REVISION_HASH;
    use crate::testing::{at, deleting, labels, named, pod};

    fn set(replicas: i32, policy: &str, partition: Option<i32>) -> StatefulSet {
        let mut set: StatefulSet = named("web");
        let spec = set.spec.get_or_insert_default();
        spec.replicas = Some(replicas);
        spec.pod_management_policy = Some(policy.into());
        spec.update_strategy = Some(StatefulSetUpdateStrategy {
            type_: Some("RollingUpdate".into()),
            rolling_update: Some(RollingUpdateStatefulSetStrategy { partition, max_unavailable: None }),
        });
        set
    }

    fn member(ordinal: i32, revision: &str, ready: bool) -> Arc<Pod> {
        let mut pod = pod(&format!("web-{ordinal}"), "n", "Running", ready.then_some(0));
        pod.metadata.labels = Some(labels(&[(CONTROLLER_REVISION_HASH, revision)]));
        Arc::new(pod)
    }

    fn told(plan: &Plan) -> Vec<String> {
        let tell = |action: &Action| match action {
            Action::Create { ordinal, revision } => format!("create {ordinal} {revision}"),
            Action::Delete(pod) => format!("delete {}", pod.name_any()),
        };
        plan.actions.iter().map(tell).collect()
    }

    fn check(set: &StatefulSet, pods: &[Arc<Pod>], expected: &[&str]) {
        assert_eq!(told(&plan(set, pods, "v1", "v2", at(60))), expected);
    }

    #[test]
    fn pods_come_one_after_the_other_or_all_at_once() {
        let ordered = set(3, "OrderedReady", None);
        check(&ordered, &[], &["create 0 v2"]);
        check(&ordered, &[member(0, "v2", false)], &[]);
        check(&ordered, &[member(0, "v2", true)], &["create 1 v2"]);
        check(&set(2, "Parallel", None), &[], &["create 0 v2", "create 1 v2"]);
    }

    #[test]
    fn pods_go_from_the_top() {
        let all: Vec<Arc<Pod>> = (0..4).map(|ordinal| member(ordinal, "v2", true)).collect();
        check(&set(2, "OrderedReady", None), &all, &["delete web-3"]);
        check(&set(2, "Parallel", None), &all, &["delete web-3", "delete web-2"]);
        let mut leaving = all.clone();
        leaving[3] = Arc::new(deleting((*all[3]).clone()));
        check(&set(2, "OrderedReady", None), &leaving, &[]);
    }

    #[test]
    fn going_down_halts_while_several_are_unwell() {
        let unwell: Vec<Arc<Pod>> = (0..3).map(|ordinal| member(ordinal, "v2", false)).collect();
        check(&set(0, "OrderedReady", None), &unwell, &[]);
        check(&set(0, "Parallel", None), &unwell, &["delete web-2", "delete web-1", "delete web-0"]);
        let [well, other] = [member(0, "v2", true), member(1, "v2", true)];
        check(&set(0, "OrderedReady", None), &[well.clone(), other, unwell[2].clone()], &["delete web-2"]);
        check(&set(0, "OrderedReady", None), &[well, unwell[1].clone(), unwell[2].clone()], &[]);
    }

    #[test]
    fn an_update_replaces_from_the_top_and_waits_for_each() {
        let old: Vec<Arc<Pod>> = (0..3).map(|ordinal| member(ordinal, "v1", true)).collect();
        check(&set(3, "OrderedReady", None), &old, &["delete web-2"]);
        let half = [old[0].clone(), old[1].clone(), member(2, "v2", false)];
        check(&set(3, "OrderedReady", None), &half, &[]);
        let next = [old[0].clone(), old[1].clone(), member(2, "v2", true)];
        check(&set(3, "OrderedReady", None), &next, &["delete web-1"]);
        check(&set(3, "OrderedReady", Some(2)), &next, &[]);
    }

    #[test]
    fn a_pod_below_the_partition_comes_back_as_it_was() {
        check(&set(2, "OrderedReady", Some(1)), &[], &["create 0 v1"]);
        let mut updating = set(2, "OrderedReady", None);
        updating.status.get_or_insert_default().current_replicas = Some(1);
        check(&updating, &[member(1, "v2", true)], &["create 0 v1"]);
    }

    #[test]
    fn a_finished_pod_is_replaced_and_a_broken_old_one_does_not_block_the_fix() {
        let mut failed = (*member(0, "v2", false)).clone();
        failed.status.as_mut().unwrap().phase = Some("Failed".into());
        check(&set(1, "OrderedReady", None), &[Arc::new(failed)], &["delete web-0"]);
        check(&set(1, "OrderedReady", None), &[member(0, "v1", false)], &["delete web-0"]);
    }

    #[test]
    fn ordinals_may_start_elsewhere() {
        let mut shifted = set(2, "Parallel", None);
        shifted.spec.as_mut().unwrap().ordinals = Some(StatefulSetOrdinals { start: Some(5) });
        check(&shifted, &[member(0, "v2", true)], &["create 5 v2", "create 6 v2", "delete web-0"]);
    }

    #[test]
    fn status_counts_and_completes_the_update() {
        let half = [member(0, "v1", true), member(1, "v2", false)];
        let status = plan(&set(2, "OrderedReady", None), &half, "v1", "v2", at(60)).status;
        assert_eq!(
            (status.replicas, status.ready_replicas, status.current_replicas, status.updated_replicas),
            (2, Some(1), Some(1), Some(1))
        );
        assert_eq!(status.current_revision.as_deref(), Some("v1"));
        let done = [member(0, "v2", true), member(1, "v2", true)];
        let status = plan(&set(2, "OrderedReady", None), &done, "v1", "v2", at(60)).status;
        assert_eq!((status.current_revision.as_deref(), status.current_replicas), (Some("v2"), Some(2)));
    }
}
