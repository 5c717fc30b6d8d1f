//! Who owns whom, over every kind. No I/O: it is told of objects and answers what is worth
//! looking at.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use ferry_client::informer::HasMetadata;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::ObjectMeta;

use crate::discovery::Resource;

/// Set by a foreground deletion: stays until what blocks it is gone.
pub const FOREGROUND: &str = "foregroundDeletion";
/// Set by an orphaning deletion: stays until nothing refers to the object any more.
pub const ORPHAN: &str = "orphan";

#[derive(Clone)]
pub struct Node {
    pub resource: Arc<Resource>,
    pub object: Arc<dyn HasMetadata>,
}

impl Node {
    pub fn metadata(&self) -> &ObjectMeta {
        self.object.metadata()
    }

    pub fn name(&self) -> &str {
        self.metadata().name.as_deref().unwrap_or("")
    }

    pub fn namespace(&self) -> Option<&str> {
        self.metadata().namespace.as_deref()
    }

    pub fn owners(&self) -> &[OwnerReference] {
        self.metadata().owner_references.as_deref().unwrap_or_default()
    }

    pub fn finalizers(&self) -> &[String] {
        self.metadata().finalizers.as_deref().unwrap_or_default()
    }

    pub fn is_deleting(&self) -> bool {
        self.metadata().deletion_timestamp.is_some()
    }

    pub fn has_finalizer(&self, finalizer: &str) -> bool {
        self.finalizers().iter().any(|own| own == finalizer)
    }

    /// Is it being deleted, and waits for what it owns?
    pub fn awaits_dependents(&self) -> bool {
        self.is_deleting() && self.has_finalizer(FOREGROUND)
    }

    pub fn awaits_orphaning(&self) -> bool {
        self.is_deleting() && self.has_finalizer(ORPHAN)
    }

    /// Does it hold back the deletion of that owner?
    pub fn blocks(&self, owner: &str) -> bool {
        self.owners()
            .iter()
            .any(|reference| reference.uid == owner && reference.block_owner_deletion == Some(true))
    }

    /// Is this the object a reference from `namespace` means? A uid alone could be forged to
    /// point across namespaces.
    pub fn is_meant_by(&self, reference: &OwnerReference, namespace: Option<&str>) -> bool {
        let here = self.namespace();
        reference.kind == self.resource.api.kind
            && reference.name == self.name()
            && group(&reference.api_version) == self.resource.api.group
            && (here.is_none() || here == namespace)
    }
}

pub fn group(api_version: &str) -> &str {
    api_version.split_once('/').map_or("", |(group, _)| group)
}

#[derive(Default)]
pub struct Graph {
    nodes: HashMap<String, Node>,
    /// Owner → those that refer to it, also where the owner itself is not known (yet).
    dependents: HashMap<String, BTreeSet<String>>,
}

impl Graph {
    pub fn get(&self, uid: &str) -> Option<&Node> {
        self.nodes.get(uid)
    }

    pub fn dependents(&self, owner: &str) -> Vec<Node> {
        let uids = self.dependents.get(owner).into_iter().flatten();
        uids.filter_map(|uid| self.nodes.get(uid).cloned()).collect()
    }

    pub fn has_dependents(&self, owner: &str) -> bool {
        self.dependents.get(owner).is_some_and(|dependents| !dependents.is_empty())
    }

    /// Takes an object as it is now; returns the uids worth looking at.
    pub fn put(&mut self, resource: &Arc<Resource>, object: Arc<dyn HasMetadata>) -> Vec<String> {
        let Some(uid) = object.metadata().uid.clone() else { return Vec::new() };
        let node = Node { resource: resource.clone(), object };
        let old = self.nodes.insert(uid.clone(), node.clone());
        let mut look = Vec::new();
        for reference in old.iter().flat_map(|old| old.owners()) {
            let kept = node.owners().iter().any(|new| new.uid == reference.uid);
            if !kept {
                self.unlink(&reference.uid, &uid);
            }
            // A dependent that lets go may have been all its owner waited for.
            if (!kept || !node.blocks(&reference.uid)) && self.awaits_dependents(&reference.uid) {
                look.push(reference.uid.clone());
            }
        }
        for reference in node.owners() {
            self.dependents.entry(reference.uid.clone()).or_default().insert(uid.clone());
            let owner = self.nodes.get(&reference.uid);
            // An owner that is not known, or on its way out, decides the dependent's fate.
            if owner
                .is_none_or(|owner| owner.is_deleting() || !owner.is_meant_by(reference, node.namespace()))
            {
                look.push(uid.clone());
            }
        }
        let newly = |state: fn(&Node) -> bool| state(&node) && !old.as_ref().is_some_and(state);
        if newly(Node::awaits_orphaning) {
            look.push(uid.clone());
        }
        if newly(Node::awaits_dependents) {
            look.push(uid.clone());
            look.extend(self.dependents.get(&uid).into_iter().flatten().cloned());
        }
        look
    }

