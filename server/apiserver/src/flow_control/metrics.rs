//! `apiserver_flowcontrol_*`: upstream's series. Their labels are the names of FlowSchemas and PriorityLevelConfigurations.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use ferry_metrics::{Description, Histogram, Kind, Page};

use super::levels::{Level, Levels};

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

const OF_FLOW: &[&str] = &["flow_schema", "priority_level"];
const OF_LEVEL: &[&str] = &["priority_level"];

static DISPATCHED: Description = Description::counter(
    "apiserver_flowcontrol_dispatched_requests_total",
    "Requests that were executed",
    OF_FLOW,
);
static REJECTED: Description = Description::counter(
    "apiserver_flowcontrol_rejected_requests_total",
    "Requests that were refused, by why",
    &["flow_schema", "priority_level", "reason"],
);
static NO_ACCOMMODATION: Description = Description::counter(
    "apiserver_flowcontrol_request_dispatch_no_accommodation_total",
    "How often seats were free, but too few for the request that was next",
    OF_FLOW,
);
static QUEUE_LENGTH: Description = histogram(
    "apiserver_flowcontrol_request_queue_length_after_enqueue",
    "Length of a queue as a request that joined it saw it",
    OF_FLOW,
    QUEUE_LENGTHS,
);
static WAIT: Description = histogram(
    "apiserver_flowcontrol_request_wait_duration_seconds",
    "How long requests waited in a queue, in seconds",
    &["execute", "flow_schema", "priority_level"],
    SECONDS,
);
static EXECUTION: Description = histogram(
    "apiserver_flowcontrol_request_execution_seconds",
    "How long requests took once they were executed, in seconds",
    &["flow_schema", "priority_level", "type"],
    SECONDS,
);
static ESTIMATED: Description = histogram(
    "apiserver_flowcontrol_work_estimated_seats",
    "Seats that requests were taken to need",
    OF_FLOW,
    SEATS,
);
static WATCH_COUNT: Description = histogram(
    "apiserver_flowcontrol_watch_count_samples",
    "Watches that a write was taken to reach",
    OF_FLOW,
    WATCHES,
);
static FAIR_FRACTION: Description = Description::gauge(
    "apiserver_flowcontrol_seat_fair_frac",
    "Share of the seats that each level gets of what it wants",
    &[],
);

const fn histogram(
    name: &'static str,
    help: &'static str,
    labels: &'static [&'static str],
    buckets: &'static [f64],
) -> Description {
    Description { name, help, kind: Kind::Histogram, labels, buckets }
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

    pub fn collect(&self, levels: &Levels, page: &mut Page) {
        for ((level, schema), flow) in &self.flows {
            let labels: [&str; 2] = [schema, level];
            page.sample(&DISPATCHED, &labels, flow.dispatched as f64);
            for (reason, count) in &flow.rejected {
                page.sample(&REJECTED, &[schema, level, reason], *count as f64);
            }
            let mut add = |description: &Description, labels: &[&str], histogram: &Histogram| {
                if histogram.count() > 0 {
                    page.histogram(description, labels, histogram);
                }
            };
            add(&QUEUE_LENGTH, &labels, &flow.queue_length);
            add(&WAIT, &["true", schema, level], &flow.waited_and_executed);
            add(&WAIT, &["false", schema, level], &flow.waited_in_vain);
            add(&EXECUTION, &[schema, level, "regular"], &flow.executed[0]);
            add(&EXECUTION, &[schema, level, "watch"], &flow.executed[1]);
            add(&ESTIMATED, &labels, &flow.seats);
            add(&WATCH_COUNT, &labels, &flow.watches);
        }
        self.now(levels, page);
        for (level, state) in levels.iter() {
            for (description, value) in OF_LEVELS {
                page.sample(description, &[level], value(state));
            }
        }
        page.sample(&FAIR_FRACTION, &[], levels.fair_fraction);
    }

    fn now(&self, levels: &Levels, page: &mut Page) {
        let idle = self.flows.keys().map(|(level, schema)| ((level, schema), Now::default()));
        let mut flows: BTreeMap<(&Arc<str>, &Arc<str>), Now> = idle.collect();
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
            for (schema, count) in &level.queues.not_accommodated {
                page.sample(&NO_ACCOMMODATION, &[schema, name], *count as f64);
            }
        }
        for ((level, schema), now) in &flows {
            for (description, value) in OF_FLOWS_NOW {
                page.sample(description, &[schema, level], value(now) as f64);
            }
        }
    }
}

