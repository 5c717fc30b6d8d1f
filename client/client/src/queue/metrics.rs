//! Upstream's metrics of work queues: `workqueue_*`, by the queue's name.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// What queues of one name have counted since the process started.
#[derive(Debug, Default)]
pub struct Metrics {
    pub adds: AtomicU64,
    pub depth: AtomicU64,
    pub retries: AtomicU64,
    /// How long keys waited for a worker.
    pub queue_duration: Histogram,
    /// How long workers had them.
    pub work_duration: Histogram,
    /// When each key that a worker has now was taken.
    in_progress: Mutex<Vec<Instant>>,
}

/// A histogram of seconds.
#[derive(Debug, Default)]
pub struct Histogram {
    /// How many values each bound is the lowest for; the last one counts what is beyond all of them.
    counts: [AtomicU64; BOUNDS.len() + 1],
    nanoseconds: AtomicU64,
}

/// Upstream's bounds, in nanoseconds: from 10 ns, times ten, to 10 s.
const BOUNDS: [(u64, &str); 10] = [
    (10, "1e-08"),
    (100, "1e-07"),
    (1_000, "1e-06"),
    (10_000, "9.999999999999999e-06"),
    (100_000, "9.999999999999999e-05"),
    (1_000_000, "0.001"),
    (10_000_000, "0.01"),
    (100_000_000, "0.1"),
    (1_000_000_000, "1"),
    (10_000_000_000, "10"),
];

static BY_NAME: LazyLock<Mutex<BTreeMap<&'static str, Arc<Metrics>>>> = LazyLock::new(Mutex::default);

/// The metrics of the queues of a name. They outlive the queues, as counters must.
pub fn of(name: &'static str) -> Arc<Metrics> {
    BY_NAME.lock().entry(name).or_default().clone()
}

impl Metrics {
    pub(super) fn taken(&self, waited: Duration, at: Instant) {
        self.queue_duration.observe(waited);
        self.in_progress.lock().push(at);
    }

    pub(super) fn done(&self, taken: Instant) {
        self.work_duration.observe(taken.elapsed());
        let mut in_progress = self.in_progress.lock();
        if let Some(position) = in_progress.iter().position(|at| *at == taken) {
            in_progress.swap_remove(position);
        }
    }
}

impl Histogram {
    fn observe(&self, time: Duration) {
        let nanoseconds = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let slot = BOUNDS.iter().position(|(bound, _)| nanoseconds <= *bound).unwrap_or(BOUNDS.len());
        self.counts[slot].fetch_add(1, Relaxed);
        self.nanoseconds.fetch_add(nanoseconds, Relaxed);
    }

    pub fn count(&self) -> u64 {
        self.counts.iter().map(|count| count.load(Relaxed)).sum()
    }

    pub fn sum(&self) -> f64 {
        Duration::from_nanos(self.nanoseconds.load(Relaxed)).as_secs_f64()
    }
}

/// Every queue's series in Prometheus' text format.
pub fn exposition() -> String {
    let all = BY_NAME.lock().clone();
    let mut text = String::new();
    for (name, kind, help, value) in SERIES {
        // writing to a String cannot fail
        let _ = writeln!(text, "# HELP workqueue_{name} {help}\n# TYPE workqueue_{name} {kind}");
        for (queue, metrics) in &all {
            match value(metrics) {
                Value::Number(value) => {
                    let _ = writeln!(text, "workqueue_{name}{{name=\"{queue}\"}} {value}");
                }
                Value::Histogram(histogram) => histogram.write(&mut text, name, queue),
            }
        }
    }
    text
}

enum Value<'m> {
    Number(f64),
    Histogram(&'m Histogram),
}

type Series = (&'static str, &'static str, &'static str, fn(&Metrics) -> Value<'_>);

