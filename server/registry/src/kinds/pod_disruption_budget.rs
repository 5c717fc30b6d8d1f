//! PodDisruptionBudget.

use serde::de::IgnoredAny;

use crate::columns::Column;
use crate::strategy::{NameRule, Rules, StrategyOptions, Typed};

pub static STRATEGY: Typed<IgnoredAny, BudgetRules> = Typed::new(BudgetRules);

pub struct BudgetRules;

impl Rules<IgnoredAny> for BudgetRules {
    fn judged_by_rows(&self) -> bool {
        true
    }

    fn columns(&self) -> &[Column] {
        super::tables::workloads::POD_DISRUPTION_BUDGET
    }

    fn options(&self) -> StrategyOptions {
        StrategyOptions {
            plain_finalizers: true,
            name: NameRule::PathSegment,
            generation: true,
            unconditional_update: false,
            ..StrategyOptions::default()
        }
    }
}
