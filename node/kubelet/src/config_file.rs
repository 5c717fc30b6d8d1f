//! Upstream's configuration file, `kind: KubeletConfiguration`: what it says
//! replaces what the [`Config`] had, and what the config has is shown in it.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use k8s_openapi::api::core::v1::Taint;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::config::{CgroupDriver, Config, CpuManagerPolicy, Thresholds};
use crate::images::records::Verification;
use crate::resources::amount_of;

const API_VERSION: &str = "kubelet.config.k8s.io/v1beta1";
const KIND: &str = "KubeletConfiguration";

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("reading {file}: {source}")]
    Read { file: PathBuf, source: std::io::Error },
    #[error("{file}: {problem}")]
    Malformed { file: PathBuf, problem: String },
}

/// Applies a file to a configuration.
pub fn apply(path: &Path, config: &mut Config) -> Result<(), Error> {
    let text = std::fs::read_to_string(path).map_err(|source| Error::Read { file: path.into(), source })?;
    let unused = read(&text)
        .map(|file| file.give_to(config))
        .map_err(|problem| Error::Malformed { file: path.into(), problem })?;
    if !unused.is_empty() {
        tracing::warn!(file = %path.display(), fields = unused.join(","), "settings that make no difference here");
    }
    Ok(())
}

/// Applies fields of such a file that were given in another way.
pub fn apply_fields(
    fields: serde_json::Map<String, serde_json::Value>,
    config: &mut Config,
) -> Result<(), String> {
    let mut fields = fields;
    fields.insert("apiVersion".into(), API_VERSION.into());
    fields.insert("kind".into(), KIND.into());
    let file: File = serde_json::from_value(fields.into()).map_err(|error| error.to_string())?;
    match file.give_to(config).as_slice() {
        [] => Ok(()),
        unused => Err(format!("{} cannot be set", unused.join(", "))),
    }
}

/// A configuration in force, as `/configz` shows it.
pub fn shown(config: &Config) -> serde_json::Value {
    let mut shown = serde_json::to_value(File::of(config)).expect("a configuration is JSON");
    if let Some(fields) = shown.as_object_mut() {
        fields.retain(|_, value| !value.is_null());
    }
    shown
}

fn read(text: &str) -> Result<File, String> {
    let file: File = ferry_api::yaml::one(text).map_err(|error| error.to_string())?;
    let known = file.api_version == API_VERSION && file.kind == KIND;
    if known { Ok(file) } else { Err("no KubeletConfiguration of kubelet.config.k8s.io/v1beta1".into()) }
}

