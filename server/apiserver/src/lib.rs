//! The API server: HTTP only. Filters, verbs, negotiation, discovery, OpenAPI; everything about objects
//! is the registry's.
//!
//! No kind has a route or a handler here: one grammar reads the URL ([`request_info`]), one function finds
//! the verb ([`verbs`]), and the rows of the table say what exists.
//!
//! Start reading at [`filters::handle`], then [`verbs`], then [`respond`].

pub mod access;
mod account_keys;
pub mod admission;
pub mod aggregation;
mod answer_memory;
pub mod api;
mod auditing;
pub mod body;
pub mod bootstrap;
pub mod certificates;
mod compress;
mod connection_options;
mod continue_token;
mod definitions;
mod documents;
mod dormant;
mod escalation;
pub mod filters;
mod follow;
pub mod given_files;
mod headers;
pub mod health;
mod http2;
pub mod in_process;
mod list_body;
mod metrics;
mod negotiate;
mod newcomers;
pub mod node_connection;
mod paths;
mod pieces;
mod policy;
mod proxied_links;
mod request;
mod request_body;
mod request_info;
mod resource_metrics;
mod respond;
pub mod run;
pub mod served;
pub mod server;
mod server_addresses;
mod shares;
mod slow_reader;
mod subresources;
mod table;
mod to_its_end;
mod tokens;
mod trace;
mod unheard;
mod usage_samples;
mod verbs;
pub mod version;
mod websocket;

pub use api::{Api, Limits, Parts, RuntimeConfig};
pub use in_process::InProcess;
