//! LimitRanger: sets the default requests and limits of the namespace's LimitRanges, and refuses pods and claims outside
//! their bounds.

use std::sync::Arc;

use async_trait::async_trait;
use ferry_api::pod_resources::{self, Amounts};
use ferry_api::{GroupResource, Object, Quantity, Status};
use ferry_registry::Registry;
use ferry_registry::verbs::Operation;
use k8s_openapi::api::core::v1::{
    LimitRange, LimitRangeItem, PersistentVolumeClaim, Pod, ResourceRequirements,
};
use serde_json::{Map, Value, json};

use super::Context;
use crate::chain::{Phase, Plugin, Request};
use crate::lookup::in_namespace;

/// Tells what was set here.
const ANNOTATION: &str = "kubernetes.io/limit-ranger";

pub fn make(context: &Context) -> Arc<dyn Plugin> {
    Arc::new(LimitRanger { registry: context.registry.clone() })
}

struct LimitRanger {
    registry: Arc<Registry>,
}

impl LimitRanger {
    fn ranges(&self, namespace: &str) -> Result<Vec<LimitRange>, Status> {
        let Some(resource) = self.registry.resource(&GroupResource::new("", "limitranges")) else {
            return Ok(Vec::new());
        };
        in_namespace(&resource, namespace)
            .iter()
            .map(|entry| entry.shared_object()?.view().map_err(Status::internal))
            .collect()
    }
}

#[async_trait]
impl Plugin for LimitRanger {
    fn phases(&self) -> &'static [Phase] {
        &[Phase::Mutate, Phase::Validate]
    }

    fn handles(&self, request: &Request<'_>) -> bool {
        match request.operation {
            Operation::Create => request.is_for("", "pods") || request.is_for("", "persistentvolumeclaims"),
            Operation::Update => {
                request.is_sub("", "pods", "resize") || request.is_for("", "persistentvolumeclaims")
            }
            Operation::Delete | Operation::Connect => false,
        }
    }

    async fn mutate(
        &self,
        request: &Request<'_>,
        object: &mut Object,
        old: Option<&Object>,
    ) -> Result<(), Status> {
        if request.call.kind.plural != "pods" || old.is_some_and(Object::is_deleting) {
            return Ok(());
        }
        for range in self.ranges(request.call.namespace)? {
            set_defaults(object, &range);
        }
        Ok(())
    }

    async fn validate(
        &self,
        request: &Request<'_>,
        object: Option<&Object>,
        old: Option<&Object>,
    ) -> Result<(), Status> {
        let Some(object) = object.filter(|_| !old.is_some_and(Object::is_deleting)) else { return Ok(()) };
        let ranges = self.ranges(request.call.namespace)?;
        if ranges.is_empty() {
            return Ok(());
        }
        let subject = match &*request.call.kind.plural {
            "pods" => Subject::of_pod(&object.view().map_err(Status::internal)?),
            _ => Subject::of_claim(&object.view().map_err(Status::internal)?),
        };
        for range in ranges {
            let faults = subject.faults(&range);
            match faults.as_slice() {
                [] => {}
                [one] => return Err(request.forbid(one)),
                many => return Err(request.forbid(format!("[{}]", many.join(", ")))),
            }
        }
        Ok(())
    }
}

fn set_defaults(pod: &mut Object, range: &LimitRange) {
    let of_containers = |item: &&LimitRangeItem| item.type_ == "Container";
    let items: Vec<&LimitRangeItem> =
        range.spec.iter().flat_map(|spec| &spec.limits).filter(of_containers).collect();
    let mut said: Vec<String> = Vec::new();
    let spec = pod.section_mut("spec");
    for (list, word) in [("containers", "container"), ("initContainers", "init container")] {
        for container in spec.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
            let Some(container) = container.as_object_mut() else { continue };
            let name = container.get("name").and_then(Value::as_str).unwrap_or("").to_string();
            for (side, word_of_side) in [("requests", "request"), ("limits", "limit")] {
                let defaults = items.iter().flat_map(|item| {
                    let amounts = if side == "requests" { &item.default_request } else { &item.default };
                    amounts.iter().flatten().map(|(name, amount)| (name.as_str(), amount.0.as_str()))
                });
                let set = fill(container, side, defaults);
                if !set.is_empty() {
                    said.push(format!("{} {word_of_side} for {word} {name}", set.join(", ")));
                }
            }
        }
    }
    if !said.is_empty() {
        let text = format!("LimitRanger plugin set: {}", said.join("; "));
        let annotations = ferry_api::object::object_at(pod.metadata_mut(), "annotations");
        annotations.insert(ANNOTATION.into(), text.into());
    }
}

