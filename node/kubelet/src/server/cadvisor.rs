//! `/metrics/cadvisor`: what containers and pods use, by the names and labels of cAdvisor, which upstream's kubelet embeds.
//!
//! Everything is read from the control groups when it is asked for: the root, each pod's group and, below it, each
//! container's, whose name ends with the runtime's id of it. A row of a pod has neither container nor image; the sandbox's
//! own row has container `POD`.

use std::collections::HashMap;

use ferry_linux::cgroup::{Hierarchy, Path, Usage};
use ferry_linux::net::counters::{self, Counters};
use ferry_metrics::{CONTENT_TYPE, Description, Page};
use http::{Response, StatusCode};
use k8s_openapi::api::core::v1::Pod;

use super::{Body, Server, respond};
use crate::consumption::ContainerUsage;
use crate::pod;

const LABELS: &[&str] = &["container", "id", "image", "name", "namespace", "pod"];
const CPU_LABELS: &[&str] = &["container", "cpu", "id", "image", "name", "namespace", "pod"];
const FAILURE_LABELS: &[&str] =
    &["container", "failure_type", "id", "image", "name", "namespace", "pod", "scope"];
const NETWORK_LABELS: &[&str] = &["container", "id", "image", "interface", "name", "namespace", "pod"];
const DISK_LABELS: &[&str] = &["container", "device", "id", "image", "name", "namespace", "pod"];

static CPU: Description = Description::counter(
    "container_cpu_usage_seconds_total",
    "CPU time that was used, in seconds",
    CPU_LABELS,
);
static FAILURES: Description =
    Description::counter("container_memory_failures_total", "Page faults", FAILURE_LABELS);
static FS_USAGE: Description =
    Description::gauge("container_fs_usage_bytes", "Bytes written over the image", DISK_LABELS);
static LAST_SEEN: Description =
    Description::gauge("container_last_seen", "When it was last seen, in seconds since 1970", LABELS);
static STARTED: Description = Description::gauge(
    "container_start_time_seconds",
    "When the container started, in seconds since 1970",
    LABELS,
);
static SCRAPE_ERROR: Description =
    Description::gauge("container_scrape_error", "1 where containers could not be asked about, else 0", &[]);
static CORES: Description = Description::gauge("machine_cpu_cores", "CPUs of this machine", &[]);
static MEMORY: Description = Description::gauge("machine_memory_bytes", "Memory of this machine", &[]);

type Value = fn(&Usage) -> f64;

/// What is one number of a group's usage.
static OF_GROUPS: &[(Description, Value)] = &[
    (
        Description::counter("container_cpu_cfs_periods_total", "Periods of a limit on CPU time", LABELS),
        |usage| usage.throttling.periods as f64,
    ),
    (
        Description::counter(
            "container_cpu_cfs_throttled_periods_total",
            "Periods in which a limit on CPU time was met",
            LABELS,
        ),
        |usage| usage.throttling.throttled_periods as f64,
    ),
    (
        Description::counter(
            "container_cpu_cfs_throttled_seconds_total",
            "How long processes waited for a limit on CPU time, in seconds",
            LABELS,
        ),
        |usage| usage.throttling.throttled_nanoseconds as f64 / 1e9,
    ),
    (Description::gauge("container_memory_cache", "Bytes of file pages", LABELS), |usage| {
        usage.cache_bytes as f64
    }),
    (Description::gauge("container_memory_rss", "Bytes of anonymous memory", LABELS), |usage| {
        usage.rss_bytes as f64
    }),
    (Description::gauge("container_memory_usage_bytes", "Bytes of memory in all", LABELS), |usage| {
        usage.memory_bytes as f64
    }),
    (
        Description::gauge(
            "container_memory_working_set_bytes",
            "Bytes of memory that cannot be reclaimed at once",
            LABELS,
        ),
        |usage| usage.working_set_bytes as f64,
    ),
    (Description::gauge("container_processes", "Processes and threads", LABELS), |usage| usage.pids as f64),
];

type Count = fn(&Counters) -> u64;

static OF_INTERFACES: &[(Description, Count)] = &[
    (network("container_network_receive_bytes_total", "Bytes received"), |of| of.received.bytes),
    (network("container_network_receive_errors_total", "Errors while receiving"), |of| of.received.errors),
    (network("container_network_receive_packets_dropped_total", "Packets dropped on arrival"), |of| {
        of.received.dropped
    }),
    (network("container_network_receive_packets_total", "Packets received"), |of| of.received.packets),
    (network("container_network_transmit_bytes_total", "Bytes sent"), |of| of.sent.bytes),
    (network("container_network_transmit_errors_total", "Errors while sending"), |of| of.sent.errors),
    (network("container_network_transmit_packets_dropped_total", "Packets dropped before they left"), |of| {
        of.sent.dropped
    }),
    (network("container_network_transmit_packets_total", "Packets sent"), |of| of.sent.packets),
];

const fn network(name: &'static str, help: &'static str) -> Description {
    Description::counter(name, help, NETWORK_LABELS)
}

