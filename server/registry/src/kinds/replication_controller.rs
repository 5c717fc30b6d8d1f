//! ReplicationController: its selector is a plain map, and defaults to the labels of its pods.

use ferry_api::Object;
use serde::de::IgnoredAny;
use serde_json::{Value, json};

use super::checks;
use super::workload;
use crate::columns::Column;
use crate::strategy::{Rules, ScalePaths, Selectable, StrategyOptions, Typed};

pub static STRATEGY: Typed<IgnoredAny, ReplicationControllerRules> = Typed::new(ReplicationControllerRules);

pub struct ReplicationControllerRules;

impl Rules<IgnoredAny> for ReplicationControllerRules {
    fn default(&self, object: &mut Object) {
        workload::default_template(object);
        workload::label_like_template(object);
        let labels = object.get(&["spec", "template", "metadata", "labels"]).cloned();
        let spec = object.section_mut("spec");
        let given = spec.get("selector").and_then(Value::as_object).is_some_and(|map| !map.is_empty());
        if let (false, Some(labels)) = (given, labels) {
            spec.insert("selector".into(), labels);
        }
        checks::set_default(spec, "replicas", 1);
    }

    fn prepare_create(&self, object: &mut Object) {
        object.0.insert("status".into(), json!({"replicas": 0}));
    }

    fn selectable(&self) -> &[Selectable] {
        static FIELDS: &[Selectable] = &[Selectable::new("status.replicas", "status.replicas", "0")];
        FIELDS
    }

    fn judged_by_rows(&self) -> bool {
        true
    }

    fn columns(&self) -> &[Column] {
        super::tables::workloads::REPLICATION_CONTROLLER
    }

    fn scale(&self) -> Option<&ScalePaths> {
        Some(&workload::SCALE)
    }

    fn options(&self) -> StrategyOptions {
        StrategyOptions { generation: true, orphans_by_default: true, ..StrategyOptions::default() }
    }
}
