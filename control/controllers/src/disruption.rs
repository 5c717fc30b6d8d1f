//! PodDisruptionBudget: how many of its pods may be disturbed now. The eviction subresource
//! spends what is allowed here.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use ferry_client::informer::Object;
use ferry_client::{
    Attempt, Client, Error, Event, EventType, Informer, NamespacedName, Outcome, Recorder, error,
};
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet, StatefulSet};
use k8s_openapi::api::core::v1::{Pod, ReplicationController};
use k8s_openapi::api::policy::v1::{PodDisruptionBudget, PodDisruptionBudgetStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::ResourceExt;
use kube::api::{Api, PostParams};

use crate::context::{Context, Running};
use crate::deployment::share;
use crate::ownership::{self, controller_of, selects};
use crate::pods::{is_deleting, is_ready};

const CONTROLLER: &str = "disruption-controller";
/// An evicted pod that is not gone by then was not deleted after all.
const EVICTION_TIMEOUT: Duration = Duration::from_secs(2 * 60);

/// A budget's status from its pods. `scale` is how many pods their owners want together.
fn status(
    budget: &PodDisruptionBudget,
    pods: &[Arc<Pod>],
    scale: i32,
    now: Timestamp,
) -> PodDisruptionBudgetStatus {
    let spec = budget.spec.clone().unwrap_or_default();
    let (expected, desired) = match (&spec.max_unavailable, &spec.min_available) {
        (Some(most), _) => (scale, (scale - share(Some(most), scale, true)).max(0)),
        (None, Some(IntOrString::Int(least))) => (pods.len() as i32, *least),
        (None, Some(percent)) => (scale, share(Some(percent), scale, true)),
        (None, None) => (pods.len() as i32, 0),
    };
    let old = budget.status.clone().unwrap_or_default();
    let disrupted = still_disrupted(&old, pods, now);
    let healthy = pods
        .iter()
        .filter(|pod| is_ready(pod) && !is_deleting(pod) && !disrupted.contains_key(&pod.name_any()));
    let healthy = healthy.count() as i32;
    let allowed = if expected <= 0 { 0 } else { (healthy - desired).max(0) };
    let mut status = PodDisruptionBudgetStatus {
        observed_generation: budget.metadata.generation,
        current_healthy: Some(healthy),
        desired_healthy: Some(desired),
        expected_pods: Some(expected),
        disruptions_allowed: Some(allowed),
        disrupted_pods: (!disrupted.is_empty()).then_some(disrupted),
        conditions: old.conditions,
    };
    set_condition(&mut status, budget.metadata.generation, now);
    status
}

/// Evictions that were granted and whose pods have not gone yet.
fn still_disrupted(
    status: &PodDisruptionBudgetStatus,
    pods: &[Arc<Pod>],
    now: Timestamp,
) -> BTreeMap<String, Time> {
    let present: HashMap<String, &Arc<Pod>> = pods.iter().map(|pod| (pod.name_any(), pod)).collect();
    let granted = status.disrupted_pods.clone().unwrap_or_default().into_iter();
    granted
        .filter(|(name, since)| {
            let fresh =
                Duration::try_from(now.duration_since(since.0)).unwrap_or(Duration::ZERO) < EVICTION_TIMEOUT;
            fresh && present.get(name).is_some_and(|pod| !is_deleting(pod))
        })
        .collect()
}

fn set_condition(status: &mut PodDisruptionBudgetStatus, generation: Option<i64>, now: Timestamp) {
    let (answer, reason) = if status.disruptions_allowed > Some(0) {
        ("True", "SufficientPods")
    } else {
        ("False", "InsufficientPods")
    };
    let conditions = status.conditions.get_or_insert_default();
    let old = conditions.iter().find(|condition| condition.type_ == "DisruptionAllowed").cloned();
    let since = old.filter(|old| old.status == answer).map_or(Time(now), |old| old.last_transition_time);
    conditions.retain(|condition| condition.type_ != "DisruptionAllowed");
    conditions.push(Condition {
        type_: "DisruptionAllowed".into(),
        status: answer.into(),
        reason: reason.into(),
        message: String::new(),
        observed_generation: generation,
        last_transition_time: since,
    });
}

struct Controller {
    client: Client,
    budgets: Informer<PodDisruptionBudget>,
    pods: Informer<Pod>,
    deployments: Informer<Deployment>,
    replica_sets: Informer<ReplicaSet>,
    replication_controllers: Informer<ReplicationController>,
    stateful_sets: Informer<StatefulSet>,
    recorder: Recorder,
}

pub fn start(context: &Context) -> Running {
    let builder = context.controller(CONTROLLER);
    let (budgets, pods) = (builder.informer(), builder.informer());
    let (deployments, replica_sets, stateful_sets) =
        (builder.informer(), builder.informer(), builder.informer());
    let controller = Arc::new(Controller {
        client: context.client.clone(),
        budgets: budgets.clone(),
        pods: pods.clone(),
        deployments: deployments.clone(),
        replica_sets: replica_sets.clone(),
        replication_controllers: builder.informer(),
        stateful_sets: stateful_sets.clone(),
        recorder: context.recorder("controllermanager"),
    });
    builder
        .of(&budgets, controller)
        .watches(&pods, Controller::pod_changed)
        .watches(&deployments, |it, event| it.owner_changed(event, |owner| owner.spec.as_ref()?.replicas))
        .watches(&replica_sets, |it, event| it.owner_changed(event, |owner| owner.spec.as_ref()?.replicas))
        .watches(&stateful_sets, |it, event| it.owner_changed(event, |owner| owner.spec.as_ref()?.replicas))
        .run(Controller::reconcile)
}

fn covers(budget: &PodDisruptionBudget, pod: &Pod) -> bool {
    let selector = budget.spec.as_ref().and_then(|spec| spec.selector.as_ref()).and_then(ownership::selector);
    selector.is_some_and(|selector| selects(&selector, pod))
}

impl Controller {
    /// A resize changes what is expected without any pod having changed yet.
    fn owner_changed<K: Object>(&self, event: &Event<K>, size: fn(&K) -> Option<i32>) -> Vec<NamespacedName> {
        if event.old().is_none_or(|old| size(old) == size(event.object())) {
            return Vec::new();
        }
        let budgets = self.budgets.list_namespace(&event.key().namespace);
        budgets.iter().map(|budget| NamespacedName::of(&**budget)).collect()
    }

    fn pod_changed(&self, event: &Event<Pod>) -> Vec<NamespacedName> {
        let seen = |pod: &Pod| {
            (
                pod.metadata.labels.clone(),
                is_ready(pod),
                is_deleting(pod),
                pod.metadata.owner_references.clone(),
            )
        };
        if event.old().is_some_and(|old| seen(old) == seen(event.object())) {
            return Vec::new();
        }
        let mut budgets = self.budgets.list_namespace(&event.key().namespace);
        budgets.retain(|budget| {
            covers(budget, event.object()) || event.old().is_some_and(|old| covers(budget, old))
        });
        budgets.iter().map(|budget| NamespacedName::of(&**budget)).collect()
    }

    async fn reconcile(self: Arc<Self>, key: NamespacedName) -> Result<Outcome, Error> {
        let Some(budget) = self.budgets.get(&key) else { return Ok(Outcome::Done) };
        let mut pods = self.pods.list_namespace(&key.namespace);
        pods.retain(|pod| covers(&budget, pod));
        if pods.is_empty() {
            self.recorder.event(&*budget, EventType::Normal, "NoPods", "Count", "No matching pods found");
        }
        let status = status(&budget, &pods, self.scale(&key.namespace, &pods), Timestamp::now());
        let waiting = status.disrupted_pods.is_some();
        let mut next = (*budget).clone();
        next.status = Some(status);
        if next.status != budget.status {
            let api: Api<PodDisruptionBudget> = Api::namespaced(self.client.clone(), &key.namespace);
            let written = api.replace_status(&key.name, &PostParams::default(), &next).await;
            error::ignore_not_found(written).attempting("write status")?;
        }
        Ok(if waiting { Outcome::After(EVICTION_TIMEOUT) } else { Outcome::Done })
    }

    /// How many pods the owners of these want, each owner once.
    fn scale(&self, namespace: &str, pods: &[Arc<Pod>]) -> i32 {
        let owners = pods.iter().filter_map(|pod| controller_of(&**pod));
        let scales: HashMap<String, i32> = owners
            .filter_map(|owner| {
                let key = NamespacedName::new(namespace, owner.name.clone());
                let scale = match owner.kind.as_str() {
                    "ReplicaSet" => {
                        let set = self.replica_sets.get(&key)?;
                        return Some(self.scale_of_set(&set));
                    }
                    "StatefulSet" => self.stateful_sets.get(&key)?.spec.as_ref()?.replicas,
                    "ReplicationController" => {
                        self.replication_controllers.get(&key)?.spec.as_ref()?.replicas
                    }
                    _ => return None,
                };
                Some((owner.uid.clone(), scale.unwrap_or(1)))
            })
            .collect();
        scales.values().sum()
    }

    /// A Deployment in the middle of a rollout has several sets and one size.
    fn scale_of_set(&self, set: &ReplicaSet) -> (String, i32) {
        let deployment = controller_of(set).filter(|owner| owner.kind == "Deployment").and_then(|owner| {
            self.deployments
                .get(&NamespacedName::new(set.namespace().unwrap_or_default(), owner.name.clone()))
        });
        match deployment {
            Some(deployment) => {
                let replicas = deployment.spec.as_ref().and_then(|spec| spec.replicas);
                (deployment.uid().unwrap_or_default(), replicas.unwrap_or(1))
            }
            None => {
                (set.uid().unwrap_or_default(), set.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{at, deleting, named, pod};

    fn budget(min: Option<IntOrString>, max: Option<IntOrString>) -> PodDisruptionBudget {
        let mut budget: PodDisruptionBudget = named("budget");
        let spec = budget.spec.get_or_insert_default();
        (spec.min_available, spec.max_unavailable) = (min, max);
        budget
    }

    fn pods(ready: usize, unready: usize) -> Vec<Arc<Pod>> {
        let make =
            |index: usize| Arc::new(pod(&format!("p{index}"), "n", "Running", (index < ready).then_some(0)));
        (0..ready + unready).map(make).collect()
    }

    #[test]
    fn allowed_disruptions_are_healthy_pods_beyond_the_desired_number() {
        let number = |value| Some(IntOrString::Int(value));
        let percent = |value: &str| Some(IntOrString::String(value.into()));
        let check = |budget: PodDisruptionBudget, ready, unready, scale, allowed: i32, desired: i32| {
            let status = status(&budget, &pods(ready, unready), scale, at(0));
            assert_eq!(
                (status.disruptions_allowed, status.desired_healthy),
                (Some(allowed), Some(desired)),
                "{:?}",
                budget.spec
            );
        };
        check(budget(number(2), None), 3, 0, 3, 1, 2);
        check(budget(number(2), None), 2, 1, 3, 0, 2);
        check(budget(percent("50%"), None), 3, 0, 3, 1, 2);
        check(budget(None, number(1)), 3, 0, 3, 1, 2);
        check(budget(None, number(1)), 2, 1, 3, 0, 2);
        check(budget(None, percent("34%")), 3, 0, 3, 2, 1);
        check(budget(None, number(1)), 0, 0, 0, 0, 0);
        check(budget(None, number(5)), 3, 0, 3, 3, 0);
    }

    #[test]
    fn a_granted_eviction_counts_until_its_pod_goes_or_stays() {
        let mut budget = budget(Some(IntOrString::Int(1)), None);
        budget.status.get_or_insert_default().disrupted_pods = Some([("p0".to_string(), Time(at(0)))].into());
        let mut all = pods(2, 0);
        assert_eq!(status(&budget, &all, 2, at(10)).disruptions_allowed, Some(0));
        assert_eq!(status(&budget, &all, 2, at(130)).disruptions_allowed, Some(1));
        all[0] = Arc::new(deleting((*all[0]).clone()));
        let gone = status(&budget, &all, 2, at(10));
        assert_eq!((gone.disruptions_allowed, gone.disrupted_pods), (Some(0), None));
    }

    #[test]
    fn the_condition_says_whether_any_may() {
        let condition = |ready| {
            status(&budget(Some(IntOrString::Int(1)), None), &pods(ready, 0), 1, at(0)).conditions.unwrap()[0]
                .reason
                .clone()
        };
        assert_eq!((condition(2).as_str(), condition(1).as_str()), ("SufficientPods", "InsufficientPods"));
    }
}
