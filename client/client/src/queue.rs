//! A queue of keys that need work; it holds no events.
//!
//! - A key that is added while it waits is in the queue once.
//! - A key that is added while a worker processes it is queued again when that worker is done, so no key is ever in two
//!   workers.
//! - A failed key is retried with an increasing delay; a success resets it.
//! - A key keeps the revisions that caused it, up to a few: they are the causes of the reconcile.

pub mod metrics;

use std::cmp::Reverse;
use std::collections::hash_map::Entry;
use std::collections::{BinaryHeap, HashMap, HashSet, VecDeque};
use std::fmt::Debug;
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use metrics::Metrics;

/// Delays that double, from `base` up to `max`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    pub base: Duration,
    pub max: Duration,
}

impl Backoff {
    /// The delay after this many failures before the present one.
    pub fn delay(&self, failures: u32) -> Duration {
        let factor = 1u32.checked_shl(failures).unwrap_or(u32::MAX);
        self.base.saturating_mul(factor).min(self.max)
    }
}

impl Default for Backoff {
    /// Upstream's for controllers: a conflict is retried at once, a lasting fault every
    /// quarter of an hour.
    fn default() -> Self {
        Backoff { base: Duration::from_millis(5), max: Duration::from_secs(1000) }
    }
}

/// A queue of keys. Cloning shares it.
pub struct Queue<K> {
    shared: Arc<Shared<K>>,
}

struct Shared<K> {
    state: Mutex<State<K>>,
    /// Wakes waiting workers: a key is ready, an earlier deadline was set, or shut down.
    changed: Notify,
    backoff: Backoff,
    metrics: Arc<Metrics>,
}

struct State<K> {
    ready: VecDeque<K>,
    /// Keys that need work: in `ready`, or in a worker and added again.
    dirty: HashMap<K, Waiting>,
    working: HashSet<K>,
    /// Keys to be added later. An entry of the heap counts only while the map agrees.
    deadlines: HashMap<K, Instant>,
    timers: BinaryHeap<Reverse<Timer<K>>>,
    failures: HashMap<K, u32>,
    /// The causes of failed attempts: the next one answers them.
    unanswered: HashMap<K, Vec<i64>>,
    shut_down: bool,
    metrics: Arc<Metrics>,
}

#[derive(Debug)]
struct Waiting {
    since: Instant,
    causes: Vec<i64>,
}

struct Timer<K> {
    at: Instant,
    key: K,
}

/// A key that a worker processes; dropping it marks it as done.
pub struct Item<K: Clone + Eq + Hash> {
    pub key: K,
    /// The revisions that caused it to be added, in order.
    pub causes: Vec<i64>,
    /// How long it was ready before a worker took it.
    pub waited: Duration,
    taken: Instant,
    queue: Queue<K>,
}

impl<K: Clone + Eq + Hash> Queue<K> {
    pub fn new(backoff: Backoff) -> Self {
        Queue::with(backoff, Arc::new(Metrics::unnamed()))
    }

    /// A queue whose metrics have this name.
    pub fn named(name: &'static str) -> Self {
        Queue::with(Backoff::default(), metrics::of(name))
    }

    fn with(backoff: Backoff, metrics: Arc<Metrics>) -> Self {
        let state = State {
            ready: VecDeque::new(),
            dirty: HashMap::new(),
            working: HashSet::new(),
            deadlines: HashMap::new(),
            timers: BinaryHeap::new(),
            failures: HashMap::new(),
            unanswered: HashMap::new(),
            shut_down: false,
            metrics: metrics.clone(),
        };
        let shared = Shared { state: Mutex::new(state), changed: Notify::new(), backoff, metrics };
        Queue { shared: Arc::new(shared) }
    }

    pub fn add(&self, key: K) {
        self.add_caused(key, None);
    }

    /// Adds a key with the revision that caused it.
    pub fn add_caused(&self, key: K, cause: Option<i64>) {
        self.shared.state.lock().add(key, cause);
        self.shared.changed.notify_one();
    }

    /// Adds a key after a delay; of several delays the earliest applies.
    pub fn add_after(&self, key: K, delay: Duration) {
        if delay.is_zero() {
            return self.add(key);
        }
        let mut state = self.shared.state.lock();
        // A duration beyond what the clock can express never comes; nor should it.
        let Some(at) = Instant::now().checked_add(delay) else { return };
        if state.shut_down || state.deadlines.get(&key).is_some_and(|earlier| *earlier <= at) {
            return;
        }
        state.deadlines.insert(key.clone(), at);
        state.timers.push(Reverse(Timer { at, key }));
        drop(state);
        self.shared.changed.notify_one();
    }

    /// Adds a key after a delay that doubles with each failure in a row.
    pub fn add_failed(&self, key: K, causes: &[i64]) {
        self.shared.metrics.retries.inc();
        let delay = {
            let mut state = self.shared.state.lock();
            if !causes.is_empty() {
                state.unanswered.insert(key.clone(), causes.to_vec());
            }
            let failures = state.failures.entry(key.clone()).or_insert(0);
            let delay = self.shared.backoff.delay(*failures);
            *failures = failures.saturating_add(1);
            delay
        };
        self.add_after(key, delay);
    }

