//! NodeRestriction: a kubelet may only change its own Node, its own pods and their dependents. The Node authorizer decides
//! by name; this plugin decides by content.

use std::sync::Arc;

use async_trait::async_trait;
use ferry_api::{GroupResource, Object, Status, local_volume};
use ferry_auth::authorize::node::node_name;
use ferry_auth::{Attributes, Authorization};
use ferry_registry::Registry;
use ferry_registry::verbs::Operation;
use serde_json::Value;

use super::Context;
use crate::certificate_request::requested;
use crate::chain::{Phase, Plugin, Request};
use crate::lookup::lookup;

const MIRROR: &str = "kubernetes.io/config.mirror";
const LEASES: &str = "kube-node-lease";
const RESTRICTED: &str = "node-restriction.kubernetes.io";
/// Labels of Kubernetes' own that a kubelet sets on its Node.
const OWN_LABELS: [&str; 11] = [
    "kubernetes.io/hostname",
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
    "beta.kubernetes.io/instance-type",
    "node.kubernetes.io/instance-type",
    "kubernetes.io/os",
    "kubernetes.io/arch",
    "beta.kubernetes.io/os",
    "beta.kubernetes.io/arch",
];
const OWN_LABEL_DOMAINS: [&str; 2] = ["kubelet.kubernetes.io", "node.kubernetes.io"];

pub fn make(context: &Context) -> Arc<dyn Plugin> {
    Arc::new(NodeRestriction {
        registry: context.registry.clone(),
        authorization: context.authorization.clone(),
    })
}

struct NodeRestriction {
    registry: Arc<Registry>,
    authorization: Authorization,
}

#[async_trait]
impl Plugin for NodeRestriction {
    fn phases(&self) -> &'static [Phase] {
        &[Phase::Validate]
    }

    fn handles(&self, request: &Request<'_>) -> bool {
        node_name(request.call.user).is_some()
    }

    async fn validate(
        &self,
        request: &Request<'_>,
        object: Option<&Object>,
        old: Option<&Object>,
    ) -> Result<(), Status> {
        let Some(node) = node_name(request.call.user) else { return Ok(()) };
        if node.is_empty() {
            let user = &request.call.user.name;
            return Err(request.forbid(format!("could not determine node from user {user:?}")));
        }
        let write = Write { request, node, object, old, registry: &self.registry };
        match (&*request.call.kind.group, &*request.call.kind.plural, request.call.subresource) {
            ("", "pods", "") => write.pod(),
            ("", "pods", "status") => write.pod_status(),
            ("", "pods", "eviction") => write.eviction(),
            ("", "pods", other) => Err(request.forbid(format!(
                "unexpected pod subresource {other:?}, only 'status' and 'eviction' are allowed"
            ))),
            ("", "nodes", _) => write.node(),
            ("", "persistentvolumeclaims", "status") => write.claim_status(),
            ("", "persistentvolumeclaims", _) => Err(request.forbid("may only update PVC status")),
            ("", "persistentvolumes", _) => write.volume(),
            ("", "serviceaccounts", "token") => {
                let pod = write.token()?;
                self.audience(&write, &pod).await
            }
            ("certificates.k8s.io", "podcertificaterequests", _) => write.pod_certificate_request(),
            ("certificates.k8s.io", "certificatesigningrequests", "") => write.signing_request(),
            ("coordination.k8s.io", "leases", _) => write.lease(),
            ("storage.k8s.io", "csinodes", _) if request.name != node => {
                Err(request.forbid("can only access CSINode with the same name as the requesting node"))
            }
            ("resource.k8s.io", "resourceslices", _) => write.resource_slice(),
            _ => Ok(()),
        }
    }
}

