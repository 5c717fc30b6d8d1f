//! Deployment: rolls from one template to the next, through ReplicaSets.
//!
//! `plan` decides everything: which ReplicaSet to make, which to scale and by how much, what
//! the status says. This file finds its input, carries it out and hears of changes.

mod plan;
mod sets;
mod status;

use std::sync::Arc;

use ferry_client::controller::{owner, owners};
use ferry_client::{
    Attempt, Client, ConsistencyStore, Error, Event, EventType, Index, Informer, NamespacedName, Outcome,
    Recorder, error, undecoded,
};
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, PostParams, Preconditions};

use crate::context::{Context, Running};
use crate::ownership::{self, claim_all, controller_of, is_controlled_by};
use crate::pods::{by_controller, is_finished, orphans_of};
use plan::{Action, Plan, plan};
pub use sets::share;

const CONTROLLER: &str = "deployment-controller";

struct Controller {
    client: Client,
    deployments: Informer<Deployment>,
    sets: Informer<ReplicaSet>,
    sets_by_owner: Index<ReplicaSet>,
    pods: Index<Pod>,
    recorder: Recorder,
    consistency: ConsistencyStore,
    set_consistency: ConsistencyStore,
}

pub fn start(context: &Context) -> Running {
    let builder = context.controller(CONTROLLER);
    let deployments = builder.informer::<Deployment>();
    let (sets, pods) = (builder.informer::<ReplicaSet>(), builder.informer::<Pod>());
    let controller = Arc::new(Controller {
        client: context.client.clone(),
        deployments: deployments.clone(),
        sets: sets.clone(),
        sets_by_owner: sets.index("controller or orphan", |set: &ReplicaSet| match controller_of(set) {
            Some(owner) => vec![owner.uid.clone()],
            None => vec![orphans_of(set.metadata.namespace.as_deref().unwrap_or(""))],
        }),
        pods: by_controller(&pods),
        recorder: context.recorder(CONTROLLER),
        consistency: ConsistencyStore::default(),
        set_consistency: ConsistencyStore::default(),
    });
    builder
        .of(&deployments, controller)
        .watches(&sets, Controller::set_changed)
        .watches(&pods, Controller::pod_changed)
        .run(Controller::reconcile)
}

impl Controller {
    fn set_changed(&self, event: &Event<ReplicaSet>) -> Vec<NamespacedName> {
        if event.is_deleted() {
            self.set_consistency.forget(&event.key());
        }
        let mut keys = owners::<Deployment, _>(event);
        let selector = |deployment: &Deployment| ownership::selector(&deployment.spec.as_ref()?.selector);
        keys.extend(ownership::adopters(&self.deployments, selector, event));
        keys
    }

    /// Only "Recreate" cares about pods: it starts the new when the last of the old is gone.
    fn pod_changed(&self, event: &Event<Pod>) -> Vec<NamespacedName> {
        let pod = event.object();
        if !event.is_deleted() && !is_finished(pod) {
            return Vec::new();
        }
        let set = owner::<ReplicaSet>(&**pod).and_then(|key| self.sets.get(&key));
        let deployment = set
            .and_then(|set| owner::<Deployment>(&*set))
            .filter(|key| self.deployments.get(key).is_some_and(|deployment| plan::is_recreate(&deployment)));
        deployment.into_iter().collect()
    }

    async fn reconcile(self: Arc<Self>, key: NamespacedName) -> Result<Outcome, Error> {
        let Some(deployment) = self.deployments.get(&key) else {
            self.consistency.forget(&key);
            return Ok(Outcome::Done);
        };
        if self.consistency.is_stale(&*deployment) {
            return Ok(Outcome::Done);
        }
        let Some(spec) = &deployment.spec else { return Ok(Outcome::Done) };
        if spec.selector == LabelSelector::default() {
            let note = "This deployment is selecting all pods. A non-empty selector is required.";
            self.recorder.event(&*deployment, EventType::Warning, "SelectingAll", "Select", note);
            return Ok(Outcome::Done);
        }
        let Some(selector) = ownership::selector(&spec.selector) else { return Ok(Outcome::Done) };
        let mut candidates = self.sets_by_owner.get(&deployment.uid().unwrap_or_default());
        candidates.extend(self.sets_by_owner.get(&orphans_of(&key.namespace)));
        let sets = claim_all(&self.client, &*deployment, &selector, candidates).await?;
        if sets.iter().any(|set| self.set_consistency.is_stale(&**set)) {
            return Ok(Outcome::Done);
        }
        let has_pods = |set: &ReplicaSet| {
            self.pods.get(set.metadata.uid.as_deref().unwrap_or("")).iter().any(|pod| !is_finished(pod))
        };
        let plan =
            plan(&deployment, sets.iter().map(|set| (**set).clone()).collect(), &has_pods, Timestamp::now());
        self.apply(&deployment, plan).await
    }

