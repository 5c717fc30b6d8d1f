//! Reading one's own writes. An informer is a little behind: a loop that is woken by something
//! else just after it has written an object would find the old one, decide on it again, and have
//! its write refused as a conflict. It waits instead for the event of its own write.

use std::collections::HashMap;

use kube::Resource;
use parking_lot::Mutex;

use crate::NamespacedName;
use crate::name::revision;

/// The latest revision that this process has written of each object, until its informer has it.
#[derive(Debug, Default)]
pub struct ConsistencyStore {
    revisions: Mutex<HashMap<NamespacedName, i64>>,
}

impl ConsistencyStore {
    /// Notes what the server answered to a write.
    pub fn wrote<K: Resource>(&self, object: &K) {
        if let Some(revision) = revision(object) {
            self.revisions.lock().insert(NamespacedName::of(object), revision);
        }
    }

    /// Whether the informer's object is older than what was written: the event that brings it up to
    /// date is on its way, and wakes whoever follows the object.
    pub fn is_stale<K: Resource>(&self, known: &K) -> bool {
        let mut revisions = self.revisions.lock();
        let key = NamespacedName::of(known);
        match (revisions.get(&key), revision(known)) {
            (Some(written), Some(known)) if known < *written => true,
            (Some(_), _) => {
                revisions.remove(&key);
                false
            }
            (None, _) => false,
        }
    }

    /// The object is gone.
    pub fn forget(&self, key: &NamespacedName) {
        self.revisions.lock().remove(key);
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::api::ObjectMeta;

    use super::*;

    fn at(revision: &str) -> ConfigMap {
        let metadata = ObjectMeta {
            name: Some("a".into()),
            namespace: Some("n".into()),
            resource_version: Some(revision.into()),
            ..Default::default()
        };
        ConfigMap { metadata, ..Default::default() }
    }

    #[test]
    fn only_what_is_older_than_ones_own_write_is_behind() {
        let store = ConsistencyStore::default();
        assert!(!store.is_stale(&at("5")), "nothing was written");
        store.wrote(&at("7"));
        assert!(store.is_stale(&at("5")));
        assert!(!store.is_stale(&at("7")));
        assert!(!store.is_stale(&at("5")), "it was seen, and forgotten");
        store.wrote(&at("9"));
        store.forget(&NamespacedName::new("n", "a"));
        assert!(!store.is_stale(&at("5")));
        store.wrote(&at("not a number"));
        assert!(!store.is_stale(&at("5")), "a server may count otherwise");
    }
}
