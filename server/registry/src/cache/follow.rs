//! Follows a cache: delivers the current objects and every later change to a consumer that derives state from them (RBAC,
//! the Node authorizer's graph, bootstrap tokens), also across a relist.
//!
//! If a follower falls behind the ring, or its cache is refilled from the store, individual changes are lost. The follower
//! then delivers the difference between what it has delivered so far and the current objects. Therefore it keeps what it
//! has delivered; the cache's former content may differ from that.

use std::sync::Arc;

use ferry_store::Revision;

use super::{Cache, Change, Entry, Event, Filter, Snapshot, Watcher};

/// One object that came or changed, or went.
#[derive(Clone, Copy)]
pub enum Delta<'a> {
    Set {
        entry: &'a Arc<Entry>,
        /// The object as it was told before.
        previous: Option<&'a Entry>,
    },
    Gone(&'a Arc<Entry>),
}

/// Tells `apply` what matches `filter` before it returns, then every change, for as long as the server lives. Changes of
/// one moment come together.
pub fn follow<F>(cache: &Arc<Cache>, filter: Filter, apply: F)
where
    F: FnMut(&mut dyn Iterator<Item = Delta<'_>>) + Send + 'static,
{
    let mut follower = Follower::start(cache, filter, apply);
    tokio::spawn(async move {
        loop {
            follower.step().await;
        }
    });
}

/// Shows `judge` one object until it answers: its changes after `from`, where the cache still has them, else as it is
/// now, and every change from there. `None` stands for an object that is not there.
pub async fn until<T>(
    cache: &Arc<Cache>,
    namespace: &str,
    name: &str,
    from: Option<Revision>,
    mut judge: impl FnMut(Option<Delta<'_>>) -> Option<T>,
) -> T {
    let object = Filter::of_object(namespace, name);
    let key = if namespace.is_empty() { name.to_string() } else { format!("{namespace}/{name}") };
    let mut replay = from.and_then(|from| cache.watch_from(from, object.clone()).ok());
    loop {
        let mut watcher = match replay.take() {
            Some(watcher) => watcher,
            None => {
                let (snapshot, _, watcher) = cache.watch_now(object.clone());
                if let Some(answer) =
                    judge(snapshot.get(&*key).map(|entry| Delta::Set { entry, previous: None }))
                {
                    return answer;
                }
                watcher
            }
        };
        while let Ok(delivered) = watcher.next().await {
            for (change, event) in &delivered {
                if let Some(answer) = judge(Some(Delta::of(*change, event))) {
                    return answer;
                }
            }
        }
    }
}

impl<'a> Delta<'a> {
    fn of(change: Change, event: &'a Event) -> Delta<'a> {
        match change {
            Change::Deleted => Delta::Gone(&event.entry),
            Change::Added => Delta::Set { entry: &event.entry, previous: None },
            Change::Modified => Delta::Set { entry: &event.entry, previous: event.previous.as_deref() },
        }
    }
}

struct Follower<F> {
    cache: Arc<Cache>,
    filter: Filter,
    watcher: Watcher,
    /// What `apply` was told and did not hear go.
    told: Snapshot,
    apply: F,
}

impl<F: FnMut(&mut dyn Iterator<Item = Delta<'_>>)> Follower<F> {
    fn start(cache: &Arc<Cache>, filter: Filter, apply: F) -> Follower<F> {
        let (snapshot, _, watcher) = cache.watch_now(filter.clone());
        let mut follower = Follower { cache: cache.clone(), filter, watcher, told: Snapshot::new(), apply };
        follower.tell_difference(snapshot);
        follower
    }

    async fn step(&mut self) {
        let Ok(delivered) = self.watcher.next().await else {
            let (snapshot, _, watcher) = self.cache.watch_now(self.filter.clone());
            self.watcher = watcher;
            return self.tell_difference(snapshot);
        };
        (self.apply)(&mut delivered.iter().map(|(change, event)| Delta::of(*change, event)));
        for (change, event) in &delivered {
            match change {
                Change::Deleted => self.told.remove(&event.entry.key),
                Change::Added | Change::Modified => {
                    self.told.insert(event.entry.key.clone(), event.entry.clone())
                }
            };
        }
    }

    fn tell_difference(&mut self, mut snapshot: Snapshot) {
        let unmatched: Vec<_> = snapshot
            .values()
            .filter(|entry| !self.filter.matches(entry))
            .map(|entry| entry.key.clone())
            .collect();
        unmatched.iter().for_each(|key| drop(snapshot.remove(key)));
        let told = std::mem::replace(&mut self.told, snapshot);
        let gone = told.values().filter(|entry| !self.told.contains_key(&entry.key));
        let set = self.told.values().filter_map(|entry| {
            let previous = told.get(&entry.key).map(Arc::as_ref);
            let same = previous.is_some_and(|previous| previous.revision == entry.revision);
            (!same).then_some(Delta::Set { entry, previous })
        });
        (self.apply)(&mut gone.map(Delta::Gone).chain(set));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use parking_lot::Mutex;

    use super::*;
    use crate::cache::{RING_EVENTS, peek};

    /// What a follower derives here: the label of each object. It refuses what does not follow from what it was told.
    type Derived = Arc<Mutex<BTreeMap<String, String>>>;

    fn apply(derived: &Derived, deltas: &mut dyn Iterator<Item = Delta<'_>>) {
        let mut derived = derived.lock();
        for delta in deltas {
            match delta {
                Delta::Set { entry, previous } => {
                    let label = |entry: &Entry| entry.label("app").unwrap_or("").to_string();
                    let before = derived.insert(entry.key.to_string(), label(entry));
                    assert_eq!(before, previous.map(label), "{}", entry.key);
                }
                Delta::Gone(entry) => {
                    assert!(derived.remove(&*entry.key).is_some(), "{} was never told", entry.key);
                }
            }
        }
    }

    fn entry(key: &str, label: &str, revision: i64) -> Entry {
        let json = format!(
            r#"{{"apiVersion":"v1","kind":"ConfigMap","metadata":{{"labels":{{"app":"{label}"}}}}}}"#
        );
        Entry::from_stored(key.into(), &json.into(), Revision(revision), &peek::Paths::new(&[]))
            .expect("valid")
    }

    fn reset(cache: &Cache, entries: &[(&str, &str, i64)], revision: i64) {
        cache.reset(entries.iter().map(|(key, label, at)| Ok(entry(key, label, *at))), Revision(revision));
    }

    struct Scene {
        cache: Arc<Cache>,
        derived: Derived,
    }

    impl Scene {
        /// Waits until what was derived is what the cache holds, and says what that is.
        async fn settled(&self, expected: &[(&str, &str)]) {
            let owned = |(key, label): &(&str, &str)| (key.to_string(), label.to_string());
            let expected: BTreeMap<String, String> = expected.iter().map(owned).collect();
            for _ in 0..10_000 {
                if *self.derived.lock() == expected {
                    return;
                }
                tokio::task::yield_now().await;
            }
            assert_eq!(*self.derived.lock(), expected);
        }
    }

    fn scene(filter: Filter, start: &[(&str, &str, i64)]) -> Scene {
        let cache = Arc::new(Cache::new(peek::Paths::new(&[]), None));
        reset(&cache, start, 5);
        let derived = Derived::default();
        let told = derived.clone();
        follow(&cache, filter, move |deltas| apply(&told, deltas));
        Scene { cache, derived }
    }

    #[tokio::test]
    async fn followers_get_the_initial_state_first() {
        let scene = scene(Filter::default(), &[("a/x", "1", 3), ("b/y", "2", 4)]);
        assert_eq!(scene.derived.lock().len(), 2);
    }

    #[tokio::test]
    async fn events_are_told_in_order() {
        let scene = scene(Filter::default(), &[("a/x", "1", 3)]);
        scene.cache.put(entry("a/x", "2", 6));
        scene.cache.put(entry("a/z", "3", 7));
        scene.cache.delete("a/x", Revision(8));
        scene.settled(&[("a/z", "3")]).await;
    }

    #[tokio::test]
    async fn a_refill_takes_out_what_came_by_an_event_and_is_gone() {
        let scene = scene(Filter::default(), &[("a/old", "1", 3), ("a/kept", "1", 4)]);
        scene.cache.put(entry("a/new", "1", 6));
        scene.cache.delete("a/old", Revision(7));
        scene.settled(&[("a/kept", "1"), ("a/new", "1")]).await;
        reset(&scene.cache, &[("a/kept", "2", 9), ("a/other", "1", 10)], 10);
        scene.settled(&[("a/kept", "2"), ("a/other", "1")]).await;
        // And again, after a refill.
        scene.cache.put(entry("a/later", "1", 11));
        scene.settled(&[("a/kept", "2"), ("a/later", "1"), ("a/other", "1")]).await;
        reset(&scene.cache, &[], 12);
        scene.settled(&[]).await;
    }

    #[tokio::test]
    async fn events_that_a_refill_overtook_are_not_told() {
        let scene = scene(Filter::default(), &[("a/x", "1", 3)]);
        scene.cache.put(entry("a/unseen", "1", 6));
        reset(&scene.cache, &[("a/x", "1", 3)], 8);
        scene.cache.put(entry("a/seen", "1", 9));
        scene.settled(&[("a/seen", "1"), ("a/x", "1")]).await;
    }

    #[tokio::test]
    async fn falling_behind_the_ring_loses_nothing() {
        let scene = scene(Filter::default(), &[("a/gone", "1", 3)]);
        scene.cache.delete("a/gone", Revision(6));
        for revision in 7..(RING_EVENTS as i64 + 20) {
            scene.cache.put(entry("a/x", &revision.to_string(), revision));
        }
        scene.settled(&[("a/x", &(RING_EVENTS + 19).to_string())]).await;
    }

    #[tokio::test]
    async fn a_filter_holds_from_the_first_moment_on() {
        let scene = scene(Filter::in_namespace("a"), &[("a/x", "1", 3), ("b/y", "1", 4)]);
        scene.settled(&[("a/x", "1")]).await;
        scene.cache.put(entry("b/z", "1", 6));
        scene.cache.put(entry("a/z", "1", 7));
        scene.settled(&[("a/x", "1"), ("a/z", "1")]).await;
        reset(&scene.cache, &[("a/z", "1", 7), ("b/z", "1", 6)], 8);
        scene.settled(&[("a/z", "1")]).await;
    }

    #[tokio::test]
    async fn one_object_is_seen_from_a_revision_on_and_over_a_refill() {
        let cache = Arc::new(Cache::new(peek::Paths::new(&[]), None));
        cache.put(entry("a/x", "1", 3));
        cache.put(entry("a/x", "2", 4));
        cache.put(entry("a/y", "9", 5));
        let watched = cache.clone();
        let waiting = tokio::spawn(async move {
            let mut seen = Vec::new();
            until(&watched, "a", "x", Some(Revision(3)), |delta| {
                let label = match delta {
                    Some(Delta::Set { entry, .. }) => entry.label("app").unwrap_or("").to_string(),
                    Some(Delta::Gone(_)) => "gone".to_string(),
                    None => "absent".to_string(),
                };
                let is_last = label == "last";
                seen.push(label);
                is_last.then(|| std::mem::take(&mut seen))
            })
            .await
        });
        tokio::task::yield_now().await;
        cache.delete("a/x", Revision(6));
        tokio::task::yield_now().await;
        reset(&cache, &[], 7);
        tokio::task::yield_now().await;
        cache.put(entry("a/x", "last", 8));
        assert_eq!(waiting.await.expect("no panic"), ["2", "gone", "absent", "last"]);
    }
}
