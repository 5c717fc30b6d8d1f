//! EndpointSlices: where the pods of a Service are. How they are spread over slices is `slices`'.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use ferry_client::{
    Client, Error, Event, EventType, Expectations, Index, Informer, NamespacedName, Outcome, Recorder,
};
use futures::FutureExt;
use k8s_openapi::api::core::v1::{Node, ObjectReference, Pod, Service};
use k8s_openapi::api::discovery::v1::{
    Endpoint, EndpointConditions, EndpointHints, EndpointSlice, ForNode, ForZone,
};
use kube::ResourceExt;
use parking_lot::Mutex;

use crate::context::{Context, Running};
use crate::metrics::{self, OF_INFORMERS};
use crate::pods::{is_deleting, is_ready, node_name};
use crate::services::{self, addresses, hostname, is_headless, is_reachable, publishes_unready, target_port};
use crate::slices::{self, HEADLESS, MANAGED_BY, Plan, Port, SERVICE_NAME, Shape, Wanted, identity};
use crate::topology_hints::{self, Refusal, Shares, ZONE};
use crate::trigger_times::{self, TriggerTimes};

const CONTROLLER: &str = "endpointslice-controller";
const MANAGER: &str = "endpointslice-controller.k8s.io";
const HINTS_ENABLED: &str = "TopologyAwareHintsEnabled";
const HINTS_DISABLED: &str = "TopologyAwareHintsDisabled";

/// What came of the topology hints of each family, for Services that ask for them.
type Hinted = BTreeMap<String, Result<(), Refusal>>;

fn plan(
    service: &Service,
    pods: &[Arc<Pod>],
    zone_of: &dyn Fn(&str) -> Option<String>,
    shares: Option<&Shares>,
    slices: &[Arc<EndpointSlice>],
) -> (Plan, Hinted) {
    let mut wanted = wanted(service, pods, zone_of);
    let hinted = match topology_hints::is_auto(service) {
        true => assign_hints(&mut wanted, shares, slices),
        false => Hinted::new(),
    };
    (slices::plan(service, wanted, &labels(service), slices), hinted)
}

fn assign_hints(wanted: &mut Wanted, shares: Option<&Shares>, slices: &[Arc<EndpointSlice>]) -> Hinted {
    let now = |endpoint: &Endpoint| {
        let zone = endpoint.hints.as_ref()?.for_zones.as_ref()?.first()?;
        Some((identity(endpoint), zone.name.clone()))
    };
    let current = slices.iter().flat_map(|slice| slice.endpoints.iter().flatten()).filter_map(now).collect();
    let mut families: BTreeMap<String, Vec<&mut Endpoint>> = BTreeMap::new();
    for (shape, endpoints) in wanted {
        families.entry(shape.address_type.clone()).or_default().extend(endpoints.values_mut());
    }
    let assign = |(family, mut endpoints): (String, Vec<&mut Endpoint>)| {
        (family, topology_hints::assign(&mut endpoints, shares, &current))
    };
    families.into_iter().map(assign).collect()
}

/// Every endpoint that should exist, by shape. A family without pods is there and empty.
fn wanted(service: &Service, pods: &[Arc<Pod>], zone_of: &dyn Fn(&str) -> Option<String>) -> Wanted {
    let mut wanted: Wanted = BTreeMap::new();
    let families = families(service);
    for pod in pods.iter().filter(|pod| is_reachable(pod, true)) {
        for family in &families {
            let Some(address) = addresses(pod).find(|address| address_type(address) == family) else {
                continue;
            };
            let shape = Shape { address_type: family.clone(), ports: ports(service, pod) };
            let endpoint = endpoint(service, pod, address, zone_of);
            wanted.entry(shape).or_default().insert(identity(&endpoint), endpoint);
        }
    }
    for family in families {
        if !wanted.keys().any(|shape| shape.address_type == family) {
            // Nobody listens, so no port is known; nil and not empty, as upstream has it.
            wanted.insert(Shape { address_type: family, ports: Vec::new() }, BTreeMap::new());
        }
    }
    wanted
}

