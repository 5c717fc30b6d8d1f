//! Service: addresses and node ports are given out in the same transaction that writes the object
//! ([`allocation`]); what a type of service needs or must not have is decided in [`shape`].

mod allocation;
mod shape;
mod validation;

use ferry_api::{FieldErrors, Object, Status};
use k8s_openapi::api::core::v1::Service;
use serde_json::{Value, json};

use crate::columns::{AGE, Column};
use crate::registry::Registry;
use crate::strategy::{NameRule, Rules, Selectable, StrategyOptions, TxnPart, Typed};

pub static STRATEGY: Typed<Service, ServiceRules> = Typed::new(ServiceRules);

pub struct ServiceRules;

impl Rules<Service> for ServiceRules {
    fn default(&self, object: &mut Object) {
        shape::default(object);
    }

    fn prepare_create(&self, object: &mut Object) {
        shape::normalize_addresses(object, None);
        object.0.insert("status".into(), json!({"loadBalancer": {}}));
    }

    fn prepare_update(&self, new: &mut Object, old: &Object) {
        shape::keep_allocated(new, old);
        shape::normalize_addresses(new, Some(old));
        shape::drop_unneeded(new, old);
    }

    fn validate_update(&self, new: &Service, old: &Service, errors: &mut FieldErrors) {
        validation::validate_update(new, old, errors);
    }

    fn judged_by_rows(&self) -> bool {
        true
    }

    fn txn_parts(
        &self,
        registry: &Registry,
        new: Option<&mut Object>,
        old: Option<&Object>,
    ) -> Result<Vec<TxnPart>, Status> {
        allocation::txn_parts(registry, new, old)
    }

    fn selectable(&self) -> &[Selectable] {
        static FIELDS: &[Selectable] = &[
            Selectable::new("spec.clusterIP", "spec.clusterIP", ""),
            Selectable::new("spec.type", "spec.type", ""),
        ];
        FIELDS
    }

    fn columns(&self) -> &[Column] {
        static COLUMNS: &[Column] = &[
            Column::text("Type", |object, _| object.text_at(&["spec", "type"]).into()),
            Column::text("Cluster-IP", |object, _| {
                or_none(object.text_at(&["spec", "clusterIP"]).to_string())
            }),
            Column::text("External-IP", |object, _| external_addresses(object).into()),
            Column::text("Port(s)", |object, _| or_none(ports(object))),
            AGE,
            Column::text("Selector", |object, _| or_none(selector(object))).wide(),
        ];
        COLUMNS
    }

    fn options(&self) -> StrategyOptions {
        StrategyOptions {
            name: NameRule::DnsLabel,
            create_on_update: true,
            reserves: true,
            ..StrategyOptions::default()
        }
    }
}

fn or_none(text: String) -> Value {
    if text.is_empty() { "<none>".into() } else { text.into() }
}

fn texts<'a>(object: &'a Object, path: &[&str]) -> impl Iterator<Item = &'a str> {
    object.get(path).and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str)
}

fn external_addresses(service: &Object) -> String {
    let external: Vec<&str> = texts(service, &["spec", "externalIPs"]).collect();
    let balancer: Vec<&str> = service
        .get(&["status", "loadBalancer", "ingress"])
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(|ingress| ingress.get("ip").or_else(|| ingress.get("hostname")).and_then(Value::as_str))
        .collect();
    match service.text_at(&["spec", "type"]) {
        "ExternalName" => service.text_at(&["spec", "externalName"]).to_string(),
        "LoadBalancer" if balancer.is_empty() && external.is_empty() => "<pending>".into(),
        _ if balancer.is_empty() && external.is_empty() => "<none>".into(),
        _ => balancer.into_iter().chain(external).collect::<Vec<_>>().join(","),
    }
}

fn ports(service: &Object) -> String {
    let list = service.get(&["spec", "ports"]).and_then(Value::as_array).into_iter().flatten();
    list.map(|port| {
        let number = |field: &str| port.get(field).and_then(Value::as_u64).unwrap_or(0);
        let protocol = port.get("protocol").and_then(Value::as_str).unwrap_or("TCP");
        match number("nodePort") {
            0 => format!("{}/{protocol}", number("port")),
            node_port => format!("{}:{node_port}/{protocol}", number("port")),
        }
    })
    .collect::<Vec<_>>()
    .join(",")
}

fn selector(service: &Object) -> String {
    let labels = service.get(&["spec", "selector"]).and_then(Value::as_object).into_iter().flatten();
    labels.map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or(""))).collect::<Vec<_>>().join(",")
}
