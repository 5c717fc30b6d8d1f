//! Finding the pod and the container a command is about, and waiting for what it shall become.

use std::time::Duration;

use ferry_api::selector::LabelSelector;
use serde_json::Value;

use crate::cli::Cli;
use crate::error::{Error, Result};
use crate::fields::Fields;
use crate::selection::list_all;
use crate::transport::{JSON, Query, Request};
use crate::watch::Events;

const DEFAULT_CONTAINER: &str = "kubectl.kubernetes.io/default-container";

pub fn is_ready(pod: &Value) -> bool {
    pod.text("status.phase") == "Running" && condition(pod, "Ready") == "True"
}

/// The status of a condition, or nothing.
pub fn condition<'a>(object: &'a Value, kind: &str) -> &'a str {
    object
        .list("status.conditions")
        .iter()
        .find(|condition| condition.text("type") == kind)
        .map_or("", |condition| condition.text("status"))
}

/// The label selector of a workload or service, as text for a list request.
pub fn selector_of(workload: &Value) -> Result<String> {
    match (workload.group(), workload.kind()) {
        ("apps" | "extensions", "Deployment" | "ReplicaSet" | "StatefulSet" | "DaemonSet")
        | ("batch", "Job") => {
            let selector = LabelSelector::from_structured(Some(workload.at("spec.selector")))
                .map_err(|error| Error::message(format!("invalid label selector: {error}")))?;
            Ok(selector.to_string())
        }
        ("", "ReplicationController" | "Service") => {
            let pairs = workload.entries("spec.selector");
            if pairs.is_empty() && workload.kind() == "Service" {
                let name = workload.name();
                return Err(Error::message(format!(
                    "invalid service '{name}': Service is defined without a selector"
                )));
            }
            let pairs =
                pairs.iter().map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or_default()));
            Ok(pairs.collect::<Vec<_>>().join(","))
        }
        _ => Err(Error::message(format!("selector for {} not implemented", go_type(workload)))),
    }
}

/// The groups whose kinds upstream's kubectl has Go types of.
const TYPED_GROUPS: &[&str] = &[
    "",
    "admissionregistration.k8s.io",
    "apps",
    "authentication.k8s.io",
    "authorization.k8s.io",
    "autoscaling",
    "batch",
    "certificates.k8s.io",
    "coordination.k8s.io",
    "discovery.k8s.io",
    "events.k8s.io",
    "flowcontrol.apiserver.k8s.io",
    "internal.apiserver.k8s.io",
    "networking.k8s.io",
    "node.k8s.io",
    "policy",
    "rbac.authorization.k8s.io",
    "resource.k8s.io",
    "scheduling.k8s.io",
    "storage.k8s.io",
    "storagemigration.k8s.io",
];

/// An object's type as Go names it, which upstream's words quote.
pub fn go_type(object: &Value) -> String {
    if !TYPED_GROUPS.contains(&object.group()) {
        return "*unstructured.Unstructured".to_owned();
    }
    let version = object.text("apiVersion").rsplit('/').next().unwrap_or_default();
    format!("*{version}.{}", object.kind())
}

pub async fn list(cli: &Cli, namespace: &str, selector: &str) -> Result<Vec<Value>> {
    let query = Query::new().with("labelSelector", selector);
    let mut pods = list_all(cli, &format!("/api/v1/namespaces/{namespace}/pods"), &query).await?;
    for pod in &mut pods {
        pod["kind"] = "Pod".into();
        pod["apiVersion"] = "v1".into();
    }
    Ok(pods)
}

/// The pod a user most likely means: running before waiting, ready before not, then the one that
/// has been so for longer.
pub fn sort_by_activity(pods: &mut [Value]) {
    pods.sort_by_key(|pod| {
        let phase = match pod.text("status.phase") {
            "Running" => 0,
            "Unknown" => 1,
            "Pending" => 2,
            _ => 3,
        };
        (
            pod.text("spec.nodeName").is_empty(),
            phase,
            !is_ready(pod),
            pod.text("metadata.creationTimestamp").to_owned(),
        )
    });
}