fn families(service: &Service) -> Vec<String> {
    let spec = service.spec.as_ref();
    let named: Vec<String> = spec.and_then(|spec| spec.ip_families.clone()).unwrap_or_default();
    if !named.is_empty() {
        return named;
    }
    let cluster_ip =
        spec.and_then(|spec| spec.cluster_ip.as_deref()).and_then(|ip| ip.parse::<IpAddr>().ok());
    vec![cluster_ip.map_or("IPv4", |ip| address_type(&ip)).into()]
}

fn address_type(address: &IpAddr) -> &'static str {
    if address.is_ipv4() { "IPv4" } else { "IPv6" }
}

fn ports(service: &Service, pod: &Pod) -> Vec<Port> {
    let all = service.spec.iter().filter_map(|spec| spec.ports.as_ref()).flatten();
    let mut ports: Vec<Port> = all
        .filter_map(|port| {
            Some(Port {
                name: port.name.clone().unwrap_or_default(),
                protocol: services::protocol(port).into(),
                number: Some(target_port(pod, port)?),
                app_protocol: port.app_protocol.clone(),
            })
        })
        .collect();
    ports.sort();
    ports
}

fn endpoint(
    service: &Service,
    pod: &Pod,
    address: IpAddr,
    zone_of: &dyn Fn(&str) -> Option<String>,
) -> Endpoint {
    let (serving, terminating) = (is_ready(pod), is_deleting(pod));
    let ready = publishes_unready(service) || (serving && !terminating);
    let node = Some(node_name(pod)).filter(|node| !node.is_empty()).map(str::to_owned);
    let zone = node.as_deref().and_then(zone_of);
    Endpoint {
        addresses: vec![address.to_string()],
        conditions: Some(EndpointConditions {
            ready: Some(ready),
            serving: Some(serving),
            terminating: Some(terminating),
        }),
        hints: hints(service, ready, node.as_deref(), zone.as_deref()),
        hostname: hostname(service, pod),
        node_name: node,
        zone,
        target_ref: Some(ObjectReference {
            kind: Some("Pod".into()),
            namespace: pod.namespace(),
            name: pod.metadata.name.clone(),
            uid: pod.uid(),
            ..Default::default()
        }),
        ..Default::default()
    }
}

/// Who should use an endpoint, where the service wants its traffic to stay near. Hints of all endpoints together are
/// `topology_hints`'.
fn hints(service: &Service, ready: bool, node: Option<&str>, zone: Option<&str>) -> Option<EndpointHints> {
    if topology_hints::is_auto(service) {
        return None;
    }
    let distribution = service.spec.as_ref()?.traffic_distribution.as_deref()?;
    let zones = || zone.map(|zone| vec![ForZone { name: zone.into() }]);
    match distribution {
        _ if !ready => None,
        "PreferClose" | "PreferSameZone" => {
            zones().map(|zones| EndpointHints { for_zones: Some(zones), for_nodes: None })
        }
        "PreferSameNode" => {
            let nodes = node.map(|node| vec![ForNode { name: node.into() }]);
            Some(EndpointHints { for_zones: zones(), for_nodes: nodes })
        }
        _ => None,
    }
}

/// The service's own labels, without what others read as ours, and ours.
fn labels(service: &Service) -> BTreeMap<String, String> {
    let mut labels: BTreeMap<String, String> = service.labels().clone();
    labels.remove(HEADLESS);
    labels.insert(SERVICE_NAME.into(), service.name_any());
    labels.insert(MANAGED_BY.into(), MANAGER.into());
    if is_headless(service) {
        labels.insert(HEADLESS.into(), String::new());
    }
    labels
}

