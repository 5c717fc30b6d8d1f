//! The metrics of clients, with upstream's names: `rest_client_*`, `leader_election_master_status`, `workqueue_*`.

use std::sync::Arc;
use std::time::Duration;

use ferry_metrics::process::{BuildInfo, Process};
use ferry_metrics::{Counters, Gauge, Gauges, Histograms, Registry};
use http::{Method, StatusCode};

use crate::queue;

static REQUESTS: Counters<3> = Counters::new(
    "rest_client_requests_total",
    "Requests to API servers, by the status code of their answers",
    &["code", "host", "method"],
);
static REQUEST_DURATION: Histograms<2> = Histograms::new(
    "rest_client_request_duration_seconds",
    "How long API servers took to begin their answers, in seconds",
    &["host", "verb"],
    &[0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0],
);
static LEADING: Gauges<1> = Gauges::new(
    "leader_election_master_status",
    "1 where this process holds the lease of this name, else 0",
    &["name"],
);

/// What every component that is a client of the API serves.
pub fn register(registry: &mut Registry) {
    registry.add(&[&Process, &BuildInfo, &REQUESTS, &REQUEST_DURATION, &LEADING]);
    queue::metrics::register(registry);
}

pub(crate) fn answered(host: &str, method: &Method, code: Option<StatusCode>, took: Duration) {
    let code = code.as_ref().map_or("<error>", StatusCode::as_str);
    REQUESTS.with([code, host, method.as_str()]).inc();
    REQUEST_DURATION.with([host, method.as_str()]).observe_time(took);
}

pub(crate) fn leading(lease: &str) -> Arc<Gauge> {
    LEADING.with([lease])
}
