//! The demand for seats of a priority level in an adjustment period: average, deviation and maximum, weighted by time.

use std::time::Instant;

#[derive(Debug)]
pub struct Demand {
    value: f64,
    last: Instant,
    seconds: f64,
    integral: f64,
    integral_of_squares: f64,
    highest: f64,
}

/// Of one period.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Observed {
    pub average: f64,
    pub deviation: f64,
    pub high_watermark: f64,
}

impl Demand {
    pub fn new(now: Instant) -> Demand {
        Demand { value: 0.0, last: now, seconds: 0.0, integral: 0.0, integral_of_squares: 0.0, highest: 0.0 }
    }

    pub fn set(&mut self, value: f64, now: Instant) {
        self.advance(now);
        self.value = value;
        self.highest = self.highest.max(value);
    }

    /// Ends a period. `None` when it had no duration, with the highest value all the same.
    pub fn take(&mut self, now: Instant) -> (f64, Option<Observed>) {
        self.advance(now);
        let highest = self.highest;
        let observed = (self.seconds > 0.0).then(|| {
            let average = self.integral / self.seconds;
            let variance = (self.integral_of_squares / self.seconds - average * average).max(0.0);
            Observed { average, deviation: variance.sqrt(), high_watermark: highest }
        });
        (self.seconds, self.integral, self.integral_of_squares) = (0.0, 0.0, 0.0);
        self.highest = self.value;
        (highest, observed)
    }

    fn advance(&mut self, now: Instant) {
        let elapsed = now.saturating_duration_since(self.last).as_secs_f64();
        self.last = self.last.max(now);
        self.seconds += elapsed;
        self.integral += self.value * elapsed;
        self.integral_of_squares += self.value * self.value * elapsed;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn demand_is_weighted_by_time() {
        let mut now = Instant::now();
        let mut demand = Demand::new(now);
        demand.set(4.0, now);
        now += Duration::from_secs(5);
        demand.set(0.0, now);
        now += Duration::from_secs(5);
        let observed = Observed { average: 2.0, deviation: 2.0, high_watermark: 4.0 };
        assert_eq!(demand.take(now), (4.0, Some(observed)));
        now += Duration::from_secs(5);
        assert_eq!(demand.take(now), (0.0, Some(Observed::default())));
        assert_eq!(demand.take(now), (0.0, None));
    }
}