    /// Resets the failures of a key.
    pub fn forget(&self, key: &K) {
        self.shared.state.lock().failures.remove(key);
    }

    /// How often in a row the key has failed.
    pub fn failures(&self, key: &K) -> u32 {
        self.shared.state.lock().failures.get(key).copied().unwrap_or(0)
    }

    /// Keys that are ready; not those in workers or waiting for their time.
    pub fn len(&self) -> usize {
        self.shared.state.lock().ready.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Keys that wait for their time: failed, or asked for later.
    pub fn delayed(&self) -> usize {
        self.shared.state.lock().deadlines.len()
    }

    /// The next key, when there is one; None once the queue is shut down.
    pub async fn next(&self) -> Option<Item<K>> {
        loop {
            let changed = self.shared.changed.notified();
            let deadline = {
                let mut state = self.shared.state.lock();
                if state.shut_down {
                    return None;
                }
                state.add_due(Instant::now());
                if let Some((key, mut waiting)) = state.take() {
                    for cause in state.unanswered.remove(&key).into_iter().flatten().rev() {
                        if waiting.causes.len() < ferry_trace::Record::MAX_CAUSES
                            && !waiting.causes.contains(&cause)
                        {
                            waiting.causes.insert(0, cause);
                        }
                    }
                    if !state.ready.is_empty() {
                        // One notification may have stood for several keys.
                        self.shared.changed.notify_one();
                    }
                    let (taken, causes) = (Instant::now(), waiting.causes);
                    let waited = taken - waiting.since;
                    self.shared.metrics.taken(waited, taken);
                    return Some(Item { key, causes, waited, taken, queue: self.clone() });
                }
                state.next_deadline()
            };
            match deadline {
                Some(at) => tokio::select! {
                    () = changed => {}
                    () = tokio::time::sleep_until(at) => {}
                },
                None => changed.await,
            }
        }
    }

    /// Ends every wait; what is queued is dropped, since a restart lists everything again.
    pub fn shut_down(&self) {
        {
            let mut state = self.shared.state.lock();
            state.shut_down = true;
            let dropped = std::mem::take(&mut state.ready);
            self.shared.metrics.depth.add(-(dropped.len() as f64));
        }
        self.shared.changed.notify_waiters();
        self.shared.changed.notify_one();
    }

    fn done(&self, key: &K) {
        let mut state = self.shared.state.lock();
        state.working.remove(key);
        if state.dirty.contains_key(key) && !state.shut_down {
            state.ready.push_back(key.clone());
            state.metrics.depth.add(1.0);
            drop(state);
            self.shared.changed.notify_one();
        }
    }
}

impl<K: Clone + Eq + Hash> Default for Queue<K> {
    fn default() -> Self {
        Queue::new(Backoff::default())
    }
}

impl<K> Clone for Queue<K> {
    fn clone(&self) -> Self {
        Queue { shared: self.shared.clone() }
    }
}

impl<K: Clone + Eq + Hash> State<K> {
    fn add(&mut self, key: K, cause: Option<i64>) {
        if self.shut_down {
            return;
        }
        let waiting = match self.dirty.entry(key) {
            Entry::Occupied(waiting) => waiting.into_mut(),
            Entry::Vacant(new) => {
                self.metrics.adds.inc();
                if !self.working.contains(new.key()) {
                    self.ready.push_back(new.key().clone());
                    self.metrics.depth.add(1.0);
                }
                new.insert(Waiting { since: Instant::now(), causes: Vec::new() })
            }
        };
        if let Some(cause) = cause
            && !waiting.causes.contains(&cause)
        {
            if waiting.causes.len() == ferry_trace::Record::MAX_CAUSES {
                waiting.causes.remove(0);
            }
            waiting.causes.push(cause);
        }
    }

    /// Adds the keys whose time has come.
    fn add_due(&mut self, now: Instant) {
        while self.timers.peek().is_some_and(|Reverse(timer)| timer.at <= now) {
            if let Some(Reverse(timer)) = self.timers.pop()
                && self.deadlines.get(&timer.key) == Some(&timer.at)
            {
                self.deadlines.remove(&timer.key);
                self.add(timer.key, None);
            }
        }
    }

    fn take(&mut self) -> Option<(K, Waiting)> {
        let key = self.ready.pop_front()?;
        self.metrics.depth.add(-1.0);
        let waiting = self.dirty.remove(&key).expect("every ready key is dirty");
        self.working.insert(key.clone());
        Some((key, waiting))
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.timers.peek().map(|Reverse(timer)| timer.at)
    }
}

impl<K: Clone + Eq + Hash> Drop for Item<K> {
    fn drop(&mut self) {
        self.queue.shared.metrics.done(self.taken);
        self.queue.done(&self.key);
    }
}

impl<K> PartialEq for Timer<K> {
    fn eq(&self, other: &Self) -> bool {
        self.at == other.at
    }
}

impl<K> Eq for Timer<K> {}

impl<K> PartialOrd for Timer<K> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<K> Ord for Timer<K> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.at.cmp(&other.at)
    }
}

