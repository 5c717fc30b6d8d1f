//! Keeps Services and IPAddresses in step: a Service's address is an IPAddress that refers to it, and an IPAddress that
//! the allocator made refers to a Service that has it. The allocator writes both in one transaction; this mends what
//! others did to them. Upstream's API server has the same loop, under the same name.
//!
//! It reads the registry's caches. They follow one another by a moment, so what looks wrong there is read again from
//! the store before anything is done about it.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use ferry_api::GroupResource;
use ferry_client::controller::Builder;
use ferry_client::events::Events;
use ferry_client::reconcile::Key;
use ferry_client::{Attempt, Error, EventType, Informers, NamespacedName, Outcome, Queue, Recorder, error};
use ferry_registry::Registry;
use ferry_registry::cache::Delta;
use ferry_registry::settings::AddressRange;
use futures::future::BoxFuture;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::networking::v1::{IPAddress, IPAddressSpec, ParentReference, ServiceCIDR};
use kube::api::{DeleteParams, ObjectMeta, PostParams};
use kube::{Api, Client, ResourceExt};
use serde::de::DeserializeOwned;
use tokio_util::sync::CancellationToken;

use crate::follow::{self, Feed, object_of};

const NAME: &str = "ipallocator-repair-controller";
const FAMILY: &str = "ipaddress.kubernetes.io/ip-family";
const MANAGED_BY: &str = "ipaddress.kubernetes.io/managed-by";
const ALLOCATOR: &str = "ipallocator.k8s.io";
/// Other API servers on the same store make an address first, and have a request's time for its Service.
const UNFINISHED: Duration = Duration::from_secs(60);
/// They take an address back where the Service was refused.
const REVERTED: Duration = Duration::from_secs(5);

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Subject {
    Service(NamespacedName),
    Address(NamespacedName),
}

impl fmt::Display for Subject {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Subject::Service(name) => write!(formatter, "services/{name}"),
            Subject::Address(name) => write!(formatter, "ipaddresses/{name}"),
        }
    }
}

impl Key for Subject {
    fn object(&self) -> Option<&NamespacedName> {
        match self {
            Subject::Service(name) | Subject::Address(name) => Some(name),
        }
    }
}

/// What is wrong with a Service's address.
#[derive(Debug, PartialEq, Eq)]
enum Fault {
    OutOfRange,
    NotAllocated,
    /// The IPAddress refers to something that does not have the address.
    WrongReference,
    /// The IPAddress refers to another Service that has it too.
    AlreadyAllocated,
    WrongLabels,
}

/// `referred` is the Service that the IPAddress refers to.
fn fault(
    service: &Service,
    address: IpAddr,
    object: Option<&IPAddress>,
    referred: Option<&Service>,
    ranges: &[AddressRange],
) -> Option<Fault> {
    if !ranges.iter().any(|range| range.contains(address)) {
        return Some(Fault::OutOfRange);
    }
    let Some(object) = object else { return Some(Fault::NotAllocated) };
    let parent = &object.spec.parent_ref;
    if !refers_to_a_service(parent) {
        return Some(Fault::WrongReference);
    }
    if parent_name(parent) != NamespacedName::of(service) {
        return match referred {
            None => Some(Fault::WrongReference),
            Some(referred) if cluster_ips(referred).any(|text| text == object.name_any()) => {
                Some(Fault::AlreadyAllocated)
            }
            Some(_) => Some(Fault::WrongReference),
        };
    }
    let has = |label: &str, value: &str| object.labels().get(label).is_some_and(|given| given == value);
    (!has(FAMILY, family(address)) || !has(MANAGED_BY, ALLOCATOR)).then_some(Fault::WrongLabels)
}

/// What the repair does with an IPAddress of the allocator.
#[derive(Debug, PartialEq, Eq)]
enum RepairAction {
    Stays,
    /// Its Service may still be coming.
    Waits(Duration),
    Leaked,
    /// It does not refer to a Service any more.
    Modified,
    WrongReference,
}

