//! `apiserver_flowcontrol_*`: upstream's series. Their labels are the names of FlowSchemas and PriorityLevelConfigurations.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use super::levels::Levels;

const SECONDS: &[f64] = &[0.0, 0.005, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 15.0, 30.0];
const QUEUE_LENGTHS: &[f64] = &[0.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1000.0];
const SEATS: &[f64] = &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 100.0];
const WATCHES: &[f64] = &[0.0, 1.0, 10.0, 100.0, 1000.0, 10000.0];

#[derive(Default)]
pub struct Metrics {
    flows: BTreeMap<(Arc<str>, Arc<str>), Flow>,
}

/// Requests of one FlowSchema on one priority level.
pub struct Flow {
    dispatched: u64,
    rejected: BTreeMap<&'static str, u64>,
    queue_length: Histogram,
    waited_and_executed: Histogram,
    waited_in_vain: Histogram,
    /// Of watches their initialization.
    executed: [Histogram; 2],
    seats: Histogram,
    watches: Histogram,
}

impl Default for Flow {
    fn default() -> Flow {
        Flow {
            dispatched: 0,
            rejected: BTreeMap::new(),
            queue_length: Histogram::new(QUEUE_LENGTHS),
            waited_and_executed: Histogram::new(SECONDS),
            waited_in_vain: Histogram::new(SECONDS),
            executed: [Histogram::new(SECONDS), Histogram::new(SECONDS)],
            seats: Histogram::new(SEATS),
            watches: Histogram::new(WATCHES),
        }
    }
}

impl Flow {
    pub fn estimated(&mut self, seats: usize) {
        self.seats.observe(seats as f64);
    }

    pub fn reached(&mut self, watches: usize) {
        self.watches.observe(watches as f64);
    }

    pub fn enqueued(&mut self, length: usize) {
        self.queue_length.observe(length as f64);
    }

    pub fn dispatched(&mut self, waited: Option<Duration>) {
        self.dispatched += 1;
        if let Some(waited) = waited {
            self.waited_and_executed.observe(waited.as_secs_f64());
        }
    }

    pub fn rejected(&mut self, reason: &'static str, waited: Option<Duration>) {
        *self.rejected.entry(reason).or_default() += 1;
        if let Some(waited) = waited {
            self.waited_in_vain.observe(waited.as_secs_f64());
        }
    }

    pub fn finished(&mut self, took: Duration, is_watch: bool) {
        self.executed[usize::from(is_watch)].observe(took.as_secs_f64());
    }
}

impl Metrics {
    pub fn flow(&mut self, level: &Arc<str>, schema: &Arc<str>) -> &mut Flow {
        self.flows.entry((level.clone(), schema.clone())).or_default()
    }

    /// Forgets FlowSchemas that are gone.
    pub fn retain(&mut self, is_there: impl Fn(&str) -> bool) {
        self.flows.retain(|(_, schema), _| is_there(schema));
    }

    pub fn text(&self, levels: &Levels, out: &mut String) {
        let counter = |out: &mut String, name: &str, value: &dyn Fn(&Flow) -> u64| {
            head(out, name, "counter");
            for ((level, schema), flow) in &self.flows {
                let _ = writeln!(out, "{PREFIX}{name}{{{}}} {}", labels(level, schema), value(flow));
            }
        };
        counter(out, "dispatched_requests_total", &|flow| flow.dispatched);
        head(out, "rejected_requests_total", "counter");
        for ((level, schema), flow) in &self.flows {
            for (reason, count) in &flow.rejected {
                let labels = labels(level, schema);
                let _ =
                    writeln!(out, "{PREFIX}rejected_requests_total{{{labels},reason=\"{reason}\"}} {count}");
            }
        }
        self.histogram(out, "request_queue_length_after_enqueue", "", |flow| &flow.queue_length);
        head(out, "request_wait_duration_seconds", "histogram");
        self.series(out, "request_wait_duration_seconds", ",execute=\"true\"", |flow| {
            &flow.waited_and_executed
        });
        self.series(out, "request_wait_duration_seconds", ",execute=\"false\"", |flow| &flow.waited_in_vain);
        head(out, "request_execution_seconds", "histogram");
        self.series(out, "request_execution_seconds", ",type=\"regular\"", |flow| &flow.executed[0]);
        self.series(out, "request_execution_seconds", ",type=\"watch\"", |flow| &flow.executed[1]);
        self.histogram(out, "work_estimated_seats", "", |flow| &flow.seats);
        self.histogram(out, "watch_count_samples", "", |flow| &flow.watches);
        self.now(levels, out);
        of_levels(levels, out);
    }

