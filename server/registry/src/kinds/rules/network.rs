//! Addresses, ranges of them, and the classes of ingresses.

use ferry_api::field_error::Reason;
use ferry_api::{FieldErrors, names};
use serde_json::Value;

use super::field::{self, Context, Field};
use super::format;
use crate::kinds::checks::{self, IMMUTABLE};

pub fn class_parameters(parameters: Field<'_>, _: &Context<'_>, errors: &mut FieldErrors) {
    if !parameters.is_given() {
        return;
    }
    let group = parameters.child("apiGroup");
    if group.is_given() {
        group.named(names::dns1123_subdomain, errors);
    }
    for field in ["kind", "name"] {
        parameters.child(field).required_name(names::path_segment, errors);
    }
    let (scope, namespace) = (parameters.child("scope"), parameters.child("namespace"));
    match scope.text() {
        _ if !scope.is_given() => errors.required(scope.path, ""),
        "Namespace" if namespace.is_given() => namespace.named(names::dns1123_label, errors),
        "Namespace" => errors.required(namespace.path, "`parameters.scope` is set to 'Namespace'"),
        "Cluster" if namespace.is_given() => {
            errors.forbidden(namespace.path, "`parameters.scope` is set to 'Cluster'");
        }
        _ => scope.one_of(&["Cluster", "Namespace"], errors),
    }
}

pub fn service_cidrs(cidrs: Field<'_>, context: &Context<'_>, errors: &mut FieldErrors) {
    let field::Old::Known(old) = context.old else { return judge_cidrs(cidrs, context, errors) };
    let old = old.and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let new = cidrs.items();
    match (old.len(), new.len()) {
        (before, after) if before == after => {
            cidrs.each(|cidr| {
                let index = new.iter().position(|value| Some(value) == cidr.value).unwrap_or(0);
                if cidr.value != old.get(index) {
                    cidr.invalid(IMMUTABLE, errors);
                }
            });
        }
        (1, 2) => {
            if new.first() != old.first() {
                cidrs.index(0).invalid(IMMUTABLE, errors);
            }
            judge_cidrs(cidrs, context, errors);
        }
        _ => errors.invalid(cidrs.path, cidrs.json(), IMMUTABLE),
    }
}

fn judge_cidrs(cidrs: Field<'_>, context: &Context<'_>, errors: &mut FieldErrors) {
    if !cidrs.required("at least one CIDR required", errors) {
        return;
    }
    if cidrs.items().len() > 2 {
        let holder = Value::Object(context.holder.clone());
        let printed = context.printed_as("networking.v1.ServiceCIDRSpec", Some(&holder));
        return errors.push(cidrs.path, Reason::Invalid, format!("{printed}: may only hold up to 2 values"));
    }
    cidrs.each(|cidr| cidr.named(format::canonical_cidr, errors));
    let families: Vec<bool> = cidrs
        .items()
        .iter()
        .filter_map(|cidr| format::network(cidr.as_str()?).map(|(address, _)| address.is_ipv4()))
        .collect();
    if let [first, second] = families[..]
        && first == second
    {
        cidrs.invalid(
            "may specify no more than one IP for each IP family, i.e 192.168.0.0/24 and 2001:db8::/64",
            errors,
        );
    }
}

/// The subsets of Endpoints. What was wrong before and is the same is left alone.
pub fn endpoint_subsets(subsets: Field<'_>, context: &Context<'_>, errors: &mut FieldErrors) {
    if matches!(context.old, field::Old::Known(old) if old == subsets.value) {
        return;
    }
    subsets.each(|subset| {
        let (ready, other) = (subset.child("addresses"), subset.child("notReadyAddresses"));
        if ready.items().is_empty() && other.items().is_empty() {
            errors.required(subset.path, "must specify `addresses` or `notReadyAddresses`");
        }
        for list in [ready, other] {
            list.each(|address| {
                let ip = address.child("ip");
                ip.named(format::ip, errors);
                address.child("hostname").optional_name(names::dns1123_label, errors);
                let node = address.child("nodeName");
                if node.is_given() {
                    node.named(names::dns1123_subdomain, errors);
                }
                reachable(ip, context, errors);
            });
        }
        let ports = subset.child("ports");
        let named = ports.items().len() > 1;
        ports.each(|port| {
            let name = port.child("name");
            if name.is_empty() {
                if named {
                    errors.required(name.path, "");
                }
            } else {
                name.named(names::dns1123_label, errors);
            }
            port.child("port").in_range(1, 65_535, errors);
            port.child("protocol").required_one_of(&["SCTP", "TCP", "UDP"], errors);
            let protocol = port.child("appProtocol");
            if protocol.is_given() {
                protocol.named(names::qualified_name, errors);
            }
        });
    });
}

