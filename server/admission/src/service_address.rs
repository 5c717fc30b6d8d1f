//! The address at which the server reaches a Service, for webhooks and aggregated API servers: one of its ready endpoints,
//! its cluster IP if it has no selector and no endpoints, or the external name of an ExternalName Service.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use ferry_api::{GroupResource, Object, Status};
use ferry_registry::Registry;
use ferry_registry::cache::Filter;
use rand::seq::IndexedRandom;
use serde_json::Value;

use crate::lookup::lookup;

pub const DEFAULT_PORT: u16 = 443;

/// `host:port`, as one connects to it.
pub fn resolve(registry: &Registry, namespace: &str, name: &str, port: u16) -> Result<String, String> {
    let service = lookup(registry, "", "services", namespace, name)
        .map_err(|status| status.message)?
        .ok_or_else(|| format!("service {name:?} not found"))?;
    if service.text_at(&["spec", "type"]) == "ExternalName" {
        return Ok(format!("{}:{port}", service.text_at(&["spec", "externalName"])));
    }
    let port_name = port_name(&service, port)
        .ok_or_else(|| format!("no service port {port} found for service {name:?}"))?;
    let ready = ready(&slices(registry, namespace, name).map_err(|status| status.message)?, port_name);
    if let Some(address) = ready.choose(&mut rand::rng()) {
        return Ok(address.to_string());
    }
    let selects =
        service.get(&["spec", "selector"]).and_then(Value::as_object).is_some_and(|map| !map.is_empty());
    match service.text_at(&["spec", "clusterIP"]).parse::<IpAddr>() {
        // Someone else may stand behind an address without a selector.
        Ok(address) if !selects => Ok(SocketAddr::new(address, port).to_string()),
        _ => Err(format!("no endpoints available for service {name:?}")),
    }
}

/// What the Service calls its port of this number.
pub fn port_name(service: &Object, port: u16) -> Option<&str> {
    let ports = service.get(&["spec", "ports"]).and_then(Value::as_array)?;
    let found = ports.iter().find(|one| one.get("port").and_then(Value::as_u64) == Some(u64::from(port)))?;
    Some(found.get("name").and_then(Value::as_str).unwrap_or(""))
}

/// The EndpointSlices of a Service.
pub fn slices(registry: &Registry, namespace: &str, service: &str) -> Result<Vec<Object>, Status> {
    let Some(resource) = registry.resource(&GroupResource::new("discovery.k8s.io", "endpointslices")) else {
        return Ok(Vec::new());
    };
    let filter = Filter::in_namespace(namespace);
    let (snapshot, _) = resource.cache.snapshot();
    let of_service = snapshot
        .range(Arc::<str>::from(format!("{namespace}/"))..)
        .map(|(_, entry)| entry)
        .take_while(|entry| filter.matches(entry))
        .filter(|entry| entry.label("kubernetes.io/service-name") == Some(service));
    of_service.map(|entry| entry.read_object()).collect()
}

/// The addresses of ready endpoints behind the port of that name. Pure.
pub fn ready(slices: &[Object], port_name: &str) -> Vec<SocketAddr> {
    let mut addresses = Vec::new();
    for slice in slices {
        let list = |field: &str| slice.get(&[field]).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        let port = list("ports")
            .iter()
            .find(|port| port.get("name").and_then(Value::as_str).unwrap_or("") == port_name);
        let number = port.and_then(|port| port.get("port")).and_then(Value::as_u64);
        let Some(number) = number.and_then(|port| u16::try_from(port).ok()) else { continue };
        for endpoint in list("endpoints") {
            let is_ready = endpoint.pointer("/conditions/ready").and_then(Value::as_bool).unwrap_or(true);
            let address = endpoint.pointer("/addresses/0").and_then(Value::as_str);
            if is_ready && let Some(address) = address.and_then(|text| text.parse::<IpAddr>().ok()) {
                addresses.push(SocketAddr::new(address, number));
            }
        }
    }
    addresses
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn ready_endpoints_of_the_port_are_called() {
        let slice = json!({"metadata": {}, "ports": [{"name": "web", "port": 8443}, {"name": "metrics", "port": 9}],
        "endpoints": [
            {"addresses": ["10.0.0.1"], "conditions": {"ready": true}},
            {"addresses": ["10.0.0.2"], "conditions": {"ready": false}},
            {"addresses": ["10.0.0.3"]},
        ]});
        let slices = [Object::from_value(slice).expect("an object")];
        let found: Vec<String> = ready(&slices, "web").iter().map(ToString::to_string).collect();
        assert_eq!(found, ["10.0.0.1:8443", "10.0.0.3:8443"]);
        assert!(ready(&slices, "other").is_empty());
    }
}
