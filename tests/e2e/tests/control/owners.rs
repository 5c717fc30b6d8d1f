//! What controllers own follows what owners and owned say now, not only what they said when it was made.

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};

use super::processes::Cluster;
use super::until;

async fn create_set(client: &Client) -> Api<StatefulSet> {
    let sets: Api<StatefulSet> = Api::namespaced(client.clone(), "default");
    let claim = json!({"metadata": {"name": "data"}, "spec": {
        "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}});
    let set = json!({"metadata": {"name": "db"}, "spec": {
        "serviceName": "db", "replicas": 1, "selector": {"matchLabels": {"app": "db"}},
        "volumeClaimTemplates": [claim],
        "template": {"metadata": {"labels": {"app": "db"}}, "spec": {"containers": [{"name": "c", "image": "db"}]}}}});
    let set = serde_json::from_value(set).expect("a StatefulSet");
    sets.create(&PostParams::default(), &set).await.expect("it is made");
    sets
}

/// The names of those that control the object.
fn controllers(object: &impl ResourceExt) -> Vec<String> {
    let owners = object.owner_references().iter().filter(|owner| owner.controller == Some(true));
    owners.map(|owner| owner.name.clone()).collect()
}

async fn merge<K>(api: &Api<K>, name: &str, patch: Value)
where
    K: Clone + std::fmt::Debug + serde::de::DeserializeOwned,
{
    api.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await.expect("it is patched");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_that_was_given_back_and_fits_again_is_taken_again() {
    let Some(cluster) = Cluster::start().await else { return };
    let _manager = cluster.controller_manager();
    create_set(&cluster.client).await;
    let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), "default");
    let controlled_by = async |wanted: &[&str]| {
        let pod = pods.get_opt("db-0").await.ok()??;
        (controllers(&pod) == wanted).then_some(())
    };
    until("the pod is made", || controlled_by(&["db"])).await;
    merge(&pods, "db-0", json!({"metadata": {"labels": {"app": null}}})).await;
    until("the set gives it back", || controlled_by(&[])).await;
    merge(&pods, "db-0", json!({"metadata": {"labels": {"app": "db"}}})).await;
    until("the set takes it again", || controlled_by(&["db"])).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_retention_policy_that_changes_holds_for_claims_that_are_there() {
    let Some(cluster) = Cluster::start().await else { return };
    let _manager = cluster.controller_manager();
    let sets = create_set(&cluster.client).await;
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(cluster.client.clone(), "default");
    let controlled_by = async |wanted: &[&str]| {
        let claim = claims.get_opt("data-db-0").await.ok()??;
        (controllers(&claim) == wanted).then_some(())
    };
    let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), "default");
    until("the pod is made", || async { pods.get_opt("db-0").await.ok()? }).await;
    for (policy, owners) in [("Delete", &["db"][..]), ("Retain", &[])] {
        let policy = json!({"whenDeleted": policy, "whenScaled": "Retain"});
        merge(&sets, "db", json!({"spec": {"persistentVolumeClaimRetentionPolicy": policy}})).await;
        until("the claim's owners follow", || controlled_by(owners)).await;
    }
    let scaled = json!({"whenDeleted": "Retain", "whenScaled": "Delete"});
    let none = json!({"spec": {"replicas": 0, "persistentVolumeClaimRetentionPolicy": scaled}});
    merge(&sets, "db", none).await;
    until("the claim goes with its pod", || async {
        let claim = claims.get_opt("data-db-0").await.ok()?;
        claim.is_none_or(|claim| claim.metadata.deletion_timestamp.is_some()).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_suspended_job_deletes_pods_that_are_ready() {
    let Some(cluster) = Cluster::start().await else { return };
    let _manager = cluster.controller_manager();
    let jobs: Api<Job> = Api::namespaced(cluster.client.clone(), "default");
    let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), "default");
    let job = json!({"metadata": {"name": "work"}, "spec": {"parallelism": 2, "completions": 4, "template": {"spec": {
        "restartPolicy": "Never", "containers": [{"name": "c", "image": "work"}]}}}});
    let job = serde_json::from_value(job).expect("a Job");
    jobs.create(&PostParams::default(), &job).await.expect("it is made");
    let made = async || {
        let made = pods.list(&ListParams::default()).await.ok()?.items;
        (made.len() == 2).then_some(made)
    };
    for pod in until("the Job has its pods", made).await {
        let ready =
            json!({"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}});
        let patched = pods.patch_status(&pod.name_any(), &PatchParams::default(), &Patch::Merge(ready)).await;
        patched.expect("the pod is ready");
    }
    let status = async |ready: i32| {
        let status = jobs.get_opt("work").await.ok()??.status?;
        (status.ready == Some(ready) && status.active.unwrap_or(0) == ready).then_some(())
    };
    until("the Job counts them", || status(2)).await;
    merge(&jobs, "work", json!({"spec": {"suspend": true}})).await;
    until("they are deleted", || async {
        pods.list(&ListParams::default()).await.ok()?.items.is_empty().then_some(())
    })
    .await;
    until("the Job counts none", || status(0)).await;
}
