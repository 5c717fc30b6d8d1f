//! Aggregated API servers (`apiregistration.k8s.io`): an APIService names the Service that serves a version of a group, and
//! this server proxies requests for that version.
//!
//! ```text
//!   APIServices ──► Aggregation ──► the picture of what is served ──► filters ──► proxy ──► backend
//!   (the cache)      │    ▲
//!                    │    └── what a backend says of itself: discovery, OpenAPI (fetched.rs)
//!                    └──► a task for each backend: is it there? (availability.rs) ──► the condition Available
//! ```
//!
//! One task follows the APIServices; it also makes those of the groups that this server answers for
//! ([`registration`]). Each backend has a task of its own, so that one that is dead or slow costs the others nothing.

mod availability;
mod backend;
mod fetched;
mod identity;
pub mod proxy;
mod registration;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use ferry_api::selector::{FieldSelector, LabelSelector};
use ferry_api::{GroupResource, Object, Status, discovery};
use ferry_registry::Registry;
use ferry_registry::cache::{Cache, Filter, Watcher};
use futures::FutureExt;
use futures::future::BoxFuture;
use jiff::Timestamp;
use kube::Client;
use kube::api::{Api as ClientApi, DeleteParams, DynamicObject, PostParams, Preconditions};
use kube::core::{ApiResource, GroupVersionKind};
use parking_lot::RwLock;
use serde_json::Value;
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};

use self::availability::Condition;
use self::backend::Backend;
pub use self::backend::FrontProxy;
use self::fetched::Fetched;
use self::registration::{Action, GROUP, KnownApiService, PLURAL, Registration};
use crate::api::Api;
use crate::request_info::RequestInfo;
use crate::served::Served;

/// How often a backend is asked that answered, and at most one that did not.
const INTERVAL: Duration = Duration::from_secs(30);
/// After the first failure; it doubles.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
/// Requests that fail have a backend asked before its time, but no more often than this. What could not be written is
/// written again as soon.
const SOONEST: Duration = Duration::from_secs(1);

/// A version of a group that another API server answers for.
pub struct Remote {
    backend: Arc<Backend>,
    is_available: bool,
    group_priority: u32,
    version_priority: u32,
    fetched: Arc<Fetched>,
}

impl Remote {
    pub fn group(&self) -> &str {
        &self.backend.group
    }

    pub fn version(&self) -> &str {
        &self.backend.version
    }

    pub fn discovery(&self) -> discovery::Remote {
        discovery::Remote {
            group: self.group().to_string(),
            version: self.version().to_string(),
            group_priority: self.group_priority,
            version_priority: self.version_priority,
            resources: self.fetched.resources.clone(),
            is_current: self.is_available && self.fetched.is_current,
        }
    }

    /// The path of its document of OpenAPI v3, and where it is.
    pub fn openapi_v3(&self) -> Option<(String, String)> {
        let path = self.backend.path().trim_start_matches('/').to_string();
        self.fetched.openapi_v3.clone().map(|url| (path, url))
    }

    pub fn openapi_v2(&self) -> Option<Arc<Value>> {
        self.fetched.openapi_v2.as_ref().map(|document| document.part.clone())
    }

    fn is_same(&self, other: &Remote) -> bool {
        Arc::ptr_eq(&self.backend, &other.backend)
            && Arc::ptr_eq(&self.fetched, &other.fetched)
            && (self.is_available, self.group_priority, self.version_priority)
                == (other.is_available, other.group_priority, other.version_priority)
    }
}

/// The APIServices of what a server answers for itself, for a cluster that has nothing yet.
pub fn first_objects(api: &Api) -> Vec<Value> {
    let served = api.served();
    match served.place(GROUP, "v1", PLURAL) {
        Some(_) => {
            let local = registration::local(served.rows.iter().map(AsRef::as_ref));
            local.values().map(Registration::object).collect()
        }
        None => Vec::new(),
    }
}

