//! What all kinds with a selector and a pod template share.

use std::borrow::Cow;

use ferry_api::Object;
use serde_json::{Map, Value};

use super::pod;
use crate::strategy::ScalePaths;

pub static SCALE: ScalePaths = ScalePaths {
    replicas: Cow::Borrowed("spec.replicas"),
    status_replicas: Cow::Borrowed("status.replicas"),
    selector: Some(Cow::Borrowed("spec.selector")),
};

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
