//! The columns of pods: how far along they are is told from the states of their containers.

use std::collections::HashSet;

use ferry_api::{Object, Quantity};
use jiff::Timestamp;
use serde_json::Value;

use crate::columns::{
    AGE, Column, age, at, condition, field, has_condition, list_at, of_containers, text_at,
};
use crate::metadata::seconds_of;

pub static POD_METRICS: &[Column] = &[
    Column::text("CPU", |pod, _| used(pod, "cpu")),
    Column::text("Memory", |pod, _| used(pod, "memory")),
    Column::at("Window", "window"),
];

/// What all containers of a PodMetrics use together.
fn used(pod: &Object, resource: &str) -> Value {
    let of_container = |container: &Value| Quantity::parse(field(container.get("usage")?, resource)).ok();
    let amounts = list_at(pod, "containers").iter().filter_map(of_container);
    amounts.reduce(|sum, amount| sum + amount).map_or_else(String::new, |sum| sum.to_string()).into()
}

pub static POD: &[Column] = &[
    Column::text("Ready", |pod, _| {
        let progress = Progress::of(pod);
        format!("{}/{}", progress.ready, progress.containers).into()
    }),
    Column::text("Status", |pod, _| Progress::of(pod).reason.into()),
    Column::text("Restarts", |pod, now| Progress::of(pod).restarts.show(now).into()),
    AGE,
    Column::text("IP", |pod, _| {
        let first = list_at(pod, "status.podIPs").first().map_or("", |address| field(address, "ip"));
        if first.is_empty() { "<none>".into() } else { first.into() }
    })
    .wide(),
    Column::at_or("Node", "spec.nodeName", "<none>").wide(),
    Column::at_or("Nominated Node", "status.nominatedNodeName", "<none>").wide(),
    Column::text("Readiness Gates", |pod, _| readiness_gates(pod)).wide(),
];

pub static POD_TEMPLATE: &[Column] = &[
    Column::text("Containers", |object, _| of_containers(object, "template.spec.containers", "name")),
    Column::text("Images", |object, _| of_containers(object, "template.spec.containers", "image")),
    Column::text("Pod Labels", |object, _| crate::columns::labels(at(object, "template.metadata.labels"))),
];

/// A pod summed up as one line.
struct Progress {
    ready: usize,
    containers: usize,
    reason: String,
    restarts: Restarts,
}

#[derive(Default, Clone, Copy)]
struct Restarts {
    count: i64,
    last: Option<i64>,
}

impl Restarts {
    fn add(&mut self, status: &Value) {
        self.count += status.get("restartCount").and_then(Value::as_i64).unwrap_or(0);
        let ended = status.pointer("/lastState/terminated/finishedAt").and_then(Value::as_str);
        self.last = self.last.max(ended.and_then(seconds_of));
    }

    fn show(self, now: Timestamp) -> String {
        match self.last {
            Some(last) if self.count != 0 => {
                format!("{} ({} ago)", self.count, crate::columns::human_duration(now.as_second() - last))
            }
            _ => self.count.to_string(),
        }
    }
}

impl Progress {
    fn of(pod: &Object) -> Progress {
        let phase = text_at(pod, "status.phase");
        let mut reason = match text_at(pod, "status.reason") {
            "" => phase,
            given => given,
        }
        .to_string();
        if condition(pod, "PodScheduled").is_some_and(|found| field(found, "reason") == "SchedulingGated") {
            reason = "SchedulingGated".into();
        }
        let sidecars = list_at(pod, "spec.initContainers").iter().filter(|init| is_sidecar(init)).count();
        let containers = list_at(pod, "spec.containers").len() + sidecars;
        let initial = Initial::of(pod);
        let mut progress = Progress { ready: initial.ready, containers, reason, restarts: initial.all };
        match initial.reason {
            Some(reason) if !has_condition(pod, "Initialized") => progress.reason = reason,
            started => {
                progress.reason = started.unwrap_or(progress.reason);
                progress.restarts = initial.sidecars;
                progress.follow_containers(pod);
            }
        }
        if pod.is_deleting() {
            if text_at(pod, "status.reason") == "NodeLost" {
                progress.reason = "Unknown".into();
            } else if !matches!(phase, "Succeeded" | "Failed") {
                progress.reason = "Terminating".into();
            }
        }
        progress
    }

