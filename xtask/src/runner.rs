//! Runs the workspace's tests, each within a time limit.
//!
//! ```text
//! unit tests         two binaries at a time
//! integration tests  one binary at a time
//! black-box tests    one binary at a time; a test that fails is run once more, alone
//! cluster tests      one test at a time, in a process of its own; one that fails is run once more
//! ```
//!
//! Black-box and cluster tests drive processes of many threads on a host that others use, so one slow moment does not fail
//! the run; a test that fails twice does.
//! A cluster changes the host's network, so nothing runs beside it, and what a killed test leaves behind is taken away
//! before the next. What passes only at the second time, and what is not checked, is named at the end.

mod binaries;
mod outcome;
mod process;

use std::collections::VecDeque;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::step;
use binaries::{Binary, Kind};
use outcome::{Outcome, Report};

/// For all tests of a binary together.
const BINARY_LIMIT: Duration = Duration::from_secs(900);
/// For one test that starts clusters.
const CLUSTER_LIMIT: Duration = Duration::from_secs(600);
const UNIT_BINARIES_AT_ONCE: usize = 2;

/// Runs all tests, or those whose name contains `filter`; whether all passed. How many did is the last line printed.
pub fn run(filter: Option<&str>) -> Result<bool> {
    let target = step::target_directory()?;
    let runner = Runner {
        filter: filter.map(str::to_owned),
        logs: target.join("test-logs"),
        ferry: target.join("debug/ferry"),
        report: Mutex::default(),
    };
    std::fs::create_dir_all(&runner.logs).with_context(|| format!("make {}", runner.logs.display()))?;
    let (clusters, others): (Vec<Binary>, Vec<Binary>) =
        binaries::build()?.into_iter().partition(|binary| binary.kind == Kind::Cluster);
    let (units, integration): (Vec<Binary>, Vec<Binary>) =
        others.into_iter().partition(|binary| binary.kind == Kind::Unit);
    runner.together(units, UNIT_BINARIES_AT_ONCE)?;
    runner.together(integration, 1)?;
    if filter.is_none() {
        runner.doctests()?;
    }
    for binary in &clusters {
        runner.one_by_one(binary)?;
    }
    let report = runner.report.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    if report.is_empty() {
        bail!("no test has {:?} in its name", filter.unwrap_or_default());
    }
    print!("{report}");
    Ok(report.failed() == 0)
}

struct Runner {
    filter: Option<String>,
    logs: PathBuf,
    ferry: PathBuf,
    report: Mutex<Report>,
}

impl Runner {
    /// Whole binaries, several at once.
    fn together(&self, binaries: Vec<Binary>, at_once: usize) -> Result<()> {
        let queue = Mutex::new(VecDeque::from(binaries));
        let next = || queue.lock().unwrap_or_else(std::sync::PoisonError::into_inner).pop_front();
        std::thread::scope(|scope| {
            let work = || -> Result<()> {
                while let Some(binary) = next() {
                    self.whole(&binary)?;
                }
                Ok(())
            };
            let threads: Vec<_> = (0..at_once).map(|_| scope.spawn(work)).collect();
            threads.into_iter().try_for_each(|thread| match thread.join() {
                Ok(done) => done,
                Err(panic) => std::panic::resume_unwind(panic),
            })
        })
    }

    fn whole(&self, binary: &Binary) -> Result<()> {
        let mut command = binary.command();
        if let Some(filter) = &self.filter {
            if !binary.tests()?.iter().any(|test| test.contains(filter.as_str())) {
                return Ok(());
            }
            command.arg(filter);
        }
        let mut outcome = self.attempt(&binary.name, command, BINARY_LIMIT)?;
        if binary.kind == Kind::BlackBox && !outcome.is_success() {
            self.once_more(binary, &mut outcome)?;
        }
        self.add(&binary.name, outcome);
        Ok(())
    }

    /// Runs the failed tests of a binary again, each alone.
    fn once_more(&self, binary: &Binary, outcome: &mut Outcome) -> Result<()> {
        println!("{}", outcome.output);
        let mut failed = binary.tests()?;
        failed.retain(|test| outcome.failures().contains(test));
        for test in failed {
            println!("---- {} {test} is run once more", binary.name);
            outcome.replace(&test, self.alone(binary, &test)?.second_time(&test));
        }
        Ok(())
    }

