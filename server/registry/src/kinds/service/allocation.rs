//! Addresses and node ports, given out in the transaction that writes the service.
//!
//! An address is an IPAddress object of the same name, as upstream keeps it; a node port is a marker key.
//! Both must be absent when the transaction commits, so two servers on one store cannot give the same one
//! twice: the loser draws again.

use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::Arc;

use bytes::Bytes;
use ferry_api::{FieldErrors, GroupResource, Object, Status};
use ferry_store::{Compare, Operation};
use rand::RngExt;
use serde_json::{Value, json};

use super::shape;
use crate::registry::{ROOT, Registry};
use crate::settings::AddressRange;
use crate::strategy::TxnPart;

pub fn txn_parts(
    registry: &Registry,
    new: Option<&mut Object>,
    old: Option<&Object>,
) -> Result<Vec<TxnPart>, Status> {
    let mut txn_parts = Vec::new();
    let before = old.map(addresses).unwrap_or_default();
    let ports_before: HashSet<u16> = old.map(port_numbers).unwrap_or_default();
    let (after, ports_after) = match new {
        None => (Vec::new(), HashSet::new()),
        Some(service) => {
            give_addresses(registry, service, &before)?;
            give_node_ports(registry, service, &ports_before)?;
            for address in addresses(service).iter().filter(|address| !before.contains(address)) {
                txn_parts.push(claim_address(registry, *address, service)?);
            }
            for port in port_numbers(service).difference(&ports_before) {
                txn_parts.push(claim_port(*port, service));
            }
            (addresses(service), port_numbers(service))
        }
    };
    for address in before.iter().filter(|address| !after.contains(address)) {
        txn_parts.push(release(address_key(*address)));
    }
    for port in ports_before.difference(&ports_after) {
        txn_parts.push(release(port_key(*port)));
    }
    Ok(txn_parts)
}

fn addresses(service: &Object) -> Vec<IpAddr> {
    super::texts(service, &["spec", "clusterIPs"]).filter_map(|text| text.parse().ok()).collect()
}

fn port_numbers(service: &Object) -> HashSet<u16> {
    shape::node_ports(service).into_iter().map(|(_, port)| port).collect()
}

fn address_key(address: IpAddr) -> Arc<str> {
    format!("{ROOT}ipaddresses/{address}").into()
}

fn port_key(port: u16) -> Arc<str> {
    format!("{ROOT}ranges/ferry-nodeports/{port}").into()
}

fn claim_address(registry: &Registry, address: IpAddr, service: &Object) -> Result<TxnPart, Status> {
    let family = family_of(address);
    let mut object = Object::default();
    object.set_type("networking.k8s.io/v1", "IPAddress");
    let metadata = json!({
        "name": address.to_string(),
        "uid": uuid::Uuid::new_v4().to_string(),
        "creationTimestamp": service.meta("creationTimestamp"),
        "generation": 1,
        "labels": {
            "ipaddress.kubernetes.io/ip-family": family,
            "ipaddress.kubernetes.io/managed-by": "ipallocator.k8s.io",
        },
    });
    object.0.insert("metadata".into(), metadata);
    let parent = json!({"resource": "services", "namespace": service.namespace(), "name": service.name()});
    object.0.insert("spec".into(), json!({"parentRef": parent}));
    Ok(claim(address_key(address), registry.stored_form(&object)?))
}

fn claim_port(port: u16, service: &Object) -> TxnPart {
    let marker = json!({"namespace": service.namespace(), "name": service.name()});
    claim(port_key(port), marker.to_string().into())
}

fn claim(key: Arc<str>, value: Bytes) -> TxnPart {
    TxnPart {
        compare: Some(Compare::Absent { key: key.clone() }),
        operation: Operation::Put { key, value, ttl: None },
    }
}

/// Deleting what is not there is no change, so nothing is compared.
fn release(key: Arc<str>) -> TxnPart {
    TxnPart { compare: None, operation: Operation::Delete { key } }
}

fn refuse(service: &Object, path: &str, value: Value, why: &str) -> Status {
    let mut errors = FieldErrors::default();
    errors.invalid(path, value, why);
    Status::invalid("", "Service", service.name(), &errors)
}

