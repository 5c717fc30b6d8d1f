//! Looks at what the containers of all nodes use, every so often, for the plugin that estimates from it. Nodes
//! are asked as anyone would: through their proxy.

use std::sync::Arc;
use std::time::Duration;

use ferry_admission::usage_history::{Sample, Usage, UsageHistory};
use ferry_api::GroupResource;
use ferry_registry::Registry;
use http_body_util::BodyExt;
use jiff::Timestamp;
use kube::client::Body;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

/// A node that does not answer must not keep the others from being asked.
const PATIENCE: Duration = Duration::from_secs(10);

pub async fn follow(
    client: kube::Client,
    registry: Arc<Registry>,
    history: Arc<UsageHistory>,
    interval: Duration,
    stop: CancellationToken,
) {
    let mut ticks = tokio::time::interval(interval);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            () = stop.cancelled() => return,
        }
        let _span = ferry_trace::span("apiserver.usageSamples");
        for node in names_of_nodes(&registry) {
            match tokio::time::timeout(PATIENCE, summary(&client, &node)).await {
                Ok(Ok(summary)) => record(&registry, &history, &summary, Timestamp::now()),
                Ok(Err(error)) => tracing::debug!(%node, %error, "a kubelet did not report its usage"),
                Err(_) => tracing::debug!(%node, "a kubelet did not report its usage in time"),
            }
        }
    }
}

fn names_of_nodes(registry: &Registry) -> Vec<String> {
    let nodes = registry.resource(&GroupResource::new("", "nodes"));
    let snapshots = nodes.into_iter().map(|nodes| nodes.cache.snapshot().0);
    snapshots.flat_map(|nodes| nodes.keys().map(ToString::to_string).collect::<Vec<_>>()).collect()
}

type Failure = Box<dyn std::error::Error + Send + Sync>;

async fn summary(client: &kube::Client, node: &str) -> Result<Value, Failure> {
    let request =
        http::Request::get(format!("/api/v1/nodes/{node}/proxy/stats/summary")).body(Body::empty())?;
    let response = client.send(request).await?;
    if !response.status().is_success() {
        return Err(format!("answered {}", response.status()).into());
    }
    Ok(serde_json::from_slice(&response.into_body().collect().await?.to_bytes())?)
}

fn record(registry: &Registry, history: &UsageHistory, summary: &Value, at: Timestamp) {
    let Some(pods) = registry.resource(&GroupResource::new("", "pods")) else { return };
    for told in list(summary, "pods") {
        let text = |pointer: &str| told.pointer(pointer).and_then(Value::as_str).unwrap_or("").to_string();
        let (namespace, name) = (text("/podRef/namespace"), text("/podRef/name"));
        let Some(entry) = pods.cache.get(&pods.key(&namespace, &name)) else { continue };
        let Ok(pod) = entry.read_object() else { continue };
        for container in list(told, "containers") {
            if let Some((image, usage)) = measured(container, pod.get(&["spec", "containers"])) {
                history.record(&namespace, image, Sample { at, usage });
            }
        }
    }
}

fn list<'a>(value: &'a Value, field: &str) -> impl Iterator<Item = &'a Value> {
    value.get(field).and_then(Value::as_array).into_iter().flatten()
}

/// The image of a container and what it uses, where the node knows both.
fn measured<'a>(told: &Value, containers: Option<&'a Value>) -> Option<(&'a str, Usage)> {
    let nano = told.pointer("/cpu/usageNanoCores").and_then(Value::as_u64)?;
    let memory_bytes = told.pointer("/memory/workingSetBytes").and_then(Value::as_u64)?;
    let mut containers = containers?.as_array()?.iter();
    let container = containers.find(|container| container.get("name") == told.get("name"))?;
    let image = container.get("image")?.as_str()?;
    Some((image, Usage { cpu_milli: nano.div_ceil(1_000_000), memory_bytes }))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_container_is_measured_where_the_node_knows_it() {
        let containers = json!([{"name": "a", "image": "web:1"}]);
        let told = |name: &str, cpu: Value| json!({"name": name, "cpu": {"usageNanoCores": cpu}, "memory": {"workingSetBytes": 5}});
        let check = |told: Value, expected: Option<(&str, u64, u64)>| {
            let found = measured(&told, Some(&containers));
            let found = found.map(|(image, usage)| (image, usage.cpu_milli, usage.memory_bytes));
            assert_eq!(found, expected, "{told}");
        };
        check(told("a", json!(1_500_000)), Some(("web:1", 2, 5)));
        check(told("b", json!(1)), None);
        check(told("a", Value::Null), None);
    }
}
