//! A container's environment: services, objects, fields, and references from
//! one variable to another.

use std::collections::HashMap;

use ferry_client::NamespacedName;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{
    ConfigMapEnvSource, Container, EnvVarSource, Pod, SecretEnvSource, Service,
};

use crate::downward;
use crate::objects::{self, Objects};
use crate::pod;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{kind} \"{name}\" not found")]
    NotFound { kind: &'static str, name: String },
    #[error("couldn't find key {key} in {kind} {namespace}/{name}")]
    MissingKey { kind: &'static str, namespace: String, name: String, key: String },
    #[error(transparent)]
    Downward(#[from] downward::Error),
    #[error(transparent)]
    Objects(#[from] objects::Error),
}

/// What is known only at start: addresses of the pod and its node.
#[derive(Clone, Debug, Default)]
pub struct Addresses {
    pub pod_ips: Vec<String>,
    pub host_ips: Vec<String>,
}

/// Variables in order; a later one of the same name has replaced the earlier.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Environment {
    variables: Vec<(String, String)>,
    positions: HashMap<String, usize>,
}

impl Environment {
    pub fn set(&mut self, name: String, value: String) {
        match self.positions.get(&name) {
            Some(position) => self.variables[*position].1 = value,
            None => {
                self.positions.insert(name.clone(), self.variables.len());
                self.variables.push((name, value));
            }
        }
    }

    pub fn get(&self, name: &str) -> Option<&str> {
        self.positions.get(name).map(|position| self.variables[*position].1.as_str())
    }

    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.variables.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// Replaces `$(NAME)` by its value; `$$` is a plain `$`; a name that is
    /// not known stays as it is written.
    pub fn expand(&self, text: &str) -> String {
        let mut expanded = String::with_capacity(text.len());
        let mut rest = text;
        while let Some(at) = rest.find('$') {
            expanded.push_str(&rest[..at]);
            rest = &rest[at + 1..];
            if let Some(tail) = rest.strip_prefix('$') {
                expanded.push('$');
                rest = tail;
            } else if let Some((name, tail)) = rest.strip_prefix('(').and_then(|inner| inner.split_once(')'))
            {
                match self.get(name) {
                    Some(value) => expanded.push_str(value),
                    None => expanded.push_str(&format!("$({name})")),
                }
                rest = tail;
            } else {
                expanded.push('$');
            }
        }
        expanded.push_str(rest);
        expanded
    }
}

/// The environment of a container about to start.
pub async fn environment(
    pod: &Pod,
    container: &Container,
    services: &[std::sync::Arc<Service>],
    objects: &Objects,
    addresses: &Addresses,
    node: &downward::Node,
) -> Result<Environment, Error> {
    let mut environment = service_variables(pod, services);
    for source in container.env_from.iter().flatten() {
        let prefix = source.prefix.as_deref().unwrap_or_default();
        if let Some(reference) = &source.config_map_ref {
            for (key, value) in config_map(pod, reference, objects).await? {
                environment.set(format!("{prefix}{key}"), value);
            }
        }
        if let Some(reference) = &source.secret_ref {
            for (key, value) in secret(pod, reference, objects).await? {
                environment.set(format!("{prefix}{key}"), value);
            }
        }
    }
    for variable in container.env.iter().flatten() {
        let value = match (&variable.value, &variable.value_from) {
            (_, Some(from)) => match (&from.field_ref, &from.resource_field_ref) {
                (Some(field), _) => Some(field_value(pod, &field.field_path, addresses)?),
                (_, Some(resource)) => Some(downward::resource(pod, Some(container), resource, node)?),
                _ => value_from(pod, from, objects).await?,
            },
            (value, None) => Some(environment.expand(value.as_deref().unwrap_or_default())),
        };
        if let Some(value) = value {
            environment.set(variable.name.clone(), value);
        }
    }
    Ok(environment)
}

type Variables = Vec<(String, String)>;

async fn config_map(
    pod: &Pod,
    reference: &ConfigMapEnvSource,
    objects: &Objects,
) -> Result<Variables, Error> {
    let name = NamespacedName::new(pod::namespace(pod), &reference.name);
    match objects.config_maps.get(&name).await? {
        Some(object) => Ok(object.data.clone().into_iter().flatten().collect()),
        None if reference.optional == Some(true) => Ok(Variables::new()),
        None => Err(Error::NotFound { kind: "configmap", name: reference.name.clone() }),
    }
}

async fn secret(pod: &Pod, reference: &SecretEnvSource, objects: &Objects) -> Result<Variables, Error> {
    let name = NamespacedName::new(pod::namespace(pod), &reference.name);
    match objects.secrets.get(&name).await? {
        Some(object) => {
            let data = object.data.iter().flatten();
            Ok(data.map(|(key, value)| (key.clone(), text_of(value))).collect())
        }
        None if reference.optional == Some(true) => Ok(Variables::new()),
        None => Err(Error::NotFound { kind: "secret", name: reference.name.clone() }),
    }
}

fn text_of(bytes: &ByteString) -> String {
    String::from_utf8_lossy(&bytes.0).into_owned()
}

/// A variable that is a key of an object; nothing where the key is missing and may be.
async fn value_from(pod: &Pod, from: &EnvVarSource, objects: &Objects) -> Result<Option<String>, Error> {
    let namespace = pod::namespace(pod);
    if let Some(reference) = &from.config_map_key_ref {
        let object = objects.config_maps.get(&NamespacedName::new(namespace, &reference.name)).await?;
        let found =
            object.as_ref().map(|object| object.data.as_ref().and_then(|data| data.get(&reference.key)));
        let (name, key) = (&reference.name, &reference.key);
        let value = key_value("configmap", "ConfigMap", pod, found, name, key, reference.optional)?;
        return Ok(value.cloned());
    }
    if let Some(reference) = &from.secret_key_ref {
        let object = objects.secrets.get(&NamespacedName::new(namespace, &reference.name)).await?;
        let found =
            object.as_ref().map(|object| object.data.as_ref().and_then(|data| data.get(&reference.key)));
        let (name, key) = (&reference.name, &reference.key);
        let value = key_value("secret", "Secret", pod, found, name, key, reference.optional)?;
        return Ok(value.map(text_of));
    }
    Ok(Some(String::new()))
}

/// A key of an object: its value, nothing where it is optional, or why not.
fn key_value<V>(
    kind: &'static str,
    title: &'static str,
    pod: &Pod,
    found: Option<Option<V>>,
    name: &str,
    key: &str,
    optional: Option<bool>,
) -> Result<Option<V>, Error> {
    match found {
        Some(Some(value)) => Ok(Some(value)),
        _ if optional == Some(true) => Ok(None),
        None => Err(Error::NotFound { kind, name: name.into() }),
        Some(None) => Err(Error::MissingKey {
            kind: title,
            namespace: pod::namespace(pod).into(),
            name: name.into(),
            key: key.into(),
        }),
    }
}

fn field_value(pod: &Pod, path: &str, addresses: &Addresses) -> Result<String, downward::Error> {
    Ok(match path {
        "status.podIP" => addresses.pod_ips.first().cloned().unwrap_or_default(),
        "status.podIPs" => addresses.pod_ips.join(","),
        "status.hostIP" => addresses.host_ips.first().cloned().unwrap_or_default(),
        "status.hostIPs" => addresses.host_ips.join(","),
        _ => downward::field(pod, path)?,
    })
}

/// Services of the pod's namespace, and always the API server's, as variables
/// in the form Docker's links had.
fn service_variables(pod: &Pod, services: &[std::sync::Arc<Service>]) -> Environment {
    let links = pod::spec(pod).enable_service_links.unwrap_or(true);
    let mut environment = Environment::default();
    let mut chosen: Vec<&Service> = services
        .iter()
        .map(AsRef::as_ref)
        .filter(|service| {
            let namespace = service.metadata.namespace.as_deref();
            let is_master =
                namespace == Some("default") && service.metadata.name.as_deref() == Some("kubernetes");
            is_master || (links && namespace == Some(pod::namespace(pod)))
        })
        .collect();
    // a service of the pod's own namespace named like the API server's wins
    chosen.sort_by_key(|service| service.metadata.namespace.as_deref() == Some(pod::namespace(pod)));
    for service in chosen {
        let Some(spec) = &service.spec else { continue };
        let Some(address) = spec.cluster_ip.as_deref().filter(|ip| !ip.is_empty() && *ip != "None") else {
            continue;
        };
        let Some(first) = spec.ports.iter().flatten().next() else { continue };
        let name = variable_name(service.metadata.name.as_deref().unwrap_or_default());
        environment.set(format!("{name}_SERVICE_HOST"), address.into());
        environment.set(format!("{name}_SERVICE_PORT"), first.port.to_string());
        for port in spec.ports.iter().flatten() {
            if let Some(port_name) = port.name.as_deref().filter(|name| !name.is_empty()) {
                environment
                    .set(format!("{name}_SERVICE_PORT_{}", variable_name(port_name)), port.port.to_string());
            }
        }
        let host = if address.contains(':') { format!("[{address}]") } else { address.to_string() };
        for (index, port) in spec.ports.iter().flatten().enumerate() {
            let protocol = port.protocol.as_deref().unwrap_or("TCP");
            let url = format!("{}://{host}:{}", protocol.to_lowercase(), port.port);
            if index == 0 {
                environment.set(format!("{name}_PORT"), url.clone());
            }
            let prefix = format!("{name}_PORT_{}_{}", port.port, protocol.to_uppercase());
            environment.set(prefix.clone(), url);
            environment.set(format!("{prefix}_PROTO"), protocol.to_lowercase());
            environment.set(format!("{prefix}_PORT"), port.port.to_string());
            environment.set(format!("{prefix}_ADDR"), address.into());
        }
    }
    environment
}

fn variable_name(name: &str) -> String {
    name.to_uppercase().replace('-', "_")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn references_are_expanded_once() {
        let mut environment = Environment::default();
        environment.set("A".into(), "1".into());
        environment.set("B".into(), "$(A)".into());
        for (text, expected) in [
            ("", ""),
            ("$(A)", "1"),
            ("x$(A)y$(A)", "x1y1"),
            ("$(B)", "$(A)"),
            ("$$(A)", "$(A)"),
            ("$(NONE)", "$(NONE)"),
            ("$(A", "$(A"),
            ("$A", "$A"),
            ("100$", "100$"),
            ("$$$(A)", "$1"),
            ("$()", "$()"),
        ] {
            assert_eq!(environment.expand(text), expected, "{text}");
        }
    }

    #[test]
    fn services_of_the_namespace_become_variables() {
        let service = |namespace: &str, name: &str, ip: &str| -> std::sync::Arc<Service> {
            let service = serde_json::from_value(json!({
                "metadata": {"namespace": namespace, "name": name},
                "spec": {"clusterIP": ip, "ports": [{"name": "http-alt", "port": 80}, {"port": 53, "protocol": "UDP"}]},
            }));
            std::sync::Arc::new(service.expect("the service is well formed"))
        };
        let services = [
            service("default", "kubernetes", "10.0.0.1"),
            service("ns", "my-app", "10.0.0.2"),
            service("ns", "headless", "None"),
            service("other", "elsewhere", "10.0.0.3"),
        ];
        let mut pod: Pod =
            serde_json::from_value(json!({"metadata": {"namespace": "ns"}, "spec": {"containers": []}}))
                .expect("the pod is well formed");
        let variables = service_variables(&pod, &services);
        for (name, value) in [
            ("KUBERNETES_SERVICE_HOST", "10.0.0.1"),
            ("MY_APP_SERVICE_HOST", "10.0.0.2"),
            ("MY_APP_SERVICE_PORT", "80"),
            ("MY_APP_SERVICE_PORT_HTTP_ALT", "80"),
            ("MY_APP_PORT", "tcp://10.0.0.2:80"),
            ("MY_APP_PORT_53_UDP", "udp://10.0.0.2:53"),
            ("MY_APP_PORT_53_UDP_ADDR", "10.0.0.2"),
        ] {
            assert_eq!(variables.get(name), Some(value), "{name}");
        }
        assert_eq!(variables.get("HEADLESS_SERVICE_HOST"), None);
        assert_eq!(variables.get("ELSEWHERE_SERVICE_HOST"), None);
        pod.spec.as_mut().expect("has a spec").enable_service_links = Some(false);
        let unlinked = service_variables(&pod, &services);
        assert_eq!(unlinked.get("MY_APP_SERVICE_HOST"), None);
        assert_eq!(unlinked.get("KUBERNETES_SERVICE_HOST"), Some("10.0.0.1"));
    }
}
