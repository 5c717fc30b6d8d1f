//! A part of a cluster as a process of its own, so that what it uses can be told from what the others use.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use ferry_client::{Client, Kubeconfig};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::requests::get;
use crate::usage::{self, Usage};

/// Ends with its value, if nobody stops it before.
pub struct Part {
    role: &'static str,
    process: Child,
}

impl Part {
    /// This program in another role.
    pub fn start<W: AsRef<OsStr>>(
        role: &'static str,
        words: impl IntoIterator<Item = W>,
    ) -> anyhow::Result<Part> {
        let process = Command::new(std::env::current_exe().context("find this program")?)
            .arg(role)
            .args(words)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            // What goes wrong is told; that it starts and stops is not.
            .env("FERRY_LOG", std::env::var_os("FERRY_LOG").unwrap_or_else(|| "warn".into()))
            .spawn()
            .with_context(|| format!("start ferry {role}"))?;
        Ok(Part { role, process })
    }

    /// A controller manager or a scheduler of a server. It serves no metrics: their port may be another cluster's.
    pub fn of(server: &Server, role: &'static str, words: &[&str]) -> anyhow::Result<Part> {
        let own = ["--secure-port=0", "--kubeconfig"].map(OsStr::new);
        let words = words.iter().map(OsStr::new).chain(own).chain([server.kubeconfig.as_os_str()]);
        Part::start(role, words)
    }

    pub fn usage(&self) -> anyhow::Result<Usage> {
        usage::of(self.process.id())
    }

    /// Open descriptors, and threads.
    pub fn held(&self) -> anyhow::Result<(usize, usize)> {
        let count = |what: &str| {
            let path = format!("/proc/{}/{what}", self.process.id());
            Ok::<usize, anyhow::Error>(
                std::fs::read_dir(&path).with_context(|| format!("read {path}"))?.count(),
            )
        };
        Ok((count("fd")?, count("task")?))
    }

    pub fn stop(mut self) -> anyhow::Result<()> {
        self.end()
    }

    /// In order, as an operator would.
    pub fn end(&mut self) -> anyhow::Result<()> {
        let pid = i32::try_from(self.process.id()).context("a process has a number")?;
        kill(Pid::from_raw(pid), Signal::SIGTERM).with_context(|| format!("stop ferry {}", self.role))?;
        let status = self.process.wait().with_context(|| format!("wait for ferry {}", self.role))?;
        ensure!(status.success(), "ferry {} ended with {status}", self.role);
        Ok(())
    }

    fn check_alive(&mut self) -> anyhow::Result<()> {
        match self.process.try_wait()? {
            None => Ok(()),
            Some(status) => bail!("ferry {} ended with {status}", self.role),
        }
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        // Either fails where it was stopped before.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// An API server with its store in a directory, and its administrator's kubeconfig there.
pub struct Server {
    pub part: Part,
    pub kubeconfig: PathBuf,
}

impl Server {
    const PATIENCE: Duration = Duration::from_secs(30);
    const STEP: Duration = Duration::from_millis(10);

    pub async fn start(directory: &Path) -> anyhow::Result<Server> {
        Server::start_on(directory, 0, &[]).await
    }

    /// On a port that clients know from before; 0 for any that is free.
    pub async fn start_on(directory: &Path, port: u16, more: &[&str]) -> anyhow::Result<Server> {
        let port = format!("--secure-port={port}");
        let words = [OsStr::new("--bind-address=127.0.0.1"), OsStr::new(&port)];
        let words = words.into_iter().chain([OsStr::new("--data-dir"), directory.as_os_str()]);
        let words = words.chain(more.iter().map(OsStr::new));
        let part = Part::start("apiserver", words)?;
        let mut server = Server { part, kubeconfig: directory.join("admin.kubeconfig") };
        let deadline = Instant::now() + Self::PATIENCE;
        while !server.is_ready().await {
            server.part.check_alive()?;
            ensure!(Instant::now() < deadline, "the API server is not ready after {:?}", Self::PATIENCE);
            tokio::time::sleep(Self::STEP).await;
        }
        Ok(server)
    }

    /// The file comes when the server listens.
    async fn is_ready(&self) -> bool {
        if !self.kubeconfig.exists() {
            return false;
        }
        let Ok(client) = self.client().await else { return false };
        get(&client, "/readyz").await.is_ok()
    }

    /// A connection of its own.
    pub async fn client(&self) -> anyhow::Result<Client> {
        let kubeconfig = Kubeconfig { path: Some(self.kubeconfig.clone()), ..Kubeconfig::default() };
        ferry_client::connect(&kubeconfig).await.context("reach the API server")
    }

    pub async fn clients(&self, count: usize) -> anyhow::Result<Vec<Client>> {
        futures::future::try_join_all((0..count).map(|_| self.client())).await
    }
}
