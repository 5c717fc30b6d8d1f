//! Makes volumes that are directories of a node (provisioner `local.ferry.io`), and gives them up when their claim is
//! gone. No directory is touched here: the volume says which node keeps it, and that node's kubelet makes it for the
//! first pod and removes it when the volume is deleted.

use std::collections::BTreeMap;
use std::sync::Arc;

use ferry_api::local_volume::{self, DRIVER, FINALIZER, NODE};
use ferry_client::{
    Attempt, Client, Error, EventType, Informer, NamespacedName, Outcome, Recorder, error, events,
};
use k8s_openapi::api::core::v1::{
    CSIPersistentVolumeSource, Node, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm,
    ObjectReference, PersistentVolume, PersistentVolumeClaim, PersistentVolumeSpec, VolumeNodeAffinity,
};
use k8s_openapi::api::storage::v1::{CSINode, StorageClass};
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, ListParams, ObjectMeta, PostParams, Preconditions};

use crate::context::{Context, Running};
use crate::persistent_volume::{PROVISIONERS, SELECTED_NODE, class_of_claim};

const CONTROLLER: &str = "local-volume-provisioner-controller";
const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";
const HOSTNAME: &str = "kubernetes.io/hostname";

/// What to do about a claim.
#[derive(Debug, PartialEq)]
enum Plan {
    /// It is another's, or it waits for something else.
    Nothing,
    Create(Box<PersistentVolume>),
    /// This claim cannot be served as it is.
    Refuse(String),
    /// Not on this node; the scheduler may find another.
    Reschedule(String),
}

fn plan(
    claim: &PersistentVolumeClaim,
    class: Option<&StorageClass>,
    node: impl FnOnce(&str) -> (Option<Arc<Node>>, Option<Arc<CSINode>>),
) -> Plan {
    let Some(class) = class.filter(|class| class.provisioner == DRIVER) else { return Plan::Nothing };
    let spec = claim.spec.clone().unwrap_or_default();
    let ours = PROVISIONERS.iter().any(|key| claim.annotations().get(*key).is_some_and(|own| own == DRIVER));
    let bound = spec.volume_name.as_deref().is_some_and(|name| !name.is_empty());
    if !ours || bound || claim.metadata.deletion_timestamp.is_some() {
        return Plan::Nothing;
    }
    if let Some(why) = unsupported(claim, class) {
        return Plan::Refuse(why);
    }
    let Some(selected) = claim.annotations().get(SELECTED_NODE) else { return Plan::Nothing };
    let (Some(node), csi_node) = node(selected) else {
        return Plan::Reschedule(format!("node {selected:?} not found"));
    };
    let drivers = csi_node.iter().flat_map(|node| &node.spec.drivers);
    if !drivers.into_iter().any(|driver| driver.name == DRIVER) {
        return Plan::Reschedule(format!("node {selected:?} has no driver {DRIVER}"));
    }
    let Some(host) = node.labels().get(HOSTNAME) else {
        return Plan::Reschedule(format!("node {selected:?} has no label {HOSTNAME}"));
    };
    Plan::Create(Box::new(volume(claim, class, selected, host)))
}

/// Why no directory can be what a claim asks for.
fn unsupported(claim: &PersistentVolumeClaim, class: &StorageClass) -> Option<String> {
    let spec = claim.spec.as_ref()?;
    let modes = spec.access_modes.as_deref().unwrap_or_default();
    let shared = modes.iter().find(|mode| !["ReadWriteOnce", "ReadWriteOncePod"].contains(&mode.as_str()));
    if class.volume_binding_mode.as_deref() != Some("WaitForFirstConsumer") {
        return Some(
            "its volumeBindingMode must be WaitForFirstConsumer: a volume is made where its pod runs".into(),
        );
    }
    if let Some(mode) = shared {
        return Some(format!("access mode {mode} is not supported: the volume is on one node"));
    }
    if spec.volume_mode.as_deref() == Some("Block") {
        return Some("volumeMode Block is not supported".into());
    }
    if spec.data_source.is_some() || spec.data_source_ref.is_some() {
        return Some("a data source is not supported".into());
    }
    if spec.selector.is_some() {
        return Some("claim Selector is not supported".into());
    }
    if class.mount_options.as_ref().is_some_and(|options| !options.is_empty()) {
        return Some("mountOptions are not supported".into());
    }
    if let Some(parameter) = class.parameters.iter().flat_map(BTreeMap::keys).next() {
        return Some(format!("parameter {parameter:?} is not known"));
    }
    None
}

