//! Keeps claims that pods use, volumes that claims use, and attribute classes that either uses, from vanishing under
//! them: a finalizer that goes only when nobody uses them any more.

use std::sync::Arc;

use ferry_client::{Attempt, Client, Error, Event, Index, Informer, NamespacedName, Outcome, error};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::VolumeAttributesClass;
use kube::ResourceExt;
use kube::api::{Api, PostParams};

use crate::context::{Context, Running};
use crate::ownership::controller_of;
use crate::pods::is_finished;

const CLAIM: &str = "kubernetes.io/pvc-protection";
const VOLUME: &str = "kubernetes.io/pv-protection";
const ATTRIBUTES_CLASS: &str = "kubernetes.io/vac-protection";

/// What to do about a finalizer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Nothing,
    Add,
    Remove,
}

fn step(finalizers: &[String], ours: &str, deleting: bool, used: bool) -> Step {
    match (finalizers.iter().any(|finalizer| finalizer == ours), deleting) {
        (false, false) => Step::Add,
        (true, true) if !used => Step::Remove,
        _ => Step::Nothing,
    }
}

/// The claims a pod mounts, its own ephemeral ones too.
fn claims_of(pod: &Pod) -> Vec<String> {
    let volumes = pod.spec.as_ref().and_then(|spec| spec.volumes.as_ref()).into_iter().flatten();
    volumes
        .filter_map(|volume| match (&volume.persistent_volume_claim, &volume.ephemeral) {
            (Some(claim), _) => Some(claim.claim_name.clone()),
            (None, Some(_)) => Some(format!("{}-{}", pod.name_any(), volume.name)),
            (None, None) => None,
        })
        .collect()
}

fn uses(pod: &Pod, claim: &PersistentVolumeClaim) -> bool {
    if is_finished(pod) || !claims_of(pod).contains(&claim.name_any()) {
        return false;
    }
    // A pod that only waits to be scheduled because its own claim is leaving does not hold it.
    let scheduled = !crate::pods::node_name(pod).is_empty();
    scheduled || controller_of(claim).is_none_or(|owner| owner.kind != "Pod")
}

async fn write<K>(api: &Api<K>, object: &K, finalizer: &str, step: Step) -> Result<Outcome, Error>
where
    K: kube::Resource + Clone + std::fmt::Debug + serde::Serialize + serde::de::DeserializeOwned,
{
    let mut next = object.clone();
    let finalizers = next.meta_mut().finalizers.get_or_insert_default();
    match step {
        Step::Nothing => return Ok(Outcome::Done),
        Step::Add => finalizers.push(finalizer.into()),
        Step::Remove => finalizers.retain(|own| own != finalizer),
    }
    let written = api.replace(&next.name_any(), &PostParams::default(), &next).await;
    error::ignore_not_found(written).attempting("write finalizer")?;
    Ok(Outcome::Done)
}

struct Claims {
    client: Client,
    claims: Informer<PersistentVolumeClaim>,
    by_claim: Index<Pod>,
}

pub fn start_claims(context: &Context) -> Running {
    let builder = context.controller("persistentvolumeclaim-protection-controller");
    let (claims, pods) = (builder.informer::<PersistentVolumeClaim>(), builder.informer::<Pod>());
    let by_claim = pods.index("claim", |pod| claim_keys(pod).iter().map(ToString::to_string).collect());
    let state = Claims { client: context.client.clone(), claims: claims.clone(), by_claim };
    builder
        .of(&claims, Arc::new(state))
        .watches(&pods, |_, event| {
            let released = event.is_deleted() || is_finished(event.object());
            if released { claim_keys(event.object()) } else { vec![] }
        })
        .run(Claims::reconcile)
}

fn claim_keys(pod: &Pod) -> Vec<NamespacedName> {
    let namespace = pod.metadata.namespace.clone().unwrap_or_default();
    claims_of(pod).into_iter().map(|claim| NamespacedName::new(namespace.clone(), claim)).collect()
}

impl Claims {
    async fn reconcile(self: Arc<Self>, key: NamespacedName) -> Result<Outcome, Error> {
        let Some(claim) = self.claims.get(&key) else { return Ok(Outcome::Done) };
        let used = self.by_claim.get(&key.to_string()).iter().any(|pod| uses(pod, &claim));
        let step = step(claim.finalizers(), CLAIM, claim.metadata.deletion_timestamp.is_some(), used);
        if step == Step::Remove && is_used_live(&self.client, &claim).await? {
            return Ok(Outcome::Done);
        }
        write(&Api::namespaced(self.client.clone(), &key.namespace), &*claim, CLAIM, step).await
    }
}

/// The informer may not show a pod that was just made; the server does.
async fn is_used_live(client: &Client, claim: &PersistentVolumeClaim) -> Result<bool, Error> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), &claim.namespace().unwrap_or_default());
    let all = pods.list(&Default::default()).await.attempting("list pods before releasing a claim")?;
    Ok(all.items.iter().any(|pod| uses(pod, claim)))
}

struct Volumes {
    client: Client,
    volumes: Informer<PersistentVolume>,
}

pub fn start_volumes(context: &Context) -> Running {
    let builder = context.controller("persistentvolume-protection-controller");
    let volumes = builder.informer::<PersistentVolume>();
    let state = Volumes { client: context.client.clone(), volumes: volumes.clone() };
    builder.of(&volumes, Arc::new(state)).run(Volumes::reconcile)
}

