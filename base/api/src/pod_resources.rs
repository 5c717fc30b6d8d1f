//! What a pod asks for in all, and what it may use at most: the sum that quotas charge and limits judge.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, Pod, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;

use crate::quantity::Quantity;

/// Amounts by resource name.
pub type Amounts = BTreeMap<String, Quantity>;

type Given = BTreeMap<String, ApiQuantity>;

/// Whose word counts for a container that runs and is being resized.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Count {
    /// What the spec asks for.
    Asked,
    /// The most of what it asks for and what it holds.
    Held,
}

/// Requests or limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    Requests,
    Limits,
}

/// Containers and sidecars together, but at least what the hungriest moment of the start needs; the pod's own
/// request where it makes one (KEP-2837); its overhead.
pub fn requests(pod: &Pod, count: Count) -> Amounts {
    let mut total = containers(pod, count, Side::Requests);
    let spec = pod.spec.as_ref();
    set_own(&mut total, spec.and_then(|spec| spec.resources.as_ref()), Side::Requests);
    add(&mut total, read(spec.and_then(|spec| spec.overhead.as_ref())));
    total
}

/// The same for limits; overhead is added to a limit that is there only.
pub fn limits(pod: &Pod, count: Count) -> Amounts {
    let mut total = containers(pod, count, Side::Limits);
    let spec = pod.spec.as_ref();
    set_own(&mut total, spec.and_then(|spec| spec.resources.as_ref()), Side::Limits);
    for (name, amount) in read(spec.and_then(|spec| spec.overhead.as_ref())) {
        if let Some(limit) = total.get_mut(&name).filter(|limit| !limit.is_zero()) {
            *limit += amount;
        }
    }
    total
}

/// Requests and limits of the spec alone, without overhead.
pub fn asked(pod: &Pod) -> (Amounts, Amounts) {
    let own = pod.spec.as_ref().and_then(|spec| spec.resources.as_ref());
    let side = |side: Side| {
        let mut total = containers(pod, Count::Asked, side);
        set_own(&mut total, own, side);
        total
    };
    (side(Side::Requests), side(Side::Limits))
}

/// The pod speaks of its resources itself, so its containers need not.
pub fn has_own(pod: &Pod) -> bool {
    let own = pod.spec.as_ref().and_then(|spec| spec.resources.as_ref());
    let sides = own.into_iter().flat_map(|own| [own.requests.as_ref(), own.limits.as_ref()]);
    sides.flatten().flatten().any(|(name, _)| is_pod_level(name))
}

/// Amounts the server has let through; what it should not have counts as nothing.
pub fn read(given: Option<&Given>) -> Amounts {
    let all = given.into_iter().flatten();
    all.filter_map(|(name, amount)| Some((name.clone(), Quantity::parse(&amount.0).ok()?))).collect()
}

pub fn add(total: &mut Amounts, more: Amounts) {
    for (name, amount) in more {
        *total.entry(name).or_insert(Quantity::ZERO) += amount;
    }
}

fn raise(total: &mut Amounts, other: Amounts) {
    for (name, amount) in other {
        let known = total.entry(name).or_insert(amount);
        *known = (*known).max(amount);
    }
}

fn is_pod_level(name: &str) -> bool {
    matches!(name, "cpu" | "memory") || name.starts_with("hugepages-")
}

fn set_own(total: &mut Amounts, own: Option<&ResourceRequirements>, side: Side) {
    for (name, amount) in read(own.and_then(|own| of(own, side))) {
        if is_pod_level(&name) {
            total.insert(name, amount);
        }
    }
}

fn of(resources: &ResourceRequirements, side: Side) -> Option<&Given> {
    match side {
        Side::Requests => resources.requests.as_ref(),
        Side::Limits => resources.limits.as_ref(),
    }
}

fn containers(pod: &Pod, count: Count, side: Side) -> Amounts {
    let Some(spec) = &pod.spec else { return Amounts::new() };
    let mut total = Amounts::new();
    for container in &spec.containers {
        add(&mut total, container_amounts(pod, container, count, side));
    }
    let mut sidecars = Amounts::new();
    let mut starting = Amounts::new();
    for container in spec.init_containers.iter().flatten() {
        if container.restart_policy.as_deref() == Some("Always") {
            let own = container_amounts(pod, container, count, side);
            add(&mut total, own.clone());
            add(&mut sidecars, own);
            raise(&mut starting, sidecars.clone());
        } else {
            let mut moment = container_amounts(pod, container, Count::Asked, side);
            add(&mut moment, sidecars.clone());
            raise(&mut starting, moment);
        }
    }
    raise(&mut total, starting);
    total
}

