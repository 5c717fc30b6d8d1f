//! DaemonSet. How often its template changed is kept in an annotation, the last trace of an old field.

use ferry_api::{FieldErrors, Object};
use k8s_openapi::api::apps::v1::{DaemonSet, DaemonSetUpdateStrategy};
use serde_json::json;

use super::checks::{self, Path};
use super::workload;
use crate::columns::Column;
use crate::strategy::{Rules, Traits, Typed};

pub static STRATEGY: Typed<DaemonSet, DaemonSetRules> = Typed::new(DaemonSetRules);

pub struct DaemonSetRules;

const SPEC: Path<'static> = Path::root("spec");
const TEMPLATE_GENERATION: &str = "deprecated.daemonset.template.generation";

impl Rules<DaemonSet> for DaemonSetRules {
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

    fn validate(&self, set: &DaemonSet, errors: &mut FieldErrors) {
        let Some(spec) = &set.spec else {
            errors.required("spec.selector", "");
            return;
        };
        workload::validate_selector(&spec.selector, &spec.template, errors);
        workload::validate_lasting_template(&spec.template, "DaemonSet", errors);
        checks::not_negative(errors, SPEC.child("minReadySeconds"), spec.min_ready_seconds);
        if let Some(strategy) = &spec.update_strategy {
            validate_strategy(strategy, errors);
        }
        checks::not_negative(errors, SPEC.child("revisionHistoryLimit"), spec.revision_history_limit);
    }

    fn validate_update(&self, new: &DaemonSet, old: &DaemonSet, errors: &mut FieldErrors) {
        let selector = |set: &DaemonSet| set.spec.as_ref().map(|spec| spec.selector.clone());
        checks::immutable(errors, SPEC.child("selector"), &selector(new), &selector(old));
    }

    fn columns(&self) -> &[Column] {
        super::tables::workloads::DAEMON_SET
    }

    fn traits(&self) -> Traits {
        Traits { generation: true, ..Traits::default() }
    }
}

fn count_template(object: &mut Object, count: i64) {
    let annotations = ferry_api::object::object_at(object.metadata_mut(), "annotations");
    annotations.insert(TEMPLATE_GENERATION.into(), count.to_string().into());
}

fn validate_strategy(strategy: &DaemonSetUpdateStrategy, errors: &mut FieldErrors) {
    let path = SPEC.child("updateStrategy");
    let rolling_path = path.child("rollingUpdate");
    match (strategy.type_.as_deref().unwrap_or(""), &strategy.rolling_update) {
        ("OnDelete", _) => {}
        ("RollingUpdate", None) => errors.required(rolling_path, ""),
        ("RollingUpdate", Some(rolling)) => {
            let (unavailable, surge) = (rolling.max_unavailable.as_ref(), rolling.max_surge.as_ref());
            for (field, value) in [("maxUnavailable", unavailable), ("maxSurge", surge)] {
                checks::int_or_percent(errors, rolling_path.child(field), value);
                checks::at_most_100_percent(errors, rolling_path.child(field), value);
            }
            match (checks::is_zero(unavailable), checks::is_zero(surge)) {
                (false, false) => errors.invalid(
                    rolling_path.child("maxSurge"),
                    json!(surge),
                    "may not be set when maxUnavailable is non-zero",
                ),
                (true, true) => {
                    errors.required(rolling_path.child("maxUnavailable"), "cannot be 0 when maxSurge is 0")
                }
                _ => {}
            }
        }
        _ => errors.not_supported(path, json!(strategy), &["RollingUpdate", "OnDelete"]),
    }
}