    /// The first container that has something to say gives the reason.
    fn follow_containers(&mut self, pod: &Object) {
        let (mut running, mut failure) = (false, None);
        for status in list_at(pod, "status.containerStatuses").iter().rev() {
            self.restarts.add(status);
            let waiting = status.pointer("/state/waiting/reason").and_then(Value::as_str).unwrap_or("");
            let ready = status.get("ready").and_then(Value::as_bool) == Some(true);
            if !waiting.is_empty() {
                self.reason = waiting.into();
            } else if let Some(ended) = status.pointer("/state/terminated") {
                self.reason = how_ended(ended);
                if exit_code(ended) != 0 {
                    failure = Some(self.reason.clone());
                }
            } else if ready && status.pointer("/state/running").is_some() {
                running = true;
                self.ready += 1;
            }
        }
        // One that ran to its end does not make a pod completed while others run or failed.
        if self.reason == "Completed" {
            self.reason = match (running, failure) {
                (true, _) if has_condition(pod, "Ready") => "Running".into(),
                (_, Some(failure)) => failure,
                (true, None) => "NotReady".into(),
                (false, None) => return,
            };
        }
    }
}

/// How far the init containers are.
#[derive(Default)]
struct Initial {
    /// Why the pod's own containers have not started.
    reason: Option<String>,
    ready: usize,
    all: Restarts,
    sidecars: Restarts,
}

impl Initial {
    fn of(pod: &Object) -> Initial {
        let specs = list_at(pod, "spec.initContainers");
        let sidecars: HashSet<&str> =
            specs.iter().filter(|spec| is_sidecar(spec)).map(|spec| field(spec, "name")).collect();
        let mut initial = Initial::default();
        for (index, status) in list_at(pod, "status.initContainerStatuses").iter().enumerate() {
            let name = field(status, "name");
            let sidecar = sidecars.contains(name);
            initial.all.add(status);
            if sidecar {
                initial.sidecars.add(status);
            }
            let is = |name: &str| status.get(name).and_then(Value::as_bool) == Some(true);
            let ended = status.pointer("/state/terminated");
            let waiting = status.pointer("/state/waiting/reason").and_then(Value::as_str).unwrap_or("");
            initial.reason = match ended {
                Some(ended) if exit_code(ended) == 0 => continue,
                _ if sidecar && is("started") => {
                    initial.ready += usize::from(is("ready"));
                    continue;
                }
                Some(ended) => Some(format!("Init:{}", how_ended(ended))),
                None if !waiting.is_empty() && waiting != "PodInitializing" => {
                    Some(format!("Init:{waiting}"))
                }
                None => Some(format!("Init:{index}/{}", specs.len())),
            };
            break;
        }
        initial
    }
}

fn is_sidecar(container: &Value) -> bool {
    field(container, "restartPolicy") == "Always"
}

fn exit_code(terminated: &Value) -> i64 {
    terminated.get("exitCode").and_then(Value::as_i64).unwrap_or(0)
}

fn how_ended(terminated: &Value) -> String {
    match (field(terminated, "reason"), terminated.get("signal").and_then(Value::as_i64).unwrap_or(0)) {
        ("", 0) => format!("ExitCode:{}", exit_code(terminated)),
        ("", signal) => format!("Signal:{signal}"),
        (reason, _) => reason.into(),
    }
}

fn readiness_gates(pod: &Object) -> Value {
    let gates = list_at(pod, "spec.readinessGates");
    if gates.is_empty() {
        return "<none>".into();
    }
    let open = gates.iter().filter(|gate| has_condition(pod, field(gate, "conditionType"))).count();
    format!("{open}/{}", gates.len()).into()
}

/// The columns of events. Their name stands last and is rarely looked at.
pub static EVENT: &[Column] = &[
    Column::text("Last Seen", |event, now| last_seen(event, now).into()),
    Column::at("Type", "type"),
    Column::at("Reason", "reason"),
    Column::text("Object", |event, _| {
        let target = at(event, "involvedObject").or_else(|| at(event, "regarding"));
        let part = |name: &str| target.map_or("", |target| field(target, name));
        let kind = part("kind").to_lowercase();
        if part("name").is_empty() { kind.into() } else { format!("{kind}/{}", part("name")).into() }
    }),
    Column::text("Subobject", |event, _| {
        let target = at(event, "involvedObject").or_else(|| at(event, "regarding"));
        target.map_or("", |target| field(target, "fieldPath")).into()
    })
    .wide(),
    Column::text("Source", |event, _| source(event).into()).wide(),
    Column::text("Message", |event, _| {
        let message = if at(event, "note").is_some() { "note" } else { "message" };
        text_at(event, message).trim().into()
    }),
    Column::text("First Seen", |event, now| first_seen(event, now).into()).wide(),
    Column::text("Count", |event, _| {
        let series = at(event, "series.count").and_then(Value::as_i64);
        let own = number(event, &["count", "deprecatedCount"]);
        series.unwrap_or(own.max(1)).into()
    })
    .wide(),
    Column::text("Name", |event, _| event.name().into()).wide().formatted("name"),
];

