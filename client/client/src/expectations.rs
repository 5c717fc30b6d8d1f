//! Expectations: writes of a controller that its informer has not delivered yet.
//!
//! A loop that creates three pods and looks again before they are in its store would create
//! three more. It writes down what it expects, and looks again only when that has been seen,
//! or when so much time has passed that it never will be.

use std::collections::{HashMap, HashSet};
use std::hash::Hash;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// Creations still to be seen, by number, and deletions, by uid: a deletion is seen twice,
/// as a deletion timestamp and as the object's end, and must count once.
pub struct Expectations<K> {
    pending: Mutex<HashMap<K, Pending>>,
}

struct Pending {
    creations: usize,
    deletions: HashSet<String>,
    since: Instant,
}

impl<K: Eq + Hash> Expectations<K> {
    /// After this, a lost event is likelier than a slow one.
    pub const TIMEOUT: Duration = Duration::from_secs(5 * 60);

    pub fn expect_creations(&self, key: K, count: usize) {
        self.expect(key, |pending| pending.creations += count);
    }

    pub fn expect_deletions(&self, key: K, uids: impl IntoIterator<Item = String>) {
        self.expect(key, |pending| pending.deletions.extend(uids));
    }

    /// A creation was seen, or failed and will not be.
    pub fn creation_observed(&self, key: &K) {
        self.observe(key, |pending| pending.creations = pending.creations.saturating_sub(1));
    }

    /// A deletion was seen, or failed.
    pub fn deletion_observed(&self, key: &K, uid: &str) {
        self.observe(key, |pending| {
            pending.deletions.remove(uid);
        });
    }

    /// May the loop trust what it sees?
    pub fn satisfied(&self, key: &K) -> bool {
        self.pending.lock().get(key).is_none_or(|pending| pending.since.elapsed() > Self::TIMEOUT)
    }

    /// The object is gone; so is what was expected of it.
    pub fn forget(&self, key: &K) {
        self.pending.lock().remove(key);
    }

    fn expect(&self, key: K, add: impl FnOnce(&mut Pending)) {
        let mut all = self.pending.lock();
        let pending = all.entry(key).or_insert_with(Pending::new);
        if pending.since.elapsed() > Self::TIMEOUT {
            *pending = Pending::new();
        }
        add(pending);
    }

    fn observe(&self, key: &K, change: impl FnOnce(&mut Pending)) {
        let mut all = self.pending.lock();
        if let Some(pending) = all.get_mut(key) {
            change(pending);
            if pending.creations == 0 && pending.deletions.is_empty() {
                all.remove(key);
            }
        }
    }
}

impl<K> Default for Expectations<K> {
    fn default() -> Self {
        Expectations { pending: Mutex::default() }
    }
}

impl Pending {
    fn new() -> Self {
        Pending { creations: 0, deletions: HashSet::new(), since: Instant::now() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_loop_waits_for_what_it_did_but_not_for_ever() {
        let expectations = Expectations::default();
        assert!(expectations.satisfied(&"set"));
        expectations.expect_creations("set", 2);
        expectations.creation_observed(&"set");
        assert!(!expectations.satisfied(&"set"));
        expectations.creation_observed(&"set");
        assert!(expectations.satisfied(&"set"));
        expectations.expect_creations("set", 1);
        tokio::time::advance(Expectations::<&str>::TIMEOUT + Duration::from_secs(1)).await;
        assert!(expectations.satisfied(&"set"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_deletion_counts_once_however_often_it_is_seen() {
        let expectations = Expectations::default();
        expectations.expect_deletions("set", ["a".to_string(), "b".to_string()]);
        expectations.deletion_observed(&"set", "a");
        expectations.deletion_observed(&"set", "a");
        assert!(!expectations.satisfied(&"set"));
        expectations.deletion_observed(&"set", "b");
        assert!(expectations.satisfied(&"set"));
    }
}
