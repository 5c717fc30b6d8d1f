//! Plugins that register at the kubelet: each puts a socket below `plugins_registry` and answers there who it is.
//!
//! ```text
//!   socket comes ──▶ Asked ──▶ Registered ──▶ socket goes, or another takes its place
//!                      ▲ │
//!                      │ ▼  no answer, garbage, a kind or version that is not known
//!                    Refused (asked again, later each time)
//! ```
//!
//! What to do follows from the sockets that are there ([`decide`]); notes of the kernel only say when to look.

mod registration;

use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ferry_client::CancellationToken;
use futures::future::BoxFuture;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::directory_watch::{self, DirectoryWatch};
use registration::Registered;

/// The directory is read this often though the kernel tells of nothing.
const PERIOD: Duration = Duration::from_secs(10);
const FIRST_RETRY: Duration = Duration::from_millis(500);
const MAX_RETRY: Duration = Duration::from_secs(122);
/// More sockets than this are not asked, nor deeper directories read: no node has so many plugins.
const MAX_SOCKETS: usize = 1024;
const MAX_DEPTH: usize = 8;

/// What a plugin says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plugin {
    pub name: String,
    pub endpoint: String,
    pub versions: Vec<String>,
}

/// Takes up plugins of one type. Errors are for the plugin to read, in upstream's words.
pub trait Handler: Send + Sync {
    fn validate(&self, plugin: &Plugin) -> Result<(), String>;

    /// `stop` ends what goes on for the plugin.
    fn register<'a>(
        &'a self,
        plugin: &'a Plugin,
        stop: &'a CancellationToken,
    ) -> BoxFuture<'a, Result<(), String>>;

    fn deregister(&self, name: &str, endpoint: &str);
}

/// By the type that plugins say they are of.
pub type Handlers = BTreeMap<&'static str, Arc<dyn Handler>>;

/// Identifies the socket at a path: a socket that was removed and created again is another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SocketIdentity {
    inode: u64,
    seconds: i64,
    nanoseconds: i64,
}

#[derive(Debug, PartialEq)]
enum State {
    Asked,
    Registered(Registered),
    Refused { until: Instant, delay: Duration },
}

#[derive(Debug)]
struct Known {
    made: SocketIdentity,
    state: State,
}

#[derive(Debug, PartialEq, Eq)]
enum Step {
    Forget(PathBuf),
    Ask(PathBuf, SocketIdentity),
}

/// What follows from the sockets that are there. Those that are gone go first: another may have their name.
fn decide(
    found: &BTreeMap<PathBuf, SocketIdentity>,
    known: &BTreeMap<PathBuf, Known>,
    now: Instant,
) -> Vec<Step> {
    let is_it = |path: &PathBuf, known: &Known| found.get(path) == Some(&known.made);
    let forget =
        known.iter().filter(|(path, known)| !is_it(path, known)).map(|(path, _)| Step::Forget(path.clone()));
    let ask = found.iter().filter(|(path, made)| match known.get(*path) {
        Some(known) if known.made == **made => {
            matches!(known.state, State::Refused { until, .. } if until <= now)
        }
        _ => true,
    });
    forget.chain(ask.map(|(path, made)| Step::Ask(path.clone(), *made))).collect()
}

/// Keeps what is registered in step with the sockets. `looked` is set when those that were there at the start have
/// answered, or not.
pub async fn run(directory: PathBuf, handlers: Handlers, looked: CancellationToken, stop: CancellationToken) {
    let mut watch = DirectoryWatch::new()
        .inspect_err(|error| tracing::warn!(%error, "cannot watch the directory of plugins; polling it"))
        .ok();
    let mut plugins = Plugins {
        handlers: Arc::new(handlers),
        known: BTreeMap::new(),
        asked: JoinSet::new(),
        stop: stop.clone(),
    };
    loop {
        match find(&directory, watch.as_ref()) {
            Ok(found) => plugins.act(&found),
            // a directory that cannot be read is not an empty one
            Err(error) => {
                tracing::warn!(directory = %directory.display(), %error, "cannot list the sockets of plugins")
            }
        }
        if plugins.asked.is_empty() {
            looked.cancel();
        }
        let next = plugins.next_retry().unwrap_or_else(|| Instant::now() + PERIOD);
        tokio::select! {
            () = stop.cancelled() => return,
            Some(answer) = plugins.asked.join_next() => {
                if let Ok(answer) = answer {
                    plugins.answered(answer);
                }
            }
            () = directory_watch::changed(&mut watch) => {}
            () = tokio::time::sleep_until(next.min(Instant::now() + PERIOD)) => {}
        }
    }
}

