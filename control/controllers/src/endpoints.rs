//! Endpoints: the older, single list of a Service's addresses, for those who still read it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use ferry_client::{Attempt, Client, Error, Informer, NamespacedName, Outcome, error, undecoded};
use k8s_openapi::api::core::v1::{
    EndpointAddress, EndpointPort, EndpointSubset, Endpoints, ObjectReference, Pod, Service,
};
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, ObjectMeta, PostParams, Preconditions};

use crate::context::{Context, Running};
use crate::pods::{is_ready, node_name};
use crate::services::{self, addresses, hostname, is_headless, is_reachable, publishes_unready, target_port};
use crate::slices::HEADLESS;
use crate::trigger_times::{self, TriggerTimes};

const CONTROLLER: &str = "endpoints-controller";
const MANAGED_BY: &str = "endpoints.kubernetes.io/managed-by";
const OVER_CAPACITY: &str = "endpoints.kubernetes.io/over-capacity";
/// One object holds them all, so there is an end to it.
const MAX_ADDRESSES: usize = 1000;

/// The Endpoints a Service should have; `current` gives what others wrote into it.
fn plan(service: &Service, pods: &[Arc<Pod>], current: Option<&Endpoints>) -> Endpoints {
    let mut next = current.cloned().unwrap_or_else(|| Endpoints {
        metadata: ObjectMeta {
            name: service.metadata.name.clone(),
            namespace: service.namespace(),
            ..Default::default()
        },
        subsets: None,
    });
    let mut labels = service.labels().clone();
    labels.insert(MANAGED_BY.into(), "endpoint-controller".into());
    labels.remove(HEADLESS);
    if is_headless(service) {
        labels.insert(HEADLESS.into(), String::new());
    }
    next.metadata.labels = Some(labels);
    let (subsets, truncated) = subsets(service, pods);
    next.subsets = (!subsets.is_empty()).then_some(subsets);
    let annotations = next.metadata.annotations.get_or_insert_default();
    match truncated {
        true => annotations.insert(OVER_CAPACITY.into(), "truncated".into()),
        false => annotations.remove(OVER_CAPACITY),
    };
    next.metadata.annotations = next.metadata.annotations.filter(|annotations| !annotations.is_empty());
    next
}

/// Port as it sorts: name, number, protocol, application protocol.
type Port = (String, i32, String, Option<String>);

fn subsets(service: &Service, pods: &[Arc<Pod>]) -> (Vec<EndpointSubset>, bool) {
    // Addresses are gathered by their ports; ready ones come first when there are too many.
    let mut by_ports: BTreeMap<BTreeSet<Port>, Vec<(bool, EndpointAddress)>> = BTreeMap::new();
    let unready_too = publishes_unready(service);
    for pod in pods.iter().filter(|pod| is_reachable(pod, unready_too)) {
        let Some(ip) = addresses(pod).find(|ip| is_of_family(service, ip)) else { continue };
        let ports: BTreeSet<Port> = service
            .spec
            .iter()
            .filter_map(|spec| spec.ports.as_ref())
            .flatten()
            .filter_map(|port| {
                let number = target_port(pod, port)?;
                Some((
                    port.name.clone().unwrap_or_default(),
                    number,
                    services::protocol(port).to_owned(),
                    port.app_protocol.clone(),
                ))
            })
            .collect();
        if ports.is_empty() && !is_headless(service) {
            continue;
        }
        by_ports.entry(ports).or_default().push((unready_too || is_ready(pod), address(service, pod, ip)));
    }
    let total: usize = by_ports.values().map(Vec::len).sum();
    let ready_total = by_ports.values().flatten().filter(|(ready, _)| *ready).count();
    let mut ready_room = MAX_ADDRESSES;
    let mut unready_room = MAX_ADDRESSES.saturating_sub(ready_total);
    let subsets = by_ports.into_iter().map(|(ports, mut addresses)| {
        addresses.sort_by(|(_, a), (_, b)| a.ip.cmp(&b.ip));
        let (ready, unready): (Vec<_>, Vec<_>) = addresses.into_iter().partition(|(ready, _)| *ready);
        let take = |list: Vec<(bool, EndpointAddress)>, room: &mut usize| {
            let taken: Vec<EndpointAddress> =
                list.into_iter().take(*room).map(|(_, address)| address).collect();
            *room -= taken.len();
            (!taken.is_empty()).then_some(taken)
        };
        EndpointSubset {
            addresses: take(ready, &mut ready_room),
            not_ready_addresses: take(unready, &mut unready_room),
            ports: (!ports.is_empty()).then(|| ports.into_iter().map(port).collect()),
        }
    });
    let subsets =
        subsets.filter(|subset| subset.addresses.is_some() || subset.not_ready_addresses.is_some()).collect();
    (subsets, total > MAX_ADDRESSES)
}

fn is_of_family(service: &Service, ip: &IpAddr) -> bool {
    let families = service.spec.as_ref().and_then(|spec| spec.ip_families.as_ref());
    match families.and_then(|families| families.first()).map(String::as_str) {
        Some("IPv6") => ip.is_ipv6(),
        _ => ip.is_ipv4(),
    }
}

fn port((name, number, protocol, app_protocol): Port) -> EndpointPort {
    EndpointPort {
        name: (!name.is_empty()).then_some(name),
        port: number,
        protocol: Some(protocol),
        app_protocol,
    }
}

