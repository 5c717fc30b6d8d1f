//! Pod: defaults that depend on other fields, its quality of service, its time to end, and what of it may
//! change once it exists.

pub mod defaults;
mod update;

use ferry_api::{FieldErrors, Object};
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use crate::columns::Column;
use crate::strategy::{Rules, Selectable, StrategyOptions, Typed};

pub static STRATEGY: Typed<Pod, PodRules> = Typed::new(PodRules);

pub struct PodRules;

impl Rules<Pod> for PodRules {
    fn default(&self, object: &mut Object) {
        if let Some(Value::Object(spec)) = object.0.get_mut("spec") {
            defaults::spec(spec);
            defaults::of_pod(spec);
        }
    }

    fn modernize(&self, object: &mut Object) -> Vec<String> {
        super::warnings::replaced_profiles(object)
    }

    fn prepare_create(&self, object: &mut Object) {
        let qos = quality_of_service(object);
        object.0.insert("status".into(), json!({"phase": "Pending", "qosClass": qos}));
    }

    fn validate_update(&self, new: &Pod, old: &Pod, errors: &mut FieldErrors) {
        if let (Some(new), Some(old)) = (&new.spec, &old.spec) {
            update::validate(new, old, errors);
        }
    }

    fn judges_spec_alone(&self) -> bool {
        true
    }

    fn judged_by_rows(&self) -> bool {
        true
    }

    fn looks_at_new(&self) -> bool {
        false
    }

    fn prepare_action(&self, subresource: &str, new: &mut Object, old: &Object) {
        update::keep_to_subresource(subresource, new, old);
    }

    fn validate_action(&self, subresource: &str, new: &Pod, old: &Pod, errors: &mut FieldErrors) {
        let (Some(new), Some(old)) = (&new.spec, &old.spec) else { return };
        match subresource {
            "ephemeralcontainers" => update::validate_ephemeral(new, old, errors),
            "resize" => update::validate_resize(new, old, errors),
            _ => {}
        }
    }

    fn judged_actions(&self) -> &'static [&'static str] {
        &["ephemeralcontainers", "resize"]
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

    fn selectable(&self) -> &[Selectable] {
        static FIELDS: &[Selectable] = &[
            Selectable::new("spec.nodeName", "spec.nodeName", ""),
            Selectable::new("spec.host", "spec.nodeName", ""),
            Selectable::new("spec.restartPolicy", "spec.restartPolicy", ""),
            Selectable::new("spec.schedulerName", "spec.schedulerName", ""),
            Selectable::new("spec.serviceAccountName", "spec.serviceAccountName", ""),
            Selectable::new("spec.hostNetwork", "spec.hostNetwork", "false"),
            Selectable::new("status.phase", "status.phase", ""),
            Selectable::new("status.podIP", "status.podIP", ""),
            // Accepted, but no pod has a value for it.
            Selectable::new("status.podIPs", "", ""),
            Selectable::new("status.nominatedNodeName", "status.nominatedNodeName", ""),
        ];
        FIELDS
    }

    fn columns(&self) -> &[Column] {
        super::tables::pods::POD
    }

    fn options(&self) -> StrategyOptions {
        StrategyOptions { generation: true, ..StrategyOptions::default() }
    }
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
                let resources = container.get("resources");
                let at = |kind: &str| resources?.get(kind)?.get(resource).filter(|value| !zero(value));
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