    async fn apply(&self, deployment: &Deployment, plan: Plan) -> Result<Outcome, Error> {
        let sets: Api<ReplicaSet> =
            Api::namespaced(self.client.clone(), &deployment.namespace().unwrap_or_default());
        let mut next = plan.deployment;
        for action in plan.actions {
            match action {
                Action::Create(set) => self.create(&sets, deployment, &set, &mut next).await?,
                Action::Write { set, scaled_from } => {
                    let written = sets.replace(&set.name_any(), &PostParams::default(), &set).await;
                    let written = error::unless_superseded(written)
                        .attempting(format!("write replica set {}", set.name_any()))?;
                    // What it has become may call for something else: that comes with its event.
                    let Some(written) = written else { return Ok(Outcome::Done) };
                    self.set_consistency.wrote(&written);
                    if let Some(from) = scaled_from {
                        self.tell_scaled(deployment, &set, from);
                    }
                }
                Action::Delete { name, uid } => {
                    let only_this =
                        DeleteParams::default().preconditions(Preconditions { uid, resource_version: None });
                    let deleted = undecoded::delete(&sets, &name, &only_this).await;
                    error::ignore_not_found(deleted).attempting(format!("delete replica set {name}"))?;
                }
            }
        }
        self.write_status(deployment, next).await?;
        Ok(plan.again.map_or(Outcome::Done, Outcome::After))
    }

    async fn create(
        &self,
        sets: &Api<ReplicaSet>,
        deployment: &Deployment,
        set: &ReplicaSet,
        next: &mut Deployment,
    ) -> Result<(), Error> {
        let failed = match sets.create(&PostParams::default(), set).await {
            Ok(created) => {
                if sets::replicas(&created) > 0 {
                    self.tell_scaled(deployment, &created, 0);
                }
                return Ok(());
            }
            Err(failed) => failed,
        };
        if error::is_already_exists(&failed) {
            let existing = sets.get(&set.name_any()).await.attempting("read replica set that exists")?;
            let ours = is_controlled_by(&existing, &deployment.uid().unwrap_or_default());
            if ours && sets::same_template(deployment, &existing) {
                // Ours, from a reconcile the informer has not shown yet.
                return Ok(());
            }
            // Two templates share a name: the next attempt uses another.
            let status = next.status.get_or_insert_default();
            status.collision_count = Some(status.collision_count.unwrap_or(0) + 1);
            self.write_status(deployment, next.clone()).await?;
        } else if !error::is_namespace_terminating(&failed) {
            let note =
                format!("Failed to create new replica set {:?}: {}", set.name_any(), error::message(&failed));
            self.recorder.event(
                deployment,
                EventType::Warning,
                "ReplicaSetCreateError",
                "Create",
                note.clone(),
            );
            if status::has_progress_deadline(deployment) {
                status::set_progressing(next, "False", "ReplicaSetCreateError", &note, Timestamp::now());
                self.write_status(deployment, next.clone()).await?;
            }
        }
        Err(Error::new(format!("create replica set {}", set.name_any()), failed))
    }

    fn tell_scaled(&self, deployment: &Deployment, set: &ReplicaSet, from: i32) {
        let to = sets::replicas(set);
        let direction = if from < to { "up" } else { "down" };
        let note = format!("Scaled {direction} replica set {} from {from} to {to}", set.name_any());
        self.recorder.event(deployment, EventType::Normal, "ScalingReplicaSet", "Scale", note);
    }

    /// Status and the revision annotation, in one write.
    async fn write_status(&self, old: &Deployment, new: Deployment) -> Result<(), Error> {
        if old.status == new.status && old.metadata.annotations == new.metadata.annotations {
            return Ok(());
        }
        let api: Api<Deployment> = Api::namespaced(self.client.clone(), &new.namespace().unwrap_or_default());
        let written = api.replace_status(&new.name_any(), &PostParams::default(), &new).await;
        if let Some(written) = error::unless_superseded(written).attempting("write status")? {
            self.consistency.wrote(&written);
        }
        Ok(())
    }
}
