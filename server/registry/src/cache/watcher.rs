//! A position in the event ring of one resource, and the wait for more.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};

use ferry_store::Revision;
use futures::task::AtomicWaker;

use super::{Cache, Change, Event, Filter, Snapshot, WakeScope};

pub struct Watcher {
    cache: Arc<Cache>,
    filter: Filter,
    next: u64,
    /// How far the ring went when it was last looked into.
    known: u64,
    scope: WakeScope,
    /// This watcher's place among those that its scope wakes. Each has one of its own: hundreds are woken by one event, and
    /// would otherwise meet on the lock of whatever they share.
    waiting: Arc<AtomicWaker>,
}

/// An event, and what it is to this watcher.
pub type Delivered = (Change, Arc<Event>);

/// The revision to watch from is not in the ring: the client has to list again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gone {
    pub asked: Revision,
    pub oldest: Revision,
}

/// How many events are looked at before others get their turn.
const BATCH: usize = 256;

impl Cache {
    /// Watches every change after `from`.
    pub fn watch_from(self: &Arc<Cache>, from: Revision, filter: Filter) -> Result<Watcher, Gone> {
        let next = {
            let state = self.state.read();
            if from < state.forgotten {
                return Err(Gone { asked: from, oldest: state.forgotten });
            }
            let skip = state.ring.partition_point(|event| event.revision <= from);
            state.next - (state.ring.len() - skip) as u64
        };
        Ok(self.watcher(next, filter))
    }

    /// The current objects, and a watcher of every change after them.
    pub fn watch_now(self: &Arc<Cache>, filter: Filter) -> (Snapshot, Revision, Watcher) {
        let (snapshot, revision, next) = {
            let state = self.state.read();
            (state.snapshot.clone(), state.revision, state.next)
        };
        (snapshot, revision, self.watcher(next, filter))
    }

    fn watcher(self: &Arc<Cache>, next: u64, filter: Filter) -> Watcher {
        let scope = self.scope_of(&filter);
        let waiting = Arc::new(AtomicWaker::new());
        self.scopes.lock().entry(scope.clone()).or_default().push(waiting.clone());
        Watcher { cache: self.clone(), filter, next, known: 0, scope, waiting }
    }

    /// The narrowest scope whose events are all that the filter can match, so that a kubelet wakes for
    /// its own pods only.
    fn scope_of(&self, filter: &Filter) -> WakeScope {
        if let (Some(namespace), Some(name)) = (&filter.namespace, &filter.name) {
            return WakeScope::Object(format!("{namespace}/{name}").into());
        }
        if let Some(value) = self.grouped_by.and_then(|field| filter.required_value(field)) {
            return WakeScope::Group(value.into());
        }
        match &filter.namespace {
            Some(namespace) => WakeScope::Namespace(namespace.clone()),
            None => WakeScope::All,
        }
    }
}

impl Watcher {
    /// Waits for events that the filter lets through, in order; never an empty answer. [`Gone`] when
    /// this watcher fell behind the ring.
    pub async fn next(&mut self) -> Result<Vec<Delivered>, Gone> {
        let first = std::future::poll_fn(|context| self.poll_next(context)).await?;
        let mut delivered = vec![first];
        while delivered.len() < BATCH
            && let Ok(Some(next)) = self.try_next()
        {
            delivered.push(next);
        }
        Ok(delivered)
    }

    /// The next event that the filter lets through.
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Result<Delivered, Gone>> {
        // Registered before the ring is read, so that nothing falls in between.
        self.waiting.register(context.waker());
        if self.cache.published.load(Ordering::Acquire) == self.next {
            return Poll::Pending;
        }
        match self.step()? {
            Step::To(delivered) => Poll::Ready(Ok(delivered)),
            // The rest has its turn after others had theirs.
            Step::Past => {
                context.waker().wake_by_ref();
                Poll::Pending
            }
            Step::End => Poll::Pending,
        }
    }

    /// The next event if it was there already with the last one. After `None` one asks with [`Watcher::poll_next`],
    /// which waits.
    pub fn try_next(&mut self) -> Result<Option<Delivered>, Gone> {
        if self.next == self.known {
            return Ok(None);
        }
        Ok(match self.step()? {
            Step::To(delivered) => Some(delivered),
            Step::Past | Step::End => None,
        })
    }

    fn step(&mut self) -> Result<Step, Gone> {
        let state = self.cache.state.read();
        let first = state.next - state.ring.len() as u64;
        if self.next < first {
            return Err(Gone { asked: Revision(0), oldest: state.forgotten });
        }
        self.known = state.next;
        for _ in 0..BATCH {
            let Some(event) = state.ring.get((self.next - first) as usize) else { break };
            self.next += 1;
            if let Some(change) = event.seen_through(&self.filter) {
                return Ok(Step::To((change, event.clone())));
            }
        }
        Ok(if self.next < self.known { Step::Past } else { Step::End })
    }
}

