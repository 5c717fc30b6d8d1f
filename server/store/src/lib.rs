//! Revisioned bytes with etcd's semantics: one global revision, compare-and-set transactions, ranges at a revision,
//! watches from a revision, compaction, time to live.
//!
//! Two engines implement one trait and pass one contract suite (`tests/store/contract.rs`): [`Embedded`], a directory on
//! this machine, and [`Etcd`], an etcd cluster. [`Encrypted`] wraps either.
//!
//! This crate knows no kind and no codec: a key is a path, a value is bytes. It makes no access decisions and keeps no
//! values in memory; the watch cache does.
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
