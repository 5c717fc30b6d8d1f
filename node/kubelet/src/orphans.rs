//! What no pod owns any more: containers, directories and cgroups of pods
//! that were deleted while no kubelet ran, or whose removal was interrupted.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::context::Context;
use crate::cri;
use crate::pods::Pods;
use crate::runtime::labels;

/// How long an orphan gets to end by itself: nobody is left to say.
const GRACE: Duration = Duration::from_secs(30);

pub async fn run(context: &Context, pods: &Pods, period: Duration) {
    loop {
        if let Err(error) = collect(context, pods).await {
            tracing::warn!(%error, "cannot collect orphaned pods; will retry");
        }
        tokio::time::sleep(period).await;
    }
}

async fn collect(context: &Context, pods: &Pods) -> Result<(), cri::Error> {
    let runtime = &context.runtime;
    let uid_of = |labels: &std::collections::HashMap<String, String>| labels.get(labels::POD_UID).cloned();
    let sandboxes = runtime.list_pod_sandboxes(None).await?;
    let mut left = BTreeSet::new();
    for sandbox in &sandboxes {
        let Some(uid) = uid_of(&sandbox.labels) else { continue };
        if pods.is_known(&uid) {
            continue;
        }
        let name =
            sandbox.metadata.as_ref().map(|metadata| format!("{}/{}", metadata.namespace, metadata.name));
        tracing::info!(pod = name, uid, "removing the remains of an unknown pod");
        // one that cannot be removed now keeps no other; it is tried again with the next pass
        if let Err(error) = remove(runtime, &sandbox.id).await {
            tracing::warn!(pod = name, uid, %error, "cannot remove the pod sandbox; will retry");
            left.insert(uid);
        }
    }
    let is_orphan = |uid: &str| !pods.is_known(uid) && !left.contains(uid);
    let on_disk = context.volumes.pods_on_disk().unwrap_or_else(|error| {
        tracing::warn!(%error, "pods' directories not listed");
        vec![]
    });
    for uid in on_disk {
        if is_orphan(&uid) {
            match context.volumes.tear_down(&uid).await {
                Ok(()) => tracing::info!(uid, "orphaned pod directory removed"),
                Err(error) => tracing::warn!(uid, %error, "orphaned pod directory not removed"),
            }
        }
    }
    for uid in context.cpus.pods() {
        if is_orphan(&uid) && context.cpus.release(&uid) {
            tracing::info!(uid, "released the CPUs of an unknown pod");
        }
    }
    for uid in context.device_plugins.pods() {
        if is_orphan(&uid) && context.device_plugins.release(&uid) {
            tracing::info!(uid, "releasing the devices of an unknown pod");
        }
    }
    for uid in context.cgroups.pods_present() {
        if !is_orphan(&uid) {
            continue;
        }
        // the runtime had none of its sandboxes any more, or has just lost the last
        context.cgroups.kill(&uid).await;
        if let Err(error) = context.cgroups.remove(&uid) {
            tracing::warn!(uid, %error, "orphaned cgroup not removed");
        }
    }
    Ok(())
}

/// Stops a sandbox with its containers, then removes it. What fails half way
/// is stopped again the next time: only that takes its network down.
async fn remove(runtime: &cri::Client, sandbox: &str) -> Result<(), cri::Error> {
    let filter = cri::ContainerFilter { pod_sandbox_id: sandbox.into(), ..Default::default() };
    let containers = runtime.list_containers(Some(filter)).await?;
    let running = containers.iter().filter(|each| each.state == cri::ContainerState::ContainerRunning as i32);
    futures::future::try_join_all(running.map(|each| runtime.stop_container(&each.id, GRACE))).await?;
    runtime.stop_pod_sandbox(sandbox).await?;
    runtime.remove_pod_sandbox(sandbox).await
}
