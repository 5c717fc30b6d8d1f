//! What has to happen to one volume's attachments: pure.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use ferry_api::csi_volume::{attachment_name, unique_name};
use ferry_api::local_volume;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{AttachedVolume, CSIPersistentVolumeSource, Node, PersistentVolume, Pod};
use k8s_openapi::api::storage::v1::{
    CSIDriver, VolumeAttachment, VolumeAttachmentSource, VolumeAttachmentSpec,
};
use kube::ResourceExt;
use kube::api::ObjectMeta;

use crate::pods::{is_deleting, is_finished};
use crate::taints::OUT_OF_SERVICE;

/// A node that is not healthy has this long to unmount what its pods used, as upstream gives it.
pub const MAX_WAIT_FOR_UNMOUNT: Duration = Duration::from_secs(6 * 60);

/// The source of a volume that somebody outside attaches.
pub fn source(
    volume: &PersistentVolume,
    driver: impl FnOnce(&str) -> Option<Arc<CSIDriver>>,
) -> Option<&CSIPersistentVolumeSource> {
    let source = volume.spec.as_ref()?.csi.as_ref()?;
    if source.driver == local_volume::DRIVER {
        return None;
    }
    // of a driver that says nothing volumes are attached
    let skips = driver(&source.driver).is_some_and(|driver| driver.spec.attach_required == Some(false));
    (!skips).then_some(source)
}

/// Whether this controller made an attachment of a volume: its name says so. Those that others made are theirs.
pub fn is_own(volume: &PersistentVolume, attachment: &VolumeAttachment) -> bool {
    let source = volume.spec.as_ref().and_then(|spec| spec.csi.as_ref());
    source.is_some_and(|source| {
        attachment.name_any()
            == attachment_name(&source.volume_handle, &source.driver, &attachment.spec.node_name)
    })
}

/// Whether a pod keeps its volumes attached to its node. One that is being deleted does so until its containers have
/// ended.
pub fn holds_volumes(pod: &Pod) -> bool {
    if is_finished(pod) {
        return false;
    }
    let statuses = pod.status.as_ref().and_then(|status| status.container_statuses.as_ref());
    let is_over = |pod: &Pod| {
        statuses.is_some_and(|all| {
            all.iter().all(|each| each.state.as_ref().is_some_and(|state| state.running.is_none()))
        }) && is_deleting(pod)
    };
    !is_over(pod)
}

/// All that is known of a volume.
pub struct Facts<'a> {
    pub volume: &'a PersistentVolume,
    /// `None` for a volume that nobody attaches.
    pub source: Option<&'a CSIPersistentVolumeSource>,
    /// Pods that use it and have a node.
    pub pods: &'a [Arc<Pod>],
    pub attachments: &'a [Arc<VolumeAttachment>],
    /// The nodes of both, as far as they are there.
    pub nodes: &'a BTreeMap<String, Arc<Node>>,
    /// Since when an attachment is not wanted, by its name.
    pub unwanted: &'a BTreeMap<String, Timestamp>,
    pub now: Timestamp,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    Attach(Box<VolumeAttachment>),
    /// `is_forced` where the node still has it in use.
    Detach {
        name: String,
        node: String,
        is_forced: bool,
    },
    /// A pod has to wait until the volume is free.
    TellInUse {
        pod: Arc<Pod>,
        note: String,
    },
    /// The node has it in use; look again after this at the latest.
    Wait {
        name: String,
        left: Duration,
    },
}

/// The steps, in order.
pub fn plan(facts: &Facts<'_>) -> Vec<Step> {
    let mut wanted: BTreeMap<&str, &Arc<Pod>> = BTreeMap::new();
    if facts.source.is_some() {
        for pod in facts.pods.iter().filter(|pod| holds_volumes(pod)) {
            if let Some(node) = node_of(pod).filter(|node| facts.nodes.contains_key(*node)) {
                wanted.entry(node).or_insert(pod);
            }
        }
    }
    let mut steps = Vec::new();
    for attachment in facts.attachments {
        let is_wanted = wanted.contains_key(attachment.spec.node_name.as_str());
        if !is_wanted && attachment.metadata.deletion_timestamp.is_none() {
            steps.push(let_go(facts, attachment));
        }
    }
    let Some(source) = facts.source else { return steps };
    for (node, pod) in wanted {
        let others: Vec<&Arc<VolumeAttachment>> =
            facts.attachments.iter().filter(|each| each.spec.node_name != node).collect();
        if facts.attachments.len() > others.len() {
            continue;
        }
        // two pods on two nodes that came at once: the second waits too
        let is_begun = steps.iter().any(|step| matches!(step, Step::Attach(_)));
        if is_for_one_node(facts.volume) && (!others.is_empty() || is_begun) {
            steps.push(Step::TellInUse { pod: pod.clone(), note: in_use(facts, pod) });
        } else {
            steps.push(Step::Attach(Box::new(attachment(facts.volume, source, node))));
        }
    }
    steps
}

