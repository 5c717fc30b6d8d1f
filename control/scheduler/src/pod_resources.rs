//! `/metrics/resources`: what every pod asks for and is limited to. Nothing is kept for it: the pods are listed when a
//! scrape asks, since the scheduler itself forgets limits.

use ferry_client::Client;
use ferry_metrics::{Description, Page};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::ListParams;

use crate::pod_info::is_finished;
use crate::resources::{self, CPU, EPHEMERAL_STORAGE, MEMORY, Resources};

const LABELS: &[&str] = &["namespace", "pod", "node", "scheduler", "priority", "resource", "unit"];

pub static REQUEST: Description = Description::gauge(
    "kube_pod_resource_request",
    "What a pod asks for, as the scheduler counts it, by resource and unit",
    LABELS,
);
pub static LIMIT: Description = Description::gauge(
    "kube_pod_resource_limit",
    "What a pod is limited to, counted as requests are, by resource and unit",
    LABELS,
);

pub async fn text(client: Client) -> Result<String, kube::Error> {
    // any state will do that is not older than the server's cache
    let pods = Api::<Pod>::all(client).list(&ListParams::default().match_any()).await?;
    let mut page = Page::default();
    for pod in pods.items.iter().filter(|pod| !is_finished(pod)) {
        add(&mut page, &REQUEST, pod, &resources::pod_requests(pod));
        add(&mut page, &LIMIT, pod, &resources::pod_limits(pod));
    }
    Ok(page.finish())
}

fn add(page: &mut Page, description: &Description, pod: &Pod, amounts: &Resources) {
    let spec = pod.spec.as_ref();
    let text = |value: &Option<String>| value.clone().unwrap_or_default();
    let namespace = text(&pod.metadata.namespace);
    let name = text(&pod.metadata.name);
    let node = spec.map_or_else(String::new, |spec| text(&spec.node_name));
    let scheduler = spec.map_or_else(String::new, |spec| text(&spec.scheduler_name));
    let priority =
        spec.and_then(|spec| spec.priority).map_or_else(String::new, |priority| priority.to_string());
    let mut sample = |resource: &str, unit: &str, value: f64| {
        // upstream leaves out what is zero
        if value != 0.0 {
            page.sample(
                description,
                &[&namespace, &name, &node, &scheduler, &priority, resource, unit],
                value,
            );
        }
    };
    sample(CPU, "cores", amounts.milli_cpu as f64 / 1000.0);
    sample(MEMORY, "bytes", amounts.memory as f64);
    sample(EPHEMERAL_STORAGE, "bytes", amounts.ephemeral_storage as f64);
    for (resource, amount) in &amounts.extended {
        let unit = if resource.starts_with("hugepages-") { "bytes" } else { "integer" };
        sample(resource, unit, *amount as f64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_and_limits_are_those_of_the_worst_moment() {
        let pod: Pod = serde_json::from_value(serde_json::json!({
            "metadata": {"name": "a", "namespace": "n"},
            "spec": {
                "nodeName": "node", "schedulerName": "default-scheduler", "priority": 7,
                "containers": [{"name": "c", "resources": {
                    "requests": {"cpu": "250m", "memory": "64Mi", "example.com/gpu": "1"},
                    "limits": {"cpu": "1", "hugepages-2Mi": "4Mi", "example.com/gpu": "1"}}}],
                "initContainers": [{"name": "i", "resources": {"requests": {"cpu": "2"}}}],
            },
        }))
        .expect("a pod");
        let mut page = Page::default();
        add(&mut page, &REQUEST, &pod, &resources::pod_requests(&pod));
        add(&mut page, &LIMIT, &pod, &resources::pod_limits(&pod));
        let text = page.finish();
        let labels = r#"namespace="n",pod="a",node="node",scheduler="default-scheduler",priority="7""#;
        for (series, resource, unit, value) in [
            ("request", "cpu", "cores", "2"),
            ("request", "memory", "bytes", "6.7108864e+07"),
            ("request", "example.com/gpu", "integer", "1"),
            ("limit", "cpu", "cores", "1"),
            ("limit", "hugepages-2Mi", "bytes", "4.194304e+06"),
        ] {
            let line = format!(
                "kube_pod_resource_{series}{{{labels},resource=\"{resource}\",unit=\"{unit}\"}} {value}\n"
            );
            assert!(text.contains(&line), "{line}{text}");
        }
        assert!(!text.contains("limit{namespace=\"n\",pod=\"a\",node=\"node\",scheduler=\"default-scheduler\",priority=\"7\",resource=\"memory\""));
    }
}