/// The names that were missing, in order.
fn fill<'a>(
    container: &mut Map<String, Value>,
    side: &str,
    defaults: impl Iterator<Item = (&'a str, &'a str)>,
) -> Vec<&'a str> {
    let mut set = Vec::new();
    for (name, amount) in defaults {
        let resources = ferry_api::object::object_at(container, "resources");
        let amounts = ferry_api::object::object_at(resources, side);
        if !amounts.contains_key(name) {
            amounts.insert(name.into(), json!(amount));
            set.push(name);
        }
    }
    set.sort_unstable();
    set
}

/// What is held against the bounds: the type of bounds, what is requested and what limits it.
struct Subject {
    parts: Vec<Part>,
}

struct Part {
    of: &'static str,
    requests: Amounts,
    /// Claims have none.
    limits: Option<Amounts>,
}

impl Subject {
    fn of_pod(pod: &Pod) -> Subject {
        let spec = pod.spec.iter();
        let containers =
            spec.flat_map(|spec| spec.containers.iter().chain(spec.init_containers.iter().flatten()));
        let mut parts: Vec<Part> = containers
            .map(|container| {
                let side = |of: fn(&ResourceRequirements) -> Option<&_>| {
                    pod_resources::read(container.resources.as_ref().and_then(of))
                };
                Part {
                    of: "Container",
                    requests: side(|resources| resources.requests.as_ref()),
                    limits: Some(side(|resources| resources.limits.as_ref())),
                }
            })
            .collect();
        let (requests, limits) = pod_resources::asked(pod);
        parts.push(Part { of: "Pod", requests, limits: Some(limits) });
        Subject { parts }
    }

    fn of_claim(claim: &PersistentVolumeClaim) -> Subject {
        let resources = claim.spec.as_ref().and_then(|spec| spec.resources.as_ref());
        let requests = pod_resources::read(resources.and_then(|resources| resources.requests.as_ref()));
        Subject { parts: vec![Part { of: "PersistentVolumeClaim", requests, limits: None }] }
    }

    fn faults(&self, range: &LimitRange) -> Vec<String> {
        let mut faults: Vec<String> = Vec::new();
        for item in range.spec.iter().flat_map(|spec| &spec.limits) {
            let (min, max) = (pod_resources::read(item.min.as_ref()), pod_resources::read(item.max.as_ref()));
            let ratio = pod_resources::read(item.max_limit_request_ratio.as_ref());
            for part in self.parts.iter().filter(|part| part.of == item.type_) {
                let low = min.iter().filter_map(|(name, bound)| part.below(name, *bound));
                let high = max.iter().filter_map(|(name, bound)| part.above(name, *bound));
                let wide = ratio.iter().filter_map(|(name, bound)| part.too_wide(name, *bound));
                for fault in low.chain(high).chain(wide) {
                    if !faults.contains(&fault) {
                        faults.push(fault);
                    }
                }
            }
        }
        faults
    }
}

impl Part {
    fn limit(&self, name: &str) -> Option<Quantity> {
        self.limits.as_ref()?.get(name).copied()
    }

    fn below(&self, name: &str, bound: Quantity) -> Option<String> {
        let head = format!("minimum {name} usage per {} is {bound}", self.of);
        match (self.requests.get(name), self.limit(name)) {
            (None, _) => Some(format!("{head}.  No request is specified")),
            (Some(request), _) if *request < bound => Some(format!("{head}, but request is {request}")),
            (_, Some(limit)) if limit < bound => Some(format!("{head}, but limit is {limit}")),
            _ => None,
        }
    }

    fn above(&self, name: &str, bound: Quantity) -> Option<String> {
        let head = format!("maximum {name} usage per {} is {bound}", self.of);
        let request = self.requests.get(name);
        if self.limits.is_none() && request.is_none() {
            return Some(format!("{head}.  No request is specified"));
        }
        match (self.limits.is_some(), self.limit(name)) {
            (true, None) => return Some(format!("{head}.  No limit is specified")),
            (true, Some(limit)) if limit > bound => return Some(format!("{head}, but limit is {limit}")),
            _ => {}
        }
        request.filter(|request| **request > bound).map(|request| format!("{head}, but request is {request}"))
    }

