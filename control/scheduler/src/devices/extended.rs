//! Extended resources that a DeviceClass stands for (KEP 5004): a node without a device plugin for them provides them
//! through a claim, which the scheduler makes for the pod. This file turns the requests of the pod's containers into the
//! requests of that claim, and says which container gets which of them.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Container, ContainerExtendedResourceRequest, Pod};
use k8s_openapi::api::resource::v1::{
    DeviceClaim, DeviceClass, DeviceRequest, ExactDeviceRequest, ResourceClaim, ResourceClaimSpec,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::ObjectMeta;

use crate::pod_info::PodInfo;
use crate::resources;

/// Set to `true` on the claims that the scheduler makes.
pub const ANNOTATION: &str = "resource.kubernetes.io/extended-resource-claim";
/// Before the name of a DeviceClass: its implicit extended resource.
pub const CLASS_PREFIX: &str = "deviceclass.resource.kubernetes.io/";

/// What one container requests of extended resources.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerRequests {
    /// Its place among the pod's init containers and containers.
    index: usize,
    name: Box<str>,
    /// An init container that ends before the containers start.
    is_short_lived: bool,
    resources: Vec<Requested>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Requested {
    name: Box<str>,
    /// Its place among all resources that the container requests, by name.
    index: usize,
    amount: i64,
}

/// The containers that request extended resources.
pub fn of_containers(pod: &Pod) -> Vec<ContainerRequests> {
    let Some(spec) = &pod.spec else { return Vec::new() };
    let init = spec.init_containers.iter().flatten().map(|container| (container, true));
    let all = init.chain(spec.containers.iter().map(|container| (container, false))).enumerate();
    let each = all.filter_map(|(index, (container, is_init))| {
        let resources = requested(container);
        let is_short_lived = is_init && container.restart_policy.as_deref() != Some("Always");
        let name = container.name.as_str().into();
        (!resources.is_empty()).then_some(ContainerRequests { index, name, is_short_lived, resources })
    });
    each.collect()
}

fn requested(container: &Container) -> Vec<Requested> {
    let requests = container.resources.as_ref().and_then(|resources| resources.requests.as_ref());
    let all = requests.into_iter().flatten().enumerate().filter(|(_, (name, _))| may_be_devices(name));
    let all = all.map(|(index, (name, quantity))| Requested {
        name: name.as_str().into(),
        index,
        amount: resources::amount(name, quantity),
    });
    all.filter(|requested| requested.amount > 0).collect()
}

/// Whether a class may stand for a resource of this name.
pub fn may_be_devices(resource: &str) -> bool {
    let is_native = !resource.contains('/') || resource.contains("kubernetes.io/");
    resource.starts_with(CLASS_PREFIX) || !is_native && !resource.starts_with("requests.")
}

/// The class that stands for a resource, of those that name it: the newest, since whoever migrates from one class to another
/// has both for a time; of equally old ones the first by name.
pub fn preferred(classes: Vec<Arc<DeviceClass>>) -> Option<Arc<DeviceClass>> {
    let age = |class: &DeviceClass| class.metadata.creation_timestamp.as_ref().map(|time| time.0);
    let name = |class: &DeviceClass| std::cmp::Reverse(class.metadata.name.clone());
    classes.into_iter().max_by_key(|class| (age(class), name(class)))
}

/// Under this uid the allocation of a pod's claim is assumed until the claim is made and has its own.
pub fn temporary_uid(pod: &PodInfo) -> String {
    format!("<extended-resources>/{}", pod.uid)
}

/// The claim of a pod, as it is created.
pub fn claim(pod: &PodInfo, requests: Vec<DeviceRequest>) -> ResourceClaim {
    let owner = OwnerReference {
        api_version: "v1".into(),
        kind: "Pod".into(),
        name: pod.key.name.clone(),
        uid: pod.uid.clone(),
        controller: Some(true),
        block_owner_deletion: None,
    };
    let devices = DeviceClaim { requests: Some(requests), ..DeviceClaim::default() };
    ResourceClaim {
        metadata: ObjectMeta {
            namespace: Some(pod.key.namespace.clone()),
            generate_name: Some(format!("{}-extended-resources-", pod.key.name)),
            uid: Some(temporary_uid(pod)),
            annotations: Some([(ANNOTATION.to_owned(), "true".to_owned())].into()),
            owner_references: Some(vec![owner]),
            ..ObjectMeta::default()
        },
        spec: ResourceClaimSpec { devices: Some(devices) },
        status: None,
    }
}

/// Whether a claim is the one that an attempt to schedule this pod has made.
pub fn is_of(claim: &ResourceClaim, pod: &PodInfo) -> bool {
    let annotations = claim.metadata.annotations.as_ref();
    let mut owners = claim.metadata.owner_references.iter().flatten();
    annotations.and_then(|all| all.get(ANNOTATION)).is_some_and(|value| value == "true")
        && owners.any(|own| own.controller == Some(true) && own.name == pod.key.name && own.uid == pod.uid)
}

/// What the claim requests for the given resources, each with the name of its class, and which container gets what of it.
pub fn requests(
    containers: &[ContainerRequests],
    resources: &[(&str, &str)],
) -> (Vec<DeviceRequest>, Vec<ContainerExtendedResourceRequest>) {
    let (mut requests, mut mappings) = (Vec::new(), Vec::new());
    for (resource, class) in resources {
        let mut of_resource = OfResource { resource, class, long_lived: Vec::new(), mappings: Vec::new() };
        let shared = of_resource.distribute(containers);
        requests.extend(shared.into_iter().chain(of_resource.long_lived.into_iter().map(|(_, own)| own)));
        mappings.append(&mut of_resource.mappings);
    }
    requests.sort_by(|one, other| one.name.cmp(&other.name));
    (requests, mappings)
}

/// The requests for one resource.
struct OfResource<'r> {
    resource: &'r str,
    class: &'r str,
    /// With the place of the container.
    long_lived: Vec<(usize, DeviceRequest)>,
    mappings: Vec<ContainerExtendedResourceRequest>,
}

