//! `/metrics`, `/metrics/resource` and `/metrics/probes`: what the kubelet does, and what its pods use.

use ferry_metrics::{CONTENT_TYPE, Description, Page, Registry};
use http::{Response, StatusCode};

use super::{Body, Server, respond};
use crate::{metrics, pod};

const OF_CONTAINER: &[&str] = &["container", "namespace", "pod"];
const OF_POD: &[&str] = &["namespace", "pod"];

static CONTAINER_CPU: Description = Description::counter(
    "container_cpu_usage_seconds_total",
    "CPU time that the container has used, in seconds",
    OF_CONTAINER,
);
static CONTAINER_MEMORY: Description = Description::gauge(
    "container_memory_working_set_bytes",
    "Working set of the container, in bytes",
    OF_CONTAINER,
);
static CONTAINER_STARTED: Description = Description::gauge(
    "container_start_time_seconds",
    "When the container started, in seconds since 1970",
    OF_CONTAINER,
);
static NODE_CPU: Description =
    Description::counter("node_cpu_usage_seconds_total", "CPU time that the node has used, in seconds", &[]);
static NODE_MEMORY: Description =
    Description::gauge("node_memory_working_set_bytes", "Working set of the node, in bytes", &[]);
static POD_CPU: Description =
    Description::counter("pod_cpu_usage_seconds_total", "CPU time that the pod has used, in seconds", OF_POD);
static POD_MEMORY: Description =
    Description::gauge("pod_memory_working_set_bytes", "Working set of the pod, in bytes", OF_POD);
static SCRAPE_ERROR: Description =
    Description::gauge("resource_scrape_error", "1 where containers could not be asked about, else 0", &[]);

/// The families of `/metrics/resource`.
pub fn resource_descriptions() -> [&'static Description; 8] {
    [
        &CONTAINER_CPU,
        &CONTAINER_MEMORY,
        &CONTAINER_STARTED,
        &NODE_CPU,
        &NODE_MEMORY,
        &POD_CPU,
        &POD_MEMORY,
        &SCRAPE_ERROR,
    ]
}

static NODE_NAME: Description =
    Description::gauge("kubelet_node_name", "Always 1; the label has the node's name", &["node"]);
static DESIRED_PODS: Description =
    Description::gauge("kubelet_desired_pods", "Pods that the kubelet is told to run", &["static"]);
static ACTIVE_PODS: Description =
    Description::gauge("kubelet_active_pods", "Pods that count when others are admitted", &["static"]);
static RUNNING_PODS: Description = Description::gauge("kubelet_running_pods", "Pods whose sandbox runs", &[]);
static RUNNING_CONTAINERS: Description = Description::gauge(
    "kubelet_running_containers",
    "Containers that the runtime has, by state",
    &["container_state"],
);
static CGROUP_VERSION: Description =
    Description::gauge("kubelet_cgroup_version", "Version of the control groups: 1 or 2", &[]);

impl Server {
    pub(super) async fn resource_metrics(&self) -> Response<Body> {
        let mut page = Page::default();
        let containers = self.container_usage().await;
        let pods = self.shown_pods();
        let seconds = |nanoseconds: u64| nanoseconds as f64 / 1e9;
        page.sample(&SCRAPE_ERROR, &[], f64::from(containers.is_err()));
        for each in containers.unwrap_or_default() {
            let Some(pod) = pods.iter().find(|pod| pod::uid(pod) == each.pod_uid) else { continue };
            let labels = [each.name.as_str(), pod::namespace(pod), pod::name(pod)];
            page.sample(&CONTAINER_CPU, &labels, seconds(each.cpu_nanoseconds));
            page.sample(&CONTAINER_MEMORY, &labels, each.working_set_bytes as f64);
        }
        for pod in &pods {
            let status = pod::status(pod);
            let of_all = status.init_container_statuses.iter().chain(&status.container_statuses).flatten();
            for status in of_all {
                let started =
                    status.state.as_ref().and_then(|state| state.running.as_ref()?.started_at.as_ref());
                if let Some(started) = started {
                    let labels = [status.name.as_str(), pod::namespace(pod), pod::name(pod)];
                    page.sample(&CONTAINER_STARTED, &labels, started.0.as_second() as f64);
                }
            }
            if let Some(usage) = self.context.cgroups.usage(pod) {
                let labels = [pod::namespace(pod), pod::name(pod)];
                page.sample(&POD_CPU, &labels, seconds(usage.cpu_nanoseconds));
                page.sample(&POD_MEMORY, &labels, usage.working_set_bytes as f64);
            }
        }
        if let Some(usage) = self.node_usage() {
            page.sample(&NODE_CPU, &[], seconds(usage.cpu_nanoseconds));
            page.sample(&NODE_MEMORY, &[], usage.working_set_bytes as f64);
        }
        respond(StatusCode::OK, CONTENT_TYPE, page.finish().into())
    }

    pub(super) async fn metrics(&self) -> Response<Body> {
        let mut registry = Registry::default();
        ferry_client::metrics::register(&mut registry);
        metrics::register(&mut registry);
        let mut page = Page::default();
        registry.collect(&mut page);
        page.sample(&NODE_NAME, &[&self.context.config.node_name], 1.0);
        for (description, pods) in [(&DESIRED_PODS, self.pods.present()), (&ACTIVE_PODS, self.pods.active())]
        {
            let of_files = pods.iter().filter(|pod| pod::is_static(pod)).count();
            page.sample(description, &["true"], of_files as f64);
            page.sample(description, &[""], (pods.len() - of_files) as f64);
        }
        // what the runtime does not tell is left out
        if let Ok(sandboxes) = self.context.runtime.list_pod_sandboxes(None).await {
            page.sample(&RUNNING_PODS, &[], sandboxes.iter().filter(|each| each.state == 0).count() as f64);
        }
        if let Ok(containers) = self.context.runtime.list_containers(None).await {
            for (state, name) in [(0, "created"), (1, "running"), (2, "exited"), (3, "unknown")] {
                let count = containers.iter().filter(|each| each.state == state).count();
                page.sample(&RUNNING_CONTAINERS, &[name], count as f64);
            }
        }
        if let Some(hierarchy) = self.context.cgroups.hierarchy() {
            page.sample(&CGROUP_VERSION, &[], if hierarchy.is_v2() { 2.0 } else { 1.0 });
        }
        self.measure_volumes().await;
        self.volume_metrics(&mut page);
        respond(StatusCode::OK, CONTENT_TYPE, page.finish().into())
    }

    pub(super) fn probe_metrics(&self) -> Response<Body> {
        let mut registry = Registry::default();
        metrics::register_probes(&mut registry);
        respond(StatusCode::OK, CONTENT_TYPE, registry.text().into())
    }
}
