//! DaemonSet: one pod on every node that fits. `plan` decides; this file acts.

mod plan;

use std::sync::Arc;

use ferry_client::informer::controller_uid;
use ferry_client::{
    Attempt, Client, ConsistencyStore, Error, Event, EventType, Index, Informer, NamespacedName, Outcome,
    Recorder, error,
};
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{ControllerRevision, DaemonSet};
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::ResourceExt;
use kube::api::{Api, PostParams};

use crate::context::{Context, Running};
use crate::history::{self, Applied, hash_of};
use crate::owned_pods::OwnedPods;
use crate::ownership::{self, claim_all};
use crate::pods::{by_controller, orphans_of, phase};
use crate::template_hash::CONTROLLER_REVISION_HASH;
use plan::{Plan, by_node, make_pod, manage, status, update};

const CONTROLLER: &str = "daemonset-controller";
const BURST: usize = 250;

struct Controller {
    client: Client,
    sets: Informer<DaemonSet>,
    nodes: Informer<Node>,
    pods: Index<Pod>,
    revisions: Index<ControllerRevision>,
    owned: OwnedPods,
    recorder: Recorder,
    consistency: ConsistencyStore,
}

pub fn start(context: &Context) -> Running {
    let builder = context.controller(CONTROLLER);
    let sets = builder.informer::<DaemonSet>();
    let (nodes, pods) = (builder.informer::<Node>(), builder.informer::<Pod>());
    let controller = Arc::new(Controller {
        client: context.client.clone(),
        sets: sets.clone(),
        nodes: nodes.clone(),
        pods: by_controller(&pods),
        revisions: builder.informer().index("controller", controller_uid),
        owned: OwnedPods::new(context.client.clone(), context.recorder(CONTROLLER)),
        recorder: context.recorder(CONTROLLER),
        consistency: ConsistencyStore::default(),
    });
    builder
        .of(&sets, controller)
        .watches(&pods, Controller::pod_changed)
        .watches(&nodes, Controller::node_changed)
        .run(Controller::reconcile)
}

impl Controller {
    fn pod_changed(&self, event: &Event<Pod>) -> Vec<NamespacedName> {
        let selector = |set: &DaemonSet| ownership::selector(&set.spec.as_ref()?.selector);
        let mut keys = self.owned.observe::<DaemonSet>(event);
        keys.extend(ownership::adopters(&self.sets, selector, event));
        keys
    }

    fn node_changed(&self, event: &Event<Node>) -> Vec<NamespacedName> {
        // Heartbeats change a node all the time; where a pod may be, they do not.
        let place = |node: &Node| {
            let spec = node.spec.clone().unwrap_or_default();
            (node.metadata.labels.clone(), spec.taints, spec.unschedulable)
        };
        if event.old().is_some_and(|old| place(old) == place(event.object())) {
            return Vec::new();
        }
        self.sets.list().iter().map(|set| NamespacedName::of(&**set)).collect()
    }

