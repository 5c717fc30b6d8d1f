//! `/healthz`, `/livez`, `/readyz`: named checks, each answerable alone, all shown with `?verbose`.

use std::fmt::Write;
use std::sync::atomic::{AtomicBool, Ordering};

use http::header::{CONTENT_TYPE, HeaderValue};
use tokio_util::sync::CancellationToken;

use crate::api::Api;
use crate::body::Response;
use crate::request::Request;
use crate::respond;

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
    passes: fn(&Health) -> bool,
}

const CHECKS: &[Check] = &[
    Check { name: "ping", readiness_only: false, passes: |_| true },
    Check { name: "etcd", readiness_only: false, passes: |health| health.caches.load(Ordering::Acquire) },
    Check {
        name: "informer-sync",
        readiness_only: true,
        passes: |health| health.caches.load(Ordering::Acquire),
    },
    Check {
        name: "poststarthook/bootstrap-controller",
        readiness_only: false,
        passes: |health| health.started.load(Ordering::Acquire),
    },
    Check { name: "shutdown", readiness_only: true, passes: |health| !health.stopping.is_cancelled() },
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

    pub fn is_ready(&self) -> bool {
        CHECKS.iter().all(|check| (check.passes)(self))
    }
}

pub fn answer(api: &Api, request: &Request, parts: &[&str]) -> Response {
    let endpoint = parts[0];
    let checks = CHECKS.iter().filter(|check| endpoint == "readyz" || !check.readiness_only);
    let one = parts[1..].join("/");
    if !one.is_empty() {
        return match checks.into_iter().find(|check| check.name == one) {
            Some(check) if (check.passes)(&api.health) => text(200, "ok".into()),
            Some(check) => text(500, format!("internal server error: {} failed\n", check.name)),
            None => respond::page_not_found(),
        };
    }
    let excluded: Vec<&str> = request.query.all("exclude").collect();
    let (mut lines, mut failed) = (String::new(), Vec::new());
    for check in checks {
        let verdict = match () {
            () if excluded.contains(&check.name) => "excluded: ok",
            () if (check.passes)(&api.health) => "ok",
            () => {
                failed.push(check.name);
                "failed: reason withheld"
            }
        };
        let sign = if verdict.starts_with("failed") { '-' } else { '+' };
        let _ = writeln!(lines, "[{sign}]{} {verdict}", check.name);
    }
    match (failed.is_empty(), request.query.get("verbose").is_some()) {
        (true, false) => text(200, "ok".into()),
        (true, true) => text(200, format!("{lines}{endpoint} check passed\n")),
        (false, _) => text(500, format!("{lines}{endpoint} check failed\n")),
    }
}

fn text(code: u16, text: String) -> Response {
    let mut response = respond::plain(code, text);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    response.headers_mut().insert("x-content-type-options", HeaderValue::from_static("nosniff"));
    response
}
