//! The single task that follows the store. It feeds every watch cache from one stream of revisions, so one revision
//! describes the state of the whole server. Lists, bookmarks and responses to writes use it.
//!
//! The response to a write waits until its revision has been applied here; a consistent read asks the store for its
//! revision and waits for that.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use bytes::Bytes;
use ferry_api::Status;
use ferry_store::{Error, EventKind, KeyValue, Page, Progress, Range, Revision, Store};
use futures::StreamExt;
use parking_lot::{Mutex, RwLock};
use tokio::sync::oneshot;

use super::peek::Peeked;
use super::pending_writes::PendingWrites;
use super::{Cache, Entry};

/// Turns stored bytes into the JSON the cache keeps; fails on bytes that are no object of the kind.
pub trait Reader: Send + Sync {
    fn read(&self, stored: &Bytes) -> Result<Bytes, Status>;
}

pub struct Log {
    store: Arc<dyn Store>,
    root: String,
    applied: AtomicI64,
    waiting: Mutex<BinaryHeap<Reverse<Waiting>>>,
    resources: RwLock<BTreeMap<Arc<str>, Arc<CachedResource>>>,
    /// Held while caches are filled from the store, all of them or one, so that an older reading never replaces a newer.
    filling: tokio::sync::Mutex<()>,
    progress: RwLock<Option<Progress>>,
    pub pending_writes: PendingWrites,
}

/// A resource whose cache the log feeds.
pub struct CachedResource {
    pub cache: Arc<Cache>,
    reader: Arc<dyn Reader>,
    /// Events that came while the cache is loaded, for afterwards.
    held: Mutex<Option<Vec<(EventKind, KeyValue)>>>,
}

impl CachedResource {
    pub fn new(cache: Arc<Cache>, reader: Arc<dyn Reader>) -> CachedResource {
        CachedResource { cache, reader, held: Mutex::default() }
    }
}

struct Waiting {
    revision: Revision,
    done: oneshot::Sender<()>,
}

impl Log {
    pub fn new(store: Arc<dyn Store>, root: &str) -> Log {
        Log {
            store,
            root: root.to_string(),
            applied: AtomicI64::new(0),
            waiting: Mutex::default(),
            resources: RwLock::default(),
            filling: tokio::sync::Mutex::default(),
            progress: RwLock::default(),
            pending_writes: PendingWrites::default(),
        }
    }

    /// How far the caches have come.
    pub fn applied(&self) -> Revision {
        Revision(self.applied.load(Ordering::Acquire))
    }

    /// Feeds `resource` with the keys below `prefix` (which ends in a slash).
    pub fn follow(&self, prefix: String, resource: CachedResource) {
        self.resources.write().insert(prefix.into(), Arc::new(resource));
    }

    pub fn forget(&self, prefix: &str) {
        self.resources.write().remove(prefix);
    }

    /// Loads one more resource while the log is running: its keys are read at the present revision, and the events that
    /// came in between are replayed over them.
    pub async fn load(&self, prefix: &str) -> Result<(), Error> {
        let Some(resource) = self.resources.read().get(prefix).cloned() else { return Ok(()) };
        let _filling = self.filling.lock().await;
        let mut loading = Loading::begin(self, &resource, prefix);
        loading.page = Some(self.store.range(Range::prefix(prefix)).await?);
        Ok(())
    }

    /// Returns when everything up to `revision` is in the caches.
    pub async fn reached(&self, revision: Revision) {
        if self.applied() >= revision {
            return;
        }
        let (done, wait) = oneshot::channel();
        {
            let mut waiting = self.waiting.lock();
            // The follower stores `applied` before it takes this lock, so one of the two sees the other.
            if self.applied() >= revision {
                return;
            }
            waiting.push(Reverse(Waiting { revision, done }));
        }
        // The sender lives until the revision is applied or the server stops.
        let _ = wait.await;
    }

    /// Returns when the caches are as new as the store is now, and says which revision that is.
    pub async fn fresh(&self) -> Result<Revision, Error> {
        let current = self.store.current_revision().await?;
        if self.applied() >= current {
            return Ok(current);
        }
        let progress = self.progress.read().clone();
        if let Some(progress) = progress {
            match progress.newest_event() {
                Some(newest) => {
                    self.reached(newest.min(current)).await;
                    return Ok(current);
                }
                None => progress.request(),
            }
        }
        self.reached(current).await;
        Ok(current)
    }

