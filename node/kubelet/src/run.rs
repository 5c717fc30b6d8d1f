//! Starting the parts of a kubelet in order, and stopping them.

use std::collections::{HashMap, HashSet};
use std::fs::Permissions;
use std::net::IpAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ferry_client::events::Events;
use ferry_client::{CancellationToken, Client, Informers, Recorder};
use futures::FutureExt;
use k8s_openapi::api::core::v1::Service;
use parking_lot::{Mutex, RwLock};
use tokio::sync::watch;
use tokio_util::task::TaskTracker;

use crate::cgroups::PodCgroups;
use crate::config::Config;
use crate::context::Context;
use crate::cpu_manager::{self, CpuManager};
use crate::cri;
use crate::device_plugins::{self, DevicePlugins};
use crate::devices::{self, Devices};
use crate::downward;
use crate::images::containerd::{self, Source};
use crate::images::mirror::Mirror;
use crate::images::pause;
use crate::images::pull::Images;
use crate::images::records::Records;
use crate::logs;
use crate::node;
use crate::node::capacity::{Capacity, allocatable, memory_of_pods};
use crate::node::machine::{self, Machine};
use crate::node::status::{NodeStatusSource, Pressure};
use crate::objects::Objects;
use crate::orphans;
use crate::plugins;
use crate::pod_resources;
use crate::pods::Pods;
use crate::runtime::{self, watch::Seen};
use crate::server;
use crate::sources::{api, mirror, static_pods};
use crate::status::writer::Writer;
use crate::volumes::csi::in_use::InUse;
use crate::volumes::csi::{self, Csi};
use crate::volumes::local::LocalVolumes;
use crate::volumes::tokens::Tokens;
use crate::volumes::{self, Volumes};

