//! Pod: defaults that depend on other fields, its quality of service, its time to end, and what of it may
//! change once it exists.

use ferry_api::{FieldErrors, Object};
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Map, Value, json};

use crate::columns::{AGE, Column};
use crate::strategy::{Rules, Selectable, Traits, Typed};

pub static STRATEGY: Typed<Pod, PodRules> = Typed::new(PodRules);

pub struct PodRules;

impl Rules<Pod> for PodRules {
    fn default(&self, object: &mut Object) {
        if let Some(Value::Object(spec)) = object.0.get_mut("spec") {
            default_spec(spec);
        }
    }

    fn prepare_create(&self, object: &mut Object) {
        let qos = quality_of_service(object);
        object.0.insert("status".into(), json!({"phase": "Pending", "qosClass": qos}));
    }

    fn validate(&self, pod: &Pod, errors: &mut FieldErrors) {
        if pod.spec.as_ref().is_none_or(|spec| spec.containers.is_empty()) {
            errors.required("spec.containers", "");
        }
    }

    fn grace_period(&self, object: &Object, asked: Option<i64>) -> Option<i64> {
        let placed = !object.text_at(&["spec", "nodeName"]).is_empty();
        let ended = matches!(object.text_at(&["status", "phase"]), "Succeeded" | "Failed");
        if !placed || ended {
            return Some(0);
        }
        let own =
            object.get(&["spec", "terminationGracePeriodSeconds"]).and_then(Value::as_i64).unwrap_or(30);
        let period = asked.unwrap_or(own);
        Some(if period < 0 { 1 } else { period })
    }

    fn selectable(&self) -> &'static [Selectable] {
        static FIELDS: &[Selectable] = &[
            Selectable { field: "spec.nodeName", path: &["spec", "nodeName"], absent: "" },
            Selectable { field: "spec.restartPolicy", path: &["spec", "restartPolicy"], absent: "" },
            Selectable { field: "spec.schedulerName", path: &["spec", "schedulerName"], absent: "" },
            Selectable {
                field: "spec.serviceAccountName",
                path: &["spec", "serviceAccountName"],
                absent: "",
            },
            Selectable { field: "spec.hostNetwork", path: &["spec", "hostNetwork"], absent: "false" },
            Selectable { field: "status.phase", path: &["status", "phase"], absent: "" },
            Selectable { field: "status.podIP", path: &["status", "podIP"], absent: "" },
            Selectable {
                field: "status.nominatedNodeName",
                path: &["status", "nominatedNodeName"],
                absent: "",
            },
        ];
        FIELDS
    }

    fn columns(&self) -> &'static [Column] {
        static COLUMNS: &[Column] =
            &[Column::text("Status", |object, _| object.text_at(&["status", "phase"]).into()), AGE];
        COLUMNS
    }

    fn traits(&self) -> Traits {
        Traits { generation: true, answers_deleted: true, ..Traits::default() }
    }
}

/// Defaults of a pod's spec, in a pod or in a template.
pub fn default_spec(spec: &mut Map<String, Value>) {
    let host_network = spec.get("hostNetwork").and_then(Value::as_bool) == Some(true);
    for list in ["initContainers", "containers", "ephemeralContainers"] {
        for container in spec.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
            if let Value::Object(container) = container {
                default_container(container, host_network);
            }
        }
    }
    spec.entry("securityContext").or_insert_with(|| json!({}));
    // The old name of the account follows the new one.
    if let Some(account) =
        spec.get("serviceAccountName").cloned().or_else(|| spec.get("serviceAccount").cloned())
    {
        spec.insert("serviceAccountName".into(), account.clone());
        spec.insert("serviceAccount".into(), account);
    }
}

fn default_container(container: &mut Map<String, Value>, host_network: bool) {
    if !container.contains_key("imagePullPolicy") {
        let image = container.get("image").and_then(Value::as_str).unwrap_or("");
        let policy = if is_latest(image) { "Always" } else { "IfNotPresent" };
        container.insert("imagePullPolicy".into(), policy.into());
    }
    if let Some(Value::Object(resources)) = container.get_mut("resources")
        && let Some(Value::Object(limits)) = resources.get("limits").cloned()
    {
        let requests = resources.entry("requests").or_insert_with(|| json!({}));
        if let Value::Object(requests) = requests {
            for (name, limit) in limits {
                requests.entry(name).or_insert(limit);
            }
        }
    }
    if host_network {
        for port in container.get_mut("ports").and_then(Value::as_array_mut).into_iter().flatten() {
            let number = port.get("containerPort").cloned();
            if let (Value::Object(port), Some(number)) = (port, number) {
                port.entry("hostPort").or_insert(number);
            }
        }
    }
}

/// An image without a tag or digest, or tagged `latest`, is looked for anew at each start.
fn is_latest(image: &str) -> bool {
    if image.contains('@') {
        return false;
    }
    let name = image.rsplit('/').next().unwrap_or(image);
    name.rsplit_once(':').is_none_or(|(_, tag)| tag == "latest")
}

/// Guaranteed, Burstable or BestEffort, from requests and limits of cpu and memory.
fn quality_of_service(pod: &Object) -> &'static str {
    let zero = |value: &Value| {
        value
            .as_str()
            .and_then(|text| ferry_api::Quantity::parse(text).ok())
            .is_some_and(|quantity| quantity.is_zero())
    };
    let (mut any, mut guaranteed) = (false, true);
    for list in ["containers", "initContainers"] {
        for container in pod.get(&["spec", list]).and_then(Value::as_array).into_iter().flatten() {
            for resource in ["cpu", "memory"] {
                let at = |kind: &str| {
                    container.pointer(&format!("/resources/{kind}/{resource}")).filter(|value| !zero(value))
                };
                let (request, limit) = (at("requests"), at("limits"));
                any |= request.is_some() || limit.is_some();
                guaranteed &= limit.is_some() && (request.is_none() || request == limit);
            }
        }
    }
    match (any, guaranteed) {
        (false, _) => "BestEffort",
        (true, true) => "Guaranteed",
        (true, false) => "Burstable",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pull_policy_follows_the_tag() {
        for (image, latest) in [
            ("nginx", true),
            ("nginx:latest", true),
            ("nginx:1.29", false),
            ("host:5000/nginx", true),
            ("host:5000/nginx:1", false),
            ("nginx@sha256:abc", false),
        ] {
            assert_eq!(is_latest(image), latest, "{image}");
        }
    }

    #[test]
    fn quality_of_service_follows_requests_and_limits() {
        let check = |resources: Value, expected: &str| {
            let pod = json!({"spec": {"containers": [{"name": "a", "resources": resources}]}});
            assert_eq!(quality_of_service(&Object::from_value(pod).expect("an object")), expected);
        };
        check(json!({}), "BestEffort");
        check(json!({"requests": {"cpu": "1"}}), "Burstable");
        check(json!({"limits": {"cpu": "1", "memory": "1Gi"}}), "Guaranteed");
        check(json!({"requests": {"cpu": "0"}}), "BestEffort");
    }

    #[test]
    fn a_pod_that_runs_nowhere_goes_at_once() {
        let pod = |value: Value| Object::from_value(value).expect("an object");
        assert_eq!(PodRules.grace_period(&pod(json!({"spec": {}})), Some(30)), Some(0));
        let placed = pod(json!({"spec": {"nodeName": "n", "terminationGracePeriodSeconds": 5}}));
        assert_eq!(PodRules.grace_period(&placed, None), Some(5));
        assert_eq!(PodRules.grace_period(&placed, Some(-7)), Some(1));
    }
}
