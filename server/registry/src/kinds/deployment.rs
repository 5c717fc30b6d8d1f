//! Deployment.

use ferry_api::{FieldErrors, Object};
use k8s_openapi::api::apps::v1::{Deployment, DeploymentStrategy};
use serde_json::json;

use super::checks::{self, Path};
use super::workload;
use crate::columns::Column;
use crate::strategy::{Rules, ScalePaths, Traits, Typed};

pub static STRATEGY: Typed<Deployment, DeploymentRules> = Typed::new(DeploymentRules);

pub struct DeploymentRules;

const SPEC: Path<'static> = Path::root("spec");

impl Rules<Deployment> for DeploymentRules {
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

    fn validate(&self, deployment: &Deployment, errors: &mut FieldErrors) {
        let Some(spec) = &deployment.spec else {
            errors.required("spec.selector", "");
            return;
        };
        checks::not_negative(errors, SPEC.child("replicas"), spec.replicas);
        workload::validate_selector(&spec.selector, &spec.template, errors);
        workload::validate_lasting_template(&spec.template, "ReplicaSet", errors);
        if let Some(strategy) = &spec.strategy {
            validate_strategy(strategy, errors);
        }
        checks::not_negative(errors, SPEC.child("minReadySeconds"), spec.min_ready_seconds);
        checks::not_negative(errors, SPEC.child("revisionHistoryLimit"), spec.revision_history_limit);
        if let Some(deadline) = spec.progress_deadline_seconds {
            checks::not_negative(errors, SPEC.child("progressDeadlineSeconds"), Some(deadline));
            if deadline <= spec.min_ready_seconds.unwrap_or(0) {
                errors.invalid(
                    SPEC.child("progressDeadlineSeconds"),
                    deadline,
                    "must be greater than minReadySeconds",
                );
            }
        }
    }

    fn validate_update(&self, new: &Deployment, old: &Deployment, errors: &mut FieldErrors) {
        let selector = |deployment: &Deployment| deployment.spec.as_ref().map(|spec| spec.selector.clone());
        checks::immutable(errors, SPEC.child("selector"), &selector(new), &selector(old));
    }

    fn columns(&self) -> &[Column] {
        super::tables::workloads::DEPLOYMENT
    }

    fn scale(&self) -> Option<&ScalePaths> {
        Some(&workload::SCALE)
    }

    fn traits(&self) -> Traits {
        Traits { generation: true, status_keeps_labels: true, ..Traits::default() }
    }
}

fn validate_strategy(strategy: &DeploymentStrategy, errors: &mut FieldErrors) {
    let path = SPEC.child("strategy");
    let rolling_path = path.child("rollingUpdate");
    match (strategy.type_.as_deref().unwrap_or(""), &strategy.rolling_update) {
        ("Recreate", None) => {}
        ("Recreate", Some(_)) => {
            errors.forbidden(rolling_path, "may not be specified when strategy `type` is 'Recreate'");
        }
        ("RollingUpdate", None) => {
            errors.required(rolling_path, "this should be defaulted and never be nil");
        }
        ("RollingUpdate", Some(rolling)) => {
            let (unavailable, surge) = (rolling.max_unavailable.as_ref(), rolling.max_surge.as_ref());
            checks::int_or_percent(errors, rolling_path.child("maxUnavailable"), unavailable);
            checks::int_or_percent(errors, rolling_path.child("maxSurge"), surge);
            if checks::is_zero(unavailable) && checks::is_zero(surge) {
                errors.invalid(
                    rolling_path.child("maxUnavailable"),
                    json!(unavailable),
                    "may not be 0 when `maxSurge` is 0",
                );
            }
            checks::at_most_100_percent(errors, rolling_path.child("maxUnavailable"), unavailable);
        }
        _ => errors.not_supported(path, json!(strategy), &["Recreate", "RollingUpdate"]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fault_of_a_deployment_is_named() {
        let deployment: Deployment = serde_json::from_value(json!({"spec": {
            "replicas": -1,
            "selector": {"matchLabels": {"app": "a"}},
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 0}},
            "template": {"metadata": {"labels": {"app": "b"}}, "spec": {
                "restartPolicy": "Never", "dnsPolicy": "ClusterFirst",
                "containers": [{"name": "c", "image": "i", "imagePullPolicy": "Always", "terminationMessagePolicy": "File"}]}},
        }}))
        .expect("a Deployment");
        let mut errors = FieldErrors::default();
        DeploymentRules.validate(&deployment, &mut errors);
        let lines: Vec<String> = errors.0.iter().map(ToString::to_string).collect();
        assert_eq!(
            lines,
            [
                "spec.replicas: Invalid value: -1: must be greater than or equal to 0",
                r#"spec.template.metadata.labels: Invalid value: {"app":"b"}: `selector` does not match template `labels`"#,
                r#"spec.template.spec.restartPolicy: Unsupported value: "Never": supported values: "Always""#,
                "spec.strategy.rollingUpdate.maxUnavailable: Invalid value: 0: may not be 0 when `maxSurge` is 0",
            ]
        );
    }
}
