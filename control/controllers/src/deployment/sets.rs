//! ReplicaSets as a Deployment sees them: sizes, revisions, annotations, order.

use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet, ReplicaSetSpec};
use k8s_openapi::api::core::v1::PodTemplateSpec;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::ResourceExt;
use kube::api::ObjectMeta;

use crate::ownership::controller_ref;
use crate::template_hash::{POD_TEMPLATE_HASH, template_hash};

pub const REVISION: &str = "deployment.kubernetes.io/revision";
const REVISION_HISTORY: &str = "deployment.kubernetes.io/revision-history";
const DESIRED_REPLICAS: &str = "deployment.kubernetes.io/desired-replicas";
const MAX_REPLICAS: &str = "deployment.kubernetes.io/max-replicas";

/// Not copied from the Deployment: they belong to it, or are kept per set.
const OWN_ANNOTATIONS: [&str; 6] = [
    "kubectl.kubernetes.io/last-applied-configuration",
    "deprecated.deployment.rollback.to",
    REVISION,
    REVISION_HISTORY,
    DESIRED_REPLICAS,
    MAX_REPLICAS,
];

/// How long the list of past revisions of one set may get.
const MAX_HISTORY: usize = 2000;

pub fn replicas(set: &ReplicaSet) -> i32 {
    set.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1)
}

pub fn available(set: &ReplicaSet) -> i32 {
    set.status.as_ref().and_then(|status| status.available_replicas).unwrap_or(0)
}

pub fn desired(deployment: &Deployment) -> i32 {
    deployment.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1)
}

/// How many pods above and below the wanted number a rollout may go; both 0 for Recreate.
pub fn bounds(deployment: &Deployment) -> (i32, i32) {
    let spec = deployment.spec.as_ref();
    let Some(strategy) = spec.and_then(|spec| spec.strategy.as_ref()) else { return (0, 0) };
    if strategy.type_.as_deref() == Some("Recreate") {
        return (0, 0);
    }
    let rolling = strategy.rolling_update.clone().unwrap_or_default();
    let wanted = desired(deployment);
    // Both are a user's: their sum is a number of pods all the same.
    let surge = share(rolling.max_surge.as_ref(), wanted, true).clamp(0, i32::MAX - wanted.max(0));
    let unavailable = share(rolling.max_unavailable.as_ref(), wanted, false);
    // Percentages of a small number may both come to nothing, and then nothing could move.
    let unavailable = if surge == 0 && unavailable == 0 { 1 } else { unavailable };
    (surge, unavailable.min(wanted))
}

/// A number, or a percentage of `whole`; validation lets nothing else through.
pub fn share(value: Option<&IntOrString>, whole: i32, round_up: bool) -> i32 {
    match value {
        None => 0,
        Some(IntOrString::Int(number)) => *number,
        Some(IntOrString::String(text)) => {
            let percent = text.strip_suffix('%').and_then(|digits| digits.parse::<i64>().ok()).unwrap_or(0);
            let exact = percent.saturating_mul(i64::from(whole));
            let rounded = if round_up {
                exact.div_euclid(100) + i64::from(exact % 100 != 0)
            } else {
                exact.div_euclid(100)
            };
            i32::try_from(rounded).unwrap_or(i32::MAX)
        }
    }
}

/// Do the Deployment and the set want the same pods? The hash is the set's own label.
pub fn same_template(deployment: &Deployment, set: &ReplicaSet) -> bool {
    let without_hash = |template: &PodTemplateSpec| {
        let mut template = template.clone();
        let meta = template.metadata.get_or_insert_default();
        let labels = meta.labels.get_or_insert_default();
        labels.remove(POD_TEMPLATE_HASH);
        template
    };
    let wanted = deployment.spec.as_ref().map(|spec| without_hash(&spec.template));
    let has = set.spec.as_ref().and_then(|spec| spec.template.as_ref()).map(without_hash);
    wanted == has
}

/// Splits into the set that has the Deployment's template and all others. Of several that do,
/// the oldest is it, so that the choice never changes.
pub fn split(deployment: &Deployment, mut sets: Vec<ReplicaSet>) -> (Option<ReplicaSet>, Vec<ReplicaSet>) {
    sort_by_age(&mut sets);
    let position = sets.iter().position(|set| same_template(deployment, set));
    let new = position.map(|position| sets.remove(position));
    (new, sets)
}

/// Oldest first.
pub fn sort_by_age(sets: &mut [ReplicaSet]) {
    sets.sort_by_key(|set| (set.metadata.creation_timestamp.clone(), set.name_any()));
}

pub fn revision(set: &ReplicaSet) -> Option<i64> {
    set.annotations().get(REVISION)?.parse().ok()
}

