//! A pod as the scheduler reads it: everything the plugins ask about, worked out once, where it arrives. It is what
//! the informer keeps, so a pod is in memory once.

use std::borrow::Cow;
use std::collections::BTreeMap;

use ferry_api::declared_features;
use ferry_client::NamespacedName;
use ferry_client::informer::Projection;
use k8s_openapi::api::core::v1::{Affinity, Pod, PodAffinityTerm, PodSpec, Toleration, Volume};
use kube::Resource;
use kube::api::ObjectMeta;
use kube::core::{NamespaceResourceScope, Selector, SelectorExt};
use serde::{Deserialize, Deserializer};

use crate::devices::extended::{self, ContainerRequests};
use crate::resources::{self, Resources};

#[derive(Clone, Debug)]
pub struct PodInfo {
    /// Without its containers where it was [trimmed](PodInfo::trim).
    pub pod: Pod,
    pub key: NamespacedName,
    pub uid: String,
    pub priority: i32,
    pub requests: Resources,
    /// CPU and memory for comparing nodes; never zero.
    pub counted_cpu: i64,
    pub counted_memory: i64,
    pub host_ports: Vec<HostPort>,
    pub affinity: Vec<PodTerm>,
    pub anti_affinity: Vec<PodTerm>,
    pub preferred_affinity: Vec<(i64, PodTerm)>,
    pub preferred_anti_affinity: Vec<(i64, PodTerm)>,
    pub claims: Vec<Claim>,
    /// In the order of `spec.resourceClaims`.
    pub resource_claims: Vec<ResourceClaimUse>,
    /// What its containers request of extended resources; a class may stand for them.
    pub extended: Vec<ContainerRequests>,
    /// Of all containers, with a tag.
    pub images: Vec<Box<str>>,
    /// What its node's kubelet has to declare.
    pub required_features: Vec<&'static str>,
}

/// A port that the pod takes on its node's own address.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HostPort {
    pub port: i32,
    pub protocol: Box<str>,
    /// `0.0.0.0` takes the port on every address.
    pub ip: Box<str>,
}

/// A volume claim that a pod uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    pub name: String,
    /// Made for this pod, and owned by it.
    pub ephemeral: bool,
}

/// A ResourceClaim of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ResourceClaimUse {
    Named(String),
    /// Made from a template for this pod, and owned by it.
    Generated(String),
    /// To be made from the template of this name.
    NotGenerated(String),
    /// The controller found that the pod needs none.
    Unneeded,
}

/// One term of a pod's (anti-)affinity, ready to be matched against other pods.
#[derive(Clone, Debug)]
pub struct PodTerm {
    pub topology_key: String,
    selector: Selected,
    namespaces: Vec<String>,
    /// Matched against the labels of the other pod's namespace.
    namespace_selector: Option<Selector>,
}

#[derive(Clone, Debug)]
enum Selected {
    Nothing,
    By(Selector),
}

/// Labels of the namespaces, for terms that select by them.
pub trait NamespaceLabels {
    fn matches(&self, namespace: &str, selector: &Selector) -> bool;
}

impl PodTerm {
    fn new(term: &PodAffinityTerm, pod: &Pod) -> Self {
        let own = pod.metadata.namespace.clone().unwrap_or_default();
        let mut namespaces = term.namespaces.clone().unwrap_or_default();
        if namespaces.is_empty() && term.namespace_selector.is_none() {
            namespaces.push(own);
        }
        // a malformed selector cannot pass validation; it selects nothing here
        let selector = term.label_selector.clone().and_then(|selector| Selector::try_from(selector).ok());
        PodTerm {
            topology_key: term.topology_key.clone(),
            selector: selector.map_or(Selected::Nothing, Selected::By),
            namespaces,
            namespace_selector: term.namespace_selector.clone().and_then(|s| Selector::try_from(s).ok()),
        }
    }

    pub fn matches(&self, pod: &PodInfo, namespaces: &dyn NamespaceLabels) -> bool {
        let Selected::By(selector) = &self.selector else { return false };
        selector.matches(pod.labels())
            && (self.namespaces.contains(&pod.key.namespace)
                || self
                    .namespace_selector
                    .as_ref()
                    .is_some_and(|selector| namespaces.matches(&pod.key.namespace, selector)))
    }
}

