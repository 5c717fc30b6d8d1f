//! Lease: who holds it, for how long.

use ferry_api::Object;
use serde::de::IgnoredAny;
use serde_json::{Map, Value};

use crate::columns::Column;
use crate::strategy::{Relaxed, Rules, StrategyOptions, Typed};

pub static STRATEGY: Typed<IgnoredAny, LeaseRules> = Typed::new(LeaseRules);

pub struct LeaseRules;

impl Rules<IgnoredAny> for LeaseRules {
    fn judged_by_rows(&self) -> bool {
        true
    }

    fn columns(&self) -> &[Column] {
        super::tables::cluster::LEASE
    }

    fn options(&self) -> StrategyOptions {
        StrategyOptions {
            plain_finalizers: true,
            create_on_update: true,
            unconditional_update: false,
            relaxed: Relaxed::Renewals,
            ..StrategyOptions::default()
        }
    }

    /// Only the time differs. Whoever was told that it holds the lease must hold it after a power cut, too; a renewal
    /// that is lost leaves the same holder, whom the others time by their own clocks.
    fn is_renewal(&self, new: &Object, old: &Object) -> bool {
        fn same(new: Option<&Value>, old: Option<&Value>, except: &str) -> bool {
            let (Some(Value::Object(new)), Some(Value::Object(old))) = (new, old) else { return new == old };
            let count = |fields: &Map<String, Value>| fields.len() - usize::from(fields.contains_key(except));
            count(new) == count(old)
                && new.iter().all(|(name, value)| name == except || old.get(name) == Some(value))
        }
        same(new.0.get("spec"), old.0.get("spec"), "renewTime")
            && same(new.0.get("metadata"), old.0.get("metadata"), "resourceVersion")
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn lease(spec: Value, labels: Value) -> Object {
        Object::from_value(json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": {"name": "scheduler", "namespace": "kube-system", "labels": labels},
            "spec": spec,
        }))
        .expect("an object")
    }

    #[test]
    fn only_a_write_of_the_time_alone_is_a_renewal() {
        let old = lease(json!({"holderIdentity": "a", "renewTime": "1", "leaseTransitions": 1}), json!({}));
        let check = |spec: Value, labels: Value, expected: bool| {
            assert_eq!(LeaseRules.is_renewal(&lease(spec.clone(), labels), &old), expected, "{spec}");
        };
        check(json!({"holderIdentity": "a", "renewTime": "2", "leaseTransitions": 1}), json!({}), true);
        check(json!({"holderIdentity": "a", "leaseTransitions": 1}), json!({}), true);
        check(json!({"holderIdentity": "b", "renewTime": "2", "leaseTransitions": 1}), json!({}), false);
        check(json!({"holderIdentity": "a", "renewTime": "2", "leaseTransitions": 2}), json!({}), false);
        check(json!({"renewTime": "2", "leaseTransitions": 1}), json!({}), false);
        check(
            json!({"holderIdentity": "a", "renewTime": "2", "leaseTransitions": 1}),
            json!({"l": "m"}),
            false,
        );
    }
}
