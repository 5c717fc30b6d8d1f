//! Makes the claims of pods that bring their own volumes (`ephemeral`), owned by the pod.

use std::sync::Arc;

use ferry_client::{Client, Error, Event, EventType, Informer, NamespacedName, Outcome, Recorder};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::ResourceExt;
use kube::api::{Api, ObjectMeta, PostParams};

use crate::context::{Context, Running};
use crate::ownership::{controller_ref, is_controlled_by};
use crate::pods::is_deleting;
use crate::service_account::created_or_exists;

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

struct Controller {
    client: Client,
    pods: Informer<Pod>,
    known: Informer<PersistentVolumeClaim>,
    recorder: Recorder,
}

pub fn start(context: &Context) -> Running {
    let builder = context.controller(CONTROLLER);
    let (pods, known) = (builder.informer::<Pod>(), builder.informer::<PersistentVolumeClaim>());
    let controller = Arc::new(Controller {
        client: context.client.clone(),
        pods: pods.clone(),
        known: known.clone(),
        recorder: context.recorder("ephemeral_volume"),
    });
    builder
        .keys_of::<Pod, _>(controller)
        .watches(&pods, |_, event| {
            let asks = matches!(event, Event::Added(pod) if !claims(pod).is_empty());
            if asks { vec![event.key()] } else { vec![] }
        })
        .watches(&known, |_, event| {
            // A claim that was deleted under its pod is made again.
            let owners = event.object().owner_references().iter();
            let pod = owners.filter(|owner| event.is_deleted() && owner.kind == "Pod").take(1);
            pod.map(|pod| NamespacedName::new(event.key().namespace, pod.name.clone())).collect()
        })
        .run(Controller::reconcile)
}

impl Controller {
    async fn reconcile(self: Arc<Self>, key: NamespacedName) -> Result<Outcome, Error> {
        let Some(pod) = self.pods.get(&key).filter(|pod| !is_deleting(pod)) else {
            return Ok(Outcome::Done);
        };
        let api: Api<PersistentVolumeClaim> = Api::namespaced(self.client.clone(), &key.namespace);
        for claim in claims(&pod) {
            match self.known.get(&NamespacedName::of(&claim)) {
                Some(existing) if is_controlled_by(&*existing, &pod.uid().unwrap_or_default()) => {}
                Some(existing) => {
                    let note = format!(
                        "ephemeral volume claim {:?} exists and belongs to something else",
                        existing.name_any()
                    );
                    self.recorder.event(&*pod, EventType::Warning, "EphemeralVolumeConflict", "Create", note);
                }
                None => {
                    created_or_exists(api.create(&PostParams::default(), &claim).await)?;
                }
            }
        }
        Ok(Outcome::Done)
    }
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