/// What is read of a pod; extenders are given whole ones, so with them all is.
pub static KEPT: Projection = Projection::Except(&[
    (
        "metadata",
        Projection::Except(&[("annotations", Projection::None), ("managedFields", Projection::None)]),
    ),
    (
        "spec",
        Projection::Except(&[
            ("containers", CONTAINER),
            ("dnsConfig", Projection::None),
            ("dnsPolicy", Projection::None),
            ("enableServiceLinks", Projection::None),
            ("ephemeralContainers", Projection::None),
            ("hostAliases", Projection::None),
            ("imagePullSecrets", Projection::None),
            ("initContainers", CONTAINER),
            ("restartPolicy", Projection::None),
            ("securityContext", Projection::None),
            ("serviceAccount", Projection::None),
            ("serviceAccountName", Projection::None),
            ("terminationGracePeriodSeconds", Projection::None),
            ("volumes", VOLUME),
        ]),
    ),
    (
        "status",
        Projection::Only(&[
            ("conditions", Projection::All),
            ("containerStatuses", CONTAINER_STATUS),
            ("initContainerStatuses", CONTAINER_STATUS),
            ("nominatedNodeName", Projection::All),
            ("phase", Projection::All),
            ("resourceClaimStatuses", Projection::All),
        ]),
    ),
]);

const CONTAINER: Projection = Projection::Only(&[
    ("image", Projection::All),
    ("name", Projection::All),
    ("ports", Projection::All),
    ("resources", Projection::Except(&[("limits", Projection::None)])),
    ("restartPolicy", Projection::All),
    ("restartPolicyRules", Projection::All),
]);

const CONTAINER_STATUS: Projection = Projection::Only(&[
    ("allocatedResources", Projection::All),
    ("name", Projection::All),
    ("resources", Projection::All),
]);

const VOLUME: Projection = Projection::Only(&[
    ("awsElasticBlockStore", Projection::All),
    ("ephemeral", Projection::Only(&[])),
    ("gcePersistentDisk", Projection::All),
    ("iscsi", Projection::All),
    ("name", Projection::All),
    ("persistentVolumeClaim", Projection::All),
    ("rbd", Projection::All),
]);

static NO_LABELS: BTreeMap<String, String> = BTreeMap::new();

impl PodInfo {
    pub fn new(pod: Pod) -> Self {
        let spec = pod.spec.as_ref();
        let affinity = spec.and_then(|spec| spec.affinity.as_ref());
        let counted = resources::pod_requests_never_zero(&pod);
        let (required, preferred) = pod_affinity_terms(affinity, &pod);
        let (anti_required, anti_preferred) = pod_anti_affinity_terms(affinity, &pod);
        PodInfo {
            key: NamespacedName::of(&pod),
            uid: pod.metadata.uid.clone().unwrap_or_default(),
            priority: spec.and_then(|spec| spec.priority).unwrap_or(0),
            requests: resources::pod_requests(&pod),
            counted_cpu: counted.milli_cpu,
            counted_memory: counted.memory,
            host_ports: spec.map(host_ports).unwrap_or_default(),
            affinity: required,
            anti_affinity: anti_required,
            preferred_affinity: preferred,
            preferred_anti_affinity: anti_preferred,
            claims: spec.map(|spec| claims(spec, &pod)).unwrap_or_default(),
            resource_claims: resource_claims(&pod),
            extended: extended::of_containers(&pod),
            images: spec.map(images).unwrap_or_default(),
            required_features: spec.map(declared_features::for_scheduling).unwrap_or_default(),
            pod,
        }
    }

