//! Admission: plugins that mutate a write, then plugins that validate it. One refusal ends the request.
//!
//! A plugin is one file in `plugins/` (or a folder next to it, for large ones such as webhooks) and one row in
//! [`plugins::TABLE`]. It receives the object, the object that it replaces, and the user. It reads the cluster's state
//! from the registry's caches and knows no HTTP.
//!
//! Start reading at [`chain`].

mod certificate_request;
pub mod chain;
pub mod configuration;
mod expressions;
mod initializers;
mod lookup;
mod matching;
pub mod metrics;
pub mod plugins;
mod policy;
pub mod reinvocation;
pub mod service_address;
pub mod usage_history;
mod versions;
mod webhook;

pub use chain::{Chain, Plugin, Request};
pub use configuration::Configuration;
pub use reinvocation::Reinvocation;
pub use webhook::conversion;