fn volume_name(claim: &PersistentVolumeClaim) -> String {
    format!("pvc-{}", claim.uid().unwrap_or_default())
}

fn volume(claim: &PersistentVolumeClaim, class: &StorageClass, node: &str, host: &str) -> PersistentVolume {
    let name = volume_name(claim);
    let spec = claim.spec.clone().unwrap_or_default();
    let requests = spec.resources.and_then(|resources| resources.requests).unwrap_or_default();
    let size = requests.get("storage").cloned().unwrap_or_default();
    let here = NodeSelectorRequirement {
        key: HOSTNAME.into(),
        operator: "In".into(),
        values: Some(vec![host.into()]),
    };
    PersistentVolume {
        metadata: ObjectMeta {
            name: Some(name.clone()),
            labels: Some([(NODE.into(), node.into())].into()),
            annotations: Some([(PROVISIONED_BY.into(), DRIVER.into())].into()),
            ..Default::default()
        },
        spec: Some(PersistentVolumeSpec {
            access_modes: spec.access_modes,
            capacity: Some([("storage".into(), size)].into()),
            claim_ref: Some(ObjectReference { field_path: None, ..events::reference(claim) }),
            csi: Some(CSIPersistentVolumeSource {
                driver: DRIVER.into(),
                volume_handle: name,
                volume_attributes: Some([(NODE.into(), node.into())].into()),
                ..Default::default()
            }),
            node_affinity: Some(VolumeNodeAffinity {
                required: Some(NodeSelector {
                    node_selector_terms: vec![NodeSelectorTerm {
                        match_expressions: Some(vec![here]),
                        match_fields: None,
                    }],
                }),
            }),
            persistent_volume_reclaim_policy: class.reclaim_policy.clone().or_else(|| Some("Delete".into())),
            storage_class_name: class.metadata.name.clone(),
            volume_mode: Some("Filesystem".into()),
            ..Default::default()
        }),
        status: None,
    }
}

/// What to do about a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Nothing,
    /// Its claim is gone, and it goes with it. The node's kubelet holds it until the directory is removed.
    Delete,
    /// It is to go and its node is gone: nobody will ever remove the directory.
    GiveUp,
}

fn end(volume: &PersistentVolume, node_is_there: bool) -> End {
    if local_volume::node(volume).is_none() {
        return End::Nothing;
    }
    if volume.metadata.deletion_timestamp.is_some() {
        let held = local_volume::is_made(volume);
        return if held && !node_is_there { End::GiveUp } else { End::Nothing };
    }
    let spec = volume.spec.as_ref();
    let policy = spec.and_then(|spec| spec.persistent_volume_reclaim_policy.as_deref());
    let phase = volume.status.as_ref().and_then(|status| status.phase.as_deref());
    let made_here = volume.annotations().get(PROVISIONED_BY).is_some_and(|by| by == DRIVER);
    if made_here && policy == Some("Delete") && phase == Some("Released") {
        End::Delete
    } else {
        End::Nothing
    }
}

struct Controller {
    client: Client,
    claims: Informer<PersistentVolumeClaim>,
    volumes: Informer<PersistentVolume>,
    classes: Informer<StorageClass>,
    nodes: Informer<Node>,
    csi_nodes: Informer<CSINode>,
    recorder: Recorder,
}

