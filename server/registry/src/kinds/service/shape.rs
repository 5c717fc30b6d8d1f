//! What a service has by its type: defaults, fields that go together, and what a change of type takes away.
//! Pure, over the object.

use std::collections::{HashMap, HashSet};

use ferry_api::Object;
use serde_json::{Map, Value, json};

pub fn kind(service: &Object) -> &str {
    match service.text_at(&["spec", "type"]) {
        "" => "ClusterIP",
        kind => kind,
    }
}

pub fn needs_address(service: &Object) -> bool {
    kind(service) != "ExternalName"
}

pub fn needs_node_ports(service: &Object) -> bool {
    match kind(service) {
        "NodePort" => true,
        "LoadBalancer" => {
            service.get(&["spec", "allocateLoadBalancerNodePorts"]).and_then(Value::as_bool) != Some(false)
        }
        _ => false,
    }
}

pub fn is_headless(service: &Object) -> bool {
    service.text_at(&["spec", "clusterIP"]) == "None"
}

/// Whether it is reached from outside the cluster.
fn is_reachable(kind: &str, spec: &serde_json::Map<String, Value>) -> bool {
    let addresses = spec.get("externalIPs").and_then(Value::as_array).is_some_and(|list| !list.is_empty());
    ["NodePort", "LoadBalancer"].contains(&kind) || (["ClusterIP", ""].contains(&kind) && addresses)
}

pub fn default(service: &mut Object) {
    let kind = kind(service).to_string();
    let spec = service.section_mut("spec");
    for port in spec.get_mut("ports").and_then(Value::as_array_mut).into_iter().flatten() {
        let number = port.get("port").cloned();
        if let (Value::Object(port), Some(number)) = (port, number) {
            let unset =
                port.get("targetPort").is_none_or(|target| target == &json!(0) || target == &json!(""));
            if unset {
                port.insert("targetPort".into(), number);
            }
        }
    }
    match spec.get("sessionAffinity").and_then(Value::as_str) {
        Some("ClientIP") => {
            let config = ferry_api::object::object_at(spec, "sessionAffinityConfig");
            ferry_api::object::object_at(config, "clientIP").entry("timeoutSeconds").or_insert(json!(10_800));
        }
        _ => {
            spec.remove("sessionAffinityConfig");
        }
    }
    if kind != "ExternalName" {
        spec.entry("internalTrafficPolicy").or_insert(json!("Cluster"));
    }
    if is_reachable(&kind, spec) {
        spec.entry("externalTrafficPolicy").or_insert(json!("Cluster"));
    }
    if kind == "LoadBalancer" {
        spec.entry("allocateLoadBalancerNodePorts").or_insert(json!(true));
    }
}

/// `clusterIP` is the first of `clusterIPs`; families follow the addresses.
pub fn normalize_addresses(new: &mut Object, old: Option<&Object>) {
    if !needs_address(new) {
        return;
    }
    let single = new.text_at(&["spec", "clusterIP"]).to_string();
    let many: Vec<String> = super::texts(new, &["spec", "clusterIPs"]).map(str::to_string).collect();
    let old_single = old.map_or("", |old| old.text_at(&["spec", "clusterIP"]));
    let spec = new.section_mut("spec");
    match (single.is_empty(), many.is_empty()) {
        (false, true) => {
            spec.insert("clusterIPs".into(), json!([single]));
        }
        (true, false) if old.is_some() && old_single.is_empty() => {
            spec.insert("clusterIP".into(), many[0].clone().into());
        }
        // A client that knows only the old field cleared or changed it.
        (false, false) if single != many[0] && single != old_single && old.is_some() => {
            spec.insert("clusterIPs".into(), json!([single]));
        }
        _ => {}
    }
}

/// What was given out stays when the client left it off.
pub fn keep_allocated(new: &mut Object, old: &Object) {
    if needs_address(new) && needs_address(old) && new.text_at(&["spec", "clusterIP"]).is_empty() {
        for field in ["clusterIP", "clusterIPs"] {
            if let Some(value) = old.get(&["spec", field]) {
                new.section_mut("spec").insert(field.into(), value.clone());
            }
        }
    }
    for field in ["ipFamilies", "ipFamilyPolicy"] {
        if needs_address(new)
            && new.get(&["spec", field]).is_none()
            && let Some(value) = old.get(&["spec", field])
        {
            new.section_mut("spec").insert(field.into(), value.clone());
        }
    }
    if !needs_node_ports(new) || !needs_node_ports(old) {
        return;
    }
    let given = old.get(&["spec", "ports"]).and_then(Value::as_array).into_iter().flatten().rev();
    let given: HashMap<_, _> =
        given.map(|port| ((port.get("port"), port.get("protocol")), port.get("nodePort"))).collect();
    let taken: HashSet<Value> = node_ports(new).into_iter().map(|(_, port)| port.into()).collect();
    for port in new.section_mut("spec").get_mut("ports").and_then(Value::as_array_mut).into_iter().flatten() {
        let Value::Object(port) = port else { continue };
        if port.get("nodePort").and_then(Value::as_u64).unwrap_or(0) != 0 {
            continue;
        }
        let before = given.get(&(port.get("port"), port.get("protocol"))).copied();
        if let Some(node_port) = before.flatten()
            && !taken.contains(node_port)
        {
            port.insert("nodePort".into(), node_port.clone());
        }
    }
}

