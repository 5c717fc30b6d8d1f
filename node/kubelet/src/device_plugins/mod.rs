//! Devices of extended resources, which device plugins (deviceplugin v1beta1) have: a pod is given its devices when it is
//! admitted, and they are free again when all of its containers have stopped.
//!
//! [`state`] decides, [`DevicePlugins`] acts: it follows what plugins say of their devices, asks them when some are given
//! away, and keeps who has which in a [`checkpoint`]. Plugins come by their [registration]; what they ask for their
//! containers becomes part of these [`run_options`].

pub mod allocations;
pub mod checkpoint;
mod endpoint;
pub mod registration;
mod run_options;
pub mod state;

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ferry_client::CancellationToken;
use ferry_plugins_api::deviceplugin::Device;
use k8s_openapi::api::core::v1::{Container, Pod, PodStatus, ResourceHealth, ResourceStatus};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use crate::cri;
use crate::devices::Wake;
use crate::pod;
use crate::resources::{Side, container_amounts};
use allocations::Allocation;
use endpoint::Endpoint;
use state::State;

/// Where plugins register and have their sockets, below the kubelet's directory.
pub const SOCKETS: &str = "device-plugins";
/// Upstream's, beside the sockets.
const STATE_FILE: &str = "kubelet_internal_checkpoint";

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    State(#[from] state::Error),
    #[error(transparent)]
    Endpoint(#[from] endpoint::Error),
    #[error("unknown Device Plugin {0}")]
    Unknown(String),
    #[error(
        "no devices found allocated in local cache for pod {uid}, container {container}, resource {resource}"
    )]
    NotAllocated { uid: String, container: String, resource: String },
    #[error(transparent)]
    Checkpoint(#[from] checkpoint::Error),
}

/// A container's device, as the PodResources API lists it.
pub struct AllocatedDevice {
    pub resource: String,
    pub device: String,
    /// The NUMA nodes it is near.
    pub nodes: Vec<i64>,
}

pub struct DevicePlugins {
    directory: PathBuf,
    state: Mutex<State>,
    endpoints: Mutex<BTreeMap<String, Arc<Endpoint>>>,
    /// Who gives devices does so alone: what is free is free until the plugin has answered.
    giving: tokio::sync::Mutex<()>,
    /// Counts what changes the node's status.
    changes: watch::Sender<u64>,
    wake: Wake,
    followers: TaskTracker,
}

impl DevicePlugins {
    /// Takes up what a former kubelet gave.
    pub fn new(root: &Path, wake: Wake) -> Result<Self, checkpoint::Error> {
        let directory = root.join(SOCKETS);
        let saved = checkpoint::load(&directory.join(STATE_FILE))?;
        Ok(Self {
            directory,
            state: Mutex::new(State::new(saved.resources, saved.allocations, Instant::now())),
            endpoints: Mutex::default(),
            giving: tokio::sync::Mutex::default(),
            changes: watch::Sender::new(0),
            wake,
            followers: TaskTracker::new(),
        })
    }

    /// Fires when the node's status has other devices than before.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Waits until nothing follows plugins any more; call after the stop.
    pub async fn stopped(&self) {
        self.followers.close();
        self.followers.wait().await;
    }

    /// A plugin has come for a resource. It takes the place of another.
    async fn register(
        self: &Arc<Self>,
        resource: &str,
        socket: &str,
        stop: &CancellationToken,
    ) -> Result<(), endpoint::Error> {
        let endpoint = Arc::new(Endpoint::connect(resource, socket, stop.child_token()).await?);
        if let Some(before) = self.endpoints.lock().insert(resource.into(), endpoint.clone()) {
            before.gone.cancel();
        }
        tracing::info!(resource, socket, "device plugin registered");
        let plugins = self.clone();
        self.followers.spawn(async move {
            tokio::select! {
                () = endpoint.gone.cancelled() => {}
                () = plugins.follow(&endpoint) => plugins.set_gone(&endpoint),
            }
        });
        Ok(())
    }

    fn deregister(&self, resource: &str, socket: &str) {
        let endpoint = self.endpoints.lock().get(resource).cloned();
        if let Some(endpoint) = endpoint.filter(|endpoint| endpoint.socket == socket) {
            self.set_gone(&endpoint);
        }
    }

    /// Takes in what a plugin says of its devices for as long as it does.
    async fn follow(&self, endpoint: &Endpoint) {
        let ended = async {
            let mut stream = endpoint.list_and_watch().await?;
            while let Some(said) = stream.message().await? {
                self.take_in(endpoint, said.devices);
            }
            Ok::<(), tonic::Status>(())
        };
        if let Err(status) = ended.await {
            tracing::info!(resource = endpoint.resource, %status, "device plugin is gone");
        }
    }

