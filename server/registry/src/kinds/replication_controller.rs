//! ReplicationController: its selector is a plain map, and defaults to the labels of its pods.

use ferry_api::{FieldErrors, Object};
use k8s_openapi::api::core::v1::ReplicationController;
use serde_json::{Value, json};

use super::checks::{self, Path};
use super::workload;
use crate::columns::Column;
use crate::strategy::{Rules, ScalePaths, Selectable, Traits, Typed};

pub static STRATEGY: Typed<ReplicationController, ReplicationControllerRules> =
    Typed::new(ReplicationControllerRules);

pub struct ReplicationControllerRules;

const SPEC: Path<'static> = Path::root("spec");

impl Rules<ReplicationController> for ReplicationControllerRules {
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

    fn validate(&self, controller: &ReplicationController, errors: &mut FieldErrors) {
        let Some(spec) = &controller.spec else {
            errors.required("spec.selector", "");
            return;
        };
        checks::not_negative(errors, SPEC.child("minReadySeconds"), spec.min_ready_seconds);
        let selector = spec.selector.clone().unwrap_or_default();
        if selector.is_empty() {
            errors.required("spec.selector", "");
        }
        checks::not_negative(errors, SPEC.child("replicas"), spec.replicas);
        let Some(template) = &spec.template else {
            errors.required("spec.template", "");
            return;
        };
        let labels = workload::template_labels(template);
        if !selector.iter().all(|(key, value)| labels.and_then(|labels| labels.get(key)) == Some(value)) {
            workload::mismatch(labels, errors);
        }
        workload::validate_lasting_template(template, "ReplicationController", errors);
    }

    fn selectable(&self) -> &[Selectable] {
        static FIELDS: &[Selectable] = &[Selectable::new("status.replicas", "status.replicas", "0")];
        FIELDS
    }

    fn columns(&self) -> &[Column] {
        super::tables::workloads::REPLICATION_CONTROLLER
    }

    fn scale(&self) -> Option<&ScalePaths> {
        Some(&workload::SCALE)
    }

    fn traits(&self) -> Traits {
        Traits { generation: true, orphans_by_default: true, ..Traits::default() }
    }
}
