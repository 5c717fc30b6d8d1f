//! One metric of an autoscaler's spec: reads it, computes the proposed replicas, and encodes its status.

use ferry_api::quantity::{Format, Quantity};
use k8s_openapi::api::autoscaling::v2::{
    ContainerResourceMetricSource, ContainerResourceMetricStatus, CrossVersionObjectReference,
    ExternalMetricSource, ExternalMetricStatus, MetricIdentifier, MetricSpec, MetricStatus, MetricTarget,
    MetricValueStatus, ObjectMetricSource, ObjectMetricStatus, PodsMetricSource, PodsMetricStatus,
    ResourceMetricSource, ResourceMetricStatus,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Written;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

use super::plan::{MetricError, MetricProposal};
use super::replicas::{Proposal, Target};
use super::{Controller, group_of, metrics};
use crate::ownership;

impl Controller {
    pub(super) async fn measure(
        &self,
        spec: &MetricSpec,
        target: Target<'_>,
        namespace: &str,
        selector: &str,
    ) -> Result<MetricProposal, MetricError> {
        let query = MetricQuery { controller: self, target, namespace, selector };
        match spec {
            MetricSpec { resource: Some(source), .. } => query.resource_source(source).await,
            MetricSpec { container_resource: Some(source), .. } => {
                query.container_resource_source(source).await
            }
            MetricSpec { pods: Some(source), .. } => query.pods_source(source).await,
            MetricSpec { object: Some(source), .. } => query.object_source(source).await,
            MetricSpec { external: Some(source), .. } => query.external_source(source).await,
            MetricSpec { type_, .. } => {
                let error = format!("unknown metric source type {type_:?}");
                Err(MetricError { reason: "InvalidMetricSourceType", cause: error.clone(), error })
            }
        }
    }
}

/// A query for the metric of one target.
struct MetricQuery<'a> {
    controller: &'a Controller,
    target: Target<'a>,
    namespace: &'a str,
    selector: &'a str,
}

