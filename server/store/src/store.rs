//! The interface of both engines, in etcd's terms.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::BoxStream;

use crate::{Error, Result, Watch};

/// One number orders all changes of the whole store. The first change of an empty store is
/// revision 2, as in etcd; an empty store is at revision 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Revision(pub i64);

impl Revision {
    #[must_use]
    pub fn next(self) -> Self {
        Revision(self.0 + 1)
    }
}

impl fmt::Display for Revision {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

/// A key as it was at one revision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyValue {
    pub key: Arc<str>,
    /// Empty in a delete event.
    pub value: Bytes,
    /// The revision at which the key was created; zero in a delete event.
    pub create_revision: Revision,
    /// The revision of the last change; that of the deletion in a delete event.
    pub mod_revision: Revision,
    /// Counts the puts since the key was created; zero in a delete event.
    pub version: i64,
    /// The etcd lease that the key is attached to; zero for none.
    pub lease: i64,
}

/// Revisioned keys and values. Every read that names no revision is linearizable: it sees all
/// that was acknowledged before it began.
#[async_trait]
pub trait Store: Send + Sync + 'static {
    async fn get(&self, key: &str, at: Option<Revision>) -> Result<Found>;

    /// Keys under a prefix, in order.
    async fn range(&self, range: Range) -> Result<Page>;

    /// Applies all operations at one revision if all comparisons hold, otherwise none.
    async fn commit(&self, txn: Txn) -> Result<Committed>;

    /// Every change of keys under `prefix` with a revision of at least `from`: in order, none
    /// missing, none twice. A list at revision N is followed by a watch from N + 1.
    async fn watch(&self, prefix: &str, from: Revision) -> Result<Watch>;

    async fn current_revision(&self) -> Result<Revision>;

    /// Whether the key's value would be written in another way today, with another key as a rule: then a put is
    /// worth its while though the value stays.
    async fn is_outdated(&self, _key: &str) -> Result<bool> {
        Ok(false)
    }

    /// Compacts: removes versions that were overwritten or deleted before `at`.
    async fn compact(&self, at: Revision) -> Result<()>;

    /// Whether the store answers and takes writes now; asked by health checks, with a deadline of their own.
    async fn health(&self) -> Result<()> {
        self.current_revision().await.map(drop)
    }

    async fn usage(&self) -> Result<Usage>;

    /// The whole store at one revision, as the bytes of a file that `restore` (embedded) or
    /// `etcdctl snapshot restore` (etcd) takes, while reads and writes go on.
    async fn snapshot(&self) -> Result<BoxStream<'static, Result<Bytes>>>;

    /// Makes all writes durable and stops the engine's tasks. Later calls fail.
    async fn close(&self) -> Result<()>;
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    pub kv: Option<KeyValue>,
    /// The store's revision when it answered, whatever revision was asked for.
    pub revision: Revision,
}

/// A request for keys under a prefix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Range {
    pub prefix: String,
    /// Begin at the first key greater than this one: how a page follows another.
    pub after: Option<String>,
    pub at: Option<Revision>,
    pub limit: Option<usize>,
    /// Do not count the keys beyond the limit; only report whether there are any.
    pub uncounted: bool,
}

impl Range {
    pub fn prefix(prefix: impl Into<String>) -> Self {
        Range { prefix: prefix.into(), after: None, at: None, limit: None, uncounted: false }
    }

    #[must_use]
    pub fn after(mut self, key: impl Into<String>) -> Self {
        self.after = Some(key.into());
        self
    }

    #[must_use]
    pub fn at(mut self, revision: Revision) -> Self {
        self.at = Some(revision);
        self
    }

    /// For one page after the other: counting what is left would visit every key once for each page.
    #[must_use]
    pub fn uncounted(mut self) -> Self {
        self.uncounted = true;
        self
    }