    fn take_in(&self, endpoint: &Endpoint, devices: Vec<Device>) {
        // one that was replaced meanwhile has nothing more to say
        if endpoint.gone.is_cancelled() {
            return;
        }
        let pods = {
            let mut state = self.state.lock();
            let changed = state.take_in(&endpoint.resource, devices);
            state.allocations.pods_with(&endpoint.resource, &changed)
        };
        self.save_or_tell();
        self.changes.send_modify(|count| *count += 1);
        (self.wake)(&pods.into_iter().collect::<HashSet<_>>());
    }

    fn set_gone(&self, endpoint: &Endpoint) {
        if endpoint.gone.is_cancelled() {
            return;
        }
        endpoint.gone.cancel();
        self.state.lock().set_gone(&endpoint.resource, Instant::now());
        self.changes.send_modify(|count| *count += 1);
    }

    /// Adds what the node has of these resources.
    pub fn add_to(
        &self,
        capacity: &mut BTreeMap<String, Quantity>,
        allocatable: &mut BTreeMap<String, Quantity>,
    ) {
        let (counts, is_less) = self.state.lock().counts(Instant::now());
        if is_less {
            self.save_or_tell();
        }
        for (name, count) in counts {
            capacity.insert(name.clone(), Quantity(count.capacity.to_string()));
            allocatable.insert(name, Quantity(count.allocatable.to_string()));
        }
    }

    /// Gives a pod that is admitted its devices. Nothing is left given if it cannot have all of them.
    pub async fn allocate(&self, pod: &Pod) -> Result<(), Error> {
        if !self.concerns(pod) {
            return Ok(());
        }
        let mut span = ferry_trace::Span::root("kubelet.allocate_devices", None);
        span.object("pods", pod::namespace(pod), pod::name(pod));
        if let Some(revision) = ferry_client::name::revision(pod) {
            span.caused_by(revision);
        }
        let _alone = self.giving.lock().await;
        let had = self.is_held_by(pod::uid(pod));
        let allocated = span.in_scope(self.allocate_containers(pod)).await;
        if let Err(error) = &allocated {
            span.fail_unquoted(error);
            if !had {
                self.release(pod::uid(pod));
            }
        }
        allocated
    }

    /// Init containers come first: what they have the others are given again.
    async fn allocate_containers(&self, pod: &Pod) -> Result<(), Error> {
        let spec = pod::spec(pod);
        for container in spec.init_containers.iter().flatten().chain(&spec.containers) {
            self.allocate_container(pod, container).await?;
        }
        Ok(())
    }

    async fn allocate_container(&self, pod: &Pod, container: &Container) -> Result<(), Error> {
        let uid = pod::uid(pod);
        for (resource, required) in self.wanted(pod, container) {
            let candidates = self.state.lock().candidates(pod, &container.name, &resource, required)?;
            let Some(candidates) = candidates else { continue };
            let endpoint = self.endpoints.lock().get(&resource).cloned();
            let endpoint = endpoint.ok_or_else(|| Error::Unknown(resource.clone()))?;
            let preferred =
                if candidates.is_decided() { vec![] } else { endpoint.preferred(&candidates).await? };
            let devices = candidates.choose(&preferred);
            let mut span = ferry_trace::span("kubelet.device_plugin");
            span.set("resource", resource.as_str()).set("call", "Allocate").set("devices", devices.len());
            let answer = span.in_scope(endpoint.allocate(&devices)).await.inspect_err(|error| {
                span.fail_unquoted(error);
            })?;
            let mut state = self.state.lock();
            let devices = state.by_node(&resource, &devices);
            state.allocations.insert(uid, &container.name, &resource, Allocation { devices, answer });
            self.save(&state)?;
        }
        Ok(())
    }

    /// What a container asks for of resources that plugins have.
    fn wanted(&self, pod: &Pod, container: &Container) -> Vec<(String, usize)> {
        // of extended resources the limit is the request
        let limits = container_amounts(container.resources.as_ref(), Side::Limits);
        let state = self.state.lock();
        let limits = limits.into_iter().filter(|(resource, _)| {
            state.is_of_plugin(resource) && !is_of_claim(pod, &container.name, resource)
        });
        let amounts = limits.filter_map(|(resource, amount)| Some((resource, usize::try_from(amount).ok()?)));
        amounts.filter(|(_, amount)| *amount > 0).collect()
    }

    fn concerns(&self, pod: &Pod) -> bool {
        let spec = pod::spec(pod);
        let mut containers = spec.init_containers.iter().flatten().chain(&spec.containers);
        containers.any(|container| !self.wanted(pod, container).is_empty())
    }

    /// Readies a container's devices for its start and puts what they ask for into its configuration. Gives the names
    /// of its CDI devices.
    pub async fn prepare(
        &self,
        pod: &Pod,
        container: &Container,
        config: &mut cri::ContainerConfig,
    ) -> Result<Vec<String>, Error> {
        let wanted = self.wanted(pod, container);
        if wanted.is_empty() {
            return Ok(vec![]);
        }
        let uid = pod::uid(pod);
        let is_given =
            |resource: &str| self.state.lock().allocations.get(uid, &container.name, resource).is_some();
        if wanted.iter().any(|(resource, _)| !is_given(resource)) {
            // of a pod that a kubelet admitted that knew no devices, or that forgot them
            let _alone = self.giving.lock().await;
            self.allocate_container(pod, container).await?;
        }
        for (resource, _) in &wanted {
            self.pre_start(uid, container, resource).await?;
        }
        let state = self.state.lock();
        let allocations = state.allocations.of_container(uid, &container.name);
        Ok(run_options::apply(allocations.into_iter().flat_map(BTreeMap::values), config))
    }