/// A change of type takes away what the new type does not have, where the client left it as it was.
pub fn drop_unneeded(new: &mut Object, old: &Object) {
    let same = |new: &Object, field: &str| new.get(&["spec", field]) == old.get(&["spec", field]);
    if !needs_address(new) && needs_address(old) {
        for field in ["clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy", "internalTrafficPolicy"] {
            if same(new, field) {
                new.section_mut("spec").remove(field);
            }
        }
    }
    let reachable = |service: &Object| ["NodePort", "LoadBalancer"].contains(&kind(service));
    if !reachable(new) && reachable(old) {
        let before: HashSet<u64> = node_ports(old).into_iter().map(|(_, port)| port.into()).collect();
        for port in
            new.section_mut("spec").get_mut("ports").and_then(Value::as_array_mut).into_iter().flatten()
        {
            if let Value::Object(port) = port
                && let Some(number) = port.get("nodePort").and_then(Value::as_u64)
                && before.contains(&number)
            {
                port.remove("nodePort");
            }
        }
    }
    let outside = |service: &Object| {
        let spec = service.0.get("spec").and_then(Value::as_object);
        spec.is_some_and(|spec| is_reachable(kind(service), spec))
    };
    if !outside(new) && outside(old) && same(new, "externalTrafficPolicy") {
        new.section_mut("spec").remove("externalTrafficPolicy");
    }
    if kind(new) != "LoadBalancer" && kind(old) == "LoadBalancer" {
        for field in ["allocateLoadBalancerNodePorts", "loadBalancerClass"] {
            if same(new, field) {
                new.section_mut("spec").remove(field);
            }
        }
    }
    let needs_check =
        kind(new) == "LoadBalancer" && new.text_at(&["spec", "externalTrafficPolicy"]) == "Local";
    if !needs_check && same(new, "healthCheckNodePort") {
        new.section_mut("spec").remove("healthCheckNodePort");
    }
}

/// The node ports that a service names, with their protocols; the health check's counts as TCP.
pub fn node_ports(service: &Object) -> Vec<(String, u16)> {
    let port_of = |value: Option<&Value>| {
        value.and_then(Value::as_u64).and_then(|port| u16::try_from(port).ok()).filter(|port| *port > 0)
    };
    let mut ports: Vec<(String, u16)> = service
        .get(&["spec", "ports"])
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(|port: &Value| {
            let protocol = port.get("protocol").and_then(Value::as_str).unwrap_or("TCP");
            Some((protocol.to_string(), port_of(port.get("nodePort"))?))
        })
        .collect();
    ports
        .extend(port_of(service.get(&["spec", "healthCheckNodePort"])).map(|port| ("TCP".to_string(), port)));
    ports
}

/// The ports of a spec, to be completed.
pub fn ports_mut(spec: &mut Map<String, Value>) -> impl Iterator<Item = &mut Map<String, Value>> {
    spec.get_mut("ports").and_then(Value::as_array_mut).into_iter().flatten().filter_map(Value::as_object_mut)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn service(spec: Value) -> Object {
        Object::from_value(json!({"metadata": {"name": "s"}, "spec": spec})).expect("an object")
    }

    #[test]
    fn allocated_addresses_and_ports_are_kept() {
        let old = service(
            json!({"type": "NodePort", "clusterIP": "10.0.0.5", "clusterIPs": ["10.0.0.5"], "ports": [{"port": 80, "protocol": "TCP", "nodePort": 30001}]}),
        );
        let mut new = service(
            json!({"type": "NodePort", "ports": [{"port": 80, "protocol": "TCP"}, {"port": 81, "protocol": "TCP"}]}),
        );
        keep_allocated(&mut new, &old);
        assert_eq!(new.text_at(&["spec", "clusterIP"]), "10.0.0.5");
        assert_eq!(node_ports(&new), [("TCP".to_string(), 30001)]);
    }

    #[test]
    fn another_type_takes_away_what_it_does_not_have() {
        let old = service(
            json!({"type": "NodePort", "clusterIP": "10.0.0.5", "externalTrafficPolicy": "Cluster", "ports": [{"port": 80, "nodePort": 30001}]}),
        );
        let mut new = service(
            json!({"type": "ClusterIP", "clusterIP": "10.0.0.5", "externalTrafficPolicy": "Cluster", "ports": [{"port": 80, "nodePort": 30001}]}),
        );
        drop_unneeded(&mut new, &old);
        assert!(node_ports(&new).is_empty());
        assert!(new.get(&["spec", "externalTrafficPolicy"]).is_none());
    }

    #[test]
    fn the_address_is_the_first_of_the_addresses() {
        let mut new = service(json!({"clusterIP": "10.0.0.7"}));
        normalize_addresses(&mut new, None);
        assert_eq!(new.get(&["spec", "clusterIPs"]), Some(&json!(["10.0.0.7"])));
    }
}
