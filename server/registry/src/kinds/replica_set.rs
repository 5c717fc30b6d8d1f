//! ReplicaSet.

use ferry_api::Object;
use serde::de::IgnoredAny;
use serde_json::json;

use super::workload;
use crate::columns::Column;
use crate::strategy::{Rules, ScalePaths, StrategyOptions, Typed};

pub static STRATEGY: Typed<IgnoredAny, ReplicaSetRules> = Typed::new(ReplicaSetRules);

pub struct ReplicaSetRules;

impl Rules<IgnoredAny> for ReplicaSetRules {
    fn default(&self, object: &mut Object) {
        workload::default_template(object);
    }

    fn prepare_create(&self, object: &mut Object) {
        object.0.insert("status".into(), json!({"replicas": 0}));
    }

    fn judged_by_rows(&self) -> bool {
        true
    }

    fn columns(&self) -> &[Column] {
        super::tables::workloads::REPLICA_SET
    }

    fn scale(&self) -> Option<&ScalePaths> {
        Some(&workload::SCALE)
    }

    fn options(&self) -> StrategyOptions {
        StrategyOptions { generation: true, ..StrategyOptions::default() }
    }
}
