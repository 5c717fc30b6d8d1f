//! `/metrics` of the API server, with upstream's names, labels and buckets. Label values are limited to resources that the
//! server serves; values from arbitrary paths would let clients fill its memory.

use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use ferry_api::Kind;
use ferry_auth::{Decision, audit};
use ferry_metrics::{
    Counter, Counters, Description, Gauge, Gauges, Histogram, Histograms, Page, Registry, exponential,
};
use http::header::CONTENT_TYPE;
use http::{Method, StatusCode};
use indexmap::{Equivalent, IndexMap};
use parking_lot::RwLock;

use crate::api::Api;
use crate::body::{Body, Response};
use crate::request::Request;
use crate::request_info::RequestInfo;
use crate::served::Served;

const COMPONENT: &str = "apiserver";
const JSON_APPLY: &str = "application/apply-patch";

static DURATION_BUCKETS: [f64; 23] = [
    0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 15.0,
    20.0, 30.0, 45.0, 60.0,
];
static SLI_BUCKETS: [f64; 21] = [
    0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 15.0, 20.0, 30.0,
    45.0, 60.0,
];
static FILTER_BUCKETS: [f64; 15] = exponential(0.001, 2.0);

static REQUESTS: Counters<9> = Counters::new(
    "apiserver_request_total",
    "Requests that were answered, by what they asked for and the code of the answer",
    &["code", "component", "dry_run", "group", "resource", "scope", "subresource", "verb", "version"],
);
static DURATION: Histograms<8> = Histograms::new(
    "apiserver_request_duration_seconds",
    "How long it took to begin an answer, in seconds",
    &["component", "dry_run", "group", "resource", "scope", "subresource", "verb", "version"],
    &DURATION_BUCKETS,
);
static SLI_DURATION: Histograms<7> = Histograms::new(
    "apiserver_request_sli_duration_seconds",
    "How long it took to begin an answer, in seconds",
    &["component", "group", "resource", "scope", "subresource", "verb", "version"],
    &SLI_BUCKETS,
);
static RESPONSE_SIZES: Histograms<7> = Histograms::new(
    "apiserver_response_sizes",
    "Bytes of answers to reads",
    &["component", "group", "resource", "scope", "subresource", "verb", "version"],
    &[1000.0, 10_000.0, 100_000.0, 1e6, 1e7, 1e8, 1e9],
);
static LONG_RUNNING: Gauges<7> = Gauges::new(
    "apiserver_longrunning_requests",
    "Watches and other requests that last, as many as there are now",
    &["component", "group", "resource", "scope", "subresource", "verb", "version"],
);
static IN_FLIGHT: Gauges<1> = Gauges::new(
    "apiserver_current_inflight_requests",
    "Requests that are being worked on, of those that do not last",
    &["request_kind"],
);
static DEPRECATED: Gauges<5> = Gauges::new(
    "apiserver_requested_deprecated_apis",
    "Deprecated versions of resources that were asked for",
    &["group", "removed_release", "resource", "subresource", "version"],
);
static WATCH_EVENTS: Counters<3> = Counters::new(
    "apiserver_watch_events_total",
    "Events that were sent to watches",
    &["group", "resource", "version"],
);
static AUTHENTICATIONS: Counters<1> =
    Counters::new("authentication_attempts", "Attempts to authenticate, by result", &["result"]);
static LEGACY_TOKENS: Counters<0> =
    Counters::new("serviceaccount_legacy_tokens_total", "Uses of tokens that Secrets keep", &[]);
static MANUAL_TOKENS: Counters<0> = Counters::new(
    "serviceaccount_legacy_manual_token_uses_total",
    "Uses of tokens in Secrets that somebody made",
    &[],
);
static GENERATED_TOKENS: Counters<0> = Counters::new(
    "serviceaccount_legacy_auto_token_uses_total",
    "Uses of tokens in Secrets that accounts got by themselves",
    &[],
);
static REFUSED_TOKENS: Counters<0> = Counters::new(
    "serviceaccount_invalid_legacy_auto_token_uses_total",
    "Uses of tokens in Secrets that are marked invalid",
    &[],
);
static AUTHENTICATION_DURATION: Histograms<1> = Histograms::new(
    "authentication_duration_seconds",
    "How long authentication took, in seconds",
    &["result"],
    &FILTER_BUCKETS,
);
static AUTHORIZATIONS: Counters<1> =
    Counters::new("authorization_attempts_total", "Requests that were authorized, by result", &["result"]);
