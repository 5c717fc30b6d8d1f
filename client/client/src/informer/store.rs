//! The objects of one kind, their indexes, and what a list or a watch event changes in them.
//! No I/O: everything an informer tells its handlers is decided here.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::sync::Arc;

use kube::Resource;

use super::Object;
use crate::NamespacedName;
use crate::name::revision;

/// What happened to an object.
#[derive(Clone, Debug)]
pub enum Event<K> {
    Added(Arc<K>),
    Modified {
        old: Arc<K>,
        new: Arc<K>,
    },
    /// `last` is the object's last known state; `revision` that of its deletion, if it was
    /// seen: of what is missing in a list, nobody knows when it went.
    Deleted {
        last: Arc<K>,
        revision: Option<i64>,
    },
}

impl<K: Resource> Event<K> {
    /// The object as it is now, or last was.
    pub fn object(&self) -> &Arc<K> {
        match self {
            Event::Added(object)
            | Event::Modified { new: object, .. }
            | Event::Deleted { last: object, .. } => object,
        }
    }

    pub fn old(&self) -> Option<&Arc<K>> {
        match self {
            Event::Modified { old, .. } => Some(old),
            Event::Added(_) | Event::Deleted { .. } => None,
        }
    }

    pub fn key(&self) -> NamespacedName {
        NamespacedName::of(&**self.object())
    }

    /// The revision that made this event: the cause of whatever it wakes.
    pub fn revision(&self) -> Option<i64> {
        match self {
            Event::Added(object) | Event::Modified { new: object, .. } => revision(&**object),
            Event::Deleted { revision, .. } => *revision,
        }
    }

    pub fn is_deleted(&self) -> bool {
        matches!(self, Event::Deleted { .. })
    }
}

impl<K: Resource> fmt::Display for Event<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self {
            Event::Added(_) => "added",
            Event::Modified { .. } => "modified",
            Event::Deleted { .. } => "deleted",
        };
        write!(f, "{what} {} at {}", self.key(), self.revision().unwrap_or(0))
    }
}

pub(super) type IndexValues<K> = Box<dyn Fn(&K) -> Vec<String> + Send + Sync>;

pub(super) struct Store<K> {
    /// Ordered, so that a namespace is a range and no index of its own. Indexes share the keys.
    objects: BTreeMap<Arc<NamespacedName>, Arc<K>>,
    indexes: Vec<IndexTable<K>>,
    /// Where a watch goes on from; opaque, as the server gave it.
    resource_version: String,
}

struct IndexTable<K> {
    name: &'static str,
    values: IndexValues<K>,
    keys: HashMap<String, BTreeSet<Arc<NamespacedName>>>,
}

impl<K> Default for Store<K> {
    fn default() -> Self {
        Store { objects: BTreeMap::new(), indexes: Vec::new(), resource_version: String::new() }
    }
}

impl<K: Object> Store<K> {
    pub fn get(&self, key: &NamespacedName) -> Option<Arc<K>> {
        self.objects.get(key).cloned()
    }

    pub fn list(&self) -> Vec<Arc<K>> {
        self.objects.values().cloned().collect()
    }

    pub fn list_namespace(&self, namespace: &str) -> Vec<Arc<K>> {
        let from = NamespacedName::new(namespace, "");
        let range = self.objects.range::<NamespacedName, _>(from..);
        let range = range.take_while(|(key, _)| key.namespace == namespace);
        range.map(|(_, object)| object.clone()).collect()
    }

    pub fn len(&self) -> usize {
        self.objects.len()
    }

    pub fn resource_version(&self) -> &str {
        &self.resource_version
    }

    pub fn revision(&self) -> Option<i64> {
        self.resource_version.parse().ok()
    }

    /// Everything up to here is in the store: a bookmark, or the version of the last event.
    pub fn advance(&mut self, resource_version: &str) {
        self.resource_version = resource_version.into();
    }

    /// Takes a complete list. What is missing in it has been deleted, unheard.
    pub fn replace(&mut self, listed: Vec<K>, resource_version: &str) -> Vec<Event<K>> {
        self.advance(resource_version);
        let present: BTreeSet<NamespacedName> = listed.iter().map(NamespacedName::of).collect();
        let missing: Vec<Arc<NamespacedName>> =
            self.objects.keys().filter(|key| !present.contains(&***key)).cloned().collect();
        // Deleted while nobody watched, at some revision before the list's: that one is somebody else's write.
        let mut events: Vec<Event<K>> =
            missing.iter().filter_map(|key| self.remove(key, None, None)).collect();
        for object in listed {
            events.extend(self.put(object));
        }
        events
    }

    /// Takes one object as it is now, whether the server called it added or modified: after a
    /// resumed watch its view of what is new to us differs from ours.
    pub fn put(&mut self, mut object: K) -> Vec<Event<K>> {
        strip(&mut object);
        let key = NamespacedName::of(&object);
        let new = Arc::new(object);
        let known = self.objects.get_key_value(&key).map(|(key, old)| (key.clone(), old.clone()));
        let Some((key, old)) = known else {
            self.insert(Arc::new(key), new.clone());
            return vec![Event::Added(new)];
        };
        if old.meta().uid != new.meta().uid {
            // The old one was deleted and a namesake made while we were not watching.
            let deleted = self.remove(&key, None, revision(&*new));
            self.insert(key, new.clone());
            return deleted.into_iter().chain([Event::Added(new)]).collect();
        }
        if old.meta().resource_version == new.meta().resource_version {
            return Vec::new();
        }
        self.unindex(&key, &old);
        self.insert(key, new.clone());
        vec![Event::Modified { old, new }]
    }

