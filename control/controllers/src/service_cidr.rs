//! ServiceCIDRs: a range is ready when it is known here, and stays until no address of a Service is in it alone.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use ferry_client::{
    Attempt, Client, Error, Event, EventType, Informer, NamespacedName, Outcome, Recorder, error,
};
use jiff::Timestamp;
use k8s_openapi::api::networking::v1::{IPAddress, ServiceCIDR};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::ResourceExt;
use kube::api::{Api, Patch, PatchParams};
use serde_json::json;

use crate::cidr::Cidr;
use crate::context::{Context, Running};

const CONTROLLER: &str = "service-cidr-controller";
const FINALIZER: &str = "networking.k8s.io/service-cidr-finalizer";
const MANAGED_BY: &str = "ipaddress.kubernetes.io/managed-by";
const ALLOCATOR: &str = "ipallocator.k8s.io";
/// API servers give no more addresses from a range by then, wherever they learn of its deletion.
const GRACE: Duration = Duration::from_secs(10);

#[derive(Debug, PartialEq)]
enum Plan {
    /// It is used: it gets the finalizer if it lacks it, and a condition if that changed.
    Keep {
        finalizer: bool,
        condition: Option<Condition>,
    },
    /// Nothing is in it; it may go after this time.
    Wait(Duration),
    Release,
}

fn plan(own: &ServiceCIDR, all: &[Arc<ServiceCIDR>], addresses: &[Arc<IPAddress>], now: Timestamp) -> Plan {
    let has_finalizer = own.finalizers().iter().any(|finalizer| finalizer == FINALIZER);
    let Some(deleted) = &own.metadata.deletion_timestamp else {
        let ready = condition(own, "True", "", "Kubernetes Service CIDR is ready", now);
        return Plan::Keep { finalizer: !has_finalizer, condition: ready };
    };
    if holds_addresses(own, all, addresses) {
        let message = "There are still IPAddresses referencing the ServiceCIDR, please remove them or create a new \
                       ServiceCIDR";
        return Plan::Keep {
            finalizer: false,
            condition: condition(own, "False", "Terminating", message, now),
        };
    }
    let passed = Duration::try_from(now.duration_since(deleted.0)).unwrap_or(Duration::ZERO);
    match GRACE.checked_sub(passed).filter(|left| !left.is_zero()) {
        Some(left) => Plan::Wait(left),
        None if has_finalizer => Plan::Release,
        None => Plan::Keep { finalizer: false, condition: None },
    }
}

/// The condition Ready, unless it says so already.
fn condition(
    own: &ServiceCIDR,
    status: &str,
    reason: &str,
    message: &str,
    now: Timestamp,
) -> Option<Condition> {
    let known = own.status.as_ref().and_then(|status| status.conditions.as_ref()).into_iter().flatten();
    let mut known = known.filter(|condition| condition.type_ == "Ready");
    let same =
        |known: &Condition| (&*known.status, &*known.reason, &*known.message) == (status, reason, message);
    (!known.any(same)).then(|| Condition {
        type_: "Ready".into(),
        status: status.into(),
        reason: reason.into(),
        message: message.into(),
        last_transition_time: Time(now),
        observed_generation: None,
    })
}

/// Is an address of a Service in this range and in no other that stays?
fn holds_addresses(own: &ServiceCIDR, all: &[Arc<ServiceCIDR>], addresses: &[Arc<IPAddress>]) -> bool {
    let stays = |other: &&Arc<ServiceCIDR>| {
        other.name_any() != own.name_any() && other.metadata.deletion_timestamp.is_none()
    };
    let others: Vec<Cidr> = all.iter().filter(stays).flat_map(|other| ranges(other)).collect();
    let ranges = ranges(own);
    addresses.iter().filter_map(|address| service_address(address)).any(|address| {
        ranges.iter().any(|range| range.contains(address))
            && !others.iter().any(|other| other.contains(address))
    })
}

