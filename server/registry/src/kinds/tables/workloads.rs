//! The columns of what makes pods, and of what watches over them.

use ferry_api::Object;
use jiff::Timestamp;
use serde_json::Value;

use crate::columns::{
    AGE, Column, age, at, field, has_condition, human_duration, labels, list_at, number_at, of_containers,
    selector, text_at,
};
use crate::metadata::seconds_of;

const CONTAINERS: Column =
    Column::text("Containers", |object, _| of_containers(object, "spec.template.spec.containers", "name"))
        .wide();
const IMAGES: Column =
    Column::text("Images", |object, _| of_containers(object, "spec.template.spec.containers", "image"))
        .wide();
const SELECTOR: Column = Column::text("Selector", |object, _| selector(at(object, "spec.selector"))).wide();
const READY: Column = Column::text("Ready", |object, _| {
    format!("{}/{}", number_at(object, "status.readyReplicas"), number_at(object, "spec.replicas")).into()
});

pub static DEPLOYMENT: &[Column] = &[
    READY,
    Column::number("Up-to-date", "status.updatedReplicas").typed("string"),
    Column::number("Available", "status.availableReplicas").typed("string"),
    AGE,
    CONTAINERS,
    IMAGES,
    SELECTOR,
];

pub static REPLICA_SET: &[Column] = &[
    Column::number("Desired", "spec.replicas"),
    Column::number("Current", "status.replicas"),
    Column::number("Ready", "status.readyReplicas"),
    AGE,
    CONTAINERS,
    IMAGES,
    SELECTOR,
];

pub static REPLICATION_CONTROLLER: &[Column] = &[
    Column::number("Desired", "spec.replicas"),
    Column::number("Current", "status.replicas"),
    Column::number("Ready", "status.readyReplicas"),
    AGE,
    CONTAINERS,
    IMAGES,
    Column::text("Selector", |object, _| labels(at(object, "spec.selector"))).wide(),
];

pub static STATEFUL_SET: &[Column] = &[READY, AGE, CONTAINERS, IMAGES];

pub static DAEMON_SET: &[Column] = &[
    Column::number("Desired", "status.desiredNumberScheduled"),
    Column::number("Current", "status.currentNumberScheduled"),
    Column::number("Ready", "status.numberReady"),
    Column::number("Up-to-date", "status.updatedNumberScheduled"),
    Column::number("Available", "status.numberAvailable"),
    Column::text("Node Selector", |object, _| labels(at(object, "spec.template.spec.nodeSelector"))),
    AGE,
    CONTAINERS,
    IMAGES,
    SELECTOR,
];

pub static JOB: &[Column] = &[
    Column::text("Status", |job, _| job_status(job).into()),
    Column::text("Completions", |job, _| completions(job).into()),
    Column::text("Duration", |job, now| job_duration(job, now).into()),
    AGE,
    CONTAINERS,
    IMAGES,
    SELECTOR,
];

pub static CRON_JOB: &[Column] = &[
    Column::at("Schedule", "spec.schedule"),
    Column::at_or("Timezone", "spec.timeZone", "<none>"),
    Column::text("Suspend", |object, _| match at(object, "spec.suspend").and_then(Value::as_bool) {
        Some(true) => "True".into(),
        Some(false) => "False".into(),
        None => "<unset>".into(),
    })
    .typed("boolean"),
    Column::length("Active", "status.active"),
    Column::text("Last Schedule", |object, now| match text_at(object, "status.lastScheduleTime") {
        "" => "<none>".into(),
        time => age(time, now).into(),
    }),
    AGE,
    Column::text("Containers", |object, _| {
        of_containers(object, "spec.jobTemplate.spec.template.spec.containers", "name")
    })
    .wide(),
    Column::text("Images", |object, _| {
        of_containers(object, "spec.jobTemplate.spec.template.spec.containers", "image")
    })
    .wide(),
    Column::text("Selector", |object, _| selector(at(object, "spec.jobTemplate.spec.selector"))).wide(),
];

