//! Rules that an administrator may turn on, each a few lines: ExtendedResourceToleration,
//! LimitPodHardAntiAffinityTopology, DenyServiceExternalIPs and NamespaceExists.

use std::collections::BTreeSet;
use std::sync::Arc;

use async_trait::async_trait;
use ferry_api::{GroupResource, Object, Status};
use ferry_registry::Registry;
use ferry_registry::verbs::Operation;
use serde_json::{Value, json};

use super::Context;
use crate::chain::{Plugin, Request};
use crate::lookup::lookup;

const HOSTNAME: &str = "kubernetes.io/hostname";

pub fn make_extended_resource_toleration(_: &Context) -> Arc<dyn Plugin> {
    Arc::new(ExtendedResourceToleration)
}

/// Nodes with rare devices are tainted with the devices' names; who asks for one tolerates its taint.
struct ExtendedResourceToleration;

#[async_trait]
impl Plugin for ExtendedResourceToleration {
    fn handles(&self, request: &Request<'_>) -> bool {
        request.operation != Operation::Delete && request.is_for("", "pods")
    }

    async fn mutate(
        &self,
        _request: &Request<'_>,
        pod: &mut Object,
        _old: Option<&Object>,
    ) -> Result<(), Status> {
        tolerate(pod);
        Ok(())
    }
}

fn tolerate(pod: &mut Object) {
    let is_extended =
        |name: &str| name.contains('/') && !name.contains("kubernetes.io/") && !name.starts_with("requests.");
    let lists = ["containers", "initContainers"].into_iter();
    let containers =
        lists.flat_map(|list| pod.get(&["spec", list]).and_then(Value::as_array).into_iter().flatten());
    let requests = containers.filter_map(|container| container.pointer("/resources/requests")?.as_object());
    let devices: BTreeSet<String> =
        requests.flat_map(|requests| requests.keys().filter(|name| is_extended(name)).cloned()).collect();
    for device in devices {
        let toleration = json!({"key": device, "operator": "Exists", "effect": "NoSchedule"});
        let held = pod.section_mut("spec").entry("tolerations").or_insert_with(|| json!([]));
        if held.is_null() {
            *held = json!([]);
        }
        let Some(held) = held.as_array_mut() else { continue };
        let covers = |have: &Value| {
            have.get("key") == toleration.get("key") && have.get("effect") == toleration.get("effect")
        };
        match held.iter_mut().find(|have| covers(have)) {
            Some(have) => *have = toleration,
            None => held.push(toleration),
        }
    }
}

pub fn make_limit_pod_hard_anti_affinity_topology(_: &Context) -> Arc<dyn Plugin> {
    Arc::new(LimitPodHardAntiAffinityTopology)
}

/// A pod must not keep others out of a whole zone.
struct LimitPodHardAntiAffinityTopology;

#[async_trait]
impl Plugin for LimitPodHardAntiAffinityTopology {
    fn handles(&self, request: &Request<'_>) -> bool {
        request.operation != Operation::Delete && request.is_for("", "pods")
    }

    async fn validate(
        &self,
        request: &Request<'_>,
        pod: Option<&Object>,
        _old: Option<&Object>,
    ) -> Result<(), Status> {
        match pod.and_then(wide_topology) {
            Some(key) => Err(request.forbid(format!(
                "affinity.PodAntiAffinity.RequiredDuringScheduling has TopologyKey {key} but only key {HOSTNAME} is allowed"
            ))),
            None => Ok(()),
        }
    }
}

fn wide_topology(pod: &Object) -> Option<&str> {
    const TERMS: [&str; 4] =
        ["spec", "affinity", "podAntiAffinity", "requiredDuringSchedulingIgnoredDuringExecution"];
    let terms = pod.get(&TERMS).and_then(Value::as_array).into_iter().flatten();
    let mut keys = terms.map(|term| term.get("topologyKey").and_then(Value::as_str).unwrap_or(""));
    keys.find(|key| *key != HOSTNAME)
}

pub fn make_deny_service_external_ips(_: &Context) -> Arc<dyn Plugin> {
    Arc::new(DenyServiceExternalIps)
}

/// Who may set external addresses may take traffic that is meant for others.
struct DenyServiceExternalIps;

#[async_trait]
impl Plugin for DenyServiceExternalIps {
    fn handles(&self, request: &Request<'_>) -> bool {
        request.operation != Operation::Delete && request.is_for("", "services")
    }

    async fn validate(
        &self,
        request: &Request<'_>,
        service: Option<&Object>,
        old: Option<&Object>,
    ) -> Result<(), Status> {
        let addresses = |service: Option<&Object>| -> BTreeSet<String> {
            let list = service.and_then(|service| service.get(&["spec", "externalIPs"])?.as_array());
            list.into_iter().flatten().filter_map(Value::as_str).map(str::to_string).collect()
        };
        match addresses(service).is_subset(&addresses(old)) {
            true => Ok(()),
            false => Err(request.forbid("Use of external IPs is denied by admission control")),
        }
    }
}

pub fn make_namespace_exists(context: &Context) -> Arc<dyn Plugin> {
    Arc::new(NamespaceExists { registry: context.registry.clone() })
}

struct NamespaceExists {
    registry: Arc<Registry>,
}

#[async_trait]
impl Plugin for NamespaceExists {
    fn handles(&self, request: &Request<'_>) -> bool {
        !request.namespace.is_empty() && request.kind.is_namespaced()
    }

    async fn validate(
        &self,
        request: &Request<'_>,
        _object: Option<&Object>,
        _old: Option<&Object>,
    ) -> Result<(), Status> {
        match lookup(&self.registry, "", "namespaces", "", request.namespace)? {
            Some(_) => Ok(()),
            None => Err(Status::not_found(&GroupResource::new("", "namespaces"), request.namespace)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(spec: Value) -> Object {
        Object::from_value(json!({"spec": spec})).expect("an object")
    }

    #[test]
    fn who_asks_for_a_device_tolerates_its_taint() {
        let mut asking = pod(json!({
            "containers": [{"resources": {"requests": {"example.com/gpu": "1", "cpu": "1"}}}],
            "tolerations": [{"key": "example.com/gpu", "operator": "Equal", "value": "x", "effect": "NoSchedule"}],
        }));
        tolerate(&mut asking);
        tolerate(&mut asking);
        assert_eq!(
            asking.get(&["spec", "tolerations"]),
            Some(&json!([{"key": "example.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]))
        );
    }

    #[test]
    fn only_hosts_are_kept_free_of_others() {
        let term = |key: &str| {
            pod(json!({"affinity": {"podAntiAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": key}],
            }}}))
        };
        assert_eq!(wide_topology(&term(HOSTNAME)), None);
        assert_eq!(wide_topology(&term("zone")), Some("zone"));
        assert_eq!(wide_topology(&pod(json!({}))), None);
    }
}
