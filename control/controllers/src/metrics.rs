//! What controllers count beside their queues, by upstream's names. What follows from objects that an informer has is
//! worked out when it is asked for.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use ferry_client::{Error, Informer};
use ferry_metrics::{Collect, Counters, Description, Gauges, Histograms, Page, Registry, exponential};
use k8s_openapi::api::batch::v1::{Job, JobStatus};
use k8s_openapi::api::core::v1::{Node, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::resource::v1::ResourceClaim;
use kube::ResourceExt;
use parking_lot::Mutex;

use crate::{endpoint_slice, node_lifecycle, resource_claim, slices};

static MILLISECONDS: [f64; 15] = exponential(0.001, 2.0);
static JOB_SYNC_BUCKETS: [f64; 15] = exponential(0.004, 2.0);
static SKEW_BUCKETS: [f64; 10] = exponential(1.0, 2.0);
static ENDPOINT_BUCKETS: [f64; 15] = exponential(2.0, 2.0);

static RUNNING: Gauges<2> = Gauges::new(
    "running_managed_controllers",
    "1 where a controller runs in this process, else 0",
    &["manager", "name"],
);
static JOB_SYNCS: Counters<3> = Counters::new(
    "job_controller_job_syncs_total",
    "Passes over Jobs, by what they did",
    &["action", "completion_mode", "result"],
);
static JOB_SYNC_DURATION: Histograms<3> = Histograms::new(
    "job_controller_job_sync_duration_seconds",
    "How long passes over Jobs took, in seconds",
    &["action", "completion_mode", "result"],
    &JOB_SYNC_BUCKETS,
);
static JOBS_FINISHED: Counters<3> = Counters::new(
    "job_controller_jobs_finished_total",
    "Jobs that ended, by the reason their condition shows",
    &["completion_mode", "reason", "result"],
);
static JOB_PODS_FINISHED: Counters<2> = Counters::new(
    "job_controller_job_pods_finished_total",
    "Pods of Jobs whose end was counted",
    &["completion_mode", "result"],
);
static CRON_JOB_SKEW: Histograms<0> = Histograms::new(
    "cronjob_controller_job_creation_skew_duration_seconds",
    "How long after their time Jobs were made, in seconds",
    &[],
    &SKEW_BUCKETS,
);
static EVICTIONS: Counters<1> = Counters::new(
    "node_collector_evictions_total",
    "Nodes that were tainted so that their pods leave",
    &["zone"],
);
static SLICE_SYNCS: Counters<1> =
    Counters::new("endpoint_slice_controller_syncs", "Passes over Services, by result", &["result"]);
static SLICE_CHANGES: Counters<1> =
    Counters::new("endpoint_slice_controller_changes", "Writes of EndpointSlices", &["operation"]);
static ENDPOINTS_ADDED: Histograms<0> = Histograms::new(
    "endpoint_slice_controller_endpoints_added_per_sync",
    "Endpoints that one pass added",
    &[],
    &ENDPOINT_BUCKETS,
);
static ENDPOINTS_REMOVED: Histograms<0> = Histograms::new(
    "endpoint_slice_controller_endpoints_removed_per_sync",
    "Endpoints that one pass removed",
    &[],
    &ENDPOINT_BUCKETS,
);
static RECONCILIATIONS: Counters<2> = Counters::new(
    "horizontal_pod_autoscaler_controller_reconciliations_total",
    "Passes over HorizontalPodAutoscalers, by what they decided",
    &["action", "error"],
);
static RECONCILIATION_DURATION: Histograms<2> = Histograms::new(
    "horizontal_pod_autoscaler_controller_reconciliation_duration_seconds",
    "How long passes over HorizontalPodAutoscalers took, in seconds",
    &["action", "error"],
    &MILLISECONDS,
);
static CLAIM_CREATIONS: Counters<2> = Counters::new(
    "resourceclaim_controller_creates_total",
    "Requests that create ResourceClaims, by status and administrative access",
    &["status", "admin_access"],
);

pub fn register(registry: &mut Registry) {
    ferry_client::metrics::register(registry);
    registry.add(&[
        &RUNNING,
        &JOB_SYNCS,
        &JOB_SYNC_DURATION,
        &JOBS_FINISHED,
        &JOB_PODS_FINISHED,
        &CRON_JOB_SKEW,
        &EVICTIONS,
        &SLICE_SYNCS,
        &SLICE_CHANGES,
        &ENDPOINTS_ADDED,
        &ENDPOINTS_REMOVED,
        &RECONCILIATIONS,
        &RECONCILIATION_DURATION,
        &CLAIM_CREATIONS,
        &OF_INFORMERS,
    ]);
}

pub fn running(name: &str, is_running: bool) {
    RUNNING.with(["kube-controller-manager", name]).set(f64::from(is_running));
}

fn completion_mode(job: &Job) -> &'static str {
    if crate::job::plan::is_indexed(job) { "Indexed" } else { "NonIndexed" }
}