/// Who else answers a request: for a resource, for the list of a version's resources, for its OpenAPI.
pub fn remote(api: &Api, info: &RequestInfo) -> Option<Arc<Remote>> {
    let served = api.served();
    if served.remotes().is_empty() {
        return None;
    }
    if info.is_resource {
        return served.remote(&info.group, &info.version).cloned();
    }
    let parts: Vec<&str> = info.path.trim_matches('/').split('/').collect();
    let (group, version) = match parts.as_slice() {
        ["api", version] | ["openapi", "v3", "api", version] => ("", *version),
        ["apis", group, version] | ["openapi", "v3", "apis", group, version] => (*group, *version),
        _ => return None,
    };
    served.remote(group, version).cloned()
}

/// Follows the APIServices.
pub struct Aggregation {
    api: Arc<Api>,
    registry: Arc<Registry>,
    client: Client,
    cache: Arc<Cache>,
    front_proxy: Arc<FrontProxy>,
    known: BTreeMap<Arc<str>, KnownApiService>,
    /// What this server should have registered, and the picture that this was read off.
    wanted: (Arc<Served>, BTreeMap<String, Registration>),
    backends: BTreeMap<Arc<str>, RunningBackend>,
    /// A backend says something else of itself.
    heard: Arc<Notify>,
    stop: CancellationToken,
}

/// A backend and the task that asks after it, which ends with this.
struct RunningBackend {
    registration: Registration,
    backend: Arc<Backend>,
    fetched: Arc<RwLock<Arc<Fetched>>>,
    _task: DropGuard,
}

impl Aggregation {
    /// `None` where APIServices are not served.
    pub fn new(
        api: Arc<Api>,
        client: Client,
        front_proxy: Arc<FrontProxy>,
        stop: CancellationToken,
    ) -> Option<Aggregation> {
        let registry = api.registry.clone();
        let resource = registry.resource(&GroupResource::new(GROUP, PLURAL))?;
        let served = api.served();
        Some(Aggregation {
            api,
            client,
            cache: resource.cache.clone(),
            registry,
            front_proxy,
            known: BTreeMap::new(),
            wanted: (served.clone(), registration::local(served.rows.iter().map(AsRef::as_ref))),
            backends: BTreeMap::new(),
            heard: Arc::default(),
            stop,
        })
    }

    /// Registers what this server answers for and passes on what others do, then follows every change for as long as the
    /// server lives. Returns when the first is done. Definitions are served by then, or theirs would be taken for gone.
    pub async fn start(mut self) {
        let (_, _, mut watcher) = self.cache.watch_now(Filter::default());
        let mut served = self.api.follow_served();
        let mut written = self.sync(true).await;
        let mut is_registered = written;
        tokio::spawn(async move {
            let (stop, heard) = (self.stop.clone(), self.heard.clone());
            loop {
                tokio::select! {
                    () = tokio::time::sleep(SOONEST), if !written => {}
                    // These only wake; what there is the snapshots tell, whatever was missed.
                    changed = watcher.next() => if changed.is_err() {
                        watcher = self.cache.watch_now(Filter::default()).2;
                    },
                    _ = served.changed() => {}
                    () = heard.notified() => {}
                    () = stop.cancelled() => return,
                }
                written = self.sync(!is_registered).await;
                is_registered |= written;
            }
        });
    }

    /// Says whether all that was to be written is.
    async fn sync(&mut self, first: bool) -> bool {
        self.read();
        let written = self.register(first).await;
        self.follow_backends();
        self.swap();
        written
    }

    fn read(&mut self) {
        let (snapshot, _) = self.cache.snapshot();
        self.known.retain(|name, _| snapshot.contains_key(name));
        for (name, entry) in &snapshot {
            if self.known.get(name).is_some_and(|known| known.revision == entry.revision) {
                continue;
            }
            match Registration::read(entry) {
                Ok(registration) => {
                    self.known
                        .insert(name.clone(), KnownApiService { revision: entry.revision, registration });
                }
                Err(error) => tracing::error!(%name, %error, "an APIService cannot be read"),
            }
        }
    }

    /// Keeps the APIServices of what this server answers for.
    async fn register(&mut self, first: bool) -> bool {
        let served = self.api.served();
        if !Arc::ptr_eq(&self.wanted.0, &served) {
            self.wanted = (served.clone(), registration::local(served.rows.iter().map(AsRef::as_ref)));
        }
        let wanted = &self.wanted.1;
        let actions = registration::plan(wanted, &self.known, first);
        if actions.is_empty() {
            return true;
        }
        let mut span = ferry_trace::span("aggregation.register");
        span.set("actions", actions.len());
        let writes: Vec<BoxFuture<'_, Result<(), Status>>> =
            actions.iter().map(|action| self.act(action, wanted).boxed()).collect();
        let results = futures::future::join_all(writes).await;
        for error in results.iter().filter_map(|result| result.as_ref().err()) {
            tracing::warn!(%error, "an APIService of this server cannot be written");
        }
        results.iter().all(Result::is_ok)
    }

