//! CustomResourceDefinitions become served resources. One task follows the definitions: it accepts their names,
//! creates their rows and caches, and replaces the snapshot of served resources. What it decides about a definition's
//! status is pure ([`names`]); the deletion of a definition empties it first ([`cleanup`]).

mod cleanup;
mod names;

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use ferry_admission::conversion::{ConversionHook, WebhookConversion};
use ferry_api::{GroupResource, Object, Status};
use ferry_patch::merge;
use ferry_registry::cache::{Cache, Entry, Filter};
use ferry_registry::conversion::Conversion;
use ferry_registry::custom_resources::definition::{GROUP, PLURAL, outline};
use ferry_registry::custom_resources::{Definition, Source};
use ferry_registry::registry::NewResource;
use ferry_registry::strategy::StrategyRef;
use ferry_registry::{Registry, Resource};
use ferry_store::Revision;
use jiff::Timestamp;
use kube::Client;
use kube::api::{Api as ClientApi, DynamicObject, Patch, PatchParams};
use kube::core::{ApiResource, GroupVersionKind};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use self::cleanup::{Cleanup, Instances};
use crate::api::Api;
use crate::served::Place;

/// Between two attempts at what failed; it doubles.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

pub struct Definitions {
    api: Arc<Api>,
    registry: Arc<Registry>,
    client: Client,
    cache: Arc<Cache>,
    /// What is served whatever definitions there are.
    builtin: Vec<Place>,
    known: BTreeMap<Arc<str>, KnownDefinition>,
    /// Uids of the definitions whose objects are being deleted.
    emptying: HashSet<String>,
    stop: CancellationToken,
}

/// The last seen state of a definition.
struct KnownDefinition {
    revision: Revision,
    definition: Definition,
    served: Option<Serving>,
    /// Whether its status is up to date.
    status_written: bool,
}

struct Serving {
    /// The definition that the rows were made from.
    made_of: Definition,
    source: Arc<Source>,
    resource: Arc<Resource>,
    places: Vec<Place>,
}

impl Definitions {
    /// `None` where definitions are not served.
    pub fn new(api: Arc<Api>, client: Client, stop: CancellationToken) -> Option<Definitions> {
        let registry = api.registry.clone();
        let resource = registry.resource(&GroupResource::new(GROUP, PLURAL))?;
        let builtin = api.served().places();
        Some(Definitions {
            api,
            client,
            cache: resource.cache.clone(),
            registry,
            builtin,
            known: BTreeMap::new(),
            emptying: HashSet::new(),
            stop,
        })
    }

    /// Serves what is established already, then follows every change for as long as the server lives. Returns
    /// when the first is done: no client is told that a custom resource does not exist because the server is young.
    pub async fn start(mut self) {
        let (_, _, mut watcher) = self.cache.watch_now(Filter::default());
        self.prepare().await;
        tokio::spawn(async move {
            let stop = self.stop.clone();
            let mut pause = FIRST_PAUSE;
            let mut is_done = self.sync().await;
            loop {
                tokio::select! {
                    // The watcher only wakes; what there is the snapshot tells, whatever was missed.
                    changed = watcher.next() => if changed.is_err() {
                        watcher = self.cache.watch_now(Filter::default()).2;
                    },
                    () = tokio::time::sleep(pause), if !is_done => {}
                    () = stop.cancelled() => return,
                }
                is_done = self.sync().await;
                pause = if is_done { FIRST_PAUSE } else { (pause * 2).min(LONGEST_PAUSE) };
            }
        });
    }

    /// Serves what is established. Nothing is written yet: that may need a server that listens.
    async fn prepare(&mut self) {
        let (snapshot, _) = self.cache.snapshot();
        for entry in snapshot.values() {
            // One that fails is tried again by the first round.
            if let Err(error) = self.take(entry).await {
                tracing::error!(definition = %entry.key, %error, "a definition cannot be served yet");
            }
        }
        self.swap();
    }

