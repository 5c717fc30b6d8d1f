//! Watches over nodes: one that falls silent is marked, tainted, and its pods are told apart
//! from healthy ones. Who leaves a tainted node is the taint eviction's matter.
//!
//! Silence is judged by our own clock, from when a heartbeat (the node's Lease, or its status)
//! was seen to change. Nothing is polled: a node is looked at when it changes and when its
//! time is up.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use ferry_client::{
    Attempt, Client, Error, Event, EventType, Index, Informer, NamespacedName, Outcome, Recorder, Selection,
    error,
};
use futures::FutureExt;
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, NodeCondition, Pod, Taint};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;
use kube::api::{Api, Patch, PatchParams, PostParams};
use parking_lot::Mutex;
use serde_json::json;
use tokio::time::Instant;

use crate::config::Config;
use crate::context::{Context, Running};
use crate::metrics::{self, OF_INFORMERS};
use crate::pods::{by_node, is_ready};
use crate::taints::{NO_EXECUTE, NO_SCHEDULE, NOT_READY, UNREACHABLE, UNSCHEDULABLE};

const CONTROLLER: &str = "node-lifecycle-controller";
const LEASES: &str = "kube-node-lease";

/// Condition, status, and the taint that says so.
const CONDITION_TAINTS: [(&str, &str, &str); 6] = [
    ("Ready", "False", NOT_READY),
    ("Ready", "Unknown", UNREACHABLE),
    ("MemoryPressure", "True", "node.kubernetes.io/memory-pressure"),
    ("DiskPressure", "True", "node.kubernetes.io/disk-pressure"),
    ("PIDPressure", "True", "node.kubernetes.io/pid-pressure"),
    ("NetworkUnavailable", "True", "node.kubernetes.io/network-unavailable"),
];

/// What a silent node can no longer vouch for.
const REPORTED_BY_KUBELET: [&str; 4] = ["Ready", "MemoryPressure", "DiskPressure", "PIDPressure"];

fn condition<'a>(node: &'a Node, kind: &str) -> Option<&'a NodeCondition> {
    node.status.as_ref()?.conditions.as_ref()?.iter().find(|condition| condition.type_ == kind)
}

pub fn ready_status(node: &Node) -> &str {
    condition(node, "Ready").map_or("Unknown", |ready| ready.status.as_str())
}

/// How long a node may be silent; one that has never spoken gets longer.
fn patience(node: &Node, config: &Config) -> Duration {
    match condition(node, "Ready") {
        Some(_) => config.node_monitor_grace_period,
        None => config.node_startup_grace_period,
    }
}

/// The conditions of a node that has been silent for too long; None if they say so already.
fn silenced(node: &Node, now: Timestamp) -> Option<Vec<NodeCondition>> {
    let mut conditions =
        node.status.as_ref().and_then(|status| status.conditions.clone()).unwrap_or_default();
    let mut changed = false;
    for kind in REPORTED_BY_KUBELET {
        match conditions.iter_mut().find(|condition| condition.type_ == kind) {
            Some(condition) if condition.status != "Unknown" => {
                condition.status = "Unknown".into();
                condition.reason = Some("NodeStatusUnknown".into());
                condition.message = Some("Kubelet stopped posting node status.".into());
                condition.last_transition_time = Some(Time(now));
                changed = true;
            }
            Some(_) => {}
            None => {
                conditions.push(NodeCondition {
                    type_: kind.into(),
                    status: "Unknown".into(),
                    reason: Some("NodeStatusNeverUpdated".into()),
                    message: Some("Kubelet never posted node status.".into()),
                    last_heartbeat_time: node.metadata.creation_timestamp.clone(),
                    last_transition_time: Some(Time(now)),
                });
                changed = true;
            }
        }
    }
    changed.then_some(conditions)
}

