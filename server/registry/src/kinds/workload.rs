//! What all kinds with a selector and a pod template share.

use std::borrow::Cow;
use std::collections::BTreeMap;

use ferry_api::{FieldErrors, Object};
use k8s_openapi::api::core::v1::PodTemplateSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use serde_json::{Map, Value, json};

use super::checks::{self, Path};
use super::pod;
use crate::strategy::ScalePaths;

pub static SCALE: ScalePaths = ScalePaths {
    replicas: Cow::Borrowed("spec.replicas"),
    status_replicas: Cow::Borrowed("status.replicas"),
    selector: Some(Cow::Borrowed("spec.selector")),
};

const SPEC: Path<'static> = Path::root("spec");

/// Defaults of the pods that a workload makes.
pub fn default_template(object: &mut Object) {
    if let Some(spec) = object.0.get_mut("spec").and_then(Value::as_object_mut) {
        default_template_of(spec);
    }
}

/// The same below any struct that holds a `template`.
pub fn default_template_of(spec: &mut Map<String, Value>) {
    if let Some(Value::Object(pod)) = spec.get_mut("template").and_then(|template| template.get_mut("spec")) {
        pod::defaults::spec(pod);
    }
}

/// Labels that nobody gave are those of the template.
pub fn label_like_template(object: &mut Object) {
    let labels = object.get(&["spec", "template", "metadata", "labels"]).cloned();
    if let Some(labels @ Value::Object(_)) = labels
        && object.labels().next().is_none()
    {
        object.set_meta("labels", labels);
    }
}

/// The selector must select the workload's own pods, or it would make them for ever.
pub fn validate_selector(selector: &LabelSelector, template: &PodTemplateSpec, errors: &mut FieldErrors) {
    let labels = template_labels(template);
    if checks::is_empty_selector(selector) {
        errors.required(SPEC.child("selector"), "");
    } else {
        checks::selector(errors, SPEC.child("selector"), selector);
    }
    match checks::selects(selector, labels) {
        None => errors.invalid(SPEC.child("selector"), json!(selector), "invalid label selector"),
        Some(true) if !checks::is_empty_selector(selector) => {}
        Some(_) => mismatch(labels, errors),
    }
}

pub fn mismatch(labels: Option<&BTreeMap<String, String>>, errors: &mut FieldErrors) {
    errors.invalid(
        "spec.template.metadata.labels",
        json!(labels),
        "`selector` does not match template `labels`",
    );
}

pub fn template_labels(template: &PodTemplateSpec) -> Option<&BTreeMap<String, String>> {
    template.metadata.as_ref().and_then(|meta| meta.labels.as_ref())
}

/// The template of pods that are to run until they are deleted.
pub fn validate_lasting_template(template: &PodTemplateSpec, kind: &str, errors: &mut FieldErrors) {
    let path = SPEC.child("template");
    validate_template(template, path, errors);
    let Some(spec) = &template.spec else { return };
    let path = path.child("spec");
    let policy = spec.restart_policy.as_deref().unwrap_or("");
    if policy != "Always" {
        errors.not_supported(path.child("restartPolicy"), policy, &["Always"]);
    }
    if spec.active_deadline_seconds.is_some() {
        errors.forbidden(
            path.child("activeDeadlineSeconds"),
            &format!("activeDeadlineSeconds in {kind} is not Supported"),
        );
    }
}

pub fn validate_template(template: &PodTemplateSpec, path: Path<'_>, errors: &mut FieldErrors) {
    let metadata = path.child("metadata");
    checks::labels(errors, metadata.child("labels"), template_labels(template));
    let spec_path = path.child("spec");
    match &template.spec {
        Some(spec) => pod::validation::spec(spec, spec_path, errors),
        None => errors.required(spec_path.child("containers"), ""),
    }
}
