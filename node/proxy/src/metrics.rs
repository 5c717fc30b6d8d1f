//! What the proxy counts, by upstream's names. One write of the rules is for both families of addresses.

use std::sync::LazyLock;
use std::time::Duration;

use ferry_metrics::{Counters, Gauges, Histograms, Registry, exponential};
use jiff::Timestamp;

use crate::Mode;

const FAMILIES: [&str; 2] = ["IPv4", "IPv6"];

static SYNC_BUCKETS: [f64; 15] = exponential(0.001, 2.0);
/// A quarter, a half, each second of the first minute, each fifth of the second, each thirtieth of three more.
static PROGRAMMING_BUCKETS: [f64; 80] = {
    let mut bounds = [0.25; 80];
    bounds[1] = 0.5;
    let mut at = 2;
    while at < 80 {
        let last = bounds[at - 1];
        bounds[at] = match at {
            2 => 1.0,
            3..=61 => last + 1.0,
            62..=73 => last + 5.0,
            _ => last + 30.0,
        };
        at += 1;
    }
    bounds
};

static SYNC: Histograms<1> = Histograms::new(
    "kubeproxy_sync_proxy_rules_duration_seconds",
    "How long it took to bring changes to the kernel, in seconds",
    &["ip_family"],
    &SYNC_BUCKETS,
);
static FULL_SYNC: Histograms<1> = Histograms::new(
    "kubeproxy_sync_full_proxy_rules_duration_seconds",
    "The same where all rules were written, in seconds",
    &["ip_family"],
    &SYNC_BUCKETS,
);
static PARTIAL_SYNC: Histograms<1> = Histograms::new(
    "kubeproxy_sync_partial_proxy_rules_duration_seconds",
    "The same where only what differs was written, in seconds",
    &["ip_family"],
    &SYNC_BUCKETS,
);
static LAST_SYNC: Gauges<1> = Gauges::new(
    "kubeproxy_sync_proxy_rules_last_timestamp_seconds",
    "When changes were last brought to the kernel, in seconds since 1970",
    &["ip_family"],
);
static LAST_QUEUED: Gauges<1> = Gauges::new(
    "kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds",
    "When a change last asked for it, in seconds since 1970",
    &["ip_family"],
);
static PROGRAMMING: Histograms<1> = Histograms::new(
    "kubeproxy_network_programming_duration_seconds",
    "How long it took from a change of endpoints to the kernel's rules, in seconds",
    &["ip_family"],
    &PROGRAMMING_BUCKETS,
);
static SERVICE_CHANGES: Counters<0> =
    Counters::new("kubeproxy_sync_proxy_rules_service_changes_total", "Changes of Services", &[]);
static ENDPOINT_CHANGES: Counters<0> =
    Counters::new("kubeproxy_sync_proxy_rules_endpoint_changes_total", "Changes of EndpointSlices", &[]);
static NFTABLES_FAILURES: Counters<1> = Counters::new(
    "kubeproxy_sync_proxy_rules_nftables_sync_failures_total",
    "Writes that nftables refused",
    &["ip_family"],
);
static IPTABLES_FAILURES: Counters<1> = Counters::new(
    "kubeproxy_sync_proxy_rules_iptables_restore_failures_total",
    "Writes that iptables refused",
    &["ip_family"],
);
static HEALTHZ: Counters<1> =
    Counters::new("kubeproxy_proxy_healthz_total", "Answers of the health port, by code", &["code"]);

pub fn register(registry: &mut Registry) {
    ferry_client::metrics::register(registry);
    registry.add(&[
        &SYNC,
        &FULL_SYNC,
        &PARTIAL_SYNC,
        &LAST_SYNC,
        &LAST_QUEUED,
        &PROGRAMMING,
        &SERVICE_CHANGES,
        &ENDPOINT_CHANGES,
        &NFTABLES_FAILURES,
        &IPTABLES_FAILURES,
        &HEALTHZ,
    ]);
}

fn now() -> f64 {
    Timestamp::now().as_millisecond() as f64 / 1000.0
}

/// Rules were written, or refused. `triggers` are the times of the changes of endpoints that are in them.
pub fn synced(mode: Mode, was_whole: bool, succeeded: bool, took: Duration, triggers: &[Timestamp]) {
    let kind = if was_whole { &FULL_SYNC } else { &PARTIAL_SYNC };
    let failures = match mode {
        Mode::Nftables => &NFTABLES_FAILURES,
        Mode::Iptables => &IPTABLES_FAILURES,
    };
    for family in FAMILIES {
        SYNC.with([family]).observe_time(took);
        kind.with([family]).observe_time(took);
        match succeeded {
            true => LAST_SYNC.with([family]).set(now()),
            false => failures.with([family]).inc(),
        }
    }
    for trigger in triggers.iter().filter(|_| succeeded) {
        let since = Timestamp::now().duration_since(*trigger);
        PROGRAMMING.with(["IPv4"]).observe(since.as_secs_f64().max(0.0));
    }
}

fn queued() {
    static GAUGES: LazyLock<[std::sync::Arc<ferry_metrics::Gauge>; 2]> =
        LazyLock::new(|| FAMILIES.map(|family| LAST_QUEUED.with([family])));
    GAUGES.iter().for_each(|gauge| gauge.set(now()));
}

pub fn service_changed() {
    SERVICE_CHANGES.with([]).inc();
    queued();
}

pub fn endpoints_changed() {
    ENDPOINT_CHANGES.with([]).inc();
    queued();
}

pub fn health_answered(code: http::StatusCode) {
    HEALTHZ.with([code.as_str()]).inc();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_buckets_of_programming_are_upstreams() {
        let at = |index: usize| PROGRAMMING_BUCKETS[index];
        assert_eq!(
            [at(0), at(1), at(2), at(61), at(62), at(73), at(74), at(79)],
            [0.25, 0.5, 1.0, 60.0, 65.0, 120.0, 150.0, 300.0]
        );
    }
}
