//! What a pod's state means to those who count pods.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use ferry_client::informer::Projection;
use ferry_client::{Client, Index, Informer, error, undecoded};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, Pod, PodCondition, PodTemplateSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{OwnerReference, Time};
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, ObjectMeta, Patch, PatchParams, Preconditions};
use serde_json::json;

use crate::ownership::controller_of;

pub fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or("")
}

pub fn is_finished(pod: &Pod) -> bool {
    matches!(phase(pod), "Succeeded" | "Failed")
}

pub fn is_deleting(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_some()
}

/// Running, or on its way to: neither finished nor being deleted.
pub fn is_active(pod: &Pod) -> bool {
    !is_finished(pod) && !is_deleting(pod)
}

pub fn is_terminating(pod: &Pod) -> bool {
    !is_finished(pod) && is_deleting(pod)
}

pub fn condition<'a>(pod: &'a Pod, kind: &str) -> Option<&'a PodCondition> {
    pod.status.as_ref()?.conditions.as_ref()?.iter().find(|condition| condition.type_ == kind)
}

pub fn is_ready(pod: &Pod) -> bool {
    condition(pod, "Ready").is_some_and(|ready| ready.status == "True")
}

/// Since when a ready pod is ready.
pub fn ready_since(pod: &Pod) -> Option<Timestamp> {
    condition(pod, "Ready")
        .filter(|ready| ready.status == "True")?
        .last_transition_time
        .as_ref()
        .map(|time| time.0)
}

/// Ready, and for long enough.
pub fn is_available(pod: &Pod, min_ready_seconds: i32, now: Timestamp) -> bool {
    is_ready(pod) && until_available(pod, min_ready_seconds, now).is_none()
}

/// How long until a ready pod counts as available; None if it does, or is not ready.
pub fn until_available(pod: &Pod, min_ready_seconds: i32, now: Timestamp) -> Option<Duration> {
    if min_ready_seconds <= 0 || !is_ready(pod) {
        return None;
    }
    let enough = Duration::from_secs(min_ready_seconds as u64);
    let Some(since) = ready_since(pod) else { return Some(enough) };
    // A clock that went back must not make a pod wait longer than it would from now.
    let ready_for = Duration::try_from(now.duration_since(since)).unwrap_or(Duration::ZERO);
    enough.checked_sub(ready_for).filter(|left| !left.is_zero())
}

/// A count as the API writes it: nothing for none. Otherwise what the server gives back would
/// look different from what was written, and be written again.
pub fn counted(count: i32) -> Option<i32> {
    (count != 0).then_some(count)
}

pub fn node_name(pod: &Pod) -> &str {
    pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()).unwrap_or("")
}

/// A pod as its owner's template wants it.
pub fn from_template(
    template: &PodTemplateSpec,
    namespace: &str,
    owner_name: &str,
    owner: OwnerReference,
) -> Pod {
    let meta = template.metadata.clone().unwrap_or_default();
    Pod {
        metadata: ObjectMeta {
            generate_name: Some(format!("{owner_name}-")),
            namespace: Some(namespace.into()),
            labels: meta.labels,
            annotations: meta.annotations,
            finalizers: meta.finalizers,
            owner_references: Some(vec![owner]),
            ..Default::default()
        },
        spec: template.spec.clone(),
        status: None,
    }
}

/// Notes on a pod that it is about to be removed and why, so that its owner can tell a
/// disruption from a failure. With `failed`, also that it has ended: nobody else will say so.
pub async fn mark_disrupted(
    pods: &Api<Pod>,
    pod: &Pod,
    (reason, message): (&str, &str),
    failed: bool,
) -> Result<(), kube::Error> {
    let known = condition(pod, "DisruptionTarget").is_some_and(|condition| condition.status == "True");
    let ends = failed && !is_finished(pod);
    if known && !ends {
        return Ok(());
    }
    let mut status = json!({"conditions": [{
        "type": "DisruptionTarget",
        "status": "True",
        "reason": reason,
        "message": message,
        "lastTransitionTime": Time(Timestamp::now()),
    }]});
    if ends {
        status["phase"] = json!("Failed");
    }
    let patch = json!({"metadata": {"uid": pod.metadata.uid}, "status": status});
    let patched = pods.patch_status(&pod.name_any(), &PatchParams::default(), &Patch::Strategic(patch)).await;
    error::ignore_not_found(patched).map(|_| ())
}

