//! A position in the event ring of one resource, and the wait for more.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use ferry_store::Revision;
use futures::task::AtomicWaker;

use super::{Cache, Change, Event, Filter, Snapshot, State, WakeScope};

pub struct Watcher {
    cache: Arc<Cache>,
    filter: Filter,
    next: u64,
    /// How far the ring went when it was last looked into.
    known: u64,
    scope: WakeScope,
    /// This watcher's place among those that its scope wakes. Each has one of its own: hundreds are woken by one event, and
    /// would otherwise meet on the lock of whatever they share.
    waiting: Arc<Waiting>,
}

/// Where the events of a watcher's scope stand that it has not looked at. A kubelet's pods change once in thousands of
/// events: it need not look at the others, nor has it fallen behind when only these left the ring.
///
/// Writers note with `Cache::state` locked for writing, and the watcher looks with it locked for reading: never both at once.
/// For [`WakeScope::All`] nothing is noted, since each event is of that scope.
pub(super) struct Waiting {
    waker: AtomicWaker,
    /// None before this position is of the scope and unseen; [`NONE`] when none is at all.
    first: AtomicU64,
    last: AtomicU64,
}

const NONE: u64 = u64::MAX;

impl Waiting {
    /// One that has to look at the positions from `next` up to `end`.
    fn new(next: u64, end: u64) -> Waiting {
        let first = if next < end { next } else { NONE };
        Waiting {
            waker: AtomicWaker::new(),
            first: AtomicU64::new(first),
            last: AtomicU64::new(end.saturating_sub(1)),
        }
    }

    /// The event at `position` is of the scope.
    pub(super) fn note(&self, position: u64) {
        self.last.store(position, Ordering::Relaxed);
        self.first.fetch_min(position, Ordering::Release);
    }

    pub(super) fn wake(&self) {
        self.waker.wake();
    }