fn container_amounts(pod: &Pod, container: &Container, count: Count, side: Side) -> Amounts {
    let asked = || read(container.resources.as_ref().and_then(|resources| of(resources, side)));
    let status = pod.status.as_ref();
    let statuses = status.into_iter().flat_map(|status| {
        status.container_statuses.iter().flatten().chain(status.init_container_statuses.iter().flatten())
    });
    let held = statuses.into_iter().find(|status| status.name == container.name);
    let Some((held, resources)) = held.and_then(|held| Some((held, held.resources.as_ref()?))) else {
        return asked();
    };
    if count == Count::Asked {
        return asked();
    }
    let infeasible = status.iter().flat_map(|status| status.conditions.iter().flatten()).any(|condition| {
        condition.type_ == "PodResizePending" && condition.reason.as_deref() == Some("Infeasible")
    });
    // A resize that the node can never do costs nothing.
    let mut amounts = if infeasible { Amounts::new() } else { asked() };
    raise(&mut amounts, read(of(resources, side)));
    if side == Side::Requests {
        raise(&mut amounts, read(held.allocated_resources.as_ref()));
    }
    amounts
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn check(pod: Value, count: Count, expected: (&str, &str)) {
        let shown = pod.to_string();
        let pod: Pod = serde_json::from_value(pod).expect("a pod");
        let cpu = |amounts: Amounts| amounts.get("cpu").map_or("none".into(), ToString::to_string);
        assert_eq!(
            (cpu(requests(&pod, count)).as_str(), cpu(limits(&pod, count)).as_str()),
            expected,
            "{shown}"
        );
    }

    fn container(name: &str, request: &str, limit: &str) -> Value {
        json!({"name": name, "resources": {"requests": {"cpu": request}, "limits": {"cpu": limit}}})
    }

    #[test]
    fn a_pod_needs_its_containers_or_the_hungriest_moment_of_its_start() {
        let containers = json!([container("a", "100m", "1"), container("b", "200m", "1")]);
        check(json!({"spec": {"containers": containers}}), Count::Asked, ("300m", "2"));
        let mut sidecar = container("s", "50m", "50m");
        sidecar["restartPolicy"] = "Always".into();
        let init = json!([sidecar, container("i", "900m", "1")]);
        check(
            json!({"spec": {"containers": containers, "initContainers": init}}),
            Count::Asked,
            ("950m", "2050m"),
        );
        check(
            json!({"spec": {"containers": containers, "resources": {"requests": {"cpu": "1"}}}}),
            Count::Asked,
            ("1", "2"),
        );
        check(
            json!({"spec": {"containers": containers, "overhead": {"cpu": "1"}}}),
            Count::Asked,
            ("1300m", "3"),
        );
        check(
            json!({"spec": {"containers": [{"name": "a"}], "overhead": {"cpu": "1"}}}),
            Count::Asked,
            ("1", "none"),
        );
    }

    #[test]
    fn a_container_that_is_being_resized_holds_the_most_of_both() {
        let pod = |conditions: Value| {
            json!({
                "spec": {"containers": [container("a", "100m", "1")]},
                "status": {
                    "containerStatuses": [{
                        "name": "a", "image": "", "imageID": "", "ready": true, "restartCount": 0,
                        "resources": {"requests": {"cpu": "300m"}, "limits": {"cpu": "2"}},
                    }],
                    "conditions": conditions,
                },
            })
        };
        check(pod(json!([])), Count::Asked, ("100m", "1"));
        check(pod(json!([])), Count::Held, ("300m", "2"));
        let mut larger = pod(json!([{"type": "PodResizePending", "status": "True", "reason": "Infeasible"}]));
        larger["spec"]["containers"][0] = container("a", "800m", "8");
        check(larger, Count::Held, ("300m", "2"));
    }
}
