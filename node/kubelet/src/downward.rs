//! The downward API: a pod's own fields and resources, as text.

use k8s_openapi::api::core::v1::{Container, Pod, ResourceFieldSelector};

use crate::node::capacity::Capacity;
use crate::pod;
use crate::resources::{Side, amount_of, container_amounts};

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("unsupported fieldPath: {0}")]
    Field(String),
    #[error("unsupported container resource: {0}")]
    Resource(String),
    #[error("container {0} not found")]
    Container(String),
}

/// What a container without limits may use: all of the node.
#[derive(Clone, Copy, Debug, Default)]
pub struct Node {
    pub allocatable_milli_cpu: i64,
    pub allocatable_memory: i64,
    pub allocatable_ephemeral_storage: i64,
}

impl Node {
    pub fn of(allocatable: &Capacity) -> Node {
        Node {
            allocatable_milli_cpu: allocatable.milli_cpu,
            allocatable_memory: allocatable.memory,
            allocatable_ephemeral_storage: allocatable.ephemeral_storage,
        }
    }
}

/// Fields of a pod's metadata and spec; those of its status are known only
/// where the container is made.
pub fn field(pod: &Pod, path: &str) -> Result<String, Error> {
    let text = |value: &Option<String>| value.clone().unwrap_or_default();
    if let Some((map, key)) = subscript(path) {
        let map = match map {
            "metadata.labels" => &pod.metadata.labels,
            "metadata.annotations" => &pod.metadata.annotations,
            _ => return Err(Error::Field(path.into())),
        };
        return Ok(map.as_ref().and_then(|map| map.get(key)).cloned().unwrap_or_default());
    }
    Ok(match path {
        "metadata.name" => text(&pod.metadata.name),
        "metadata.namespace" => text(&pod.metadata.namespace),
        "metadata.uid" => text(&pod.metadata.uid),
        "metadata.labels" => lines(&pod.metadata.labels),
        "metadata.annotations" => lines(&pod.metadata.annotations),
        "spec.nodeName" => text(&pod::spec(pod).node_name),
        "spec.serviceAccountName" => text(&pod::spec(pod).service_account_name),
        _ => return Err(Error::Field(path.into())),
    })
}

/// `metadata.labels['key']` as its two parts.
fn subscript(path: &str) -> Option<(&str, &str)> {
    let (map, rest) = path.split_once("['")?;
    Some((map, rest.strip_suffix("']")?))
}

/// One `key="value"` a line, quoted so that any value is one line.
fn lines(map: &Option<std::collections::BTreeMap<String, String>>) -> String {
    let lines = map.iter().flatten().map(|(key, value)| format!("{key}={}", quote(value)));
    lines.collect::<Vec<_>>().join("\n")
}

/// As Go's `%q` writes it, which is what readers of these files expect.
fn quote(text: &str) -> String {
    let mut quoted = String::from("\"");
    for character in text.chars() {
        match character {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            '\n' => quoted.push_str("\\n"),
            '\r' => quoted.push_str("\\r"),
            '\t' => quoted.push_str("\\t"),
            control if control.is_control() => quoted.push_str(&format!("\\x{:02x}", u32::from(control))),
            plain => quoted.push(plain),
        }
    }
    quoted.push('"');
    quoted
}

/// A container's request or limit, in units of the divisor, rounded up.
pub fn resource(
    pod: &Pod,
    own: Option<&Container>,
    selector: &ResourceFieldSelector,
    node: &Node,
) -> Result<String, Error> {
    let named;
    let container = match selector.container_name.as_deref().filter(|name| !name.is_empty()) {
        Some(name) => {
            named = pod::find_container(pod, name).ok_or_else(|| Error::Container(name.into()))?.container;
            &named
        }
        None => own.ok_or_else(|| Error::Container(String::new()))?,
    };
    let (side, name) = match selector.resource.split_once('.') {
        Some(("limits", name)) => (Side::Limits, name),
        Some(("requests", name)) => (Side::Requests, name),
        _ => return Err(Error::Resource(selector.resource.clone())),
    };
    let declared =
        container_amounts(container.resources.as_ref(), side).get(name).copied().filter(|amount| *amount > 0);
    let amount = match (declared, side, name) {
        (Some(amount), _, _) => amount,
        (None, Side::Limits, "cpu") => node.allocatable_milli_cpu,
        (None, Side::Limits, "memory") => node.allocatable_memory,
        (None, Side::Limits, "ephemeral-storage") => node.allocatable_ephemeral_storage,
        (None, _, "cpu" | "memory" | "ephemeral-storage") => 0,
        (None, _, hugepages) if hugepages.starts_with("hugepages-") => 0,
        (None, ..) => return Err(Error::Resource(selector.resource.clone())),
    };
    let divisor = selector.divisor.as_ref().map_or(0, |divisor| amount_of(name, &divisor.0));
    // a CPU amount is in thousandths, and so is a divisor read the same way
    let divisor = match (divisor, name) {
        (0, "cpu") => 1000,
        (0, _) => 1,
        (divisor, _) => divisor,
    };
    Ok(amount.unsigned_abs().div_ceil(divisor.unsigned_abs()).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod() -> Pod {
        serde_json::from_value(json!({
            "metadata": {"name": "p", "namespace": "n", "labels": {"a": "x\"y", "b": "2"}},
            "spec": {"nodeName": "node", "containers": [
                {"name": "c", "resources": {"limits": {"cpu": "1500m"}, "requests": {"memory": "100Mi"}}},
            ]},
        }))
        .expect("the pod is well formed")
    }

    #[test]
    fn fields_are_text() {
        for (path, expected) in [
            ("metadata.name", "p"),
            ("metadata.labels['b']", "2"),
            ("metadata.labels['none']", ""),
            ("metadata.labels", "a=\"x\\\"y\"\nb=\"2\""),
            ("spec.nodeName", "node"),
        ] {
            assert_eq!(field(&pod(), path).as_deref(), Ok(expected), "{path}");
        }
        assert!(field(&pod(), "spec.hostname").is_err());
    }

    #[test]
    fn resources_are_rounded_up_to_the_divisor() {
        let node = Node { allocatable_milli_cpu: 4000, allocatable_memory: 1 << 30, ..Node::default() };
        for (resource_name, divisor, expected) in [
            ("limits.cpu", "0", "2"),
            ("limits.cpu", "1m", "1500"),
            ("limits.memory", "1Mi", "1024"),
            ("requests.memory", "1Mi", "100"),
            ("requests.memory", "0", "104857600"),
            ("requests.cpu", "1m", "1500"),
        ] {
            let selector = serde_json::from_value(
                json!({"containerName": "c", "resource": resource_name, "divisor": divisor}),
            )
            .expect("well formed");
            assert_eq!(
                resource(&pod(), None, &selector, &node).as_deref(),
                Ok(expected),
                "{resource_name}/{divisor}"
            );
        }
    }
}