impl NodeRestriction {
    /// A node asks for tokens only for those audiences that the pod's volumes need.
    async fn audience(&self, write: &Write<'_>, pod: &Object) -> Result<(), Status> {
        let request = write.request;
        let audiences = write.object.and_then(|token| token.get(&["spec", "audiences"]));
        let audience = match audiences.and_then(Value::as_array).map(Vec::as_slice) {
            None | Some([]) => "",
            Some([one]) => one.as_str().unwrap_or(""),
            Some(_) => return Err(request.forbid("node may only request 0 or 1 audiences")),
        };
        if audiences_of(pod, &self.registry).iter().any(|named| named == audience) {
            return Ok(());
        }
        let verb = "request-serviceaccounts-token-audience";
        let question = Attributes {
            api_version: "v1",
            namespace: request.call.namespace,
            name: request.name,
            ..Attributes::resource(request.call.user, verb, "", audience)
        };
        match self.authorization.authorize(&question).await.is_allowed() {
            true => Ok(()),
            false => Err(request.forbid(format!(
                "audience {audience:?} not found in pod spec volume, {} is not authorized to request tokens for this audience",
                request.call.user.name
            ))),
        }
    }
}

/// One write of a node's.
struct Write<'a> {
    request: &'a Request<'a>,
    node: &'a str,
    object: Option<&'a Object>,
    old: Option<&'a Object>,
    registry: &'a Registry,
}