#[derive(Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
struct File {
    api_version: String,
    kind: String,
    address: Option<IpAddr>,
    port: Option<u16>,
    container_runtime_endpoint: Option<String>,
    #[serde(rename = "providerID")]
    provider_id: Option<String>,
    register_node: Option<bool>,
    register_with_taints: Option<Vec<Taint>>,
    static_pod_path: Option<PathBuf>,
    tls_cert_file: Option<PathBuf>,
    tls_private_key_file: Option<PathBuf>,
    authentication: Option<Authentication>,
    enable_debugging_handlers: Option<bool>,
    cluster_domain: Option<String>,
    #[serde(rename = "clusterDNS")]
    cluster_dns: Option<Vec<IpAddr>>,
    resolv_conf: Option<PathBuf>,
    #[serde(rename = "podCIDR")]
    pod_cidr: Option<String>,
    max_pods: Option<u32>,
    pod_pids_limit: Option<i64>,
    cgroup_driver: Option<Driver>,
    cgroup_root: Option<String>,
    cpu_manager_policy: Option<Policy>,
    #[serde(rename = "reservedSystemCPUs")]
    reserved_system_cpus: Option<String>,
    #[serde(rename = "cpuCFSQuota")]
    cpu_cfs_quota: Option<bool>,
    kube_reserved: Option<BTreeMap<String, String>>,
    system_reserved: Option<BTreeMap<String, String>>,
    allowed_unsafe_sysctls: Option<Vec<String>>,
    seccomp_default: Option<bool>,
    eviction_hard: Option<Thresholds>,
    eviction_soft: Option<Thresholds>,
    eviction_soft_grace_period: Option<BTreeMap<String, GoDuration>>,
    eviction_minimum_reclaim: Option<Thresholds>,
    /// Seconds.
    eviction_max_pod_grace_period: Option<u64>,
    eviction_pressure_transition_period: Option<GoDuration>,
    #[serde(rename = "imageGCHighThresholdPercent")]
    image_gc_high_threshold_percent: Option<u8>,
    #[serde(rename = "imageGCLowThresholdPercent")]
    image_gc_low_threshold_percent: Option<u8>,
    #[serde(rename = "imageMinimumGCAge")]
    image_minimum_gc_age: Option<GoDuration>,
    image_pull_credentials_verification_policy: Option<Verification>,
    preloaded_images_verification_allowlist: Option<Vec<String>>,
    serialize_image_pulls: Option<bool>,
    max_parallel_image_pulls: Option<usize>,
    container_log_max_size: Option<String>,
    container_log_max_files: Option<u32>,
    sync_frequency: Option<GoDuration>,
    file_check_frequency: Option<GoDuration>,
    node_status_update_frequency: Option<GoDuration>,
    node_status_report_frequency: Option<GoDuration>,
    node_lease_duration_seconds: Option<u64>,
    crash_loop_back_off: Option<CrashLoopBackOff>,
    #[serde(flatten)]
    unused: BTreeMap<String, serde_json::Value>,
}

#[derive(Deserialize, Serialize)]
struct Authentication {
    x509: Option<X509>,
    anonymous: Option<Anonymous>,
}

#[derive(Deserialize, Serialize)]
struct X509 {
    #[serde(rename = "clientCAFile")]
    client_ca_file: Option<PathBuf>,
}

#[derive(Deserialize, Serialize)]
struct Anonymous {
    enabled: Option<bool>,
}

#[derive(Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
struct CrashLoopBackOff {
    max_container_restart_period: Option<GoDuration>,
}

#[derive(Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
enum Driver {
    Cgroupfs,
    Systemd,
}

#[derive(Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
enum Policy {
    None,
    Static,
}

/// `1m30s`.
#[derive(Clone, Copy)]
struct GoDuration(Duration);

impl<'de> Deserialize<'de> for GoDuration {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let nanoseconds = ferry_api::duration::parse(&text).and_then(|length| u64::try_from(length).ok());
        let bad = || serde::de::Error::custom(format!("{text:?} is no duration like 1m30s"));
        nanoseconds.map(|length| GoDuration(Duration::from_nanos(length))).ok_or_else(bad)
    }
}

impl Serialize for GoDuration {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let nanoseconds = i64::try_from(self.0.as_nanos()).unwrap_or(i64::MAX);
        serializer.serialize_str(&ferry_api::duration::format(nanoseconds))
    }
}

fn put<T>(place: &mut T, said: Option<T>) {
    if let Some(said) = said {
        *place = said;
    }
}

fn put_duration(place: &mut Duration, said: Option<GoDuration>) {
    put(place, said.map(|said| said.0));
}