fn fate(object: &IPAddress, service: Option<&Service>, now: Timestamp) -> RepairAction {
    if object.labels().get(MANAGED_BY).is_none_or(|manager| manager != ALLOCATOR) {
        return RepairAction::Stays;
    }
    if !refers_to_a_service(&object.spec.parent_ref) {
        return RepairAction::Modified;
    }
    let age = object
        .creation_timestamp()
        .map_or(Duration::MAX, |made| now.duration_since(made.0).try_into().unwrap_or(Duration::ZERO));
    let (patience, otherwise) = match service {
        Some(service) if cluster_ips(service).any(|text| text == object.name_any()) => {
            return RepairAction::Stays;
        }
        None => (UNFINISHED, RepairAction::Leaked),
        Some(service) if is_external_name(service) => (UNFINISHED, RepairAction::WrongReference),
        Some(_) => (REVERTED, RepairAction::WrongReference),
    };
    match patience.saturating_sub(age) {
        Duration::ZERO => otherwise,
        left => RepairAction::Waits(left),
    }
}

/// One that has no address, and may be getting one.
fn is_external_name(service: &Service) -> bool {
    service.spec.as_ref().is_some_and(|spec| spec.type_.as_deref() == Some("ExternalName"))
}

fn refers_to_a_service(parent: &ParentReference) -> bool {
    parent.group.as_deref().unwrap_or("").is_empty() && parent.resource == "services"
}

fn parent_name(parent: &ParentReference) -> NamespacedName {
    NamespacedName::new(parent.namespace.clone().unwrap_or_default(), parent.name.clone())
}

/// Headless services have `None`, and no address.
fn cluster_ips(service: &Service) -> impl Iterator<Item = &str> {
    let addresses = service.spec.as_ref().and_then(|spec| spec.cluster_ips.as_ref());
    addresses.into_iter().flatten().map(String::as_str).filter(|text| *text != "None")
}

fn family(address: IpAddr) -> &'static str {
    if address.is_ipv4() { "IPv4" } else { "IPv6" }
}

fn address_of(address: IpAddr, service: &Service) -> IPAddress {
    let labels = [(FAMILY, family(address)), (MANAGED_BY, ALLOCATOR)];
    IPAddress {
        metadata: ObjectMeta {
            name: Some(address.to_string()),
            labels: Some(labels.map(|(label, value)| (label.into(), value.into())).into()),
            ..ObjectMeta::default()
        },
        spec: IPAddressSpec {
            parent_ref: ParentReference {
                group: None,
                resource: "services".into(),
                namespace: service.namespace(),
                name: service.name_any(),
            },
        },
    }
}

struct Repair {
    registry: Arc<Registry>,
    client: Client,
    recorder: Recorder,
    queue: Queue<Subject>,
}

const FEEDS: &[Feed<Repair>] = &[
    Feed {
        group: "",
        plural: "services",
        namespace: "",
        apply: |repair, deltas| {
            for delta in deltas {
                if let Delta::Set { entry, .. } = delta {
                    repair.queue.add(Subject::Service(NamespacedName::new(entry.namespace(), entry.name())));
                }
            }
        },
    },
    Feed {
        group: "networking.k8s.io",
        plural: "ipaddresses",
        namespace: "",
        apply: |repair, deltas| {
            for delta in deltas {
                match delta {
                    Delta::Set { entry, .. } => {
                        repair.queue.add(Subject::Address(NamespacedName::cluster(entry.name())));
                    }
                    // The Service may still have it.
                    Delta::Gone(entry) => {
                        if let Some(object) = object_of::<IPAddress>(entry) {
                            repair.queue.add(Subject::Service(parent_name(&object.spec.parent_ref)));
                        }
                    }
                }
            }
        },
    },
];

