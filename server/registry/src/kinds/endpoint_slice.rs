//! EndpointSlice: addresses of one type, ports by name.

use std::net::IpAddr;

use ferry_api::{FieldErrors, names};
use k8s_openapi::api::discovery::v1::EndpointSlice;

use super::checks::{self, Path};
use crate::columns::Column;
use crate::strategy::{Rules, Traits, Typed};

pub static STRATEGY: Typed<EndpointSlice, SliceRules> = Typed::new(SliceRules);

pub struct SliceRules;

const MOST_ENDPOINTS: usize = 1000;
const MOST_ADDRESSES: usize = 100;
const MOST_PORTS: usize = 20_000;

impl Rules<EndpointSlice> for SliceRules {
    fn validate(&self, slice: &EndpointSlice, errors: &mut FieldErrors) {
        let kind = slice.address_type.as_str();
        checks::one_of(errors, Path::root("addressType"), Some(kind), &["FQDN", "IPv4", "IPv6"]);
        let endpoints = slice.endpoints.as_deref().unwrap_or(&[]);
        let list = Path::root("endpoints");
        if endpoints.len() > MOST_ENDPOINTS {
            errors.too_many(list, endpoints.len(), MOST_ENDPOINTS);
            return;
        }
        for (index, endpoint) in endpoints.iter().enumerate() {
            let path = list.index(index);
            let addresses = path.child("addresses");
            match endpoint.addresses.len() {
                0 => errors.required(addresses, "must contain at least 1 address"),
                count if count > MOST_ADDRESSES => errors.too_many(addresses, count, MOST_ADDRESSES),
                _ => {}
            }
            for (index, address) in endpoint.addresses.iter().enumerate() {
                validate_address(address, kind, addresses.index(index), errors);
            }
            if let Some(name) = endpoint.hostname.as_deref() {
                checks::named(errors, path.child("hostname"), name, names::dns1123_label);
            }
            if let Some(name) = endpoint.node_name.as_deref() {
                checks::named(errors, path.child("nodeName"), name, names::dns1123_subdomain);
            }
        }
        let ports = slice.ports.as_deref().unwrap_or(&[]);
        let list = Path::root("ports");
        if ports.len() > MOST_PORTS {
            errors.too_many(list, ports.len(), MOST_PORTS);
            return;
        }
        let mut seen = std::collections::HashSet::new();
        for (index, port) in ports.iter().enumerate() {
            let path = list.index(index);
            let name = port.name.as_deref().unwrap_or("");
            if !name.is_empty() {
                checks::named(errors, path.child("name"), name, names::dns1123_label);
            }
            if !seen.insert(name) {
                errors.duplicate(path.child("name"), name);
            }
            checks::one_of(errors, path.child("protocol"), port.protocol.as_deref(), &["SCTP", "TCP", "UDP"]);
        }
    }

    fn validate_update(&self, new: &EndpointSlice, old: &EndpointSlice, errors: &mut FieldErrors) {
        checks::immutable(errors, Path::root("addressType"), &new.address_type, &old.address_type);
    }

    fn columns(&self) -> &[Column] {
        super::tables::network::ENDPOINT_SLICE
    }

    fn traits(&self) -> Traits {
        Traits { generation: true, ..Traits::default() }
    }
}

fn validate_address(address: &str, kind: &str, path: Path<'_>, errors: &mut FieldErrors) {
    let parsed = address.parse::<IpAddr>();
    match (kind, parsed) {
        ("IPv4", Ok(IpAddr::V4(_))) | ("IPv6", Ok(IpAddr::V6(_))) => {}
        ("IPv4", _) => errors.invalid(path, address, "must be a valid IPv4 address"),
        ("IPv6", _) => errors.invalid(path, address, "must be a valid IPv6 address"),
        ("FQDN", _) => checks::named(errors, path, address, names::dns1123_subdomain),
        _ => {}
    }
}
