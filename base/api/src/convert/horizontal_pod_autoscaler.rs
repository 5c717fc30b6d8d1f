//! autoscaling/v1 knows one metric, the CPU. What else an autoscaler has is kept in annotations, in the
//! form that other tools read, and taken out of them again on the way to v2.

use serde_json::{Map, Value, json};

use crate::object::{Object, object_at};

const METRICS: &str = "autoscaling.alpha.kubernetes.io/metrics";
const CURRENT_METRICS: &str = "autoscaling.alpha.kubernetes.io/current-metrics";
const CONDITIONS: &str = "autoscaling.alpha.kubernetes.io/conditions";
const BEHAVIOR: &str = "autoscaling.alpha.kubernetes.io/behavior";
const DEFAULT_CPU_UTILIZATION: i64 = 80;

pub fn to_v1(object: &mut Object) {
    take_annotations(object);
    let spec = object.section_mut("spec");
    let metrics = take_list(spec, "metrics");
    let behavior = spec.remove("behavior");
    let (cpu, others): (Vec<Value>, Vec<Value>) =
        metrics.into_iter().partition(|metric| cpu_utilization(metric, "target").is_some());
    if let Some(percentage) = cpu.first().and_then(|metric| cpu_utilization(metric, "target")) {
        spec.insert("targetCPUUtilizationPercentage".into(), percentage.clone());
    }
    let status = object.section_mut("status");
    let current = take_list(status, "currentMetrics");
    let conditions = take_list(status, "conditions");
    if let Some(percentage) =
        current.iter().filter_map(|metric| cpu_utilization(metric, "current")).next_back()
    {
        status.insert("currentCPUUtilizationPercentage".into(), percentage.clone());
    }
    let kept = [
        (METRICS, list(others.iter().map(spec_to_v1).collect())),
        (CURRENT_METRICS, list(current.iter().map(status_to_v1).collect())),
        (CONDITIONS, list(conditions)),
        (BEHAVIOR, behavior.map(|behavior| recase(&behavior, true))),
    ];
    for (annotation, value) in kept {
        if let Some(value) = value {
            let annotations = object_at(object.metadata_mut(), "annotations");
            annotations.insert(annotation.into(), value.to_string().into());
        }
    }
}

pub fn from_v1(object: &mut Object) {
    let kept = take_annotations(object);
    let read =
        |annotation: &str| kept.get(annotation).and_then(|text| serde_json::from_str(text.as_str()?).ok());
    let spec = object.section_mut("spec");
    let cpu = spec.remove("targetCPUUtilizationPercentage").filter(|value| !value.is_null());
    let mut metrics: Vec<Value> =
        read(METRICS).iter().filter_map(Value::as_array).flatten().map(spec_to_v2).collect();
    metrics.extend(cpu.map(|percentage| cpu_metric(&percentage)));
    if metrics.is_empty() {
        metrics.push(cpu_metric(&DEFAULT_CPU_UTILIZATION.into()));
    }
    spec.insert("metrics".into(), metrics.into());
    if let Some(behavior) = read(BEHAVIOR).map(|behavior: Value| recase(&behavior, false))
        && behavior.as_object().is_some_and(|behavior| !behavior.is_empty())
    {
        spec.insert("behavior".into(), behavior);
    }
    let status = object.section_mut("status");
    let current = status.remove("currentCPUUtilizationPercentage").filter(|value| !value.is_null());
    if let Some(Value::Array(current)) = read(CURRENT_METRICS) {
        status.insert("currentMetrics".into(), current.iter().map(status_to_v2).collect());
    } else if let Some(percentage) = current {
        let metric = json!({"type": "Resource",
            "resource": {"name": "cpu", "current": {"averageUtilization": percentage}}});
        status.insert("currentMetrics".into(), vec![metric].into());
    }
    if let Some(Value::Array(conditions)) = read(CONDITIONS) {
        status.insert("conditions".into(), conditions.into());
    }
}

