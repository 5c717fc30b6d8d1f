//! `ferry up`: a cluster in the background, its start shown part by part.

use std::ffi::OsString;
use std::fs::File;
use std::io::{BufRead, BufReader, IsTerminal, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use anyhow::{Context, bail};

use super::layout::Layout;
use super::options::ServerOptions;
use super::parts::{Part, Snapshot, State};
use super::{kubeconfig, server, status};

/// Lines of the log that are shown when a start fails.
const LOG_LINES: usize = 15;

/// `words` are the options as the user wrote them; the server reads them again.
pub fn run(options: &ServerOptions, words: &[OsString]) -> anyhow::Result<()> {
    let layout = Layout::of(&options.api.data_dir)?;
    if let Some(running) = status::running(&layout)? {
        println!("already up: pid {}, {}", running.pid, running.url);
        return Ok(());
    }
    layout.make()?;
    let began = Instant::now();
    let mut child = spawn(&layout, words)?;
    let failure = follow(&mut child)?;
    // Written when all that a start waits for is there.
    if let Some(Snapshot { ready: true, url, .. }) = status::snapshot(&layout)? {
        let file = kubeconfig::path(options.kubeconfig.clone())?;
        println!("ready in {} ms: {url}", began.elapsed().as_millis());
        println!("kubectl --context {} get nodes   ({})", layout.cluster, file.display());
        return Ok(());
    }
    let code = child.wait().context("wait for the server")?;
    eprint!("{}", tail(&layout.log())?);
    match failure {
        Some(part) => bail!("{} did not start: {}", part.name, part.detail),
        None => bail!("the server ended ({code}); its log is {}", layout.log().display()),
    }
}

fn spawn(layout: &Layout, words: &[OsString]) -> anyhow::Result<Child> {
    let log = File::create(layout.log()).with_context(|| format!("write {}", layout.log().display()))?;
    let binary = std::env::current_exe().context("find this program")?;
    // In a session of its own: a closed terminal ends this program and not the cluster.
    Command::new(binary)
        .arg("server")
        .args(words)
        .arg("--progress")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(log)
        .process_group(0)
        .spawn()
        .context("start the server")
}

/// Shows each part as it comes, until the server says no more. Returns the part that failed last.
fn follow(child: &mut Child) -> anyhow::Result<Option<Part>> {
    let progress = child.stdout.take().context("hear from the server")?;
    let live = std::io::stdout().is_terminal();
    let mut failure = None;
    for text in BufReader::new(progress).lines() {
        let text = text.context("hear from the server")?;
        let part: Part = serde_json::from_str(&text).with_context(|| format!("understand {text:?}"))?;
        let mut out = std::io::stdout().lock();
        match part.state {
            State::Starting if live => write!(out, "… {}\r", part.name),
            State::Starting => Ok(()),
            State::Running | State::Failed => writeln!(out, "{}", server::line(&part)),
        }
        .and_then(|()| out.flush())
        .context("show the progress")?;
        if part.state == State::Failed {
            failure = Some(part);
        }
    }
    Ok(failure)
}

fn tail(log: &Path) -> anyhow::Result<String> {
    let text = std::fs::read_to_string(log).with_context(|| format!("read {}", log.display()))?;
    let lines: Vec<&str> = text.lines().collect();
    let from = lines.len().saturating_sub(LOG_LINES);
    Ok(lines[from..].iter().map(|line| format!("{line}\n")).collect())
}
