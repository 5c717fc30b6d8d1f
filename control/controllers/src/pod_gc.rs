//! Removes pods that nobody else will: of nodes that are gone, that were deleted before they
//! ever had a node, of nodes declared out of service, and finished ones beyond a number.

use std::sync::Arc;
use std::time::Duration;

use ferry_client::{
    Attempt, Client, Error, Event, Index, Informer, NamespacedName, Outcome, error, undecoded,
};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, Preconditions};

use crate::context::{Context, Running};
use crate::pods::{by_node, is_deleting, is_finished, mark_disrupted, node_name};
use crate::taints::OUT_OF_SERVICE;

const CONTROLLER: &str = "pod-garbage-collector-controller";
/// A node that is missing may be about to register.
const QUARANTINE: Duration = Duration::from_secs(40);

/// What to do with a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Plan {
    Keep,
    /// Look again: its node may come.
    Wait(Duration),
    /// Ask the server whether the node is really gone, and remove it then.
    RemoveIfNodeGone,
    Remove(&'static str),
}

/// `missing_for` is how long the pod's node has been missing.
fn plan(pod: &Pod, node: Option<&Node>, missing_for: Duration) -> Plan {
    if node_name(pod).is_empty() {
        return if is_deleting(pod) {
            Plan::Remove("PodGC: deleting unscheduled terminating pod")
        } else {
            Plan::Keep
        };
    }
    match node {
        None if missing_for >= QUARANTINE => Plan::RemoveIfNodeGone,
        None => Plan::Wait(QUARANTINE - missing_for),
        Some(node) if is_deleting(pod) && is_out_of_service(node) => {
            Plan::Remove("PodGC: deleting terminating pod on out-of-service node")
        }
        Some(_) => Plan::Keep,
    }
}

fn is_out_of_service(node: &Node) -> bool {
    let ready = node.status.iter().filter_map(|status| status.conditions.as_ref()).flatten();
    let ready = ready.into_iter().any(|condition| condition.type_ == "Ready" && condition.status == "True");
    let mut taints = node.spec.iter().filter_map(|spec| spec.taints.as_ref()).flatten();
    !ready && taints.any(|taint| taint.key == OUT_OF_SERVICE)
}

/// The oldest finished pods beyond the threshold; evicted ones first.
fn surplus(mut finished: Vec<Arc<Pod>>, threshold: usize) -> Vec<Arc<Pod>> {
    let count = finished.len().saturating_sub(threshold);
    if threshold == 0 || count == 0 {
        return Vec::new();
    }
    let evicted =
        |pod: &Pod| pod.status.as_ref().is_some_and(|status| status.reason.as_deref() == Some("Evicted"));
    finished.sort_by_key(|pod| (!evicted(pod), pod.metadata.creation_timestamp.clone(), pod.name_any()));
    finished.truncate(count);
    finished
}

struct Controller {
    client: Client,
    pods: Informer<Pod>,
    by_node: Index<Pod>,
    nodes: Informer<Node>,
    finished: Index<Pod>,
    threshold: usize,
    /// Since when a node is missing.
    missing: parking_lot::Mutex<std::collections::HashMap<String, Timestamp>>,
}

pub fn start(context: &Context) -> Running {
    let builder = context.controller(CONTROLLER);
    let (pods, nodes) = (builder.informer::<Pod>(), builder.informer::<Node>());
    let controller = Arc::new(Controller {
        client: context.client.clone(),
        pods: pods.clone(),
        by_node: by_node(&pods),
        nodes: nodes.clone(),
        finished: pods
            .index("finished", |pod: &Pod| if is_finished(pod) { vec!["yes".into()] } else { vec![] }),
        threshold: context.config.terminated_pod_threshold,
        missing: Default::default(),
    });
    builder
        .keys_of::<Pod, _>(controller)
        .watches(&nodes, Controller::node_changed)
        .watches(&pods, |_, event| if pod_matters(event) { vec![event.key()] } else { vec![] })
        .run(Controller::reconcile)
}

fn pod_matters(event: &Event<Pod>) -> bool {
    let seen = |pod: &Pod| (node_name(pod).to_owned(), is_deleting(pod), is_finished(pod));
    !event.is_deleted() && event.old().is_none_or(|old| seen(old) != seen(event.object()))
}

impl Controller {
    fn node_changed(&self, event: &Event<Node>) -> Vec<NamespacedName> {
        let node = event.object();
        let tainted = event.old().is_some_and(|old| is_out_of_service(old) != is_out_of_service(node));
        if !event.is_deleted() && !tainted {
            return Vec::new();
        }
        self.by_node.get(&event.key().name).iter().map(|pod| NamespacedName::of(&**pod)).collect()
    }