    async fn act(&self, action: &Action, wanted: &BTreeMap<String, Registration>) -> Result<(), Status> {
        let services = api_services(&self.client);
        let written = match action {
            Action::Create(name) => {
                let Some(wanted) = wanted.get(name) else { return Ok(()) };
                services.create(&PostParams::default(), &dynamic(wanted.object())?).await.map(drop)
            }
            Action::SetSpec(name) => {
                let (Some(wanted), Some(mut object)) = (wanted.get(name), self.object(name)?) else {
                    return Ok(());
                };
                object.0.insert("spec".into(), wanted.spec());
                let object = dynamic(object.into_value())?;
                services.replace(name, &PostParams::default(), &object).await.map(drop)
            }
            Action::Delete(name) => {
                let Some(known) = self.known.get(name.as_str()) else { return Ok(()) };
                let uid = Some(known.registration.uid.clone());
                let preconditions = Preconditions { uid, resource_version: None };
                let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
                services.delete(name, &params).await.map(drop)
            }
            Action::TellLocal(name) => {
                return write_condition(&self.client, &self.cache, name, &Condition::local()).await;
            }
        };
        unless_changed(written)
    }

    fn object(&self, name: &str) -> Result<Option<Object>, Status> {
        self.cache.get(name).map(|entry| entry.read_object()).transpose()
    }

    /// Brings the tasks in line with the APIServices that there are.
    fn follow_backends(&mut self) {
        let known = &self.known;
        self.backends.retain(|name, followed| {
            known.get(name).is_some_and(|now| now.registration.has_same_backend(&followed.registration))
        });
        for (name, KnownApiService { registration, .. }) in &self.known {
            // Registrations are always this server's own, or one that leads astray could not be taken back.
            let Some(service) = registration.service.as_ref().filter(|_| registration.group != GROUP) else {
                continue;
            };
            if let Some(followed) = self.backends.get_mut(name) {
                followed.registration = registration.clone();
                continue;
            }
            let made = Backend::new(self.registry.clone(), self.front_proxy.clone(), registration, service);
            let backend = match made {
                Ok(backend) => Arc::new(backend),
                Err(error) => {
                    tracing::error!(%name, error, "an API server cannot be reached");
                    continue;
                }
            };
            let task = self.stop.child_token();
            let fetched: Arc<RwLock<Arc<Fetched>>> = Arc::default();
            let follower = Follower {
                name: name.clone(),
                registry: self.registry.clone(),
                client: self.client.clone(),
                cache: self.cache.clone(),
                backend: backend.clone(),
                fetched: fetched.clone(),
                heard: self.heard.clone(),
            };
            let running = task.clone();
            tokio::spawn(async move { running.run_until_cancelled(follower.run()).await });
            let followed = RunningBackend {
                registration: registration.clone(),
                backend,
                fetched,
                _task: task.drop_guard(),
            };
            self.backends.insert(name.clone(), followed);
        }
    }

    fn swap(&self) {
        let remotes = self.backends.values().map(|followed| Remote {
            backend: followed.backend.clone(),
            is_available: followed.registration.is_available,
            group_priority: followed.registration.group_priority,
            version_priority: followed.registration.version_priority,
            fetched: followed.fetched.read().clone(),
        });
        let remotes: Vec<Arc<Remote>> = remotes.map(Arc::new).collect();
        let served = self.api.served();
        let old = served.remotes();
        if old.len() != remotes.len() || old.iter().zip(&remotes).any(|(old, new)| !old.is_same(new)) {
            self.api.change_served(|served| served.with_remotes(remotes));
        }
    }
}

/// Asks after one backend, again and again.
struct Follower {
    name: Arc<str>,
    registry: Arc<Registry>,
    client: Client,
    cache: Arc<Cache>,
    backend: Arc<Backend>,
    fetched: Arc<RwLock<Arc<Fetched>>>,
    heard: Arc<Notify>,
}

