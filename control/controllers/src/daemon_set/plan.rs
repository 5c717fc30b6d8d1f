//! What a DaemonSet does next on each node.

use std::collections::HashMap;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{DaemonSet, DaemonSetStatus};
use k8s_openapi::api::core::v1::{
    Affinity, Node, NodeAffinity, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, Pod, Toleration,
};
use kube::ResourceExt;

use crate::deployment::share;
use crate::node_affinity;
use crate::ownership::controller_ref;
use crate::pods::{counted, from_template, is_available, is_deleting, is_ready, node_name, phase};
use crate::taints::{NO_EXECUTE, NO_SCHEDULE, tolerates};
use crate::template_hash::CONTROLLER_REVISION_HASH;

const TEMPLATE_GENERATION: &str = "deprecated.daemonset.template.generation";

/// What every daemon pod tolerates, so that it is there before the node is well and stays when
/// it is not.
const TOLERATED: [(&str, &str); 6] = [
    ("node.kubernetes.io/not-ready", NO_EXECUTE),
    ("node.kubernetes.io/unreachable", NO_EXECUTE),
    ("node.kubernetes.io/disk-pressure", NO_SCHEDULE),
    ("node.kubernetes.io/memory-pressure", NO_SCHEDULE),
    ("node.kubernetes.io/pid-pressure", NO_SCHEDULE),
    ("node.kubernetes.io/unschedulable", NO_SCHEDULE),
];

#[derive(Debug, Default, PartialEq)]
pub struct Plan {
    /// Nodes that get a pod.
    pub create: Vec<String>,
    pub delete: Vec<Arc<Pod>>,
    /// Pods among `delete` that ended by themselves, which users are told.
    pub ended: Vec<Arc<Pod>>,
}

/// The node a daemon pod is, or will be, on.
pub fn target_node(pod: &Pod) -> String {
    let bound = node_name(pod);
    if !bound.is_empty() {
        return bound.into();
    }
    let affinity = pod
        .spec
        .as_ref()
        .and_then(|spec| spec.affinity.as_ref())
        .and_then(|affinity| affinity.node_affinity.as_ref());
    let required =
        affinity.and_then(|affinity| affinity.required_during_scheduling_ignored_during_execution.as_ref());
    let terms = required.into_iter().flat_map(|required| &required.node_selector_terms);
    let mut fields = terms.flat_map(|term| term.match_fields.iter().flatten());
    let name = fields.find(|field| field.key == "metadata.name" && field.operator == "In");
    name.and_then(|field| field.values.as_ref()?.first().cloned()).unwrap_or_default()
}

pub fn by_node(pods: &[Arc<Pod>]) -> HashMap<String, Vec<Arc<Pod>>> {
    let mut map: HashMap<String, Vec<Arc<Pod>>> = HashMap::new();
    for pod in pods {
        map.entry(target_node(pod)).or_default().push(pod.clone());
    }
    map
}

/// Should a pod be started on the node, and may one that is there stay?
fn wanted_on(set: &DaemonSet, node: &Node) -> (bool, bool) {
    let pod = make_pod(set, &node.name_any(), "");
    let spec = pod.spec.unwrap_or_default();
    let template = set.spec.as_ref().and_then(|spec| spec.template.spec.clone()).unwrap_or_default();
    let named = template.node_name.as_ref().is_none_or(|name| *name == node.name_any());
    if !named || !node_affinity::fits(&template, node) {
        return (false, false);
    }
    let tolerations = spec.tolerations.unwrap_or_default();
    let stands = |effect: &str| {
        let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_ref()).into_iter().flatten();
        let mut relevant = taints.into_iter().filter(|taint| taint.effect == effect);
        relevant.all(|taint| tolerations.iter().any(|toleration| tolerates(toleration, taint)))
    };
    (stands(NO_SCHEDULE) && stands(NO_EXECUTE), stands(NO_EXECUTE))
}

fn is_of(pod: &Pod, hash: &str) -> bool {
    pod.labels().get(CONTROLLER_REVISION_HASH).is_some_and(|own| own == hash)
}

