//! What a service may say.

use std::collections::HashSet;

use ferry_api::field_error::Reason;
use ferry_api::{FieldErrors, names};
use serde_json::Value;

use super::field::{Context, Field};
use super::{format, network};

const TYPES: &[&str] = &["ClusterIP", "ExternalName", "LoadBalancer", "NodePort"];
const PROTOCOLS: &[&str] = &["SCTP", "TCP", "UDP"];
const POLICIES: &[&str] = &["Cluster", "Local"];

pub fn service(spec: Field<'_>, context: &Context<'_>, errors: &mut FieldErrors) {
    // Addresses are looked at before anything else, and alone.
    let before = errors.0.len();
    addresses(spec, errors);
    if errors.0.len() > before {
        return;
    }
    let kind = spec.child("type");
    let list = spec.child("clusterIPs");
    let headless = list.items().len() == 1 && list.items()[0] == "None";
    let ports = spec.child("ports");
    if ports.items().is_empty() && !headless && kind.text() != "ExternalName" {
        errors.required(ports.path, "");
    }
    match kind.text() {
        "LoadBalancer" | "NodePort" if headless => {
            let why = format!("may not be set to 'None' for {} services", kind.text());
            list.index(0).invalid(&why, errors);
        }
        "ExternalName" => external_name(spec, errors),
        _ => {}
    }
    let mut seen: HashSet<String> = HashSet::new();
    ports.each(|port| service_port(port, ports.items().len() > 1, &mut seen, errors));
    super::walk::labels(spec.child("selector"), errors);
    affinity(spec, errors);
    spec.child("externalIPs").each(|ip| {
        let wrong = format::ip(ip.text());
        if wrong.is_empty() {
            network::reachable(ip, context, errors);
        } else {
            ip.named(format::ip, errors);
        }
    });
    kind.required_one_of(TYPES, errors);
    port_conflicts(ports, kind.text(), context, errors);
    balancer(spec, context, errors);
    traffic(spec, errors);
}

fn external_name(spec: Field<'_>, errors: &mut FieldErrors) {
    for field in ["clusterIPs", "ipFamilies", "ipFamilyPolicy"] {
        if !spec.child(field).is_empty() {
            errors.forbidden(spec.path.child(field), "may not be set for ExternalName services");
        }
    }
    let name = spec.child("externalName");
    match name.text().strip_suffix('.').unwrap_or(name.text()) {
        "" => errors.required(name.path, ""),
        text => crate::kinds::checks::named(errors, name.path, text, names::dns1123_subdomain),
    }
}

fn service_port(port: Field<'_>, named: bool, seen: &mut HashSet<String>, errors: &mut FieldErrors) {
    let name = port.child("name");
    if name.is_empty() {
        if named {
            errors.required(name.path, "");
        }
    } else {
        name.named(names::dns1123_label, errors);
        if !seen.insert(name.text().to_owned()) {
            errors.duplicate(name.path, name.text());
        }
    }
    port.child("port").in_range(1, 65_535, errors);
    port.child("protocol").required_one_of(PROTOCOLS, errors);
    port.child("targetPort").port(errors);
    let protocol = port.child("appProtocol");
    if protocol.is_given() {
        protocol.named(names::qualified_name, errors);
    }
}

fn affinity(spec: Field<'_>, errors: &mut FieldErrors) {
    let (affinity, config) = (spec.child("sessionAffinity"), spec.child("sessionAffinityConfig"));
    affinity.required_one_of(&["ClientIP", "None"], errors);
    if affinity.text() == "None" && config.is_given() {
        errors.forbidden(config.path, "must not be set when session affinity is None");
    }
    if affinity.text() != "ClientIP" {
        return;
    }
    const WHEN: &str = "when session affinity type is ClientIP";
    let client = config.child("clientIP");
    let timeout = client.child("timeoutSeconds");
    for field in [config, client, timeout] {
        if !field.is_given() {
            return errors.required(field.path, WHEN);
        }
    }
    if !(1..=86_400).contains(&timeout.number()) {
        timeout.invalid("must be greater than 0 and less than 86400", errors);
    }
}