impl Write<'_> {
    fn forbid(&self, why: impl std::fmt::Display) -> Result<(), Status> {
        Err(self.request.forbid(why))
    }

    fn pod(&self) -> Result<(), Status> {
        let node = self.node;
        match (self.request.operation, self.object, self.old) {
            (Operation::Create, Some(pod), _) => self.mirror_pod(pod),
            (Operation::Delete, _, Some(pod)) if pod.text_at(&["spec", "nodeName"]) == node => Ok(()),
            (Operation::Delete, ..) => {
                self.forbid(format!("node {node:?} can only delete pods with spec.nodeName set to itself"))
            }
            (operation, ..) => self.forbid(format!(
                "unexpected operation {:?}, node {node:?} can only create and delete mirror pods",
                word(operation)
            )),
        }
    }

    /// A kubelet shows the pods of its own files in the API; they can lead to no one else's secrets.
    fn mirror_pod(&self, pod: &Object) -> Result<(), Status> {
        let node = self.node;
        if pod.annotation(MIRROR).is_none() {
            return self.forbid(format!(
                "pod does not have {MIRROR:?} annotation, node {node:?} can only create mirror pods"
            ));
        }
        if pod.text_at(&["spec", "nodeName"]) != node {
            return self
                .forbid(format!("node {node:?} can only create pods with spec.nodeName set to itself"));
        }
        let owners = pod.meta("ownerReferences").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        let owner = match owners {
            [owner] => owner,
            [] => {
                return self.forbid(format!(
                    "node {node:?} can only create pods with an owner reference set to itself"
                ));
            }
            _ => {
                return self.forbid(format!(
                    "node {node:?} can only create pods with a single owner reference set to itself"
                ));
            }
        };
        let text = |field: &str| owner.get(field).and_then(Value::as_str).unwrap_or("");
        let flag = |field: &str| owner.get(field).and_then(Value::as_bool).unwrap_or(false);
        if (text("apiVersion"), text("kind"), text("name")) != ("v1", "Node", node) {
            return self
                .forbid(format!("node {node:?} can only create pods with an owner reference set to itself"));
        }
        if !flag("controller") {
            return self.forbid(format!(
                "node {node:?} can only create pods with a controller owner reference set to itself"
            ));
        }
        if flag("blockOwnerDeletion") {
            return self
                .forbid(format!("node {node:?} must not set blockOwnerDeletion on an owner reference"));
        }
        let found = self.find("", "nodes", "", node)?;
        if found.uid() != text("uid") {
            return self.forbid(format!(
                "node {node} UID mismatch: expected {} got {}",
                text("uid"),
                found.uid()
            ));
        }
        match referenced(pod) {
            Some(resource) => {
                self.forbid(format!("node {node:?} can not create pods that reference {resource}"))
            }
            None => Ok(()),
        }
    }

    fn pod_status(&self) -> Result<(), Status> {
        let node = self.node;
        let (Operation::Update, Some(new), Some(old)) = (self.request.operation, self.object, self.old)
        else {
            return self.forbid(format!("unexpected operation {:?}", word(self.request.operation)));
        };
        if old.text_at(&["spec", "nodeName"]) != node {
            return self.forbid(format!(
                "node {node:?} can only update pod status for pods with spec.nodeName set to itself"
            ));
        }
        if !same(new, old, &["metadata", "labels"]) {
            return self.forbid(format!("node {node:?} cannot update labels through pod status"));
        }
        if !same(new, old, &["status", "resourceClaimStatuses"]) {
            return self.forbid(format!("node {node:?} cannot update resource claim statues"));
        }
        if !same(new, old, &["status", "extendedResourceClaimStatus"]) {
            return self.forbid(format!("node {node:?} cannot update extended resource claim status"));
        }
        Ok(())
    }

    fn eviction(&self) -> Result<(), Status> {
        let pod = self.find("", "pods", self.request.call.namespace, self.request.name)?;
        match pod.text_at(&["spec", "nodeName"]) == self.node {
            true => Ok(()),
            false => self
                .forbid(format!("node {} can only evict pods with spec.nodeName set to itself", self.node)),
        }
    }

    fn node(&self) -> Result<(), Status> {
        let (node, name) = (self.node, self.request.name);
        if name != node {
            return self.forbid(format!("node {node:?} is not allowed to modify node {name:?}"));
        }
        match (self.request.operation, self.object, self.old) {
            (Operation::Create, Some(new), _) => {
                let labels = forbidden_labels(new, None);
                if !labels.is_empty() {
                    return self.forbid(format!(
                        "node {node:?} is not allowed to set the following labels: {}",
                        labels.join(", ")
                    ));
                }
                Ok(())
            }
            (Operation::Update, Some(new), Some(old)) => {
                if !same(new, old, &["spec", "taints"]) {
                    return self.forbid(format!("node {node:?} is not allowed to modify taints"));
                }
                if !same(new, old, &["metadata", "ownerReferences"]) {
                    return self.forbid(format!("node {node:?} is not allowed to modify ownerReferences"));
                }
                let labels = forbidden_labels(new, Some(old));
                if !labels.is_empty() {
                    return self.forbid(format!("is not allowed to modify labels: {}", labels.join(", ")));
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn claim_status(&self) -> Result<(), Status> {
        let (Operation::Update, Some(new), Some(old)) = (self.request.operation, self.object, self.old)
        else {
            return self.forbid(format!("unexpected operation {:?}", word(self.request.operation)));
        };
        let rest = |claim: &Object| {
            let mut claim = claim.clone();
            claim.remove_meta("resourceVersion");
            claim.set_managers(Vec::new());
            let status = claim.section_mut("status");
            for field in ["capacity", "conditions", "allocatedResourceStatuses", "allocatedResources"] {
                status.remove(field);
            }
            claim
        };
        match rest(new) == rest(old) {
            true => Ok(()),
            false => self.forbid(format!(
                "node {:?} is not allowed to update fields other than status.quantity and status.conditions",
                self.node
            )),
        }
    }

    /// Of a volume that is its own directory a node says whether that is there, and nothing else.
    fn volume(&self) -> Result<(), Status> {
        let (Operation::Update, "", Some(new), Some(old)) =
            (self.request.operation, self.request.call.subresource, self.object, self.old)
        else {
            return self.forbid(format!("unexpected operation {:?}", word(self.request.operation)));
        };
        if !is_directory_of(old, self.node) {
            return self.forbid(format!(
                "node {:?} can only update volumes that are directories of its own",
                self.node
            ));
        }
        match without_mark(new) == without_mark(old) {
            true => Ok(()),
            false => self.forbid(format!(
                "node {:?} is not allowed to update more of a volume than the finalizer {:?}",
                self.node,
                local_volume::FINALIZER
            )),
        }
    }

    /// A token of a service account goes to the node that runs a pod of it, bound to that pod.
    fn token(&self) -> Result<Object, Status> {
        let text = |field: &str| {
            self.object.map_or("", |request| request.text_at(&["spec", "boundObjectRef", field]))
        };
        if (text("apiVersion"), text("kind")) != ("v1", "Pod") || text("name").is_empty() {
            return Err(self.request.forbid("node requested token not bound to a pod"));
        }
        if text("uid").is_empty() {
            return Err(self.request.forbid("node requested token with a pod binding without a uid"));
        }
        let pod = self.find("", "pods", self.request.call.namespace, text("name"))?;
        if pod.uid() != text("uid") {
            return Err(self.request.forbid(format!(
                "the UID in the bound object reference ({}) does not match the UID in record. The object might have been deleted and then recreated",
                text("uid")
            )));
        }
        if pod.text_at(&["spec", "nodeName"]) != self.node {
            return Err(self
                .request
                .forbid("node requested token bound to a pod scheduled on a different node"));
        }
        Ok(pod)
    }

    fn pod_certificate_request(&self) -> Result<(), Status> {
        let (Operation::Create, "", Some(request)) =
            (self.request.operation, self.request.call.subresource, self.object)
        else {
            return self.forbid(format!("unexpected operation {:?}", word(self.request.operation)));
        };
        let text = |field: &str| request.text_at(&["spec", field]);
        let namespace = self.request.call.namespace;
        if text("nodeName") != self.node {
            return self.forbid(format!(
                "PodCertificateRequest.Spec.NodeName={:?}, which is not the requesting node {:?}",
                text("nodeName"),
                self.node
            ));
        }
        let pod = self.find("", "pods", namespace, text("podName"))?;
        let described = format!("{namespace}/{}", text("podName"));
        let checks = [
            (self.find("", "nodes", "", self.node)?.uid() == text("nodeUID"), "names another node UID"),
            (pod.uid() == text("podUID"), "contains another pod UID"),
            (pod.text_at(&["spec", "nodeName"]) == self.node, "is not for a pod on this node"),
            (pod.annotation(MIRROR).is_none(), "is for a mirror pod"),
            (
                pod.text_at(&["spec", "serviceAccountName"]) == text("serviceAccountName"),
                "names another service account",
            ),
        ];
        if let Some((_, why)) = checks.iter().find(|(holds, _)| !holds) {
            return self.forbid(format!("PodCertificateRequest for pod {described:?} {why}"));
        }
        let account = self.find("", "serviceaccounts", namespace, text("serviceAccountName"))?;
        match account.uid() == text("serviceAccountUID") {
            true => Ok(()),
            false => self.forbid(format!(
                "PodCertificateRequest for pod {described:?} names another service account UID"
            )),
        }
    }

    /// A kubelet's certificate carries its own name.
    fn signing_request(&self) -> Result<(), Status> {
        let (Operation::Create, Some(request)) = (self.request.operation, self.object) else { return Ok(()) };
        let signer = request.text_at(&["spec", "signerName"]);
        if !["kubernetes.io/kubelet-serving", "kubernetes.io/kube-apiserver-client-kubelet"].contains(&signer)
        {
            return Ok(());
        }
        let name = format!("system:node:{}", self.node);
        match requested(request.text_at(&["spec", "request"])) {
            Err(why) => self.forbid(format!("unable to parse csr: {why}")),
            Ok(subject) if subject.common_name == name => Ok(()),
            Ok(_) => self.forbid(format!("can only create a node CSR with CN={name}")),
        }
    }

    fn lease(&self) -> Result<(), Status> {
        if self.request.call.namespace != LEASES {
            return self.forbid(format!("can only access leases in the {LEASES:?} system namespace"));
        }
        match self.request.name == self.node {
            true => Ok(()),
            false => self.forbid("can only access node lease with the same name as the requesting node"),
        }
    }

    fn resource_slice(&self) -> Result<(), Status> {
        let (slice, doing) = match self.request.operation {
            Operation::Create => (self.object, "create"),
            Operation::Delete => (self.old, "delete"),
            Operation::Update | Operation::Connect => return Ok(()),
        };
        match slice.map_or("", |slice| slice.text_at(&["spec", "nodeName"])) == self.node {
            true => Ok(()),
            false => self.forbid(format!(
                "can only {doing} ResourceSlice with the same NodeName as the requesting node"
            )),
        }
    }

    fn find(
        &self,
        group: &'static str,
        plural: &'static str,
        namespace: &str,
        name: &str,
    ) -> Result<Object, Status> {
        lookup(self.registry, group, plural, namespace, name)?
            .ok_or_else(|| Status::not_found(&GroupResource::new(group, plural), name))
    }
}

fn word(operation: Operation) -> &'static str {
    match operation {
        Operation::Create => "CREATE",
        Operation::Update => "UPDATE",
        Operation::Delete => "DELETE",
        Operation::Connect => "CONNECT",
    }
}

/// Absent and empty are the same.
fn same(new: &Object, old: &Object, path: &[&str]) -> bool {
    let content = |object: &'_ Object| {
        object.get(path).cloned().filter(|value| match value {
            Value::Null => false,
            Value::Array(list) => !list.is_empty(),
            Value::Object(map) => !map.is_empty(),
            _ => true,
        })
    };
    content(new) == content(old)
}

/// Labels that changed and are not a kubelet's to set, in order.
fn forbidden_labels(new: &Object, old: Option<&Object>) -> Vec<String> {
    let before = |key: &str| old.and_then(|old| old.label(key));
    let set = new.labels().filter(|(key, value)| before(key) != Some(value)).map(|(key, _)| key);
    let removed = old.into_iter().flat_map(Object::labels).map(|(key, _)| key);
    let removed = removed.filter(|key| new.label(key).is_none());
    let mut forbidden: Vec<String> =
        set.chain(removed).filter(|key| !is_own_label(key)).map(str::to_string).collect();
    forbidden.sort();
    forbidden
}

fn is_own_label(key: &str) -> bool {
    let domain = key.split_once('/').map_or("", |(domain, _)| domain);
    let within = |of: &str| domain == of || domain.strip_suffix(of).is_some_and(|start| start.ends_with('.'));
    if within(RESTRICTED) {
        return false;
    }
    let kubernetes = within("kubernetes.io") || within("k8s.io");
    !kubernetes || OWN_LABELS.contains(&key) || OWN_LABEL_DOMAINS.iter().any(|of| within(of))
}

/// The first sort of object of the API that the pod refers to.
fn referenced(pod: &Object) -> Option<&'static str> {
    const REFERENCES: [(&str, &[&str]); 5] = [
        ("serviceaccounts", &["serviceAccountToken"]),
        (
            "secrets",
            &[
                "secret",
                "secretRef",
                "secretKeyRef",
                "nodePublishSecretRef",
                "imagePullSecrets",
                "secretName",
            ],
        ),
        ("configmaps", &["configMap", "configMapRef", "configMapKeyRef"]),
        ("persistentvolumeclaims", &["persistentVolumeClaim", "ephemeral"]),
        ("clustertrustbundles", &["clusterTrustBundle"]),
    ];
    fn names(value: &Value, keys: &[&str]) -> bool {
        match value {
            Value::Object(map) => {
                map.iter().any(|(key, value)| keys.contains(&key.as_str()) || names(value, keys))
            }
            Value::Array(list) => list.iter().any(|value| names(value, keys)),
            _ => false,
        }
    }
    if !pod.text_at(&["spec", "serviceAccountName"]).is_empty() {
        return Some("serviceaccounts");
    }
    let is_set = |field: &str| {
        pod.get(&["spec", field]).and_then(Value::as_array).is_some_and(|list| !list.is_empty())
    };
    if is_set("imagePullSecrets") {
        return Some("secrets");
    }
    if is_set("resourceClaims") {
        return Some("resourceclaims");
    }
    let containers = ["containers", "initContainers", "ephemeralContainers"].into_iter().flat_map(|field| {
        let list = pod.get(&["spec", field]).and_then(Value::as_array).into_iter().flatten();
        list.flat_map(|container| ["env", "envFrom"].into_iter().filter_map(|part| container.get(part)))
    });
    let places: Vec<&Value> = containers.chain(pod.get(&["spec", "volumes"])).collect();
    REFERENCES.iter().find(|(_, keys)| places.iter().any(|place| names(place, keys))).map(|(what, _)| *what)
}

