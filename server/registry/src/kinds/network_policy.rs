//! NetworkPolicy: which directions it speaks of follows from its rules.

use ferry_api::{FieldErrors, Object};
use k8s_openapi::api::networking::v1::{NetworkPolicy, NetworkPolicyPeer, NetworkPolicyPort};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde_json::{Value, json};

use super::checks::{self, Path};
use crate::columns::Column;
use crate::settings::AddressRange;
use crate::strategy::{Rules, Traits, Typed};

pub static STRATEGY: Typed<NetworkPolicy, PolicyRules> = Typed::new(PolicyRules);

pub struct PolicyRules;

const SPEC: Path<'static> = Path::root("spec");

impl Rules<NetworkPolicy> for PolicyRules {
    fn default(&self, object: &mut Object) {
        let spec = object.section_mut("spec");
        let filled = |spec: &serde_json::Map<String, Value>, field: &str| {
            spec.get(field).and_then(Value::as_array).is_some_and(|list| !list.is_empty())
        };
        if !filled(spec, "policyTypes") {
            let types =
                if filled(spec, "egress") { json!(["Ingress", "Egress"]) } else { json!(["Ingress"]) };
            spec.insert("policyTypes".into(), types);
        }
    }

    fn validate(&self, policy: &NetworkPolicy, errors: &mut FieldErrors) {
        let spec = policy.spec.clone().unwrap_or_default();
        if let Some(selector) = &spec.pod_selector {
            checks::selector(errors, SPEC.child("podSelector"), selector);
        }
        let list = SPEC.child("ingress");
        for (index, rule) in spec.ingress.iter().flatten().enumerate() {
            let path = list.index(index);
            ports(rule.ports.as_deref(), path.child("ports"), errors);
            peers(rule.from.as_deref(), path.child("from"), errors);
        }
        let list = SPEC.child("egress");
        for (index, rule) in spec.egress.iter().flatten().enumerate() {
            let path = list.index(index);
            ports(rule.ports.as_deref(), path.child("ports"), errors);
            peers(rule.to.as_deref(), path.child("to"), errors);
        }
        let list = SPEC.child("policyTypes");
        for (index, kind) in spec.policy_types.iter().flatten().enumerate() {
            checks::may_be(errors, list.index(index), Some(kind), &["Egress", "Ingress"]);
        }
    }

    fn columns(&self) -> &[Column] {
        super::tables::network::NETWORK_POLICY
    }

    fn traits(&self) -> Traits {
        Traits { generation: true, ..Traits::default() }
    }
}

fn ports(ports: Option<&[NetworkPolicyPort]>, path: Path<'_>, errors: &mut FieldErrors) {
    for (index, port) in ports.into_iter().flatten().enumerate() {
        let path = path.index(index);
        checks::may_be(errors, path.child("protocol"), port.protocol.as_deref(), &["SCTP", "TCP", "UDP"]);
        match &port.port {
            Some(value) => {
                checks::port_or_name(errors, path.child("port"), value);
                match (value, port.end_port) {
                    (IntOrString::Int(first), Some(last)) if last < *first => errors.invalid(
                        path.child("endPort"),
                        *first,
                        "must be greater than or equal to `port`",
                    ),
                    (IntOrString::String(_), Some(last)) => errors.invalid(
                        path.child("endPort"),
                        last,
                        "may not be specified when `port` is non-numeric",
                    ),
                    _ => {}
                }
            }
            None => {
                if let Some(last) = port.end_port {
                    errors.invalid(
                        path.child("endPort"),
                        last,
                        "may not be specified when `port` is not specified",
                    );
                }
            }
        }
    }
}

fn peers(peers: Option<&[NetworkPolicyPeer]>, path: Path<'_>, errors: &mut FieldErrors) {
    for (index, peer) in peers.into_iter().flatten().enumerate() {
        let path = path.index(index);
        let selects = peer.pod_selector.is_some() || peer.namespace_selector.is_some();
        match &peer.ip_block {
            None if !selects => errors.required(path, "must specify a peer"),
            None => {}
            Some(_) if selects => {
                errors.forbidden(path, "may not specify both ipBlock and another peer");
            }
            Some(block) => {
                let path = path.child("ipBlock");
                let bad = "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)";
                let outer = block.cidr.parse::<AddressRange>();
                match (&outer, block.cidr.is_empty()) {
                    (_, true) => errors.required(path.child("cidr"), ""),
                    (Err(_), _) => errors.invalid(path.child("cidr"), block.cidr.as_str(), bad),
                    (Ok(_), _) => {}
                }
                let list = path.child("except");
                for (index, except) in block.except.iter().flatten().enumerate() {
                    match (except.parse::<AddressRange>(), &outer) {
                        (Err(_), _) => errors.invalid(list.index(index), except.as_str(), bad),
                        (Ok(inner), Ok(outer)) if !outer.contains(inner.first()) => errors.invalid(
                            list.index(index),
                            except.as_str(),
                            "must be a strict subset of `cidr`",
                        ),
                        _ => {}
                    }
                }
            }
        }
        for (field, selector) in
            [("podSelector", &peer.pod_selector), ("namespaceSelector", &peer.namespace_selector)]
        {
            if let Some(selector) = selector {
                checks::selector(errors, path.child(field), selector);
            }
        }
    }
}
