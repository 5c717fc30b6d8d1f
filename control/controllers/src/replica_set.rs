//! ReplicaSet and ReplicationController: keep so many pods of one template.
//!
//! One code for both, over what they have in common ([`Replicated`]).

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use ferry_client::informer::controller_uid;
use ferry_client::{
    Attempt, Client, ConsistencyStore, Error, Event, Index, Informer, NamespacedName, Outcome, error,
};
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{ReplicaSet, ReplicaSetCondition};
use k8s_openapi::api::core::v1::{
    Pod, PodTemplateSpec, ReplicationController, ReplicationControllerCondition,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, Time};
use kube::ResourceExt;
use kube::api::{Api, PostParams};
use kube::core::{Selector, SelectorExt};
use serde::Serialize;

use crate::context::{Context, Running};
use crate::owned_pods::OwnedPods;
use crate::ownership::{self, Namespaced, claim_all, controller_of, controller_ref};
use crate::pods::{self, by_controller, from_template, is_active, is_available, is_ready, orphans_of};

pub fn start_replica_set(context: &Context) -> Running {
    start::<ReplicaSet>(context)
}

pub fn start_replication_controller(context: &Context) -> Running {
    start::<ReplicationController>(context)
}

/// Never more than this many writes at a time, however many replicas are missing.
const BURST: usize = 500;

/// What the two kinds have in common.
pub(crate) trait Replicated: Namespaced + Serialize {
    const CONTROLLER: &'static str;
    /// Does its status have a place for pods that are on their way out?
    const COUNTS_TERMINATING: bool;

    fn replicas(&self) -> usize;
    fn min_ready_seconds(&self) -> i32;
    fn template(&self) -> Option<&PodTemplateSpec>;
    fn selector(&self) -> Option<Selector>;
    fn status(&self) -> Status;
    fn set_status(&mut self, status: Status);
}

/// The status both write.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Status {
    pub replicas: i32,
    pub fully_labeled: i32,
    pub ready: i32,
    pub available: i32,
    /// ReplicaSet only.
    pub terminating: Option<i32>,
    pub observed_generation: i64,
    pub failure: Option<Failure>,
}

/// The ReplicaFailure condition: why pods could not be made or removed.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Failure {
    pub reason: String,
    pub message: String,
    pub since: Option<Time>,
}

/// What to do about the number of pods.
#[derive(Debug, PartialEq)]
enum Plan {
    Nothing,
    Create(usize),
    Delete(Vec<Arc<Pod>>),
}

fn plan<R: Replicated>(
    set: &R,
    active: &[Arc<Pod>],
    related: impl FnOnce() -> Vec<Arc<Pod>>,
    now: Timestamp,
) -> Plan {
    if set.meta().deletion_timestamp.is_some() {
        return Plan::Nothing;
    }
    let wanted = set.replicas();
    match active.len() {
        have if have < wanted => Plan::Create((wanted - have).min(BURST)),
        have if have > wanted => {
            let mut crowd: HashMap<String, usize> = HashMap::new();
            for pod in related().iter().filter(|pod| is_active(pod)) {
                *crowd.entry(pods::node_name(pod).into()).or_default() += 1;
            }
            let mut pods = active.to_vec();
            pods::sort_for_deletion(&mut pods, &crowd, now);
            pods.truncate((have - wanted).min(BURST));
            Plan::Delete(pods)
        }
        _ => Plan::Nothing,
    }
}