    /// Forgets what no plugin reads any more: containers and most volumes, some three kilobytes each as values
    /// however little they say. Extenders are given whole pods, so with them this is not done.
    pub fn trim(&mut self) {
        self.pod.metadata.owner_references.iter_mut().for_each(Vec::shrink_to_fit);
        if let Some(spec) = &mut self.pod.spec {
            spec.containers = Vec::new();
            (spec.init_containers, spec.ephemeral_containers) = (None, None);
            if let Some(volumes) = &mut spec.volumes {
                volumes.retain(is_disk);
                volumes.shrink_to_fit();
            }
            spec.volumes.take_if(|volumes| volumes.is_empty());
            spec.tolerations.iter_mut().for_each(Vec::shrink_to_fit);
        }
        if let Some(status) = &mut self.pod.status {
            (status.container_statuses, status.init_container_statuses) = (None, None);
            status.conditions.iter_mut().for_each(Vec::shrink_to_fit);
        }
    }

    pub fn spec(&self) -> &PodSpec {
        static EMPTY: std::sync::LazyLock<PodSpec> = std::sync::LazyLock::new(PodSpec::default);
        self.pod.spec.as_ref().unwrap_or(&EMPTY)
    }

    pub fn labels(&self) -> &BTreeMap<String, String> {
        self.pod.metadata.labels.as_ref().unwrap_or(&NO_LABELS)
    }

    pub fn tolerations(&self) -> &[Toleration] {
        self.spec().tolerations.as_deref().unwrap_or(&[])
    }

    pub fn affinity_spec(&self) -> Option<&Affinity> {
        self.spec().affinity.as_ref()
    }

    pub fn has_pod_affinity(&self) -> bool {
        !(self.affinity.is_empty()
            && self.anti_affinity.is_empty()
            && self.preferred_affinity.is_empty()
            && self.preferred_anti_affinity.is_empty())
    }

    pub fn scheduler_name(&self) -> &str {
        self.spec().scheduler_name.as_deref().filter(|name| !name.is_empty()).unwrap_or("default-scheduler")
    }

    pub fn is_terminating(&self) -> bool {
        self.pod.metadata.deletion_timestamp.is_some()
    }

    pub fn nominated_node(&self) -> Option<&str> {
        let status = self.pod.status.as_ref()?;
        status.nominated_node_name.as_deref().filter(|name| !name.is_empty())
    }

    /// Whether it is not to be scheduled yet: a gate says so, or claims have to be made from their templates first.
    pub fn is_gated(&self) -> bool {
        self.spec().scheduling_gates.as_ref().is_some_and(|gates| !gates.is_empty())
            || self.resource_claims.iter().any(|used| matches!(used, ResourceClaimUse::NotGenerated(_)))
    }
}

impl<'de> Deserialize<'de> for PodInfo {
    fn deserialize<D: Deserializer<'de>>(json: D) -> Result<Self, D::Error> {
        Pod::deserialize(json).map(PodInfo::new)
    }
}

impl Resource for PodInfo {
    type DynamicType = ();
    type Scope = NamespaceResourceScope;

    fn kind(own: &()) -> Cow<'_, str> {
        Pod::kind(own)
    }

    fn group(own: &()) -> Cow<'_, str> {
        Pod::group(own)
    }

    fn version(own: &()) -> Cow<'_, str> {
        Pod::version(own)
    }

    fn plural(own: &()) -> Cow<'_, str> {
        Pod::plural(own)
    }

    fn meta(&self) -> &ObjectMeta {
        &self.pod.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.pod.metadata
    }
}

/// A volume that only one pod of a node can use.
pub fn is_disk(volume: &Volume) -> bool {
    volume.gce_persistent_disk.is_some()
        || volume.aws_elastic_block_store.is_some()
        || volume.rbd.is_some()
        || volume.iscsi.is_some()
}

fn images(spec: &PodSpec) -> Vec<Box<str>> {
    let containers = spec.init_containers.iter().flatten().chain(&spec.containers);
    containers.map(|container| with_tag(container.image.as_deref().unwrap_or(""))).collect()
}

fn with_tag(image: &str) -> Box<str> {
    let name = image.rsplit('/').next().unwrap_or(image);
    let tagged = name.contains(':') || name.contains('@');
    if tagged { image.into() } else { format!("{image}:latest").into() }
}

impl HostPort {
    pub fn conflicts(&self, other: &HostPort) -> bool {
        const ANY: &str = "0.0.0.0";
        self.port == other.port
            && self.protocol == other.protocol
            && (self.ip == other.ip || &*self.ip == ANY || &*other.ip == ANY)
    }
}

