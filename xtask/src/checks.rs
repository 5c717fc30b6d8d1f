//! Everything that has to pass before a change lands, cheapest first.

use anyhow::Result;

use crate::{architecture, links, packages, planes, runner, step, toolchain, unused};

/// Whether all tests passed; what else fails ends it.
pub fn everything() -> Result<bool> {
    packages::install(packages::FOR_TESTS)?;
    planes::check()?;
    links::check()?;
    architecture::check()?;
    unused::check()?;
    toolchain::check()?;
    step::cargo(&["fmt", "--all", "--check"])?;
    step::cargo(&["clippy", "--workspace", "--all-targets", "--quiet", "--", "--deny", "warnings"])?;
    step::cargo_with(
        &["doc", "--workspace", "--no-deps", "--quiet"],
        &[("RUSTDOCFLAGS", "--deny warnings")],
    )?;
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
