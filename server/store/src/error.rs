use std::sync::Arc;

use crate::{KeyValue, Revision};

pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What a store can answer instead of a result; the layer above maps these to a Status.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// A comparison of the transaction did not hold. `current` is the key as it is now.
    #[error("{key} does not match the transaction's comparison")]
    Conflict { key: Arc<str>, current: Option<KeyValue> },

    /// The history asked for has been compacted away.
    #[error("revision {requested} has been compacted; the oldest kept is {compacted}")]
    Compacted { requested: Revision, compacted: Revision, current: Revision },

    /// The revision asked for has not happened yet.
    #[error("revision {requested} is in the future; the store is at {current}")]
    FutureRevision { requested: Revision, current: Revision },

    /// The quota or the disk is full. Reads and deletes go on; nothing is lost.
    #[error("no space for this write: {what}")]
    NoSpace { what: String },

    /// One transaction is larger than the store takes.
    #[error("a transaction of {size} bytes exceeds the limit of {limit}")]
    TooLarge { size: usize, limit: usize },

    /// A transaction no engine can carry out, such as one that writes a key twice.
    #[error("malformed transaction: {what}")]
    InvalidTransaction { what: String },

    /// The store could not be reached or could not finish. A commit that ends so may or may not
    /// have happened: compare and set again to find out.
    #[error("cannot {what}: {source}")]
    Unavailable { what: String, source: Arc<dyn std::error::Error + Send + Sync> },

    /// What was stored is not what is read back.
    #[error("corrupt: {what}")]
    Corrupt { what: String },
}

impl Error {
    pub fn unavailable(
        what: impl Into<String>,
        source: impl std::error::Error + Send + Sync + 'static,
    ) -> Self {
        Error::Unavailable { what: what.into(), source: Arc::new(source) }
    }

    pub fn corrupt(what: impl Into<String>) -> Self {
        Error::Corrupt { what: what.into() }
    }
}
