//! The embedded engine: an append-only log in one directory, an index of it in memory.
//!
//! ```text
//!   commit ─▶ queue ─▶ writer thread ─▶ log (frame, sync) ─▶ watchers ─▶ answer
//!   get, range, replay ─▶ index (a read lock, no I/O) ─▶ log (one read per value)
//! ```
//!
//! `writer.rs` is the heart. `frame.rs` says what the bytes are, `index.rs` which of them count,
//! `log.rs` where they go, `files.rs` what that asks of the disk, `cleaning.rs` how space comes back, `watchers.rs` who
//! hears of it.
//! Why a log of our own and not a database: docs/store.md, with figures.

mod cleaning;
mod expiry;
pub mod files;
pub mod frame;
mod index;
mod log;
mod manifest;
mod memory;
mod queue;
mod segment;
mod snapshot;
mod transaction;
mod watchers;
mod writer;

use std::collections::BTreeMap;
use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;
use parking_lot::{Mutex, RwLock};
use tokio::sync::oneshot;

use self::expiry::Expiry;
use self::files::{Directory, RealDirectory, Unsynced};
use self::index::{Index, Version};
use self::log::{Log, Recovered, Sizes};
use self::memory::MemoryDirectory;
use self::queue::{Outcome, Queue, Refused, Request, Task};
pub use self::segment::Located;
use self::segment::Segment;
pub use self::snapshot::{Summary, restore, verify};
pub use self::transaction::{Budget, Transaction};
use self::watchers::Watchers;
use self::writer::Writer;
use crate::{
    Committed, Error, Found, KeyValue, Page, Range, Result, Revision, Span, Store, Txn, Usage, Watch,
};

/// Values read without leaving the caller's thread, when the kernel has them in memory.
const INLINE_READS: usize = 16;

/// A process that is just ending, or one that it has just forked, holds the lock a little longer.
const LOCK_PATIENCE: Duration = Duration::from_secs(1);

const DEFAULT_SEGMENT: u64 = 16 << 20;

#[derive(Debug, Clone)]
pub struct Config {
    /// Holds the store and nothing else; made if it does not exist.
    pub directory: PathBuf,
    /// Bytes on disk past which puts are refused.
    pub quota: u64,
    /// How long what was overwritten or deleted can still be read and watched.
    pub retention: Duration,
    /// Changes kept for that at most.
    pub history: usize,
    /// Bytes of one transaction at most.
    pub transaction: usize,
    /// Whether what is acknowledged survives the loss of power.
    pub sync: bool,
    /// Bytes of one file of the log, about.
    pub segment: u64,
    /// Called on the writer's thread before it begins; the process may have a wish as to how it is scheduled.
    pub at_writer_start: fn(),
}

impl Config {
    pub fn new(directory: impl Into<PathBuf>) -> Self {
        Config {
            directory: directory.into(),
            quota: 8 << 30,
            retention: Duration::from_secs(5 * 60),
            history: 100_000,
            transaction: 8 << 20,
            sync: true,
            segment: DEFAULT_SEGMENT,
            at_writer_start: || {},
        }
    }
}

pub struct Embedded {
    shared: Arc<Shared>,
    transaction_limit: usize,
    quota: u64,
    /// Keys that went with a lease when the store was opened, and which.
    leased: Vec<(Arc<str>, i64)>,
    writer: Mutex<Option<JoinHandle<()>>>,
}

/// What the writer and the readers have in common.
pub(crate) struct Shared {
    state: RwLock<State>,
    queue: Queue,
    watchers: Watchers,
    /// The newest revision that readers may see.
    published: Arc<AtomicI64>,
    size: AtomicU64,
    no_space: AtomicBool,
    closed: AtomicBool,
    failed: RwLock<Option<Error>>,
}

pub(crate) struct State {
    index: Index,
    segments: BTreeMap<u32, Arc<Segment>>,
}

impl Embedded {
    /// Opens the store in a directory, or begins one. Reads all of it, so give it a thread.
    pub fn open(config: Config) -> Result<Self> {
        let lock = lock_directory(&config.directory)?;
        let directory = open_directory(&config.directory, config.sync)?;
        Embedded::start(config, directory, Some(lock))
    }

    /// A store in memory, which ends with the process.
    pub fn in_memory(config: Config) -> Result<Self> {
        Embedded::start(config, Arc::new(MemoryDirectory::default()), None)
    }

    /// A store over another disk than this machine's; nobody else may use it.
    pub fn open_over(config: Config, directory: Arc<dyn Directory>) -> Result<Self> {
        Embedded::start(config, directory, None)
    }

