//! What the scheduler counts, by upstream's names.

use std::time::Duration;

use ferry_metrics::{Counters, Gauges, Histograms, Registry, exponential};

static ATTEMPT_BUCKETS: [f64; 15] = exponential(0.001, 2.0);
static SLI_BUCKETS: [f64; 20] = exponential(0.01, 2.0);
static EXTENSION_POINT_BUCKETS: [f64; 12] = exponential(0.0001, 2.0);

static ATTEMPTS: Counters<2> = Counters::new(
    "scheduler_schedule_attempts_total",
    "Attempts to schedule pods, by result",
    &["profile", "result"],
);
static ATTEMPT_DURATION: Histograms<2> = Histograms::new(
    "scheduler_scheduling_attempt_duration_seconds",
    "How long attempts took, with their bindings, in seconds",
    &["profile", "result"],
    &ATTEMPT_BUCKETS,
);
static ALGORITHM_DURATION: Histograms<0> = Histograms::new(
    "scheduler_scheduling_algorithm_duration_seconds",
    "How long searches for a node took, in seconds",
    &[],
    &ATTEMPT_BUCKETS,
);
static SLI_DURATION: Histograms<1> = Histograms::new(
    "scheduler_pod_scheduling_sli_duration_seconds",
    "How long it took from the first attempt to the binding, in seconds, by the number of attempts",
    &["attempts"],
    &SLI_BUCKETS,
);
static POD_ATTEMPTS: Histograms<0> = Histograms::new(
    "scheduler_pod_scheduling_attempts",
    "How many attempts pods took to be scheduled",
    &[],
    &[1.0, 2.0, 4.0, 8.0, 16.0],
);
static EXTENSION_POINT: Histograms<3> = Histograms::new(
    "scheduler_framework_extension_point_duration_seconds",
    "How long all plugins of an extension point took together, in seconds",
    &["extension_point", "profile", "status"],
    &EXTENSION_POINT_BUCKETS,
);
pub static PENDING_PODS: Gauges<1> =
    Gauges::new("scheduler_pending_pods", "Pods that wait for a node, by the queue they wait in", &["queue"]);
static INCOMING_PODS: Counters<2> = Counters::new(
    "scheduler_queue_incoming_pods_total",
    "Pods that were put into a queue, by what had them put there",
    &["event", "queue"],
);
static PREEMPTION_ATTEMPTS: Counters<0> =
    Counters::new("scheduler_preemption_attempts_total", "Searches for pods that could make room", &[]);
static PREEMPTION_VICTIMS: Histograms<0> = Histograms::new(
    "scheduler_preemption_victims",
    "How many pods had to make room at a time",
    &[],
    &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0],
);
static CACHE_SIZE: Gauges<1> =
    Gauges::new("scheduler_cache_size", "Nodes and pods that the scheduler knows", &["type"]);
static CLAIM_CREATIONS: Counters<1> = Counters::new(
    "scheduler_resourceclaim_creates_total",
    "Requests that create ResourceClaims for extended resources, by status",
    &["status"],
);

pub fn register(registry: &mut Registry) {
    ferry_client::metrics::register(registry);
    registry.add(&[
        &ATTEMPTS,
        &ATTEMPT_DURATION,
        &ALGORITHM_DURATION,
        &SLI_DURATION,
        &POD_ATTEMPTS,
        &EXTENSION_POINT,
        &PENDING_PODS,
        &INCOMING_PODS,
        &PREEMPTION_ATTEMPTS,
        &PREEMPTION_VICTIMS,
        &CACHE_SIZE,
        &CLAIM_CREATIONS,
    ]);
}

pub fn attempted(profile: &str, result: &str, took: Duration) {
    ATTEMPTS.with([profile, result]).inc();
    ATTEMPT_DURATION.with([profile, result]).observe_time(took);
}

/// A search for a node has ended, whatever it found.
pub fn searched(took: Duration) {
    ALGORITHM_DURATION.with([]).observe_time(took);
}

/// A pod is bound, so long after its first attempt.
pub fn bound(attempts: u32, since_first_attempt: Duration) {
    POD_ATTEMPTS.with([]).observe(attempts.into());
    let attempts = if attempts >= 15 { "15+".to_owned() } else { attempts.to_string() };
    SLI_DURATION.with([&attempts]).observe_time(since_first_attempt);
}

pub fn ran(extension_point: &str, profile: &str, status: &str, took: Duration) {
    EXTENSION_POINT.with([extension_point, profile, status]).observe_time(took);
}

pub fn incoming(event: &str, queue: &str) {
    INCOMING_PODS.with([event, queue]).inc();
}

pub fn preemption_attempted() {
    PREEMPTION_ATTEMPTS.with([]).inc();
}

pub fn preempted(victims: usize) {
    PREEMPTION_VICTIMS.with([]).observe(victims as f64);
}

pub fn knows(nodes: usize, pods: usize) {
    CACHE_SIZE.with(["nodes"]).set(nodes as f64);
    CACHE_SIZE.with(["pods"]).set(pods as f64);
}

pub fn created_claim(is_made: bool) {
    CLAIM_CREATIONS.with([if is_made { "success" } else { "failure" }]).inc();
}