/// Where a look into the ring leads.
enum Step {
    To(Delivered),
    /// Past events that concern others, and there are more.
    Past,
    End,
}

impl Drop for Watcher {
    fn drop(&mut self) {
        let mut scopes = self.cache.scopes.lock();
        if let Some(watchers) = scopes.get_mut(&self.scope) {
            watchers.retain(|other| !Arc::ptr_eq(other, &self.waiting));
            if watchers.is_empty() {
                scopes.remove(&self.scope);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::{Entry, peek};
    use crate::strategy::Selectable;
    use ferry_api::selector::{FieldSelector, LabelSelector};

    static FIELDS: &[Selectable] = &[Selectable::new("spec.nodeName", "spec.nodeName", "")];

    fn cache() -> Arc<Cache> {
        Arc::new(Cache::new(peek::Paths::new(FIELDS), Some(0)))
    }

    fn pod(cache: &Cache, key: &str, node: &str, label: &str, revision: i64) {
        let json = format!(
            r#"{{"apiVersion":"v1","kind":"Pod","metadata":{{"labels":{{"app":"{label}"}}}},"spec":{{"nodeName":"{node}"}}}}"#
        );
        cache.put(
            Entry::from_stored(key.into(), &json.into(), Revision(revision), cache.paths()).expect("valid"),
        );
    }

    fn filter(namespace: Option<&str>, labels: &str, fields: &str) -> Filter {
        Filter::new(
            namespace,
            LabelSelector::parse(labels).expect("a selector"),
            &FieldSelector::parse(fields).expect("a selector"),
            FIELDS,
            |_| true,
        )
        .expect("selectable")
    }

    async fn changes(watcher: &mut Watcher) -> Vec<(Change, i64)> {
        let delivered = watcher.next().await.expect("in the ring");
        delivered.into_iter().map(|(change, event)| (change, event.revision.0)).collect()
    }

    #[tokio::test]
    async fn a_watch_from_a_revision_replays_what_came_after() {
        let cache = cache();
        pod(&cache, "a/x", "", "1", 5);
        pod(&cache, "a/x", "", "1", 7);
        pod(&cache, "b/y", "", "1", 8);
        let mut watcher = cache.watch_from(Revision(5), filter(None, "", "")).expect("in the ring");
        assert_eq!(changes(&mut watcher).await, [(Change::Modified, 7), (Change::Added, 8)]);
    }

    #[tokio::test]
    async fn an_object_that_leaves_the_selector_is_deleted_to_its_watcher() {
        let cache = cache();
        let mut watcher = cache.watch_from(Revision(0), filter(Some("a"), "app=1", "")).expect("in the ring");
        pod(&cache, "a/x", "", "1", 5);
        pod(&cache, "a/x", "", "2", 6);
        pod(&cache, "a/x", "", "1", 7);
        cache.delete("a/x", Revision(8));
        assert_eq!(
            changes(&mut watcher).await,
            [(Change::Added, 5), (Change::Deleted, 6), (Change::Added, 7), (Change::Deleted, 8)]
        );
    }

    #[tokio::test]
    async fn a_kubelet_wakes_for_its_own_pods_only() {
        let cache = cache();
        let mut watcher =
            cache.watch_from(Revision(0), filter(None, "", "spec.nodeName=n1")).expect("in the ring");
        assert_eq!(watcher.scope, WakeScope::Group("n1".into()));
        pod(&cache, "a/other", "n2", "1", 4);
        pod(&cache, "a/x", "n1", "1", 5);
        assert_eq!(changes(&mut watcher).await, [(Change::Added, 5)]);
    }

    #[tokio::test]
    async fn what_came_together_is_there_together_and_what_comes_later_wakes() {
        let cache = cache();
        let mut watcher = cache.watch_from(Revision(0), filter(None, "app=1", "")).expect("in the ring");
        for revision in 1..=3 {
            pod(&cache, "a/x", "", "1", revision);
        }
        assert_eq!(changes(&mut watcher).await.len(), 3);
        assert!(watcher.try_next().expect("in the ring").is_none());
        let waiting = tokio::spawn(async move { changes(&mut watcher).await });
        tokio::task::yield_now().await;
        // More than are looked at in one go, and none of them its own, before the one that is.
        for revision in 4..=(4 + BATCH as i64) {
            pod(&cache, "a/other", "", "2", revision);
        }
        pod(&cache, "a/x", "", "1", 1000);
        assert_eq!(waiting.await.expect("no panic"), [(Change::Modified, 1000)]);
    }

    #[tokio::test]
    async fn a_slow_watcher_is_told_that_its_revision_is_gone() {
        let cache = cache();
        let mut watcher = cache.watch_from(Revision(0), filter(None, "", "")).expect("in the ring");
        for revision in 1..=(super::super::RING_EVENTS as i64 + 10) {
            pod(&cache, "a/x", "", "1", revision);
        }
        assert!(watcher.next().await.is_err());
        assert!(cache.watch_from(Revision(3), filter(None, "", "")).is_err());
    }
}
