//! Ingresses, network policies, endpoints and endpoint slices.

use serde_json::Value;

use super::metadata::{annotations, labels, selector};
use super::{or_none, or_unset, service};
use crate::cli::Cli;
use crate::error::Result;
use crate::fields::Fields;
use ferry_api::json_path::to_text;

pub async fn ingress(cli: &Cli, ingress: &Value) -> Result<String> {
    let addresses: Vec<&str> = ingress
        .list("status.loadBalancer.ingress")
        .iter()
        .map(|entry| if entry.text("ip").is_empty() { entry.text("hostname") } else { entry.text("ip") })
        .collect();
    let default = match ingress.at("spec.defaultBackend") {
        Value::Null => "<default>".to_owned(),
        default => backend(cli, ingress.namespace(), default).await?,
    };
    let mut text = format!("Name:\t{}\n", ingress.name());
    text.push_str(&labels("Labels", ingress, "metadata.labels", ""));
    text.push_str(&format!(
        "Namespace:\t{}\nAddress:\t{}\nIngress Class:\t{}\nDefault backend:\t{default}\n",
        ingress.namespace(),
        addresses.join(","),
        or_none(ingress.text("spec.ingressClassName").to_owned())
    ));
    let certificates = ingress.list("spec.tls");
    if !certificates.is_empty() {
        text.push_str("TLS:\n");
    }
    for entry in certificates {
        let hosts = words(entry, "hosts").join(",");
        text.push_str(&match entry.text("secretName") {
            "" => format!("  SNI routes {hosts}\n"),
            secret => format!("  {secret} terminates {hosts}\n"),
        });
    }
    text.push_str("Rules:\n  Host\tPath\tBackends\n  ----\t----\t--------\n");
    let rules: Vec<&Value> = ingress.list("spec.rules").iter().filter(|rule| rule.has("http")).collect();
    for rule in &rules {
        let host = if rule.text("host").is_empty() { "*" } else { rule.text("host") };
        text.push_str(&format!("  {host}\t\n"));
        for path in rule.list("http.paths") {
            let backend = backend(cli, ingress.namespace(), path.at("backend")).await?;
            text.push_str(&format!("    \t{} \t{backend}\n", path.text("path")));
        }
    }
    if rules.is_empty() {
        text.push_str(&format!("  *\t*\t{default}\n"));
    }
    text.push_str(&annotations(ingress, ""));
    Ok(text)
}

/// A service with its endpoints, or another resource.
async fn backend(cli: &Cli, namespace: &str, backend: &Value) -> Result<String> {
    if backend.has("resource") {
        return Ok(format!(
            "APIGroup: {}, Kind: {}, Name: {}",
            or_none(backend.text("resource.apiGroup").to_owned()),
            backend.text("resource.kind"),
            backend.text("resource.name")
        ));
    }
    let name = backend.text("service.name");
    let port = match backend.int("service.port.number") {
        Some(number) => number.to_string(),
        None => backend.text("service.port.name").to_owned(),
    };
    let path = format!("/api/v1/namespaces/{namespace}/services/{name}");
    let found = match cli.client()?.get_json(&path).await {
        Ok(found) => found,
        Err(error) if error.status_code().is_some() => {
            return Ok(format!("{name}:{port} (<error: {error}>)"));
        }
        Err(error) => return Err(error),
    };
    let used = found.list("spec.ports").iter().find(|candidate| {
        candidate.int("port") == backend.int("service.port.number") || candidate.text("name") == port
    });
    let slices = service::slices(cli, &found).await?;
    let endpoints = service::endpoints(&slices, used.map_or("", |used| used.text("name")));
    Ok(format!("{name}:{port} ({endpoints})"))
}

pub fn ingress_class(class: &Value) -> String {
    let mut text = format!("Name:\t{}\n", class.name());
    text.push_str(&labels("Labels", class, "metadata.labels", ""));
    text.push_str(&annotations(class, ""));
    text.push_str(&format!("Controller:\t{}\n", class.text("spec.controller")));
    let parameters = class.at("spec.parameters");
    if !parameters.is_null() {
        text.push_str("Parameters:\n");
        if parameters.has("apiGroup") {
            text.push_str(&format!("  APIGroup:\t{}\n", parameters.text("apiGroup")));
        }
        text.push_str(&format!(
            "  Kind:\t{}\n  Name:\t{}\n",
            parameters.text("kind"),
            parameters.text("name")
        ));
    }
    text
}