/// Whether a PersistentVolume is a directory of a node.
fn is_directory_of(volume: &Object, node: &str) -> bool {
    volume.text_at(&["spec", "csi", "driver"]) == local_volume::DRIVER
        && volume.text_at(&["spec", "csi", "volumeAttributes", local_volume::NODE]) == node
}

/// A volume but for what its node says of it.
fn without_mark(volume: &Object) -> (Object, Vec<String>) {
    let mut rest = volume.clone();
    for field in ["resourceVersion", "finalizers"] {
        rest.remove_meta(field);
    }
    rest.set_managers(Vec::new());
    let others = volume.finalizers().filter(|finalizer| *finalizer != local_volume::FINALIZER);
    (rest, others.map(str::to_owned).collect())
}

/// What the pod's volumes need tokens for: projected ones, and those of their CSI drivers.
fn audiences_of(pod: &Object, registry: &Registry) -> Vec<String> {
    let mut audiences = Vec::new();
    let volumes = pod.get(&["spec", "volumes"]).and_then(Value::as_array).into_iter().flatten();
    for volume in volumes {
        let text = |path: &str| volume.pointer(path).and_then(Value::as_str);
        for source in volume.pointer("/projected/sources").and_then(Value::as_array).into_iter().flatten() {
            if let Some(token) = source.get("serviceAccountToken") {
                audiences.push(token.get("audience").and_then(Value::as_str).unwrap_or("").to_string());
            }
        }
        let claim = text("/persistentVolumeClaim/claimName").map(str::to_string).or_else(|| {
            let name = text("/name").filter(|_| volume.get("ephemeral").is_some())?;
            Some(format!("{}-{name}", pod.name()))
        });
        let driver = text("/csi/driver")
            .map(str::to_string)
            .or_else(|| claim.and_then(|claim| driver_of(registry, pod.namespace(), &claim)));
        let found = driver
            .and_then(|driver| lookup(registry, "storage.k8s.io", "csidrivers", "", &driver).ok().flatten());
        let requests = found.as_ref().and_then(|driver| driver.get(&["spec", "tokenRequests"]));
        for request in requests.and_then(Value::as_array).into_iter().flatten() {
            audiences.push(request.get("audience").and_then(Value::as_str).unwrap_or("").to_string());
        }
    }
    audiences
}

