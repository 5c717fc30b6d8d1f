//! `ferry completion`, `ferry man`: the same table of commands for shells and for `man`; kubectl has a table of its own.

use std::path::PathBuf;

use anyhow::Context;
use clap::{Args, Command};
use clap_complete::Shell;

#[derive(Args)]
pub struct CompletionFlags {
    /// Shell to print the script for
    shell: Shell,
}

#[derive(Args)]
pub struct ManFlags {
    /// Where a page for each command is written
    directory: PathBuf,
}

pub fn complete(mut command: Command, flags: &CompletionFlags) -> anyhow::Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(flags.shell, &mut command, "ferry", &mut script);
    let script = String::from_utf8(script).context("a script is text")?;
    crate::cluster::output::print(&script)
}

pub fn write(command: Command, flags: &ManFlags) -> anyhow::Result<()> {
    let directory = flags.directory.display();
    std::fs::create_dir_all(&flags.directory).with_context(|| format!("make {directory}"))?;
    let failed = || format!("write the pages to {directory}");
    clap_mangen::generate_to(command.disable_help_subcommand(true), &flags.directory).with_context(failed)?;
    for (file, page) in ferry_kubectl::manual::pages() {
        std::fs::write(flags.directory.join(file), page).with_context(failed)?;
    }
    Ok(())
}
