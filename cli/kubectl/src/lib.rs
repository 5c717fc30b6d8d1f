//! kubectl: the command line of Kubernetes, against any server that speaks its API.
//!
//! A line becomes a [`command`] with its [`flags`]; the [`kubeconfig`] says which server to call
//! and as whom; [`discovery`] says which kinds it has; [`selection`] turns words and files into
//! objects; [`printers`] show them. Each command is one file under [`commands`].
//!
//! What it deliberately does not know: kinds. There is no table of them here, so a custom resource
//! is handled as a built-in one; the few commands that read a pod's or a workload's fields
//! (`describe`, `rollout`, `logs`) read them from plain JSON.
//!
//! It starts in a few milliseconds: nothing is read, connected or encrypted before a command
//! needs it (see [`cli::Cli`]), and one thread does all the work.
//!
//! Start reading at [`command::execute`], then [`commands`], then [`selection::Selection`].

pub mod cli;
pub mod command;
pub mod commands;
pub mod describe;
pub mod discovery;
pub mod error;
pub mod fields;
pub mod flags;
pub mod image_name;
pub mod kubeconfig;
mod kuberc;
mod kustomization;
pub mod manual;
mod own_trace;
mod plugins;
pub mod pods;
pub mod printers;
pub mod remote;
pub mod selection;
pub mod terminal;
pub mod translations;
pub mod transport;
mod version;
pub mod watch;
pub mod write;
pub mod yaml;

use std::ffi::OsString;
use std::process::ExitCode;

/// Runs kubectl with the arguments that follow its name.
pub fn main(args: impl Iterator<Item = OsString>) -> ExitCode {
    command::execute(args)
}
