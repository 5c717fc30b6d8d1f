//! The time of day at which a step began, told from the clock that does not jump.
//!
//! A step reads that one when it begins and when it ends. The time of day is read once a second, to see whether somebody
//! has set it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use rustix::time::{ClockId, clock_gettime};

/// A moment by the clock that does not jump, as the number that it is: [`std::time::Instant`] takes ten times as long to
/// tell how far two of them are apart, and a write of an object asks forty times.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Moment(u64);

impl Moment {
    pub fn now() -> Moment {
        let now = clock_gettime(ClockId::Monotonic);
        Moment((now.tv_sec as u64).wrapping_mul(SECOND).wrapping_add(now.tv_nsec as u64))
    }

    pub fn elapsed(self) -> Duration {
        Duration::from_nanos(self.nanoseconds())
    }

    /// How long ago it was.
    pub(crate) fn nanoseconds(self) -> u64 {
        Moment::now().0.saturating_sub(self.0)
    }

    /// Nanoseconds since 1970.
    pub(crate) fn time_of_day(self) -> u64 {
        static CLOCK: Clock = Clock::new();
        CLOCK.time_of(self, now)
    }
}

const SECOND: u64 = 1_000_000_000;
/// How long a clock that was set is told as it was.
const CHECK: u64 = SECOND;
/// Two clocks are not read at the same moment, so a smaller difference is none.
const IS_SET: u64 = 1_000_000;

struct Clock {
    /// What the system's clock says more than the one that does not jump.
    ahead: AtomicU64,
    /// When that was last compared, by the latter; 0 where it never was.
    compared: AtomicU64,
}

impl Clock {
    const fn new() -> Clock {
        Clock { ahead: AtomicU64::new(0), compared: AtomicU64::new(0) }
    }

    fn time_of(&self, moment: Moment, now: impl FnOnce() -> u64) -> u64 {
        let compared = self.compared.load(Ordering::Acquire);
        if compared == 0 || moment.0.saturating_sub(compared) > CHECK {
            self.compare(Moment::now(), now());
        }
        self.ahead.load(Ordering::Relaxed).wrapping_add(moment.0)
    }

    #[cold]
    fn compare(&self, moment: Moment, now: u64) {
        let ahead = now.wrapping_sub(moment.0);
        let differs =
            ahead.wrapping_sub(self.ahead.load(Ordering::Relaxed)).cast_signed().unsigned_abs() > IS_SET;
        if differs {
            self.ahead.store(ahead, Ordering::Relaxed);
        }
        self.compared.store(moment.0.max(1), Ordering::Release);
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
        const HOUR: u64 = 3_600 * SECOND;
        let clock = Clock::new();
        let began = Moment::now();
        let at = |seconds: u64| Moment(began.0 + seconds * SECOND);
        let never = || unreachable!("it was compared a moment ago");
        let first = clock.time_of(began, || HOUR);
        assert!(first.abs_diff(HOUR) < SECOND, "{first}");
        assert_eq!(clock.time_of(at(1), never), first + SECOND);
        // Ten seconds later the system's clock is where it should be, but for the time between two reads.
        clock.compare(at(10), first + 10 * SECOND + 900);
        assert_eq!(clock.time_of(at(10), never), first + 10 * SECOND);
        // Somebody set it two hours forward, or back.
        clock.compare(at(11), first + 2 * HOUR + 11 * SECOND);
        assert_eq!(clock.time_of(at(11), never), first + 2 * HOUR + 11 * SECOND);
        clock.compare(at(12), 12 * SECOND);
        assert_eq!(clock.time_of(at(12), never), 12 * SECOND);
    }

    #[test]
    fn it_is_the_time_of_day_and_goes_on() {
        let moment = Moment::now();
        let told = moment.time_of_day();
        assert!(told.abs_diff(now()) < 10 * SECOND, "{told}");
        assert!(Moment::now() >= moment && moment.elapsed() < Duration::from_secs(10));
    }
}
