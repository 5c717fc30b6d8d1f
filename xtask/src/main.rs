//! The project's tasks: `cargo xtask up` runs a cluster, `cargo xtask test` runs everything that CI runs. Each step prints
//! what it does, so that the log can be followed without a terminal.

mod architecture;
mod checks;
mod dist;
mod fuzz;
mod lines;
mod links;
mod packages;
mod planes;
mod promises;
mod proto;
mod release;
mod runner;
mod step;
mod table;
mod toolchain;
mod unused;

use std::process::ExitCode;

use anyhow::{Result, bail};

fn main() -> Result<ExitCode> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["up", flags @ ..] => ferry("up", flags)?,
        ["demo", flags @ ..] => ferry("demo", flags)?,
        ["dist", flags @ ..] => dist::run(flags)?,
        ["release"] => release::build()?,
        ["test"] => return Ok(code(checks::everything()?)),
        ["test", name] => return Ok(code(runner::run(Some(name))?)),
        ["fuzz", flags @ ..] => return Ok(code(fuzz::run(flags)?)),
        ["planes"] => planes::check()?,
        ["links"] => {
            links::check()?;
            architecture::check()?;
            promises::check()?;
        }
        ["unused"] => unused::check()?,
        ["lines"] => lines::print()?,
        ["proto", files @ ..] => proto::run(files)?,
        ["table", flags @ ..] => table::run(flags)?,
        ["packages"] => packages::install(packages::FOR_TESTS)?,
        _ => bail!(
            "usage: cargo xtask up [flags of ferry up] | demo [flags of ferry demo] | release | dist [--target x86_64|aarch64] [--binary PATH] [--out DIRECTORY] [--twice] [--try] | test [part of a test's name] | fuzz [target] [--seconds N] | planes | links | unused | lines | proto PUBLISHED CHECKED_IN | table --from DIR | packages"
        ),
    }
    Ok(ExitCode::SUCCESS)
}

fn code(passed: bool) -> ExitCode {
    if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Installs what is missing, builds, and runs a command that brings a cluster up; `ferry down` ends it.
fn ferry(command: &str, flags: &[&str]) -> Result<()> {
    packages::install(packages::TO_RUN)?;
    println!("The first build takes about five minutes on two cores; later ones compile what changed.");
    step::cargo(&["build", "--profile", "up", "--package", "ferry"])?;
    let binary = step::target_directory()?.join("up/ferry");
    let mut words: Vec<&str> = vec![command];
    words.extend(flags);
    step::run(binary.to_str().unwrap_or("ferry"), &words)
}