    #[must_use]
    pub fn limit(mut self, keys: usize) -> Self {
        self.limit = Some(keys);
        self
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    pub kvs: Vec<KeyValue>,
    /// How many keys of the range the limit left out; one stands for any number where nobody counts.
    pub remaining: usize,
    /// The revision of this page: the one asked for, or the store's. Further pages name it to be
    /// of one list.
    pub revision: Revision,
}

/// A transaction: if every comparison holds, do every operation.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Txn {
    pub compare: Vec<Compare>,
    pub operations: Vec<Operation>,
    pub durability: Durability,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Compare {
    ModRevision { key: Arc<str>, revision: Revision },
    Absent { key: Arc<str> },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Operation {
    Put {
        key: Arc<str>,
        value: Bytes,
        /// The key deletes itself after this time, unless it is put again before.
        ttl: Option<Duration>,
    },
    Delete {
        key: Arc<str>,
    },
}

/// Whether an acknowledged write survives a power cut. It survives the death of the process in
/// either case, and order is kept in either case: a `Sync` write is durable together with every
/// `Relaxed` one before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Durability {
    #[default]
    Sync,
    /// For what is rewritten every few seconds or may be lost: Leases and Events.
    Relaxed,
}

impl Txn {
    /// Puts a key that must not exist yet.
    pub fn create(key: impl Into<Arc<str>>, value: Bytes) -> Self {
        let key = key.into();
        Txn {
            compare: vec![Compare::Absent { key: key.clone() }],
            operations: vec![Operation::Put { key, value, ttl: None }],
            durability: Durability::Sync,
        }
    }

    /// Puts a key that is still as it was at `revision`.
    pub fn update(key: impl Into<Arc<str>>, revision: Revision, value: Bytes) -> Self {
        let key = key.into();
        Txn {
            compare: vec![Compare::ModRevision { key: key.clone(), revision }],
            operations: vec![Operation::Put { key, value, ttl: None }],
            durability: Durability::Sync,
        }
    }

    /// Deletes a key that is still as it was at `revision`.
    pub fn delete(key: impl Into<Arc<str>>, revision: Revision) -> Self {
        let key = key.into();
        Txn {
            compare: vec![Compare::ModRevision { key: key.clone(), revision }],
            operations: vec![Operation::Delete { key }],
            durability: Durability::Sync,
        }
    }

    #[must_use]
    pub fn relaxed(mut self) -> Self {
        self.durability = Durability::Relaxed;
        self
    }

    /// Gives every put of this transaction a time to live.
    #[must_use]
    pub fn expiring(mut self, after: Duration) -> Self {
        for operation in &mut self.operations {
            if let Operation::Put { ttl, .. } = operation {
                *ttl = Some(after);
            }
        }
        self
    }
}

impl Txn {
    /// Bytes of the keys and values it writes.
    pub(crate) fn size(&self) -> usize {
        self.operations.iter().map(Operation::size).sum()
    }

    /// Refuses transactions that no engine accepts.
    pub(crate) fn check(&self, limit: usize) -> Result<()> {
        let size = self.size();
        if size > limit {
            return Err(Error::TooLarge { size, limit });
        }
        let invalid = |what: String| Err(Error::InvalidTransaction { what });
        let mut seen = HashSet::new();
        for operation in &self.operations {
            let key = operation.key();
            if key.is_empty() || key.len() > usize::from(u16::MAX) {
                return invalid(format!("a key of {} bytes", key.len()));
            }
            if self.operations.len() > 1 && !seen.insert(key) {
                return invalid(format!("{key} is written twice"));
            }
        }
        Ok(())
    }
}

impl Operation {
    pub fn key(&self) -> &Arc<str> {
        let (Operation::Put { key, .. } | Operation::Delete { key }) = self;
        key
    }

    fn size(&self) -> usize {
        match self {
            Operation::Put { key, value, .. } => key.len() + value.len(),
            Operation::Delete { key } => key.len(),
        }
    }
}

impl Compare {
    /// The key, and the revision it must have been changed at last; zero for an absent key.
    pub(crate) fn expectation(&self) -> (&Arc<str>, Revision) {
        match self {
            Compare::ModRevision { key, revision } => (key, *revision),
            Compare::Absent { key } => (key, Revision(0)),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Committed {
    /// The revision of this transaction; the store's where it changed nothing.
    pub revision: Revision,
    /// How many keys it deleted: deleting an absent key is no change.
    pub deleted: usize,
}

/// For metrics and for `ferry status`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// Bytes on disk.
    pub size: u64,
    /// Of these, bytes that are still needed for current keys and kept history.
    pub in_use: u64,
    /// Size in bytes above which puts are refused; zero if the engine does not report it.
    pub quota: u64,
    /// Number of current keys; zero if the engine does not report it.
    pub keys: u64,
    /// Puts are refused because space is exhausted: etcd's alarm NOSPACE.
    pub no_space: bool,
}