pub fn service_cidr(cidr: &Value) -> String {
    let mut text = format!("Name:\t{}\n", cidr.name());
    text.push_str(&labels("Labels", cidr, "metadata.labels", ""));
    text.push_str(&annotations(cidr, ""));
    let ranges: Vec<String> = cidr.list("spec.cidrs").iter().map(to_text).collect();
    text.push_str(&format!("CIDRs:\t{}\n", ranges.join(", ")));
    let conditions = cidr.list("status.conditions");
    if !conditions.is_empty() {
        text.push_str(
            "Status:\nConditions:\n  Type\tStatus\tLastTransitionTime\tReason\tMessage\n  ----\t------\t------------------\t------\t-------\n",
        );
    }
    for condition in conditions {
        text.push_str(&format!(
            "  {}\t{}\t{}\t{}\t{}\n",
            condition.text("type"),
            condition.text("status"),
            super::time(condition.text("lastTransitionTime")),
            condition.text("reason"),
            condition.text("message")
        ));
    }
    text
}

pub fn ip_address(address: &Value) -> String {
    let mut text = format!("Name:\t{}\n", address.name());
    text.push_str(&labels("Labels", address, "metadata.labels", ""));
    text.push_str(&annotations(address, ""));
    let parent = address.at("spec.parentRef");
    if !parent.is_null() {
        text.push_str(&format!(
            "Parent Reference:\n  Group:\t{}\n  Resource:\t{}\n  Namespace:\t{}\n  Name:\t{}\n",
            parent.text("group"),
            parent.text("resource"),
            parent.text("namespace"),
            parent.text("name")
        ));
    }
    text
}

pub fn network_policy(policy: &Value) -> String {
    let created = policy.text("metadata.creationTimestamp").replace('T', " ").replace('Z', " +0000 UTC");
    let mut text =
        format!("Name:\t{}\nNamespace:\t{}\nCreated on:\t{created}\n", policy.name(), policy.namespace());
    text.push_str(&labels("Labels", policy, "metadata.labels", ""));
    text.push_str(&annotations(policy, ""));
    let chosen = policy.at("spec.podSelector");
    let is_empty = chosen.entries("matchLabels").is_empty() && chosen.list("matchExpressions").is_empty();
    text.push_str(&format!(
        "Spec:\n  PodSelector:     {}\n",
        if is_empty {
            "<none> (Allowing the specific traffic to all pods in this namespace)".to_owned()
        } else {
            selector(chosen)
        }
    ));
    let types = words(policy, "spec.policyTypes");
    for (direction, kind, peers, title, others) in
        [("ingress", "Ingress", "from", "From", "source"), ("egress", "Egress", "to", "To", "destination")]
    {
        if !types.contains(&kind) {
            text.push_str(&format!("  Not affecting {direction} traffic\n"));
            continue;
        }
        text.push_str(&format!("  Allowing {direction} traffic:\n"));
        let rules = policy.list(&format!("spec.{direction}"));
        if rules.is_empty() {
            text.push_str(&format!("    <none> (Selected pods are isolated for {direction} connectivity)\n"));
        }
        for (position, rule) in rules.iter().enumerate() {
            if position > 0 {
                text.push_str("    ----------\n");
            }
            text.push_str(&policy_ports(rule));
            if rule.list(peers).is_empty() {
                text.push_str(&format!("    {title}: <any> (traffic not restricted by {others})\n"));
            }
            for peer in rule.list(peers) {
                text.push_str(&format!("    {title}:\n{}", policy_peer(peer)));
            }
        }
    }
    text.push_str(&format!("  Policy Types: {}\n", or_none(types.join(", "))));
    text
}

