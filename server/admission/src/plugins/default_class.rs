//! DefaultStorageClass and DefaultIngressClass: an object without a class gets the default class.

use std::sync::Arc;

use async_trait::async_trait;
use ferry_api::{GroupResource, Object, Status};
use ferry_registry::Registry;
use ferry_registry::verbs::Operation;
use serde_json::Value;

use super::Context;
use crate::chain::{Phase, Plugin, Request};

pub fn make_storage(context: &Context) -> Arc<dyn Plugin> {
    Arc::new(DefaultClass {
        registry: context.registry.clone(),
        of: ("", "persistentvolumeclaims"),
        field: "storageClassName",
        instead: "volume.beta.kubernetes.io/storage-class",
        classes: ("storage.k8s.io", "storageclasses"),
        marks: &[
            "storageclass.kubernetes.io/is-default-class",
            "storageclass.beta.kubernetes.io/is-default-class",
        ],
    })
}

pub fn make_ingress(context: &Context) -> Arc<dyn Plugin> {
    Arc::new(DefaultClass {
        registry: context.registry.clone(),
        of: ("networking.k8s.io", "ingresses"),
        field: "ingressClassName",
        instead: "kubernetes.io/ingress.class",
        classes: ("networking.k8s.io", "ingressclasses"),
        marks: &["ingressclass.kubernetes.io/is-default-class"],
    })
}

struct DefaultClass {
    registry: Arc<Registry>,
    of: (&'static str, &'static str),
    field: &'static str,
    /// The annotation that was the field once.
    instead: &'static str,
    classes: (&'static str, &'static str),
    marks: &'static [&'static str],
}

#[async_trait]
impl Plugin for DefaultClass {
    fn phases(&self) -> &'static [Phase] {
        &[Phase::Mutate]
    }

    fn handles(&self, request: &Request<'_>) -> bool {
        request.operation == Operation::Create && request.is_for(self.of.0, self.of.1)
    }

    async fn mutate(
        &self,
        _request: &Request<'_>,
        object: &mut Object,
        _old: Option<&Object>,
    ) -> Result<(), Status> {
        let named = object.get(&["spec", self.field]).is_some_and(|class| !class.is_null());
        if named || object.annotation(self.instead).is_some() {
            return Ok(());
        }
        let Some(classes) = self.registry.resource(&GroupResource::new(self.classes.0, self.classes.1))
        else {
            return Ok(());
        };
        let mut defaults = Vec::new();
        for entry in classes.cache.snapshot().0.values() {
            let class = entry.shared_object()?;
            if is_default(&class, self.marks) {
                defaults.push(class);
            }
        }
        if let Some(class) = newest(&defaults) {
            let name = Value::from(class.name());
            object.section_mut("spec").insert(self.field.into(), name);
        }
        Ok(())
    }
}

fn is_default(class: &Object, marks: &[&str]) -> bool {
    marks.iter().any(|mark| class.annotation(mark) == Some("true"))
}

/// Of several, the newest; of those made in one second, the first by name.
fn newest(classes: &[Arc<Object>]) -> Option<&Arc<Object>> {
    classes.iter().min_by(|one, other| {
        let made = |class: &Object| class.meta_text("creationTimestamp").to_string();
        made(other).cmp(&made(one)).then_with(|| one.name().cmp(other.name()))
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_newest_default_counts() {
        let class = |name: &str, made: &str| {
            let class = json!({"metadata": {"name": name, "creationTimestamp": made}});
            Arc::new(Object::from_value(class).expect("an object"))
        };
        let classes = [
            class("old", "2026-01-01T00:00:00Z"),
            class("b", "2026-01-02T00:00:00Z"),
            class("a", "2026-01-02T00:00:00Z"),
        ];
        assert_eq!(newest(&classes).map(|class| class.name()), Some("a"));
        assert!(newest(&[]).is_none());
    }

    #[test]
    fn only_true_marks_a_default() {
        let class = |value: &str| {
            Object::from_value(json!({"metadata": {"annotations": {"m": value}}})).expect("an object")
        };
        assert!(is_default(&class("true"), &["m"]));
        assert!(!is_default(&class("false"), &["m"]));
        assert!(!is_default(&class("true"), &["n"]));
    }
}
