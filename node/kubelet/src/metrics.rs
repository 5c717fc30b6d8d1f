//! What the kubelet counts where it happens, by upstream's names. What is read when it is asked for stands with its
//! page: `server/metrics.rs`, `server/cadvisor.rs`.

use std::time::Duration;

use ferry_metrics::{Counters, Gauges, Histograms, Registry, exponential};
use k8s_openapi::api::core::v1::{Pod, PodStatus};

use crate::pod;

/// Prometheus' own.
static DEFAULT_BUCKETS: [f64; 11] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];
static OPERATION_BUCKETS: [f64; 14] = exponential(0.005, 2.5);
static POD_START_BUCKETS: [f64; 25] = [
    0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 20.0, 30.0, 45.0, 60.0, 120.0, 180.0, 240.0, 300.0, 360.0,
    480.0, 600.0, 900.0, 1200.0, 1800.0, 2700.0, 3600.0,
];
/// From a tenth of a second to 40 seconds, each the same number of times the one before, as upstream's.
static CSI_BUCKETS: [f64; 13] = [0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0, 25.0, 50.0, 120.0, 300.0, 600.0];
static DEVICE_BUCKETS: [f64; 15] =
    [0.1, 0.153, 0.235, 0.361, 0.554, 0.85, 1.304, 2.0, 3.069, 4.708, 7.224, 11.083, 17.003, 26.087, 40.0];
static PULL_BUCKETS: [f64; 18] = [
    1.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 180.0, 240.0, 300.0, 360.0, 480.0, 600.0, 900.0, 1200.0, 1800.0,
    2700.0, 3600.0,
];

static OPERATIONS: Counters<1> = Counters::new(
    "kubelet_runtime_operations_total",
    "Calls to the container runtime, by what they ask for",
    &["operation_type"],
);
static OPERATION_ERRORS: Counters<1> = Counters::new(
    "kubelet_runtime_operations_errors_total",
    "Calls to the container runtime that failed",
    &["operation_type"],
);
static OPERATION_DURATION: Histograms<1> = Histograms::new(
    "kubelet_runtime_operations_duration_seconds",
    "How long calls to the container runtime took, in seconds",
    &["operation_type"],
    &OPERATION_BUCKETS,
);
static POD_WORKER_DURATION: Histograms<1> = Histograms::new(
    "kubelet_pod_worker_duration_seconds",
    "How long one pass over a pod took, in seconds: create, update or terminate",
    &["operation_type"],
    &DEFAULT_BUCKETS,
);
static POD_WORKER_START: Histograms<0> = Histograms::new(
    "kubelet_pod_worker_start_duration_seconds",
    "How long a pod that was first seen waited for its worker, in seconds",
    &[],
    &DEFAULT_BUCKETS,
);
static POD_START: Histograms<0> = Histograms::new(
    "kubelet_pod_start_duration_seconds",
    "How long it took from seeing a pod first to its containers running, in seconds",
    &[],
    &POD_START_BUCKETS,
);
static POD_START_TOTAL: Histograms<0> = Histograms::new(
    "kubelet_pod_start_total_duration_seconds",
    "How long it took from a pod's creation to its containers running, in seconds",
    &[],
    &POD_START_BUCKETS,
);
static STARTED_PODS: Counters<0> =
    Counters::new("kubelet_started_pods_total", "Sandboxes that were started for pods", &[]);
static STARTED_PODS_ERRORS: Counters<0> =
    Counters::new("kubelet_started_pods_errors_total", "Sandboxes that could not be started", &[]);
static STARTED_CONTAINERS: Counters<1> =
    Counters::new("kubelet_started_containers_total", "Containers that were started", &["container_type"]);