/// Marks a pod as disrupted and deletes it, unless another pod of its name has taken its place.
pub async fn evict(client: &Client, pod: &Pod, because: (&str, &str)) -> Result<(), kube::Error> {
    let api: Api<Pod> = Api::namespaced(client.clone(), &pod.namespace().unwrap_or_default());
    mark_disrupted(&api, pod, because, false).await?;
    let only_this = Preconditions { uid: pod.uid(), resource_version: None };
    let parameters = DeleteParams::default().preconditions(only_this);
    error::ignore_not_found(undecoded::delete(&api, &pod.name_any(), &parameters).await).map(|_| ())
}

/// What is read of a pod: of containers the requests that quotas count and the ports that services name, of volumes the
/// claims.
pub static KEPT: Projection = Projection::Except(&[
    ("metadata", Projection::METADATA),
    (
        "spec",
        Projection::Except(&[
            ("containers", CONTAINER),
            ("ephemeralContainers", Projection::None),
            ("initContainers", CONTAINER),
            ("volumes", VOLUME),
        ]),
    ),
    (
        "status",
        Projection::Except(&[
            ("containerStatuses", CONTAINER_STATUS),
            ("ephemeralContainerStatuses", Projection::None),
            ("initContainerStatuses", CONTAINER_STATUS),
        ]),
    ),
]);

const CONTAINER: Projection = Projection::Only(&[
    ("name", Projection::All),
    ("ports", Projection::All),
    ("resources", Projection::All),
    ("restartPolicy", Projection::All),
]);

const VOLUME: Projection = Projection::Only(&[
    ("ephemeral", Projection::All),
    ("name", Projection::All),
    ("persistentVolumeClaim", Projection::All),
]);

const CONTAINER_STATUS: Projection = Projection::Except(&[
    ("containerID", Projection::None),
    ("image", Projection::None),
    ("imageID", Projection::None),
    ("user", Projection::None),
    ("volumeMounts", Projection::None),
]);

/// Takes out of a pod what was read and says nothing to a controller. A container or volume is some three kilobytes as
/// a value however little is in it.
pub fn trim(pod: &mut Pod) {
    pod.metadata.owner_references.iter_mut().for_each(Vec::shrink_to_fit);
    if let Some(spec) = &mut pod.spec {
        trim_containers(&mut spec.containers);
        spec.init_containers.iter_mut().for_each(trim_containers);
        spec.init_containers.take_if(|containers| containers.is_empty());
        if let Some(volumes) = &mut spec.volumes {
            volumes.retain(|volume| volume.persistent_volume_claim.is_some() || volume.ephemeral.is_some());
            volumes.shrink_to_fit();
        }
        spec.volumes.take_if(|volumes| volumes.is_empty());
        spec.tolerations.iter_mut().for_each(Vec::shrink_to_fit);
    }
    if let Some(status) = &mut pod.status {
        status.conditions.iter_mut().for_each(Vec::shrink_to_fit);
        let statuses = [&mut status.container_statuses, &mut status.init_container_statuses];
        statuses.into_iter().flatten().for_each(Vec::shrink_to_fit);
    }
}

fn trim_containers(containers: &mut Vec<Container>) {
    containers.retain(|container| {
        let asks = container.resources.as_ref().is_some_and(|resources| {
            let any = |amounts: &Option<BTreeMap<_, _>>| amounts.as_ref().is_some_and(|all| !all.is_empty());
            any(&resources.requests) || any(&resources.limits)
        });
        asks || container.ports.iter().flatten().any(|port| port.name.is_some())
    });
    containers.shrink_to_fit();
}

