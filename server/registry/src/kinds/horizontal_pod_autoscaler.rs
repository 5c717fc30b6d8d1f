//! HorizontalPodAutoscaler (autoscaling/v2): what it measures and how fast it may go.

use ferry_api::object::object_at;
use ferry_api::{FieldErrors, Object};
use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use serde_json::{Map, Value, json};

use super::checks::{self, Path};
use crate::columns::Column;
use crate::strategy::{Rules, Typed};

pub static STRATEGY: Typed<HorizontalPodAutoscaler, AutoscalerRules> = Typed::new(AutoscalerRules);

pub struct AutoscalerRules;

const SPEC: Path<'static> = Path::root("spec");
const DEFAULT_UTILIZATION: i32 = 80;
const SOURCES: &[&str] = &["ContainerResource", "External", "Object", "Pods", "Resource"];

impl Rules<HorizontalPodAutoscaler> for AutoscalerRules {
    fn default(&self, object: &mut Object) {
        let spec = object.section_mut("spec");
        checks::set_default(spec, "minReplicas", 1);
        if spec.get("metrics").and_then(Value::as_array).is_none_or(Vec::is_empty) {
            let target = json!({"type": "Utilization", "averageUtilization": DEFAULT_UTILIZATION});
            let cpu = json!([{"type": "Resource", "resource": {"name": "cpu", "target": target}}]);
            spec.insert("metrics".into(), cpu);
        }
        if let Some(Value::Object(behavior)) = spec.get_mut("behavior") {
            let double_or_four = json!([
                {"type": "Pods", "value": 4, "periodSeconds": 15},
                {"type": "Percent", "value": 100, "periodSeconds": 15},
            ]);
            let up = object_at(behavior, "scaleUp");
            checks::set_default(up, "stabilizationWindowSeconds", 0);
            default_rules(up, double_or_four);
            let all = json!([{"type": "Percent", "value": 100, "periodSeconds": 15}]);
            default_rules(object_at(behavior, "scaleDown"), all);
        }
    }

    fn validate(&self, autoscaler: &HorizontalPodAutoscaler, errors: &mut FieldErrors) {
        let spec = &autoscaler.spec;
        if let Some(least) = spec.min_replicas.filter(|least| *least < 1) {
            errors.invalid(SPEC.child("minReplicas"), least, "must be greater than or equal to 1");
        }
        match spec.max_replicas {
            0 => errors.required(SPEC.child("maxReplicas"), "must be set and greater than 0"),
            ..0 => errors.invalid(
                SPEC.child("maxReplicas"),
                spec.max_replicas,
                "must be greater than or equal to 1",
            ),
            _ => {}
        }
        if spec.min_replicas.is_some_and(|least| spec.max_replicas < least) {
            errors.invalid(
                SPEC.child("maxReplicas"),
                spec.max_replicas,
                "must be greater than or equal to `minReplicas`",
            );
        }
        let target = SPEC.child("scaleTargetRef");
        for (field, value) in [("kind", &spec.scale_target_ref.kind), ("name", &spec.scale_target_ref.name)] {
            checks::required_name(errors, target.child(field), value, ferry_api::names::path_segment);
        }
        let list = SPEC.child("metrics");
        for (index, metric) in spec.metrics.iter().flatten().enumerate() {
            let path = list.index(index);
            match metric.type_.as_str() {
                "" => errors.required(path.child("type"), "must specify a metric source type"),
                kind => checks::may_be(errors, path.child("type"), Some(kind), SOURCES),
            }
        }
    }

    fn columns(&self) -> &[Column] {
        super::tables::workloads::AUTOSCALER
    }
}

fn default_rules(rules: &mut Map<String, Value>, policies: Value) {
    checks::set_default(rules, "selectPolicy", "Max");
    checks::set_default(rules, "policies", policies);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_autoscaler_that_names_no_metric_looks_at_the_cpu() {
        let mut object =
            Object::from_value(json!({"spec": {"maxReplicas": 3, "behavior": {}}})).expect("an object");
        AutoscalerRules.default(&mut object);
        assert_eq!(object.get(&["spec", "minReplicas"]), Some(&json!(1)));
        assert_eq!(
            object.get(&["spec", "metrics"]).and_then(|metrics| metrics.pointer("/0/resource/name")),
            Some(&json!("cpu"))
        );
        let down = object.get(&["spec", "behavior", "scaleDown"]).expect("rules");
        assert!(down.get("stabilizationWindowSeconds").is_none() && down["selectPolicy"] == "Max");
    }
}
