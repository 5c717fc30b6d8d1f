//! Job: run pods until so many have succeeded.
//!
//! `plan` decides; this file finds the pods, carries it out in the order that loses no count
//! (status, then finalizers, then pods) and hears of changes.

mod failure_policy;
mod indexes;
pub mod plan;

use std::collections::HashMap;
use std::sync::Arc;

use ferry_client::controller::owner;
use ferry_client::{
    Attempt, Client, ConsistencyStore, Error, Event, EventType, Index, Informer, NamespacedName, Outcome,
    Recorder, error,
};
use jiff::Timestamp;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{EnvVar, EnvVarSource, ObjectFieldSelector, Pod};
use kube::ResourceExt;
use kube::api::{Api, Patch, PatchParams, PostParams};
use parking_lot::Mutex;
use serde_json::json;

use crate::context::{Context, Running};
use crate::metrics;
use crate::owned_pods::OwnedPods;
use crate::ownership::{self, claim_held, controller_ref};
use crate::pods::{by_controller, from_template, orphans_of};
use crate::slow_start::together;
use plan::{Failures, INDEX, INDEX_FAILURES, Plan, TRACKING, is_finished, is_indexed};

const CONTROLLER: &str = "job-controller";
const MANAGED_BY: &str = "kubernetes.io/job-controller";

struct Controller {
    client: Client,
    jobs: Informer<Job>,
    pods: Index<Pod>,
    owned: OwnedPods,
    failures: Mutex<HashMap<NamespacedName, Failures>>,
    recorder: Recorder,
    consistency: ConsistencyStore,
}

pub fn start(context: &Context) -> Running {
    let builder = context.controller(CONTROLLER);
    let (jobs, pods) = (builder.informer::<Job>(), builder.informer::<Pod>());
    let controller = Arc::new(Controller {
        client: context.client.clone(),
        jobs: jobs.clone(),
        pods: by_controller(&pods),
        owned: OwnedPods::new(context.client.clone(), context.recorder(CONTROLLER)),
        failures: Mutex::default(),
        recorder: context.recorder(CONTROLLER),
        consistency: ConsistencyStore::default(),
    });
    builder.of(&jobs, controller).watches(&pods, Controller::pod_changed).run(Controller::reconcile)
}

impl Controller {
    fn pod_changed(&self, event: &Event<Pod>) -> Vec<NamespacedName> {
        let selector = |job: &Job| ownership::selector(job.spec.as_ref()?.selector.as_ref()?);
        let mut keys = self.owned.observe::<Job>(event);
        keys.extend(ownership::adopters(&self.jobs, selector, event));
        keys
    }

    async fn reconcile(self: Arc<Self>, key: NamespacedName) -> Result<Outcome, Error> {
        let Some(job) = self.jobs.get(&key) else {
            self.consistency.forget(&key);
            return self.release_orphans(&key).await;
        };
        if self.consistency.is_stale(&*job) {
            return Ok(Outcome::Done);
        }
        let spec = job.spec.clone().unwrap_or_default();
        if spec.managed_by.as_deref().is_some_and(|manager| manager != MANAGED_BY) {
            return Ok(Outcome::Done);
        }
        let began = std::time::Instant::now();
        let uid = job.uid().unwrap_or_default();
        if is_finished(&job) {
            self.release(self.pods.get(&uid)).await?;
            self.failures.lock().remove(&key);
            return Ok(Outcome::Done);
        }
        let selector = spec.selector.as_ref().and_then(ownership::selector);
        let Some(selector) = selector else { return Ok(Outcome::Done) };
        let mut candidates = self.pods.get(&uid);
        candidates.extend(self.pods.get(&orphans_of(&key.namespace)));
        let pods = claim_held(&self.client, &*job, &selector, candidates, &[TRACKING]).await?;
        let failures = self.failures.lock().get(&key).copied().unwrap_or_default();
        let plan =
            plan::plan(&job, &pods, failures, self.owned.satisfied_expectations(&key), Timestamp::now());
        let action = match &plan {
            plan if !plan.create.is_empty() => "pods_created",
            plan if !plan.delete.is_empty() => "pods_deleted",
            plan if !plan.release.is_empty() => "tracking",
            _ => "reconciling",
        };
        let applied = self.apply(&key, &job, plan).await;
        metrics::job_synced(&job, action, &applied, began.elapsed());
        applied
    }

