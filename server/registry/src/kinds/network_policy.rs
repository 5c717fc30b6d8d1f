//! NetworkPolicy: which directions it speaks of follows from its rules.

use ferry_api::Object;
use serde::de::IgnoredAny;
use serde_json::{Value, json};

use crate::columns::Column;
use crate::strategy::{Rules, StrategyOptions, Typed};

pub static STRATEGY: Typed<IgnoredAny, PolicyRules> = Typed::new(PolicyRules);

pub struct PolicyRules;

impl Rules<IgnoredAny> for PolicyRules {
    fn default(&self, object: &mut Object) {
        let spec = object.section_mut("spec");
        let filled = |spec: &serde_json::Map<String, Value>, field: &str| {
            spec.get(field).and_then(Value::as_array).is_some_and(|list| !list.is_empty())
        };
        if !filled(spec, "policyTypes") {
            let types =
                if filled(spec, "egress") { json!(["Ingress", "Egress"]) } else { json!(["Ingress"]) };
            spec.insert("policyTypes".into(), types);
        }
    }

    fn judged_by_rows(&self) -> bool {
        true
    }

    fn columns(&self) -> &[Column] {
        super::tables::network::NETWORK_POLICY
    }

    fn options(&self) -> StrategyOptions {
        StrategyOptions { generation: true, ..StrategyOptions::default() }
    }
}
