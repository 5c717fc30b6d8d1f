//! The container runtime as the kubelet uses it: what it has of a pod, what
//! it is told, and what it reports.

pub mod container_config;
pub mod dns;
pub mod labels;
pub mod sandbox_config;
pub mod security;
pub mod view;
pub mod watch;

use std::collections::HashMap;

use crate::cri;
use view::PodRuntime;

/// Everything the runtime has of a pod.
pub async fn pod(runtime: &cri::Client, uid: &str) -> Result<PodRuntime, cri::Error> {
    let label_selector = HashMap::from([(labels::POD_UID.to_string(), uid.to_string())]);
    let sandbox_filter =
        cri::PodSandboxFilter { label_selector: label_selector.clone(), ..Default::default() };
    let container_filter = cri::ContainerFilter { label_selector, ..Default::default() };
    let (mut sandboxes, mut containers) = tokio::try_join!(
        runtime.list_pod_sandboxes(Some(sandbox_filter)),
        runtime.list_containers(Some(container_filter)),
    )?;
    sandboxes.sort_by_key(|sandbox| std::cmp::Reverse(sandbox.created_at));
    containers.sort_by_key(|container| std::cmp::Reverse(container.created_at));

    let mut pod = PodRuntime::default();
    for each in &sandboxes {
        pod.sandboxes.extend(sandbox(runtime, &each.id).await?);
    }
    for each in &containers {
        pod.containers.extend(container(runtime, &each.id, &each.pod_sandbox_id).await?);
    }
    Ok(pod)
}

/// The runtime's own settings, if it shows them.
pub async fn settings(runtime: &cri::Client) -> Result<Option<serde_json::Value>, cri::Error> {
    let answer = runtime.status(true).await?;
    Ok(answer.info.get("config").and_then(|config| serde_json::from_str(config).ok()))
}

/// One sandbox; `None` when it is gone.
pub async fn sandbox(runtime: &cri::Client, id: &str) -> Result<Option<view::Sandbox>, cri::Error> {
    match runtime.pod_sandbox_status(id).await {
        Ok(answer) => Ok(answer.status.as_ref().map(view::sandbox)),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(error),
    }
}

/// One container; `None` when it is gone.
pub async fn container(
    runtime: &cri::Client,
    id: &str,
    sandbox: &str,
) -> Result<Option<view::Container>, cri::Error> {
    match runtime.container_status(id).await {
        Ok(status) => Ok(status.as_ref().map(|status| view::container(status, sandbox))),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(error),
    }
}