    /// Brings what is served in line with the definitions that there are. Says whether all of it could be done.
    async fn sync(&mut self) -> bool {
        let mut is_done = true;
        let (snapshot, _) = self.cache.snapshot();
        let gone: Vec<Arc<str>> =
            self.known.keys().filter(|name| !snapshot.contains_key(*name)).cloned().collect();
        let mut changed = !gone.is_empty();
        for name in gone {
            self.forget(&name);
        }
        let fresh: Vec<Arc<Entry>> = snapshot
            .values()
            .filter(|entry| self.known.get(&entry.key).is_none_or(|known| known.revision != entry.revision))
            .cloned()
            .collect();
        for entry in &fresh {
            match self.take(entry).await {
                Ok(made) => changed |= made,
                Err(error) => {
                    is_done = false;
                    tracing::error!(definition = %entry.key, %error, "a definition cannot be served, trying again");
                }
            }
        }
        if changed {
            self.swap();
        }
        // Only now: names that were freed above may be wanted by a definition that did not get all of its own. The
        // others have nothing to hear; there may be a thousand of them.
        let untold = self
            .known
            .iter()
            .filter(|(_, known)| !known.status_written || (changed && known.definition.is_in_conflict()));
        let untold: Vec<Arc<str>> = untold.map(|(name, _)| name.clone()).collect();
        for entry in untold.iter().filter_map(|name| snapshot.get(name)) {
            let told = self.update_status(entry).await;
            if let Some(known) = self.known.get_mut(&entry.key) {
                known.status_written = told.is_ok();
            }
            if let Err(error) = told {
                is_done = false;
                tracing::warn!(definition = %entry.key, %error, "the status of a definition cannot be written, trying again");
            }
        }
        is_done
    }

    /// Takes in a definition that came or changed. Says whether what is served is another thing now.
    async fn take(&mut self, entry: &Arc<Entry>) -> Result<bool, Status> {
        let object = outline(&entry.json)?;
        let definition = Definition::read(&object)?;
        // A definition of the same name that was made anew has nothing of the old one.
        if self.known.get(&entry.key).is_some_and(|known| known.definition.uid != definition.uid) {
            self.forget(&entry.key);
        }
        let before = self.known.remove(&entry.key).and_then(|known| known.served);
        let (served, changed) = match before {
            Some(serving) if serving.made_of == definition => {
                serving.source.replace(entry.json.clone());
                (Some(serving), false)
            }
            before if definition.established && !self.overlaps(&definition) => {
                (Some(self.serve(&definition, entry, before.as_ref()).await?), true)
            }
            before => (before, false),
        };
        self.empty(&object, &definition, served.as_ref());
        self.known.insert(
            entry.key.clone(),
            KnownDefinition { revision: entry.revision, definition, served, status_written: false },
        );
        Ok(changed)
    }

    /// Makes the rows, the rules and the cache of a definition; `before` is how it was served so far.
    async fn serve(
        &self,
        definition: &Definition,
        entry: &Entry,
        before: Option<&Serving>,
    ) -> Result<Serving, Status> {
        let mut span = ferry_trace::span("definition.serve");
        span.set("definition", definition.name.clone());
        let source = Source::new(entry.json.clone());
        let served = definition
            .serve(&source)
            .ok_or_else(|| Status::internal(format!("{} has no storage version", definition.name)))?;
        let resource = self.registry.add_with(NewResource {
            conversion: self.conversion(definition)?,
            stored: served.stored,
            versions: served.versions,
            strategy: StrategyRef::Custom(served.strategy),
        });
        // The spec says how objects are read. While it is the same (a deletion changes none of it) the cache and its watchers
        // go on: they are to see the objects go.
        if !before.is_some_and(|before| before.source.has_spec_of(&entry.json)) {
            span.in_scope(self.registry.log.load(&resource.prefix))
                .await
                .map_err(ferry_registry::verbs::store_failure)?;
        }
        // A version of a group that built-in kinds are in is theirs alone.
        let rows = served.rows.into_iter().filter(|row| !self.is_builtin(&row.group, &row.version));
        let places = rows.map(|kind| Place { kind, resource: Some(resource.clone()) }).collect();
        Ok(Serving { made_of: definition.clone(), source, resource, places })
    }

    fn is_builtin(&self, group: &str, version: &str) -> bool {
        self.builtin.iter().any(|place| place.kind.group == group && place.kind.version == version)
    }

    /// Whether the definition names a built-in resource: its objects would lie where the built-in ones are. No such
    /// name is accepted, but it may have been when the kind was not built in.
    fn overlaps(&self, definition: &Definition) -> bool {
        let resource = definition.group_resource();
        self.builtin.iter().any(|place| place.kind.group_resource() == resource)
    }

