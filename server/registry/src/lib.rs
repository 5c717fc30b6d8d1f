//! Every verb of the API once, over `Object`: create, get, list, watch, update, patch, delete. The
//! watch cache serves all reads; a strategy per kind adds what differs.
//!
//! Outside `kinds/` nothing here names a kind, so built-in and custom resources take one path. HTTP,
//! authentication and authorization are unknown here; admission is a hook that the caller hands in.
//!
//! Start reading at [`registry`], then `verbs/`, then [`strategy`].

pub mod cache;
mod change;
pub mod columns;
pub mod conversion;
pub mod custom_resources;
pub mod encryption;
pub mod kinds;
pub mod metadata;
pub mod registry;
pub mod settings;
pub mod strategy;
pub mod verbs;

pub use registry::{Registry, Resource};
pub use settings::Settings;
pub use verbs::{Admission, Annotation, Call, Operation, Reservation, ResponseObject};