    fn start(config: Config, directory: Arc<dyn Directory>, lock: Option<File>) -> Result<Self> {
        let mut span = ferry_trace::span("store.open");
        let Recovered { log, index, mark, clean, expiring, leased } =
            Log::open(directory, Sizes::new(config.segment))?;
        span.set("keys", index.live_keys() as i64);
        // After a crash, revisions may have been given away that the log does not show.
        let last = if clean { mark.revision } else { mark.ceiling };
        let revision = last.max(Revision(1));
        let segments = log.segments().map(|segment| (segment.id, segment.clone())).collect();
        let shared = Arc::new(Shared {
            state: RwLock::new(State { index, segments }),
            queue: Queue::default(),
            watchers: Watchers::default(),
            published: Arc::new(AtomicI64::new(revision.0)),
            size: AtomicU64::new(log.size()),
            no_space: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            failed: RwLock::new(None),
        });
        let mut expiry = Expiry::default();
        let now = Instant::now();
        expiring.into_iter().for_each(|(ttl, key, revision)| expiry.add(now, ttl, key, revision));
        let (transaction_limit, quota) = (config.transaction, config.quota);
        let at_start = config.at_writer_start;
        let writer = Writer::new(shared.clone(), config, log, lock, expiry, revision);
        let thread = std::thread::Builder::new()
            .name("ferry-store".into())
            .spawn(move || {
                at_start();
                writer.run();
            })
            .map_err(|error| Error::unavailable("start the store's thread", error))?;
        Ok(Embedded { shared, transaction_limit, quota, leased, writer: Mutex::new(Some(thread)) })
    }

    fn request(&self, request: Request) -> Result<()> {
        self.shared.queue.push(request).map_err(|refused| match refused {
            Refused::Full => Error::unavailable("queue a write", io::Error::other("too many are waiting")),
            Refused::Closed => watchers::closed(),
        })
    }
}

/// What etcd's API asks of a store beyond [`Store`].
impl Embedded {
    /// Runs `work` on the newest state, with no other transaction beside it. What it wrote is durable when this
    /// returns; where it fails, nothing has happened. It runs on the writer's thread, so it must be brief.
    pub async fn transact<T, E>(
        &self,
        budget: Budget,
        work: impl FnOnce(&mut Transaction<'_>) -> std::result::Result<T, E> + Send + 'static,
    ) -> std::result::Result<(T, Revision), E>
    where
        T: Send + 'static,
        E: From<Error> + Send + 'static,
    {
        let mut span = ferry_trace::span("store.write");
        span.set("bytes", budget.bytes);
        if budget.bytes > self.transaction_limit {
            return Err(Error::TooLarge { size: budget.bytes, limit: self.transaction_limit }.into());
        }
        let (said, result) = std::sync::mpsc::channel();
        let work = Box::new(move |transaction: &mut Transaction<'_>| {
            let result = work(transaction);
            let stays = result.is_ok();
            // Who does not wait any longer need not know.
            said.send(result).ok();
            stays
        });
        let (answer, outcome) = oneshot::channel();
        self.request(Request::Commit { task: Task::Work(budget, work), answer })?;
        let outcome = outcome.await.map_err(|_| watchers::closed())?;
        let revision = match outcome {
            Ok(Outcome::Committed(committed)) => committed.revision,
            Ok(_) => Revision(0),
            Err(error) => {
                span.fail(&error);
                return Err(error.into());
            }
        };
        let result = result.try_recv().map_err(|_| watchers::closed())??;
        span.committed(revision.0);
        Ok((result, revision))
    }

    /// Keys of a span as they are now or were at a revision, `limit` of them; how many it left out; and the store's
    /// revision.
    pub fn entries(
        &self,
        span: &Span,
        at: Option<Revision>,
        limit: usize,
    ) -> Result<(Vec<Located>, usize, Revision)> {
        self.shared.check_open()?;
        let state = self.shared.state.read();
        let current = self.shared.published();
        let at = at.unwrap_or(current);
        state.check_revision(at, current)?;
        let (found, left) = state.index.range(span, None, at, limit, usize::MAX);
        Ok((state.locate_all(found), left, current))
    }

    pub async fn read(&self, entries: Vec<Located>) -> Result<Vec<KeyValue>> {
        read_all(entries, |_, kv| kv).await
    }

