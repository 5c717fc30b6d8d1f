//! Deployment.

use ferry_api::Object;
use serde::de::IgnoredAny;

use super::checks;
use super::workload;
use crate::columns::Column;
use crate::strategy::{Rules, ScalePaths, StrategyOptions, Typed};

pub static STRATEGY: Typed<IgnoredAny, DeploymentRules> = Typed::new(DeploymentRules);

pub struct DeploymentRules;

impl Rules<IgnoredAny> for DeploymentRules {
    fn default(&self, object: &mut Object) {
        workload::default_template(object);
        let strategy = ferry_api::object::object_at(object.section_mut("spec"), "strategy");
        let kind = strategy.entry("type").or_insert_with(|| "RollingUpdate".into()).clone();
        if kind == "RollingUpdate" {
            let rolling = ferry_api::object::object_at(strategy, "rollingUpdate");
            checks::set_default(rolling, "maxSurge", "25%");
            checks::set_default(rolling, "maxUnavailable", "25%");
        }
    }

    fn judged_by_rows(&self) -> bool {
        true
    }

    fn columns(&self) -> &[Column] {
        super::tables::workloads::DEPLOYMENT
    }

    fn scale(&self) -> Option<&ScalePaths> {
        Some(&workload::SCALE)
    }

    fn options(&self) -> StrategyOptions {
        StrategyOptions {
            generation: true,
            counts_metadata: &["annotations"],
            status_keeps_labels: true,
            ..StrategyOptions::default()
        }
    }
}