/// Looks at everything that there is, then at what changes. The cluster's own ServiceCIDR is written before.
pub fn start(
    registry: Arc<Registry>,
    client: Client,
    instance: &str,
    stop: CancellationToken,
) -> BoxFuture<'static, ()> {
    let events = Events::start(client.clone(), instance, stop.clone());
    let builder = Builder::new(NAME, Informers::new(client.clone(), stop), 1);
    let queue = builder.queue();
    let recorder = events.reporting_recorder(NAME);
    let repair = Arc::new(Repair { registry, client, recorder, queue: queue.clone() });
    follow::follow(&repair.registry, &repair, FEEDS);
    builder.over("", queue, repair).run(Repair::reconcile)
}

impl Repair {
    async fn reconcile(self: Arc<Self>, subject: Subject) -> Result<Outcome, Error> {
        match subject {
            Subject::Service(name) => self.service(&name).await.map(|()| Outcome::Done),
            Subject::Address(name) => self.address(&name).await,
        }
    }

    async fn service(&self, name: &NamespacedName) -> Result<(), Error> {
        let Some(service) = self.cached::<Service>("", "services", name) else { return Ok(()) };
        let ranges = self.ranges();
        let looks_fine = cluster_ips(&service).all(|text| {
            let Ok(address) = text.parse() else { return false };
            let object = self.cached("networking.k8s.io", "ipaddresses", &NamespacedName::cluster(text));
            // Whom it refers to otherwise matters only where something is wrong.
            fault(&service, address, object.as_ref(), None, &ranges).is_none()
        });
        if looks_fine {
            return Ok(());
        }
        let services: Api<Service> = Api::namespaced(self.client.clone(), &name.namespace);
        let service = services.get_opt(&name.name).await.attempting("read service")?;
        let Some(service) = service else { return Ok(()) };
        for text in cluster_ips(&service) {
            match text.parse() {
                Ok(address) => self.service_address(&service, address, &ranges).await?,
                Err(_) => {
                    let note = format!("Cluster IP {text} is not a valid IP; please recreate Service");
                    self.record_event(&service, "ClusterIPNotValid", "ClusterIPValidation", note);
                }
            }
        }
        Ok(())
    }

    async fn service_address(
        &self,
        service: &Service,
        address: IpAddr,
        ranges: &[AddressRange],
    ) -> Result<(), Error> {
        let addresses: Api<IPAddress> = Api::all(self.client.clone());
        let object = addresses.get_opt(&address.to_string()).await.attempting("read address")?;
        let referred = match &object {
            Some(object) if refers_to_a_service(&object.spec.parent_ref) => {
                let parent = parent_name(&object.spec.parent_ref);
                let services: Api<Service> = Api::namespaced(self.client.clone(), &parent.namespace);
                services.get_opt(&parent.name).await.attempting("read service")?
            }
            _ => None,
        };
        let Some(fault) = fault(service, address, object.as_ref(), referred.as_ref(), ranges) else {
            return Ok(());
        };
        let family = family(address);
        let (reason, note) = match fault {
            Fault::OutOfRange => (
                "ClusterIPOutOfRange",
                format!(
                    "Cluster IP [{family}]: {address} is not within any configured Service CIDR; please recreate service"
                ),
            ),
            Fault::AlreadyAllocated => (
                "ClusterIPAlreadyAllocated",
                format!(
                    "Cluster IP [{family}]:{address} was assigned to multiple services; please recreate service"
                ),
            ),
            Fault::NotAllocated => (
                "ClusterIPNotAllocated",
                format!("Cluster IP [{family}]: {address} is not allocated; repairing"),
            ),
            Fault::WrongReference | Fault::WrongLabels => (
                "ClusterIPNotAllocated",
                format!(
                    "the ClusterIP [{family}]: {address} for Service {} has a wrong reference; repairing",
                    NamespacedName::of(service)
                ),
            ),
        };
        if fault != Fault::WrongLabels {
            self.record_event(service, reason, "ClusterIPAllocation", note);
        }
        if matches!(fault, Fault::OutOfRange | Fault::AlreadyAllocated) {
            return Ok(());
        }
        if object.is_some() {
            self.delete(&address.to_string()).await?;
        }
        match addresses.create(&PostParams::default(), &address_of(address, service)).await {
            // Another server was faster.
            Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(()),
            created => created.attempting("create address").map(|_| ()),
        }
    }

