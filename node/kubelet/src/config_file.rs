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
        tracing::warn!(file = %path.display(), fields = unused.join(","), "settings without effect");
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

#[derive(Default, Deserialize, Serialize)]
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
    cgroup_driver: Option<CgroupDriver>,
    cgroup_root: Option<String>,
    cpu_manager_policy: Option<CpuManagerPolicy>,
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
    eviction_max_pod_grace_period: Option<Seconds>,
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
    node_lease_duration_seconds: Option<Seconds>,
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

#[derive(Clone, Copy, Deserialize, Serialize)]
struct Seconds(u64);

/// A field of the configuration, as a field of the file sets and shows it.
trait Setting<InFile> {
    fn set(&mut self, value: InFile);
    fn shown(&self) -> Option<InFile>;
}

impl<T: Clone> Setting<T> for T {
    fn set(&mut self, value: T) {
        *self = value;
    }

    fn shown(&self) -> Option<T> {
        Some(self.clone())
    }
}

impl<T: Clone> Setting<T> for Option<T> {
    fn set(&mut self, value: T) {
        *self = Some(value);
    }

    fn shown(&self) -> Option<T> {
        self.clone()
    }
}

impl Setting<GoDuration> for Duration {
    fn set(&mut self, value: GoDuration) {
        *self = value.0;
    }

    fn shown(&self) -> Option<GoDuration> {
        Some(GoDuration(*self))
    }
}

impl Setting<Seconds> for Duration {
    fn set(&mut self, value: Seconds) {
        *self = Duration::from_secs(value.0);
    }

    fn shown(&self) -> Option<Seconds> {
        Some(Seconds(self.as_secs()))
    }
}

impl Setting<BTreeMap<String, GoDuration>> for BTreeMap<String, Duration> {
    fn set(&mut self, value: BTreeMap<String, GoDuration>) {
        *self = value.into_iter().map(|(signal, period)| (signal, period.0)).collect();
    }

    fn shown(&self) -> Option<BTreeMap<String, GoDuration>> {
        Some(self.iter().map(|(signal, period)| (signal.clone(), GoDuration(*period))).collect())
    }
}

/// The settings that a field of the file says completely: its name, and the configuration's where that is another.
macro_rules! settings {
    ($($in_file:ident $(=> $in_config:ident)?),* $(,)?) => {
        impl File {
            fn set_fields(&mut self, config: &mut Config) {
                $(if let Some(value) = self.$in_file.take() {
                    settings!(@place config $in_file $($in_config)?).set(value);
                })*
            }

            fn show_fields(&mut self, config: &Config) {
                $(self.$in_file = settings!(@place config $in_file $($in_config)?).shown();)*
            }
        }
    };
    (@place $config:ident $name:ident) => { $config.$name };
    (@place $config:ident $in_file:ident $name:ident) => { $config.$name };
}

settings! {
    address,
    port,
    container_runtime_endpoint,
    provider_id,
    register_node,
    static_pod_path,
    tls_cert_file,
    tls_private_key_file,
    enable_debugging_handlers,
    cluster_domain,
    cluster_dns,
    resolv_conf,
    pod_cidr,
    max_pods,
    cgroup_driver,
    cgroup_root,
    cpu_manager_policy,
    reserved_system_cpus => reserved_cpus,
    cpu_cfs_quota => enable_cfs_quota,
    kube_reserved,
    system_reserved,
    allowed_unsafe_sysctls,
    seccomp_default,
    eviction_hard,
    eviction_soft,
    eviction_soft_grace_period,
    eviction_minimum_reclaim,
    eviction_max_pod_grace_period,
    eviction_pressure_transition_period,
    image_gc_high_threshold_percent,
    image_gc_low_threshold_percent,
    image_minimum_gc_age,
    image_pull_credentials_verification_policy => image_verification,
    preloaded_images_verification_allowlist => preloaded_images_allowlist,
    max_parallel_image_pulls,
    container_log_max_files,
    sync_frequency,
    file_check_frequency,
    node_status_update_frequency,
    node_status_report_frequency,
    node_lease_duration_seconds => node_lease_duration,
}

impl File {
    fn of(config: &Config) -> File {
        let mut file = File {
            api_version: API_VERSION.into(),
            kind: KIND.into(),
            register_with_taints: Some(config.register_with_taints.clone())
                .filter(|taints| !taints.is_empty()),
            authentication: Some(Authentication {
                x509: Some(X509 { client_ca_file: config.client_ca_file.clone() }),
                anonymous: Some(Anonymous { enabled: Some(config.anonymous_auth) }),
            }),
            pod_pids_limit: Some(config.pod_pids_limit.unwrap_or(-1)),
            serialize_image_pulls: Some(config.max_parallel_image_pulls == 1),
            container_log_max_size: Some(config.container_log_max_size.to_string()),
            crash_loop_back_off: Some(CrashLoopBackOff {
                max_container_restart_period: config.max_container_restart_period.shown(),
            }),
            ..File::default()
        };
        file.show_fields(config);
        file
    }

    /// Returns the names of the settings that have no effect.
    fn give_to(mut self, config: &mut Config) -> Vec<String> {
        if self.serialize_image_pulls == Some(false) {
            // as many as are wanted, unless the file has a number
            config.max_parallel_image_pulls = usize::from(u16::MAX);
        }
        self.set_fields(config);
        if let Some(taints) = self.register_with_taints {
            config.register_with_taints = taints;
        }
        if let Some(authentication) = self.authentication {
            if let Some(file) = authentication.x509.and_then(|x509| x509.client_ca_file) {
                config.client_ca_file = Some(file);
            }
            if let Some(enabled) = authentication.anonymous.and_then(|anonymous| anonymous.enabled) {
                config.anonymous_auth = enabled;
            }
        }
        if let Some(limit) = self.pod_pids_limit {
            config.pod_pids_limit = Some(limit).filter(|limit| *limit > 0);
        }
        let size = self.container_log_max_size.map(|text| amount_of("memory", &text).max(0) as u64);
        if let Some(size) = size.filter(|size| *size > 0) {
            config.container_log_max_size = size;
        }
        if let Some(period) =
            self.crash_loop_back_off.and_then(|back_off| back_off.max_container_restart_period)
        {
            config.max_container_restart_period = period.0;
        }
        self.unused.into_keys().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";

    #[test]
    fn the_configuration_file_replaces_only_the_fields_it_sets() {
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
    fn the_shown_configuration_can_be_read_again() {
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
    fn malformed_configuration_files_are_refused() {
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