    fn conversion(&self, definition: &Definition) -> Result<Conversion, Status> {
        let Some(webhook) = &definition.webhook else { return Ok(Conversion::Local) };
        let webhook: WebhookConversion = ferry_api::view::of_value(webhook)
            .map_err(|error| Status::internal(format!("spec.conversion.webhook: {error}")))?;
        let hook = ConversionHook::new(self.registry.clone(), webhook);
        Ok(Conversion::Webhook(Arc::new(hook)))
    }

    fn forget(&mut self, name: &str) {
        if let Some(known) = self.known.remove(name)
            && known.served.is_some()
        {
            self.registry.remove(&known.definition.group_resource());
        }
    }

    fn swap(&self) {
        let custom = self.known.values().filter_map(|known| known.served.as_ref());
        let custom = custom.flat_map(|serving| serving.places.iter().cloned());
        let places = self.builtin.iter().cloned().chain(custom).collect();
        self.api.change_served(|served| served.with_places(places));
    }

    /// Writes the conditions of a definition: NamesAccepted and Established.
    async fn update_status(&mut self, entry: &Entry) -> Result<(), Status> {
        let Some(known) = self.known.get(&entry.key) else { return Ok(()) };
        let definitions = self.known.iter().filter(|(name, _)| **name != entry.key);
        let others = names::NameOwners {
            definitions: definitions.map(|(_, other)| &other.definition).collect(),
            builtin: self.builtin.iter().map(|place| &*place.kind).collect(),
        };
        let object = outline(&entry.json)?;
        let Some(status) = names::status(&object, &known.definition, &others, &now()) else {
            return Ok(());
        };
        let mut next = object.clone();
        next.0.insert("status".into(), status.clone());
        let told = Definition::read(&next)?;
        // Whoever reads that a definition is established may use it at once.
        let serving = match told.established && known.served.is_none() && !self.overlaps(&told) {
            true => Some(self.serve(&told, entry, None).await?),
            false => None,
        };
        let is_served = serving.is_some();
        if let Some(known) = self.known.get_mut(&entry.key) {
            // The next definition must not get the same names, though the watch has not told of this one yet.
            known.definition = told;
            known.served = serving.or(known.served.take());
        }
        if is_served {
            self.swap();
        }
        write_status(&self.client, &object, &status).await
    }

    /// Begins to empty a definition that is being deleted.
    fn empty(&mut self, object: &Object, definition: &Definition, served: Option<&Serving>) {
        if definition.terminating
            && object.finalizers().any(|name| name == cleanup::FINALIZER)
            && self.emptying.insert(definition.uid.clone())
        {
            let instances = match served {
                Some(serving) => Instances::Stored(serving.resource.clone()),
                None if self.overlaps(definition) => Instances::Builtin,
                None => Instances::None,
            };
            let cleanup = Cleanup {
                registry: self.registry.clone(),
                client: self.client.clone(),
                definitions: self.cache.clone(),
                definition: definition.clone(),
                instances,
            };
            tokio::spawn(cleanup.run(self.stop.clone()));
        }
    }
}

fn now() -> String {
    ferry_registry::metadata::timestamp(Timestamp::now().as_second())
}

fn definitions(client: &Client) -> ClientApi<DynamicObject> {
    let gvk = GroupVersionKind::gvk(GROUP, "v1", "CustomResourceDefinition");
    ClientApi::all_with(client.clone(), &ApiResource::from_gvk_with_plural(&gvk, PLURAL))
}

/// Writes the status of a definition as it was read. A conflict is no failure: whoever was faster is heard of, and the
/// status is looked at again. A patch spares both sides the definition's schemas.
async fn write_status(client: &Client, read: &Object, status: &Value) -> Result<(), Status> {
    let before = read.0.get("status").unwrap_or(&Value::Null);
    let patch = json!({
        "metadata": {"uid": read.uid(), "resourceVersion": read.resource_version()},
        "status": merge::diff(before, status),
    });
    match definitions(client).patch_status(read.name(), &PatchParams::default(), &Patch::Merge(patch)).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(()),
        Err(error) => Err(Status::internal(error.to_string())),
    }
}
