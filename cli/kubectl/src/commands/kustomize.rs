//! `kustomize`: prints what a kustomization builds.

use std::path::Path;

use ferry_kustomize::{Built, Options};

use crate::cli::Cli;
use crate::command::Command;
use crate::error::{Error, Result};
use crate::flags::Flag;
use crate::kustomization;

pub const COMMAND: Command = Command {
    name: "kustomize",
    group: super::ADVANCED,
    short: "Build a kustomization target from a directory",
    usage: "DIR [flags]",
    flags: &[&[
        Flag::bool("as-current-user", "Accepted for compatibility; no function is run"),
        Flag::bool("enable-alpha-plugins", "Accepted for compatibility; no plugin is run"),
        Flag::bool("enable-helm", "Accepted for compatibility; no chart is rendered"),
        Flag::bool(
            "enable-managedby-label",
            "Label resources as managed by kustomize; use buildMetadata instead",
        ),
        Flag::array("env", "Accepted for compatibility; no function is run").short('e'),
        Flag::array("helm-api-versions", "Accepted for compatibility; no chart is rendered"),
        Flag::text("helm-command", "Accepted for compatibility; no chart is rendered").default("helm"),
        Flag::bool("helm-debug", "Accepted for compatibility; no chart is rendered"),
        Flag::text("helm-kube-version", "Accepted for compatibility; no chart is rendered"),
        Flag::text(
            "load-restrictor",
            "LoadRestrictionsNone lets kustomizations load files from outside their directory",
        )
        .default("LoadRestrictionsRootOnly"),
        Flag::array("mount", "Accepted for compatibility; no function is run"),
        Flag::bool("network", "Accepted for compatibility; no function is run"),
        Flag::text("network-name", "Accepted for compatibility; no function is run").default("bridge"),
        Flag::text("output", "File to write to, or a directory for a file for each resource").short('o'),
        Flag::text("reorder", "'legacy' sorts the resources, 'none' does not; use sortOptions instead")
            .default("legacy"),
    ]],
    run: Some(|cli| Box::pin(async move { run(cli) })),
    ..Command::NONE
};

fn run(cli: &Cli) -> Result<()> {
    let args = &cli.args;
    for (flag, instead) in [
        ("reorder", "use the new 'sortOptions' field in kustomization.yaml instead."),
        (
            "enable-managedby-label",
            "The flag `enable-managedby-label` has been deprecated. Use the `managedByLabel` option in the `buildMetadata` field instead.",
        ),
    ] {
        if args.changed(flag) {
            eprintln!("Flag --{flag} has been deprecated, {instead}");
        }
    }
    let directory = match args.positional.as_slice() {
        [] => ".",
        [directory] => directory,
        _ => return Err(Error::message("specify one path to kustomization.yaml")),
    };
    let unrestricted = match args.text("load-restrictor") {
        "" | "LoadRestrictionsRootOnly" | "rootOnly" => false,
        "LoadRestrictionsNone" | "none" => true,
        other => {
            return Err(Error::message(format!(
                "illegal flag value --load-restrictor {other}; legal values: [LoadRestrictionsRootOnly LoadRestrictionsNone]"
            )));
        }
    };
    let sorted = match args.text("reorder") {
        "legacy" => true,
        "none" => false,
        other => {
            return Err(Error::message(format!(
                "illegal flag value --reorder {other}; legal values: [legacy none]"
            )));
        }
    };
    let options = Options {
        unrestricted,
        reorder: args.changed("reorder").then_some(sorted),
        managed_by_label: args.bool("enable-managedby-label")
            || std::env::var("KUSTOMIZE_ENABLE_MANAGEDBY_LABEL").is_ok_and(|value| value == "on"),
    };
    let built = kustomization::build(directory, &options)?;
    match args.text("output") {
        "" => cli.print(&built.yaml()),
        path if Path::new(path).is_dir() => write_each(&built, Path::new(path)),
        path => Ok(std::fs::write(path, built.yaml())?),
    }
}

/// A file for each resource.
fn write_each(built: &Built, directory: &Path) -> Result<()> {
    for (name, text) in built.files() {
        std::fs::write(directory.join(name), text)?;
    }
    Ok(())
}
