//! The registry: which resources there are, where they are stored, and the caches they are read from.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use ferry_api::{GroupResource, Kind, Object, Status, convert, json, protobuf};
use ferry_store::Store;
use parking_lot::RwLock;

use crate::cache::log::{CachedResource, Log, Reader};
use crate::cache::recent::Recent;
use crate::cache::{Cache, peek};
use crate::conversion::{self, Conversion};
use crate::kinds;
use crate::settings::{Settings, StorageFormat};
use crate::strategy::StrategyRef;

/// Prefix of all keys in the store, as in upstream.
pub const ROOT: &str = "/registry/";

pub struct Registry {
    pub store: Arc<dyn Store>,
    pub log: Arc<Log>,
    pub settings: Settings,
    pub(crate) recent: Recent,
    resources: RwLock<HashMap<GroupResource, Arc<Resource>, foldhash::fast::RandomState>>,
}

/// The parts of a resource.
pub struct NewResource {
    pub stored: Arc<Kind>,
    pub versions: Vec<Arc<Kind>>,
    pub conversion: Conversion,
    pub strategy: StrategyRef,
}

/// A resource in all its versions: one prefix in the store, one cache, one strategy.
pub struct Resource {
    /// The row of the version that is stored.
    pub stored: Arc<Kind>,
    /// Its rows in all versions, served or not.
    pub versions: Vec<Arc<Kind>>,
    pub conversion: Conversion,
    pub strategy: StrategyRef,
    pub cache: Arc<Cache>,
    /// `/registry/pods/`
    pub prefix: String,
    reader: Arc<dyn Reader>,
}

impl Registry {
    /// A registry of `rows`; nothing is read until the log runs.
    pub fn new(store: Arc<dyn Store>, rows: &[Arc<Kind>], settings: Settings) -> Registry {
        let log = Arc::new(Log::new(store.clone(), ROOT));
        let registry =
            Registry { log, store, settings, recent: Recent::default(), resources: RwLock::default() };
        for row in rows.iter().filter(|row| row.is_storage_version() && row.is_stored()) {
            registry.add(row.clone());
        }
        // Versions that are not stored share the resource of the one that is.
        for row in rows.iter().filter(|row| !row.is_storage_version()) {
            let stored = GroupResource::new(row.storage_version.group.clone(), row.plural.clone());
            let found = registry.resources.read().get(&stored).cloned();
            match found {
                Some(resource) => {
                    registry.resources.write().entry(row.group_resource()).or_insert(resource);
                }
                // A beta kind whose stored version is not served: it is stored all the same.
                None => {
                    if let Some(builtin) = ferry_api::kinds::builtin_row(&row.storage_version).cloned() {
                        let resource = registry.add(builtin);
                        registry.resources.write().insert(row.group_resource(), resource);
                    }
                }
            }
        }
        registry
    }

    /// Adds a built-in resource. The start of the log fills its cache.
    pub fn add(&self, stored: Arc<Kind>) -> Arc<Resource> {
        let strategy = StrategyRef::Builtin(kinds::strategy(&stored));
        let all = ferry_api::kinds::builtin().iter();
        let same =
            |row: &&Arc<Kind>| row.storage_version == stored.storage_version && row.plural == stored.plural;
        let versions = all.filter(same).cloned().collect();
        self.add_with(NewResource { stored, versions, conversion: Conversion::Local, strategy })
    }

    /// Adds a resource. The start of the log, or `log.load`, fills its cache.
    pub fn add_with(&self, new: NewResource) -> Arc<Resource> {
        let NewResource { stored, versions, conversion, strategy } = new;
        let selectable = strategy.selectable();
        // Kubelets watch the pods of their node; there are many of them, so they are grouped.
        let grouped_by = selectable.iter().position(|field| field.field == "spec.nodeName");
        // A definition that changed goes on with its cache, so that requests under way see what is written.
        let before = self.resource(&stored.group_resource());
        let cache = match before.filter(|before| before.strategy.selectable() == selectable) {
            Some(before) => before.cache.clone(),
            None => Arc::new(Cache::new(peek::Paths::new(selectable), grouped_by)),
        };
        let prefix = format!("{ROOT}{}/", stored.storage_prefix);
        let own_version = matches!(conversion, Conversion::Webhook(_)).then(|| versions.clone());
        let reader: Arc<dyn Reader> = Arc::new(StoredObjects::new(stored.clone(), own_version));
        self.log.follow(prefix.clone(), CachedResource::new(cache.clone(), reader.clone()));
        let resource = Arc::new(Resource {
            stored: stored.clone(),
            versions,
            conversion,
            strategy,
            cache,
            prefix,
            reader,
        });
        self.resources.write().insert(stored.group_resource(), resource.clone());
        resource
    }

