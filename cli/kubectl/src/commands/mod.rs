//! The commands, one file each; a group of subcommands is a folder.

mod api_resources;
mod apply;
mod attach;
mod auth;
mod certificate;
mod cluster_info;
mod completion;
mod config;
mod cp;
mod create;
mod debug;
mod delete;
mod describe;
mod diff;
mod edit;
pub mod events;
mod exec;
mod explain;
mod expose;
mod get;
mod help;
mod kuberc;
mod kustomize;
mod logs;
mod metadata;
mod node;
mod options;
mod overrides;
mod patch;
mod plugin;
mod port_forward;
mod proxy;
mod recreate;
mod replace;
pub mod rollout;
mod run;
mod scale;
mod set;
mod top;
mod version;
mod wait;

use crate::command::Command;

pub const BEGINNER: &str = "Basic Commands (Beginner)";
pub const INTERMEDIATE: &str = "Basic Commands (Intermediate)";
pub const DEPLOY: &str = "Deploy Commands";
pub const CLUSTER: &str = "Cluster Management Commands";
pub const TROUBLESHOOT: &str = "Troubleshooting and Debugging Commands";
pub const ADVANCED: &str = "Advanced Commands";
pub const SETTINGS: &str = "Settings Commands";
pub const OTHER: &str = "Other Commands";

/// The command table.
pub const ROOT: &[&Command] = &[
    &create::COMMAND,
    &expose::COMMAND,
    &run::COMMAND,
    &set::COMMAND,
    &explain::COMMAND,
    &get::COMMAND,
    &edit::COMMAND,
    &delete::COMMAND,
    &rollout::COMMAND,
    &scale::SCALE,
    &scale::AUTOSCALE,
    &certificate::COMMAND,
    &cluster_info::COMMAND,
    &top::COMMAND,
    &node::cordon::CORDON,
    &node::cordon::UNCORDON,
    &node::drain::COMMAND,
    &node::taint::COMMAND,
    &describe::COMMAND,
    &logs::COMMAND,
    &attach::COMMAND,
    &exec::COMMAND,
    &port_forward::COMMAND,
    &proxy::COMMAND,
    &cp::COMMAND,
    &auth::COMMAND,
    &debug::COMMAND,
    &events::COMMAND,
    &diff::COMMAND,
    &apply::COMMAND,
    &patch::COMMAND,
    &replace::COMMAND,
    &wait::COMMAND,
    &kustomize::COMMAND,
    &metadata::LABEL,
    &metadata::ANNOTATE,
    &completion::COMMAND,
    &api_resources::API_RESOURCES,
    &api_resources::API_VERSIONS,
    &config::COMMAND,
    &kuberc::COMMAND,
    &plugin::COMMAND,
    &options::COMMAND,
    &version::COMMAND,
    &completion::COMPLETE,
    &help::HELP,
    &help::ALPHA,
];
