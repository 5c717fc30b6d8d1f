//! The one follower of the store. Every watch cache is fed from a single stream of revisions, so there
//! is one number that says how far the whole server has come: lists, bookmarks and answers to writes all
//! use it.
//!
//! A write is answered when its revision has been applied here; a read that must be fresh asks the store
//! for its revision and waits for the same. Nobody polls.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use bytes::Bytes;
use ferry_api::Status;
use ferry_store::{Error, EventKind, KeyValue, Progress, Range, Revision, Store};
use futures::StreamExt;
use parking_lot::{Mutex, RwLock};
use tokio::sync::oneshot;

use super::foretold::Foretold;
use super::peek::Peeked;
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
    resources: RwLock<BTreeMap<Arc<str>, Followed>>,
    progress: RwLock<Option<Progress>>,
    pub foretold: Foretold,
}

#[derive(Clone)]
pub struct Followed {
    pub cache: Arc<Cache>,
    pub reader: Arc<dyn Reader>,
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
            progress: RwLock::default(),
            foretold: Foretold::default(),
        }
    }

    /// How far the caches have come.
    pub fn applied(&self) -> Revision {
        Revision(self.applied.load(Ordering::Acquire))
    }

    /// Feeds `cache` with the keys below `prefix` (which ends in a slash).
    pub fn follow(&self, prefix: String, followed: Followed) {
        self.resources.write().insert(prefix.into(), followed);
    }

    pub fn forget(&self, prefix: &str) {
        self.resources.write().remove(prefix);
    }

    /// Loads one more resource while the log is running: its keys are read at the present revision, then
    /// the events that came in between are replayed over them.
    pub async fn load(&self, prefix: &str) -> Result<(), Error> {
        let Some(followed) = self.resources.read().get(prefix).cloned() else { return Ok(()) };
        let page = self.store.range(Range::prefix(prefix)).await?;
        let entries = page.kvs.iter().filter_map(|kv| entry_of(&followed, prefix, kv, None));
        followed.cache.reset(entries.map(Arc::new), page.revision);
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
                    tracing::warn!(%revision, "the store's history is gone, reading all of it again")
                }
                other => return other,
            }
        }
    }

    async fn fill(&self) -> Result<Revision, Error> {
        let mut span = ferry_trace::span("cache.fill");
        let mut loaded: BTreeMap<Arc<str>, Vec<Arc<Entry>>> = BTreeMap::new();
        let mut range = Range::prefix(&self.root).limit(2_000).uncounted();
        let mut count = 0;
        let revision = loop {
            let page = self.store.range(range.clone()).await?;
            count += page.kvs.len();
            for kv in &page.kvs {
                if let Some((prefix, followed)) = self.resource_of(&kv.key)
                    && let Some(entry) = entry_of(&followed, &prefix, kv, None)
                {
                    loaded.entry(prefix).or_default().push(Arc::new(entry));
                }
            }
            match page.kvs.last() {
                Some(last) if page.remaining > 0 => {
                    range = range.after(&*last.key).at(page.revision);
                }
                _ => break page.revision,
            }
        };
        for (prefix, followed) in self.resources.read().iter() {
            followed.cache.reset(loaded.remove(prefix).into_iter().flatten(), revision);
        }
        span.set("objects", count as i64);
        Ok(revision)
    }

    fn apply(&self, kind: EventKind, kv: &KeyValue) {
        let Some((prefix, followed)) = self.resource_of(&kv.key) else { return };
        // A resource loaded while the log was running may be ahead of it.
        if followed.cache.loaded() >= kv.mod_revision {
            return;
        }
        match kind {
            EventKind::Put => {
                let foretold = self.foretold.take(&kv.value);
                if let Some(entry) = entry_of(&followed, &prefix, kv, foretold) {
                    followed.cache.put(entry);
                }
            }
            EventKind::Delete => followed.cache.delete(&kv.key[prefix.len()..], kv.mod_revision),
        }
    }

    /// The resource with the longest prefix of `key`: `/registry/services/specs/` before `/registry/services/`.
    fn resource_of(&self, key: &str) -> Option<(Arc<str>, Followed)> {
        let resources = self.resources.read();
        let mut end = key.len();
        while let Some(slash) = key[..end].rfind('/') {
            if let Some((prefix, followed)) = resources.get_key_value(&key[..=slash]) {
                return Some((prefix.clone(), followed.clone()));
            }
            end = slash;
        }
        None
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

/// An object that cannot be read is left out and reported: one broken value must not keep the others
/// from being served.
fn entry_of(followed: &Followed, prefix: &str, kv: &KeyValue, foretold: Option<Peeked>) -> Option<Entry> {
    let key: Arc<str> = kv.key[prefix.len()..].into();
    let paths = followed.cache.paths();
    let made = followed.reader.read(&kv.value).and_then(|json| match foretold {
        Some(peeked) => {
            debug_assert_eq!(paths.read(&json).ok().as_ref(), Some(&peeked), "{}", kv.key);
            Ok(Entry::of_peeked(key, &json, kv.mod_revision, peeked))
        }
        None => Entry::from_stored(key, &json, kv.mod_revision, paths)
            .map_err(|error| Status::internal(error.to_string())),
    });
    made.inspect_err(|error| tracing::error!(key = %kv.key, %error, "a stored object cannot be read")).ok()
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
