//! Says which volumes of CSI drivers are to be attached to which nodes: a VolumeAttachment for each, which the driver's
//! external-attacher acts on, and `volumesAttached` of the node's status.
//!
//! ```text
//! pod has a node ──▶ VolumeAttachment ──(attacher)──▶ attached ──▶ volumesAttached ──(kubelet)──▶ mounted
//! pod has ended ──▶ volumesInUse without it ──▶ VolumeAttachment deleted ──(attacher)──▶ detached
//! ```

mod plan;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ferry_client::{
    Attempt, Client, Error, Event, EventType, Index, Informer, NamespacedName, Outcome, Recorder, error,
};
use futures::FutureExt;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::{CSIDriver, VolumeAttachment};
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use parking_lot::Mutex;
use serde_json::json;

use crate::context::{Context, Running};
use plan::{Facts, Step, has_in_use, is_own, plan, source, volumes_attached};

const CONTROLLER: &str = "persistentvolume-attach-detach-controller";

/// What the controller has seen and told, of one volume.
#[derive(Default)]
struct Seen {
    /// Since when attachments are not wanted.
    unwanted: BTreeMap<String, Timestamp>,
    /// Attachments that were not attached when last looked at.
    waiting: BTreeSet<String>,
    /// Pods that were told to wait, by uid, and what they were told.
    told: BTreeMap<String, String>,
}

struct Controller {
    client: Client,
    pods: Informer<Pod>,
    by_claim: Index<Pod>,
    claims: Informer<PersistentVolumeClaim>,
    volumes: Informer<PersistentVolume>,
    attachments: Informer<VolumeAttachment>,
    by_volume: Index<VolumeAttachment>,
    by_node: Index<VolumeAttachment>,
    nodes: Informer<Node>,
    drivers: Informer<CSIDriver>,
    recorder: Recorder,
    seen: Mutex<BTreeMap<String, Seen>>,
}

pub fn start(context: &Context) -> Running {
    let builder = context.controller(CONTROLLER);
    let (pods, attachments) = (builder.informer::<Pod>(), builder.informer::<VolumeAttachment>());
    let controller = Arc::new(Controller {
        client: context.client.clone(),
        by_claim: pods.index("claim", |pod| claims_of(pod).into_iter().map(|key| key.to_string()).collect()),
        by_volume: attachments.index("volume", |each| volume_of(each).into_iter().collect()),
        by_node: attachments.index("node", |each| vec![each.spec.node_name.clone()]),
        claims: builder.informer(),
        volumes: builder.informer(),
        nodes: builder.informer(),
        drivers: builder.informer(),
        recorder: context.recorder("attachdetach-controller"),
        seen: Mutex::default(),
        pods,
        attachments,
    });
    let volumes = builder
        .of(&controller.volumes, controller.clone())
        .watches(&controller.claims, |_, event| volume_of_claim(event.object()).into_iter().collect())
        .watches(&controller.pods, |this: &Controller, event| {
            let claims = claims_of(event.object()).into_iter().filter_map(|key| this.claims.get(&key));
            claims.filter_map(|claim| volume_of_claim(&claim)).collect()
        })
        .watches(&controller.attachments, |_, event| {
            volume_of(event.object()).into_iter().map(NamespacedName::cluster).collect()
        })
        .watches(&controller.nodes, |this: &Controller, event| this.volumes_near(event))
        .watches(&controller.drivers, |this: &Controller, event| {
            let name = event.object().name_any();
            let of_driver = |volume: &Arc<PersistentVolume>| {
                volume.spec.as_ref().and_then(|spec| spec.csi.as_ref()).is_some_and(|csi| csi.driver == name)
            };
            let volumes = this.volumes.list().into_iter().filter(of_driver);
            volumes.map(|volume| NamespacedName::of(&*volume)).collect()
        })
        .run(Controller::reconcile);
    let told = builder
        .keys_of::<Node, _>(controller.clone())
        .watches(&controller.attachments, |_, event| {
            vec![NamespacedName::cluster(&event.object().spec.node_name)]
        })
        .watches(&controller.nodes, |_, event| match event {
            Event::Added(_) => vec![event.key()],
            _ => vec![],
        })
        .run(Controller::tell_node);
    async move {
        tokio::join!(volumes, told);
    }
    .boxed()
}

/// The claims that a pod uses.
fn claims_of(pod: &Pod) -> Vec<NamespacedName> {
    let namespace = pod.namespace().unwrap_or_default();
    let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    let names = volumes.filter_map(|volume| match (&volume.persistent_volume_claim, &volume.ephemeral) {
        (Some(claim), _) => Some(claim.claim_name.clone()),
        (None, Some(_)) => Some(format!("{}-{}", pod.name_any(), volume.name)),
        (None, None) => None,
    });
    names.map(|name| NamespacedName::new(&namespace, name)).collect()
}