/// The status that goes with what was seen and what went wrong.
fn status<R: Replicated>(
    set: &R,
    active: &[Arc<Pod>],
    terminating: usize,
    failure: Option<&Error>,
    now: Timestamp,
) -> Status {
    let count = |wanted: &dyn Fn(&Pod) -> bool| active.iter().filter(|pod| wanted(pod)).count() as i32;
    let template =
        set.template().and_then(|template| template.metadata.as_ref()).and_then(|meta| meta.labels.clone());
    let labelled = Selector::from_iter(template.unwrap_or_default());
    let old = set.status();
    Status {
        replicas: active.len() as i32,
        fully_labeled: count(&|pod| labelled.matches(pod.labels())),
        ready: count(&is_ready),
        available: count(&|pod| is_available(pod, set.min_ready_seconds(), now)),
        terminating: R::COUNTS_TERMINATING.then_some(terminating as i32),
        observed_generation: set.meta().generation.unwrap_or(0),
        failure: failure.map(|error| match old.failure {
            // The first account of a lasting failure stays, so that nothing is written anew.
            Some(known) => known,
            None => Failure {
                reason: if active.len() < set.replicas() { "FailedCreate" } else { "FailedDelete" }.into(),
                message: error::message(error.kube()),
                since: Some(Time(now)),
            },
        }),
    }
}

/// When the next ready pod becomes available, if one is waiting for it.
fn next_check<R: Replicated>(set: &R, active: &[Arc<Pod>], now: Timestamp) -> Outcome {
    let waits = active.iter().filter_map(|pod| pods::until_available(pod, set.min_ready_seconds(), now));
    waits.min().map_or(Outcome::Done, |wait| Outcome::After(wait + Duration::from_millis(10)))
}

struct Controller<R> {
    client: Client,
    sets: Informer<R>,
    siblings: Index<R>,
    pods: Index<Pod>,
    owned: OwnedPods,
    consistency: ConsistencyStore,
}

fn start<R: Replicated>(context: &Context) -> Running {
    let builder = context.controller(R::CONTROLLER);
    let (sets, pods) = (builder.informer::<R>(), builder.informer::<Pod>());
    let controller = Arc::new(Controller {
        client: context.client.clone(),
        sets: sets.clone(),
        siblings: sets.index("controller", controller_uid),
        pods: by_controller(&pods),
        owned: OwnedPods::new(context.client.clone(), context.recorder(R::CONTROLLER)),
        consistency: ConsistencyStore::default(),
    });
    builder.of(&sets, controller).watches(&pods, Controller::pod_changed).run(Controller::reconcile)
}

impl<R: Replicated> Controller<R> {
    fn pod_changed(&self, event: &Event<Pod>) -> Vec<NamespacedName> {
        let mut keys = self.owned.observe::<R>(event);
        keys.extend(ownership::adopters(&self.sets, R::selector, event));
        keys
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
        let Some(selector) = set.selector() else { return Ok(Outcome::Done) };
        let uid = set.uid().unwrap_or_default();
        let mut candidates = self.pods.get(&uid);
        let terminating = candidates.iter().filter(|pod| pods::is_terminating(pod)).count();
        candidates.extend(self.pods.get(&orphans_of(&key.namespace)));
        candidates.retain(|pod| is_active(pod));
        let active = claim_all(&self.client, &*set, &selector, candidates).await?;
        let now = Timestamp::now();
        let result = match self.owned.satisfied_expectations(&key) {
            true => self.apply(&set, plan(&*set, &active, || self.related(&set), now)).await,
            false => Ok(()),
        };
        // A newer one that came meanwhile has brought another turn; what follows from this one would be refused.
        if self
            .sets
            .get(&key)
            .is_some_and(|latest| latest.meta().resource_version == set.meta().resource_version)
        {
            self.write_status(&set, status(&*set, &active, terminating, result.as_ref().err(), now)).await?;
        }
        result.map(|()| next_check(&*set, &active, now))
    }

    /// Pods of this set and of its siblings: the other revisions of one Deployment.
    fn related(&self, set: &R) -> Vec<Arc<Pod>> {
        let sets = match controller_of(set) {
            Some(owner) => self.siblings.get(&owner.uid),
            None => return self.pods.get(&set.uid().unwrap_or_default()),
        };
        sets.iter().flat_map(|sibling| self.pods.get(&sibling.uid().unwrap_or_default())).collect()
    }