static AUTHORIZATION_DURATION: Histograms<1> = Histograms::new(
    "authorization_duration_seconds",
    "How long authorization took, in seconds",
    &["result"],
    &FILTER_BUCKETS,
);
static AUDIT_EVENTS: Counters<0> =
    Counters::new("apiserver_audit_event_total", "Audit events that were handed to the sinks", &[]);
static AUDIT_LEVELS: Counters<1> = Counters::new(
    "apiserver_audit_level_total",
    "Requests, by the level that the audit policy has for them",
    &["level"],
);

static VALIDATION_MISMATCHES: Counters<0> = Counters::new(
    "apiserver_validation_declarative_validation_mismatch_total",
    "Objects that two validations judged differently; there is one validation, so none",
    &[],
);
static VALIDATION_PANICS: Counters<0> = Counters::new(
    "apiserver_validation_declarative_validation_panic_total",
    "Panics while a write was worked on, in its validation or anywhere else",
    &[],
);

/// Series of requests are looked up once, by borrowed names.
#[derive(Default)]
pub struct Metrics {
    series: RwLock<IndexMap<Names, Arc<Series>, foldhash::fast::RandomState>>,
}

/// Of one resource, as many as a request of one kind and outcome needs.
struct Series {
    total: Arc<Counter>,
    /// Of requests that end: how long a watch lasts says nothing.
    durations: Option<[Arc<Histogram>; 2]>,
    /// Of reads.
    sizes: Option<Arc<Histogram>>,
}

#[derive(PartialEq, Eq, Hash)]
struct Names {
    group: Box<str>,
    version: Box<str>,
    resource: Box<str>,
    subresource: Box<str>,
    outcome: Outcome,
}

#[derive(PartialEq, Eq, Hash, Clone, Copy)]
struct Outcome {
    verb: &'static str,
    scope: &'static str,
    code: u16,
    dry_run: bool,
}

/// [`Names`] as a request has them.
#[derive(Clone, Copy)]
struct Borrowed<'a> {
    group: &'a str,
    version: &'a str,
    resource: &'a str,
    subresource: &'a str,
    outcome: Outcome,
}

impl Hash for Borrowed<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let Borrowed { group, version, resource, subresource, outcome } = self;
        (group, version, resource, subresource, outcome).hash(state);
    }
}

impl Equivalent<Names> for Borrowed<'_> {
    fn equivalent(&self, names: &Names) -> bool {
        self.outcome == names.outcome
            && *self.resource == *names.resource
            && *self.group == *names.group
            && *self.version == *names.version
            && *self.subresource == *names.subresource
    }
}

impl<'a> Borrowed<'a> {
    fn of(row: Option<&'a Arc<Kind>>, info: &'a RequestInfo, outcome: Outcome) -> Borrowed<'a> {
        let subresource = row.filter(|row| row.subresource(&info.subresource).is_some());
        Borrowed {
            group: row.map_or("", |row| row.group.as_ref()),
            version: row.map_or("", |row| row.version.as_ref()),
            resource: row.map_or("", |row| row.plural.as_ref()),
            subresource: subresource.map_or("", |_| info.subresource.as_str()),
            outcome,
        }
    }
}

/// Upstream's word for what a request does.
fn verb(info: &RequestInfo, method: &Method, content_type: &str) -> &'static str {
    if !info.is_resource {
        return match *method {
            Method::GET => "GET",
            Method::HEAD => "HEAD",
            Method::POST => "POST",
            Method::PUT => "PUT",
            Method::PATCH => "PATCH",
            Method::DELETE => "DELETE",
            Method::OPTIONS => "OPTIONS",
            _ => "other",
        };
    }
    if info.is_long_running() && info.verb != "watch" && info.subresource != "log" {
        return "CONNECT";
    }
    match info.verb {
        "get" => "GET",
        "list" => "LIST",
        "watch" => "WATCH",
        "create" => "POST",
        "update" => "PUT",
        "patch" if content_type.starts_with(JSON_APPLY) => "APPLY",
        "patch" => "PATCH",
        "delete" => "DELETE",
        "deletecollection" => "DELETECOLLECTION",
        "head" => "HEAD",
        "options" => "OPTIONS",
        _ => "other",
    }
}

fn scope(info: &RequestInfo) -> &'static str {
    match () {
        () if !info.is_resource => "",
        () if !info.name.is_empty() || info.verb == "create" => "resource",
        () if !info.namespace.is_empty() => "namespace",
        () => "cluster",
    }
}

