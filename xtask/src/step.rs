//! One step of a chore: says what it runs, how long it took, and fails loudly.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail};

pub fn run(program: &str, words: &[&str]) -> Result<()> {
    run_with(program, words, &[])
}

pub fn run_with(program: &str, words: &[&str], environment: &[(&str, &str)]) -> Result<()> {
    println!("==> {program} {}", words.join(" "));
    let started = Instant::now();
    let status = command(program)
        .args(words)
        .envs(environment.iter().copied())
        .stdin(Stdio::null())
        .status()
        .with_context(|| format!("start {program}"))?;
    println!("    {:.1} s", started.elapsed().as_secs_f64());
    if !status.success() {
        bail!("{program} {} failed: {status}", words.join(" "));
    }
    Ok(())
}

/// A command without what cargo told this program of its own package: build scripts read the same variables, and would run
/// again (with all that depends on them) whenever `cargo xtask` and plain cargo take turns.
pub fn command(program: &str) -> Command {
    let mut command = Command::new(program);
    let own = std::env::vars_os().map(|(name, _)| name);
    let own = own.filter(|name| {
        name.to_str()
            .is_some_and(|name| name.starts_with("CARGO_MANIFEST_") || name.starts_with("CARGO_PKG_"))
    });
    own.for_each(|name| {
        command.env_remove(name);
    });
    command
}

pub fn cargo(words: &[&str]) -> Result<()> {
    cargo_with(words, &[])
}

pub fn cargo_with(words: &[&str], environment: &[(&str, &str)]) -> Result<()> {
    run_with(&cargo_program(), words, environment)
}

/// The cargo that runs this program.
pub fn cargo_program() -> String {
    std::env::var("CARGO").unwrap_or_else(|_| "cargo".into())
}

pub fn output(program: &str, words: &[&str]) -> Result<String> {
    let output = command(program).args(words).output().with_context(|| format!("start {program}"))?;
    if !output.status.success() {
        bail!("{program} {} failed: {}", words.join(" "), String::from_utf8_lossy(&output.stderr));
    }
    String::from_utf8(output.stdout).with_context(|| format!("read what {program} printed"))
}

pub fn has(program: &str) -> bool {
    std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|directory| directory.join(program).is_file()))
}

pub fn target_directory() -> Result<PathBuf> {
    let metadata = output("cargo", &["metadata", "--no-deps", "--format-version", "1"])?;
    let (_, rest) =
        metadata.split_once("\"target_directory\":\"").context("cargo metadata names no target directory")?;
    let (directory, _) = rest.split_once('"').context("cargo metadata is cut short")?;
    Ok(PathBuf::from(directory))
}
