//! `/metrics/slis`: what a component's health checks found, each time they were asked.

use crate::family::{Counters, Gauges};
use crate::registry::Registry;

static HEALTHCHECK: Gauges<2> = Gauges::new(
    "kubernetes_healthcheck",
    "Whether a health check succeeded when it was last asked: 1 or 0",
    &["name", "type"],
);
static HEALTHCHECKS: Counters<3> = Counters::new(
    "kubernetes_healthchecks_total",
    "How often a health check was asked, by what it found",
    &["name", "status", "type"],
);

/// `endpoint` is `healthz`, `livez` or `readyz`.
pub fn checked(name: &str, endpoint: &str, is_healthy: bool) {
    HEALTHCHECK.with([name, endpoint]).set(f64::from(is_healthy));
    let status = if is_healthy { "success" } else { "error" };
    HEALTHCHECKS.with([name, status, endpoint]).inc();
}

pub fn register(registry: &mut Registry) {
    registry.add(&[&HEALTHCHECK, &HEALTHCHECKS]);
}

pub fn text() -> String {
    let mut registry = Registry::default();
    register(&mut registry);
    registry.text()
}
