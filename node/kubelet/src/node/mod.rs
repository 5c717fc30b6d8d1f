//! The node object: registered once, its status kept, its lease renewed.

pub mod capacity;
pub mod csi_node;
pub mod machine;
pub mod status;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use ferry_client::CancellationToken;
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::api::core::v1::{Node, NodeSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, OwnerReference};
use kube::Api;
use kube::api::{ObjectMeta, Patch, PatchParams, PostParams};
use serde_json::json;

use crate::config::Config;
use status::NodeStatusSource;

const LEASE_NAMESPACE: &str = "kube-node-lease";
const RETRY: Duration = Duration::from_millis(200);
const MAX_RETRY: Duration = Duration::from_secs(7);
/// A node that is not ready has pods waiting for it: it looks often, so that
/// it is ready as soon as its network is.
const UNREADY_PERIOD: Duration = Duration::from_millis(20);
const MAX_UNREADY_PERIOD: Duration = Duration::from_secs(2);

/// Registers the node and keeps its status and lease until stopped.
pub async fn run(client: kube::Client, source: Arc<NodeStatusSource>, stop: CancellationToken) {
    let work = async {
        let uid = register(&client, &source).await;
        tokio::join!(renew_lease(&client, &source.config, uid), keep_status(&client, &source));
    };
    tokio::select! {
        () = stop.cancelled() => {}
        () = work => {}
    }
}

/// Makes the node object, or takes over the one that is there. Tries until it
/// is done: without a node nothing else can work.
async fn register(client: &kube::Client, source: &NodeStatusSource) -> Option<String> {
    let api: Api<Node> = Api::all(client.clone());
    let name = &source.config.node_name;
    let mut pause = RETRY;
    loop {
        let mut span = ferry_trace::span("kubelet.register");
        span.object("nodes", "", name);
        let result = span.in_scope(try_register(&api, source)).await;
        match result {
            Ok(node) => return node.metadata.uid,
            Err(error) => {
                span.fail(&error);
                tracing::warn!(node = name, %error, "cannot register the node; will retry");
            }
        }
        drop(span);
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(MAX_RETRY);
    }
}

async fn try_register(api: &Api<Node>, source: &NodeStatusSource) -> Result<Node, kube::Error> {
    let config = &source.config;
    let labels = labels(config, &source.machine.host_name);
    if !config.register_node {
        return api.get(&config.node_name).await;
    }
    let annotations = BTreeMap::from([(
        "volumes.kubernetes.io/controller-managed-attach-detach".to_string(),
        "true".to_string(),
    )]);
    let mut node = Node {
        metadata: ObjectMeta {
            name: Some(config.node_name.clone()),
            labels: Some(labels.clone()),
            annotations: Some(annotations.clone()),
            ..ObjectMeta::default()
        },
        spec: Some(NodeSpec {
            taints: Some(config.register_with_taints.clone()).filter(|taints| !taints.is_empty()),
            provider_id: config.provider_id.clone(),
            ..NodeSpec::default()
        }),
        status: None,
    };
    node.status = Some(source.status(&node, Timestamp::now()).await);
    match api.create(&PostParams::default(), &node).await {
        Err(kube::Error::Api(status)) if status.code == 409 => {
            let metadata = json!({"metadata": {"labels": labels, "annotations": annotations}});
            api.patch(&config.node_name, &PatchParams::default(), &Patch::Merge(metadata)).await
        }
        result => result,
    }
}

/// Tells the runtime the node's range of pod addresses, for network settings
/// that it makes from a template.
async fn tell_range(source: &NodeStatusSource, node: &Node, told: &mut Option<String>) {
    let spec = node.spec.as_ref();
    let given = spec.and_then(|spec| spec.pod_cidrs.as_ref()).map(|all| all.join(","));
    let range = source.config.pod_cidr.clone().or(given).filter(|range| !range.is_empty());
    let Some(range) = range.filter(|range| told.as_ref() != Some(range)) else { return };
    match source.runtime.update_runtime_config(&range).await {
        Ok(()) => *told = Some(range),
        Err(error) => tracing::warn!(range, %error, "cannot set the pod CIDR in the container runtime"),
    }
}

fn labels(config: &Config, host_name: &str) -> BTreeMap<String, String> {
    let mut labels = config.node_labels.clone();
    for (key, value) in [
        ("kubernetes.io/hostname", host_name),
        ("kubernetes.io/os", "linux"),
        ("kubernetes.io/arch", crate::images::oci::architecture()),
        ("beta.kubernetes.io/os", "linux"),
        ("beta.kubernetes.io/arch", crate::images::oci::architecture()),
    ] {
        labels.entry(key.into()).or_insert_with(|| value.into());
    }
    // the label tells nodes apart, and several may share one machine
    labels.insert("kubernetes.io/hostname".into(), config.node_name.clone());
    labels
}

