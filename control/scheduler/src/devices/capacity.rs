//! How much of a device's capacity a request takes (KEP 5075). A device that several claims may share is divided among
//! them; of any other a request only says how much it must have.

use std::collections::BTreeMap;

use ferry_api::quantity::{Format, Quantity};
use k8s_openapi::api::resource::v1::DeviceCapacity;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Text;

/// A device's capacity of one name.
#[derive(Clone, Debug)]
pub struct Capacity {
    pub value: Quantity,
    default: Option<Quantity>,
    policy: Policy,
}

/// Which amounts can be given away.
#[derive(Clone, Debug)]
enum Policy {
    Any,
    Range {
        min: Quantity,
        max: Option<Quantity>,
        step: Option<Quantity>,
    },
    /// Ascending.
    Values(Vec<Quantity>),
}

/// Amounts by the name of the capacity.
pub type Amounts = BTreeMap<String, Quantity>;

/// The API server takes no text that is not a quantity.
pub fn amount(text: &Text) -> Quantity {
    Quantity::parse(&text.0).unwrap_or(Quantity::ZERO)
}

impl Capacity {
    pub fn new(given: &DeviceCapacity) -> Capacity {
        let policy = given.request_policy.as_ref();
        let values =
            policy.and_then(|policy| policy.valid_values.as_ref()).filter(|values| !values.is_empty());
        let range = policy.and_then(|policy| policy.valid_range.as_ref());
        let policy_read = match (range, values) {
            (Some(range), _) => Policy::Range {
                min: amount(&range.min),
                max: range.max.as_ref().map(amount),
                step: range.step.as_ref().map(amount),
            },
            (None, Some(values)) => Policy::Values(values.iter().map(amount).collect()),
            (None, None) => Policy::Any,
        };
        let default = policy.and_then(|policy| policy.default.as_ref()).map(amount);
        Capacity { value: amount(&given.value), default, policy: policy_read }
    }

    /// What a request takes: what it asks for, rounded up to what can be given; without a word of it the default, and where
    /// there is none all.
    fn taken_by(&self, asked: Option<Quantity>) -> Quantity {
        let Some(asked) = asked else { return self.default.unwrap_or(self.value) };
        match &self.policy {
            Policy::Any => asked,
            Policy::Range { min, .. } if asked < *min => *min,
            Policy::Range { min, step, .. } => match step.map(|step| step.value()).filter(|step| *step > 0) {
                None => asked,
                Some(step) => {
                    let above = asked.value().saturating_sub(min.value());
                    let steps = above / step + i64::from(above % step != 0);
                    let value = min.value().saturating_add(steps.saturating_mul(step));
                    Quantity::from_value(value, Format::BinarySi)
                }
            },
            Policy::Values(values) => values.iter().find(|value| asked <= **value).copied().unwrap_or(asked),
        }
    }

    fn allows(&self, taken: Quantity) -> bool {
        if self.default == Some(taken) {
            return true;
        }
        match &self.policy {
            Policy::Any => true,
            Policy::Range { min, max, step } => {
                let step = step.map(|step| step.value()).filter(|step| *step > 0);
                max.is_none_or(|max| taken <= max)
                    && step.is_none_or(|step| taken.value().saturating_sub(min.value()) % step == 0)
            }
            Policy::Values(values) => values.contains(&taken),
        }
    }
}

/// What a request takes of each capacity of a device.
pub fn taken(device: &BTreeMap<String, Capacity>, asked: &Amounts) -> Amounts {
    device.iter().map(|(name, own)| (name.clone(), own.taken_by(asked.get(name).copied()))).collect()
}

/// Whether a device has what a request takes, beside what others have of it.
pub fn fits(device: &BTreeMap<String, Capacity>, asked: &Amounts, others: &[&Amounts]) -> bool {
    asked.keys().all(|name| device.contains_key(name))
        && device.iter().all(|(name, own)| {
            let mut sum = own.taken_by(asked.get(name).copied());
            let allowed = own.allows(sum);
            others.iter().filter_map(|amounts| amounts.get(name)).for_each(|amount| sum += *amount);
            allowed && sum <= own.value
        })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn device(capacity: Value) -> BTreeMap<String, Capacity> {
        let read: DeviceCapacity = serde_json::from_value(capacity).unwrap();
        [("memory".to_owned(), Capacity::new(&read))].into()
    }

    fn amounts(text: &str) -> Amounts {
        if text.is_empty() {
            Amounts::new()
        } else {
            [("memory".into(), Quantity::parse(text).unwrap())].into()
        }
    }

    /// What is asked for, what others have, and what is taken; "" where it does not fit.
    fn check(device: &BTreeMap<String, Capacity>, asked: &str, others: &str, expected: &str) {
        let asked = amounts(asked);
        let given = match fits(device, &asked, &[&amounts(others)]) {
            true => taken(device, &asked)["memory"].to_string(),
            false => String::new(),
        };
        assert_eq!(given, expected, "{asked:?} beside {others}");
    }

    #[test]
    fn consumable_capacity_is_rounded_by_its_policy() {
        let plain = device(json!({"value": "10Gi"}));
        check(&plain, "", "", "10Gi");
        check(&plain, "", "1Gi", "");
        check(&plain, "4Gi", "6Gi", "4Gi");
        check(&plain, "4Gi", "7Gi", "");
        check(&plain, "11Gi", "", "");

        let range = json!({"min": "1Gi", "max": "8Gi", "step": "2Gi"});
        let stepped =
            device(json!({"value": "10Gi", "requestPolicy": {"default": "1Gi", "validRange": range}}));
        check(&stepped, "", "", "1Gi");
        check(&stepped, "1", "", "1Gi");
        check(&stepped, "2Gi", "", "3Gi");
        check(&stepped, "3Gi", "", "3Gi");
        check(&stepped, "8Gi", "", "");

        let sizes = json!({"default": "2Gi", "validValues": ["2Gi", "4Gi"]});
        let sized = device(json!({"value": "10Gi", "requestPolicy": sizes}));
        check(&sized, "", "8Gi", "2Gi");
        check(&sized, "3Gi", "", "4Gi");
        check(&sized, "5Gi", "", "");
    }

    #[test]
    fn a_capacity_that_a_device_does_not_have_does_not_fit() {
        assert!(!fits(&BTreeMap::new(), &amounts("1"), &[]));
        assert!(fits(&BTreeMap::new(), &Amounts::new(), &[]));
    }
}