static STARTED_CONTAINERS_ERRORS: Counters<2> = Counters::new(
    "kubelet_started_containers_errors_total",
    "Containers that could not be started, by the reason their status shows",
    &["code", "container_type"],
);
static TERMINATED_CONTAINERS: Counters<3> = Counters::new(
    "kubelet_terminated_containers_total",
    "Containers that ended, by their exit code and what they were ended by",
    &["container_type", "exit_code", "reason"],
);
static CONTAINERS_PER_POD: Histograms<0> = Histograms::new(
    "kubelet_containers_per_pod_count",
    "How many containers pods have",
    &[],
    &[1.0, 2.0, 4.0, 8.0, 16.0],
);
static RELIST_DURATION: Histograms<0> = Histograms::new(
    "kubelet_pleg_relist_duration_seconds",
    "How long it took to list all sandboxes and containers, in seconds",
    &[],
    &DEFAULT_BUCKETS,
);
static RELIST_INTERVAL: Histograms<0> = Histograms::new(
    "kubelet_pleg_relist_interval_seconds",
    "The time between two lists of all sandboxes and containers, in seconds",
    &[],
    &DEFAULT_BUCKETS,
);
static RELIST_SEEN: Gauges<0> = Gauges::new(
    "kubelet_pleg_last_seen_seconds",
    "When all sandboxes and containers were last listed, in seconds since 1970",
    &[],
);
static EVICTIONS: Counters<1> = Counters::new(
    "kubelet_evictions",
    "Pods that were evicted, by the signal that asked for it",
    &["eviction_signal"],
);
static PULL_DURATION: Histograms<1> = Histograms::new(
    "kubelet_image_pull_duration_seconds",
    "How long it took to pull an image, in seconds, by the image's size",
    &["image_size_in_bytes"],
    &PULL_BUCKETS,
);
static DEVICES_DURATION: Histograms<2> = Histograms::new(
    "dra_operations_duration_seconds",
    "How long it took to prepare or unprepare all ResourceClaims of a pod, in seconds",
    &["is_error", "operation_name"],
    &DEVICE_BUCKETS,
);
static DRIVER_DURATION: Histograms<3> = Histograms::new(
    "dra_grpc_operations_duration_seconds",
    "How long calls to drivers of devices took, in seconds",
    &["driver_name", "grpc_status_code", "method_name"],
    &DEVICE_BUCKETS,
);
static PLUGINS_REGISTERED: Counters<1> = Counters::new(
    "kubelet_device_plugin_registration_total",
    "Registrations of device plugins, by their resource",
    &["resource_name"],
);
static PLUGIN_ALLOCATION: Histograms<1> = Histograms::new(
    "kubelet_device_plugin_alloc_duration_seconds",
    "How long device plugins took to answer Allocate, in seconds, by their resource",
    &["resource_name"],
    &DEFAULT_BUCKETS,
);
static POD_RESOURCES: Counters<1> = Counters::new(
    "kubelet_pod_resources_endpoint_requests_total",
    "Requests to the PodResources API",
    &["server_api_version"],
);
static POD_RESOURCES_LIST: Counters<1> = Counters::new(
    "kubelet_pod_resources_endpoint_requests_list",
    "Requests to the PodResources API for all pods",
    &["server_api_version"],
);
static POD_RESOURCES_GET: Counters<1> = Counters::new(
    "kubelet_pod_resources_endpoint_requests_get",
    "Requests to the PodResources API for one pod",
    &["server_api_version"],
);
static POD_RESOURCES_ALLOCATABLE: Counters<1> = Counters::new(
    "kubelet_pod_resources_endpoint_requests_get_allocatable",
    "Requests to the PodResources API for what the node has",
    &["server_api_version"],
);
static POD_RESOURCES_GET_ERRORS: Counters<1> = Counters::new(
    "kubelet_pod_resources_endpoint_errors_get",
    "Requests to the PodResources API for a pod that is not there",
    &["server_api_version"],
);
static CSI_DURATION: Histograms<4> = Histograms::new(
    "csi_operations_seconds",
    "How long calls to drivers of volumes took, in seconds",
    &["driver_name", "grpc_status_code", "method_name", "migrated"],
    &CSI_BUCKETS,
);
static PROBES: Counters<6> = Counters::new(
    "prober_probe_total",
    "Probes of containers, by what they found",
    &["container", "namespace", "pod", "pod_uid", "probe_type", "result"],
);
static PROBE_DURATION: Histograms<4> = Histograms::new(
    "prober_probe_duration_seconds",
    "How long probes took to be answered, in seconds",
    &["container", "namespace", "pod", "probe_type"],
    &DEFAULT_BUCKETS,
);
static HTTP_REQUESTS: Counters<4> = Counters::new(
    "kubelet_http_requests_total",
    "Requests to the kubelet's server",
    &["long_running", "method", "path", "server_type"],
);
static HTTP_DURATION: Histograms<4> = Histograms::new(
    "kubelet_http_requests_duration_seconds",
    "How long the kubelet's server took to begin its answers, in seconds",
    &["long_running", "method", "path", "server_type"],
    &DEFAULT_BUCKETS,
);

