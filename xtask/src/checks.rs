//! Everything that has to pass before a change lands, cheapest first.

use anyhow::Result;

use crate::{links, packages, planes, step};

pub fn everything() -> Result<()> {
    packages::install(packages::FOR_TESTS)?;
    planes::check()?;
    links::check()?;
    step::cargo(&["fmt", "--all", "--check"])?;
    step::cargo(&["clippy", "--workspace", "--all-targets", "--quiet", "--", "--deny", "warnings"])?;
    licences()?;
    // The black-box tests run the binary itself.
    step::cargo(&["build", "--package", "ferry"])?;
    step::cargo(&["test", "--workspace", "--no-fail-fast"])
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