/// Index of pods by the uid of their controller, and by `orphan:NAMESPACE` where none has it.
pub fn by_controller(pods: &Informer<Pod>) -> Index<Pod> {
    pods.index("controller", |pod: &Pod| match controller_of(pod) {
        Some(owner) => vec![owner.uid.clone()],
        None => vec![orphans_of(pod.metadata.namespace.as_deref().unwrap_or(""))],
    })
}

pub fn orphans_of(namespace: &str) -> String {
    format!("orphan:{namespace}")
}

/// Index of pods by the node they are on.
pub fn by_node(pods: &Informer<Pod>) -> Index<Pod> {
    pods.index("node", |pod: &Pod| pod.spec.iter().filter_map(|spec| spec.node_name.clone()).collect())
}

/// Orders pods by how little is lost with them: those to delete first come first.
///
/// `crowd` says how many related pods share each node: where several are, one is missed least.
/// Upstream compares pair by pair and by times that are sometimes equal and sometimes only
/// alike, which is no total order; here every pod has one key.
pub fn sort_for_deletion(pods: &mut [Arc<Pod>], crowd: &HashMap<String, usize>, now: Timestamp) {
    pods.sort_by_cached_key(|pod| {
        let stage = match phase(pod) {
            "Pending" | "" => 0,
            "Unknown" => 1,
            _ => 2,
        };
        let shared = crowd.get(node_name(pod)).copied().unwrap_or(0);
        let created = pod.metadata.creation_timestamp.as_ref().map(|time| magnitude(time.0, now));
        (
            (!node_name(pod).is_empty(), stage, is_ready(pod), deletion_cost(pod), Reverse(shared)),
            ready_since(pod).map(|since| magnitude(since, now)),
            Reverse(restarts(pod)),
            created,
            pod.metadata.uid.clone(),
        )
    });
}

/// The power of two of an age: the younger goes first, but ages of one magnitude count as equal
/// and are told apart at random (by uid), so that a scale-down does not empty the newest node.
fn magnitude(since: Timestamp, now: Timestamp) -> i64 {
    match now.duration_since(since).as_nanos() {
        age if age > 0 => i64::from(age.ilog2()),
        _ => -1,
    }
}

/// Users say what a pod is worth to them; what is not a number says nothing.
fn deletion_cost(pod: &Pod) -> i32 {
    let annotations = pod.metadata.annotations.as_ref();
    let cost =
        annotations.and_then(|annotations| annotations.get("controller.kubernetes.io/pod-deletion-cost"));
    cost.and_then(|cost| cost.parse().ok()).unwrap_or(0)
}

