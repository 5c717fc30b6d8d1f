//! Making and removing the pods of an owner, and hearing of them: the same for ReplicaSet, Job
//! and DaemonSet, whatever they decide.

use std::sync::Arc;

use ferry_client::controller::{owner, owners};
use ferry_client::{
    Client, Error, Event, EventType, Expectations, NamespacedName, Recorder, error, undecoded,
};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, PostParams, Preconditions};
use kube::core::Request;
use kube::{Resource, ResourceExt};

use crate::ownership::Namespaced;
use crate::pods::is_deleting;
use crate::slow_start::{slow_start, together};

/// The pods a controller makes, with what it still expects to see of them.
pub struct OwnedPods {
    client: Client,
    recorder: Recorder,
    expectations: Expectations<NamespacedName>,
}

fn pods_in(namespace: &str) -> Request {
    Request::new(Pod::url_path(&(), Some(namespace)))
}

impl OwnedPods {
    pub fn new(client: Client, recorder: Recorder) -> Self {
        OwnedPods { client, recorder, expectations: Expectations::default() }
    }

    /// Has all that was done for this owner shown up? Until then its pods cannot be counted.
    pub fn satisfied_expectations(&self, key: &NamespacedName) -> bool {
        self.expectations.satisfied(key)
    }

    pub fn forget(&self, key: &NamespacedName) {
        self.expectations.forget(key);
    }

    /// Notes what was expected, and returns the owner a pod has and the one it had.
    pub fn observe<O: Resource<DynamicType = ()>>(&self, event: &Event<Pod>) -> Vec<NamespacedName> {
        let pod = event.object();
        match (event, owner::<O>(&**pod)) {
            (Event::Added(_), Some(key)) => self.expectations.creation_observed(&key),
            (_, Some(key)) if event.is_deleted() || is_deleting(pod) => {
                self.expectations.deletion_observed(&key, pod.metadata.uid.as_deref().unwrap_or(""));
            }
            _ => {}
        }
        owners::<O, Pod>(event)
    }

    /// Makes `count` pods, slowly at first; `make` gives the one at a position.
    pub async fn create<O: Namespaced>(
        &self,
        owner: &O,
        count: usize,
        make: impl Fn(usize) -> Pod,
    ) -> Result<(), Error> {
        if count == 0 {
            return Ok(());
        }
        let mut span = ferry_trace::span("pods.create");
        span.set("pods", count);
        let key = NamespacedName::of(owner);
        self.expectations.expect_creations(key.clone(), count);
        let (created, failed) =
            span.in_scope(slow_start(count, |position| self.create_one(owner, &key, make(position)))).await;
        for _ in created..count {
            self.expectations.creation_observed(&key);
        }
        match failed {
            None => Ok(()),
            Some(failed) => {
                span.fail(&failed);
                Err(failed)
            }
        }
    }

    async fn create_one<O: Namespaced>(
        &self,
        owner: &O,
        key: &NamespacedName,
        pod: Pod,
    ) -> Result<(), Error> {
        // many are under way at a time: as text they are a tenth of what they are as values
        let text = serde_json::to_vec(&pod).expect("a pod is JSON");
        drop(pod);
        let request = pods_in(&key.namespace).create(&PostParams::default(), text);
        match undecoded::create(&self.client, request).await {
            Ok(name) => {
                let note = format!("Created pod: {name}");
                self.recorder.event(owner, EventType::Normal, "SuccessfulCreate", "Create", note);
                Ok(())
            }
            // Nothing can be made here any more, and soon nothing will want to.
            Err(refused) if error::is_namespace_terminating(&refused) => {
                self.expectations.creation_observed(key);
                Ok(())
            }
            Err(failed) => {
                let note = format!("Error creating: {}", error::message(&failed));
                self.recorder.event(owner, EventType::Warning, "FailedCreate", "Create", note);
                Err(Error::new("create pod", failed))
            }
        }
    }

    /// Deletes just these pods; one that is gone already is as good as deleted.
    pub async fn delete<O: Namespaced>(&self, owner: &O, pods: &[Arc<Pod>]) -> Result<(), Error> {
        if pods.is_empty() {
            return Ok(());
        }
        let mut span = ferry_trace::span("pods.delete");
        span.set("pods", pods.len());
        let key = NamespacedName::of(owner);
        self.expectations.expect_deletions(key.clone(), pods.iter().filter_map(|pod| pod.uid()));
        let deleted = together(pods.len(), |position| self.delete_one(owner, &key, &pods[position]));
        span.in_scope(deleted).await.into_iter().collect()
    }

    async fn delete_one<O: Namespaced>(
        &self,
        owner: &O,
        key: &NamespacedName,
        pod: &Pod,
    ) -> Result<(), Error> {
        let (name, uid) = (pod.name_any(), pod.uid());
        let only_this = Preconditions { uid: uid.clone(), resource_version: None };
        let request =
            pods_in(&key.namespace).delete(&name, &DeleteParams::default().preconditions(only_this));
        match undecoded::send(&self.client, request).await {
            Ok(()) => {
                self.recorder.event(
                    owner,
                    EventType::Normal,
                    "SuccessfulDelete",
                    "Delete",
                    format!("Deleted pod: {name}"),
                );
                Ok(())
            }
            Err(failed) => {
                self.expectations.deletion_observed(key, uid.as_deref().unwrap_or(""));
                if error::is_not_found(&failed) || error::is_conflict(&failed) {
                    return Ok(());
                }
                let note = format!("Error deleting: {}", error::message(&failed));
                self.recorder.event(owner, EventType::Warning, "FailedDelete", "Delete", note);
                Err(Error::new(format!("delete pod {name}"), failed))
            }
        }
    }
}