    async fn address(&self, name: &NamespacedName) -> Result<Outcome, Error> {
        let Some(object) = self.cached::<IPAddress>("networking.k8s.io", "ipaddresses", name) else {
            return Ok(Outcome::Done);
        };
        let parent = parent_name(&object.spec.parent_ref);
        let service = self.cached::<Service>("", "services", &parent);
        let now = Timestamp::now();
        match fate(&object, service.as_ref(), now) {
            RepairAction::Stays => {
                // Where it does not belong to the Service that has it, the Service's own turn mends that.
                return Ok(Outcome::Done);
            }
            RepairAction::Waits(left) => return Ok(Outcome::After(left)),
            RepairAction::Leaked | RepairAction::Modified | RepairAction::WrongReference => {}
        }
        let addresses: Api<IPAddress> = Api::all(self.client.clone());
        let object = addresses.get_opt(&name.name).await.attempting("read address")?;
        let Some(object) = object else { return Ok(Outcome::Done) };
        let parent = parent_name(&object.spec.parent_ref);
        let service = if refers_to_a_service(&object.spec.parent_ref) {
            let services: Api<Service> = Api::namespaced(self.client.clone(), &parent.namespace);
            services.get_opt(&parent.name).await.attempting("read service")?
        } else {
            None
        };
        let (reason, note) = match fate(&object, service.as_ref(), now) {
            RepairAction::Stays => return Ok(Outcome::Done),
            RepairAction::Waits(left) => return Ok(Outcome::After(left)),
            RepairAction::Leaked => (
                "IPAddressNotAllocated",
                format!("IPAddress: {} for Service {parent} appears to have leaked: cleaning up", name.name),
            ),
            RepairAction::Modified => (
                "IPAddressNotAllocated",
                format!(
                    "IPAddress {} appears to have been modified, not referencing a Service {parent}: cleaning up",
                    name.name
                ),
            ),
            RepairAction::WrongReference => (
                "IPAddressWrongReference",
                format!("IPAddress: {} for Service {parent} has a wrong reference; cleaning up", name.name),
            ),
        };
        self.record_event(&object, reason, "IPAddressAllocation", note);
        self.delete(&name.name).await?;
        Ok(Outcome::Done)
    }

    fn record_event<K: kube::Resource<DynamicType = ()>>(
        &self,
        about: &K,
        reason: &str,
        action: &str,
        note: String,
    ) {
        tracing::warn!(reason, note, "an IP address and its Service are inconsistent");
        self.recorder.event(about, EventType::Warning, reason, action, note);
    }

    async fn delete(&self, name: &str) -> Result<(), Error> {
        let addresses: Api<IPAddress> = Api::all(self.client.clone());
        let deleted = addresses.delete(name, &DeleteParams::default()).await;
        error::ignore_not_found(deleted).attempting("delete address").map(|_| ())
    }

    fn cached<T: DeserializeOwned>(
        &self,
        group: &'static str,
        plural: &'static str,
        name: &NamespacedName,
    ) -> Option<T> {
        let resource = self.registry.resource(&GroupResource::new(group, plural))?;
        object_of(&*resource.cache.get(&resource.key(&name.namespace, &name.name))?)
    }

