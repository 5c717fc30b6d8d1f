//! A whole cluster in one process, and further nodes: `ferry up`, `down`, `status`, `server`, `agent`.
//!
//! ```text
//! up ──spawns──► server ─┬─ control_plane: store, API server, controllers, scheduler
//!                        ├─ runtime:       containerd, found or started
//!                        └─ node:          kubelet, CNI, proxy, DNS    ◄── agent starts only these
//! ```
//!
//! Nothing but wiring and the host: every part is a client of the API and can run alone under its own
//! role. What a cluster leaves on the host has a name that derives from its data directory ([`layout`]),
//! so several can live on one machine and `down` finds all of its own and nothing else.
//!
//! Start reading at [`server`].

pub mod address;
pub mod agent;
pub mod control_plane;
pub mod demo;
pub mod down;
pub mod facts;
pub mod founding;
mod host_images;
pub mod image;
mod invocation;
pub mod join;
pub mod kubeconfig;
pub mod layout;
pub mod metrics_ports;
pub mod node;
pub mod options;
pub mod output;
pub mod own_metrics;
pub mod parts;
pub mod ports;
mod programs;
pub mod ranges;
pub mod rights;
pub mod rotation;
pub mod security;
pub mod server;
pub mod status;
mod storage;
pub mod token;
pub mod up;