    async fn apply(&self, set: &R, plan: Plan) -> Result<(), Error> {
        match plan {
            Plan::Nothing => Ok(()),
            Plan::Delete(pods) => self.owned.delete(set, &pods).await,
            Plan::Create(count) => {
                let Some(template) = set.template() else { return Ok(()) };
                let key = NamespacedName::of(set);
                let pod = from_template(template, &key.namespace, &key.name, controller_ref(set));
                self.owned.create(set, count, |_| pod.clone()).await
            }
        }
    }

    async fn write_status(&self, set: &R, status: Status) -> Result<(), Error> {
        if status == set.status() {
            return Ok(());
        }
        let mut set = set.clone();
        set.set_status(status);
        let api: Api<R> = Api::namespaced(self.client.clone(), &set.namespace().unwrap_or_default());
        let written = api.replace_status(&set.name_any(), &PostParams::default(), &set).await;
        if let Some(written) = error::unless_superseded(written).attempting("write status")? {
            self.consistency.wrote(&written);
        }
        Ok(())
    }
}

const REPLICA_FAILURE: &str = "ReplicaFailure";

/// The two kinds name the same fields the same way, in types of their own.
macro_rules! same_fields {
    ($condition:ident $(, $terminating:ident)?) => {
        fn replicas(&self) -> usize {
            self.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1).max(0) as usize
        }

        fn min_ready_seconds(&self) -> i32 {
            self.spec.as_ref().and_then(|spec| spec.min_ready_seconds).unwrap_or(0)
        }

        fn template(&self) -> Option<&PodTemplateSpec> {
            self.spec.as_ref()?.template.as_ref()
        }

        fn status(&self) -> Status {
            let status = self.status.clone().unwrap_or_default();
            let failure = status.conditions.into_iter().flatten().find(|condition| condition.type_ == REPLICA_FAILURE);
            Status {
                replicas: status.replicas,
                fully_labeled: status.fully_labeled_replicas.unwrap_or(0),
                ready: status.ready_replicas.unwrap_or(0),
                available: status.available_replicas.unwrap_or(0),
                terminating: None $(.or(status.$terminating))?,
                observed_generation: status.observed_generation.unwrap_or(0),
                failure: failure.map(|condition| Failure {
                    reason: condition.reason.unwrap_or_default(),
                    message: condition.message.unwrap_or_default(),
                    since: condition.last_transition_time,
                }),
            }
        }

        fn set_status(&mut self, status: Status) {
            let own = self.status.get_or_insert_default();
            own.replicas = status.replicas;
            own.fully_labeled_replicas = Some(status.fully_labeled);
            own.ready_replicas = Some(status.ready);
            own.available_replicas = Some(status.available);
            $(own.$terminating = status.terminating;)?
            own.observed_generation = Some(status.observed_generation);
            let conditions = own.conditions.get_or_insert_default();
            conditions.retain(|condition| condition.type_ != REPLICA_FAILURE);
            conditions.extend(status.failure.map(|failure| $condition {
                type_: REPLICA_FAILURE.into(),
                status: "True".into(),
                reason: Some(failure.reason),
                message: Some(failure.message),
                last_transition_time: failure.since,
            }));
        }
    };
}

impl Replicated for ReplicaSet {
    const CONTROLLER: &'static str = "replicaset-controller";
    const COUNTS_TERMINATING: bool = true;

    same_fields!(ReplicaSetCondition, terminating_replicas);

    fn selector(&self) -> Option<Selector> {
        ownership::selector(&self.spec.as_ref()?.selector)
    }
}

impl Replicated for ReplicationController {
    const CONTROLLER: &'static str = "replication-controller";
    const COUNTS_TERMINATING: bool = false;

    same_fields!(ReplicationControllerCondition);