    fn now(&self, levels: &Levels, out: &mut String) {
        let idle = self.flows.keys().map(|(level, schema)| ((level, schema), Now::default()));
        let mut flows: BTreeMap<(&Arc<str>, &Arc<str>), Now> = idle.collect();
        let mut not_accommodated = Vec::new();
        for (name, level) in levels.iter() {
            for (_, request) in level.queues.requests() {
                let flow = flows.entry((name, &request.description.flow_schema)).or_default();
                let seats = request.work.max_seats();
                match request.is_executing() {
                    true => {
                        (flow.executing, flow.seats_executing) =
                            (flow.executing + 1, flow.seats_executing + seats)
                    }
                    false => {
                        (flow.waiting, flow.seats_waiting) = (flow.waiting + 1, flow.seats_waiting + seats)
                    }
                }
            }
            not_accommodated.push((name, &level.queues.not_accommodated));
        }
        let gauges: [Gauge<Now, usize>; 4] = [
            ("current_inqueue_requests", |now| now.waiting),
            ("current_inqueue_seats", |now| now.seats_waiting),
            ("current_executing_requests", |now| now.executing),
            ("current_executing_seats", |now| now.seats_executing),
        ];
        for (name, value) in gauges {
            head(out, name, "gauge");
            for ((level, schema), now) in &flows {
                let _ = writeln!(out, "{PREFIX}{name}{{{}}} {}", labels(level, schema), value(now));
            }
        }
        head(out, "request_dispatch_no_accommodation_total", "counter");
        for (level, schemas) in not_accommodated {
            for (schema, count) in schemas {
                let labels = labels(level, schema);
                let _ = writeln!(out, "{PREFIX}request_dispatch_no_accommodation_total{{{labels}}} {count}");
            }
        }
    }

    fn histogram(&self, out: &mut String, name: &str, more: &str, of: impl Fn(&Flow) -> &Histogram) {
        head(out, name, "histogram");
        self.series(out, name, more, of);
    }

    fn series(&self, out: &mut String, name: &str, more: &str, of: impl Fn(&Flow) -> &Histogram) {
        for ((level, schema), flow) in &self.flows {
            let histogram = of(flow);
            if histogram.count > 0 {
                histogram.text(out, name, &format!("{}{more}", labels(level, schema)));
            }
        }
    }
}

/// A name, and the value of what it is measured on.
type Gauge<T, V> = (&'static str, fn(&T) -> V);

const PREFIX: &str = "apiserver_flowcontrol_";

fn head(out: &mut String, name: &str, kind: &str) {
    let _ = writeln!(out, "# TYPE {PREFIX}{name} {kind}");
}

fn labels(level: &str, schema: &str) -> String {
    format!("flow_schema=\"{schema}\",priority_level=\"{level}\"")
}

/// Of one flow at this moment: requests and seats that wait and that execute.
#[derive(Default, Clone, Copy)]
struct Now {
    waiting: usize,
    seats_waiting: usize,
    executing: usize,
    seats_executing: usize,
}

fn of_levels(levels: &Levels, out: &mut String) {
    use super::levels::Level;
    let gauges: [Gauge<Level, f64>; 10] = [
        ("nominal_limit_seats", |level| level.nominal as f64),
        ("lower_limit_seats", |level| level.lower as f64),
        ("upper_limit_seats", |level| level.upper as f64),
        ("current_limit_seats", |level| level.current as f64),
        ("demand_seats_high_watermark", |level| level.observed.high_watermark),
        ("demand_seats_average", |level| level.observed.average),
        ("demand_seats_stdev", |level| level.observed.deviation),
        ("demand_seats_smoothed", |level| level.smoothed),
        ("target_seats", |level| level.target),
        ("current_r", |level| level.queues.current_r()),
    ];
    for (name, value) in gauges {
        head(out, name, "gauge");
        for (level, state) in levels.iter() {
            let _ = writeln!(out, "{PREFIX}{name}{{priority_level=\"{level}\"}} {}", value(state));
        }
    }
    head(out, "seat_fair_frac", "gauge");
    let _ = writeln!(out, "{PREFIX}seat_fair_frac {}", levels.fair_fraction);
}

struct Histogram {
    bounds: &'static [f64],
    buckets: Vec<u64>,
    count: u64,
    sum: f64,
}

impl Histogram {
    fn new(bounds: &'static [f64]) -> Histogram {
        Histogram { bounds, buckets: vec![0; bounds.len()], count: 0, sum: 0.0 }
    }

    fn observe(&mut self, value: f64) {
        self.count += 1;
        self.sum += value;
        if let Some(bucket) = self.bounds.iter().position(|bound| value <= *bound) {
            self.buckets[bucket] += 1;
        }
    }

    fn text(&self, out: &mut String, name: &str, labels: &str) {
        let mut sum = 0;
        for (bound, count) in self.bounds.iter().zip(&self.buckets) {
            sum += count;
            let _ = writeln!(out, "{PREFIX}{name}_bucket{{{labels},le=\"{bound}\"}} {sum}");
        }
        let _ = writeln!(out, "{PREFIX}{name}_bucket{{{labels},le=\"+Inf\"}} {}", self.count);
        let _ = writeln!(out, "{PREFIX}{name}_sum{{{labels}}} {}", self.sum);
        let _ = writeln!(out, "{PREFIX}{name}_count{{{labels}}} {}", self.count);
    }
}
