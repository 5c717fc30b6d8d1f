//! The pages that every component has.

use std::fmt::Write;
use std::sync::Arc;

use ferry_client::CancellationToken;
use ferry_metrics::{CONTENT_TYPE, Registry, slis};
use futures::future::BoxFuture;
use http::{Method, Request, Response, StatusCode};
use hyper::body::Incoming;

use crate::guard::{Access, Guard, User, verb};
use crate::listener::{Body, Listener, respond, serve, text};

/// A health check: its name, and what it finds.
pub type Check = (&'static str, Box<dyn Fn() -> Result<(), String> + Send + Sync>);

/// A page besides those that every component has: its path, and who makes its text.
pub type Extra = (&'static str, Box<dyn Fn() -> BoxFuture<'static, Result<String, String>> + Send + Sync>);

pub struct Pages {
    /// Whom callers have to convince. Without one anybody may read: upstream's proxy and DNS ask nobody.
    pub guard: Option<Guard>,
    /// What everybody may read all the same.
    pub always_allowed: AlwaysAllowed,
    pub registry: Registry,
    /// Beside `ping`, which always succeeds.
    pub checks: Vec<Check>,
    pub extra: Vec<Extra>,
}

/// Paths, or beginnings of paths that end in `*`.
#[derive(Clone, Debug)]
pub struct AlwaysAllowed(pub Vec<String>);

impl Default for AlwaysAllowed {
    /// Health is everybody's, as upstream's components have it.
    fn default() -> AlwaysAllowed {
        AlwaysAllowed(["/healthz", "/livez", "/readyz"].map(String::from).into())
    }
}

impl AlwaysAllowed {
    fn has(&self, path: &str) -> bool {
        self.0.iter().any(|allowed| match allowed.strip_suffix('*') {
            Some(beginning) => path.starts_with(beginning),
            None => allowed == path,
        })
    }
}

/// Each path that can be asked for, since paths are also what permissions are kept by.
const PATHS: [&str; 5] = ["/healthz", "/livez", "/metrics", "/metrics/slis", "/readyz"];

impl Pages {
    /// Serves until stopped.
    pub async fn serve(self, listener: Listener, stop: CancellationToken) {
        let pages = Arc::new(self);
        let answer = move |request, certificate| {
            let pages = pages.clone();
            async move { pages.answer(&request, certificate).await }
        };
        serve(listener, answer, stop).await;
    }

    async fn answer(&self, request: &Request<Incoming>, certificate: Option<User>) -> Response<Body> {
        let paths = PATHS.iter().copied().chain(self.extra.iter().map(|(path, _)| *path));
        let found = paths.into_iter().find(|path| *path == request.uri().path());
        let Some(path) = found else { return text(StatusCode::NOT_FOUND, "404 page not found") };
        if let Some(refusal) = self.refusal(request, certificate, path).await {
            return refusal;
        }
        if ![Method::GET, Method::HEAD].contains(request.method()) {
            return text(StatusCode::METHOD_NOT_ALLOWED, "405 method not allowed");
        }
        if let Some((_, make)) = self.extra.iter().find(|(own, _)| *own == path) {
            return match make().await {
                Ok(page) => respond(StatusCode::OK, CONTENT_TYPE, page.into()),
                Err(problem) => text(StatusCode::INTERNAL_SERVER_ERROR, problem),
            };
        }
        match path {
            "/metrics" => respond(StatusCode::OK, CONTENT_TYPE, self.registry.text().into()),
            "/metrics/slis" => slis_page(&["healthz", "livez", "readyz"], &self.checks),
            _ => {
                let is_verbose = request.uri().query().is_some_and(|query| query.contains("verbose"));
                health(path.trim_start_matches('/'), &self.checks, is_verbose)
            }
        }
    }

    /// Why the caller does not get the page.
    async fn refusal(
        &self,
        request: &Request<Incoming>,
        certificate: Option<User>,
        path: &'static str,
    ) -> Option<Response<Body>> {
        let guard = self.guard.as_ref()?;
        if self.always_allowed.has(path) {
            return None;
        }
        let user = match guard.authenticate(certificate, request.headers()).await {
            Ok(user) => user,
            Err(_) => return Some(status(401, "Unauthorized", "Unauthorized".into())),
        };
        let verb = verb(request.method());
        match guard.may(&user, Access::Path { verb, path }).await {
            Ok(true) => None,
            Ok(false) => {
                let message = format!("forbidden: User {:?} cannot {verb} path {path:?}", user.name);
                Some(status(403, "Forbidden", message))
            }
            Err(problem) => Some(status(500, "InternalError", format!("Internal error occurred: {problem}"))),
        }
    }
}

/// What `ping`, which always succeeds, and the checks find, under `healthz`, `livez` or `readyz`.
pub fn health(endpoint: &str, checks: &[Check], is_verbose: bool) -> Response<Body> {
    let mut lines = String::from("[+]ping ok\n");
    slis::checked("ping", endpoint, true);
    let mut is_healthy = true;
    for (name, check) in checks {
        let found = check();
        slis::checked(name, endpoint, found.is_ok());
        // writing to a string cannot fail
        let _ = match &found {
            Ok(()) => writeln!(lines, "[+]{name} ok"),
            // why is for those who may read logs
            Err(_) => writeln!(lines, "[-]{name} failed: reason withheld"),
        };
        if let Err(problem) = found {
            is_healthy = false;
            tracing::warn!(name, problem, "a health check failed");
        }
    }
    match (is_healthy, is_verbose) {
        (true, false) => respond(StatusCode::OK, "text/plain; charset=utf-8", "ok".into()),
        (true, true) => text(StatusCode::OK, format!("{lines}{endpoint} check passed")),
        (false, _) => text(StatusCode::INTERNAL_SERVER_ERROR, format!("{lines}{endpoint} check failed")),
    }
}

/// `/metrics/slis`: what the checks find now and found before. They are asked for it, since nobody else may have.
pub fn slis_page(endpoints: &[&str], checks: &[Check]) -> Response<Body> {
    for endpoint in endpoints {
        health(endpoint, checks, false);
    }
    respond(StatusCode::OK, CONTENT_TYPE, slis::text().into())
}

/// What one of them finds.
pub fn one_check(endpoint: &str, checks: &[Check], name: &str) -> Response<Body> {
    let found = match checks.iter().find(|(known, _)| *known == name) {
        _ if name == "ping" => Ok(()),
        Some((_, check)) => check(),
        None => return text(StatusCode::NOT_FOUND, "404 page not found"),
    };
    slis::checked(name, endpoint, found.is_ok());
    match found {
        Ok(()) => respond(StatusCode::OK, "text/plain; charset=utf-8", "ok".into()),
        Err(problem) => text(StatusCode::INTERNAL_SERVER_ERROR, format!("internal server error: {problem}")),
    }
}

fn status(code: u16, reason: &str, message: String) -> Response<Body> {
    let body = serde_json::json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": message, "reason": reason, "code": code,
    });
    let code = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    respond(code, "application/json", body.to_string().into())
}
