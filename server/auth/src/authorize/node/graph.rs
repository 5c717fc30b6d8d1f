//! The relations between objects and nodes, updated with each pod.
//!
//! ```text
//! secret, configmap, claim, service account ──▶ pod ──▶ node
//! secret ──▶ persistent volume ──▶ its claim ──▶ pod ──▶ node
//! volume attachment, resource slice, pod certificate request ──▶ node
//! persistent volume that is a directory of a node ──▶ that node
//! ```
//!
//! Every arrow into a pod is folded into a count per object and node, so a question takes a lookup
//! or two and never a walk.

use std::collections::{BTreeSet, HashMap};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum VertexType {
    Pod,
    Secret,
    ConfigMap,
    ServiceAccount,
    PersistentVolumeClaim,
    PersistentVolume,
    ResourceClaim,
    VolumeAttachment,
    ResourceSlice,
    PodCertificateRequest,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Vertex {
    pub(super) kind: VertexType,
    pub(super) namespace: String,
    pub(super) name: String,
}

impl Vertex {
    pub(super) fn new(kind: VertexType, namespace: &str, name: &str) -> Self {
        Vertex { kind, namespace: namespace.to_owned(), name: name.to_owned() }
    }
}

type PodKey = (String, String);

/// A bound pod: its node and what it refers to, itself included.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PodReferences {
    pub(super) node: String,
    pub(super) objects: BTreeSet<Vertex>,
}

/// A bound volume: its claim and the secrets a kubelet needs to mount it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct VolumeReferences {
    pub(super) claim: Vertex,
    pub(super) secrets: BTreeSet<Vertex>,
}

#[derive(Default)]
pub(super) struct Graph {
    pods: HashMap<PodKey, PodReferences>,
    /// How many pods of a node refer to the object.
    referring: HashMap<Vertex, HashMap<String, usize>>,
    volumes: HashMap<String, VolumeReferences>,
    volumes_of_secret: HashMap<Vertex, BTreeSet<String>>,
    direct: HashMap<Vertex, String>,
}

impl Graph {
    pub(super) fn relates(&self, object: &Vertex, node: &str) -> bool {
        let is_referred_to =
            |object: &Vertex| self.referring.get(object).is_some_and(|nodes| nodes.contains_key(node));
        let through =
            |volume: &String| self.volumes.get(volume).is_some_and(|volume| is_referred_to(&volume.claim));
        match object.kind {
            VertexType::PersistentVolume => through(&object.name) || self.is_direct(object, node),
            VertexType::Secret => {
                is_referred_to(object)
                    || self.volumes_of_secret.get(object).is_some_and(|all| all.iter().any(through))
            }
            VertexType::VolumeAttachment | VertexType::ResourceSlice | VertexType::PodCertificateRequest => {
                self.is_direct(object, node)
            }
            _ => is_referred_to(object),
        }
    }

    /// Whether an object itself names the node.
    pub(super) fn is_direct(&self, object: &Vertex, node: &str) -> bool {
        self.direct.get(object).is_some_and(|related| related == node)
    }

    pub(super) fn set_pod(&mut self, key: PodKey, references: PodReferences) {
        // Most updates of a pod are of its status and change nothing here.
        if self.pods.get(&key) == Some(&references) {
            return;
        }
        self.remove_pod(&key);
        for object in &references.objects {
            let nodes = self.referring.entry(object.clone()).or_default();
            *nodes.entry(references.node.clone()).or_default() += 1;
        }
        self.pods.insert(key, references);
    }

    pub(super) fn remove_pod(&mut self, key: &PodKey) {
        let Some(references) = self.pods.remove(key) else { return };
        for object in &references.objects {
            let Some(nodes) = self.referring.get_mut(object) else { continue };
            if let Some(count) = nodes.get_mut(&references.node) {
                *count -= 1;
                if *count == 0 {
                    nodes.remove(&references.node);
                }
            }
            if nodes.is_empty() {
                self.referring.remove(object);
            }
        }
    }

    pub(super) fn set_volume(&mut self, name: &str, references: VolumeReferences) {
        self.remove_volume(name);
        for secret in &references.secrets {
            self.volumes_of_secret.entry(secret.clone()).or_default().insert(name.to_owned());
        }
        self.volumes.insert(name.to_owned(), references);
    }

    pub(super) fn remove_volume(&mut self, name: &str) {
        let Some(references) = self.volumes.remove(name) else { return };
        for secret in &references.secrets {
            if let Some(volumes) = self.volumes_of_secret.get_mut(secret) {
                volumes.remove(name);
                if volumes.is_empty() {
                    self.volumes_of_secret.remove(secret);
                }
            }
        }
    }

    pub(super) fn set_direct(&mut self, object: Vertex, node: &str) {
        self.direct.insert(object, node.to_owned());
    }

    pub(super) fn remove_direct(&mut self, object: &Vertex) {
        self.direct.remove(object);
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.pods.is_empty()
            && self.referring.is_empty()
            && self.volumes.is_empty()
            && self.volumes_of_secret.is_empty()
            && self.direct.is_empty()
    }
}