impl Volumes {
    async fn reconcile(self: Arc<Self>, key: NamespacedName) -> Result<Outcome, Error> {
        let Some(volume) = self.volumes.get(&key) else { return Ok(Outcome::Done) };
        let used = volume.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Bound");
        let step = step(volume.finalizers(), VOLUME, volume.metadata.deletion_timestamp.is_some(), used);
        write(&Api::all(self.client.clone()), &*volume, VOLUME, step).await
    }
}

struct AttributesClasses {
    client: Client,
    classes: Informer<VolumeAttributesClass>,
    by_claim: Index<PersistentVolumeClaim>,
    by_volume: Index<PersistentVolume>,
}

pub fn start_attributes_classes(context: &Context) -> Running {
    let builder = context.controller("volumeattributesclass-protection-controller");
    let (classes, claims, volumes) = (builder.informer(), builder.informer(), builder.informer());
    let state = Arc::new(AttributesClasses {
        client: context.client.clone(),
        classes: classes.clone(),
        by_claim: claims.index("attributes class", classes_of_claim),
        by_volume: volumes.index("attributes class", class_of_volume),
    });
    let keys = |names: Vec<String>| names.into_iter().map(NamespacedName::cluster).collect();
    builder
        .of(&classes, state)
        .watches(&claims, move |_, event| keys(released(event, classes_of_claim)))
        .watches(&volumes, move |_, event| keys(released(event, class_of_volume)))
        .run(AttributesClasses::reconcile)
}

/// The class a claim asks for, the one it has, and the one it is being given.
fn classes_of_claim(claim: &PersistentVolumeClaim) -> Vec<String> {
    let (spec, status) = (claim.spec.as_ref(), claim.status.as_ref());
    let asked = spec.and_then(|spec| spec.volume_attributes_class_name.clone());
    let has = status.and_then(|status| status.current_volume_attributes_class_name.clone());
    let modifying = status.and_then(|status| status.modify_volume_status.as_ref());
    let given = modifying.and_then(|modifying| modifying.target_volume_attributes_class_name.clone());
    [asked, has, given].into_iter().flatten().filter(|name| !name.is_empty()).collect()
}

fn class_of_volume(volume: &PersistentVolume) -> Vec<String> {
    let class = volume.spec.as_ref().and_then(|spec| spec.volume_attributes_class_name.clone());
    class.filter(|name| !name.is_empty()).into_iter().collect()
}

/// What an object named before an event and does not any more.
fn released<K: kube::Resource>(event: &Event<K>, names: fn(&K) -> Vec<String>) -> Vec<String> {
    match event {
        Event::Added(_) => Vec::new(),
        Event::Deleted { last, .. } => names(last),
        Event::Modified { old, new } => {
            let now = names(new);
            names(old).into_iter().filter(|name| !now.contains(name)).collect()
        }
    }
}

impl AttributesClasses {
    async fn reconcile(self: Arc<Self>, key: NamespacedName) -> Result<Outcome, Error> {
        let Some(class) = self.classes.get(&key) else { return Ok(Outcome::Done) };
        let used = self.by_claim.count(&key.name) + self.by_volume.count(&key.name) > 0;
        let deleting = class.metadata.deletion_timestamp.is_some();
        let step = step(class.finalizers(), ATTRIBUTES_CLASS, deleting, used);
        write(&Api::all(self.client.clone()), &*class, ATTRIBUTES_CLASS, step).await
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::{PersistentVolumeClaimVolumeSource, Volume};

    use super::*;
    use crate::testing::{named, pod};

    #[test]
    fn the_finalizer_comes_early_and_goes_last() {
        let ours = [CLAIM.to_string()];
        assert_eq!(step(&[], CLAIM, false, false), Step::Add);
        assert_eq!(step(&ours, CLAIM, false, true), Step::Nothing);
        assert_eq!(step(&ours, CLAIM, true, true), Step::Nothing);
        assert_eq!(step(&ours, CLAIM, true, false), Step::Remove);
        assert_eq!(step(&[], CLAIM, true, false), Step::Nothing);
    }

    #[test]
    fn a_class_is_looked_at_when_a_claim_lets_go_of_it() {
        let claim = |asked: &str, has: &str| {
            let mut claim: PersistentVolumeClaim = named("data");
            claim.spec.get_or_insert_default().volume_attributes_class_name = Some(asked.into());
            claim.status.get_or_insert_default().current_volume_attributes_class_name = Some(has.into());
            Arc::new(claim)
        };
        let check = |event: Event<PersistentVolumeClaim>, expected: &[&str]| {
            assert_eq!(released(&event, classes_of_claim), expected);
        };
        check(Event::Added(claim("fast", "slow")), &[]);
        check(Event::Modified { old: claim("fast", "slow"), new: claim("fast", "fast") }, &["slow"]);
        check(Event::Deleted { last: claim("fast", ""), revision: None }, &["fast"]);
        assert_eq!(classes_of_claim(&claim("fast", "slow")), ["fast", "slow"]);
    }

    #[test]
    fn a_running_pod_uses_its_claims_and_a_finished_one_does_not() {
        let claim: PersistentVolumeClaim = named("data");
        let with = |phase: &str, name: &str| {
            let mut pod = pod("p", "n", phase, None);
            let source = PersistentVolumeClaimVolumeSource { claim_name: name.into(), read_only: None };
            pod.spec.as_mut().unwrap().volumes =
                Some(vec![Volume { persistent_volume_claim: Some(source), ..Default::default() }]);
            pod
        };
        assert!(uses(&with("Running", "data"), &claim));
        assert!(!uses(&with("Succeeded", "data"), &claim));
        assert!(!uses(&with("Running", "other"), &claim));
    }
}
