//! ReplicaSet.

use ferry_api::{FieldErrors, Object};
use k8s_openapi::api::apps::v1::ReplicaSet;
use serde_json::json;

use super::checks::{self, Path};
use super::workload;
use crate::columns::Column;
use crate::strategy::{Rules, ScalePaths, Selectable, Traits, Typed};

pub static STRATEGY: Typed<ReplicaSet, ReplicaSetRules> = Typed::new(ReplicaSetRules);

pub struct ReplicaSetRules;

const SPEC: Path<'static> = Path::root("spec");

impl Rules<ReplicaSet> for ReplicaSetRules {
    fn default(&self, object: &mut Object) {
        workload::default_template(object);
    }

    fn prepare_create(&self, object: &mut Object) {
        object.0.insert("status".into(), json!({"replicas": 0}));
    }

    fn validate(&self, set: &ReplicaSet, errors: &mut FieldErrors) {
        let Some(spec) = &set.spec else {
            errors.required("spec.selector", "");
            return;
        };
        checks::not_negative(errors, SPEC.child("replicas"), spec.replicas);
        checks::not_negative(errors, SPEC.child("minReadySeconds"), spec.min_ready_seconds);
        let template = spec.template.clone().unwrap_or_default();
        workload::validate_selector(&spec.selector, &template, errors);
        workload::validate_lasting_template(&template, "ReplicaSet", errors);
    }

    fn validate_update(&self, new: &ReplicaSet, old: &ReplicaSet, errors: &mut FieldErrors) {
        let selector = |set: &ReplicaSet| set.spec.as_ref().map(|spec| spec.selector.clone());
        checks::immutable(errors, SPEC.child("selector"), &selector(new), &selector(old));
    }

    fn selectable(&self) -> &[Selectable] {
        static FIELDS: &[Selectable] = &[Selectable::new("status.replicas", "status.replicas", "0")];
        FIELDS
    }

    fn columns(&self) -> &[Column] {
        super::tables::workloads::REPLICA_SET
    }

    fn scale(&self) -> Option<&ScalePaths> {
        Some(&workload::SCALE)
    }

    fn traits(&self) -> Traits {
        Traits { generation: true, status_keeps_labels: true, ..Traits::default() }
    }
}
