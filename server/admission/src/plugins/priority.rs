//! Priority: sets a pod's priority from its PriorityClass, and refuses other values.

use std::sync::Arc;

use async_trait::async_trait;
use ferry_api::{GroupResource, Object, Status};
use ferry_registry::Registry;
use ferry_registry::verbs::Operation;
use serde_json::{Value, json};

use super::Context;
use crate::chain::{Phase, Plugin, Request};
use crate::lookup::lookup;

const GROUP: &str = "scheduling.k8s.io";
const PLURAL: &str = "priorityclasses";
const PREEMPTS: &str = "PreemptLowerPriority";

pub fn make(context: &Context) -> Arc<dyn Plugin> {
    Arc::new(Priority { registry: context.registry.clone() })
}

struct Priority {
    registry: Arc<Registry>,
}

/// What a class gives to its pods.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Class {
    name: String,
    value: i64,
    preemption: String,
}

impl Class {
    fn read(class: &Object) -> Class {
        let preemption = class.0.get("preemptionPolicy").and_then(Value::as_str).unwrap_or(PREEMPTS);
        Class {
            name: class.name().to_string(),
            value: class.0.get("value").and_then(Value::as_i64).unwrap_or(0),
            preemption: preemption.to_string(),
        }
    }

    /// Pods of no class, where none is the default.
    fn none() -> Class {
        Class { name: String::new(), value: 0, preemption: PREEMPTS.into() }
    }
}

impl Priority {
    fn named(&self, request: &Request<'_>, name: &str) -> Result<Class, Status> {
        match lookup(&self.registry, GROUP, PLURAL, "", name)? {
            Some(class) => Ok(Class::read(&class)),
            None => Err(request.forbid(format!("no PriorityClass with name {name} was found"))),
        }
    }

    /// Of several defaults the lowest counts, so that a mistake promotes nobody.
    fn default(&self) -> Result<Class, Status> {
        Ok(self.defaults()?.into_iter().min_by_key(|class| class.value).unwrap_or_else(Class::none))
    }

    fn defaults(&self) -> Result<Vec<Class>, Status> {
        let Some(classes) = self.registry.resource(&GroupResource::new(GROUP, PLURAL)) else {
            return Ok(Vec::new());
        };
        let mut defaults = Vec::new();
        for entry in classes.cache.snapshot().0.values() {
            let class = entry.shared_object()?;
            if class.0.get("globalDefault") == Some(&Value::Bool(true)) {
                defaults.push(Class::read(&class));
            }
        }
        Ok(defaults)
    }
}

#[async_trait]
impl Plugin for Priority {
    fn phases(&self) -> &'static [Phase] {
        &[Phase::Mutate, Phase::Validate]
    }

    fn handles(&self, request: &Request<'_>) -> bool {
        let is_class = request.is_for(GROUP, PLURAL);
        request.operation != Operation::Delete && (is_class || request.is_for("", "pods"))
    }

    async fn mutate(
        &self,
        request: &Request<'_>,
        pod: &mut Object,
        old: Option<&Object>,
    ) -> Result<(), Status> {
        if !request.is_for("", "pods") {
            return Ok(());
        }
        if let Some(old) = old {
            keep(pod, old);
            return Ok(());
        }
        let class = match pod.text_at(&["spec", "priorityClassName"]) {
            "" => self.default()?,
            name => self.named(request, name)?,
        };
        set_priority(pod, &class).map_err(|why| request.forbid(why))
    }

    async fn validate(
        &self,
        request: &Request<'_>,
        object: Option<&Object>,
        old: Option<&Object>,
    ) -> Result<(), Status> {
        let Some(class) = object.filter(|_| request.is_for(GROUP, PLURAL)) else { return Ok(()) };
        let is_default = |class: &Object| class.0.get("globalDefault") == Some(&Value::Bool(true));
        if !is_default(class) || old.is_some_and(is_default) {
            return Ok(());
        }
        match self.defaults()?.iter().find(|other| other.name != class.name()) {
            Some(other) => Err(request.forbid(format!(
                "PriorityClass {} is already marked as default. Only one default can exist",
                other.name
            ))),
            None => Ok(()),
        }
    }
}

/// An update that leaves the number out means the number there is.
fn keep(pod: &mut Object, old: &Object) {
    for field in ["priority", "preemptionPolicy"] {
        if pod.get(&["spec", field]).is_none_or(Value::is_null)
            && let Some(value) = old.get(&["spec", field]).filter(|value| !value.is_null())
        {
            pod.section_mut("spec").insert(field.into(), value.clone());
        }
    }
}

fn set_priority(pod: &mut Object, class: &Class) -> Result<(), String> {
    if let Some(given) = pod.get(&["spec", "priority"]).and_then(Value::as_i64)
        && given != class.value
    {
        return Err(format!(
            "the integer value of priority ({given}) must not be provided in pod spec; priority admission controller computed {} from the given PriorityClass name",
            class.value
        ));
    }
    let given = pod.text_at(&["spec", "preemptionPolicy"]);
    if !given.is_empty() && given != class.preemption {
        return Err(format!(
            "the string value of PreemptionPolicy ({given}) must not be provided in pod spec; priority admission controller computed {} from the given PriorityClass name",
            class.preemption
        ));
    }
    let spec = pod.section_mut("spec");
    if !class.name.is_empty() {
        spec.insert("priorityClassName".into(), json!(class.name));
    }
    spec.insert("priority".into(), json!(class.value));
    spec.insert("preemptionPolicy".into(), json!(class.preemption));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(spec: Value) -> Object {
        Object::from_value(json!({"spec": spec})).expect("an object")
    }

    #[test]
    fn the_class_gives_the_number() {
        let high = Class { name: "high".into(), value: 1000, preemption: "Never".into() };
        let check = |spec: Value, class: &Class, expected: Option<Value>| {
            let mut pod = pod(spec.clone());
            let prioritized = set_priority(&mut pod, class).ok().and_then(|()| pod.get(&["spec"]).cloned());
            assert_eq!(prioritized, expected, "{spec}");
        };
        let full = json!({"priorityClassName": "high", "priority": 1000, "preemptionPolicy": "Never"});
        check(json!({}), &high, Some(full.clone()));
        check(json!({"priority": 1000}), &high, Some(full));
        check(json!({"priority": 7}), &high, None);
        check(json!({"preemptionPolicy": PREEMPTS}), &high, None);
        check(json!({}), &Class::none(), Some(json!({"priority": 0, "preemptionPolicy": PREEMPTS})));
    }

    #[test]
    fn an_update_keeps_the_number() {
        let mut new = pod(json!({}));
        keep(&mut new, &pod(json!({"priority": 5})));
        assert_eq!(new.get(&["spec", "priority"]), Some(&json!(5)));
    }
}
