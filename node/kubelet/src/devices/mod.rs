//! Devices of ResourceClaims (dynamic resource allocation): drivers prepare them before a pod's containers start, and
//! take them back when the last pod that uses them has stopped.
//!
//! [`claims`] decides, [`Devices`] acts: it reads the pod's claims, calls each [driver](drivers) once for all of them, and
//! keeps what is prepared in a [`checkpoint`], written before a driver is asked, so that what may be prepared is never
//! forgotten. [`cdi`] stands in for runtimes that cannot hand devices in by name. Drivers come by [`crate::plugins`].

pub mod cdi;
pub mod checkpoint;
pub mod claims;
pub mod drivers;
mod health;
pub mod registration;
pub mod slices;

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::Duration;

use ferry_client::{CancellationToken, NamespacedName};
use k8s_openapi::api::core::v1::{Container, Pod, PodStatus};
use k8s_openapi::api::resource::v1::ResourceClaim;
use parking_lot::Mutex;
use tokio::sync::OwnedMutexGuard;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use crate::metrics;
use crate::pod;
use crate::pods::Pods;
use checkpoint::Device;
use claims::{Claims, answers};
use drivers::Drivers;
use health::Healths;

/// Upstream's.
const STATE_FILE: &str = "dra_manager_state";
/// Pods that are gone are looked for this often, besides whenever a driver comes.
const ORPHAN_PERIOD: Duration = Duration::from_secs(60);

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("fetch ResourceClaim {claim}: {problem}")]
    Fetch { claim: String, problem: String },
    #[error(transparent)]
    Claim(#[from] claims::Error),
    #[error(transparent)]
    Driver(#[from] drivers::Error),
    #[error(transparent)]
    Checkpoint(#[from] checkpoint::Error),
}

/// Tells the workers of pods that something of theirs changed.
pub type Wake = Arc<dyn Fn(&HashSet<String>) + Send + Sync>;

pub struct Devices {
    client: Option<kube::Client>,
    pub drivers: Drivers,
    claims: Mutex<Claims>,
    file: PathBuf,
    /// Who prepares or unprepares a claim does so alone: a claim that is on its way out must not gain a user.
    busy: Mutex<BTreeMap<NamespacedName, Weak<tokio::sync::Mutex<()>>>>,
    health: Arc<Healths>,
    wake: Wake,
    /// What follows drivers.
    followers: TaskTracker,
    pub spec_dirs: Vec<PathBuf>,
}

impl Devices {
    /// Takes up what a former kubelet prepared.
    pub fn new(client: Option<kube::Client>, root: &Path, wake: Wake) -> Result<Self, checkpoint::Error> {
        let file = root.join(STATE_FILE);
        let claims = Mutex::new(Claims::new(checkpoint::load(&file)?));
        Ok(Self {
            client,
            drivers: Drivers::new(),
            claims,
            file,
            busy: Mutex::default(),
            health: Arc::default(),
            wake,
            followers: TaskTracker::new(),
            spec_dirs: cdi::SPEC_DIRS.iter().map(PathBuf::from).collect(),
        })
    }

    /// A plugin of a driver has come. The error is for the plugin to read.
    pub fn register(
        self: &Arc<Self>,
        driver: &str,
        endpoint: &str,
        versions: &[String],
        stop: &CancellationToken,
    ) -> Result<(), String> {
        let gone = stop.child_token();
        let plugin = self.drivers.register(driver, endpoint, versions, gone.clone())?;
        let devices = self.clone();
        self.followers.spawn(async move {
            let follow = devices.health.follow(&plugin, |changed| {
                let is_changed = |device: &Device| {
                    changed.contains(&(device.pool_name.clone(), device.device_name.clone()))
                };
                let pods = devices.claims.lock().pods_with(&plugin.driver, is_changed);
                (devices.wake)(&pods.into_iter().collect());
            });
            tokio::select! {
                () = gone.cancelled() => {}
                () = follow => {}
            }
        });
        Ok(())
    }

    /// Waits until nothing follows drivers any more; call after the stop.
    pub async fn stopped(&self) {
        self.followers.close();
        self.followers.wait().await;
    }

    /// Has the devices of a pod's claims prepared. Done again it asks drivers only for what is missing.
    pub async fn prepare(&self, pod: &Pod) -> Result<(), Error> {
        let began = Instant::now();
        let result = self.prepare_claims(pod).await;
        metrics::devices_handled("PrepareResources", result.is_err(), began.elapsed());
        result
    }

    async fn prepare_claims(&self, pod: &Pod) -> Result<(), Error> {
        let references = claims::references(pod)?;
        if references.is_empty() {
            return Ok(());
        }
        let keys: BTreeSet<_> = references
            .iter()
            .map(|reference| NamespacedName::new(pod::namespace(pod), &reference.claim))
            .collect();
        let _alone = self.alone(&keys).await;
        // All is checked before anything is noted: a pod that cannot have its devices can be deleted though their
        // driver was never here.
        let mut found = Vec::new();
        for reference in &references {
            let claim = self.read(pod::namespace(pod), &reference.claim).await?;
            claims::check(pod, &claim, reference.must_be_owned)?;
            for driver in claims::drivers(&claim) {
                self.drivers.get(&driver)?;
            }
            found.push(claim);
        }
        let batches = {
            let mut claims = self.claims.lock();
            let batches = claims.use_by(pod::uid(pod), &found)?;
            self.save(&claims)?;
            batches
        };
        for (driver, batch) in batches {
            let mut span = ferry_trace::span("kubelet.driver");
            span.set("driver", driver.as_str()).set("call", "NodePrepareResources");
            let plugin = self.drivers.get(&driver)?;
            let answer = span.in_scope(plugin.prepare(batch.clone())).await.inspect_err(|error| {
                span.fail(error);
            })?;
            let devices = answers("NodePrepareResources", &batch, answer.claims, |each| &each.error)?;
            let devices = devices
                .into_iter()
                .map(|(key, answer)| (key, answer.devices.into_iter().map(Device::from).collect()));
            self.claims.lock().take_in(&driver, devices.collect());
        }
        let mut claims = self.claims.lock();
        claims.set_prepared(&keys.into_iter().collect::<Vec<_>>());
        Ok(self.save(&claims)?)
    }

    /// Has the devices taken back that nobody but this pod uses. Works from what is noted, also when the pod's claims
    /// are gone from the API.
    pub async fn unprepare(&self, uid: &str) -> Result<(), Error> {
        let began = Instant::now();
        let result = self.unprepare_claims(uid).await;
        metrics::devices_handled("UnprepareResources", result.is_err(), began.elapsed());
        result
    }

    async fn unprepare_claims(&self, uid: &str) -> Result<(), Error> {
        let keys = self.claims.lock().keys_of(uid);
        let _alone = self.alone(&keys).await;
        let release = self.claims.lock().release(uid);
        for (driver, batch) in &release.batches {
            let mut span = ferry_trace::span("kubelet.driver");
            span.set("driver", driver.as_str()).set("call", "NodeUnprepareResources");
            let plugin = self.drivers.get(driver)?;
            let answer = span.in_scope(plugin.unprepare(batch.clone())).await.inspect_err(|error| {
                span.fail(error);
            })?;
            answers("NodeUnprepareResources", batch, answer.claims, |each| &each.error)?;
        }
        let mut claims = self.claims.lock();
        claims.let_go(uid, &release);
        Ok(self.save(&claims)?)
    }

    /// Whether devices are prepared for a pod, or may be. Until they are not, the pod does not count as ended: its claims
    /// would be given to others.
    pub fn are_held(&self, uid: &str) -> bool {
        self.claims.lock().is_used_by(uid)
    }

    /// The CDI devices a container is to have.
    pub fn cdi_devices(&self, pod: &Pod, container: &Container) -> Result<Vec<String>, Error> {
        Ok(self.claims.lock().cdi_devices(pod, container)?)
    }

    /// The devices of the claims that a container names, with claim and driver; none of a claim that is not prepared.
    pub fn of_container(&self, pod: &Pod, container: &Container) -> Vec<(String, String, Device)> {
        let names: BTreeSet<String> = match claims::requests(pod, container) {
            Ok(requests) => requests.into_iter().map(|(claim, _)| claim).collect(),
            Err(error) => {
                tracing::debug!(pod = %pod::key(pod), %error, "claims not told");
                return vec![];
            }
        };
        let claims = self.claims.lock();
        let of_claim = |claim: String| {
            let devices = claims.devices(pod, &claim).into_iter().flatten();
            let named = devices.map(|(driver, device)| (claim.clone(), driver.to_owned(), device.clone()));
            named.collect::<Vec<_>>()
        };
        names.into_iter().flat_map(of_claim).collect()
    }

    /// Adds how a pod's devices are to the statuses of its containers.
    pub fn show(&self, pod: &Pod, status: &mut PodStatus) {
        if pod::spec(pod).resource_claims.is_none() {
            return;
        }
        let claims = self.claims.lock();
        for shown in status.container_statuses.iter_mut().flatten() {
            let mut containers = pod::spec(pod).containers.iter();
            let Some(container) = containers.find(|container| container.name == shown.name) else { continue };
            let statuses = self.health.statuses(&claims, pod, container, Instant::now());
            if !statuses.is_empty() {
                shown.allocated_resources_status = Some(statuses);
            }
        }
    }

    async fn read(&self, namespace: &str, name: &str) -> Result<ResourceClaim, Error> {
        let problem = |problem: String| Error::Fetch { claim: name.into(), problem };
        let client = self.client.clone().ok_or_else(|| problem("no API server".into()))?;
        let claims: kube::Api<ResourceClaim> = kube::Api::namespaced(client, namespace);
        claims.get(name).await.map_err(|error| match error {
            kube::Error::Api(status) => problem(status.message.clone()),
            error => problem(error.to_string()),
        })
    }

    fn save(&self, claims: &Claims) -> Result<(), checkpoint::Error> {
        checkpoint::store(&self.file, &claims.states())
    }

    /// Waits until nobody else is at work on these claims. They are waited for in one order, so nobody waits in a circle.
    async fn alone(&self, keys: &BTreeSet<NamespacedName>) -> Vec<OwnedMutexGuard<()>> {
        let mut guards = Vec::new();
        for key in keys {
            let lock = {
                let mut busy = self.busy.lock();
                busy.retain(|_, lock| lock.strong_count() > 0);
                let lock = busy.get(key).and_then(Weak::upgrade).unwrap_or_default();
                busy.insert(key.clone(), Arc::downgrade(&lock));
                lock
            };
            guards.push(lock.lock_owned().await);
        }
        guards
    }
}

/// Goes on when a driver comes: workers that waited for it try again, and devices of pods that are gone are taken back.
/// Starts when every source of pods has spoken; only then is an unknown pod gone.
pub async fn follow_drivers(devices: &Devices, pods: &Pods) {
    let mut changes = devices.drivers.changes();
    loop {
        changes.borrow_and_update();
        for pod in pods.list().iter().filter(|pod| pod::spec(pod).resource_claims.is_some()) {
            pods.wake(pod::uid(pod));
        }
        let held = devices.claims.lock().pods();
        for uid in held.iter().filter(|uid| !pods.is_known(uid)) {
            match devices.unprepare(uid).await {
                Ok(()) => tracing::info!(uid, "released the devices of a deleted pod"),
                Err(error) => {
                    tracing::warn!(uid, %error, "cannot release the devices of a deleted pod; will retry")
                }
            }
        }
        tokio::select! {
            changed = changes.changed() => {
                if changed.is_err() {
                    return;
                }
            }
            () = tokio::time::sleep(ORPHAN_PERIOD) => {}
        }
    }
}

#[cfg(test)]
mod tests;
