//! One binary with one subcommand per role: parses flags and calls the role's `run`.
//!
//! Under another name it acts as that program: `kubectl`, one of the CNI plugins that a container runtime starts, or
//! one of upstream's programs (`program.rs`).

mod allocator;
mod cluster;
mod data_version;
mod deferred;
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
use deferred::Deferred;

#[derive(Parser)]
#[command(
    name = "ferry",
    version,
    about = "A complete Kubernetes in one binary",
    after_help = "Examples:\n  ferry demo                        follow one command on a cluster of your own\n  ferry up                          start a cluster in the background\n  ferry kubectl get nodes           use kubectl without installing it\n  ferry image load nginx.tar        load images without a registry\n  ferry down --purge                remove the cluster and its data"
)]
struct Cli {
    #[command(subcommand)]
    role: Role,
}

#[derive(Subcommand)]
enum Role {
    /// Start a one-node cluster in the background and wait until it is ready
    #[command(
        after_help = "Examples:\n  ferry up\n  ferry up --data-dir /srv/two --port 7443       start a second cluster on this machine\n  ferry up --config /etc/ferry/ferry.yaml        read options from a file, named like the flags\n  FERRY_NODE_NAME=edge-1 ferry up                read options from the environment"
    )]
    Up(Deferred<Box<cluster::options::ServerOptions>>),
    /// Follow one command from end to end; starts a cluster if none runs
    #[command(
        after_help = "Examples:\n  ferry demo                        works without internet access\n  ferry demo --keep                 keeps the namespace ferry-demo\n  ferry demo --image httpd          runs another web server\n  ferry demo -- --port 7443         passes options to `ferry up`"
    )]
    Demo(Deferred<cluster::demo::Flags>),
    /// Stop the cluster and remove its processes, interfaces, rules, mounts and cgroups from this host
    #[command(
        after_help = "Examples:\n  ferry down                        keeps data and images for the next `ferry up`\n  ferry down --purge                removes them too"
    )]
    Down(Deferred<cluster::down::Flags>),
    /// Show running parts, resource usage and problems
    #[command(after_help = "Examples:\n  ferry status\n  ferry status -o json | jq .problems")]
    Status(Deferred<cluster::status::Flags>),
    /// Check the cluster's security settings
    Check(Deferred<cluster::security::Flags>),
    /// Run a one-node cluster in the foreground
    #[command(
        after_help = "Examples:\n  ferry server --config /etc/ferry/ferry.yaml       as in the systemd unit\n  ferry server --datastore-endpoint http://E1:2379,http://E2:2379,http://E3:2379"
    )]
    Server(Deferred<Box<cluster::options::ServerOptions>>),
    /// Serve the Kubernetes API from an embedded store or etcd
    #[command(name = "apiserver")]
    ApiServer(Deferred<Box<roles::apiserver::Alone>>),
    /// Serve etcd's API from an embedded store
    Etcd(Deferred<Box<roles::etcd::Flags>>),
    /// Run the controllers against an API server
    ControllerManager(Deferred<Box<roles::controller_manager::Flags>>),
    /// Run the scheduler against an API server
    Scheduler(Deferred<roles::scheduler::Flags>),
    /// Run pods on this host through a container runtime
    Kubelet(Deferred<roles::kubelet::Flags>),
    /// Program this host's kernel for Services (nftables or iptables)
    Proxy(Deferred<roles::proxy::Flags>),
    /// Serve DNS records of Services and pods
    Dns(Deferred<roles::dns::Flags>),
    /// Control any Kubernetes cluster from the command line
    #[command(disable_help_flag = true)]
    Kubectl {
        /// Command and flags of kubectl
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        words: Vec<OsString>,
    },
    /// Measure Ferry's performance on this machine
    Bench(Deferred<roles::bench::Flags>),
    /// Show what happened in the cluster, when and why
    #[command(
        after_help = "Examples:\n  ferry trace --last\n  ferry trace pod/web-0 -n shop              shows why it is not running\n  ferry trace -- kubectl run web --image=nginx   traces a command live"
    )]
    Trace(Deferred<Box<ferry_timeline::Flags>>),
    /// Show why and by whom an object was deleted, evicted, restarted, scaled or changed
    Why(Deferred<Box<ferry_timeline::why::Flags>>),
    /// Open the cluster's web page in a browser, signed in with your credentials
    #[command(
        after_help = "Examples:\n  ferry ui\n  ferry ui --no-open                      only prints the link\n  ferry ui --kubeconfig alice.kubeconfig  signs in as another user"
    )]
    Ui(Deferred<roles::ui::Flags>),
    /// Run an additional node of a cluster
    #[command(
        after_help = "Examples:\n  ferry token create                                      on the server\n  ferry agent --server https://HOST:6443 --token TOKEN    on the new node"
    )]
    Agent(Deferred<cluster::agent::Flags>),
    /// Manage the tokens with which nodes join
    #[command(
        after_help = "Examples:\n  ferry token create\n  ferry token create --help       lifetime and permissions"
    )]
    Token(Deferred<cluster::token::Flags>),
    /// Load images into a node without a registry
    #[command(
        after_help = "Examples:\n  docker save nginx | ferry image load -\n  ferry image load nginx.tar\n  ferry image ls"
    )]
    Image(Deferred<cluster::image::Flags>),
    /// Save the store to a file, or restore it from one
    #[command(
        after_help = "Examples:\n  ferry snapshot save /backup/today.snapshot                             works while the server runs\n  ferry snapshot restore /backup/today.snapshot --data-dir /srv/new"
    )]
    Snapshot(Deferred<roles::snapshot::Flags>),
    /// Print the completion script for a shell
    #[command(
        after_help = "Examples:\n  ferry completion bash > /etc/bash_completion.d/ferry\n  source <(ferry completion zsh)"
    )]
    Completion(Deferred<roles::manual::CompletionFlags>),
    /// Write a manual page for each command
    #[command(hide = true)]
    Man(Deferred<roles::manual::ManFlags>),
}

