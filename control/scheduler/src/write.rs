//! The scheduler's writes: bindings, conditions, claims, and the deletion of victims. They contain no decisions.

use std::sync::Arc;

use ferry_client::error::ignore_not_found;
use ferry_client::{Attempt, Client, Error, undecoded};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{
    Binding, ObjectReference, PersistentVolume, PersistentVolumeClaim, Pod, PodCondition,
};
use k8s_openapi::api::resource::v1::{AllocationResult, ResourceClaim, ResourceClaimConsumerReference};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::core::Request;
use kube::{Api, Resource};
use serde_json::json;

use crate::devices::FINALIZER;
use crate::extender::ExtenderError;
use crate::metrics;
use crate::plugins::Choices;
use crate::plugins::dynamic_resources::Reservations;
use crate::plugins::extended_resources::ExtendedReservation;
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

/// How often a claim that others write too is read again.
const ATTEMPTS: usize = 5;

/// Reserves a claim for a pod, with its devices if it has none yet; returns the revision that says so.
async fn reserve_claim(
    client: &Client,
    claim: &ResourceClaim,
    allocation: Option<&AllocationResult>,
    pod: &PodInfo,
) -> Result<i64, WriteError> {
    let name = claim.metadata.name.as_deref().unwrap_or("");
    let claims: Api<ResourceClaim> = Api::namespaced(client.clone(), &pod.key.namespace);
    let uid = claim.metadata.uid.clone();
    let mut claim = claim.clone();
    for attempt in 1.. {
        if attempt > 1 {
            claim = claims.get(name).await.attempting(format!("get claim {name}"))?;
        }
        match reserve_once(&claims, claim.clone(), allocation, pod, &uid).await {
            Err(WriteError::Api(error)) if attempt < ATTEMPTS && is_conflict(&error) => {}
            other => return other,
        }
    }
    unreachable!("the last attempt's outcome is returned")
}

async fn reserve_once(
    claims: &Api<ResourceClaim>,
    mut claim: ResourceClaim,
    allocation: Option<&AllocationResult>,
    pod: &PodInfo,
    uid: &Option<String>,
) -> Result<i64, WriteError> {
    let name = claim.metadata.name.clone().unwrap_or_default();
    let key = format!("{}/{name}", pod.key.namespace);
    if claim.metadata.deletion_timestamp.is_some() || claim.metadata.uid != *uid {
        return Err(WriteError::Claim(format!("claim {key} got deleted in the meantime")));
    }
    if let Some(allocation) = allocation {
        if claim.status.as_ref().is_some_and(|status| status.allocation.is_some()) {
            return Err(WriteError::Claim(format!("claim {key} got allocated elsewhere in the meantime")));
        }
        let finalizers = claim.metadata.finalizers.get_or_insert_default();
        // first, so that no claim is deleted with devices that nobody gives back
        if !finalizers.iter().any(|own| own == FINALIZER) {
            finalizers.push(FINALIZER.to_owned());
            let written = claims.replace(&name, &PostParams::default(), &claim).await;
            claim = written.attempting(format!("add finalizer to claim {key}"))?;
        }
        claim.status.get_or_insert_default().allocation = Some(allocation.clone());
    }
    let status = claim.status.get_or_insert_default();
    let Some(have) = &mut status.allocation else {
        return Err(WriteError::Claim(format!("claim {key} got deallocated elsewhere in the meantime")));
    };
    let now = || k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(Timestamp::now());
    have.allocation_timestamp.get_or_insert_with(now);
    let users = status.reserved_for.get_or_insert_default();
    if !users.iter().any(|user| user.uid == pod.uid) {
        users.push(ResourceClaimConsumerReference {
            api_group: None,
            resource: "pods".into(),
            name: pod.key.name.clone(),
            uid: pod.uid.clone(),
        });
    }
    let what = if allocation.is_some() { "allocation and reservation" } else { "reservation" };
    let written = claims.replace_status(&name, &PostParams::default(), &claim).await;
    let written = written.attempting(format!("add {what} to claim {key}"))?;
    Ok(ferry_client::name::revision(&written).unwrap_or(i64::MAX))
}

fn is_conflict(error: &Error) -> bool {
    matches!(error.kube(), kube::Error::Api(status) if status.code == 409)
}

/// Takes a pod out of those that a claim is reserved for; of others nothing needs to be known for that.
pub async fn unreserve_claim(client: &Client, claim: &ResourceClaim, pod: &PodInfo) -> Result<(), Error> {
    let name = claim.metadata.name.as_deref().unwrap_or("");
    let patch = Patch::Strategic(json!({
        "metadata": {"uid": claim.metadata.uid},
        "status": {"reservedFor": [{"$patch": "delete", "uid": pod.uid}]},
    }));
    let claims = Request::new(ResourceClaim::url_path(&(), Some(&pod.key.namespace)));
    let request = claims.patch_subresource("status", name, &PatchParams::default(), &patch);
    let patched = undecoded::send(client, request).await;
    ignore_not_found(patched).attempting(format!("unreserve claim {name}"))?;
    Ok(())
}

