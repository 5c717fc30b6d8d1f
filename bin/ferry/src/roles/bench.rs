//! `ferry bench`: what this machine gets out of Ferry, measured in the real parts.

use clap::{Args, Subcommand};

use super::bench_scheduler;

#[derive(Args)]
pub struct Flags {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Pods bound per second among many nodes that no kubelet stands behind
    Scheduler(bench_scheduler::Flags),
}

pub fn run(flags: Flags) -> anyhow::Result<()> {
    match flags.what {
        What::Scheduler(flags) => bench_scheduler::run(&flags),
    }
}