/// The taints a node should have; None if it has them. Those of others stay. `evict` tells
/// whether a taint that removes pods may be added now.
fn taints(node: &Node, evict: bool, now: Timestamp) -> Option<Vec<Taint>> {
    let spec = node.spec.clone().unwrap_or_default();
    let current = spec.taints.unwrap_or_default();
    let holds =
        |kind: &str, status: &str| condition(node, kind).is_some_and(|condition| condition.status == status);
    let mut wanted: Vec<(&str, &str)> = Vec::new();
    for (kind, status, key) in CONDITION_TAINTS {
        if holds(kind, status) {
            wanted.push((key, NO_SCHEDULE));
            let had = current.iter().any(|taint| taint.key == key && taint.effect == NO_EXECUTE);
            if kind == "Ready" && (evict || had) {
                wanted.push((key, NO_EXECUTE));
            }
        }
    }
    if spec.unschedulable == Some(true) {
        wanted.push((UNSCHEDULABLE, NO_SCHEDULE));
    }
    let ours = |taint: &Taint| {
        let by_condition = CONDITION_TAINTS.iter().any(|(_, _, key)| *key == taint.key);
        match taint.effect.as_str() {
            NO_SCHEDULE => by_condition || taint.key == UNSCHEDULABLE,
            NO_EXECUTE => taint.key == NOT_READY || taint.key == UNREACHABLE,
            _ => false,
        }
    };
    let mut next: Vec<Taint> = current
        .iter()
        .filter(|taint| !ours(taint) || wanted.contains(&(taint.key.as_str(), taint.effect.as_str())))
        .cloned()
        .collect();
    for (key, effect) in wanted {
        if !next.iter().any(|taint| taint.key == key && taint.effect == effect) {
            next.push(Taint {
                key: key.into(),
                effect: effect.into(),
                time_added: Some(Time(now)),
                value: None,
            });
        }
    }
    (next != current).then_some(next)
}

/// How nodes may be emptied: not all at once, and not at all when it looks as if it were us
/// who lost the network.
#[derive(Clone, Copy, Debug, PartialEq)]
enum EvictionRate {
    /// Every node everywhere is silent: the fault is more likely here.
    Stop,
    PerSecond(f64),
}

const RATE: f64 = 0.1;
const CAUTIOUS_RATE: f64 = 0.01;
const LARGE_ZONE: usize = 50;

/// `zone` and `all` are (ready, total).
fn pace(zone: (usize, usize), all: (usize, usize)) -> EvictionRate {
    let (ready, total) = zone;
    let silent = total - ready;
    if all.0 == 0 {
        EvictionRate::Stop
    } else if ready > 0 && silent > 2 && silent as f64 / total as f64 >= 0.55 {
        if total > LARGE_ZONE { EvictionRate::PerSecond(CAUTIOUS_RATE) } else { EvictionRate::Stop }
    } else {
        EvictionRate::PerSecond(RATE)
    }
}

pub fn zone(node: &Node) -> String {
    let label = |key: &str| node.labels().get(key).cloned().unwrap_or_default();
    format!("{}/{}", label("topology.kubernetes.io/region"), label("topology.kubernetes.io/zone"))
}

struct Controller {
    client: Client,
    config: Arc<Config>,
    nodes: Informer<Node>,
    pods: Index<Pod>,
    /// When each node last renewed its lease or its status, by our clock.
    last_heartbeat: Mutex<HashMap<String, Instant>>,
    /// When the next node of a zone may be emptied.
    next_eviction: Mutex<HashMap<String, Instant>>,
    recorder: Recorder,
}

pub fn start(context: &Context) -> Running {
    let builder = context.controller(CONTROLLER);
    let nodes = builder.informer::<Node>();
    let leases = builder.in_namespace::<Lease>(LEASES, Selection::default());
    let controller = Arc::new(Controller {
        client: context.client.clone(),
        config: context.config.clone(),
        nodes: nodes.clone(),
        pods: by_node(&builder.informer()),
        last_heartbeat: Mutex::default(),
        next_eviction: Mutex::default(),
        recorder: context.recorder(CONTROLLER),
    });
    OF_INFORMERS.follow_nodes(Some(nodes.clone()));
    let work = builder
        .of(&nodes, controller)
        .watches(&leases, |it, event| {
            if !event.is_deleted() {
                it.last_heartbeat.lock().insert(event.key().name, Instant::now());
            }
            Vec::new()
        })
        .watches(&nodes, Controller::node_changed)
        .run(Controller::reconcile);
    work.inspect(|()| OF_INFORMERS.follow_nodes(None)).boxed()
}

impl Controller {
    fn node_changed(&self, event: &Event<Node>) -> Vec<NamespacedName> {
        let node = event.object();
        let name = node.name_any();
        let heartbeat =
            |node: &Node| condition(node, "Ready").and_then(|ready| ready.last_heartbeat_time.clone());
        match event {
            Event::Added(_) => {
                self.last_heartbeat.lock().entry(name.clone()).or_insert_with(Instant::now);
                let note = format!("Node {name} event: Registered Node {name} in Controller");
                self.recorder.event(&**node, EventType::Normal, "RegisteredNode", "Register", note);
            }
            Event::Modified { old, new } => {
                if heartbeat(old) != heartbeat(new) {
                    self.last_heartbeat.lock().insert(name, Instant::now());
                }
                if ready_status(old) != ready_status(new) {
                    // Whether nodes may be emptied depends on how many others are well.
                    return self.nodes.list().iter().map(|node| NamespacedName::of(&**node)).collect();
                }
            }
            Event::Deleted { .. } => {
                self.last_heartbeat.lock().remove(&name);
                let note = format!("Node {name} event: Removing Node {name} from Controller");
                self.recorder.event(&**node, EventType::Normal, "RemovingNode", "Remove", note);
            }
        }
        Vec::new()
    }

