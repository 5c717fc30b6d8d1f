//! One binary, one subcommand per role. Nothing but wiring: flags in, a role's `run` out.
//!
//! Called under another name it is that program: `kubectl`, one of the CNI plugins that a container runtime starts, or
//! one of upstream's programs (`program.rs`).

mod allocator;
mod cluster;
mod data_version;
mod program;
mod progress;
mod roles;
mod settings;
mod usage;

#[global_allocator]
static ALLOCATOR: allocator::Mimalloc = allocator::Mimalloc;

use std::ffi::OsString;
use std::io::IsTerminal;
use std::process::ExitCode;

use anyhow::Context;
use clap::{CommandFactory, Parser, Subcommand};

#[derive(Parser)]
#[command(
    name = "ferry",
    version,
    about = "A complete Kubernetes in one binary",
    after_help = "Examples:\n  ferry demo                        a cluster, and one command's life on it\n  ferry up                          a cluster in the background\n  ferry kubectl get nodes           kubectl, with nothing installed\n  ferry image load nginx.tar        images for a machine without a registry\n  ferry down --purge                no process, interface, rule, mount, cgroup or data is left"
)]
struct Cli {
    #[command(subcommand)]
    role: Role,
}

#[derive(Subcommand)]
enum Role {
    /// Start a one-node cluster in the background and wait until it is ready
    #[command(
        after_help = "Examples:\n  ferry up\n  ferry up --data-dir /srv/two --port 7443       a second cluster on this machine\n  ferry up --config /etc/ferry/ferry.yaml        options in a file, named like the flags\n  FERRY_NODE_NAME=edge-1 ferry up                or in the environment"
    )]
    Up(Box<cluster::options::ServerOptions>),
    /// Show one command's life from end to end, on a cluster that is brought up if none runs
    #[command(
        after_help = "Examples:\n  ferry demo                        also without the internet\n  ferry demo --keep                 leaves the namespace ferry-demo\n  ferry demo --image httpd          another web server\n  ferry demo -- --port 7443         options of `ferry up`"
    )]
    Demo(cluster::demo::Flags),
    /// Stop the cluster and remove what it made on this host
    #[command(
        after_help = "Examples:\n  ferry down                        data and images stay; `ferry up` goes on with them\n  ferry down --purge                nothing stays"
    )]
    Down(cluster::down::Flags),
    /// Show what runs, what it uses and what is wrong
    #[command(after_help = "Examples:\n  ferry status\n  ferry status -o json | jq .problems")]
    Status(cluster::status::Flags),
    /// Look for what is open that should not be
    Check(cluster::security::Flags),
    /// Run a one-node cluster in the foreground
    #[command(
        after_help = "Examples:\n  ferry server --config /etc/ferry/ferry.yaml       as the systemd unit does\n  ferry server --datastore-endpoint http://E1:2379,http://E2:2379,http://E3:2379"
    )]
    Server(Box<cluster::options::ServerOptions>),
    /// Serve the Kubernetes API from an embedded store or etcd
    #[command(name = "apiserver")]
    ApiServer(Box<roles::apiserver::Alone>),
    /// Serve etcd's API from an embedded store
    Etcd(Box<roles::etcd::Flags>),
    /// Run the control loops against an API server
    ControllerManager(roles::controller_manager::Flags),
    /// Bind pods to nodes
    Scheduler(roles::scheduler::Flags),
    /// Run pods on this host through a container runtime
    Kubelet(roles::kubelet::Flags),
    /// Program Services into this host's kernel
    Proxy(roles::proxy::Flags),
    /// Answer names of Services and pods
    Dns(roles::dns::Flags),
    /// Work with any Kubernetes from the command line
    #[command(disable_help_flag = true)]
    Kubectl {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        words: Vec<OsString>,
    },
    /// Measure what this machine gets out of Ferry
    Bench(roles::bench::Flags),
    /// Show what happened when, and because of what
    #[command(
        after_help = "Examples:\n  ferry trace --last\n  ferry trace pod/web-0 -n shop              why it is not running\n  ferry trace -- kubectl run web --image=nginx   followed as it happens"
    )]
    Trace(Box<ferry_timeline::Flags>),
    /// Say why an object was deleted, evicted, restarted, scaled or changed, by whom, and because of what
    Why(Box<ferry_timeline::why::Flags>),
    /// Open the cluster's page in a browser, signed in as you
    #[command(
        after_help = "Examples:\n  ferry ui\n  ferry ui --no-open                      only print the link\n  ferry ui --kubeconfig alice.kubeconfig  as somebody else"
    )]
    Ui(roles::ui::Flags),
    /// Run a further node of a cluster
    #[command(
        after_help = "Examples:\n  ferry token create                                      on the server\n  ferry agent --server https://HOST:6443 --token TOKEN    on the new node"
    )]
    Agent(cluster::agent::Flags),
    /// Let nodes join
    #[command(
        after_help = "Examples:\n  ferry token create\n  ferry token create --help       how long it counts, and for whom"
    )]
    Token(cluster::token::Flags),
    /// Bring images into a node without a registry
    #[command(
        after_help = "Examples:\n  docker save nginx | ferry image load -\n  ferry image load nginx.tar\n  ferry image ls"
    )]
    Image(cluster::image::Flags),
    /// Save the whole store to a file, or make a store out of one
    #[command(
        after_help = "Examples:\n  ferry snapshot save /backup/today.snapshot                             also while it runs\n  ferry snapshot restore /backup/today.snapshot --data-dir /srv/new"
    )]
    Snapshot(roles::snapshot::Flags),
    /// Print the completion script of a shell
    #[command(
        after_help = "Examples:\n  ferry completion bash > /etc/bash_completion.d/ferry\n  source <(ferry completion zsh)"
    )]
    Completion(roles::manual::CompletionFlags),
    /// Write a manual page for each command
    #[command(hide = true)]
    Man(roles::manual::ManFlags),
}

