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
//! - [`mod@connect`]: a [`Client`] over HTTPS or in-process. Components cannot distinguish them; their identity is part of
//!   the configuration. Each request carries the current span. [`coalesce`]: combines the frames of simultaneous requests
//!   in one write.
//! - [`mod@kubeconfig`]: kubeconfig files. [`tls`]: certificate authorities and client certificates. kubectl uses both.
//! - [`informer`]: shared list and watch with typed, indexed stores.
//! - [`controller`]: builds a controller over informers. [`queue`], [`reconcile`], [`expectations`]: level-triggered
//!   processing of keys.
//! - [`spans`]: sends the spans of a separate process to the server.
//! - [`undecoded`]: writes whose response is not decoded. [`ConsistencyStore`]: writes that the informer does not
//!   show yet.
//! - [`metrics`]: metrics of all of these. [`leader`]: leader election. [`events`]: Events, as `kubectl describe` shows them.
//!
//! This crate knows no controller, server or node, and no kinds except those that it writes itself (Lease, Event).
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
