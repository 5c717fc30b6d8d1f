//! What a container wants done right after its start and before its end.

use std::net::IpAddr;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, LifecycleHandler};

use crate::cri;
use crate::probes::check::{self, Target};

const AGENT: &str = "kube-lifecycle/1.36";

/// Runs a hook to its end. The time given is all it may take.
pub async fn run(
    runtime: &cri::Client,
    container_id: &str,
    container: &Container,
    handler: &LifecycleHandler,
    pod_ip: Option<IpAddr>,
    time: Duration,
) -> Result<(), String> {
    let target = Target {
        runtime: runtime.clone(),
        container_id: container_id.into(),
        container: container.clone(),
        pod_ip,
    };
    let outcome = if let Some(action) = &handler.exec {
        check::exec(&target, action, time).await
    } else if let Some(action) = &handler.http_get {
        check::http_get(&target, action, time, AGENT).await
    } else if let Some(action) = &handler.sleep {
        let wanted = Duration::from_secs(action.seconds.max(0) as u64);
        tokio::time::sleep(wanted.min(time)).await;
        check::Outcome::success("")
    } else if let Some(action) = &handler.tcp_socket {
        check::tcp(&target, action, time).await
    } else {
        check::Outcome::failure("invalid handler")
    };
    if outcome.succeeded { Ok(()) } else { Err(outcome.output) }
}
