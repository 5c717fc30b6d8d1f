//! The scheduler's snapshot of the cluster: one column per fact, one index per node, updated by deltas as pods come and
//! go. Filters and scores read the columns and allocate nothing. The numbers that every search compares are one column
//! of [`NodeResources`].

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use ferry_client::NamespacedName;
use k8s_openapi::api::core::v1::{Node, Taint};

use crate::numbers::ByNumber;
use crate::peers::{self, Group, GroupId, Peers};
use crate::pod_info::{HostPort, PodInfo};
use crate::resources::{PODS, Resource, Resources};
use crate::symbols::{Symbol, Symbols};

/// A node's place in the columns. Valid until the node is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeIndex(pub u32);

/// Nodes with the same taints share one set, so a pod's tolerations are judged once per set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TaintSet(pub u32);

#[derive(Default)]
pub struct Snapshot {
    pub symbols: Symbols,
    columns: Columns,
    by_name: HashMap<Arc<str>, NodeIndex>,
    free: Vec<NodeIndex>,
    /// Nodes in the order they are tried: zones take turns, so that a search that stops early
    /// has still seen all of them.
    order: Vec<NodeIndex>,
    order_is_old: bool,
    taint_sets: Vec<Arc<[Taint]>>,
    taint_numbers: HashMap<String, TaintSet>,
    pods: HashMap<NamespacedName, PlacedPod>,
    /// Pods that arrived before their node did.
    homeless: HashMap<NamespacedName, (Arc<PodInfo>, String)>,
    peers: Peers,
    with_anti_affinity: usize,
    with_affinity: usize,
    /// How many nodes are cordoned.
    unschedulable: usize,
    images: ByNumber<Symbol, u32>,
}

#[derive(Default)]
struct Columns {
    name: Vec<Arc<str>>,
    node: Vec<Option<Arc<Node>>>,
    zone: Vec<Option<Symbol>>,
    labels: Vec<Box<[(Symbol, Symbol)]>>,
    taints: Vec<TaintSet>,
    unschedulable: Vec<bool>,
    room: Vec<NodeResources>,
    /// Rare, so by name and not a column each.
    allocatable_extended: Vec<Vec<(Box<str>, i64)>>,
    requested_extended: Vec<Vec<(Box<str>, i64)>>,
    ports: Vec<Vec<HostPort>>,
    images: Vec<Box<[(Symbol, i64)]>>,
    pods: Vec<Vec<Arc<PodInfo>>>,
}

/// The resources of a node, and what its pods request of them.
#[derive(Clone, Copy, Debug, Default)]
pub struct NodeResources {
    pub allocatable: Amounts,
    pub requested: Amounts,
    /// CPU and memory in use, with a little for pods that asked for nothing.
    pub counted_cpu: i64,
    pub counted_memory: i64,
    pub allocatable_pods: i64,
    pub pods: i64,
}

/// Of the resources that every node has.
#[derive(Clone, Copy, Debug, Default)]
pub struct Amounts {
    pub milli_cpu: i64,
    pub memory: i64,
    pub ephemeral_storage: i64,
}

#[derive(Clone)]
struct PlacedPod {
    pod: Arc<PodInfo>,
    node: NodeIndex,
    group: GroupId,
}

pub const ZONE: &str = "topology.kubernetes.io/zone";
pub const REGION: &str = "topology.kubernetes.io/region";
pub const HOSTNAME: &str = "kubernetes.io/hostname";

impl Snapshot {
    pub fn len(&self) -> usize {
        self.by_name.len()
    }

    /// Pods that have a node.
    pub fn placed_pods(&self) -> usize {
        self.pods.len()
    }

    pub fn is_empty(&self) -> bool {
        self.by_name.is_empty()
    }

    pub fn find(&self, name: &str) -> Option<NodeIndex> {
        self.by_name.get(name).copied()
    }

    pub fn name(&self, node: NodeIndex) -> &Arc<str> {
        &self.columns.name[node.0 as usize]
    }

    /// The node object; None only for a place no node has.
    pub fn node(&self, node: NodeIndex) -> Option<&Arc<Node>> {
        self.columns.node[node.0 as usize].as_ref()
    }

    /// All nodes, in the order they are tried. Call [`Snapshot::refresh_node_order`] first.
    pub fn order(&self) -> &[NodeIndex] {
        &self.order
    }