impl Follower {
    async fn run(self) {
        let mut pause = FIRST_PAUSE;
        let mut leading = Leading::new(&self.registry, &self.backend);
        loop {
            let started = Instant::now();
            let condition = availability::check(&self.registry, &self.backend).await;
            let told = write_condition(&self.client, &self.cache, &self.name, &condition).await;
            if let Err(error) = &told {
                tracing::warn!(name = %self.name, %error, "the condition of an APIService cannot be written");
            }
            if condition.is_true() {
                self.fetch().await;
            }
            // What hinders it before it is asked is heard of; what an answer would say is not.
            let is_failing = condition.reason == "FailedDiscoveryCheck" || told.is_err();
            let wait = if is_failing { pause } else { INTERVAL };
            pause = if is_failing { (pause * 2).min(INTERVAL) } else { FIRST_PAUSE };
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                () = leading.changed() => {}
                () = async {
                    self.backend.failing.notified().await;
                    tokio::time::sleep_until(started + SOONEST).await;
                } => {}
            }
        }
    }

    async fn fetch(&self) {
        let previous = self.fetched.read().clone();
        let fetched = fetched::fetch(&self.backend, &previous).await;
        if fetched != *previous {
            *self.fetched.write() = Arc::new(fetched);
            self.heard.notify_one();
        }
    }
}

/// The objects that lead to a backend: its Service and the EndpointSlices of that.
struct Leading {
    watched: Vec<(Arc<Cache>, Filter, Watcher)>,
}

impl Leading {
    fn new(registry: &Registry, backend: &Backend) -> Leading {
        let (namespace, name) = (&backend.service.namespace, &backend.service.name);
        let selector = LabelSelector::parse(&format!("kubernetes.io/service-name={name}")).ok();
        let slices = selector.and_then(|labels| {
            Filter::new(Some(namespace), labels, &FieldSelector::default(), &[], |_| true).ok()
        });
        let filters = [
            ("", "services", Some(Filter::of_object(namespace, name))),
            ("discovery.k8s.io", "endpointslices", slices),
        ];
        let watched = filters.into_iter().filter_map(|(group, plural, filter)| {
            let (resource, filter) = (registry.resource(&GroupResource::new(group, plural))?, filter?);
            let watcher = resource.cache.watch_now(filter.clone()).2;
            Some((resource.cache.clone(), filter, watcher))
        });
        Leading { watched: watched.collect() }
    }

    async fn changed(&mut self) {
        if self.watched.is_empty() {
            return std::future::pending().await;
        }
        let next = self.watched.iter_mut().map(|(cache, filter, watcher)| {
            Box::pin(async move {
                if watcher.next().await.is_err() {
                    *watcher = cache.watch_now(filter.clone()).2;
                }
            })
        });
        futures::future::select_all(next).await;
    }
}

fn api_services(client: &Client) -> ClientApi<DynamicObject> {
    let gvk = GroupVersionKind::gvk(GROUP, "v1", "APIService");
    ClientApi::all_with(client.clone(), &ApiResource::from_gvk_with_plural(&gvk, PLURAL))
}

fn dynamic(object: Value) -> Result<DynamicObject, Status> {
    serde_json::from_value(object)
        .map_err(|error| Status::internal(format!("an APIService is no object: {error}")))
}

/// Writes the condition if the APIService does not have it yet.
async fn write_condition(
    client: &Client,
    cache: &Cache,
    name: &str,
    condition: &Condition,
) -> Result<(), Status> {
    let Some(entry) = cache.get(name) else { return Ok(()) };
    let mut object = entry.read_object()?;
    let Some(status) = condition.put(&object, Timestamp::now()) else { return Ok(()) };
    object.0.insert("status".into(), status);
    let object = dynamic(object.into_value())?;
    unless_changed(api_services(client).replace_status(name, &PostParams::default(), &object).await.map(drop))
}

/// A conflict is no failure: whoever was faster is heard of, and what is to be done is looked at again.
fn unless_changed(written: Result<(), kube::Error>) -> Result<(), Status> {
    match written {
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(()),
        written => written.map_err(|error| Status::internal(error.to_string())),
    }
}
