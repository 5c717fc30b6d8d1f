//! Removes pods from nodes whose NoExecute taints they do not tolerate, or no longer.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use ferry_client::{
    Attempt, Client, Error, Event, EventType, Index, Informer, NamespacedName, Outcome, Recorder,
};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod, Taint};
use parking_lot::Mutex;

use crate::context::{Context, Running};
use crate::pods::{self, is_deleting, is_finished, node_name};
use crate::taints::{NO_EXECUTE, stays};

const CONTROLLER: &str = "taint-eviction-controller";

/// What to do with a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Plan {
    Stay,
    Wait(Duration),
    Evict,
}

/// `since` is when the pod was first seen under its node's taints.
fn plan(pod: &Pod, taints: &[Taint], since: Timestamp, now: Timestamp) -> Plan {
    let tolerations = pod.spec.as_ref().and_then(|spec| spec.tolerations.as_deref()).unwrap_or_default();
    let mut relevant = taints.iter().filter(|taint| taint.effect == NO_EXECUTE).peekable();
    if relevant.peek().is_none() || is_deleting(pod) || is_finished(pod) {
        return Plan::Stay;
    }
    let Some(time) = stays(tolerations, relevant) else { return Plan::Stay };
    let passed = Duration::try_from(now.duration_since(since)).unwrap_or(Duration::ZERO);
    match time.checked_sub(passed) {
        Some(left) if !left.is_zero() => Plan::Wait(left),
        _ => Plan::Evict,
    }
}

fn no_execute(node: &Node) -> Vec<Taint> {
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_ref()).into_iter().flatten();
    taints.filter(|taint| taint.effect == NO_EXECUTE).cloned().collect()
}

struct Controller {
    client: Client,
    pods: Informer<Pod>,
    by_node: Index<Pod>,
    nodes: Informer<Node>,
    /// Pods that wait for their end, since when, and under which taints.
    waiting: Mutex<HashMap<NamespacedName, (Timestamp, Vec<Taint>)>>,
    recorder: Recorder,
}

pub fn start(context: &Context) -> Running {
    let builder = context.controller(CONTROLLER);
    let (pods, nodes) = (builder.informer::<Pod>(), builder.informer::<Node>());
    let controller = Arc::new(Controller {
        client: context.client.clone(),
        by_node: pods::by_node(&pods),
        pods: pods.clone(),
        nodes: nodes.clone(),
        waiting: Mutex::default(),
        recorder: context.recorder(CONTROLLER),
    });
    builder
        .keys_of::<Pod, _>(controller)
        .watches(&nodes, Controller::node_changed)
        .watches(&pods, |_, event| if pod_matters(event) { vec![event.key()] } else { vec![] })
        .run(Controller::reconcile)
}

fn pod_matters(event: &Event<Pod>) -> bool {
    let seen = |pod: &Pod| pod.spec.as_ref().map(|spec| (spec.node_name.clone(), spec.tolerations.clone()));
    event.is_deleted() || event.old().is_none_or(|old| seen(old) != seen(event.object()))
}

impl Controller {
    fn node_changed(&self, event: &Event<Node>) -> Vec<NamespacedName> {
        let before = event.old().map(|old| no_execute(old)).unwrap_or_default();
        if before == no_execute(event.object()) {
            return Vec::new();
        }
        self.by_node.get(&event.key().name).iter().map(|pod| NamespacedName::of(&**pod)).collect()
    }

    async fn reconcile(self: Arc<Self>, key: NamespacedName) -> Result<Outcome, Error> {
        let pod = self.pods.get(&key).filter(|pod| !node_name(pod).is_empty());
        let Some(pod) = pod else {
            self.waiting.lock().remove(&key);
            return Ok(Outcome::Done);
        };
        let node = self.nodes.get(&NamespacedName::cluster(node_name(&pod)));
        let taints = node.map(|node| no_execute(&node)).unwrap_or_default();
        let now = Timestamp::now();
        let since = self.since(&key, &taints, now);
        match plan(&pod, &taints, since, now) {
            Plan::Stay => {
                if self.waiting.lock().remove(&key).is_some() && !is_deleting(&pod) && taints.is_empty() {
                    let note = format!("Cancelling deletion of Pod {key}");
                    self.recorder.event(&*pod, EventType::Normal, "TaintManagerEviction", "Cancel", note);
                }
                Ok(Outcome::Done)
            }
            Plan::Wait(left) => Ok(Outcome::After(left)),
            Plan::Evict => {
                self.evict(&key, &pod).await?;
                self.waiting.lock().remove(&key);
                Ok(Outcome::Done)
            }
        }
    }

    /// When the clock of the pod's tolerations started; other taints start it anew.
    fn since(&self, key: &NamespacedName, taints: &[Taint], now: Timestamp) -> Timestamp {
        if taints.is_empty() {
            return now;
        }
        let mut waiting = self.waiting.lock();
        match waiting.get(key) {
            Some((since, known)) if known == taints => *since,
            _ => {
                waiting.insert(key.clone(), (now, taints.to_vec()));
                now
            }
        }
    }

    async fn evict(&self, key: &NamespacedName, pod: &Pod) -> Result<(), Error> {
        let mut span = ferry_trace::span("taint-eviction.evict");
        span.object("pods", &key.namespace, &key.name);
        self.recorder.event(
            pod,
            EventType::Normal,
            "TaintManagerEviction",
            "Evict",
            format!("Marking for deletion Pod {key}"),
        );
        let because = ("DeletionByTaintManager", "Taint manager: deleting due to NoExecute taint");
        let evicted = span.in_scope(pods::evict(&self.client, pod, because)).await;
        evicted.attempting("evict pod")
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Toleration;

    use super::*;
    use crate::testing::{at, deleting, pod};

    #[test]
    fn a_pod_stays_as_long_as_it_tolerates() {
        let taint = |effect: &str| Taint { key: "k".into(), effect: effect.into(), ..Default::default() };
        let mut tolerant = pod("a", "n", "Running", None);
        let toleration = |seconds| Toleration {
            operator: Some("Exists".into()),
            toleration_seconds: seconds,
            ..Default::default()
        };
        let check = |pod: &Pod, taints: &[Taint], now: i64, expected: Plan| {
            assert_eq!(plan(pod, taints, at(0), at(now)), expected)
        };
        check(&tolerant, &[], 0, Plan::Stay);
        check(&tolerant, &[taint("NoSchedule")], 0, Plan::Stay);
        check(&tolerant, &[taint(NO_EXECUTE)], 0, Plan::Evict);
        check(&deleting(tolerant.clone()), &[taint(NO_EXECUTE)], 0, Plan::Stay);
        tolerant.spec.as_mut().unwrap().tolerations = Some(vec![toleration(Some(60))]);
        check(&tolerant, &[taint(NO_EXECUTE)], 0, Plan::Wait(Duration::from_secs(60)));
        check(&tolerant, &[taint(NO_EXECUTE)], 59, Plan::Wait(Duration::from_secs(1)));
        check(&tolerant, &[taint(NO_EXECUTE)], 60, Plan::Evict);
        check(&tolerant, &[taint(NO_EXECUTE)], -9, Plan::Wait(Duration::from_secs(60)));
        tolerant.spec.as_mut().unwrap().tolerations = Some(vec![toleration(None)]);
        check(&tolerant, &[taint(NO_EXECUTE)], 1_000_000, Plan::Stay);
    }
}