    /// Takes a deletion; `last` is the state the server deleted.
    pub fn delete(&mut self, mut last: K) -> Vec<Event<K>> {
        strip(&mut last);
        let key = NamespacedName::of(&last);
        let at = revision(&last);
        self.remove(&key, Some(Arc::new(last)), at).into_iter().collect()
    }

    fn remove(
        &mut self,
        key: &NamespacedName,
        last: Option<Arc<K>>,
        revision: Option<i64>,
    ) -> Option<Event<K>> {
        let old = self.objects.remove(key)?;
        self.unindex(key, &old);
        Some(Event::Deleted { last: last.unwrap_or(old), revision })
    }

    fn insert(&mut self, key: Arc<NamespacedName>, object: Arc<K>) {
        for index in &mut self.indexes {
            index.add(&key, &object);
        }
        self.objects.insert(key, object);
    }

    fn unindex(&mut self, key: &NamespacedName, object: &K) {
        for index in &mut self.indexes {
            for value in (index.values)(object) {
                if let Some(keys) = index.keys.get_mut(&value) {
                    keys.remove(key);
                    if keys.is_empty() {
                        index.keys.remove(&value);
                    }
                }
            }
        }
    }

    pub fn add_index(&mut self, name: &'static str, values: IndexValues<K>) -> usize {
        if let Some(slot) = self.indexes.iter().position(|index| index.name == name) {
            return slot;
        }
        let mut index = IndexTable { name, values, keys: HashMap::new() };
        for (key, object) in &self.objects {
            index.add(key, object);
        }
        self.indexes.push(index);
        self.indexes.len() - 1
    }

    pub fn indexed(&self, slot: usize, value: &str) -> Vec<Arc<K>> {
        let keys = self.indexes[slot].keys.get(value).into_iter().flatten();
        keys.map(|key| self.objects[key].clone()).collect()
    }

    pub fn count(&self, slot: usize, value: &str) -> usize {
        self.indexes[slot].keys.get(value).map_or(0, BTreeSet::len)
    }

    pub fn index_values(&self, slot: usize) -> Vec<String> {
        self.indexes[slot].keys.keys().cloned().collect()
    }
}

impl<K> IndexTable<K> {
    fn add(&mut self, key: &Arc<NamespacedName>, object: &K) {
        for value in (self.values)(object) {
            self.keys.entry(value).or_default().insert(key.clone());
        }
    }
}

/// Managed fields are often half of an object and no loop reads them. A write without them
/// leaves the server's own in place.
fn strip<K: Resource>(object: &mut K) {
    object.meta_mut().managed_fields = None;
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;

    use super::super::tests::config_map;
    use super::*;

    fn told(events: &[Event<ConfigMap>]) -> Vec<String> {
        events.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_list_tells_only_what_differs() {
        let mut store = Store::default();
        assert_eq!(
            told(&store.replace(vec![config_map("a", 1), config_map("b", 2), config_map("c", 3)], "3")),
            ["added default/a at 1", "added default/b at 2", "added default/c at 3"]
        );
        assert_eq!(
            told(&store.replace(vec![config_map("a", 1), config_map("c", 5), config_map("d", 6)], "9")),
            ["deleted default/b at 0", "modified default/c at 5", "added default/d at 6"]
        );
        assert_eq!(store.resource_version(), "9");
    }

    #[test]
    fn a_namesake_is_a_deletion_and_an_addition() {
        let mut store = Store::default();
        store.put(config_map("a", 1));
        let mut namesake = config_map("a", 4);
        namesake.metadata.uid = Some("another".into());
        assert_eq!(told(&store.put(namesake)), ["deleted default/a at 4", "added default/a at 4"]);
    }

    #[test]
    fn known_objects_produce_no_event() {
        let mut store = Store::default();
        store.put(config_map("a", 1));
        assert!(store.put(config_map("a", 1)).is_empty());
        assert_eq!(told(&store.delete(config_map("a", 2))), ["deleted default/a at 2"]);
        assert!(store.delete(config_map("a", 2)).is_empty());
    }

    #[test]
    fn indexes_follow_every_change() {
        let mut store = Store::default();
        let slot = store.add_index(
            "data",
            Box::new(|map: &ConfigMap| map.data.iter().flatten().map(|(k, _)| k.clone()).collect()),
        );
        let with = |name: &str, revision, keys: &[&str]| {
            let mut map = config_map(name, revision);
            map.data = Some(keys.iter().map(|key| (key.to_string(), String::new())).collect());
            map
        };
        store.put(with("a", 1, &["x", "y"]));
        store.put(with("b", 2, &["y"]));
        assert_eq!((store.count(slot, "x"), store.count(slot, "y")), (1, 2));
        store.put(with("a", 3, &["z"]));
        assert_eq!((store.count(slot, "x"), store.count(slot, "y"), store.count(slot, "z")), (0, 1, 1));
        store.delete(with("a", 4, &["z"]));
        assert_eq!(store.index_values(slot), ["y"]);
    }

    #[test]
    fn a_namespace_is_listed_without_its_neighbours() {
        let mut store = Store::default();
        for namespace in ["a", "ab", "b"] {
            let mut map = config_map("one", 1);
            map.metadata.namespace = Some(namespace.into());
            store.put(map);
        }
        assert_eq!(store.list_namespace("a").len(), 1);
        assert_eq!(store.list_namespace("c").len(), 0);
    }
}