fn first_text<'a>(object: &'a Object, paths: &[&str]) -> &'a str {
    paths.iter().map(|path| text_at(object, path)).find(|text| !text.is_empty()).unwrap_or("")
}

fn number(object: &Object, paths: &[&str]) -> i64 {
    paths.iter().find_map(|path| at(object, path).and_then(Value::as_i64)).unwrap_or(0)
}

fn first_seen(event: &Object, now: Timestamp) -> String {
    age(first_text(event, &["firstTimestamp", "deprecatedFirstTimestamp", "eventTime"]), now)
}

fn last_seen(event: &Object, now: Timestamp) -> String {
    match first_text(event, &["series.lastObservedTime", "lastTimestamp", "deprecatedLastTimestamp"]) {
        "" => first_seen(event, now),
        seen => age(seen, now),
    }
}

fn source(event: &Object) -> String {
    let component = first_text(
        event,
        &["source.component", "deprecatedSource.component", "reportingComponent", "reportingController"],
    );
    let host = first_text(event, &["source.host", "deprecatedSource.host", "reportingInstance"]);
    if host.is_empty() { component.into() } else { format!("{component}, {host}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[track_caller]
    fn check(spec: Value, status: Value, expected: [&str; 3]) {
        let pod = Object::from_value(json!({"spec": spec, "status": status})).expect("an object");
        let now = "2026-01-01T01:00:00Z".parse().expect("a time");
        let cells: Vec<Value> = POD[..3].iter().map(|column| column.cell(&pod, now)).collect();
        assert_eq!(cells, expected);
    }

    #[test]
    fn the_status_is_told_from_the_containers() {
        let one = json!({"containers": [{"name": "a"}]});
        let two = json!({"containers": [{"name": "a"}, {"name": "b"}]});
        check(one.clone(), json!({"phase": "Pending"}), ["0/1", "Pending", "0"]);
        let status = |state: Value, ready: bool| json!({"name": "a", "state": state, "ready": ready});
        check(
            one.clone(),
            json!({"phase": "Running", "containerStatuses": [status(json!({"running": {}}), true)]}),
            ["1/1", "Running", "0"],
        );
        let mut crashed = status(json!({"waiting": {"reason": "CrashLoopBackOff"}}), false);
        crashed["restartCount"] = 3.into();
        crashed["lastState"] = json!({"terminated": {"exitCode": 1, "finishedAt": "2026-01-01T00:55:00Z"}});
        check(
            one.clone(),
            json!({"phase": "Running", "containerStatuses": [crashed]}),
            ["0/1", "CrashLoopBackOff", "3 (5m ago)"],
        );
        let done = status(json!({"terminated": {"reason": "Completed", "exitCode": 0}}), false);
        check(
            one,
            json!({"phase": "Succeeded", "containerStatuses": [done.clone()]}),
            ["0/1", "Completed", "0"],
        );
        let running = status(json!({"running": {}}), true);
        check(
            two,
            json!({"phase": "Running", "containerStatuses": [done, running]}),
            ["1/2", "NotReady", "0"],
        );
    }

    #[test]
    fn init_containers_come_first() {
        let spec = json!({"containers": [{"name": "a"}], "initContainers": [{"name": "i"}, {"name": "j"}]});
        let initial = |statuses: Value| json!({"phase": "Pending", "initContainerStatuses": statuses});
        let done = json!({"name": "i", "state": {"terminated": {"exitCode": 0}}});
        check(
            spec.clone(),
            initial(json!([done, {"name": "j", "state": {"running": {}}}])),
            ["0/1", "Init:1/2", "0"],
        );
        check(
            spec,
            initial(json!([{"name": "i", "state": {"terminated": {"exitCode": 2}}}])),
            ["0/1", "Init:ExitCode:2", "0"],
        );
        let sidecar = json!({"containers": [{"name": "a"}], "initContainers": [{"name": "s", "restartPolicy": "Always"}]});
        check(
            sidecar,
            initial(json!([{"name": "s", "started": true, "ready": true, "state": {"running": {}}}])),
            ["1/2", "Pending", "0"],
        );
    }
}
