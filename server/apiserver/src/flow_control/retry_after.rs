//! The value of `Retry-After`: it doubles while a priority level keeps refusing requests, and decreases by one otherwise.

use std::collections::VecDeque;

const LONGEST: u64 = 32;

/// The refusals of one priority level.
#[derive(Debug)]
pub struct RetryAfter {
    seconds: u64,
    /// Refusals of each of the last seconds, in order.
    history: VecDeque<(u64, u64)>,
    raised: u64,
}

impl Default for RetryAfter {
    fn default() -> RetryAfter {
        RetryAfter { seconds: 1, history: VecDeque::new(), raised: 0 }
    }
}

impl RetryAfter {
    /// Counts a refusal in the second `now`. Returns after how many seconds its client is told to come back.
    pub fn refused(&mut self, now: u64) -> u64 {
        match self.history.back_mut() {
            Some((second, count)) if *second == now => *count += 1,
            _ => {
                self.update(now);
                self.history.push_back((now, 1));
            }
        }
        self.seconds
    }

    fn update(&mut self, now: u64) {
        let oldest = now.saturating_sub((2 * self.seconds).min(LONGEST));
        while self.history.front().is_some_and(|(second, _)| *second < oldest) {
            self.history.pop_front();
        }
        let recent = self.history.iter().filter(|(second, _)| now - second <= self.seconds);
        let refused: u64 = recent.map(|(_, count)| count).sum();
        if now - self.raised >= self.seconds && refused >= 3 * self.seconds {
            self.seconds = (2 * self.seconds).min(LONGEST);
            self.raised = now;
        } else if refused < self.seconds && self.seconds > 1 {
            self.seconds -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_doubles_under_pressure_and_falls_slowly() {
        let mut level = RetryAfter::default();
        let mut refuse = |second: u64, times: u64| (0..times).map(|_| level.refused(second)).last();
        assert_eq!(refuse(100, 10), Some(1));
        assert_eq!(refuse(101, 10), Some(2));
        // Not raised again before as many seconds have passed.
        assert_eq!(refuse(102, 10), Some(2));
        assert_eq!(refuse(103, 10), Some(4));
        for second in 104..200 {
            refuse(second, 100);
        }
        assert_eq!(refuse(200, 1), Some(LONGEST));
        assert_eq!(refuse(240, 1), Some(LONGEST - 1));
        assert_eq!(refuse(280, 1), Some(LONGEST - 2));
    }
}
