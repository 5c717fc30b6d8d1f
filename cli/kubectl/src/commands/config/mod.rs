//! `kubectl config`: reading and changing kubeconfig files.

mod change;
mod property;
mod show;

use super::OTHER;
use crate::command::Command;

pub const COMMAND: Command = Command {
    name: "config",
    group: OTHER,
    short: "Modify kubeconfig files",
    usage: "SUBCOMMAND",
    children: &[
        &show::CURRENT_CONTEXT,
        &change::DELETE_CLUSTER,
        &change::DELETE_CONTEXT,
        &change::DELETE_USER,
        &show::GET_CLUSTERS,
        &show::GET_CONTEXTS,
        &show::GET_USERS,
        &change::RENAME_CONTEXT,
        &property::SET,
        &change::SET_CLUSTER,
        &change::SET_CONTEXT,
        &change::SET_CREDENTIALS,
        &property::UNSET,
        &change::USE_CONTEXT,
        &show::VIEW,
    ],
    ..Command::NONE
};