fn give_addresses(registry: &Registry, service: &mut Object, before: &[IpAddr]) -> Result<(), Status> {
    if !shape::needs_address(service) {
        return Ok(());
    }
    let own = &registry.settings.service_ranges;
    check_families(service, own)?;
    if !shape::is_headless(service) {
        let taken = |address: IpAddr| {
            registry
                .resource(&GroupResource::new("networking.k8s.io", "ipaddresses"))
                .is_some_and(|resource| resource.cache.get(&address.to_string()).is_some())
        };
        let ranges = open_ranges(own, &service_cidrs(registry)?);
        let asked = addresses(service);
        for address in asked.iter().filter(|address| !before.contains(address)) {
            let refused =
                |why: String| Err(refuse(service, "spec.clusterIPs", json!([address.to_string()]), &why));
            if !ranges.iter().any(|range| range.contains(*address)) {
                return refused(format!(
                    "failed to allocate IP {address}: the provided network does not match the current range"
                ));
            }
            if taken(*address) {
                return refused(format!("failed to allocate IP {address}: provided IP is already allocated"));
            }
        }
        if asked.is_empty() {
            let family = family_asked_for(service, own);
            let address = ranges
                .iter()
                .filter(|range| family_of(range.first()) == family)
                .find_map(|range| draw_address(range, taken))
                .ok_or_else(|| Status::internal("failed to allocate a serviceIP: range is full"))?;
            let spec = service.section_mut("spec");
            spec.insert("clusterIP".into(), address.to_string().into());
            spec.insert("clusterIPs".into(), json!([address.to_string()]));
        }
    }
    set_families(service, own);
    Ok(())
}

/// Refuses families that the server has no range of its own for. A headless service without a selector gets neither addresses
/// nor endpoints from the cluster, and may name any.
fn check_families(service: &Object, own: &[AddressRange]) -> Result<(), Status> {
    let selects =
        service.get(&["spec", "selector"]).and_then(Value::as_object).is_some_and(|map| !map.is_empty());
    if shape::is_headless(service) && !selects {
        return Ok(());
    }
    let mut errors = FieldErrors::default();
    for (index, family) in super::texts(service, &["spec", "ipFamilies"]).enumerate() {
        if !own.iter().any(|range| family_of(range.first()) == family) {
            errors.invalid(
                format!("spec.ipFamilies[{index}]"),
                json!(family),
                "not configured on this cluster",
            );
        }
    }
    if errors.is_empty() { Ok(()) } else { Err(Status::invalid("", "Service", service.name(), &errors)) }
}

fn family_of(address: IpAddr) -> &'static str {
    if address.is_ipv4() { "IPv4" } else { "IPv6" }
}

/// The family that the service names first, else the cluster's own.
fn family_asked_for(service: &Object, own: &[AddressRange]) -> String {
    let named = super::texts(service, &["spec", "ipFamilies"]).next();
    let default = || own.first().map_or("IPv4", |range| family_of(range.first()));
    named.unwrap_or_else(default).to_string()
}

/// What a ServiceCIDR says about its ranges.
#[derive(Debug)]
struct ServiceCidr {
    ranges: Vec<AddressRange>,
    is_ready: bool,
    is_deleted: bool,
}

impl ServiceCidr {
    fn read(object: &Object) -> ServiceCidr {
        let conditions =
            object.get(&["status", "conditions"]).and_then(Value::as_array).into_iter().flatten();
        let text = |condition: &Value, field: &str, expected: &str| {
            condition.get(field).and_then(Value::as_str) == Some(expected)
        };
        ServiceCidr {
            ranges: super::texts(object, &["spec", "cidrs"]).filter_map(|text| text.parse().ok()).collect(),
            is_ready: conditions
                .into_iter()
                .any(|condition| text(condition, "type", "Ready") && text(condition, "status", "True")),
            is_deleted: object.get(&["metadata", "deletionTimestamp"]).is_some(),
        }
    }
}

/// All ServiceCIDRs, by name.
fn service_cidrs(registry: &Registry) -> Result<Vec<ServiceCidr>, Status> {
    let Some(cidrs) = registry.resource(&GroupResource::new("networking.k8s.io", "servicecidrs")) else {
        return Ok(Vec::new());
    };
    let (snapshot, _) = cidrs.cache.snapshot();
    let read = |entry: &Arc<crate::cache::Entry>| Ok(ServiceCidr::read(&entry.read_object()?));
    snapshot.values().map(read).collect()
}