fn policy_ports(rule: &Value) -> String {
    let ports = rule.list("ports");
    if ports.is_empty() {
        return "    To Port: <any> (traffic allowed to all ports)\n".to_owned();
    }
    let line = |port: &Value| {
        let protocol = if port.text("protocol").is_empty() { "TCP" } else { port.text("protocol") };
        let number = to_text(port.at("port"));
        match port.int("endPort") {
            Some(end) => format!("    To Port Range: {number}-{end}/{protocol}\n"),
            None => format!("    To Port: {number}/{protocol}\n"),
        }
    };
    ports.iter().map(line).collect()
}

fn policy_peer(peer: &Value) -> String {
    let mut text = String::new();
    for (field, title) in [("namespaceSelector", "NamespaceSelector"), ("podSelector", "PodSelector")] {
        if peer.has(field) {
            text.push_str(&format!("      {title}: {}\n", selector(peer.at(field))));
        }
    }
    if text.is_empty() && peer.has("ipBlock") {
        text = format!(
            "      IPBlock:\n        CIDR: {}\n        Except: {}\n",
            peer.text("ipBlock.cidr"),
            words(peer, "ipBlock.except").join(", ")
        );
    }
    text
}

fn head(object: &Value) -> String {
    let mut text = format!("Name:\t{}\nNamespace:\t{}\n", object.name(), object.namespace());
    text.push_str(&labels("Labels", object, "metadata.labels", ""));
    text.push_str(&annotations(object, ""));
    text
}

pub fn endpoints(object: &Value) -> String {
    let mut text = head(object);
    text.push_str("Subsets:\n");
    for subset in object.list("subsets") {
        let addresses = |field: &str| {
            let found: Vec<&str> = subset.list(field).iter().map(|address| address.text("ip")).collect();
            or_none(found.join(","))
        };
        text.push_str(&format!(
            "  Addresses:\t{}\n  NotReadyAddresses:\t{}\n",
            addresses("addresses"),
            addresses("notReadyAddresses")
        ));
        text.push_str(&port_table(subset.list("ports"), "  "));
        text.push('\n');
    }
    text
}

pub fn endpoint_slice(slice: &Value) -> String {
    let mut text = head(slice);
    text.push_str(&format!("AddressType:\t{}\n", slice.text("addressType")));
    match slice.list("ports") {
        [] => text.push_str("Ports: <unset>\n"),
        ports => text.push_str(&port_table(ports, "")),
    }
    let endpoints = slice.list("endpoints");
    text.push_str(if endpoints.is_empty() { "Endpoints: <none>\n" } else { "Endpoints:\n" });
    for endpoint in endpoints {
        let ready = match endpoint.at("conditions.ready") {
            Value::Null => "<unset>".to_owned(),
            ready => to_text(ready),
        };
        let unset = |field: &str| or_unset(endpoint.text(field).to_owned());
        text.push_str(&format!(
            "  - Addresses:\t{}\n    Conditions:\n      Ready:\t{ready}\n    Hostname:\t{}\n",
            or_none(words(endpoint, "addresses").join(", ")),
            unset("hostname")
        ));
        if endpoint.has("targetRef") {
            text.push_str(&format!(
                "    TargetRef:\t{}/{}\n",
                endpoint.text("targetRef.kind"),
                endpoint.text("targetRef.name")
            ));
        }
        text.push_str(&format!("    NodeName:\t{}\n    Zone:\t{}\n", unset("nodeName"), unset("zone")));
    }
    text
}

fn port_table(ports: &[Value], indent: &str) -> String {
    if ports.is_empty() {
        return String::new();
    }
    let mut text =
        format!("{indent}Ports:\n{indent}  Name\tPort\tProtocol\n{indent}  ----\t----\t--------\n");
    for port in ports {
        let number = port.int("port").map_or("<unset>".to_owned(), |number| number.to_string());
        text.push_str(&format!(
            "{indent}  {}\t{number}\t{}\n",
            or_unset(port.text("name").to_owned()),
            port.text("protocol")
        ));
    }
    text
}

fn words<'a>(object: &'a Value, path: &str) -> Vec<&'a str> {
    object.list(path).iter().filter_map(Value::as_str).collect()
}
