//! kubectl: the command line of Kubernetes, for any server with the Kubernetes API.
//!
//! A command line becomes a [`command`] with its [`flags`]; the [`kubeconfig`] selects the server and the credentials;
//! [`discovery`] lists its kinds; [`selection`] converts arguments and files to objects; [`printers`] print them. Each
//! command is one file in [`commands`].
//!
//! This crate contains no table of kinds, so custom resources and built-in kinds use the same code. The few commands that
//! read fields of a pod or a workload (`describe`, `rollout`, `logs`) read them from plain JSON.
//!
//! A command starts in a few milliseconds: nothing is read, connected or encrypted before a command needs it (see
//! [`cli::Cli`]), and one thread does all the work.
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
