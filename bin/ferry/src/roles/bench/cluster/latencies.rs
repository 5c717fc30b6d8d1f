//! How long requests took.

use std::fmt::{self, Display};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde::Serialize;

/// Collects what each of many requests took.
#[derive(Default)]
pub struct Latencies(Mutex<Vec<Duration>>);

impl Latencies {
    /// Runs a request and keeps what it took, if it succeeded.
    pub async fn measure<T>(&self, request: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
        let begin = Instant::now();
        let answer = request.await?;
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(begin.elapsed());
        Ok(answer)
    }

    /// What was collected since the last time.
    pub fn take(&self) -> Vec<Duration> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[derive(Serialize, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Percentiles {
    pub count: usize,
    pub p50_millis: f64,
    pub p99_millis: f64,
    pub max_millis: f64,
}

impl Percentiles {
    pub fn of(mut all: Vec<Duration>) -> Percentiles {
        all.sort_unstable();
        let at = |share: f64| {
            let last = all.len().saturating_sub(1);
            let index = (last as f64 * share).round() as usize;
            all.get(index).map_or(0.0, |latency| latency.as_secs_f64() * 1e3)
        };
        Percentiles { count: all.len(), p50_millis: at(0.5), p99_millis: at(0.99), max_millis: at(1.0) }
    }
}

impl Display for Percentiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Percentiles { count, p50_millis, p99_millis, max_millis } = self;
        write!(f, "{count} times, p50 {p50_millis:.1} ms, p99 {p99_millis:.1} ms, max {max_millis:.1} ms")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_taken_by_rank() {
        let all = (1..=101).rev().map(Duration::from_millis).collect();
        let expected = Percentiles { count: 101, p50_millis: 51.0, p99_millis: 100.0, max_millis: 101.0 };
        assert_eq!(Percentiles::of(all), expected);
        let none = Percentiles { count: 0, p50_millis: 0.0, p99_millis: 0.0, max_millis: 0.0 };
        assert_eq!(Percentiles::of(Vec::new()), none);
    }
}
