//! Revisioned bytes with etcd's semantics: one global revision, compare-and-set transactions,
//! ranges at a revision, watch from a revision, compaction, time to live.
//!
//! Two engines stand behind one trait and one contract suite (`tests/store/contract.rs`):
//! [`Embedded`], a directory of this machine, and [`Etcd`], a cluster elsewhere. [`Encrypted`] goes over either.
//!
//! This room knows no kind and no codec: a key is a path, a value is bytes. It decides nothing
//! about who may read or write, and holds no copy of values in memory: the watch cache does.
//!
//! Start reading at [`Store`], then `embedded/mod.rs` or `etcd/mod.rs`.

pub mod embedded;
pub mod encryption;
mod error;
pub mod etcd;
pub mod snapshot;
mod span;
mod store;
mod watch;

pub use embedded::Embedded;
pub use encryption::Encrypted;
pub use error::{Error, Result};
pub use etcd::Etcd;
pub use span::Span;
pub use store::{
    Committed, Compare, Durability, Found, KeyValue, Operation, Page, Range, Revision, Store, Txn, Usage,
};
pub use watch::{Batch, Event, EventKind, Progress, Watch};
