//! Slices for Endpoints that someone wrote by hand, for services without a selector: so that
//! readers of slices see them too.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use ferry_client::{Client, Error, Event, Expectations, Index, Informer, NamespacedName, Outcome};
use k8s_openapi::api::core::v1::{EndpointAddress, Endpoints, Service};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointConditions, EndpointSlice};
use kube::ResourceExt;

use crate::context::{Context, Running};
use crate::slices::{self, MANAGED_BY, Plan, Port, SERVICE_NAME, Shape, Wanted, identity};

const CONTROLLER: &str = "endpointslice-mirroring-controller";
const MANAGER: &str = "endpointslicemirroring-controller.k8s.io";
const SKIP: &str = "endpointslice.kubernetes.io/skip-mirror";
const LEADER: &str = "control-plane.alpha.kubernetes.io/leader";
/// More addresses than this per subset are not mirrored.
const MAX_PER_SUBSET: usize = 1000;

fn is_mirrored(endpoints: &Endpoints, service: Option<&Service>) -> bool {
    let skipped = endpoints.labels().get(SKIP).is_some_and(|skip| skip == "true");
    let lock = endpoints.annotations().contains_key(LEADER);
    // With a selector the slices are made from pods; without a service there is nothing to reach.
    let by_hand = service.is_some_and(|service| {
        service.spec.as_ref().and_then(|spec| spec.selector.as_ref()).is_none_or(BTreeMap::is_empty)
    });
    !skipped && !lock && by_hand && endpoints.metadata.deletion_timestamp.is_none()
}

fn wanted(endpoints: &Endpoints) -> Wanted {
    let mut wanted = Wanted::new();
    for subset in endpoints.subsets.iter().flatten() {
        let ports = subset.ports.iter().flatten().map(|port| Port {
            name: port.name.clone().unwrap_or_default(),
            protocol: port.protocol.clone().unwrap_or_else(|| "TCP".into()),
            number: Some(port.port),
            app_protocol: port.app_protocol.clone(),
        });
        let mut ports: Vec<Port> = ports.collect();
        ports.sort();
        let ready = subset.addresses.iter().flatten().map(|address| (address, true));
        let unready = subset.not_ready_addresses.iter().flatten().map(|address| (address, false));
        for (address, ready) in ready.chain(unready).take(MAX_PER_SUBSET) {
            // What is no address was never reachable.
            let Ok(ip) = address.ip.parse::<IpAddr>() else { continue };
            let address_type = if ip.is_ipv4() { "IPv4" } else { "IPv6" };
            let shape = Shape { address_type: address_type.into(), ports: ports.clone() };
            let endpoint = mirror(address, ready);
            wanted.entry(shape).or_default().insert(identity(&endpoint), endpoint);
        }
    }
    wanted
}

fn mirror(address: &EndpointAddress, ready: bool) -> Endpoint {
    Endpoint {
        addresses: vec![address.ip.clone()],
        conditions: Some(EndpointConditions { ready: Some(ready), ..Default::default() }),
        hostname: address.hostname.clone(),
        node_name: address.node_name.clone(),
        target_ref: address.target_ref.clone(),
        ..Default::default()
    }
}

fn labels(endpoints: &Endpoints) -> BTreeMap<String, String> {
    let mut labels = endpoints.labels().clone();
    labels.insert(SERVICE_NAME.into(), endpoints.name_any());
    labels.insert(MANAGED_BY.into(), MANAGER.into());
    labels
}

struct Controller {
    client: Client,
    endpoints: Informer<Endpoints>,
    services: Informer<Service>,
    slices: Index<EndpointSlice>,
    expectations: Expectations<NamespacedName>,
}

fn owner(slice: &EndpointSlice) -> Option<NamespacedName> {
    let ours = slice.labels().get(MANAGED_BY).is_some_and(|manager| manager == MANAGER);
    let name = slice.labels().get(SERVICE_NAME).filter(|_| ours)?;
    Some(NamespacedName::new(slice.namespace().unwrap_or_default(), name.clone()))
}

pub fn start(context: &Context) -> Running {
    let builder = context.controller(CONTROLLER);
    let endpoints = builder.informer::<Endpoints>();
    let services = builder.informer::<Service>();
    let slices = builder.informer::<EndpointSlice>();
    let controller = Arc::new(Controller {
        client: context.client.clone(),
        endpoints: endpoints.clone(),
        services: services.clone(),
        slices: slices.index("mirror", |slice: &EndpointSlice| {
            owner(slice).map(|key| key.to_string()).into_iter().collect()
        }),
        expectations: Expectations::default(),
    });
    builder
        .of(&endpoints, controller)
        .watches(&services, |_, event| vec![event.key()])
        .watches(&slices, Controller::slice_changed)
        .run(Controller::reconcile)
}

impl Controller {
    fn slice_changed(&self, event: &Event<EndpointSlice>) -> Vec<NamespacedName> {
        let key = owner(event.object());
        if let (Event::Added(_), Some(key)) = (event, &key) {
            self.expectations.creation_observed(key);
        }
        key.into_iter().collect()
    }

    async fn reconcile(self: Arc<Self>, key: NamespacedName) -> Result<Outcome, Error> {
        if !self.expectations.satisfied(&key) {
            return Ok(Outcome::Done);
        }
        let existing = self.slices.get(&key.to_string());
        let service = self.services.get(&key);
        let mirrored =
            self.endpoints.get(&key).filter(|endpoints| is_mirrored(endpoints, service.as_deref()));
        let plan = match mirrored {
            Some(endpoints) => slices::plan(&*endpoints, wanted(&endpoints), &labels(&endpoints), &existing),
            None => {
                Plan { delete: existing.iter().map(|slice| slice.name_any()).collect(), ..Default::default() }
            }
        };
        slices::apply(&self.client, &key, plan, &self.expectations).await?;
        Ok(Outcome::Done)
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::{EndpointPort, EndpointSubset};

    use super::*;
    use crate::testing::{labels as map, named};

    fn endpoints(ips: &[&str]) -> Endpoints {
        let mut endpoints: Endpoints = named("db");
        let addresses = ips.iter().map(|ip| EndpointAddress { ip: ip.to_string(), ..Default::default() });
        endpoints.subsets = Some(vec![EndpointSubset {
            addresses: Some(addresses.collect()),
            ports: Some(vec![EndpointPort { port: 5432, ..Default::default() }]),
            ..Default::default()
        }]);
        endpoints
    }

    #[test]
    fn only_what_someone_wrote_for_a_service_without_selector_is_mirrored() {
        let mut service: Service = named("db");
        assert!(is_mirrored(&endpoints(&[]), Some(&service)));
        assert!(!is_mirrored(&endpoints(&[]), None));
        let mut skipped = endpoints(&[]);
        skipped.metadata.labels = Some(map(&[(SKIP, "true")]));
        assert!(!is_mirrored(&skipped, Some(&service)));
        service.spec.get_or_insert_default().selector = Some(map(&[("app", "db")]));
        assert!(!is_mirrored(&endpoints(&[]), Some(&service)));
    }

    #[test]
    fn each_family_has_its_slice_and_nonsense_none() {
        let source = endpoints(&["192.0.2.1", "192.0.2.2", "2001:db8::1", "not an address"]);
        let plan = slices::plan(&source, wanted(&source), &labels(&source), &[]);
        let counts: Vec<usize> =
            plan.create.iter().map(|slice| slice.endpoints.iter().flatten().count()).collect();
        assert_eq!(counts, [2, 1]);
        assert_eq!(plan.create[0].labels()[MANAGED_BY], MANAGER);
    }
}
