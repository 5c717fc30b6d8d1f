//! `ferry check security`: checks the items of the CIS Kubernetes Benchmark that apply to a Ferry cluster, on the machine
//! and through the API.
//!
//! [`facts`] reads, [`items`] decides, this file prints. The numbers are the benchmark's (1.11); `F.` marks Ferry's own.

mod facts;
mod items;

use std::path::PathBuf;

use anyhow::bail;
use clap::{Args, Subcommand};
use serde::Serialize;
use serde_json::json;

use super::layout::{DEFAULT_DATA_DIR, Layout};
use super::options::ServerOptions;
use super::output::{self, Lines};
use super::status::Output;

pub use facts::Words;

#[derive(Args)]
pub struct Flags {
    #[command(subcommand)]
    what: CheckCommand,
}

#[derive(Subcommand)]
enum CheckCommand {
    /// Compare this cluster with the CIS Kubernetes Benchmark
    ///
    /// Reads files, the flags of the running server and API objects, and sends requests without credentials that should be
    /// refused. Changes nothing. Exits with 1 if an item fails.
    #[command(
        after_help = "Examples:\n  ferry check security\n  ferry check security -o json | jq '.items[] | select(.verdict != \"PASS\")'"
    )]
    Security(SecurityFlags),
}

#[derive(Args)]
struct SecurityFlags {
    /// The cluster's data directory
    #[arg(long, default_value = DEFAULT_DATA_DIR)]
    data_dir: PathBuf,
    /// Output format
    #[arg(short, long, value_enum)]
    output: Option<Output>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Verdict {
    Pass,
    /// Somebody should decide whether this is meant.
    Warn,
    Fail,
}

/// One item and what was found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    pub id: &'static str,
    pub title: &'static str,
    pub verdict: Verdict,
    pub found: String,
    /// What to do; empty where there is nothing to do.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub remedy: &'static str,
}

/// `options` reads the options of a server from its words.
pub fn run(flags: &Flags, options: fn(Words) -> anyhow::Result<ServerOptions>) -> anyhow::Result<()> {
    let CheckCommand::Security(flags) = &flags.what;
    let layout = Layout::of(&flags.data_dir)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let facts = runtime.block_on(facts::gather(&layout, options))?;
    let findings = items::judge(&facts);
    let count = |verdict| findings.iter().filter(|finding| finding.verdict == verdict).count();
    let (passed, warned, failed) = (count(Verdict::Pass), count(Verdict::Warn), count(Verdict::Fail));
    match flags.output {
        Some(Output::Json) => output::print_json(&json!({
            "benchmark": "CIS Kubernetes Benchmark 1.11", "dataDir": layout.data_dir, "passed": passed, "warned": warned,
            "failed": failed, "items": findings,
        }))?,
        None => table(&findings, (passed, warned, failed)).print()?,
    }
    if failed > 0 {
        bail!("{failed} of {} items fail", findings.len());
    }
    Ok(())
}

fn table(findings: &[Finding], (passed, warned, failed): (usize, usize, usize)) -> Lines {
    let mut lines = Lines::default();
    for finding in findings {
        let verdict = match finding.verdict {
            Verdict::Pass => "PASS",
            Verdict::Warn => "WARN",
            Verdict::Fail => "FAIL",
        };
        lines.add(format_args!("{verdict}  {:<7} {}: {}", finding.id, finding.title, finding.found));
        if !finding.remedy.is_empty() {
            lines.add(format_args!("              {}", finding.remedy));
        }
    }
    lines.add(format_args!("{passed} passed, {warned} to look at, {failed} failed"));
    lines
}