    /// Takes an object's end; returns the uids worth looking at.
    pub fn remove(&mut self, uid: &str) -> Vec<String> {
        let Some(node) = self.nodes.remove(uid) else { return Vec::new() };
        let mut look: Vec<String> = self.dependents.get(uid).into_iter().flatten().cloned().collect();
        for reference in node.owners() {
            self.unlink(&reference.uid, uid);
            if self.awaits_dependents(&reference.uid) {
                look.push(reference.uid.clone());
            }
        }
        look
    }

    /// Forgets all objects of a resource that no longer exists.
    pub fn remove_resource(&mut self, resource: &Resource) -> Vec<String> {
        let gone: Vec<String> = self
            .nodes
            .iter()
            .filter(|(_, node)| node.resource.api == resource.api)
            .map(|(uid, _)| uid.clone())
            .collect();
        gone.iter().flat_map(|uid| self.remove(uid)).collect()
    }

    fn awaits_dependents(&self, uid: &str) -> bool {
        self.nodes.get(uid).is_some_and(Node::awaits_dependents)
    }

    fn unlink(&mut self, owner: &str, dependent: &str) {
        if let Some(dependents) = self.dependents.get_mut(owner) {
            dependents.remove(dependent);
            if dependents.is_empty() {
                self.dependents.remove(owner);
            }
        }
    }
}

/// What an owner reference amounts to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// The owner is there and stays.
    Solid,
    /// The owner is gone, or never was.
    Dangling,
    /// The owner waits for its dependents to go.
    Waiting,
}

/// What the collector does with an object, given the state of its owners.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CollectAction {
    Keep,
    /// Some owners are left: only the references to the others go.
    Unlink(Vec<String>),
    Delete(Propagation),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Propagation {
    Background,
    Foreground,
    Orphan,
}

