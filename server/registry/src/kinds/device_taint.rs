//! Since when devices are tainted: by their drivers in a ResourceSlice, by others in a DeviceTaintRule.

use ferry_api::Object;
use jiff::Timestamp;
use serde_json::{Map, Value};

use crate::metadata::timestamp;

/// A taint without a time is new.
pub fn default_times(object: &mut Object) {
    let spec = object.section_mut("spec");
    if let Some(Value::Object(taint)) = spec.get_mut("taint") {
        default_time(taint);
    }
    let devices = spec.get_mut("devices").and_then(Value::as_array_mut);
    for device in devices.into_iter().flatten() {
        let taints = device.get_mut("taints").and_then(Value::as_array_mut);
        taints.into_iter().flatten().filter_map(Value::as_object_mut).for_each(default_time);
    }
}

fn default_time(taint: &mut Map<String, Value>) {
    super::checks::set_default(taint, "timeAdded", timestamp(Timestamp::now().as_second()));
}

/// A rule with another effect counts from now, unless its author says from when.
pub fn renew_time(new: &mut Object, old: &Object) {
    const TAINT: [&str; 2] = ["spec", "taint"];
    let differs =
        |field: &str| new.get(&[TAINT[0], TAINT[1], field]) != old.get(&[TAINT[0], TAINT[1], field]);
    if !differs("effect") || differs("timeAdded") {
        return;
    }
    if let Some(Value::Object(taint)) = new.section_mut("spec").get_mut("taint") {
        taint.insert("timeAdded".into(), timestamp(Timestamp::now().as_second()).into());
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn rule(taint: Value) -> Object {
        Object::from_value(json!({"spec": {"taint": taint}})).expect("an object")
    }

    fn time(object: &Object) -> &str {
        object.text_at(&["spec", "taint", "timeAdded"])
    }

    #[test]
    fn a_taint_counts_from_its_effect() {
        const BEFORE: &str = "2026-01-01T00:00:00Z";
        let old = rule(json!({"effect": "None", "timeAdded": BEFORE}));
        let check = |taint: Value, expected: Option<&str>| {
            let mut new = rule(taint.clone());
            default_times(&mut new);
            renew_time(&mut new, &old);
            match expected {
                Some(expected) => assert_eq!(time(&new), expected, "{taint}"),
                None => assert!(time(&new) > BEFORE, "{taint}: {}", time(&new)),
            }
        };
        check(json!({"effect": "None", "timeAdded": BEFORE}), Some(BEFORE));
        check(json!({"effect": "None"}), None);
        check(json!({"effect": "NoExecute", "timeAdded": BEFORE}), None);
        check(
            json!({"effect": "NoExecute", "timeAdded": "2026-02-01T00:00:00Z"}),
            Some("2026-02-01T00:00:00Z"),
        );
    }

    #[test]
    fn taints_of_drivers_have_a_time_each() {
        let mut slice = Object::from_value(json!({"spec": {"devices": [{"taints": [{"key": "a"}]}, {}]}}))
            .expect("an object");
        default_times(&mut slice);
        assert!(slice.0["spec"]["devices"][0]["taints"][0]["timeAdded"].is_string());
    }
}