    /// As [`Store::watch`], of any span.
    pub fn watch_span(&self, span: Span, from: Revision) -> Result<Watch> {
        self.shared.check_open()?;
        watchers::watch(self.shared.clone(), span, from)
    }

    pub fn compacted_revision(&self) -> Revision {
        self.shared.state.read().index.compacted()
    }

    /// Keys that went with a lease when the store was opened, and which.
    pub fn leased(&self) -> &[(Arc<str>, i64)] {
        &self.leased
    }
}

impl Drop for Embedded {
    fn drop(&mut self) {
        if let Some(writer) = self.writer.lock().take() {
            let (answer, _) = oneshot::channel();
            if self.request(Request::Close { answer }).is_ok() {
                writer.join().ok();
            }
        }
    }
}

impl Shared {
    fn published(&self) -> Revision {
        Revision(self.published.load(Ordering::Acquire))
    }

    fn check_open(&self) -> Result<()> {
        match self.closed.load(Ordering::Acquire) {
            true => Err(watchers::closed()),
            false => Ok(()),
        }
    }

    fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.queue.close();
        self.watchers.close();
    }

    fn check_history(&self, from: Revision) -> Result<()> {
        let state = self.state.read();
        state.check_history(from, self.published())
    }
}

impl State {
    fn locate(&self, key: Arc<str>, version: Version) -> Located {
        let segment = self
            .segments
            .get(&version.location.segment)
            .expect("the index refers only to segments that exist");
        Located { key, version, segment: segment.clone() }
    }

    fn locate_all(&self, versions: Vec<(Arc<str>, Version)>) -> Vec<Located> {
        versions.into_iter().map(|(key, version)| self.locate(key, version)).collect()
    }

    /// Whether changes from this revision on are all still known.
    fn check_history(&self, from: Revision, current: Revision) -> Result<()> {
        let compacted = self.index.compacted();
        if from < compacted {
            return Err(Error::Compacted { requested: from, compacted, current });
        }
        Ok(())
    }

    /// Whether the store can be read as it was at a revision.
    fn check_revision(&self, at: Revision, current: Revision) -> Result<()> {
        if at > current {
            return Err(Error::FutureRevision { requested: at, current });
        }
        self.check_history(at, current)
    }
}

#[async_trait]
impl Store for Embedded {
    async fn get(&self, key: &str, at: Option<Revision>) -> Result<Found> {
        self.shared.check_open()?;
        let (located, revision) = {
            let state = self.shared.state.read();
            // Read under the lock: compaction cannot overtake it then.
            let current = self.shared.published();
            let at = at.unwrap_or(current);
            state.check_revision(at, current)?;
            let found = state.index.at(key, at);
            (found.map(|(key, version)| state.locate(key, version)), current)
        };
        let kv = match located {
            Some(located) => Some(read(located).await?),
            None => None,
        };
        Ok(Found { kv, revision })
    }

    async fn range(&self, range: Range) -> Result<Page> {
        self.shared.check_open()?;
        let (located, remaining, revision) = {
            let state = self.shared.state.read();
            let current = self.shared.published();
            let at = range.at.unwrap_or(current);
            state.check_revision(at, current)?;
            let (found, remaining) = state.index.range(
                &Span::prefix(&range.prefix),
                range.after.as_deref(),
                at,
                range.limit.unwrap_or(usize::MAX),
                if range.uncounted { 1 } else { usize::MAX },
            );
            (state.locate_all(found), remaining, at)
        };
        Ok(Page { kvs: read_all(located, |_, kv| kv).await?, remaining, revision })
    }

    async fn commit(&self, txn: Txn) -> Result<Committed> {
        let mut span = ferry_trace::span("store.write");
        span.set("bytes", txn.size());
        txn.check(self.transaction_limit)?;
        let (answer, outcome) = oneshot::channel();
        self.request(Request::Commit { task: Task::Txn(txn), answer })?;
        match outcome.await.map_err(|_| watchers::closed())? {
            Ok(Outcome::Committed(committed)) => {
                span.committed(committed.revision.0);
                Ok(committed)
            }
            Ok(Outcome::Abandoned) => Err(Error::corrupt("a transaction without work was abandoned")),
            Ok(Outcome::Conflict { key, current }) => {
                let current = match current {
                    Some(located) => Some(read(located).await?),
                    None => None,
                };
                Err(Error::Conflict { key, current })
            }
            Err(error) => {
                span.fail(&error);
                Err(error)
            }
        }
    }

    async fn watch(&self, prefix: &str, from: Revision) -> Result<Watch> {
        self.shared.check_open()?;
        watchers::watch(self.shared.clone(), Span::prefix(prefix), from)
    }

