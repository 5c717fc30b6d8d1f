//! PriorityClass: its value never changes, and the highest ones are the system's.

use serde::de::IgnoredAny;

use crate::columns::Column;
use crate::strategy::{Rules, StrategyOptions, Typed};

pub static STRATEGY: Typed<IgnoredAny, PriorityClassRules> = Typed::new(PriorityClassRules);

pub struct PriorityClassRules;

impl Rules<IgnoredAny> for PriorityClassRules {
    fn judged_by_rows(&self) -> bool {
        true
    }

    fn columns(&self) -> &[Column] {
        super::tables::workloads::PRIORITY_CLASS
    }

    fn options(&self) -> StrategyOptions {
        StrategyOptions { generation: true, counts_nothing: true, ..StrategyOptions::default() }
    }
}