    /// Everything before `next` was looked at.
    fn looked(&self, next: u64) {
        let first = if self.last.load(Ordering::Relaxed) < next { NONE } else { next };
        self.first.store(first, Ordering::Relaxed);
    }
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
        let scope = self.scope_of(&filter);
        let state = self.state.read();
        if from < state.forgotten {
            return Err(Gone { asked: from, oldest: state.forgotten });
        }
        let skip = state.ring.partition_point(|event| event.revision <= from);
        let next = state.next - (state.ring.len() - skip) as u64;
        Ok(self.watcher(&state, next, scope, filter))
    }

    /// The current objects, and a watcher of every change after them.
    pub fn watch_now(self: &Arc<Cache>, filter: Filter) -> (Snapshot, Revision, Watcher) {
        let scope = self.scope_of(&filter);
        let state = self.state.read();
        (state.snapshot.clone(), state.revision, self.watcher(&state, state.next, scope, filter))
    }

    /// Takes its place while `state` is locked, so that it is told of each event after those it is going to look at.
    fn watcher(self: &Arc<Cache>, state: &State, next: u64, scope: WakeScope, filter: Filter) -> Watcher {
        let waiting = Arc::new(Waiting::new(next, state.next));
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
    /// this watcher fell behind the ring, or the resource is gone and there are no more.
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
        self.waiting.waker.register(context.waker());
        // Read before the ring as well: what comes last is there by then.
        let is_closed = self.cache.closed.load(Ordering::Acquire);
        let at_end = |cache: &Cache| match is_closed {
            true => Poll::Ready(Err(Gone { asked: Revision(0), oldest: cache.state.read().revision })),
            false => Poll::Pending,
        };
        let nothing = match self.scope {
            WakeScope::All => self.cache.published.load(Ordering::Acquire) == self.next,
            _ => self.waiting.first.load(Ordering::Acquire) == NONE,
        };
        if nothing {
            return at_end(&self.cache);
        }
        match self.step()? {
            Step::To(delivered) => Poll::Ready(Ok(delivered)),
            // The rest has its turn after others had theirs.
            Step::Past => {
                context.waker().wake_by_ref();
                Poll::Pending
            }
            Step::End => at_end(&self.cache),
        }
    }

    /// Whether the last look ended before the last event that was there.
    pub fn has_more(&self) -> bool {
        self.next < self.known
    }

    /// The next event if it was there already with the last one. After `None` one asks with [`Watcher::poll_next`],
    /// which waits.
    pub fn try_next(&mut self) -> Result<Option<Delivered>, Gone> {
        if !self.has_more() {
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
        let narrow = self.scope != WakeScope::All;
        if narrow {
            let unseen = self.waiting.first.load(Ordering::Relaxed).min(state.next);
            self.next = self.next.max(unseen);
        }
        if self.next < first {
            return Err(Gone { asked: Revision(0), oldest: state.forgotten });
        }
        self.known = state.next;
        let mut found = None;
        for _ in 0..BATCH {
            let Some(event) = state.ring.get((self.next - first) as usize) else { break };
            self.next += 1;
            if let Some(change) = event.seen_through(&self.filter) {
                found = Some((change, event.clone()));
                break;
            }
        }
        if narrow {
            self.waiting.looked(self.next);
            if self.waiting.last.load(Ordering::Relaxed) < self.next {
                self.next = state.next;
            }
        }
        Ok(match found {
            Some(delivered) => Step::To(delivered),
            None if self.has_more() => Step::Past,
            None => Step::End,
        })
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
    async fn pending_events_arrive_at_once_and_later_ones_wake_the_watcher() {
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
    async fn watchers_of_a_resource_that_goes_get_its_last_events_first() {
        let cache = cache();
        let narrow = filter(Some("a"), "", "");
        let mut watchers = [filter(None, "", ""), narrow]
            .map(|filter| cache.watch_from(Revision(0), filter).expect("in the ring"));
        pod(&cache, "a/x", "", "1", 1);
        pod(&cache, "a/x", "", "2", 2);
        cache.close();
        for watcher in &mut watchers {
            assert_eq!(watcher.next().await.expect("events").len(), 2);
            assert!(watcher.next().await.is_err());
        }
    }

    #[tokio::test]
    async fn a_watcher_that_waits_hears_that_its_resource_is_gone() {
        let cache = cache();
        let mut watcher = cache.watch_from(Revision(0), filter(None, "", "")).expect("in the ring");
        let (ended, ()) = tokio::join!(watcher.next(), async { cache.close() });
        assert!(ended.is_err());
    }

    #[tokio::test]
    async fn a_slow_watcher_gets_gone() {
        let cache = cache();
        let mut watcher = cache.watch_from(Revision(0), filter(None, "", "")).expect("in the ring");
        for revision in 1..=(super::super::RING_EVENTS as i64 + 10) {
            pod(&cache, "a/x", "", "1", revision);
        }
        assert!(watcher.next().await.is_err());
        assert!(cache.watch_from(Revision(3), filter(None, "", "")).is_err());
    }

    const RING: i64 = super::super::RING_EVENTS as i64;

    fn others(cache: &Cache, revisions: std::ops::Range<i64>) {
        revisions.for_each(|revision| pod(cache, "b/other", "n2", "1", revision));
    }

    /// Watchers that are woken for "a/x" on n1 and not for "b/other" on n2.
    fn narrow() -> [Filter; 3] {
        [
            filter(None, "", "spec.nodeName=n1"),
            filter(Some("a"), "", ""),
            filter(Some("a"), "", "metadata.name=x"),
        ]
    }

    #[tokio::test]
    async fn unselected_events_do_not_drop_a_narrow_watcher() {
        for filter in narrow() {
            let cache = cache();
            pod(&cache, "a/x", "n1", "1", 1);
            let mut from = cache.watch_from(Revision(0), filter.clone()).expect("in the ring");
            let (_, _, mut now) = cache.watch_now(filter);
            assert_eq!(changes(&mut from).await, [(Change::Added, 1)]);
            others(&cache, 2..RING + 100);
            for start in [20_000, 30_000] {
                pod(&cache, "a/x", "n1", "1", start);
                others(&cache, start + 1..start + 100);
                pod(&cache, "a/x", "n1", "2", start + 100);
                others(&cache, start + 101..start + RING - 100);
                for watcher in [&mut from, &mut now] {
                    let expected = [(Change::Modified, start), (Change::Modified, start + 100)];
                    assert_eq!(changes(watcher).await, expected, "{:?}", watcher.scope);
                    assert!(!watcher.has_more());
                }
                // Twice as many as the ring holds, and nobody looks.
                others(&cache, start + RING..start + 2 * RING);
            }
            cache.delete("a/x", Revision(50_000));
            assert_eq!(changes(&mut from).await, [(Change::Deleted, 50_000)]);
            assert_eq!(changes(&mut now).await, [(Change::Deleted, 50_000)]);
        }
    }

    #[tokio::test]
    async fn a_narrow_watcher_gets_gone_when_its_event_left_the_ring() {
        for filter in narrow() {
            let cache = cache();
            pod(&cache, "a/x", "n1", "1", 1);
            // One that never looked, one that had seen all there was, one that was amid its own.
            let mut unseen = cache.watch_from(Revision(0), filter.clone()).expect("in the ring");
            let (_, _, mut idle) = cache.watch_now(filter.clone());
            let mut amid = cache.watch_from(Revision(0), filter).expect("in the ring");
            pod(&cache, "a/x", "n1", "1", 2);
            let first = std::future::poll_fn(|context| amid.poll_next(context)).await.expect("in the ring");
            assert_eq!(first.1.revision, Revision(1));
            others(&cache, 3..RING + 3);
            pod(&cache, "a/x", "n1", "1", RING + 3);
            for watcher in [&mut unseen, &mut idle, &mut amid] {
                assert!(watcher.next().await.is_err(), "{:?}", watcher.scope);
                assert!(watcher.next().await.is_err(), "it stays gone");
            }
        }
    }

    #[tokio::test]
    async fn a_cache_that_is_filled_again_ends_every_watch() {
        for filter in narrow().into_iter().chain([filter(None, "", "")]) {
            let cache = cache();
            let (_, _, mut watcher) = cache.watch_now(filter);
            cache.reset([], Revision(5));
            pod(&cache, "a/x", "n1", "1", 6);
            assert!(watcher.next().await.is_err(), "{:?}", watcher.scope);
        }
    }

    #[test]
    fn a_watcher_amid_events_of_others_has_more_to_look_at() {
        let cache = cache();
        let (_, _, mut watcher) = cache.watch_now(filter(None, "app=1", ""));
        let mut context = Context::from_waker(futures::task::noop_waker_ref());
        for revision in 1..=BATCH as i64 + 1 {
            pod(&cache, "a/other", "", "2", revision);
        }
        assert!(watcher.poll_next(&mut context).is_pending());
        assert!(watcher.has_more(), "a bookmark now would cover what it has not looked at");
        assert!(watcher.poll_next(&mut context).is_pending());
        assert!(!watcher.has_more());
    }

    /// Four writers, nodes with many events and with few. Each watcher sees all events of its node, each once and in order,
    /// up to the last, or up to the one before which it is told that it fell behind.
    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn beside_many_writers_a_narrow_watcher_gets_every_event_once_or_is_told() {
        const WRITERS: usize = 4;
        const EVENTS: usize = 8_000;
        const NODES: usize = 12;
        // The higher its number, the rarer a node's events.
        let node_of = |event: usize| (event.trailing_zeros() as usize).min(NODES - 1);
        let cache = cache();
        let watchers: Vec<_> = (0..NODES)
            .flat_map(|node| [node; 3])
            .map(|node| {
                let (_, _, mut watcher) =
                    cache.watch_now(filter(None, "", &format!("spec.nodeName=n{node}")));
                let watch = async move {
                    let mut seen: Vec<Vec<usize>> = vec![Vec::new(); WRITERS];
                    loop {
                        let Ok(delivered) = watcher.next().await else { return (node, seen, false) };
                        for (_, event) in delivered {
                            let writer = event.entry.namespace().parse::<usize>().expect("a writer's number");
                            if writer == WRITERS {
                                return (node, seen, true);
                            }
                            seen[writer]
                                .push(event.entry.label("app").expect("a number").parse().expect("one"));
                        }
                    }
                };
                tokio::spawn(watch)
            })
            .collect();
        let revisions = Arc::new(std::sync::atomic::AtomicI64::new(1));
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| {
                let (cache, revisions) = (cache.clone(), revisions.clone());
                std::thread::spawn(move || {
                    for event in 1..=EVENTS {
                        let node = node_of(event);
                        let (key, node) = (format!("{writer}/p{node}"), format!("n{node}"));
                        pod(
                            &cache,
                            &key,
                            &node,
                            &event.to_string(),
                            revisions.fetch_add(1, Ordering::Relaxed),
                        );
                    }
                })
            })
            .collect();
        tokio::task::spawn_blocking(move || {
            writers.into_iter().for_each(|writer| writer.join().expect("no panic"))
        })
        .await
        .expect("no panic");
        for node in 0..NODES {
            let revision = revisions.fetch_add(1, Ordering::Relaxed);
            pod(&cache, &format!("{WRITERS}/end"), &format!("n{node}"), "0", revision);
        }
        for watcher in watchers {
            let (node, seen, to_the_end) = watcher.await.expect("no panic");
            for of_writer in seen {
                let all = (1..=EVENTS).filter(|event| node_of(*event) == node);
                let expected: Vec<usize> = match to_the_end {
                    true => all.collect(),
                    false => all.take(of_writer.len()).collect(),
                };
                assert_eq!(of_writer, expected, "node {node}, to the end: {to_the_end}");
            }
        }
    }
}
