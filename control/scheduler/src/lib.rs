//! The scheduler: `ferry scheduler`. It selects a node for every pod that has none.
//!
//! ```text
//! informers → inbox → ┌ snapshot (nodes and their pods, in columns)
//!                     ├ queue    (active, backoff, unschedulable, gated)
//!                     └ nominated (pods with a nominated node)
//!                          │ one pod at a time
//!                          ▼
//!            prepare → filter → score → select → assume → bind (concurrent with the next pod)
//!                          └ no node fits → preemption → condition, event
//! ```
//!
//! Every decision is made by a plugin: one file and one row of [`plugins::PLUGINS`], under upstream's names, pure over the
//! pod, the snapshot and the index of a node in it. An event requeues only those pods for which one of the rejecting
//! plugins says that the event may help.
//!
//! This crate knows no server, controller or kubelet: it reads through informers and acts through bindings, status patches
//! and deletions, with its own identity. It runs alone, in one process with the server, or with upstream's API server.
//!
//! Start reading at [`cycle`], then [`plugins`], then `scheduler`, the loop around them.

mod assumed;
mod config;
pub mod configuration_file;
mod consult;
pub mod cycle;
pub mod devices;
pub mod extender;
pub mod metrics;
pub mod nominated;
mod numbers;
pub mod peers;
pub mod plugins;
pub mod pod_info;
pub mod pod_resources;
pub mod policy_file;
pub mod profile;
pub mod queue;
pub mod resources;
mod scheduler;
pub mod snapshot;
pub mod symbols;
mod watched;
mod write;

pub use config::{Config, ConfigError};
pub use profile::{Profile, ScoringStrategy};
pub use queue::Backoff;

use std::sync::Arc;

use ferry_client::{CancellationToken, leader};

/// Why the scheduler ended other than by being told to.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Extender(#[from] extender::ExtenderError),
    #[error(transparent)]
    Leader(#[from] leader::LeaderError),
}

/// Schedules until `shutdown`, as leader if configured so.
pub async fn run(client: kube::Client, config: Config, shutdown: CancellationToken) -> Result<(), RunError> {
    config.check()?;
    let mut extenders = Vec::new();
    for settings in &config.extenders {
        extenders.push(Arc::new(extender::Extender::connect(settings.clone()).await?));
    }
    match config.leader_election.clone() {
        None => scheduler::run(client, config, extenders, shutdown).await,
        Some(election) => {
            leader::run(client.clone(), election, shutdown, |leading| {
                scheduler::run(client, config, extenders, leading)
            })
            .await?;
        }
    }
    Ok(())
}
