//! What the scheduler writes: bindings, conditions, and the end of victims. Each is one task
//! that reports how it went; the decisions have been made before.

use std::sync::Arc;

use ferry_client::error::ignore_not_found;
use ferry_client::{Attempt, Client, Error, undecoded};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{
    Binding, ObjectReference, PersistentVolume, PersistentVolumeClaim, Pod, PodCondition,
};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::core::Request;
use kube::{Api, Resource};
use serde_json::json;

use crate::plugins::Choices;
use crate::pod_info::PodInfo;

/// Binds a pod to a node. The uid keeps a namesake made in the meantime from being bound.
pub async fn bind(client: &Client, pod: &PodInfo, node: &str) -> Result<(), Error> {
    let binding = Binding {
        metadata: kube::api::ObjectMeta {
            name: Some(pod.key.name.clone()),
            namespace: Some(pod.key.namespace.clone()),
            uid: Some(pod.uid.clone()),
            ..Default::default()
        },
        target: ObjectReference {
            api_version: Some("v1".into()),
            kind: Some("Node".into()),
            name: Some(node.into()),
            ..Default::default()
        },
    };
    let body = serde_json::to_vec(&binding).expect("a binding is JSON");
    let request = pods(pod).create_subresource("binding", &pod.key.name, &PostParams::default(), body);
    undecoded::send(client, request).await.attempting(attempt("bind", pod))
}

/// Writes what VolumeBinding chose. The volume controller and provisioners do the rest; the pod
/// is bound when its claims are.
pub async fn bind_volumes(client: &Client, choices: &Choices, node: &str) -> Result<(), Error> {
    let volumes: Api<PersistentVolume> = Api::all(client.clone());
    for (volume, claim) in &choices.bind {
        let mut volume = (**volume).clone();
        let name = volume.metadata.name.clone().unwrap_or_default();
        let Some(spec) = &mut volume.spec else { continue };
        if spec.claim_ref.as_ref().is_some_and(|own| own.uid.is_some() && own.uid == claim.metadata.uid) {
            continue;
        }
        spec.claim_ref = Some(ObjectReference {
            api_version: Some("v1".into()),
            kind: Some("PersistentVolumeClaim".into()),
            ..ferry_client::events::reference(&**claim)
        });
        let annotations = volume.metadata.annotations.get_or_insert_default();
        annotations.insert("pv.kubernetes.io/bound-by-controller".into(), "yes".into());
        // with its version, so that of two who want it only one gets it
        volumes
            .replace(&name, &PostParams::default(), &volume)
            .await
            .attempting(format!("bind volume {name}"))?;
    }
    for claim in &choices.provision {
        select_node(client, claim, node).await?;
    }
    Ok(())
}

async fn select_node(client: &Client, claim: &PersistentVolumeClaim, node: &str) -> Result<(), Error> {
    let annotation = crate::plugins::SELECTED_NODE;
    let present = claim.metadata.annotations.as_ref().and_then(|all| all.get(annotation));
    if present.is_some_and(|present| present == node) {
        return Ok(());
    }
    let (namespace, name) = (claim.metadata.namespace.as_deref(), claim.metadata.name.as_deref());
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), namespace.unwrap_or(""));
    let patch = json!({"metadata": {
        "annotations": {annotation: node},
        "resourceVersion": claim.metadata.resource_version,
    }});
    let name = name.unwrap_or("");
    claims
        .patch(name, &PatchParams::default(), &Patch::Merge(patch))
        .await
        .attempting(format!("select node for claim {name}"))?;
    Ok(())
}

/// The condition as it should be, if that differs from what the pod has.
pub fn condition(pod: &Pod, reason: &str, message: &str, now: Timestamp) -> Option<PodCondition> {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    let old = conditions.into_iter().flatten().find(|condition| condition.type_ == "PodScheduled");
    let told = old.is_some_and(|old| {
        old.status == "False"
            && old.reason.as_deref() == Some(reason)
            && old.message.as_deref() == Some(message)
    });
    if told {
        return None;
    }
    let same = old.filter(|old| old.status == "False").and_then(|old| old.last_transition_time.clone());
    Some(PodCondition {
        type_: "PodScheduled".into(),
        status: "False".into(),
        reason: Some(reason.into()),
        message: Some(message.into()),
        last_transition_time: same.or(Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(now))),
        observed_generation: pod.metadata.generation,
        ..Default::default()
    })
}

/// Writes a condition and the node the pod is promised, each if given.
pub async fn status(
    client: &Client,
    pod: &PodInfo,
    condition: Option<&PodCondition>,
    nominated: Option<&str>,
) -> Result<(), Error> {
    let mut status = serde_json::Map::new();
    if let Some(condition) = condition {
        status.insert("conditions".into(), json!([condition]));
    }
    if let Some(node) = nominated {
        status.insert("nominatedNodeName".into(), if node.is_empty() { json!(null) } else { json!(node) });
    }
    let patch = Patch::Strategic(json!({"metadata": {"uid": pod.uid}, "status": status}));
    let request = pods(pod).patch_subresource("status", &pod.key.name, &PatchParams::default(), &patch);
    let patched = undecoded::send(client, request).await;
    ignore_not_found(patched).attempting(attempt("write the status of", pod))?;
    Ok(())
}

/// Ends a pod, with its own grace period, to make room for another.
pub async fn preempt(client: &Client, victim: &Arc<PodInfo>, scheduler: &str) -> Result<(), Error> {
    let condition = PodCondition {
        type_: "DisruptionTarget".into(),
        status: "True".into(),
        reason: Some("PreemptionByScheduler".into()),
        message: Some(format!("{scheduler}: preempting to accommodate a higher priority pod")),
        last_transition_time: Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(Timestamp::now())),
        observed_generation: victim.pod.metadata.generation,
        ..Default::default()
    };
    status(client, victim, Some(&condition), None).await?;
    let this_one = Preconditions { uid: Some(victim.uid.clone()), resource_version: None };
    let delete = DeleteParams { preconditions: Some(this_one), ..DeleteParams::default() };
    let deleted = undecoded::send(client, pods(victim).delete(&victim.key.name, &delete)).await;
    ignore_not_found(deleted).attempting(attempt("preempt", victim))?;
    Ok(())
}

/// Requests about the pods of a pod's namespace.
fn pods(pod: &PodInfo) -> Request {
    Request::new(Pod::url_path(&(), Some(&pod.key.namespace)))
}

fn attempt(what: &str, pod: &PodInfo) -> String {
    format!("{what} pod {}", pod.key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_condition_is_written_only_when_it_says_something_new() {
        let now = Timestamp::from_second(1_000_000).unwrap();
        let mut pod = Pod::default();
        let first = condition(&pod, "Unschedulable", "0/1", now).unwrap();
        pod.status.get_or_insert_default().conditions = Some(vec![first.clone()]);
        assert_eq!(condition(&pod, "Unschedulable", "0/1", now), None);
        let later = Timestamp::from_second(2_000_000).unwrap();
        let second = condition(&pod, "Unschedulable", "0/2", later).unwrap();
        assert_eq!(second.last_transition_time, first.last_transition_time, "it was False before");
    }
}
