//! `kubectl auth`: who am I, and what may I do.

mod can_i;
mod reconcile;
mod whoami;

use super::TROUBLESHOOT;
use crate::command::Command;

pub const COMMAND: Command = Command {
    name: "auth",
    group: TROUBLESHOOT,
    short: "Inspect authentication and authorization",
    usage: "SUBCOMMAND",
    children: &[&can_i::COMMAND, &reconcile::COMMAND, &whoami::COMMAND],
    ..Command::NONE
};