/// `/metrics`.
pub fn register(registry: &mut Registry) {
    registry.add(&[
        &OPERATIONS,
        &OPERATION_ERRORS,
        &OPERATION_DURATION,
        &POD_WORKER_DURATION,
        &POD_WORKER_START,
        &POD_START,
        &POD_START_TOTAL,
        &STARTED_PODS,
        &STARTED_PODS_ERRORS,
        &STARTED_CONTAINERS,
        &STARTED_CONTAINERS_ERRORS,
        &TERMINATED_CONTAINERS,
        &CONTAINERS_PER_POD,
        &RELIST_DURATION,
        &RELIST_INTERVAL,
        &RELIST_SEEN,
        &EVICTIONS,
        &DEVICES_DURATION,
        &DRIVER_DURATION,
        &PLUGINS_REGISTERED,
        &PLUGIN_ALLOCATION,
        &POD_RESOURCES,
        &POD_RESOURCES_LIST,
        &POD_RESOURCES_GET,
        &POD_RESOURCES_ALLOCATABLE,
        &POD_RESOURCES_GET_ERRORS,
        &CSI_DURATION,
        &PULL_DURATION,
        &HTTP_REQUESTS,
        &HTTP_DURATION,
    ]);
}

/// `/metrics/probes`.
pub fn register_probes(registry: &mut Registry) {
    registry.add(&[&PROBES, &PROBE_DURATION]);
}

/// `method` is the interface's: `/runtime.v1.RuntimeService/RunPodSandbox`.
pub fn runtime_called(method: &str, took: Duration, has_failed: bool) {
    let operation = operation(method);
    OPERATIONS.with([&operation]).inc();
    OPERATION_DURATION.with([&operation]).observe_time(took);
    if has_failed {
        OPERATION_ERRORS.with([&operation]).inc();
    }
}

/// Upstream's word for a call: `run_podsandbox`, `create_container`, `version`.
fn operation(method: &str) -> String {
    let name = method.rsplit('/').next().unwrap_or(method);
    let name = name.replace("PodSandbox", "Podsandbox");
    let mut words = String::with_capacity(name.len() + 4);
    for character in name.chars() {
        if character.is_ascii_uppercase() && !words.is_empty() {
            words.push('_');
        }
        words.push(character.to_ascii_lowercase());
    }
    words
}

pub fn pod_worked(operation: &str, took: Duration) {
    POD_WORKER_DURATION.with([operation]).observe_time(took);
}

/// A pod was first seen this long before its worker began.
pub fn worker_started(pod: &Pod, waited: Duration) {
    POD_WORKER_START.with([]).observe_time(waited);
    CONTAINERS_PER_POD.with([]).observe(pod::spec(pod).containers.len() as f64);
}

/// All containers of a pod run for the first time.
pub fn pod_started(since_seen: Duration, since_created: Option<Duration>) {
    POD_START.with([]).observe_time(since_seen);
    if let Some(since_created) = since_created {
        POD_START_TOTAL.with([]).observe_time(since_created);
    }
}

