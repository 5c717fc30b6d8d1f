//! The process of a cluster's own containerd. It outlives Ferry, so that containers do not notice a restart; it may
//! therefore be nobody's child and is known by its command line.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use ferry_linux::memory;
use ferry_linux::programs::in_path;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::runtime::{Runtime, ask};
use crate::{Containerd, Error, configuration};

const PATIENCE: Duration = Duration::from_secs(30);
/// How often it is seen whether containerd still runs.
const LOOK: Duration = Duration::from_secs(1);
const STEP: Duration = Duration::from_millis(10);

/// The result of supervising a containerd that ended.
pub enum RestartOutcome {
    Ended,
    Started(Runtime),
}

impl Containerd {
    pub(crate) async fn start(&self, registries: &Path) -> Result<Runtime, Error> {
        if let Some(missing) = missing(in_path) {
            return Err(Error::NotInstalled(missing));
        }
        self.spawn(registries)?;
        let endpoint = self.socket().display().to_string();
        let deadline = tokio::time::Instant::now() + PATIENCE;
        loop {
            match ask(&endpoint).await {
                Ok(found) => return Ok(found),
                Err(error) if tokio::time::Instant::now() > deadline => {
                    let log = self.log().display().to_string();
                    return Err(Error::NotStarted { log, source: Box::new(error) });
                }
                Err(_) => tokio::time::sleep(STEP).await,
            }
        }
    }

    fn spawn(&self, registries: &Path) -> Result<(), Error> {
        for directory in [self.network_configurations(), self.network_plugins()] {
            std::fs::create_dir_all(&directory)
                .map_err(Error::system(format!("make {}", directory.display())))?;
        }
        let settings = self.settings();
        std::fs::write(&settings, configuration::of(self, registries, configuration::may_lower_scores()))
            .map_err(Error::system(format!("write {}", settings.display())))?;
        let log = std::fs::OpenOptions::new().create(true).append(true).open(self.log());
        let log = log.map_err(Error::system(format!("open {}", self.log().display())))?;
        // In a session of its own: it and the containers go on when Ferry restarts.
        let mut command = Command::new("containerd");
        command.arg("--config").arg(&settings).process_group(0);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        let child = memory::with_huge_pages(|| command.spawn()).map_err(Error::system("start containerd"))?;
        let pid_file = self.pid_file();
        std::fs::write(&pid_file, child.id().to_string())
            .map_err(Error::system(format!("write {}", pid_file.display())))?;
        // A thread and no task: a runtime that stops would wait for it.
        std::thread::spawn(move || reap(child));
        Ok(())
    }

    /// Starts containerd again whenever it has ended, and tells of it; containers did not notice.
    pub async fn keep(&self, registries: &Path, tell: impl Fn(RestartOutcome)) {
        // It may be the child of a Ferry that is gone, so it cannot be waited for.
        let mut ticks = tokio::time::interval(LOOK);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            if self.pid().is_some() {
                continue;
            }
            tracing::warn!("containerd is gone and is started again");
            tell(RestartOutcome::Ended);
            match self.start(registries).await {
                Ok(started) => tell(RestartOutcome::Started(started)),
                Err(error) => {
                    let error: &dyn std::error::Error = &error;
                    tracing::error!(error, "containerd does not start");
                }
            }
        }
    }

    /// Of the process, if it runs.
    pub fn pid(&self) -> Option<Pid> {
        let pid: i32 = std::fs::read_to_string(self.pid_file()).ok()?.trim().parse().ok()?;
        // The number may be another process's by now.
        let command = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        String::from_utf8_lossy(&command)
            .contains(&*self.settings().to_string_lossy())
            .then(|| Pid::from_raw(pid))
    }

    /// Ends it; whether it ran. Blocks.
    pub fn stop(&self) -> Result<bool, Error> {
        let Some(pid) = self.pid() else { return Ok(false) };
        kill(pid, Signal::SIGTERM).map_err(Error::system("end containerd"))?;
        let deadline = std::time::Instant::now() + PATIENCE;
        while self.pid().is_some() {
            if std::time::Instant::now() > deadline {
                kill(pid, Signal::SIGKILL).map_err(Error::system("kill containerd"))?;
            }
            std::thread::sleep(STEP);
        }
        Ok(true)
    }
}

/// A child that has ended and is not waited for would stay as a zombie.
fn reap(mut child: Child) {
    if let Ok(status) = child.wait() {
        tracing::warn!(%status, "containerd ended");
    }
}

/// What keeps a containerd from being started here, and what to do about it.
fn missing(is_installed: impl Fn(&str) -> bool) -> Option<String> {
    // Debian's packages are named like the programs.
    let program = ["containerd", "runc"].into_iter().find(|program| !is_installed(program))?;
    Some(format!(
        "no container runtime runs here and {program} is not installed; install it with \
         `apt-get install {program}`, or name one with --container-runtime-endpoint"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_runtimes_are_named_with_the_install_command() {
        assert_eq!(missing(|_| true), None);
        let said = missing(|_| false).unwrap();
        assert!(said.contains("`apt-get install containerd`"), "{said}");
        let said = missing(|program| program == "containerd").unwrap();
        assert!(
            said.contains("`apt-get install runc`") && said.contains("--container-runtime-endpoint"),
            "{said}"
        );
    }
}
