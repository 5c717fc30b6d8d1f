//! EndpointSlice: addresses of one type, ports by name.

use serde::de::IgnoredAny;

use crate::columns::Column;
use crate::strategy::{Rules, StrategyOptions, Typed};

pub static STRATEGY: Typed<IgnoredAny, SliceRules> = Typed::new(SliceRules);

pub struct SliceRules;

impl Rules<IgnoredAny> for SliceRules {
    fn judged_by_rows(&self) -> bool {
        true
    }

    fn columns(&self) -> &[Column] {
        super::tables::network::ENDPOINT_SLICE
    }

    fn options(&self) -> StrategyOptions {
        StrategyOptions { generation: true, counts_metadata: &["labels"], ..StrategyOptions::default() }
    }
}
