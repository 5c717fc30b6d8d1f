//! The scheduling queue: pods that wait for a node.
//!
//! ```text
//!            ┌────────── put ──────────┐
//!            ▼                         │ gates gone
//!  pop ── Active ◄── time ── Backoff   Gated
//!   │        ▲                 ▲
//!   ▼        └──── wake ───────┤
//! InFlight ── refused ──► Unschedulable
//!   │  └───── failed ────────► Backoff
//!   └── remove (bound, deleted)
//! ```
//!
//! PrioritySort is the order of Active, SchedulingGates the place Gated. Time is an argument.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use ferry_client::NamespacedName;
use tokio::time::Instant;

use ferry_metrics::Gauge;

use crate::metrics;
use crate::pod_info::PodInfo;

/// Highest priority first, then who came first.
type Order = (Reverse<i32>, u64);

pub struct Queue {
    backoff: Backoff,
    entries: HashMap<NamespacedName, QueuedPodInfo>,
    active: BTreeMap<Order, NamespacedName>,
    waiting: BTreeMap<(Instant, u64), NamespacedName>,
    /// Apart from the others, since every event in the cluster asks for these alone.
    unschedulable: BTreeMap<u64, NamespacedName>,
    sequence: u64,
    /// When unschedulable pods were last looked through.
    flushed: Option<Instant>,
    pending: Pending,
}

/// How many pods are in each place.
struct Pending {
    gated: Arc<Gauge>,
    active: Arc<Gauge>,
    backoff: Arc<Gauge>,
    unschedulable: Arc<Gauge>,
}

impl Pending {
    fn add(&self, place: SubQueue, more: f64) {
        match place {
            SubQueue::Gated => self.gated.add(more),
            SubQueue::Active => self.active.add(more),
            SubQueue::Backoff { .. } => self.backoff.add(more),
            SubQueue::Unschedulable => self.unschedulable.add(more),
            SubQueue::InFlight => {}
        }
    }
}

/// How long a pod waits after each attempt.
#[derive(Clone, Copy, Debug)]
pub struct Backoff {
    pub initial: Duration,
    pub max: Duration,
    /// A pod that nothing seemed to help is tried again after this long all the same.
    pub max_unschedulable: Duration,
}

struct QueuedPodInfo {
    pod: Arc<PodInfo>,
    place: SubQueue,
    attempts: u32,
    sequence: u64,
    /// When it was first tried.
    first_tried: Option<Instant>,
    /// The end of its last attempt.
    tried: Option<Instant>,
    refused_by: Vec<&'static str>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SubQueue {
    Gated,
    Active,
    /// Until then; an attempt that failed in itself is not tried sooner even when idle.
    Backoff {
        until: Instant,
        failed: bool,
    },
    Unschedulable,
    InFlight,
}

impl Queue {
    pub fn new(backoff: Backoff) -> Self {
        Queue {
            backoff,
            entries: HashMap::new(),
            active: BTreeMap::new(),
            waiting: BTreeMap::new(),
            unschedulable: BTreeMap::new(),
            sequence: 0,
            flushed: None,
            pending: Pending {
                gated: metrics::PENDING_PODS.with(["gated"]),
                active: metrics::PENDING_PODS.with(["active"]),
                backoff: metrics::PENDING_PODS.with(["backoff"]),
                unschedulable: metrics::PENDING_PODS.with(["unschedulable"]),
            },
        }
    }

    pub fn place(&self, key: &NamespacedName) -> Option<SubQueue> {
        self.entries.get(key).map(|entry| entry.place)
    }