/// The pod itself, or the best one of a workload; waits until there is one.
pub async fn first_pod_of(cli: &Cli, workload: &Value, timeout: Duration) -> Result<Value> {
    if workload.kind() == "Pod" {
        return Ok(workload.clone());
    }
    let selector = selector_of(workload)
        .map_err(|error| error.context(format_args!("cannot attach to {}", go_type(workload))))?;
    let namespace = workload.namespace();
    let mut found = list(cli, namespace, &selector).await?;
    sort_by_activity(&mut found);
    if let Some(pod) = found.into_iter().next() {
        return Ok(pod);
    }
    let path = format!("/api/v1/namespaces/{namespace}/pods");
    let first = async {
        loop {
            let query = Query::new().with("labelSelector", &selector);
            let list = cli.client()?.json(Request::get(&format!("{path}{query}"))).await?;
            if let Some(pod) = list.list("items").first() {
                let mut pod = pod.clone();
                (pod["kind"], pod["apiVersion"]) = ("Pod".into(), "v1".into());
                return Ok(pod);
            }
            let query = query.with("resourceVersion", list.text("metadata.resourceVersion"));
            let mut events = Events::start(cli.client()?, &path, query, JSON).await?;
            while let Some(event) = events.next().await? {
                if matches!(event.kind.as_str(), "ADDED" | "MODIFIED") {
                    return Ok(event.object);
                }
            }
            // a server that ends watches at once is not asked all the time
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    };
    let timeout = if timeout.is_zero() { Duration::from_secs(60) } else { timeout };
    tokio::time::timeout(timeout, first)
        .await
        .unwrap_or_else(|_| Err(Error::message("timed out waiting for the condition")))
}

/// Waits until the pod is what `is_reached` asks for. No timeout waits for as long as it takes.
pub async fn wait_for(
    cli: &Cli,
    namespace: &str,
    name: &str,
    timeout: Duration,
    is_reached: impl Fn(&Value) -> bool,
) -> Result<Value> {
    let path = format!("/api/v1/namespaces/{namespace}/pods");
    let query = Query::new().with("fieldSelector", &format!("metadata.name={name}"));
    let reached = async {
        loop {
            let mut events = Events::start(cli.client()?, &path, query.clone(), JSON).await?;
            while let Some(event) = events.next().await? {
                match event.kind.as_str() {
                    "DELETED" => return Err(Error::message(format!("pods {name:?} not found"))),
                    "ADDED" | "MODIFIED" if is_reached(&event.object) => return Ok(event.object),
                    _ => {}
                }
            }
        }
    };
    if timeout.is_zero() {
        return reached.await;
    }
    tokio::time::timeout(timeout, reached)
        .await
        .unwrap_or_else(|_| Err(Error::message("timed out waiting for the condition")))
}

/// The container asked for, or the annotated one, or the first; says so when there was a choice.
pub fn container<'a>(pod: &'a Value, asked: &'a str, quiet: bool) -> Result<&'a str> {
    let all = || {
        ["spec.containers", "spec.initContainers", "spec.ephemeralContainers"]
            .into_iter()
            .flat_map(|list| pod.list(list))
            .map(|container| container.text("name"))
    };
    if !asked.is_empty() {
        if all().any(|name| name == asked) {
            return Ok(asked);
        }
        return Err(Error::message(format!(
            "container {asked} is not valid for pod {} out of: {}",
            pod.name(),
            all_names(pod)
        )));
    }
    let annotated = pod.keyed("metadata.annotations", DEFAULT_CONTAINER);
    if !annotated.is_empty() {
        if all().any(|name| name == annotated) {
            return Ok(annotated);
        }
        eprintln!("Warning: Default container name {annotated:?} not found in pod {}", pod.name());
    }
    let containers = pod.list("spec.containers");
    let first = containers
        .first()
        .ok_or_else(|| Error::message(format!("pod {} has no containers", pod.name())))?
        .text("name");
    if (containers.len() > 1
        || !pod.list("spec.initContainers").is_empty()
        || !pod.list("spec.ephemeralContainers").is_empty())
        && !quiet
    {
        eprintln!("Defaulted container {first:?} out of: {}", all_names(pod));
    }
    Ok(first)
}

fn all_names(pod: &Value) -> String {
    let named = |list: &str, mark: &str| {
        pod.list(list).iter().map(|container| format!("{}{mark}", container.text("name"))).collect::<Vec<_>>()
    };
    let mut names = named("spec.containers", "");
    names.extend(named("spec.ephemeralContainers", " (ephem)"));
    names.extend(named("spec.initContainers", " (init)"));
    names.join(", ")
}

/// All of a pod's first container's logs so far.
pub async fn print_logs(cli: &Cli, pod: &Value) -> Result<()> {
    print_logs_of(cli, pod, container(pod, "", true)?).await
}

/// All of a container's logs so far.
pub async fn print_logs_of(cli: &Cli, pod: &Value, container: &str) -> Result<()> {
    let query = Query::new().with("container", container);
    let path = format!("/api/v1/namespaces/{}/pods/{}/log{query}", pod.namespace(), pod.name());
    let bytes = cli.client()?.bytes(Request::get(&path)).await?;
    cli.print_bytes(&bytes)?;
    cli.flush()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_container_is_the_one_meant() {
        let mut pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "a"}, {"name": "b"}], "initContainers": [{"name": "i"}]}});
        assert_eq!(container(&pod, "", true).unwrap(), "a");
        assert_eq!(container(&pod, "i", true).unwrap(), "i");
        assert!(container(&pod, "x", true).is_err());
        pod["metadata"]["annotations"] = json!({DEFAULT_CONTAINER: "b"});
        assert_eq!(container(&pod, "", true).unwrap(), "b");
    }

    #[test]
    fn selectors_come_from_maps_and_structures() {
        let check = |api_version: &str,
                     kind: &str,
                     selector: Value,
                     expected: std::result::Result<&str, &str>| {
            let object = json!({"apiVersion": api_version, "kind": kind, "metadata": {"name": "x"}, "spec": {"selector": selector}});
            let found = selector_of(&object).map_err(|error| error.to_string());
            assert_eq!(found.as_deref().map_err(String::as_str), expected, "{kind}");
        };
        check("v1", "Service", json!({"a": "b", "c": "d"}), Ok("a=b,c=d"));
        check("v1", "ReplicationController", json!({"a": "b"}), Ok("a=b"));
        check("apps/v1", "Deployment", json!({"matchLabels": {"a": "b"}}), Ok("a=b"));
        check("v1", "Service", json!({}), Err("invalid service 'x': Service is defined without a selector"));
        check("v1", "ConfigMap", json!({}), Err("selector for *v1.ConfigMap not implemented"));
        let custom = "selector for *unstructured.Unstructured not implemented";
        check("example.com/v1", "Deployment", json!({"matchLabels": {"a": "b"}}), Err(custom));
    }

    #[test]
    fn running_pods_come_before_waiting_ones() {
        let mut pods = vec![
            json!({"metadata": {"name": "pending"}, "status": {"phase": "Pending"}}),
            json!({"metadata": {"name": "ready"}, "spec": {"nodeName": "n"}, "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}),
            json!({"metadata": {"name": "running"}, "spec": {"nodeName": "n"}, "status": {"phase": "Running"}}),
        ];
        sort_by_activity(&mut pods);
        assert_eq!(pods.iter().map(|pod| pod.name()).collect::<Vec<_>>(), ["ready", "running", "pending"]);
    }
}