/// Gives a claim's devices back, so that it can be allocated elsewhere.
pub async fn deallocate_claim(client: &Client, claim: &ResourceClaim) -> Result<(), Error> {
    let (namespace, name) = (claim.metadata.namespace.as_deref(), claim.metadata.name.as_deref());
    let (namespace, name) = (namespace.unwrap_or(""), name.unwrap_or(""));
    let mut claim = claim.clone();
    // with its version: somebody may have begun to use it
    claim.status = Some(Default::default());
    let claims: Api<ResourceClaim> = Api::namespaced(client.clone(), namespace);
    let written = claims.replace_status(name, &PostParams::default(), &claim).await;
    written.attempting(format!("deallocate claim {namespace}/{name}"))?;
    Ok(())
}

/// Reserves the claims of a pod, and makes the one for its extended resources.
pub async fn reserve_claims(client: &Client, reservations: &Reservations, pod: &PodInfo) -> Written {
    let mut written = Written { allocated: Vec::new(), made: None, result: Ok(()) };
    for (claim, allocation) in &reservations.claims {
        match reserve_claim(client, claim, allocation.as_ref(), pod).await {
            Ok(revision) if allocation.is_some() => {
                written.allocated.push((claim.metadata.uid.clone().unwrap_or_default(), revision));
            }
            Ok(_) => {}
            Err(error) => return Written { result: Err(error), ..written },
        }
    }
    if let Some(extended) = &reservations.extended {
        written.result = make_claim(client, extended, pod, &mut written.allocated, &mut written.made).await;
    }
    written
}

/// Makes the claim for a pod's extended resources, allocates it, and names it in the pod's status for the kubelet.
async fn make_claim(
    client: &Client,
    extended: &ExtendedReservation,
    pod: &PodInfo,
    allocated: &mut Vec<(String, i64)>,
    made: &mut Option<Arc<ResourceClaim>>,
) -> Result<(), WriteError> {
    let mut claim = (*extended.claim).clone();
    claim.metadata.uid = None;
    let claims: Api<ResourceClaim> = Api::namespaced(client.clone(), &pod.key.namespace);
    let created = claims.create(&PostParams::default(), &claim).await;
    metrics::created_claim(created.is_ok());
    let claim = created.attempting(format!("create claim for extended resources of pod {}", pod.key))?;
    let claim = made.insert(Arc::new(claim));
    let revision = reserve_claim(client, claim, Some(&extended.allocation), pod).await?;
    allocated.push((claim.metadata.uid.clone().unwrap_or_default(), revision));
    let status = json!({"extendedResourceClaimStatus": {
        "resourceClaimName": claim.metadata.name,
        "requestMappings": extended.mappings,
    }});
    let patch = Patch::Strategic(json!({"metadata": {"uid": pod.uid}, "status": status}));
    let request = pods(pod).patch_subresource("status", &pod.key.name, &PatchParams::default(), &patch);
    let patched = undecoded::send(client, request).await;
    patched.attempting(attempt("write the ExtendedResourceClaimStatus of", pod))?;
    Ok(())
}

/// Deletes a claim that the scheduler has made, with its devices.
pub async fn delete_claim(client: &Client, claim: &ResourceClaim) -> Result<(), Error> {
    let (namespace, name) = (claim.metadata.namespace.as_deref(), claim.metadata.name.as_deref());
    let (namespace, name) = (namespace.unwrap_or(""), name.unwrap_or(""));
    let claims: Api<ResourceClaim> = Api::namespaced(client.clone(), namespace);
    let attempt = || format!("delete claim {namespace}/{name}");
    for number in 1.. {
        let Some(mut now) = claims.get_opt(name).await.attempting(attempt())? else { return Ok(()) };
        if now.metadata.uid != claim.metadata.uid {
            return Ok(());
        }
        let finalizers = now.metadata.finalizers.get_or_insert_default();
        if !finalizers.iter().any(|own| own == FINALIZER) {
            break;
        }
        finalizers.retain(|own| own != FINALIZER);
        match ignore_not_found(claims.replace(name, &PostParams::default(), &now).await) {
            Ok(_) => break,
            Err(error) if number < ATTEMPTS && ferry_client::error::is_conflict(&error) => {}
            Err(error) => return Err(error).attempting(attempt()),
        }
    }
    let this_one = Preconditions { uid: claim.metadata.uid.clone(), resource_version: None };
    let delete = DeleteParams { preconditions: Some(this_one), ..DeleteParams::default() };
    ignore_not_found(undecoded::delete(&claims, name, &delete).await).attempting(attempt())?;
    Ok(())
}

/// What a step of a pod's binding cycle has written.
pub struct Written {
    /// The uids of the claims whose allocation was written, with their new revisions; also where a later claim failed.
    pub allocated: Vec<(String, i64)>,
    /// The claim that was made for the pod's extended resources.
    pub made: Option<Arc<ResourceClaim>>,
    pub result: Result<(), WriteError>,
}

impl From<Result<(), WriteError>> for Written {
    fn from(result: Result<(), WriteError>) -> Self {
        Written { allocated: Vec::new(), made: None, result }
    }
}

/// Whoever was asked to write, the API or an extender, could not; or what was to be written makes no sense any more.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    #[error(transparent)]
    Api(#[from] Error),
    #[error(transparent)]
    Extender(#[from] ExtenderError),
    #[error("{0}")]
    Claim(String),
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