pub fn start(context: &Context) -> Running {
    let builder = context.controller(CONTROLLER);
    let (claims, volumes, classes) = (builder.informer(), builder.informer(), builder.informer());
    let (nodes, csi_nodes) = (builder.informer(), builder.informer());
    let controller = Arc::new(Controller {
        client: context.client.clone(),
        claims: claims.clone(),
        volumes: volumes.clone(),
        classes: classes.clone(),
        nodes: nodes.clone(),
        csi_nodes: csi_nodes.clone(),
        recorder: context.recorder(DRIVER),
    });
    let of_claims = builder
        .of(&claims, controller.clone())
        .watches(&classes, |it, event| it.claims_of_class(&event.object().name_any()))
        .watches(&csi_nodes, |it, event| it.claims_for_node(&event.object().name_any()))
        .run(Controller::reconcile_claim);
    let of_volumes = builder
        .of(&volumes, controller)
        .watches(&nodes, |it, event| {
            if event.is_deleted() { it.volumes_of_node(&event.object().name_any()) } else { vec![] }
        })
        .run(Controller::reconcile_volume);
    Box::pin(async move {
        futures::join!(of_claims, of_volumes);
    })
}

impl Controller {
    fn claims_of_class(&self, class: &str) -> Vec<NamespacedName> {
        let claims = self.claims.list().into_iter();
        claims
            .filter(|claim| class_of_claim(claim) == class)
            .map(|claim| NamespacedName::of(&*claim))
            .collect()
    }

    /// Claims whose volume is to be made on a node.
    fn claims_for_node(&self, node: &str) -> Vec<NamespacedName> {
        let waits = |claim: &PersistentVolumeClaim| {
            let volume = claim.spec.as_ref().and_then(|spec| spec.volume_name.as_deref()).unwrap_or("");
            volume.is_empty() && claim.annotations().get(SELECTED_NODE).is_some_and(|own| own == node)
        };
        let claims = self.claims.list().into_iter();
        claims.filter(|claim| waits(claim)).map(|claim| NamespacedName::of(&*claim)).collect()
    }

    fn volumes_of_node(&self, node: &str) -> Vec<NamespacedName> {
        let volumes = self.volumes.list().into_iter();
        let own = volumes.filter(|volume| local_volume::node(volume) == Some(node));
        own.map(|volume| NamespacedName::of(&*volume)).collect()
    }

    async fn reconcile_claim(self: Arc<Self>, key: NamespacedName) -> Result<Outcome, Error> {
        let Some(claim) = self.claims.get(&key) else { return Ok(Outcome::Done) };
        if self.volumes.get(&NamespacedName::cluster(volume_name(&claim))).is_some() {
            return Ok(Outcome::Done);
        }
        let class = self.classes.get(&NamespacedName::cluster(class_of_claim(&claim)));
        let node = |name: &str| {
            let key = NamespacedName::cluster(name);
            (self.nodes.get(&key), self.csi_nodes.get(&key))
        };
        match plan(&claim, class.as_deref(), node) {
            Plan::Nothing => {}
            Plan::Create(volume) => self.provision(&claim, &volume).await?,
            Plan::Refuse(why) => self.tell_failed(&claim, &why),
            Plan::Reschedule(why) => {
                self.tell_failed(&claim, &why);
                let mut next = (*claim).clone();
                next.annotations_mut().remove(SELECTED_NODE);
                let claims: Api<PersistentVolumeClaim> = Api::namespaced(self.client.clone(), &key.namespace);
                let written = claims.replace(&key.name, &PostParams::default(), &next).await;
                error::ignore_not_found(written).attempting("take back the selected node")?;
            }
        }
        Ok(Outcome::Done)
    }

    fn tell_failed(&self, claim: &PersistentVolumeClaim, why: &str) {
        let note = format!("failed to provision volume with StorageClass {:?}: {why}", class_of_claim(claim));
        self.recorder.event(claim, EventType::Warning, "ProvisioningFailed", "Provision", note);
    }

    async fn provision(&self, claim: &PersistentVolumeClaim, volume: &PersistentVolume) -> Result<(), Error> {
        let mut span = ferry_trace::span("volume.provision");
        span.set("volume", volume.name_any());
        let key = NamespacedName::of(claim);
        let note = format!("External provisioner is provisioning volume for claim \"{key}\"");
        self.recorder.event(claim, EventType::Normal, "Provisioning", "Provision", note);
        let volumes: Api<PersistentVolume> = Api::all(self.client.clone());
        match span.in_scope(volumes.create(&PostParams::default(), volume)).await {
            // by us, before the informer told of it
            Err(error) if error::is_already_exists(&error) => return Ok(()),
            Err(error) => {
                self.tell_failed(claim, &error::message(&error));
                return Err(error).attempting("create volume");
            }
            Ok(_) => {}
        }
        let note = format!("Successfully provisioned volume {}", volume.name_any());
        self.recorder.event(claim, EventType::Normal, "ProvisioningSucceeded", "Provision", note);
        Ok(())
    }