/// Says every quarter of the lease that the node is alive: cheap for the
/// server, where a whole status would not be.
async fn renew_lease(client: &kube::Client, config: &Config, node_uid: Option<String>) {
    let api: Api<Lease> = Api::namespaced(client.clone(), LEASE_NAMESPACE);
    let mut ticks = tokio::time::interval(config.node_lease_duration / 4);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut known: Option<Lease> = None;
    loop {
        ticks.tick().await;
        let span = ferry_trace::span("kubelet.lease").unsampled();
        if let Err(error) = span.in_scope(renew(&api, config, node_uid.as_deref(), &mut known)).await {
            tracing::warn!(%error, "lease not renewed");
            known = None;
        }
    }
}

async fn renew(
    api: &Api<Lease>,
    config: &Config,
    node_uid: Option<&str>,
    known: &mut Option<Lease>,
) -> Result<(), kube::Error> {
    let name = &config.node_name;
    let mut lease = match known.take() {
        Some(lease) => lease,
        None => match api.get_opt(name).await? {
            Some(lease) => lease,
            None => Lease {
                metadata: ObjectMeta { name: Some(name.clone()), ..ObjectMeta::default() },
                spec: None,
            },
        },
    };
    lease.metadata.owner_references = node_uid.map(|uid| {
        vec![OwnerReference {
            api_version: "v1".into(),
            kind: "Node".into(),
            name: name.clone(),
            uid: uid.into(),
            ..OwnerReference::default()
        }]
    });
    let spec = lease.spec.get_or_insert_with(LeaseSpec::default);
    spec.holder_identity = Some(name.clone());
    spec.lease_duration_seconds = i32::try_from(config.node_lease_duration.as_secs()).ok();
    spec.renew_time = Some(MicroTime(Timestamp::now()));
    let is_new = lease.metadata.resource_version.is_none();
    *known = Some(if is_new {
        api.create(&PostParams::default(), &lease).await?
    } else {
        api.replace(name, &PostParams::default(), &lease).await?
    });
    Ok(())
}

/// Writes the status when it changed, and now and then though it did not.
async fn keep_status(client: &kube::Client, source: &NodeStatusSource) {
    let api: Api<Node> = Api::all(client.clone());
    let mut ticks = tokio::time::interval(source.config.node_status_update_frequency);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut written: Option<(serde_json::Value, tokio::time::Instant)> = None;
    let mut changes = source.changes();
    let mut devices = source.device_plugins.changes();
    let mut volumes_changed = source.volumes_in_use.changes();
    let mut told_range = None;
    let mut unready_for: Option<Duration> = None;
    loop {
        let soon = async {
            match unready_for {
                Some(pause) => tokio::time::sleep(pause).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = ticks.tick() => {}
            // a runtime that failed or came back is told at once
            _ = changes.changed() => {}
            // pods wait for devices that come, and must not be sent for those that are gone
            _ = devices.changed() => {}
            // nobody attaches or detaches before this is told
            _ = volumes_changed.changed() => {}
            () = soon => {}
        }
        let now = tokio::time::Instant::now();
        let result = async {
            let node = api.get(&source.config.node_name).await?;
            let status = source.status(&node, Timestamp::now()).await;
            let essence = status::essence(&status);
            let due = written.as_ref().is_none_or(|(before, at)| {
                *before != essence || now.duration_since(*at) >= source.config.node_status_report_frequency
            });
            // Who lost sight of the node has written that it is lost.
            if due || !status::holds(&node, &status) {
                let patch = json!({"status": status::patch(&status)});
                api.patch_status(
                    &source.config.node_name,
                    &PatchParams::default(),
                    &Patch::Strategic(&patch),
                )
                .await?;
                written = Some((essence, now));
            }
            tell_range(source, &node, &mut told_range).await;
            source.follow(Arc::new(node));
            let next = unready_for.map_or(UNREADY_PERIOD, |pause| (pause * 3 / 2).min(MAX_UNREADY_PERIOD));
            unready_for = (!status::is_ready(&status)).then_some(next);
            Ok::<(), kube::Error>(())
        };
        let span = ferry_trace::span("kubelet.node_status").unsampled();
        if let Err(error) = span.in_scope(result).await {
            tracing::warn!(%error, "cannot write the node status");
        }
    }
}
