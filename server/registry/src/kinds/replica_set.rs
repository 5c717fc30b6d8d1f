//! ReplicaSet, and what all kinds with a selector and a pod template share.

use ferry_api::selector::LabelSelector;
use ferry_api::{FieldErrors, Object};
use k8s_openapi::api::apps::v1::ReplicaSet;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector as LabelSelectorView, ObjectMeta};
use serde_json::{Map, Value, json};

use super::deployment::SCALE;
use super::pod::default_spec;
use crate::columns::{AGE, Column};
use crate::strategy::{Rules, ScalePaths, Selectable, Traits, Typed};

pub static STRATEGY: Typed<ReplicaSet, ReplicaSetRules> = Typed::new(ReplicaSetRules);

pub struct ReplicaSetRules;

impl Rules<ReplicaSet> for ReplicaSetRules {
    fn default(&self, object: &mut Object) {
        if let Some(spec) = template_spec(object) {
            default_spec(spec);
        }
    }

    fn prepare_create(&self, object: &mut Object) {
        object.0.insert("status".into(), json!({"replicas": 0}));
    }

    fn validate(&self, set: &ReplicaSet, errors: &mut FieldErrors) {
        let Some(spec) = &set.spec else {
            errors.required("spec.selector", "");
            return;
        };
        if let Some(replicas) = spec.replicas.filter(|replicas| *replicas < 0) {
            errors.invalid("spec.replicas", replicas, "must be greater than or equal to 0");
        }
        let template = spec.template.as_ref().and_then(|template| template.metadata.as_ref());
        selector_matches_template(&spec.selector, template, errors);
    }

    fn validate_update(&self, new: &ReplicaSet, old: &ReplicaSet, errors: &mut FieldErrors) {
        let selector = |set: &ReplicaSet| set.spec.as_ref().map(|spec| spec.selector.clone());
        if selector(new) != selector(old) {
            let value = serde_json::to_value(selector(new)).unwrap_or(Value::Null);
            errors.invalid("spec.selector", value, "field is immutable");
        }
    }

    fn selectable(&self) -> &'static [Selectable] {
        static FIELDS: &[Selectable] =
            &[Selectable { field: "status.replicas", path: &["status", "replicas"], absent: "0" }];
        FIELDS
    }

    fn columns(&self) -> &'static [Column] {
        fn number(object: &Object, path: &[&str]) -> Value {
            object.get(path).cloned().unwrap_or(json!(0))
        }
        static COLUMNS: &[Column] = &[
            Column::integer("Desired", |object, _| number(object, &["spec", "replicas"])),
            Column::integer("Current", |object, _| number(object, &["status", "replicas"])),
            Column::integer("Ready", |object, _| number(object, &["status", "readyReplicas"])),
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

/// `spec.template.spec` of a workload.
pub fn template_spec(object: &mut Object) -> Option<&mut Map<String, Value>> {
    object.0.get_mut("spec")?.get_mut("template")?.get_mut("spec")?.as_object_mut()
}

/// A workload whose selector does not select its own pods would make them for ever.
pub fn selector_matches_template(
    selector: &LabelSelectorView,
    template: Option<&ObjectMeta>,
    errors: &mut FieldErrors,
) {
    let value = serde_json::to_value(selector).unwrap_or(Value::Null);
    let empty = selector.match_labels.as_ref().is_none_or(|labels| labels.is_empty())
        && selector.match_expressions.as_ref().is_none_or(|list| list.is_empty());
    if empty {
        errors.invalid("spec.selector", value, "empty selector is invalid for deployment");
        return;
    }
    let labels = template.and_then(|meta| meta.labels.as_ref());
    match LabelSelector::from_structured(Some(&value)) {
        Err(error) => errors.invalid("spec.selector", value, &error.to_string()),
        Ok(parsed) => {
            if !parsed.matches(|key| labels.and_then(|labels| labels.get(key)).map(String::as_str)) {
                let have = serde_json::to_value(labels).unwrap_or(Value::Null);
                errors.invalid(
                    "spec.template.metadata.labels",
                    have,
                    "`selector` does not match template `labels`",
                );
            }
        }
    }
}
