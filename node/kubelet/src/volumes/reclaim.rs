//! What becomes of this node's directories when their volumes are deleted: they are removed, or kept where the volume
//! says `Retain`. The volume stays in the API, held by our finalizer, until that is done.

use std::sync::Arc;
use std::time::Duration;

use ferry_api::local_volume::{self, FINALIZER, NODE};
use ferry_client::controller::Builder;
use ferry_client::{
    Attempt, Client, Error, EventType, Informer, Informers, NamespacedName, Outcome, Selection, error,
};
use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::PersistentVolume;
use kube::api::Api;
use tokio_util::task::TaskTracker;

use super::local::write_finalizers;
use crate::blocking::blocking;
use crate::context::Context;

/// Upstream's: somebody still uses the volume.
const PROTECTION: &str = "kubernetes.io/pv-protection";
/// Before a directory is tried again that could not be removed.
const PAUSE: Duration = Duration::from_secs(15);

/// What to do about a volume's directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reclaim {
    Nothing,
    Remove,
    /// The volume goes, its data stays.
    Keep,
}

fn reclaim(volume: &PersistentVolume, node: &str) -> Reclaim {
    let finalizers = volume.metadata.finalizers.as_deref().unwrap_or_default();
    let protected = finalizers.iter().any(|finalizer| finalizer == PROTECTION);
    if local_volume::node(volume) != Some(node)
        || volume.metadata.deletion_timestamp.is_none()
        || !local_volume::is_made(volume)
        || protected
    {
        return Reclaim::Nothing;
    }
    let policy = volume.spec.as_ref().and_then(|spec| spec.persistent_volume_reclaim_policy.as_deref());
    // of a policy that is not known nothing is lost
    if policy == Some("Delete") { Reclaim::Remove } else { Reclaim::Keep }
}

struct Directories {
    context: Arc<Context>,
    client: Client,
    volumes: Informer<PersistentVolume>,
}

/// Follows the volumes that are directories of this node.
pub fn follow(context: Arc<Context>, client: Client, informers: &Informers) -> BoxFuture<'static, ()> {
    let builder = Builder::new("local-volumes", informers.clone(), 1);
    let labels = Some(format!("{NODE}={}", context.config.node_name));
    let volumes = builder.selected::<PersistentVolume>(Selection { fields: None, labels });
    let state = Directories { context, client, volumes: volumes.clone() };
    builder.of(&volumes, Arc::new(state)).run(Directories::reconcile)
}

impl Directories {
    async fn reconcile(self: Arc<Self>, key: NamespacedName) -> Result<Outcome, Error> {
        let Some(volume) = self.volumes.get(&key) else { return Ok(Outcome::Done) };
        match reclaim(&volume, self.context.volumes.local().node()) {
            Reclaim::Nothing => return Ok(Outcome::Done),
            Reclaim::Keep => tracing::info!(volume = key.name, "deleted the volume and kept its directory"),
            Reclaim::Remove => {
                let (context, own) = (self.context.clone(), volume.clone());
                let remove = move || context.volumes.local().remove(&own);
                if let Err(error) = blocking(&TaskTracker::new(), remove).await {
                    tracing::warn!(volume = key.name, %error, "volume's directory not removed");
                    let note = error.to_string();
                    let events = &self.context.events;
                    events.event(&*volume, EventType::Warning, "VolumeFailedDelete", "Delete", note);
                    return Ok(Outcome::After(PAUSE));
                }
                tracing::info!(volume = key.name, "volume's directory removed");
            }
        }
        let finalizers = volume.metadata.finalizers.iter().flatten();
        let others: Vec<String> = finalizers.filter(|finalizer| *finalizer != FINALIZER).cloned().collect();
        let volumes: Api<PersistentVolume> = Api::all(self.client.clone());
        let written = write_finalizers(&volumes, &volume, &others).await;
        error::ignore_not_found(written).attempting("let a volume go")?;
        Ok(Outcome::Done)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferry_api::local_volume::DRIVER;
    use serde_json::json;

    #[test]
    fn a_directory_goes_only_with_a_deleted_volume_that_nobody_uses() {
        let check = |deleting: bool, finalizers: &[&str], policy: &str, node: &str, expected: Reclaim| {
            let mut volume: PersistentVolume = serde_json::from_value(json!({
                "metadata": {"name": "v", "finalizers": finalizers},
                "spec": {"persistentVolumeReclaimPolicy": policy,
                    "csi": {"driver": DRIVER, "volumeHandle": "v", "volumeAttributes": {NODE: "n1"}}}}))
            .expect("a volume");
            if deleting {
                let time = serde_json::from_value(json!("2026-01-01T00:00:00Z"));
                volume.metadata.deletion_timestamp = Some(time.expect("a time"));
            }
            assert_eq!(reclaim(&volume, node), expected, "{deleting} {finalizers:?} {policy} {node}");
        };
        check(true, &[FINALIZER], "Delete", "n1", Reclaim::Remove);
        check(true, &[FINALIZER, "another"], "Delete", "n1", Reclaim::Remove);
        check(true, &[FINALIZER, PROTECTION], "Delete", "n1", Reclaim::Nothing);
        check(true, &[FINALIZER], "Retain", "n1", Reclaim::Keep);
        check(true, &[FINALIZER], "Recycle", "n1", Reclaim::Keep);
        check(true, &[], "Delete", "n1", Reclaim::Nothing);
        check(false, &[FINALIZER], "Delete", "n1", Reclaim::Nothing);
        check(true, &[FINALIZER], "Delete", "n2", Reclaim::Nothing);
    }
}
