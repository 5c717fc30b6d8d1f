//! This command's own spans, for a server that keeps a trace: what happened before the first byte went out.

use std::time::Duration;

use ferry_trace::{Context, TraceId, ring};
use http::Method;

use crate::transport::{Client, Request};

const PATH: &str = "/ferry/v1/trace";
/// Nobody waits long for a command that is done.
const PATIENCE: Duration = Duration::from_millis(500);

/// The span of the program that called us, by the variable that other command-line programs use too.
pub fn of_caller() -> Option<Context> {
    std::env::var("TRACEPARENT").ok()?.parse().ok()
}

/// Hands in what was recorded. Only asked of a server that has answered a write with `traceresponse`; it may still
/// refuse, and the command is no worse for it.
pub async fn hand_in(client: &Client, trace: TraceId) {
    let Ok(body) = serde_json::to_vec(&ring().trace(trace)) else { return };
    // What is sent now is part of no story.
    let silent = ferry_trace::span("kubectl.trace").unsampled();
    let request = Request::with_body(Method::POST, PATH, "application/json", body);
    let _ = tokio::time::timeout(PATIENCE, silent.instrument(client.bytes(request))).await;
}
