//! etcd's v3 API over the embedded store: the gRPC services, and the few pages that etcd serves over plain HTTP on the same
//! port. There is one member, and no replication.
//!
//! This crate knows no kind: keys are text, values are bytes. The store limits sizes and expires keys.
//!
//! Start reading at [`server`], which listens; `service.rs` lists every method; `kv.rs`, `watch.rs`, `lease.rs` and
//! `maintenance.rs` implement them; `bolt.rs` writes the snapshot file for `etcdctl snapshot restore`.

mod bolt;
mod failure;
mod kv;
mod lease;
mod lease_file;
mod maintenance;
mod overlaps;
mod pages;
pub mod server;
mod service;
mod watch;

pub use maintenance::VERSION;
pub use server::{Config, Listen, Member, Running, Tls, start};
