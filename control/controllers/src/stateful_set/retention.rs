//! Who owns a claim, so that it goes with the set, with its pod, or with neither: the set's `persistentVolumeClaimRetentionPolicy`
//! as owner references, which the garbage collector acts on. Pure.

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::{Resource, ResourceExt};

use super::identity::{ordinal, ordinals};
use crate::ownership::controller_ref;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    /// Claims go when the set is deleted.
    pub with_set: bool,
    /// A claim goes when a scale-down takes its pod.
    pub with_pod: bool,
}

impl Retention {
    pub fn of(set: &StatefulSet) -> Retention {
        let policy =
            set.spec.as_ref().and_then(|spec| spec.persistent_volume_claim_retention_policy.as_ref());
        let deletes = |when: Option<&String>| when.is_some_and(|when| when == "Delete");
        Retention {
            with_set: deletes(policy.and_then(|policy| policy.when_deleted.as_ref())),
            with_pod: deletes(policy.and_then(|policy| policy.when_scaled.as_ref())),
        }
    }

    fn keeps_all(self) -> bool {
        !self.with_set && !self.with_pod
    }
}

#[derive(Debug, PartialEq)]
pub struct NewOwners {
    pub owners: Vec<OwnerReference>,
    /// Somebody else controls the claim: the policy does not apply to it.
    pub is_in_conflict: bool,
}

/// The owners that a pod's claim is to have; `None` where they are right, or not for the set to touch.
pub fn new_owners(claim: &PersistentVolumeClaim, set: &StatefulSet, pod: &Pod) -> Option<NewOwners> {
    let own = [controller_ref(set), controller_ref(pod)];
    let [of_set, of_pod] = &own;
    let owners = claim.owner_references();
    let is_stale =
        |owner: &OwnerReference| own.iter().any(|known| names(owner, known) && owner.uid != known.uid);
    if owners.iter().any(is_stale) {
        // A former set or pod of the name has it; the garbage collector sees to that.
        return None;
    }
    let retention = Retention::of(set);
    let is_own = |owner: &OwnerReference| own.iter().any(|known| names(owner, known));
    let is_controlled_elsewhere = owners.iter().any(|owner| owner.controller == Some(true) && !is_own(owner));
    let is_in_conflict = is_controlled_elsewhere && !retention.keeps_all();
    let is_condemned = !ordinal(set, pod).is_some_and(|ordinal| ordinals(set).contains(&ordinal));
    let with_pod = retention.with_pod && is_condemned && !is_in_conflict;
    let with_set = retention.with_set && !with_pod && !is_in_conflict;
    let wanted = [(of_set, with_set), (of_pod, with_pod)];
    let is_right = wanted.iter().all(|(own, is_wanted)| {
        let known = owners.iter().find(|owner| owner.uid == own.uid);
        known.is_some() == *is_wanted && known.is_none_or(|known| known.controller == Some(true))
    });
    if is_right {
        return None;
    }
    let others = owners.iter().filter(|owner| !is_own(owner));
    let added = wanted.iter().filter(|(_, is_wanted)| *is_wanted).map(|(own, _)| *own);
    Some(NewOwners { owners: others.chain(added).cloned().collect(), is_in_conflict })
}

/// Whether the claim goes with a pod of this name that there no longer is. A new pod must not get it.
pub fn goes_with_former_pod(claim: &PersistentVolumeClaim, set: &StatefulSet, pod_name: &str) -> bool {
    let is_pod = |owner: &OwnerReference| owner.kind == Pod::kind(&()) && owner.name == pod_name;
    Retention::of(set).with_pod && claim.owner_references().iter().any(is_pod)
}

