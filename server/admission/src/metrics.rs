//! The metrics of admission, with upstream's names.

use std::time::Duration;

use ferry_api::Status;
use ferry_metrics::{Counters, Histograms, Registry};
use ferry_registry::verbs::Operation;

static BUCKETS: [f64; 6] = [0.005, 0.025, 0.1, 0.5, 1.0, 2.5];

static STEP: Histograms<3> = Histograms::new(
    "apiserver_admission_step_admission_duration_seconds",
    "How long all plugins of a step took together, in seconds",
    &["operation", "rejected", "type"],
    &BUCKETS,
);
static CONTROLLER: Histograms<4> = Histograms::new(
    "apiserver_admission_controller_admission_duration_seconds",
    "How long an admission plugin took, in seconds",
    &["name", "operation", "rejected", "type"],
    &BUCKETS,
);
static WEBHOOK: Histograms<4> = Histograms::new(
    "apiserver_admission_webhook_admission_duration_seconds",
    "How long a webhook took, in seconds",
    &["name", "operation", "rejected", "type"],
    &[0.005, 0.025, 0.1, 0.5, 1.0, 2.5, 10.0, 25.0],
);
static WEBHOOK_REQUESTS: Counters<5> = Counters::new(
    "apiserver_admission_webhook_request_total",
    "Requests to webhooks, by the code they answered with; 600 where they could not be reached",
    &["code", "name", "operation", "rejected", "type"],
);

pub fn register(registry: &mut Registry) {
    registry.add(&[&STEP, &CONTROLLER, &WEBHOOK, &WEBHOOK_REQUESTS]);
}

pub fn operation(operation: Operation) -> &'static str {
    match operation {
        Operation::Create => "CREATE",
        Operation::Update => "UPDATE",
        Operation::Delete => "DELETE",
        Operation::Connect => "CONNECT",
    }
}

fn rejected<T>(verdict: &Result<T, Status>) -> &'static str {
    if verdict.is_err() { "true" } else { "false" }
}

/// `kind` is `admit` for plugins that change things, else `validate`.
pub fn step<T>(of: Operation, kind: &str, verdict: &Result<T, Status>, took: Duration) {
    STEP.with([operation(of), rejected(verdict), kind]).observe_time(took);
}

pub fn plugin<T>(name: &str, of: Operation, kind: &str, verdict: &Result<T, Status>, took: Duration) {
    CONTROLLER.with([name, operation(of), rejected(verdict), kind]).observe_time(took);
}

/// `kind` is `admit` or `validating`; `code` what a refusal names, 200 where there is none.
pub fn webhook(name: &str, of: Operation, kind: &str, is_rejected: bool, code: u16, took: Duration) {
    let (of, rejected) = (operation(of), if is_rejected { "true" } else { "false" });
    WEBHOOK.with([name, of, rejected, kind]).observe_time(took);
    WEBHOOK_REQUESTS.with([&code.to_string(), name, of, rejected, kind]).inc();
}