/// Of one group, as the labels name it.
#[derive(Clone, Copy, Default)]
struct Row<'a> {
    container: &'a str,
    id: &'a str,
    image: &'a str,
    name: &'a str,
    namespace: &'a str,
    pod: &'a str,
}

impl Server {
    pub(super) async fn cadvisor_metrics(&self) -> Response<Body> {
        let (containers, known) =
            tokio::join!(self.context.runtime.list_containers(None), self.container_usage());
        let mut page = Page::default();
        page.sample(&SCRAPE_ERROR, &[], f64::from(containers.is_err() || known.is_err()));
        page.sample(&CORES, &[], self.node.machine.cpus.len() as f64);
        page.sample(&MEMORY, &[], self.context.machine_memory as f64);
        let images: HashMap<String, String> = containers
            .unwrap_or_default()
            .into_iter()
            .map(|container| (container.id, container.image.map_or(container.image_ref, |image| image.image)))
            .collect();
        let usage: HashMap<String, ContainerUsage> =
            known.unwrap_or_default().into_iter().map(|each| (each.id.clone(), each)).collect();
        if let Some(hierarchy) = self.context.cgroups.hierarchy() {
            group(&mut page, hierarchy, &Path::new("/"), Row { id: "/", ..Row::default() });
            for pod in self.shown_pods() {
                self.pod(&mut page, hierarchy, &pod, &images, &usage);
            }
        }
        respond(StatusCode::OK, CONTENT_TYPE, page.finish().into())
    }

    fn pod(
        &self,
        page: &mut Page,
        hierarchy: &Hierarchy,
        pod: &Pod,
        images: &HashMap<String, String>,
        usage: &HashMap<String, ContainerUsage>,
    ) {
        let path = self.context.cgroups.path_of(pod);
        let whole =
            Row { id: path.as_str(), namespace: pod::namespace(pod), pod: pod::name(pod), ..Row::default() };
        if !group(page, hierarchy, &path, whole) {
            return;
        }
        if !pod::uses_host_network(pod) {
            interfaces(page, hierarchy, &path, whole);
        }
        for child in hierarchy.children(&path) {
            let below = path.child(&child);
            // cgroupfs: the id itself; systemd: cri-containerd-ID.scope
            let id = child.trim_end_matches(".scope");
            let id = id.rsplit_once('-').map_or(id, |(_, id)| id);
            let found = usage.get(id).or_else(|| usage.get(child.as_str()));
            let id = found.map_or(id, |found| found.id.as_str());
            let row = Row {
                container: found.map_or("POD", |found| found.name.as_str()),
                id: below.as_str(),
                image: images.get(id).map_or("", String::as_str),
                name: id,
                ..whole
            };
            group(page, hierarchy, &below, row);
            if let Some(found) = found {
                let labels = [row.container, "", row.id, row.image, row.name, row.namespace, row.pod];
                page.sample(&FS_USAGE, &labels, found.writable_bytes as f64);
                started(page, pod, row);
            }
        }
    }
}

/// One group's numbers; false where it is gone.
fn group(page: &mut Page, hierarchy: &Hierarchy, path: &Path, row: Row<'_>) -> bool {
    let Ok(usage) = hierarchy.usage(path) else { return false };
    let Row { container, id, image, name, namespace, pod } = row;
    let labels = [container, id, image, name, namespace, pod];
    for (description, value) in OF_GROUPS {
        page.sample(description, &labels, value(&usage));
    }
    let cpu = usage.cpu_nanoseconds as f64 / 1e9;
    page.sample(&CPU, &[container, "total", id, image, name, namespace, pod], cpu);
    for (failure, count) in [("pgfault", usage.page_faults), ("pgmajfault", usage.major_page_faults)] {
        let labels = [container, failure, id, image, name, namespace, pod, "hierarchy"];
        page.sample(&FAILURES, &labels, count as f64);
    }
    page.sample(&LAST_SEEN, &labels, jiff::Timestamp::now().as_second() as f64);
    true
}

fn interfaces(page: &mut Page, hierarchy: &Hierarchy, path: &Path, row: Row<'_>) {
    // any process of the pod is in its network; one that has ended meanwhile is passed over
    let found = hierarchy.processes(path).into_iter().find_map(|pid| counters::of_process(pid).ok());
    for interface in found.iter().flatten() {
        let labels = ["", row.id, "", interface.interface.as_str(), "", row.namespace, row.pod];
        for (description, count) in OF_INTERFACES {
            page.sample(description, &labels, count(interface) as f64);
        }
    }
}

fn started(page: &mut Page, pod: &Pod, row: Row<'_>) {
    let status = pod::container_status(pod::status(pod), row.container);
    let at = status.and_then(|status| status.state.as_ref()?.running.as_ref()?.started_at.as_ref());
    if let Some(at) = at {
        let labels = [row.container, row.id, row.image, row.name, row.namespace, row.pod];
        page.sample(&STARTED, &labels, at.0.as_second() as f64);
    }
}