    async fn current_revision(&self) -> Result<Revision> {
        self.shared.check_open()?;
        if let Some(error) = &*self.shared.failed.read() {
            return Err(error.clone());
        }
        Ok(self.shared.published())
    }

    /// Asks the writer: one that has stopped, or hangs on the disk, is not well though reads go on.
    async fn health(&self) -> Result<()> {
        let (answer, health) = oneshot::channel();
        self.request(Request::Health { answer })?;
        health.await.map_err(|_| watchers::closed())?
    }

    async fn compact(&self, at: Revision) -> Result<()> {
        let _span = ferry_trace::span("store.compact");
        let (answer, done) = oneshot::channel();
        self.request(Request::Compact { at, answer })?;
        done.await.map_err(|_| watchers::closed())?
    }

    async fn usage(&self) -> Result<Usage> {
        self.shared.check_open()?;
        let state = self.shared.state.read();
        Ok(Usage {
            size: self.shared.size.load(Ordering::Relaxed),
            in_use: state.index.retained(),
            quota: self.quota,
            keys: state.index.live_keys() as u64,
            no_space: self.shared.no_space.load(Ordering::Relaxed),
        })
    }

    async fn snapshot(&self) -> Result<BoxStream<'static, Result<Bytes>>> {
        self.shared.check_open()?;
        Ok(snapshot::stream(&self.shared))
    }

    async fn close(&self) -> Result<()> {
        let (answer, closed) = oneshot::channel();
        self.request(Request::Close { answer })?;
        let closed = closed.await.map_err(|_| watchers::closed())?;
        let writer = self.writer.lock().take();
        if let Some(writer) = writer {
            tokio::task::spawn_blocking(move || writer.join().ok()).await.ok();
        }
        closed
    }
}

async fn read(located: Located) -> Result<KeyValue> {
    match located.read_cached() {
        Some(kv) => kv,
        None => blocking(move || located.read()).await,
    }
}

/// Reads many values, on a thread for blocking work unless they are few and at hand.
async fn read_all<T: Send + 'static>(
    located: Vec<Located>,
    make: impl Fn(&Located, KeyValue) -> T + Send + 'static,
) -> Result<Vec<T>> {
    if located.len() <= INLINE_READS {
        let cached: Option<Vec<_>> = located.iter().map(Located::read_cached).collect();
        if let Some(cached) = cached {
            return located.iter().zip(cached).map(|(located, kv)| Ok(make(located, kv?))).collect();
        }
    }
    blocking(move || located.iter().map(|located| Ok(make(located, located.read()?))).collect()).await
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) => Err(Error::unavailable("read the log", error)),
    }
}

/// Makes the directory if need be, and makes sure that no other process uses it.
fn lock_directory(directory: &Path) -> Result<File> {
    let cannot = |what: &str, error| Error::unavailable(format!("{what} {}", directory.display()), error);
    create_directory(directory).map_err(|error| cannot("create", error))?;
    let lock = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(directory.join("LOCK"))
        .map_err(|error| cannot("open", error))?;
    let deadline = Instant::now() + LOCK_PATIENCE;
    loop {
        match lock.try_lock() {
            Ok(()) => return Ok(lock),
            Err(TryLockError::WouldBlock) if Instant::now() < deadline => {
                std::thread::sleep(LOCK_PATIENCE / 50);
            }
            Err(TryLockError::WouldBlock) => {
                let busy = io::Error::new(io::ErrorKind::ResourceBusy, "another process has this store open");
                return Err(cannot("lock", busy));
            }
            Err(TryLockError::Error(error)) => return Err(cannot("lock", error)),
        }
    }
}

/// Makes a directory and those above it, durably.
fn create_directory(directory: &Path) -> io::Result<()> {
    if directory.is_dir() {
        return Ok(());
    }
    let parent = parent(directory);
    create_directory(parent)?;
    match DirBuilder::new().mode(0o700).create(directory) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && directory.is_dir() => Ok(()),
        created => created.and_then(|()| RealDirectory::open(parent)?.sync()),
    }
}

fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    }
}

fn open_directory(path: &Path, sync: bool) -> Result<Arc<dyn Directory>> {
    match RealDirectory::open(path) {
        Ok(directory) if sync => Ok(Arc::new(directory)),
        Ok(directory) => Ok(Arc::new(Unsynced(directory))),
        Err(error) => Err(Error::unavailable(format!("open {}", path.display()), error)),
    }
}
