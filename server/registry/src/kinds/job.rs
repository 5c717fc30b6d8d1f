//! Job: it finds its pods by its own uid unless told otherwise, and its pods end by themselves.

use ferry_api::object::object_at;
use ferry_api::{FieldErrors, Object};
use k8s_openapi::api::batch::v1::{Job, JobSpec};
use serde_json::{Map, Value};

use super::checks::{self, Path};
use super::workload;
use crate::columns::Column;
use crate::strategy::{Rules, Selectable, StrategyOptions, Typed};

const ORPHANS: &str = "child pods are preserved by default when jobs are deleted; set propagationPolicy=Background to remove \
    them or set propagationPolicy=Orphan to suppress this warning";

pub static STRATEGY: Typed<Job, JobRules> = Typed::new(JobRules);

pub struct JobRules;

const SPEC: Path<'static> = Path::root("spec");
const UID_LABELS: [&str; 2] = ["controller-uid", "batch.kubernetes.io/controller-uid"];
const NAME_LABELS: [&str; 2] = ["job-name", "batch.kubernetes.io/job-name"];

impl Rules<Job> for JobRules {
    fn default(&self, object: &mut Object) {
        let spec = object.section_mut("spec");
        if !spec.contains_key("completions") && !spec.contains_key("parallelism") {
            spec.insert("completions".into(), 1.into());
        }
        checks::set_default(spec, "parallelism", 1);
        let backoff = if spec.contains_key("backoffLimitPerIndex") { i32::MAX } else { 6 };
        checks::set_default(spec, "backoffLimit", backoff);
        let replacement =
            if spec.contains_key("podFailurePolicy") { "Failed" } else { "TerminatingOrFailed" };
        checks::set_default(spec, "podReplacementPolicy", replacement);
        workload::default_template_of(spec);
    }

    fn prepare_create(&self, object: &mut Object) {
        if object.get(&["spec", "manualSelector"]).and_then(Value::as_bool) != Some(true) {
            select_by_uid(object);
        }
        // Labels that nobody gave are those of the pods, the ones just made included.
        workload::label_like_template(object);
    }

    fn prepare_update(&self, new: &mut Object, _old: &Object) {
        workload::label_like_template(new);
    }

    fn validate_update(&self, new: &Job, old: &Job, errors: &mut FieldErrors) {
        let (Some(new), Some(old)) = (&new.spec, &old.spec) else { return };
        let indexed = new.completion_mode.as_deref() == Some("Indexed");
        if !indexed {
            checks::immutable(errors, SPEC.child("completions"), &new.completions, &old.completions);
        } else if new.completions != old.completions
            && new.completions.is_some()
            && new.completions != new.parallelism
        {
            errors.invalid(
                SPEC.child("completions"),
                new.completions,
                "can only be modified in tandem with spec.parallelism",
            );
        }
        checks::immutable(errors, SPEC.child("selector"), &new.selector, &old.selector);
        validate_template_update(new, old, errors);
        checks::immutable(errors, SPEC.child("completionMode"), &new.completion_mode, &old.completion_mode);
        checks::immutable(
            errors,
            SPEC.child("podFailurePolicy"),
            &new.pod_failure_policy,
            &old.pod_failure_policy,
        );
        checks::immutable(
            errors,
            SPEC.child("backoffLimitPerIndex"),
            &new.backoff_limit_per_index,
            &old.backoff_limit_per_index,
        );
        checks::immutable(errors, SPEC.child("managedBy"), &new.managed_by, &old.managed_by);
        checks::immutable(errors, SPEC.child("successPolicy"), &new.success_policy, &old.success_policy);
    }

    fn selectable(&self) -> &[Selectable] {
        static FIELDS: &[Selectable] = &[Selectable::new("status.successful", "status.succeeded", "0")];
        FIELDS
    }

    fn judged_by_rows(&self) -> bool {
        true
    }

    fn columns(&self) -> &[Column] {
        super::tables::workloads::JOB
    }

    fn options(&self) -> StrategyOptions {
        StrategyOptions {
            generation: true,
            orphans_by_default: true,
            orphans_warning: Some(ORPHANS),
            ..StrategyOptions::default()
        }
    }
}

/// The uid is part of the selector, so that no two jobs ever see each other's pods.
fn select_by_uid(object: &mut Object) {
    let (name, uid) = (object.name().to_string(), object.uid().to_string());
    let spec = object.section_mut("spec");
    let labels = object_at(object_at(object_at(spec, "template"), "metadata"), "labels");
    for (keys, value) in [(NAME_LABELS, &name), (UID_LABELS, &uid)] {
        for key in keys {
            labels.entry(key).or_insert_with(|| value.as_str().into());
        }
    }
    let selected: &mut Map<String, Value> = object_at(object_at(spec, "selector"), "matchLabels");
    selected.entry(UID_LABELS[1]).or_insert_with(|| uid.into());
}

/// While a job is suspended, where its pods go may still change.
fn validate_template_update(new: &JobSpec, old: &JobSpec, errors: &mut FieldErrors) {
    let mut before = old.template.clone();
    if old.suspend == Some(true) {
        if let (Some(before), Some(after)) = (&mut before.spec, &new.template.spec) {
            before.affinity.clone_from(&after.affinity);
            before.node_selector.clone_from(&after.node_selector);
            before.tolerations.clone_from(&after.tolerations);
            before.scheduling_gates.clone_from(&after.scheduling_gates);
            for (container, after) in before.containers.iter_mut().zip(&after.containers) {
                container.resources.clone_from(&after.resources);
            }
        }
        before.metadata.clone_from(&new.template.metadata);
    }
    checks::immutable(errors, SPEC.child("template"), &new.template, &before);
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_job_selects_its_own_pods_by_uid() {
        let mut job = Object::from_value(json!({
            "metadata": {"name": "pi", "uid": "u"}, "spec": {"template": {"spec": {"containers": [{"name": "c"}]}}},
        }))
        .expect("an object");
        JobRules.default(&mut job);
        JobRules.prepare_create(&mut job);
        assert_eq!(job.get(&["spec", "completions"]), Some(&json!(1)));
        assert_eq!(
            job.get(&["spec", "selector"]),
            Some(&json!({"matchLabels": {"batch.kubernetes.io/controller-uid": "u"}}))
        );
        let labels = job.get(&["spec", "template", "metadata", "labels"]).expect("labels");
        assert_eq!(labels["job-name"], "pi");
        assert_eq!(labels.as_object().map(Map::len), Some(4));
    }

    #[test]
    fn a_job_without_labels_has_those_of_its_pods() {
        let job = |labels: Value| {
            let mut job = Object::from_value(json!({
                "metadata": {"name": "pi", "uid": "u", "labels": labels},
                "spec": {"template": {"metadata": {"labels": {"app": "pi"}}, "spec": {"containers": [{"name": "c"}]}}},
            }))
            .expect("an object");
            JobRules.default(&mut job);
            JobRules.prepare_create(&mut job);
            job.labels().count()
        };
        assert_eq!(job(json!({})), 5);
        assert_eq!(job(json!({"app": "pi"})), 1);
    }
}
