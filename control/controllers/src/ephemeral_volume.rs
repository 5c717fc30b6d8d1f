//! Makes the claims of pods that bring their own volumes (`ephemeral`), owned by the pod.

use std::sync::Arc;

use ferry_client::{Attempt, Event, EventType, NamespacedName, Outcome, Queue, error};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::ResourceExt;
use kube::api::{Api, ObjectMeta, PostParams};

use crate::context::{Context, Running};
use crate::ownership::{controller_ref, is_controlled_by};
use crate::pods::is_deleting;

const CONTROLLER: &str = "ephemeral-volume-controller";

/// The claims a pod brings along.
fn claims(pod: &Pod) -> Vec<PersistentVolumeClaim> {
    let volumes = pod.spec.as_ref().and_then(|spec| spec.volumes.as_ref()).into_iter().flatten();
    volumes
        .filter_map(|volume| {
            let template = volume.ephemeral.as_ref()?.volume_claim_template.clone()?;
            let meta = template.metadata.unwrap_or_default();
            Some(PersistentVolumeClaim {
                metadata: ObjectMeta {
                    name: Some(format!("{}-{}", pod.name_any(), volume.name)),
                    namespace: pod.namespace(),
                    labels: meta.labels,
                    annotations: meta.annotations,
                    owner_references: Some(vec![controller_ref(pod)]),
                    ..Default::default()
                },
                spec: Some(template.spec),
                status: None,
            })
        })
        .collect()
}

pub fn start(context: &Context) -> Running {
    let queue: Queue<NamespacedName> = Queue::default();
    let pods = context.informers.of::<Pod>();
    let known = context.informers.of::<PersistentVolumeClaim>();
    let wakes = queue.clone();
    pods.handle(move |event: &Event<Pod>| {
        if !event.is_deleted() && event.old().is_none() && !claims(event.object()).is_empty() {
            wakes.add_caused(event.key(), event.revision());
        }
    });
    let wakes = queue.clone();
    known.handle(move |event: &Event<PersistentVolumeClaim>| {
        // A claim that was deleted under its pod is made again.
        let owner = event
            .object()
            .owner_references()
            .iter()
            .find(|owner| owner.kind == "Pod")
            .map(|owner| owner.name.clone());
        if let Some(pod) = owner.filter(|_| event.is_deleted()) {
            wakes.add_caused(NamespacedName::new(event.key().namespace, pod), event.revision());
        }
    });
    let (ready, also) = (pods.clone(), known.clone());
    let synced = async move {
        ready.synced().await;
        also.synced().await;
    };
    let recorder = context.recorder("ephemeral_volume");
    let (client, stores) = (context.client.clone(), Arc::new((pods, known)));
    context.reconcile(CONTROLLER, "pods", queue, synced, move |key| {
        let (client, stores, recorder) = (client.clone(), stores.clone(), recorder.clone());
        async move {
            let (pods, known) = &*stores;
            let Some(pod) = pods.get(&key).filter(|pod| !is_deleting(pod)) else { return Ok(Outcome::Done) };
            let api: Api<PersistentVolumeClaim> = Api::namespaced(client, &key.namespace);
            for claim in claims(&pod) {
                match known.get(&NamespacedName::of(&claim)) {
                    Some(existing) if is_controlled_by(&*existing, &pod.uid().unwrap_or_default()) => {}
                    Some(existing) => {
                        let note = format!(
                            "ephemeral volume claim {:?} exists and belongs to something else",
                            existing.name_any()
                        );
                        recorder.event(&*pod, EventType::Warning, "EphemeralVolumeConflict", "Create", note);
                    }
                    None => match api.create(&PostParams::default(), &claim).await {
                        Err(refused)
                            if error::is_already_exists(&refused)
                                || error::is_namespace_terminating(&refused) => {}
                        created => {
                            created.attempting("create claim of ephemeral volume")?;
                        }
                    },
                }
            }
            Ok(Outcome::Done)
        }
    })
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::{EphemeralVolumeSource, PersistentVolumeClaimTemplate, Volume};

    use super::*;
    use crate::testing::pod;

    #[test]
    fn a_claim_is_named_after_pod_and_volume_and_owned_by_the_pod() {
        let mut owner = pod("web", "", "Pending", None);
        let template = PersistentVolumeClaimTemplate::default();
        owner.spec.as_mut().unwrap().volumes = Some(vec![
            Volume { name: "plain".into(), ..Default::default() },
            Volume {
                name: "scratch".into(),
                ephemeral: Some(EphemeralVolumeSource { volume_claim_template: Some(template) }),
                ..Default::default()
            },
        ]);
        let claims = claims(&owner);
        assert_eq!(claims.len(), 1);
        assert_eq!(claims[0].name_any(), "web-scratch");
        assert!(is_controlled_by(&claims[0], "uid-web"));
    }
}
