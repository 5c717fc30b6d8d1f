//! `help`, which any command answers with `--help` too, and `alpha`, which has no commands now.

use crate::cli::Cli;
use crate::command::{self, Command, find};
use crate::error::Result;

pub const HELP: Command = Command {
    name: "help",
    short: "Help about any command",
    usage: "[command]",
    run: Some(|cli| Box::pin(async move { help(cli) })),
    ..Command::NONE
};

pub const ALPHA: Command = Command {
    name: "alpha",
    short: "Commands for features in alpha",
    run: Some(|_| {
        Box::pin(async {
            eprintln!("No alpha commands are available in this version of kubectl");
            Ok(())
        })
    }),
    ..Command::NONE
};

fn help(cli: &Cli) -> Result<()> {
    let words = &cli.args.positional;
    match find(words) {
        Ok((path, _)) => command::help_for(&path),
        Err(_) => {
            let shown: Vec<String> = words.iter().map(|word| format!("`{word}`")).collect();
            eprint!("Unknown help topic [{}]\n{}", shown.join(" "), command::root_help());
            Ok(())
        }
    }
}