/// Pods that are missing or too many. The update of old pods is a step of its own.
pub fn manage(
    set: &DaemonSet,
    nodes: &[Arc<Node>],
    pods: &HashMap<String, Vec<Arc<Pod>>>,
    hash: &str,
) -> Plan {
    let mut plan = Plan::default();
    let surges = bounds(set, nodes.len() as i32).0 > 0;
    for node in nodes {
        let name = node.name_any();
        let here = pods.get(&name).map(Vec::as_slice).unwrap_or_default();
        let (start, stay) = wanted_on(set, node);
        if !stay {
            plan.delete.extend(here.iter().filter(|pod| !is_deleting(pod)).cloned());
            continue;
        }
        let (ended, mut running): (Vec<&Arc<Pod>>, Vec<&Arc<Pod>>) = here
            .iter()
            .filter(|pod| !is_deleting(pod))
            .partition(|pod| matches!(phase(pod), "Failed" | "Succeeded"));
        for pod in ended {
            plan.delete.push(pod.clone());
            plan.ended.push(pod.clone());
        }
        running.sort_by_key(|pod| (pod.metadata.creation_timestamp.clone(), pod.name_any()));
        if here.is_empty() && start {
            plan.create.push(name);
        } else if surges {
            // One old and one new may be side by side, for a while.
            for new in [true, false] {
                let mut same = running.iter().filter(|pod| is_of(pod, hash) == new);
                same.next();
                plan.delete.extend(same.map(|pod| (*pod).clone()));
            }
        } else {
            plan.delete.extend(running.iter().skip(1).map(|pod| (*pod).clone()));
        }
    }
    // Pods of nodes that are gone are the pod collector's.
    plan
}

/// How many nodes may have two pods, and how many none, during an update.
fn bounds(set: &DaemonSet, nodes: i32) -> (i32, i32) {
    let strategy = set.spec.as_ref().and_then(|spec| spec.update_strategy.as_ref());
    let rolling = strategy.and_then(|strategy| strategy.rolling_update.clone()).unwrap_or_default();
    let surge = share(rolling.max_surge.as_ref(), nodes, true);
    let unavailable = share(rolling.max_unavailable.as_ref(), nodes, true);
    if surge == 0 && unavailable == 0 { (0, 1) } else { (surge, unavailable) }
}

/// One step of a rolling update.
pub fn update(
    set: &DaemonSet,
    nodes: &[Arc<Node>],
    pods: &HashMap<String, Vec<Arc<Pod>>>,
    hash: &str,
    now: Timestamp,
) -> Plan {
    let strategy = set.spec.as_ref().and_then(|spec| spec.update_strategy.as_ref());
    if strategy.and_then(|strategy| strategy.type_.as_deref()) == Some("OnDelete") {
        return Plan::default();
    }
    let wanted: Vec<&Arc<Node>> = nodes.iter().filter(|node| wanted_on(set, node).0).collect();
    let (surge, unavailable) = bounds(set, wanted.len() as i32);
    let min_ready = set.spec.as_ref().and_then(|spec| spec.min_ready_seconds).unwrap_or(0);
    let available = |pod: &Pod| is_available(pod, min_ready, now) && !is_deleting(pod);
    let mut plan = Plan::default();
    let (mut surging, mut missing) = (0, 0);
    let (mut to_surge, mut to_remove) = (Vec::new(), Vec::new());
    for node in wanted {
        let name = node.name_any();
        let here = pods.get(&name).map(Vec::as_slice).unwrap_or_default();
        let new = here.iter().find(|pod| is_of(pod, hash) && !is_deleting(pod));
        let old = here.iter().find(|pod| !is_of(pod, hash) && !is_deleting(pod));
        let served = new.is_some_and(|pod| available(pod)) || old.is_some_and(|pod| available(pod));
        if !served {
            missing += 1;
        }
        match (old, new) {
            (None, _) => {}
            // What does not serve can go at once: it costs nothing.
            (Some(old), None) if !available(old) => plan.delete.push(old.clone()),
            (Some(old), None) if surge == 0 => to_remove.push(old.clone()),
            (Some(_), None) => to_surge.push(name),
            (Some(old), Some(new)) => {
                surging += 1;
                if available(new) || !available(old) {
                    plan.delete.push(old.clone());
                }
            }
        }
    }
    let room = (unavailable - missing).max(0) as usize;
    plan.delete.extend(to_remove.into_iter().take(room));
    plan.create.extend(to_surge.into_iter().take((surge - surging).max(0) as usize));
    plan
}

