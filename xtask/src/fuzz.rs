//! Coverage-guided fuzzing with libFuzzer (`fuzz/`), on the stable compiler: LLVM's pass for sanitizer coverage is asked
//! for by flags, as `cargo fuzz --sanitizer none` does.
//!
//! Each target runs with a main thread of 2 MB of stack, as the server's threads have, and a limit of memory. What it
//! finds new goes to `TARGET/fuzz/corpus`, what breaks it to `TARGET/fuzz/found`; the build is in `TARGET/fuzz` as well.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::step;

/// What `cargo xtask fuzz` gives each target where nothing else is said.
const SECONDS: u64 = 60;
/// Targets that stand on base alone: their build is a quarter of that of all.
const BASE: &[&str] = &["protobuf", "json", "yaml", "patches", "selectors", "cel", "schema"];
/// For one input. A busy machine may hold a process up for long.
const INPUT_SECONDS: u64 = 60;
const MEGABYTES: u64 = 1024;
const STACK_KILOBYTES: u64 = 2048;

const COVERAGE: &str = "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares";

/// `[TARGET] [--seconds N]`.
pub fn run(words: &[&str]) -> Result<bool> {
    let (mut target, mut seconds) = (None, SECONDS);
    let mut words = words.iter();
    while let Some(word) = words.next() {
        match *word {
            "--seconds" => {
                let value = words.next().context("--seconds takes a number")?;
                seconds = value.parse().with_context(|| format!("--seconds {value}"))?;
            }
            name if target.is_none() && !name.starts_with('-') => target = Some(name),
            other => bail!("cargo xtask fuzz [TARGET] [--seconds N]: {other}?"),
        }
    }
    let all = targets()?;
    let chosen: Vec<String> = match target {
        None => all,
        Some(name) if all.iter().any(|known| known == name) => vec![name.to_string()],
        Some(name) => bail!("no target is called {name}; there are {}", all.join(", ")),
    };
    Fuzzer::build(&chosen)?.run(chosen, seconds)
}

/// The names of the programs in `fuzz/fuzz_targets`.
fn targets() -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir("fuzz/fuzz_targets").context("read fuzz/fuzz_targets")? {
        let path = entry?.path();
        names.extend(path.file_stem().map(|name| name.to_string_lossy().into_owned()));
    }
    names.sort();
    Ok(names)
}

struct Fuzzer {
    program: PathBuf,
    directory: PathBuf,
}

/// What became of one target.
struct Outcome {
    target: String,
    passed: bool,
    said: String,
}

impl Fuzzer {
    fn build(targets: &[String]) -> Result<Fuzzer> {
        let directory = step::target_directory()?.join("fuzz");
        let platform = platform()?;
        let target = directory.display().to_string();
        let environment = [("RUSTFLAGS", COVERAGE), ("CARGO_TARGET_DIR", target.as_str())];
        // A platform that is named keeps the flags away from build scripts, which have no fuzzer to be linked with.
        let manifest = ["--manifest-path", "fuzz/Cargo.toml", "--target", &platform, "--bin", "any"];
        let mut words = [&["build", "--quiet"][..], &manifest].concat();
        if targets.iter().all(|target| BASE.contains(&target.as_str())) {
            words.push("--no-default-features");
        }
        step::cargo_with(&words, &environment)?;
        let program = directory.join(platform).join("debug/any");
        Ok(Fuzzer { program, directory })
    }

    /// Runs the targets, one after the other; whether nothing was found.
    fn run(&self, targets: Vec<String>, seconds: u64) -> Result<bool> {
        println!("==> fuzz, {seconds} s each");
        let mut passed = true;
        for target in targets {
            let outcome = self.one(&target, seconds)?;
            println!("    {:<13} {}", outcome.target, outcome.said);
            passed &= outcome.passed;
        }
        Ok(passed)
    }

