//! AlwaysAdmit, AlwaysDeny and AlwaysPullImages.

use std::sync::Arc;

use async_trait::async_trait;
use ferry_api::{FieldErrors, Object, Status};
use ferry_registry::verbs::Operation;
use serde_json::Value;

use super::Context;
use crate::chain::{Phase, Plugin, Request};

pub fn make_admit(_: &Context) -> Arc<dyn Plugin> {
    Arc::new(AlwaysAdmit)
}

struct AlwaysAdmit;

#[async_trait]
impl Plugin for AlwaysAdmit {
    fn phases(&self) -> &'static [Phase] {
        &[]
    }

    fn handles(&self, _request: &Request<'_>) -> bool {
        false
    }
}

pub fn make_deny(_: &Context) -> Arc<dyn Plugin> {
    Arc::new(AlwaysDeny)
}

struct AlwaysDeny;

#[async_trait]
impl Plugin for AlwaysDeny {
    fn phases(&self) -> &'static [Phase] {
        &[Phase::Validate]
    }

    fn handles(&self, _request: &Request<'_>) -> bool {
        true
    }

    async fn validate(
        &self,
        request: &Request<'_>,
        _object: Option<&Object>,
        _old: Option<&Object>,
    ) -> Result<(), Status> {
        Err(request.forbid("admission control is denying all modifications"))
    }
}

pub fn make_pull_images(_: &Context) -> Arc<dyn Plugin> {
    Arc::new(AlwaysPullImages)
}

/// On nodes of several tenants: an image that is on the node is no proof that a pod may use it.
struct AlwaysPullImages;

const CONTAINERS: [&str; 3] = ["containers", "initContainers", "ephemeralContainers"];

#[async_trait]
impl Plugin for AlwaysPullImages {
    fn phases(&self) -> &'static [Phase] {
        &[Phase::Mutate, Phase::Validate]
    }

    fn handles(&self, request: &Request<'_>) -> bool {
        request.call.kind.group.is_empty()
            && request.call.kind.plural == "pods"
            && ["", "ephemeralcontainers"].contains(&request.call.subresource)
            && request.operation != Operation::Delete
    }

    async fn mutate(
        &self,
        _request: &Request<'_>,
        pod: &mut Object,
        old: Option<&Object>,
    ) -> Result<(), Status> {
        if old.is_none_or(|old| images(old) != images(pod)) {
            pull_always(pod);
        }
        Ok(())
    }

    async fn validate(
        &self,
        request: &Request<'_>,
        pod: Option<&Object>,
        old: Option<&Object>,
    ) -> Result<(), Status> {
        let Some(pod) = pod.filter(|pod| old.is_none_or(|old| images(old) != images(pod))) else {
            return Ok(());
        };
        let mut errors = FieldErrors::default();
        for (list, at, container) in containers(pod) {
            let policy = container.get("imagePullPolicy").and_then(Value::as_str).unwrap_or("");
            if policy != "Always" {
                errors.not_supported(format!("spec.{list}[{at}].imagePullPolicy"), policy, &["Always"]);
            }
        }
        match errors.is_empty() {
            true => Ok(()),
            false => {
                Err(request.forbid(errors.0.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")))
            }
        }
    }
}

fn containers(pod: &Object) -> impl Iterator<Item = (&'static str, usize, &Value)> {
    CONTAINERS.into_iter().flat_map(move |list| {
        let all = pod.get(&["spec", list]).and_then(Value::as_array).into_iter().flatten();
        all.enumerate().map(move |(at, container)| (list, at, container))
    })
}

fn images(pod: &Object) -> Vec<&str> {
    containers(pod)
        .map(|(_, _, container)| container.get("image").and_then(Value::as_str).unwrap_or(""))
        .collect()
}

fn pull_always(pod: &mut Object) {
    let spec = pod.section_mut("spec");
    for list in CONTAINERS {
        for container in spec.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
            if let Some(container) = container.as_object_mut() {
                container.insert("imagePullPolicy".into(), "Always".into());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_container_pulls() {
        let mut pod = Object::from_value(json!({"spec": {
            "containers": [{"image": "a", "imagePullPolicy": "Never"}, {"image": "b"}],
            "initContainers": [{"image": "c", "imagePullPolicy": "IfNotPresent"}],
        }}))
        .expect("an object");
        pull_always(&mut pod);
        assert!(containers(&pod).all(|(_, _, container)| container["imagePullPolicy"] == "Always"));
        assert_eq!(images(&pod), ["a", "b", "c"]);
    }
}
