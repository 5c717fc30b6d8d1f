//! Everything that has to pass before a change lands, cheapest first.

use anyhow::Result;

use crate::{links, packages, planes, runner, step};

/// Whether all tests passed; what else fails ends it.
pub fn everything() -> Result<bool> {
    packages::install(packages::FOR_TESTS)?;
    planes::check()?;
    links::check()?;
    step::cargo(&["fmt", "--all", "--check"])?;
    step::cargo(&["clippy", "--workspace", "--all-targets", "--quiet", "--", "--deny", "warnings"])?;
    licences()?;
    runner::run(None)
}

/// Licences and advisories. Installed on first use; the advisory data base needs the network, so a machine
/// without it checks licences, bans and sources only.
fn licences() -> Result<()> {
    if !step::has("cargo-deny") {
        step::cargo(&["install", "--locked", "--quiet", "cargo-deny"])?;
    }
    // A build brings only the crates of its own platform; the check looks at those of all.
    step::cargo(&["fetch", "--locked", "--quiet"])?;
    step::cargo(&["deny", "--offline", "check", "--hide-inclusion-graph", "licenses", "bans", "sources"])
}
