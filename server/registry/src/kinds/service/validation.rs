//! What a service may say.

use std::collections::HashSet;
use std::net::IpAddr;

use ferry_api::{FieldErrors, names};
use k8s_openapi::api::core::v1::{Service, ServicePort, ServiceSpec};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde_json::json;

const TYPES: &[&str] = &["ClusterIP", "ExternalName", "LoadBalancer", "NodePort"];
const PROTOCOLS: &[&str] = &["SCTP", "TCP", "UDP"];
const IMMUTABLE_ADDRESS: &str = "may not change once set";

pub fn validate(service: &Service, errors: &mut FieldErrors) {
    let Some(spec) = &service.spec else {
        errors.required("spec.ports", "");
        return;
    };
    let kind = spec.type_.as_deref().unwrap_or("");
    let headless = spec.cluster_ip.as_deref() == Some("None");
    let ports = spec.ports.as_deref().unwrap_or(&[]);
    if ports.is_empty() && !headless && kind != "ExternalName" {
        errors.required("spec.ports", "");
    }
    match kind {
        "LoadBalancer" | "NodePort" if headless => {
            errors.invalid(
                "spec.clusterIPs[0]",
                "None",
                &format!("may not be set to 'None' for {kind} services"),
            );
        }
        "ExternalName" => validate_external_name(spec, errors),
        _ => {}
    }
    if !TYPES.contains(&kind) {
        match kind {
            "" => errors.required("spec.type", ""),
            other => errors.not_supported("spec.type", other, TYPES),
        }
    }
    validate_ports(ports, errors);
    for (key, value) in spec.selector.iter().flatten() {
        for why in names::qualified_name(key) {
            errors.invalid("spec.selector", key.as_str(), &why);
        }
        for why in names::label_value(value) {
            errors.invalid("spec.selector", value.as_str(), &why);
        }
    }
    choice(errors, "spec.sessionAffinity", spec.session_affinity.as_deref(), &["ClientIP", "None"], true);
    if kind != "ExternalName" {
        choice(
            errors,
            "spec.internalTrafficPolicy",
            spec.internal_traffic_policy.as_deref(),
            &["Cluster", "Local"],
            false,
        );
    }
    choice(
        errors,
        "spec.externalTrafficPolicy",
        spec.external_traffic_policy.as_deref(),
        &["Cluster", "Local"],
        false,
    );
    if spec.external_traffic_policy.is_some()
        && !["NodePort", "LoadBalancer"].contains(&kind)
        && spec.external_ips.is_none()
    {
        errors.invalid(
            "spec.externalTrafficPolicy",
            spec.external_traffic_policy.clone(),
            "may only be set for externally-accessible services",
        );
    }
    for (index, address) in spec.external_ips.iter().flatten().enumerate() {
        if address.parse::<IpAddr>().is_err() {
            errors.invalid(
                format!("spec.externalIPs[{index}]"),
                address.as_str(),
                "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)",
            );
        }
    }
    for (index, address) in spec.cluster_ips.iter().flatten().enumerate() {
        if address != "None" && address.parse::<IpAddr>().is_err() {
            errors.invalid(
                format!("spec.clusterIPs[{index}]"),
                address.as_str(),
                "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)",
            );
        }
    }
    if let Some(timeout) =
        spec.session_affinity_config.as_ref().and_then(|config| config.client_ip.as_ref()?.timeout_seconds)
        && !(1..=86_400).contains(&timeout)
    {
        errors.invalid(
            "spec.sessionAffinityConfig.clientIP.timeoutSeconds",
            timeout,
            "must be greater than 0 and less than 86400",
        );
    }
}

fn choice(errors: &mut FieldErrors, path: &str, value: Option<&str>, allowed: &[&str], required: bool) {
    match value {
        None | Some("") if required => errors.required(path, ""),
        Some(value) if !value.is_empty() && !allowed.contains(&value) => {
            errors.not_supported(path, value, allowed)
        }
        _ => {}
    }
}

fn validate_external_name(spec: &ServiceSpec, errors: &mut FieldErrors) {
    if spec.cluster_ips.as_ref().is_some_and(|list| !list.is_empty()) {
        errors.forbidden("spec.clusterIPs", "may not be set for ExternalName services");
    }
    let name = spec.external_name.as_deref().unwrap_or("");
    let name = name.strip_suffix('.').unwrap_or(name);
    if name.is_empty() {
        errors.required("spec.externalName", "");
        return;
    }
    for why in names::dns1123_subdomain(name) {
        errors.invalid("spec.externalName", name, &why);
    }
}

