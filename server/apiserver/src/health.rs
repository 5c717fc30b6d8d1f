//! `/healthz`, `/livez`, `/readyz`: named checks, which have paths of their own; `?verbose` shows all.

use std::fmt::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ferry_metrics::slis;
use ferry_store::Store;
use http::header::{CONTENT_TYPE, HeaderValue};
use tokio_util::sync::CancellationToken;

use crate::api::Api;
use crate::body::Response;
use crate::request::Request;
use crate::respond;

/// A store that does not answer in this time is not well, as with upstream's `--etcd-healthcheck-timeout`.
const STORE_TIMEOUT: Duration = Duration::from_secs(2);

#[derive(Default)]
pub struct Health {
    /// The caches are filled.
    caches: AtomicBool,
    /// The default objects are there.
    started: AtomicBool,
    stopping: CancellationToken,
}

struct Check {
    name: &'static str,
    /// A check of readiness says nothing about whether the server lives.
    readiness_only: bool,
    test: Test,
}

enum Test {
    State(fn(&Health) -> bool),
    /// The store answers and takes writes, whichever engine it is.
    Store,
}

const fn check(name: &'static str, test: Test) -> Check {
    Check { name, readiness_only: false, test }
}

const fn readiness(name: &'static str, test: Test) -> Check {
    Check { name, readiness_only: true, test }
}

const CACHES: Test = Test::State(|health| health.caches.load(Ordering::Acquire));
const STARTED: Test = Test::State(|health| health.started.load(Ordering::Acquire));

/// Under upstream's names and in its order. A hook of upstream's that has its like here is well when that is done: the first
/// fill of the caches, or the default objects.
const CHECKS: &[Check] = &[
    check("ping", Test::State(|_| true)),
    check("log", Test::State(|_| ferry_serving::log_is_written().is_ok())),
    check("etcd", Test::Store),
    readiness("etcd-readiness", Test::Store),
    readiness("informer-sync", CACHES),
    check("poststarthook/start-apiserver-admission-initializer", CACHES),
    check("poststarthook/generic-apiserver-start-informers", CACHES),
    check("poststarthook/start-apiextensions-informers", CACHES),
    check("poststarthook/start-apiextensions-controllers", STARTED),
    check("poststarthook/crd-informer-synced", CACHES),
    check("poststarthook/start-system-namespaces-controller", STARTED),
    check("poststarthook/start-cluster-authentication-info-controller", STARTED),
    check("poststarthook/start-legacy-token-tracking-controller", STARTED),
    check("poststarthook/start-service-ip-repair-controllers", STARTED),
    check("poststarthook/storage-readiness", CACHES),
    check("poststarthook/rbac/bootstrap-roles", STARTED),
    check("poststarthook/scheduling/bootstrap-system-priority-classes", STARTED),
    check("poststarthook/priority-and-fairness-config-producer", STARTED),
    check("poststarthook/bootstrap-controller", STARTED),
    check("poststarthook/start-kubernetes-service-cidr-controller", STARTED),
    check("poststarthook/start-kube-aggregator-informers", CACHES),
    check("poststarthook/apiservice-status-local-available-controller", STARTED),
    check("poststarthook/apiservice-status-remote-available-controller", STARTED),
    check("poststarthook/apiservice-registration-controller", STARTED),
    check("poststarthook/kube-apiserver-autoregistration", STARTED),
    check("autoregister-completion", STARTED),
    check("poststarthook/apiservice-openapi-controller", STARTED),
    readiness("shutdown", Test::State(|health| !health.stopping.is_cancelled())),
];

impl Health {
    pub fn caches_filled(&self) {
        self.caches.store(true, Ordering::Release);
    }

    pub fn started(&self) {
        self.started.store(true, Ordering::Release);
    }

    /// Readiness goes first, then watches end, then connections.
    pub fn stop(&self) {
        self.stopping.cancel();
    }

    pub fn stopping(&self) -> CancellationToken {
        self.stopping.clone()
    }
}

