//! Which lists are merged by which keys, and which kinds live in no namespace.
//!
//! kustomize knows the built-in kinds of Kubernetes v1.21 and nothing of later ones: their lists are
//! replaced as a whole and they are taken to live in a namespace. [`KNOWN`] keeps it so, and the rows of
//! `ferry-api` give the keys. A kustomization's `openapi` field replaces the built-in knowledge.

use std::collections::HashMap;
use std::rc::Rc;

use ferry_api::types::ListType;
use ferry_api::{GroupVersionKind, Shape, Types};
use serde_json::Value;

use crate::error::{Error, Result};
use crate::id::Gvk;

/// The kinds of v1.21, and whether they live in a namespace.
const KNOWN: &[(&str, bool, &[&str])] = &[
    (
        "admissionregistration.k8s.io/v1",
        false,
        &["MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"],
    ),
    (
        "admissionregistration.k8s.io/v1beta1",
        false,
        &["MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"],
    ),
    ("apiextensions.k8s.io/v1", false, &["CustomResourceDefinition"]),
    ("apiextensions.k8s.io/v1beta1", false, &["CustomResourceDefinition"]),
    ("apiregistration.k8s.io/v1", false, &["APIService"]),
    ("apiregistration.k8s.io/v1beta1", false, &["APIService"]),
    ("apps/v1", true, &["ControllerRevision", "DaemonSet", "Deployment", "ReplicaSet", "StatefulSet"]),
    ("autoscaling/v1", true, &["HorizontalPodAutoscaler", "Scale"]),
    ("autoscaling/v2beta1", true, &["HorizontalPodAutoscaler"]),
    ("autoscaling/v2beta2", true, &["HorizontalPodAutoscaler"]),
    ("batch/v1", true, &["CronJob", "Job"]),
    ("batch/v1beta1", true, &["CronJob"]),
    ("certificates.k8s.io/v1", false, &["CertificateSigningRequest"]),
    ("certificates.k8s.io/v1beta1", false, &["CertificateSigningRequest"]),
    ("coordination.k8s.io/v1", true, &["Lease"]),
    ("coordination.k8s.io/v1beta1", true, &["Lease"]),
    ("discovery.k8s.io/v1", true, &["EndpointSlice"]),
    ("discovery.k8s.io/v1beta1", true, &["EndpointSlice"]),
    ("events.k8s.io/v1", true, &["Event"]),
    ("events.k8s.io/v1beta1", true, &["Event"]),
    ("extensions/v1beta1", true, &["Ingress"]),
    ("flowcontrol.apiserver.k8s.io/v1beta1", false, &["FlowSchema", "PriorityLevelConfiguration"]),
    ("networking.k8s.io/v1", true, &["Ingress", "NetworkPolicy"]),
    ("networking.k8s.io/v1", false, &["IngressClass"]),
    ("networking.k8s.io/v1beta1", true, &["Ingress"]),
    ("networking.k8s.io/v1beta1", false, &["IngressClass"]),
    ("node.k8s.io/v1", false, &["RuntimeClass"]),
    ("node.k8s.io/v1beta1", false, &["RuntimeClass"]),
    ("policy/v1", true, &["PodDisruptionBudget"]),
    ("policy/v1beta1", true, &["PodDisruptionBudget"]),
    ("policy/v1beta1", false, &["PodSecurityPolicy"]),
    ("rbac.authorization.k8s.io/v1", false, &["ClusterRole", "ClusterRoleBinding"]),
    ("rbac.authorization.k8s.io/v1", true, &["Role", "RoleBinding"]),
    ("rbac.authorization.k8s.io/v1beta1", false, &["ClusterRole", "ClusterRoleBinding"]),
    ("rbac.authorization.k8s.io/v1beta1", true, &["Role", "RoleBinding"]),
    ("scheduling.k8s.io/v1", false, &["PriorityClass"]),
    ("scheduling.k8s.io/v1beta1", false, &["PriorityClass"]),
    ("storage.k8s.io/v1", false, &["CSIDriver", "CSINode", "StorageClass", "VolumeAttachment"]),
    ("storage.k8s.io/v1beta1", false, &["CSIDriver", "CSINode", "StorageClass", "VolumeAttachment"]),
    ("storage.k8s.io/v1beta1", true, &["CSIStorageCapacity"]),
    ("v1", false, &["ComponentStatus", "Namespace", "Node", "PersistentVolume"]),
    (
        "v1",
        true,
        &[
            "ConfigMap",
            "Endpoints",
            "Event",
            "LimitRange",
            "PersistentVolumeClaim",
            "Pod",
            "PodTemplate",
            "ReplicationController",
            "ResourceQuota",
            "Secret",
            "Service",
            "ServiceAccount",
        ],
    ),
];

/// Lists of known kinds that got their merge keys after v1.21.
const LATER: [&str; 3] = ["matchConditions", "resourceClaims", "schedulingGates"];

fn is_namespaced(gvk: &Gvk) -> Option<bool> {
    let api_version = gvk.api_version();
    KNOWN
        .iter()
        .find(|(known, _, kinds)| *known == api_version && kinds.contains(&gvk.kind.as_str()))
        .map(|(_, namespaced, _)| *namespaced)
}

#[derive(Default)]
pub struct Schemas {
    custom: Option<Rc<Custom>>,
}

/// An OpenAPI document that a kustomization brought.
pub struct Custom {
    definitions: Value,
    by_kind: HashMap<(String, String), String>,
    namespaced: HashMap<(String, String), bool>,
}