fn node_of(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref()?.node_name.as_deref().filter(|node| !node.is_empty())
}

fn let_go(facts: &Facts<'_>, attachment: &VolumeAttachment) -> Step {
    let name = attachment.name_any();
    let node = attachment.spec.node_name.clone();
    let Some(object) = facts.nodes.get(&node) else { return Step::Detach { name, node, is_forced: false } };
    let source = facts.volume.spec.as_ref().and_then(|spec| spec.csi.as_ref());
    let is_in_use = source.is_some_and(|source| has_in_use(object, &source.driver, &source.volume_handle));
    if !is_in_use {
        return Step::Detach { name, node, is_forced: false };
    }
    let since = facts.unwanted.get(&name).copied().unwrap_or(facts.now);
    let waited = Duration::try_from(facts.now.duration_since(since)).unwrap_or_default();
    let left = MAX_WAIT_FOR_UNMOUNT.saturating_sub(waited);
    if is_out_of_service(object) || (left.is_zero() && !is_healthy(object)) {
        return Step::Detach { name, node, is_forced: true };
    }
    // one that is healthy says itself when it has unmounted
    Step::Wait { name, left: if left.is_zero() { MAX_WAIT_FOR_UNMOUNT } else { left } }
}

pub fn has_in_use(node: &Node, driver: &str, handle: &str) -> bool {
    let name = unique_name(driver, handle);
    let in_use = node.status.as_ref().and_then(|status| status.volumes_in_use.as_ref());
    in_use.into_iter().flatten().any(|each| *each == name)
}

pub fn is_healthy(node: &Node) -> bool {
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_ref());
    let mut conditions = conditions.into_iter().flatten();
    conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

pub fn is_out_of_service(node: &Node) -> bool {
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_ref());
    taints.into_iter().flatten().any(|taint| taint.key == OUT_OF_SERVICE)
}

fn is_for_one_node(volume: &PersistentVolume) -> bool {
    let modes = volume.spec.as_ref().and_then(|spec| spec.access_modes.as_deref()).unwrap_or_default();
    !modes.is_empty() && !modes.iter().any(|mode| mode == "ReadWriteMany" || mode == "ReadOnlyMany")
}

/// In upstream's words. Pods of other namespaces are counted and not named.
fn in_use(facts: &Facts<'_>, waiting: &Pod) -> String {
    let volume = facts.volume.name_any();
    let others = facts.pods.iter().filter(|pod| node_of(pod) != node_of(waiting) && holds_volumes(pod));
    let others: Vec<&Arc<Pod>> = others.collect();
    let start = format!("Multi-Attach error for volume {volume:?} ");
    if others.is_empty() {
        return start + "Volume is already exclusively attached to one node and can't be attached to another";
    }
    let names: Vec<String> = others
        .iter()
        .filter(|pod| pod.namespace() == waiting.namespace())
        .map(|pod| pod.name_any())
        .collect();
    match (names.len(), others.len() - names.len()) {
        (0, count) => format!("{start}Volume is already used by {count} pod(s) in different namespaces"),
        (_, 0) => format!("{start}Volume is already used by pod(s) {}", names.join(", ")),
        (_, count) => format!(
            "{start}Volume is already used by pod(s) {} and {count} pod(s) in different namespaces",
            names.join(", ")
        ),
    }
}

fn attachment(volume: &PersistentVolume, source: &CSIPersistentVolumeSource, node: &str) -> VolumeAttachment {
    VolumeAttachment {
        metadata: ObjectMeta {
            name: Some(attachment_name(&source.volume_handle, &source.driver, node)),
            ..Default::default()
        },
        spec: VolumeAttachmentSpec {
            attacher: source.driver.clone(),
            node_name: node.into(),
            source: VolumeAttachmentSource {
                persistent_volume_name: Some(volume.name_any()),
                ..Default::default()
            },
        },
        status: None,
    }
}