impl File {
    fn of(config: &Config) -> File {
        let config = config.clone();
        let period = |period: Duration| Some(GoDuration(period));
        let grace = config.eviction_soft_grace_period.into_iter();
        File {
            api_version: API_VERSION.into(),
            kind: KIND.into(),
            address: Some(config.address),
            port: Some(config.port),
            container_runtime_endpoint: Some(config.container_runtime_endpoint),
            provider_id: config.provider_id,
            register_node: Some(config.register_node),
            register_with_taints: Some(config.register_with_taints).filter(|taints| !taints.is_empty()),
            static_pod_path: config.static_pod_path,
            tls_cert_file: config.tls_cert_file,
            tls_private_key_file: config.tls_private_key_file,
            authentication: Some(Authentication {
                x509: Some(X509 { client_ca_file: config.client_ca_file }),
                anonymous: Some(Anonymous { enabled: Some(config.anonymous_auth) }),
            }),
            enable_debugging_handlers: Some(config.enable_debugging_handlers),
            cluster_domain: Some(config.cluster_domain),
            cluster_dns: Some(config.cluster_dns),
            resolv_conf: Some(config.resolv_conf),
            pod_cidr: config.pod_cidr,
            max_pods: Some(config.max_pods),
            pod_pids_limit: Some(config.pod_pids_limit.unwrap_or(-1)),
            cgroup_driver: Some(match config.cgroup_driver {
                CgroupDriver::Cgroupfs => Driver::Cgroupfs,
                CgroupDriver::Systemd => Driver::Systemd,
            }),
            cgroup_root: Some(config.cgroup_root),
            cpu_manager_policy: Some(match config.cpu_manager_policy {
                CpuManagerPolicy::None => Policy::None,
                CpuManagerPolicy::Static => Policy::Static,
            }),
            reserved_system_cpus: config.reserved_cpus,
            cpu_cfs_quota: Some(config.enable_cfs_quota),
            kube_reserved: Some(config.kube_reserved),
            system_reserved: Some(config.system_reserved),
            allowed_unsafe_sysctls: Some(config.allowed_unsafe_sysctls),
            seccomp_default: Some(config.seccomp_default),
            eviction_hard: Some(config.eviction_hard),
            eviction_soft: Some(config.eviction_soft),
            eviction_soft_grace_period: Some(
                grace.map(|(signal, period)| (signal, GoDuration(period))).collect(),
            ),
            eviction_minimum_reclaim: Some(config.eviction_minimum_reclaim),
            eviction_max_pod_grace_period: Some(config.eviction_max_pod_grace_period.as_secs()),
            eviction_pressure_transition_period: period(config.eviction_pressure_transition_period),
            image_gc_high_threshold_percent: Some(config.image_gc_high_threshold_percent),
            image_gc_low_threshold_percent: Some(config.image_gc_low_threshold_percent),
            image_minimum_gc_age: period(config.image_minimum_gc_age),
            image_pull_credentials_verification_policy: Some(config.image_verification),
            preloaded_images_verification_allowlist: Some(config.preloaded_images_allowlist),
            serialize_image_pulls: Some(config.max_parallel_image_pulls == 1),
            max_parallel_image_pulls: Some(config.max_parallel_image_pulls),
            container_log_max_size: Some(config.container_log_max_size.to_string()),
            container_log_max_files: Some(config.container_log_max_files),
            sync_frequency: period(config.sync_frequency),
            file_check_frequency: period(config.file_check_frequency),
            node_status_update_frequency: period(config.node_status_update_frequency),
            node_status_report_frequency: period(config.node_status_report_frequency),
            node_lease_duration_seconds: Some(config.node_lease_duration.as_secs()),
            crash_loop_back_off: Some(CrashLoopBackOff {
                max_container_restart_period: period(config.max_container_restart_period),
            }),
            unused: BTreeMap::new(),
        }
    }

