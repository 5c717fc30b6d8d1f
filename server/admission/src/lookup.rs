//! One object of the cluster as it is now, from the registry's caches.

use ferry_api::{GroupResource, Object, Status};
use ferry_registry::Registry;

pub fn lookup(
    registry: &Registry,
    group: &'static str,
    plural: &'static str,
    namespace: &str,
    name: &str,
) -> Result<Option<Object>, Status> {
    let Some(resource) = registry.resource(&GroupResource::new(group, plural)) else { return Ok(None) };
    match resource.cache.get(&resource.key(namespace, name)) {
        Some(entry) => resource.object(&entry.json).map(Some),
        None => Ok(None),
    }
}