fn names(owner: &OwnerReference, known: &OwnerReference) -> bool {
    (&owner.api_version, &owner.kind, &owner.name) == (&known.api_version, &known.kind, &known.name)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::apps::v1::{StatefulSetPersistentVolumeClaimRetentionPolicy, StatefulSetSpec};

    use super::*;
    use crate::testing::named;

    fn set(when_deleted: &str, when_scaled: &str) -> StatefulSet {
        let mut set: StatefulSet = named("web");
        let policy = StatefulSetPersistentVolumeClaimRetentionPolicy {
            when_deleted: Some(when_deleted.into()),
            when_scaled: Some(when_scaled.into()),
        };
        set.spec = Some(StatefulSetSpec {
            replicas: Some(2),
            persistent_volume_claim_retention_policy: Some(policy),
            ..Default::default()
        });
        set
    }

    fn claim(owners: &[OwnerReference]) -> PersistentVolumeClaim {
        let mut claim: PersistentVolumeClaim = named("data-web-0");
        claim.metadata.owner_references = Some(owners.to_vec());
        claim
    }

    fn other(controller: Option<bool>) -> OwnerReference {
        let (kind, name, uid) = ("ConfigMap".into(), "other".into(), "uid-other".into());
        OwnerReference { api_version: "v1".into(), kind, name, uid, controller, ..Default::default() }
    }

    /// The names of the new owners, of a claim that belongs to a pod of this number.
    fn check(set: &StatefulSet, ordinal: u32, owners: &[OwnerReference], expected: Option<(&[&str], bool)>) {
        let pod: Pod = named(&format!("web-{ordinal}"));
        let found = new_owners(&claim(owners), set, &pod);
        let found =
            found.map(|new| (new.owners.into_iter().map(|owner| owner.name).collect(), new.is_in_conflict));
        let expected = expected
            .map(|(names, conflict)| (names.iter().map(ToString::to_string).collect::<Vec<_>>(), conflict));
        assert_eq!(found, expected);
    }

    #[test]
    fn a_claim_goes_with_the_set_with_its_pod_or_with_neither() {
        let (of_set, of_pod) =
            (controller_ref(&named::<StatefulSet>("web")), controller_ref(&named::<Pod>("web-2")));
        for (deleted, scaled, kept, condemned) in [
            ("Retain", "Retain", None, None),
            ("Delete", "Retain", Some("web"), Some("web")),
            ("Retain", "Delete", None, Some("web-2")),
            ("Delete", "Delete", Some("web"), Some("web-2")),
        ] {
            let set = set(deleted, scaled);
            let wanted = |name: Option<&'static str>| name.into_iter().collect::<Vec<_>>();
            for (ordinal, expected) in [(0, wanted(kept)), (2, wanted(condemned))] {
                let changes = (!expected.is_empty()).then_some((&expected[..], false));
                check(&set, ordinal, &[], changes);
                let right = match expected.first() {
                    Some(&"web") => vec![of_set.clone()],
                    Some(_) => vec![of_pod.clone()],
                    None => vec![],
                };
                check(&set, ordinal, &right, None);
            }
        }
        check(&set("Retain", "Retain"), 0, &[of_set], Some((&[], false)));
    }

    #[test]
    fn owners_that_control_nothing_stay_and_ours_come_to_control() {
        let deletes = set("Delete", "Retain");
        check(&deletes, 0, &[other(None)], Some((&["other", "web"], false)));
        let weak = OwnerReference { controller: None, ..controller_ref(&deletes) };
        check(&deletes, 0, &[weak], Some((&["web"], false)));
    }

    #[test]
    fn a_claim_that_somebody_else_controls_is_left_to_them() {
        let deletes = set("Delete", "Delete");
        check(&deletes, 0, &[other(Some(true))], None);
        check(&deletes, 0, &[other(Some(true)), controller_ref(&deletes)], Some((&["other"], true)));
        let mut former = controller_ref(&deletes);
        former.uid = "uid-former".into();
        check(&deletes, 0, &[former], None);
    }

    #[test]
    fn a_new_pod_waits_until_the_claim_of_the_former_is_gone() {
        let former = claim(&[controller_ref(&named::<Pod>("web-0"))]);
        assert!(goes_with_former_pod(&former, &set("Retain", "Delete"), "web-0"));
        assert!(!goes_with_former_pod(&former, &set("Retain", "Delete"), "web-1"));
        assert!(!goes_with_former_pod(&former, &set("Delete", "Retain"), "web-0"));
    }
}