/// Removes the annotations that stand for fields of v2.
fn take_annotations(object: &mut Object) -> Map<String, Value> {
    let mut taken = Map::new();
    let metadata = object.metadata_mut();
    if let Some(Value::Object(annotations)) = metadata.get_mut("annotations") {
        for annotation in [METRICS, CURRENT_METRICS, CONDITIONS, BEHAVIOR] {
            taken.extend(annotations.remove_entry(annotation));
        }
        if annotations.is_empty() {
            metadata.remove("annotations");
        }
    }
    taken
}

fn take_list(map: &mut Map<String, Value>, field: &str) -> Vec<Value> {
    match map.remove(field) {
        Some(Value::Array(items)) => items,
        _ => Vec::new(),
    }
}

fn list(items: Vec<Value>) -> Option<Value> {
    if items.is_empty() { None } else { Some(Value::Array(items)) }
}

fn cpu_metric(percentage: &Value) -> Value {
    json!({"type": "Resource", "resource": {"name": "cpu",
        "target": {"type": "Utilization", "averageUtilization": percentage}}})
}

/// The CPU utilization of a metric that is about nothing else; `side` is `target` or `current`.
fn cpu_utilization<'m>(metric: &'m Value, side: &str) -> Option<&'m Value> {
    let resource = metric.get("resource")?;
    let about_cpu = metric.get("type")? == "Resource" && resource.get("name")? == "cpu";
    resource.get(side)?.get("averageUtilization").filter(|value| about_cpu && !value.is_null())
}

/// Where a metric's name and selector are called differently in v1.
fn selector_name(source: &str) -> &'static str {
    if source == "external" { "metricSelector" } else { "selector" }
}

const SOURCES: [&str; 5] = ["object", "pods", "resource", "containerResource", "external"];

/// The one source that a metric has.
fn source(metric: &Value) -> Option<(&'static str, &Map<String, Value>)> {
    SOURCES.iter().find_map(|name| Some((*name, metric.get(*name)?.as_object()?)))
}

struct Target<'m>(Option<&'m Value>);

impl<'m> Target<'m> {
    fn get(&self, field: &str) -> Option<&'m Value> {
        self.0?.get(field).filter(|value| !value.is_null())
    }
}

/// Puts in what there is.
fn put(map: &mut Map<String, Value>, name: &str, value: Option<&Value>) {
    if let Some(value) = value {
        map.insert(name.into(), value.clone());
    }
}

fn metric(metric: &Value, name: &str, source: Map<String, Value>) -> Value {
    let mut out = Map::new();
    put(&mut out, "type", metric.get("type"));
    out.insert(name.into(), Value::Object(source));
    Value::Object(out)
}

/// What both the target and the current value of a metric have beside their numbers.
fn identity_to_v1(name: &str, from: &Map<String, Value>) -> Map<String, Value> {
    let mut out = Map::new();
    put(&mut out, "name", from.get("name"));
    put(&mut out, "container", from.get("container"));
    put(&mut out, "target", from.get("describedObject"));
    if let Some(identifier) = from.get("metric") {
        put(&mut out, "metricName", identifier.get("name"));
        put(&mut out, selector_name(name), identifier.get("selector"));
    }
    out
}

fn identity_to_v2(name: &str, from: &Map<String, Value>) -> Map<String, Value> {
    let mut out = Map::new();
    put(&mut out, "name", from.get("name"));
    put(&mut out, "container", from.get("container"));
    put(&mut out, "describedObject", from.get("target"));
    if let Some(metric_name) = from.get("metricName") {
        let mut identifier = Map::from_iter([("name".to_string(), metric_name.clone())]);
        put(&mut identifier, "selector", from.get(selector_name(name)));
        out.insert("metric".into(), Value::Object(identifier));
    }
    out
}

