//! Services and the endpoints behind their ports.

use serde_json::Value;

use super::metadata::{annotations, labels};
use super::{given, or_none, or_unset};
use crate::cli::Cli;
use crate::error::Result;
use crate::fields::Fields;
use crate::selection::list_all;
use crate::transport::Query;
use ferry_api::json_path::to_text;

pub async fn page(cli: &Cli, service: &Value) -> Result<String> {
    let slices = slices(cli, service).await?;
    let ports = service.list("spec.ports").iter().map(|port| port_lines(port, &slices));
    Ok([identity(service), addresses(service), ports.collect(), traffic(service)].concat())
}

fn identity(service: &Value) -> String {
    let mut text = format!("Name:\t{}\nNamespace:\t{}\n", service.name(), service.namespace());
    text.push_str(&labels("Labels", service, "metadata.labels", ""));
    text.push_str(&annotations(service, ""));
    let selector: Vec<String> = service
        .entries("spec.selector")
        .into_iter()
        .map(|(key, value)| format!("{key}={}", to_text(value)))
        .collect();
    text.push_str(&format!(
        "Selector:\t{}\nType:\t{}\n",
        or_none(selector.join(",")),
        service.text("spec.type")
    ));
    text
}

fn addresses(service: &Value) -> String {
    let mut text = String::new();
    if service.has("spec.ipFamilyPolicy") {
        text.push_str(&format!("IP Family Policy:\t{}\n", service.text("spec.ipFamilyPolicy")));
    }
    text.push_str(&given_list(service, "IP Families", "spec.ipFamilies"));
    text.push_str(&format!("IP:\t{}\n", service.text("spec.clusterIP")));
    text.push_str(&given_list(service, "IPs", "spec.clusterIPs"));
    text.push_str(&given_list(service, "External IPs", "spec.externalIPs"));
    text.push_str(&given(
        service,
        &[("Desired LoadBalancer IP", "spec.loadBalancerIP"), ("External Name", "spec.externalName")],
    ));
    let ingress =
        service.list("status.loadBalancer.ingress").iter().map(|ingress| match ingress.text("ip") {
            "" => ingress.text("hostname"),
            address => address,
        });
    let ingress: Vec<&str> = ingress.collect();
    if !ingress.is_empty() {
        text.push_str(&format!("LoadBalancer Ingress:\t{}\n", ingress.join(", ")));
    }
    text
}

fn traffic(service: &Value) -> String {
    let mut text = format!("Session Affinity:\t{}\n", service.text("spec.sessionAffinity"));
    text.push_str(&given(
        service,
        &[
            ("External Traffic Policy", "spec.externalTrafficPolicy"),
            ("Internal Traffic Policy", "spec.internalTrafficPolicy"),
            ("Traffic Distribution", "spec.trafficDistribution"),
        ],
    ));
    if let Some(port) = service.int("spec.healthCheckNodePort").filter(|port| *port != 0) {
        text.push_str(&format!("HealthCheck NodePort:\t{port}\n"));
    }
    text.push_str(&given_list(service, "LoadBalancer Source Ranges", "spec.loadBalancerSourceRanges"));
    text
}

fn given_list(service: &Value, label: &str, path: &str) -> String {
    let texts: Vec<&str> = service.list(path).iter().filter_map(Value::as_str).collect();
    match service.list(path) {
        [] => String::new(),
        _ => format!("{label}:\t{}\n", texts.join(",")),
    }
}

pub async fn slices(cli: &Cli, service: &Value) -> Result<Vec<Value>> {
    let query = Query::new().with("labelSelector", &format!("kubernetes.io/service-name={}", service.name()));
    let path = format!("/apis/discovery.k8s.io/v1/namespaces/{}/endpointslices", service.namespace());
    match list_all(cli, &path, &query).await {
        Ok(slices) => Ok(slices),
        Err(error) if error.status_code().is_some() => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

fn port_lines(port: &Value, slices: &[Value]) -> String {
    let (name, protocol) = (or_unset(port.text("name").to_owned()), port.text("protocol"));
    let mut text = format!("Port:\t{name}\t{}/{protocol}\n", port.int("port").unwrap_or(0));
    text.push_str(&format!("TargetPort:\t{}/{protocol}\n", to_text(port.at("targetPort"))));
    if let Some(number) = port.int("nodePort").filter(|number| *number != 0) {
        text.push_str(&format!("NodePort:\t{name}\t{number}/{protocol}\n"));
    }
    text.push_str(&format!("Endpoints:\t{}\n", endpoints(slices, port.text("name"))));
    text
}

/// The ready addresses behind a port; three, and how many more.
pub fn endpoints(slices: &[Value], port_name: &str) -> String {
    if slices.is_empty() {
        return "<none>".to_owned();
    }
    let mut found: Vec<String> = Vec::new();
    let mut more = 0;
    for slice in slices {
        for port in slice.list("ports").iter().filter(|port| port.text("name") == port_name) {
            let Some(number) = port.int("port") else { continue };
            for endpoint in slice
                .list("endpoints")
                .iter()
                .filter(|endpoint| endpoint.at("conditions.ready").as_bool().unwrap_or(true))
            {
                for address in endpoint.list("addresses").iter().filter_map(Value::as_str) {
                    if found.len() == 3 {
                        more += 1;
                    } else if address.contains(':') {
                        found.push(format!("[{address}]:{number}"));
                    } else {
                        found.push(format!("{address}:{number}"));
                    }
                }
            }
        }
    }
    let rest = if more > 0 { format!(" + {more} more...") } else { String::new() };
    format!("{}{rest}", found.join(","))
}
