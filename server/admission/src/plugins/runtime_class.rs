//! RuntimeClass: sets the overhead and the scheduling constraints of a pod's RuntimeClass.

use std::sync::Arc;

use async_trait::async_trait;
use ferry_api::{Object, Status};
use ferry_registry::Registry;
use ferry_registry::verbs::Operation;
use serde_json::{Value, json};

use super::Context;
use crate::chain::{Phase, Plugin, Request};
use crate::lookup::lookup;

pub fn make(context: &Context) -> Arc<dyn Plugin> {
    Arc::new(RuntimeClass { registry: context.registry.clone() })
}

struct RuntimeClass {
    registry: Arc<Registry>,
}

impl RuntimeClass {
    fn class(&self, request: &Request<'_>, pod: &Object) -> Result<Option<Object>, Status> {
        match pod.text_at(&["spec", "runtimeClassName"]) {
            "" => Ok(None),
            name => match lookup(&self.registry, "node.k8s.io", "runtimeclasses", "", name)? {
                Some(class) => Ok(Some(class)),
                None => Err(request.forbid(format!("pod rejected: RuntimeClass {name:?} not found"))),
            },
        }
    }
}

#[async_trait]
impl Plugin for RuntimeClass {
    fn phases(&self) -> &'static [Phase] {
        &[Phase::Mutate, Phase::Validate]
    }

    fn handles(&self, request: &Request<'_>) -> bool {
        request.is_for("", "pods") && request.operation == Operation::Create
    }

    async fn mutate(
        &self,
        request: &Request<'_>,
        pod: &mut Object,
        _old: Option<&Object>,
    ) -> Result<(), Status> {
        match self.class(request, pod)? {
            Some(class) => apply(pod, &class).map_err(|why| request.forbid(why)),
            None => Ok(()),
        }
    }

    async fn validate(
        &self,
        request: &Request<'_>,
        pod: Option<&Object>,
        _old: Option<&Object>,
    ) -> Result<(), Status> {
        let Some(pod) = pod else { return Ok(()) };
        let class = self.class(request, pod)?;
        let overhead = pod.get(&["spec", "overhead"]).filter(|overhead| !overhead.is_null());
        let of_class = class.as_ref().and_then(|class| class.get(&["overhead", "podFixed"]));
        match (overhead, of_class) {
            (Some(_), None) if class.is_none() => Err(request.forbid(
                "pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead",
            )),
            (have, want) if have == want => Ok(()),
            _ => {
                Err(request
                    .forbid("pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead"))
            }
        }
    }
}

fn apply(pod: &mut Object, class: &Object) -> Result<(), String> {
    if let Some(overhead) = class.get(&["overhead", "podFixed"]) {
        let have = pod.get(&["spec", "overhead"]).filter(|overhead| !overhead.is_null());
        if have.is_some_and(|have| have != overhead) {
            return Err("pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead".into());
        }
        pod.section_mut("spec").insert("overhead".into(), overhead.clone());
    }
    let wanted = class.get(&["scheduling", "nodeSelector"]).and_then(Value::as_object);
    for (key, value) in wanted.into_iter().flatten() {
        let selector = pod.section_mut("spec").entry("nodeSelector").or_insert_with(|| json!({}));
        if selector.is_null() {
            *selector = json!({});
        }
        let Some(selector) = selector.as_object_mut() else { continue };
        if selector.get(key).is_some_and(|have| have != value) {
            return Err(format!(
                "conflict: runtimeClass.scheduling.nodeSelector[{key}] = {}; pod.spec.nodeSelector[{key}] = {}",
                value.as_str().unwrap_or(""),
                selector.get(key).and_then(Value::as_str).unwrap_or("")
            ));
        }
        selector.insert(key.clone(), value.clone());
    }
    let tolerations = class.get(&["scheduling", "tolerations"]).and_then(Value::as_array);
    for toleration in tolerations.into_iter().flatten() {
        let held = pod.section_mut("spec").entry("tolerations").or_insert_with(|| json!([]));
        if held.is_null() {
            *held = json!([]);
        }
        if let Some(held) = held.as_array_mut().filter(|held| !held.contains(toleration)) {
            held.push(toleration.clone());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_goes_where_its_runtime_is() {
        let class = Object::from_value(json!({
            "overhead": {"podFixed": {"cpu": "100m"}},
            "scheduling": {"nodeSelector": {"runtime": "kata"}, "tolerations": [{"key": "kata"}]},
        }))
        .expect("an object");
        let check = |spec: Value, expected: Option<Value>| {
            let mut pod = Object::from_value(json!({"spec": spec.clone()})).expect("an object");
            let applied = apply(&mut pod, &class).ok().and_then(|()| pod.get(&["spec"]).cloned());
            assert_eq!(applied, expected, "{spec}");
        };
        let full = json!({
            "overhead": {"cpu": "100m"}, "nodeSelector": {"runtime": "kata"}, "tolerations": [{"key": "kata"}],
        });
        check(json!({}), Some(full.clone()));
        check(full.clone(), Some(full));
        check(json!({"overhead": {"cpu": "1"}}), None);
        check(json!({"nodeSelector": {"runtime": "runc"}}), None);
    }
}