/// A family, and the value of what it is measured on.
type Measured<T, V> = (Description, fn(&T) -> V);

/// Of one flow at this moment: requests and seats that wait and that execute.
#[derive(Default, Clone, Copy)]
struct Now {
    waiting: usize,
    seats_waiting: usize,
    executing: usize,
    seats_executing: usize,
}

static OF_FLOWS_NOW: &[Measured<Now, usize>] = &[
    (
        Description::gauge(
            "apiserver_flowcontrol_current_inqueue_requests",
            "Requests that wait in a queue",
            OF_FLOW,
        ),
        |now| now.waiting,
    ),
    (
        Description::gauge(
            "apiserver_flowcontrol_current_inqueue_seats",
            "Seats of requests that wait in a queue",
            OF_FLOW,
        ),
        |now| now.seats_waiting,
    ),
    (
        Description::gauge(
            "apiserver_flowcontrol_current_executing_requests",
            "Requests that are executed",
            OF_FLOW,
        ),
        |now| now.executing,
    ),
    (
        Description::gauge(
            "apiserver_flowcontrol_current_executing_seats",
            "Seats of requests that are executed",
            OF_FLOW,
        ),
        |now| now.seats_executing,
    ),
];

static OF_LEVELS: &[Measured<Level, f64>] = &[
    (of_level("apiserver_flowcontrol_nominal_limit_seats", "Seats by the level's share"), |level| {
        level.nominal as f64
    }),
    (of_level("apiserver_flowcontrol_lower_limit_seats", "Seats that others cannot borrow"), |level| {
        level.lower as f64
    }),
    (of_level("apiserver_flowcontrol_upper_limit_seats", "Seats with all that may be borrowed"), |level| {
        level.upper as f64
    }),
    (of_level("apiserver_flowcontrol_current_limit_seats", "Seats at this moment"), |level| {
        level.current as f64
    }),
    (of_level("apiserver_flowcontrol_demand_seats_high_watermark", "Most seats wanted of late"), |level| {
        level.observed.high_watermark
    }),
    (of_level("apiserver_flowcontrol_demand_seats_average", "Seats wanted on average"), |level| {
        level.observed.average
    }),
    (of_level("apiserver_flowcontrol_demand_seats_stdev", "Standard deviation of seats wanted"), |level| {
        level.observed.deviation
    }),
    (of_level("apiserver_flowcontrol_demand_seats_smoothed", "Seats wanted, smoothed over time"), |level| {
        level.smoothed
    }),
    (of_level("apiserver_flowcontrol_target_seats", "Seats that the next adjustment aims at"), |level| {
        level.target
    }),
    (of_level("apiserver_flowcontrol_current_r", "Virtual time of the level's queues"), |level| {
        level.queues.current_r()
    }),
];

const fn of_level(name: &'static str, help: &'static str) -> Description {
    Description::gauge(name, help, OF_LEVEL)
}

/// All families of flow control.
pub fn descriptions() -> Vec<Description> {
    let one_by_one = [
        DISPATCHED,
        REJECTED,
        NO_ACCOMMODATION,
        QUEUE_LENGTH,
        WAIT,
        EXECUTION,
        ESTIMATED,
        WATCH_COUNT,
        FAIR_FRACTION,
    ];
    let of_flows = OF_FLOWS_NOW.iter().map(|(description, _)| *description);
    let of_levels = OF_LEVELS.iter().map(|(description, _)| *description);
    one_by_one.into_iter().chain(of_flows).chain(of_levels).collect()
}
