//! Shared informers: one list and watch per kind per process, a typed and indexed store, and handlers that get every
//! change in order.
//!
//! The guarantees, each with a test here or in `reflector`:
//! - A handler gets the changes of an object in the order of its revisions: one Added, any number of Modified, at most one
//!   Deleted; also across lost watches, expired revisions and restarts of the server. Intermediate changes may be
//!   collapsed into one.
//! - The store is updated before the handlers run, so they and the workers that they wake never read a state older than
//!   the event.
//! - A handler that is added later first gets all existing objects, each exactly once.
//! - `has_synced` is true once every handler has got everything from the first list.
//! - A failed list changes nothing: it is not an empty list.
//!
//! `store` computes the changes, `reflector` talks to the server, `projection` removes the fields that no component reads
//! and `decode` decodes the rest, `factory` shares informers, `any_kind` is for components that follow every kind.

mod any_kind;
mod decode;
mod factory;
mod projection;

mod reflector;
mod store;

use std::fmt::Debug;
use std::sync::Arc;

use kube::Resource;
use kube::core::{DynamicObject, PartialObjectMeta};
use parking_lot::{Mutex, RwLock};
use serde::de::DeserializeOwned;
use tokio::sync::watch;

pub use any_kind::{AnyInformer, HasMetadata, MetadataEvent};
pub use factory::{Informers, Selection};
pub use projection::Projection;
pub use store::Event;

use crate::NamespacedName;
use store::Store;

/// Any kind, by its metadata without labels and annotations; for loops that work on every kind there is.
pub type Metadata = PartialObjectMeta<DynamicObject>;

/// What an informer can hold: every typed kind, and [`Metadata`].
pub trait Object: Resource + Clone + Debug + DeserializeOwned + Send + Sync + 'static {}

impl<K: Resource + Clone + Debug + DeserializeOwned + Send + Sync + 'static> Object for K {}

/// A handle to the process' copy of one kind. Cloning shares it.
pub struct Informer<K> {
    shared: Arc<Shared<K>>,
}

struct Shared<K> {
    store: RwLock<Store<K>>,
    /// Held while a change is stored and told, so that a late handler can be placed exactly
    /// between two changes. The store's own lock is free again by then: handlers read it.
    handlers: Mutex<Vec<Handler<K>>>,
    synced: watch::Sender<bool>,
    projection: &'static Projection,
    transform: Option<Transform<K>>,
}

/// Removes the parts of an object that no component in this process reads, before it is stored.
pub type Transform<K> = fn(&mut K);

type Handler<K> = Box<dyn Fn(&Event<K>) + Send + Sync>;

impl<K: Object> Informer<K> {
    fn new(projection: &'static Projection, transform: Option<Transform<K>>) -> Self {
        let shared = Shared {
            store: RwLock::new(Store::default()),
            handlers: Mutex::default(),
            synced: watch::Sender::new(false),
            projection,
            transform,
        };
        Informer { shared: Arc::new(shared) }
    }

    pub fn get(&self, key: &NamespacedName) -> Option<Arc<K>> {
        self.shared.store.read().get(key)
    }

    /// All objects, by namespace and name.
    pub fn list(&self) -> Vec<Arc<K>> {
        self.shared.store.read().list()
    }

    pub fn list_namespace(&self, namespace: &str) -> Vec<Arc<K>> {
        self.shared.store.read().list_namespace(namespace)
    }

    pub fn len(&self) -> usize {
        self.shared.store.read().len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The revision up to which the store is known to be complete, if it is a number.
    pub fn revision(&self) -> Option<i64> {
        self.shared.store.read().revision()
    }

    /// Adds an index, or finds the one of that name: users of one informer share it. Objects
    /// that are already there are indexed before this returns.
    pub fn index(
        &self,
        name: &'static str,
        values: impl Fn(&K) -> Vec<String> + Send + Sync + 'static,
    ) -> Index<K> {
        let slot = self.shared.store.write().add_index(name, Box::new(values));
        Index { informer: self.clone(), slot }
    }

    /// Adds a handler. It runs on the informer's own task, in order, and must not block:
    /// usually it puts a key into a [`crate::Queue`]. It may read any store, but not add
    /// handlers to this informer.
    pub fn handle(&self, handler: impl Fn(&Event<K>) + Send + Sync + 'static) {
        let mut handlers = self.shared.handlers.lock();
        for object in self.list() {
            handler(&Event::Added(object));
        }
        handlers.push(Box::new(handler));
    }

    pub fn has_synced(&self) -> bool {
        *self.shared.synced.borrow()
    }

    /// Waits until the first list is complete and told. Pends for ever when the informer was
    /// stopped before: whoever stopped it is about to stop the caller too.
    pub async fn synced(&self) {
        let mut synced = self.shared.synced.subscribe();
        if synced.wait_for(|synced| *synced).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    fn change(&self, change: impl FnOnce(&mut Store<K>) -> Vec<Event<K>>) {
        let handlers = self.shared.handlers.lock();
        let events = change(&mut self.shared.store.write());
        for event in &events {
            handlers.iter().for_each(|handler| handler(event));
        }
    }

    fn projection(&self) -> &'static Projection {
        self.shared.projection
    }

    fn transform(&self, object: &mut K) {
        if let Some(transform) = self.shared.transform {
            transform(object);
        }
    }
}

impl<K> Clone for Informer<K> {
    fn clone(&self) -> Self {
        Informer { shared: self.shared.clone() }
    }
}

/// Objects of an informer by a value computed from each: owner, node, label.
pub struct Index<K> {
    informer: Informer<K>,
    slot: usize,
}

impl<K: Object> Index<K> {
    pub fn get(&self, value: &str) -> Vec<Arc<K>> {
        self.informer.shared.store.read().indexed(self.slot, value)
    }