fn driver_of(registry: &Registry, namespace: &str, claim: &str) -> Option<String> {
    let claim = lookup(registry, "", "persistentvolumeclaims", namespace, claim).ok().flatten()?;
    let volume = claim.text_at(&["spec", "volumeName"]);
    let volume = lookup(registry, "", "persistentvolumes", "", volume).ok().flatten()?;
    Some(volume.text_at(&["spec", "csi", "driver"]).to_string())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object(value: Value) -> Object {
        Object::from_value(value).expect("an object")
    }

    #[test]
    fn of_its_own_volume_a_node_sets_one_finalizer() {
        let volume = |driver: &str, finalizers: &[&str], size: &str| {
            let attributes = json!({local_volume::NODE: "n1"});
            object(json!({"metadata": {"name": "v", "finalizers": finalizers}, "spec": {
                "capacity": {"storage": size}, "csi": {"driver": driver, "volumeAttributes": attributes}}}))
        };
        let own = volume(local_volume::DRIVER, &["kubernetes.io/pv-protection"], "1Gi");
        assert!(is_directory_of(&own, "n1"));
        assert!(!is_directory_of(&own, "n2"));
        assert!(!is_directory_of(&volume("other.example", &[], "1Gi"), "n1"));
        let says = |finalizers: &[&str], size: &str| {
            without_mark(&volume(local_volume::DRIVER, finalizers, size)) == without_mark(&own)
        };
        assert!(says(&["kubernetes.io/pv-protection", local_volume::FINALIZER], "1Gi"));
        assert!(!says(&[local_volume::FINALIZER], "1Gi"), "another's finalizer is not the node's to remove");
        assert!(!says(&["kubernetes.io/pv-protection"], "2Gi"));
    }

    #[test]
    fn a_kubelet_sets_its_own_labels() {
        let check = |key: &str, expected: bool| assert_eq!(is_own_label(key), expected, "{key}");
        check("a", true);
        check("example.com/a", true);
        check("kubernetes.io/hostname", true);
        check("node.kubernetes.io/anything", true);
        check("feature.node.kubernetes.io/anything", true);
        check("kubernetes.io/role", false);
        check("node-role.kubernetes.io/control-plane", false);
        check("node-restriction.kubernetes.io/x", false);
        check("a.node-restriction.kubernetes.io/x", false);
        check("x.k8s.io/y", false);
        check("notkubernetes.io/y", true);
    }

    #[test]
    fn labels_that_changed_or_went_are_looked_at() {
        let labels = |labels: Value| object(json!({"metadata": {"labels": labels}}));
        let old = labels(json!({"a.k8s.io/kept": "1", "a.k8s.io/gone": "1", "a.k8s.io/other": "1"}));
        let new = labels(json!({"a.k8s.io/kept": "1", "a.k8s.io/other": "2", "mine": "x"}));
        assert_eq!(forbidden_labels(&new, Some(&old)), ["a.k8s.io/gone", "a.k8s.io/other"]);
        assert_eq!(forbidden_labels(&labels(json!({"mine": "x"})), None), Vec::<String>::new());
    }

    #[test]
    fn a_mirror_pod_refers_to_nothing_of_the_api() {
        let check = |spec: Value, expected: Option<&str>| {
            assert_eq!(referenced(&object(json!({"spec": spec}))), expected, "{spec}");
        };
        check(json!({"containers": [{"name": "secret", "env": [{"name": "a", "value": "b"}]}]}), None);
        check(json!({"volumes": [{"name": "v", "hostPath": {"path": "/secret"}}]}), None);
        check(json!({"serviceAccountName": "x"}), Some("serviceaccounts"));
        check(json!({"volumes": [{"name": "v", "secret": {"secretName": "s"}}]}), Some("secrets"));
        check(
            json!({"containers": [{"env": [{"valueFrom": {"configMapKeyRef": {"name": "c"}}}]}]}),
            Some("configmaps"),
        );
        check(
            json!({"volumes": [{"projected": {"sources": [{"serviceAccountToken": {}}]}}]}),
            Some("serviceaccounts"),
        );
        check(json!({"resourceClaims": [{"name": "gpu"}]}), Some("resourceclaims"));
        check(json!({"imagePullSecrets": [{"name": "s"}]}), Some("secrets"));
    }

    #[test]
    fn absent_and_empty_are_the_same() {
        let taints = |taints: Value| object(json!({"spec": {"taints": taints}}));
        assert!(same(&taints(json!([])), &object(json!({})), &["spec", "taints"]));
        assert!(!same(&taints(json!([{"key": "a"}])), &object(json!({})), &["spec", "taints"]));
    }
}