    /// An empty selector, which validation refuses, selects nothing and not everything.
    fn selector(&self) -> Option<Selector> {
        let labels = self.spec.as_ref()?.selector.clone().filter(|labels| !labels.is_empty())?;
        ownership::selector(&LabelSelector { match_labels: Some(labels), ..Default::default() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{at, deleting, labels, named, pod};

    fn set(replicas: i32) -> ReplicaSet {
        let mut set: ReplicaSet = named("set");
        set.metadata.generation = Some(3);
        let spec = set.spec.get_or_insert_default();
        spec.replicas = Some(replicas);
        spec.min_ready_seconds = Some(30);
        spec.template.get_or_insert_default().metadata.get_or_insert_default().labels =
            Some(labels(&[("app", "web")]));
        set
    }

    fn running(count: usize, ready: Option<i64>) -> Vec<Arc<Pod>> {
        (0..count).map(|index| Arc::new(pod(&format!("pod-{index}"), "node", "Running", ready))).collect()
    }

    #[test]
    fn the_difference_is_created_or_deleted_up_to_the_burst() {
        let check = |set: &ReplicaSet, have: usize, create: usize, delete: usize| {
            let pods = running(have, Some(0));
            let found = match plan(set, &pods, || pods.clone(), at(60)) {
                Plan::Nothing => (0, 0),
                Plan::Create(count) => (count, 0),
                Plan::Delete(pods) => (0, pods.len()),
            };
            assert_eq!(found, (create, delete), "{have} pods");
        };
        check(&set(3), 0, 3, 0);
        check(&set(3), 3, 0, 0);
        check(&set(3), 5, 0, 2);
        check(&set(0), 5, 0, 5);
        check(&set(2000), 0, 500, 0);
        check(&set(0), 2000, 0, 500);
        check(&deleting(set(3)), 0, 0, 0);
    }

    #[test]
    fn the_pod_on_the_crowded_node_goes_first() {
        let mut pods = running(2, Some(0));
        pods.push(Arc::new(pod("alone", "other", "Running", Some(0))));
        let Plan::Delete(chosen) = plan(&set(2), &pods, || pods.clone(), at(60)) else {
            panic!("deletes one")
        };
        assert_ne!(chosen[0].name_any(), "alone");
    }

    #[test]
    fn status_counts_ready_available_and_labelled() {
        let mut pods = running(2, Some(0));
        pods.extend(running(1, Some(50)));
        pods.extend(running(1, None));
        let mut labelled = pod("labelled", "node", "Running", None);
        labelled.metadata.labels = Some(labels(&[("app", "web"), ("more", "is fine")]));
        pods.push(Arc::new(labelled));
        let status = status(&set(5), &pods, 2, None, at(60));
        assert_eq!(
            status,
            Status {
                replicas: 5,
                fully_labeled: 1,
                ready: 3,
                available: 2,
                terminating: Some(2),
                observed_generation: 3,
                failure: None
            }
        );
        assert_eq!(next_check(&set(5), &pods, at(60)), Outcome::After(Duration::from_millis(20_010)));
    }

    #[test]
    fn a_failure_is_told_once_and_goes_when_it_is_over() {
        let quota = |message: &str| {
            Error::new(
                "create pod",
                kube::Error::Api(kube::core::Status::failure(message, "Forbidden").boxed()),
            )
        };
        let mut set = set(3);
        let first = status(&set, &[], 0, Some(&quota("exceeded quota")), at(1));
        assert_eq!(
            first.failure.as_ref().map(|f| (f.reason.as_str(), f.message.as_str())),
            Some(("FailedCreate", "exceeded quota"))
        );
        set.set_status(first.clone());
        assert_eq!(Replicated::status(&set), first);
        assert_eq!(status(&set, &[], 0, Some(&quota("exceeded quota again")), at(9)), first);
        assert_eq!(status(&set, &[], 0, None, at(9)).failure, None);
    }

    #[test]
    fn a_replication_controller_without_selector_selects_nothing() {
        let mut controller: ReplicationController = named("rc");
        controller.spec = Some(Default::default());
        assert!(Replicated::selector(&controller).is_none());
    }
}