    pub fn label(&self, node: NodeIndex, key: Symbol) -> Option<Symbol> {
        let labels = &self.columns.labels[node.0 as usize];
        labels.iter().find(|(own, _)| *own == key).map(|(_, value)| *value)
    }

    pub fn label_text(&self, node: NodeIndex, key: &str) -> Option<&str> {
        self.label(node, self.symbols.find(key)?).map(|value| self.symbols.text(value))
    }

    #[inline]
    pub fn is_unschedulable(&self, node: NodeIndex) -> bool {
        self.columns.unschedulable[node.0 as usize]
    }

    #[inline]
    pub fn taint_set(&self, node: NodeIndex) -> TaintSet {
        self.columns.taints[node.0 as usize]
    }

    pub fn taints(&self, set: TaintSet) -> &Arc<[Taint]> {
        &self.taint_sets[set.0 as usize]
    }

    pub fn taint_sets(&self) -> &[Arc<[Taint]>] {
        &self.taint_sets
    }

    /// Whether any node is cordoned; mostly none is, and no search asks each.
    pub fn has_unschedulable(&self) -> bool {
        self.unschedulable > 0
    }

    #[inline]
    pub fn room(&self, node: NodeIndex) -> &NodeResources {
        &self.columns.room[node.0 as usize]
    }

    #[inline]
    pub fn allocatable(&self, node: NodeIndex, resource: Resource) -> i64 {
        let Amounts { milli_cpu, memory, ephemeral_storage } = self.room(node).allocatable;
        match resource {
            Resource::Cpu => milli_cpu,
            Resource::Memory => memory,
            Resource::EphemeralStorage => ephemeral_storage,
            Resource::Extended(name) => amount(&self.columns.allocatable_extended[node.0 as usize], name),
        }
    }

    /// Whether a node names an extended resource at all, also one that it has none of.
    pub fn has_extended(&self, node: NodeIndex, name: &str) -> bool {
        self.columns.allocatable_extended[node.0 as usize].iter().any(|(own, _)| &**own == name)
    }

    #[inline]
    pub fn requested(&self, node: NodeIndex, resource: Resource) -> i64 {
        let Amounts { milli_cpu, memory, ephemeral_storage } = self.room(node).requested;
        match resource {
            Resource::Cpu => milli_cpu,
            Resource::Memory => memory,
            Resource::EphemeralStorage => ephemeral_storage,
            Resource::Extended(name) => amount(&self.columns.requested_extended[node.0 as usize], name),
        }
    }

    pub fn ports(&self, node: NodeIndex) -> &[HostPort] {
        &self.columns.ports[node.0 as usize]
    }

    pub fn pods(&self, node: NodeIndex) -> &[Arc<PodInfo>] {
        &self.columns.pods[node.0 as usize]
    }

    /// The size of an image on a node, and on how many nodes it is.
    pub fn image(&self, node: NodeIndex, image: Symbol) -> Option<(i64, u32)> {
        let images = &self.columns.images[node.0 as usize];
        let size = images.iter().find(|(own, _)| *own == image)?.1;
        Some((size, self.images.get(&image).copied().unwrap_or(0)))
    }

    /// All placed pods, those together whom no term of affinity can tell apart.
    pub fn groups(&self) -> impl Iterator<Item = &Group> {
        self.peers.groups()
    }

    /// How many pods of the groups that `matches` says are on each place.
    pub fn count_on_nodes(&self, matches: impl Fn(&PodInfo) -> bool) -> Vec<i64> {
        let mut counts = vec![0; self.columns.name.len()];
        for group in self.groups().filter(|group| matches(&group.like)) {
            for (node, count) in group.on() {
                counts[node.0 as usize] += count;
            }
        }
        counts
    }

    /// Whether any placed pod keeps others away; most clusters have none, and skip the question.
    pub fn has_anti_affinity(&self) -> bool {
        self.with_anti_affinity > 0
    }

    pub fn has_affinity(&self) -> bool {
        self.with_affinity > 0
    }

    pub fn placed(&self, key: &NamespacedName) -> Option<(&Arc<PodInfo>, NodeIndex)> {
        self.pods.get(key).map(|placed| (&placed.pod, placed.node))
    }

