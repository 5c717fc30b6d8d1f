//! Upstream's metrics of work queues: `workqueue_*`, by the queue's name.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use ferry_metrics::{
    Collect, Counter, Counters, Description, Gauge, Gauges, Histogram, Histograms, Page, Registry,
    exponential,
};
use parking_lot::Mutex;
use tokio::time::Instant;

/// From 10 ns, times ten, to 10 s.
static BUCKETS: [f64; 10] = exponential(10e-9, 10.0);

static ADDS: Counters<1> = Counters::new("workqueue_adds_total", "Keys that were added", &["name"]);
static DEPTH: Gauges<1> = Gauges::new("workqueue_depth", "Keys that wait for a worker", &["name"]);
static RETRIES: Counters<1> =
    Counters::new("workqueue_retries_total", "Keys that were added again after a failure", &["name"]);
static QUEUE_DURATION: Histograms<1> = Histograms::new(
    "workqueue_queue_duration_seconds",
    "How long keys waited for a worker, in seconds",
    &["name"],
    &BUCKETS,
);
static WORK_DURATION: Histograms<1> = Histograms::new(
    "workqueue_work_duration_seconds",
    "How long workers had a key, in seconds",
    &["name"],
    &BUCKETS,
);

/// What queues of one name have counted since the process started.
#[derive(Debug)]
pub struct Metrics {
    pub adds: Arc<Counter>,
    pub depth: Arc<Gauge>,
    pub retries: Arc<Counter>,
    queue_duration: Arc<Histogram>,
    work_duration: Arc<Histogram>,
    /// When each key that a worker has now was taken.
    in_progress: Mutex<Vec<Instant>>,
}

static BY_NAME: LazyLock<Mutex<BTreeMap<&'static str, Arc<Metrics>>>> = LazyLock::new(Mutex::default);

/// The metrics of the queues of a name. They outlive the queues, as counters must.
pub fn of(name: &'static str) -> Arc<Metrics> {
    let make = || {
        Arc::new(Metrics {
            adds: ADDS.with([name]),
            depth: DEPTH.with([name]),
            retries: RETRIES.with([name]),
            queue_duration: QUEUE_DURATION.with([name]),
            work_duration: WORK_DURATION.with([name]),
            in_progress: Mutex::default(),
        })
    };
    BY_NAME.lock().entry(name).or_insert_with(make).clone()
}

impl Metrics {
    /// Of a queue that has no name, and no series.
    pub(super) fn unnamed() -> Metrics {
        Metrics {
            adds: Arc::default(),
            depth: Arc::default(),
            retries: Arc::default(),
            queue_duration: Arc::new(Histogram::new(&[])),
            work_duration: Arc::new(Histogram::new(&[])),
            in_progress: Mutex::default(),
        }
    }

    pub(super) fn taken(&self, waited: Duration, at: Instant) {
        self.queue_duration.observe_time(waited);
        self.in_progress.lock().push(at);
    }

    pub(super) fn done(&self, taken: Instant) {
        self.work_duration.observe_time(taken.elapsed());
        let mut in_progress = self.in_progress.lock();
        if let Some(position) = in_progress.iter().position(|at| *at == taken) {
            in_progress.swap_remove(position);
        }
    }
}

pub fn register(registry: &mut Registry) {
    registry.add(&[&ADDS, &DEPTH, &RETRIES, &QUEUE_DURATION, &WORK_DURATION, &InProgress]);
}

/// What workers have now: counted when it is asked for.
struct InProgress;

static LONGEST: Description = Description::gauge(
    "workqueue_longest_running_processor_seconds",
    "How long the worker that has had its key longest has had it, in seconds",
    &["name"],
);
static UNFINISHED: Description = Description::gauge(
    "workqueue_unfinished_work_seconds",
    "How long workers have had the keys they have now, in seconds in all",
    &["name"],
);

impl Collect for InProgress {
    fn describe(&self) -> Vec<Description> {
        vec![LONGEST, UNFINISHED]
    }

    fn collect(&self, page: &mut Page) {
        for (name, metrics) in &*BY_NAME.lock() {
            let ages: Vec<Duration> = metrics.in_progress.lock().iter().map(Instant::elapsed).collect();
            let longest = ages.iter().max().copied().unwrap_or_default();
            page.sample(&LONGEST, &[name], longest.as_secs_f64());
            page.sample(&UNFINISHED, &[name], ages.iter().sum::<Duration>().as_secs_f64());
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::{Backoff, Queue};

    use super::*;

    fn exposition() -> String {
        let mut registry = Registry::default();
        register(&mut registry);
        registry.text()
    }

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
        assert_eq!(super::of(NAME).depth.get(), 0.0, "what is dropped is not waiting");

        let unnamed: Queue<&str> = Queue::new(Backoff::default());
        unnamed.add("a");
        assert!(!exposition().contains("name=\"\""), "a queue without a name has no series");
    }
}