fn restarts(pod: &Pod) -> i32 {
    let statuses = pod.status.as_ref().and_then(|status| status.container_statuses.as_ref());
    statuses.into_iter().flatten().map(|container| container.restart_count).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{at, labels, pod};

    fn order(pods: Vec<Pod>) -> Vec<String> {
        let mut pods: Vec<Arc<Pod>> = pods.into_iter().map(Arc::new).collect();
        let mut crowd = HashMap::new();
        for pod in &pods {
            *crowd.entry(node_name(pod).to_string()).or_insert(0) += 1;
        }
        sort_for_deletion(&mut pods, &crowd, at(100_000));
        pods.iter().map(|pod| pod.metadata.name.clone().unwrap()).collect()
    }

    #[test]
    fn scale_down_removes_what_is_missed_least_first() {
        let mut cheap = pod("cheap", "n1", "Running", Some(0));
        cheap.metadata.annotations = Some(labels(&[("controller.kubernetes.io/pod-deletion-cost", "-5")]));
        assert_eq!(
            order(vec![
                pod("ready-alone", "n2", "Running", Some(0)),
                pod("ready-shared", "n1", "Running", Some(0)),
                cheap,
                pod("unready", "n2x", "Running", None),
                pod("unknown", "n3", "Unknown", None),
                pod("pending", "n4", "Pending", None),
                pod("unassigned", "", "Pending", None),
            ]),
            ["unassigned", "pending", "unknown", "unready", "cheap", "ready-shared", "ready-alone"]
        );
    }

    #[test]
    fn among_equals_the_younger_goes_first_by_powers_of_two() {
        assert_eq!(
            order(vec![
                pod("a-old", "n1", "Running", Some(0)),
                pod("b-young", "n2", "Running", Some(99_000)),
                pod("c-old", "n3", "Running", Some(1_000)),
            ]),
            ["b-young", "a-old", "c-old"]
        );
    }

    #[test]
    fn any_mix_of_pods_has_an_order() {
        // Times that are equal, alike and different, as a burst of creations makes them.
        let pods: Vec<Pod> = (0..200)
            .map(|index| {
                let mut pod = pod(&format!("pod-{}", (index * 7919) % 200), "", "Pending", None);
                pod.metadata.creation_timestamp = Some(Time(at(99_990 - (index * 31) % 5)));
                pod
            })
            .collect();
        let sorted = order(pods.clone());
        assert_eq!(sorted, order(pods.into_iter().rev().collect()));
    }

    #[test]
    fn of_a_pod_only_what_controllers_read_is_kept() {
        let whole = json!({
            "metadata": {"name": "a", "labels": {"app": "web"}},
            "spec": {
                "nodeName": "n",
                "containers": [
                    {"name": "says-nothing", "image": "x", "env": [{"name": "A", "value": "b"}]},
                    {"name": "asks", "image": "x", "resources": {"requests": {"cpu": "1"}}},
                    {"name": "listens", "command": ["x"], "ports": [{"name": "http", "containerPort": 80}]},
                ],
                "initContainers": [{"name": "says-nothing", "image": "x"}],
                "volumes": [
                    {"name": "token", "projected": {"sources": []}},
                    {"name": "data", "persistentVolumeClaim": {"claimName": "data"}},
                ],
            },
            "status": {"phase": "Running", "containerStatuses": [{"name": "asks", "image": "x", "imageID": "y",
                "restartCount": 3, "ready": true, "state": {"terminated": {"exitCode": 4}}}]},
        });
        let mut text = whole.to_string().into_bytes();
        KEPT.cut(&mut text);
        let mut pod: Pod = serde_json::from_slice(&text).unwrap();
        trim(&mut pod);
        let kept = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "a", "labels": {"app": "web"}},
            "spec": {
                "nodeName": "n",
                "containers": [
                    {"name": "asks", "resources": {"requests": {"cpu": "1"}}},
                    {"name": "listens", "ports": [{"name": "http", "containerPort": 80}]},
                ],
                "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
            },
            "status": {"phase": "Running", "containerStatuses": [{"name": "asks", "image": "", "imageID": "",
                "restartCount": 3, "ready": true, "state": {"terminated": {"exitCode": 4}}}]},
        });
        assert_eq!(serde_json::to_value(&pod).unwrap(), kept);
    }

    #[test]
    fn a_pod_is_available_when_it_has_been_ready_long_enough() {
        let ready = pod("a", "n", "Running", Some(10));
        let check = |min, now, available, left: Option<u64>| {
            assert_eq!(is_available(&ready, min, at(now)), available, "{min} {now}");
            assert_eq!(until_available(&ready, min, at(now)), left.map(Duration::from_secs), "{min} {now}");
        };
        check(0, 10, true, None);
        check(5, 12, false, Some(3));
        check(5, 15, true, None);
        check(5, 0, false, Some(5));
        assert!(!is_available(&pod("b", "n", "Running", None), 0, at(10)));
    }
}
