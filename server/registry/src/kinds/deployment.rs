//! Deployment.

use ferry_api::{FieldErrors, Object};
use k8s_openapi::api::apps::v1::Deployment;
use serde_json::{Value, json};

use super::pod::default_spec;
use super::replica_set::{selector_matches_template, template_spec};
use crate::columns::{AGE, Column};
use crate::strategy::{Rules, ScalePaths, Traits, Typed};

pub static STRATEGY: Typed<Deployment, DeploymentRules> = Typed::new(DeploymentRules);

pub struct DeploymentRules;

pub static SCALE: ScalePaths = ScalePaths {
    replicas: &["spec", "replicas"],
    status_replicas: &["status", "replicas"],
    selector: &["spec", "selector"],
};

impl Rules<Deployment> for DeploymentRules {
    fn default(&self, object: &mut Object) {
        if let Some(spec) = template_spec(object) {
            default_spec(spec);
        }
        let strategy = ferry_api::object::object_at(object.section_mut("spec"), "strategy");
        let kind = strategy.entry("type").or_insert_with(|| "RollingUpdate".into()).clone();
        if kind == "RollingUpdate" {
            let rolling = ferry_api::object::object_at(strategy, "rollingUpdate");
            rolling.entry("maxSurge").or_insert_with(|| json!("25%"));
            rolling.entry("maxUnavailable").or_insert_with(|| json!("25%"));
        }
    }

    fn validate(&self, deployment: &Deployment, errors: &mut FieldErrors) {
        let Some(spec) = &deployment.spec else {
            errors.required("spec.selector", "");
            return;
        };
        if let Some(replicas) = spec.replicas.filter(|replicas| *replicas < 0) {
            errors.invalid("spec.replicas", replicas, "must be greater than or equal to 0");
        }
        selector_matches_template(&spec.selector, spec.template.metadata.as_ref(), errors);
    }

    fn validate_update(&self, new: &Deployment, old: &Deployment, errors: &mut FieldErrors) {
        let selector = |deployment: &Deployment| deployment.spec.as_ref().map(|spec| spec.selector.clone());
        if selector(new) != selector(old) {
            let value = serde_json::to_value(selector(new)).unwrap_or(Value::Null);
            errors.invalid("spec.selector", value, "field is immutable");
        }
    }

    fn columns(&self) -> &'static [Column] {
        static COLUMNS: &[Column] = &[
            Column::text("Ready", |object, _| {
                let number = |path: &[&str]| object.get(path).and_then(Value::as_i64).unwrap_or(0);
                format!("{}/{}", number(&["status", "readyReplicas"]), number(&["spec", "replicas"])).into()
            }),
            Column::integer("Up-to-date", |object, _| {
                object.get(&["status", "updatedReplicas"]).cloned().unwrap_or(json!(0))
            }),
            Column::integer("Available", |object, _| {
                object.get(&["status", "availableReplicas"]).cloned().unwrap_or(json!(0))
            }),
            AGE,
        ];
        COLUMNS
    }

    fn scale(&self) -> Option<&'static ScalePaths> {
        Some(&SCALE)
    }

    fn traits(&self) -> Traits {
        Traits { generation: true, status_keeps_labels: true, ..Traits::default() }
    }
}
