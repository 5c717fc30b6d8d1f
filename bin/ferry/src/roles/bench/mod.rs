//! `ferry bench`: load for the real parts, and what they use under it on this machine.

mod api;
mod cluster;
mod controllers;
mod definitions;
mod load;
mod objects;
mod part;
mod requests;
mod scheduler;
mod soak;
mod workloads;

use anyhow::Context;
use clap::{Args, Subcommand, ValueEnum};
use serde::Serialize;

#[derive(Args)]
pub struct Flags {
    #[command(subcommand)]
    what: BenchCommand,
}

#[derive(Subcommand)]
enum BenchCommand {
    /// Measure the API server's CPU per request
    Api(api::Flags),
    /// Measure the control plane with thousands of simulated kubelets and their pods
    Cluster(cluster::Flags),
    /// Measure CPU and memory of the controllers while a large Deployment is created and deleted
    Controllers(controllers::Flags),
    /// Measure memory and CPU of an API server with many CustomResourceDefinitions, and the cost of one more
    Definitions(definitions::Flags),
    /// Compare the API server's CPU per request for custom objects and built-in ones with the same fields
    Objects(objects::Flags),
    /// Measure the pods bound per second on many simulated nodes
    Scheduler(scheduler::Flags),
    /// Check that no resource usage grows while workloads are created and deleted for hours
    Soak(soak::Flags),
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    Table,
    Json,
}

pub fn run(flags: Flags) -> anyhow::Result<()> {
    match flags.what {
        BenchCommand::Api(flags) => api::run(&flags),
        BenchCommand::Cluster(flags) => cluster::run(&flags),
        BenchCommand::Controllers(flags) => controllers::run(&flags),
        BenchCommand::Definitions(flags) => definitions::run(&flags),
        BenchCommand::Objects(flags) => objects::run(&flags),
        BenchCommand::Scheduler(flags) => scheduler::run(&flags),
        BenchCommand::Soak(flags) => soak::run(&flags),
    }
}

/// Measures, then prints what was measured: as JSON, or by `table`.
fn report<T: Serialize>(
    output: Output,
    measure: impl Future<Output = anyhow::Result<Vec<T>>>,
    table: impl FnOnce(Vec<T>),
) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Runtime::new().context("start the runtime")?;
    let all = runtime.block_on(measure)?;
    match output {
        Output::Json => println!("{}", serde_json::json!(all)),
        Output::Table => table(all),
    }
    Ok(())
}
