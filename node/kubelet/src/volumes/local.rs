//! Volumes that are directories of this node, `ROOT/local-volumes/NAME`: made for the first pod that mounts one, grown
//! with its claim, removed when it is deleted (see [`super::reclaim`]).
//!
//! The name is the volume's own and one part of a path; whatever else stands in a PersistentVolume leads nowhere. The
//! kubelet marks a volume whose directory it has made with a finalizer, so that a directory which is missing later is
//! told as such instead of being made again, empty.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

use ferry_api::local_volume::{self, FINALIZER};
use ferry_api::quantity::Quantity;
use ferry_client::{EventType, Recorder};
use ferry_linux::{quota, tree};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use kube::api::{Api, Patch, PatchParams};
use serde_json::{Value, json};
use tokio_util::task::TaskTracker;

use super::{Problem, io};
use crate::blocking::blocking;

const STORAGE: &str = "storage";

/// Why a volume cannot be mounted here.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum Refused {
    #[error("volume handle {0:?} is not the volume's name")]
    Handle(String),
    #[error("the volume is a directory of node {0:?}")]
    Elsewhere(String),
    #[error("the volume is being deleted")]
    Deleting,
    #[error("directory {0} of the volume is missing on this node: its data is lost")]
    Missing(String),
    #[error("{0} is no directory")]
    NoDirectory(String),
}

/// What a volume's directory needs before it is mounted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Use,
    /// It is there and not marked: it was retained, or we ended between making and marking it.
    Mark,
    Make,
}

fn step(volume: &PersistentVolume, node: &str, path: &Path, is_there: bool) -> Result<Step, Refused> {
    if let Some(other) = local_volume::node(volume).filter(|own| *own != node) {
        return Err(Refused::Elsewhere(other.into()));
    }
    let deleting = volume.metadata.deletion_timestamp.is_some();
    match (is_there, local_volume::is_made(volume)) {
        (true, true) => Ok(Step::Use),
        (false, true) => Err(Refused::Missing(path.display().to_string())),
        // a finalizer cannot be added any more
        (_, false) if deleting => Err(Refused::Deleting),
        (true, false) => Ok(Step::Mark),
        (false, false) => Ok(Step::Make),
    }
}

pub struct LocalVolumes {
    root: PathBuf,
    node: String,
    events: Recorder,
    /// Two pods may be the first of a volume at the same time.
    making: tokio::sync::Mutex<()>,
}

impl LocalVolumes {
    pub fn new(root_dir: &Path, node: &str, events: Recorder) -> Self {
        Self { root: root_dir.join("local-volumes"), node: node.into(), events, making: Default::default() }
    }

    pub fn node(&self) -> &str {
        &self.node
    }

    /// Where a volume's directory is, or would be.
    pub fn path(&self, volume: &PersistentVolume) -> Result<PathBuf, Refused> {
        match local_volume::directory(volume) {
            Some(name) => Ok(self.root.join(name)),
            None => {
                let source = volume.spec.as_ref().and_then(|spec| spec.csi.as_ref());
                Err(Refused::Handle(source.map(|source| source.volume_handle.clone()).unwrap_or_default()))
            }
        }
    }

    /// A volume's directory, as large as its claim has become.
    pub(super) async fn set_up(
        &self,
        client: &kube::Client,
        pod: &Pod,
        claim: &PersistentVolumeClaim,
        volume: &PersistentVolume,
        work: &TaskTracker,
    ) -> Result<PathBuf, Problem> {
        let path = self.path(volume)?;
        if step(volume, &self.node, &path, is_directory(&path)?)? != Step::Use {
            self.make(client, claim, volume, &path, work).await?;
        }
        if let Some(status) = grown(claim, volume) {
            self.grow(client, pod, claim, volume, &path, status, work).await?;
        }
        Ok(path)
    }

