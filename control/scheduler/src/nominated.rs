//! Pods that have been promised a node: room is being made there, and others of lower priority
//! must not take it.

use std::collections::HashMap;
use std::sync::Arc;

use ferry_client::NamespacedName;

use crate::pod_info::PodInfo;
use crate::snapshot::{NodeIndex, Snapshot};

#[derive(Default)]
pub struct Nominated {
    pods: HashMap<NamespacedName, (Arc<PodInfo>, String)>,
    by_node: HashMap<String, Vec<NamespacedName>>,
}

impl Nominated {
    pub fn put(&mut self, pod: Arc<PodInfo>, node: &str) {
        self.remove(&pod.key);
        self.by_node.entry(node.to_owned()).or_default().push(pod.key.clone());
        self.pods.insert(pod.key.clone(), (pod, node.to_owned()));
    }

    pub fn remove(&mut self, key: &NamespacedName) -> Option<(Arc<PodInfo>, String)> {
        let (pod, node) = self.pods.remove(key)?;
        if let Some(keys) = self.by_node.get_mut(&node) {
            keys.retain(|own| own != key);
            if keys.is_empty() {
                self.by_node.remove(&node);
            }
        }
        Some((pod, node))
    }

    pub fn node_of(&self, key: &NamespacedName) -> Option<&str> {
        self.pods.get(key).map(|(_, node)| node.as_str())
    }

    pub fn is_empty(&self) -> bool {
        self.pods.is_empty()
    }

    /// Those promised a node that `pod` has to give way to.
    pub fn before(&self, pod: &PodInfo, snapshot: &Snapshot, node: NodeIndex) -> Vec<Arc<PodInfo>> {
        if self.pods.is_empty() {
            return Vec::new();
        }
        let keys = self.by_node.get(&**snapshot.name(node)).into_iter().flatten();
        let pods = keys.filter_map(|key| self.pods.get(key).map(|(pod, _)| pod));
        pods.filter(|other| other.priority >= pod.priority && other.key != pod.key).cloned().collect()
    }

    /// Whether anyone was promised a node.
    pub fn any_on(&self, snapshot: &Snapshot, node: NodeIndex) -> bool {
        self.by_node.contains_key(&**snapshot.name(node))
    }

    /// Those promised a node that give way to `pod`.
    pub fn after(&self, pod: &PodInfo, node: &str) -> Vec<NamespacedName> {
        let keys = self.by_node.get(node).into_iter().flatten();
        keys.filter(|key| self.pods.get(*key).is_some_and(|(other, _)| other.priority < pod.priority))
            .cloned()
            .collect()
    }
}
