//! NodeDeclaredFeatureValidator: refuses updates of a running pod that need a feature its node does not declare.

use std::sync::Arc;

use async_trait::async_trait;
use ferry_api::{Object, Status, declared_features};
use ferry_registry::Registry;
use ferry_registry::verbs::Operation;
use k8s_openapi::api::core::v1::{Node, Pod};

use super::Context;
use crate::chain::{Phase, Plugin, Request};
use crate::lookup::lookup;

pub fn make(context: &Context) -> Arc<dyn Plugin> {
    Arc::new(NodeDeclaredFeatureValidator { registry: context.registry.clone() })
}

struct NodeDeclaredFeatureValidator {
    registry: Arc<Registry>,
}

#[async_trait]
impl Plugin for NodeDeclaredFeatureValidator {
    fn phases(&self) -> &'static [Phase] {
        &[Phase::Validate]
    }

    fn handles(&self, request: &Request<'_>) -> bool {
        request.operation == Operation::Update
            && ["", "resize"].iter().any(|subresource| request.is_sub("", "pods", subresource))
    }

    async fn validate(
        &self,
        request: &Request<'_>,
        object: Option<&Object>,
        old: Option<&Object>,
    ) -> Result<(), Status> {
        let (Some(pod), Some(old)) = (object, old) else { return Ok(()) };
        let name = pod.text_at(&["spec", "nodeName"]);
        // The generation counts changes of the spec.
        if name.is_empty() || pod.generation() == old.generation() {
            return Ok(());
        }
        let (new, old): (Pod, Pod) =
            (pod.view().map_err(Status::internal)?, old.view().map_err(Status::internal)?);
        let (Some(new), Some(old)) = (&new.spec, &old.spec) else { return Ok(()) };
        let needed = declared_features::for_update(old, new);
        if needed.is_empty() {
            return Ok(());
        }
        let Some(node) = lookup(&self.registry, "", "nodes", "", name)? else {
            return Err(request.forbid(format!("node {name:?} not found")));
        };
        let node: Node = node.view().map_err(Status::internal)?;
        match missing(&needed, &node) {
            missing if missing.is_empty() => Ok(()),
            missing => Err(request.forbid(format!(
                "pod update requires features {} which are not available on node {name:?}",
                missing.join(", ")
            ))),
        }
    }
}

fn missing<'f>(needed: &[&'f str], node: &Node) -> Vec<&'f str> {
    let declared = node.status.as_ref().and_then(|status| status.declared_features.as_deref()).unwrap_or(&[]);
    needed.iter().copied().filter(|feature| !declared.iter().any(|given| given == feature)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_lacks_what_it_does_not_declare() {
        let node = |value| serde_json::from_value::<Node>(value).expect("a node");
        assert_eq!(missing(&["A", "B"], &node(serde_json::json!({}))), ["A", "B"]);
        let declares = node(serde_json::json!({"status": {"declaredFeatures": ["B", "C"]}}));
        assert_eq!(missing(&["A", "B"], &declares), ["A"]);
        assert!(missing(&["B"], &declares).is_empty());
    }
}
