//! Between the versions of a kind. Most versions differ in nothing but their name; those that do have
//! a file here. Whatever the way, the result has the form of the version asked for.

mod device;
mod event;
mod horizontal_pod_autoscaler;

use serde_json::Value;

use crate::json::FieldValidation;
use crate::kinds::Kind;
use crate::object::Object;
use crate::status::Status;

/// Whether an object has the same fields in both versions (`apps/v1`), so that [`convert`] changes nothing but its type.
pub fn same_fields(a: &str, b: &str) -> bool {
    let differ = |version: &str| {
        ["autoscaling/", "events.k8s.io/", "resource.k8s.io/"].iter().any(|group| version.starts_with(group))
    };
    a == b || !(differ(a) || differ(b))
}

/// Converts an object between two versions of one kind.
pub fn convert(mut object: Object, from: &Kind, to: &Kind) -> Result<Object, Status> {
    if from.group == to.group && from.version == to.version {
        return Ok(object);
    }
    let versions = (from.version.as_ref(), to.version.as_ref());
    match (from.group.as_ref(), from.kind.as_ref(), versions) {
        ("autoscaling", "HorizontalPodAutoscaler", ("v1", "v2")) => {
            horizontal_pod_autoscaler::from_v1(&mut object);
        }
        ("autoscaling", "HorizontalPodAutoscaler", ("v2", "v1")) => {
            horizontal_pod_autoscaler::to_v1(&mut object);
        }
        ("events.k8s.io", "Event", _) if to.group.is_empty() => event::to_core(&mut object),
        ("", "Event", _) if to.group == "events.k8s.io" => event::from_core(&mut object),
        ("resource.k8s.io", kind, ("v1beta1", "v1" | "v1beta2")) => device::from_v1beta1(kind, &mut object),
        ("resource.k8s.io", kind, ("v1" | "v1beta2", "v1beta1")) => device::to_v1beta1(kind, &mut object),
        _ => {}
    }
    object.set_type(&to.api_version(), &to.kind);
    let managers = object.take_managers();
    let mut object = to.decode_value(Value::Object(object.0), FieldValidation::Ignore)?.object;
    object.set_managers(managers);
    Ok(object)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds;
    use serde_json::json;

    fn row(group: &str, version: &str, kind: &str) -> Kind {
        kinds::builtin_rows()
            .into_iter()
            .find(|row| row.group == group && row.version == version && row.kind == kind)
            .expect("a built-in row")
    }

    /// Converts there and back, and gives what stood in between.
    fn check(value: Value, from: &Kind, to: &Kind) -> Value {
        let object = from.decode_value(value, FieldValidation::Strict).expect("fits").object;
        let there = convert(object.clone(), from, to).expect("converts");
        let back = convert(there.clone(), to, from).expect("converts back");
        assert_eq!(back.into_value(), object.into_value());
        there.into_value()
    }

    #[test]
    fn an_autoscaler_keeps_all_its_metrics_on_the_way_through_v1() {
        let (v1, v2) = (
            row("autoscaling", "v1", "HorizontalPodAutoscaler"),
            row("autoscaling", "v2", "HorizontalPodAutoscaler"),
        );
        let there = check(
            json!({"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler",
                "metadata": {"name": "a", "annotations": {"mine": "1"}},
                "spec": {"maxReplicas": 3, "minReplicas": 1, "scaleTargetRef": {"kind": "Deployment", "name": "d"},
                    "metrics": [
                        {"type": "Resource", "resource": {"name": "memory",
                            "target": {"type": "AverageValue", "averageValue": "1Gi"}}},
                        {"type": "Pods", "pods": {"metric": {"name": "m", "selector": {"matchLabels": {"a": "b"}}},
                            "target": {"type": "AverageValue", "averageValue": "5"}}},
                        {"type": "Object", "object": {"describedObject": {"kind": "Ingress", "name": "i"},
                            "metric": {"name": "m"}, "target": {"type": "Value", "value": "7"}}},
                        {"type": "External", "external": {"metric": {"name": "m"},
                            "target": {"type": "AverageValue", "averageValue": "7"}}},
                        {"type": "ContainerResource", "containerResource": {"name": "cpu", "container": "c",
                            "target": {"type": "Utilization", "averageUtilization": 40}}},
                        {"type": "Resource", "resource": {"name": "cpu",
                            "target": {"type": "Utilization", "averageUtilization": 60}}}],
                    "behavior": {"scaleDown": {"stabilizationWindowSeconds": 60, "selectPolicy": "Max",
                        "policies": [{"type": "Pods", "value": 1, "periodSeconds": 15}]}}},
                "status": {"currentReplicas": 1, "desiredReplicas": 2,
                    "currentMetrics": [{"type": "Resource", "resource": {"name": "cpu",
                        "current": {"averageUtilization": 30, "averageValue": "10m"}}}],
                    "conditions": [{"type": "AbleToScale", "status": "True", "reason": "r",
                        "lastTransitionTime": "2026-01-02T03:04:05Z"}]}}),
            &v2,
            &v1,
        );
        assert_eq!(there["spec"]["targetCPUUtilizationPercentage"], json!(60));
        assert_eq!(there["status"]["currentCPUUtilizationPercentage"], json!(30));
        let behavior = &there["metadata"]["annotations"]["autoscaling.alpha.kubernetes.io/behavior"];
        assert_eq!(
            behavior,
            r#"{"ScaleDown":{"Policies":[{"PeriodSeconds":15,"Type":"Pods","Value":1}],"SelectPolicy":"Max","StabilizationWindowSeconds":60}}"#
        );
        let there = check(
            json!({"apiVersion": "autoscaling/v1", "kind": "HorizontalPodAutoscaler",
                "spec": {"maxReplicas": 3, "targetCPUUtilizationPercentage": 50,
                    "scaleTargetRef": {"kind": "Deployment", "name": "d"}}}),
            &v1,
            &v2,
        );
        assert_eq!(there["spec"]["metrics"][0]["resource"]["target"]["averageUtilization"], json!(50));
    }

    #[test]
    fn an_event_is_the_same_in_both_groups() {
        let there = check(
            json!({"apiVersion": "v1", "kind": "Event", "metadata": {"name": "e", "namespace": "n"},
                "involvedObject": {"kind": "Pod", "name": "p"}, "message": "m", "reason": "r", "count": 2,
                "source": {"component": "c"}, "firstTimestamp": "2026-01-02T03:04:05Z",
                "eventTime": "2026-01-02T03:04:05.000000Z", "reportingComponent": "k", "type": "Normal"}),
            &row("", "v1", "Event"),
            &row("events.k8s.io", "v1", "Event"),
        );
        assert_eq!(there["note"], json!("m"));
        assert_eq!(there["regarding"]["name"], json!("p"));
        assert_eq!(there["reportingController"], json!("k"));
        assert_eq!(there["apiVersion"], json!("events.k8s.io/v1"));
    }

    #[test]
    fn device_requests_and_devices_change_their_shape() {
        let there = check(
            json!({"apiVersion": "resource.k8s.io/v1beta1", "kind": "ResourceClaim",
                "spec": {"devices": {"requests": [
                    {"name": "a", "deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 2},
                    {"name": "b", "firstAvailable": [{"name": "x", "deviceClassName": "gpu"}]}]}}}),
            &row("resource.k8s.io", "v1beta1", "ResourceClaim"),
            &row("resource.k8s.io", "v1", "ResourceClaim"),
        );
        assert_eq!(
            there["spec"]["devices"]["requests"][0],
            json!({"name": "a", "exactly": {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 2}})
        );
        let there = check(
            json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice",
                "spec": {"driver": "d", "nodeName": "n", "pool": {"name": "p", "generation": 1,
                    "resourceSliceCount": 1}, "devices": [{"name": "x", "attributes": {"a": {"bool": true}}}]}}),
            &row("resource.k8s.io", "v1", "ResourceSlice"),
            &row("resource.k8s.io", "v1beta1", "ResourceSlice"),
        );
        assert_eq!(
            there["spec"]["devices"][0],
            json!({"name": "x", "basic": {"attributes": {"a": {"bool": true}}}})
        );
    }

    #[test]
    fn other_versions_differ_in_name_only() {
        let there = check(
            json!({"apiVersion": "networking.k8s.io/v1", "kind": "IPAddress",
                "spec": {"parentRef": {"name": "a", "resource": "services"}}}),
            &row("networking.k8s.io", "v1", "IPAddress"),
            &row("networking.k8s.io", "v1beta1", "IPAddress"),
        );
        assert_eq!(there["apiVersion"], json!("networking.k8s.io/v1beta1"));
    }
}