    /// Says which settings were not used.
    fn give_to(mut self, config: &mut Config) -> Vec<String> {
        self.give_evictions(config);
        self.give_images_and_logs(config);
        self.give_periods(config);
        put(&mut config.address, self.address);
        put(&mut config.port, self.port);
        put(&mut config.container_runtime_endpoint, self.container_runtime_endpoint);
        config.provider_id = self.provider_id.or(config.provider_id.take());
        put(&mut config.register_node, self.register_node);
        put(&mut config.register_with_taints, self.register_with_taints);
        config.static_pod_path = self.static_pod_path.or(config.static_pod_path.take());
        config.tls_cert_file = self.tls_cert_file.or(config.tls_cert_file.take());
        config.tls_private_key_file = self.tls_private_key_file.or(config.tls_private_key_file.take());
        if let Some(authentication) = self.authentication {
            let authority = authentication.x509.and_then(|x509| x509.client_ca_file);
            config.client_ca_file = authority.or(config.client_ca_file.take());
            put(&mut config.anonymous_auth, authentication.anonymous.and_then(|anonymous| anonymous.enabled));
        }
        put(&mut config.enable_debugging_handlers, self.enable_debugging_handlers);
        put(&mut config.cluster_domain, self.cluster_domain);
        put(&mut config.cluster_dns, self.cluster_dns);
        put(&mut config.resolv_conf, self.resolv_conf);
        config.pod_cidr = self.pod_cidr.or(config.pod_cidr.take());
        put(&mut config.max_pods, self.max_pods);
        if let Some(limit) = self.pod_pids_limit {
            config.pod_pids_limit = Some(limit).filter(|limit| *limit > 0);
        }
        put(
            &mut config.cgroup_driver,
            self.cgroup_driver.map(|driver| match driver {
                Driver::Cgroupfs => CgroupDriver::Cgroupfs,
                Driver::Systemd => CgroupDriver::Systemd,
            }),
        );
        put(&mut config.cgroup_root, self.cgroup_root);
        put(
            &mut config.cpu_manager_policy,
            self.cpu_manager_policy.map(|policy| match policy {
                Policy::None => CpuManagerPolicy::None,
                Policy::Static => CpuManagerPolicy::Static,
            }),
        );
        config.reserved_cpus = self.reserved_system_cpus.or(config.reserved_cpus.take());
        put(&mut config.enable_cfs_quota, self.cpu_cfs_quota);
        put(&mut config.kube_reserved, self.kube_reserved);
        put(&mut config.system_reserved, self.system_reserved);
        put(&mut config.allowed_unsafe_sysctls, self.allowed_unsafe_sysctls);
        put(&mut config.seccomp_default, self.seccomp_default);
        self.unused.into_keys().collect()
    }

    fn give_evictions(&mut self, config: &mut Config) {
        put(&mut config.eviction_hard, self.eviction_hard.take());
        put(&mut config.eviction_soft, self.eviction_soft.take());
        let grace = |said: BTreeMap<String, GoDuration>| {
            said.into_iter().map(|(signal, period)| (signal, period.0)).collect()
        };
        put(&mut config.eviction_soft_grace_period, self.eviction_soft_grace_period.take().map(grace));
        put(&mut config.eviction_minimum_reclaim, self.eviction_minimum_reclaim.take());
        let seconds = self.eviction_max_pod_grace_period.take().map(Duration::from_secs);
        put(&mut config.eviction_max_pod_grace_period, seconds);
        put_duration(
            &mut config.eviction_pressure_transition_period,
            self.eviction_pressure_transition_period.take(),
        );
    }

    fn give_images_and_logs(&mut self, config: &mut Config) {
        put(&mut config.image_gc_high_threshold_percent, self.image_gc_high_threshold_percent.take());
        put(&mut config.image_gc_low_threshold_percent, self.image_gc_low_threshold_percent.take());
        put_duration(&mut config.image_minimum_gc_age, self.image_minimum_gc_age.take());
        put(&mut config.image_verification, self.image_pull_credentials_verification_policy.take());
        put(&mut config.preloaded_images_allowlist, self.preloaded_images_verification_allowlist.take());
        if self.serialize_image_pulls == Some(false) {
            // as many as are wanted, unless a number is said
            config.max_parallel_image_pulls = usize::from(u16::MAX);
        }
        put(&mut config.max_parallel_image_pulls, self.max_parallel_image_pulls.take());
        let size = self.container_log_max_size.take().map(|text| amount_of("memory", &text).max(0) as u64);
        put(&mut config.container_log_max_size, size.filter(|size| *size > 0));
        put(&mut config.container_log_max_files, self.container_log_max_files.take());
    }