pub static CONTROLLER_REVISION: &[Column] = &[
    Column::text("Controller", |object, _| controller(object).into()),
    Column::number("Revision", "revision").typed("string"),
    AGE,
];

pub static POD_DISRUPTION_BUDGET: &[Column] = &[
    Column::text("Min Available", |object, _| int_or_percent(object, "spec.minAvailable").into()),
    Column::text("Max Unavailable", |object, _| int_or_percent(object, "spec.maxUnavailable").into()),
    Column::number("Allowed Disruptions", "status.disruptionsAllowed"),
    AGE,
];

pub static AUTOSCALER: &[Column] = &[
    Column::text("Reference", |object, _| {
        let part = |name: &str| text_at(object, &format!("spec.scaleTargetRef.{name}")).to_string();
        format!("{}/{}", part("kind"), part("name")).into()
    }),
    Column::text("Targets", |object, _| targets(object).into()),
    Column::text("MinPods", |object, _| {
        at(object, "spec.minReplicas").map_or("<unset>".into(), |least| least.to_string().into())
    }),
    Column::number("MaxPods", "spec.maxReplicas").typed("string"),
    Column::number("Replicas", "status.currentReplicas").typed("string"),
    AGE,
];

pub static PRIORITY_CLASS: &[Column] = &[
    Column::number("Value", "value"),
    Column::boolean("Global-Default", "globalDefault"),
    AGE,
    Column::at("PreemptionPolicy", "preemptionPolicy"),
];

pub static WORKLOAD: &[Column] = &[AGE];

pub static POD_GROUP: &[Column] = &[
    Column::text("Policy", |object, _| {
        if at(object, "spec.schedulingPolicy.gang").is_some() { "Gang".into() } else { "Basic".into() }
    }),
    Column::at_or("Workload", "spec.podGroupTemplateRef.workload.workloadName", "<none>"),
    Column::text("Status", |object, _| {
        use crate::columns::condition;
        match (condition(object, "PodGroupScheduled"), condition(object, "DisruptionTarget")) {
            (_, Some(disrupted)) => field(disrupted, "reason").into(),
            (Some(scheduled), None) if field(scheduled, "status") == "True" => "Scheduled".into(),
            (Some(_), None) => "Unschedulable".into(),
            (None, None) => "Pending".into(),
        }
    }),
    AGE,
];

fn job_status(job: &Object) -> &'static str {
    let has = |condition| has_condition(job, condition);
    match () {
        () if has("Complete") => "Complete",
        () if has("Failed") => "Failed",
        () if job.is_deleting() => "Terminating",
        () if has("Suspended") => "Suspended",
        () if has("FailureTarget") => "FailureTarget",
        () if has("SuccessCriteriaMet") => "SuccessCriteriaMet",
        () => "Running",
    }
}

fn completions(job: &Object) -> String {
    let succeeded = number_at(job, "status.succeeded");
    match at(job, "spec.completions").and_then(Value::as_i64) {
        Some(wanted) => format!("{succeeded}/{wanted}"),
        None => match number_at(job, "spec.parallelism") {
            parallel if parallel > 1 => format!("{succeeded}/1 of {parallel}"),
            _ => format!("{succeeded}/1"),
        },
    }
}

fn job_duration(job: &Object, now: Timestamp) -> String {
    let Some(start) = seconds_of(text_at(job, "status.startTime")) else { return String::new() };
    let end = seconds_of(text_at(job, "status.completionTime")).unwrap_or(now.as_second());
    human_duration(end - start)
}

fn controller(object: &Object) -> String {
    let owners = object.meta("ownerReferences").and_then(Value::as_array).into_iter().flatten();
    let Some(owner) =
        owners.into_iter().find(|owner| owner.get("controller").and_then(Value::as_bool) == Some(true))
    else {
        return "<none>".into();
    };
    let kind = match field(owner, "apiVersion").split_once('/') {
        Some((group, _)) => format!("{}.{group}", field(owner, "kind")),
        None => field(owner, "kind").to_string(),
    };
    format!("{}/{}", kind.to_lowercase(), field(owner, "name"))
}