/// `volumesAttached` of a node: what is attached and stays so.
pub fn volumes_attached(
    attachments: &[Arc<VolumeAttachment>],
    volume: impl Fn(&str) -> Option<Arc<PersistentVolume>>,
) -> Vec<AttachedVolume> {
    let stays = attachments.iter().filter(|attachment| {
        attachment.metadata.deletion_timestamp.is_none()
            && attachment.status.as_ref().is_some_and(|status| status.attached)
    });
    let mut attached: Vec<AttachedVolume> = stays
        .filter_map(|attachment| {
            let volume = volume(attachment.spec.source.persistent_volume_name.as_deref()?)?;
            let source = volume.spec.as_ref()?.csi.as_ref()?;
            Some(AttachedVolume {
                name: unique_name(&source.driver, &source.volume_handle),
                device_path: String::new(),
            })
        })
        .collect();
    attached.sort_by(|a, b| a.name.cmp(&b.name));
    attached
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::testing::{at, deleting, pod};

    fn volume(modes: &[&str]) -> PersistentVolume {
        serde_json::from_value(json!({"metadata": {"name": "pv"}, "spec": {"accessModes": modes,
            "csi": {"driver": "d", "volumeHandle": "h"}}}))
        .expect("a volume")
    }

    fn node(in_use: bool, ready: &str, taints: Value) -> Arc<Node> {
        let names = if in_use { json!(["kubernetes.io/csi/d^h"]) } else { json!([]) };
        let node = json!({"metadata": {"name": "n"}, "spec": {"taints": taints},
            "status": {"volumesInUse": names, "conditions": [{"type": "Ready", "status": ready}]}});
        Arc::new(serde_json::from_value(node).expect("a node"))
    }

    fn attached_to(name: &str) -> Arc<VolumeAttachment> {
        let volume = volume(&[]);
        let source = source(&volume, |_| None).expect("it is attached");
        Arc::new(attachment(&volume, source, name))
    }

    /// What is planned for pods and attachments on nodes `a` and `b`, which are as given. What is not wanted has not
    /// been so for these seconds.
    fn planned(
        modes: &[&str],
        pods: Vec<Pod>,
        attached: &[&str],
        node: &Arc<Node>,
        waited: i64,
    ) -> Vec<String> {
        let volume = volume(modes);
        let pods: Vec<Arc<Pod>> = pods.into_iter().map(Arc::new).collect();
        let attachments: Vec<_> = attached.iter().map(|name| attached_to(name)).collect();
        let nodes = ["a", "b"].map(|name| (name.to_owned(), node.clone())).into();
        let unwanted = attachments.iter().map(|each| (each.name_any(), at(0))).collect();
        let facts = Facts {
            volume: &volume,
            source: source(&volume, |_| None),
            pods: &pods,
            attachments: &attachments,
            nodes: &nodes,
            unwanted: &unwanted,
            now: at(waited),
        };
        let shown = plan(&facts).into_iter().map(|step| match step {
            Step::Attach(attachment) => format!("attach {}", attachment.spec.node_name),
            Step::Detach { node, is_forced, .. } => {
                format!("{} {node}", if is_forced { "force" } else { "detach" })
            }
            Step::TellInUse { note, .. } => note,
            Step::Wait { left, .. } => format!("wait {}", left.as_secs()),
        });
        shown.collect()
    }

    #[test]
    fn a_volume_is_attached_where_its_pods_are() {
        let quiet = node(false, "True", json!([]));
        let on = |node: &str| pod("p", node, "Pending", None);
        let check = |pods, attached: &[&str], expected: &[&str]| {
            assert_eq!(planned(&["ReadWriteOnce"], pods, attached, &quiet, 0), expected);
        };
        check(vec![], &[], &[]);
        check(vec![on("a")], &[], &["attach a"]);
        check(vec![on("a")], &["a"], &[]);
        check(vec![on("")], &[], &[]);
        check(vec![on("elsewhere")], &[], &[]);
        check(vec![pod("p", "a", "Succeeded", None)], &["a"], &["detach a"]);
        check(vec![deleting(on("a"))], &["a"], &[]);
        check(vec![], &["a"], &["detach a"]);
        check(vec![], &["elsewhere"], &["detach elsewhere"]);
        let many =
            planned(&["ReadWriteMany"], vec![on("a"), pod("q", "b", "Pending", None)], &["a"], &quiet, 0);
        assert_eq!(many, ["attach b"]);
    }

    #[test]
    fn an_attachment_that_somebody_else_made_is_left_alone() {
        let volume = volume(&[]);
        let own = attached_to("a");
        assert!(is_own(&volume, &own));
        let named = VolumeAttachment {
            metadata: ObjectMeta { name: Some("mine".into()), ..Default::default() },
            ..(*own).clone()
        };
        assert!(!is_own(&volume, &named));
        let of_another = PersistentVolume { spec: None, ..volume };
        assert!(!is_own(&of_another, &own));
    }

    #[test]
    fn a_pod_that_is_deleted_holds_its_volumes_until_its_containers_have_ended() {
        let with = |state: Value| {
            let mut pod = deleting(pod("p", "a", "Running", None));
            let statuses = json!([{"name": "c", "image": "", "imageID": "", "ready": false, "restartCount": 0,
                "state": state}]);
            let statuses = serde_json::from_value(statuses).expect("statuses");
            pod.status.get_or_insert_default().container_statuses = Some(statuses);
            holds_volumes(&pod)
        };
        assert!(with(json!({"running": {}})));
        assert!(!with(json!({"terminated": {"exitCode": 0}})));
    }

    #[test]
    fn a_volume_of_one_node_is_waited_for() {
        let quiet = node(false, "True", json!([]));
        let pods = || vec![pod("p", "a", "Running", None), pod("q", "b", "Pending", None)];
        let told = planned(&["ReadWriteOnce"], pods(), &["a"], &quiet, 0);
        assert_eq!(told, ["Multi-Attach error for volume \"pv\" Volume is already used by pod(s) p"]);
        let both = planned(&["ReadWriteOnce"], pods(), &[], &quiet, 0);
        assert_eq!(both[0], "attach a");
        assert!(both[1].starts_with("Multi-Attach error"), "{both:?}");
        let moves = planned(&["ReadWriteOnce"], vec![pod("q", "b", "Pending", None)], &["a"], &quiet, 0);
        assert_eq!(moves[0], "detach a");
        assert!(moves[1].ends_with(
            "Volume is already exclusively attached to one node and can't be attached to another"
        ));
    }

    #[test]
    fn a_volume_in_use_by_a_node_stays_attached() {
        let out = json!([{"key": OUT_OF_SERVICE, "effect": "NoExecute"}]);
        let check = |node: Arc<Node>, waited, expected: &str| {
            assert_eq!(planned(&[], vec![], &["a"], &node, waited), [expected]);
        };
        check(node(true, "True", json!([])), 0, "wait 360");
        check(node(true, "False", json!([])), 100, "wait 260");
        check(node(true, "False", json!([])), 360, "force a");
        check(node(true, "True", json!([])), 1000, "wait 360");
        check(node(true, "True", out), 0, "force a");
        check(node(false, "False", json!([])), 0, "detach a");
    }

    #[test]
    fn drivers_say_whether_their_volumes_are_attached() {
        let driver = |spec: Value| -> Option<Arc<CSIDriver>> {
            let driver = json!({"metadata": {"name": "d"}, "spec": spec});
            Some(Arc::new(serde_json::from_value(driver).expect("a driver")))
        };
        let volume = volume(&[]);
        assert!(source(&volume, |_| None).is_some());
        assert!(source(&volume, |_| driver(json!({"attachRequired": true}))).is_some());
        assert!(source(&volume, |_| driver(json!({"attachRequired": false}))).is_none());
        let mut own = volume.clone();
        if let Some(source) = own.spec.as_mut().and_then(|spec| spec.csi.as_mut()) {
            source.driver = local_volume::DRIVER.into();
        }
        assert!(source(&own, |_| None).is_none());
    }

    #[test]
    fn a_node_is_told_what_is_attached_and_stays_so() {
        let with = |attached: bool, deleted: bool| {
            let mut attachment = (*attached_to("a")).clone();
            attachment.status = Some(k8s_openapi::api::storage::v1::VolumeAttachmentStatus {
                attached,
                ..Default::default()
            });
            let attachment = if deleted { deleting(attachment) } else { attachment };
            let found = |_: &str| Some(Arc::new(volume(&[])));
            volumes_attached(&[Arc::new(attachment)], found).len()
        };
        assert_eq!((with(true, false), with(false, false), with(true, true)), (1, 0, 0));
    }
}
