//! The kubelet: runs the pods that are bound to this node on a container runtime, and reports their status to the API.
//!
//! ```text
//! API server ─┐                          ┌─ cgroups, volumes (linux)
//!             ├─▶ Pods ─▶ one Worker a pod┼─ sandbox, containers (CRI)
//! manifests ──┘              ▲            ├─ probes, hooks
//!                            │            └─ status ─▶ Writer ─▶ API server
//!          runtime events, probes, objects
//! ```
//!
//! It is an API client and knows no store, server or other component. It does not decide where a pod runs, only whether
//! the pod can run on this node. It does not set up pod networks: the runtime calls CNI for that.
//!
//! Start reading at [`worker`], the life of one pod; [`plan`] decides its next step. [`run()`] starts all parts.

pub mod admit;
pub mod backoff;
mod blocking;
pub mod cgroups;
pub mod config;
pub mod config_file;
pub mod consumption;
pub mod context;
pub mod cpu_manager;
pub mod cri;
pub mod device_plugins;
pub mod devices;
mod directory_watch;
pub mod downward;
pub mod env;
pub mod events;
pub mod eviction;
mod grpc_socket;
pub mod hooks;
pub mod images;
pub mod logs;
pub mod metrics;
pub mod node;
pub mod objects;
pub mod orphans;
pub mod plan;
pub mod plugins;
pub mod pod;
pub mod pod_resources;
pub mod pods;
pub mod probes;
pub mod resize;
pub mod resources;
mod run;
pub mod runtime;
pub mod server;
pub mod sources;
pub mod status;
pub mod streaming;
pub mod volumes;
pub mod worker;

pub use config::Config;
pub use run::{Error, run};

/// The version of Kubernetes this kubelet speaks.
pub const KUBERNETES_VERSION: &str = "v1.36.4+ferry";
