//! HorizontalPodAutoscalers: what is measured, what it should be, and what was decided.

use ferry_api::json_path::to_text;
use serde_json::Value;

use super::metadata::{annotations, labels};
use super::time;
use crate::cli::Cli;
use crate::error::Result;
use crate::fields::Fields;

/// The page is that of the second version, whatever version was asked for.
pub async fn page(cli: &Cli, autoscaler: &Value) -> Result<String> {
    if autoscaler.text("apiVersion") == "autoscaling/v2" {
        return Ok(second_version(autoscaler));
    }
    let path = format!(
        "/apis/autoscaling/v2/namespaces/{}/horizontalpodautoscalers/{}",
        autoscaler.namespace(),
        autoscaler.name()
    );
    match cli.client()?.get_json(&path).await {
        Ok(autoscaler) => Ok(second_version(&autoscaler)),
        // A server of long ago.
        Err(error) if error.status_code() == Some(404) => Ok(first_version(autoscaler)),
        Err(error) => Err(error),
    }
}

fn head(autoscaler: &Value) -> String {
    let mut text = format!("Name:\t{}\nNamespace:\t{}\n", autoscaler.name(), autoscaler.namespace());
    text.push_str(&labels("Labels", autoscaler, "metadata.labels", ""));
    text.push_str(&annotations(autoscaler, ""));
    text.push_str(&format!(
        "CreationTimestamp:\t{}\nReference:\t{}/{}\n",
        time(autoscaler.text("metadata.creationTimestamp")),
        autoscaler.text("spec.scaleTargetRef.kind"),
        autoscaler.text("spec.scaleTargetRef.name")
    ));
    text
}

fn bounds(autoscaler: &Value) -> String {
    let least = autoscaler.int("spec.minReplicas").map_or_else(|| "<unset>".to_owned(), |n| n.to_string());
    format!(
        "Min replicas:\t{least}\nMax replicas:\t{}\n",
        autoscaler.int("spec.maxReplicas").unwrap_or_default()
    )
}

fn pods(autoscaler: &Value) -> String {
    format!(
        "{} pods:\t{} current / {} desired\n",
        autoscaler.text("spec.scaleTargetRef.kind"),
        autoscaler.int("status.currentReplicas").unwrap_or_default(),
        autoscaler.int("status.desiredReplicas").unwrap_or_default()
    )
}

fn first_version(autoscaler: &Value) -> String {
    let mut text = head(autoscaler);
    if let Some(target) = autoscaler.int("spec.targetCPUUtilizationPercentage") {
        let current = autoscaler.int("status.currentCPUUtilizationPercentage");
        let current = current.map_or_else(|| "<unknown>".to_owned(), |percent| percent.to_string());
        text.push_str(&format!("Target CPU utilization:\t{target}%\nCurrent CPU utilization:\t{current}%\n"));
    }
    text + &bounds(autoscaler) + &pods(autoscaler)
}

fn second_version(autoscaler: &Value) -> String {
    let mut text = head(autoscaler);
    text.push_str("Metrics:\t( current / target )\n");
    let current = autoscaler.list("status.currentMetrics");
    for (index, metric) in autoscaler.list("spec.metrics").iter().enumerate() {
        let metric = Metric { spec: metric, current: current.get(index).unwrap_or(&Value::Null) };
        text.push_str(&format!("  {}\n", metric.line()));
    }
    text.push_str(&bounds(autoscaler));
    if autoscaler.has("spec.behavior") {
        text.push_str("Behavior:\n");
        for (field, title) in [("scaleUp", "Scale Up"), ("scaleDown", "Scale Down")] {
            text.push_str(&direction(autoscaler.at(&format!("spec.behavior.{field}")), title));
        }
    }
    text.push_str(&pods(autoscaler));
    let conditions = autoscaler.list("status.conditions");
    if !conditions.is_empty() {
        text.push_str("Conditions:\n  Type\tStatus\tReason\tMessage\n  ----\t------\t------\t-------\n");
    }
    for condition in conditions {
        text.push_str(&format!(
            "  {}\t{}\t{}\t{}\n",
            condition.text("type"),
            condition.text("status"),
            condition.text("reason"),
            condition.text("message")
        ));
    }
    text
}

