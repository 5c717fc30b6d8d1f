//! StatefulSet: pods that are told apart, each with its name and its storage.
//!
//! `plan` decides, `identity` says what pod and claims an ordinal has, `retention` who owns the claims; this file acts.

mod identity;
mod plan;
mod retention;

use std::sync::Arc;

use ferry_client::controller::owners;
use ferry_client::informer::controller_uid;
use ferry_client::{
    Attempt, Client, ConsistencyStore, Error, Event, EventType, Index, Informer, NamespacedName, Outcome,
    Recorder, error, undecoded,
};
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{ControllerRevision, StatefulSet, StatefulSetStatus};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod, PodTemplateSpec};
use kube::api::{Api, DeleteParams, PostParams, Preconditions};
use kube::{Resource, ResourceExt};

use crate::context::{Context, Running};
use crate::history::{self, Applied, template_of};
use crate::ownership::{self, claim_all, controller_of, controller_ref};
use crate::pods::{by_controller, orphans_of, until_available};
use identity::{claims, make_pod, ordinal, revision_of};
use plan::{Action, plan};
use retention::{Retention, goes_with_former_pod, new_owners};

const CONTROLLER: &str = "statefulset-controller";
const HASH: &str = "controller.kubernetes.io/hash";

struct Controller {
    client: Client,
    sets: Informer<StatefulSet>,
    pods: Index<Pod>,
    claims: Informer<PersistentVolumeClaim>,
    revisions: Index<ControllerRevision>,
    recorder: Recorder,
    consistency: ConsistencyStore,
}

pub fn start(context: &Context) -> Running {
    let builder = context.controller(CONTROLLER);
    let (sets, pods) = (builder.informer::<StatefulSet>(), builder.informer::<Pod>());
    let claims = builder.informer::<PersistentVolumeClaim>();
    let controller = Arc::new(Controller {
        client: context.client.clone(),
        sets: sets.clone(),
        pods: by_controller(&pods),
        claims: claims.clone(),
        revisions: builder.informer().index("controller", controller_uid),
        recorder: context.recorder(CONTROLLER),
        consistency: ConsistencyStore::default(),
    });
    let controller = builder.of(&sets, controller).watches(&pods, Controller::pod_changed);
    controller.watches(&claims, |_, event| waiting_sets(event)).run(Controller::reconcile)
}

/// The set whose new pod waits for the end of a claim that went with the former one.
fn waiting_sets(event: &Event<PersistentVolumeClaim>) -> Vec<NamespacedName> {
    let claim = event.object();
    let pod = controller_of(&**claim).filter(|owner| event.is_deleted() && owner.kind == Pod::kind(&()));
    let set = pod.and_then(|pod| pod.name.rsplit_once('-')).map(|(set, _)| set);
    set.map(|set| NamespacedName::new(claim.namespace().unwrap_or_default(), set)).into_iter().collect()
}

impl Controller {
    fn pod_changed(&self, event: &Event<Pod>) -> Vec<NamespacedName> {
        let selector = |set: &StatefulSet| ownership::selector(&set.spec.as_ref()?.selector);
        let mut keys = owners::<StatefulSet, _>(event);
        keys.extend(ownership::adopters(&self.sets, selector, event));
        keys
    }

