//! `ferry up`: starts a cluster in the background and shows each part as it starts.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::{BufRead, BufReader, IsTerminal, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

use super::layout::Layout;
use super::options::ServerOptions;
use super::parts::{Part, Snapshot, State};
use super::{invocation, kubeconfig, programs, server, status};

/// Lines of the log that are shown when a start fails.
const LOG_LINES: usize = 15;

/// `words` are the options as the user wrote them; the server reads them again.
pub fn run(options: &ServerOptions, words: &[OsString]) -> anyhow::Result<()> {
    server::must_be_root()?;
    programs::must_be_installed(options.node.proxy_mode)?;
    let layout = Layout::of(&options.api.data_dir)?;
    if let Some(running) = status::running(&layout)? {
        println!("already up: pid {}, {}", running.pid, running.url);
        print!("{}", next(&layout, &kubeconfig::path(options.kubeconfig.clone())?));
        return Ok(());
    }
    layout.make()?;
    let began = Instant::now();
    let mut child = spawn(&layout, words)?;
    let patience = Duration::from_secs(options.timeout);
    let failure = match follow(&mut child, began + patience)? {
        StartOutcome::Ended { failure } => failure,
        StartOutcome::TimedOut { unfinished } => bail!(given_up(&layout, patience, &unfinished)),
    };
    // Written when all that a start waits for is there.
    if let Some(Snapshot { ready: true, url, .. }) = status::snapshot(&layout)? {
        let file = kubeconfig::path(options.kubeconfig.clone())?;
        println!("ready in {} ms: {url}", began.elapsed().as_millis());
        print!("{}", next(&layout, &file));
        return Ok(());
    }
    let code = child.wait().context("wait for the server")?;
    eprint!("{}", tail(&layout.log())?);
    match failure {
        Some(part) => bail!("{} did not start: {}", part.name, part.detail),
        None => bail!("the server ended ({code}); its log is {}", layout.log().display()),
    }
}

/// What to type now.
fn next(layout: &Layout, kubeconfig: &Path) -> String {
    let ferry = invocation::ferry(layout);
    let mut words = String::new();
    if let Some(directory) = &ferry.outside_path {
        words.push_str(&format!(
            "ferry is not in your PATH: export PATH=\"$PATH:{}\", or its whole path as below\n",
            directory.display()
        ));
    }
    let lines = [
        (ferry.command("demo"), "one command's life, followed; works without the internet"),
        (format!("{} get nodes", ferry.kubectl()), ""),
        (ferry.command("status"), "what runs, what it uses, what is wrong"),
        (ferry.command("down"), "ends it"),
    ];
    words.push_str(&format!(
        "any kubectl has it as context {} of {}. Next:\n",
        layout.cluster,
        kubeconfig.display()
    ));
    let width = lines.iter().map(|(line, _)| line.len()).max().unwrap_or_default();
    for (line, why) in &lines {
        words.push_str(format!("  {line:<width$}   {why}").trim_end());
        words.push('\n');
    }
    words
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

enum StartOutcome {
    /// The server says no more.
    Ended {
        /// The part that failed last.
        failure: Option<Part>,
    },
    /// The time is up.
    TimedOut { unfinished: Unfinished },
}

/// Parts that do not run, and why they failed when they last did.
type Unfinished = BTreeMap<String, Option<String>>;

/// Shows each part as it comes.
fn follow(child: &mut Child, deadline: Instant) -> anyhow::Result<StartOutcome> {
    let progress = child.stdout.take().context("hear from the server")?;
    let live = std::io::stdout().is_terminal();
    let (lines, heard) = mpsc::channel();
    // Reading has no time limit of its own. The thread ends with the server's words, or with this program.
    std::thread::spawn(move || {
        for line in BufReader::new(progress).lines() {
            if lines.send(line).is_err() {
                return;
            }
        }
    });
    let (mut failure, mut unfinished) = (None, Unfinished::new());
    loop {
        let text = match heard.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(text) => text.context("hear from the server")?,
            Err(RecvTimeoutError::Disconnected) => return Ok(StartOutcome::Ended { failure }),
            Err(RecvTimeoutError::Timeout) => return Ok(StartOutcome::TimedOut { unfinished }),
        };
        let part: Part = serde_json::from_str(&text).with_context(|| format!("understand {text:?}"))?;
        note(&mut unfinished, &part);
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
}

fn note(unfinished: &mut Unfinished, part: &Part) {
    match part.state {
        State::Running => drop(unfinished.remove(&part.name)),
        State::Failed => drop(unfinished.insert(part.name.clone(), Some(part.detail.clone()))),
        // One that is tried again failed for what it said before.
        State::Starting => drop(unfinished.entry(part.name.clone()).or_default()),
    }
}

/// What is wrong, and what can be done about it.
fn given_up(layout: &Layout, patience: Duration, unfinished: &Unfinished) -> String {
    let (directory, log) = (layout.data_dir.display(), layout.log());
    let mut words = format!("after {} s not all parts run; the others go on:", patience.as_secs());
    for (name, why) in unfinished {
        words.push_str(&format!("\n  {name}: {}", why.as_deref().unwrap_or("does not get ready")));
        if why.as_ref().is_some_and(|why| why.contains("Address already in use")) {
            words.push_str(" (another program listens there: end it, or choose another port)");
        }
    }
    if unfinished.is_empty() {
        words.push_str("\n  the server has not said of any part that it starts");
    }
    words.push_str(&format!(
        "\nA part that failed is tried again: `ferry status --data-dir {directory}` shows when it runs, \
         {} says more.\n`ferry down --data-dir {directory}` ends the cluster.",
        log.display()
    ));
    words
}

fn tail(log: &Path) -> anyhow::Result<String> {
    let text = std::fs::read_to_string(log).with_context(|| format!("read {}", log.display()))?;
    let lines: Vec<&str> = text.lines().collect();
    let from = lines.len().saturating_sub(LOG_LINES);
    Ok(lines[from..].iter().map(|line| format!("{line}\n")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(name: &str, state: State, detail: &str) -> Part {
        Part { name: name.into(), state, after_milliseconds: 0, detail: detail.into() }
    }

    #[test]
    fn unfinished_parts_are_reported_with_their_last_failure() {
        let mut unfinished = Unfinished::new();
        for part in [
            part("apiserver", State::Starting, ""),
            part("kubelet", State::Starting, ""),
            part("network", State::Starting, ""),
            part("apiserver", State::Running, "https://…"),
            part(
                "kubelet",
                State::Failed,
                "listening on 0.0.0.0:10250: Address already in use (os error 98)",
            ),
            part("kubelet", State::Starting, ""),
        ] {
            note(&mut unfinished, &part);
        }
        let layout = Layout::of(Path::new("/srv/cluster")).unwrap();
        let words = given_up(&layout, Duration::from_secs(9), &unfinished);
        assert!(words.contains("kubelet: listening on 0.0.0.0:10250") && words.contains("end it"), "{words}");
        assert!(words.contains("network: does not get ready") && !words.contains("apiserver:"), "{words}");
        assert!(words.contains("ferry status --data-dir /srv/cluster"), "{words}");
    }
}