impl MetricQuery<'_> {
    async fn resource_source(&self, source: &ResourceMetricSource) -> Result<MetricProposal, MetricError> {
        let name = source.name.as_str();
        let failed =
            failure("FailedGetResourceMetric", format!("failed to get {name} resource metric value"));
        let measuring = self.resource(name, None, &source.target).await;
        let (proposal, what) = measuring.map_err(|cause| failed(cause, None))?;
        let status = ResourceMetricStatus { name: name.into(), current: usage(name, &proposal) };
        Ok(measured(proposal, what, "Resource", |all| all.resource = Some(status)))
    }

    async fn container_resource_source(
        &self,
        source: &ContainerResourceMetricSource,
    ) -> Result<MetricProposal, MetricError> {
        let (name, container) = (source.name.as_str(), source.container.as_str());
        let failed = failure(
            "FailedGetContainerResourceMetric",
            format!("failed to get {container} container metric value"),
        );
        let measuring = self.resource(name, Some(container), &source.target).await;
        let (proposal, what) = measuring.map_err(|cause| failed(cause, None))?;
        let status = ContainerResourceMetricStatus {
            name: name.into(),
            container: container.into(),
            current: usage(name, &proposal),
        };
        Ok(measured(proposal, what, "ContainerResource", |all| all.container_resource = Some(status)))
    }

    async fn pods_source(&self, source: &PodsMetricSource) -> Result<MetricProposal, MetricError> {
        let failed = failure("FailedGetPodsMetric", "failed to get pods metric value".into());
        let measuring = self.pods(&source.metric, &source.target).await;
        let proposal = measuring.map_err(|cause| failed(cause, None))?;
        let what = format!("pods metric {}", source.metric.name);
        let status = PodsMetricStatus { metric: source.metric.clone(), current: average(&proposal) };
        Ok(measured(proposal, what, "Pods", |all| all.pods = Some(status)))
    }

    async fn object_source(&self, source: &ObjectMetricSource) -> Result<MetricProposal, MetricError> {
        let metric = &source.metric;
        let failed = failure("FailedGetObjectMetric", "failed to get object metric value".into());
        let (value, is_average) =
            value_target(&source.target, "object").map_err(|cause| failed(cause, None))?;
        let within = is_average.then(|| format!("failed to get {} object metric", metric.name));
        let proposal = self.object(&source.described_object, metric, value, is_average).await;
        let proposal = proposal.map_err(|cause| failed(cause, within))?;
        let what = match is_average {
            true => external_name(metric),
            false => format!("{} metric {}", source.described_object.kind, metric.name),
        };
        let status = ObjectMetricStatus {
            described_object: source.described_object.clone(),
            metric: metric.clone(),
            current: if is_average { average(&proposal) } else { whole(&proposal) },
        };
        Ok(measured(proposal, what, "Object", |all| all.object = Some(status)))
    }

    async fn external_source(&self, source: &ExternalMetricSource) -> Result<MetricProposal, MetricError> {
        let metric = &source.metric;
        let failed = failure(
            "FailedGetExternalMetric",
            format!("failed to get {} external metric value", metric.name),
        );
        let (value, is_average) =
            value_target(&source.target, "external").map_err(|cause| failed(cause, None))?;
        let within = match is_average {
            true => format!("failed to get {} external metric", metric.name),
            false => format!("failed to get external metric {}", metric.name),
        };
        let proposal = self.external(metric, value, is_average).await;
        let proposal = proposal.map_err(|cause| failed(cause, Some(within)))?;
        let status = ExternalMetricStatus {
            metric: metric.clone(),
            current: if is_average { average(&proposal) } else { whole(&proposal) },
        };
        Ok(measured(proposal, external_name(metric), "External", |all| all.external = Some(status)))
    }

    async fn resource(
        &self,
        resource: &str,
        container: Option<&str>,
        target: &MetricTarget,
    ) -> Result<(Proposal, String), String> {
        let metrics = async {
            let client = &self.controller.client;
            let metrics =
                metrics::of_resource(client, self.namespace, self.selector, resource, container).await;
            metrics.map_err(|error| format!("unable to get metrics for resource {resource}: {error}"))
        };
        if let Some(value) = &target.average_value {
            let judged = async { self.target.by_average(Some(resource), milli(value), metrics.await?) };
            let proposal =
                judged.await.map_err(|error| format!("failed to get {resource} usage: {error}"))?;
            return Ok((proposal, format!("{resource} resource")));
        }
        let Some(percent) = target.average_utilization else {
            return Err(
                "invalid resource metric source: neither an average utilization target nor an average value \
                        (usage) target was set"
                    .into(),
            );
        };
        let judged = async { self.target.by_utilization(resource, container, percent, metrics.await?) };
        let proposal =
            judged.await.map_err(|error| format!("failed to get {resource} utilization: {error}"))?;
        let of = if container.is_some() { " container" } else { "" };
        Ok((proposal, format!("{resource}{of} resource utilization (percentage of request)")))
    }

    async fn pods(&self, metric: &MetricIdentifier, target: &MetricTarget) -> Result<Proposal, String> {
        let wanted = target.average_value.as_ref().map_or(0, milli);
        let selector = selector(metric)?;
        let client = &self.controller.client;
        let metrics = metrics::of_pods(client, self.namespace, self.selector, &metric.name, &selector).await;
        let metrics = metrics.map_err(|error| format!("unable to get metric {}: {error}", metric.name))?;
        self.target.by_average(None, wanted, metrics)
    }

    async fn object(
        &self,
        object: &CrossVersionObjectReference,
        metric: &MetricIdentifier,
        target: i64,
        is_average: bool,
    ) -> Result<Proposal, String> {
        let selector = selector(metric)?;
        let fetched = async {
            let group = group_of(object.api_version.as_deref().unwrap_or(""))?;
            let resource = match (group.as_str(), object.kind.as_str()) {
                ("", "Namespace") => None,
                (group, kind) => Some(self.controller.resource(group, kind).await?.group_resource()),
            };
            let client = &self.controller.client;
            metrics::of_object(client, self.namespace, resource.as_deref(), object, &metric.name, &selector)
                .await
        };
        let usage = fetched.await.map_err(|error| {
            let place = format!("{} {}/{}", object.kind, self.namespace, object.name);
            format!("unable to get metric {}: {error} on {place}", metric.name)
        })?;
        self.judge(usage, target, is_average)
    }

    async fn external(
        &self,
        metric: &MetricIdentifier,
        target: i64,
        is_average: bool,
    ) -> Result<Proposal, String> {
        let text = selector(metric)?;
        let usage = metrics::external(&self.controller.client, self.namespace, &metric.name, &text).await;
        let usage = usage.map_err(|error| {
            let labels = go_selector(metric.selector.as_ref());
            format!("unable to get external metric {}/{}/{labels}: {error}", self.namespace, metric.name)
        })?;
        self.judge(usage, target, is_average)
    }

    fn judge(&self, usage: i64, target: i64, is_average: bool) -> Result<Proposal, String> {
        match is_average {
            true => Ok(self.target.by_value_per_pod(usage, target)),
            false => self.target.by_value(usage, target),
        }
    }
}

/// Makes the account of a metric that failed, from the cause and what was attempted in between.
fn failure(reason: &'static str, what: String) -> impl Fn(String, Option<String>) -> MetricError {
    move |cause, within| {
        let error = match within {
            Some(within) => format!("{what}: {within}: {cause}"),
            None => format!("{what}: {cause}"),
        };
        MetricError { reason, cause, error }
    }
}

fn measured(
    proposal: Proposal,
    name: String,
    kind: &str,
    set: impl FnOnce(&mut MetricStatus),
) -> MetricProposal {
    let mut status = MetricStatus { type_: kind.into(), ..MetricStatus::default() };
    set(&mut status);
    MetricProposal { replicas: proposal.replicas, name, status }
}