    async fn reconcile(self: Arc<Self>, key: NamespacedName) -> Result<Outcome, Error> {
        let Some(set) = self.sets.get(&key) else {
            self.consistency.forget(&key);
            return Ok(Outcome::Done);
        };
        if self.consistency.is_stale(&*set) {
            return Ok(Outcome::Done);
        }
        let Some(spec) = &set.spec else { return Ok(Outcome::Done) };
        let Some(selector) = ownership::selector(&spec.selector) else { return Ok(Outcome::Done) };
        let uid = set.uid().unwrap_or_default();
        let mut candidates = self.pods.get(&uid);
        // Only an orphan with one of our names can be ours.
        candidates.extend(
            self.pods.get(&orphans_of(&key.namespace)).into_iter().filter(|pod| ordinal(&set, pod).is_some()),
        );
        let pods = claim_all(&self.client, &*set, &selector, candidates).await?;
        let revisions = self.revisions.get(&uid);
        let Some(update) = self.update_revision(&set, &revisions).await? else { return Ok(Outcome::Done) };
        let known = set
            .status
            .as_ref()
            .and_then(|status| status.current_revision.clone())
            .filter(|name| !name.is_empty());
        let current = known.and_then(|name| {
            revisions.iter().find(|revision| revision.name_any() == name).map(|r| (**r).clone())
        });
        let current = current.unwrap_or_else(|| update.clone());
        let now = Timestamp::now();
        self.keep_retention(&set, &pods).await?;
        let plan = plan(&set, &pods, &current.name_any(), &update.name_any(), now);
        let mut result = Ok(());
        for action in plan.actions {
            result = self.act(&set, &key, action, [&current, &update]).await;
            if result.is_err() {
                break;
            }
        }
        self.write_status(&set, plan.status).await?;
        result?;
        let in_use = |revision: &ControllerRevision| {
            let name = revision.name_any();
            name == update.name_any()
                || name == current.name_any()
                || pods.iter().any(|pod| revision_of(pod) == name)
        };
        let surplus = history::surplus(&revisions, spec.revision_history_limit.unwrap_or(10), &in_use);
        history::delete(&self.client, &key.namespace, surplus).await?;
        let waits =
            pods.iter().filter_map(|pod| until_available(pod, spec.min_ready_seconds.unwrap_or(0), now));
        Ok(waits.min().map_or(Outcome::Done, Outcome::After))
    }

    async fn update_revision(
        &self,
        set: &StatefulSet,
        revisions: &[Arc<ControllerRevision>],
    ) -> Result<Option<ControllerRevision>, Error> {
        let template = set.spec.as_ref().map(|spec| spec.template.clone()).unwrap_or_default();
        let collisions = set.status.as_ref().and_then(|status| status.collision_count);
        let step = history::plan(set, &template, revisions, HASH, collisions);
        match history::apply(&self.client, &set.namespace().unwrap_or_default(), step).await? {
            Applied::Current(revision) => Ok(Some(*revision)),
            Applied::Collision => {
                let mut status = set.status.clone().unwrap_or_default();
                status.collision_count = Some(collisions.unwrap_or(0) + 1);
                self.write_status(set, status).await?;
                Ok(None)
            }
        }
    }

    async fn act(
        &self,
        set: &StatefulSet,
        key: &NamespacedName,
        action: Action,
        revisions: [&ControllerRevision; 2],
    ) -> Result<(), Error> {
        match action {
            Action::Create { ordinal, revision } => {
                let from = revisions.into_iter().find(|known| known.name_any() == revision);
                let own = || set.spec.as_ref().map(|spec| spec.template.clone()).unwrap_or_default();
                let template = from.and_then(template_of).unwrap_or_else(own);
                self.create(set, key, &template, &revision, ordinal).await
            }
            Action::Delete(pod) => {
                let api: Api<Pod> = Api::namespaced(self.client.clone(), &key.namespace);
                let only_this = Preconditions { uid: pod.uid(), resource_version: None };
                let deleted = undecoded::delete(
                    &api,
                    &pod.name_any(),
                    &DeleteParams::default().preconditions(only_this),
                )
                .await;
                self.record_event("delete", set, &pod.name_any(), deleted.as_ref().err());
                error::ignore_not_found(deleted).attempting(format!("delete pod {}", pod.name_any()))?;
                Ok(())
            }
        }
    }

