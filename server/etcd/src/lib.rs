//! etcd's v3 API over the embedded store: what a client of etcd asks over gRPC, and the few pages that etcd serves over
//! plain HTTP on the same port. There is one member, and nothing is replicated.
//!
//! This room knows no kind: keys are text, values are bytes. What may be stored, and for how long, the store decides.
//!
//! Start reading at [`server`], which listens; `service.rs` names every method; `kv.rs`, `watch.rs`, `lease.rs` and
//! `maintenance.rs` answer them; `bolt.rs` writes the file that `etcdctl snapshot restore` takes.

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
