//! Prometheus metrics: what the kubelet does, and what its pods use.

use std::fmt::Write;

use http::{Response, StatusCode};

use super::{Body, Server, respond};
use crate::pod;

const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";

pub(super) struct Page {
    text: String,
}

impl Page {
    pub(super) fn family(&mut self, name: &str, help: &str, kind: &str) {
        // writing to a string cannot fail
        let _ = writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    pub(super) fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: f64) {
        let shown: Vec<String> =
            labels.iter().map(|(key, value)| format!("{key}=\"{}\"", escape(value))).collect();
        let labels = if shown.is_empty() { String::new() } else { format!("{{{}}}", shown.join(",")) };
        let _ = writeln!(self.text, "{name}{labels} {value}");
    }

    fn finish(self) -> Response<Body> {
        respond(StatusCode::OK, TEXT, self.text.into())
    }
}

fn escape(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

impl Server {
    pub(super) async fn resource_metrics(&self) -> Response<Body> {
        let mut page = Page { text: String::new() };
        let containers = self.container_usage().await;
        let pods = self.shown_pods();
        let all = containers.as_deref().unwrap_or_default();
        let seconds = |nanoseconds: u64| nanoseconds as f64 / 1e9;
        let labels_of = |uid: &str| pods.iter().find(|pod| pod::uid(pod) == uid);

        page.family(
            "container_cpu_usage_seconds_total",
            "Cumulative cpu time consumed by the container in core-seconds",
            "counter",
        );
        for each in all {
            if let Some(pod) = labels_of(&each.pod_uid) {
                let labels = [
                    ("container", each.name.as_str()),
                    ("namespace", pod::namespace(pod)),
                    ("pod", pod::name(pod)),
                ];
                page.sample("container_cpu_usage_seconds_total", &labels, seconds(each.cpu_nanoseconds));
            }
        }
        page.family(
            "container_memory_working_set_bytes",
            "Current working set of the container in bytes",
            "gauge",
        );
        for each in all {
            if let Some(pod) = labels_of(&each.pod_uid) {
                let labels = [
                    ("container", each.name.as_str()),
                    ("namespace", pod::namespace(pod)),
                    ("pod", pod::name(pod)),
                ];
                page.sample("container_memory_working_set_bytes", &labels, each.working_set_bytes as f64);
            }
        }
        page.family(
            "container_start_time_seconds",
            "Start time of the container since unix epoch in seconds",
            "gauge",
        );
        for pod in &pods {
            let status = pod::status(pod);
            let of_all = status.init_container_statuses.iter().chain(&status.container_statuses).flatten();
            for status in of_all {
                let started =
                    status.state.as_ref().and_then(|state| state.running.as_ref()?.started_at.as_ref());
                if let Some(started) = started {
                    let labels = [
                        ("container", status.name.as_str()),
                        ("namespace", pod::namespace(pod)),
                        ("pod", pod::name(pod)),
                    ];
                    page.sample("container_start_time_seconds", &labels, started.0.as_second() as f64);
                }
            }
        }
        if let Some(usage) = self.node_usage() {
            page.family(
                "node_cpu_usage_seconds_total",
                "Cumulative cpu time consumed by the node in core-seconds",
                "counter",
            );
            page.sample("node_cpu_usage_seconds_total", &[], seconds(usage.cpu_nanoseconds));
            page.family("node_memory_working_set_bytes", "Current working set of the node in bytes", "gauge");
            page.sample("node_memory_working_set_bytes", &[], usage.working_set_bytes as f64);
        }
        page.family(
            "pod_cpu_usage_seconds_total",
            "Cumulative cpu time consumed by the pod in core-seconds",
            "counter",
        );
        let usages: Vec<_> =
            pods.iter().filter_map(|pod| Some((pod, self.context.cgroups.usage(pod)?))).collect();
        for (pod, usage) in &usages {
            let labels = [("namespace", pod::namespace(pod)), ("pod", pod::name(pod))];
            page.sample("pod_cpu_usage_seconds_total", &labels, seconds(usage.cpu_nanoseconds));
        }
        page.family("pod_memory_working_set_bytes", "Current working set of the pod in bytes", "gauge");
        for (pod, usage) in &usages {
            let labels = [("namespace", pod::namespace(pod)), ("pod", pod::name(pod))];
            page.sample("pod_memory_working_set_bytes", &labels, usage.working_set_bytes as f64);
        }
        page.family(
            "resource_scrape_error",
            "1 if there was an error while getting container metrics, 0 otherwise",
            "gauge",
        );
        page.sample("resource_scrape_error", &[], if containers.is_err() { 1.0 } else { 0.0 });
        page.finish()
    }

    pub(super) async fn metrics(&self) -> Response<Body> {
        let mut page = Page { text: String::new() };
        page.family("kubelet_node_name", "The node's name. The count is always 1.", "gauge");
        page.sample("kubelet_node_name", &[("node", &self.context.config.node_name)], 1.0);
        page.family(
            "kubelet_desired_pods",
            "The number of pods the kubelet is being instructed to run",
            "gauge",
        );
        page.sample("kubelet_desired_pods", &[], self.pods.active().len() as f64);
        let sandboxes = self.context.runtime.list_pod_sandboxes(None).await;
        let ready = sandboxes.map(|all| all.iter().filter(|each| each.state == 0).count());
        page.family("kubelet_running_pods", "Number of pods that have a running pod sandbox", "gauge");
        page.sample("kubelet_running_pods", &[], ready.unwrap_or(0) as f64);
        page.family("kubelet_running_containers", "Number of containers currently running", "gauge");
        if let Ok(containers) = self.context.runtime.list_containers(None).await {
            for (state, name) in [(0, "created"), (1, "running"), (2, "exited"), (3, "unknown")] {
                let count = containers.iter().filter(|each| each.state == state).count();
                page.sample("kubelet_running_containers", &[("container_state", name)], count as f64);
            }
        }
        let healthy = self.node.runtime_health.borrow().is_ok();
        page.family("kubelet_runtime_up", "1 while the container runtime answers", "gauge");
        page.sample("kubelet_runtime_up", &[], if healthy { 1.0 } else { 0.0 });
        self.volume_metrics(&mut page);
        page.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_written_as_prometheus_reads_them() {
        let mut page = Page { text: String::new() };
        page.family("x", "What it is", "gauge");
        page.sample("x", &[], 1.0);
        page.sample("x", &[("a", "q\"\\"), ("b", "2")], 0.5);
        assert_eq!(page.text, "# HELP x What it is\n# TYPE x gauge\nx 1\nx{a=\"q\\\"\\\\\",b=\"2\"} 0.5\n");
    }
}