/// A pod that no longer uses its node.
pub fn is_finished(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}

pub fn node_name(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref()?.node_name.as_deref().filter(|name| !name.is_empty())
}

fn host_ports(spec: &PodSpec) -> Vec<HostPort> {
    let sidecars = spec.init_containers.iter().flatten();
    let sidecars = sidecars.filter(|container| container.restart_policy.as_deref() == Some("Always"));
    let ports = spec.containers.iter().chain(sidecars).flat_map(|container| container.ports.iter().flatten());
    let mut ports: Vec<HostPort> = ports
        .filter_map(|port| {
            let number = port.host_port.filter(|number| *number > 0)?;
            let text = |field: &Option<String>, default: &str| -> Box<str> {
                field.as_deref().filter(|text| !text.is_empty()).unwrap_or(default).into()
            };
            Some(HostPort {
                port: number,
                protocol: text(&port.protocol, "TCP"),
                ip: text(&port.host_ip, "0.0.0.0"),
            })
        })
        .collect();
    ports.sort();
    ports.dedup();
    ports
}

fn claims(spec: &PodSpec, pod: &Pod) -> Vec<Claim> {
    let volumes = spec.volumes.iter().flatten();
    volumes
        .filter_map(|volume| {
            if let Some(source) = &volume.persistent_volume_claim {
                return Some(Claim { name: source.claim_name.clone(), ephemeral: false });
            }
            volume.ephemeral.as_ref()?;
            let pod = pod.metadata.name.as_deref().unwrap_or("");
            Some(Claim { name: format!("{pod}-{}", volume.name), ephemeral: true })
        })
        .collect()
}

fn resource_claims(pod: &Pod) -> Vec<ResourceClaimUse> {
    let statuses =
        pod.status.as_ref().and_then(|status| status.resource_claim_statuses.as_deref()).unwrap_or(&[]);
    let claims = pod.spec.iter().flat_map(|spec| spec.resource_claims.iter().flatten());
    let claims = claims.filter_map(|claim| {
        if let Some(name) = &claim.resource_claim_name {
            return Some(ResourceClaimUse::Named(name.clone()));
        }
        let template = claim.resource_claim_template_name.clone()?;
        let status = statuses.iter().find(|status| status.name == claim.name);
        Some(match status.map(|status| status.resource_claim_name.clone()) {
            None => ResourceClaimUse::NotGenerated(template),
            Some(None) => ResourceClaimUse::Unneeded,
            Some(Some(name)) => ResourceClaimUse::Generated(name),
        })
    });
    claims.collect()
}

type Terms = (Vec<PodTerm>, Vec<(i64, PodTerm)>);

fn pod_affinity_terms(affinity: Option<&Affinity>, pod: &Pod) -> Terms {
    let Some(affinity) = affinity.and_then(|affinity| affinity.pod_affinity.as_ref()) else {
        return Terms::default();
    };
    let required = affinity.required_during_scheduling_ignored_during_execution.iter().flatten();
    let preferred = affinity.preferred_during_scheduling_ignored_during_execution.iter().flatten();
    (
        required.map(|term| PodTerm::new(term, pod)).collect(),
        preferred.map(|t| (t.weight.into(), PodTerm::new(&t.pod_affinity_term, pod))).collect(),
    )
}