impl<K: Clone + Eq + Hash + Debug> Debug for Item<K> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", self.key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_server::until;

    const SECOND: Duration = Duration::from_secs(1);

    async fn nothing_within(queue: &Queue<&'static str>, time: Duration) {
        let next = tokio::time::timeout(time, queue.next()).await;
        assert!(next.is_err(), "unexpected {next:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn duplicates_collapse_and_keep_their_causes() {
        let queue = Queue::default();
        queue.add_caused("a", Some(3));
        queue.add_caused("b", Some(4));
        queue.add_caused("a", Some(5));
        queue.add_caused("a", Some(5));
        let first = queue.next().await.unwrap();
        assert_eq!((first.key, &first.causes[..]), ("a", &[3, 5][..]));
        assert_eq!(queue.next().await.unwrap().key, "b");
        nothing_within(&queue, SECOND).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_key_is_never_in_two_workers() {
        let queue = Queue::default();
        queue.add("a");
        let item = queue.next().await.unwrap();
        queue.add_caused("a", Some(9));
        nothing_within(&queue, SECOND).await;
        drop(item);
        assert_eq!(queue.next().await.unwrap().causes, [9]);
    }

    #[tokio::test(start_paused = true)]
    async fn an_attempt_answers_what_the_failed_one_before_it_did_not() {
        let queue = Queue::new(Backoff { base: SECOND, max: SECOND });
        queue.add_caused("a", Some(3));
        let failed = queue.next().await.unwrap();
        queue.add_failed("a", &failed.causes);
        drop(failed);
        queue.add_caused("a", Some(5));
        let next = queue.next().await.unwrap();
        assert_eq!(next.causes, [3, 5]);
        drop(next);
        queue.add_caused("a", Some(7));
        assert_eq!(queue.next().await.unwrap().causes, [7], "answered once");
    }

    #[tokio::test(start_paused = true)]
    async fn failures_back_off_and_success_forgives() {
        let queue = Queue::new(Backoff { base: SECOND, max: 5 * SECOND });
        let start = Instant::now();
        let mut waits = Vec::new();
        for _ in 0..5 {
            let before = Instant::now();
            queue.add_failed("a", &[]);
            drop(queue.next().await);
            waits.push((Instant::now() - before).as_secs());
        }
        assert_eq!(waits, [1, 2, 4, 5, 5]);
        assert_eq!(queue.failures(&"a"), 5);
        queue.forget(&"a");
        queue.add_failed("a", &[]);
        let before = Instant::now();
        drop(queue.next().await);
        assert_eq!((Instant::now() - before).as_secs(), 1);
        assert!(start.elapsed() >= 18 * SECOND);
    }

    #[tokio::test(start_paused = true)]
    async fn the_earliest_of_several_delays_holds_and_comes_once() {
        let queue = Queue::default();
        queue.add_after("a", 10 * SECOND);
        queue.add_after("a", 2 * SECOND);
        queue.add_after("a", 5 * SECOND);
        let start = Instant::now();
        drop(queue.next().await);
        assert_eq!(start.elapsed().as_secs(), 2);
        nothing_within(&queue, 20 * SECOND).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_waiting_worker_hears_of_an_earlier_deadline() {
        let queue = Queue::default();
        queue.add_after("late", 100 * SECOND);
        let worker = tokio::spawn({
            let queue = queue.clone();
            async move { queue.next().await.map(|item| item.key) }
        });
        tokio::time::sleep(SECOND).await;
        queue.add_after("early", SECOND);
        let start = Instant::now();
        assert_eq!(worker.await.unwrap(), Some("early"));
        assert_eq!(start.elapsed().as_secs(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn shutting_down_ends_every_waiting_worker() {
        let queue: Queue<&str> = Queue::default();
        let workers: Vec<_> = (0..3)
            .map(|_| {
                let queue = queue.clone();
                tokio::spawn(async move { queue.next().await.is_none() })
            })
            .collect();
        tokio::task::yield_now().await;
        queue.shut_down();
        for worker in workers {
            assert!(worker.await.unwrap());
        }
        queue.add("a");
        assert!(queue.next().await.is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn many_workers_share_many_keys_without_losing_one() {
        let queue = Queue::default();
        let handled: Arc<Mutex<Vec<u32>>> = Arc::default();
        let workers: Vec<_> = (0..8)
            .map(|_| {
                let (queue, handled) = (queue.clone(), handled.clone());
                tokio::spawn(async move {
                    while let Some(item) = queue.next().await {
                        tokio::task::yield_now().await;
                        handled.lock().push(item.key);
                    }
                })
            })
            .collect();
        (0..1000).for_each(|key| queue.add(key));
        until(|| handled.lock().len() == 1000).await;
        queue.shut_down();
        for worker in workers {
            worker.await.unwrap();
        }
        let mut handled = handled.lock().clone();
        handled.sort_unstable();
        assert_eq!(handled, (0..1000).collect::<Vec<_>>());
    }
}