/// Addresses inside the cluster and the families they are of.
fn addresses(spec: Field<'_>, errors: &mut FieldErrors) {
    if spec.child("type").text() == "ExternalName" {
        return;
    }
    let (first, list) = (spec.child("clusterIP"), spec.child("clusterIPs"));
    match (first.is_empty(), list.items().is_empty()) {
        (false, true) => errors.required(list.path, ""),
        (false, false) if list.items()[0] != first.text() => {
            list.invalid("first value must match `clusterIP`", errors);
        }
        (true, false) => list.invalid("must be empty when `clusterIP` is not specified", errors),
        _ => {}
    }
    let mut seen: HashSet<String> = HashSet::new();
    let families = spec.child("ipFamilies");
    families.each(|family| {
        family.one_of(&["IPv4", "IPv6"], errors);
        if !seen.insert(family.text().to_owned()) {
            errors.duplicate(family.path, family.text());
        }
    });
    let policies = &["PreferDualStack", "RequireDualStack", "SingleStack"];
    spec.child("ipFamilyPolicy").optional_one_of(policies, errors);
    let mut bad = false;
    for index in 0..list.items().len() {
        let address = list.index(index);
        if index == 0 && address.text() == "None" {
            if list.items().len() > 1 {
                bad = true;
                list.invalid("'None' must be the first and only value", errors);
            }
            continue;
        }
        bad |= !format::ip(address.text()).is_empty();
        address.named(format::ip, errors);
    }
    if list.items().len() > 2 {
        list.invalid("may only hold up to 2 values", errors);
    }
    if bad {
        return;
    }
    let is_v4 = |value: &Value| value.as_str().and_then(format::sloppy_ip).map(|address| address.is_ipv4());
    if let [first, second, ..] = list.items()
        && is_v4(first) == is_v4(second)
    {
        list.invalid("may specify no more than one IP for each IP family", errors);
    }
    for (index, (address, family)) in list.items().iter().zip(families.items()).enumerate() {
        let wanted = family.as_str().unwrap_or("");
        let fits = is_v4(address).is_none_or(|is_v4| is_v4 == (wanted == "IPv4"));
        if !fits && ["IPv4", "IPv6"].contains(&wanted) {
            let why = format!("expected an {wanted} value as indicated by `ipFamilies[{index}]`");
            list.index(index).invalid(&why, errors);
        }
    }
}

fn port_conflicts(ports: Field<'_>, kind: &str, context: &Context<'_>, errors: &mut FieldErrors) {
    if kind == "ClusterIP" {
        ports.each(|port| {
            let node = port.child("nodePort");
            if node.number() != 0 {
                errors.forbidden(node.path, "may not be used when `type` is 'ClusterIP'");
            }
        });
    }
    let mut seen: HashSet<(String, i64)> = HashSet::new();
    ports.each(|port| {
        let node = port.child("nodePort");
        let key = (port.child("protocol").text().to_owned(), node.number());
        if node.number() != 0 && !seen.insert(key) {
            errors.duplicate(node.path, node.number());
        }
    });
    seen.clear();
    ports.each(|port| {
        let (protocol, number) = (port.child("protocol"), port.child("port"));
        if !seen.insert((protocol.text().to_owned(), number.number())) {
            let key = serde_json::json!({"protocol": protocol.text(), "port": number.number()});
            let printed = context.printed_as("core.v1.ServicePort", Some(&key));
            // What is compared has no target, which Go prints as 0.
            errors.push(port.path, Reason::Duplicate, printed);
        }
    });
}

fn balancer(spec: Field<'_>, context: &Context<'_>, errors: &mut FieldErrors) {
    const ONLY: &str = "may only be used when `type` is 'LoadBalancer'";
    let balanced = spec.child("type").text() == "LoadBalancer";
    let ranges = spec.child_shown("loadBalancerSourceRanges", "LoadBalancerSourceRanges");
    const ANNOTATION: &str = "service.beta.kubernetes.io/load-balancer-source-ranges";
    if !ranges.items().is_empty() {
        if !balanced {
            errors.forbidden(ranges.path, ONLY);
        }
        ranges.each(|range| {
            crate::kinds::checks::named(errors, range.path, range.text().trim(), format::cidr);
        });
    } else if let Some(value) = context.object.annotation(ANNOTATION) {
        let path = format!("metadata.annotations[{ANNOTATION}]");
        if !balanced {
            errors.forbidden(path.as_str(), ONLY);
        }
        for range in value.trim().split(',').map(str::trim).filter(|_| !value.trim().is_empty()) {
            for why in format::cidr(range) {
                errors.invalid(path.as_str(), range, &why);
            }
        }
    }
    let allocate = spec.child("allocateLoadBalancerNodePorts");
    if allocate.is_given() && !balanced {
        errors.forbidden(allocate.path, ONLY);
    }
    if balanced && !allocate.is_given() {
        errors.required("allocateLoadBalancerNodePorts", "");
    }
    let class = spec.child("loadBalancerClass");
    if class.is_given() && balanced {
        class.named(names::qualified_name, errors);
    } else if class.is_given() {
        errors.forbidden(class.path, ONLY);
    }
}

