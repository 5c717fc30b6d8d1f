//! The Node authorizer: a kubelet may access only its own objects and those that its pods need.
//!
//! A Secret is readable from a node when a pod bound to that node mentions it, or when a
//! PersistentVolume mentions it whose claim such a pod uses. [`Graph`] keeps that relation; the
//! rules for resources without such a relation are the table of the role `system:node`.
//!
//! What a node *writes* is only checked coarsely here, since the authorizer does not see
//! the object: the admission plugin NodeRestriction sees it and completes the check.

mod graph;
mod references;

use ferry_api::local_volume;
use k8s_openapi::api::{
    certificates::v1beta1::PodCertificateRequest,
    core::v1::{PersistentVolume, Pod},
    rbac::v1::PolicyRule,
    resource::v1::ResourceSlice,
    storage::v1::VolumeAttachment,
};
use parking_lot::RwLock;

use super::{Authorizer, Decision, Reason, Rules, rbac::rule_allows};
use crate::{
    MaybeReady,
    attributes::{Attributes, quote},
    bootstrap_policy,
    user::{NODE_PREFIX, NODES, User},
};

use graph::{Graph, Vertex, VertexType};

const LEASE_NAMESPACE: &str = "kube-node-lease";

/// Fed by informers through its `set_` and `remove_` methods.
pub struct NodeAuthorizer {
    graph: RwLock<Graph>,
    /// What every node may do alike.
    rules: Vec<PolicyRule>,
}

impl Default for NodeAuthorizer {
    fn default() -> Self {
        NodeAuthorizer::new()
    }
}

impl NodeAuthorizer {
    pub fn new() -> Self {
        let roles = bootstrap_policy::policy().cluster_roles;
        let node = roles.into_iter().find(|role| role.metadata.name.as_deref() == Some("system:node"));
        let rules = node.and_then(|role| role.rules).expect("the built-in policy has a role system:node");
        NodeAuthorizer { graph: RwLock::default(), rules }
    }

    pub fn set_pod(&self, pod: &Pod) {
        let key = object_key(&pod.metadata);
        match references::of_pod(pod) {
            Some(references) => self.graph.write().set_pod(key, references),
            None => self.graph.write().remove_pod(&key),
        }
    }

    pub fn remove_pod(&self, namespace: &str, name: &str) {
        self.graph.write().remove_pod(&(namespace.to_owned(), name.to_owned()));
    }

    pub fn set_persistent_volume(&self, volume: &PersistentVolume) {
        let name = volume.metadata.name.as_deref().unwrap_or("");
        match references::of_volume(volume) {
            Some(references) => self.graph.write().set_volume(name, references),
            None => self.graph.write().remove_volume(name),
        }
        self.set_direct(VertexType::PersistentVolume, &volume.metadata, local_volume::node(volume));
    }

    pub fn remove_persistent_volume(&self, name: &str) {
        let mut graph = self.graph.write();
        graph.remove_volume(name);
        graph.remove_direct(&Vertex::new(VertexType::PersistentVolume, "", name));
    }

    pub fn set_volume_attachment(&self, attachment: &VolumeAttachment) {
        self.set_direct(VertexType::VolumeAttachment, &attachment.metadata, Some(&attachment.spec.node_name));
    }

    pub fn remove_volume_attachment(&self, name: &str) {
        self.graph.write().remove_direct(&Vertex::new(VertexType::VolumeAttachment, "", name));
    }

    pub fn set_resource_slice(&self, slice: &ResourceSlice) {
        self.set_direct(VertexType::ResourceSlice, &slice.metadata, slice.spec.node_name.as_deref());
    }

    pub fn remove_resource_slice(&self, name: &str) {
        self.graph.write().remove_direct(&Vertex::new(VertexType::ResourceSlice, "", name));
    }

    pub fn set_pod_certificate_request(&self, request: &PodCertificateRequest) {
        self.set_direct(VertexType::PodCertificateRequest, &request.metadata, Some(&request.spec.node_name));
    }

    pub fn remove_pod_certificate_request(&self, namespace: &str, name: &str) {
        self.graph.write().remove_direct(&Vertex::new(VertexType::PodCertificateRequest, namespace, name));
    }

    fn set_direct(&self, kind: VertexType, metadata: &ObjectMeta, node: Option<&str>) {
        let (namespace, name) = object_key(metadata);
        let object = Vertex { kind, namespace, name };
        match node.filter(|node| !node.is_empty()) {
            Some(node) => self.graph.write().set_direct(object, node),
            None => self.graph.write().remove_direct(&object),
        }
    }