    fn too_wide(&self, name: &str, bound: Quantity) -> Option<String> {
        let head = format!("{name} max limit to request ratio per {} is {bound}", self.of);
        let number = |amount: Option<Quantity>| amount.map_or(0.0, |amount| amount.milli() as f64);
        let (request, limit) = (number(self.requests.get(name).copied()), number(self.limit(name)));
        if request == 0.0 {
            return Some(format!("{head}, but no request is specified or request is 0"));
        }
        if limit == 0.0 {
            return Some(format!("{head}, but no limit is specified or limit is 0"));
        }
        let ratio = limit / request;
        (ratio * 1000.0 > bound.milli() as f64).then(|| format!("{head}, but provided ratio is {ratio:.6}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(limits: Value) -> LimitRange {
        serde_json::from_value(json!({"spec": {"limits": limits}})).expect("a range")
    }

    #[test]
    fn containers_get_what_they_do_not_name() {
        let mut pod = Object::from_value(json!({"spec": {
            "containers": [{"name": "a"}, {"name": "b", "resources": {"requests": {"cpu": "9"}, "limits": {"cpu": "9"}}}],
            "initContainers": [{"name": "i"}],
        }}))
        .expect("an object");
        let range = range(json!([
            {"type": "Container", "default": {"cpu": "2"}, "defaultRequest": {"cpu": "1", "memory": "1Gi"}},
            {"type": "Pod", "default": {"cpu": "7"}},
        ]));
        set_defaults(&mut pod, &range);
        let container =
            |list: &str, at: usize| pod.get(&["spec", list]).expect("a list")[at]["resources"].clone();
        assert_eq!(
            container("containers", 0),
            json!({"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"cpu": "2"}})
        );
        assert_eq!(
            container("containers", 1),
            json!({"requests": {"cpu": "9", "memory": "1Gi"}, "limits": {"cpu": "9"}})
        );
        assert_eq!(
            pod.annotation(ANNOTATION),
            Some(
                "LimitRanger plugin set: cpu, memory request for container a; cpu limit for container a; memory request for container b; cpu, memory request for init container i; cpu limit for init container i"
            )
        );
    }

    #[test]
    fn bounds_are_said_in_the_words_users_know() {
        let check = |limits: Value, resources: Value, expected: &[&str]| {
            let pod: Pod = serde_json::from_value(
                json!({"spec": {"containers": [{"name": "a", "resources": resources.clone()}]}}),
            )
            .expect("a pod");
            assert_eq!(
                Subject::of_pod(&pod).faults(&range(limits.clone())),
                expected,
                "{limits} {resources}"
            );
        };
        let one = json!({"requests": {"cpu": "1"}, "limits": {"cpu": "3"}});
        check(json!([{"type": "Container", "min": {"cpu": "1"}, "max": {"cpu": "3"}}]), one.clone(), &[]);
        check(
            json!([{"type": "Container", "min": {"cpu": "2"}, "max": {"cpu": "2"}}]),
            one.clone(),
            &[
                "minimum cpu usage per Container is 2, but request is 1",
                "maximum cpu usage per Container is 2, but limit is 3",
            ],
        );
        check(
            json!([{"type": "Pod", "min": {"memory": "1Gi"}, "max": {"memory": "2Gi"}}]),
            one.clone(),
            &[
                "minimum memory usage per Pod is 1Gi.  No request is specified",
                "maximum memory usage per Pod is 2Gi.  No limit is specified",
            ],
        );
        check(
            json!([{"type": "Container", "maxLimitRequestRatio": {"cpu": "1500m"}}]),
            one.clone(),
            &["cpu max limit to request ratio per Container is 1500m, but provided ratio is 3.000000"],
        );
        check(
            json!([{"type": "Container", "maxLimitRequestRatio": {"memory": "2"}}]),
            one,
            &[
                "memory max limit to request ratio per Container is 2, but no request is specified or request is 0",
            ],
        );
    }

    #[test]
    fn claims_are_bound_by_what_they_request() {
        let claim: PersistentVolumeClaim =
            serde_json::from_value(json!({"spec": {"resources": {"requests": {"storage": "5Gi"}}}}))
                .expect("a claim");
        let faults = |min: &str, max: &str| {
            Subject::of_claim(&claim).faults(&range(json!([
                {"type": "PersistentVolumeClaim", "min": {"storage": min}, "max": {"storage": max}},
            ])))
        };
        assert!(faults("1Gi", "5Gi").is_empty());
        assert_eq!(
            faults("1Gi", "4Gi"),
            ["maximum storage usage per PersistentVolumeClaim is 4Gi, but request is 5Gi"]
        );
        assert_eq!(
            faults("6Gi", "7Gi"),
            ["minimum storage usage per PersistentVolumeClaim is 6Gi, but request is 5Gi"]
        );
    }
}