fn count_annotation(set: &ReplicaSet, key: &str) -> Option<i32> {
    set.annotations().get(key)?.parse().ok().filter(|count| *count >= 0)
}

/// The Deployment's size when this set was last scaled.
pub fn noted_desired(set: &ReplicaSet) -> Option<i32> {
    count_annotation(set, DESIRED_REPLICAS)
}

/// The most pods the Deployment could have then.
pub fn noted_max(set: &ReplicaSet) -> Option<i32> {
    count_annotation(set, MAX_REPLICAS).filter(|count| *count > 0)
}

/// Notes the Deployment's size on a set; true if that changed it.
pub fn note_size(deployment: &Deployment, set: &mut ReplicaSet) -> bool {
    let wanted = desired(deployment);
    let notes = [(DESIRED_REPLICAS, wanted), (MAX_REPLICAS, wanted + bounds(deployment).0)];
    let annotations = set.annotations_mut();
    let mut changed = false;
    for (key, count) in notes {
        changed |= annotations.insert(key.into(), count.to_string()) != Some(count.to_string());
    }
    changed
}

/// Brings the new set's annotations and minReadySeconds in line; true if that changed it.
pub fn follow(deployment: &Deployment, set: &mut ReplicaSet, new_revision: i64) -> bool {
    let before = set.clone();
    copy_annotations(deployment, set);
    note_revision(set, new_revision);
    let min_ready_seconds = deployment.spec.as_ref().and_then(|spec| spec.min_ready_seconds);
    let spec = set.spec.get_or_insert_default();
    if spec.min_ready_seconds.unwrap_or(0) != min_ready_seconds.unwrap_or(0) {
        spec.min_ready_seconds = min_ready_seconds;
    }
    *set != before
}

fn copy_annotations(deployment: &Deployment, set: &mut ReplicaSet) {
    for (key, value) in deployment.annotations() {
        if !OWN_ANNOTATIONS.contains(&key.as_str()) {
            set.annotations_mut().insert(key.clone(), value.clone());
        }
    }
}

/// Gives a set a higher revision. One it had before is a rollback's trace and is kept.
fn note_revision(set: &mut ReplicaSet, new: i64) {
    let previous = set.annotations().get(REVISION).cloned();
    let number = match &previous {
        None => 0,
        Some(text) => match text.parse::<i64>() {
            Ok(number) => number,
            // Someone wrote something else there; it is left to them.
            Err(_) => return,
        },
    };
    if number >= new {
        return;
    }
    set.annotations_mut().insert(REVISION.into(), new.to_string());
    if let Some(previous) = previous {
        let history = set.annotations().get(REVISION_HISTORY).cloned().unwrap_or_default();
        let mut entries: Vec<&str> = history.split(',').filter(|entry| !entry.is_empty()).collect();
        entries.push(&previous);
        while entries.len() > 1 && entries.iter().map(|entry| entry.len() + 1).sum::<usize>() > MAX_HISTORY {
            entries.remove(0);
        }
        let history = entries.join(",");
        set.annotations_mut().insert(REVISION_HISTORY.into(), history);
    }
}

/// The set for the Deployment's present template.
pub fn make(deployment: &Deployment, size: i32, revision: i64) -> ReplicaSet {
    let spec = deployment.spec.clone().unwrap_or_default();
    let collisions = deployment.status.as_ref().and_then(|status| status.collision_count);
    let hash = template_hash(&spec.template, collisions);
    let mut template = spec.template;
    let meta = template.metadata.get_or_insert_default();
    meta.labels.get_or_insert_default().insert(POD_TEMPLATE_HASH.into(), hash.clone());
    let labels = meta.labels.clone();
    let mut selector = spec.selector;
    selector.match_labels.get_or_insert_default().insert(POD_TEMPLATE_HASH.into(), hash.clone());
    let mut set = ReplicaSet {
        metadata: ObjectMeta {
            name: Some(set_name(&deployment.name_any(), &hash)),
            namespace: deployment.namespace(),
            labels,
            owner_references: Some(vec![controller_ref(deployment)]),
            ..Default::default()
        },
        spec: Some(ReplicaSetSpec {
            replicas: Some(size),
            min_ready_seconds: spec.min_ready_seconds,
            selector,
            template: Some(template),
        }),
        status: None,
    };
    copy_annotations(deployment, &mut set);
    note_revision(&mut set, revision);
    note_size(deployment, &mut set);
    set
}

/// Names end at 253 characters; the hash must stay.
fn set_name(deployment: &str, hash: &str) -> String {
    let room = 253usize.saturating_sub(hash.len() + 1);
    format!("{}-{hash}", &deployment[..deployment.floor_char_boundary(room)])
}
