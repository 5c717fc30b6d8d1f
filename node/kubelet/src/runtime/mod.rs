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
    for sandbox in &sandboxes {
        // what is gone between the two questions is gone
        match runtime.pod_sandbox_status(&sandbox.id).await {
            Ok(answer) => pod.sandboxes.extend(answer.status.as_ref().map(view::sandbox)),
            Err(error) if error.is_not_found() => {}
            Err(error) => return Err(error),
        }
    }
    for container in &containers {
        match runtime.container_status(&container.id).await {
            Ok(status) => {
                pod.containers
                    .extend(status.as_ref().map(|status| view::container(status, &container.pod_sandbox_id)));
            }
            Err(error) if error.is_not_found() => {}
            Err(error) => return Err(error),
        }
    }
    Ok(pod)
}