    /// Brings the order of nodes up to date; once per cycle, and free when nothing changed.
    pub fn refresh_node_order(&mut self) {
        if !std::mem::take(&mut self.order_is_old) {
            return;
        }
        let mut zones: BTreeMap<Option<Symbol>, Vec<NodeIndex>> = BTreeMap::new();
        let mut nodes: Vec<NodeIndex> = self.by_name.values().copied().collect();
        nodes.sort();
        for node in nodes {
            zones.entry(self.columns.zone[node.0 as usize]).or_default().push(node);
        }
        let longest = zones.values().map(Vec::len).max().unwrap_or(0);
        self.order.clear();
        for turn in 0..longest {
            self.order.extend(zones.values().filter_map(|zone| zone.get(turn)));
        }
    }

    /// Takes a node as it is now.
    pub fn put_node(&mut self, node: &Arc<Node>) -> NodeIndex {
        let name = node.metadata.name.as_deref().unwrap_or("");
        let index = match self.find(name) {
            Some(index) => index,
            None => self.add_place(name),
        };
        let at = index.0 as usize;
        let labels = node.metadata.labels.iter().flatten();
        let mut labels: Vec<(Symbol, Symbol)> =
            labels.map(|(key, value)| (self.symbols.enter(key), self.symbols.enter(value))).collect();
        labels.sort();
        let zone = self.symbols.find(ZONE).and_then(|key| labels.iter().find(|(own, _)| *own == key));
        let zone = zone.map(|(_, value)| *value);
        if self.columns.zone[at] != zone {
            self.columns.zone[at] = zone;
            self.order_is_old = true;
        }
        self.columns.labels[at] = labels.into();

        let spec = node.spec.as_ref();
        self.set_unschedulable(at, spec.and_then(|spec| spec.unschedulable).unwrap_or(false));
        self.columns.taints[at] = self.enter_taints(spec.and_then(|s| s.taints.as_deref()).unwrap_or(&[]));

        let status = node.status.as_ref();
        let allocatable = status.and_then(|status| status.allocatable.as_ref().or(status.capacity.as_ref()));
        let resources = allocatable.map(Resources::of).unwrap_or_default();
        let pods = allocatable.and_then(|list| list.get(PODS)).map_or(0, |quantity| {
            ferry_api::quantity::Quantity::parse(&quantity.0).map_or(0, |pods| pods.value())
        });
        let room = &mut self.columns.room[at];
        room.allocatable = Amounts {
            milli_cpu: resources.milli_cpu,
            memory: resources.memory,
            ephemeral_storage: resources.ephemeral_storage,
        };
        room.allocatable_pods = pods;
        self.columns.allocatable_extended[at] = resources.extended;

        self.put_images(at, node);
        self.columns.node[at] = Some(node.clone());
        let waiting: Vec<NamespacedName> = self
            .homeless
            .iter()
            .filter(|(_, (_, wanted))| wanted == name)
            .map(|(key, _)| key.clone())
            .collect();
        for key in waiting {
            if let Some((pod, _)) = self.homeless.remove(&key) {
                self.place(pod, index);
            }
        }
        index
    }

    /// Forgets a node. Its pods stay known, should it come back before they end.
    pub fn remove_node(&mut self, name: &str) {
        let Some(index) = self.by_name.remove(name) else { return };
        let at = index.0 as usize;
        for pod in self.columns.pods[at].clone() {
            self.remove_pod(&pod.key);
            self.homeless.insert(pod.key.clone(), (pod, name.to_owned()));
        }
        for (image, _) in std::mem::take(&mut self.columns.images[at]) {
            self.release_image(image);
        }
        self.set_unschedulable(at, false);
        self.columns.node[at] = None;
        self.columns.labels[at] = Box::default();
        self.free.push(index);
        self.order_is_old = true;
    }

    fn set_unschedulable(&mut self, at: usize, now: bool) {
        let before = std::mem::replace(&mut self.columns.unschedulable[at], now);
        self.unschedulable += usize::from(now);
        self.unschedulable -= usize::from(before);
    }

    /// Puts a pod onto a node by name, assumed or seen; moves it if it was elsewhere.
    pub fn put_pod(&mut self, pod: Arc<PodInfo>, node: &str) {
        if self.renew(&pod, node) {
            return;
        }
        self.remove_pod(&pod.key);
        match self.find(node) {
            Some(index) => self.place(pod, index),
            None => {
                self.homeless.insert(pod.key.clone(), (pod, node.to_owned()));
            }
        }
    }

