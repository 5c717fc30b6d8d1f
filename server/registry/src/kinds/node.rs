//! Node: registered by its kubelet, status included.

use std::collections::HashSet;

use ferry_api::FieldErrors;
use k8s_openapi::api::core::v1::Node;

use crate::columns::Column;
use crate::strategy::{Rules, Selectable, Traits, Typed};

pub static STRATEGY: Typed<Node, NodeRules> = Typed::new(NodeRules);

pub struct NodeRules;

impl Rules<Node> for NodeRules {
    fn validate_update(&self, new: &Node, old: &Node, errors: &mut FieldErrors) {
        let cidrs =
            |node: &Node| node.spec.as_ref().and_then(|spec| spec.pod_cidrs.clone()).unwrap_or_default();
        if !cidrs(old).is_empty() && cidrs(new) != cidrs(old) {
            errors
                .forbidden("spec.podCIDRs", "node updates may not change podCIDR except from \"\" to valid");
        }
        let provider =
            |node: &Node| node.spec.as_ref().and_then(|spec| spec.provider_id.clone()).unwrap_or_default();
        if !provider(old).is_empty() && provider(new) != provider(old) {
            errors.forbidden(
                "spec.providerID",
                "node updates may not change providerID except from \"\" to valid",
            );
        }
        let taints = new.spec.as_ref().and_then(|spec| spec.taints.as_ref()).into_iter().flatten();
        let mut seen: HashSet<(&str, &str)> = HashSet::new();
        for (index, taint) in taints.enumerate() {
            if !["NoSchedule", "PreferNoSchedule", "NoExecute"].contains(&taint.effect.as_str()) {
                errors.not_supported(
                    format!("metadata.taints[{index}].effect"),
                    taint.effect.as_str(),
                    &["NoSchedule", "PreferNoSchedule", "NoExecute"],
                );
            }
            let key = (taint.key.as_str(), taint.effect.as_str());
            if !seen.insert(key) {
                errors.duplicate(format!("metadata.taints[{index}]"), format!("{}:{}", key.0, key.1));
            }
        }
    }

    fn selectable(&self) -> &[Selectable] {
        static FIELDS: &[Selectable] =
            &[Selectable::new("spec.unschedulable", "spec.unschedulable", "false")];
        FIELDS
    }

    fn columns(&self) -> &[Column] {
        super::tables::cluster::NODE
    }

    fn traits(&self) -> Traits {
        Traits { created_with_status: true, ..Traits::default() }
    }
}
