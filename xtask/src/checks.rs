//! Everything that has to pass before a change lands, cheapest first.

use std::path::PathBuf;

use anyhow::Result;

use crate::{architecture, links, packages, planes, promises, runner, step, toolchain, unused};

/// Whether all tests passed; what else fails ends it.
pub fn everything() -> Result<bool> {
    packages::install(packages::FOR_TESTS)?;
    planes::check()?;
    links::check()?;
    architecture::check()?;
    promises::check()?;
    unused::check()?;
    toolchain::check()?;
    step::cargo(&["fmt", "--all", "--check"])?;
    step::cargo(&["clippy", "--workspace", "--all-targets", "--quiet", "--", "--deny", "warnings"])?;
    // Whoever reads these pages has the sources too: links to what is private are kept.
    step::cargo_with(
        &["doc", "--workspace", "--no-deps", "--quiet"],
        &[("RUSTDOCFLAGS", "--deny warnings --allow rustdoc::private_intra_doc_links")],
    )?;
    licences()?;
    runner::run(None)
}

/// Licences, bans and sources; advisories where their data base is on this machine. Installed on first use.
fn licences() -> Result<()> {
    if !step::has("cargo-deny") {
        // Runs for seconds; an optimised one takes twice as long to build.
        step::cargo(&["install", "--locked", "--quiet", "--debug", "cargo-deny"])?;
    }
    // A build brings only the crates of its own platform; the check looks at those of all.
    step::cargo(&["fetch", "--locked", "--quiet"])?;
    step::cargo(&["deny", "--offline", "check", "--hide-inclusion-graph", "licenses", "bans", "sources"])?;
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| std::env::home_dir().map(|home| home.join(".cargo"))).unwrap_or_default();
    match home.join("advisory-dbs").is_dir() {
        true => step::cargo(&["deny", "--offline", "check", "--hide-inclusion-graph", "advisories"]),
        false => {
            println!("    not checked: advisories; `cargo deny fetch db` brings their data base");
            Ok(())
        }
    }
}
