//! Pods that a Job no longer counts are not held by its finalizer, or they and their namespace could not be deleted.

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::json;

use super::processes::Cluster;
use super::until;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pods_that_leave_a_job_are_let_go() {
    let Some(cluster) = Cluster::start().await else { return };
    let _manager = cluster.controller_manager();
    let jobs: Api<Job> = Api::namespaced(cluster.client.clone(), "default");
    let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), "default");
    let job = json!({"metadata": {"name": "work"}, "spec": {"template": {"spec": {
        "restartPolicy": "Never", "containers": [{"name": "c", "image": "work"}]}}}});
    let job = serde_json::from_value(job).expect("a Job");
    jobs.create(&PostParams::default(), &job).await.expect("it is made");
    let of_job = ListParams::default().labels("batch.kubernetes.io/job-name=work");
    let pod_of_job = || async {
        let pod = pods.list(&of_job).await.ok()?.items.pop()?;
        (!pod.finalizers().is_empty()).then(|| pod.name_any())
    };
    let free = async |name: &str| {
        let pod = pods.get_opt(name).await.ok()??;
        (pod.owner_references().is_empty() && pod.finalizers().is_empty()).then_some(())
    };

    let given_back = until("the Job has a pod", pod_of_job).await;
    let without_labels = json!({"metadata": {"labels": null}});
    pods.patch(&given_back, &PatchParams::default(), &Patch::Merge(without_labels))
        .await
        .expect("it is patched");
    until("the pod that the Job gives back is free", || free(&given_back)).await;

    let orphaned = until("the Job has another pod", pod_of_job).await;
    let orphan =
        DeleteParams { propagation_policy: Some(kube::api::PropagationPolicy::Orphan), ..Default::default() };
    jobs.delete("work", &orphan).await.expect("the Job is deleted");
    until("the pod that the Job leaves behind is free", || free(&orphaned)).await;
}