    fn doctests(&self) -> Result<()> {
        let mut command = step::command(&step::cargo_program());
        command.args(["test", "--doc", "--workspace", "--no-fail-fast", "--quiet"]);
        let outcome = self.attempt("doctests", command, BINARY_LIMIT)?;
        self.add("doctests", outcome);
        Ok(())
    }

    fn one_by_one(&self, binary: &Binary) -> Result<()> {
        let wanted = |test: &String| self.filter.as_ref().is_none_or(|filter| test.contains(filter.as_str()));
        for test in binary.tests()?.into_iter().filter(wanted) {
            let name = format!("{} {test}", binary.name);
            let mut outcome = self.alone(binary, &test)?;
            if !outcome.is_success() {
                println!("{}", outcome.output);
                println!("---- {name} is run once more");
                outcome = self.alone(binary, &test)?.second_time(&test);
            }
            self.add(&name, outcome);
        }
        Ok(())
    }

    /// One test, in a process of its own; if it fails, what it leaves on the host is taken away.
    fn alone(&self, binary: &Binary, test: &str) -> Result<Outcome> {
        let before = Present::on_host();
        let mut command = binary.command();
        // alone in its process, it need not be captured: what it printed is there if it is killed
        command.args(["--exact", test, "--nocapture"]);
        let outcome = self.attempt(&format!("{} {test}", binary.name), command, CLUSTER_LIMIT)?;
        if !outcome.is_success() {
            self.take_down(&before);
        }
        Ok(outcome)
    }

    fn attempt(&self, name: &str, mut command: Command, limit: Duration) -> Result<Outcome> {
        let file = |ending: &str| self.logs.join(format!("{}.{ending}", name.replace([' ', ':', '/'], "_")));
        let (log, gaps) = (file("log"), file("gaps"));
        std::fs::write(&gaps, "").with_context(|| format!("write {}", gaps.display()))?;
        command.env("TEST_NOT_CHECKED", &gaps);
        let began = Instant::now();
        let end = process::run(command, &log, limit).with_context(|| format!("run {name}"))?;
        let output = std::fs::read(&log).with_context(|| format!("read {}", log.display()))?;
        let gaps = std::fs::read_to_string(&gaps).with_context(|| format!("read {}", gaps.display()))?;
        Ok(Outcome::read(&String::from_utf8_lossy(&output), end, &gaps, began.elapsed()))
    }

    fn add(&self, name: &str, outcome: Outcome) {
        // In one piece: two binaries may end at the same moment.
        let mut report = self.report.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if !outcome.is_success() {
            println!("{}", outcome.output);
        }
        println!("{}", outcome.line(name));
        report.add(name, outcome);
    }

    /// Takes down the clusters that a test left behind, and the networks they were in.
    fn take_down(&self, before: &Present) {
        let now = Present::on_host();
        for run_dir in now.clusters.iter().filter(|cluster| !before.clusters.contains(cluster)) {
            let Ok(data_dir) = std::fs::read_link(run_dir.join("data")) else { continue };
            println!("---- the test left a cluster in {}; it is taken down", data_dir.display());
            let mut command = Command::new(&self.ferry);
            // the kubeconfig of whoever runs the tests is not the test's
            command.args(["down", "--purge", "--data-dir"]).arg(&data_dir);
            command.env("KUBECONFIG", data_dir.with_file_name("kubeconfig"));
            let log = self.logs.join("down.log");
            if !process::run(command, &log, Duration::from_secs(120)).is_ok_and(|end| end.is_success()) {
                println!("---- it could not be; {} says why", log.display());
            }
        }
        for namespace in now.namespaces.iter().filter(|namespace| !before.namespaces.contains(namespace)) {
            println!("---- the test left the network namespace {}; it is deleted", namespace.display());
            let name = namespace.file_name().unwrap_or_default();
            if !Command::new("ip").args(["netns", "delete"]).arg(name).status().is_ok_and(|end| end.success())
            {
                println!("---- it could not be");
            }
        }
    }
}

/// What tests may leave on this host.
struct Present {
    clusters: Vec<PathBuf>,
    /// Each a host of a test's.
    namespaces: Vec<PathBuf>,
}

impl Present {
    fn on_host() -> Present {
        let below = |directory: &str| -> Vec<PathBuf> {
            let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
            entries.map(|entry| entry.path()).collect()
        };
        let mut clusters = below("/run/ferry");
        clusters.retain(|path| path.join("data").is_symlink());
        let mut namespaces = below("/run/netns");
        namespaces.retain(|path| path.to_string_lossy().contains("/ferry-test-"));
        Present { clusters, namespaces }
    }
}
