//! Whom a sync should wait for. A sync costs the CPU of a whole write, so writers who come one shortly after the other
//! should share one; a writer who is alone should never wait.

use std::time::Duration;

/// No write waits longer than this for others.
const PATIENCE: Duration = Duration::from_millis(1);

#[derive(Default)]
pub struct Company {
    /// How many were at it when the last sync ended.
    expected: usize,
    /// How long a sync takes, smoothed.
    sync: Duration,
}

impl Company {
    /// A sync for `batch` writes took so long, and `arrived` more came meanwhile. If nobody did, those of the batch came at
    /// once, and whoever comes next may be alone.
    pub fn synced(&mut self, batch: usize, took: Duration, arrived: usize) {
        self.expected = if arrived == 0 { 0 } else { batch + arrived };
        self.sync = (self.sync * 7 + took) / 8;
    }

    /// How many to wait for, and how long, when `waiting` writes are there; `None` if not at all. What is waited for costs
    /// little where syncs are quick, and saves little more where they are slow.
    pub fn wait_for(&self, waiting: usize) -> Option<(usize, Duration)> {
        (waiting < self.expected).then(|| (self.expected, (self.sync * 3).min(PATIENCE)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SYNC: Duration = Duration::from_micros(200);

    #[test]
    fn who_is_alone_does_not_wait() {
        let mut company = Company::default();
        assert_eq!(company.wait_for(1), None);
        company.synced(1, SYNC, 0);
        assert_eq!(company.wait_for(1), None);
        // A burst that came at once says nothing about the next one.
        company.synced(100, SYNC, 0);
        assert_eq!(company.wait_for(1), None);
    }

    #[test]
    fn those_who_came_during_a_sync_are_waited_for() {
        let mut company = Company::default();
        (0..100).for_each(|_| company.synced(2, SYNC, 3));
        let (count, time) = company.wait_for(3).expect("five were at it");
        assert_eq!(count, 5);
        assert!(time > SYNC * 2 && time <= SYNC * 3, "{time:?}");
        assert_eq!(company.wait_for(5), None);
        // They stopped: the next sync finds nobody, and nobody is waited for.
        company.synced(3, SYNC, 0);
        assert_eq!(company.wait_for(1), None);
    }

    #[test]
    fn a_slow_disk_is_not_made_slower() {
        let mut company = Company::default();
        (0..100).for_each(|_| company.synced(1, Duration::from_millis(20), 1));
        assert_eq!(company.wait_for(1), Some((2, PATIENCE)));
    }
}
