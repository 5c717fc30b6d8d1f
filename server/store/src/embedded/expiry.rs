//! Expiry of keys with a time to live, by the monotonic clock. After opening the store each key has its full time again, as
//! leases in etcd: only the wall clock knows how long the store was closed, and it can be wrong when a machine starts.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::Revision;

/// No key lives longer than this many years past the start; an `Instant` need not reach further.
const FAR: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// Deadlines in order. A key that was put again or deleted leaves its old deadline behind, which
/// is passed over when it comes up.
#[derive(Default)]
pub struct Expiry {
    deadlines: BinaryHeap<Reverse<(Instant, Arc<str>, Revision)>>,
}

impl Expiry {
    pub fn add(&mut self, now: Instant, ttl: Duration, key: Arc<str>, revision: Revision) {
        self.deadlines.push(Reverse((now + ttl.min(FAR), key, revision)));
    }

    pub fn next(&self) -> Option<Instant> {
        let Reverse((deadline, ..)) = self.deadlines.peek()?;
        Some(*deadline)
    }

    /// Takes out up to `limit` deadlines that have passed.
    pub fn due(&mut self, now: Instant, limit: usize) -> Vec<(Arc<str>, Revision)> {
        let mut due = Vec::new();
        while due.len() < limit
            && let Some(Reverse((_, key, revision))) = self
                .deadlines
                .peek_mut()
                .filter(|deadline| deadline.0.0 <= now)
                .map(std::collections::binary_heap::PeekMut::pop)
        {
            due.push((key, revision));
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expired_keys_come_out_in_order() {
        let start = Instant::now();
        let seconds = Duration::from_secs;
        let mut expiry = Expiry::default();
        expiry.add(start, seconds(60), "late".into(), Revision(3));
        expiry.add(start, seconds(5), "second".into(), Revision(2));
        expiry.add(start, seconds(4), "first".into(), Revision(1));
        expiry.add(start, Duration::MAX, "never".into(), Revision(4));
        assert_eq!(expiry.due(start, 10), []);
        let due: Vec<_> = expiry.due(start + seconds(5), 10).into_iter().map(|(key, _)| key).collect();
        assert_eq!(due, ["first".into(), "second".into()] as [Arc<str>; 2]);
        assert_eq!(expiry.next(), Some(start + seconds(60)));
        assert_eq!(expiry.due(start + seconds(61), 10).len(), 1);
    }
}