    async fn make(
        &self,
        client: &kube::Client,
        claim: &PersistentVolumeClaim,
        volume: &PersistentVolume,
        path: &Path,
        work: &TaskTracker,
    ) -> Result<(), Problem> {
        let name = volume.metadata.name.clone().unwrap_or_default();
        let volumes: Api<PersistentVolume> = Api::all(client.clone());
        let _alone = self.making.lock().await;
        let volume = volumes.get(&name).await?;
        let step = step(&volume, &self.node, path, is_directory(path)?)?;
        if step == Step::Use {
            return Ok(());
        }
        let (root, at, bytes) = (self.root.clone(), path.to_owned(), capacity(&volume));
        let kept = blocking(work, move || make_directory(&root, &at, bytes))
            .await
            .map_err(io("making the volume's directory"))?;
        let mut finalizers = volume.metadata.finalizers.clone().unwrap_or_default();
        finalizers.push(FINALIZER.into());
        if let Err(error) = write_finalizers(&volumes, &volume, &finalizers).await {
            // only an empty one goes: nobody has used it yet
            if step == Step::Make && fs::remove_dir(path).is_ok() {
                tracing::debug!(volume = name, "unmarked directory removed");
            }
            return Err(error.into());
        }
        if !kept {
            self.tell_unlimited(claim, &volume);
        }
        Ok(())
    }

    fn tell_unlimited(&self, claim: &PersistentVolumeClaim, volume: &PersistentVolume) {
        let size = storage(volume.spec.as_ref().and_then(|spec| spec.capacity.as_ref()));
        let note = format!(
            "The file system of node {:?} has no project quotas: volume {:?} is not kept to its size of {}",
            self.node,
            volume.metadata.name.as_deref().unwrap_or_default(),
            size.unwrap_or_default(),
        );
        self.events.event(claim, EventType::Normal, "VolumeSizeNotEnforced", "Mount", note);
    }

    /// Lets a volume hold what its claim was promised, and says so in the claim.
    #[allow(clippy::too_many_arguments)]
    async fn grow(
        &self,
        client: &kube::Client,
        pod: &Pod,
        claim: &PersistentVolumeClaim,
        volume: &PersistentVolume,
        path: &Path,
        status: Value,
        work: &TaskTracker,
    ) -> Result<(), Problem> {
        let (at, bytes) = (path.to_owned(), capacity(volume));
        let limited = blocking(work, move || limit(&at, bytes)).await.map_err(io("growing the volume"))?;
        let metadata = json!({"resourceVersion": claim.metadata.resource_version});
        let patch = Patch::Merge(json!({"metadata": metadata, "status": status}));
        let namespace = claim.metadata.namespace.as_deref().unwrap_or_default();
        let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), namespace);
        let name = claim.metadata.name.as_deref().unwrap_or_default();
        claims.patch_status(name, &PatchParams::default(), &patch).await?;
        let name = volume.metadata.name.as_deref().unwrap_or_default();
        let note = format!("MountVolume.NodeExpandVolume succeeded for volume \"{name}\" {}", self.node);
        let reason = "FileSystemResizeSuccessful";
        self.events.event(pod, EventType::Normal, reason, "Mount", note.clone());
        self.events.event(claim, EventType::Normal, reason, "Mount", note);
        if !limited {
            self.tell_unlimited(claim, volume);
        }
        Ok(())
    }

    /// Removes a volume's directory with all that is in it. One that is gone is gone; links are not followed, and
    /// where something is mounted nothing of that is removed, which is an error.
    pub fn remove(&self, volume: &PersistentVolume) -> io::Result<()> {
        let path =
            self.path(volume).map_err(|refused| io::Error::new(io::ErrorKind::InvalidInput, refused))?;
        let project = quota::project(&path).unwrap_or_default();
        tree::remove(&path)?;
        if let Some(project) = project {
            quota::release(&self.root, project)?;
        }
        Ok(())
    }
}

/// Whether a directory is there. A link or a file in its place is an error: it is nothing that we have made.
fn is_directory(path: &Path) -> Result<bool, Problem> {
    match fs::symlink_metadata(path) {
        Ok(metadata) if metadata.is_dir() => Ok(true),
        Ok(_) => Err(Refused::NoDirectory(path.display().to_string()).into()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(io("looking at the volume")(error)),
    }
}

/// Makes a directory for whichever user a pod runs as; nobody else gets into the root. `false` where its size is not
/// kept.
fn make_directory(root: &Path, path: &Path, bytes: u64) -> io::Result<bool> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(root)?;
    match fs::create_dir(path) {
        Ok(()) => fs::set_permissions(path, fs::Permissions::from_mode(0o777))?,
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(error),
    }
    limit(path, bytes)
}