    /// Takes a placed pod as it is now if it counts as before, which it mostly does: this is how a booking
    /// becomes what was seen.
    fn renew(&mut self, pod: &Arc<PodInfo>, node: &str) -> bool {
        let (Some(index), Some(placed)) = (self.by_name.get(node), self.pods.get_mut(&pod.key)) else {
            return false;
        };
        let known = &placed.pod;
        let counts_as_before = placed.node == *index
            && (known.requests == pod.requests && known.host_ports == pod.host_ports)
            && (known.counted_cpu, known.counted_memory) == (pod.counted_cpu, pod.counted_memory)
            && peers::are_peers(known, pod);
        if counts_as_before {
            let before = std::mem::replace(&mut placed.pod, pod.clone());
            let pods = &mut self.columns.pods[index.0 as usize];
            if let Some(own) = pods.iter_mut().find(|own| Arc::ptr_eq(own, &before)) {
                *own = pod.clone();
            }
        }
        counts_as_before
    }

    pub fn place(&mut self, pod: Arc<PodInfo>, index: NodeIndex) {
        self.occupy(&pod, index);
        let group = self.peers.enter(&pod, index);
        let count = |counter: &mut usize, counts: bool| *counter += usize::from(counts);
        count(&mut self.with_anti_affinity, !pod.anti_affinity.is_empty());
        count(&mut self.with_affinity, pod.has_pod_affinity());
        self.pods.insert(pod.key.clone(), PlacedPod { pod, node: index, group });
    }

    pub fn remove_pod(&mut self, key: &NamespacedName) -> Option<(Arc<PodInfo>, NodeIndex)> {
        self.homeless.remove(key);
        let PlacedPod { pod, node, group } = self.pods.remove(key)?;
        self.vacate(&pod, node);
        self.peers.remove(group, node);
        let count = |counter: &mut usize, counts: bool| *counter -= usize::from(counts);
        count(&mut self.with_anti_affinity, !pod.anti_affinity.is_empty());
        count(&mut self.with_affinity, pod.has_pod_affinity());
        Some((pod, node))
    }

    /// Counts a pod on a node without placing it: what would be if it were there.
    pub fn occupy(&mut self, pod: &Arc<PodInfo>, index: NodeIndex) {
        self.account(pod, index, 1);
        let at = index.0 as usize;
        self.columns.ports[at].extend(pod.host_ports.iter().cloned());
        self.columns.pods[at].push(pod.clone());
        self.columns.room[at].pods = self.columns.pods[at].len() as i64;
    }

    /// The opposite of [`Snapshot::occupy`], also for a pod that is placed and may have to go.
    pub fn vacate(&mut self, pod: &Arc<PodInfo>, index: NodeIndex) {
        self.account(pod, index, -1);
        let at = index.0 as usize;
        for port in &pod.host_ports {
            if let Some(own) = self.columns.ports[at].iter().position(|own| own == port) {
                self.columns.ports[at].swap_remove(own);
            }
        }
        let pods = &mut self.columns.pods[at];
        if let Some(own) = pods.iter().position(|own| Arc::ptr_eq(own, pod)) {
            pods.swap_remove(own);
        }
        self.columns.room[at].pods = self.columns.pods[at].len() as i64;
    }

    fn account(&mut self, pod: &PodInfo, node: NodeIndex, sign: i64) {
        let (at, columns) = (node.0 as usize, &mut self.columns);
        let room = &mut columns.room[at];
        room.requested.milli_cpu += sign * pod.requests.milli_cpu;
        room.requested.memory += sign * pod.requests.memory;
        room.requested.ephemeral_storage += sign * pod.requests.ephemeral_storage;
        room.counted_cpu += sign * pod.counted_cpu;
        room.counted_memory += sign * pod.counted_memory;
        for (name, amount) in &pod.requests.extended {
            let own = &mut columns.requested_extended[at];
            match own.iter_mut().find(|(known, _)| known == name) {
                Some((_, sum)) => *sum += sign * amount,
                None => own.push((name.clone(), sign * amount)),
            }
        }
    }

