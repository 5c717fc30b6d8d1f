//! Placed pods by how others see them: all pods of one namespace, with the same labels and the
//! same terms of affinity, are peers. What a term thinks of one it thinks of all, so a question
//! about every pod of a cluster is asked once for each of its workloads.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use k8s_openapi::api::core::v1::{PodAffinity, PodAntiAffinity};
use smallvec::SmallVec;

use crate::numbers::ByNumber;
use crate::pod_info::PodInfo;
use crate::snapshot::NodeIndex;

#[derive(Default)]
pub struct Peers {
    groups: Vec<Option<Group>>,
    free: Vec<GroupId>,
    /// By a hash of what peers have in common; different groups may share one.
    by_look: HashMap<u64, SmallVec<[GroupId; 1]>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupId(usize);

pub struct Group {
    /// One of them, to ask about all.
    pub like: Arc<PodInfo>,
    on: ByNumber<NodeIndex, u32>,
}

impl Group {
    /// How many are on which nodes.
    pub fn on(&self) -> impl Iterator<Item = (NodeIndex, i64)> + Clone {
        self.on.iter().map(|(node, count)| (*node, i64::from(*count)))
    }
}

impl Peers {
    pub fn groups(&self) -> impl Iterator<Item = &Group> {
        self.groups.iter().flatten()
    }

    pub fn enter(&mut self, pod: &Arc<PodInfo>, node: NodeIndex) -> GroupId {
        let id = self.group_of(pod);
        if let Some(group) = &mut self.groups[id.0] {
            *group.on.entry(node).or_default() += 1;
        }
        id
    }

    pub fn remove(&mut self, id: GroupId, node: NodeIndex) {
        let Some(group) = &mut self.groups[id.0] else { return };
        if let Some(count) = group.on.get_mut(&node) {
            *count -= 1;
            if *count == 0 {
                group.on.remove(&node);
            }
        }
        if group.on.is_empty() {
            let look = look(&group.like);
            if let Some(ids) = self.by_look.get_mut(&look) {
                ids.retain(|own| *own != id);
                if ids.is_empty() {
                    self.by_look.remove(&look);
                }
            }
            self.groups[id.0] = None;
            self.free.push(id);
        }
    }

    fn group_of(&mut self, pod: &Arc<PodInfo>) -> GroupId {
        let ids = self.by_look.entry(look(pod)).or_default();
        let known = ids.iter().find(|id| self.groups[id.0].as_ref().is_some_and(|g| are_peers(&g.like, pod)));
        if let Some(id) = known {
            return *id;
        }
        let group = Some(Group { like: pod.clone(), on: ByNumber::default() });
        let id = match self.free.pop() {
            Some(id) => {
                self.groups[id.0] = group;
                id
            }
            None => {
                self.groups.push(group);
                GroupId(self.groups.len() - 1)
            }
        };
        ids.push(id);
        id
    }
}

fn look(pod: &PodInfo) -> u64 {
    let mut hasher = DefaultHasher::new();
    (&pod.key.namespace, pod.labels(), pod.is_terminating()).hash(&mut hasher);
    (pod.affinity.len(), pod.anti_affinity.len()).hash(&mut hasher);
    hasher.finish()
}

pub fn are_peers(one: &PodInfo, other: &PodInfo) -> bool {
    fn terms(pod: &PodInfo) -> Option<(Option<&PodAffinity>, Option<&PodAntiAffinity>)> {
        pod.affinity_spec().map(|all| (all.pod_affinity.as_ref(), all.pod_anti_affinity.as_ref()))
    }
    one.key.namespace == other.key.namespace
        && one.is_terminating() == other.is_terminating()
        && one.labels() == other.labels()
        && one.has_pod_affinity() == other.has_pod_affinity()
        && (!one.has_pod_affinity() || terms(one) == terms(other))
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Pod;
    use serde_json::json;

    use super::*;

    fn pod(name: &str, app: &str, topology: Option<&str>) -> Arc<PodInfo> {
        let mut pod = json!({"metadata": {"name": name, "namespace": "n", "labels": {"app": app}},
            "spec": {"containers": []}});
        if let Some(key) = topology {
            let term = json!({"topologyKey": key, "labelSelector": {"matchLabels": {"app": app}}});
            pod["spec"]["affinity"] =
                json!({"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}});
        }
        let pod: Pod = serde_json::from_value(pod).unwrap();
        Arc::new(PodInfo::new(pod))
    }

    #[test]
    fn equal_pods_are_counted_together_for_each_node() {
        let mut peers = Peers::default();
        let (one, two) = (NodeIndex(1), NodeIndex(2));
        let web = peers.enter(&pod("a", "web", None), one);
        assert_eq!(peers.enter(&pod("b", "web", None), two), web);
        assert_eq!(peers.enter(&pod("c", "web", None), two), web);
        assert_ne!(peers.enter(&pod("d", "db", None), two), web, "other labels");
        let near = peers.enter(&pod("e", "web", Some("zone")), one);
        assert_ne!(near, web, "terms of their own");
        assert_ne!(peers.enter(&pod("f", "web", Some("rack")), one), near, "other terms");
        let mut on: Vec<_> = peers.groups().next().unwrap().on().collect();
        on.sort();
        assert_eq!(on, [(one, 1), (two, 2)]);
    }

    #[test]
    fn a_group_ends_with_its_last_pod() {
        let mut peers = Peers::default();
        let group = peers.enter(&pod("a", "web", None), NodeIndex(1));
        peers.remove(group, NodeIndex(1));
        assert_eq!(peers.groups().count(), 0);
        assert!(peers.by_look.is_empty());
        peers.enter(&pod("b", "db", None), NodeIndex(1));
        assert_eq!(peers.groups.len(), 1, "its place is used again");
    }
}