struct Controller {
    client: Client,
    services: Informer<Service>,
    pods: Informer<Pod>,
    nodes: Informer<Node>,
    slices: Index<EndpointSlice>,
    /// Slices we made and have not seen: a second look would make them again.
    expectations: Expectations<NamespacedName>,
    trigger_times: TriggerTimes,
    /// The Services that ask for topology hints, and whether they have them.
    hinted: Mutex<HashMap<NamespacedName, bool>>,
    recorder: Recorder,
}

pub fn start(context: &Context) -> Running {
    let builder = context.controller(CONTROLLER);
    let (services, pods) = (builder.informer::<Service>(), builder.informer::<Pod>());
    let (nodes, slices) = (builder.informer::<Node>(), builder.informer::<EndpointSlice>());
    let controller = Arc::new(Controller {
        client: context.client.clone(),
        services: services.clone(),
        pods: pods.clone(),
        nodes: nodes.clone(),
        slices: slices.index("service", |slice: &EndpointSlice| {
            owner(slice).map(|key| key.to_string()).into_iter().collect()
        }),
        expectations: Expectations::default(),
        trigger_times: TriggerTimes::default(),
        hinted: Mutex::default(),
        recorder: context.recorder("endpoint-slice-controller"),
    });
    OF_INFORMERS.follow_slices(Some((services.clone(), slices.clone())));
    let work = builder
        .of(&services, controller)
        .watches(&pods, |it, event| services::services_of(&it.services, event))
        .watches(&slices, Controller::slice_changed)
        .watches(&nodes, Controller::node_changed)
        .run(Controller::reconcile);
    work.inspect(|()| OF_INFORMERS.follow_slices(None)).boxed()
}

/// The service a slice of ours belongs to.
pub fn owner(slice: &EndpointSlice) -> Option<NamespacedName> {
    let labels = slice.labels();
    let ours = labels.get(MANAGED_BY).is_some_and(|manager| manager == MANAGER);
    let service = labels.get(SERVICE_NAME).filter(|_| ours)?;
    Some(NamespacedName::new(slice.namespace().unwrap_or_default(), service.clone()))
}

impl Controller {
    fn slice_changed(&self, event: &Event<EndpointSlice>) -> Vec<NamespacedName> {
        let (before, now) = (event.old().and_then(|old| owner(old)), owner(event.object()));
        if let (Event::Added(_), Some(key)) = (event, &now) {
            self.expectations.creation_observed(key);
        }
        before.into_iter().chain(now).collect()
    }

    fn node_changed(&self, event: &Event<Node>) -> Vec<NamespacedName> {
        let zone = |node: &Node| node.labels().get(ZONE).cloned();
        let (old, new) = (event.old(), event.object());
        if old.is_some_and(|old| zone(old) != zone(new)) {
            return self.services.list().iter().map(|service| NamespacedName::of(&**service)).collect();
        }
        let before = old.and_then(|old| topology_hints::capacity(old));
        let now = topology_hints::capacity(new).filter(|_| !event.is_deleted());
        match before == now && !event.is_deleted() {
            true => Vec::new(),
            false => self.hinted.lock().keys().cloned().collect(),
        }
    }