fn pod_anti_affinity_terms(affinity: Option<&Affinity>, pod: &Pod) -> Terms {
    let Some(affinity) = affinity.and_then(|affinity| affinity.pod_anti_affinity.as_ref()) else {
        return Terms::default();
    };
    let required = affinity.required_during_scheduling_ignored_during_execution.iter().flatten();
    let preferred = affinity.preferred_during_scheduling_ignored_during_execution.iter().flatten();
    (
        required.map(|term| PodTerm::new(term, pod)).collect(),
        preferred.map(|t| (t.weight.into(), PodTerm::new(&t.pod_affinity_term, pod))).collect(),
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn dropped_pod_fields_do_not_change_pod_info() {
        let resources = json!({"requests": {"cpu": "2", "memory": "1Gi"}, "limits": {"cpu": "4"}});
        let container = json!({"name": "c", "image": "web", "args": ["}"], "env": [{"name": "A", "value": "]"}],
            "ports": [{"containerPort": 80, "hostPort": 80, "hostIP": "10.0.0.1"}], "resources": resources});
        let started = json!({"name": "c", "image": "web", "imageID": "", "ready": true, "restartCount": 0,
            "allocatedResources": {"cpu": "3"}, "state": {"running": {}}});
        let term = json!({"topologyKey": "zone", "labelSelector": {"matchLabels": {"app": "web"}}});
        let claim = json!({"volumeClaimTemplate": {"spec": {}}});
        let whole = json!({
            "metadata": {"name": "a", "namespace": "n", "uid": "u", "labels": {"app": "web"}, "resourceVersion": "7",
                "ownerReferences": [{"apiVersion": "v1", "kind": "K", "name": "o", "uid": "o", "controller": true}],
                "generation": 2, "deletionTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {
                "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}},
                "containers": [container], "initContainers": [{"name": "i", "image": "init", "restartPolicy": "Always",
                    "resources": resources}],
                "nodeName": "node", "nodeSelector": {"a": "b"}, "overhead": {"cpu": "1"}, "priority": 5,
                "preemptionPolicy": "Never", "schedulerName": "s", "schedulingGates": [{"name": "g"}],
                "tolerations": [{"key": "k", "operator": "Exists"}],
                "topologySpreadConstraints": [{"topologyKey": "zone", "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}],
                "volumes": [{"name": "t", "projected": {"sources": []}}, {"name": "e", "ephemeral": claim},
                    {"name": "p", "persistentVolumeClaim": {"claimName": "p"}},
                    {"name": "disk", "rbd": {"monitors": ["m"], "image": "i"}}],
            },
            "status": {"phase": "Running", "nominatedNodeName": "other", "containerStatuses": [started],
                "conditions": [{"type": "PodScheduled", "status": "False", "reason": "r"}]},
        });
        let read = |text: &[u8]| {
            let mut pod: PodInfo = serde_json::from_slice(text).unwrap();
            pod.trim();
            format!("{pod:?}")
        };
        let text = whole.to_string().into_bytes();
        let mut more = whole.clone();
        more["metadata"]["annotations"] = json!({"a": "b"});
        more["metadata"]["managedFields"] = json!([{"fieldsV1": {"f:spec": {}}}]);
        more["spec"]["securityContext"] = json!({"runAsUser": 0});
        more["status"]["podIPs"] = json!([{"ip": "10.0.0.2"}]);
        let mut cut = more.to_string().into_bytes();
        KEPT.cut(&mut cut);
        assert!(cut.len() < text.len());
        assert_eq!(read(&cut), read(&text));
    }

    #[test]
    fn dropped_pod_fields_are_evaluated_first() {
        let mut pod: PodInfo = serde_json::from_value(json!({
            "metadata": {"name": "a", "namespace": "n", "labels": {"app": "web"}},
            "spec": {
                "containers": [{"name": "c", "image": "web", "ports": [{"containerPort": 80, "hostPort": 80}],
                    "resources": {"requests": {"cpu": "2"}}}],
                "initContainers": [{"name": "i", "image": "registry:5000/init@sha256:0"}],
                "volumes": [
                    {"name": "token", "projected": {}},
                    {"name": "data", "persistentVolumeClaim": {"claimName": "data"}},
                    {"name": "disk", "rbd": {"monitors": ["m"], "image": "i"}},
                ],
            },
        }))
        .unwrap();
        pod.trim();
        assert!(pod.spec().containers.is_empty() && pod.spec().init_containers.is_none());
        let kept = pod.spec().volumes.iter().flatten();
        assert_eq!(kept.map(|volume| volume.name.as_str()).collect::<Vec<_>>(), ["disk"]);
        assert_eq!((pod.requests.milli_cpu, pod.host_ports.len(), pod.claims.len()), (2000, 1, 1));
        assert_eq!(pod.images, ["registry:5000/init@sha256:0".into(), "web:latest".into()]);
        assert_eq!(pod.labels()["app"], "web");
    }
}
