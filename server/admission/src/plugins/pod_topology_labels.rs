//! PodTopologyLabels: a pod carries the zone and the region of the node it is put on.

use std::sync::Arc;

use async_trait::async_trait;
use ferry_api::{Object, Status};
use ferry_registry::Registry;
use ferry_registry::verbs::Operation;

use super::Context;
use crate::chain::{Plugin, Request};
use crate::lookup::lookup;

const LABELS: [&str; 2] = ["topology.kubernetes.io/zone", "topology.kubernetes.io/region"];

pub fn make(context: &Context) -> Arc<dyn Plugin> {
    Arc::new(PodTopologyLabels { registry: context.registry.clone() })
}

struct PodTopologyLabels {
    registry: Arc<Registry>,
}

#[async_trait]
impl Plugin for PodTopologyLabels {
    fn handles(&self, request: &Request<'_>) -> bool {
        match request.operation {
            Operation::Create => request.is_for("", "pods"),
            Operation::Update => request.is_sub("", "pods", "binding"),
            Operation::Delete | Operation::Connect => false,
        }
    }

    async fn mutate(
        &self,
        _request: &Request<'_>,
        pod: &mut Object,
        _old: Option<&Object>,
    ) -> Result<(), Status> {
        let node = pod.text_at(&["spec", "nodeName"]);
        if node.is_empty() {
            return Ok(());
        }
        if let Some(node) = lookup(&self.registry, "", "nodes", "", node)? {
            copy(pod, &node);
        }
        Ok(())
    }
}

fn copy(pod: &mut Object, node: &Object) {
    for key in LABELS {
        if let Some(value) = node.label(key) {
            let labels = ferry_api::object::object_at(pod.metadata_mut(), "labels");
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
        copy(&mut pod, &object(json!({LABELS[0]: "z", "other": "x"})));
        assert_eq!(pod.meta("labels"), Some(&json!({"app": "a", LABELS[0]: "z"})));
    }
}
