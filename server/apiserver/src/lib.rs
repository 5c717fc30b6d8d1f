//! The API server's HTTP: filters, verbs, negotiation, discovery, OpenAPI. The registry does everything that concerns
//! objects.
//!
//! No kind has a route here: one grammar parses the URL ([`request_info`]), and the rows of the table say what exists.
//! Every verb has one action for all kinds; actions of a single resource are rows of [`actions`].
//!
//! Start reading at [`filters::handle`], then [`verbs`], then [`respond`]. [`run`] starts and stops a server.

pub mod access;
mod account_keys;
mod actions;
mod address_repair;
pub mod admission;
pub mod aggregation;
pub mod api;
mod auditing;
pub mod body;
pub mod bootstrap;
pub mod certificates;
mod chunked_copy;
mod claim_authorization;
mod component_statuses;
mod compress;
pub mod config;
mod connection_options;
mod continue_token;
mod definitions;
mod documents;
mod escalation;
mod fair_limit;
pub mod filters;
pub mod flow_control;
mod follow;
mod founding;
pub mod given_files;
mod headers;
pub mod health;
pub mod host_images;
mod http2;
pub mod in_process;
mod indent;
mod kubelet_identity;
mod list_body;
mod long_running;
mod malformed_requests;
pub mod metrics;
mod negotiate;
pub mod node_connection;
mod paths;
mod policy;
mod poll_when_woken;
mod proxied_links;
mod proxied_pages;
mod request;
mod request_body;
mod request_info;
mod resource_metrics;
mod respond;
mod response_memory;
pub mod run;
mod run_to_completion;
pub mod served;
pub mod server;
mod server_addresses;
mod signer_authorization;
mod slow_reader;
mod subresources;
mod table;
mod tokens;
mod trace;
mod trace_peers;
mod ui;
mod usage_samples;
mod verbs;
pub mod version;
mod websocket;

pub use api::{Api, Limits, Parts, RuntimeConfig};
pub use ferry_registry::settings::StorageFormat;
pub use in_process::InProcess;
