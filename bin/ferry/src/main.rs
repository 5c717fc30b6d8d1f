//! One binary, one subcommand per role. Nothing but wiring: flags in, a role's `run` out.

mod roles;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "ferry", version, about = "A complete Kubernetes in one binary")]
struct Cli {
    #[command(subcommand)]
    role: Role,
}

#[derive(Subcommand)]
enum Role {
    /// Serve the Kubernetes API from an embedded store or etcd
    #[command(name = "apiserver")]
    ApiServer(roles::apiserver::Flags),
    /// Save the whole store to a file, or make a store out of one
    Snapshot(roles::snapshot::Flags),
}

fn main() -> anyhow::Result<()> {
    let cli = Cli::parse();
    tracing_subscriber::fmt()
        .with_env_filter(
            tracing_subscriber::EnvFilter::try_from_env("FERRY_LOG").unwrap_or_else(|_| "info".into()),
        )
        .with_writer(std::io::stderr)
        .init();
    match cli.role {
        Role::ApiServer(flags) => roles::apiserver::run(flags),
        Role::Snapshot(flags) => roles::snapshot::run(flags),
    }
}
