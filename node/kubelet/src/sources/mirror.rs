//! Mirror pods: what the API shows of static pods.

use std::sync::Arc;
use std::time::Duration;

use ferry_client::CancellationToken;
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::Api;
use kube::api::{DeleteParams, PostParams, Preconditions};

use crate::pod;
use crate::pods::Pods;

const PERIOD: Duration = Duration::from_secs(10);
const AFTER_CHANGE: Duration = Duration::from_millis(100);

/// Makes a mirror for each static pod, and removes those whose pod is gone or
/// changed.
pub async fn run(
    client: kube::Client,
    node_name: String,
    pods: Pods,
    changed: Arc<tokio::sync::Notify>,
    stop: CancellationToken,
) {
    loop {
        let reconciled = reconcile(&client, &node_name, &pods).await;
        if let Err(error) = reconciled {
            tracing::warn!(%error, "cannot sync the mirror pods; will retry");
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = changed.notified() => tokio::time::sleep(AFTER_CHANGE).await,
            () = tokio::time::sleep(PERIOD) => {}
        }
    }
}

async fn reconcile(client: &kube::Client, node_name: &str, pods: &Pods) -> Result<(), kube::Error> {
    let static_pods: Vec<Arc<Pod>> = pods.present().into_iter().filter(|each| pod::is_static(each)).collect();
    for mirror in pods.mirrors() {
        let hash = pod::annotation(&mirror, pod::CONFIG_MIRROR);
        let fits = static_pods.iter().any(|each| {
            pod::key(each) == pod::key(&mirror) && pod::annotation(each, pod::CONFIG_HASH) == hash
        });
        if !fits || mirror.metadata.deletion_timestamp.is_some() {
            delete(client, &mirror).await?;
        }
    }
    for each in &static_pods {
        if pods.mirror(&pod::key(each)).is_none() {
            create(client, node_name, each).await?;
        }
    }
    Ok(())
}

async fn create(client: &kube::Client, node_name: &str, pod: &Pod) -> Result<(), kube::Error> {
    let node = Api::<Node>::all(client.clone()).get(node_name).await?;
    let api: Api<Pod> = Api::namespaced(client.clone(), pod::namespace(pod));
    let mut mirror = pod.clone();
    let hash = pod::annotation(pod, pod::CONFIG_HASH).unwrap_or_default().to_string();
    mirror.metadata.annotations.get_or_insert_default().insert(pod::CONFIG_MIRROR.into(), hash);
    mirror.metadata.uid = None;
    mirror.metadata.owner_references = node.metadata.uid.map(|uid| {
        vec![OwnerReference {
            api_version: "v1".into(),
            kind: "Node".into(),
            name: node_name.into(),
            uid,
            controller: Some(true),
            ..OwnerReference::default()
        }]
    });
    match api.create(&PostParams::default(), &mirror).await {
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
        result => result.map(|_| ()),
    }
}

async fn delete(client: &kube::Client, mirror: &Pod) -> Result<(), kube::Error> {
    let api: Api<Pod> = Api::namespaced(client.clone(), pod::namespace(mirror));
    let parameters = DeleteParams {
        grace_period_seconds: Some(0),
        preconditions: Some(Preconditions { uid: mirror.metadata.uid.clone(), resource_version: None }),
        ..DeleteParams::default()
    };
    match api.delete(pod::name(mirror), &parameters).await {
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(()),
        result => result.map(|_| ()),
    }
}