    async fn create(
        &self,
        set: &StatefulSet,
        key: &NamespacedName,
        template: &PodTemplateSpec,
        revision: &str,
        ordinal: i32,
    ) -> Result<(), Error> {
        let mut span = ferry_trace::span("statefulset.create");
        span.set("ordinal", ordinal);
        let pod = make_pod(set, template, revision, ordinal);
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &key.namespace);
        let create = async {
            if !self.ensure_claims(set, ordinal).await? {
                return Ok(());
            }
            match api.create(&PostParams::default(), &pod).await {
                Err(refused) if error::is_namespace_terminating(&refused) => Ok(()),
                // The informer has not shown it yet, or someone took the name; it will tell.
                Err(refused) if error::is_already_exists(&refused) => Ok(()),
                created => {
                    self.record_event("create", set, &pod.name_any(), created.as_ref().err());
                    created.attempting(format!("create pod {}", pod.name_any())).map(|_| ())
                }
            }
        };
        span.in_scope(create).await
    }

    /// False where the pod has to wait: a claim is about to go with the former pod of its name, and its end wakes the set.
    async fn ensure_claims(&self, set: &StatefulSet, ordinal: i32) -> Result<bool, Error> {
        let api: Api<PersistentVolumeClaim> =
            Api::namespaced(self.client.clone(), &set.namespace().unwrap_or_default());
        for mut claim in claims(set, ordinal) {
            if let Some(known) = self.claims.get(&NamespacedName::of(&claim)) {
                let pod = identity::pod_name(set, ordinal);
                if goes_with_former_pod(&known, set, &pod) {
                    return Ok(false);
                }
                continue;
            }
            if Retention::of(set).with_set {
                claim.metadata.owner_references = Some(vec![controller_ref(set)]);
            }
            match api.create(&PostParams::default(), &claim).await {
                Err(refused) if error::is_already_exists(&refused) => {}
                created => {
                    let name = claim.name_any();
                    let (kind, reason, outcome) = match &created {
                        Ok(_) => (EventType::Normal, "SuccessfulCreate", "success".to_string()),
                        Err(failed) => (
                            EventType::Warning,
                            "FailedCreate",
                            format!("failed error: {}", error::message(failed)),
                        ),
                    };
                    let pod = identity::pod_name(set, ordinal);
                    let note =
                        format!("create Claim {name} Pod {pod} in StatefulSet {} {outcome}", set.name_any());
                    self.recorder.event(set, kind, reason, "Create", note);
                    created.attempting(format!("create claim {name}"))?;
                }
            }
        }
        Ok(true)
    }

    /// Hands claims to the set or to their pods, or takes them back, as the policy says.
    async fn keep_retention(&self, set: &StatefulSet, pods: &[Arc<Pod>]) -> Result<(), Error> {
        if set.metadata.deletion_timestamp.is_some() {
            return Ok(());
        }
        let api: Api<PersistentVolumeClaim> =
            Api::namespaced(self.client.clone(), &set.namespace().unwrap_or_default());
        for pod in pods {
            let Some(ordinal) = ordinal(set, pod) else { continue };
            for claim in claims(set, ordinal) {
                let Some(known) = self.claims.get(&NamespacedName::of(&claim)) else { continue };
                let Some(new) = new_owners(&known, set, pod) else { continue };
                if new.is_in_conflict {
                    let note = format!(
                        "PersistentVolumeClaim {} has a conflicting OwnerReference that acts as a managing controller, the retention policy is ignored for this claim",
                        known.name_any()
                    );
                    self.recorder.event(set, EventType::Warning, "ConflictingController", "Update", note);
                }
                let mut next = (*known).clone();
                next.metadata.owner_references = Some(new.owners);
                let replaced = api.replace(&next.name_any(), &PostParams::default(), &next).await;
                error::ignore_not_found(replaced).attempting("change the owners of a claim")?;
            }
        }
        Ok(())
    }

    fn record_event(&self, verb: &str, set: &StatefulSet, pod: &str, failed: Option<&kube::Error>) {
        let title = if verb == "create" { "Create" } else { "Delete" };
        let subject = format!("{verb} Pod {pod} in StatefulSet {}", set.name_any());
        match failed {
            None => self.recorder.event(
                set,
                EventType::Normal,
                &format!("Successful{title}"),
                title,
                format!("{subject} successful"),
            ),
            Some(failed) => {
                let note = format!("{subject} failed error: {}", error::message(failed));
                self.recorder.event(set, EventType::Warning, &format!("Failed{title}"), title, note);
            }
        }
    }

    async fn write_status(&self, set: &StatefulSet, status: StatefulSetStatus) -> Result<(), Error> {
        let mut next = set.clone();
        next.status = Some(status);
        if next.status != set.status {
            let api: Api<StatefulSet> =
                Api::namespaced(self.client.clone(), &set.namespace().unwrap_or_default());
            let written = api.replace_status(&set.name_any(), &PostParams::default(), &next).await;
            if let Some(written) = error::ignore_not_found(written).attempting("write status")? {
                self.consistency.wrote(&written);
            }
        }
        Ok(())
    }
}