fn validate_ports(ports: &[ServicePort], errors: &mut FieldErrors) {
    let mut seen_names: HashSet<&str> = HashSet::new();
    let mut seen_ports: HashSet<(&str, i32)> = HashSet::new();
    let mut seen_node_ports: HashSet<(&str, i32)> = HashSet::new();
    for (index, port) in ports.iter().enumerate() {
        let path = format!("spec.ports[{index}]");
        let name = port.name.as_deref().unwrap_or("");
        if name.is_empty() && ports.len() > 1 {
            errors.required(format!("{path}.name"), "");
        } else if !name.is_empty() {
            for why in names::dns1123_label(name) {
                errors.invalid(format!("{path}.name"), name, &why);
            }
            if !seen_names.insert(name) {
                errors.duplicate(format!("{path}.name"), name);
            }
        }
        for why in names::port_number(port.port.into()) {
            errors.invalid(format!("{path}.port"), port.port, &why);
        }
        let protocol = port.protocol.as_deref().unwrap_or("");
        match protocol {
            "" => errors.required(format!("{path}.protocol"), ""),
            other if !PROTOCOLS.contains(&other) => {
                errors.not_supported(format!("{path}.protocol"), other, PROTOCOLS)
            }
            _ => {}
        }
        match &port.target_port {
            Some(IntOrString::Int(number)) => {
                for why in names::port_number((*number).into()) {
                    errors.invalid(format!("{path}.targetPort"), *number, &why);
                }
            }
            Some(IntOrString::String(text)) => {
                for why in names::port_name(text) {
                    errors.invalid(format!("{path}.targetPort"), text.as_str(), &why);
                }
            }
            None => {}
        }
        if !seen_ports.insert((protocol, port.port)) {
            errors.duplicate(path.clone(), json!({"protocol": protocol, "port": port.port}));
        }
        if let Some(node_port) = port.node_port.filter(|port| *port != 0)
            && !seen_node_ports.insert((protocol, node_port))
        {
            errors.duplicate(format!("{path}.nodePort"), node_port);
        }
    }
}

pub fn validate_update(new: &Service, old: &Service, errors: &mut FieldErrors) {
    let (Some(new), Some(old)) = (&new.spec, &old.spec) else { return };
    let needs_address = |spec: &ServiceSpec| spec.type_.as_deref() != Some("ExternalName");
    if !needs_address(new) || !needs_address(old) {
        return;
    }
    let first = |spec: &ServiceSpec| spec.cluster_ips.as_ref().and_then(|list| list.first().cloned());
    if let Some(before) = first(old)
        && first(new) != Some(before)
    {
        errors.invalid("spec.clusterIPs[0]", json!(new.cluster_ips), IMMUTABLE_ADDRESS);
    }
    let families = |spec: &ServiceSpec| spec.ip_families.as_ref().and_then(|list| list.first().cloned());
    if families(old).is_some() && families(new) != families(old) {
        errors.invalid("spec.ipFamilies[0]", json!(new.ip_families), IMMUTABLE_ADDRESS);
    }
    let balancer = |spec: &ServiceSpec| spec.type_.as_deref() == Some("LoadBalancer");
    if balancer(new) && balancer(old) && new.load_balancer_class != old.load_balancer_class {
        errors.invalid("spec.loadBalancerClass", json!(new.load_balancer_class), IMMUTABLE_ADDRESS);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(spec: serde_json::Value) -> Vec<String> {
        let service: Service = serde_json::from_value(json!({"spec": spec})).expect("a Service");
        let mut errors = FieldErrors::default();
        validate(&service, &mut errors);
        errors.0.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn every_fault_is_named() {
        let good = json!({"type": "ClusterIP", "sessionAffinity": "None", "ports": [{"port": 80, "protocol": "TCP", "targetPort": 80}]});
        assert!(faults(good).is_empty());
        let bad = faults(
            json!({"type": "Funny", "sessionAffinity": "None", "ports": [{"port": 0, "protocol": "X"}]}),
        );
        assert_eq!(
            bad,
            [
                r#"spec.type: Unsupported value: "Funny": supported values: "ClusterIP", "ExternalName", "LoadBalancer", "NodePort""#,
                "spec.ports[0].port: Invalid value: 0: must be between 1 and 65535, inclusive",
                r#"spec.ports[0].protocol: Unsupported value: "X": supported values: "SCTP", "TCP", "UDP""#,
            ]
        );
    }
}
