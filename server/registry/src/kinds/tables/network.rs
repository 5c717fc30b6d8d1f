//! The columns of what connects pods.

use serde_json::Value;

use crate::columns::{AGE, Column, at, field, list_at, or_none, selector, text_at, with_more};

pub static INGRESS: &[Column] = &[
    Column::at_or("Class", "spec.ingressClassName", "<none>"),
    Column::text("Hosts", |ingress, _| {
        let rules = list_at(ingress, "spec.rules");
        let hosts: Vec<&str> =
            rules.iter().map(|rule| field(rule, "host")).filter(|host| !host.is_empty()).collect();
        match (hosts.is_empty(), rules.len().saturating_sub(3)) {
            (true, _) => "*".into(),
            (false, more) if more > 0 && hosts.len() >= 3 => {
                format!("{} + {more} more...", hosts[..3].join(",")).into()
            }
            (false, _) => hosts.join(",").into(),
        }
    }),
    Column::text("Address", |ingress, _| {
        let mut addresses: Vec<&str> =
            list_at(ingress, "status.loadBalancer.ingress")
                .iter()
                .map(|point| {
                    if field(point, "ip").is_empty() { field(point, "hostname") } else { field(point, "ip") }
                })
                .filter(|address| !address.is_empty())
                .collect();
        addresses.sort_unstable();
        addresses.dedup();
        addresses.join(",").into()
    }),
    Column::text("Ports", |ingress, _| {
        if list_at(ingress, "spec.tls").is_empty() { "80".into() } else { "80, 443".into() }
    }),
    AGE,
];

pub static INGRESS_CLASS: &[Column] = &[
    Column::text("Name", |class, _| {
        let default = class.annotation("ingressclass.kubernetes.io/is-default-class") == Some("true");
        if default { format!("{} (default)", class.name()).into() } else { class.name().into() }
    })
    .formatted("name"),
    Column::at("Controller", "spec.controller"),
    Column::text("Parameters", |class, _| match at(class, "spec.parameters") {
        None => "<none>".into(),
        Some(parameters) => {
            let (kind, name) = (field(parameters, "kind"), field(parameters, "name"));
            match parameters.get("apiGroup").and_then(Value::as_str) {
                Some(group) => format!("{kind}.{group}/{name}").into(),
                None => format!("{kind}/{name}").into(),
            }
        }
    }),
    AGE,
];

pub static NETWORK_POLICY: &[Column] =
    &[Column::text("Pod-Selector", |policy, _| selector(at(policy, "spec.podSelector"))), AGE];

pub static ENDPOINTS: &[Column] = &[
    Column::text("Endpoints", |endpoints, _| {
        let subsets = list_at(endpoints, "subsets");
        if subsets.is_empty() {
            return "<none>".into();
        }
        let list: Vec<String> = subsets.iter().flat_map(subset_endpoints).collect();
        if list.is_empty() { "".into() } else { with_more(&list, 3) }
    }),
    AGE,
];

fn subset_endpoints(subset: &Value) -> Vec<String> {
    let list = |name: &str| subset.get(name).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let (addresses, ports) = (list("addresses"), list("ports"));
    let addresses = || addresses.iter().map(|address| field(address, "ip"));
    if ports.is_empty() {
        return addresses().map(str::to_string).collect();
    }
    let numbers = ports.iter().filter_map(|port| port.get("port"));
    numbers
        .flat_map(|port| {
            addresses().map(move |ip| match ip.contains(':') {
                true => format!("[{ip}]:{port}"),
                false => format!("{ip}:{port}"),
            })
        })
        .collect()
}

pub static ENDPOINT_SLICE: &[Column] = &[
    Column::at("AddressType", "addressType"),
    Column::text("Ports", |slice, _| {
        let ports: Vec<String> = list_at(slice, "ports")
            .iter()
            .map(|port| match port.get("port") {
                Some(number) => number.to_string(),
                None => port.get("name").and_then(Value::as_str).unwrap_or("*").to_string(),
            })
            .collect();
        with_more(&ports, 3)
    }),
    Column::text("Endpoints", |slice, _| {
        let addresses: Vec<String> = list_at(slice, "endpoints")
            .iter()
            .filter_map(|endpoint| endpoint.get("addresses")?.as_array())
            .flatten()
            .filter_map(|address| address.as_str().map(str::to_string))
            .collect();
        with_more(&addresses, 3)
    }),
    AGE,
];

pub static SERVICE_CIDR: &[Column] = &[
    Column::text("CIDRs", |object, _| {
        let ranges: Vec<&str> = list_at(object, "spec.cidrs").iter().filter_map(Value::as_str).collect();
        ranges.join(",").into()
    }),
    AGE,
];

pub static IP_ADDRESS: &[Column] = &[
    Column::text("ParentRef", |object, _| {
        let part = |name: &str| text_at(object, &format!("spec.parentRef.{name}")).to_string();
        let resource = match part("group").as_str() {
            "" => part("resource"),
            group => format!("{}.{group}", part("resource")),
        };
        let path = [resource.to_lowercase(), part("namespace"), part("name")];
        or_none(path.iter().filter(|part| !part.is_empty()).cloned().collect::<Vec<_>>().join("/"))
    }),
    AGE,
];