impl Role {
    /// Not done after a moment, and beside others on the machine.
    fn lives_long(&self) -> bool {
        use Role::*;
        matches!(
            self,
            Server(_)
                | Agent(_)
                | ApiServer(_)
                | Etcd(_)
                | ControllerManager(_)
                | Scheduler(_)
                | Kubelet(_)
                | Proxy(_)
                | Dns(_)
        )
    }
}

fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    let called = arguments.first().map(std::path::Path::new).and_then(|path| path.file_name()?.to_str());
    if called == Some("kubectl") {
        return ferry_kubectl::main(arguments.into_iter().skip(1));
    }
    if let Some(code) = ferry_cni::plugin::main_if_called_as_plugin() {
        return code;
    }
    // kubectl reads its own words; ours would only get in the way of its flags.
    if arguments.get(1).is_some_and(|word| word == "kubectl") {
        return ferry_kubectl::main(arguments.into_iter().skip(2));
    }
    let arguments = match called.and_then(program::role) {
        Some(role) => match program::arguments(role, &arguments[1..]) {
            program::Call::Version(words) => {
                println!("{words}");
                return ExitCode::SUCCESS;
            }
            program::Call::Run(arguments) => arguments,
        },
        None => arguments,
    };
    let arguments = match settings::complete(&Cli::command(), arguments, std::env::vars_os()) {
        Ok(arguments) => arguments,
        Err(error) => {
            eprintln!("ferry: {error:#}");
            return ExitCode::FAILURE;
        }
    };
    match run(Cli::parse_from(&arguments), &arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ferry: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// The options of a server that was started so, by flags, environment and file.
fn server_options(words: cluster::security::Words) -> anyhow::Result<cluster::options::ServerOptions> {
    let environment = words.environment.into_iter();
    let arguments = settings::complete(&Cli::command(), words.arguments, environment)?;
    match Cli::try_parse_from(&arguments)?.role {
        Role::Server(options) | Role::Up(options) => Ok(*options),
        _ => anyhow::bail!("it runs no `ferry server`"),
    }
}

fn run(cli: Cli, arguments: &[OsString]) -> anyhow::Result<()> {
    tracing_subscriber::fmt()
        .with_env_filter(
            tracing_subscriber::EnvFilter::try_from_env("FERRY_LOG").unwrap_or_else(|_| "info".into()),
        )
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .init();
    if cli.role.lives_long() {
        ferry_linux::memory::keep_small().context("start a thread")?;
        if let Err(error) = ferry_linux::descriptors::raise_limit() {
            tracing::warn!(%error, "the limit of open files stays as it is");
        }
    }
    match cli.role {
        Role::Up(options) => cluster::up::run(&options, &arguments[2..]),
        Role::Demo(flags) => cluster::demo::run(&flags),
        Role::Completion(flags) => roles::manual::complete(Cli::command(), &flags),
        Role::Man(flags) => roles::manual::write(Cli::command(), &flags),
        Role::Down(flags) => cluster::down::run(&flags),
        Role::Status(flags) => cluster::status::run(&flags),
        Role::Check(flags) => cluster::security::run(&flags, server_options),
        Role::Agent(flags) => cluster::agent::run(flags),
        Role::Token(flags) => cluster::token::run(&flags),
        Role::Image(flags) => cluster::image::run(&flags),
        Role::Server(options) => cluster::server::run(*options),
        Role::ApiServer(flags) => roles::apiserver::run(*flags),
        Role::Etcd(flags) => roles::etcd::run(*flags),
        Role::ControllerManager(flags) => roles::controller_manager::run(flags),
        Role::Scheduler(flags) => roles::scheduler::run(flags),
        Role::Kubelet(flags) => roles::kubelet::run(flags),
        Role::Proxy(flags) => roles::proxy::run(flags),
        Role::Dns(flags) => roles::dns::run(flags),
        Role::Bench(flags) => roles::bench::run(flags),
        Role::Snapshot(flags) => roles::snapshot::run(flags),
        Role::Trace(flags) => roles::trace::run(*flags),
        Role::Ui(flags) => roles::ui::run(&flags),
        Role::Why(flags) => roles::trace::why(*flags),
        Role::Kubectl { .. } => anyhow::bail!("kubectl was handled before the flags were read"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_flags_of_all_roles_fit_together() {
        Cli::command().debug_assert();
    }
}