fn ranges(cidr: &ServiceCIDR) -> Vec<Cidr> {
    let cidrs = cidr.spec.as_ref().and_then(|spec| spec.cidrs.as_ref()).into_iter().flatten();
    cidrs.filter_map(|cidr| cidr.parse().ok()).collect()
}

/// An address that the API server's allocator gave to a Service.
fn service_address(address: &IPAddress) -> Option<IpAddr> {
    address.labels().get(MANAGED_BY).filter(|manager| *manager == ALLOCATOR)?;
    address.metadata.name.as_deref()?.parse().ok()
}

struct Controller {
    client: Client,
    cidrs: Informer<ServiceCIDR>,
    addresses: Informer<IPAddress>,
    recorder: Recorder,
}

pub fn start(context: &Context) -> Running {
    let builder = context.controller(CONTROLLER);
    let (cidrs, addresses) = (builder.informer(), builder.informer());
    let controller = Arc::new(Controller {
        client: context.client.clone(),
        cidrs: cidrs.clone(),
        addresses: addresses.clone(),
        recorder: context.recorder(CONTROLLER),
    });
    builder
        .of(&cidrs, controller)
        .watches(&cidrs, Controller::overlapping)
        .watches(&addresses, Controller::containing)
        .run(Controller::reconcile)
}

impl Controller {
    /// A range that comes or goes may hold what another is waiting for.
    fn overlapping(&self, event: &Event<ServiceCIDR>) -> Vec<NamespacedName> {
        let ranges = ranges(event.object());
        self.deleting(|range| ranges.iter().any(|one| one.overlaps(range)))
    }

    fn containing(&self, event: &Event<IPAddress>) -> Vec<NamespacedName> {
        match service_address(event.object()) {
            Some(address) => self.deleting(|range| range.contains(address)),
            None => Vec::new(),
        }
    }

    fn deleting(&self, concerns: impl Fn(&Cidr) -> bool) -> Vec<NamespacedName> {
        let mut cidrs = self.cidrs.list();
        cidrs.retain(|cidr| cidr.metadata.deletion_timestamp.is_some() && ranges(cidr).iter().any(&concerns));
        cidrs.iter().map(|cidr| NamespacedName::of(&**cidr)).collect()
    }

    async fn reconcile(self: Arc<Self>, key: NamespacedName) -> Result<Outcome, Error> {
        let Some(cidr) = self.cidrs.get(&key) else { return Ok(Outcome::Done) };
        match plan(&cidr, &self.cidrs.list(), &self.addresses.list(), Timestamp::now()) {
            Plan::Wait(left) => return Ok(Outcome::After(left)),
            Plan::Release => {
                let patch = json!({"metadata": {"$deleteFromPrimitiveList/finalizers": [FINALIZER]}});
                self.patch(&key, patch).await?;
            }
            Plan::Keep { finalizer, condition } => {
                if finalizer {
                    self.patch(&key, json!({"metadata": {"finalizers": [FINALIZER]}})).await?;
                }
                if let Some(condition) = condition {
                    self.write_condition(&cidr, condition).await?;
                }
            }
        }
        Ok(Outcome::Done)
    }

    async fn patch(&self, key: &NamespacedName, patch: serde_json::Value) -> Result<(), Error> {
        let api: Api<ServiceCIDR> = Api::all(self.client.clone());
        let patched = api.patch(&key.name, &PatchParams::default(), &Patch::Strategic(patch)).await;
        error::ignore_not_found(patched).attempting("write finalizer").map(|_| ())
    }