fn int_or_percent(object: &Object, path: &str) -> String {
    match at(object, path) {
        None | Some(Value::Null) => "N/A".into(),
        Some(Value::String(text)) => text.clone(),
        Some(value) => value.to_string(),
    }
}

/// What an autoscaler measures and what it aims at; the first two metrics.
fn targets(object: &Object) -> String {
    let metrics = list_at(object, "spec.metrics");
    let now = list_at(object, "status.currentMetrics");
    let list: Vec<String> =
        metrics.iter().enumerate().map(|(index, metric)| target(metric, now.get(index))).collect();
    match list.len() {
        0 => v1_target(object),
        1 | 2 => list.join(", "),
        more => format!("{} + {} more...", list[..2].join(", "), more - 2),
    }
}

/// autoscaling/v1 knows one metric only.
fn v1_target(object: &Object) -> String {
    let percent = |path: &str| at(object, path).map(|value| format!("{value}%"));
    match percent("spec.targetCPUUtilizationPercentage") {
        None => "<none>".into(),
        Some(wanted) => {
            let current = percent("status.currentCPUUtilizationPercentage");
            format!("cpu: {}/{wanted}", current.unwrap_or_else(|| "<unknown>".into()))
        }
    }
}

fn target(metric: &Value, status: Option<&Value>) -> String {
    let source = match field(metric, "type") {
        "External" => "external",
        "Pods" => "pods",
        "Object" => "object",
        "Resource" => "resource",
        "ContainerResource" => "containerResource",
        _ => return "<unknown type>".into(),
    };
    let wanted = |name: &str| metric.get(source)?.get("target")?.get(name);
    let measured = |name: &str| status?.get(source)?.get("current")?.get(name);
    let show = |value: Option<&Value>, unknown: &str, unit: &str| match value {
        Some(Value::String(text)) => format!("{text}{unit}"),
        Some(value) => format!("{value}{unit}"),
        None => unknown.to_string(),
    };
    let pair = |name: &str, unknown: &str, unit: &str| {
        format!("{}/{}", show(measured(name), "<unknown>", unit), show(wanted(name), unknown, unit))
    };
    let average = wanted("averageValue").is_some();
    match source {
        "resource" | "containerResource" => {
            let name = metric.get(source).map_or("", |source| field(source, "name"));
            let values = if average {
                pair("averageValue", "", "")
            } else {
                pair("averageUtilization", "<auto>", "%")
            };
            format!("{name}: {values}")
        }
        "pods" => pair("averageValue", "0", ""),
        _ if average => format!("{} (avg)", pair("averageValue", "", "")),
        _ => pair("value", "0", ""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_autoscaler_shows_what_it_measures() {
        let object = Object::from_value(json!({
            "spec": {"metrics": [
                {"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 80}}},
                {"type": "Pods", "pods": {"target": {"averageValue": "10"}}},
                {"type": "Odd"},
            ]},
            "status": {"currentMetrics": [{"resource": {"current": {"averageUtilization": 12}}}]},
        }))
        .expect("an object");
        assert_eq!(targets(&object), "cpu: 12%/80%, <unknown>/10 + 1 more...");
    }

    #[test]
    fn a_job_counts_what_it_has_done() {
        let job = |spec: Value| {
            Object::from_value(json!({"spec": spec, "status": {"succeeded": 1}})).expect("an object")
        };
        assert_eq!(completions(&job(json!({"completions": 3}))), "1/3");
        assert_eq!(completions(&job(json!({"parallelism": 2}))), "1/1 of 2");
        assert_eq!(completions(&job(json!({}))), "1/1");
    }
}