pub fn sandbox_started(succeeded: bool) {
    // upstream counts every attempt as a start
    STARTED_PODS.with([]).inc();
    if !succeeded {
        STARTED_PODS_ERRORS.with([]).inc();
    }
}

pub fn container_started(container_type: &str, failure: Option<&str>) {
    STARTED_CONTAINERS.with([container_type]).inc();
    if let Some(code) = failure {
        STARTED_CONTAINERS_ERRORS.with([code, container_type]).inc();
    }
}

/// Counts containers that have ended between two statuses of a pod.
pub fn containers_ended(before: &PodStatus, after: &PodStatus) {
    let of = |status: &PodStatus| {
        [
            ("init_container", status.init_container_statuses.clone().unwrap_or_default()),
            ("container", status.container_statuses.clone().unwrap_or_default()),
            ("ephemeral_container", status.ephemeral_container_statuses.clone().unwrap_or_default()),
        ]
    };
    for ((container_type, before), (_, after)) in of(before).iter().zip(of(after)) {
        for status in after {
            let Some(ended) = status.state.as_ref().and_then(|state| state.terminated.as_ref()) else {
                continue;
            };
            let known = before.iter().find(|known| known.name == status.name);
            let known = known.and_then(|known| known.state.as_ref()?.terminated.as_ref());
            if known.is_none_or(|known| known.container_id != ended.container_id) {
                container_terminated(container_type, ended.exit_code, ended.reason.as_deref().unwrap_or(""));
            }
        }
    }
}

fn container_terminated(container_type: &str, exit_code: i32, reason: &str) {
    // the runtime's words are few, but its own
    let reason = match reason {
        "Completed" | "Error" | "OOMKilled" | "ContainerCannotRun" | "StartError" => reason,
        _ => "Other",
    };
    TERMINATED_CONTAINERS.with([container_type, &exit_code.to_string(), reason]).inc();
}

pub fn relisted(took: Duration, since_last: Option<Duration>) {
    RELIST_DURATION.with([]).observe_time(took);
    if let Some(since_last) = since_last {
        RELIST_INTERVAL.with([]).observe_time(since_last);
    }
    RELIST_SEEN.with([]).set(jiff::Timestamp::now().as_second() as f64);
}

pub fn evicted(signal: &str) {
    EVICTIONS.with([signal]).inc();
}

pub fn image_pulled(took: Duration, bytes: u64) {
    PULL_DURATION.with([size_class(bytes)]).observe_time(took);
}

/// Upstream's classes.
fn size_class(bytes: u64) -> &'static str {
    const MEGABYTE: u64 = 1 << 20;
    match bytes / MEGABYTE {
        _ if bytes == 0 => "N/A",
        0..10 => "0-10MB",
        10..100 => "10MB-100MB",
        100..500 => "100MB-500MB",
        500..1024 => "500MB-1GB",
        1024..5120 => "1GB-5GB",
        5120..10240 => "5GB-10GB",
        10240..20480 => "10GB-20GB",
        20480..30720 => "20GB-30GB",
        30720..40960 => "30GB-40GB",
        40960..61440 => "40GB-60GB",
        61440..102_400 => "60GB-100GB",
        _ => "GT100GB",
    }
}

pub fn probed(pod: &Pod, container: &str, probe_type: &str, succeeded: bool, took: Duration) {
    let (namespace, name) = (pod::namespace(pod), pod::name(pod));
    let result = if succeeded { "successful" } else { "failed" };
    PROBES.with([container, namespace, name, pod::uid(pod), probe_type, result]).inc();
    PROBE_DURATION.with([container, namespace, name, probe_type]).observe_time(took);
}