    async fn reconcile(self: Arc<Self>, key: NamespacedName) -> Result<Outcome, Error> {
        let Some(node) = self.nodes.get(&key) else { return Ok(Outcome::Done) };
        let silent_for =
            self.last_heartbeat.lock().entry(key.name.clone()).or_insert_with(Instant::now).elapsed();
        let patience = patience(&node, &self.config);
        let now = Timestamp::now();
        let mut node = (*node).clone();
        if silent_for > patience
            && let Some(conditions) = silenced(&node, now)
        {
            node = self.silence(node, conditions).await?;
        }
        if ready_status(&node) != "True" {
            self.mark_pods(&node).await?;
        }
        let mut again = patience.checked_sub(silent_for).map(|left| left + Duration::from_millis(100));
        let evict = ready_status(&node) != "True" && self.needs_eviction_taint(&node) && {
            match self.may_evict(&node) {
                Ok(()) => true,
                Err(wait) => {
                    again = Some(again.map_or(wait, |again| again.min(wait)));
                    false
                }
            }
        };
        if let Some(taints) = taints(&node, evict, now) {
            let patch =
                json!({"metadata": {"resourceVersion": node.resource_version()}, "spec": {"taints": taints}});
            let api: Api<Node> = Api::all(self.client.clone());
            let patched = api.patch(&key.name, &PatchParams::default(), &Patch::Merge(patch)).await;
            error::ignore_not_found(patched).attempting("taint node")?;
            if evict {
                metrics::node_evicted(&zone(&node));
            }
        }
        // Silent and marked: only a change, or a lease, brings it back.
        Ok(again.map_or(Outcome::After(self.config.node_monitor_period * 10), Outcome::After))
    }

    async fn silence(&self, mut node: Node, conditions: Vec<NodeCondition>) -> Result<Node, Error> {
        node.status.get_or_insert_default().conditions = Some(conditions);
        let api: Api<Node> = Api::all(self.client.clone());
        let name = node.name_any();
        let written =
            api.replace_status(&name, &PostParams::default(), &node).await.attempting("mark node silent")?;
        let note = format!("Node {name} status is now: NodeNotReady");
        self.recorder.event(&written, EventType::Normal, "NodeNotReady", "Mark", note);
        Ok(written)
    }

    /// Pods of a node that is not well do not get traffic, whatever they said last.
    async fn mark_pods(&self, node: &Node) -> Result<(), Error> {
        for pod in self.pods.get(&node.name_any()).iter().filter(|pod| is_ready(pod)) {
            let namespace = pod.namespace().unwrap_or_default();
            let api: Api<Pod> = Api::namespaced(self.client.clone(), &namespace);
            let unready =
                json!({"type": "Ready", "status": "False", "lastTransitionTime": Time(Timestamp::now())});
            let patch = json!({"metadata": {"uid": pod.uid()}, "status": {"conditions": [unready]}});
            let patched =
                api.patch_status(&pod.name_any(), &PatchParams::default(), &Patch::Strategic(patch)).await;
            error::ignore_not_found(patched).attempting("mark pod not ready")?;
            self.recorder.event(&**pod, EventType::Warning, "NodeNotReady", "Mark", "Node is not ready");
        }
        Ok(())
    }

    fn needs_eviction_taint(&self, node: &Node) -> bool {
        let key = if ready_status(node) == "False" { NOT_READY } else { UNREACHABLE };
        let current = node.spec.as_ref().and_then(|spec| spec.taints.as_ref()).into_iter().flatten();
        !current.into_iter().any(|taint| taint.key == key && taint.effect == NO_EXECUTE)
    }