    async fn reconcile(self: Arc<Self>, key: NamespacedName) -> Result<Outcome, Error> {
        let service = self.services.get(&key).filter(|service| service.metadata.deletion_timestamp.is_none());
        let Some(service) = service.filter(|service| services::has_own_endpoints(service)) else {
            self.expectations.forget(&key);
            self.trigger_times.forget(&key);
            self.hinted.lock().remove(&key);
            return Ok(Outcome::Done);
        };
        if !self.expectations.satisfied(&key) {
            return Ok(Outcome::Done);
        }
        let mut pods = self.pods.list_namespace(&key.namespace);
        pods.retain(|pod| services::selects(&service, pod));
        let zones: HashMap<String, Option<String>> = pods
            .iter()
            .map(|pod| node_name(pod).to_owned())
            .map(|node| {
                let zone = self
                    .nodes
                    .get(&NamespacedName::cluster(node.clone()))
                    .and_then(|node| node.labels().get(ZONE).cloned());
                (node, zone)
            })
            .collect();
        let zone_of = |node: &str| zones.get(node).cloned().flatten();
        let mut slices = self.slices.get(&key.to_string());
        slices.retain(|slice| slice.metadata.deletion_timestamp.is_none());
        let shares = topology_hints::is_auto(&service).then(|| Shares::of(&self.nodes.list())).flatten();
        let (mut plan, hinted) = plan(&service, &pods, &zone_of, shares.as_ref(), &slices);
        self.tell_hints(&key, &service, hinted);
        let since = self.trigger_times.since(&service, &pods);
        for slice in plan.create.iter_mut().chain(&mut plan.update) {
            trigger_times::annotate(&mut slice.metadata.annotations, since);
        }
        metrics::slices_planned(&plan, &slices);
        let applied = slices::apply(&self.client, &key, plan, &self.expectations).await;
        metrics::slices_synced(&applied);
        applied.map(|()| Outcome::Done)
    }