fn row<'a>(served: &'a Served, info: &RequestInfo) -> Option<&'a Arc<Kind>> {
    if info.is_resource { served.kind(&info.group, &info.version, &info.resource) } else { None }
}

impl Metrics {
    pub fn finished(&self, served: &Served, request: &Request, response: &Response, took: Duration) {
        let info = &request.info;
        let row = row(served, info);
        let outcome = Outcome {
            verb: verb(info, &request.method, request.header(CONTENT_TYPE.as_str())),
            scope: scope(info),
            code: response.status().as_u16(),
            dry_run: request.query.get("dryRun").is_some(),
        };
        let names = Borrowed::of(row, info, outcome);
        let series = self.count(names, took);
        if let (Body::Bytes(bytes), Some(sizes)) = (response.body(), &series.sizes) {
            sizes.observe(bytes.len() as f64);
        }
        if row.is_some_and(|row| row.deprecation.is_some()) {
            let labels = [names.group, "", names.resource, names.subresource, names.version];
            DEPRECATED.with(labels).set(1.0);
        }
    }

    /// Another API server answered. Which resources it has is not known here, so they are not told apart.
    pub fn passed_on(&self, info: &RequestInfo, method: &Method, status: StatusCode, took: Duration) {
        let outcome = Outcome {
            verb: verb(info, method, ""),
            scope: scope(info),
            code: status.as_u16(),
            dry_run: false,
        };
        let (group, version) = (info.group.as_str(), info.version.as_str());
        self.count(Borrowed { group, version, resource: "", subresource: "", outcome }, took);
    }

    fn count(&self, names: Borrowed<'_>, took: Duration) -> Arc<Series> {
        let known = self.series.read().get(&names).cloned();
        let series = known.unwrap_or_else(|| self.series(names));
        series.total.inc();
        for duration in series.durations.iter().flatten() {
            duration.observe_time(took);
        }
        series
    }

    fn series(&self, names: Borrowed<'_>) -> Arc<Series> {
        let Borrowed { group, version, resource, subresource, outcome } = names;
        let Outcome { verb, scope, code, dry_run } = outcome;
        let (code, dry_run) = (code.to_string(), if dry_run { "All" } else { "" });
        let without = [COMPONENT, group, resource, scope, subresource, verb, version];
        let with = [COMPONENT, dry_run, group, resource, scope, subresource, verb, version];
        let labels = [&code, COMPONENT, dry_run, group, resource, scope, subresource, verb, version];
        let series = Arc::new(Series {
            total: REQUESTS.with(labels),
            durations: (verb != "WATCH" && verb != "CONNECT")
                .then(|| [DURATION.with(with), SLI_DURATION.with(without)]),
            sizes: matches!(verb, "GET" | "LIST").then(|| RESPONSE_SIZES.with(without)),
        });
        let names = Names {
            group: group.into(),
            version: version.into(),
            resource: resource.into(),
            subresource: subresource.into(),
            outcome,
        };
        self.series.write().insert(names, series.clone());
        series
    }

    /// The page of one server.
    pub async fn text(&self, api: &Api) -> String {
        let mut registry = Registry::default();
        register(&mut registry);
        let mut page = Page::default();
        registry.collect(&mut page);
        for resource in api.registry.resources() {
            let name = resource.stored.group_resource();
            page.sample(&STORAGE_OBJECTS, &[&name.to_string()], resource.cache.len() as f64);
            let labels = [&*resource.stored.group, &*resource.stored.plural];
            page.sample(&RESOURCE_OBJECTS, &labels, resource.cache.len() as f64);
        }
        // what the store does not tell is left out
        if let Ok(usage) = api.registry.store.usage().await {
            page.sample(&STORAGE_SIZE, &["etcd-0"], usage.size as f64);
            page.sample(&STORAGE_QUOTA, &[], usage.quota as f64);
            page.sample(&STORAGE_NO_SPACE, &[], f64::from(usage.no_space));
        }
        if let Some(fairness) = api.flow_control.fairness() {
            fairness.collect(&mut page);
        }
        page.finish()
    }
}

static STORAGE_OBJECTS: Description =
    Description::gauge("apiserver_storage_objects", "Stored objects of a resource", &["resource"]);
static RESOURCE_OBJECTS: Description =
    Description::gauge("apiserver_resource_objects", "Stored objects of a resource", &["group", "resource"]);
static STORAGE_SIZE: Description =
    Description::gauge("apiserver_storage_size_bytes", "Bytes of the store on disk", &["storage_cluster_id"]);
