//! One process and all it starts, within a time limit; what they print goes to a file.

use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

const LOOK: Duration = Duration::from_millis(20);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Exited(ExitStatus),
    /// Killed after its limit.
    Expired(Duration),
}

impl End {
    pub fn is_success(self) -> bool {
        matches!(self, End::Exited(status) if status.success())
    }
}

/// Runs it in a process group of its own, which is killed as a whole.
pub fn run(mut command: Command, log: &Path, limit: Duration) -> Result<End> {
    // A file and no pipe: what outlives the process may hold it open for as long as it likes.
    let file = File::create(log).with_context(|| format!("write {}", log.display()))?;
    let errors = file.try_clone().context("share the log")?;
    let mut child = command
        .stdin(Stdio::null())
        .stdout(file)
        .stderr(errors)
        .process_group(0)
        .spawn()
        .with_context(|| format!("start {:?}", command.get_program()))?;
    let deadline = Instant::now() + limit;
    loop {
        if let Some(status) = child.try_wait().context("wait for it")? {
            return Ok(End::Exited(status));
        }
        if Instant::now() > deadline {
            let group = format!("-{}", child.id());
            let killed = Command::new("kill").args(["-KILL", "--", &group]).status().context("start kill")?;
            if !killed.success() {
                child.kill().context("kill it")?;
            }
            child.wait().context("wait for it")?;
            return Ok(End::Expired(limit));
        }
        std::thread::sleep(LOOK);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, limit: Duration) -> (End, String) {
        let log = std::env::temp_dir().join(format!("ferry-xtask-{}-{}", std::process::id(), script.len()));
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        let end = run(command, &log, limit).unwrap();
        let said = std::fs::read_to_string(&log).unwrap();
        std::fs::remove_file(&log).unwrap();
        (end, said)
    }

    #[test]
    fn output_and_exit_status_of_a_process_are_captured() {
        let (end, said) = shell("echo out; echo err >&2", Duration::from_secs(60));
        assert!(end.is_success());
        assert_eq!(said, "out\nerr\n");
        assert!(!shell("exit 3", Duration::from_secs(60)).0.is_success());
    }

    #[test]
    fn a_process_past_its_limit_is_killed_with_its_children() {
        // the pipe's other end is the child's child: it is closed when that is gone too
        let (end, said) = shell("sleep 3600 & echo $!; wait", Duration::from_millis(300));
        assert_eq!(end, End::Expired(Duration::from_millis(300)));
        let process = Path::new("/proc").join(said.trim());
        let deadline = Instant::now() + Duration::from_secs(10);
        let runs = || std::fs::read(process.join("cmdline")).is_ok_and(|words| !words.is_empty());
        while runs() {
            assert!(Instant::now() < deadline, "what it started is killed too");
            std::thread::sleep(LOOK);
        }
    }
}
