//! Every verb of the API once, over `Object`: create, get, list, watch, update, patch, delete. The watch cache serves all
//! reads; a strategy per kind contains the differences.
//!
//! Outside `kinds/` no code uses the type of a kind, so built-in kinds and custom resources use the same code. This crate
//! knows no HTTP, authentication or authorization; the caller passes admission as a hook.
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