    async fn reconcile_volume(self: Arc<Self>, key: NamespacedName) -> Result<Outcome, Error> {
        let Some(volume) = self.volumes.get(&key) else { return Ok(Outcome::Done) };
        let node = local_volume::node(&volume).unwrap_or_default();
        let node_is_there = self.nodes.get(&NamespacedName::cluster(node)).is_some();
        let volumes: Api<PersistentVolume> = Api::all(self.client.clone());
        match end(&volume, node_is_there) {
            End::Nothing => {}
            End::Delete => {
                // as it was seen: one that was given to another claim, or is to be retained since, stays
                let preconditions = Preconditions {
                    uid: volume.uid(),
                    resource_version: volume.metadata.resource_version.clone(),
                };
                let parameters =
                    DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
                let deleted = volumes.delete(&key.name, &parameters).await;
                error::ignore_not_found(deleted).attempting("delete released volume")?;
            }
            End::GiveUp => {
                // Data may be lost on this: the server is asked, not the cache.
                let nodes: Api<Node> = Api::all(self.client.clone());
                let fields = ListParams::default().fields(&format!("metadata.name={node}"));
                let found = nodes.list(&fields).await.attempting("look for the volume's node")?;
                if found.items.is_empty() {
                    let mut next = (*volume).clone();
                    next.finalizers_mut().retain(|finalizer| finalizer != FINALIZER);
                    let written = volumes.replace(&key.name, &PostParams::default(), &next).await;
                    error::ignore_not_found(written).attempting("give up a volume of a node that is gone")?;
                }
            }
        }
        Ok(Outcome::Done)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn class() -> StorageClass {
        read(json!({"metadata": {"name": "local"}, "provisioner": DRIVER, "reclaimPolicy": "Retain",
            "volumeBindingMode": "WaitForFirstConsumer"}))
    }

    fn read<T: serde::de::DeserializeOwned>(value: Value) -> T {
        serde_json::from_value(value).expect("what its type says")
    }

    fn claim(spec: Value) -> PersistentVolumeClaim {
        let annotations = json!({PROVISIONERS[1]: DRIVER, SELECTED_NODE: "n1"});
        let mut claim: PersistentVolumeClaim = read(json!({
            "metadata": {"name": "data", "namespace": "default", "uid": "u1", "annotations": annotations},
            "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "local",
                "resources": {"requests": {"storage": "1Gi"}}},
        }));
        let mut whole = json!(claim.spec);
        whole.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
        claim.spec = read(whole);
        claim
    }

    fn node(labels: Value, driver: &str) -> (Option<Arc<Node>>, Option<Arc<CSINode>>) {
        let node = read(json!({"metadata": {"name": "n1", "labels": labels}}));
        let drivers = json!([{"name": driver, "nodeID": "n1"}]);
        let csi_node = read(json!({"metadata": {"name": "n1"}, "spec": {"drivers": drivers}}));
        (Some(Arc::new(node)), Some(Arc::new(csi_node)))
    }

    fn planned(claim: &PersistentVolumeClaim, class: &StorageClass) -> Plan {
        plan(claim, Some(class), |_| node(json!({HOSTNAME: "host-1"}), DRIVER))
    }

    #[test]
    fn a_volume_is_made_for_the_node_that_was_selected() {
        let Plan::Create(volume) = planned(&claim(json!({})), &class()) else { panic!("no volume") };
        assert_eq!(volume.name_any(), "pvc-u1");
        assert_eq!(local_volume::node(&volume), Some("n1"));
        assert_eq!(local_volume::directory(&volume), Some("pvc-u1"));
        let spec = json!(volume.spec);
        assert_eq!(spec["capacity"]["storage"], "1Gi");
        assert_eq!(spec["persistentVolumeReclaimPolicy"], "Retain");
        assert_eq!(spec["claimRef"]["uid"], "u1");
        let term = &spec["nodeAffinity"]["required"]["nodeSelectorTerms"][0]["matchExpressions"][0];
        assert_eq!((&term["key"], &term["values"]), (&json!(HOSTNAME), &json!(["host-1"])));
    }