/// Where plugins register, below the kubelet's directory.
const PLUGIN_SOCKETS: &str = "plugins_registry";
const RUNTIME_RETRY: Duration = Duration::from_millis(200);
const LOG_ROTATION_PERIOD: Duration = Duration::from_secs(10);
const ORPHAN_PERIOD: Duration = Duration::from_secs(60);

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Runtime(#[from] cri::Error),
    #[error("making {directory}: {source}")]
    Directory { directory: String, source: std::io::Error },
    #[error("reading the volumes of a previous kubelet: {0}")]
    Volumes(std::io::Error),
    #[error(transparent)]
    Cpus(#[from] cpu_manager::Error),
    #[error(transparent)]
    Devices(#[from] devices::checkpoint::Error),
    #[error(transparent)]
    DevicePlugins(#[from] device_plugins::checkpoint::Error),
    #[error(transparent)]
    Server(#[from] server::Error),
}

/// Runs a kubelet until `shutdown`. Without a client it runs static pods
/// alone. Containers go on running when it ends.
pub async fn run(
    client: Option<kube::Client>,
    config: Config,
    shutdown: CancellationToken,
) -> Result<(), Error> {
    for name in ["pods", "plugins", PLUGIN_SOCKETS] {
        make_directory(&config.root_dir.join(name))?;
    }
    for name in [device_plugins::SOCKETS, pod_resources::SOCKETS] {
        let directory = config.root_dir.join(name);
        make_directory(&directory)?;
        // whoever opens a socket in there speaks for the node's devices
        if let Err(error) = std::fs::set_permissions(&directory, Permissions::from_mode(0o750)) {
            tracing::warn!(directory = %directory.display(), %error, "cannot restrict the access to the directory's sockets");
        }
    }
    make_directory(&config.pod_logs_dir)?;
    // Containers start in other mount namespaces: what is mounted in a volume reaches them, or comes from them, only
    // through a shared mount.
    if let Err(error) = ferry_linux::mount::make_shared(&config.root_dir) {
        tracing::warn!(%error, "mounts in volumes do not reach containers that run (mountPropagation)");
    }
    let runtime = cri::Client::new(&config.container_runtime_endpoint)?;
    let Some(version) = wait_for_runtime(&runtime, &shutdown).await else { return Ok(()) };
    import_pause_image(&runtime, &config).await;

    let parts = Parts::new(client, config, runtime, &version, shutdown.clone())?;
    match parts.context.runtime.list_images().await {
        Ok(images) => parts.context.images.records().take_over(&images),
        Err(error) => tracing::warn!(%error, "cannot take over the image records of a previous kubelet"),
    }
    parts.run(shutdown).await
}

fn make_directory(directory: &Path) -> Result<(), Error> {
    std::fs::create_dir_all(directory)
        .map_err(|source| Error::Directory { directory: directory.display().to_string(), source })
}

/// The runtime may start after us. `None` when told to stop meanwhile.
async fn wait_for_runtime(
    runtime: &cri::Client,
    shutdown: &CancellationToken,
) -> Option<cri::VersionResponse> {
    let mut said = false;
    loop {
        match runtime.version().await {
            Ok(version) => return Some(version),
            Err(error) if !said => {
                tracing::warn!(%error, "waiting for the container runtime");
                said = true;
            }
            Err(_) => {}
        }
        tokio::select! {
            () = shutdown.cancelled() => return None,
            () = tokio::time::sleep(RUNTIME_RETRY) => {}
        }
    }
}

/// Brings the sandbox image where the runtime lacks it. Failing is no reason
/// not to start: the runtime may still pull it.
async fn import_pause_image(runtime: &cri::Client, config: &Config) {
    let name = match &config.pod_infra_container_image {
        Some(name) => name.clone(),
        None => match sandbox_image(runtime).await {
            Some(name) => name,
            None => return,
        },
    };
    let spec = cri::ImageSpec { image: name.clone(), ..Default::default() };
    if !matches!(runtime.image_status(spec.clone()).await, Ok(None)) {
        return;
    }
    let span = ferry_trace::span("kubelet.pause_image");
    let import = async {
        let Some(image) = pause::image(&name) else {
            return Err("no pause program for this architecture".to_string());
        };
        let image = image.map_err(|error| error.to_string())?;
        let containerd =
            containerd::Client::new(&config.container_runtime_endpoint).map_err(|error| error.to_string())?;
        containerd.import(&image, Source::Ferry).await.map_err(|error| error.to_string())?;
        // the runtime hears of the new image by an event of its own
        for _ in 0..100 {
            if matches!(runtime.image_status(spec.clone()).await, Ok(Some(_))) {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Err("the runtime does not see it".to_string())
    };
    match span.in_scope(import).await {
        Ok(()) => tracing::info!(image = name, "sandbox image imported"),
        Err(error) => {
            tracing::warn!(image = name, error, "sandbox image not imported; the runtime has to pull it")
        }
    }
}

/// The image the runtime starts sandboxes from, as its own settings say.
async fn sandbox_image(runtime: &cri::Client) -> Option<String> {
    let config = runtime::settings(runtime).await.ok()??;
    let name = config["sandboxImage"].as_str().or_else(|| config["pinnedImages"]["sandbox"].as_str())?;
    (!name.is_empty()).then(|| name.to_string())
}

/// The pods, as soon as they are there: workers are woken through it, and it is made before them.
type Table = Arc<Mutex<Option<Pods>>>;

fn wake_through(table: &Table) -> Arc<impl Fn(&HashSet<String>) + Send + Sync + use<>> {
    let table = table.clone();
    Arc::new(move |uids: &HashSet<String>| {
        if let Some(pods) = &*table.lock() {
            uids.iter().for_each(|uid| pods.wake(uid));
        }
    })
}

/// What the kubelet follows and reports, where it has an API server.
fn api_clients(
    client: Option<&kube::Client>,
    node_name: &str,
    shutdown: &CancellationToken,
) -> (Option<Informers>, Option<Events>) {
    let informers = client.map(|client| Informers::new(client.clone(), shutdown.clone()));
    let events = client.map(|client| Events::start(client.clone(), node_name.to_owned(), shutdown.clone()));
    (informers, events)
}

fn volumes(
    config: &Config,
    client: Option<&kube::Client>,
    objects: &Arc<Objects>,
    events: &Recorder,
    node: &NodeStatusSource,
) -> Result<Volumes, Error> {
    let tokens = Arc::new(Tokens::new(client.cloned()));
    let csi = Csi::new(csi::Config {
        root_dir: &config.root_dir,
        node_name: &config.node_name,
        client: client.cloned(),
        tokens: tokens.clone(),
        events: events.clone(),
        node: node.seen.subscribe(),
        in_use: node.volumes_in_use.clone(),
    });
    let csi = Arc::new(csi.map_err(Error::Volumes)?);
    let local = LocalVolumes::new(&config.root_dir, &config.node_name, events.clone());
    Ok(Volumes::new(config.root_dir.clone(), client.cloned(), objects.clone(), tokens, local, csi))
}

pub(crate) struct Parts {
    pub(crate) context: Arc<Context>,
    pub(crate) node: Arc<NodeStatusSource>,
    pub(crate) pods: Pods,
    informers: Option<Informers>,
    events: Option<Events>,
    health: watch::Sender<Result<(), String>>,
    pressure: watch::Sender<Pressure>,
    listener: server::Listener,
}

impl Parts {
    /// Wiring: makes each part and hands it what it needs of the others.
    pub(crate) fn new(
        client: Option<kube::Client>,
        config: Config,
        runtime: cri::Client,
        version: &cri::VersionResponse,
        shutdown: CancellationToken,
    ) -> Result<Self, Error> {
        let machine = machine::read();
        let capacity = capacity(&machine, &config);
        let allocatable = allocatable(&capacity, &config);
        let addresses = node_addresses(&config);
        let listener = server::bind(&config, &addresses)?;

        let (informers, events) = api_clients(client.as_ref(), &config.node_name, &shutdown);
        let recorder =
            events.as_ref().map_or_else(Recorder::silent, |events| events.host_recorder("kubelet"));

        let table: Table = Arc::default();
        let wake = wake_through(&table);
        let devices = Arc::new(Devices::new(client.clone(), &config.root_dir, wake.clone())?);
        let device_plugins = Arc::new(DevicePlugins::new(&config.root_dir, wake.clone())?);
        let objects = Arc::new(Objects::new(client.clone(), shutdown.clone(), wake));
        let cgroups = cgroups(&config, &capacity, allocatable.milli_cpu);
        let cpus = cpu_manager(&config, &machine)?;
        let (health, runtime_health) = watch::channel(Ok(()));
        let (pressure, pressure_seen) = watch::channel(Pressure::default());
        let network_problem: Arc<RwLock<Option<String>>> = Arc::default();
        let node = Arc::new(NodeStatusSource {
            config: config.clone(),
            machine: machine.clone(),
            capacity,
            allocatable,
            runtime: runtime.clone(),
            runtime_version: format!("{}://{}", version.runtime_name, version.runtime_version),
            addresses: addresses.clone(),
            port: listener.address().port(),
            runtime_health,
            pressure: pressure_seen,
            device_plugins: device_plugins.clone(),
            network_problem: network_problem.clone(),
            seen: watch::Sender::new(None),
            volumes_in_use: InUse::default(),
        });
        let volumes = volumes(&config, client.as_ref(), &objects, &recorder, &node)?;
        let context = Arc::new(Context {
            images: images(&config, &runtime, client.as_ref()),
            volumes,
            services: informers.as_ref().map(|informers| informers.of::<Service>()),
            seen: Seen::default(),
            writer: Writer::new(client.clone()),
            events: recorder,
            client,
            runtime,
            runtime_version: version.clone(),
            objects,
            cgroups,
            cpus,
            devices,
            device_plugins,
            host_name: machine.host_name.clone(),
            host_ips: RwLock::new(addresses),
            machine_memory: machine.memory_bytes,
            memory_of_pods: memory_of_pods(&capacity, &config),
            allocatable: downward::Node::of(&allocatable),
            network_problem,
            config,
        });
        let pods = Pods::new(context.clone(), node.clone(), shutdown);
        *table.lock() = Some(pods.clone());
        Ok(Self { context, node, pods, informers, events, health, pressure, listener })
    }

    async fn run(self, shutdown: CancellationToken) -> Result<(), Error> {
        let tasks = TaskTracker::new();
        let synced = self.spawn_sources(&tasks, &shutdown)?.shared();
        self.spawn_plugins(synced.clone(), &tasks, &shutdown);
        self.spawn_device_plugins(&tasks, &shutdown);
        self.spawn_upkeep(synced, &tasks, &shutdown);
        let pods = self.pods.clone();
        tasks.spawn(runtime::watch::run(
            self.context.runtime.clone(),
            self.context.config.container_runtime_endpoint.clone(),
            self.context.seen.clone(),
            move |uid: &str| pods.wake(uid),
            self.health,
            shutdown.clone(),
        ));
        tasks.spawn(server::run(
            self.listener,
            self.context.clone(),
            self.node.clone(),
            self.pods.clone(),
            shutdown.clone(),
        ));
        let (context, pods, node, pressure) =
            (self.context.clone(), self.pods.clone(), self.node.clone(), self.pressure);
        let eviction = async move { crate::eviction::run(&context, &pods, &node, pressure).await };
        spawn_until(&tasks, &shutdown, eviction);

        shutdown.cancelled().await;
        tasks.close();
        tasks.wait().await;
        self.pods.stopped().await;
        self.context.devices.stopped().await;
        self.context.device_plugins.stopped().await;
        self.context.volumes.csi().stopped().await;
        if let Some(informers) = &self.informers {
            informers.stopped().await;
        }
        if let Some(events) = &self.events {
            events.stopped().await;
        }
        Ok(())
    }

    /// Where pods come from: a directory of manifests, and the API. The future ends when every source has spoken.
    fn spawn_sources(
        &self,
        tasks: &TaskTracker,
        shutdown: &CancellationToken,
    ) -> Result<impl Future<Output = ()> + Send + 'static, Error> {
        let config = &self.context.config;
        let manifests_changed = Arc::new(tokio::sync::Notify::new());
        let manifests_read = CancellationToken::new();
        match &config.static_pod_path {
            None => manifests_read.cancel(),
            Some(directory) => {
                make_directory(directory)?;
                tasks.spawn(static_pods::run(
                    directory.clone(),
                    config.node_name.clone(),
                    config.file_check_frequency,
                    self.pods.clone(),
                    manifests_changed.clone(),
                    manifests_read.clone(),
                    shutdown.clone(),
                ));
            }
        }
        let mut known = None;
        if let (Some(informers), Some(client)) = (&self.informers, &self.context.client) {
            tasks.spawn(node::run(client.clone(), self.node.clone(), shutdown.clone()));
            api::follow_node(informers, self.node.clone());
            known = Some(api::follow(informers, &config.node_name, &self.pods));
            let drivers = self.context.volumes.csi().node_drivers.clone();
            tasks.spawn(node::csi_node::follow(client.clone(), &config.node_name, drivers, informers));
            tasks.spawn(csi::allocatable::follow(self.context.volumes.csi().clone(), informers));
            tasks.spawn(volumes::reclaim::follow(self.context.clone(), client.clone(), informers));
            tasks.spawn(mirror::run(
                client.clone(),
                config.node_name.clone(),
                self.pods.clone(),
                manifests_changed,
                shutdown.clone(),
            ));
        }
        Ok(async move {
            if let Some(known) = known {
                known.synced().await;
            }
            manifests_read.cancelled().await;
        })
    }

    /// Plugins that register here, and what their coming and going means for devices.
    fn spawn_plugins(
        &self,
        synced: impl Future<Output = ()> + Send + 'static,
        tasks: &TaskTracker,
        shutdown: &CancellationToken,
    ) {
        let (config, devices) = (&self.context.config, self.context.devices.clone());
        let looked = CancellationToken::new();
        let sockets = config.root_dir.join(PLUGIN_SOCKETS);
        let handlers = self.plugin_handlers();
        tasks.spawn(plugins::run(sockets, handlers, looked.clone(), shutdown.clone()));
        if let Some(client) = self.context.client.clone() {
            let drivers = devices.drivers.clone();
            let wiping = devices::slices::run(client, config.node_name.clone(), drivers, looked);
            spawn_until(tasks, shutdown, wiping);
        }
        let (csi, pods) = (self.context.volumes.csi().clone(), self.pods.clone());
        spawn_until(tasks, shutdown, async move {
            synced.await;
            tokio::join!(
                devices::follow_drivers(&devices, &pods),
                csi::follow_drivers(&csi, &pods),
                csi::unstage_unused(&csi),
            );
        });
    }

    /// Device plugins that register at the kubelet's own socket, and what others ask of pods' resources.
    fn spawn_device_plugins(&self, tasks: &TaskTracker, shutdown: &CancellationToken) {
        let plugins = self.context.device_plugins.clone();
        tasks.spawn(device_plugins::registration::run(plugins, shutdown.clone()));
        let (context, pods) = (self.context.clone(), self.pods.clone());
        tasks.spawn(pod_resources::run(context, pods, shutdown.clone()));
    }

    /// Who takes up plugins, by their type.
    fn plugin_handlers(&self) -> plugins::Handlers {
        let devices = Arc::new(devices::registration::Registration(self.context.devices.clone()));
        let device_plugins = self.context.device_plugins.clone();
        let device_plugins = Arc::new(device_plugins::registration::Watched(device_plugins));
        let csi = Arc::new(self.context.volumes.csi().registration());
        plugins::Handlers::from([
            (devices::registration::TYPE, devices as Arc<dyn plugins::Handler>),
            (device_plugins::registration::TYPE, device_plugins),
            (csi::registration::TYPE, csi),
        ])
    }

    /// What goes on beside the pods' workers: status writes, orphans, shared CPUs, logs.
    fn spawn_upkeep(
        &self,
        synced: impl Future<Output = ()> + Send + 'static,
        tasks: &TaskTracker,
        shutdown: &CancellationToken,
    ) {
        let writer = self.context.writer.clone();
        spawn_until(tasks, shutdown, async move { writer.run().await });
        let (context, pods) = (self.context.clone(), self.pods.clone());
        spawn_until(tasks, shutdown, async move {
            // only when every source has spoken is an unknown pod an orphan
            synced.await;
            orphans::run(&context, &pods, ORPHAN_PERIOD).await;
        });
        let (mut changes, pods) = (self.context.cpus.changes(), self.pods.clone());
        spawn_until(tasks, shutdown, async move {
            while changes.changed().await.is_ok() {
                pods.wake_all();
            }
        });
        let context = self.context.clone();
        spawn_until(tasks, shutdown, async move { rotate_logs(&context).await });
    }
}

/// Spawns work that may end anywhere when the kubelet stops.
fn spawn_until(
    tasks: &TaskTracker,
    stop: &CancellationToken,
    work: impl Future<Output = ()> + Send + 'static,
) {
    let stop = stop.clone();
    tasks.spawn(async move {
        tokio::select! {
            () = stop.cancelled() => {}
            () = work => {}
        }
    });
}

fn capacity(machine: &Machine, config: &Config) -> Capacity {
    Capacity {
        milli_cpu: machine.cpus.len() as i64 * 1000,
        memory: machine.memory_bytes,
        ephemeral_storage: machine::disk_bytes(&config.root_dir),
        pods: i64::from(config.max_pods),
    }
}

fn cgroups(config: &Config, capacity: &Capacity, allocatable_milli_cpu: i64) -> PodCgroups {
    let cgroups = PodCgroups::new(
        config.cgroup_driver,
        &config.cgroup_root,
        config.pod_pids_limit,
        config.enable_cfs_quota,
    );
    if let Err(error) = cgroups.set_up(allocatable_milli_cpu, memory_of_pods(capacity, config)) {
        tracing::warn!(%error, "pods run without cgroups of their own");
    }
    cgroups
}

fn cpu_manager(config: &Config, machine: &Machine) -> Result<CpuManager, Error> {
    let reserved = config.reserved_cpus.as_deref().map(cpu_manager::parse_list).transpose()?;
    Ok(CpuManager::new(
        config.cpu_manager_policy,
        config.root_dir.join("cpu_manager_state"),
        machine.cpus.clone(),
        reserved.unwrap_or_else(|| machine.cpus.iter().take(1).copied().collect()),
    ))
}

fn images(config: &Config, runtime: &cri::Client, client: Option<&Client>) -> Images {
    let containerd = containerd::Client::new(&config.container_runtime_endpoint).ok();
    let server = client.filter(|_| config.asks_server_for_images).cloned();
    let mirror = server.zip(containerd.clone()).map(|(server, containerd)| Mirror::new(server, containerd));
    let allowlist = config.preloaded_images_allowlist.clone();
    let records = Records::new(&config.root_dir, config.image_verification, allowlist);
    Images::new(runtime.clone(), containerd, mirror, records, config.max_parallel_image_pulls)
}

/// One address of each family, as configured or as the machine routes.
fn node_addresses(config: &Config) -> Vec<IpAddr> {
    let mut by_family: HashMap<bool, IpAddr> = HashMap::new();
    let mut addresses = Vec::new();
    for address in &config.node_ips {
        if by_family.insert(address.is_ipv6(), *address).is_none() {
            addresses.push(*address);
        }
    }
    if addresses.is_empty() {
        addresses.push(machine::default_address().unwrap_or(IpAddr::from([127, 0, 0, 1])));
    }
    addresses
}

async fn rotate_logs(context: &Context) {
    let config = &context.config;
    let mut ticks = tokio::time::interval(LOG_ROTATION_PERIOD);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let (max_size, max_files) = (config.container_log_max_size, config.container_log_max_files);
        logs::rotate::rotate_all(&context.runtime, context.seen.logs(), max_size, max_files).await;
    }
}