/// A metric of the spec with its current state, either may be absent.
struct Metric<'v> {
    spec: &'v Value,
    current: &'v Value,
}

impl Metric<'_> {
    /// What is measured, with its value and its target. Each type of metric has its own words.
    fn line(&self) -> String {
        let spec = self.spec;
        match spec.text("type") {
            "External" => self.external(),
            "Pods" => {
                format!("{:?} on pods:\t{}", spec.text("pods.metric.name"), self.pair("pods", "averageValue"))
            }
            "Object" => {
                let (words, field) = match spec.text("object.target.type") {
                    "AverageValue" => ("target average value", "averageValue"),
                    _ => ("target value", "value"),
                };
                format!(
                    "\"{}\" on {}/{} ({words}):\t{}",
                    spec.text("object.metric.name"),
                    spec.text("object.describedObject.kind"),
                    spec.text("object.describedObject.name"),
                    self.pair("object", field)
                )
            }
            "Resource" => {
                self.resource("resource", &format!("resource {} on pods", spec.text("resource.name")))
            }
            "ContainerResource" => {
                let what = format!(
                    "resource {} of container \"{}\" on pods",
                    spec.text("containerResource.name"),
                    spec.text("containerResource.container")
                );
                self.resource("containerResource", &what)
            }
            other => format!("<unknown metric type {other:?}>"),
        }
    }

    fn external(&self) -> String {
        let name = self.spec.text("external.metric.name");
        if !self.spec.has("external.target.averageValue") {
            return format!("{name:?} (target value):\t{}", self.pair("external", "value"));
        }
        let now = match self.current.at("external.current.averageValue") {
            Value::Null => "<unknown>".to_owned(),
            value => to_text(value),
        };
        format!("{name:?} (target average value):\t{now} / {}", self.target("external", "averageValue"))
    }

    fn resource(&self, source: &str, what: &str) -> String {
        if self.spec.has(&format!("{source}.target.averageValue")) {
            return format!("{what}:\t{}", self.pair(source, "averageValue"));
        }
        let now = match self.current.int(&format!("{source}.current.averageUtilization")) {
            Some(percent) => format!("{percent}% ({})", self.now(source, "averageValue")),
            None => "<unknown>".to_owned(),
        };
        let wanted = self.spec.int(&format!("{source}.target.averageUtilization"));
        let wanted = wanted.map_or_else(|| "<auto>".to_owned(), |percent| format!("{percent}%"));
        format!("{what}  (as a percentage of request):\t{now} / {wanted}")
    }

    fn pair(&self, source: &str, field: &str) -> String {
        format!("{} / {}", self.now(source, field), self.target(source, field))
    }

    /// Where there is a current state of the source but not of this field, upstream prints a pointer to nothing.
    fn now(&self, source: &str, field: &str) -> String {
        match self.current.at(&format!("{source}.current.{field}")) {
            Value::Null if self.current.has(source) => "<nil>".to_owned(),
            Value::Null => "<unknown>".to_owned(),
            value => to_text(value),
        }
    }

    fn target(&self, source: &str, field: &str) -> String {
        match self.spec.at(&format!("{source}.target.{field}")) {
            Value::Null => "<nil>".to_owned(),
            value => to_text(value),
        }
    }
}

fn direction(rules: &Value, title: &str) -> String {
    if rules.is_null() {
        return String::new();
    }
    let mut text = format!("  {title}:\n");
    if let Some(seconds) = rules.int("stabilizationWindowSeconds") {
        text.push_str(&format!("    Stabilization Window: {seconds} seconds\n"));
    }
    let policies = rules.list("policies");
    if policies.is_empty() {
        return text;
    }
    let select = match rules.text("selectPolicy") {
        "" => "Max",
        select => select,
    };
    text.push_str(&format!("    Select Policy: {select}\n    Policies:\n"));
    for policy in policies {
        text.push_str(&format!(
            "      - Type: {}\tValue: {}\tPeriod: {} seconds\n",
            policy.text("type"),
            policy.int("value").unwrap_or_default(),
            policy.int("periodSeconds").unwrap_or_default()
        ));
    }
    text
}