pub fn status(
    set: &DaemonSet,
    nodes: &[Arc<Node>],
    pods: &HashMap<String, Vec<Arc<Pod>>>,
    hash: &str,
    now: Timestamp,
) -> DaemonSetStatus {
    let min_ready = set.spec.as_ref().and_then(|spec| spec.min_ready_seconds).unwrap_or(0);
    let mut status = DaemonSetStatus {
        observed_generation: set.metadata.generation,
        collision_count: set.status.as_ref().and_then(|status| status.collision_count),
        conditions: set.status.as_ref().and_then(|status| status.conditions.clone()),
        ..Default::default()
    };
    let (mut updated, mut available) = (0, 0);
    for node in nodes {
        let here = pods.get(&node.name_any()).map(Vec::as_slice).unwrap_or_default();
        if !wanted_on(set, node).0 {
            status.number_misscheduled += i32::from(!here.is_empty());
            continue;
        }
        status.desired_number_scheduled += 1;
        status.current_number_scheduled += i32::from(!here.is_empty());
        status.number_ready += i32::from(here.iter().any(|pod| is_ready(pod) && !is_deleting(pod)));
        available += i32::from(here.iter().any(|pod| is_available(pod, min_ready, now) && !is_deleting(pod)));
        updated += i32::from(here.iter().any(|pod| is_of(pod, hash)));
    }
    status.updated_number_scheduled = counted(updated);
    status.number_available = counted(available);
    status.number_unavailable = counted(status.desired_number_scheduled - available);
    status
}