/// An address that something else than this host can be at.
pub fn reachable(ip: Field<'_>, context: &Context<'_>, errors: &mut FieldErrors) {
    let Some(address) = format::sloppy_ip(ip.text()) else {
        return errors.invalid(ip.path, ip.text(), "must be a valid IP address");
    };
    // Upstream refuses all of loopback, since its proxy would go there; Ferry's never does. A server that listens on this
    // host alone says so in its own endpoints, and a slice may lead to a webhook or an API server beside it.
    let own = (context.object.namespace(), context.object.name()) == ("default", "kubernetes");
    let may_be_loopback = own || context.object.kind() == "EndpointSlice";
    let (link_local, multicast) = match address {
        std::net::IpAddr::V4(address) => (address.is_link_local(), address.octets()[..3] == [224, 0, 0]),
        std::net::IpAddr::V6(address) => {
            let first = address.segments()[0];
            (first & 0xffc0 == 0xfe80, first & 0xff0f == 0xff02)
        }
    };
    if address.is_unspecified() {
        errors.invalid(ip.path, ip.text(), &format!("may not be unspecified ({})", ip.text()));
    }
    if address.is_loopback() && !may_be_loopback {
        ip.invalid("may not be in the loopback range (127.0.0.0/8, ::1/128)", errors);
    }
    if link_local {
        ip.invalid("may not be in the link-local range (169.254.0.0/16, fe80::/10)", errors);
    }
    if multicast {
        ip.invalid("may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)", errors);
    }
}

/// The endpoints of a slice, of one sort of address. What was wrong before and is the same is left alone.
pub fn slice_endpoints(endpoints: Field<'_>, context: &Context<'_>, errors: &mut FieldErrors) {
    if matches!(context.old, field::Old::Known(old) if old == endpoints.value) {
        return;
    }
    if endpoints.items().len() > 1000 {
        return errors.too_many(endpoints.path, endpoints.items().len(), 1000);
    }
    let kind = context.sibling("addressType").and_then(Value::as_str).unwrap_or("");
    endpoints.each(|endpoint| {
        let addresses = endpoint.child("addresses");
        if addresses.required("must contain at least 1 address", errors) && addresses.items().len() > 100 {
            errors.too_many(addresses.path, addresses.items().len(), 100);
        }
        addresses.each(|address| slice_address(address, addresses, kind, context, errors));
        let node = endpoint.child("nodeName");
        if node.is_given() {
            node.named(names::dns1123_subdomain, errors);
        }
        let topology = endpoint.child("deprecatedTopology");
        if topology.entries().count() > 16 {
            errors.too_many(topology.path, topology.entries().count(), 16);
        }
        super::walk::labels(topology, errors);
        let host = endpoint.child("hostname");
        if host.is_given() {
            host.named(names::dns1123_label, errors);
        }
        hints(endpoint.child("hints"), errors);
    });
}

fn slice_address(
    address: Field<'_>,
    list: Field<'_>,
    kind: &str,
    context: &Context<'_>,
    errors: &mut FieldErrors,
) {
    let rule: fn(&str) -> Vec<String> = match kind {
        "IPv4" => format::ip,
        "IPv6" => format::canonical_ip,
        "FQDN" => return domain(address, errors),
        _ => return,
    };
    if !rule(address.text()).is_empty() {
        return address.named(rule, errors);
    }
    let is_v4 = format::sloppy_ip(address.text()).is_some_and(|address| address.is_ipv4());
    if is_v4 != (kind == "IPv4") {
        errors.invalid(list.path, address.text(), &format!("must be an {kind} address"));
    }
    reachable(address, context, errors);
}

/// A domain name of two parts or more.
fn domain(field: Field<'_>, errors: &mut FieldErrors) {
    if !field.required("", errors) {
        return;
    }
    let name = field.text().strip_suffix('.').unwrap_or(field.text());
    let wrong = names::dns1123_subdomain(name);
    if !wrong.is_empty() {
        return errors.invalid(field.path, name, &wrong.join(","));
    }
    if !name.contains('.') {
        return errors.invalid(
            field.path,
            name,
            "should be a domain with at least two segments separated by dots",
        );
    }
    if let Some(label) = name.split('.').find(|label| !names::dns1123_label(label).is_empty()) {
        errors.invalid(field.path, label, &names::dns1123_label(label).join(","));
    }
}

fn hints(hints: Field<'_>, errors: &mut FieldErrors) {
    for (field, rule) in
        [("forZones", names::label_value as fn(&str) -> Vec<String>), ("forNodes", names::dns1123_subdomain)]
    {
        let list = hints.child(field);
        if list.items().len() > 8 {
            return errors.too_many(list.path, list.items().len(), 8);
        }
        let mut seen: Vec<String> = Vec::new();
        list.each(|hint| {
            let name = hint.child("name");
            if seen.iter().any(|seen| seen == name.text()) {
                errors.duplicate(name.path, name.text());
            } else {
                seen.push(name.text().to_owned());
            }
            checks::named(errors, name.path, name.text(), rule);
        });
    }
}

/// The ports of a slice, each name once.
pub fn slice_ports(ports: Field<'_>, _: &Context<'_>, errors: &mut FieldErrors) {
    if ports.items().len() > 20_000 {
        return errors.too_many(ports.path, ports.items().len(), 20_000);
    }
    let mut seen: std::collections::HashSet<String> = Default::default();
    ports.each(|port| {
        let name = port.child("name");
        name.optional_name(names::dns1123_label, errors);
        if !seen.insert(name.text().to_owned()) {
            errors.duplicate(name.path, name.text());
        }
        let protocol = port.child("protocol");
        if protocol.is_given() {
            protocol.one_of(&["SCTP", "TCP", "UDP"], errors);
        } else {
            errors.required(protocol.path, "");
        }
        let application = port.child("appProtocol");
        if application.is_given() {
            application.named(names::qualified_name, errors);
        }
    });
}
