//! `kubectl options`: the flags every command takes.

use super::OTHER;
use crate::command::{Command, GLOBAL_FLAGS, flag_lines};

pub const COMMAND: Command = Command {
    name: "options",
    group: OTHER,
    short: "Print the flags every command takes",
    run: Some(|cli| {
        Box::pin(async move {
            let flags: Vec<_> = GLOBAL_FLAGS.iter().collect();
            cli.print(&format!(
                "The following options can be passed to any command:\n\n{}",
                flag_lines(&flags)
            ))
        })
    }),
    ..Command::NONE
};