impl OfResource<'_> {
    /// Returns the request that init containers share. They run one after the other and before the containers, so each uses
    /// the devices of the containers after it, and only what it needs beyond those is requested, once for all of them.
    fn distribute(&mut self, containers: &[ContainerRequests]) -> Option<DeviceRequest> {
        let wants = |own: &ContainerRequests| {
            own.resources.iter().find(|requested| &*requested.name == self.resource).cloned()
        };
        let asking: Vec<(&ContainerRequests, Requested)> =
            containers.iter().filter_map(|own| Some((own, wants(own)?))).collect();
        for (container, requested) in asking.iter().filter(|(own, _)| !own.is_short_lived) {
            let request = self.request(container, requested, requested.amount);
            self.map(container, &request.name);
            self.long_lived.push((container.index, request));
        }
        let mut most: Option<DeviceRequest> = None;
        let mut beyond = Vec::new();
        for (container, requested) in asking.iter().filter(|(own, _)| own.is_short_lived) {
            let lacking = self.reuse(container, requested.amount);
            if lacking == 0 {
                continue;
            }
            let request = self.request(container, requested, lacking);
            self.map(container, &request.name);
            beyond.push(self.mappings.len() - 1);
            if most.as_ref().is_none_or(|most| count(most) < lacking) {
                most = Some(request);
            }
        }
        if let Some(most) = &most {
            beyond.into_iter().for_each(|at| self.mappings[at].request_name.clone_from(&most.name));
        }
        most
    }

    /// Gives an init container the devices of the containers after it; returns how many it lacks.
    fn reuse(&mut self, container: &ContainerRequests, wanted: i64) -> i64 {
        let mut lacking = wanted;
        let later = self.long_lived.iter().filter(|(index, _)| *index >= container.index);
        let later: Vec<(String, i64)> =
            later.map(|(_, request)| (request.name.clone(), count(request))).collect();
        for (name, count) in later {
            if lacking <= 0 {
                break;
            }
            self.map(container, &name);
            lacking -= count;
        }
        lacking.max(0)
    }

    fn request(&self, container: &ContainerRequests, requested: &Requested, count: i64) -> DeviceRequest {
        DeviceRequest {
            name: format!("container-{}-request-{}", container.index, requested.index),
            exactly: Some(ExactDeviceRequest {
                device_class_name: self.class.to_owned(),
                allocation_mode: Some("ExactCount".into()),
                count: Some(count),
                ..ExactDeviceRequest::default()
            }),
            first_available: None,
        }
    }

    fn map(&mut self, container: &ContainerRequests, request: &str) {
        self.mappings.push(ContainerExtendedResourceRequest {
            container_name: container.name.to_string(),
            resource_name: self.resource.to_owned(),
            request_name: request.to_owned(),
        });
    }
}

