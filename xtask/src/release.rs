//! `cargo xtask release`: the program as it is given out. It is built twice: first with counters, with which the benches
//! tell which code is run and how often, then laid out by that. A request touches little of a large program: what
//! belongs together is put together, and what is hardly ever run is kept small and out of the way.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::packages::{self, Needed};
use crate::step;

/// What a cluster is busy with: its API, its controllers, its scheduler.
const TRAINING: &[&[&str]] = &[
    &["bench", "api", "--pods", "2000"],
    &["bench", "controllers"],
    &["bench", "scheduler", "--nodes", "1000", "--pods", "2000"],
    &["kubectl", "version", "--client"],
];

/// Reads the counters where the toolchain has no such program itself (`rustup component add llvm-tools`).
const PROFDATA: Needed = Needed { program: "llvm-profdata-19", package: "llvm-19" };

pub fn build() -> Result<()> {
    let host = host()?;
    let own = sysroot()?.join("lib/rustlib").join(&host).join("bin/llvm-profdata");
    let (merge, needed) = match own.is_file() {
        true => (own, [].as_slice()),
        false => (PathBuf::from(PROFDATA.program), [PROFDATA].as_slice()),
    };
    packages::install(needed)?;
    let directory = step::target_directory()?.join("training");
    let (counters, profile) = (directory.join("counters"), directory.join("ferry.profdata"));
    // Counters of an older build would be merged with those of this one.
    if counters.exists() {
        std::fs::remove_dir_all(&counters).with_context(|| format!("empty {}", counters.display()))?;
    }
    let counting = cargo_build(&host, &directory, &format!("-Cprofile-generate={}", counters.display()))?;
    for words in TRAINING {
        step::run(text(&counting)?, words)?;
    }
    step::run(text(&merge)?, &["merge", "--output", text(&profile)?, text(&counters)?])?;
    // Without the prefixes lld would mix what is hot with what is not.
    let flags = format!("-Cprofile-use={} -Clink-arg=-Wl,-z,keep-text-section-prefix", profile.display());
    let program = cargo_build(&host, &step::target_directory()?, &flags)?;
    println!("built {}", program.display());
    Ok(())
}

/// With a target named, flags are for the program only, not for what runs while it is built.
fn cargo_build(host: &str, directory: &Path, flags: &str) -> Result<PathBuf> {
    let words =
        ["build", "--release", "--package", "ferry", "--target", host, "--target-dir", text(directory)?];
    // Worth its twenty minutes only where every microsecond counts: a plain release leaves it away. What is hardly ever run is
    // known by its counters, so that nothing needs to be small beforehand.
    let link_time = [
        ("CARGO_PROFILE_RELEASE_LTO", "thin"),
        ("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "4"),
        ("CARGO_PROFILE_RELEASE_OPT_LEVEL", "3"),
    ];
    step::cargo_with(&words, &[[("RUSTFLAGS", flags)].as_slice(), &link_time].concat())?;
    Ok(directory.join(host).join("release/ferry"))
}

fn host() -> Result<String> {
    let version = step::output("rustc", &["-vV"])?;
    let host = version.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned).context("rustc names no host")
}

fn sysroot() -> Result<PathBuf> {
    Ok(PathBuf::from(step::output("rustc", &["--print", "sysroot"])?.trim()))
}

fn text(path: &Path) -> Result<&str> {
    path.to_str().with_context(|| format!("{} is no text", path.display()))
}