static STORAGE_QUOTA: Description = Description::gauge(
    "etcd_server_quota_backend_bytes",
    "Bytes past which the store refuses writes; 0 where it does not tell",
    &[],
);
static STORAGE_NO_SPACE: Description = Description::gauge(
    "ferry_storage_no_space",
    "1 where the store refuses writes for want of space (etcd's alarm NOSPACE)",
    &[],
);

/// What is counted where it happens.
pub fn register(registry: &mut Registry) {
    ferry_client::metrics::register(registry);
    ferry_admission::metrics::register(registry);
    registry.add(&[
        &REQUESTS,
        &DURATION,
        &SLI_DURATION,
        &RESPONSE_SIZES,
        &LONG_RUNNING,
        &IN_FLIGHT,
        &DEPRECATED,
        &WATCH_EVENTS,
        &LEGACY_TOKENS,
        &MANUAL_TOKENS,
        &GENERATED_TOKENS,
        &REFUSED_TOKENS,
        &AUTHENTICATIONS,
        &AUTHENTICATION_DURATION,
        &AUTHORIZATIONS,
        &AUTHORIZATION_DURATION,
        &AUDIT_EVENTS,
        &AUDIT_LEVELS,
        &VALIDATION_MISMATCHES,
        &VALIDATION_PANICS,
    ]);
}

/// The families that are computed when the page is read.
pub fn descriptions() -> [Description; 5] {
    [STORAGE_OBJECTS, RESOURCE_OBJECTS, STORAGE_SIZE, STORAGE_QUOTA, STORAGE_NO_SPACE]
}

/// Raises a gauge by one until it is dropped.
pub struct GaugeGuard(Arc<Gauge>);

impl GaugeGuard {
    fn new(gauge: Arc<Gauge>) -> GaugeGuard {
        gauge.add(1.0);
        GaugeGuard(gauge)
    }
}

impl Drop for GaugeGuard {
    fn drop(&mut self) {
        self.0.add(-1.0);
    }
}

/// A request that is being worked on.
pub fn in_flight(info: &RequestInfo) -> Option<GaugeGuard> {
    let kind = if info.is_mutating() { "mutating" } else { "readOnly" };
    (!info.is_long_running()).then(|| GaugeGuard::new(IN_FLIGHT.with([kind])))
}

/// A request that lasts: a watch, a log that is followed, a connection to a pod.
pub fn long_running(served: &Served, request: &Request) -> Option<GaugeGuard> {
    let info = &request.info;
    if !info.is_long_running() {
        return None;
    }
    let outcome =
        Outcome { verb: verb(info, &request.method, ""), scope: scope(info), code: 0, dry_run: false };
    let Borrowed { group, version, resource, subresource, outcome } =
        Borrowed::of(row(served, info), info, outcome);
    let labels = [COMPONENT, group, resource, outcome.scope, subresource, outcome.verb, version];
    Some(GaugeGuard::new(LONG_RUNNING.with(labels)))
}

/// Counts the events of a watch.
pub fn watch_events(kind: &Kind) -> Arc<Counter> {
    WATCH_EVENTS.with([&kind.group, &kind.plural, &kind.version])
}

/// How a token that a Secret keeps was used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeptTokenUse {
    /// Its account got it by itself.
    Generated,
    Manual,
    /// It is marked invalid.
    Refused,
}

pub fn kept_token_used(used: KeptTokenUse) {
    match used {
        KeptTokenUse::Generated => GENERATED_TOKENS.with([]).inc(),
        KeptTokenUse::Manual => MANUAL_TOKENS.with([]).inc(),
        KeptTokenUse::Refused => REFUSED_TOKENS.with([]).inc(),
    }
    if used != KeptTokenUse::Refused {
        LEGACY_TOKENS.with([]).inc();
    }
}

pub fn authenticated(succeeded: bool, took: Duration) {
    let result = if succeeded { "success" } else { "failure" };
    AUTHENTICATIONS.with([result]).inc();
    AUTHENTICATION_DURATION.with([result]).observe_time(took);
}

pub fn authorized(decision: &Decision, took: Duration) {
    let result = match decision {
        Decision::Allow { .. } => "allowed",
        Decision::Deny { .. } => "denied",
        Decision::NoOpinion { .. } => "no-opinion",
        Decision::Failed { .. } => "error",
    };
    AUTHORIZATIONS.with([result]).inc();
    AUTHORIZATION_DURATION.with([result]).observe_time(took);
}

/// A request panicked. What it came to is not known, so that of writes counts.
pub fn panicked(info: &RequestInfo) {
    if info.is_mutating() {
        VALIDATION_PANICS.with([]).inc();
    }
}