    pub fn decide(&self, attributes: &Attributes<'_>) -> Decision {
        let Some(node) = node_name(attributes.user) else { return no_opinion("") };
        if node.is_empty() {
            return no_opinion(format!("unknown node for user {}", quote(&attributes.user.name)));
        }
        let question = Question { node, attributes, graph: &self.graph };
        let answered = if attributes.is_resource_request { question.answer() } else { None };
        answered.unwrap_or_else(|| {
            if self.rules.iter().any(|rule| rule_allows(rule, attributes)) { ALLOW } else { no_opinion("") }
        })
    }
}

type ObjectMeta = k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

fn object_key(metadata: &ObjectMeta) -> (String, String) {
    (metadata.namespace.clone().unwrap_or_default(), metadata.name.clone().unwrap_or_default())
}

/// The node a user is, if it is one: `system:node:NAME`, member of `system:nodes`.
pub fn node_name(user: &User) -> Option<&str> {
    user.name.strip_prefix(NODE_PREFIX).filter(|_| user.is_in(NODES))
}

const ALLOW: Decision = Decision::Allow { reason: Reason::None };

fn no_opinion(reason: impl Into<Reason>) -> Decision {
    Decision::NoOpinion { reason: reason.into() }
}

/// One node's request.
struct Question<'a> {
    node: &'a str,
    attributes: &'a Attributes<'a>,
    graph: &'a RwLock<Graph>,
}

