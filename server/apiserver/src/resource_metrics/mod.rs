//! `metrics.k8s.io`: resource usage of nodes and pods, for `kubectl top` and autoscalers. Upstream leaves this to
//! metrics-server, which scrapes every kubelet periodically. This server queries a kubelet on demand and caches the
//! response for a few seconds.
//!
//! [`hours`] is the exception: a look a minute for the plots of the page.
//!
//! [`counters`] reads a kubelet's page and makes rates of two of them, [`look`] asks the kubelets.

mod counters;
pub mod hours;
mod kubelets;

use std::collections::HashMap;
use std::sync::Arc;

use ferry_api::selector::{FieldSelector, LabelSelector};
use ferry_api::{GroupResource, Kind, Object, Quantity, Status, duration, quantity, time};
use ferry_registry::Resource;
use ferry_registry::cache::Filter;
use futures::StreamExt;
use jiff::Timestamp;
use serde_json::{Value, json};

use self::counters::{Usage, Window};
pub use self::kubelets::Kubelets;
use crate::api::Api;
use crate::body::Response;
use crate::negotiate::negotiate;
use crate::request::Request;
use crate::respond;
use crate::verbs::ALL_VIEWS;

/// How many kubelets one request asks at a time.
const AT_ONCE: usize = 32;

pub async fn answer(api: &Arc<Api>, request: &Request, kind: &Arc<Kind>) -> Result<Response, Status> {
    let _span = ferry_trace::span("apiserver.resourceMetrics");
    let media_type = negotiate(&request.headers, ALL_VIEWS)?;
    let info = &request.info;
    let columns = ferry_registry::kinds::strategy(kind).columns(&kind.version);
    // The measured objects bear the names, labels and fields of what is measured.
    let measured = GroupResource::new("", kind.plural.clone());
    let measured = api.registry.resource(&measured).ok_or_else(Status::no_such_path)?;
    if info.verb == "get" {
        let missing = || Status::not_found(&resource_of(kind), &measured.key(&info.namespace, &info.name));
        let entry = measured.cache.get(&measured.key(&info.namespace, &info.name)).ok_or_else(missing)?;
        let object = entry.read_object()?;
        let metrics = measure(api, kind, vec![object]).await.pop().ok_or_else(missing)?;
        return respond::made(request, kind, columns, metrics, media_type);
    }
    let filter = filter(request, kind, &measured)?;
    let selected = api.registry.select(&measured, &filter).await?;
    let objects = selected.iter().map(|entry| entry.read_object()).collect::<Result<_, _>>()?;
    let metrics = measure(api, kind, objects).await;
    respond::objects(request, kind, columns, metrics, serde_json::json!({}), media_type)
}

/// Errors call the resource by its kind, as metrics-server's do: `podmetrics.metrics.k8s.io`.
fn resource_of(kind: &Kind) -> GroupResource {
    GroupResource::new(kind.group.clone(), kind.kind.to_ascii_lowercase())
}

fn filter(request: &Request, kind: &Kind, measured: &Resource) -> Result<Filter, Status> {
    let bad = |error: &dyn std::fmt::Display| Status::bad_request(error.to_string());
    let labels = LabelSelector::parse(request.query.text("labelSelector")).map_err(|error| bad(&error))?;
    let fields = FieldSelector::parse(request.query.text("fieldSelector")).map_err(|error| bad(&error))?;
    let namespace = kind.is_namespaced().then_some(&*request.info.namespace).filter(|name| !name.is_empty());
    Filter::new(namespace, labels, &fields, measured.strategy.selectable(), |_| true)
}

/// What the nodes or pods use, in their order. Those of which nothing is known are left out.
async fn measure(api: &Api, kind: &Kind, objects: Vec<Object>) -> Vec<Object> {
    let of_pods = kind.is_namespaced();
    let mut nodes: Vec<String> = objects
        .iter()
        .map(|object| if of_pods { object.text_at(&["spec", "nodeName"]) } else { object.name() })
        .filter(|name| !name.is_empty())
        .map(str::to_string)
        .collect();
    nodes.sort();
    nodes.dedup();
    let windows: HashMap<String, Arc<Window>> = futures::stream::iter(nodes)
        .map(|node| async move {
            let window = api.kubelets.window(api, &node).await?;
            Some((node, window))
        })
        .buffer_unordered(AT_ONCE)
        .filter_map(std::future::ready)
        .collect()
        .await;
    let metrics_of = |object: &Object| match of_pods {
        true => pod_metrics(kind, object, windows.get(object.text_at(&["spec", "nodeName"]))?),
        false => node_metrics(kind, object, windows.get(object.name())?),
    };
    objects.iter().filter_map(metrics_of).collect()
}

fn node_metrics(kind: &Kind, node: &Object, window: &Window) -> Option<Object> {
    let usage = usage_of(window.node()?);
    made(kind, node, window, "usage", usage)
}

/// A pod shows once all of its containers that run were measured: half a pod would mislead an autoscaler.
fn pod_metrics(kind: &Kind, pod: &Object, window: &Window) -> Option<Object> {
    if pod.text_at(&["status", "phase"]) != "Running" {
        return None;
    }
    let running = ["initContainerStatuses", "containerStatuses"].into_iter().flat_map(|list| {
        let statuses = pod.get(&["status", list]).and_then(Value::as_array);
        statuses.into_iter().flatten().filter(|status| status.pointer("/state/running").is_some())
    });
    let containers = running
        .map(|status| {
            let name = status.get("name")?.as_str()?;
            let usage = window.container(pod.namespace(), pod.name(), name)?;
            Some(json!({"name": name, "usage": usage_of(usage)}))
        })
        .collect::<Option<Vec<Value>>>()?;
    made(kind, pod, window, "containers", containers.into())
}

fn made(kind: &Kind, of: &Object, window: &Window, field: &str, value: Value) -> Option<Object> {
    let mut metadata = json!({
        "name": of.name(),
        "creationTimestamp": time::format(Timestamp::now(), time::Precision::Seconds),
    });
    if kind.is_namespaced() {
        metadata["namespace"] = of.namespace().into();
    }
    if let Some(labels) = of.meta("labels") {
        metadata["labels"] = labels.clone();
    }
    Object::from_value(json!({
        "kind": kind.kind,
        "apiVersion": kind.api_version(),
        "metadata": metadata,
        "timestamp": time::format(window.until(), time::Precision::Seconds),
        "window": duration::format(window.nanoseconds()),
        field: value,
    }))
}

fn usage_of(usage: Usage) -> Value {
    let nano_cores = format!("{}n", usage.nano_cores);
    let cpu = quantity::canonical(&nano_cores).map_or_else(|_| nano_cores.clone(), |text| text.into_owned());
    let memory = i64::try_from(usage.memory_bytes).unwrap_or(i64::MAX);
    let memory = Quantity::from_value(memory, quantity::Format::BinarySi);
    json!({"cpu": cpu, "memory": memory.to_string()})
}