    fn put_images(&mut self, at: usize, node: &Node) {
        let images = node.status.iter().flat_map(|status| status.images.iter().flatten());
        let mut entered: Vec<(Symbol, i64)> = Vec::new();
        for image in images {
            for name in image.names.iter().flatten() {
                entered.push((self.symbols.enter(name), image.size_bytes.unwrap_or(0)));
            }
        }
        entered.sort();
        entered.dedup_by_key(|(image, _)| *image);
        for (image, _) in &entered {
            *self.images.entry(*image).or_default() += 1;
        }
        for (image, _) in std::mem::replace(&mut self.columns.images[at], entered.into()) {
            self.release_image(image);
        }
    }

    fn release_image(&mut self, image: Symbol) {
        if let Some(nodes) = self.images.get_mut(&image) {
            *nodes -= 1;
            if *nodes == 0 {
                self.images.remove(&image);
            }
        }
    }

    fn enter_taints(&mut self, taints: &[Taint]) -> TaintSet {
        let mut identity = String::new();
        for taint in taints {
            let value = taint.value.as_deref().unwrap_or("");
            identity.push_str(&format!("{}={value}:{}\n", taint.key, taint.effect));
        }
        if let Some(set) = self.taint_numbers.get(&identity) {
            return *set;
        }
        let set = TaintSet(u32::try_from(self.taint_sets.len()).expect("fewer than 2^32 sets of taints"));
        self.taint_sets.push(taints.into());
        self.taint_numbers.insert(identity, set);
        set
    }

    fn add_place(&mut self, name: &str) -> NodeIndex {
        let name: Arc<str> = name.into();
        self.order_is_old = true;
        let index = self.free.pop().unwrap_or_else(|| self.columns.grow());
        self.columns.name[index.0 as usize] = name.clone();
        self.by_name.insert(name, index);
        index
    }
}

impl Columns {
    fn grow(&mut self) -> NodeIndex {
        let index = NodeIndex(u32::try_from(self.name.len()).expect("fewer than 2^32 nodes"));
        self.name.push("".into());
        self.node.push(None);
        self.zone.push(None);
        self.labels.push(Box::default());
        self.taints.push(TaintSet(0));
        self.unschedulable.push(false);
        self.room.push(NodeResources::default());
        self.allocatable_extended.push(Vec::new());
        self.requested_extended.push(Vec::new());
        self.ports.push(Vec::new());
        self.images.push(Box::default());
        self.pods.push(Vec::new());
        index
    }
}

fn amount(list: &[(Box<str>, i64)], name: &str) -> i64 {
    list.iter().find(|(own, _)| &**own == name).map_or(0, |(_, amount)| *amount)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(revision: &str, cpu: &str, app: &str) -> Arc<PodInfo> {
        let container = json!({"name": "c", "resources": {"requests": {"cpu": cpu}}});
        let metadata =
            json!({"name": "a", "namespace": "n", "labels": {"app": app}, "resourceVersion": revision});
        Arc::new(
            serde_json::from_value(json!({"metadata": metadata, "spec": {"containers": [container]}}))
                .unwrap(),
        )
    }

    #[test]
    fn a_pod_that_is_seen_again_counts_once_and_as_it_is_now() {
        let mut snapshot = Snapshot::default();
        for name in ["one", "two"] {
            let node = json!({"metadata": {"name": name}});
            snapshot.put_node(&Arc::new(serde_json::from_value(node).unwrap()));
        }
        let nodes = ["one", "two"].map(|name| snapshot.find(name).unwrap());
        let mut check = |seen: Arc<PodInfo>, on: usize, cpu: i64| {
            snapshot.put_pod(seen.clone(), ["one", "two"][on]);
            for (at, node) in nodes.into_iter().enumerate() {
                let here = at == on;
                let room = snapshot.room(node);
                let expected = if here { (1, cpu) } else { (0, 0) };
                assert_eq!((room.pods, room.requested.milli_cpu), expected);
                assert_eq!(snapshot.pods(node).iter().any(|own| Arc::ptr_eq(own, &seen)), here);
            }
            assert!(Arc::ptr_eq(snapshot.placed(&seen.key).unwrap().0, &seen));
            let groups: Vec<&Group> = snapshot.groups().collect();
            assert_eq!(groups.len(), 1);
            assert_eq!(groups[0].like.labels(), seen.labels());
        };
        check(pod("1", "1", "web"), 0, 1000);
        check(pod("2", "1", "web"), 0, 1000);
        check(pod("3", "2", "web"), 0, 2000);
        check(pod("4", "2", "db"), 0, 2000);
        check(pod("5", "2", "db"), 1, 2000);
    }
}