impl Role {
    /// A daemon, as opposed to a short command.
    fn is_daemon(&self) -> bool {
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
    let (called, arguments) = program::called(std::env::args_os().collect());
    let called = called.as_deref();
    if called == Some("kubectl") {
        return ferry_kubectl::main(arguments.into_iter().skip(1));
    }
    if let Some(code) = ferry_cni::plugin::main_if_called_as_plugin() {
        return code;
    }
    // kubectl parses its own arguments.
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
    let arguments = match settings::complete(Cli::command, arguments, std::env::vars_os()) {
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

/// The options of a running server, from its arguments, environment and file.
fn server_options(words: cluster::security::Words) -> anyhow::Result<cluster::options::ServerOptions> {
    let environment = words.environment.into_iter();
    let arguments = settings::complete(Cli::command, words.arguments, environment)?;
    match Cli::try_parse_from(&arguments)?.role {
        Role::Server(Deferred(options)) | Role::Up(Deferred(options)) => Ok(*options),
        _ => anyhow::bail!("the process is not `ferry server`"),
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
    if cli.role.is_daemon() {
        ferry_linux::memory::keep_small().context("start a thread")?;
        if let Err(error) = ferry_linux::descriptors::raise_limit() {
            tracing::warn!(%error, "cannot raise the limit of open files");
        }
    }
    match cli.role {
        Role::Up(Deferred(options)) => cluster::up::run(&options, &arguments[2..]),
        Role::Demo(Deferred(flags)) => cluster::demo::run(&flags),
        Role::Completion(Deferred(flags)) => roles::manual::complete(Cli::command(), &flags),
        Role::Man(Deferred(flags)) => roles::manual::write(Cli::command(), &flags),
        Role::Down(Deferred(flags)) => cluster::down::run(&flags),
        Role::Status(Deferred(flags)) => cluster::status::run(&flags),
        Role::Check(Deferred(flags)) => cluster::security::run(&flags, server_options),
        Role::Agent(Deferred(flags)) => cluster::agent::run(flags),
        Role::Token(Deferred(flags)) => cluster::token::run(&flags),
        Role::Image(Deferred(flags)) => cluster::image::run(&flags),
        Role::Server(Deferred(options)) => cluster::server::run(*options),
        Role::ApiServer(Deferred(flags)) => roles::apiserver::run(*flags),
        Role::Etcd(Deferred(flags)) => roles::etcd::run(*flags),
        Role::ControllerManager(Deferred(flags)) => roles::controller_manager::run(*flags),
        Role::Scheduler(Deferred(flags)) => roles::scheduler::run(flags),
        Role::Kubelet(Deferred(flags)) => roles::kubelet::run(flags),
        Role::Proxy(Deferred(flags)) => roles::proxy::run(flags),
        Role::Dns(Deferred(flags)) => roles::dns::run(flags),
        Role::Bench(Deferred(flags)) => roles::bench::run(flags),
        Role::Snapshot(Deferred(flags)) => roles::snapshot::run(flags),
        Role::Trace(Deferred(flags)) => roles::trace::run(*flags),
        Role::Ui(Deferred(flags)) => roles::ui::run(&flags),
        Role::Why(Deferred(flags)) => roles::trace::why(*flags),
        Role::Kubectl { .. } => anyhow::bail!("kubectl runs before flags are parsed"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_flags_of_all_roles_fit_together() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_flag_of_every_command_has_a_help_text() {
        fn find(command: &clap::Command, without: &mut Vec<String>) {
            // Those without effect stand under a heading that says so.
            let shown = command.get_arguments().filter(|flag| {
                !flag.is_hide_set() && flag.get_help_heading() != Some(roles::no_effect::HEADING)
            });
            let mute = shown.filter(|flag| flag.get_help().is_none_or(|help| help.to_string().is_empty()));
            without.extend(mute.map(|flag| format!("{} {}", command.get_name(), flag.get_id())));
            command.get_subcommands().for_each(|below| find(below, without));
        }
        let mut command = Cli::command();
        command.build();
        assert!(command.get_subcommands().count() > 20);
        let mut without = Vec::new();
        find(&command, &mut without);
        assert_eq!(without, Vec::<String>::new());
    }
}
