//! Node: registered by its kubelet, status included.

use ferry_api::Object;
use serde::de::IgnoredAny;
use serde_json::Value;

use crate::columns::Column;
use crate::strategy::{Rules, Selectable, StrategyOptions, Typed};

pub static STRATEGY: Typed<IgnoredAny, NodeRules> = Typed::new(NodeRules);

pub struct NodeRules;

impl Rules<IgnoredAny> for NodeRules {
    /// The old name of the first range of pod addresses.
    fn default(&self, object: &mut Object) {
        let Some(Value::Object(spec)) = object.0.get_mut("spec") else { return };
        let Some(first) = spec.get("podCIDR").filter(|first| first.as_str() != Some("")).cloned() else {
            return;
        };
        let listed = spec.get("podCIDRs").and_then(|list| list.get(0));
        if listed != Some(&first) {
            spec.insert("podCIDRs".into(), Value::Array(vec![first]));
        }
    }

    fn selectable(&self) -> &[Selectable] {
        static FIELDS: &[Selectable] =
            &[Selectable::new("spec.unschedulable", "spec.unschedulable", "false")];
        FIELDS
    }

    fn judged_by_rows(&self) -> bool {
        true
    }

    fn columns(&self) -> &[Column] {
        super::tables::cluster::NODE
    }

    fn options(&self) -> StrategyOptions {
        StrategyOptions { created_with_status: true, ..StrategyOptions::default() }
    }
}
