//! What is measured, from the metrics APIs behind the API server: metrics.k8s.io, custom.metrics.k8s.io and
//! external.metrics.k8s.io.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::time::Duration;

use ferry_api::quantity::Quantity;
use ferry_client::{Client, error};
use http::Request;
use jiff::Timestamp;
use k8s_openapi::api::autoscaling::v2::CrossVersionObjectReference;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::replicas::{PodMetric, PodMetrics};

/// The window of metrics that do not say theirs.
const WINDOW: Duration = Duration::from_secs(60);
const CUSTOM: &str = "custom.metrics.k8s.io";
/// In the order in which they are wanted.
const CUSTOM_VERSIONS: [&str; 2] = ["v1beta2", "v1beta1"];

#[derive(Deserialize)]
struct List<T> {
    #[serde(default = "Vec::new")]
    items: Vec<T>,
}

#[derive(Deserialize)]
struct Named {
    #[serde(default)]
    name: String,
}

#[derive(Deserialize)]
struct OfPod {
    metadata: Named,
    timestamp: Timestamp,
    #[serde(default)]
    window: String,
    #[serde(default)]
    containers: Vec<OfContainer>,
}

#[derive(Deserialize)]
struct OfContainer {
    name: String,
    #[serde(default)]
    usage: BTreeMap<String, String>,
}

/// `MetricValue` of both versions of the custom metrics API.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Custom {
    described_object: Named,
    timestamp: Timestamp,
    #[serde(alias = "window")]
    window_seconds: Option<u64>,
    value: String,
}

#[derive(Deserialize)]
struct External {
    value: String,
}

#[derive(Deserialize)]
struct Group {
    #[serde(default)]
    versions: Vec<GroupVersion>,
}

#[derive(Deserialize)]
struct GroupVersion {
    version: String,
}

/// A resource's use by pods, or by one container of each.
pub async fn of_resource(
    client: &Client,
    namespace: &str,
    selector: &str,
    resource: &str,
    container: Option<&str>,
) -> Result<PodMetrics, String> {
    let path = format!("/apis/metrics.k8s.io/v1beta1/namespaces/{namespace}/pods");
    let list: List<OfPod> = get(client, &path, &[("labelSelector", selector)])
        .await
        .map_err(|error| format!("unable to fetch metrics from resource metrics API: {error}"))?;
    if list.items.is_empty() {
        return Err("no metrics returned from resource metrics API".into());
    }
    Ok(list.items.iter().filter_map(|pod| use_of(pod, resource, container)).collect())
}

/// None where a container that counts has no value.
fn use_of(pod: &OfPod, resource: &str, container: Option<&str>) -> Option<(String, PodMetric)> {
    let mut containers =
        pod.containers.iter().filter(|one| container.is_none_or(|wanted| wanted == one.name)).peekable();
    containers.peek()?;
    let values = containers.map(|one| Some(Quantity::parse(one.usage.get(resource)?).ok()?.milli()));
    let value = values.sum::<Option<i64>>()?;
    let window = ferry_api::duration::parse(&pod.window).and_then(|nanos| u64::try_from(nanos).ok());
    let metric =
        PodMetric { value, timestamp: pod.timestamp, window: Duration::from_nanos(window.unwrap_or(0)) };
    Some((pod.metadata.name.clone(), metric))
}

/// A custom metric of pods.
pub async fn of_pods(
    client: &Client,
    namespace: &str,
    selector: &str,
    metric: &str,
    metric_selector: &str,
) -> Result<PodMetrics, String> {
    let path = format!("namespaces/{namespace}/pods/*/{}", encoded(metric));
    let query = [("labelSelector", selector), ("metricLabelSelector", metric_selector)];
    let values = custom(client, &path, &query).await?;
    if values.is_empty() {
        return Err("no metrics returned from custom metrics API".into());
    }
    let metrics = values.into_iter().map(|one| {
        let value = amount(&one.value)?;
        let window = one.window_seconds.map_or(WINDOW, Duration::from_secs);
        Ok((one.described_object.name, PodMetric { value, timestamp: one.timestamp, window }))
    });
    metrics.collect()
}

/// A custom metric of one object, whose resource is `plural.group`; without a resource it is the namespace itself.
pub async fn of_object(
    client: &Client,
    namespace: &str,
    resource: Option<&str>,
    object: &CrossVersionObjectReference,
    metric: &str,
    metric_selector: &str,
) -> Result<i64, String> {
    let metric = encoded(metric);
    let path = match resource {
        None => format!("namespaces/{namespace}/metrics/{metric}"),
        Some(resource) => format!("namespaces/{namespace}/{resource}/{}/{metric}", encoded(&object.name)),
    };
    let values = custom(client, &path, &[("metricLabelSelector", metric_selector)]).await?;
    match values.as_slice() {
        [one] => amount(&one.value),
        several => Err(unfetched(
            "custom",
            format!(
                "the custom metrics API server returned {} results when we asked for exactly one",
                several.len()
            ),
        )),
    }
}

