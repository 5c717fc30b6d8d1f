//! PodTopologyLabels: copies the zone and region labels of the node to a pod when it is bound.

use std::sync::Arc;

use async_trait::async_trait;
use ferry_api::{Object, Status};
use ferry_registry::Registry;
use ferry_registry::verbs::Operation;

use super::Context;
use crate::chain::{Phase, Plugin, Request};
use crate::lookup::entry;

const LABELS: [&str; 2] = ["topology.kubernetes.io/zone", "topology.kubernetes.io/region"];

pub fn make(context: &Context) -> Arc<dyn Plugin> {
    Arc::new(PodTopologyLabels { registry: context.registry.clone() })
}

struct PodTopologyLabels {
    registry: Arc<Registry>,
}

#[async_trait]
impl Plugin for PodTopologyLabels {
    fn phases(&self) -> &'static [Phase] {
        &[Phase::Mutate]
    }

    fn handles(&self, request: &Request<'_>) -> bool {
        request.operation == Operation::Create
            && (request.is_for("", "pods") || request.is_sub("", "pods", "binding"))
    }

    /// A binding hands its labels on to the pod.
    async fn mutate(
        &self,
        request: &Request<'_>,
        object: &mut Object,
        _old: Option<&Object>,
    ) -> Result<(), Status> {
        let place: &[&str] = match request.call.subresource {
            "binding" => &["target", "name"],
            _ => &["spec", "nodeName"],
        };
        let node = object.text_at(place);
        if node.is_empty() {
            return Ok(());
        }
        if let Some(node) = entry(&self.registry, "", "nodes", "", node) {
            copy(object, |key| node.label(key));
        }
        Ok(())
    }
}

fn copy<'n>(object: &mut Object, label_of_node: impl Fn(&str) -> Option<&'n str>) {
    for key in LABELS {
        if let Some(value) = label_of_node(key) {
            let labels = ferry_api::object::object_at(object.metadata_mut(), "labels");
            labels.insert(key.into(), value.into());
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn zone_and_region_are_the_nodes() {
        let object = |labels| Object::from_value(json!({"metadata": {"labels": labels}})).expect("an object");
        let mut pod = object(json!({"app": "a", LABELS[0]: "elsewhere"}));
        copy(&mut pod, |key| (key == LABELS[0]).then_some("z"));
        assert_eq!(pod.meta("labels"), Some(&json!({"app": "a", LABELS[0]: "z"})));
    }
}