impl Schemas {
    pub fn of_document(text: &str) -> Result<Schemas> {
        let invalid = |why: String| Error::new(format!("invalid schema file: {why}"));
        let document: Value = if text.starts_with('{') {
            serde_json::from_str(text).map_err(|error| invalid(error.to_string()))?
        } else {
            let documents = ferry_api::yaml::documents(text).map_err(|error| invalid(error.to_string()))?;
            documents.into_iter().next().unwrap_or_default()
        };
        let definitions = document.get("definitions").cloned().unwrap_or_default();
        let mut by_kind = HashMap::new();
        for (name, definition) in definitions.as_object().into_iter().flatten() {
            let kinds = definition.get("x-kubernetes-group-version-kind").and_then(Value::as_array);
            if let [only] = kinds.map_or(&[][..], Vec::as_slice) {
                by_kind.insert(type_of(only), name.clone());
            }
        }
        let mut namespaced = HashMap::new();
        for (path, operations) in document.get("paths").and_then(Value::as_object).into_iter().flatten() {
            let kind = operations.get("get").and_then(|get| get.get("x-kubernetes-group-version-kind"));
            if let Some(kind) = kind {
                let known = namespaced.entry(type_of(kind)).or_insert(false);
                *known |= path.contains("namespaces/{namespace}");
            }
        }
        Ok(Schemas { custom: Some(Rc::new(Custom { definitions, by_kind, namespaced })) })
    }

    pub fn is_custom(&self) -> bool {
        self.custom.is_some()
    }

    pub fn is_cluster_scoped(&self, gvk: &Gvk) -> bool {
        let known = is_namespaced(gvk).or_else(|| {
            self.custom.as_ref()?.namespaced.get(&(gvk.api_version(), gvk.kind.clone())).copied()
        });
        known == Some(false)
    }

    pub fn of_kind(&self, gvk: &Gvk) -> Option<Level> {
        if let Some(custom) = &self.custom {
            let name = custom.by_kind.get(&(gvk.api_version(), gvk.kind.clone()))?;
            return Some(Level::Document(custom.clone(), custom.definitions.get(name)?.clone()));
        }
        is_namespaced(gvk)?;
        let types = Types::builtin();
        let by_version = |version: &str| {
            types.by_kind(&GroupVersionKind::new(gvk.group.clone(), version.to_owned(), gvk.kind.clone()))
        };
        let id = by_version(&gvk.version).or_else(|| by_version("v1"))?;
        Some(Level::Rows(Shape::Struct(id), None))
    }
}

/// apiVersion and kind.
fn type_of(gvk: &Value) -> (String, String) {
    let text = |field: &str| gvk.get(field).and_then(Value::as_str).unwrap_or("").to_owned();
    let gvk = Gvk { group: text("group"), version: text("version"), kind: text("kind") };
    (gvk.api_version(), gvk.kind)
}

/// A place in a type.
#[derive(Clone)]
pub enum Level {
    /// A shape of the built-in rows, and how the list that it is merges.
    Rows(Shape, Option<MergeKeys>),
    /// A schema of a custom document.
    Document(Rc<Custom>, Value),
}

/// The fields that tell the elements of a list apart; none for a list of scalars.
pub type MergeKeys = Vec<String>;

impl Level {
    pub fn field(&self, name: &str) -> Option<Level> {
        match self {
            Level::Rows(Shape::Struct(id), _) => {
                let ty = Types::builtin().get(*id);
                let field = ty.fields.iter().find(|field| &*field.name == name)?;
                let merges = field.patch.merge && !LATER.contains(&name);
                let keys = || match (&field.list, &field.patch.merge_key) {
                    (ListType::Map(keys), _) => keys.iter().map(|key| key.to_string()).collect(),
                    (_, Some(key)) => vec![key.to_string()],
                    _ => Vec::new(),
                };
                Some(Level::Rows(field.shape.clone(), merges.then(keys)))
            }
            Level::Rows(Shape::Map(element), _) => Some(Level::Rows((**element).clone(), None)),
            Level::Rows(..) => None,
            Level::Document(custom, schema) => {
                let property = schema.get("properties").and_then(|fields| fields.get(name));
                let found = property.or_else(|| schema.get("additionalProperties"))?;
                found.is_object().then(|| Level::Document(custom.clone(), custom.resolve(found)))
            }
        }
    }

    pub fn elements(&self) -> Option<Level> {
        match self {
            Level::Rows(Shape::List(element), _) => Some(Level::Rows((**element).clone(), None)),
            Level::Rows(..) => None,
            Level::Document(custom, schema) => {
                let items = schema.get("items")?;
                Some(Level::Document(custom.clone(), custom.resolve(items)))
            }
        }
    }

    /// The merge keys of a list whose elements are merged.
    pub fn merge_keys(&self) -> Option<MergeKeys> {
        match self {
            Level::Rows(_, keys) => keys.clone(),
            Level::Document(_, schema) => {
                let strategy = schema.get("x-kubernetes-patch-strategy").and_then(Value::as_str)?;
                if !strategy.split(',').any(|word| word == "merge") {
                    return None;
                }
                let listed = schema.get("x-kubernetes-list-map-keys").and_then(Value::as_array);
                let key = schema.get("x-kubernetes-patch-merge-key").and_then(Value::as_str);
                Some(match (listed, key) {
                    (Some(keys), _) => keys.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
                    (None, Some(key)) => vec![key.to_owned()],
                    (None, None) => Vec::new(),
                })
            }
        }
    }
}

impl Custom {
    /// The schema that a reference points to, with what stands beside the reference.
    fn resolve(&self, schema: &Value) -> Value {
        let Some(reference) = schema.get("$ref").and_then(Value::as_str) else { return schema.clone() };
        let name = reference.strip_prefix("#/definitions/").unwrap_or(reference);
        self.definitions.get(name).cloned().unwrap_or_default()
    }
}