pub fn fate(node: &Node, standings: &[(String, Standing)], has_dependents: bool) -> CollectAction {
    let with = |wanted: Standing| {
        standings.iter().filter(move |(_, standing)| *standing == wanted).map(|(uid, _)| uid.clone())
    };
    if standings.is_empty() {
        return CollectAction::Keep;
    }
    if with(Standing::Solid).next().is_some() {
        let leaving: Vec<String> = with(Standing::Dangling).chain(with(Standing::Waiting)).collect();
        return if leaving.is_empty() { CollectAction::Keep } else { CollectAction::Unlink(leaving) };
    }
    if with(Standing::Waiting).next().is_some() && has_dependents {
        // Its owner goes only after it, and it only after its own.
        return CollectAction::Delete(Propagation::Foreground);
    }
    CollectAction::Delete(match node {
        node if node.has_finalizer(ORPHAN) => Propagation::Orphan,
        node if node.has_finalizer(FOREGROUND) => Propagation::Foreground,
        _ => Propagation::Background,
    })
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Pod;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use kube::core::ApiResource;

    use super::*;
    use crate::testing::at;

    fn resource() -> Arc<Resource> {
        let api = ApiResource {
            group: "".into(),
            version: "v1".into(),
            api_version: "v1".into(),
            kind: "Thing".into(),
            plural: "things".into(),
        };
        Arc::new(Resource { api, namespaced: true, verbs: vec![] })
    }

    fn thing(
        name: &str,
        owners: &[(&str, bool)],
        finalizers: &[&str],
        deleting: bool,
    ) -> Arc<dyn HasMetadata> {
        let owner = |(name, block): &(&str, bool)| OwnerReference {
            api_version: "v1".into(),
            kind: "Thing".into(),
            name: name.to_string(),
            uid: format!("uid-{name}"),
            block_owner_deletion: Some(*block),
            controller: None,
        };
        Arc::new(Pod {
            metadata: ObjectMeta {
                name: Some(name.into()),
                namespace: Some("default".into()),
                uid: Some(format!("uid-{name}")),
                owner_references: Some(owners.iter().map(owner).collect()),
                finalizers: Some(finalizers.iter().map(ToString::to_string).collect()),
                deletion_timestamp: deleting.then(|| Time(at(0))),
                ..Default::default()
            },
            ..Default::default()
        })
    }

    #[test]
    fn a_deleted_owner_makes_its_dependents_worth_a_look() {
        let mut graph = Graph::default();
        assert!(graph.put(&resource(), thing("owner", &[], &[], false)).is_empty());
        assert!(graph.put(&resource(), thing("child", &[("owner", false)], &[], false)).is_empty());
        assert_eq!(graph.remove("uid-owner"), ["uid-child"]);
        assert!(graph.remove("uid-child").is_empty());
        assert!(graph.nodes.is_empty());
        assert!(!graph.has_dependents("uid-owner"));
    }

    #[test]
    fn an_unknown_owner_makes_the_dependent_worth_a_look() {
        let mut graph = Graph::default();
        assert_eq!(graph.put(&resource(), thing("child", &[("owner", false)], &[], false)), ["uid-child"]);
        graph.put(&resource(), thing("owner", &[], &[], false));
        assert_eq!(graph.dependents("uid-owner").len(), 1);
    }

    #[test]
    fn a_foreground_deletion_waits_until_what_blocks_it_lets_go_or_ends() {
        let mut graph = Graph::default();
        graph.put(&resource(), thing("owner", &[], &[], false));
        graph.put(&resource(), thing("child", &[("owner", true)], &[], false));
        let look = graph.put(&resource(), thing("owner", &[], &[FOREGROUND], true));
        assert_eq!(look, ["uid-owner", "uid-child"]);
        assert_eq!(graph.put(&resource(), thing("child", &[("owner", false)], &[], false))[0], "uid-owner");
        assert_eq!(graph.remove("uid-child"), ["uid-owner"]);
    }

    #[test]
    fn an_orphaning_deletion_is_noticed_once() {
        let mut graph = Graph::default();
        graph.put(&resource(), thing("owner", &[], &[], false));
        assert_eq!(graph.put(&resource(), thing("owner", &[], &[ORPHAN], true)), ["uid-owner"]);
        assert!(graph.put(&resource(), thing("owner", &[], &[ORPHAN], true)).is_empty());
    }

    #[test]
    fn fate_follows_from_how_the_owners_stand() {
        use Standing::{Dangling, Solid, Waiting};
        let check =
            |standings: &[Standing], finalizers: &[&str], has_dependents: bool, expected: CollectAction| {
                let node = Node { resource: resource(), object: thing("child", &[], finalizers, false) };
                let standings: Vec<(String, Standing)> = standings
                    .iter()
                    .enumerate()
                    .map(|(index, standing)| (index.to_string(), *standing))
                    .collect();
                assert_eq!(fate(&node, &standings, has_dependents), expected, "{standings:?}");
            };
        check(&[], &[], true, CollectAction::Keep);
        check(&[Solid], &[], true, CollectAction::Keep);
        check(&[Solid, Dangling, Waiting], &[], true, CollectAction::Unlink(vec!["1".into(), "2".into()]));
        check(&[Dangling], &[], true, CollectAction::Delete(Propagation::Background));
        check(&[Dangling, Waiting], &[], true, CollectAction::Delete(Propagation::Foreground));
        check(&[Waiting], &[], false, CollectAction::Delete(Propagation::Background));
        check(&[Dangling], &[ORPHAN], false, CollectAction::Delete(Propagation::Orphan));
        check(&[Dangling], &[FOREGROUND], false, CollectAction::Delete(Propagation::Foreground));
    }

    #[test]
    fn a_reference_into_another_namespace_means_nobody() {
        let node = Node { resource: resource(), object: thing("owner", &[], &[], false) };
        let child = thing("child", &[("owner", false)], &[], false);
        let reference = child.metadata().owner_references.clone().unwrap().remove(0);
        assert!(node.is_meant_by(&reference, Some("default")));
        assert!(!node.is_meant_by(&reference, Some("other")));
        assert!(!node.is_meant_by(&reference, None));
    }
}