fn spec_to_v1(spec: &Value) -> Value {
    let Some((name, from)) = source(spec) else { return spec.clone() };
    let target = Target(from.get("target"));
    let zero = Value::from("0");
    let mut out = identity_to_v1(name, from);
    match name {
        "object" => {
            put(&mut out, "targetValue", target.get("value").or(Some(&zero)));
            put(&mut out, "averageValue", target.get("averageValue"));
        }
        "pods" => put(&mut out, "targetAverageValue", target.get("averageValue").or(Some(&zero))),
        "external" => {
            put(&mut out, "targetValue", target.get("value"));
            put(&mut out, "targetAverageValue", target.get("averageValue"));
        }
        _ => {
            put(&mut out, "targetAverageUtilization", target.get("averageUtilization"));
            put(&mut out, "targetAverageValue", target.get("averageValue"));
        }
    }
    metric(spec, name, out)
}

fn spec_to_v2(spec: &Value) -> Value {
    let Some((name, from)) = source(spec) else { return spec.clone() };
    let given = |field: &str| from.get(field).filter(|value| !value.is_null());
    let mut target = Map::new();
    let kind = match name {
        "object" => {
            let average = given("averageValue");
            let value = given("targetValue").filter(|value| average.is_none() || *value != "0");
            put(&mut target, "value", value);
            put(&mut target, "averageValue", average);
            if average.is_some() { "AverageValue" } else { "Value" }
        }
        "external" => {
            put(&mut target, "value", given("targetValue"));
            put(&mut target, "averageValue", given("targetAverageValue"));
            if given("targetValue").is_some() { "Value" } else { "AverageValue" }
        }
        _ => {
            put(&mut target, "averageValue", given("targetAverageValue"));
            put(&mut target, "averageUtilization", given("targetAverageUtilization"));
            if given("targetAverageUtilization").is_some() { "Utilization" } else { "AverageValue" }
        }
    };
    target.insert("type".into(), kind.into());
    let mut out = identity_to_v2(name, from);
    out.insert("target".into(), Value::Object(target));
    metric(spec, name, out)
}

fn status_to_v1(status: &Value) -> Value {
    let Some((name, from)) = source(status) else { return status.clone() };
    let current = Target(from.get("current"));
    let zero = Value::from("0");
    let mut out = identity_to_v1(name, from);
    match name {
        "object" => {
            put(&mut out, "currentValue", current.get("value").or(Some(&zero)));
            put(&mut out, "averageValue", current.get("averageValue"));
        }
        "external" => {
            put(&mut out, "currentValue", current.get("value").or(Some(&zero)));
            put(&mut out, "currentAverageValue", current.get("averageValue"));
        }
        _ => {
            put(&mut out, "currentAverageUtilization", current.get("averageUtilization"));
            put(&mut out, "currentAverageValue", current.get("averageValue").or(Some(&zero)));
        }
    }
    metric(status, name, out)
}

fn status_to_v2(status: &Value) -> Value {
    let Some((name, from)) = source(status) else { return status.clone() };
    let mut current = Map::new();
    put(&mut current, "value", from.get("currentValue"));
    put(&mut current, "averageValue", from.get("currentAverageValue").or(from.get("averageValue")));
    put(&mut current, "averageUtilization", from.get("currentAverageUtilization"));
    let mut out = identity_to_v2(name, from);
    out.insert("current".into(), Value::Object(current));
    metric(status, name, out)
}

/// The behaviour stands in its annotation with capital field names.
fn recase(value: &Value, upper: bool) -> Value {
    match value {
        Value::Object(map) => map
            .iter()
            .filter(|(_, value)| !value.is_null())
            .map(|(name, value)| {
                let mut chars = name.chars();
                let first =
                    chars.next().map(|c| if upper { c.to_ascii_uppercase() } else { c.to_ascii_lowercase() });
                (first.into_iter().chain(chars).collect::<String>(), recase(value, upper))
            })
            .collect::<Map<String, Value>>()
            .into(),
        Value::Array(items) => items.iter().map(|item| recase(item, upper)).collect(),
        other => other.clone(),
    }
}