pub fn audit_event() {
    AUDIT_EVENTS.with([]).inc();
}

pub fn audit_level(level: audit::Level) {
    let level = match level {
        audit::Level::None => "None",
        audit::Level::Metadata => "Metadata",
        audit::Level::Request => "Request",
        audit::Level::RequestResponse => "RequestResponse",
    };
    AUDIT_LEVELS.with([level]).inc();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request_info::Query;

    #[test]
    fn requests_have_upstreams_verbs_and_scopes() {
        let check = |method: Method, path: &str, content_type: &str, expected: (&str, &str)| {
            let (path, query) = path.split_once('?').unwrap_or((path, ""));
            let info = RequestInfo::parse(&method, path, &Query::parse(query))
                .unwrap_or_else(|_| panic!("{path} is a path"));
            assert_eq!((verb(&info, &method, content_type), scope(&info)), expected, "{method} {path}");
        };
        let pods = "/api/v1/namespaces/a/pods";
        check(Method::GET, "/api/v1/pods", "", ("LIST", "cluster"));
        check(Method::GET, pods, "", ("LIST", "namespace"));
        check(Method::GET, "/api/v1/namespaces/a/pods?watch=1", "", ("WATCH", "namespace"));
        check(Method::POST, pods, "", ("POST", "resource"));
        check(Method::GET, "/api/v1/namespaces/a/pods/b", "", ("GET", "resource"));
        check(Method::PUT, "/api/v1/namespaces/a/pods/b/status", "", ("PUT", "resource"));
        check(
            Method::PATCH,
            "/api/v1/namespaces/a/pods/b",
            "application/merge-patch+json",
            ("PATCH", "resource"),
        );
        check(
            Method::PATCH,
            "/api/v1/namespaces/a/pods/b",
            "application/apply-patch+yaml",
            ("APPLY", "resource"),
        );
        check(Method::DELETE, pods, "", ("DELETECOLLECTION", "namespace"));
        check(Method::POST, "/api/v1/namespaces/a/pods/b/exec", "", ("CONNECT", "resource"));
        check(Method::GET, "/api/v1/namespaces/a/pods/b/log", "", ("GET", "resource"));
        check(Method::GET, "/healthz", "", ("GET", ""));
    }

    /// Upstream's suite demands both, and that they are zero, after everything else.
    #[test]
    fn what_must_never_happen_is_counted_from_the_start() {
        let page = || {
            let (mut registry, mut page) = (Registry::default(), Page::default());
            register(&mut registry);
            registry.collect(&mut page);
            page.finish()
        };
        let has = |line: &str| page().lines().any(|found| found == line);
        assert!(has("apiserver_validation_declarative_validation_mismatch_total 0"));
        assert!(has("apiserver_validation_declarative_validation_panic_total 0"));
        let of = |method: Method| {
            let path = "/api/v1/namespaces/a/pods/b";
            RequestInfo::parse(&method, path, &Query::parse("")).expect("a path")
        };
        panicked(&of(Method::GET));
        assert!(has("apiserver_validation_declarative_validation_panic_total 0"));
        panicked(&of(Method::PUT));
        assert!(has("apiserver_validation_declarative_validation_panic_total 1"));
    }

    #[test]
    fn unserved_resources_get_no_metric_series() {
        let metrics = Metrics::default();
        let outcome = Outcome { verb: "GET", scope: "cluster", code: 404, dry_run: false };
        for number in 0..100 {
            let path = format!("/apis/group-{number}.example.com/v{number}/things-{number}");
            let info = RequestInfo::parse(&Method::GET, &path, &Query::parse("")).expect("a path");
            metrics.count(Borrowed::of(None, &info, outcome), Duration::ZERO);
        }
        assert_eq!(metrics.series.read().len(), 1);
    }

    #[test]
    fn a_series_is_found_by_borrowed_names() {
        let metrics = Metrics::default();
        let outcome = Outcome { verb: "GET", scope: "resource", code: 299, dry_run: false };
        let names =
            Borrowed { group: "test", version: "v1", resource: "things", subresource: "status", outcome };
        metrics.count(names, Duration::from_millis(10));
        let series = metrics.count(names, Duration::from_millis(100));
        let counts = series.durations.as_ref().map(|durations| durations[0].count());
        assert_eq!((series.total.get(), counts), (2, Some(2)));
        metrics.count(Borrowed { subresource: "", ..names }, Duration::ZERO);
        assert_eq!(metrics.series.read().len(), 2);
    }
}
