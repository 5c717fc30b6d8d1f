//! Get and list: bytes out of the cache. Pages of one list are of one revision.

use std::ops::Bound;
use std::sync::Arc;

use ferry_api::Status;
use ferry_store::{Range, Revision};

use super::{Call, store_failure, too_large_revision};
use crate::cache::{Entry, Filter, Snapshot};
use crate::registry::{Registry, Resource};

/// How new the answer has to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Freshness {
    /// As new as the store is now.
    Current,
    /// Whatever the cache has.
    Any,
    NotOlderThan(Revision),
    Exactly(Revision),
}

/// Where a list goes on: after this key, at this revision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Continue {
    pub revision: Revision,
    pub after: String,
}

impl Continue {
    /// Stands for whatever is the newest: the rest of a list whose own revision is forgotten.
    pub const NEWEST: Revision = Revision(-1);
}

pub struct Listed {
    pub entries: Vec<Arc<Entry>>,
    pub revision: Revision,
    pub next: Option<Continue>,
    /// How many objects are left; unknown when a selector is at work.
    pub remaining: Option<usize>,
}

impl Registry {
    /// A get that names a revision accepts anything as new; one that does not is fresh.
    pub async fn get(&self, call: &Call<'_>, freshness: Freshness) -> Result<Arc<Entry>, Status> {
        self.wait_until_fresh(freshness).await?;
        let entry = call.current().filter(|entry| !entry.uninitialized || call.include_uninitialized);
        entry.ok_or_else(|| call.not_found())
    }

    /// Everything that `filter` lets through, as new as the store.
    pub async fn select(&self, resource: &Resource, filter: &Filter) -> Result<Vec<Arc<Entry>>, Status> {
        Ok(self.list(resource, filter, Freshness::Current, None, None).await?.entries)
    }

    pub async fn list(
        &self,
        resource: &Resource,
        filter: &Filter,
        freshness: Freshness,
        limit: Option<usize>,
        from: Option<Continue>,
    ) -> Result<Listed, Status> {
        let (snapshot, revision) = match (&from, freshness) {
            (Some(from), _) if from.revision != Continue::NEWEST => {
                (self.snapshot_at(resource, from.revision).await?, from.revision)
            }
            (None, Freshness::Exactly(revision)) => {
                self.wait_until_fresh(Freshness::NotOlderThan(revision)).await?;
                (self.snapshot_at(resource, revision).await?, revision)
            }
            (from, _) => {
                let freshness = if from.is_some() { Freshness::Current } else { freshness };
                let applied = self.wait_until_fresh(freshness).await?;
                let (snapshot, touched) = resource.cache.snapshot();
                (snapshot, applied.max(touched))
            }
        };
        let converted = match filter.needs_version() {
            Some(kind) => Some(resource.select_converted(&snapshot, filter, kind).await?),
            None => None,
        };
        let shown = converted.as_ref().unwrap_or(&snapshot);
        let page = page(shown, filter, limit, from.as_ref().map(|from| from.after.as_str()));
        let next = page.more.then(|| Continue {
            revision,
            after: page.entries.last().map_or_else(String::new, |entry| entry.key.to_string()),
        });
        if next.is_some() {
            resource.cache.remember(revision, &snapshot);
        }
        Ok(Listed {
            remaining: page.remaining.filter(|_| next.is_some()),
            entries: page.entries,
            revision,
            next,
        })
    }

    /// Waits until the caches are as new as asked, and says how new they are.
    pub async fn wait_until_fresh(&self, freshness: Freshness) -> Result<Revision, Status> {
        match freshness {
            Freshness::Any => Ok(self.log.applied()),
            Freshness::Current => self.log.fresh().await.map_err(store_failure),
            Freshness::NotOlderThan(revision) | Freshness::Exactly(revision) => {
                if self.log.applied() < revision {
                    let current = self.log.fresh().await.map_err(store_failure)?;
                    if current < revision {
                        return Err(too_large_revision(revision, current));
                    }
                }
                Ok(self.log.applied().max(revision))
            }
        }
    }

    /// The objects as they were: from the cache while it remembers, else from the store's history.
    async fn snapshot_at(&self, resource: &Resource, revision: Revision) -> Result<Snapshot, Status> {
        let remembered = resource.cache.recall(revision, self.log.applied());
        let _span = ferry_trace::span("registry.history");
        let expired = || {
            Status::expired(
                "The provided continue parameter is too old to display a consistent list result. You can start a new list without the continue parameter, or use the continue token in this response to retrieve the remainder of the results. Continuing with the provided token results in an inconsistent list - objects that were created, modified, or deleted between the time the first chunk was returned and now may show up in the list.",
            )
        };
        let mut range = Range::prefix(&resource.prefix).at(revision);
        if remembered.is_some() {
            // Only to hear whether the revision is still kept: how long a list may take is the store's word.
            range = range.limit(1);
        }
        let page = self.store.range(range).await.map_err(|error| match error {
            ferry_store::Error::Compacted { .. } => expired(),
            other => store_failure(other),
        })?;
        if let Some(snapshot) = remembered {
            return Ok(snapshot);
        }
        let reader = resource.reader();
        let mut snapshot = Snapshot::new();
        for kv in &page.kvs {
            let key: Arc<str> = kv.key[resource.prefix.len()..].into();
            let json = reader.read(&kv.value)?;
            let entry = Entry::from_stored(key.clone(), &json, kv.mod_revision, resource.cache.paths())
                .map_err(|error| Status::internal(error.to_string()))?;
            snapshot.insert(key, Arc::new(entry));
        }
        resource.cache.remember(revision, &snapshot);
        Ok(snapshot)
    }
}

struct Page {
    entries: Vec<Arc<Entry>>,
    more: bool,
    remaining: Option<usize>,
}

fn page(snapshot: &Snapshot, filter: &Filter, limit: Option<usize>, after: Option<&str>) -> Page {
    let prefix = filter.namespace.as_deref().map(|namespace| format!("{namespace}/"));
    if let (Some(name), None) = (&filter.name, after)
        && let Some(prefix) =
            prefix.as_deref().or(snapshot.keys().next().filter(|key| !key.contains('/')).map(|_| ""))
    {
        // One object by name: no walk.
        let entry = snapshot.get(format!("{prefix}{name}").as_str()).filter(|entry| filter.matches(entry));
        return Page { entries: entry.cloned().into_iter().collect(), more: false, remaining: None };
    }
    let start: Bound<Arc<str>> = match (after, &prefix) {
        (Some(after), _) => Bound::Excluded(after.into()),
        (None, Some(prefix)) => Bound::Included(prefix.as_str().into()),
        (None, None) => Bound::Unbounded,
    };
    let mut walk = snapshot
        .range((start, Bound::Unbounded))
        .take_while(|(key, _)| prefix.as_deref().is_none_or(|prefix| key.starts_with(prefix)))
        .map(|(_, entry)| entry)
        .filter(|entry| filter.matches(entry));
    let Some(limit) = limit else {
        return Page { entries: walk.cloned().collect(), more: false, remaining: None };
    };
    let entries: Vec<Arc<Entry>> = walk.by_ref().take(limit).cloned().collect();
    if filter.is_everything() {
        let left = walk.count();
        Page { entries, more: left > 0, remaining: Some(left) }
    } else {
        Page { entries, more: walk.next().is_some(), remaining: None }
    }
}
