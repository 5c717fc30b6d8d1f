//! The controllers: `ferry controller-manager`.
//!
//! Each controller compares the actual state with the desired state and writes the difference through the API. It consists
//! of one file and one row of [`table`]: its types, a pure `plan` over objects and the time, an `apply` that acts, and its
//! tests. Shared code has its own files: [`pods`] (interpretation of a pod's state), [`ownership`] (adoption and release),
//! [`owned_pods`] (creation and deletion with expectations), [`history`], [`services`], [`slices`].
//!
//! This crate knows no server and no store. It reads through informers and writes through a client with its own identity
//! and permissions. It runs alone, in one process with the server, or with upstream's API server.
//!
//! Start reading at [`table`](mod@table), then `replica_set`, the simplest of the large controllers.

pub mod attach_detach;
pub mod bootstrap_tokens;
pub mod certificates;
pub mod cidr;
pub mod cluster_role_aggregation;
pub mod config;
mod context;
pub mod cron_job;
pub mod cron_schedule;
pub mod daemon_set;
pub mod deployment;
pub mod device_taint_eviction;
pub mod discovery;
pub mod disruption;
pub mod endpoint_slice;
pub mod endpoint_slice_mirroring;
pub mod endpoints;
pub mod ephemeral_volume;
pub mod garbage_collector;
pub mod history;
pub mod horizontal_pod_autoscaler;
pub mod job;
pub mod legacy_token_cleaner;
pub mod local_volume;
pub mod metrics;
pub mod namespace;
pub mod node_affinity;
pub mod node_ipam;
pub mod node_lifecycle;
pub mod owned_pods;
pub mod ownership;
pub mod persistent_volume;
pub mod pod_gc;
pub mod pods;
pub mod policy_status;
pub mod replica_set;
pub mod resource_claim;
pub mod resource_quota;
pub mod root_ca;
pub mod service_account;
pub mod service_account_token;
pub mod service_cidr;
pub mod services;
pub mod slices;
pub mod slow_start;
pub mod stateful_set;
pub mod storage_protection;
pub mod table;
pub mod taint_eviction;
pub mod taints;
pub mod template_hash;
#[cfg(test)]
mod testing;
mod topology_hints;
mod trigger_times;
pub mod ttl;
pub mod ttl_after_finished;
pub mod volume_expansion;

pub use config::{Config, ConfigError, SigningCa};
pub use context::Accounts;

use std::sync::Arc;

use ferry_client::leader;
use ferry_client::{CancellationToken, Client};

/// Why the controllers ended other than by being told to.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Leader(#[from] leader::LeaderError),
}

/// Runs the chosen controllers until `shutdown`, as leader if configured so, all with the one
/// identity of `client`, which must be allowed all that they do.
pub async fn run(client: Client, config: Config, shutdown: CancellationToken) -> Result<(), RunError> {
    let shared = client.clone();
    run_as(client, Arc::new(move |_| shared.clone()), config, shutdown).await
}

/// The same, each controller writing as a ServiceAccount of its own, so that none can do more
/// than its role allows. `client` reads for all of them.
pub async fn run_as(
    client: Client,
    accounts: Accounts,
    config: Config,
    shutdown: CancellationToken,
) -> Result<(), RunError> {
    config.check()?;
    let rows = config.chosen()?;
    match config.leader_election.clone() {
        None => context::run(client, accounts, config, rows, shutdown).await,
        Some(election) => {
            let lead = |leading| context::run(client.clone(), accounts, config, rows, leading);
            leader::run(client.clone(), election, shutdown, lead).await?;
        }
    }
    Ok(())
}
