//! Everything that can be set about a kubelet. Field names follow upstream's
//! flags and configuration file, so that wiring them is mechanical.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use k8s_openapi::api::core::v1::Taint;
use serde::{Deserialize, Serialize};

use crate::images::records::Verification;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum CgroupDriver {
    /// Groups are directories: `/kubepods/burstable/podUID`.
    Cgroupfs,
    /// Groups are slices of systemd: `kubepods-burstable-podUID.slice`.
    Systemd,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum CpuManagerPolicy {
    None,
    /// Guaranteed pods with whole CPUs get them for themselves.
    Static,
}

/// Limits of one eviction signal, such as `memory.available<100Mi`: a
/// quantity or a percentage, as the user wrote it.
pub type Thresholds = BTreeMap<String, String>;

const EVICTION_HARD: [(&str, &str); 5] = [
    ("memory.available", "100Mi"),
    ("nodefs.available", "10%"),
    ("nodefs.inodesFree", "5%"),
    ("imagefs.available", "15%"),
    ("imagefs.inodesFree", "5%"),
];

#[derive(Clone, Debug)]
pub struct Config {
    pub node_name: String,
    /// Addresses of the node, the first of each family counts; empty means
    /// the address of the default route.
    pub node_ips: Vec<IpAddr>,
    pub node_labels: BTreeMap<String, String>,
    pub register_node: bool,
    pub register_with_taints: Vec<Taint>,
    pub provider_id: Option<String>,

    /// Pods' directories, volumes and the kubelet's own records.
    pub root_dir: PathBuf,
    /// Container logs, `NAMESPACE_NAME_UID/CONTAINER/N.log`.
    pub pod_logs_dir: PathBuf,
    /// Manifests of pods that run without an API server.
    pub static_pod_path: Option<PathBuf>,
    pub file_check_frequency: Duration,

    pub container_runtime_endpoint: String,
    /// The sandbox image to have ready. `None` asks the runtime which it wants.
    pub pod_infra_container_image: Option<String>,

    pub cluster_dns: Vec<IpAddr>,
    pub cluster_domain: String,
    pub resolv_conf: PathBuf,
    /// Where CNI plugins leave their spans, if they do.
    pub cni_trace_dir: Option<PathBuf>,
    /// The range of pod addresses the runtime is told of; otherwise the one
    /// the API gives the node.
    pub pod_cidr: Option<String>,

    pub address: IpAddr,
    /// 0 picks a free port.
    pub port: u16,
    /// A serving certificate is made, signed by itself, where none is given.
    pub tls_cert_file: Option<PathBuf>,
    pub tls_private_key_file: Option<PathBuf>,
    pub client_ca_file: Option<PathBuf>,
    pub anonymous_auth: bool,
    /// Whether the kubelet serves logs, exec, attach and port-forward.
    pub enable_debugging_handlers: bool,

    pub max_pods: u32,
    pub pod_pids_limit: Option<i64>,
    pub cgroup_driver: CgroupDriver,
    pub cgroup_root: String,
    pub kube_reserved: BTreeMap<String, String>,
    pub system_reserved: BTreeMap<String, String>,
    pub cpu_manager_policy: CpuManagerPolicy,
    /// CPUs never given to a pod alone, as a list like `0-1,4`.
    pub reserved_cpus: Option<String>,
    pub allowed_unsafe_sysctls: Vec<String>,
    /// Containers without a seccomp profile get the runtime's default.
    pub seccomp_default: bool,
    pub enable_cfs_quota: bool,

    pub eviction_hard: Thresholds,
    pub eviction_soft: Thresholds,
    pub eviction_soft_grace_period: BTreeMap<String, Duration>,
    pub eviction_minimum_reclaim: Thresholds,
    pub eviction_max_pod_grace_period: Duration,
    pub eviction_pressure_transition_period: Duration,
    pub eviction_monitoring_period: Duration,

    pub image_gc_high_threshold_percent: u8,
    pub image_gc_low_threshold_percent: u8,
    pub image_minimum_gc_age: Duration,
    /// Which images on the node a pod may use only if it could pull them itself.
    pub image_verification: Verification,
    /// Images every pod may use under `NeverVerifyAllowlistedImages`: names, or prefixes that end in `/*`.
    pub preloaded_images_allowlist: Vec<String>,
    pub max_parallel_image_pulls: usize,
    /// A server of Ferry's gives out what was loaded there by hand; it is asked before registries are.
    pub asks_server_for_images: bool,
    pub container_log_max_size: u64,
    pub container_log_max_files: u32,

    pub sync_frequency: Duration,
    pub node_status_update_frequency: Duration,
    pub node_status_report_frequency: Duration,
    pub node_lease_duration: Duration,
    pub max_container_restart_period: Duration,
}

impl Config {
    /// Upstream's defaults for a node of this name: a table.
    pub fn new(node_name: impl Into<String>) -> Self {
        Self {
            node_name: node_name.into(),
            node_ips: Vec::new(),
            node_labels: BTreeMap::new(),
            register_node: true,
            register_with_taints: Vec::new(),
            provider_id: None,
            root_dir: "/var/lib/kubelet".into(),
            pod_logs_dir: "/var/log/pods".into(),
            static_pod_path: None,
            file_check_frequency: Duration::from_secs(20),
            container_runtime_endpoint: "unix:///run/containerd/containerd.sock".into(),
            pod_infra_container_image: None,
            cluster_dns: Vec::new(),
            cluster_domain: "cluster.local".into(),
            resolv_conf: "/etc/resolv.conf".into(),
            cni_trace_dir: None,
            pod_cidr: None,
            address: IpAddr::from([0, 0, 0, 0]),
            port: 10250,
            tls_cert_file: None,
            tls_private_key_file: None,
            client_ca_file: None,
            anonymous_auth: false,
            enable_debugging_handlers: true,
            max_pods: 110,
            pod_pids_limit: None,
            cgroup_driver: CgroupDriver::Cgroupfs,
            cgroup_root: "/".into(),
            kube_reserved: BTreeMap::new(),
            system_reserved: BTreeMap::new(),
            cpu_manager_policy: CpuManagerPolicy::None,
            reserved_cpus: None,
            allowed_unsafe_sysctls: Vec::new(),
            seccomp_default: false,
            enable_cfs_quota: true,
            eviction_hard: EVICTION_HARD.map(|(signal, value)| (signal.into(), value.into())).into(),
            eviction_soft: Thresholds::new(),
            eviction_soft_grace_period: BTreeMap::new(),
            eviction_minimum_reclaim: Thresholds::new(),
            eviction_max_pod_grace_period: Duration::ZERO,
            eviction_pressure_transition_period: Duration::from_secs(300),
            eviction_monitoring_period: Duration::from_secs(10),
            image_gc_high_threshold_percent: 85,
            image_gc_low_threshold_percent: 80,
            image_minimum_gc_age: Duration::from_secs(120),
            image_verification: Verification::NeverVerifyPreloadedImages,
            preloaded_images_allowlist: Vec::new(),
            max_parallel_image_pulls: 1,
            asks_server_for_images: false,
            container_log_max_size: 10 << 20,
            container_log_max_files: 5,
            sync_frequency: Duration::from_secs(60),
            node_status_update_frequency: Duration::from_secs(10),
            node_status_report_frequency: Duration::from_secs(300),
            node_lease_duration: Duration::from_secs(40),
            max_container_restart_period: Duration::from_secs(300),
        }
    }
}