fn volume_of_claim(claim: &PersistentVolumeClaim) -> Option<NamespacedName> {
    let name = claim.spec.as_ref()?.volume_name.as_deref().filter(|name| !name.is_empty())?;
    Some(NamespacedName::cluster(name))
}

fn volume_of(attachment: &VolumeAttachment) -> Option<String> {
    attachment.spec.source.persistent_volume_name.clone()
}

impl Controller {
    /// The volumes that are attached to a node, where something changed that concerns them.
    fn volumes_near(&self, event: &Event<Node>) -> Vec<NamespacedName> {
        let facts = |node: &Node| {
            let in_use = node.status.as_ref().and_then(|status| status.volumes_in_use.clone());
            (in_use, plan::is_healthy(node), plan::is_out_of_service(node))
        };
        if let Event::Modified { old, new } = event
            && facts(old) == facts(new)
        {
            return vec![];
        }
        let attachments = self.by_node.get(&event.key().name);
        let mut near: Vec<NamespacedName> =
            attachments.iter().filter_map(|each| volume_of(each)).map(NamespacedName::cluster).collect();
        if matches!(event, Event::Added(_)) {
            // pods may have waited for it
            let pods = self.pods.list().into_iter().filter(|pod| {
                pod.spec.as_ref().and_then(|spec| spec.node_name.as_ref()) == Some(&event.key().name)
            });
            let claims = pods.flat_map(|pod| claims_of(&pod)).filter_map(|key| self.claims.get(&key));
            near.extend(claims.filter_map(|claim| volume_of_claim(&claim)));
        }
        near
    }

    async fn reconcile(self: Arc<Self>, key: NamespacedName) -> Result<Outcome, Error> {
        let Some(volume) = self.volumes.get(&key) else {
            // As upstream, an attachment without its volume is nobody's.
            self.seen.lock().remove(&key.name);
            return Ok(Outcome::Done);
        };
        let source = source(&volume, |name| self.drivers.get(&NamespacedName::cluster(name)));
        let mut attachments = self.by_volume.get(&key.name);
        attachments.retain(|attachment| is_own(&volume, attachment));
        if source.is_none() && attachments.is_empty() {
            return Ok(Outcome::Done);
        }
        let pods = self.pods_of(&volume);
        let now = Timestamp::now();
        let steps = {
            let mut seen = self.seen.lock();
            let seen = seen.entry(key.name.clone()).or_default();
            let facts = Facts {
                volume: &volume,
                source,
                pods: &pods,
                attachments: &attachments,
                nodes: &self.nodes_of(&pods, &attachments),
                unwanted: &seen.unwanted,
                now,
            };
            let steps = plan(&facts);
            note_unwanted(seen, &steps, now);
            seen.told.retain(|uid, _| pods.iter().any(|pod| pod.uid().as_ref() == Some(uid)));
            steps
        };
        self.tell_progress(&volume, &pods, &attachments);
        let mut outcome = Outcome::Done;
        for step in steps {
            match step {
                Step::Attach(attachment) => self.attach(&attachment).await?,
                Step::Detach { name, node, is_forced } => {
                    self.detach(&volume, &name, &node, is_forced).await?;
                }
                Step::TellInUse { pod, note } => self.tell_in_use(&key.name, &pod, note),
                Step::Wait { left, .. } => outcome = Outcome::After(left),
            }
        }
        Ok(outcome)
    }