impl Question<'_> {
    /// `None` for a resource that all nodes may use alike.
    fn answer(&self) -> Option<Decision> {
        let attributes = self.attributes;
        Some(match (attributes.api_group, attributes.resource) {
            ("", "secrets") => self.read(VertexType::Secret),
            ("", "configmaps") => self.read(VertexType::ConfigMap),
            ("", "persistentvolumeclaims") if attributes.subresource == "status" => match attributes.verb {
                "update" | "patch" => self.related(VertexType::PersistentVolumeClaim),
                _ => no_opinion("can only get/update/patch this type"),
            },
            ("", "persistentvolumeclaims") => self.get(VertexType::PersistentVolumeClaim),
            ("", "persistentvolumes") => self.volume(),
            ("resource.k8s.io", "resourceclaims") => self.get(VertexType::ResourceClaim),
            ("storage.k8s.io", "volumeattachments") => self.get(VertexType::VolumeAttachment),
            ("", "serviceaccounts") => self.service_account(),
            ("coordination.k8s.io", "leases") => self.lease(),
            ("storage.k8s.io", "csinodes") => self.csi_node(),
            ("resource.k8s.io", "resourceslices") => self.resource_slice(),
            ("", "nodes") => self.node(),
            ("", "pods") => self.pod(),
            ("certificates.k8s.io", "podcertificaterequests") => self.pod_certificate_request(),
            _ => return None,
        })
    }

    fn related(&self, kind: VertexType) -> Decision {
        if self.attributes.name.is_empty() {
            return no_opinion("No Object name found");
        }
        let object = Vertex::new(kind, self.attributes.namespace, self.attributes.name);
        if self.graph.read().relates(&object, self.node) {
            return ALLOW;
        }
        no_opinion(format!("no relationship found between node '{}' and this object", self.node))
    }

    fn get(&self, kind: VertexType) -> Decision {
        if self.attributes.verb != "get" {
            return no_opinion("can only get individual resources of this type");
        }
        if !self.attributes.subresource.is_empty() {
            return no_opinion("cannot get subresource");
        }
        self.related(kind)
    }

    /// Those of its pods by get. A node also follows the volumes that are its own directories, and says of them which
    /// are made; NodeRestriction sees to it that it says nothing else.
    fn volume(&self) -> Decision {
        let selects_own = self.attributes.required_label(local_volume::NODE) == Some(self.node);
        match self.attributes.verb {
            "list" | "watch" if selects_own && self.attributes.subresource.is_empty() => ALLOW,
            "patch" if self.attributes.subresource.is_empty() => self.directory(),
            _ => self.get(VertexType::PersistentVolume),
        }
    }

    fn directory(&self) -> Decision {
        let object = Vertex::new(VertexType::PersistentVolume, "", self.attributes.name);
        if self.graph.read().is_direct(&object, self.node) {
            return ALLOW;
        }
        no_opinion("can only patch volumes that are directories of the node")
    }

    /// Single objects by get, or by list and watch with their name.
    fn read(&self, kind: VertexType) -> Decision {
        if !self.attributes.is_read_only() {
            return no_opinion("can only read resources of this type");
        }
        if !self.attributes.subresource.is_empty() {
            return no_opinion("cannot read subresource");
        }
        if self.attributes.namespace.is_empty() {
            return no_opinion("can only read namespaced object of this type");
        }
        self.related(kind)
    }

    fn service_account(&self) -> Decision {
        match (self.attributes.verb, self.attributes.subresource, self.attributes.name) {
            ("get", "", _) => self.read(VertexType::ServiceAccount),
            ("create", _, "") => no_opinion("can only create tokens for individual service accounts"),
            ("create", "token", _) => self.related(VertexType::ServiceAccount),
            ("create", ..) => no_opinion("can only create token subresource of serviceaccount"),
            _ => no_opinion("can only create tokens for individual service accounts"),
        }
    }

    fn lease(&self) -> Decision {
        if !matches!(self.attributes.verb, "get" | "create" | "update" | "patch" | "delete") {
            return no_opinion("can only get, create, update, patch, or delete a node lease");
        }
        if self.attributes.namespace != LEASE_NAMESPACE {
            return no_opinion(format!(
                "can only access leases in the {} system namespace",
                quote(LEASE_NAMESPACE)
            ));
        }
        // The name of what is created is in the body; NodeRestriction looks at it.
        if self.attributes.verb != "create" && self.attributes.name != self.node {
            return no_opinion("can only access node lease with the same name as the requesting node");
        }
        ALLOW
    }

    fn csi_node(&self) -> Decision {
        if !matches!(self.attributes.verb, "get" | "create" | "update" | "patch" | "delete") {
            return no_opinion("can only get, create, update, patch, or delete a CSINode");
        }
        if !self.attributes.subresource.is_empty() {
            return no_opinion("cannot authorize CSINode subresources");
        }
        if self.attributes.verb != "create" && self.attributes.name != self.node {
            return no_opinion("can only access CSINode with the same name as the requesting node");
        }
        ALLOW
    }

    fn resource_slice(&self) -> Decision {
        if !self.attributes.subresource.is_empty() {
            return no_opinion("cannot authorize ResourceSlice subresources");
        }
        match self.attributes.verb {
            "create" => ALLOW,
            "get" | "update" | "patch" | "delete" => self.related(VertexType::ResourceSlice),
            "watch" | "list" | "deletecollection" if self.selects_own("spec.nodeName") => ALLOW,
            "watch" | "list" | "deletecollection" => {
                no_opinion("can only list/watch/deletecollection resourceslices with nodeName field selector")
            }
            _ => no_opinion(
                "only the following verbs are allowed for a ResourceSlice: \
                 get, watch, list, create, update, patch, delete, deletecollection",
            ),
        }
    }

    fn pod_certificate_request(&self) -> Decision {
        if !self.attributes.subresource.is_empty() {
            return no_opinion("nodes may not access the status subresource of PodCertificateRequests");
        }
        match self.attributes.verb {
            "create" => ALLOW,
            "get" => self.related(VertexType::PodCertificateRequest),
            "list" | "watch" if self.selects_own("spec.nodeName") => ALLOW,
            "list" | "watch" => {
                no_opinion("can only list/watch podcertificaterequests with nodeName field selector")
            }
            verb => no_opinion(format!("nodes may not {verb} podcertificaterequests")),
        }
    }

    fn node(&self) -> Decision {
        match (self.attributes.subresource, self.attributes.verb) {
            ("", "create" | "update" | "patch") | ("status", "update" | "patch") => ALLOW,
            // By name and not by the graph: a kubelet reads its Node before it has made it.
            ("", "get" | "list" | "watch") => match self.attributes.name {
                name if name == self.node => ALLOW,
                "" => no_opinion(format!(
                    "node '{}' cannot read all nodes, only its own Node object",
                    self.node
                )),
                other => no_opinion(format!(
                    "node '{}' cannot read '{other}', only its own Node object",
                    self.node
                )),
            },
            _ => no_opinion(""),
        }
    }

    fn pod(&self) -> Decision {
        match (self.attributes.subresource, self.attributes.verb) {
            ("", "get") => self.get(VertexType::Pod),
            ("", "list" | "watch") if self.selects_own("spec.nodeName") => ALLOW,
            ("", "list" | "watch") if !self.attributes.name.is_empty() => self.related(VertexType::Pod),
            ("", "list" | "watch") => {
                no_opinion("can only list/watch pods with spec.nodeName field selector")
            }
            ("", "create" | "delete") | ("status", "update" | "patch") | ("eviction", "create") => ALLOW,
            _ => no_opinion(""),
        }
    }

    fn selects_own(&self, field: &str) -> bool {
        self.attributes.required_field(field) == Some(self.node)
    }
}

impl Authorizer for NodeAuthorizer {
    fn authorize<'a>(&'a self, attributes: &'a Attributes<'a>) -> MaybeReady<'a, Decision> {
        MaybeReady::Now(self.decide(attributes))
    }

    fn rules_for(&self, user: &User, _: &str) -> Rules {
        match node_name(user) {
            Some(_) => Rules::unknown("node authorizer does not support user rule resolution"),
            None => Rules::default(),
        }
    }
}

#[cfg(test)]
mod tests;