    async fn write_condition(&self, cidr: &ServiceCIDR, condition: Condition) -> Result<(), Error> {
        let api: Api<ServiceCIDR> = Api::all(self.client.clone());
        let status = json!({"apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR",
            "metadata": {"name": cidr.name_any()}, "status": {"conditions": [condition]}});
        let params = PatchParams::apply(CONTROLLER).force();
        let written = api.patch_status(&cidr.name_any(), &params, &Patch::Apply(&status)).await;
        let written = error::ignore_not_found(written).attempting("write condition");
        if written.is_err() && condition.status == "True" {
            let note = "The ServiceCIDR Status can not be set to Ready=True";
            self.recorder.event(cidr, EventType::Warning, "KubernetesServiceCIDRError", "Write", note);
        }
        written.map(|_| ())
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::networking::v1::{ServiceCIDRSpec, ServiceCIDRStatus};

    use super::*;
    use crate::testing::{at, deleting, labels, named};

    fn cidr(name: &str, cidrs: &[&str]) -> ServiceCIDR {
        let mut cidr: ServiceCIDR = named(name);
        cidr.spec = Some(ServiceCIDRSpec { cidrs: Some(cidrs.iter().map(ToString::to_string).collect()) });
        cidr
    }

    fn protected(mut cidr: ServiceCIDR) -> ServiceCIDR {
        cidr.metadata.finalizers = Some(vec![FINALIZER.into()]);
        cidr
    }

    fn address(text: &str, manager: &str) -> Arc<IPAddress> {
        let mut address: IPAddress = named(text);
        address.metadata.labels = Some(labels(&[(MANAGED_BY, manager)]));
        Arc::new(address)
    }

    #[test]
    fn a_range_is_protected_and_ready_once() {
        let mut range = cidr("a", &["10.0.0.0/16"]);
        let Plan::Keep { finalizer: true, condition: Some(ready) } = plan(&range, &[], &[], at(0)) else {
            panic!("it is new")
        };
        assert_eq!(
            (ready.status.as_str(), ready.message.as_str()),
            ("True", "Kubernetes Service CIDR is ready")
        );
        range.status = Some(ServiceCIDRStatus { conditions: Some(vec![ready]) });
        let done = Plan::Keep { finalizer: false, condition: None };
        assert_eq!(plan(&protected(range), &[], &[], at(9)), done);
    }

    #[test]
    fn a_range_stays_while_an_address_is_in_it_alone() {
        let used = [address("10.0.0.7", ALLOCATOR)];
        let going = deleting(protected(cidr("a", &["10.0.0.0/16", "fd00::/108"])));
        let check = |others: &[ServiceCIDR], addresses: &[Arc<IPAddress>], expected: &str| {
            let all: Vec<Arc<ServiceCIDR>> = others.iter().chain([&going]).cloned().map(Arc::new).collect();
            let found = match plan(&going, &all, addresses, at(60)) {
                Plan::Keep { condition, .. } => condition.expect("says why").reason,
                Plan::Wait(_) => "waits".into(),
                Plan::Release => "goes".into(),
            };
            assert_eq!(found, expected);
        };
        check(&[], &used, "Terminating");
        check(&[], &[], "goes");
        check(&[], &[address("10.1.0.7", ALLOCATOR)], "goes");
        check(&[], &[address("10.0.0.7", "somebody else")], "goes");
        check(&[], &[address("fd00::1", ALLOCATOR)], "Terminating");
        check(&[cidr("larger", &["10.0.0.0/8"])], &used, "goes");
        check(&[cidr("equal", &["10.0.0.0/16"])], &used, "goes");
        check(&[cidr("elsewhere", &["10.9.0.0/16"])], &used, "Terminating");
        check(&[deleting(cidr("larger", &["10.0.0.0/8"]))], &used, "Terminating");
    }

    #[test]
    fn a_range_waits_until_nobody_gives_addresses_from_it() {
        let going = deleting(protected(cidr("a", &["10.0.0.0/16"])));
        assert_eq!(plan(&going, &[], &[], at(4)), Plan::Wait(Duration::from_secs(6)));
        assert_eq!(plan(&going, &[], &[], at(10)), Plan::Release);
        let unprotected = deleting(cidr("a", &["10.0.0.0/16"]));
        assert_eq!(plan(&unprotected, &[], &[], at(10)), Plan::Keep { finalizer: false, condition: None });
    }
}