    pub fn pod(&self, key: &NamespacedName) -> Option<&Arc<PodInfo>> {
        self.entries.get(key).map(|entry| &entry.pod)
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub fn has_unschedulable(&self) -> bool {
        !self.unschedulable.is_empty()
    }

    /// Takes a pod as it is now. A change to what it asks for is a reason to try it again.
    pub fn put(&mut self, pod: Arc<PodInfo>, now: Instant) {
        let gated = pod.is_gated();
        let key = pod.key.clone();
        let Some(entry) = self.entries.get_mut(&key) else {
            self.sequence += 1;
            let place = SubQueue::Gated;
            let entry = QueuedPodInfo {
                pod,
                place,
                attempts: 0,
                sequence: self.sequence,
                first_tried: None,
                tried: None,
                refused_by: Vec::new(),
            };
            self.entries.insert(key.clone(), entry);
            self.pending.add(place, 1.0);
            match gated {
                true => metrics::incoming("PodAdd", "gated"),
                false => self.set(&key, SubQueue::Active, "PodAdd"),
            }
            return;
        };
        if entry.pod.uid != pod.uid {
            self.remove(&key);
            return self.put(pod, now);
        }
        let asks_differently = asks_differently(&entry.pod, &pod);
        let place = entry.place;
        if place == SubQueue::Active && entry.pod.priority != pod.priority {
            self.set(&key, SubQueue::Gated, "");
        }
        if let Some(entry) = self.entries.get_mut(&key) {
            entry.pod = pod;
        }
        match place {
            SubQueue::Gated if !gated => self.set(&key, SubQueue::Active, "PodUpdate"),
            SubQueue::Active => self.set(&key, SubQueue::Active, ""),
            SubQueue::Unschedulable if asks_differently => self.ready(&key, now, "PodUpdate"),
            _ => {}
        }
    }

    pub fn remove(&mut self, key: &NamespacedName) -> Option<Arc<PodInfo>> {
        self.set(key, SubQueue::Gated, "");
        let entry = self.entries.remove(key)?;
        self.pending.add(SubQueue::Gated, -1.0);
        Some(entry.pod)
    }

    /// The next pod to try; it is then in flight until it is refused, failed or removed.
    pub fn pop(&mut self, now: Instant) -> Option<Arc<PodInfo>> {
        self.release_due(now);
        let next = self.active.first_key_value().map(|(_, key)| key.clone());
        let key = next.or_else(|| self.earliest_backoff())?;
        self.set(&key, SubQueue::InFlight, "");
        let entry = self.entries.get_mut(&key)?;
        entry.attempts += 1;
        entry.first_tried.get_or_insert(now);
        Some(entry.pod.clone())
    }

    /// How often the pod was tried, and when first.
    pub fn attempts(&self, key: &NamespacedName) -> Option<(u32, Instant)> {
        let entry = self.entries.get(key)?;
        Some((entry.attempts, entry.first_tried?))
    }

    /// With nothing else to do there is no reason to let a pod wait that an event has called.
    fn earliest_backoff(&self) -> Option<NamespacedName> {
        let called = self
            .waiting
            .values()
            .find(|key| matches!(self.place(key), Some(SubQueue::Backoff { failed: false, .. })));
        called.cloned()
    }

    /// No node fits; it waits until something happens that these plugins say may help.
    pub fn refused(&mut self, key: &NamespacedName, by: Vec<&'static str>, now: Instant) {
        if let Some(entry) = self.entries.get_mut(key) {
            entry.refused_by = by;
            entry.tried = Some(now);
            self.set(key, SubQueue::Unschedulable, "ScheduleAttemptFailure");
        }
    }

    /// Something went wrong that has nothing to do with the pod; it is tried again.
    pub fn failed(&mut self, key: &NamespacedName, now: Instant) {
        if let Some(entry) = self.entries.get_mut(key) {
            entry.tried = Some(now);
            let until = now + self.backoff.after(entry.attempts);
            self.set(key, SubQueue::Backoff { until, failed: true }, "ScheduleAttemptFailure");
        }
    }

    /// Calls the unschedulable pods that `helps` says may fit now; returns how many.
    pub fn wake(
        &mut self,
        now: Instant,
        event: &str,
        mut helps: impl FnMut(&PodInfo, &[&'static str]) -> bool,
    ) -> usize {
        let helped = |key: &&NamespacedName| {
            self.entries.get(*key).is_some_and(|entry| helps(&entry.pod, &entry.refused_by))
        };
        let called: Vec<NamespacedName> = self.unschedulable.values().filter(helped).cloned().collect();
        for key in &called {
            self.ready(key, now, event);
        }
        called.len()
    }

    /// When there may be something to do without any event.
    pub fn next_deadline(&self) -> Option<Instant> {
        let backoff = self.waiting.keys().next().map(|(until, _)| *until);
        let flush = self
            .has_unschedulable()
            .then(|| self.flushed.map(|flushed| flushed + self.flush_period()))
            .flatten();
        [backoff, flush].into_iter().flatten().min()
    }

    fn flush_period(&self) -> Duration {
        self.backoff.max_unschedulable / 10
    }

    fn release_due(&mut self, now: Instant) {
        while let Some(((until, _), key)) = self.waiting.first_key_value().map(|(at, key)| (*at, key.clone()))
        {
            if until > now {
                break;
            }
            self.set(&key, SubQueue::Active, "BackoffComplete");
        }
        let flushed = *self.flushed.get_or_insert(now);
        if self.has_unschedulable() && now >= flushed + self.flush_period() {
            self.flushed = Some(now);
            let long = self.backoff.max_unschedulable;
            let tried = |key: &&NamespacedName| self.entries.get(*key).and_then(|entry| entry.tried);
            let forgotten = |key: &&NamespacedName| tried(key).is_some_and(|tried| now >= tried + long);
            let forgotten: Vec<NamespacedName> =
                self.unschedulable.values().filter(forgotten).cloned().collect();
            for key in forgotten {
                self.ready(&key, now, "UnschedulableTimeout");
            }
        }
    }

    /// To Active, or to Backoff if its last attempt is too recent.
    fn ready(&mut self, key: &NamespacedName, now: Instant, event: &str) {
        let Some(entry) = self.entries.get(key) else { return };
        let until = entry.tried.map(|tried| tried + self.backoff.after(entry.attempts));
        match until.filter(|until| *until > now) {
            Some(until) => self.set(key, SubQueue::Backoff { until, failed: false }, event),
            None => self.set(key, SubQueue::Active, event),
        }
    }

    /// The only place where an entry moves, so that the orders always agree with the entries. `event` is what moves it; without
    /// one it is not counted.
    fn set(&mut self, key: &NamespacedName, to: SubQueue, event: &str) {
        let Some(entry) = self.entries.get_mut(key) else { return };
        let order = (Reverse(entry.pod.priority), entry.sequence);
        match entry.place {
            SubQueue::Active => drop(self.active.remove(&order)),
            SubQueue::Backoff { until, .. } => drop(self.waiting.remove(&(until, entry.sequence))),
            SubQueue::Unschedulable => drop(self.unschedulable.remove(&entry.sequence)),
            SubQueue::Gated | SubQueue::InFlight => {}
        }
        self.pending.add(entry.place, -1.0);
        self.pending.add(to, 1.0);
        if !event.is_empty()
            && let Some(queue) = to.queue()
        {
            metrics::incoming(event, queue);
        }
        entry.place = to;
        match to {
            SubQueue::Active => drop(self.active.insert(order, key.clone())),
            SubQueue::Backoff { until, .. } => {
                drop(self.waiting.insert((until, entry.sequence), key.clone()))
            }
            SubQueue::Unschedulable => drop(self.unschedulable.insert(entry.sequence, key.clone())),
            SubQueue::Gated | SubQueue::InFlight => {}
        }
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        for entry in self.entries.values() {
            self.pending.add(entry.place, -1.0);
        }
    }
}

impl SubQueue {
    /// As metrics name it.
    fn queue(self) -> Option<&'static str> {
        match self {
            SubQueue::Gated => Some("gated"),
            SubQueue::Active => Some("active"),
            SubQueue::Backoff { .. } => Some("backoff"),
            SubQueue::Unschedulable => Some("unschedulable"),
            SubQueue::InFlight => None,
        }
    }
}

impl Backoff {
    /// Twice as long after every attempt, up to the maximum.
    fn after(&self, attempts: u32) -> Duration {
        let doubled = 2u32.saturating_pow(attempts.saturating_sub(1).min(20));
        self.initial.saturating_mul(doubled).min(self.max)
    }
}

impl Default for Backoff {
    fn default() -> Self {
        Backoff {
            initial: Duration::from_secs(1),
            max: Duration::from_secs(10),
            max_unschedulable: Duration::from_secs(300),
        }
    }
}

/// Status writes, our own among them, are no reason to try again.
fn asks_differently(old: &PodInfo, new: &PodInfo) -> bool {
    old.pod.spec != new.pod.spec
        || old.requests != new.requests
        || old.labels() != new.labels()
        || old.resource_claims != new.resource_claims
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Pod;

    use super::*;

    fn pod(name: &str, priority: i32, gate: bool) -> Arc<PodInfo> {
        let gates = if gate { serde_json::json!([{"name": "g"}]) } else { serde_json::Value::Null };
        let pod: Pod = serde_json::from_value(serde_json::json!({
            "metadata": {"name": name, "namespace": "default", "uid": name},
            "spec": {"containers": [], "priority": priority, "schedulingGates": gates}
        }))
        .unwrap();
        Arc::new(PodInfo::new(pod))
    }

    fn key(name: &str) -> NamespacedName {
        NamespacedName::new("default", name)
    }

    fn pop(queue: &mut Queue, now: Instant) -> Option<String> {
        queue.pop(now).map(|pod| pod.key.name.clone())
    }

    #[test]
    fn higher_priority_first_then_who_came_first() {
        let (mut queue, now) = (Queue::new(Backoff::default()), Instant::now());
        for (name, priority) in [("a", 0), ("b", 5), ("c", 0), ("d", 5)] {
            queue.put(pod(name, priority, false), now);
        }
        let order: Vec<String> = std::iter::from_fn(|| pop(&mut queue, now)).collect();
        assert_eq!(order, ["b", "d", "a", "c"]);
    }

    #[test]
    fn gates_hold_a_pod_back() {
        let (mut queue, now) = (Queue::new(Backoff::default()), Instant::now());
        queue.put(pod("a", 0, true), now);
        assert_eq!(pop(&mut queue, now), None);
        queue.put(pod("a", 0, false), now);
        assert_eq!(pop(&mut queue, now).as_deref(), Some("a"));
    }

    #[test]
    fn a_refused_pod_waits_for_an_event_that_helps_it() {
        let (mut queue, now) = (Queue::new(Backoff::default()), Instant::now());
        queue.put(pod("a", 0, false), now);
        queue.put(pod("b", 0, false), now);
        queue.pop(now);
        queue.pop(now);
        queue.refused(&key("a"), vec!["NodePorts"], now);
        queue.refused(&key("b"), vec!["NodeAffinity"], now);
        assert_eq!(queue.wake(now, "NodeAdd", |_, by| by.contains(&"NodeAffinity")), 1);
        assert_eq!(queue.place(&key("a")), Some(SubQueue::Unschedulable));
        assert!(matches!(queue.place(&key("b")), Some(SubQueue::Backoff { failed: false, .. })));
        assert_eq!(pop(&mut queue, now).as_deref(), Some("b"), "idle, so its back-off is cut short");
    }

    #[test]
    fn a_failed_attempt_waits_ever_longer() {
        let (mut queue, mut now) = (Queue::new(Backoff::default()), Instant::now());
        queue.put(pod("a", 0, false), now);
        let mut waited = Vec::new();
        for _ in 0..6 {
            queue.pop(now).unwrap();
            queue.failed(&key("a"), now);
            assert_eq!(pop(&mut queue, now), None);
            let until = queue.next_deadline().unwrap();
            waited.push((until - now).as_secs());
            now = until;
        }
        assert_eq!(waited, [1, 2, 4, 8, 10, 10]);
    }

    #[test]
    fn unschedulable_pods_are_retried_after_a_timeout() {
        let (mut queue, now) = (Queue::new(Backoff::default()), Instant::now());
        queue.put(pod("a", 0, false), now);
        queue.pop(now);
        queue.refused(&key("a"), vec!["NodeAffinity"], now);
        assert_eq!(pop(&mut queue, now + Duration::from_secs(299)), None);
        assert_eq!(pop(&mut queue, now + Duration::from_secs(331)).as_deref(), Some("a"));
    }

    #[test]
    fn a_status_write_wakes_no_pod_and_a_new_label_does() {
        let (mut queue, now) = (Queue::new(Backoff::default()), Instant::now());
        queue.put(pod("a", 0, false), now);
        queue.pop(now);
        queue.refused(&key("a"), vec!["InterPodAffinity"], now);
        queue.put(pod("a", 0, false), now);
        assert_eq!(queue.place(&key("a")), Some(SubQueue::Unschedulable));
        let mut changed = pod("a", 0, false).pod.clone();
        changed.metadata.labels = Some([("a".into(), "b".into())].into());
        queue.put(Arc::new(PodInfo::new(changed)), now);
        assert!(matches!(queue.place(&key("a")), Some(SubQueue::Backoff { .. })));
    }
}
