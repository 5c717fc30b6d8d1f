//! `ferry bench`: what this machine gets out of Ferry, measured in the real parts.

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

use clap::{Args, Subcommand, ValueEnum};

#[derive(Args)]
pub struct Flags {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// CPU of an API server for each of a client's requests
    Api(api::Flags),
    /// What the control plane uses with thousands of nodes, whose kubelets are simulated, and pods on them
    Cluster(cluster::Flags),
    /// CPU and memory of the controllers while a large Deployment comes and goes
    Controllers(controllers::Flags),
    /// Memory and CPU of an API server with many CustomResourceDefinitions, and what one more costs
    Definitions(definitions::Flags),
    /// CPU of an API server for each request about custom objects, beside built-in ones of the same content
    Objects(objects::Flags),
    /// Pods bound per second among many nodes that no kubelet stands behind
    Scheduler(scheduler::Flags),
    /// Whether anything grows while workloads come and go for hours
    Soak(soak::Flags),
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    Table,
    Json,
}

pub fn run(flags: Flags) -> anyhow::Result<()> {
    match flags.what {
        What::Api(flags) => api::run(&flags),
        What::Cluster(flags) => cluster::run(&flags),
        What::Controllers(flags) => controllers::run(&flags),
        What::Definitions(flags) => definitions::run(&flags),
        What::Objects(flags) => objects::run(&flags),
        What::Scheduler(flags) => scheduler::run(&flags),
        What::Soak(flags) => soak::run(&flags),
    }
}