    fn give_periods(&mut self, config: &mut Config) {
        put_duration(&mut config.sync_frequency, self.sync_frequency.take());
        put_duration(&mut config.file_check_frequency, self.file_check_frequency.take());
        put_duration(&mut config.node_status_update_frequency, self.node_status_update_frequency.take());
        put_duration(&mut config.node_status_report_frequency, self.node_status_report_frequency.take());
        let seconds = self.node_lease_duration_seconds.take().map(Duration::from_secs);
        put(&mut config.node_lease_duration, seconds);
        let period =
            self.crash_loop_back_off.take().and_then(|settings| settings.max_container_restart_period);
        put_duration(&mut config.max_container_restart_period, period);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";

    #[test]
    fn what_is_said_replaces_the_defaults_and_nothing_else() {
        let text = format!(
            "{HEAD}\
             syncFrequency: 1m30s\nnodeStatusUpdateFrequency: 5s\nmaxPods: 50\ncpuManagerPolicy: static\n\
             reservedSystemCPUs: \"0\"\nclusterDNS: [10.96.0.10]\nevictionHard: {{memory.available: 5%}}\n\
             evictionSoftGracePeriod: {{memory.available: 2m}}\nkubeReserved: {{cpu: 200m}}\n\
             containerLogMaxSize: 20Mi\nserializeImagePulls: false\nmaxParallelImagePulls: 3\n\
             authentication: {{x509: {{clientCAFile: /ca.crt}}}}\nfailCgroupV1: false\n\
             crashLoopBackOff: {{maxContainerRestartPeriod: 30s}}\n"
        );
        let mut config = Config::new("n");
        let unused = read(&text).expect("well formed").give_to(&mut config);
        assert_eq!(unused, ["failCgroupV1"]);
        assert_eq!(config.sync_frequency, Duration::from_secs(90));
        assert_eq!(config.node_status_update_frequency, Duration::from_secs(5));
        assert_eq!((config.max_pods, config.max_parallel_image_pulls), (50, 3));
        assert_eq!(config.cpu_manager_policy, CpuManagerPolicy::Static);
        assert_eq!(config.eviction_hard, Thresholds::from([("memory.available".into(), "5%".into())]));
        assert_eq!(config.eviction_soft_grace_period["memory.available"], Duration::from_secs(120));
        assert_eq!(config.container_log_max_size, 20 << 20);
        assert_eq!(config.client_ca_file.as_deref(), Some(Path::new("/ca.crt")));
        assert_eq!(config.max_container_restart_period, Duration::from_secs(30));
        let untouched = Config::new("n");
        assert_eq!(config.node_lease_duration, untouched.node_lease_duration);
        assert_eq!(config.resolv_conf, untouched.resolv_conf);
    }

    #[test]
    fn what_is_shown_can_be_read_again() {
        let mut config = Config::new("n");
        config.sync_frequency = Duration::from_secs(90);
        config.cpu_manager_policy = CpuManagerPolicy::Static;
        config.image_verification = Verification::AlwaysVerify;
        config.eviction_soft_grace_period.insert("memory.available".into(), Duration::from_secs(30));
        let value = shown(&config);
        assert_eq!((&value["kind"], &value["syncFrequency"]), (&KIND.into(), &"1m30s".into()));
        assert_eq!(value["imagePullCredentialsVerificationPolicy"], "AlwaysVerify");
        assert_eq!(value.get("providerID"), None);
        let mut again = Config::new("n");
        let unused = read(&value.to_string()).expect("well formed").give_to(&mut again);
        assert!(unused.is_empty(), "{unused:?}");
        assert_eq!(shown(&again), value);
    }

    #[test]
    fn what_cannot_be_understood_is_refused() {
        for text in [
            "kind: Pod\napiVersion: v1\n",
            "",
            &format!("{HEAD}syncFrequency: soon\n"),
            &format!("{HEAD}port: -1\n"),
        ] {
            assert!(read(text).is_err(), "{text}");
        }
    }
}