    /// Fills every cache, then follows the store until `Unavailable`; the caller decides about a restart.
    /// `ready` is called once, when the caches are filled.
    pub async fn run(&self, mut ready: impl FnMut()) -> Error {
        loop {
            let revision = match self.fill().await {
                Ok(revision) => revision,
                Err(error) => return error,
            };
            let mut watch = match self.store.watch(&self.root, revision.next()).await {
                Ok(watch) => watch,
                Err(error) => return error,
            };
            *self.progress.write() = Some(watch.progress());
            self.advance(revision);
            ready();
            let ended = loop {
                match watch.next().await {
                    Some(Ok(batch)) => {
                        for event in &batch.events {
                            self.apply(event.kind, &event.kv);
                        }
                        self.advance(batch.revision);
                    }
                    Some(Err(error)) => break error,
                    None => {
                        break Error::unavailable(
                            "follow the store",
                            std::io::Error::other("the watch ended"),
                        );
                    }
                }
            };
            match ended {
                // History was compacted past us: fill again; watchers are told to list again.
                Error::Compacted { .. } => {
                    tracing::warn!(%revision, "the store's history was compacted, listing again")
                }
                other => return other,
            }
        }
    }

    async fn fill(&self) -> Result<Revision, Error> {
        let mut span = ferry_trace::span("cache.fill");
        let _filling = self.filling.lock().await;
        // One that is added from here on is loaded on its own.
        let resources = self.resources.read().clone();
        let mut loaded: BTreeMap<Arc<str>, Vec<Result<Entry, Arc<str>>>> = BTreeMap::new();
        let mut range = Range::prefix(&self.root).limit(2_000).uncounted();
        let mut count = 0;
        let revision = loop {
            let page = self.store.range(range.clone()).await?;
            count += page.kvs.len();
            for kv in &page.kvs {
                if let Some((prefix, resource)) = resource_of(&resources, &kv.key) {
                    loaded.entry(prefix.clone()).or_default().push(entry_of(resource, prefix, kv, None));
                }
            }
            match page.kvs.last() {
                Some(last) if page.remaining > 0 => {
                    range = range.after(&*last.key).at(page.revision);
                }
                _ => break page.revision,
            }
        };
        for (prefix, resource) in &resources {
            resource.cache.reset(loaded.remove(prefix).into_iter().flatten(), revision);
        }
        span.set("objects", count as i64);
        Ok(revision)
    }

    fn apply(&self, kind: EventKind, kv: &KeyValue) {
        let found = resource_of(&self.resources.read(), &kv.key)
            .map(|(prefix, resource)| (prefix.clone(), resource.clone()));
        let Some((prefix, resource)) = found else { return };
        match &mut *resource.held.lock() {
            Some(held) => held.push((kind, kv.clone())),
            None => self.apply_to(&resource, &prefix, kind, kv),
        }
    }

    fn apply_to(&self, resource: &CachedResource, prefix: &str, kind: EventKind, kv: &KeyValue) {
        // A resource loaded while the log was running may be ahead of it.
        if resource.cache.loaded() >= kv.mod_revision {
            return;
        }
        match kind {
            EventKind::Put => {
                let known = self.pending_writes.take(&kv.value);
                match entry_of(resource, prefix, kv, known) {
                    Ok(entry) => drop(resource.cache.put(entry)),
                    Err(key) => resource.cache.put_unreadable(&key, kv.mod_revision),
                }
            }
            EventKind::Delete => resource.cache.delete(&kv.key[prefix.len()..], kv.mod_revision),
        }
    }

    fn advance(&self, revision: Revision) {
        self.applied.store(revision.0, Ordering::Release);
        let mut waiting = self.waiting.lock();
        while waiting.peek().is_some_and(|Reverse(next)| next.revision <= revision) {
            if let Some(Reverse(next)) = waiting.pop() {
                // A request that was cancelled does not wait any more.
                let _ = next.done.send(());
            }
        }
    }
}

/// Holds a resource's events back while its keys are read. When it ends, however that is, the keys are in the cache as
/// far as they were read, and the events after them.
struct Loading<'a> {
    log: &'a Log,
    resource: &'a CachedResource,
    prefix: &'a str,
    page: Option<Page>,
}

impl<'a> Loading<'a> {
    fn begin(log: &'a Log, resource: &'a CachedResource, prefix: &'a str) -> Loading<'a> {
        *resource.held.lock() = Some(Vec::new());
        Loading { log, resource, prefix, page: None }
    }
}

impl Drop for Loading<'_> {
    fn drop(&mut self) {
        let mut held = self.resource.held.lock();
        if let Some(page) = &self.page {
            let read = page.kvs.iter().map(|kv| entry_of(self.resource, self.prefix, kv, None));
            self.resource.cache.reset(read, page.revision);
        }
        for (kind, kv) in held.take().into_iter().flatten() {
            self.log.apply_to(self.resource, self.prefix, kind, &kv);
        }
    }
}

