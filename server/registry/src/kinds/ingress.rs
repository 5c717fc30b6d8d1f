//! Ingress.

use serde::de::IgnoredAny;

use crate::columns::Column;
use crate::strategy::{Rules, StrategyOptions, Typed};

pub static STRATEGY: Typed<IgnoredAny, IngressRules> = Typed::new(IngressRules);

pub struct IngressRules;

impl Rules<IgnoredAny> for IngressRules {
    fn judged_by_rows(&self) -> bool {
        true
    }

    fn columns(&self) -> &[Column] {
        super::tables::network::INGRESS
    }

    fn options(&self) -> StrategyOptions {
        StrategyOptions { generation: true, ..StrategyOptions::default() }
    }
}