fn traffic(spec: Field<'_>, errors: &mut FieldErrors) {
    let kind = spec.child("type").text();
    let list = spec.child("clusterIPs");
    let external = spec.child("externalIPs");
    let reachable = ["LoadBalancer", "NodePort"].contains(&kind)
        || (kind == "ClusterIP" && !external.items().is_empty() && !list.items().is_empty());
    let policy = spec.child("externalTrafficPolicy");
    if reachable || (kind == "ClusterIP" && !external.items().is_empty()) {
        policy.required_one_of(POLICIES, errors);
    } else if !policy.is_empty() {
        policy.invalid("may only be set for externally-accessible services", errors);
    }
    let health = spec.child("healthCheckNodePort");
    if kind == "LoadBalancer" && policy.text() == "Local" {
        // The port is given out with the others when it is not asked for.
        if health.number() != 0 {
            health.in_range(1, 65_535, errors);
        }
    } else if health.number() != 0 {
        health.invalid(
            "may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'",
            errors,
        );
    }
    let internal = spec.child("internalTrafficPolicy");
    if internal.is_given() {
        internal.one_of(POLICIES, errors);
    } else if ["NodePort", "LoadBalancer", "ClusterIP"].contains(&kind) {
        errors.required(internal.path, "");
    }
    spec.child("trafficDistribution")
        .optional_one_of(&["PreferClose", "PreferSameZone", "PreferSameNode"], errors);
}

/// NetworkPolicy's ports.
pub fn policy_port(port: Field<'_>, _: &Context<'_>, errors: &mut FieldErrors) {
    port.child("protocol").optional_one_of(&["TCP", "UDP", "SCTP"], errors);
    let (number, end) = (port.child("port"), port.child("endPort"));
    match number.value {
        None if end.is_given() => end.invalid("may not be specified when `port` is not specified", errors),
        None => {}
        Some(Value::String(_)) => {
            if end.is_given() {
                end.invalid("may not be specified when `port` is non-numeric", errors);
            }
            number.port(errors);
        }
        Some(_) => {
            number.port(errors);
            if end.is_given() {
                if end.number() < number.number() {
                    errors.invalid(end.path, number.number(), "must be greater than or equal to `port`");
                }
                end.in_range(1, 65_535, errors);
            }
        }
    }
}

/// NetworkPolicy's peers.
pub fn policy_peer(peer: Field<'_>, _: &Context<'_>, errors: &mut FieldErrors) {
    let (pods, namespaces, block) =
        (peer.child("podSelector"), peer.child("namespaceSelector"), peer.child("ipBlock"));
    super::placement::label_selector(pods, errors);
    super::placement::label_selector(namespaces, errors);
    if block.is_given() {
        ip_block(block, errors);
    }
    let selects = pods.is_given() || namespaces.is_given();
    if !selects && !block.is_given() {
        errors.required(peer.path, "must specify a peer");
    } else if selects && block.is_given() {
        errors.forbidden(peer.path, "may not specify both ipBlock and another peer");
    }
}

fn ip_block(block: Field<'_>, errors: &mut FieldErrors) {
    let cidr = block.child("cidr");
    if !cidr.required("", errors) {
        return;
    }
    cidr.named(format::cidr, errors);
    let Some((outer, length)) = format::network(cidr.text()) else { return };
    block.child("except").each(|except| {
        except.named(format::cidr, errors);
        let Some((inner, inner_length)) = format::network(except.text()) else { return };
        let within = inner.is_ipv4() == outer.is_ipv4()
            && format::masked(inner, length) == format::masked(outer, length);
        if !within || length >= inner_length {
            except.invalid("must be a strict subset of `cidr`", errors);
        }
    });
}