fn count(request: &DeviceRequest) -> i64 {
    request.exactly.as_ref().and_then(|exactly| exactly.count).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const GPU: &str = "example.com/gpu";

    /// A container that requests so many devices, and so much CPU that the devices are its second resource.
    fn asks(name: &str, gpus: i64) -> Value {
        json!({"name": name, "resources": {"requests": {"cpu": "1", GPU: gpus.to_string()}}})
    }

    fn sidecar(name: &str, gpus: i64) -> Value {
        let mut container = asks(name, gpus);
        container["restartPolicy"] = json!("Always");
        container
    }

    /// `requests` is `name*count …`, `mappings` is `container:request …`.
    #[track_caller]
    fn check(init: &[Value], containers: &[Value], expected: &str, mapped: &str) {
        let spec = json!({"initContainers": init, "containers": containers});
        let pod: Pod = serde_json::from_value(json!({"spec": spec})).unwrap();
        let (requests, mappings) = requests(&of_containers(&pod), &[(GPU, "gpu")]);
        let requests: Vec<String> =
            requests.iter().map(|own| format!("{}*{}", own.name, count(own))).collect();
        let mappings: Vec<String> =
            mappings.iter().map(|own| format!("{}:{}", own.container_name, own.request_name)).collect();
        assert_eq!((requests.join(" ").as_str(), mappings.join(" ").as_str()), (expected, mapped));
    }

    #[test]
    fn every_container_has_a_request_of_its_own() {
        check(&[], &[asks("a", 1)], "container-0-request-1*1", "a:container-0-request-1");
        check(
            &[],
            &[asks("a", 1), json!({"name": "b"}), asks("c", 2)],
            "container-0-request-1*1 container-2-request-1*2",
            "a:container-0-request-1 c:container-2-request-1",
        );
        check(&[], &[asks("a", 0)], "", "");
    }

    #[test]
    fn init_containers_use_the_devices_of_those_after_them() {
        check(
            &[asks("i", 1)],
            &[asks("a", 2)],
            "container-1-request-1*2",
            "a:container-1-request-1 i:container-1-request-1",
        );
        check(
            &[asks("i", 3), asks("j", 5)],
            &[asks("a", 2)],
            "container-1-request-1*3 container-2-request-1*2",
            "a:container-2-request-1 i:container-2-request-1 i:container-1-request-1 j:container-2-request-1 \
             j:container-1-request-1",
        );
        // A sidecar before an init container keeps its own devices; one after it has not begun.
        check(
            &[sidecar("s", 1), asks("i", 2), sidecar("t", 2)],
            &[json!({"name": "a"})],
            "container-0-request-1*1 container-2-request-1*2",
            "s:container-0-request-1 t:container-2-request-1 i:container-2-request-1",
        );
    }

    #[test]
    fn classes_stand_for_extended_resources_and_their_own_implicit_one() {
        for (name, expected) in [
            ("cpu", false),
            ("hugepages-2Mi", false),
            ("kubernetes.io/batch-cpu", false),
            ("requests.example.com/gpu", false),
            ("example.com/gpu", true),
            ("deviceclass.resource.kubernetes.io/gpu", true),
        ] {
            assert_eq!(may_be_devices(name), expected, "{name}");
        }
    }

    #[test]
    fn of_several_classes_the_newest_stands_for_the_resource() {
        let class = |name: &str, day: u8| -> Arc<DeviceClass> {
            let created = format!("2026-01-0{day}T00:00:00Z");
            let metadata = json!({"name": name, "creationTimestamp": created});
            Arc::new(serde_json::from_value(json!({"metadata": metadata, "spec": {}})).unwrap())
        };
        let check = |classes: Vec<Arc<DeviceClass>>, expected: Option<&str>| {
            let found = preferred(classes);
            assert_eq!(found.as_ref().and_then(|class| class.metadata.name.as_deref()), expected);
        };
        check(vec![], None);
        check(vec![class("a", 1), class("b", 2)], Some("b"));
        check(vec![class("b", 2), class("a", 2), class("c", 1)], Some("a"));
    }
}