    /// Takes its zone's turn; otherwise how long until there may be one.
    fn may_evict(&self, node: &Node) -> Result<(), Duration> {
        let here = zone(node);
        let nodes = self.nodes.list();
        let count = |wanted: &dyn Fn(&Node) -> bool| {
            let chosen = nodes.iter().filter(|node| wanted(node));
            chosen.fold((0, 0), |(ready, total), node| {
                (ready + usize::from(ready_status(node) == "True"), total + 1)
            })
        };
        let rate = match pace(count(&|node| zone(node) == here), count(&|_| true)) {
            EvictionRate::Stop => return Err(self.config.node_monitor_period),
            EvictionRate::PerSecond(rate) => rate,
        };
        let mut turns = self.next_eviction.lock();
        let now = Instant::now();
        let next = turns.entry(here).or_insert(now);
        if *next > now {
            return Err(*next - now);
        }
        *next = now + Duration::from_secs_f64(1.0 / rate);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{at, named};

    fn node(conditions: &[(&str, &str)]) -> Node {
        let mut node: Node = named("n");
        let conditions = conditions.iter().map(|(kind, status)| NodeCondition {
            type_: kind.to_string(),
            status: status.to_string(),
            ..Default::default()
        });
        node.status.get_or_insert_default().conditions = Some(conditions.collect());
        node
    }

    fn tainted(node: &Node, evict: bool) -> Vec<String> {
        let taints = taints(node, evict, at(0))
            .unwrap_or_else(|| node.spec.clone().unwrap_or_default().taints.unwrap_or_default());
        taints
            .iter()
            .map(|taint| format!("{}:{}", taint.key.trim_start_matches("node.kubernetes.io/"), taint.effect))
            .collect()
    }

    #[test]
    fn a_silent_node_vouches_for_nothing() {
        let conditions =
            silenced(&node(&[("Ready", "True"), ("MemoryPressure", "False"), ("Other", "True")]), at(0))
                .unwrap();
        let status =
            |kind: &str| conditions.iter().find(|condition| condition.type_ == kind).unwrap().clone();
        assert_eq!(
            (status("Ready").status.as_str(), status("Ready").reason.as_deref()),
            ("Unknown", Some("NodeStatusUnknown"))
        );
        assert_eq!(status("DiskPressure").reason.as_deref(), Some("NodeStatusNeverUpdated"));
        assert_eq!(status("Other").status, "True");
        let mut silent = node(&[]);
        silent.status.as_mut().unwrap().conditions = Some(conditions);
        assert_eq!(silenced(&silent, at(9)), None);
    }

    #[test]
    fn conditions_become_taints_and_go_with_them() {
        let check = |conditions: &[(&str, &str)], evict: bool, expected: &[&str]| {
            assert_eq!(tainted(&node(conditions), evict), expected, "{conditions:?}");
        };
        check(&[("Ready", "True")], true, &[]);
        check(&[("Ready", "False")], false, &["not-ready:NoSchedule"]);
        check(&[("Ready", "False")], true, &["not-ready:NoSchedule", "not-ready:NoExecute"]);
        check(&[("Ready", "Unknown")], true, &["unreachable:NoSchedule", "unreachable:NoExecute"]);
        check(&[("Ready", "True"), ("DiskPressure", "True")], true, &["disk-pressure:NoSchedule"]);
        let mut recovered = node(&[("Ready", "True")]);
        let foreign = Taint { key: "mine".into(), effect: NO_EXECUTE.into(), ..Default::default() };
        let unreachable = Taint { key: UNREACHABLE.into(), effect: NO_EXECUTE.into(), ..Default::default() };
        recovered.spec.get_or_insert_default().taints = Some(vec![foreign, unreachable]);
        recovered.spec.get_or_insert_default().unschedulable = Some(true);
        assert_eq!(tainted(&recovered, false), ["mine:NoExecute", "unschedulable:NoSchedule"]);
    }

    #[test]
    fn a_taint_that_removes_pods_stays_while_its_reason_does() {
        let mut down = node(&[("Ready", "Unknown")]);
        down.spec.get_or_insert_default().taints = taints(&down, true, at(0));
        assert_eq!(taints(&down, false, at(9)), None);
    }

    #[test]
    fn nodes_are_emptied_slowly_and_not_when_all_are_silent() {
        assert_eq!(pace((9, 10), (9, 10)), EvictionRate::PerSecond(RATE));
        assert_eq!(pace((0, 1), (0, 1)), EvictionRate::Stop);
        assert_eq!(pace((0, 3), (5, 8)), EvictionRate::PerSecond(RATE));
        assert_eq!(pace((4, 10), (4, 10)), EvictionRate::Stop);
        assert_eq!(pace((40, 100), (40, 100)), EvictionRate::PerSecond(CAUTIOUS_RATE));
    }
}