    /// Removes a custom resource whose definition was deleted: its cache gets no more events, and its watches end.
    pub fn remove(&self, resource: &GroupResource) {
        if let Some(resource) = self.resources.write().remove(resource) {
            self.log.forget(&resource.prefix);
            resource.cache.close();
        }
    }

    pub fn resource(&self, resource: &GroupResource) -> Option<Arc<Resource>> {
        self.resources.read().get(resource).cloned()
    }

    /// The object's bytes as [`Settings::storage_format`] has them; its resourceVersion is the store's revision.
    pub fn stored_form(&self, object: &Object) -> Result<Bytes, Status> {
        if self.settings.storage_format == StorageFormat::Protobuf {
            let kind = ferry_api::GroupVersionKind::from_api_version(object.api_version(), object.kind());
            if let Some(schema) = ferry_api::kinds::builtin_row(&kind).and_then(|row| row.codec.typed()) {
                let mut object = object.clone();
                object.remove_meta("resourceVersion");
                return Ok(protobuf::encode(&object, schema).map_err(Status::internal)?.into());
            }
        }
        Ok(object.to_stored_json().into())
    }

    pub fn resources(&self) -> Vec<Arc<Resource>> {
        self.resources.read().values().cloned().collect()
    }
}

impl Resource {
    /// The cache's key of an object: `namespace/name` or the name.
    pub fn key(&self, namespace: &str, name: &str) -> String {
        if namespace.is_empty() { name.to_string() } else { format!("{namespace}/{name}") }
    }

    pub fn store_key(&self, namespace: &str, name: &str) -> Arc<str> {
        format!("{}{}", self.prefix, self.key(namespace, name)).into()
    }

    pub fn reader(&self) -> &dyn Reader {
        &*self.reader
    }
}

/// Decodes stored objects of this server or upstream's: JSON or protobuf, in any version of the kind.
struct StoredObjects {
    kind: Arc<Kind>,
    /// The first bytes of an object that this server stored in that version.
    head: String,
    /// Objects stay in their stored version, which is one of these, because a webhook converts them.
    own_version: Option<Vec<Arc<Kind>>>,
}

impl StoredObjects {
    fn new(kind: Arc<Kind>, own_version: Option<Vec<Arc<Kind>>>) -> StoredObjects {
        let head = format!(r#"{{"apiVersion":"{}","kind":"{}","metadata":{{"#, kind.api_version(), kind.kind);
        StoredObjects { kind, head, own_version }
    }
}

impl StoredObjects {
    /// The definition may have changed since the object was written: applies the current schema and defaults.
    fn custom(&self, object: Object) -> Result<Bytes, Status> {
        let versions = self.own_version.iter().flatten();
        let own = versions.into_iter().find(|row| row.api_version() == object.api_version());
        let own = own.unwrap_or(&self.kind);
        let mut object = conversion::in_form_of(object, own)?;
        own.codec.set_defaults(&mut object);
        Ok(object.to_json().into())
    }
}

impl Reader for StoredObjects {
    fn read(&self, stored: &Bytes) -> Result<Bytes, Status> {
        let is_typed = self.kind.codec.typed().is_some();
        if is_typed && stored.starts_with(self.head.as_bytes()) {
            return Ok(stored.clone());
        }
        let mut object = if protobuf::is_envelope(stored) {
            protobuf::decode(stored)?.1
        } else {
            json::decode_untyped(stored, json::FieldValidation::Ignore)?.object
        };
        object.remove_meta("resourceVersion");
        let from = ferry_api::GroupVersionKind::from_api_version(object.api_version(), object.kind());
        if !is_typed {
            return self.custom(object);
        }
        if from != self.kind.gvk() {
            let row = ferry_api::kinds::builtin_row(&from)
                .ok_or_else(|| Status::internal(format!("{from} is stored but unknown")))?;
            object = convert::convert(object, row, &self.kind)?;
        }
        Ok(object.to_json().into())
    }
}
