//! What a Service selects, and on which ports and addresses its pods are reached. Shared by
//! the EndpointSlice and Endpoints controllers.

use std::net::IpAddr;
use std::sync::Arc;

use ferry_client::{Event, Informer, NamespacedName};
use k8s_openapi::api::core::v1::{Container, Pod, Service, ServicePort};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::ResourceExt;

use crate::pods::{is_deleting, is_finished};

/// A Service whose endpoints we compute: one with a selector. Others are someone else's.
pub fn has_own_endpoints(service: &Service) -> bool {
    service.spec.as_ref().is_some_and(|spec| {
        spec.type_.as_deref() != Some("ExternalName")
            && spec.selector.as_ref().is_some_and(|selector| !selector.is_empty())
    })
}

pub fn selects(service: &Service, pod: &Pod) -> bool {
    let selector = service.spec.as_ref().and_then(|spec| spec.selector.as_ref());
    selector.is_some_and(|selector| {
        !selector.is_empty() && selector.iter().all(|(key, value)| pod.labels().get(key) == Some(value))
    })
}

pub fn is_headless(service: &Service) -> bool {
    service.spec.as_ref().and_then(|spec| spec.cluster_ip.as_deref()) == Some("None")
}

pub fn publishes_unready(service: &Service) -> bool {
    service.spec.as_ref().and_then(|spec| spec.publish_not_ready_addresses).unwrap_or(false)
}

/// Can the pod be reached at all? A pod that ends may still be, which slices tell and the
/// older Endpoints cannot.
pub fn is_reachable(pod: &Pod, while_deleting: bool) -> bool {
    !is_finished(pod) && addresses(pod).next().is_some() && (while_deleting || !is_deleting(pod))
}

pub fn addresses(pod: &Pod) -> impl Iterator<Item = IpAddr> {
    let status = pod.status.as_ref();
    let listed =
        status.and_then(|status| status.pod_ips.as_ref()).into_iter().flatten().map(|ip| ip.ip.as_str());
    let single = status.and_then(|status| status.pod_ip.as_deref());
    let mut all: Vec<IpAddr> = listed.filter_map(|ip| ip.parse().ok()).collect();
    if all.is_empty() {
        all.extend(single.and_then(|ip| ip.parse::<IpAddr>().ok()));
    }
    all.into_iter()
}

/// The number behind a service port on this pod; a name means whatever the pod calls so.
pub fn target_port(pod: &Pod, port: &ServicePort) -> Option<i32> {
    let name = match &port.target_port {
        None => return Some(port.port),
        Some(IntOrString::Int(0)) => return Some(port.port),
        Some(IntOrString::Int(number)) => return Some(*number),
        Some(IntOrString::String(name)) => name,
    };
    let spec = pod.spec.as_ref()?;
    let sidecars = spec
        .init_containers
        .iter()
        .flatten()
        .filter(|container| container.restart_policy.as_deref() == Some("Always"));
    let protocol = protocol(port);
    let find = |container: &Container| {
        let ports = container.ports.iter().flatten();
        let mut named = ports.filter(|port| {
            port.name.as_ref() == Some(name) && port.protocol.as_deref().unwrap_or("TCP") == protocol
        });
        named.next().map(|port| port.container_port)
    };
    spec.containers.iter().chain(sidecars).find_map(find)
}

pub fn protocol(port: &ServicePort) -> &str {
    port.protocol.as_deref().unwrap_or("TCP")
}

/// The name by which DNS knows the pod within this service.
pub fn hostname(service: &Service, pod: &Pod) -> Option<String> {
    let spec = pod.spec.as_ref()?;
    let subdomain = spec.subdomain.as_deref().filter(|subdomain| *subdomain == service.name_any());
    spec.hostname.clone().filter(|hostname| subdomain.is_some() && !hostname.is_empty())
}

/// Every service that selected a changed pod before or does now.
pub fn services_of(services: &Informer<Service>, event: &Event<Pod>) -> Vec<NamespacedName> {
    if event.old().is_some_and(|old| !matters(old, event.object())) {
        return Vec::new();
    }
    let mut services = services.list_namespace(&event.key().namespace);
    services.retain(|service| {
        selects(service, event.object()) || event.old().is_some_and(|old| selects(service, old))
    });
    services.iter().map(|service| NamespacedName::of(&**service)).collect()
}

/// Could this change of a pod change an endpoint? Most status writes could not.
fn matters(old: &Arc<Pod>, new: &Arc<Pod>) -> bool {
    let seen = |pod: &Pod| {
        let place = pod
            .spec
            .as_ref()
            .map(|spec| (spec.node_name.clone(), spec.hostname.clone(), spec.subdomain.clone()));
        let state = (
            is_finished(pod),
            is_deleting(pod),
            crate::pods::is_ready(pod),
            addresses(pod).collect::<Vec<_>>(),
        );
        (pod.metadata.labels.clone(), place, state)
    };
    seen(old) != seen(new)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ContainerPort;

    use super::*;
    use crate::testing::{labels, named, pod};

    #[test]
    fn a_named_port_is_what_the_pod_calls_so() {
        let mut server = pod("a", "n", "Running", None);
        let port = |name: &str, protocol: &str, number| ContainerPort {
            name: Some(name.into()),
            protocol: Some(protocol.into()),
            container_port: number,
            ..Default::default()
        };
        let container = Container {
            ports: Some(vec![port("web", "UDP", 1), port("web", "TCP", 8080)]),
            ..Default::default()
        };
        server.spec.as_mut().unwrap().containers = vec![container];
        let check = |target: Option<IntOrString>, expected: Option<i32>| {
            let service_port = ServicePort { port: 80, target_port: target, ..Default::default() };
            assert_eq!(target_port(&server, &service_port), expected);
        };
        check(None, Some(80));
        check(Some(IntOrString::Int(9)), Some(9));
        check(Some(IntOrString::String("web".into())), Some(8080));
        check(Some(IntOrString::String("other".into())), None);
    }

    #[test]
    fn no_selector_selects_nothing() {
        let mut service: Service = named("s");
        let mut target = pod("a", "n", "Running", None);
        target.metadata.labels = Some(labels(&[("app", "web"), ("tier", "x")]));
        assert!(!selects(&service, &target) && !has_own_endpoints(&service));
        service.spec.get_or_insert_default().selector = Some(labels(&[("app", "web")]));
        assert!(selects(&service, &target) && has_own_endpoints(&service));
        service.spec.get_or_insert_default().type_ = Some("ExternalName".into());
        assert!(!has_own_endpoints(&service));
    }
}
