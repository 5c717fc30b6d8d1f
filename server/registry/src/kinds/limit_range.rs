//! LimitRange: what its defaults for containers are when it gives only some of them.

use std::collections::HashSet;

use ferry_api::{FieldErrors, Object};
use k8s_openapi::api::core::v1::LimitRange;
use serde_json::{Map, Value};

use super::checks::Path;
use crate::strategy::{Rules, Traits, Typed};

pub static STRATEGY: Typed<LimitRange, LimitRangeRules> = Typed::new(LimitRangeRules);

pub struct LimitRangeRules;

impl Rules<LimitRange> for LimitRangeRules {
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

    fn validate(&self, range: &LimitRange, errors: &mut FieldErrors) {
        let list = Path::root("spec.limits");
        let mut seen: HashSet<&str> = HashSet::new();
        for (index, item) in range.spec.iter().flat_map(|spec| &spec.limits).enumerate() {
            let path = list.index(index);
            if !seen.insert(&item.type_) {
                errors.duplicate(path.child("type"), item.type_.as_str());
            }
            if item.type_ == "Pod" {
                for (field, set) in
                    [("default", item.default.is_some()), ("defaultRequest", item.default_request.is_some())]
                {
                    if set {
                        errors.forbidden(path.child(field), "may not be specified when `type` is 'Pod'");
                    }
                }
            }
            let most = item.max.iter().flatten();
            for (name, max) in most {
                let Some(min) = item.min.as_ref().and_then(|min| min.get(name)) else { continue };
                let (Ok(low), Ok(high)) =
                    (ferry_api::Quantity::parse(&min.0), ferry_api::Quantity::parse(&max.0))
                else {
                    continue;
                };
                if low.milli() > high.milli() {
                    let list = path.child("min");
                    errors.invalid(
                        list.key(name),
                        min.0.as_str(),
                        &format!("min value {} is greater than max value {}", min.0, max.0),
                    );
                }
            }
        }
    }

    fn traits(&self) -> Traits {
        Traits { create_on_update: true, ..Traits::default() }
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