    /// Those of all ServiceCIDRs, ready or not.
    fn ranges(&self) -> Vec<AddressRange> {
        let cidrs = GroupResource::new("networking.k8s.io", "servicecidrs");
        let Some(cidrs) = self.registry.resource(&cidrs) else { return Vec::new() };
        let (snapshot, _) = cidrs.cache.snapshot();
        let ranges = |cidr: ServiceCIDR| cidr.spec.and_then(|spec| spec.cidrs).unwrap_or_default();
        snapshot
            .values()
            .filter_map(|entry| object_of(entry))
            .flat_map(ranges)
            .filter_map(|text| text.parse().ok())
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const ADDRESS: &str = "10.96.0.9";

    fn service(name: &str, addresses: &[&str]) -> Service {
        let value =
            json!({"metadata": {"namespace": "default", "name": name}, "spec": {"clusterIPs": addresses}});
        serde_json::from_value(value).expect("a Service")
    }

    fn address(parent: Value, labels: Value) -> IPAddress {
        let metadata =
            json!({"name": ADDRESS, "creationTimestamp": "2026-01-01T00:00:00Z", "labels": labels});
        serde_json::from_value(json!({"metadata": metadata, "spec": {"parentRef": parent}}))
            .expect("an IPAddress")
    }

    fn of_service(name: &str) -> IPAddress {
        address(json!({"resource": "services", "namespace": "default", "name": name}), labels())
    }

    fn labels() -> Value {
        json!({FAMILY: "IPv4", MANAGED_BY: ALLOCATOR})
    }

    #[test]
    fn repair_finds_faults_of_service_addresses() {
        let web = service("web", &[ADDRESS]);
        let check =
            |object: Option<IPAddress>, referred: Option<Service>, range: &str, expected: Option<Fault>| {
                let ranges = [range.parse().expect("a range")];
                let found = fault(
                    &web,
                    ADDRESS.parse().expect("an address"),
                    object.as_ref(),
                    referred.as_ref(),
                    &ranges,
                );
                assert_eq!(found, expected, "{object:?} {referred:?}");
            };
        let range = "10.96.0.0/16";
        check(Some(of_service("web")), None, range, None);
        check(None, None, range, Some(Fault::NotAllocated));
        check(None, None, "10.1.0.0/16", Some(Fault::OutOfRange));
        check(Some(of_service("gone")), None, range, Some(Fault::WrongReference));
        let other = || Some(of_service("other"));
        check(other(), Some(service("other", &["10.96.0.10"])), range, Some(Fault::WrongReference));
        check(other(), Some(service("other", &[ADDRESS])), range, Some(Fault::AlreadyAllocated));
        let gateway = json!({"group": "gateway.networking.k8s.io", "resource": "gateways", "name": "web"});
        check(Some(address(gateway, labels())), None, range, Some(Fault::WrongReference));
        let parent = || json!({"resource": "services", "namespace": "default", "name": "web"});
        check(Some(address(parent(), json!({}))), None, range, Some(Fault::WrongLabels));
        let six = json!({FAMILY: "IPv6", MANAGED_BY: ALLOCATOR});
        check(Some(address(parent(), six)), None, range, Some(Fault::WrongLabels));
    }

    #[test]
    fn repair_decides_what_to_do_with_an_address() {
        let at = |seconds: i64| Timestamp::new(1_767_225_600 + seconds, 0).expect("a time");
        let check = |object: IPAddress, service: Option<Service>, seconds: i64, expected: RepairAction| {
            assert_eq!(
                fate(&object, service.as_ref(), at(seconds)),
                expected,
                "{object:?} {service:?} {seconds}"
            );
        };
        check(of_service("web"), Some(service("web", &[ADDRESS])), 100, RepairAction::Stays);
        check(of_service("web"), None, 20, RepairAction::Waits(Duration::from_secs(40)));
        check(of_service("web"), None, -5, RepairAction::Waits(Duration::from_secs(60)));
        check(of_service("web"), None, 61, RepairAction::Leaked);
        let other = || Some(service("web", &["10.96.0.10"]));
        check(of_service("web"), other(), 2, RepairAction::Waits(Duration::from_secs(3)));
        check(of_service("web"), other(), 6, RepairAction::WrongReference);
        let mut external = service("web", &[]);
        external.spec.as_mut().expect("a spec").type_ = Some("ExternalName".into());
        check(of_service("web"), Some(external.clone()), 6, RepairAction::Waits(Duration::from_secs(54)));
        check(of_service("web"), Some(external), 61, RepairAction::WrongReference);
        let gateway = || json!({"group": "gateway.networking.k8s.io", "resource": "gateways", "name": "g"});
        check(address(gateway(), labels()), None, 0, RepairAction::Modified);
        check(address(gateway(), json!({})), None, 100, RepairAction::Stays);
    }
}