pub fn job_synced<T>(job: &Job, action: &str, result: &Result<T, Error>, took: Duration) {
    let labels = [action, completion_mode(job), outcome(result)];
    JOB_SYNCS.with(labels).inc();
    JOB_SYNC_DURATION.with(labels).observe_time(took);
}

/// A Job's status was written.
pub fn job_written(job: &Job, after: &JobStatus) {
    let mode = completion_mode(job);
    let before = job.status.clone().unwrap_or_default();
    for (result, before, after) in
        [("succeeded", before.succeeded, after.succeeded), ("failed", before.failed, after.failed)]
    {
        let more = after.unwrap_or(0).saturating_sub(before.unwrap_or(0));
        JOB_PODS_FINISHED.with([mode, result]).add(u64::try_from(more).unwrap_or(0));
    }
    let ended = |status: &JobStatus| {
        let ends = |kind: &str| kind == "Complete" || kind == "Failed";
        let mut all = status.conditions.iter().flatten().filter(|one| one.status == "True");
        all.find(|one| ends(&one.type_)).cloned()
    };
    if let (None, Some(end)) = (ended(&before), ended(after)) {
        let result = if end.type_ == "Complete" { "succeeded" } else { "failed" };
        JOBS_FINISHED.with([mode, end.reason.as_deref().unwrap_or(""), result]).inc();
    }
}

pub fn cron_job_created(late: Duration) {
    CRON_JOB_SKEW.with([]).observe_time(late);
}

pub fn node_evicted(zone: &str) {
    EVICTIONS.with([zone_label(zone)]).inc();
}

/// A node without region and zone is in none.
fn zone_label(zone: &str) -> &str {
    if zone == "/" { "" } else { zone }
}

fn outcome<T>(result: &Result<T, Error>) -> &'static str {
    if result.is_ok() { "success" } else { "error" }
}

pub fn slices_synced<T>(result: &Result<T, Error>) {
    SLICE_SYNCS.with([outcome(result)]).inc();
}

pub fn slices_planned(plan: &slices::Plan, before: &[Arc<EndpointSlice>]) {
    for (operation, count) in
        [("create", plan.create.len()), ("update", plan.update.len()), ("delete", plan.delete.len())]
    {
        SLICE_CHANGES.with([operation]).add(count as u64);
    }
    let size = |slice: &EndpointSlice| slice.endpoints.as_ref().map_or(0, Vec::len);
    let sizes: HashMap<String, usize> = before.iter().map(|slice| (slice.name_any(), size(slice))).collect();
    let size_before = |name: &str| sizes.get(name).copied().unwrap_or(0);
    let (mut added, mut removed) = (plan.create.iter().map(size).sum::<usize>(), 0);
    for slice in &plan.update {
        added += size(slice).saturating_sub(size_before(&slice.name_any()));
        removed += size_before(&slice.name_any()).saturating_sub(size(slice));
    }
    removed += plan.delete.iter().map(|name| size_before(name)).sum::<usize>();
    ENDPOINTS_ADDED.with([]).observe(added as f64);
    ENDPOINTS_REMOVED.with([]).observe(removed as f64);
}

pub fn autoscaled(action: &str, error: &str, took: Duration) {
    RECONCILIATIONS.with([action, error]).inc();
    RECONCILIATION_DURATION.with([action, error]).observe_time(took);
}

/// A claim was to be made from a template.
pub fn claim_created(claim: &ResourceClaim, is_made: bool) {
    let status = if is_made { "success" } else { "failure" };
    CLAIM_CREATIONS.with([status, word(has_admin_access(claim))]).inc();
}

fn has_admin_access(claim: &ResourceClaim) -> bool {
    let requests = claim.spec.devices.iter().flat_map(|devices| devices.requests.iter().flatten());
    let mut exact = requests.filter_map(|request| request.exactly.as_ref());
    exact.any(|exactly| exactly.admin_access == Some(true))
}

fn word(flag: bool) -> &'static str {
    if flag { "true" } else { "false" }
}

/// What is counted from the objects that controllers follow.
pub struct OfInformers {
    claims: Mutex<Option<Informer<ResourceClaim>>>,
    nodes: Mutex<Option<Informer<Node>>>,
    slices: Mutex<Option<(Informer<Service>, Informer<EndpointSlice>)>>,
}

pub static OF_INFORMERS: OfInformers =
    OfInformers { claims: Mutex::new(None), nodes: Mutex::new(None), slices: Mutex::new(None) };

impl OfInformers {
    /// `None` when the controller has ended.
    pub fn follow_nodes(&self, nodes: Option<Informer<Node>>) {
        *self.nodes.lock() = nodes;
    }

    pub fn follow_claims(&self, claims: Option<Informer<ResourceClaim>>) {
        *self.claims.lock() = claims;
    }