/// The set's pod for one node: bound to it by affinity, so that the scheduler still checks it.
pub fn make_pod(set: &DaemonSet, node: &str, hash: &str) -> Pod {
    let spec = set.spec.clone().unwrap_or_default();
    let mut pod = from_template(
        &spec.template,
        &set.namespace().unwrap_or_default(),
        &set.name_any(),
        controller_ref(set),
    );
    pod.labels_mut().insert(CONTROLLER_REVISION_HASH.into(), hash.into());
    if let Some(generation) = set.annotations().get(TEMPLATE_GENERATION) {
        pod.labels_mut().insert("pod-template-generation".into(), generation.clone());
    }
    let spec = pod.spec.get_or_insert_default();
    let tolerations = spec.tolerations.get_or_insert_default();
    let host_network = spec.host_network == Some(true);
    let network = host_network.then_some(("node.kubernetes.io/network-unavailable", NO_SCHEDULE));
    for (key, effect) in TOLERATED.into_iter().chain(network) {
        let known = tolerations.iter().any(|own| {
            own.key.as_deref() == Some(key)
                && own.effect.as_deref() == Some(effect)
                && own.operator.as_deref() == Some("Exists")
        });
        if !known {
            tolerations.push(Toleration {
                key: Some(key.into()),
                operator: Some("Exists".into()),
                effect: Some(effect.into()),
                ..Default::default()
            });
        }
    }
    let by_name = NodeSelectorRequirement {
        key: "metadata.name".into(),
        operator: "In".into(),
        values: Some(vec![node.into()]),
    };
    let term = NodeSelectorTerm { match_fields: Some(vec![by_name]), match_expressions: None };
    let affinity: &mut Affinity = spec.affinity.get_or_insert_default();
    let node_affinity: &mut NodeAffinity = affinity.node_affinity.get_or_insert_default();
    node_affinity.required_during_scheduling_ignored_during_execution =
        Some(NodeSelector { node_selector_terms: vec![term] });
    pod
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::apps::v1::{DaemonSetUpdateStrategy, RollingUpdateDaemonSet};
    use k8s_openapi::api::core::v1::Taint;
    use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

    use super::*;
    use crate::testing::{at, deleting, labels, named, pod};

    fn set(surge: i32, unavailable: i32) -> DaemonSet {
        let mut set: DaemonSet = named("agent");
        let rolling = RollingUpdateDaemonSet {
            max_surge: Some(IntOrString::Int(surge)),
            max_unavailable: Some(IntOrString::Int(unavailable)),
        };
        set.spec.get_or_insert_default().update_strategy = Some(DaemonSetUpdateStrategy {
            type_: Some("RollingUpdate".into()),
            rolling_update: Some(rolling),
        });
        set
    }

    fn nodes(count: usize) -> Vec<Arc<Node>> {
        (0..count).map(|index| Arc::new(named(&format!("n{index}")))).collect()
    }

    fn on(node: &str, name: &str, hash: &str, ready: bool) -> Arc<Pod> {
        let mut pod = pod(name, node, "Running", ready.then_some(0));
        pod.metadata.labels = Some(labels(&[(CONTROLLER_REVISION_HASH, hash)]));
        Arc::new(pod)
    }

    fn names(pods: &[Arc<Pod>]) -> Vec<String> {
        pods.iter().map(|pod| pod.name_any()).collect()
    }

    #[test]
    fn every_node_has_one_pod() {
        let pods = by_node(&[on("n0", "a", "h", true), on("n0", "b", "h", true)]);
        let plan = manage(&set(0, 1), &nodes(2), &pods, "h");
        assert_eq!((plan.create, names(&plan.delete)), (vec!["n1".to_string()], vec!["b".to_string()]));
    }

    #[test]
    fn a_pod_that_is_not_scheduled_yet_counts_for_its_node() {
        let mut waiting = make_pod(&set(0, 1), "n0", "h");
        waiting.metadata.name = Some("w".into());
        let plan = manage(&set(0, 1), &nodes(1), &by_node(&[Arc::new(waiting)]), "h");
        assert_eq!(plan, Plan::default());
    }

    #[test]
    fn pods_that_ended_are_replaced_once_they_are_gone() {
        let mut failed = (*on("n0", "a", "h", false)).clone();
        failed.status.as_mut().unwrap().phase = Some("Failed".into());
        let plan = manage(&set(0, 1), &nodes(1), &by_node(&[Arc::new(failed)]), "h");
        assert_eq!((plan.create.len(), plan.ended.len(), plan.delete.len()), (0, 1, 1));
        let leaving = Arc::new(deleting((*on("n0", "a", "h", true)).clone()));
        assert_eq!(manage(&set(0, 1), &nodes(1), &by_node(&[leaving]), "h"), Plan::default());
    }

    #[test]
    fn taints_and_selectors_keep_pods_away_or_drive_them_out() {
        let check = |effect: &str, key: &str, there: bool, create: usize, delete: usize| {
            let mut node: Node = named("n0");
            node.spec.get_or_insert_default().taints =
                Some(vec![Taint { key: key.into(), effect: effect.into(), ..Default::default() }]);
            let pods = if there { by_node(&[on("n0", "a", "h", true)]) } else { HashMap::new() };
            let plan = manage(&set(0, 1), &[Arc::new(node)], &pods, "h");
            assert_eq!((plan.create.len(), plan.delete.len()), (create, delete), "{key}:{effect} {there}");
        };
        check("NoSchedule", "mine", false, 0, 0);
        check("NoSchedule", "mine", true, 0, 0);
        check("NoExecute", "mine", true, 0, 1);
        check("NoSchedule", "node.kubernetes.io/unschedulable", false, 1, 0);
        check("NoExecute", "node.kubernetes.io/not-ready", true, 0, 0);
        let mut picky = set(0, 1);
        picky.spec.as_mut().unwrap().template.spec.get_or_insert_default().node_selector =
            Some(labels(&[("gpu", "yes")]));
        assert!(manage(&picky, &nodes(1), &HashMap::new(), "h").create.is_empty());
    }

    #[test]
    fn an_update_replaces_what_does_not_serve_and_as_many_more_as_may_be_missing() {
        let all: Vec<Arc<Pod>> =
            (0..4).map(|index| on(&format!("n{index}"), &format!("p{index}"), "old", index != 0)).collect();
        let plan = update(&set(0, 2), &nodes(4), &by_node(&all), "new", at(60));
        assert_eq!(names(&plan.delete), ["p0", "p1"]);
        let done: Vec<Arc<Pod>> = (0..4).map(|index| on(&format!("n{index}"), "p", "new", true)).collect();
        assert_eq!(update(&set(0, 2), &nodes(4), &by_node(&done), "new", at(60)), Plan::default());
    }

    #[test]
    fn a_surge_starts_the_new_before_the_old_goes() {
        let old: Vec<Arc<Pod>> =
            (0..3).map(|index| on(&format!("n{index}"), &format!("old{index}"), "old", true)).collect();
        let first = update(&set(1, 0), &nodes(3), &by_node(&old), "new", at(60));
        assert_eq!((first.create.clone(), first.delete.len()), (vec!["n0".to_string()], 0));
        let mut both = old.clone();
        both.push(on("n0", "new0", "new", false));
        assert_eq!(update(&set(1, 0), &nodes(3), &by_node(&both), "new", at(60)), Plan::default());
        both.pop();
        both.push(on("n0", "new0", "new", true));
        let next = update(&set(1, 0), &nodes(3), &by_node(&both), "new", at(60));
        assert_eq!(names(&next.delete), ["old0"]);
        assert!(manage(&set(1, 0), &nodes(3), &by_node(&both), "new").delete.is_empty());
    }

    #[test]
    fn status_counts_nodes() {
        let pods = by_node(&[on("n0", "a", "h", true), on("n1", "b", "old", false)]);
        let status = status(&set(0, 1), &nodes(3), &pods, "h", at(60));
        assert_eq!(
            (
                status.desired_number_scheduled,
                status.current_number_scheduled,
                status.number_ready,
                status.updated_number_scheduled
            ),
            (3, 2, 1, Some(1))
        );
        assert_eq!((status.number_available, status.number_unavailable), (Some(1), Some(2)));
    }
}