    /// The pods that use the claim which a volume is bound to.
    fn pods_of(&self, volume: &PersistentVolume) -> Vec<Arc<Pod>> {
        let reference = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref());
        let key = reference.map(|claim| {
            NamespacedName::new(
                claim.namespace.clone().unwrap_or_default(),
                claim.name.clone().unwrap_or_default(),
            )
        });
        let claim = key.and_then(|key| self.claims.get(&key));
        match claim.filter(|claim| volume_of_claim(claim).is_some_and(|key| key.name == volume.name_any())) {
            Some(claim) => self.by_claim.get(&NamespacedName::of(&*claim).to_string()),
            None => vec![],
        }
    }

    fn nodes_of(
        &self,
        pods: &[Arc<Pod>],
        attachments: &[Arc<VolumeAttachment>],
    ) -> BTreeMap<String, Arc<Node>> {
        let of_pods = pods.iter().filter_map(|pod| pod.spec.as_ref()?.node_name.clone());
        let names = of_pods.chain(attachments.iter().map(|each| each.spec.node_name.clone()));
        let found = names.map(|name| (self.nodes.get(&NamespacedName::cluster(&name)), name));
        found.filter_map(|(node, name)| Some((name, node?))).collect()
    }

    /// Tells pods what became of attachments that they waited for.
    fn tell_progress(
        &self,
        volume: &PersistentVolume,
        pods: &[Arc<Pod>],
        attachments: &[Arc<VolumeAttachment>],
    ) {
        let name = volume.name_any();
        for attachment in attachments {
            let status = attachment.status.clone().unwrap_or_default();
            let problem = status.attach_error.and_then(|error| error.message);
            let key = attachment.name_any();
            let waited = {
                let mut seen = self.seen.lock();
                let seen = seen.entry(name.clone()).or_default();
                if status.attached { seen.waiting.remove(&key) } else { !seen.waiting.insert(key) }
            };
            let on_node = pods.iter().filter(|pod| {
                pod.spec.as_ref().and_then(|spec| spec.node_name.as_ref()) == Some(&attachment.spec.node_name)
            });
            for pod in on_node.filter(|pod| plan::holds_volumes(pod)) {
                if status.attached && waited {
                    let note = format!("AttachVolume.Attach succeeded for volume {name:?} ");
                    self.recorder.event(&**pod, EventType::Normal, "SuccessfulAttachVolume", "Attach", note);
                } else if let Some(problem) = problem.as_ref().filter(|_| !status.attached) {
                    let note = format!("AttachVolume.Attach failed for volume {name:?} : {problem}");
                    self.recorder.event(&**pod, EventType::Warning, "FailedAttachVolume", "Attach", note);
                }
            }
        }
    }

    /// Tells a pod once that it has to wait.
    fn tell_in_use(&self, volume: &str, pod: &Pod, note: String) {
        let uid = pod.uid().unwrap_or_default();
        let mut seen = self.seen.lock();
        let told = &mut seen.entry(volume.into()).or_default().told;
        if told.get(&uid) != Some(&note) {
            self.recorder.event(pod, EventType::Warning, "FailedAttachVolume", "Attach", note.clone());
            told.insert(uid, note);
        }
    }

    async fn attach(&self, attachment: &VolumeAttachment) -> Result<(), Error> {
        let api: Api<VolumeAttachment> = Api::all(self.client.clone());
        match api.create(&PostParams::default(), attachment).await {
            Err(error) if error::is_already_exists(&error) => Ok(()),
            created => created.map(|_| ()).attempting("create a VolumeAttachment"),
        }
    }

    /// The node is asked once more: it may have taken the volume in use since it was last heard of.
    async fn detach(
        &self,
        volume: &PersistentVolume,
        name: &str,
        node: &str,
        is_forced: bool,
    ) -> Result<(), Error> {
        let nodes: Api<Node> = Api::all(self.client.clone());
        let found = nodes.get_opt(node).await.attempting("read the node of a VolumeAttachment")?;
        let source = volume.spec.as_ref().and_then(|spec| spec.csi.as_ref());
        let is_in_use = found
            .zip(source)
            .is_some_and(|(node, source)| has_in_use(&node, &source.driver, &source.volume_handle));
        if is_in_use && !is_forced {
            return Ok(());
        }
        if is_forced {
            tracing::warn!(volume = volume.name_any(), node, "volume detached though its node has it in use");
        }
        let Some(attachment) = self.attachments.get(&NamespacedName::cluster(name)) else { return Ok(()) };
        self.delete(&attachment).await
    }

    async fn delete(&self, attachment: &VolumeAttachment) -> Result<(), Error> {
        let api: Api<VolumeAttachment> = Api::all(self.client.clone());
        let parameters = DeleteParams {
            preconditions: Some(Preconditions { uid: attachment.uid(), resource_version: None }),
            ..DeleteParams::default()
        };
        let deleted = api.delete(&attachment.name_any(), &parameters).await;
        error::ignore_not_found(deleted.map(|_| ())).attempting("delete a VolumeAttachment")?;
        Ok(())
    }

    /// Writes what is attached into the node's status, where the node's kubelet looks.
    async fn tell_node(self: Arc<Self>, key: NamespacedName) -> Result<Outcome, Error> {
        let Some(node) = self.nodes.get(&key) else { return Ok(Outcome::Done) };
        let attachments = self.by_node.get(&key.name);
        let attached =
            volumes_attached(&attachments, |name| self.volumes.get(&NamespacedName::cluster(name)));
        let shown =
            node.status.as_ref().and_then(|status| status.volumes_attached.clone()).unwrap_or_default();
        if shown == attached {
            return Ok(Outcome::Done);
        }
        let patch = json!({"status": {"volumesAttached": if attached.is_empty() { json!(null) } else { json!(attached) }}});
        let nodes: Api<Node> = Api::all(self.client.clone());
        let written = nodes.patch_status(&key.name, &PatchParams::default(), &Patch::Merge(patch)).await;
        error::ignore_not_found(written.map(|_| ())).attempting("tell a node what is attached")?;
        Ok(Outcome::Done)
    }
}

fn note_unwanted(seen: &mut Seen, steps: &[Step], now: Timestamp) {
    let waits: BTreeSet<&String> = steps
        .iter()
        .filter_map(|step| match step {
            Step::Wait { name, .. } => Some(name),
            Step::Attach(_) | Step::Detach { .. } | Step::TellInUse { .. } => None,
        })
        .collect();
    seen.unwanted.retain(|name, _| waits.contains(name));
    for name in waits {
        seen.unwanted.entry(name.clone()).or_insert(now);
    }
}