/// The pod is gone, and so are its series.
pub fn forget_probes(pod: &Pod) {
    let uid = pod::uid(pod);
    PROBES.retain(|[_, _, _, own, _, _]| own != uid);
    let (namespace, name) = (pod::namespace(pod), pod::name(pod));
    PROBE_DURATION.retain(|[_, own, its, _]| (own, its) != (namespace, name));
}

/// Devices of a pod were prepared or unprepared, or could not be.
pub fn devices_handled(operation: &str, has_failed: bool, took: Duration) {
    DEVICES_DURATION.with([if has_failed { "true" } else { "false" }, operation]).observe_time(took);
}

pub fn driver_called(driver: &str, method: &str, code: &str, took: Duration) {
    DRIVER_DURATION.with([driver, code, method]).observe_time(took);
}

pub fn plugin_registered(resource: &str) {
    PLUGINS_REGISTERED.with([resource]).inc();
}

pub fn plugin_allocated(resource: &str, took: Duration) {
    PLUGIN_ALLOCATION.with([resource]).observe_time(took);
}

/// What is asked of the PodResources API.
#[derive(Clone, Copy)]
pub enum PodResourcesCall {
    List,
    Get,
    GetAllocatable,
}

pub fn pod_resources_asked(call: PodResourcesCall) {
    POD_RESOURCES.with(["v1"]).inc();
    match call {
        PodResourcesCall::List => POD_RESOURCES_LIST.with(["v1"]).inc(),
        PodResourcesCall::Get => POD_RESOURCES_GET.with(["v1"]).inc(),
        PodResourcesCall::GetAllocatable => POD_RESOURCES_ALLOCATABLE.with(["v1"]).inc(),
    }
}

pub fn pod_resources_missed() {
    POD_RESOURCES_GET_ERRORS.with(["v1"]).inc();
}

pub fn csi_called(driver: &str, method: &str, code: &str, took: Duration) {
    // no volume here is of a driver that was once a part of the kubelet
    CSI_DURATION.with([driver, code, &format!("/csi.v1.Node/{method}"), "false"]).observe_time(took);
}

pub fn served(method: &http::Method, path: &str, took: Duration) {
    // of a path only the first word: the others name pods
    let path = path.trim_start_matches('/').split('/').next().unwrap_or("");
    let known = [
        "attach",
        "configz",
        "containerLogs",
        "exec",
        "healthz",
        "logs",
        "metrics",
        "pods",
        "portForward",
        "runningpods",
        "stats",
    ];
    let path = if known.contains(&path) { path } else { "invalid" };
    let method = match *method {
        http::Method::GET | http::Method::POST | http::Method::HEAD => method.as_str(),
        _ => "invalid",
    };
    let is_long = matches!(path, "attach" | "exec" | "portForward" | "containerLogs");
    let labels = [if is_long { "true" } else { "false" }, method, path, "readwrite"];
    HTTP_REQUESTS.with(labels).inc();
    HTTP_DURATION.with(labels).observe_time(took);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_have_upstreams_words() {
        for (method, expected) in [
            ("/runtime.v1.RuntimeService/RunPodSandbox", "run_podsandbox"),
            ("/runtime.v1.RuntimeService/ListPodSandbox", "list_podsandbox"),
            ("/runtime.v1.RuntimeService/PodSandboxStatus", "podsandbox_status"),
            ("/runtime.v1.RuntimeService/CreateContainer", "create_container"),
            ("/runtime.v1.RuntimeService/ExecSync", "exec_sync"),
            ("/runtime.v1.RuntimeService/Version", "version"),
            ("/runtime.v1.ImageService/PullImage", "pull_image"),
            ("/runtime.v1.ImageService/ImageFsInfo", "image_fs_info"),
        ] {
            assert_eq!(operation(method), expected);
        }
    }

    #[test]
    fn images_are_classed_by_size() {
        assert_eq!(
            [0, 1, 10 << 20, 3 << 30, 1 << 40].map(size_class),
            ["N/A", "0-10MB", "10MB-100MB", "1GB-5GB", "GT100GB"]
        );
    }
}