/// The wanted value in thousandths, and whether it is the average of a pod.
fn value_target(target: &MetricTarget, source: &str) -> Result<(i64, bool), String> {
    match (&target.average_value, &target.value) {
        (Some(average), None) => Ok((milli(average), true)),
        (Some(average), Some(_)) if target.type_ != "Value" => Ok((milli(average), true)),
        (_, Some(value)) => Ok((milli(value), false)),
        (None, None) => Err(format!(
            "invalid {source} metric source: neither a value target nor an average value target was set"
        )),
    }
}

/// Validation has let it through.
fn milli(quantity: &Written) -> i64 {
    Quantity::parse(&quantity.0).map_or(0, |quantity| quantity.milli())
}

fn written(milli: i64, format: Format) -> Option<Written> {
    Some(Written(Quantity::from_milli(milli, format).to_string()))
}

/// Memory is written as the metrics API does, in powers of two.
fn usage(resource: &str, proposal: &Proposal) -> MetricValueStatus {
    let format = if resource == "memory" { Format::BinarySi } else { Format::DecimalSi };
    MetricValueStatus {
        average_utilization: proposal.utilization,
        average_value: written(proposal.usage, format),
        value: None,
    }
}

fn average(proposal: &Proposal) -> MetricValueStatus {
    MetricValueStatus { average_value: written(proposal.usage, Format::DecimalSi), ..Default::default() }
}

fn whole(proposal: &Proposal) -> MetricValueStatus {
    MetricValueStatus { value: written(proposal.usage, Format::DecimalSi), ..Default::default() }
}

fn external_name(metric: &MetricIdentifier) -> String {
    format!("external metric {}({})", metric.name, go_selector(metric.selector.as_ref()))
}

/// A metric's selector as a query writes it.
fn selector(metric: &MetricIdentifier) -> Result<String, String> {
    let Some(selector) = &metric.selector else { return Ok(String::new()) };
    let parsed = ownership::selector(selector);
    Ok(parsed.ok_or_else(|| format!("{selector:?} is not a valid label selector"))?.to_string())
}

/// A selector as Go prints it, which upstream's reasons have in them.
fn go_selector(selector: Option<&LabelSelector>) -> String {
    let Some(selector) = selector else { return "nil".into() };
    let labels = selector.match_labels.iter().flatten().map(|(key, value)| format!("{key}: {value},"));
    let expressions = selector.match_expressions.iter().flatten().map(|one| {
        let values = one.values.iter().flatten().cloned().collect::<Vec<_>>().join(" ");
        format!("LabelSelectorRequirement{{Key:{},Operator:{},Values:[{values}],}},", one.key, one.operator)
    });
    format!(
        "&LabelSelector{{MatchLabels:map[string]string{{{}}},MatchExpressions:[]LabelSelectorRequirement{{{}}},}}",
        labels.collect::<String>(),
        expressions.collect::<String>()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_of_the_whole_or_the_average_of_a_pod() {
        let target = |kind: &str, value: Option<&str>, average: Option<&str>| MetricTarget {
            type_: kind.into(),
            value: value.map(|text| Written(text.into())),
            average_value: average.map(|text| Written(text.into())),
            average_utilization: None,
        };
        assert_eq!(value_target(&target("Value", Some("2"), None), "object"), Ok((2000, false)));
        assert_eq!(value_target(&target("AverageValue", None, Some("500m")), "object"), Ok((500, true)));
        assert!(value_target(&target("Value", None, None), "object").is_err());
    }

    #[test]
    fn memory_is_written_in_powers_of_two_and_all_else_in_tens() {
        let proposal = Proposal { replicas: 1, usage: 2 * 1_048_576_000, utilization: Some(50) };
        assert_eq!(usage("memory", &proposal).average_value, Some(Written("2Mi".into())));
        let proposal = Proposal { replicas: 1, usage: 1500, utilization: None };
        assert_eq!(usage("cpu", &proposal).average_value, Some(Written("1500m".into())));
        assert_eq!(whole(&proposal).value, Some(Written("1500m".into())));
    }

    #[test]
    fn a_reason_names_the_metric_as_upstream_does() {
        let mut metric = MetricIdentifier { name: "queue".into(), selector: None };
        assert_eq!(external_name(&metric), "external metric queue(nil)");
        metric.selector = Some(LabelSelector {
            match_labels: Some([("app".to_string(), "web".to_string())].into()),
            match_expressions: None,
        });
        assert_eq!(
            external_name(&metric),
            "external metric queue(&LabelSelector{MatchLabels:map[string]string{app: web,},MatchExpressions:[]LabelSelectorRequirement{},})"
        );
        assert_eq!(selector(&metric), Ok("app=web".into()));
    }

    #[test]
    fn metric_failures_name_the_attempt() {
        let failed = failure("FailedGetExternalMetric", "failed to get q external metric value".into());
        let found = failed("no metrics returned".into(), Some("failed to get external metric q".into()));
        assert_eq!(found.cause, "no metrics returned");
        assert_eq!(
            found.error,
            "failed to get q external metric value: failed to get external metric q: no metrics returned"
        );
    }
}
