//! Lookup of current objects in the registry's caches.

use std::ops::Bound;
use std::sync::Arc;

use ferry_api::{GroupResource, Object, Status};
use ferry_registry::cache::Entry;
use ferry_registry::{Registry, Resource};

pub fn lookup(
    registry: &Registry,
    group: &'static str,
    plural: &'static str,
    namespace: &str,
    name: &str,
) -> Result<Option<Object>, Status> {
    entry(registry, group, plural, namespace, name).map(|entry| entry.read_object()).transpose()
}

/// The same as bytes: for those who ask for no more than its labels, or whether it is there.
pub fn entry(
    registry: &Registry,
    group: &'static str,
    plural: &'static str,
    namespace: &str,
    name: &str,
) -> Option<Arc<Entry>> {
    let resource = registry.resource(&GroupResource::new(group, plural))?;
    resource.cache.get(&resource.key(namespace, name))
}

/// The objects of one namespace, in the order of their names.
pub fn in_namespace(resource: &Resource, namespace: &str) -> Vec<Arc<Entry>> {
    let prefix = format!("{namespace}/");
    let (snapshot, _) = resource.cache.snapshot();
    let from = (Bound::Included(prefix.as_str()), Bound::Unbounded);
    let following = snapshot.range::<_, str>(from).map(|(_, entry)| entry);
    following.take_while(|entry| entry.key.starts_with(&prefix)).cloned().collect()
}