    pub fn follow_slices(&self, informers: Option<(Informer<Service>, Informer<EndpointSlice>)>) {
        *self.slices.lock() = informers;
    }
}

static ZONE_SIZE: Description = Description::gauge("node_collector_zone_size", "Nodes of a zone", &["zone"]);
static ZONE_HEALTH: Description = Description::gauge(
    "node_collector_zone_health",
    "Percentage of a zone's nodes that are Ready",
    &["zone"],
);
static UNHEALTHY: Description = Description::gauge(
    "node_collector_unhealthy_nodes_in_zone",
    "Nodes of a zone that are not Ready",
    &["zone"],
);
static SLICES: Description = Description::gauge(
    "endpoint_slice_controller_num_endpoint_slices",
    "EndpointSlices that the controller manages",
    &[],
);
static DESIRED_SLICES: Description = Description::gauge(
    "endpoint_slice_controller_desired_endpoint_slices",
    "EndpointSlices that there would be if all were full",
    &[],
);
static ENDPOINTS: Description = Description::gauge(
    "endpoint_slice_controller_endpoints_desired",
    "Endpoints of all Services that the controller manages",
    &[],
);
static DISTRIBUTION: Description = Description::gauge(
    "endpoint_slice_controller_services_count_by_traffic_distribution",
    "Services that want their traffic to stay near, by how near",
    &["traffic_distribution"],
);
static CLAIMS: Description = Description::gauge(
    "resourceclaim_controller_resource_claims",
    "ResourceClaims, by whether they are allocated, administrative access, and what they were made from",
    &["allocated", "admin_access", "source"],
);

impl Collect for OfInformers {
    fn describe(&self) -> Vec<Description> {
        vec![ZONE_SIZE, ZONE_HEALTH, UNHEALTHY, SLICES, DESIRED_SLICES, ENDPOINTS, DISTRIBUTION, CLAIMS]
    }

    fn collect(&self, page: &mut Page) {
        if let Some(nodes) = &*self.nodes.lock() {
            zones(page, &nodes.list());
        }
        if let Some((services, slices)) = &*self.slices.lock() {
            endpoints(page, &services.list(), &slices.list());
        }
        if let Some(claims) = &*self.claims.lock() {
            resource_claims(page, &claims.list());
        }
    }
}

fn zones(page: &mut Page, nodes: &[Arc<Node>]) {
    let mut zones: BTreeMap<String, (f64, f64)> = BTreeMap::new();
    for node in nodes {
        let (all, ready) = zones.entry(node_lifecycle::zone(node)).or_default();
        *all += 1.0;
        *ready += f64::from(node_lifecycle::ready_status(node) == "True");
    }
    for (zone, (all, ready)) in zones {
        let zone = zone_label(&zone).to_owned();
        page.sample(&ZONE_SIZE, &[&zone], all);
        page.sample(&ZONE_HEALTH, &[&zone], 100.0 * ready / all);
        page.sample(&UNHEALTHY, &[&zone], all - ready);
    }
}

fn resource_claims(page: &mut Page, claims: &[Arc<ResourceClaim>]) {
    let mut counts: BTreeMap<[&str; 3], f64> = BTreeMap::new();
    for claim in claims {
        let is_allocated = claim.status.as_ref().is_some_and(|status| status.allocation.is_some());
        let labels = [word(is_allocated), word(has_admin_access(claim)), resource_claim::source(claim)];
        *counts.entry(labels).or_default() += 1.0;
    }
    for (labels, count) in counts {
        page.sample(&CLAIMS, &labels, count);
    }
}

fn endpoints(page: &mut Page, services: &[Arc<Service>], slices: &[Arc<EndpointSlice>]) {
    let mut by_service: HashMap<String, usize> = HashMap::new();
    let own = slices.iter().filter_map(|slice| Some((endpoint_slice::owner(slice)?, slice)));
    let mut count = 0_usize;
    for (service, slice) in own {
        count += 1;
        *by_service.entry(service.to_string()).or_default() += slice.endpoints.as_ref().map_or(0, Vec::len);
    }
    page.sample(&SLICES, &[], count as f64);
    let full = |endpoints: &usize| endpoints.div_ceil(slices::MAX_ENDPOINTS).max(1);
    page.sample(&DESIRED_SLICES, &[], by_service.values().map(full).sum::<usize>() as f64);
    page.sample(&ENDPOINTS, &[], by_service.values().sum::<usize>() as f64);
    // in the order of their names; the API knows no others
    for wanted in ["PreferClose", "PreferSameNode", "PreferSameZone"] {
        let is_wanted = |service: &&Arc<Service>| {
            service.spec.as_ref().and_then(|spec| spec.traffic_distribution.as_deref()) == Some(wanted)
        };
        page.sample(&DISTRIBUTION, &[wanted], services.iter().filter(is_wanted).count() as f64);
    }
}