    async fn apply(&self, key: &NamespacedName, job: &Job, plan: Plan) -> Result<Outcome, Error> {
        let mut next = job.clone();
        next.status = Some(plan.status);
        if next.status != job.status {
            let api: Api<Job> = Api::namespaced(self.client.clone(), &key.namespace);
            let written = api.replace_status(&key.name, &PostParams::default(), &next).await;
            match error::ignore_not_found(written).attempting("write status")? {
                Some(written) => {
                    metrics::job_written(job, &written.status.clone().unwrap_or_default());
                    self.consistency.wrote(&written);
                }
                None => return Ok(Outcome::Done),
            }
        }
        self.failures.lock().insert(key.clone(), plan.failures);
        for (normal, reason, message) in plan.events {
            let kind = if normal { EventType::Normal } else { EventType::Warning };
            self.recorder.event(job, kind, &reason, "Sync", message);
        }
        self.release(plan.release).await?;
        self.owned.delete(job, &plan.delete).await?;
        let wanted = plan.create;
        self.owned.create(job, wanted.len(), |position| make_pod(job, key, wanted[position])).await?;
        Ok(plan.again.map_or(Outcome::Done, Outcome::After))
    }

    /// Takes the finalizer off pods whose end is noted.
    async fn release(&self, pods: Vec<Arc<Pod>>) -> Result<(), Error> {
        let is_held = |pod: &Arc<Pod>| pod.finalizers().iter().any(|finalizer| finalizer == TRACKING);
        let held: Vec<Arc<Pod>> = pods.into_iter().filter(is_held).collect();
        let release = async |pod: &Pod| {
            let api: Api<Pod> = Api::namespaced(self.client.clone(), &pod.namespace().unwrap_or_default());
            let patch =
                json!({"metadata": {"uid": pod.uid(), "$deleteFromPrimitiveList/finalizers": [TRACKING]}});
            let patched = api.patch(&pod.name_any(), &PatchParams::default(), &Patch::Strategic(patch)).await;
            error::ignore_not_found(patched).map(|_| ())
        };
        let released = together(held.len(), |position| release(&held[position]));
        released.await.into_iter().collect::<Result<(), kube::Error>>().attempting("release finished pods")
    }

    /// The Job is gone: nobody will count its pods, so they are let go; those too that were orphaned with its deletion.
    async fn release_orphans(&self, key: &NamespacedName) -> Result<Outcome, Error> {
        self.owned.forget(key);
        self.failures.lock().remove(key);
        let mut left = self.pods.in_namespace(&key.namespace);
        left.retain(|pod| owner::<Job>(&**pod).is_none_or(|owner| owner == *key));
        self.release(left).await?;
        Ok(Outcome::Done)
    }
}

/// A pod of the Job; one of an index knows it by annotation, label, environment and name.
fn make_pod(job: &Job, key: &NamespacedName, index: Option<(i32, i32)>) -> Pod {
    let spec = job.spec.clone().unwrap_or_default();
    let mut pod = from_template(&spec.template, &key.namespace, &key.name, controller_ref(job));
    pod.metadata.finalizers.get_or_insert_default().push(TRACKING.into());
    let Some((index, failures)) = index.filter(|_| is_indexed(job)) else { return pod };
    pod.metadata.generate_name = Some(format!("{}-{index}-", key.name));
    pod.annotations_mut().insert(INDEX.into(), index.to_string());
    pod.labels_mut().insert(INDEX.into(), index.to_string());
    if spec.backoff_limit_per_index.is_some() {
        pod.annotations_mut().insert(INDEX_FAILURES.into(), failures.to_string());
    }
    let spec = pod.spec.get_or_insert_default();
    spec.hostname.get_or_insert_with(|| format!("{}-{index}", key.name));
    let variable = EnvVar {
        name: "JOB_COMPLETION_INDEX".into(),
        value_from: Some(EnvVarSource {
            field_ref: Some(ObjectFieldSelector {
                field_path: format!("metadata.labels['{INDEX}']"),
                api_version: None,
            }),
            ..Default::default()
        }),
        ..Default::default()
    };
    let containers = spec.init_containers.iter_mut().flatten().chain(&mut spec.containers);
    for container in containers {
        let env = container.env.get_or_insert_default();
        if !env.iter().any(|known| known.name == variable.name) {
            env.push(variable.clone());
        }
    }
    pod
}