fn address(service: &Service, pod: &Pod, ip: IpAddr) -> EndpointAddress {
    EndpointAddress {
        ip: ip.to_string(),
        hostname: hostname(service, pod),
        node_name: Some(node_name(pod)).filter(|node| !node.is_empty()).map(str::to_owned),
        target_ref: Some(ObjectReference {
            kind: Some("Pod".into()),
            namespace: pod.namespace(),
            name: pod.metadata.name.clone(),
            uid: pod.uid(),
            ..Default::default()
        }),
    }
}

struct Controller {
    client: Client,
    services: Informer<Service>,
    pods: Informer<Pod>,
    endpoints: Informer<Endpoints>,
    trigger_times: TriggerTimes,
}

pub fn start(context: &Context) -> Running {
    let builder = context.controller(CONTROLLER);
    let services = builder.informer::<Service>();
    let (pods, endpoints) = (builder.informer::<Pod>(), builder.informer::<Endpoints>());
    let controller = Arc::new(Controller {
        client: context.client.clone(),
        services: services.clone(),
        pods: pods.clone(),
        endpoints: endpoints.clone(),
        trigger_times: TriggerTimes::default(),
    });
    builder
        .of(&services, controller)
        .watches(&endpoints, |_, event| vec![event.key()])
        .watches(&pods, |it, event| services::services_of(&it.services, event))
        .run(Controller::reconcile)
}

impl Controller {
    async fn reconcile(self: Arc<Self>, key: NamespacedName) -> Result<Outcome, Error> {
        let api: Api<Endpoints> = Api::namespaced(self.client.clone(), &key.namespace);
        let current = self.endpoints.get(&key);
        let Some(service) = self.services.get(&key) else {
            // Nothing owns Endpoints, so what a deleted service leaves is removed here; what
            // someone made by hand without a service stays.
            if let Some(left) = current.filter(|current| current.labels().contains_key(MANAGED_BY)) {
                let only_this = DeleteParams::default()
                    .preconditions(Preconditions { uid: left.uid(), resource_version: None });
                error::ignore_not_found(undecoded::delete(&api, &key.name, &only_this).await)
                    .attempting("delete endpoints")?;
            }
            self.trigger_times.forget(&key);
            return Ok(Outcome::Done);
        };
        if !services::has_own_endpoints(&service) {
            return Ok(Outcome::Done);
        }
        let mut pods = self.pods.list_namespace(&key.namespace);
        pods.retain(|pod| services::selects(&service, pod));
        let mut next = plan(&service, &pods, current.as_deref());
        let since = self.trigger_times.since(&service, &pods);
        // The time alone is no change.
        let is_same = current.as_deref() == Some(&next);
        trigger_times::annotate(&mut next.metadata.annotations, since);
        match current {
            Some(_) if is_same => {}
            Some(_) => {
                api.replace(&key.name, &PostParams::default(), &next).await.attempting("write endpoints")?;
            }
            None => match api.create(&PostParams::default(), &next).await {
                // Ours, from a moment ago: the informer is about to tell.
                Err(refused)
                    if error::is_already_exists(&refused) || error::is_namespace_terminating(&refused) => {}
                created => {
                    created.attempting("create endpoints")?;
                }
            },
        }
        Ok(Outcome::Done)
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::{PodIP, ServicePort};

    use super::*;
    use crate::testing::{deleting, labels, named, pod};

    fn service() -> Service {
        let mut service: Service = named("web");
        let spec = service.spec.get_or_insert_default();
        spec.selector = Some(labels(&[("app", "web")]));
        spec.ports = Some(vec![ServicePort { port: 80, ..Default::default() }]);
        service
    }

    fn at_address(index: usize, ready: bool) -> Arc<Pod> {
        let mut pod = pod(&format!("pod-{index}"), "node", "Running", ready.then_some(0));
        pod.status.as_mut().unwrap().pod_ips =
            Some(vec![PodIP { ip: format!("10.1.{}.{}", index / 250, index % 250 + 1) }]);
        Arc::new(pod)
    }

    fn counts(endpoints: &Endpoints) -> (usize, usize) {
        let subsets = endpoints.subsets.iter().flatten();
        let count = |list: &Option<Vec<EndpointAddress>>| list.as_ref().map_or(0, Vec::len);
        subsets.fold((0, 0), |(ready, unready), subset| {
            (ready + count(&subset.addresses), unready + count(&subset.not_ready_addresses))
        })
    }

    #[test]
    fn ready_and_unready_are_told_apart_and_ending_ones_left_out() {
        let pods =
            [at_address(1, true), at_address(2, false), Arc::new(deleting((*at_address(3, true)).clone()))];
        assert_eq!(counts(&plan(&service(), &pods, None)), (1, 1));
        let mut eager = service();
        eager.spec.as_mut().unwrap().publish_not_ready_addresses = Some(true);
        assert_eq!(counts(&plan(&eager, &pods, None)), (3, 0));
    }

    #[test]
    fn too_many_are_cut_and_said_to_be() {
        let mut pods: Vec<Arc<Pod>> = (0..990).map(|index| at_address(index, true)).collect();
        pods.extend((1000..1100).map(|index| at_address(index, false)));
        let endpoints = plan(&service(), &pods, None);
        assert_eq!(counts(&endpoints), (990, 10));
        assert_eq!(endpoints.annotations()[OVER_CAPACITY], "truncated");
        let fewer = plan(&service(), &pods[..10], Some(&endpoints));
        assert!(!fewer.annotations().contains_key(OVER_CAPACITY));
    }

    #[test]
    fn the_same_pods_give_the_same_object() {
        let pods = [at_address(1, true), at_address(2, true)];
        let first = plan(&service(), &pods, None);
        let reversed = [pods[1].clone(), pods[0].clone()];
        assert_eq!(plan(&service(), &reversed, Some(&first)), first);
    }
}
