//! HorizontalPodAutoscaler (autoscaling/v2): what it measures and how fast it may go.

use ferry_api::Object;
use ferry_api::object::object_at;
use serde::de::IgnoredAny;
use serde_json::{Map, Value, json};

use super::checks;
use crate::columns::Column;
use crate::strategy::{Rules, Typed};

pub static STRATEGY: Typed<IgnoredAny, AutoscalerRules> = Typed::new(AutoscalerRules);

pub struct AutoscalerRules;

const DEFAULT_UTILIZATION: i32 = 80;

impl Rules<IgnoredAny> for AutoscalerRules {
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

    fn judged_by_rows(&self) -> bool {
        true
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