    /// All objects of the indexed informer in a namespace.
    pub fn in_namespace(&self, namespace: &str) -> Vec<Arc<K>> {
        self.informer.list_namespace(namespace)
    }

    /// How many objects have the value.
    pub fn count(&self, value: &str) -> usize {
        self.informer.shared.store.read().count(self.slot, value)
    }

    /// Every value that some object has.
    pub fn values(&self) -> Vec<String> {
        self.informer.shared.store.read().index_values(self.slot)
    }
}

impl<K> Clone for Index<K> {
    fn clone(&self) -> Self {
        Index { informer: self.informer.clone(), slot: self.slot }
    }
}

/// Index value of an object: the uid of the owner that controls it.
pub fn controller_uid<K: Resource>(object: &K) -> Vec<String> {
    let owners = object.meta().owner_references.iter().flatten();
    owners.filter(|owner| owner.controller == Some(true)).map(|owner| owner.uid.clone()).collect()
}

/// Index values of an object: its labels, as `key=value`.
pub fn labels<K: Resource>(object: &K) -> Vec<String> {
    object.meta().labels.iter().flatten().map(|(key, value)| format!("{key}={value}")).collect()
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::api::ObjectMeta;

    use super::*;

    pub(super) fn config_map(name: &str, revision: i64) -> ConfigMap {
        ConfigMap {
            metadata: ObjectMeta {
                namespace: Some("default".into()),
                name: Some(name.into()),
                uid: Some(format!("uid-{name}")),
                resource_version: Some(revision.to_string()),
                ..Default::default()
            },
            ..Default::default()
        }
    }

    #[test]
    fn a_late_handler_is_told_of_everything_once_and_then_follows() {
        let informer: Informer<ConfigMap> = Informer::new(&Projection::OBJECT, None);
        informer.change(|store| store.replace(vec![config_map("a", 1), config_map("b", 2)], "2"));
        let seen: Arc<Mutex<Vec<String>>> = Arc::default();
        let log = seen.clone();
        informer.handle(move |event| log.lock().push(format!("{event}")));
        informer.change(|store| store.put(config_map("a", 3)));
        assert_eq!(*seen.lock(), ["added default/a at 1", "added default/b at 2", "modified default/a at 3"]);
    }

    #[test]
    fn a_handler_reads_a_store_that_already_has_the_change() {
        let informer: Informer<ConfigMap> = Informer::new(&Projection::OBJECT, None);
        let (reader, seen) = (informer.clone(), Arc::new(Mutex::new(None)));
        let log = seen.clone();
        informer.handle(move |event| {
            *log.lock() = reader.get(&event.key()).and_then(|found| crate::name::revision(&*found));
        });
        informer.change(|store| store.put(config_map("a", 7)));
        assert_eq!(*seen.lock(), Some(7));
    }

    #[test]
    fn an_index_added_late_knows_what_is_there_and_is_shared_by_name() {
        let informer: Informer<ConfigMap> = Informer::new(&Projection::OBJECT, None);
        let mut labelled = config_map("a", 1);
        labelled.metadata.labels = Some([("app".to_string(), "web".to_string())].into());
        informer.change(|store| store.put(labelled));
        let index = informer.index("labels", labels);
        let same = informer.index("labels", |_| panic!("the first registration of a name holds"));
        for index in [index, same] {
            assert_eq!(index.get("app=web").len(), 1);
            assert_eq!(index.count("app=db"), 0);
            assert_eq!(index.values(), ["app=web"]);
        }
    }
}