    fn one(&self, target: &str, seconds: u64) -> Result<Outcome> {
        let place = |kind: &str| self.directory.join(kind).join(target);
        let (corpus, found, seeds, kept) =
            (place("corpus"), place("found"), place("seeds"), Path::new("fuzz/corpus").join(target));
        for directory in [&corpus, &found, &seeds] {
            fs::create_dir_all(directory).with_context(|| format!("make {}", directory.display()))?;
        }
        let (log, last) = (found.join("log"), found.join("last"));
        let output = fs::File::create(&log).with_context(|| format!("make {}", log.display()))?;
        let mut command = Command::new("sh");
        // The limit that a process begins with is the size of its main thread's stack.
        command.args(["-c", &format!("ulimit -s {STACK_KILOBYTES} && exec \"$0\" \"$@\"")]);
        command.arg(&self.program).arg(&corpus).arg(&seeds);
        if kept.is_dir() {
            command.arg(&kept);
        }
        let status = command
            .arg(format!("-max_total_time={seconds}"))
            .arg(format!("-timeout={INPUT_SECONDS}"))
            .arg(format!("-rss_limit_mb={MEGABYTES}"))
            .arg(format!("-artifact_prefix={}/", found.display()))
            .arg("-print_final_stats=1")
            .env("FERRY_FUZZ_TARGET", target)
            .env("FERRY_FUZZ_SEEDS", &seeds)
            .env("FERRY_FUZZ_LAST", &last)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(output)
            .status()
            .context("start the fuzzer")?;
        let text = fs::read(&log).with_context(|| format!("read {}", log.display()))?;
        let said = FuzzSummary::of(&String::from_utf8_lossy(&text));
        if status.success() {
            return Ok(Outcome { target: target.to_string(), passed: true, said: said.summary() });
        }
        let input = match said.artifact {
            Some(path) => path,
            None => keep_last(&last, &found)?,
        };
        let said = format!("FAILED ({status}): the input is {input}, the log {}", log.display());
        Ok(Outcome { target: target.to_string(), passed: false, said })
    }
}

/// What libFuzzer prints at the end of a run.
#[derive(Default)]
struct FuzzSummary {
    executions: u64,
    added: u64,
    /// Where it has put the input that broke the target.
    artifact: Option<String>,
}

impl FuzzSummary {
    fn of(log: &str) -> FuzzSummary {
        let mut said = FuzzSummary::default();
        for line in log.lines() {
            let number = |name: &str| line.strip_prefix(name).and_then(|rest| rest.trim().parse().ok());
            said.executions = number("stat::number_of_executed_units:").unwrap_or(said.executions);
            said.added = number("stat::new_units_added:").unwrap_or(said.added);
            if let Some((_, path)) = line.split_once("Test unit written to ") {
                said.artifact = Some(path.trim().to_string());
            }
        }
        said
    }

    fn summary(&self) -> String {
        format!("{} executions, {} inputs with new coverage", self.executions, self.added)
    }
}

/// An overflow of the stack leaves libFuzzer no chance to write the input; it stands behind its length in `last`.
fn keep_last(last: &Path, found: &Path) -> Result<String> {
    let bytes = fs::read(last).with_context(|| format!("read {}", last.display()))?;
    let (length, rest) = bytes.split_first_chunk().context("the fuzzer ended before its first input")?;
    let length = usize::try_from(u64::from_le_bytes(*length)).unwrap_or(usize::MAX).min(rest.len());
    let path = found.join("ended-the-process");
    fs::write(&path, &rest[..length]).with_context(|| format!("write {}", path.display()))?;
    Ok(path.display().to_string())
}

/// The platform of this compiler, such as `x86_64-unknown-linux-gnu`.
fn platform() -> Result<String> {
    let text = step::output("rustc", &["--version", "--verbose"])?;
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(host.context("rustc names no host")?.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_lines_of_the_fuzzer_are_read() {
        let log = "#2 INITED\nstat::number_of_executed_units: 1234\nstat::new_units_added:          7\n";
        let said = FuzzSummary::of(log);
        assert_eq!(said.summary(), "1234 executions, 7 inputs with new coverage");
        assert_eq!(said.artifact, None);
        let log = "artifact_prefix='/f/'; Test unit written to /f/crash-0a\nBase64: eA==\n";
        assert_eq!(FuzzSummary::of(log).artifact.as_deref(), Some("/f/crash-0a"));
    }
}
