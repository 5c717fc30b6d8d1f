//! Watch: what is there, if asked for, then every change.

use ferry_api::Status;
use ferry_store::Revision;

use super::list::Freshness;
use crate::cache::{Filter, Snapshot, Watcher};
use crate::registry::{Registry, Resource};

/// Where a watch begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// Every change after this revision.
    After(Revision),
    /// All current objects first, at least this new; then every change.
    Now(Freshness),
    /// Changes alone, from at least this new a revision on.
    ChangesOnly(Freshness),
}

pub struct Watching {
    /// What to send first: the objects, of this revision.
    pub initial: Option<(Snapshot, Revision)>,
    pub watcher: Watcher,
}

impl Registry {
    /// Where the filter needs a version that a webhook converts to, the watcher delivers events that the rest of it lets
    /// through; [`Resource::see_converted`] tells what they are to it.
    pub async fn watch(&self, resource: &Resource, filter: Filter, start: Start) -> Result<Watching, Status> {
        match start {
            Start::After(revision) => {
                if revision > self.log.applied() {
                    self.wait_until_fresh(Freshness::NotOlderThan(revision)).await?;
                }
                let watcher = resource.cache.watch_from(revision, filter).map_err(|gone| {
                    Status::expired(format!("too old resource version: {} ({})", gone.asked, gone.oldest))
                })?;
                Ok(Watching { initial: None, watcher })
            }
            Start::ChangesOnly(freshness) => {
                self.wait_until_fresh(freshness).await?;
                Ok(Watching { initial: None, watcher: resource.cache.watch_now(filter).2 })
            }
            Start::Now(freshness) => {
                let applied = self.wait_until_fresh(freshness).await?;
                let (mut snapshot, touched, watcher) = resource.cache.watch_now(filter.clone());
                if let Some(kind) = filter.needs_version() {
                    snapshot = resource.select_converted(&snapshot, &filter, kind).await?;
                }
                Ok(Watching { initial: Some((snapshot, applied.max(touched))), watcher })
            }
        }
    }
}
