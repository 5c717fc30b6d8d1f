//! Waiting longer after each failure, by key.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::Duration;

use tokio::time::Instant;

/// Delays double from `first` to `max`; a key that has been quiet for twice
/// the maximum starts over.
#[derive(Debug)]
pub struct Backoff<K> {
    first: Duration,
    max: Duration,
    entries: HashMap<K, CurrentDelay>,
}

#[derive(Clone, Copy, Debug)]
struct CurrentDelay {
    delay: Duration,
    since: Instant,
}

impl<K: Eq + Hash> Backoff<K> {
    pub fn new(first: Duration, max: Duration) -> Self {
        Self { first, max, entries: HashMap::new() }
    }

    /// How long the key still has to wait.
    pub fn blocked(&self, key: &K, now: Instant) -> Option<Duration> {
        let entry = self.entries.get(key)?;
        (entry.since + entry.delay).checked_duration_since(now).filter(|left| !left.is_zero())
    }

    /// The delay last given to a key.
    pub fn delay(&self, key: &K) -> Option<Duration> {
        self.entries.get(key).map(|entry| entry.delay)
    }

    /// Records a failure at a time; says how long to wait from it.
    pub fn failed(&mut self, key: K, at: Instant) -> Duration {
        let (first, max) = (self.first, self.max);
        let entry = self
            .entries
            .entry(key)
            .and_modify(|entry| {
                let quiet = at.saturating_duration_since(entry.since) > max * 2;
                entry.delay = if quiet { first } else { (entry.delay * 2).min(max) };
                entry.since = at;
            })
            .or_insert(CurrentDelay { delay: first, since: at });
        entry.delay
    }

    pub fn reset(&mut self, key: &K) {
        self.entries.remove(key);
    }

    pub fn retain(&mut self, keep: impl Fn(&K) -> bool) {
        self.entries.retain(|key, _| keep(key));
    }
}

/// Restarts of crashing containers. The first restart is immediate; each
/// further one waits, counted from the container's end.
#[derive(Debug)]
pub struct CrashBackoff {
    first: Duration,
    max: Duration,
    entries: HashMap<String, CurrentDelay>,
}

impl CrashBackoff {
    pub fn new(max: Duration) -> Self {
        Self { first: Duration::from_secs(10).min(max), max, entries: HashMap::new() }
    }

    /// Whether a container that ended `age` ago may start again; if not, the
    /// delay it is under and what is left of it.
    pub fn may_restart(
        &mut self,
        container: &str,
        age: Duration,
        now: Instant,
    ) -> Result<(), (Duration, Duration)> {
        let known = self.entries.get(container).copied().filter(|entry| {
            // one that ran well for long enough is not crashing any more
            let ended = now.checked_sub(age).unwrap_or(now);
            ended.saturating_duration_since(entry.since) <= self.max * 2
        });
        if let Some(entry) = known
            && age < entry.delay
        {
            return Err((entry.delay, entry.delay - age));
        }
        let delay = known.map_or(self.first, |entry| (entry.delay * 2).min(self.max));
        self.entries.insert(container.into(), CurrentDelay { delay, since: now });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crashing_containers_wait_longer_each_time() {
        let mut backoff = CrashBackoff::new(Duration::from_secs(300));
        let seconds = Duration::from_secs;
        let mut now = Instant::now();
        assert_eq!(backoff.may_restart("a", seconds(0), now), Ok(()), "the first restart is immediate");
        for delay in [10, 20, 40, 80, 160, 300, 300] {
            now += seconds(1);
            let left = seconds(delay) - seconds(1);
            assert_eq!(backoff.may_restart("a", seconds(1), now), Err((seconds(delay), left)));
            now += left;
            assert_eq!(backoff.may_restart("a", seconds(delay), now), Ok(()));
        }
        now += seconds(700);
        assert_eq!(backoff.may_restart("a", seconds(1), now), Ok(()), "it had run for long");
        now += seconds(1);
        assert_eq!(backoff.may_restart("a", seconds(1), now), Err((seconds(10), seconds(9))));
    }

    #[test]
    fn delays_double_up_to_the_maximum_and_start_over_when_quiet() {
        let mut backoff = Backoff::new(Duration::from_secs(10), Duration::from_secs(300));
        let start = Instant::now();
        assert_eq!(backoff.blocked(&"a", start), None);
        let mut at = start;
        let mut delays = Vec::new();
        for _ in 0..7 {
            let delay = backoff.failed("a", at);
            delays.push(delay.as_secs());
            assert_eq!(backoff.blocked(&"a", at), Some(delay));
            at += delay;
            assert_eq!(backoff.blocked(&"a", at), None, "the wait is over");
        }
        assert_eq!(delays, [10, 20, 40, 80, 160, 300, 300]);
        assert_eq!(backoff.failed("b", at).as_secs(), 10, "keys do not share");
        assert_eq!(backoff.failed("a", at + Duration::from_secs(601)).as_secs(), 10);
        backoff.reset(&"a");
        assert_eq!(backoff.blocked(&"a", at), None);
    }
}