/// The resource with the longest prefix of `key`: `/registry/services/specs/` before `/registry/services/`.
fn resource_of<'a>(
    resources: &'a BTreeMap<Arc<str>, Arc<CachedResource>>,
    key: &str,
) -> Option<(&'a Arc<str>, &'a Arc<CachedResource>)> {
    let mut end = key.len();
    while let Some(slash) = key[..end].rfind('/') {
        if let Some(found) = resources.get_key_value(&key[..=slash]) {
            return Some(found);
        }
        end = slash;
    }
    None
}

/// An object that cannot be read is reported, and named by its key: one broken value must not keep the others from being
/// served.
fn entry_of(
    resource: &CachedResource,
    prefix: &str,
    kv: &KeyValue,
    known: Option<Peeked>,
) -> Result<Entry, Arc<str>> {
    let key: Arc<str> = kv.key[prefix.len()..].into();
    let paths = resource.cache.paths();
    let made = resource.reader.read(&kv.value).and_then(|json| match known {
        Some(peeked) => {
            debug_assert_eq!(paths.read(&json).ok().as_ref(), Some(&peeked), "{}", kv.key);
            Ok(Entry::of_peeked(key.clone(), &json, kv.mod_revision, peeked))
        }
        None => Entry::from_stored(key.clone(), &json, kv.mod_revision, paths)
            .map_err(|error| Status::internal(error.to_string())),
    });
    made.map_err(|error| {
        tracing::error!(key = %kv.key, %error, "a stored object cannot be read");
        key
    })
}

impl PartialEq for Waiting {
    fn eq(&self, other: &Waiting) -> bool {
        self.revision == other.revision
    }
}

impl Eq for Waiting {}

