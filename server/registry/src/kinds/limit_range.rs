//! LimitRange: what its defaults for containers are when it gives only some of them.

use ferry_api::Object;
use serde::de::IgnoredAny;
use serde_json::{Map, Value};

use crate::strategy::{Rules, StrategyOptions, Typed};

pub static STRATEGY: Typed<IgnoredAny, LimitRangeRules> = Typed::new(LimitRangeRules);

pub struct LimitRangeRules;

impl Rules<IgnoredAny> for LimitRangeRules {
    /// A limit is the maximum, a request the limit or else the minimum.
    fn default(&self, object: &mut Object) {
        let limits = object.section_mut("spec").get_mut("limits").and_then(Value::as_array_mut);
        for item in limits.into_iter().flatten() {
            let Value::Object(item) = item else { continue };
            if item.get("type").and_then(Value::as_str) != Some("Container") {
                continue;
            }
            for (into, from) in [("default", "max"), ("defaultRequest", "default"), ("defaultRequest", "min")]
            {
                fill(item, into, from);
            }
        }
    }

    fn judged_by_rows(&self) -> bool {
        true
    }

    fn options(&self) -> StrategyOptions {
        StrategyOptions { create_on_update: true, ..StrategyOptions::default() }
    }
}

fn fill(item: &mut Map<String, Value>, into: &str, from: &str) {
    let Some(Value::Object(values)) = item.get(from).cloned() else { return };
    let target = ferry_api::object::object_at(item, into);
    for (name, value) in values {
        target.entry(name).or_insert(value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn limits_and_requests_follow_from_each_other() {
        let item = json!({"type": "Container", "max": {"cpu": "2"}, "min": {"memory": "1Mi"}});
        let mut object = Object::from_value(json!({"spec": {"limits": [item]}})).expect("an object");
        LimitRangeRules.default(&mut object);
        let item = object.get(&["spec", "limits"]).and_then(|limits| limits.get(0)).expect("an item");
        assert_eq!(item["default"], json!({"cpu": "2"}));
        assert_eq!(item["defaultRequest"], json!({"cpu": "2", "memory": "1Mi"}));
    }
}
