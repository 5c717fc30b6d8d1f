//! ExtendedResourceToleration: nodes with special devices have taints with the names of the resources; a pod that requests
//! such a resource tolerates its taint.

use std::collections::BTreeSet;
use std::sync::Arc;

use async_trait::async_trait;
use ferry_api::{Object, Status};
use ferry_registry::verbs::Operation;
use serde_json::{Value, json};

use super::Context;
use crate::chain::{Phase, Plugin, Request};

pub fn make(_: &Context) -> Arc<dyn Plugin> {
    Arc::new(ExtendedResourceToleration)
}

struct ExtendedResourceToleration;

#[async_trait]
impl Plugin for ExtendedResourceToleration {
    fn phases(&self) -> &'static [Phase] {
        &[Phase::Mutate]
    }

    fn handles(&self, request: &Request<'_>) -> bool {
        request.operation != Operation::Delete && request.is_for("", "pods")
    }

    async fn mutate(
        &self,
        _request: &Request<'_>,
        pod: &mut Object,
        _old: Option<&Object>,
    ) -> Result<(), Status> {
        tolerate(pod);
        Ok(())
    }
}

fn tolerate(pod: &mut Object) {
    let is_extended =
        |name: &str| name.contains('/') && !name.contains("kubernetes.io/") && !name.starts_with("requests.");
    let lists = ["containers", "initContainers"].into_iter();
    let containers =
        lists.flat_map(|list| pod.get(&["spec", list]).and_then(Value::as_array).into_iter().flatten());
    let requests = containers.filter_map(|container| container.pointer("/resources/requests")?.as_object());
    let devices: BTreeSet<String> =
        requests.flat_map(|requests| requests.keys().filter(|name| is_extended(name)).cloned()).collect();
    for device in devices {
        let toleration = json!({"key": device, "operator": "Exists", "effect": "NoSchedule"});
        let held = pod.section_mut("spec").entry("tolerations").or_insert_with(|| json!([]));
        if held.is_null() {
            *held = json!([]);
        }
        let Some(held) = held.as_array_mut() else { continue };
        let covers = |have: &Value| {
            have.get("key") == toleration.get("key") && have.get("effect") == toleration.get("effect")
        };
        match held.iter_mut().find(|have| covers(have)) {
            Some(have) => *have = toleration,
            None => held.push(toleration),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(spec: Value) -> Object {
        Object::from_value(json!({"spec": spec})).expect("an object")
    }

    #[test]
    fn pods_that_request_a_device_tolerate_its_taint() {
        let mut asking = pod(json!({
            "containers": [{"resources": {"requests": {"example.com/gpu": "1", "cpu": "1"}}}],
            "tolerations": [{"key": "example.com/gpu", "operator": "Equal", "value": "x", "effect": "NoSchedule"}],
        }));
        tolerate(&mut asking);
        tolerate(&mut asking);
        assert_eq!(
            asking.get(&["spec", "tolerations"]),
            Some(&json!([{"key": "example.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]))
        );
    }
}