    #[test]
    fn claims_that_a_directory_cannot_satisfy_are_refused() {
        let refused = |spec: Value| match planned(&claim(spec), &class()) {
            Plan::Refuse(why) => why,
            other => panic!("{other:?}"),
        };
        assert!(refused(json!({"accessModes": ["ReadWriteMany"]})).contains("ReadWriteMany"));
        assert!(refused(json!({"volumeMode": "Block"})).contains("Block"));
        assert!(refused(json!({"selector": {}})).contains("Selector"));
        assert!(
            refused(json!({"dataSource": {"kind": "PersistentVolumeClaim", "name": "x"}}))
                .contains("data source")
        );
        let immediate = StorageClass { volume_binding_mode: Some("Immediate".into()), ..class() };
        assert!(matches!(planned(&claim(json!({})), &immediate), Plan::Refuse(_)));
        let with = StorageClass { parameters: Some([("path".into(), "/etc".into())].into()), ..class() };
        assert!(
            matches!(planned(&claim(json!({})), &with), Plan::Refuse(_)),
            "no path is taken from anywhere"
        );
        assert!(matches!(
            planned(&claim(json!({"accessModes": ["ReadWriteOncePod"]})), &class()),
            Plan::Create(_)
        ));
    }

    #[test]
    fn claims_for_other_provisioners_are_ignored() {
        let other = StorageClass { provisioner: "example.com/disk".into(), ..class() };
        assert_eq!(planned(&claim(json!({})), &other), Plan::Nothing);
        assert_eq!(planned(&claim(json!({"volumeName": "v"})), &class()), Plan::Nothing);
        let mut unnamed = claim(json!({}));
        unnamed.annotations_mut().remove(PROVISIONERS[1]);
        assert_eq!(planned(&unnamed, &class()), Plan::Nothing);
        let mut unplaced = claim(json!({}));
        unplaced.annotations_mut().remove(SELECTED_NODE);
        assert_eq!(planned(&unplaced, &class()), Plan::Nothing);
    }

    #[test]
    fn a_node_that_cannot_keep_the_volume_is_given_back() {
        let on = |found: (Option<Arc<Node>>, Option<Arc<CSINode>>)| {
            plan(&claim(json!({})), Some(&class()), |_| found)
        };
        assert!(matches!(on((None, None)), Plan::Reschedule(_)));
        assert!(matches!(on(node(json!({}), DRIVER)), Plan::Reschedule(_)));
        assert!(matches!(on(node(json!({HOSTNAME: "h"}), "other.example")), Plan::Reschedule(_)));
    }

    #[test]
    fn a_released_volume_goes_by_its_policy() {
        let mut own = volume(&claim(json!({})), &class(), "n1", "h");
        let mut ends = |policy: &str, phase: &str| {
            own.spec.as_mut().unwrap().persistent_volume_reclaim_policy = Some(policy.into());
            own.status.get_or_insert_default().phase = Some(phase.into());
            end(&own, true)
        };
        assert_eq!(ends("Delete", "Released"), End::Delete);
        assert_eq!(ends("Delete", "Bound"), End::Nothing);
        assert_eq!(ends("Delete", "Available"), End::Nothing);
        assert_eq!(ends("Retain", "Released"), End::Nothing);
        ends("Delete", "Released");
        let mut others = own.clone();
        others.annotations_mut().clear();
        assert_eq!(end(&others, true), End::Nothing, "one that a person wrote is that person's to delete");
        own.metadata.deletion_timestamp = Some(read(json!("2026-01-01T00:00:00Z")));
        assert_eq!(end(&own, false), End::Nothing, "no directory was made");
        own.finalizers_mut().push(FINALIZER.into());
        assert_eq!(end(&own, true), End::Nothing, "the kubelet removes it");
        assert_eq!(end(&own, false), End::GiveUp);
    }
}