impl PartialOrd for Waiting {
    fn partial_cmp(&self, other: &Waiting) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Waiting {
    fn cmp(&self, other: &Waiting) -> std::cmp::Ordering {
        self.revision.cmp(&other.revision)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use ferry_store::{Committed, Durability, Embedded, Found, Operation, Txn, Usage, Watch, embedded};
    use futures::stream::BoxStream;
    use tokio::sync::Semaphore;

    use super::*;
    use crate::cache::peek::Paths;

    const ROOT: &str = "/registry/";
    const PREFIX: &str = "/registry/configmaps/";

    struct Plain;

    impl Reader for Plain {
        fn read(&self, stored: &Bytes) -> Result<Bytes, Status> {
            match stored.starts_with(b"{") {
                true => Ok(stored.clone()),
                false => Err(Status::internal("no object")),
            }
        }
    }

    /// Answers a range when it is let to, with what was there when it was asked.
    struct Slow {
        inner: Arc<dyn Store>,
        asked: Semaphore,
        answers: Semaphore,
    }

    #[async_trait::async_trait]
    impl Store for Slow {
        async fn range(&self, range: Range) -> Result<Page, Error> {
            let page = self.inner.range(range).await;
            self.asked.add_permits(1);
            self.answers.acquire().await.expect("never closed").forget();
            page
        }

        async fn get(&self, key: &str, at: Option<Revision>) -> Result<Found, Error> {
            self.inner.get(key, at).await
        }

        async fn commit(&self, txn: Txn) -> Result<Committed, Error> {
            self.inner.commit(txn).await
        }

        async fn watch(&self, prefix: &str, from: Revision) -> Result<Watch, Error> {
            self.inner.watch(prefix, from).await
        }

        async fn current_revision(&self) -> Result<Revision, Error> {
            self.inner.current_revision().await
        }

        async fn compact(&self, at: Revision) -> Result<(), Error> {
            self.inner.compact(at).await
        }

        async fn usage(&self) -> Result<Usage, Error> {
            self.inner.usage().await
        }

        async fn snapshot(&self) -> Result<BoxStream<'static, Result<Bytes, Error>>, Error> {
            self.inner.snapshot().await
        }

        async fn close(&self) -> Result<(), Error> {
            self.inner.close().await
        }
    }

    struct Scene {
        store: Arc<Slow>,
        log: Arc<Log>,
        cache: Arc<Cache>,
        _directory: tempfile::TempDir,
    }

    impl Scene {
        async fn write(&self, operation: Operation) -> Revision {
            let txn =
                Txn { compare: Vec::new(), operations: vec![operation], durability: Durability::Relaxed };
            self.store.commit(txn).await.expect("written").revision
        }

        async fn put(&self, name: &str) -> Revision {
            self.put_value(name, r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{}}"#).await
        }

        async fn put_value(&self, name: &str, value: &'static str) -> Revision {
            let key = format!("{PREFIX}{name}").into();
            self.write(Operation::Put { key, value: value.into(), ttl: None }).await
        }

        async fn delete(&self, name: &str) -> Revision {
            self.write(Operation::Delete { key: format!("{PREFIX}{name}").into() }).await
        }

        async fn range_is_asked(&self) {
            self.store.asked.acquire().await.expect("never closed").forget();
        }

        fn names(&self) -> Vec<String> {
            self.cache.snapshot().0.keys().map(ToString::to_string).collect()
        }
    }

    async fn within<T>(work: impl Future<Output = T>) -> T {
        tokio::time::timeout(Duration::from_secs(20), work).await.expect("it ends")
    }

    async fn scene() -> Scene {
        let directory = tempfile::tempdir().expect("a directory");
        let inner: Arc<dyn Store> =
            Arc::new(Embedded::open(embedded::Config::new(directory.path().join("store"))).expect("a store"));
        let store = Arc::new(Slow { inner, asked: Semaphore::new(0), answers: Semaphore::new(1) });
        let log = Arc::new(Log::new(store.clone(), ROOT));
        let cache = Arc::new(Cache::new(Paths::new(&[]), None));
        let (ready, is_ready) = oneshot::channel();
        let running = log.clone();
        tokio::spawn(async move {
            let mut ready = Some(ready);
            let tell = || {
                let _ = ready.take().map(|ready| ready.send(()));
            };
            running.run(tell).await
        });
        within(is_ready).await.expect("it runs");
        within(store.asked.acquire()).await.expect("never closed").forget();
        Scene { store, log, cache, _directory: directory }
    }

    #[tokio::test]
    async fn events_during_a_load_are_replayed() {
        let scene = scene().await;
        scene.put("old").await;
        scene.put("kept").await;
        scene.log.follow(PREFIX.into(), CachedResource::new(scene.cache.clone(), Arc::new(Plain)));
        let log = scene.log.clone();
        let loading = tokio::spawn(async move { log.load(PREFIX).await });
        within(scene.range_is_asked()).await;
        scene.put("new").await;
        let last = scene.delete("old").await;
        within(scene.log.reached(last)).await;
        scene.store.answers.add_permits(1);
        within(loading).await.expect("no panic").expect("loaded");
        assert_eq!(scene.names(), ["kept", "new"]);
        let last = scene.put("later").await;
        within(scene.log.reached(last)).await;
        assert_eq!(scene.names(), ["kept", "later", "new"]);
    }

    #[tokio::test]
    async fn a_load_that_is_given_up_holds_nothing_back() {
        let scene = scene().await;
        scene.log.follow(PREFIX.into(), CachedResource::new(scene.cache.clone(), Arc::new(Plain)));
        let log = scene.log.clone();
        let loading = tokio::spawn(async move { log.load(PREFIX).await });
        within(scene.range_is_asked()).await;
        let last = scene.put("new").await;
        within(scene.log.reached(last)).await;
        loading.abort();
        assert!(within(loading).await.is_err());
        assert_eq!(scene.names(), ["new"]);
    }

    #[tokio::test]
    async fn an_object_that_cannot_be_read_is_known_to_be_missing() {
        let scene = scene().await;
        scene.put_value("before", "broken").await;
        scene.log.follow(PREFIX.into(), CachedResource::new(scene.cache.clone(), Arc::new(Plain)));
        scene.store.answers.add_permits(1);
        within(scene.log.load(PREFIX)).await.expect("loaded");
        assert_eq!(scene.cache.unreadable().as_deref(), Some("before"));
        let last = scene.put("before").await;
        within(scene.log.reached(last)).await;
        assert_eq!((scene.names(), scene.cache.unreadable()), (vec!["before".into()], None));
        // What was written over is not served as if it were there.
        let last = scene.put_value("before", "broken").await;
        within(scene.log.reached(last)).await;
        assert_eq!((scene.names(), scene.cache.unreadable()), (vec![], Some("before".into())));
        assert_eq!(scene.cache.revision(), last);
        let last = scene.delete("before").await;
        within(scene.log.reached(last)).await;
        assert_eq!((scene.cache.unreadable(), scene.cache.revision()), (None, last));
    }
}