pub fn policy_types(types: Field<'_>, _: &Context<'_>, errors: &mut FieldErrors) {
    if types.items().len() > 2 {
        return types.invalid("may not specify more than two policyTypes", errors);
    }
    types.each(|kind| kind.one_of(&["Ingress", "Egress"], errors));
}

pub fn ingress(spec: Field<'_>, _: &Context<'_>, errors: &mut FieldErrors) {
    let (rules, backend) = (spec.child("rules"), spec.child("defaultBackend"));
    if rules.items().is_empty() && !backend.is_given() {
        errors.invalid(spec.path, rules.json(), "either `defaultBackend` or `rules` must be specified");
    }
    if backend.is_given() {
        ingress_backend(backend, errors);
    }
    rules.each(|rule| {
        let host = rule.child("host");
        if format::sloppy_ip(host.text()).is_some() {
            host.invalid("must be a DNS name, not an IP address", errors);
        }
        ingress_host(host, errors);
        let http = rule.child("http");
        if !http.is_given() {
            return;
        }
        let paths = http.child("paths");
        paths.required("", errors);
        paths.each(|path| ingress_path(path, errors));
    });
    spec.child("tls").each(|tls| {
        tls.child("hosts").each(|host| match host.text() {
            "" => host.named(names::dns1123_subdomain, errors),
            _ => ingress_host(host, errors),
        });
        tls.child("secretName").optional_name(names::dns1123_subdomain, errors);
    });
    let class = spec.child("ingressClassName");
    if class.is_given() {
        class.named(names::dns1123_subdomain, errors);
    }
}

fn ingress_host(host: Field<'_>, errors: &mut FieldErrors) {
    if host.text().contains('*') {
        host.named(names::wildcard_dns1123_subdomain, errors);
    } else if !host.is_empty() {
        host.named(names::dns1123_subdomain, errors);
    }
}

fn ingress_path(path: Field<'_>, errors: &mut FieldErrors) {
    let (kind, text) = (path.child("pathType"), path.child("path"));
    if !kind.is_given() {
        return errors.required(kind.path, "pathType must be specified");
    }
    let absolute = text.text().starts_with('/');
    match kind.text() {
        "Exact" | "Prefix" => {
            if !absolute {
                errors.invalid(text.path, text.text(), "must be an absolute path");
            }
            for part in ["//", "/./", "/../", "%2f", "%2F"] {
                if text.text().contains(part) {
                    text.invalid(&format!("must not contain '{part}'"), errors);
                }
            }
            for end in ["/..", "/."] {
                if text.text().ends_with(end) {
                    text.invalid(&format!("cannot end with '{end}'"), errors);
                }
            }
        }
        "ImplementationSpecific" => {
            if !text.is_empty() && !absolute {
                text.invalid("must be an absolute path", errors);
            }
        }
        _ => kind.one_of(&["Exact", "ImplementationSpecific", "Prefix"], errors),
    }
    ingress_backend(path.child("backend"), errors);
}

fn ingress_backend(backend: Field<'_>, errors: &mut FieldErrors) {
    let (resource, service) = (backend.child("resource"), backend.child("service"));
    match (resource.is_given(), service.is_given()) {
        (true, true) => errors.invalid(backend.path, "", "cannot set both resource and service backends"),
        (false, false) => errors.invalid(backend.path, "", "resource or service backend is required"),
        (true, false) => {
            let group = resource.child("apiGroup");
            if group.is_given() {
                group.named(names::dns1123_subdomain, errors);
            }
            for field in ["kind", "name"] {
                resource.child(field).required_name(names::path_segment, errors);
            }
        }
        (false, true) => {
            service.child("name").required_name(names::dns1123_label, errors);
            let port = service.child("port");
            let (name, number) = (port.child("name"), port.child("number"));
            match (name.text(), number.number()) {
                ("", 0) => errors.required(backend.path, "port name or number is required"),
                ("", _) => number.in_range(1, 65_535, errors),
                (_, 0) => name.named(names::port_name, errors),
                _ => errors.invalid(backend.path, "", "cannot set both port name & port number"),
            }
        }
    }
}
