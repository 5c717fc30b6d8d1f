//! Volumes of CSI drivers: staged once for a node and published for each pod by drivers that have
//! [registered](registration), taken away again when the pod has ended.
//!
//! ```text
//!   VolumeAttachment ──▶ NodeStageVolume ──▶ NodePublishVolume ──▶ the pod's containers
//!   (attach_detach)      first pod           each pod
//!
//!   NodeUnpublishVolume ──▶ NodeUnstageVolume ──▶ volumesInUse without it ──▶ detached
//!   each pod                last pod
//! ```
//!
//! What is asked of a driver is written down first ([`record`]), so that a kubelet that was restarted, or was not there
//! when a pod was deleted, takes away what another has mounted. Calls go on though nobody waits for them any more;
//! drivers may be asked the same twice, as the protocol allows.

pub mod allocatable;
pub mod attachment;
pub mod drivers;
pub mod in_use;
pub mod mount;
pub mod node_info;
pub mod record;
pub mod registration;
pub mod request;
pub mod stats;
mod unmount;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io;
use std::path::Path;
use std::sync::{Arc, Weak};
use std::time::Duration;

use ferry_client::Recorder;
use k8s_openapi::api::core::v1::{Node, Pod};
use parking_lot::Mutex;
use tokio::sync::{OwnedMutexGuard, watch};
use tokio_util::task::TaskTracker;

use super::tokens::{self, Tokens};
use crate::pod;
use crate::pods::Pods;
use drivers::Drivers;
use in_use::InUse;
use record::Paths;
use registration::{NodeDrivers, Registration};

/// Volumes that no pod uses are looked for this often, besides whenever a driver comes.
const UNUSED_PERIOD: Duration = Duration::from_secs(60);

#[derive(Debug, thiserror::Error)]
pub enum Problem {
    #[error("{doing}: {source}")]
    Driver { doing: &'static str, source: drivers::Error },
    #[error(transparent)]
    Call(#[from] drivers::Error),
    #[error("kubernetes.io/csi: {0}")]
    Refused(String),
    #[error("{0}")]
    Attachment(String),
    /// The node cannot attach more volumes.
    #[error("{0}")]
    AttachLimit(String),
    #[error("volume uses the ReadWriteOncePod access mode and is already in use by another pod")]
    InUse,
    #[error("fetching {kind} {namespace}/{name} failed: {source}")]
    Secret { kind: &'static str, namespace: String, name: String, source: kube::Error },
    #[error("kubernetes.io/csi: mounter.SetUpAt failed to get service accoount token attributes: {0}")]
    Token(#[from] tokens::Error),
    #[error("{action}: {source}")]
    Io { action: &'static str, source: io::Error },
    #[error(transparent)]
    Api(#[from] kube::Error),
    #[error("no API server")]
    NoServer,
}

fn io_problem(action: &'static str) -> impl FnOnce(io::Error) -> Problem {
    move |source| Problem::Io { action, source }
}

/// What failed for which volume, in upstream's words.
#[derive(Debug, thiserror::Error)]
#[error("{step} failed for volume \"{volume}\" : {source}")]
pub struct Failed {
    step: &'static str,
    volume: String,
    source: Problem,
}

impl Failed {
    /// Whether the node has as many volumes as it can attach.
    pub fn exceeds_attach_limit(&self) -> bool {
        matches!(self.source, Problem::AttachLimit(_))
    }

    pub fn volume(&self) -> &str {
        &self.volume
    }

    /// The event's reason.
    pub fn reason(&self) -> &'static str {
        if self.step.starts_with("MapVolume") { "FailedMapVolume" } else { "FailedMount" }
    }
}

pub struct Config<'a> {
    pub root_dir: &'a Path,
    pub node_name: &'a str,
    pub client: Option<kube::Client>,
    pub tokens: Arc<Tokens>,
    pub events: Recorder,
    /// The node as the API has it.
    pub node: watch::Receiver<Option<Arc<Node>>>,
    pub in_use: InUse,
}

pub struct Csi {
    paths: Paths,
    node_name: String,
    client: Option<kube::Client>,
    tokens: Arc<Tokens>,
    events: Recorder,
    node: watch::Receiver<Option<Arc<Node>>>,
    pub in_use: InUse,
    pub drivers: Arc<Drivers>,
    pub node_drivers: Arc<NodeDrivers>,
    /// Who has a volume staged, published or taken away does so alone.
    busy: Mutex<BTreeMap<String, Weak<tokio::sync::Mutex<()>>>>,
    /// What this kubelet has staged.
    staged: Mutex<HashSet<String>>,
    /// What it has published, by the uid of the pod and the volume's name.
    published: Mutex<HashMap<(String, String), mount::Published>>,
    measured: stats::Measured,
    /// What is begun at drivers and is no pod's.
    work: TaskTracker,
}

impl Csi {
    /// Takes up what a former kubelet left.
    pub fn new(config: Config<'_>) -> io::Result<Self> {
        let paths = Paths::new(config.root_dir);
        config.in_use.take_up(&paths)?;
        Ok(Self {
            paths,
            node_name: config.node_name.into(),
            node_drivers: Arc::new(NodeDrivers::new(config.client.clone(), config.node_name)),
            client: config.client,
            tokens: config.tokens,
            events: config.events,
            node: config.node,
            in_use: config.in_use,
            drivers: Arc::default(),
            busy: Mutex::default(),
            staged: Mutex::default(),
            published: Mutex::default(),
            measured: stats::Measured::default(),
            work: TaskTracker::new(),
        })
    }

    /// What takes up drivers that register.
    pub fn registration(&self) -> Registration {
        Registration::new(self.drivers.clone(), self.node_drivers.clone(), self.work.clone())
    }

    /// Waits until nothing goes on at drivers any more; call after the stop.
    pub async fn stopped(&self) {
        self.work.close();
        self.work.wait().await;
    }

    async fn alone(&self, volume: &str) -> OwnedMutexGuard<()> {
        let lock = {
            let mut busy = self.busy.lock();
            busy.retain(|_, lock| lock.strong_count() > 0);
            let lock = busy.get(volume).and_then(Weak::upgrade).unwrap_or_default();
            busy.insert(volume.into(), Arc::downgrade(&lock));
            lock
        };
        lock.lock_owned().await
    }
}

/// Wakes the workers that may wait for a driver when one comes. Starts when every source of pods has spoken.
pub async fn follow_drivers(csi: &Csi, pods: &Pods) {
    let mut changes = csi.drivers.changes();
    while changes.changed().await.is_ok() {
        for pod in pods.list().iter().filter(|pod| may_have_volumes(pod)) {
            pods.wake(pod::uid(pod));
        }
    }
}

/// Unstages volumes that no pod uses any more, again and again. Starts when every source of pods has spoken.
pub async fn unstage_unused(csi: &Arc<Csi>) {
    let mut changes = csi.drivers.changes();
    loop {
        csi.unstage_unused().await;
        tokio::select! {
            changed = changes.changed() => {
                if changed.is_err() {
                    return;
                }
            }
            () = tokio::time::sleep(UNUSED_PERIOD) => {}
        }
    }
}

fn may_have_volumes(pod: &Pod) -> bool {
    let mut volumes = pod::spec(pod).volumes.iter().flatten();
    volumes.any(|volume| {
        volume.csi.is_some() || volume.persistent_volume_claim.is_some() || volume.ephemeral.is_some()
    })
}

#[cfg(test)]
mod tests;