fn limit(path: &Path, bytes: u64) -> io::Result<bool> {
    // a volume without a size has none that could be kept
    if bytes == 0 { Ok(true) } else { quota::limit(path, bytes) }
}

/// Writes what a volume's finalizers are, unless somebody else has changed the volume meanwhile.
pub(super) async fn write_finalizers(
    volumes: &Api<PersistentVolume>,
    volume: &PersistentVolume,
    finalizers: &[String],
) -> kube::Result<()> {
    let metadata = json!({
        "finalizers": finalizers,
        "resourceVersion": volume.metadata.resource_version,
        "uid": volume.metadata.uid,
    });
    let name = volume.metadata.name.as_deref().unwrap_or_default();
    let patch = Patch::Merge(json!({"metadata": metadata}));
    volumes.patch(name, &PatchParams::default(), &patch).await.map(|_| ())
}

type Quantities = BTreeMap<String, k8s_openapi::apimachinery::pkg::api::resource::Quantity>;

fn storage(amounts: Option<&Quantities>) -> Option<String> {
    amounts.and_then(|amounts| amounts.get(STORAGE)).map(|amount| amount.0.clone())
}

fn bytes(amounts: Option<&Quantities>) -> Option<Quantity> {
    Quantity::parse(&storage(amounts)?).ok()
}

pub(super) fn capacity(volume: &PersistentVolume) -> u64 {
    let amount = bytes(volume.spec.as_ref().and_then(|spec| spec.capacity.as_ref()));
    amount.map_or(0, |amount| u64::try_from(amount.value()).unwrap_or(0))
}