pub async fn answer(api: &Api, request: &Request, parts: &[&str]) -> Response {
    let endpoint = parts[0];
    let one = parts[1..].join("/");
    if !one.is_empty() {
        return match checks_of(endpoint).find(|check| check.name == one) {
            Some(check) => match verdict(check, &api.health, &store_health(api, &[check]).await) {
                Ok(()) => text(200, "ok".into()),
                Err(why) => text(500, format!("internal server error: {why}\n")),
            },
            None => respond::page_not_found(),
        };
    }
    let excluded: Vec<&str> = request.query.all("exclude").collect();
    let (mut lines, mut passed) = (String::new(), true);
    for (check, is_healthy) in judged(api, endpoint, &excluded).await {
        let (sign, outcome) = match is_healthy {
            None => ('+', "excluded: ok"),
            Some(true) => ('+', "ok"),
            Some(false) => ('-', "failed: reason withheld"),
        };
        passed &= is_healthy != Some(false);
        let _ = writeln!(lines, "[{sign}]{} {outcome}", check.name);
    }
    match (passed, request.query.get("verbose").is_some()) {
        (true, false) => text(200, "ok".into()),
        (true, true) => text(200, format!("{lines}{endpoint} check passed\n")),
        (false, _) => text(500, format!("{lines}{endpoint} check failed\n")),
    }
}

/// `/metrics/slis`. The checks are asked for it: a server in one process with its kubelet has no probe that asks them.
pub async fn slis(api: &Api) -> String {
    for endpoint in ["healthz", "livez", "readyz"] {
        judged(api, endpoint, &[]).await;
    }
    slis::text()
}

fn checks_of(endpoint: &str) -> impl Iterator<Item = &'static Check> {
    let with_readiness = endpoint == "readyz";
    CHECKS.iter().filter(move |check| with_readiness || !check.readiness_only)
}

/// The checks of an endpoint and what each found, which is counted; those excluded are not asked.
async fn judged(api: &Api, endpoint: &str, excluded: &[&str]) -> Vec<(&'static Check, Option<bool>)> {
    let is_asked = |check: &&Check| !excluded.contains(&check.name);
    let asked: Vec<&Check> = checks_of(endpoint).filter(is_asked).collect();
    let store = store_health(api, &asked).await;
    let judge = |check: &'static Check| {
        let is_healthy = is_asked(&check).then(|| verdict(check, &api.health, &store).is_ok());
        if let Some(is_healthy) = is_healthy {
            slis::checked(check.name, endpoint, is_healthy);
        }
        (check, is_healthy)
    };
    checks_of(endpoint).map(judge).collect()
}

fn verdict(check: &Check, health: &Health, store: &Result<(), String>) -> Result<(), String> {
    match check.test {
        Test::State(passes) if passes(health) => Ok(()),
        Test::State(_) => Err(format!("{} failed", check.name)),
        Test::Store => store.clone(),
    }
}

/// Asks the store once, if any of the checks is about it.
async fn store_health(api: &Api, checks: &[&Check]) -> Result<(), String> {
    if !checks.iter().any(|check| matches!(check.test, Test::Store)) {
        return Ok(());
    }
    of_store(api).await
}

/// Why the store is not well.
pub async fn of_store(api: &Api) -> Result<(), String> {
    let store: &dyn Store = &*api.registry.store;
    match tokio::time::timeout(STORE_TIMEOUT, store.health()).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error)) => {
            tracing::warn!(%error, "the store is unhealthy");
            Err(error.to_string())
        }
        Err(_) => {
            tracing::warn!("the store did not answer in {STORE_TIMEOUT:?}");
            Err(format!("the store did not answer in {STORE_TIMEOUT:?}"))
        }
    }
}

fn text(code: u16, text: String) -> Response {
    let mut response = respond::plain(code, text);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    response.headers_mut().insert("x-content-type-options", HeaderValue::from_static("nosniff"));
    response
}
