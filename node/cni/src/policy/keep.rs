//! Keeps the kernel's table what policies, pods and namespaces ask for.

use std::sync::Arc;
use std::time::Duration;

use ferry_client::{CancellationToken, Informer, Informers};
use ferry_linux::net::{ToolError, nftables};
use k8s_openapi::api::core::v1::{Namespace, Pod};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use tokio::sync::Notify;

use super::{decide, script};

/// After a refusal by the kernel.
const RETRY: Duration = Duration::from_secs(2);

/// Until told to stop. The table stays then: who was kept out is kept out while Ferry restarts.
pub async fn run(informers: Informers, cluster: String, node: String, shutdown: CancellationToken) {
    let policies = informers.of::<NetworkPolicy>();
    let changed = Arc::new(Notify::new());
    let wake = changed.clone();
    policies.handle(move |_| wake.notify_one());
    let work = async {
        policies.synced().await;
        let mut table = Table { cluster, applied: None };
        // Most clusters have none, and need not hold all pods for their sake.
        while policies.list().is_empty() {
            table.hold(&[], &changed).await;
        }
        let (pods, namespaces) = watch(&informers, &changed);
        tokio::join!(pods.synced(), namespaces.synced());
        loop {
            let rules = decide(&policies.list(), &pods.list(), &namespaces.list(), &node);
            table.hold(&rules, &changed).await;
        }
    };
    tokio::select! {
        () = work => {}
        () = shutdown.cancelled() => {}
    }
}

/// Takes the table away. Blocks.
pub fn remove(cluster: &str) -> Result<(), ToolError> {
    nftables::delete_table("inet", &super::script::table(cluster))
}

fn watch(informers: &Informers, changed: &Arc<Notify>) -> (Informer<Pod>, Informer<Namespace>) {
    let (pods, namespaces) = (informers.of::<Pod>(), informers.of::<Namespace>());
    let wake = changed.clone();
    pods.handle(move |event| {
        if event.is_deleted() || event.old().is_none_or(|old| seen(old) != seen(event.object())) {
            wake.notify_one();
        }
    });
    let wake = changed.clone();
    namespaces.handle(move |event| {
        let labels = |namespace: &Namespace| namespace.metadata.labels.clone();
        if event.is_deleted() || event.old().is_none_or(|old| labels(old) != labels(event.object())) {
            wake.notify_one();
        }
    });
    (pods, namespaces)
}

/// The table in the kernel.
struct Table {
    cluster: String,
    applied: Option<String>,
}

impl Table {
    /// Makes it say this, and returns when there is a reason to look again.
    async fn hold(&mut self, rules: &[super::PodRules], changed: &Notify) {
        let wanted = script(&self.cluster, rules);
        if self.applied.as_ref() == Some(&wanted) {
            return changed.notified().await;
        }
        let mut span = ferry_trace::span("cni.policies");
        span.set("pods", rules.len() as i64);
        let text = wanted.clone();
        let done = span.in_scope(tokio::task::spawn_blocking(move || nftables::apply(&text))).await;
        match done.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic())) {
            Ok(()) => {
                self.applied = Some(wanted);
                changed.notified().await;
            }
            Err(error) => {
                tracing::error!(%error, "the network policies could not be applied");
                span.fail(&error);
                tokio::select! {
                    () = changed.notified() => {}
                    () = tokio::time::sleep(RETRY) => {}
                }
            }
        }
    }
}

/// Of a pod's many changes, those that a policy can notice.
fn seen(pod: &Pod) -> impl PartialEq {
    let status = pod.status.as_ref();
    (
        pod.metadata.labels.clone(),
        pod.spec.as_ref().and_then(|spec| spec.node_name.clone()),
        status.and_then(|status| status.pod_ips.clone()),
        status.and_then(|status| status.phase.clone()),
    )
}