    async fn pre_start(&self, uid: &str, container: &Container, resource: &str) -> Result<(), Error> {
        let endpoint = self.endpoints.lock().get(resource).cloned();
        let Some(endpoint) = endpoint.filter(|endpoint| endpoint.options.pre_start_required) else {
            return Ok(());
        };
        let devices: Option<Vec<String>> = {
            let state = self.state.lock();
            let allocation = state.allocations.get(uid, &container.name, resource);
            allocation.map(|allocation| allocation.ids().into_iter().map(str::to_owned).collect())
        };
        let devices = devices.ok_or_else(|| {
            let (container, resource) = (container.name.clone(), resource.to_owned());
            Error::NotAllocated { uid: uid.into(), container, resource }
        })?;
        let mut span = ferry_trace::span("kubelet.device_plugin");
        span.set("resource", resource).set("call", "PreStartContainer");
        let told = span.in_scope(endpoint.pre_start(devices)).await;
        Ok(told.inspect_err(|error| {
            span.fail_unquoted(error);
        })?)
    }

    /// Whether a pod has devices. Until it has none it does not count as ended: others would be sent for them.
    pub fn is_held_by(&self, uid: &str) -> bool {
        self.state.lock().allocations.has(uid)
    }

    /// Pods that have devices, also those that went while no kubelet ran.
    pub fn pods(&self) -> Vec<String> {
        self.state.lock().allocations.pods()
    }

    /// A pod has stopped: its devices are free. Says whether it had some.
    pub fn release(&self, uid: &str) -> bool {
        let had = self.state.lock().allocations.remove(uid);
        if had {
            self.save_or_tell();
        }
        had
    }

    /// Whether a resource is a plugin's, also of one that is gone.
    pub fn has(&self, resource: &str) -> bool {
        self.state.lock().is_of_plugin(resource)
    }

    /// Adds how a pod's devices are to the statuses of its containers.
    pub fn show(&self, pod: &Pod, status: &mut PodStatus) {
        let state = self.state.lock();
        for shown in status.container_statuses.iter_mut().flatten() {
            let Some(resources) = state.allocations.of_container(pod::uid(pod), &shown.name) else {
                continue;
            };
            let of = |(resource, allocation): (&String, &Allocation)| {
                let health = |id: &str| if state.is_healthy(resource, id) { "Healthy" } else { "Unhealthy" };
                let devices = allocation.ids().into_iter().map(|id| ResourceHealth {
                    resource_id: id.into(),
                    health: Some(health(id).into()),
                    message: None,
                });
                ResourceStatus { name: resource.clone(), resources: Some(devices.collect()) }
            };
            shown.allocated_resources_status.get_or_insert_default().extend(resources.iter().map(of));
        }
    }

    /// The devices that a container has.
    pub fn given(&self, uid: &str, container: &str) -> Vec<AllocatedDevice> {
        let state = self.state.lock();
        let of_container = state.allocations.of_container(uid, container).into_iter().flatten();
        let devices = of_container.flat_map(|(resource, allocation)| {
            let given = |(device, nodes): (&str, Vec<i64>)| AllocatedDevice {
                resource: resource.clone(),
                device: device.to_owned(),
                nodes,
            };
            allocation.nodes().into_iter().map(given).collect::<Vec<_>>()
        });
        devices.collect()
    }

    /// Every healthy device of the node.
    pub fn healthy(&self) -> Vec<AllocatedDevice> {
        let state = self.state.lock();
        let given = |(resource, device, nodes): (&str, &str, &[i64])| AllocatedDevice {
            resource: resource.to_owned(),
            device: device.to_owned(),
            nodes: nodes.to_vec(),
        };
        state.healthy().into_iter().map(given).collect()
    }

    fn save(&self, state: &State) -> Result<(), checkpoint::Error> {
        checkpoint::store(&self.directory.join(STATE_FILE), state.registered(), &state.allocations)
    }

    fn save_or_tell(&self) {
        if let Err(error) = self.save(&self.state.lock()) {
            tracing::warn!(%error, "cannot save the device allocations");
        }
    }
}

/// Whether a container has a resource from the claim that the scheduler made for its extended resources.
fn is_of_claim(pod: &Pod, container: &str, resource: &str) -> bool {
    let claim = pod::status(pod).extended_resource_claim_status.as_ref();
    let mut mappings = claim.into_iter().flat_map(|claim| &claim.request_mappings);
    mappings.any(|mapping| mapping.container_name == container && mapping.resource_name == resource)
}

#[cfg(test)]
mod tests;
