//! Ingress.

use ferry_api::{FieldErrors, names};
use k8s_openapi::api::networking::v1::{HTTPIngressPath, Ingress, IngressBackend};

use super::checks::{self, Path};
use crate::columns::Column;
use crate::strategy::{Rules, Traits, Typed};

pub static STRATEGY: Typed<Ingress, IngressRules> = Typed::new(IngressRules);

pub struct IngressRules;

const SPEC: Path<'static> = Path::root("spec");
const PATH_TYPES: &[&str] = &["Exact", "ImplementationSpecific", "Prefix"];

impl Rules<Ingress> for IngressRules {
    fn validate(&self, ingress: &Ingress, errors: &mut FieldErrors) {
        let spec = ingress.spec.clone().unwrap_or_default();
        let rules = spec.rules.as_deref().unwrap_or(&[]);
        if rules.is_empty() && spec.default_backend.is_none() {
            errors.invalid(
                SPEC,
                serde_json::json!([]),
                "either `defaultBackend` or `rules` must be specified",
            );
        }
        if let Some(backend) = &spec.default_backend {
            validate_backend(backend, SPEC.child("defaultBackend"), errors);
        }
        let list = SPEC.child("rules");
        for (index, rule) in rules.iter().enumerate() {
            let path = list.index(index);
            let host = rule.host.as_deref().unwrap_or("");
            if host.contains('*') {
                checks::named(errors, path.child("host"), host, names::wildcard_dns1123_subdomain);
            } else if !host.is_empty() {
                checks::named(errors, path.child("host"), host, names::dns1123_subdomain);
            }
            let Some(http) = &rule.http else { continue };
            let http_path = path.child("http");
            let paths = http_path.child("paths");
            if http.paths.is_empty() {
                errors.required(paths, "");
            }
            for (index, one) in http.paths.iter().enumerate() {
                validate_path(one, paths.index(index), errors);
            }
        }
        if let Some(class) = spec.ingress_class_name.as_deref() {
            checks::named(errors, SPEC.child("ingressClassName"), class, names::dns1123_subdomain);
        }
    }

    fn columns(&self) -> &[Column] {
        super::tables::network::INGRESS
    }

    fn traits(&self) -> Traits {
        Traits { generation: true, ..Traits::default() }
    }
}

fn validate_path(one: &HTTPIngressPath, path: Path<'_>, errors: &mut FieldErrors) {
    let text = one.path.as_deref().unwrap_or("");
    match one.path_type.as_str() {
        "" => errors.required(path.child("pathType"), "pathType must be specified"),
        "Exact" | "Prefix" => {
            if !text.starts_with('/') {
                errors.invalid(path.child("path"), text, "must be an absolute path");
            }
            for part in ["//", "/./", "/../", "%2f", "%2F"] {
                if text.contains(part) {
                    errors.invalid(path.child("path"), text, &format!("must not contain '{part}'"));
                }
            }
        }
        "ImplementationSpecific" => {
            if !text.is_empty() && !text.starts_with('/') {
                errors.invalid(path.child("path"), text, "must be an absolute path");
            }
        }
        other => errors.not_supported(path.child("pathType"), other, PATH_TYPES),
    }
    validate_backend(&one.backend, path.child("backend"), errors);
}

fn validate_backend(backend: &IngressBackend, path: Path<'_>, errors: &mut FieldErrors) {
    match (&backend.service, &backend.resource) {
        (Some(_), Some(_)) => {
            errors.invalid(path, "", "cannot set both resource and service backends");
        }
        (None, None) => errors.required(path, "resource or service backend is required"),
        (None, Some(_)) => {}
        (Some(service), None) => {
            let path = path.child("service");
            checks::required_name(errors, path.child("name"), &service.name, names::dns1035_label);
            let port_path = path.child("port");
            let port = service.port.clone().unwrap_or_default();
            match (port.name.as_deref().unwrap_or(""), port.number.unwrap_or(0)) {
                ("", 0) => errors.required(port_path, "port name or number is required"),
                ("", number) => checks::port(errors, port_path.child("number"), number),
                (name, 0) => checks::named(errors, port_path.child("name"), name, names::port_name),
                (_, _) => errors.invalid(port_path, "", "cannot set both port name & port number"),
            }
        }
    }
}
