//! The state of each part of the cluster: reported while the cluster starts, and kept in a file that `ferry status` reads
//! even if the API server does not respond.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ferry_client::CancellationToken;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

/// After a part has failed: the first wait, and the longest.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum State {
    Starting,
    Running,
    Failed,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Part {
    pub name: String,
    pub state: State,
    /// From the process's start until it ran.
    pub after_milliseconds: u64,
    /// Where it is, or why it failed.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub detail: String,
}

/// The file's content.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Snapshot {
    pub pid: u32,
    pub version: String,
    pub data_dir: PathBuf,
    pub node_name: String,
    pub url: String,
    pub ready: bool,
    pub parts: Vec<Part>,
    /// Where parts serve their metrics, by name.
    #[serde(default)]
    pub metrics: BTreeMap<String, String>,
}

type Listener = Box<dyn Fn(&Part) -> std::io::Result<()> + Send>;

/// Cloning shares.
#[derive(Clone)]
pub struct Parts(Arc<Inner>);

struct Inner {
    started: Instant,
    file: PathBuf,
    /// Each change, for the terminal or the process that started us; `None` once that has gone.
    listener: Mutex<Option<Listener>>,
    now: Mutex<Snapshot>,
}

impl Parts {
    pub fn new(
        file: PathBuf,
        snapshot: Snapshot,
        listener: impl Fn(&Part) -> std::io::Result<()> + Send + 'static,
    ) -> Parts {
        Parts(Arc::new(Inner {
            started: Instant::now(),
            file,
            listener: Mutex::new(Some(Box::new(listener))),
            now: Mutex::new(snapshot),
        }))
    }

    pub fn starting(&self, name: &str) {
        self.set(name, State::Starting, String::new());
    }

    pub fn running(&self, name: &str, detail: impl Into<String>) {
        self.set(name, State::Running, detail.into());
    }

    pub fn failed(&self, name: &str, why: &dyn std::fmt::Display) {
        self.set(name, State::Failed, why.to_string());
    }

    /// Everything that a start waits for is there. Nobody listens from here on.
    pub fn ready(&self) {
        self.0.now.lock().ready = true;
        self.write();
        self.0.listener.lock().take();
    }

    pub fn update(&self, change: impl FnOnce(&mut Snapshot)) {
        change(&mut self.0.now.lock());
        self.write();
    }

    fn set(&self, name: &str, state: State, detail: String) {
        let elapsed = self.0.started.elapsed();
        let part = {
            let mut now = self.0.now.lock();
            let found = now.parts.iter().position(|part| part.name == name);
            let after = u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX);
            let part = Part { name: name.to_owned(), state, after_milliseconds: after, detail };
            match found {
                // A part that runs already is not told again.
                Some(index) if now.parts[index].state == state && now.parts[index].detail == part.detail => {
                    return;
                }
                Some(index) => now.parts[index] = part.clone(),
                None => now.parts.push(part.clone()),
            }
            part
        };
        self.write();
        let mut listener = self.0.listener.lock();
        if let Some(tell) = &*listener
            && tell(&part).is_err()
        {
            // Whoever waited has gone; the cluster goes on.
            listener.take();
        }
    }

    fn write(&self) {
        let now = self.0.now.lock();
        let write = || {
            let text = serde_json::to_vec_pretty(&*now)?;
            let draft = self.0.file.with_extension("draft");
            std::fs::File::create(&draft)?.write_all(&text)?;
            std::fs::rename(&draft, &self.0.file)
        };
        if let Err(error) = write() {
            tracing::warn!(%error, "the state of the parts cannot be written");
        }
    }

    /// Runs a part until `shutdown`; one that ends before is started again, later each time.
    pub async fn keep<F, E>(&self, name: &str, shutdown: CancellationToken, run: impl Fn() -> F)
    where
        F: Future<Output = Result<(), E>>,
        E: std::fmt::Display,
    {
        let mut wait = BACKOFF.0;
        loop {
            let began = Instant::now();
            let ended = run().await;
            if shutdown.is_cancelled() {
                return;
            }
            let why = ended.err().map_or_else(|| "ended by itself".to_owned(), |error| format!("{error:#}"));
            tracing::error!(part = name, why, "a part of the cluster failed and is restarted");
            self.failed(name, &why);
            if began.elapsed() > BACKOFF.1 {
                wait = BACKOFF.0;
            }
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                () = shutdown.cancelled() => return,
            }
            wait = (wait * 2).min(BACKOFF.1);
            self.starting(name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_change_is_told_once_and_kept() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("state.json");
        let heard: Arc<Mutex<Vec<String>>> = Arc::default();
        let ear = heard.clone();
        let parts = Parts::new(file.clone(), Snapshot::default(), move |part| {
            ear.lock().push(format!("{} {:?}", part.name, part.state));
            Ok(())
        });
        parts.starting("dns");
        parts.running("dns", "10.96.0.10");
        parts.running("dns", "10.96.0.10");
        parts.ready();
        parts.failed("dns", &"gone");
        assert_eq!(*heard.lock(), ["dns Starting", "dns Running"]);
        let kept: Snapshot = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
        assert!(kept.ready);
        assert_eq!((kept.parts[0].state, kept.parts[0].detail.as_str()), (State::Failed, "gone"));
    }
}
