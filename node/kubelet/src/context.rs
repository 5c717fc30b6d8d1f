//! What all pod workers of a node share.

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;

use ferry_client::{Informer, Recorder};
use k8s_openapi::api::core::v1::Service;
use parking_lot::RwLock;

use crate::cgroups::PodCgroups;
use crate::config::Config;
use crate::cpu_manager::CpuManager;
use crate::cri;
use crate::device_plugins::DevicePlugins;
use crate::devices::Devices;
use crate::downward;
use crate::images::pull::Images;
use crate::objects::Objects;
use crate::runtime::dns::HostResolver;
use crate::runtime::watch::Seen;
use crate::status::writer::Writer;
use crate::volumes::Volumes;

pub struct Context {
    pub config: Config,
    /// `None` for a node that runs static pods alone.
    pub client: Option<kube::Client>,
    pub runtime: cri::Client,
    /// Its name is in every container's id: `containerd`.
    pub runtime_version: cri::VersionResponse,
    pub images: Images,
    pub volumes: Volumes,
    pub objects: Arc<Objects>,
    pub services: Option<Informer<Service>>,
    /// What the workers know of the runtime's doings.
    pub seen: Seen,
    pub writer: Writer,
    pub events: Recorder,
    pub cgroups: PodCgroups,
    pub cpus: CpuManager,
    pub devices: Arc<Devices>,
    pub device_plugins: Arc<DevicePlugins>,
    pub host_name: String,
    pub host_ips: RwLock<Vec<IpAddr>>,
    pub machine_memory: i64,
    /// What pods may take of it together.
    pub memory_of_pods: i64,
    pub allocatable: downward::Node,
    /// Why pods cannot get a network, while they cannot.
    pub network_problem: Arc<RwLock<Option<String>>>,
}

impl Context {
    pub fn pod_dir(&self, uid: &str) -> PathBuf {
        self.volumes.pod_dir(uid)
    }

    pub fn host_ips(&self) -> Vec<IpAddr> {
        self.host_ips.read().clone()
    }

    /// The node's resolver as it is now; it may change while the node runs.
    pub async fn host_resolver(&self) -> HostResolver {
        match tokio::fs::read_to_string(&self.config.resolv_conf).await {
            Ok(text) => HostResolver::parse(&text),
            Err(error) => {
                tracing::warn!(file = %self.config.resolv_conf.display(), %error, "cannot read the resolver settings for pods");
                HostResolver::default()
            }
        }
    }
}
