//! When keys with a time to live are due.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::Revision;

/// Wall time that does not jump: read once from the clock of the machine, from then on counted
/// by the monotonic one. Deadlines are kept across restarts, and a corrected clock expires
/// nothing early.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    started: Instant,
    wall: Duration,
}

impl Clock {
    pub fn start() -> Self {
        Clock {
            started: Instant::now(),
            wall: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO),
        }
    }

    /// Milliseconds since the epoch.
    pub fn millis(&self, at: Instant) -> u64 {
        (self.wall + at.saturating_duration_since(self.started)).as_millis() as u64
    }

    fn instant(&self, millis: u64) -> Instant {
        self.started + Duration::from_millis(millis).saturating_sub(self.wall)
    }
}

/// Deadlines in order. A key that was put again or deleted leaves its old deadline behind, which
/// is passed over when it comes up.
pub struct Expiry {
    pub clock: Clock,
    deadlines: BinaryHeap<Reverse<(u64, Arc<str>, Revision)>>,
}

impl Expiry {
    pub fn new(clock: Clock, deadlines: Vec<(u64, Arc<str>, Revision)>) -> Self {
        Expiry { clock, deadlines: deadlines.into_iter().map(Reverse).collect() }
    }

    pub fn add(&mut self, expires: u64, key: Arc<str>, revision: Revision) {
        self.deadlines.push(Reverse((expires, key, revision)));
    }

    pub fn next(&self) -> Option<Instant> {
        let Reverse((expires, ..)) = self.deadlines.peek()?;
        Some(self.clock.instant(*expires))
    }

    /// Takes out up to `limit` deadlines that have passed.
    pub fn due(&mut self, now: Instant, limit: usize) -> Vec<(Arc<str>, Revision)> {
        let now = self.clock.millis(now);
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
    fn what_is_due_comes_out_in_order_and_the_rest_stays() {
        let clock = Clock::start();
        let now = Instant::now();
        let millis = clock.millis(now);
        let mut expiry = Expiry::new(clock, vec![(millis + 5_000, "late".into(), Revision(3))]);
        expiry.add(millis - 1, "second".into(), Revision(2));
        expiry.add(millis - 9, "first".into(), Revision(1));
        let due: Vec<_> = expiry.due(now, 10).into_iter().map(|(key, _)| key).collect();
        assert_eq!(due, ["first".into(), "second".into()] as [Arc<str>; 2]);
        assert!(expiry.next().unwrap() > now + Duration::from_secs(4));
        assert_eq!(expiry.due(now + Duration::from_secs(6), 10).len(), 1);
        assert_eq!(expiry.next(), None);
    }
}