const SERIES: [Series; 7] = [
    ("adds_total", "counter", "Total number of adds handled by workqueue", |metrics| {
        Value::Number(metrics.adds.load(Relaxed) as f64)
    }),
    ("depth", "gauge", "Current depth of workqueue", |metrics| {
        Value::Number(metrics.depth.load(Relaxed) as f64)
    }),
    (
        "longest_running_processor_seconds",
        "gauge",
        "How many seconds has the longest running processor for workqueue been running.",
        |metrics| {
            let longest = metrics.in_progress.lock().iter().map(Instant::elapsed).max();
            Value::Number(longest.unwrap_or_default().as_secs_f64())
        },
    ),
    (
        "queue_duration_seconds",
        "histogram",
        "How long in seconds an item stays in workqueue before being requested.",
        |metrics| Value::Histogram(&metrics.queue_duration),
    ),
    ("retries_total", "counter", "Total number of retries handled by workqueue", |metrics| {
        Value::Number(metrics.retries.load(Relaxed) as f64)
    }),
    (
        "unfinished_work_seconds",
        "gauge",
        "How many seconds the items that workers have now have been worked on, in all.",
        |metrics| {
            let unfinished: Duration = metrics.in_progress.lock().iter().map(Instant::elapsed).sum();
            Value::Number(unfinished.as_secs_f64())
        },
    ),
    (
        "work_duration_seconds",
        "histogram",
        "How long in seconds processing an item from workqueue takes.",
        |metrics| Value::Histogram(&metrics.work_duration),
    ),
];

impl Histogram {
    fn write(&self, text: &mut String, name: &str, queue: &str) {
        let mut below = 0;
        let bounds = BOUNDS.iter().map(|(_, bound)| *bound).chain(["+Inf"]);
        for (bound, count) in bounds.zip(&self.counts) {
            below += count.load(Relaxed);
            let _ = writeln!(text, "workqueue_{name}_bucket{{name=\"{queue}\",le=\"{bound}\"}} {below}");
        }
        let _ = writeln!(text, "workqueue_{name}_sum{{name=\"{queue}\"}} {}", self.sum());
        let _ = writeln!(text, "workqueue_{name}_count{{name=\"{queue}\"}} {below}");
    }
}

#[cfg(test)]
mod tests {
    use crate::{Backoff, Queue};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_queue_counts_adds_depth_retries_and_both_durations() {
        const NAME: &str = "metrics-test";
        let queue: Queue<&str> = Queue::named(NAME);
        for key in ["a", "b", "a"] {
            queue.add(key);
        }
        tokio::time::advance(Duration::from_secs(5)).await;
        let item = queue.next().await.expect("a");
        tokio::time::advance(Duration::from_secs(20)).await;
        let text = exposition();
        let value = |text: &str, series: &str| -> f64 {
            let line = text.lines().find(|line| line.starts_with(&format!("workqueue_{series}")));
            line.and_then(|line| line.rsplit(' ').next()?.parse().ok()).expect(series)
        };
        let of = |series: &str| value(&text, &format!("{series}{{name=\"{NAME}\"}}"));
        assert_eq!((of("adds_total"), of("depth"), of("retries_total")), (2.0, 1.0, 0.0));
        assert_eq!((of("unfinished_work_seconds"), of("longest_running_processor_seconds")), (20.0, 20.0));
        assert_eq!((of("queue_duration_seconds_sum"), of("queue_duration_seconds_count")), (5.0, 1.0));
        drop(item);
        queue.add_failed("b", &[]);
        let text = exposition();
        let bucket = |bound: &str| {
            value(&text, &format!("work_duration_seconds_bucket{{name=\"{NAME}\",le=\"{bound}\"}}"))
        };
        assert_eq!((bucket("10"), bucket("+Inf")), (0.0, 1.0));
        assert_eq!(value(&text, &format!("retries_total{{name=\"{NAME}\"}}")), 1.0);
        assert_eq!(value(&text, &format!("unfinished_work_seconds{{name=\"{NAME}\"}}")), 0.0);
        queue.shut_down();
        assert_eq!(super::of(NAME).depth.load(Relaxed), 0, "what is dropped is not waiting");

        let unnamed: Queue<&str> = Queue::new(Backoff::default());
        unnamed.add("a");
        assert!(!exposition().contains("name=\"\""), "a queue without a name has no series");
    }
}