/// The ranges that addresses may be given from: the server's own first, then those of ServiceCIDRs that are ready and
/// stay. The server's own needs nobody to say that it is ready, and is closed by the deletion of every ServiceCIDR
/// that has it. Families that the server has no range of its own for are not given out.
fn open_ranges(own: &[AddressRange], cidrs: &[ServiceCidr]) -> Vec<AddressRange> {
    let closed = |range: &AddressRange| {
        let mut holders = cidrs.iter().filter(|cidr| cidr.ranges.contains(range)).peekable();
        holders.peek().is_some() && holders.all(|cidr| cidr.is_deleted)
    };
    let families: HashSet<&str> = own.iter().map(|range| family_of(range.first())).collect();
    let mut open: Vec<AddressRange> = own.iter().filter(|range| !closed(range)).copied().collect();
    for range in cidrs.iter().filter(|cidr| cidr.is_ready && !cidr.is_deleted).flat_map(|cidr| &cidr.ranges) {
        if families.contains(family_of(range.first())) && !open.contains(range) {
            open.push(*range);
        }
    }
    open
}

fn set_families(service: &mut Object, ranges: &[AddressRange]) {
    let of = |address: &IpAddr| family_of(*address);
    let given = addresses(service);
    let families: Vec<&str> = match given.is_empty() {
        true => ranges.first().map(|range| of(&range.first())).into_iter().collect(),
        false => given.iter().map(of).collect(),
    };
    let spec = service.section_mut("spec");
    if spec.get("ipFamilies").and_then(Value::as_array).is_none_or(Vec::is_empty) {
        spec.insert("ipFamilies".into(), json!(families));
    }
    spec.entry("ipFamilyPolicy").or_insert_with(|| "SingleStack".into());
}

/// A free address, drawn from the upper part of the range: the lower is for addresses asked for by name.
fn draw_address(range: &AddressRange, taken: impl Fn(IpAddr) -> bool) -> Option<IpAddr> {
    let size = range.size();
    let reserved = (size / 16).clamp(16.min(size / 2), 256);
    let mut rng = rand::rng();
    let start = rng.random_range(reserved..size.max(reserved + 1));
    // First upwards from a random place, then from the bottom: every address is looked at once.
    (start..size)
        .chain(reserved..start)
        .chain(1..reserved)
        .filter_map(|offset| range.nth(offset))
        .find(|address| !taken(*address))
}

fn give_node_ports(registry: &Registry, service: &mut Object, before: &HashSet<u16>) -> Result<(), Status> {
    let asked = port_numbers(service);
    let needs = shape::needs_node_ports(service);
    let health = shape::kind(service) == "LoadBalancer"
        && service.text_at(&["spec", "externalTrafficPolicy"]) == "Local";
    if asked.is_empty() && !needs && !health {
        return Ok(());
    }
    let mut used = used_node_ports(registry, service);
    let range = registry.settings.node_ports.clone();
    for (index, (_, port)) in
        shape::node_ports(service).iter().enumerate().filter(|(_, (_, port))| !before.contains(port))
    {
        let path = format!("spec.ports[{index}].nodePort");
        if !range.contains(port) {
            let why = format!(
                "provided port is not in the valid range. The range of valid ports is {}-{}",
                range.start(),
                range.end()
            );
            return Err(refuse(service, &path, json!(port), &why));
        }
        if used.contains(port) {
            return Err(refuse(service, &path, json!(port), "provided port is already allocated"));
        }
    }
    used.extend(asked);
    let full = || Status::internal("failed to allocate a nodePort: range is full");
    if needs {
        for port in shape::ports_mut(service.section_mut("spec")) {
            if port.get("nodePort").and_then(Value::as_u64).unwrap_or(0) == 0 {
                port.insert("nodePort".into(), draw_port(&range, &mut used).ok_or_else(full)?.into());
            }
        }
    }
    if health && service.get(&["spec", "healthCheckNodePort"]).and_then(Value::as_u64).unwrap_or(0) == 0 {
        let port = draw_port(&range, &mut used).ok_or_else(full)?;
        service.section_mut("spec").insert("healthCheckNodePort".into(), port.into());
    }
    Ok(())
}

/// Node ports of all other services.
fn used_node_ports(registry: &Registry, service: &Object) -> HashSet<u16> {
    let Some(services) = registry.resource(&GroupResource::new("", "services")) else {
        return HashSet::new();
    };
    let own = services.key(service.namespace(), service.name());
    let (snapshot, _) = services.cache.snapshot();
    // Most services have no node ports: those are told apart by their type, without decoding.
    snapshot
        .values()
        .filter(|entry| *entry.key != own && matches!(&*entry.fields[1], "NodePort" | "LoadBalancer"))
        .filter_map(|entry| entry.read_object().ok())
        .flat_map(|object| port_numbers(&object))
        .collect()
}