    async fn reconcile(self: Arc<Self>, key: NamespacedName) -> Result<Outcome, Error> {
        let Some(pod) = self.pods.get(&key) else { return Ok(Outcome::Done) };
        if is_finished(&pod) {
            for old in surplus(self.finished.get("yes"), self.threshold) {
                self.remove(&old, None).await?;
            }
        }
        let node = self.nodes.get(&NamespacedName::cluster(node_name(&pod)));
        match plan(&pod, node.as_deref(), self.missing_for(node_name(&pod), node.is_some())) {
            Plan::Keep => {}
            Plan::Wait(time) => return Ok(Outcome::After(time)),
            Plan::Remove(why) => self.remove(&pod, Some(why)).await?,
            Plan::RemoveIfNodeGone => {
                let nodes: Api<Node> = Api::all(self.client.clone());
                if nodes.get_opt(node_name(&pod)).await.attempting("read node of pod")?.is_some() {
                    return Ok(Outcome::After(QUARANTINE));
                }
                self.remove(&pod, Some("PodGC: node no longer exists")).await?;
            }
        }
        Ok(Outcome::Done)
    }

    fn missing_for(&self, node: &str, there: bool) -> Duration {
        let mut missing = self.missing.lock();
        if there || node.is_empty() {
            missing.remove(node);
            return Duration::ZERO;
        }
        let now = Timestamp::now();
        let since = *missing.entry(node.into()).or_insert(now);
        Duration::try_from(now.duration_since(since)).unwrap_or(Duration::ZERO)
    }

    /// Without grace: there is no kubelet to wait for.
    async fn remove(&self, pod: &Pod, why: Option<&str>) -> Result<(), Error> {
        let mut span = ferry_trace::span("pod-gc.remove");
        span.object("pods", pod.metadata.namespace.as_deref().unwrap_or(""), &pod.name_any());
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &pod.namespace().unwrap_or_default());
        let remove = async {
            if let Some(why) = why {
                mark_disrupted(&api, pod, ("DeletionByPodGC", why), true).await?;
            }
            let only_this = Preconditions { uid: pod.uid(), resource_version: None };
            let now = DeleteParams::default().grace_period(0).preconditions(only_this);
            error::ignore_not_found(undecoded::delete(&api, &pod.name_any(), &now).await)
        };
        span.in_scope(remove).await.attempting("remove pod")?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::{NodeCondition, Taint};
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    use super::*;
    use crate::testing::{at, deleting, named, pod};

    #[test]
    fn only_pods_without_a_keeper_are_removed() {
        let node: Node = named("n");
        let mut down: Node = named("n");
        down.spec.get_or_insert_default().taints = Some(vec![Taint {
            key: OUT_OF_SERVICE.into(),
            effect: "NoExecute".into(),
            ..Default::default()
        }]);
        let mut well = down.clone();
        well.status.get_or_insert_default().conditions =
            Some(vec![NodeCondition { type_: "Ready".into(), status: "True".into(), ..Default::default() }]);
        let running = pod("a", "n", "Running", None);
        let waiting = pod("b", "", "Pending", None);
        let check = |pod: &Pod, node: Option<&Node>, missing: u64, expected: Plan| {
            let found = plan(pod, node, Duration::from_secs(missing));
            let same = std::mem::discriminant(&found) == std::mem::discriminant(&expected);
            assert!(same, "{found:?} is not like {expected:?}");
        };
        check(&running, Some(&node), 0, Plan::Keep);
        check(&running, None, 10, Plan::Wait(Duration::ZERO));
        check(&running, None, 40, Plan::RemoveIfNodeGone);
        check(&waiting, None, 100, Plan::Keep);
        check(&deleting(waiting.clone()), None, 0, Plan::Remove(""));
        check(&deleting(running.clone()), Some(&node), 0, Plan::Keep);
        check(&deleting(running.clone()), Some(&down), 0, Plan::Remove(""));
        check(&deleting(running.clone()), Some(&well), 0, Plan::Keep);
        check(&running, Some(&down), 0, Plan::Keep);
    }

    #[test]
    fn the_oldest_finished_pods_go_first_and_evicted_ones_before_them() {
        let finished: Vec<Arc<Pod>> = (0..4)
            .map(|index| {
                let mut pod = pod(&format!("pod-{index}"), "n", "Failed", None);
                pod.metadata.creation_timestamp = Some(Time(at(index)));
                if index == 3 {
                    pod.status.as_mut().unwrap().reason = Some("Evicted".into());
                }
                Arc::new(pod)
            })
            .collect();
        let names = |threshold| -> Vec<String> {
            surplus(finished.clone(), threshold).iter().map(|pod| pod.name_any()).collect()
        };
        assert_eq!(names(2), ["pod-3", "pod-0"]);
        assert!(names(4).is_empty() && names(0).is_empty());
    }
}
