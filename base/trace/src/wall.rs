//! The time of day at which a step began, told from the clock that does not jump.
//!
//! A step reads that one when it begins and when it ends. The time of day is read once a second, to see whether somebody
//! has set it.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

/// Nanoseconds since 1970.
pub fn time_of(moment: Instant) -> u64 {
    static CLOCK: LazyLock<Clock> = LazyLock::new(|| Clock::begin(Instant::now(), now()));
    CLOCK.time_of(moment, now)
}

/// How long a clock that was set is told as it was.
const CHECK: u64 = 1_000_000_000;
/// Two clocks are not read at the same moment, so a smaller difference is none.
const IS_SET: u64 = 1_000_000;

struct Clock {
    origin: Instant,
    /// The time of day at the origin, as the system's clock says now.
    at_origin: AtomicU64,
    /// When that was last compared: nanoseconds after the origin.
    compared: AtomicU64,
}

impl Clock {
    fn begin(origin: Instant, now: u64) -> Clock {
        Clock { origin, at_origin: AtomicU64::new(now), compared: AtomicU64::new(0) }
    }

    fn time_of(&self, moment: Instant, now: impl FnOnce() -> u64) -> u64 {
        let after = moment.saturating_duration_since(self.origin).as_nanos() as u64;
        if after.saturating_sub(self.compared.load(Ordering::Relaxed)) > CHECK {
            self.compare(now);
        }
        self.at_origin.load(Ordering::Relaxed).saturating_add(after)
    }

    #[cold]
    fn compare(&self, now: impl FnOnce() -> u64) {
        let (now, after) = (now(), self.origin.elapsed().as_nanos() as u64);
        self.compared.store(after, Ordering::Relaxed);
        let at_origin = now.saturating_sub(after);
        if at_origin.abs_diff(self.at_origin.load(Ordering::Relaxed)) > IS_SET {
            self.at_origin.store(at_origin, Ordering::Relaxed);
        }
    }
}

fn now() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO).as_nanos() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_day_follows_the_steady_clock_and_whoever_sets_it() {
        const HOUR: u64 = 3_600 * CHECK;
        let long_ago = Instant::now() - Duration::from_secs(10);
        let clock = Clock::begin(long_ago, HOUR);
        let at = |seconds| long_ago + Duration::from_secs(seconds);
        let never = || unreachable!("it was compared a moment ago");
        assert_eq!(clock.time_of(at(1), never), HOUR + CHECK);
        // Ten seconds later the system's clock is where it should be, but for the time between two reads.
        assert_eq!(clock.time_of(at(10), || HOUR + 10 * CHECK + 900), HOUR + 10 * CHECK);
        clock.compared.store(0, Ordering::Relaxed);
        // Somebody set it two hours forward.
        let set = clock.time_of(at(10), || 3 * HOUR + 10 * CHECK);
        assert!(set.abs_diff(3 * HOUR + 10 * CHECK) < CHECK, "{set}");
        assert!(clock.time_of(at(9), never) < set);
    }

    #[test]
    fn it_is_the_time_of_day() {
        let told = time_of(Instant::now());
        assert!(told.abs_diff(now()) < 10 * CHECK, "{told}");
    }
}