    /// Events about topology hints: when a Service has them, when it no longer has, and why it cannot.
    fn tell_hints(&self, key: &NamespacedName, service: &Service, hinted: Hinted) {
        let mut all = self.hinted.lock();
        let had = all.remove(key).unwrap_or(false);
        if !hinted.is_empty() {
            all.insert(key.clone(), hinted.values().any(Result::is_ok));
        }
        drop(all);
        let tell = |kind, reason: &str, what: &dyn std::fmt::Display, family: &str| {
            self.recorder.event(service, kind, reason, "Reconcile", format!("{what}, addressType: {family}"));
        };
        for (family, assigned) in &hinted {
            match assigned {
                Err(refusal) => tell(EventType::Warning, HINTS_DISABLED, refusal, family),
                Ok(()) if !had => {
                    tell(EventType::Normal, HINTS_ENABLED, &"Topology Aware Hints has been enabled", family);
                }
                Ok(()) => {}
            }
        }
        if had && hinted.is_empty() {
            for family in families(service) {
                tell(EventType::Warning, HINTS_DISABLED, &"Topology Aware Hints has been disabled", &family);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::{PodIP, ServicePort};

    use super::*;
    use crate::testing::{deleting, labels as map, named, pod};

    fn service() -> Service {
        let mut service: Service = named("web");
        let spec = service.spec.get_or_insert_default();
        spec.selector = Some(map(&[("app", "web")]));
        spec.cluster_ip = Some("10.96.0.9".into());
        spec.ip_families = Some(vec!["IPv4".into()]);
        spec.ports = Some(vec![ServicePort { name: Some("http".into()), port: 80, ..Default::default() }]);
        service
    }

    fn at_address(index: usize, ready: bool) -> Arc<Pod> {
        let mut pod = pod(&format!("pod-{index}"), "node", "Running", ready.then_some(0));
        pod.status.as_mut().unwrap().pod_ips =
            Some(vec![PodIP { ip: format!("10.1.{}.{}", index / 250, index % 250 + 1) }]);
        Arc::new(pod)
    }

    fn pods(count: usize) -> Vec<Arc<Pod>> {
        (0..count).map(|index| at_address(index, true)).collect()
    }

    fn run(service: &Service, pods: &[Arc<Pod>], slices: &[Arc<EndpointSlice>]) -> Plan {
        plan(service, pods, &|_| Some("zone-a".into()), None, slices).0
    }

    /// The slices as the server would have them after the plan.
    fn after(plan: Plan, mut slices: Vec<Arc<EndpointSlice>>) -> Vec<Arc<EndpointSlice>> {
        slices.retain(|slice| !plan.delete.contains(&slice.name_any()));
        for slice in plan.update {
            slices.retain(|old| old.name_any() != slice.name_any());
            slices.push(Arc::new(slice));
        }
        for mut slice in plan.create {
            slice.metadata.name = Some(format!("web-{}", slices.len()));
            slices.push(Arc::new(slice));
        }
        slices
    }

    fn sizes(slices: &[Arc<EndpointSlice>]) -> Vec<usize> {
        let mut sizes: Vec<usize> =
            slices.iter().map(|slice| slice.endpoints.iter().flatten().count()).collect();
        sizes.sort_unstable();
        sizes
    }

    #[test]
    fn slices_hold_a_hundred_and_settle() {
        let slices = after(run(&service(), &pods(250), &[]), vec![]);
        assert_eq!(sizes(&slices), [50, 100, 100]);
        assert_eq!(run(&service(), &pods(250), &slices), Plan::default());
    }

    #[test]
    fn a_change_touches_as_few_slices_as_it_can() {
        let slices = after(run(&service(), &pods(250), &[]), vec![]);
        let grown = run(&service(), &pods(251), &slices);
        assert_eq!((grown.create.len(), grown.update.len(), grown.delete.len()), (0, 1, 0));
        let mut fewer = pods(250);
        fewer.remove(7);
        let shrunk = run(&service(), &fewer, &slices);
        assert_eq!((shrunk.create.len(), shrunk.update.len(), shrunk.delete.len()), (0, 1, 0));
        fewer.push(at_address(300, true));
        let replaced = run(&service(), &fewer, &slices);
        assert_eq!(
            (replaced.create.len(), replaced.update.len()),
            (0, 1),
            "the slice that lost one gets one"
        );
    }

    #[test]
    fn a_label_that_the_service_loses_leaves_its_slices_too() {
        let mut labelled = service();
        labelled.labels_mut().insert("service.kubernetes.io/service-proxy-name".into(), "other".into());
        let slices = after(run(&labelled, &pods(1), &[]), vec![]);
        let slices = after(run(&service(), &pods(1), &slices), slices);
        assert_eq!(slices[0].labels(), &labels(&service()));
        assert_eq!(run(&service(), &pods(1), &slices), Plan::default());
    }

    #[test]
    fn a_service_without_pods_has_one_empty_slice() {
        let slices = after(run(&service(), &[], &[]), vec![]);
        assert_eq!(sizes(&slices), [0]);
        assert_eq!(run(&service(), &[], &slices), Plan::default());
        let filled = after(run(&service(), &pods(1), &slices), slices);
        assert_eq!(sizes(&filled), [1]);
        assert_eq!(sizes(&after(run(&service(), &[], &filled), filled)), [0]);
    }

    #[test]
    fn conditions_say_what_the_pod_is() {
        let check = |service: &Service, pod: Pod, ready: bool, serving: bool, terminating: bool| {
            let plan = run(service, &[Arc::new(pod)], &[]);
            let conditions = plan.create[0].endpoints.as_ref().unwrap()[0].conditions.clone().unwrap();
            assert_eq!(
                (conditions.ready, conditions.serving, conditions.terminating),
                (Some(ready), Some(serving), Some(terminating))
            );
        };
        check(&service(), (*at_address(1, true)).clone(), true, true, false);
        check(&service(), (*at_address(1, false)).clone(), false, false, false);
        check(&service(), deleting((*at_address(1, true)).clone()), false, true, true);
        let mut eager = service();
        eager.spec.as_mut().unwrap().publish_not_ready_addresses = Some(true);
        check(&eager, (*at_address(1, false)).clone(), true, false, false);
    }

    #[test]
    fn both_families_have_slices_of_their_own() {
        let mut dual = service();
        dual.spec.as_mut().unwrap().ip_families = Some(vec!["IPv4".into(), "IPv6".into()]);
        let mut pod = (*at_address(1, true)).clone();
        pod.status.as_mut().unwrap().pod_ips.as_mut().unwrap().push(PodIP { ip: "fd00::1".into() });
        let plan = run(&dual, &[Arc::new(pod)], &[]);
        let types: Vec<&str> = plan.create.iter().map(|slice| slice.address_type.as_str()).collect();
        assert_eq!(types, ["IPv4", "IPv6"]);
    }

    #[test]
    fn a_slice_of_other_ports_is_rewritten_rather_than_deleted_beside_a_new_one() {
        let check = |slices: &[Arc<EndpointSlice>], pods: &[Arc<Pod>]| {
            let mut moved = service();
            moved.spec.as_mut().unwrap().ports.as_mut().unwrap()[0].port = 81;
            let plan = run(&moved, pods, slices);
            assert_eq!((plan.create.len(), plan.update.len(), plan.delete.len()), (0, 1, 0));
            assert_eq!(plan.update[0].name_any(), slices[0].name_any());
            let slices = after(plan, slices.to_vec());
            assert_eq!(sizes(&slices), [pods.len()]);
            assert_eq!(run(&moved, pods, &slices), Plan::default());
        };
        let empty = after(run(&service(), &[], &[]), vec![]);
        check(&empty, &pods(3));
        check(&after(run(&service(), &pods(3), &[]), vec![]), &pods(3));
    }

    #[test]
    fn slices_of_a_former_service_of_that_name_are_not_taken_over() {
        let slices = after(run(&service(), &pods(1), &[]), vec![]);
        let mut again = service();
        again.metadata.uid = Some("another".into());
        let plan = run(&again, &pods(1), &slices);
        assert_eq!((plan.create.len(), plan.update.len(), plan.delete.len()), (1, 0, 1));
    }

    #[test]
    fn a_service_whose_annotation_asks_for_it_gets_hints_by_zone_for_all_endpoints_or_none() {
        let mut auto = service();
        auto.annotations_mut().insert("service.kubernetes.io/topology-mode".into(), "Auto".into());
        auto.spec.as_mut().unwrap().traffic_distribution = Some("PreferSameZone".into());
        let mut nodes: [Node; 2] = [named("a"), named("b")];
        for node in &mut nodes {
            let name = node.name_any();
            let status = serde_json::json!({
                "allocatable": {"cpu": "2"}, "conditions": [{"type": "Ready", "status": "True"}],
            });
            node.status = serde_json::from_value(status).unwrap();
            node.labels_mut().insert(ZONE.into(), name);
        }
        let shares = Shares::of(&nodes.map(Arc::new));
        let (plan, hinted) = plan(&auto, &pods(2), &|_| Some("a".into()), shares.as_ref(), &[]);
        let zones: Vec<String> = plan.create[0]
            .endpoints
            .iter()
            .flatten()
            .map(|endpoint| endpoint.hints.as_ref().unwrap().for_zones.as_ref().unwrap()[0].name.clone())
            .collect();
        assert_eq!((zones.join(" ").as_str(), hinted), ("b a", Hinted::from([("IPv4".into(), Ok(()))])));

        let slices = after(plan, vec![]);
        let (plan, hinted) = super::plan(&auto, &pods(2), &|_| Some("a".into()), None, &slices);
        assert_eq!(hinted["IPv4"], Err(Refusal::InsufficientNodes));
        assert!(plan.update[0].endpoints.iter().flatten().all(|endpoint| endpoint.hints.is_none()));
    }

    #[test]
    fn traffic_that_should_stay_near_gets_hints() {
        let mut near = service();
        near.spec.as_mut().unwrap().traffic_distribution = Some("PreferSameZone".into());
        let plan = run(&near, &pods(1), &[]);
        let hints = plan.create[0].endpoints.as_ref().unwrap()[0].hints.clone().unwrap();
        assert_eq!(hints.for_zones.unwrap()[0].name, "zone-a");
    }
}