/// All values of an external metric together.
pub async fn external(client: &Client, namespace: &str, metric: &str, selector: &str) -> Result<i64, String> {
    let path = format!("/apis/external.metrics.k8s.io/v1beta1/namespaces/{namespace}/{}", encoded(metric));
    let list: List<External> = get(client, &path, &[("labelSelector", selector)])
        .await
        .map_err(|error| unfetched("external", error))?;
    if list.items.is_empty() {
        return Err("no metrics returned from external metrics API".into());
    }
    list.items.iter().try_fold(0_i64, |sum, one| Ok(sum.saturating_add(amount(&one.value)?)))
}

async fn custom(client: &Client, path: &str, query: &[(&str, &str)]) -> Result<Vec<Custom>, String> {
    let fetched = async {
        let version = custom_version(client).await?;
        get::<List<Custom>>(client, &format!("/apis/{CUSTOM}/{version}/{path}"), query).await
    };
    fetched.await.map(|list| list.items).map_err(|error| unfetched("custom", error))
}

/// The version of the custom metrics API that is served now: whoever serves it may be replaced.
async fn custom_version(client: &Client) -> Result<&'static str, String> {
    let none = || format!("no custom metrics API ({CUSTOM}) registered");
    let group: Group = get(client, &format!("/apis/{CUSTOM}"), &[]).await.map_err(|_| none())?;
    let served = |wanted: &&&str| group.versions.iter().any(|served| served.version == **wanted);
    CUSTOM_VERSIONS.iter().find(served).copied().ok_or_else(none)
}

async fn get<T: DeserializeOwned>(client: &Client, path: &str, query: &[(&str, &str)]) -> Result<T, String> {
    let mut separator = '?';
    let mut uri = path.to_owned();
    for (name, value) in query.iter().filter(|(_, value)| !value.is_empty()) {
        uri.push_str(&format!("{separator}{name}={}", encoded(value)));
        separator = '&';
    }
    let request = Request::get(uri).body(Vec::new()).map_err(|error| error.to_string())?;
    client.request(request).await.map_err(|failed| error::message(&failed))
}

fn encoded(text: &str) -> impl Display {
    utf8_percent_encode(text, NON_ALPHANUMERIC)
}

fn amount(text: &str) -> Result<i64, String> {
    let quantity =
        Quantity::parse(text).map_err(|_| format!("the metrics API returned {text:?} as a value"))?;
    Ok(quantity.milli())
}

fn unfetched(api: &str, error: impl Display) -> String {
    format!("unable to fetch metrics from {api} metrics API: {error}")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_pod_counts_when_every_container_that_counts_has_a_value() {
        let pod = |containers: serde_json::Value| -> OfPod {
            serde_json::from_value(json!({"metadata": {"name": "a"}, "timestamp": "2026-01-01T00:00:00Z",
                "window": "15.5s", "containers": containers}))
            .expect("PodMetrics")
        };
        let both = pod(json!([{"name": "web", "usage": {"cpu": "250m", "memory": "1Mi"}},
            {"name": "side", "usage": {"cpu": "50m"}}]));
        let value = |container, resource| use_of(&both, resource, container).map(|(_, metric)| metric.value);
        assert_eq!(value(None, "cpu"), Some(300));
        assert_eq!(value(None, "memory"), None, "one container does not say");
        assert_eq!(value(Some("web"), "memory"), Some(1_048_576_000));
        assert_eq!(value(Some("side"), "memory"), None);
        assert_eq!(value(Some("other"), "cpu"), None);
        assert!(use_of(&pod(json!([])), "cpu", None).is_none());
        let (name, metric) = use_of(&both, "cpu", None).expect("has CPU");
        assert_eq!((name.as_str(), metric.window), ("a", Duration::from_millis(15_500)));
    }

    #[test]
    fn both_versions_of_custom_metrics_are_read() {
        let read = |extra: serde_json::Value| -> Custom {
            let mut value = json!({"describedObject": {"kind": "Pod", "name": "a"}, "value": "1500m",
                "timestamp": "2026-01-01T00:00:00Z"});
            value.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
            serde_json::from_value(value).expect("MetricValue")
        };
        assert_eq!(read(json!({"metric": {"name": "qps"}, "windowSeconds": 30})).window_seconds, Some(30));
        assert_eq!(read(json!({"metricName": "qps", "window": 20})).window_seconds, Some(20));
        assert_eq!(amount(&read(json!({})).value), Ok(1500));
        assert!(amount("many").is_err());
    }
}
