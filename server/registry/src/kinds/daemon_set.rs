//! DaemonSet. How often its template changed is kept in an annotation, the last trace of an old field.

use ferry_api::Object;
use serde::de::IgnoredAny;
use serde_json::json;

use super::checks;
use super::workload;
use crate::columns::Column;
use crate::strategy::{Rules, StrategyOptions, Typed};

pub static STRATEGY: Typed<IgnoredAny, DaemonSetRules> = Typed::new(DaemonSetRules);

pub struct DaemonSetRules;

const TEMPLATE_GENERATION: &str = "deprecated.daemonset.template.generation";

impl Rules<IgnoredAny> for DaemonSetRules {
    fn default(&self, object: &mut Object) {
        workload::default_template(object);
        let spec = object.section_mut("spec");
        checks::set_default(spec, "revisionHistoryLimit", 10);
        let strategy = ferry_api::object::object_at(spec, "updateStrategy");
        checks::set_default(strategy, "type", "RollingUpdate");
        if strategy.get("type").is_some_and(|kind| kind == "RollingUpdate") {
            let rolling = ferry_api::object::object_at(strategy, "rollingUpdate");
            checks::set_default(rolling, "maxUnavailable", 1);
            checks::set_default(rolling, "maxSurge", 0);
        }
    }

    fn prepare_create(&self, object: &mut Object) {
        count_template(object, 1);
        object.0.insert(
            "status".into(),
            json!({"currentNumberScheduled": 0, "numberMisscheduled": 0, "desiredNumberScheduled": 0, "numberReady": 0}),
        );
    }

    fn prepare_update(&self, new: &mut Object, old: &Object) {
        let generation =
            old.annotation(TEMPLATE_GENERATION).and_then(|count| count.parse().ok()).unwrap_or(0);
        let changed = new.get(&["spec", "template"]) != old.get(&["spec", "template"]);
        count_template(new, generation + i64::from(changed));
    }

    fn judged_by_rows(&self) -> bool {
        true
    }

    fn columns(&self) -> &[Column] {
        super::tables::workloads::DAEMON_SET
    }

    fn options(&self) -> StrategyOptions {
        StrategyOptions { generation: true, ..StrategyOptions::default() }
    }
}

fn count_template(object: &mut Object, count: i64) {
    let annotations = ferry_api::object::object_at(object.metadata_mut(), "annotations");
    annotations.insert(TEMPLATE_GENERATION.into(), count.to_string().into());
}
