//! Node: registered by its kubelet, status included.

use serde::de::IgnoredAny;

use crate::columns::Column;
use crate::strategy::{Rules, Selectable, Traits, Typed};

pub static STRATEGY: Typed<IgnoredAny, NodeRules> = Typed::new(NodeRules);

pub struct NodeRules;

impl Rules<IgnoredAny> for NodeRules {
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

    fn traits(&self) -> Traits {
        Traits { created_with_status: true, ..Traits::default() }
    }
}
