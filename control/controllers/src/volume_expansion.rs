//! Follows claims that ask for more than they have. Volumes of other drivers are their resizers' matter, who are told
//! so. Volumes that are directories of a node grow here, by upstream's steps: the claim says that it is resized, the
//! volume gets its new capacity, and the node's kubelet does the rest when a pod mounts it.
//!
//! ```text
//! request > capacity ──▶ ControllerResizeInProgress ──▶ volume grown ──▶ NodeResizePending ──(kubelet)──▶ done
//! ```

use std::sync::Arc;

use ferry_api::Quantity;
use ferry_api::local_volume::DRIVER;
use ferry_client::{Attempt, Client, Error, EventType, Informer, NamespacedName, Outcome, Recorder, error};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{
    PersistentVolume, PersistentVolumeClaim, PersistentVolumeClaimCondition, PersistentVolumeClaimStatus,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;
use kube::api::{Api, Patch, PatchParams, PostParams};
use serde_json::json;

use crate::context::{Context, Running};
use crate::persistent_volume::{capacity, requested};

const CONTROLLER: &str = "persistentvolume-expander-controller";
const RESIZER: &str = "volume.kubernetes.io/storage-resizer";
const STORAGE: &str = "storage";
const RESIZING: &str = "Resizing";
const NODE_PENDING: &str = "FileSystemResizePending";

/// The next step of a claim's growth.
#[derive(Clone, Debug, PartialEq)]
enum Step {
    Nothing,
    /// A driver outside does it; this is its name.
    NameResizer(String),
    MarkResizing(ApiQuantity),
    GrowVolume(ApiQuantity),
    AwaitNode(ApiQuantity),
}

fn next(claim: &PersistentVolumeClaim, volume: &PersistentVolume) -> Step {
    let status = claim.status.clone().unwrap_or_default();
    let Some(source) = volume.spec.as_ref().and_then(|spec| spec.csi.as_ref()) else { return Step::Nothing };
    let (Some(has), true) = (amount(status.capacity.as_ref()), status.phase.as_deref() == Some("Bound"))
    else {
        return Step::Nothing;
    };
    let (wants, grown) = (requested(claim), capacity(volume));
    if wants <= has && grown <= has {
        return Step::Nothing;
    }
    if source.driver != DRIVER {
        let named = claim.annotations().get(RESIZER).is_some_and(|own| *own == source.driver);
        return if named || wants <= has { Step::Nothing } else { Step::NameResizer(source.driver.clone()) };
    }
    let allocated = amount(status.allocated_resources.as_ref());
    let state = status.allocated_resource_statuses.as_ref().and_then(|all| all.get(STORAGE)).cloned();
    if grown < wants {
        let size =
            claim.spec.as_ref().and_then(|spec| spec.resources.as_ref()?.requests.as_ref()?.get(STORAGE));
        let size = size.cloned().unwrap_or_default();
        let marked = allocated == Some(wants) && state.as_deref() == Some("ControllerResizeInProgress");
        return if marked { Step::GrowVolume(size) } else { Step::MarkResizing(size) };
    }
    let awaits = matches!(state.as_deref(), Some("NodeResizePending" | "NodeResizeInProgress"));
    if awaits && allocated == Some(grown) {
        return Step::Nothing;
    }
    let size = volume.spec.as_ref().and_then(|spec| spec.capacity.as_ref()?.get(STORAGE));
    Step::AwaitNode(size.cloned().unwrap_or_default())
}

type Quantities = std::collections::BTreeMap<String, ApiQuantity>;

fn amount(quantities: Option<&Quantities>) -> Option<Quantity> {
    Quantity::parse(&quantities?.get(STORAGE)?.0).ok()
}

/// A claim's status while it grows to `size`.
fn growing(
    mut status: PersistentVolumeClaimStatus,
    size: &ApiQuantity,
    state: &str,
    condition: (&str, &str),
    now: Timestamp,
) -> PersistentVolumeClaimStatus {
    status.allocated_resources.get_or_insert_default().insert(STORAGE.into(), size.clone());
    status.allocated_resource_statuses.get_or_insert_default().insert(STORAGE.into(), state.into());
    let conditions = status.conditions.get_or_insert_default();
    conditions.retain(|each| ![RESIZING, NODE_PENDING].contains(&each.type_.as_str()));
    conditions.push(PersistentVolumeClaimCondition {
        type_: condition.0.into(),
        status: "True".into(),
        message: Some(condition.1.into()).filter(|message: &String| !message.is_empty()),
        last_transition_time: Some(Time(now)),
        ..Default::default()
    });
    status
}

struct Controller {
    client: Client,
    claims: Informer<PersistentVolumeClaim>,
    volumes: Informer<PersistentVolume>,
    recorder: Recorder,
}

pub fn start(context: &Context) -> Running {
    let builder = context.controller(CONTROLLER);
    let (claims, volumes) = (builder.informer::<PersistentVolumeClaim>(), builder.informer());
    let controller = Arc::new(Controller {
        client: context.client.clone(),
        claims: claims.clone(),
        volumes: volumes.clone(),
        recorder: context.recorder("volume_expand"),
    });
    builder
        .of(&claims, controller)
        .watches(&volumes, |_, event: &ferry_client::Event<PersistentVolume>| {
            let claim = event.object().spec.as_ref().and_then(|spec| spec.claim_ref.clone());
            claim
                .map(|claim| {
                    NamespacedName::new(claim.namespace.unwrap_or_default(), claim.name.unwrap_or_default())
                })
                .into_iter()
                .collect()
        })
        .run(Controller::reconcile)
}

impl Controller {
    async fn reconcile(self: Arc<Self>, key: NamespacedName) -> Result<Outcome, Error> {
        let Some(claim) = self.claims.get(&key).filter(|claim| claim.metadata.deletion_timestamp.is_none())
        else {
            return Ok(Outcome::Done);
        };
        let name = claim.spec.as_ref().and_then(|spec| spec.volume_name.clone()).unwrap_or_default();
        let Some(volume) = self.volumes.get(&NamespacedName::cluster(&name)) else {
            return Ok(Outcome::Done);
        };
        let reference = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref()?.uid.clone());
        if reference != claim.uid() {
            return Ok(Outcome::Done);
        }
        let claims: Api<PersistentVolumeClaim> = Api::namespaced(self.client.clone(), &key.namespace);
        // each step is a write, whose event calls for the next
        match next(&claim, &volume) {
            Step::Nothing => {}
            Step::NameResizer(driver) => {
                let note = "waiting for an external controller to expand this PVC";
                self.recorder.event(&*claim, EventType::Normal, "ExternalExpanding", "Expand", note);
                let patch = json!({"metadata": {"annotations": {RESIZER: driver}}});
                let parameters = PatchParams::default();
                let written = claims.patch_status(&key.name, &parameters, &Patch::Merge(patch)).await;
                error::ignore_not_found(written).attempting("name the resizer")?;
            }
            Step::MarkResizing(size) => {
                let note = format!("External resizer is resizing volume {name}");
                self.recorder.event(&*claim, EventType::Normal, "Resizing", "Expand", note);
                let status = claim.status.clone().unwrap_or_default();
                let state = "ControllerResizeInProgress";
                let status = growing(status, &size, state, (RESIZING, ""), Timestamp::now());
                self.write_status(&claims, &claim, status).await?;
            }
            Step::GrowVolume(size) => {
                let mut next = (*volume).clone();
                let capacity = next.spec.get_or_insert_default().capacity.get_or_insert_default();
                capacity.insert(STORAGE.into(), size);
                let volumes: Api<PersistentVolume> = Api::all(self.client.clone());
                let written = volumes.replace(&name, &PostParams::default(), &next).await;
                error::ignore_not_found(written).attempting("grow volume")?;
            }
            Step::AwaitNode(size) => {
                let note = "Require file system resize of volume on node";
                self.recorder.event(&*claim, EventType::Normal, "FileSystemResizeRequired", "Expand", note);
                let status = claim.status.clone().unwrap_or_default();
                let words =
                    "Waiting for user to (re-)start a pod to finish file system resize of volume on node.";
                let condition = (NODE_PENDING, words);
                let status = growing(status, &size, "NodeResizePending", condition, Timestamp::now());
                self.write_status(&claims, &claim, status).await?;
            }
        }
        Ok(Outcome::Done)
    }

    async fn write_status(
        &self,
        claims: &Api<PersistentVolumeClaim>,
        claim: &PersistentVolumeClaim,
        status: PersistentVolumeClaimStatus,
    ) -> Result<(), Error> {
        let next = PersistentVolumeClaim { status: Some(status), ..claim.clone() };
        let written = claims.replace_status(&next.name_any(), &PostParams::default(), &next).await;
        error::ignore_not_found(written).attempting("write claim status")?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn claim(wants: &str, status: Value) -> PersistentVolumeClaim {
        serde_json::from_value(json!({"metadata": {"name": "data"}, "status": status,
            "spec": {"volumeName": "v", "resources": {"requests": {"storage": wants}}}}))
        .expect("a claim")
    }

    fn volume(size: &str, driver: &str) -> PersistentVolume {
        serde_json::from_value(json!({"metadata": {"name": "v"},
            "spec": {"capacity": {"storage": size}, "csi": {"driver": driver, "volumeHandle": "v"}}}))
        .expect("a volume")
    }

    fn bound(has: &str) -> Value {
        json!({"phase": "Bound", "capacity": {"storage": has}})
    }

    #[test]
    fn a_claim_grows_step_by_step() {
        let two = || ApiQuantity("2Gi".into());
        assert_eq!(next(&claim("1Gi", bound("1Gi")), &volume("1Gi", DRIVER)), Step::Nothing);
        let asking = claim("2Gi", bound("1Gi"));
        assert_eq!(next(&asking, &volume("1Gi", DRIVER)), Step::MarkResizing(two()));
        let status = |state: &str| {
            growing(asking.status.clone().unwrap(), &two(), state, (RESIZING, ""), Timestamp::UNIX_EPOCH)
        };
        let with = |state| PersistentVolumeClaim { status: Some(status(state)), ..asking.clone() };
        assert_eq!(
            next(&with("ControllerResizeInProgress"), &volume("1Gi", DRIVER)),
            Step::GrowVolume(two())
        );
        assert_eq!(next(&with("ControllerResizeInProgress"), &volume("2Gi", DRIVER)), Step::AwaitNode(two()));
        assert_eq!(next(&with("NodeResizePending"), &volume("2Gi", DRIVER)), Step::Nothing);
        assert_eq!(next(&with("NodeResizeInProgress"), &volume("2Gi", DRIVER)), Step::Nothing);
        assert_eq!(next(&claim("2Gi", bound("2Gi")), &volume("2Gi", DRIVER)), Step::Nothing);
        // more is asked for while the node has not come to it
        let mut more = with("NodeResizePending");
        more.spec = claim("3Gi", Value::Null).spec;
        assert_eq!(next(&more, &volume("2Gi", DRIVER)), Step::MarkResizing(ApiQuantity("3Gi".into())));
    }

    #[test]
    fn conditions_follow_the_step() {
        let status = claim("2Gi", bound("1Gi")).status.unwrap();
        let size = ApiQuantity("2Gi".into());
        let at = Timestamp::UNIX_EPOCH;
        let first = growing(status, &size, "ControllerResizeInProgress", (RESIZING, ""), at);
        let second = growing(first, &size, "NodeResizePending", (NODE_PENDING, "words"), at);
        let conditions = second.conditions.unwrap();
        assert_eq!(conditions.len(), 1);
        assert_eq!(conditions[0].type_, NODE_PENDING);
        assert_eq!(second.allocated_resources.unwrap()["storage"], size);
    }

    #[test]
    fn volumes_of_other_drivers_grow_elsewhere() {
        let asking = claim("2Gi", bound("1Gi"));
        let others = volume("1Gi", "disk.example");
        assert_eq!(next(&asking, &others), Step::NameResizer("disk.example".into()));
        let mut named = asking;
        named.annotations_mut().insert(RESIZER.into(), "disk.example".into());
        assert_eq!(next(&named, &others), Step::Nothing);
        assert_eq!(next(&claim("2Gi", json!({"phase": "Pending"})), &others), Step::Nothing);
    }
}
