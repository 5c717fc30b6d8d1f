//! TaintNodesByCondition: taints a new node as not ready until its kubelet reports that it is.

use std::sync::Arc;

use async_trait::async_trait;
use ferry_api::{Object, Status};
use ferry_registry::verbs::Operation;
use serde_json::{Value, json};

use super::Context;
use crate::chain::{Phase, Plugin, Request};

const NOT_READY: &str = "node.kubernetes.io/not-ready";

pub fn make(_: &Context) -> Arc<dyn Plugin> {
    Arc::new(TaintNodesByCondition)
}

struct TaintNodesByCondition;

#[async_trait]
impl Plugin for TaintNodesByCondition {
    fn phases(&self) -> &'static [Phase] {
        &[Phase::Mutate]
    }

    fn handles(&self, request: &Request<'_>) -> bool {
        request.is_for("", "nodes") && request.operation == Operation::Create
    }

    async fn mutate(
        &self,
        _request: &Request<'_>,
        node: &mut Object,
        _old: Option<&Object>,
    ) -> Result<(), Status> {
        taint(node);
        Ok(())
    }
}

fn taint(node: &mut Object) {
    let taints = node.section_mut("spec").entry("taints").or_insert_with(|| json!([]));
    if taints.is_null() {
        *taints = json!([]);
    }
    let Some(taints) = taints.as_array_mut() else { return };
    let is_there = |taint: &Value| {
        let text = |field: &str| taint.get(field).and_then(Value::as_str);
        (text("key"), text("effect")) == (Some(NOT_READY), Some("NoSchedule"))
    };
    if !taints.iter().any(is_there) {
        taints.push(json!({"key": NOT_READY, "effect": "NoSchedule"}));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_taint_is_put_on_once() {
        let mut node = Object::from_value(json!({"metadata": {"name": "n"}})).expect("an object");
        taint(&mut node);
        taint(&mut node);
        let expected = json!([{"key": NOT_READY, "effect": "NoSchedule"}]);
        assert_eq!(node.get(&["spec", "taints"]), Some(&expected));
    }
}