    async fn reconcile(self: Arc<Self>, key: NamespacedName) -> Result<Outcome, Error> {
        let Some(set) = self.sets.get(&key) else {
            self.owned.forget(&key);
            self.consistency.forget(&key);
            return Ok(Outcome::Done);
        };
        if self.consistency.is_stale(&*set) {
            return Ok(Outcome::Done);
        }
        let Some(spec) = &set.spec else { return Ok(Outcome::Done) };
        if spec.selector == LabelSelector::default() {
            let note = "This daemon set is selecting all pods. A non-empty selector is required.";
            self.recorder.event(&*set, EventType::Warning, "SelectingAll", "Select", note);
            return Ok(Outcome::Done);
        }
        let Some(selector) = ownership::selector(&spec.selector) else { return Ok(Outcome::Done) };
        if set.metadata.deletion_timestamp.is_some() {
            return Ok(Outcome::Done);
        }
        let uid = set.uid().unwrap_or_default();
        let mut candidates = self.pods.get(&uid);
        candidates.extend(self.pods.get(&orphans_of(&key.namespace)));
        let pods = claim_all(&self.client, &*set, &selector, candidates).await?;
        let revisions = self.revisions.get(&uid);
        let Some(hash) = self.current_hash(&set, &revisions).await? else { return Ok(Outcome::Done) };
        let nodes = self.nodes.list();
        let grouped = by_node(&pods);
        let now = Timestamp::now();
        let mut result = Ok(());
        if self.owned.satisfied_expectations(&key) {
            result = self.apply(&key, &set, &hash, manage(&set, &nodes, &grouped, &hash)).await;
            if result.is_ok() && self.owned.satisfied_expectations(&key) {
                result = self.apply(&key, &set, &hash, update(&set, &nodes, &grouped, &hash, now)).await;
            }
        }
        self.write_status(&set, status(&set, &nodes, &grouped, &hash, now)).await?;
        result?;
        let in_use = |revision: &ControllerRevision| {
            let own = hash_of(revision, CONTROLLER_REVISION_HASH);
            own == hash
                || pods
                    .iter()
                    .any(|pod| pod.labels().get(CONTROLLER_REVISION_HASH).is_some_and(|hash| hash == own))
        };
        let surplus = history::surplus(&revisions, spec.revision_history_limit.unwrap_or(10), &in_use);
        history::delete(&self.client, &key.namespace, surplus).await?;
        let waits = pods
            .iter()
            .filter_map(|pod| crate::pods::until_available(pod, spec.min_ready_seconds.unwrap_or(0), now));
        Ok(waits.min().map_or(Outcome::Done, Outcome::After))
    }

    /// The hash of the present template's revision; None if that has just collided.
    async fn current_hash(
        &self,
        set: &DaemonSet,
        revisions: &[Arc<ControllerRevision>],
    ) -> Result<Option<String>, Error> {
        let template = &set.spec.as_ref().map(|spec| spec.template.clone()).unwrap_or_default();
        let collisions = set.status.as_ref().and_then(|status| status.collision_count);
        let step = history::plan(set, template, revisions, CONTROLLER_REVISION_HASH, collisions);
        match history::apply(&self.client, &set.namespace().unwrap_or_default(), step).await? {
            Applied::Current(revision) => Ok(Some(hash_of(&revision, CONTROLLER_REVISION_HASH).into())),
            Applied::Collision => {
                let mut status = set.status.clone().unwrap_or_default();
                status.collision_count = Some(collisions.unwrap_or(0) + 1);
                self.write_status(set, status).await?;
                Ok(None)
            }
        }
    }

    async fn apply(
        &self,
        key: &NamespacedName,
        set: &DaemonSet,
        hash: &str,
        mut plan: Plan,
    ) -> Result<(), Error> {
        plan.create.truncate(BURST);
        plan.delete.truncate(BURST);
        for pod in &plan.ended {
            let (state, reason) = if phase(pod) == "Failed" {
                ("failed", "FailedDaemonPod")
            } else {
                ("succeeded", "SucceededDaemonPod")
            };
            let kind = if state == "failed" { EventType::Warning } else { EventType::Normal };
            let note = format!(
                "Found {state} daemon pod {}/{} on node {}, will try to kill it",
                key.namespace,
                pod.name_any(),
                plan::target_node(pod)
            );
            self.recorder.event(set, kind, reason, "Replace", note);
        }
        self.owned.delete(set, &plan.delete).await?;
        let nodes = plan.create;
        self.owned.create(set, nodes.len(), |position| make_pod(set, &nodes[position], hash)).await
    }

    async fn write_status(
        &self,
        set: &DaemonSet,
        status: k8s_openapi::api::apps::v1::DaemonSetStatus,
    ) -> Result<(), Error> {
        let mut next = set.clone();
        next.status = Some(status);
        if next.status != set.status {
            let api: Api<DaemonSet> =
                Api::namespaced(self.client.clone(), &set.namespace().unwrap_or_default());
            let written = api.replace_status(&set.name_any(), &PostParams::default(), &next).await;
            if let Some(written) = error::ignore_not_found(written).attempting("write status")? {
                self.consistency.wrote(&written);
            }
        }
        Ok(())
    }
}