fn draw_port(range: &std::ops::RangeInclusive<u16>, used: &mut HashSet<u16>) -> Option<u16> {
    let start = rand::rng().random_range(range.clone());
    let port = (start..=*range.end()).chain(*range.start()..start).find(|port| !used.contains(port))?;
    used.insert(port);
    Some(port)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_address_of_a_range_is_given_once() {
        let range: AddressRange = "10.0.0.0/28".parse().expect("a range");
        let mut taken: HashSet<IpAddr> = HashSet::new();
        while let Some(address) = draw_address(&range, |address| taken.contains(&address)) {
            assert!(range.contains(address) && taken.insert(address), "{address}");
        }
        // Neither the network's own address nor the broadcast.
        assert_eq!(taken.len(), 14);
    }

    #[test]
    fn families_without_a_range_are_refused() {
        let own: AddressRange = "10.96.0.0/28".parse().expect("a range");
        let check = |spec: Value, expected: &[&str]| {
            let service = json!({"metadata": {"name": "web"}, "spec": spec});
            let service = Object::from_value(service).expect("an object");
            let message =
                check_families(&service, &[own]).err().map(|status| status.message).unwrap_or_default();
            assert_eq!(
                message.matches("not configured on this cluster").count(),
                expected.len(),
                "{message}"
            );
            expected.iter().for_each(|path| assert!(message.contains(path), "{message}"));
        };
        check(json!({}), &[]);
        check(json!({"ipFamilies": ["IPv4"]}), &[]);
        check(json!({"ipFamilies": ["IPv6"]}), &["spec.ipFamilies[0]: Invalid value: \"IPv6\""]);
        check(json!({"ipFamilies": ["IPv4", "IPv6"]}), &["spec.ipFamilies[1]: Invalid value: \"IPv6\""]);
        check(json!({"clusterIP": "None", "ipFamilies": ["IPv6"]}), &[]);
        check(
            json!({"clusterIP": "None", "selector": {"app": "web"}, "ipFamilies": ["IPv6"]}),
            &["ipFamilies[0]"],
        );
    }

    #[test]
    fn addresses_come_from_the_servers_range_and_from_those_that_are_ready() {
        let own: AddressRange = "10.96.0.0/28".parse().expect("a range");
        let cidr = |range: &str, ready: &str, deleted: bool| {
            let mut object = json!({"metadata": {}, "spec": {"cidrs": [range]},
                "status": {"conditions": [{"type": "Ready", "status": ready}]}});
            if deleted {
                object["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
            }
            ServiceCidr::read(&Object::from_value(object).expect("an object"))
        };
        let check = |cidrs: &[ServiceCidr], expected: &[&str]| {
            let open: Vec<String> = open_ranges(&[own], cidrs).iter().map(ToString::to_string).collect();
            assert_eq!(open, expected, "{cidrs:?}");
        };
        check(&[], &["10.96.0.0/28"]);
        check(&[cidr("10.96.0.0/28", "False", false)], &["10.96.0.0/28"]);
        check(
            &[cidr("10.96.0.0/28", "True", false), cidr("10.1.0.0/24", "True", false)],
            &["10.96.0.0/28", "10.1.0.0/24"],
        );
        check(&[cidr("10.1.0.0/24", "False", false)], &["10.96.0.0/28"]);
        check(&[cidr("10.1.0.0/24", "True", true)], &["10.96.0.0/28"]);
        check(&[cidr("fd00::/112", "True", false)], &["10.96.0.0/28"]);
        check(&[cidr("10.96.0.0/28", "True", true), cidr("10.1.0.0/24", "True", false)], &["10.1.0.0/24"]);
        check(&[cidr("10.96.0.0/28", "True", true), cidr("10.96.0.0/28", "True", false)], &["10.96.0.0/28"]);
    }

    #[test]
    fn ports_are_drawn_until_the_range_is_full() {
        let mut used = HashSet::new();
        for _ in 0..3 {
            assert!(draw_port(&(30_000..=30_002), &mut used).is_some());
        }
        assert_eq!(draw_port(&(30_000..=30_002), &mut used), None);
    }
}