/// The sockets below a directory, but those whose names begin with a dot. Every directory is watched from now on.
fn find(directory: &Path, watch: Option<&DirectoryWatch>) -> io::Result<BTreeMap<PathBuf, SocketIdentity>> {
    let mut found = BTreeMap::new();
    let mut directories = vec![(directory.to_owned(), 0)];
    while let Some((directory, depth)) = directories.pop() {
        if let Some(Err(error)) = watch.map(|watch| watch.add(&directory)) {
            tracing::debug!(directory = %directory.display(), %error, "not watched");
        }
        let entries = match std::fs::read_dir(&directory) {
            Ok(entries) => entries,
            // gone meanwhile
            Err(_) if depth > 0 => continue,
            Err(error) => return Err(error),
        };
        for entry in entries.flatten() {
            let Ok(metadata) = entry.metadata() else { continue };
            let is_hidden = entry.file_name().as_encoded_bytes().starts_with(b".");
            if metadata.is_dir() && depth < MAX_DEPTH && !is_hidden {
                directories.push((entry.path(), depth + 1));
            } else if metadata.file_type().is_socket() && !is_hidden && found.len() < MAX_SOCKETS {
                let (seconds, nanoseconds) = (metadata.mtime(), metadata.mtime_nsec());
                found.insert(entry.path(), SocketIdentity { inode: metadata.ino(), seconds, nanoseconds });
            }
        }
    }
    Ok(found)
}

type Answer = (PathBuf, SocketIdentity, Duration, Result<Registered, String>);

struct Plugins {
    handlers: Arc<Handlers>,
    known: BTreeMap<PathBuf, Known>,
    asked: JoinSet<Answer>,
    stop: CancellationToken,
}

impl Plugins {
    fn act(&mut self, found: &BTreeMap<PathBuf, SocketIdentity>) {
        for step in decide(found, &self.known, Instant::now()) {
            match step {
                Step::Forget(path) => {
                    if let Some(Known { state: State::Registered(registered), .. }) = self.known.remove(&path)
                    {
                        tracing::info!(socket = %path.display(), name = registered.name, "plugin is gone");
                        self.deregister(&registered);
                    }
                }
                Step::Ask(path, made) => self.ask(path, made),
            }
        }
    }

    fn ask(&mut self, path: PathBuf, made: SocketIdentity) {
        let before = self.known.insert(path.clone(), Known { made, state: State::Asked });
        let delay = match before.map(|known| known.state) {
            Some(State::Refused { delay, .. }) => (delay * 2).min(MAX_RETRY),
            _ => FIRST_RETRY,
        };
        let (handlers, stop) = (self.handlers.clone(), self.stop.clone());
        self.asked.spawn(async move {
            let answer = registration::register(&path, &handlers, &stop).await;
            (path, made, delay, answer)
        });
    }

    fn answered(&mut self, (path, made, delay, answer): Answer) {
        let known = self.known.get_mut(&path).filter(|known| known.made == made);
        match (known, answer) {
            (Some(known), Ok(registered)) => {
                tracing::info!(socket = %path.display(), name = registered.name, "plugin registered");
                known.state = State::Registered(registered);
            }
            (Some(known), Err(problem)) => {
                tracing::warn!(socket = %path.display(), problem, "plugin not registered");
                known.state = State::Refused { until: Instant::now() + delay, delay };
            }
            // it went while it was asked
            (None, Ok(registered)) => {
                self.deregister(&registered);
            }
            (None, Err(_)) => {}
        }
    }

    fn deregister(&self, registered: &Registered) {
        if let Some(handler) = self.handlers.get(registered.kind.as_str()) {
            handler.deregister(&registered.name, &registered.endpoint);
        }
    }

    fn next_retry(&self) -> Option<Instant> {
        let untils = self.known.values().filter_map(|known| match known.state {
            State::Refused { until, .. } => Some(until),
            State::Asked | State::Registered(_) => None,
        });
        untils.min()
    }
}

#[cfg(test)]
mod tests;