/// The status of a claim whose volume has become larger, as a merge patch; `None` while there is nothing to do.
pub(super) fn grown(claim: &PersistentVolumeClaim, volume: &PersistentVolume) -> Option<Value> {
    let status = claim.status.as_ref()?;
    let states = status.allocated_resource_statuses.as_ref();
    let waits = match states.and_then(|states| states.get(STORAGE)) {
        Some(state) => matches!(state.as_str(), "NodeResizePending" | "NodeResizeInProgress"),
        // what resizers say that know no states
        None => status
            .conditions
            .iter()
            .flatten()
            .any(|condition| condition.type_ == "FileSystemResizePending" && condition.status == "True"),
    };
    if !waits {
        return None;
    }
    let size = volume.spec.as_ref()?.capacity.as_ref();
    if bytes(size)? <= bytes(status.capacity.as_ref())? {
        return None;
    }
    let conditions: Vec<_> = status.conditions.iter().flatten().collect();
    let others = conditions
        .into_iter()
        .filter(|condition| !["Resizing", "FileSystemResizePending"].contains(&condition.type_.as_str()));
    let others: Vec<_> = others.collect();
    Some(json!({
        "capacity": {STORAGE: storage(size)?},
        "allocatedResourceStatuses": if states.is_some_and(|states| states.len() > 1) { json!({STORAGE: null}) } else { Value::Null },
        "conditions": if others.is_empty() { Value::Null } else { json!(others) },
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferry_api::local_volume::{DRIVER, NODE};

    fn volume(name: &str, handle: &str) -> PersistentVolume {
        serde_json::from_value(json!({"metadata": {"name": name}, "spec": {
            "capacity": {"storage": "2Gi"},
            "csi": {"driver": DRIVER, "volumeHandle": handle, "volumeAttributes": {NODE: "n1"}}}}))
        .expect("a volume")
    }

    fn marked(mut volume: PersistentVolume) -> PersistentVolume {
        volume.metadata.finalizers = Some(vec![FINALIZER.into()]);
        volume
    }

    fn deleting(mut volume: PersistentVolume) -> PersistentVolume {
        volume.metadata.deletion_timestamp =
            Some(serde_json::from_value(json!("2026-01-01T00:00:00Z")).expect("a time"));
        volume
    }

    #[test]
    fn a_directory_is_made_once_and_missed_afterwards() {
        let at = Path::new("/v");
        let does = |volume: &PersistentVolume, is_there| step(volume, "n1", at, is_there);
        let new = volume("v", "v");
        assert_eq!(does(&new, false), Ok(Step::Make));
        assert_eq!(does(&new, true), Ok(Step::Mark));
        assert_eq!(does(&marked(new.clone()), true), Ok(Step::Use));
        assert_eq!(does(&marked(new.clone()), false), Err(Refused::Missing("/v".into())));
        assert_eq!(does(&deleting(new.clone()), false), Err(Refused::Deleting));
        assert_eq!(does(&deleting(new.clone()), true), Err(Refused::Deleting));
        assert_eq!(does(&deleting(marked(new.clone())), true), Ok(Step::Use), "a pod that runs goes on");
        assert_eq!(step(&new, "n2", at, false), Err(Refused::Elsewhere("n1".into())));
    }

    #[test]
    fn no_volume_leads_out_of_the_root() {
        let folder = tempfile::tempdir().expect("a directory can be made");
        let local = LocalVolumes::new(&folder.path().join("kubelet"), "n1", Recorder::silent());
        let outside = folder.path().join("outside");
        fs::create_dir(&outside).expect("a directory can be made");
        fs::write(outside.join("kept"), "").expect("a file can be written");
        for handle in
            ["../outside", "/etc", "..", ".", "", "a/../../outside", outside.to_str().expect("text")]
        {
            assert!(local.path(&volume(handle, handle)).is_err(), "{handle}");
            assert!(local.path(&volume("v", handle)).is_err(), "{handle}");
            assert!(local.remove(&volume(handle, handle)).is_err(), "{handle}");
        }
        // a link where the directory should be, and links in it
        let own = volume("v", "v");
        let path = local.path(&own).expect("a good name");
        assert!(make_directory(&local.root, &path, 0).expect("it can be made"));
        assert_eq!(fs::metadata(&path).expect("it is there").permissions().mode() & 0o7777, 0o777);
        assert_eq!(fs::metadata(&local.root).expect("it is there").permissions().mode() & 0o7777, 0o700);
        std::os::unix::fs::symlink(&outside, path.join("link")).expect("a link can be made");
        local.remove(&own).expect("it can be removed");
        local.remove(&own).expect("what is gone is gone");
        assert!(!path.exists() && outside.join("kept").exists());
        std::os::unix::fs::symlink(&outside, &path).expect("a link can be made");
        assert!(matches!(is_directory(&path), Err(Problem::Local(Refused::NoDirectory(_)))));
        local.remove(&own).expect("the link can be removed");
        assert!(outside.join("kept").exists());
    }

    #[test]
    fn local_volumes_with_mounts_inside_are_not_removed() {
        let folder = tempfile::tempdir().expect("a directory can be made");
        let local = LocalVolumes::new(folder.path(), "n1", Recorder::silent());
        let own = volume("v", "v");
        let path = local.path(&own).expect("a good name");
        make_directory(&local.root, &path, 0).expect("it can be made");
        let users = folder.path().join("users");
        fs::create_dir_all(path.join("mounted")).expect("a directory can be made");
        fs::create_dir(&users).expect("a directory can be made");
        fs::write(users.join("kept"), "").expect("a file can be written");
        if let Err(error) = ferry_linux::mount::bind(&users, &path.join("mounted"), false) {
            return ferry_skip::missing(&format!("the right to mount: {error}"));
        }
        let removed = local.remove(&own);
        ferry_linux::mount::unmount(&path.join("mounted")).expect("it can be unmounted");
        assert!(removed.is_err());
        assert!(users.join("kept").exists());
    }

    #[test]
    fn a_claim_has_grown_when_its_node_was_waited_for() {
        let claim = |has: &str, state: &str| -> PersistentVolumeClaim {
            serde_json::from_value(json!({"metadata": {"name": "data"}, "status": {
                "capacity": {"storage": has}, "allocatedResourceStatuses": {"storage": state},
                "conditions": [{"type": "FileSystemResizePending", "status": "True"},
                    {"type": "ModifyingVolume", "status": "True"}]}}))
            .expect("a claim")
        };
        let own = volume("v", "v");
        assert_eq!(grown(&claim("2Gi", "NodeResizePending"), &own), None);
        assert_eq!(grown(&claim("1Gi", "ControllerResizeInProgress"), &own), None);
        let status = grown(&claim("1Gi", "NodeResizePending"), &own).expect("it has grown");
        assert_eq!(status["capacity"]["storage"], "2Gi");
        assert_eq!(status["allocatedResourceStatuses"], Value::Null);
        assert_eq!(status["conditions"].as_array().expect("a list").len(), 1);
    }
}
