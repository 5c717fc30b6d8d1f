//! DaemonSet: one pod on every node that fits. `plan` decides; this file acts.

mod plan;

use std::sync::Arc;

use ferry_client::{
    Attempt, Client, Error, Event, EventType, Expectations, Index, Informer, NamespacedName, Outcome, Queue,
    Recorder, error,
};
use futures::future::join_all;
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{ControllerRevision, DaemonSet};
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, PostParams, Preconditions};

use crate::context::{Context, Running, enqueue_own};
use crate::history::{self, Applied, hash_of};
use crate::ownership::{self, claim_all, controller_of};
use crate::pods::{by_controller, is_deleting, orphans_of, phase};
use crate::slow_start::slow_start;
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
    expectations: Expectations<NamespacedName>,
    recorder: Recorder,
}

pub fn start(context: &Context) -> Running {
    let queue: Queue<NamespacedName> = Queue::default();
    let sets = context.informers.of::<DaemonSet>();
    let nodes = context.informers.of::<Node>();
    let pods = context.informers.of::<Pod>();
    let revisions = context.informers.of::<ControllerRevision>();
    let controller = Arc::new(Controller {
        client: context.client.clone(),
        sets: sets.clone(),
        nodes: nodes.clone(),
        pods: by_controller(&pods),
        revisions: revisions.index("controller", ferry_client::informer::controller_uid),
        expectations: Expectations::default(),
        recorder: context.recorder(CONTROLLER),
    });
    enqueue_own(&sets, &queue);
    let (watching, wakes) = (controller.clone(), queue.clone());
    pods.handle(move |event| watching.hear_of_pod(event, &wakes));
    let (all, wakes) = (sets.clone(), queue.clone());
    nodes.handle(move |event: &Event<Node>| {
        // Heartbeats change a node all the time; where a pod may be, they do not.
        let place = |node: &Node| {
            let spec = node.spec.clone().unwrap_or_default();
            (node.metadata.labels.clone(), spec.taints, spec.unschedulable)
        };
        if event.old().is_none_or(|old| place(old) != place(event.object())) {
            all.list().iter().for_each(|set| wakes.add_caused(NamespacedName::of(&**set), event.revision()));
        }
    });
    let synced = async move {
        sets.synced().await;
        nodes.synced().await;
        pods.synced().await;
        revisions.synced().await;
    };
    context.reconcile(CONTROLLER, "daemonsets.apps", queue, synced, move |key| {
        let controller = controller.clone();
        async move { controller.reconcile(key).await }
    })
}

fn owner(pod: &Pod) -> Option<NamespacedName> {
    let owner =
        controller_of(pod).filter(|owner| owner.kind == "DaemonSet" && owner.api_version == "apps/v1")?;
    Some(NamespacedName::new(pod.metadata.namespace.clone().unwrap_or_default(), owner.name.clone()))
}

impl Controller {
    fn hear_of_pod(&self, event: &Event<Pod>, queue: &Queue<NamespacedName>) {
        let pod = event.object();
        if let Some(previous) =
            event.old().and_then(|old| owner(old)).filter(|previous| owner(pod).as_ref() != Some(previous))
        {
            queue.add_caused(previous, event.revision());
        }
        let Some(key) = owner(pod) else { return };
        match event {
            Event::Added(_) => self.expectations.created(&key),
            _ if event.is_deleted() || is_deleting(pod) => {
                self.expectations.deleted(&key, pod.metadata.uid.as_deref().unwrap_or(""));
            }
            _ => {}
        }
        queue.add_caused(key, event.revision());
    }

    async fn reconcile(&self, key: NamespacedName) -> Result<Outcome, Error> {
        let Some(set) = self.sets.get(&key) else {
            self.expectations.forget(&key);
            return Ok(Outcome::Done);
        };
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
        if self.expectations.satisfied(&key) {
            result = self.apply(&key, &set, &hash, manage(&set, &nodes, &grouped, &hash)).await;
            if result.is_ok() && self.expectations.satisfied(&key) {
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
        self.delete(key, set, plan.delete).await?;
        self.create(key, set, hash, plan.create).await
    }

    async fn create(
        &self,
        key: &NamespacedName,
        set: &DaemonSet,
        hash: &str,
        nodes: Vec<String>,
    ) -> Result<(), Error> {
        if nodes.is_empty() {
            return Ok(());
        }
        let mut span = ferry_trace::span("daemonset.create");
        span.set("pods", nodes.len());
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &key.namespace);
        self.expectations.expect_creations(key.clone(), nodes.len());
        let create = slow_start(nodes.len(), |position| {
            let (pod, api) = (make_pod(set, &nodes[position], hash), &api);
            async move {
                match api.create(&PostParams::default(), &pod).await {
                    Ok(created) => {
                        let note = format!("Created pod: {}", created.name_any());
                        self.recorder.event(set, EventType::Normal, "SuccessfulCreate", "Create", note);
                        Ok(())
                    }
                    Err(refused) if error::is_namespace_terminating(&refused) => {
                        self.expectations.created(key);
                        Ok(())
                    }
                    Err(failed) => {
                        let note = format!("Error creating: {}", error::message(&failed));
                        self.recorder.event(set, EventType::Warning, "FailedCreate", "Create", note);
                        Err(Error::new("create pod", failed))
                    }
                }
            }
        });
        let (created, failed) = span.in_scope(create).await;
        for _ in created..nodes.len() {
            self.expectations.created(key);
        }
        failed.map_or(Ok(()), Err)
    }

    async fn delete(&self, key: &NamespacedName, set: &DaemonSet, pods: Vec<Arc<Pod>>) -> Result<(), Error> {
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &key.namespace);
        self.expectations.expect_deletions(key.clone(), pods.iter().filter_map(|pod| pod.uid()));
        let deleted = join_all(pods.iter().map(|pod| async {
            let only_this = Preconditions { uid: pod.uid(), resource_version: None };
            match api.delete(&pod.name_any(), &DeleteParams::default().preconditions(only_this)).await {
                Ok(_) => {
                    let note = format!("Deleted pod: {}", pod.name_any());
                    self.recorder.event(set, EventType::Normal, "SuccessfulDelete", "Delete", note);
                    Ok(())
                }
                Err(failed) => {
                    self.expectations.deleted(key, pod.metadata.uid.as_deref().unwrap_or(""));
                    if error::is_not_found(&failed) { Ok(()) } else { Err(failed) }
                }
            }
        }));
        deleted.await.into_iter().collect::<Result<(), kube::Error>>().attempting("delete pods")
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
            error::ignore_not_found(written).attempting("write status")?;
        }
        Ok(())
    }
}
