//! The basis of every component: a client of the Kubernetes API, and the parts of a controller.
//!
//! ```text
//! store revision → watch → Informer (one per kind per process, indexed)
//!                             │ handlers turn events into keys
//!                             ▼
//!                          Queue (a key is never in two workers)
//!                             │
//!                             ▼
//!                      Controller::run(reconcile)  → writes through Client
//! ```
//!
//! - [`mod@connect`]: a [`Client`] over HTTPS or into the same process. Components cannot tell
//!   which; their identity is configuration. Each request carries the current span.
//!   [`coalesce`]: requests of one moment are one write.
//! - [`mod@kubeconfig`]: kubeconfig files. [`tls`]: whom a client trusts and what it shows. kubectl uses these two as well.
//! - [`informer`]: shared list+watch with typed, indexed stores.
//! - [`controller`]: builds a controller over informers. [`queue`], [`reconcile`], [`expectations`]: level-triggered
//!   work on keys.
//! - [`spans`]: what a process of its own did, told to the server.
//! - [`undecoded`]: writes whose response is not decoded. [`ConsistencyStore`]: writes that the informer does not
//!   show yet.
//! - [`metrics`]: what all of these count. [`leader`]: one of several leads. [`events`]: what users see in `kubectl describe`.
//!
//! This room knows no controller, no server and no node, and no kind beyond those it writes
//! itself (Lease, Event).
//!
//! Start reading at [`informer`](mod@informer), then [`controller`](mod@controller).

pub mod coalesce;
pub mod connect;
mod consistency;
pub mod controller;
pub mod error;
pub mod events;
pub mod expectations;
pub mod informer;
pub mod kubeconfig;
pub mod leader;
pub mod metrics;
pub mod name;
pub mod propagate;
pub mod queue;
pub mod reconcile;
mod servers;
pub mod spans;
#[cfg(test)]
mod test_server;
pub mod tls;
pub mod trusted_certificates;
pub mod undecoded;
pub mod unverified_tls;

pub use connect::{ConnectError, Kubeconfig, connect, over, read_kubeconfig};
pub use consistency::ConsistencyStore;
pub use error::{Attempt, Error};
pub use events::{EventType, Recorder};
pub use expectations::Expectations;
pub use informer::{Event, Index, Informer, Informers, Metadata, Selection};
pub use kube::{self, Api, Client};
pub use name::NamespacedName;
pub use queue::{Backoff, Queue};
pub use reconcile::Outcome;
pub use tokio_util::sync::CancellationToken;
